"""Rows of tokens for training language models."""

import pickle
import warnings

import numpy as np
import pytest
from conversations import random_conversation, reference_rows, store

import expdb
from expdb import Episode, Group, Tokens, Uniform, errors
from expdb.replay import token_rows
from expdb.storage import annotate

ALL = Uniform(replace=False)
THRESHOLD = 8


@pytest.fixture
def train(new_buffer):
    return new_buffer(fields=expdb.TOKEN_FIELDS)


@pytest.fixture(autouse=True)
def warned(monkeypatch):
    """Suppress the warnings about lost tokens and new rows, which are emitted once per process."""
    monkeypatch.setattr(token_rows, "_warned", {"lost tokens", "drift"})


def turn(prompt, output, mask=None, **options):
    step = {"prompt_ids": prompt, "output_ids": output, **options}
    step["output_mask"] = [True] * len(output) if mask is None else mask
    step.setdefault("logprobs", [-1.0] * len(output))
    return step


def everything(buffer, unit, size, **options):
    return buffer.sample(size, sampler=ALL, unit=unit, **options)


def rows_of(batch):
    """Return (ids, mask, logprobs) of each row without padding, as sorted lists."""
    lengths = batch["attention_mask"].sum(1)
    return sorted(
        [array[row, : lengths[row]].tolist() for array in (batch[name] for name in names)]
        for row in range(batch.size)
        for names in [("input_ids", "loss_mask", "logprobs")]
    )


def test_rows_match_a_reference_implementation(train):
    rng = np.random.default_rng(1)
    conversations = [random_conversation(rng, THRESHOLD) for _ in range(200)]
    expected = []
    for k, turns in enumerate(conversations):
        store(train, turns, episode_id=f"e{k}")
        expected += reference_rows(turns, THRESHOLD)
    batch = everything(train, Tokens(drift_threshold=THRESHOLD), 200)
    assert rows_of(batch) == sorted([row["ids"], row["mask"], row["logprobs"]] for row in expected)
    assert batch["lost_tokens"].sum() == sum(row["lost"] for row in expected) > 0
    assert (batch["loss_tokens"] == sum(sum(row["mask"]) for row in expected)).all()
    assert (batch["position_ids"][batch["attention_mask"]] >= 0).all()
    assert not batch["input_ids"][~batch["attention_mask"]].any()
    assert not batch["loss_mask"][~batch["attention_mask"]].any()
    keys = [key for key, array in batch.items() if array.dtype == object]
    assert keys == []


def test_packed_rows_hold_whole_rollouts(train):
    rng = np.random.default_rng(3)
    for k in range(60):
        store(train, random_conversation(rng, THRESHOLD), episode_id=f"e{k}")
    apart = everything(train, Tokens(drift_threshold=THRESHOLD), 60)
    width = int(apart["attention_mask"].sum(1).max()) + 20
    packed = everything(train, Tokens(drift_threshold=THRESHOLD, max_tokens=width, pack=True), 60)
    assert packed["input_ids"].shape[1] <= width
    assert packed.size < apart.size
    rows = []
    for row in range(packed.size):
        for segment in range(1, packed["segment_ids"][row].max() + 1):
            at = packed["segment_ids"][row] == segment
            assert packed["position_ids"][row, at].tolist() == list(range(at.sum()))
            rows.append(
                [packed[name][row, at].tolist() for name in ("input_ids", "loss_mask", "logprobs")]
            )
        assert (packed["rollout"][row] >= 0).sum() == packed["segment_ids"][row].max()
    assert sorted(rows) == rows_of(apart)
    total = apart["attention_mask"].sum()
    assert packed.size <= -(-int(total) // width) * 1.5


@pytest.mark.parametrize("overlong", ["cut", "mask", "drop", "error"])
def test_rows_above_max_tokens_are_cut_masked_dropped_or_rejected(train, overlong):
    store(train, [turn([1, 2], [3, 4, 5, 6])], episode_id="long")
    store(train, [turn([1], [2, 3])], episode_id="short")
    unit = Tokens(max_tokens=4, overlong=overlong)
    if overlong == "error":
        with pytest.raises(expdb.InvalidValue, match="row of 6 tokens, but max_tokens is 4"):
            everything(train, unit, 2)
        return
    rows = rows_of(everything(train, unit, 2))
    short = [[1, 2, 3], [False, True, True], [0.0, -1.0, -1.0]]
    cut = [[1, 2, 3, 4], [False, False, True, True], [0.0, 0.0, -1.0, -1.0]]
    if overlong == "mask":
        cut[1] = [False] * 4
    assert rows == ([short] if overlong == "drop" else [short, cut])


@pytest.mark.parametrize("pack", [False, True])
def test_a_rollout_without_trainable_tokens_does_not_block_a_consumer(train, pack):
    for k in range(3):
        store(train, [turn([1, 2], [3], [k == 1])], episode_id=f"e{k}")
    consumer, sizes = train.consumer("c", max_times_sampled=1), []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lease = consumer.lease(
                1, unit=Tokens(max_tokens=9, pack=pack), sampler=expdb.Ordered("position")
            )
        batch = lease.batch
        sizes.append(int(batch["attention_mask"].sum()))
        messages = " ".join(str(warning.message) for warning in caught)
        assert ("no row is left for the 1 rollouts" in messages) == (sizes[-1] == 0)
        assert batch["loss_tokens"].tolist() == [1]
        assert batch.annotate(entropies=np.ones(batch["input_ids"].shape)) == (sizes[-1] > 0)
        lease.acknowledge()
    assert sizes == [0, 3, 0]
    with pytest.warns(errors.ExpDBWarning, match="no row is left for the 1 rollouts"):
        assert [batch.size for batch in train.replay("c")] == [1, 1, 1]


def test_versions_and_values_of_turns_are_repeated_for_their_tokens(train):
    train.store(episode_id="e", policy_version=3, **turn([1], [2, 3]), quality=0.5)
    train.store(
        episode_id="e", policy_version=4, truncated=True, **turn([1, 2, 3, 9], [5, 6, 7]),
        versions=[4, 5, 5], quality=0.25,
    )  # fmt: skip
    train.annotate([0, 1], entropies=[[0.1, 0.2], [0.3, 0.4, 0.5]])
    batch = everything(train, Tokens(), 1, fields=["quality", "entropies", "step"])
    assert batch["policy_version"].tolist() == [[-1, 3, 3, -1, 4, 5, 5]]
    assert batch["quality"].tolist() == [[0, 0.5, 0.5, 0, 0.25, 0.25, 0.25]]
    assert batch["entropies"].tolist() == [[0, 0.1, 0.2, 0, 0.3, 0.4, 0.5]]
    assert batch["step"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert batch["token_step"].tolist() == [[-1, 0, 0, -1, 1, 1, 1]]
    assert batch["token_index"].tolist() == [[-1, 0, 1, -1, 0, 1, 2]]


def test_agent_selects_only_the_turns_of_that_agent(train):
    for k, agent in enumerate(["white", "black", "white"]):
        train.store(episode_id="e", agent_id=agent, truncated=k == 2, **turn([k], [10 + k]))
    batch = everything(train, Tokens(agent="white"), 1)
    assert sorted(batch["input_ids"].tolist()) == [[0, 10], [2, 12]]
    batch = everything(train, Tokens(agent="black"), 1)
    assert batch["input_ids"].tolist() == [[1, 11]]


def test_a_batch_may_mix_rollouts_with_and_without_a_field(train):
    for k in range(4):
        step = turn([1], [2, 3 + k])
        if k % 2 == 0:
            del step["logprobs"]
        else:
            step["versions"] = [5, 5 + k]
        version = {"policy_version": k} if k % 2 == 0 else {}
        train.store(episode_id=f"e{k}", **version, terminated=True, **step)
    batch = everything(train, Tokens(), 4)
    order = batch["episode"].argsort()
    assert np.isnan(batch["logprobs"][order, 1]).tolist() == [True, False, True, False]
    assert batch["policy_version"][order, 1:].tolist() == [[0, 0], [5, 6], [2, 2], [5, 8]]


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ("trl", ("completion_mask", "old_log_probs", "advantages")),
        ("verl", ("response_mask", "rollout_log_probs", "advantages")),
        ("skyrl", ("sequences", "rollout_logprobs", "advantages")),
    ],
)
def test_names_selects_the_batch_keys_of_other_libraries(train, names, keys):
    for k in range(2):
        store(train, [turn([1], [2 + k], reward=float(k))], group_id="g")
    batch = everything(train, Tokens(of=Group(2), advantage="rloo", names=names), 1)
    assert set(keys) <= set(batch)


def test_lost_tokens_cause_a_single_warning(train, monkeypatch):
    monkeypatch.setattr(token_rows, "_warned", set())
    store(train, [turn([1], [2, 3]), turn([1, 2, 4], [5])])
    with pytest.warns(errors.ExpDBWarning, match="1 generated tokens of this batch"):
        batch = everything(train, Tokens(), 1)
    assert batch["input_ids"].tolist() == [[1, 2, 4, 5]]
    assert batch["loss_mask"].tolist() == [[False, True, False, True]]
    assert batch["lost_tokens"].tolist() == [1]
    everything(train, Tokens(), 1)


def test_tokens_of_a_buffer_without_token_fields_name_the_fields(new_buffer):
    buffer = new_buffer()
    buffer.store(obs=1.0, terminated=True)
    with pytest.raises(expdb.QueryError, match=r"no field '(prompt|output)_ids'; create it with"):
        buffer.sample(1, unit=Tokens())


def test_lost_tokens_include_omitted_rows(train):
    omitted = [turn([1], [2, 3], [False, True]), turn([1, 2, 4], [5], [False])]
    store(train, [*omitted, turn([9], [8])])
    batch = everything(train, Tokens(), 1)
    assert (batch["input_ids"].tolist(), batch["lost_tokens"].tolist()) == ([[9, 8]], [1])
    train.clear()
    long = [turn([1, 2, 3, 4], [5, 6]), turn([1, 2, 3, 4, 5, 7], [8])]  # the output 6 is lost
    store(train, [*long, turn([9], [10])])
    batch = everything(train, Tokens(max_tokens=4), 1)  # omits the long row
    assert (batch["input_ids"].tolist(), batch["lost_tokens"].tolist()) == ([[9, 10]], [1])


# -- advantages ------------------------------------------------------------------------------------


def plain_advantages(name, groups, lengths):
    """Return the advantage of each rollout, computed directly from its formula."""
    out = []
    scores = np.array([score for group in groups for score in group])
    weights = np.array([length for group in lengths for length in group])
    mean = np.average(scores, weights=weights)
    deviation = np.sqrt(np.average((scores - mean) ** 2, weights=weights))
    for group in groups:
        for k, score in enumerate(group):
            others = [other for place, other in enumerate(group) if place != k]
            out.append(
                {
                    "grpo": (score - np.mean(group)) / (np.std(group, ddof=1) + 1e-6),
                    "dr_grpo": score - np.mean(group),
                    "rloo": score - np.mean(others),
                    "reinforce++": (score - mean) / (deviation + 1e-6),
                }[name]
            )
    return out


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce++", "callable"])
def test_advantages_equal_their_formulas(train, name):
    rng = np.random.default_rng(4)
    groups = rng.random((6, 4)).round(2)
    lengths = rng.integers(1, 9, (6, 4))
    for g, scores in enumerate(groups):
        for k, score in enumerate(scores):
            ids = list(range(int(lengths[g, k])))
            store(train, [turn([g], ids, reward=float(score))], group_id=f"g{g}",
                  episode_id=f"{g}/{k}")  # fmt: skip
    received = []

    def function(scores, lengths, mask):
        received.append((scores, lengths, mask))
        return scores * lengths

    advantage = function if name == "callable" else name
    unit = Tokens(of=Group(4), advantage=advantage, max_tokens=4)
    batch = everything(train, unit, 6)
    trained = batch["loss_mask"]
    assert not batch["advantage"][~trained].any()
    values = batch["advantage"][np.arange(batch.size), trained.argmax(1)]
    for row, value in enumerate(values):
        assert (batch["advantage"][row][trained[row]] == value).all()
    order = np.argsort(batch["episode"])  # the rollouts were stored group by group
    if name == "callable":
        (given,) = received
        assert sorted(given[1].reshape(-1).tolist()) == sorted(lengths.reshape(-1).tolist())
        expected = (groups * lengths).reshape(-1)
    else:
        expected = plain_advantages(name, groups.tolist(), lengths.tolist())
    np.testing.assert_allclose(values[order], expected, rtol=1e-5, atol=1e-6)


def test_advantages_with_a_score_ignore_returns(train):
    for k in range(2):
        name = store(train, [turn([1], [2 + k])], group_id="g", episode_id=f"e{k}")
        train.score(episode_id=name, name="judge", value=float(k))
    batch = everything(train, Tokens(of=Group(2, score="judge"), advantage="dr_grpo"), 1)
    order = np.argsort(batch["reward"])
    assert batch["reward"][order].tolist() == [0.0, 1.0]
    assert batch["advantage"][order].max(1).tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": expdb.Step()}, "of must be an Episode, a Group or Pairs"),
        ({"of": Episode(pad=False)}, "pad=False"), ({"pack": True}, "also pass max_tokens"),
        ({"advantage": "grpo"}, r"pass of=expdb\.Group"),
        ({"of": Group(2), "advantage": "gae"}, "advantage must be"),
        *(({name: value}, f"{name} must be") for name, value in [
            ("drift_threshold", None), ("drift_threshold", 0), ("pad_id", None), ("max_tokens", 0),
            ("budget", 0), ("overlong", "truncate"), ("names", "prime"), ("agent", 3),
        ]),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(expdb.InvalidValue, match=message):
        Tokens(**settings)


def test_masked_tokens_have_an_advantage_of_0(train):
    for k in range(2):
        store(
            train, [turn([1], [2, 3, 4], mask=[True, False, True], reward=float(k))], group_id="g"
        )
    batch = everything(train, Tokens(of=Group(2), advantage="dr_grpo"), 1)
    assert batch["advantage"].tolist() == [[0, -0.5, 0, -0.5], [0, 0.5, 0, 0.5]]


def test_a_field_keeps_its_type_if_some_rollouts_lack_it(db):
    large = expdb.Field("int64", (None,), ascending=True)
    vectors = expdb.Field("float32", (None, 3), aligned_with="output_ids")
    fields = {**expdb.TOKEN_FIELDS, "large": large, "vectors": vectors}
    buffer = db.buffer("types", fields=fields)
    step = turn([1], [2])
    values = {"large": [2**60 + 1], "vectors": np.ones((1, 3), np.float32)}
    buffer.store_batch([  # in one chunk
        {"episode_id": "e0", "truncated": True, **step},
        {"episode_id": "e1", "truncated": True, **step, **values},
    ])  # fmt: skip
    batch = everything(buffer, Tokens(), 2, fields=["large", "vectors"])
    order = batch["episode"].argsort()
    assert batch["large"].dtype == np.int64
    assert batch["large"][order].tolist() == [[0, 0], [0, 2**60 + 1]]
    assert batch["vectors"].dtype == np.float32
    assert batch["vectors"][order, 1].tolist() == [[0, 0, 0], [1, 1, 1]]
    alone = buffer.sample(1, {"episode_id": "e0"}, unit=Tokens(), fields=["large"])
    assert (alone["large"].dtype, alone["large"].tolist()) == (np.int64, [[0, 0]])


def test_steps_have_the_policy_version_of_their_first_token(train):
    with train.episode("t", episode_id="e", policy_version=5) as episode:
        episode.append(**turn([1], [2, 3], versions=[5, 6]))
        episode.append(**turn([1], [2, 3], versions=np.array([3, 4], np.int32)))
        episode.append(**turn([1], [2, 3], versions=[7, 7]), policy_version=7)
        episode.append(**turn([1], [2]))
        with pytest.raises(errors.InvalidValue, match=r"policy_version is 5, .* are 0 to 5; omit"):
            episode.append(**turn([1], [2, 3], versions=[0, 5]), policy_version=5)
        with pytest.raises(errors.InvalidValue, match=r"policy_version_end is 6, .* or pass 5"):
            episode.append(**turn([1], [2, 3], versions=[0, 5]), policy_version_end=6)
        with pytest.raises(errors.FieldMismatch, match="versions"):
            episode.append(**turn([1], [2, 3], versions=["a", 5]))
    rows = train.get(range(4), fields=["policy_version", "policy_version_end"])
    assert rows["policy_version"].tolist() == [5, 3, 7, 5]
    assert rows["policy_version_end"].tolist() == [6, 4, 7, 5]
    (stored,) = train.episodes().to_pylist()
    assert (stored["first_policy_version"], stored["last_policy_version"]) == (3, 7)
    step = turn([1], [2, 3], versions=[8, 9])
    first = train.store(task_id="t", episode_id="again", step=0, **step)
    assert train.store(task_id="t", episode_id="again", step=0, **step) == first


def test_doctor_lists_steps_whose_versions_differ_from_those_of_their_tokens(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        for version in (1, 2):
            step = turn([1], [2, 3], versions=[version, 3])
            buffer.store(task_id="t", episode_id=f"e{version}", policy_version=version, **step)
        assert not [found for found in db.doctor() if "policy versions" in str(found)]
        with buffer._store.writing() as (session, _):  # earlier versions of expdb stored such steps
            session.execute("UPDATE episodes SET policy_version = 3 WHERE episode_id = 'e1'")
        (found,) = [found for found in db.doctor() if "policy versions" in str(found)]
        assert "1 of the newest 10,000 steps, for example the step at position 0" in str(found)


@pytest.mark.parametrize("pack", [False, True])
def test_values_of_turns_are_not_repeated_for_each_token(new_buffer, pack):
    patches = expdb.Field("float32", (None, 2))
    train = new_buffer(fields={**expdb.TOKEN_FIELDS, "patches": patches})
    for k in range(2):
        steps = [turn([1], [2, 3]), turn([1, 2, 3, 4], [5])]
        for place, step in enumerate(steps[: 2 - k]):
            step["image"] = np.full((2, 2), 10 * k + place, np.uint8)
            step["result"] = {"text": f"{k}/{place}"}
            if not place:
                step["patches"] = np.full((3, 2), k, np.float32)
        store(train, steps[: 2 - k], episode_id=f"e{k}")
    unit = Tokens(pack=pack, max_tokens=8)
    batch = train.sample(
        2, unit=unit, fields=["image", "patches", "result"], sampler=expdb.Ordered("position")
    )
    outputs = np.isin(batch["input_ids"], [2, 3, 5]) & batch["loss_mask"]
    rows, columns = outputs.nonzero()
    turns = batch["turn_of_token"][rows, columns]
    images = batch["image"][rows, turns]
    assert images[:, 0, 0].tolist() == [0, 0, 1, 10, 10]
    assert (batch["turn_of_token"][~outputs] == -1).all()
    assert batch["image"].shape == ((1, 3, 2, 2) if pack else (2, 2, 2, 2))
    assert [value["text"] for value in batch["result"][rows, turns]] == [
        "0/0", "0/0", "0/1", "1/0", "1/0",
    ]  # fmt: skip
    shapes = [None if value is None else value.shape for value in batch["patches"][rows, turns]]
    assert shapes == [(3, 2), (3, 2), None, (3, 2), (3, 2)]
    assert batch["has_patches"][rows, turns].tolist() == [True, True, False, True, True]
    (part, other) = (unit.shard(batch, rank, 2) for rank in range(2))
    assert part["image"].shape[1:] == other["image"].shape[1:] == batch["image"].shape[1:]


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        *(({setting: name}, None, f"'{name}' must contain one-dimensional arrays")
          for setting, name in (("prompt", "text"), ("output_mask", "matrix"),
                                ("versions", "vectors"))),
        *(({setting: "wrong"}, None, f"{setting}='wrong' is not a field")
          for setting in ("logprobs", "output_mask", "versions")),
        ({"output_mask": "one"}, None, "'one' has 1 values for a turn with 2"),
        ({}, ["three"], "'three' has 3 values for a turn with 2"),
        ({}, ["episode_return"], "must not contain 'episode_return', because Tokens"),
        ({"names": "trl"}, ["completion_mask"], "must not contain 'completion_mask'"),
        ({"pad_id": 2**40}, None, "pad_id 1099511627776 does not fit"),
        ({"advantage": "reinforce++"}, None, "score of 1 of 1 drawn rollouts is unknown"),
    ],
)  # fmt: skip
def test_requests_that_the_stored_turns_do_not_allow_are_rejected(
    new_buffer, settings, fields, message
):
    bools, vectors = expdb.Field("bool", (None,)), expdb.Field("int32", (None, 3))
    kinds = {"one": bools, "three": bools, "vectors": vectors}
    buffer = new_buffer(fields={**expdb.TOKEN_FIELDS, **kinds})
    buffer.store(
        episode_id="e", truncated=True, **turn([1, 2], [3, 4]), text="ab", completion_mask=7.0,
        one=np.ones(1, bool), three=np.ones(3, bool), vectors=np.ones((1, 3), np.int32),
        matrix=np.zeros((2, 2), np.int32),
    )  # fmt: skip
    with pytest.raises(expdb.InvalidValue, match=message):
        everything(buffer, Tokens(**settings), 1, fields=fields)


def test_a_turn_without_a_prompt_is_reported(train):
    train.store(episode_id="e", **turn([1], [2]))
    train.store(episode_id="e", output_ids=[3, 4])
    train.store(episode_id="e", truncated=True, **turn([1, 2, 3, 4], [5]))
    with pytest.warns(errors.ExpDBWarning, match="1 turns of this batch have 'output_ids' but no"):
        batch = everything(train, Tokens(), 1)
    assert batch["loss_mask"].tolist() == [[False, True, False, False, True]]


def test_prompts_without_the_earlier_tokens_are_reported_once(train, monkeypatch):
    monkeypatch.setattr(token_rows, "_warned", set())
    for k in range(5):
        store(train, [turn([1, k], [2]), turn([3], [4]), turn([5, 6], [7])], episode_id=f"e{k}")
    with pytest.warns(errors.ExpDBWarning, match="10 of 10 later prompts in this batch do not"):
        batch = everything(train, Tokens(), 5)
    assert batch.size == 15
    store(train, [turn([1], [2]), turn([1, 2, 3], [4])], episode_id="whole")
    assert everything(train, Tokens(), 6).size == 16


@pytest.mark.parametrize(
    ("missing", "unit", "reason"),
    [
        ("prompt_ids", Tokens(), "no turn has 'prompt_ids'"),
        ("output_ids", Tokens(), "no turn has 'output_ids'"),
        (None, Tokens(agent="White"), "no turn has the agent 'White'"),
    ],
)
def test_the_warning_for_a_batch_without_rows_names_the_reason(train, missing, unit, reason):
    step = turn([1], [2])
    if missing == "output_ids":
        step = {"prompt_ids": [1]}
    elif missing is not None:
        del step[missing]
    train.store(episode_id="e", agent_id="white", truncated=True, **step)
    with pytest.warns(errors.ExpDBWarning, match=reason):
        everything(train, unit, 1)


@pytest.mark.parametrize("pack", [False, True])
def test_columns_of_episodes_have_one_value_per_rollout(train, pack):
    for k in range(2):
        store(train, [turn([1], [2]), turn([5], [3])], task=f"t{k}", group_id="g")
    unit = Tokens(max_tokens=100, pack=pack)
    batch = everything(train, unit, 2, fields=["task_id", "policy_version_end"])
    assert batch["task_id"].shape == batch["episode"].shape
    tasks = batch["task_id"].reshape(-1).tolist()
    assert sorted(tasks) == ["t0", "t0", "t1", "t1"]
    assert tasks[0] == tasks[1]


def test_both_rollouts_of_a_pair_are_dropped_or_sharded_together(train):
    rng = np.random.default_rng(8)
    for g in range(8):
        for k in range(2):
            length = 30 if (g, k) == (3, 1) else int(rng.integers(1, 9))
            store(train, [turn([g], [k] * length, reward=float(k))], group_id=f"g{g}")
    pairs = expdb.Pairs()
    unit = Tokens(of=pairs, max_tokens=20, overlong="drop")
    batch = everything(train, unit, 8)
    assert batch.size == 14  # the pair with the long rollout is left out
    for rank in range(2):
        rollouts = unit.shard(batch, rank, 2)["rollout"]
        own = set(rollouts[rollouts >= 0].tolist())
        assert own == {rollout ^ 1 for rollout in own}


@pytest.mark.parametrize("pack", [False, True])
def test_shared_and_replay_repeat_a_leased_batch_bit_for_bit(train, pack):
    rng = np.random.default_rng(5)
    for g in range(4):
        for k in range(3):
            turns = random_conversation(rng, THRESHOLD)
            turns[0] |= {"prompt_ids": [1], "output_ids": [2], "output_mask": [True],
                         "logprobs": [-1.0], "reward": float(k)}  # fmt: skip
            store(train, turns, group_id=f"g{g}", episode_id=f"{g}/{k}")
    unit = Tokens(of=Group(3), max_tokens=300, pack=pack, advantage="grpo")
    consumer = train.consumer("trainer", max_times_sampled=1)
    lease = consumer.lease(2, unit=unit, sampler=ALL, trainer_step=1)
    shared = consumer.shared(lease.id)
    lease.acknowledge()
    (again,) = train.replay("trainer")
    for other in (shared, again):
        assert list(other) == list(lease.batch)
        for key, array in lease.batch.items():
            np.testing.assert_array_equal(other[key], array)
            assert other[key].dtype == array.dtype


@pytest.mark.parametrize("pack", [False, True])
def test_annotations_of_a_token_batch_are_stored_per_turn(train, pack):
    rng = np.random.default_rng(6)
    for k in range(40):
        store(train, random_conversation(rng, THRESHOLD), episode_id=f"e{k}")
    unit = Tokens(drift_threshold=1, max_tokens=500, pack=pack)
    batch = everything(train, unit, 40)
    values = rng.random(batch["input_ids"].shape, np.float32)
    vectors = rng.random((*values.shape, 2))
    batch.annotate(3, new_logprobs=values, pairs=vectors)
    there = batch["token_step"] >= 0
    steps = np.unique(batch["token_step"][there])
    turns = train.get(steps, fields=["position", "new_logprobs@3", "pairs", "output_ids"])
    for row, step in enumerate(steps.tolist()):
        at = batch["token_step"] == step
        assert turns["position"][row] == step
        order = np.argsort(batch["token_index"][at])
        assert turns["new_logprobs@3"][row].tolist() == values[at][order].tolist()
        assert turns["pairs"][row].tolist() == vectors[at][order].tolist()
    again = everything(train, unit, 40, fields=["new_logprobs"])
    np.testing.assert_array_equal(
        again["new_logprobs"][again["token_step"] == steps[0]],
        turns["new_logprobs@3"][0],
    )


def test_tokens_outside_the_batch_are_annotated_with_nan(train):
    store(train, [turn([1], [2, 3, 4])])
    batch = everything(train, Tokens(max_tokens=3), 1)
    batch.annotate(entropies=np.ones((1, 3)))
    np.testing.assert_array_equal(
        train.get([0], fields=["entropies"])["entropies"][0], [1, 1, np.nan]
    )
    with pytest.raises(expdb.InvalidValue, match="has no value for 1 generated tokens"):
        batch.annotate(counts=np.ones((1, 3), np.int64))
    with pytest.raises(expdb.InvalidValue, match=r"has shape \[1, 4\], but the tokens .* \[1, 3\]"):
        batch.annotate(entropies=np.ones((1, 4)))


def test_only_a_batch_of_tokens_can_be_annotated(train):
    store(train, [turn([1], [2])])
    with pytest.raises(expdb.InvalidValue, match="requires a batch"):
        train.sample(1).annotate(x=[1.0])


def fill_groups(buffer, groups=8, size=4, seed=7):
    rng = np.random.default_rng(seed)
    for g in range(groups):
        for k in range(size):
            turns = random_conversation(rng, THRESHOLD)
            turns.append(turn([g], [k], reward=float(k)))
            store(buffer, turns, group_id=f"g{g}", episode_id=f"{g}/{k}")


@pytest.mark.parametrize(("ranks", "pack"), [(4, False), (2, True)])
def test_shards_of_all_ranks_add_up_to_the_whole_batch(location, ranks, pack):
    with expdb.open(location) as db:
        buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
        fill_groups(buffer)
        unit = Tokens(of=Group(4), max_tokens=200, pack=pack, advantage="grpo", pad_id=7)
        whole = buffer.consumer("c").lease(8, unit=unit, sampler=ALL, trainer_step=1, pin=True)
        parts = []
        for rank in range(ranks):
            with expdb.open(location) as other:  # like a handle of another process
                consumer = other.buffer("tokens").consumer("c")
                parts.append(consumer.shared(whole.id, shard=(rank, ranks), rows_multiple=4))
    batch = whole.batch
    assert len({part.size for part in parts}) == 1
    assert parts[0].size % 4 == 0
    tokens = [int(part["attention_mask"].sum()) for part in parts]
    assert sum(tokens) == batch["attention_mask"].sum()
    # Packed rows have equal lengths, so the ranks may differ by one row.
    assert max(tokens) - min(tokens) <= (200 if pack else 0.05 * np.mean(tokens))
    names = {name for name in batch if name not in ("loss_tokens", "rollouts")}
    rows = []
    rollouts = []
    for part in parts:
        assert (part["loss_tokens"] == batch["loss_tokens"][0]).all()
        assert (part["rollouts"] == batch["rollouts"][0]).all()
        is_row = part["attention_mask"].any(1)
        blank = {name: part[name][~is_row] for name in names}
        assert (blank["input_ids"] == 7).all()
        assert not blank["loss_mask"].any()
        assert (blank["rollout"] == -1).all()
        assert np.isnan(blank["reward"]).all()
        rows += [
            {name: part[name][row].tobytes() for name in names} for row in np.flatnonzero(is_row)
        ]
        own = part["rollout"][is_row]
        rollouts.append(set(own[own >= 0].tolist()))
    expected = [{name: batch[name][row].tobytes() for name in names} for row in range(batch.size)]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    for k, own in enumerate(rollouts):
        for other in rollouts[k + 1 :]:
            assert own.isdisjoint(other)


def test_shared_rejects_a_shard_that_differs_from_the_lease(train):
    for k in range(4):
        store(train, [turn([1], [2 + k])])
    consumer = train.consumer("trainer")
    for unit, more in ((Tokens(), 2), (Episode(), 1)):
        lease = consumer.lease(4, unit=unit, sampler=ALL, shard=(0, 2), rows_multiple=more)
        message = f"among 2 ranks with rows_multiple={more}"
        wrong = [{"shard": (1, 3), "rows_multiple": more}]
        wrong += [{"shard": (1, 2)}, {"rows_multiple": 2}] if more == 2 else []
        for arguments in wrong:
            with pytest.raises(expdb.InvalidValue, match=message):
                consumer.shared(lease.id, **arguments)
        part = consumer.shared(lease.id, shard=(1, 2), rows_multiple=more)
        assert part.size == lease.batch.size == 2
        assert consumer.shared(lease.id).size == 4
        lease.acknowledge()
    whole = consumer.lease(4, unit=Tokens(), sampler=ALL)
    assert consumer.shared(whole.id, shard=(1, 4)).size == 1


def test_rows_multiple_requires_tokens(train):
    train.store(episode_id="e", **turn([1], [2]))
    consumer = train.consumer("c")
    with pytest.raises(
        expdb.InvalidValue, match="rows_multiple=8 requires a unit that can add empty rows"
    ):
        consumer.lease(1, rows_multiple=8)
    assert consumer.stats()["leased"] == 0


def test_a_rollout_drawn_several_times_can_be_annotated(train):
    store(train, [turn([1], list(range(20)))])
    batch = train.sample(8, unit=Tokens(max_tokens=11), sampler=Uniform(replace=True))
    values = np.tile(np.arange(11.0), (8, 1))
    batch.annotate(entropies=values)
    stored = train.get([0], fields=["entropies"])["entropies"][0]
    np.testing.assert_array_equal(stored, [*range(1, 11), *[np.nan] * 10])
    with pytest.raises(expdb.InvalidValue, match="has no value for 10 generated tokens"):
        batch.annotate(counts=values.astype(np.int64))


def test_a_batch_can_be_sent_to_another_process(train):
    store(train, [turn([1], [2])])
    batch = everything(train, Tokens(), 1)
    copy = pickle.loads(pickle.dumps(batch))
    assert list(copy) == list(batch)
    assert copy["input_ids"].tolist() == [[1, 2]]
    with pytest.raises(expdb.InvalidValue, match="a buffer of this process"):
        copy.annotate(x=np.ones((1, 2)))


def test_prompts_and_outputs_may_have_different_types(db):
    kinds = {"p": expdb.Field("int64", (None,)), "o": expdb.Field("uint16", (None,))}
    buffer = db.buffer("mixed", fields=kinds)
    texts = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [60_000])]
    for k, (prompt, output) in enumerate(texts):
        output = np.array(output, np.uint16)
        buffer.store(episode_id="e", p=np.array(prompt), o=output, truncated=k == 1)
    batch = everything(buffer, Tokens(prompt="p", output="o"), 1)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 4, 5, 60_000]]
    assert batch["loss_mask"].tolist() == [[False, False, True, True, False, True]]
    assert batch["lost_tokens"].tolist() == [0]


def test_a_rank_without_rollouts_annotates_nothing(train):
    fill_groups(train, groups=1, size=1)
    consumer = train.consumer("c")
    unit = Tokens(drift_threshold=10_000, max_tokens=500, pack=True)
    lease = consumer.lease(1, unit=unit, sampler=ALL, pin=True)
    part = consumer.shared(lease.id, shard=(1, 2), rows_multiple=2)
    assert part.annotate(x=np.ones(part["input_ids"].shape)) == 0


def test_a_field_may_have_the_name_of_a_key_of_another_library(train):
    train.store(episode_id="e", truncated=True, **turn([1], [2]), completion_mask=7.0)
    assert everything(train, Tokens(), 1, fields=["completion_mask"])["completion_mask"].max() == 7


def test_steps_without_tokens_are_skipped_for_fields_of_fixed_shape(db):
    buffer = db.buffer("fixed")
    ids = np.array([1, 2], np.int32)
    buffer.store(episode_id="e", prompt=ids, answer=ids + 2, x=0.0)
    buffer.store(episode_id="e", x=1.0)
    buffer.store(episode_id="e", prompt=ids, answer=ids + 4, x=0.0, truncated=True)
    unit = Tokens(prompt="prompt", output="answer", drift_threshold=1)
    batch = everything(buffer, unit, 1)
    assert sorted(batch["input_ids"].tolist()) == [[1, 2, 3, 4], [1, 2, 5, 6]]


def test_annotations_missing_from_some_turns_have_a_has_mask(train):
    store(train, [turn([1], [2]), turn([1, 2], [3])])
    train.annotate([0], entropies=[np.array([5])])
    batch = everything(train, Tokens(), 1, fields=["entropies"])
    assert batch["entropies"].tolist() == [[0, 5, 0]]
    assert batch["has_entropies"].tolist() == [[False, True, False]]


def test_equal_scores_give_an_advantage_of_exactly_0(train):
    for k in range(7):
        store(train, [turn([1], [k], reward=1e9 + 0.1)], group_id="g")
    for size, name in ((1, "grpo"), (1, "reinforce++"), (7, "grpo"), (7, "dr_grpo"), (7, "rloo")):
        batch = everything(train, Tokens(of=Group(size), advantage=name), 1)
        assert not batch["advantage"].any()
    negative = Tokens(of=Group(7), advantage=lambda scores, lengths, mask: -scores)
    assert not np.signbit(everything(train, negative, 1)["advantage"][:, 0]).any()


def test_only_rank_0_can_lease(train):
    fill_groups(train, groups=1)
    consumer = train.consumer("c")
    with pytest.raises(
        expdb.InvalidValue, match=r"must be \(0, n\), got \(1, 2\); lease on rank 0"
    ):
        consumer.lease(1, unit=Tokens(of=Group(4)), shard=(1, 2))
    assert consumer.stats()["leased"] == 0


@pytest.mark.parametrize(
    ("rank", "ranks", "multiple"), [(2, 2, 1), (-1, 2, 1), (0, 0, 1), (0, 2, 0)]
)
def test_invalid_shard_arguments_are_rejected(train, rank, ranks, multiple):
    store(train, [turn([1], [2])])
    unit = Tokens()
    with pytest.raises(expdb.InvalidValue):
        unit.shard(everything(train, unit, 1), rank, ranks, multiple)


def test_batches_of_prompts_contain_writable_copies(train):
    prompt = np.arange(50, dtype=np.int32)
    for step in range(3):
        train.store(episode_id="e", truncated=step == 2, **turn(prompt[: 20 + 10 * step], [step]))
    everything(train, Tokens(), 1)
    first, second = (
        train.sample(64, fields=["prompt_ids"]),
        train.get([0, 1, 2], fields=["prompt_ids"]),
    )
    for batch in (first, second):
        for array in batch["prompt_ids"]:
            array[:] = -1
    assert train.get([2], fields=["prompt_ids"])["prompt_ids"][0].tolist() == list(range(40))


@pytest.mark.parametrize("pack", [False, True])
def test_items_above_the_budget_are_leased_later(train, pack):
    rng = np.random.default_rng(21)
    sizes = []  # tokens of each group, oldest first
    for g in range(20):
        lengths = rng.integers(1, 12, 2).tolist()
        for k, length in enumerate(lengths):
            turns = [turn([1, 2], [7] * length, reward=float(k))]
            store(train, turns, group_id=f"g{g}", episode_id=f"{g}/{k}")
        sizes.append(4 + sum(lengths))
    (first_episode,) = train.get([0], fields=["episode"])["episode"]
    unit = Tokens(of=Group(2), max_tokens=30, budget=60, pack=pack, advantage="grpo")
    consumer = train.consumer("trainer", max_times_sampled=1)
    begin = 0
    while begin < len(sizes):
        drawn = sizes[begin : begin + 6]
        lease = consumer.lease(len(drawn), unit=unit, sampler=expdb.Ordered("position"))
        episodes = np.unique(lease.batch["episode"])
        groups = np.unique((episodes[episodes >= 0] - first_episode) // 2)
        assert groups.tolist() == list(range(begin, begin + len(groups)))
        taken = drawn[: len(groups)]
        assert lease.batch["attention_mask"].sum() == sum(taken) <= 60
        assert taken == drawn or sum(drawn[: len(groups) + 1]) > 60
        np.testing.assert_equal(dict(consumer.shared(lease.id)), dict(lease.batch))
        begin += len(groups)
        lease.acknowledge()


def test_a_budget_keeps_the_oldest_drawn_items(train):
    for _ in range(8):
        store(train, [turn([1], [2, 3])])
    batch = everything(train, Tokens(budget=9), 8, seed=0)
    assert sorted(batch["position"].tolist()) == [0, 1, 2]


def test_an_oldest_item_above_the_budget_is_returned_alone(train):
    for size in (9, 1):
        store(train, [turn([1], [2] * size)])
    with pytest.warns(
        errors.ExpDBWarning, match="budget=5 is smaller than the oldest item, which has 10"
    ):
        batch = everything(train, Tokens(budget=5), 2)
    assert batch["attention_mask"].sum() == 10
    assert everything(train, Tokens(budget=5, max_tokens=3), 2)["attention_mask"].sum() == 5


def test_shared_and_replay_omit_items_that_exceeded_the_budget(train):
    for k in range(6):
        store(train, [turn([1], [2, 3]), turn([9], [k] * 6)], episode_id=f"e{k}")
    unit, oldest = Tokens(budget=25), expdb.Ordered("position")
    consumer = train.consumer("trainer", max_times_sampled=1)
    lease = consumer.lease(4, unit=unit, sampler=oldest)
    with consumer.lease(3, unit=unit, sampler=oldest) as others:
        left_out = np.unique(others["position"])
    assert len(np.unique(lease.batch["episode"])) == 2
    train.delete(left_out)
    train.delete(np.array([7]))  # the rest of this drawn item would fit the budget
    shared = consumer.shared(lease.id)
    lease.acknowledge()
    first, *_ = train.replay("trainer", limit=1)
    for again in (shared, first):
        np.testing.assert_equal(dict(again), dict(lease.batch))


def test_overlong_items_outside_the_budget_do_not_raise(train):
    for size in (4, 4, 80):
        store(train, [turn([1], [2] * size)])
    unit = Tokens(budget=10, max_tokens=20, overlong="error")
    assert everything(train, unit, 3).size == 2
    with pytest.raises(expdb.InvalidValue, match="row of 81 tokens"):
        everything(train, Tokens(budget=100, max_tokens=20, overlong="error"), 3)


def test_epochs_reject_a_budget(train):
    store(train, [turn([1], [2])])
    with pytest.raises(expdb.InvalidValue, match="must not have a budget"):
        train.epochs(1, unit=Tokens(budget=5))


def test_each_token_has_the_exact_policy_version_of_its_step(train):
    large = 2**53 + 1
    with train.episode("t", episode_id="mixed", policy_version=3) as episode:
        episode.append(**turn([1], [2]))
        episode.append(policy_version=5, **turn([1, 2], [3]))
    with train.episode("t", episode_id="none") as episode:
        episode.append(**turn([1], [2]))
        episode.append(policy_version=large, **turn([1, 2], [3]))
    store(train, [turn([1], [2])], episode_id="large", policy_version=large)
    store(train, [turn([1], [2])], episode_id="unknown")
    batch = everything(train, Tokens(), 4)
    versions = [row[row_steps >= 0].tolist() for row, row_steps in zip(
        batch["policy_version"], batch["token_step"], strict=True)]  # fmt: skip
    by_episode = dict(zip(batch["episode"].tolist(), versions, strict=True))
    assert [by_episode[episode] for episode in sorted(by_episode)] == [
        [3, 5], [-1, large], [large], [-1]
    ]  # fmt: skip
    train.update({"episode_id": "mixed"}, policy_version=7)
    batch = everything(train, Tokens(), 4)
    assert batch["policy_version"][batch["episode"] == min(by_episode)].tolist() == [[-1, 7, 7]]


INVALID_LOGPROBS = [np.nan, np.inf, -np.inf, 0.5]


@pytest.mark.parametrize("value", [-np.inf, 0.5])
def test_invalid_logprobs_are_refused_unless_the_token_is_masked(train, value):
    logprobs = np.array([-1.0, value], np.float32)
    with pytest.raises(expdb.InvalidValue, match=r"logprobs\[1\] is .*output_mask with False"):
        store(train, [turn([1], [2, 3], logprobs=logprobs)])
    store(train, [turn([1], [2, 3], [True, False], logprobs=logprobs)])
    rounded = np.array([-1.0, 5e-4], np.float32)
    store(train, [turn([1], [2, 3], logprobs=rounded)])
    batch = everything(train, Tokens(), 2)
    assert sorted(batch["loss_mask"].sum(1).tolist()) == [1, 2]


def test_stored_tokens_with_invalid_logprobs_are_not_trained_on(train, monkeypatch):
    with monkeypatch.context() as patched:  # earlier versions stored them
        patched.setattr(expdb.checks, "logprobs", lambda values, mask: None)
        for value in INVALID_LOGPROBS:
            store(train, [turn([1], [2, 3], logprobs=np.array([-1.0, value], np.float32))])
        store(train, [turn([1], [4, 5])])
    with pytest.warns(errors.ExpDBWarning, match="'logprobs' are NaN, infinite or positive"):
        batch = everything(train, Tokens(), 5)
    trained = {tuple(row[mask].tolist()) for row, mask in zip(
        batch["input_ids"], batch["loss_mask"], strict=True
    )}  # fmt: skip
    assert trained == {(2,), (4, 5)}


def with_experts(new_buffer):
    """Return a buffer with the field `expert`, and the expected values of each rollout."""
    expert = expdb.Field("int32", (None,), aligned_with="prompt_ids")
    train = new_buffer(fields={**expdb.TOKEN_FIELDS, "expert": expert})
    first = turn([1, 2], [3, 4], expert=[7, 8])
    longer = turn([1, 2, 3, 4, 5], [6], expert=[7, 8, 9, 9, 6])
    rollouts = [[first, longer], [turn([8, 9], [3], expert=[7, 0])], [turn([5], [2])]]
    for turns in rollouts:
        store(train, turns)
    return train, {
        (1, 2, 3, 4, 5, 6): ([7, 8, 9, 9, 6, 0], [True] * 5 + [False]),
        (8, 9, 3): ([7, 0, 0], [True, True, False]),
        (5, 2): ([0, 0], [False, False]),
    }


@pytest.mark.parametrize("pack", [False, True])
def test_a_field_aligned_with_the_prompt_has_values_at_prompt_tokens(new_buffer, pack):
    train, expected = with_experts(new_buffer)
    batch = everything(train, Tokens(max_tokens=9, pack=pack), 3, fields=["expert"])
    keys = batch["input_ids"], batch["expert"], batch["has_expert"]
    found = {}
    for row in range(batch.size):
        segments = batch["segment_ids"][row] if pack else batch["attention_mask"][row]
        for segment in range(1, segments.max() + 1):
            ids, *values = [array[row][segments == segment].tolist() for array in keys]
            found[tuple(ids)] = tuple(values)
    assert found == expected
    assert not batch["expert"][~batch["attention_mask"]].any()
    assert not batch["has_expert"][~batch["attention_mask"]].any()


def test_a_cut_prompt_keeps_its_first_values(new_buffer):
    train, _ = with_experts(new_buffer)
    unit = Tokens(max_tokens=3, overlong="mask")
    batch = everything(train, unit, 3, fields=["expert"])
    values = dict(
        zip(map(tuple, batch["input_ids"].tolist()), batch["expert"].tolist(), strict=True)
    )
    assert values == {(1, 2, 3): [7, 8, 9], (8, 9, 3): [7, 0, 0], (5, 2, 0): [0, 0, 0]}


def test_a_field_may_be_aligned_with_an_aligned_field(new_buffer):
    entropy = expdb.Field("float32", (None,), aligned_with="logprobs")
    train = new_buffer(fields={**expdb.TOKEN_FIELDS, "entropy": entropy})
    store(train, [turn([1, 2], [3, 4], entropy=[0.5, 0.25])])
    batch = everything(train, Tokens(), 1, fields=["entropy"])
    assert batch["entropy"].tolist() == [[0.0, 0.0, 0.5, 0.25]]


def test_token_values_can_be_annotated_if_fields_are_aligned_with_the_prompt(new_buffer):
    ids, expert = (
        expdb.Field("int32", (None,)),
        expdb.Field("int32", (None,), aligned_with="prompt_ids"),
    )
    train = new_buffer(fields={"prompt_ids": ids, "output_ids": ids, "expert": expert})
    train.store(prompt_ids=[1, 2, 3], output_ids=[4, 5], expert=[0, 1, 0], terminated=True)
    batch = everything(train, Tokens(), 1)
    assert batch.annotate(ref=np.arange(5.0)[None]) == 1
    assert train.get([0], fields=["ref"])["ref"][0].tolist() == [3.0, 4.0]


def test_a_field_aligned_with_neither_prompt_nor_output_is_refused(new_buffer):
    other = expdb.Field("int32", (None,))
    value = expdb.Field("int32", (None,), aligned_with="other")
    train = new_buffer(fields={**expdb.TOKEN_FIELDS, "other": other, "value": value})
    store(train, [turn([1], [2, 3], other=[0, 1], value=[4, 5])])
    with pytest.raises(expdb.InvalidValue, match="'value' is aligned with 'other'"):
        everything(train, Tokens(), 1, fields=["value"])


def gradient_of_rollout_mean(batch, size):
    """Return the gradient of the mean over rollouts of the mean of a parameter of each token."""
    out = np.zeros(size)
    weights = batch["rollout_weight"].reshape(batch.size, -1)
    segments = batch["segment_ids"] if "segment_ids" in batch else batch["attention_mask"] * 1
    for row, segment in np.argwhere(weights > 0).tolist():
        is_trained = batch["loss_mask"][row] & (segments[row] == segment + 1)
        share = weights[row, segment] / is_trained.sum() / batch["rollouts"][row]
        np.add.at(out, batch["input_ids"][row, is_trained], share)
    return out


def test_rollout_mean_losses_agree_for_padded_and_packed_rows_and_ranks(train):
    rng = np.random.default_rng(5)
    conversations = [random_conversation(rng, THRESHOLD) for _ in range(40)]
    expected, rollouts = np.zeros(1000), 0
    for turns in conversations:
        store(train, turns)
        rows = reference_rows(turns, THRESHOLD)
        ids = [id for row in rows for id, own in zip(row["ids"], row["mask"], strict=True) if own]
        rollouts += len(ids) > 0
        np.add.at(expected, ids, 1 / max(1, len(ids)))
    expected /= rollouts
    width = 1 + max(len(row["ids"]) for turns in conversations for row in reference_rows(turns, 8))
    padded, packed = (
        Tokens(drift_threshold=8),
        Tokens(drift_threshold=8, max_tokens=width, pack=True),
    )
    for unit in (padded, packed):
        batch = everything(train, unit, 40)
        assert (batch["rollouts"] == rollouts).all()
        totals = np.zeros(40)
        np.add.at(totals, batch["rollout"], batch["rollout_weight"])
        np.testing.assert_allclose(totals[totals > 0], 1.0, rtol=1e-6)
        parts = [expdb.Batch(unit.shard(batch, rank, 2), None) for rank in range(2)]
        for gradients in (
            [gradient_of_rollout_mean(batch, 1000)],
            [gradient_of_rollout_mean(part, 1000) for part in parts],
        ):
            np.testing.assert_allclose(sum(gradients), expected, atol=1e-6)


def test_rollouts_without_a_token_to_train_on_have_no_weight(train):
    store(train, [turn([1, 2], [3, 4])])
    store(train, [turn([1], [2])])
    batch = everything(train, Tokens(max_tokens=3, overlong="mask"), 2)
    weights = dict(zip(batch["attention_mask"].sum(1), batch["rollout_weight"], strict=True))
    assert weights == {3: 0.0, 2: 1.0}
    assert batch["rollouts"].tolist() == [1, 1]


def test_leases_without_the_newer_keys_are_replayed(train, monkeypatch):
    """Replay a lease of an earlier version, whose batch had neither key."""
    store(train, [turn([1], [2, 3])])
    consumer, assemble = train.consumer("c"), Tokens.assemble
    with monkeypatch.context() as patch:
        patch.setattr(
            Tokens,
            "assemble",
            lambda *arguments: {
                key: array
                for key, array in assemble(*arguments).items()
                if key not in ("rollouts", "rollout_weight")
            },
        )
        consumer.lease(1, unit=Tokens()).acknowledge()
    (batch,) = train.replay("c")
    assert batch["rollout_weight"].tolist() == [1.0]


def test_annotations_with_the_names_of_newer_keys_are_replayed(train, monkeypatch):
    """Replay a lease of steps from before Tokens had the key `rollouts`."""
    store(train, [turn([1], [2, 3])])
    with monkeypatch.context() as patch:
        patch.setattr(annotate, "TOKEN_KEYS", ())
        train.annotate([0], rollouts=[7.0])
    train.consumer("c").lease(1, fields=["rollouts"]).acknowledge()
    (batch,) = train.replay("c")
    assert batch["rollouts"].tolist() == [7.0]
    with monkeypatch.context() as patch:
        patch.setattr(annotate, "TOKEN_KEYS", ())
        train.annotate([0], rollouts=[8.0])
    with pytest.raises(errors.ReplayMismatch):
        next(train.replay("c"))


def test_a_filler_stands_at_tokens_without_a_value(new_buffer):
    fields = {
        **expdb.TOKEN_FIELDS,
        "expert": expdb.Field("int32", (None,), aligned_with="prompt_ids", filler=-1),
        "value": expdb.Field("float32", (None,), aligned_with="output_ids", filler=np.nan),
    }
    train = new_buffer(fields=fields)
    store(train, [turn([1, 2], [3], expert=[0, 7], value=[0.5])])
    store(train, [turn([4], [5, 6])])
    batch = everything(train, Tokens(), 2, fields=["expert", "value"])
    rows = {tuple(ids): row for row, ids in enumerate(batch["input_ids"].tolist())}
    assert batch["expert"][rows[1, 2, 3]].tolist() == [0, 7, -1]
    assert batch["expert"][rows[4, 5, 6]].tolist() == [-1, -1, -1]
    assert np.isnan(batch["value"]).sum() == 5
    assert batch["value"][rows[1, 2, 3], 2] == 0.5
    assert train.stats()["fields"]["expert"] == "int32[None]"


def test_a_filler_of_logprobs_leaves_other_tokens_at_zero(new_buffer):
    logprobs = expdb.Field("float32", (None,), aligned_with="output_ids", filler=np.nan)
    train = new_buffer(fields={**expdb.TOKEN_FIELDS, "logprobs": logprobs})
    store(train, [turn([1, 2], [3])])
    assert everything(train, Tokens(), 1)["logprobs"].tolist() == [[0.0, 0.0, -1.0]]


def test_a_filler_is_stored_with_the_field(open_db):
    aligned = {"aligned_with": "prompt_ids"}
    for filler in (None, 3, np.inf):
        dtype = "float32" if filler == np.inf else "int32"
        open_db().buffer(
            "b", fields={**expdb.TOKEN_FIELDS, dtype: expdb.Field(dtype, (None,), **aligned)}
        )
        if filler is not None:
            declared = expdb.Field(dtype, (None,), **aligned, filler=filler)
            open_db().buffer("b", fields={dtype: declared})
    train = open_db().buffer("b")
    store(train, [turn([1], [2], int32=[4], float32=[1.0])])
    batch = everything(train, Tokens(), 1, fields=["int32", "float32"])
    assert batch["int32"].tolist() == [[4, 3]]
    assert batch["float32"].tolist() == [[1.0, np.inf]]
    with pytest.raises(errors.FieldMismatch, match="'int32' is stored with filler=3"):
        open_db().buffer("b", fields={"int32": expdb.Field("int32", (None,), **aligned, filler=4)})


@pytest.mark.parametrize(
    ("dtype", "filler"),
    [("int32", 0.5), ("int8", 300), ("uint8", -1), ("int32", np.nan), ("int32", "x"),
     ("float32", [1.0]), ("float16", 1e9)],
)  # fmt: skip
def test_a_filler_that_the_type_cannot_represent_is_refused(dtype, filler):
    with pytest.raises(expdb.InvalidValue, match=f"filler must be a number that {dtype} can"):
        expdb.Field(dtype, (None,), aligned_with="x", filler=filler)


def test_a_filler_requires_an_aligned_field_and_may_be_rounded():
    with pytest.raises(expdb.InvalidValue, match="also pass aligned_with"):
        expdb.Field("int32", (None,), filler=1)
    field = expdb.Field("float32", (None,), aligned_with="x", filler=0.1)
    assert field.filler == np.float32(0.1)
    assert "filler=0.1" in repr(field)
    assert expdb.Field("bool", (None,), aligned_with="x", filler=True).filler is True


@pytest.mark.parametrize("stale", ["drop_rollout", "mask_tokens", "keep"])
def test_stale_tokens_are_dropped_masked_or_kept(train, stale):
    with train.episode("t", episode_id="mixed", group_id="g", policy_version=2) as episode:
        episode.append(**turn([1], [10, 11]))
        episode.append(**turn([1, 10, 11], [12, 13, 14], versions=[4, 5, 6]))
        episode.append(**turn([1, 10, 11, 12, 13, 14], [15]), policy_version=7, reward=1.0)
    for name, version in (("old", 1), ("unknown", None)):
        with train.episode("t", episode_id=name, policy_version=version) as episode:
            episode.append(**turn([1], [20 if version else 30]), reward=0.0)
    train.policy_version = 7
    unit = Tokens(of=Group(1), stale=stale, advantage="reinforce++")
    consumer = train.consumer(stale, max_staleness=2, max_times_sampled=1)
    count = {"drop_rollout": 0, "mask_tokens": 1, "keep": 2}[stale]  # the others are one group
    assert consumer.stats(unit=unit)["groups"]["ready"] == count
    if stale == "drop_rollout":
        with pytest.raises(expdb.TooFewRows):
            consumer.lease(1, unit=unit)
        return
    lease = consumer.lease(count, unit=unit)
    trained = lease.batch["input_ids"][lease.batch["loss_mask"]].tolist()
    fresh = {"mask_tokens": [13, 14, 15], "keep": [10, 11, 12, 13, 14, 15, 30]}
    assert sorted(trained) == fresh[stale]
    leased = {name: array.copy() for name, array in lease.batch.items()}
    lease.acknowledge()
    train.policy_version = 9
    (replayed,) = train.replay(stale)
    assert all(np.array_equal(replayed[name], array) for name, array in leased.items())
    sampled = train.sample(1, {"episode_id": "mixed"}, unit=Tokens(oldest_version=6))
    assert sampled["input_ids"][sampled["loss_mask"]].tolist() == [14, 15]


def test_masking_stale_tokens_of_agents_with_own_versions_requires_an_agent(new_buffer):
    buffer = new_buffer(fields=expdb.TOKEN_FIELDS)
    buffer.store(agent_id="a", prompt_ids=[1], output_ids=[2], versions=[0], terminated=True)
    buffer.policy_versions["a"] = 3
    consumer = buffer.consumer("c", max_staleness=1)
    with pytest.raises(errors.InvalidValue, match="also pass agent= to Tokens"):
        consumer.lease(1, unit=expdb.Tokens(stale="mask_tokens"))
