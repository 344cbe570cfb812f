"""Columns store the same steps as rows, and a batch is added completely or not at all."""

import gc

import numpy as np
import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import expdb
from expdb import errors
from expdb.storage.writing.open_episodes import OpenEpisodes

FIELDS = {
    "obs": expdb.Field("float32", (3,)), "action": expdb.Field("int16"),
    "flag": expdb.Field("bool"), "extra": expdb.Field("float64"),
}  # fmt: skip


@st.composite
def batches(draw):
    """Draw columns with the steps of up to three agents; some steps end an episode."""
    size = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns = {
        "agent_id": [f"a{k}" for k in rng.integers(0, 3, size)],
        "obs": rng.random((size, 3), np.float32),
        "action": rng.integers(-5, 5, size).astype(np.int16),
        "flag": rng.random(size) < 0.5,
        "reward": rng.choice([-0.0, 1.5, 2.0], size),
        "terminated": rng.random(size) < 0.1,
        "truncated": rng.random(size) < 0.1,
    }
    if draw(st.booleans()):
        columns["extra"] = rng.random(size)
    if draw(st.booleans()):
        columns["step"] = np.arange(size)
    return columns


def rows(columns):
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def contents(buffer):
    """Return all stored values and episodes, without times and episode ids."""
    read = buffer.get(range(len(buffer)), fields=[
        "step", "reward", "terminated", "truncated", "agent_id", "episode", "obs", "action",
        "flag", "extra",
    ])  # fmt: skip
    table = buffer.episodes().select(["agent_id", "status", "length", "episode_return"])
    return {name: column.tolist() for name, column in read.items()}, table.to_pylist()


@pytest.mark.filterwarnings("ignore:.* episodes have only one step:expdb.errors.ExpDBWarning")
@settings(max_examples=examples(8))
@given(st.lists(batches(), min_size=1, max_size=4))
def test_columns_store_the_same_steps_as_rows(column_batches):
    with expdb.open(":memory:") as db:
        first, other, third = (db.buffer(name, fields=FIELDS) for name in "abc")
        writer = third.writer(flush_steps=70)
        for columns in column_batches:
            assert first.store_batch(columns).tolist() == other.store_batch(rows(columns)).tolist()
            writer.extend(columns)
        assert repr(contents(first)) == repr(contents(other))  # NaN is not equal to itself
        writer.flush()
        assert repr(contents(third)) == repr(contents(other))
        writer.close()
        assert db.check() == []


@pytest.fixture
def buffer(db):
    return db.buffer("train", fields={"obs": expdb.Field("float32", (2,))})


@pytest.mark.both_databases
def test_extend_uses_the_fast_path_only_for_arrays_of_declared_fields(buffer, monkeypatch):
    one_by_one = []
    gather = OpenEpisodes.gather_rows
    monkeypatch.setattr(
        OpenEpisodes, "gather_rows", lambda *args: one_by_one.extend(args[1]) or gather(*args)
    )
    obs = np.arange(8, dtype=np.float32).reshape(4, 2)
    with buffer.writer() as writer:
        writer.extend({"obs": obs, "agent_id": list("abab"), "reward": np.ones(4)})
        assert one_by_one == []
        writer.extend({"obs": list(obs), "tags": {"k": 1}})
        assert len(one_by_one) == 4
        writer.extend({"obs": obs, "new": np.arange(4)})
        writer.extend([{"obs": obs[0]}])
        assert len(one_by_one) == 9
    read = buffer.get(range(13), fields=["obs", "new", "tags"])
    assert read["obs"][:, 0].tolist() == [0, 2, 4, 6] * 3 + [0]
    assert read["has_new"].tolist() == [False] * 8 + [True] * 4 + [False]
    assert read["tags"].tolist()[4] == {"k": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"reward": np.ones((3, 2))}, {"step": [0, 1, 2**63]}, {"terminated": np.ones((3, 2), bool)},
        {"step": np.array([0, 1, 2**63], np.uint64)}, {"reward": [1.0, 2.0, "3"]},
        {"agent_id": [1, 2, 3]}, {"truncated": [0, 1, 2]}, {"reward": np.full(3, np.inf)},
        {"agent_id": ["a", "b", "\ud800"]},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_columns_raise_the_same_error_as_invalid_rows(buffer, wrong):
    columns = {"obs": np.zeros((3, 2), np.float32), **wrong}
    buffer.store(obs=np.ones(2, np.float32), terminated=True)
    with pytest.raises(expdb.InvalidValue) as one_by_one:
        buffer.store_batch(rows(columns))
    with pytest.raises(expdb.InvalidValue) as at_once:
        buffer.store_batch(columns)
    assert str(at_once.value) == str(one_by_one.value)
    with buffer.writer() as writer:
        writer.append(obs=np.ones(2, np.float32))
        with pytest.raises(expdb.InvalidValue):
            writer.extend(columns)
        writer.append(obs=np.ones(2, np.float32))
    assert len(buffer) >= 3


def test_a_reward_array_of_shape_n_by_1_is_accepted(buffer):
    columns = {"obs": np.zeros((3, 2), np.float32), "reward": np.arange(3.0)[:, None]}
    assert buffer.store_batch(columns).tolist() == [0, 1, 2]
    with buffer.writer() as writer:
        writer.extend(columns)
    assert buffer.get(range(6), fields=["reward"])["reward"].tolist() == [0, 1, 2] * 2


def test_extend_with_invalid_columns_adds_no_steps(buffer):
    obs = np.zeros((3, 2), np.float32)
    with buffer.writer() as writer:
        writer.extend({"obs": obs, "episode_id": "e", "terminated": [False, False, True]})
        with pytest.raises(errors.EpisodeEnded):
            writer.extend({"obs": obs, "episode_id": ["f", "f", "e"]})
        assert writer.unwritten == 3
        writer.append(obs=obs[0], episode_id="f", task_id="another")  # "f" was not created
        writer.flush()
        with pytest.raises(expdb.InvalidValue, match="must have the same length"):
            writer.extend({"obs": obs, "reward": np.zeros(2)})
        with pytest.raises(expdb.InvalidValue, match="reward"):
            writer.extend({"obs": obs, "reward": np.array([np.nan, 0, 0])})
        with pytest.raises(errors.FieldMismatch):
            writer.extend({"obs": np.zeros((3, 2))})
        assert writer.unwritten == 0
    assert buffer.episodes()["episode_id"].to_pylist() == ["e", "f"]
    with pytest.raises(expdb.InvalidValue, match="closed"):
        writer.extend({"obs": obs})


def test_extend_with_invalid_rows_adds_no_steps_and_no_fields(buffer):
    with buffer.writer() as writer:
        writer.append(obs=np.ones(2, np.float32), episode_id="e", new=1)
        for refused in (
            {"text": ["a", "b"], "episode_id": "e", "terminated": [True, False]},
            [{"text": "a", "episode_id": "f", "tags": {"k": 1}}, {"text": "b", "reward": "much"}],
            [*[{"other": np.zeros(2)} for _ in range(3)], {"other": "text"}],
        ):
            with pytest.raises((errors.EpisodeEnded, expdb.InvalidValue, errors.FieldMismatch)):
                writer.extend(refused)
        assert writer.unwritten == 1
        writer.extend([{"episode_id": "e", "new": 2, "text": "c"}])
        writer.append(episode_id="e", other="of any type, as no step has it")
    assert buffer.get([0, 1], fields=["new", "text"])["new"].tolist() == [1, 2]
    assert buffer.episodes()["episode_id"].to_pylist() == ["e"]
    assert buffer.stats()["fields"]["other"] == "text"


def test_nested_arrays_are_stored_as_dotted_columns(buffer):
    image = np.arange(6.0).reshape(3, 2)
    columns = {"seen": {"image": image, "v": np.arange(3)}, "info": {"k": 1}, "reward": np.ones(3)}
    buffer.store_batch(columns)
    buffer.store_batch(columns)  # now the fields are declared
    read = buffer.get(range(6), fields=["seen.image", "seen.v", "info"])
    assert read["seen.image"].tolist() == [*image.tolist()] * 2
    assert (read["seen.v"].tolist(), read["info"].tolist()) == ([0, 1, 2] * 2, [{"k": 1}] * 6)


def test_store_batch_rejects_invalid_and_duplicate_column_names(buffer):
    itself = {"image": np.arange(3)}
    itself["itself"] = itself
    gc.collect()  # finalizers of other tests would fail deep in the recursion, so run them now
    for wrong, message in (
        ({"seen": {"x": np.arange(3)}, "seen.x": np.arange(3)}, "'seen.x' is passed twice"),
        ({1: np.arange(3)}, "name must be text, got 1"),
        ({"seen": {1: np.arange(3)}}, "the key 1, which is not text"),
        ({"seen": itself}, "or contains itself"),
        ({"tags": {"x": np.arange(3)}}, "contains an array"),
    ):
        with pytest.raises(expdb.InvalidValue, match=message):
            buffer.store_batch({"n": np.arange(3), **wrong})
    assert len(buffer) == 0


@pytest.mark.parametrize("at", [1, 4, 8, 11])
def test_an_interrupted_extend_adds_all_steps_or_none(buffer, at, monkeypatch):
    calls = []

    def interrupting(work):
        def call(*args):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return work(*args)

        return call

    obs = np.zeros((400, 2), np.float32)  # several chunks
    with buffer.writer(flush_steps=10**6) as writer:
        writer.extend({"obs": obs[:1], "reward": np.ones(1)})
        with monkeypatch.context() as patch:
            from expdb.chunks.codec import Rows
            from expdb.storage.writing.pending_steps import PendingSteps

            patch.setattr(Rows, "extend", interrupting(Rows.extend))
            patch.setattr(Rows, "block", interrupting(Rows.block))
            patch.setattr(PendingSteps, "cut", interrupting(PendingSteps.cut))
            try:
                writer.extend({"obs": obs, "agent_id": ["a", "b"] * 200})
            except KeyboardInterrupt:
                assert writer.unwritten == 1
            else:
                assert len(calls) < at
        unwritten = writer.unwritten
        writer.extend({"obs": obs[:2] + 1, "agent_id": ["a", "b"]})
        assert len(writer.flush()) == unwritten + 2
    read = buffer.get(range(unwritten + 2), fields=["obs", "agent_id"])
    assert read["obs"][-2:].tolist() == [[1, 1], [1, 1]]


@pytest.mark.both_databases
def test_extend_adds_all_steps_of_an_episode_or_none(open_db):
    buffer = open_db().buffer("b")
    obs = np.arange(12.0).reshape(6, 2)
    with buffer.episode("t") as episode:
        episode.extend({"obs": obs, "reward": np.ones(6)})
        with pytest.raises(expdb.InvalidValue, match="group_id belongs to the whole episode"):
            episode.append(obs=obs[0], group_id="g")
        for wrong, match in (
            ({"obs": np.ones((3, 4)), "reward": np.ones(3)}, "obs"),
            ({"obs": obs, "reward": [0.0] * 5 + ["much"]}, "reward"),
            ({"obs": obs, "task_id": ["u"] * 6}, "task_id belongs to the whole episode"),
            ([{"obs": obs[0]}, {"obs": "text"}], "obs"),
            ([{"obs": obs[0]}, 7], "a step of a batch must be"),
        ):
            with pytest.raises(expdb.ExpDBError, match=match):
                episode.extend(wrong)
            assert episode.length == 6
        with pytest.raises(errors.EpisodeEnded, match="step 3 of 6 ends episode"):
            episode.extend({"obs": obs, "terminated": np.arange(6) == 2})
        episode.extend([{"obs": obs[0]}, {"obs": obs[1]}])
        episode.extend([])
        episode.extend({"obs": obs, "terminated": np.arange(6) == 5})
        with pytest.raises(errors.EpisodeEnded):
            episode.extend({"obs": obs})
    batch = buffer.get(np.arange(len(buffer)))
    assert batch["obs"].tolist() == [*obs.tolist(), *obs[:2].tolist(), *obs.tolist()]
    assert batch["step"].tolist() == list(range(14))
    assert batch["terminated"].tolist() == [False] * 13 + [True]
    assert set(buffer.episodes().to_pydict()["status"]) == {"complete"}


@pytest.mark.parametrize("flush_steps", [1, 4])
def test_extend_stores_the_same_steps_as_append(open_db, flush_steps):
    n = np.arange(50)
    columns = {
        "obs": np.random.default_rng(0).random((50, 3), np.float32), "n": n, "reward": n / 3,
        "truncated": n == 49,
    }  # fmt: skip
    first, other = (open_db().buffer(name) for name in ("first", "other"))
    for _ in range(2):  # the second pass uses arrays, as the fields are declared
        with first.episode("t", flush_steps=flush_steps) as episode:
            for k in range(50):
                episode.append(**{name: column[k] for name, column in columns.items()})
        with other.episode("t", flush_steps=flush_steps) as episode:
            episode.extend({name: column[:20] for name, column in columns.items()})
            episode.extend({name: column[20:] for name, column in columns.items()})
    stored = [buffer.get(np.arange(100)) for buffer in (first, other)]
    assert list(stored[0]) == list(stored[1])
    for key in stored[0]:
        np.testing.assert_array_equal(stored[0][key], stored[1][key])


AGENTS = ["env0", "env1", "env2"]
ROLLOUT = {"x": np.ones((4, 3))}


def rollout(steps):
    """Return the columns of a vectorised environment with three agents and `steps` steps."""
    count = steps * 3
    return {
        "obs": np.arange(count * 2, dtype=np.float32).reshape(steps, 3, 2),
        "action": np.arange(count).reshape(steps, 3),
        "reward": np.arange(count, dtype=np.float32).reshape(steps, 3) / 2,
        "terminated": np.arange(count).reshape(steps, 3) == 4,
        "info": {"score": np.ones((steps, 3))},
        "text": [[f"{k}.{n}" for n in range(3)] for k in range(steps)],
        "task_id": "CartPole",
    }


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_rollout_of_several_agents_is_stored_agent_by_agent(buffer, repeats):
    steps = 5
    with buffer.writer() as writer:
        for _ in range(repeats):
            writer.extend(rollout(steps), agents=AGENTS)
            writer.flush()
    batch = buffer.get(np.arange(15 * repeats)[-15:], fields=None)
    columns = rollout(steps)
    for name in ("obs", "action", "reward", "terminated"):
        expected = np.swapaxes(columns[name], 0, 1).reshape(batch[name].shape)
        np.testing.assert_array_equal(batch[name], expected)
    assert batch["text"].tolist() == [f"{k}.{n}" for n in range(3) for k in range(steps)]
    agents = buffer.get(np.arange(15), fields=["agent_id", "task_id"])
    assert agents["agent_id"].tolist() == [name for name in AGENTS for _ in range(steps)]
    assert set(agents["task_id"]) == {"CartPole"}
    lengths = sorted(buffer.episodes()["length"].to_pylist())
    assert lengths == sorted([5 * repeats, 5 * repeats, 2, *([5, 3] if repeats == 2 else [3])])


@pytest.mark.parametrize(
    ("columns", "agents", "message"),
    [
        ({"x": np.ones((4, 2))}, AGENTS, r"'x' must be .* with 3 agents, got \[4, 2\]"),
        ({"x": np.ones(4)}, AGENTS, "'x' must be"),
        ({"x": [[1, 2], [3, 4]]}, AGENTS, "'x' must be"),
        ({**ROLLOUT, "y": np.ones((5, 3))}, AGENTS, "x 4, y 5"),
        ({"x": 1}, AGENTS, "got no columns"),
        ({**ROLLOUT, "agent_id": "a"}, AGENTS, "agent_id cannot be both"),
        ([{"x": 1}], AGENTS, "mapping of columns"),
        ({**ROLLOUT, "task_id": ["a", "b"]}, AGENTS, "'task_id' must be"),
        ({**ROLLOUT, "s": ["abc", "def"]}, AGENTS, "'s' must be"),
        ({**ROLLOUT, "s": [{"a": 1}] * 4}, AGENTS, "'s' must be"),
        (ROLLOUT, ["a", "b", "a"], "no name twice"),
        (ROLLOUT, 3, "got 3"),
        (ROLLOUT, "abc", "got 'abc'"),
        (ROLLOUT, [0, 1, 2], "agents must be a sequence"),
        (ROLLOUT, [], "at least one name"),
    ],
)
def test_extend_rejects_rollouts_of_wrong_shape_and_invalid_agents(
    buffer, columns, agents, message
):
    with buffer.writer() as writer, pytest.raises(expdb.InvalidValue, match=message):
        writer.extend(columns, agents=agents)
    assert len(buffer) == 0


def test_float32_rewards_are_stored_exactly(buffer):
    rewards = np.array([0.1, -3.5, 7e-5], np.float32)
    with buffer.writer() as writer:
        for _ in range(2):
            writer.extend({"x": np.arange(3), "reward": rewards})
    assert buffer.get(range(6))["reward"].tolist() == rewards.astype(np.float64).tolist() * 2


def test_extend_accepts_an_array_of_agents_and_a_task_per_agent(buffer):
    tasks = ["x", "y", "z"]
    with buffer.writer() as writer:
        writer.extend({"x": np.ones((4, 3)), "task_id": tasks}, agents=np.array(AGENTS))
    batch = buffer.get(range(12), fields=["task_id", "agent_id"])
    assert batch["task_id"].tolist() == [name for name in tasks for _ in range(4)]
    assert batch["agent_id"].tolist() == [name for name in AGENTS for _ in range(4)]


@pytest.mark.both_databases
def test_the_error_for_a_rollout_without_agents_suggests_the_argument(buffer):
    with buffer.writer() as writer, pytest.raises(expdb.InvalidValue, match="agents="):
        writer.extend({"x": np.ones((4, 3)), "reward": np.ones((4, 3))})
