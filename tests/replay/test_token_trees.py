"""Rows of tokens for trees of episodes, compared with a simple reference implementation."""

from collections import Counter

import numpy as np
import pytest
from conversations import random_conversation, reference_rows

import expdb
from expdb import Tokens, Uniform, errors
from expdb.replay import token_rows

ALL = Uniform(replace=False)
THRESHOLD = 8


@pytest.fixture(autouse=True)
def warned(monkeypatch):
    """Suppress the warnings about lost tokens and new rows, which are emitted once per process."""
    monkeypatch.setattr(token_rows, "_warned", {"lost tokens", "drift"})


@pytest.fixture
def train(new_buffer):
    return new_buffer(fields=expdb.TOKEN_FIELDS)


def turn(prompt, output, **options):
    return {
        "prompt_ids": prompt, "output_ids": output, "logprobs": [-1.0] * len(output), **options
    }  # fmt: skip


def store_random_tree(buffer, rng, group):
    """Store a tree of episodes; return the turns of each rollout from the root, by `episode_id`.

    Each turn is a pair of the position of its step and the values of the step.
    """
    branches = {}
    for number in range(int(rng.integers(1, 7))):
        name, reward = f"{group}/{number}", float(rng.integers(0, 4))
        new_turns = random_conversation(rng, THRESHOLD)
        kind = rng.choice(["root", "fork", "retry", "subagent", "compaction"]) if number else "root"
        options = {"episode_id": name, "group_id": group}
        shared = []
        if kind == "root":
            episode = buffer.episode("t", **options)
        else:
            parent = str(rng.choice(list(branches)))
            at_step = int(rng.integers(0, len(branches[parent]) + 1))
            if kind in ("fork", "retry"):
                shared = branches[parent][:at_step]
                if shared:  # begin each prompt with the tokens of the last shared turn
                    first = shared[-1][1]
                    text = first["prompt_ids"] + first["output_ids"]
                    new_turns = [
                        {**turn, "prompt_ids": text + turn["prompt_ids"]} for turn in new_turns
                    ]
                episode = buffer.fork(parent, at_step, relation=kind, **options)
            else:
                episode = buffer.episode("t", parent=parent, relation=kind, **options)
        begin = buffer.added
        with episode:
            for k, new_turn in enumerate(new_turns):
                last = k == len(new_turns) - 1
                episode.append(**new_turn, reward=reward if last else None)
        if kind in ("root", "fork", "retry"):
            own = [(begin + k, new_turn) for k, new_turn in enumerate(new_turns)]
            branches[name] = shared + own
    return branches


def reference(branches, advantages, shared):
    """Return the expected rows of the branches in order, and the keys of the tokens to train on."""
    trained_keys, advantages_of_steps = set(), {}
    reference_branch_rows = []
    for branch, turns in enumerate(branches):
        with_keys = [
            {**turn, "logprobs": [(position, k) for k in range(len(turn["output_ids"]))]}
            for position, turn in turns
        ]  # reference_rows returns these keys in place of log-probabilities
        for row in reference_rows(with_keys, THRESHOLD):
            for key, is_trained in zip(row["logprobs"], row["mask"], strict=True):
                if is_trained:
                    advantages_of_steps.setdefault(key[0], {})[branch] = advantages[branch]
            reference_branch_rows.append((branch, row))
    rows = []
    for branch, row in reference_branch_rows:
        mask, advantage = [], []
        for key, is_trained in zip(row["logprobs"], row["mask"], strict=True):
            is_first = is_trained and key not in trained_keys
            if is_first:
                trained_keys.add(key)
            mask.append(is_first)
            own = advantages[branch]
            if shared == "mean" and is_first:
                own = float(np.mean(list(advantages_of_steps[key[0]].values())))
            advantage.append(own if is_first else 0.0)
        if any(mask):
            rows.append((branch, row["ids"], mask, advantage))
    return rows, trained_keys


@pytest.mark.filterwarnings("ignore:no row is left for:expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    "trees", [60, pytest.param(1000, marks=pytest.mark.slow)]
)  # fmt: skip
def test_random_trees_train_on_each_generated_token_once(new_buffer, trees):
    rng = np.random.default_rng(5)
    for number in range(trees):
        if number % 50 == 0:
            train = new_buffer(fields=expdb.TOKEN_FIELDS)
        group = f"g{number}"
        branches = store_random_tree(train, rng, group)
        shared = ["first", "mean"][number % 2]
        unit = Tokens(
            of=expdb.Group(len(branches)), drift_threshold=THRESHOLD, advantage="dr_grpo",
            shared=shared,
        )  # fmt: skip
        batch = train.sample(1, {"group_id": group}, unit=unit)
        names = {row["episode"]: row["episode_id"] for row in train.episodes().to_pylist()}
        order = [names[id] for id in sorted(names) if names[id] in branches]
        totals = [
            sum(reward_at(train, position) for position, _ in branches[name]) for name in order
        ]
        advantages = [total - np.mean(totals) for total in totals]
        rows, trained_keys = reference([branches[name] for name in order], advantages, shared)
        actual = []
        for k in range(batch.size):
            count = int(batch["attention_mask"][k].sum())
            ids, mask = (batch[key][k, :count].tolist() for key in ("input_ids", "loss_mask"))
            actual.append((int(batch["rollout"][k]), ids, mask))
            assert not batch["loss_mask"][k, count:].any()
        if not rows:
            assert not batch["loss_mask"].any()
            continue
        assert actual == [row[:3] for row in rows]
        for k, row in enumerate(rows):
            assert batch["advantage"][k, : len(row[3])] == pytest.approx(row[3], abs=1e-5)
        steps, indices = (batch[key][batch["loss_mask"]] for key in ("token_step", "token_index"))
        keys = Counter(zip(steps.tolist(), indices.tolist(), strict=True))
        assert set(keys) == trained_keys
        assert set(keys.values()) <= {1}
        weights = np.zeros(len(order))
        np.add.at(weights, batch["rollout"], batch["rollout_weight"])
        assert weights[np.unique(batch["rollout"])] == pytest.approx(1)
        assert (batch["loss_tokens"] == len(trained_keys)).all()


def reward_at(buffer, position):
    batch = buffer.get([position], fields=["reward"])
    reward = batch["reward"][0]
    return 0.0 if np.isnan(reward) else float(reward)


def test_rows_of_forks_repeat_the_shared_tokens_and_train_on_them_once(train):
    with train.episode("t", episode_id="root", group_id="g") as root:
        root.append(**turn([1, 2], [10, 11]))
        root.append(**turn([1, 2, 10, 11, 3], [12]), reward=1.0)
    with train.fork("root", 1, episode_id="fork", policy_version=7) as fork:
        fork.append(**turn([1, 2, 10, 11, 3], [20, 21]), reward=0.0)
    unit = Tokens(of=expdb.Group(2), advantage="dr_grpo")
    batch = train.sample(1, unit=unit, fields=["episode_id"])
    assert batch["input_ids"].tolist() == [[1, 2, 10, 11, 3, 12, 0], [1, 2, 10, 11, 3, 20, 21]]
    assert batch["loss_mask"].astype(int).tolist() == [[0, 0, 1, 1, 0, 1, 0], [0] * 5 + [1, 1]]
    assert batch["advantage"].tolist() == [[0, 0, 0.5, 0.5, 0, 0.5, 0], [0] * 5 + [-0.5, -0.5]]
    assert batch["policy_version"].tolist() == [[-1] * 7, [-1] * 5 + [7, 7]]
    assert batch["episode_id"].tolist() == ["root", "fork"]
    assert batch["loss_tokens"].tolist() == [5, 5]
    packed = train.sample(1, unit=Tokens(of=expdb.Group(2), pack=True, max_tokens=14))
    assert packed["loss_mask"].sum() == 5
    alone = train.sample(1, {"episode_id": "fork"}, unit=Tokens())
    assert alone["loss_mask"].sum() == 4  # a batch without the root also trains on shared tokens
    twice = train.sample(2, {"episode_id": "fork"}, unit=Tokens(), sampler=Uniform(replace=True))
    assert twice["loss_mask"].sum() == 8  # an item that was drawn twice counts twice
    longest = Tokens(of=expdb.Group(2), max_tokens=3, overlong="cut")
    assert train.sample(1, unit=longest)["loss_mask"].astype(int).tolist() == [[0, 0, 1]]


def test_the_mean_advantage_of_shared_tokens_includes_all_branches(train):
    with train.episode("t", episode_id="root", group_id="g") as root:
        root.append(**turn([1], [10]))
        root.append(**turn([1, 10], [12]), reward=3.0)
    for k, reward in enumerate((0.0, 0.0)):
        with train.fork("root", 1, episode_id=f"fork {k}") as fork:
            fork.append(**turn([1, 10], [20 + k]), reward=reward)
    unit = Tokens(of=expdb.Group(3), advantage="dr_grpo", shared="mean")
    batch = train.sample(1, unit=unit)
    assert batch["advantage"].tolist() == [[0, 0, 2], [0, 0, -1], [0, 0, -1]]


def test_leases_of_forks_replay_bit_for_bit(tmp_path):
    path, unit = tmp_path / "runs.db", Tokens(of=expdb.Group(2), advantage="grpo", shared="mean")
    with expdb.open(path) as db:
        train = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        for k in range(4):
            with train.episode("t", episode_id=f"root {k}", group_id=f"g{k}") as root:
                root.append(**turn([1], [10 + k]))
                root.append(**turn([1, 10 + k], [12]), reward=1.0)
            with train.fork(f"root {k}", 1) as fork:
                fork.append(**turn([1, 10 + k], [20]), reward=0.0)
        lease = train.consumer("c").lease(2, unit=unit)
        leased = {name: array.copy() for name, array in lease.batch.items()}
        lease.acknowledge()
    with expdb.open(path) as db:
        (replayed,) = db.buffer("train").replay("c")
        assert all(np.array_equal(replayed[name], array) for name, array in leased.items())
        db.buffer("train").delete("step = 0")
        with pytest.raises(errors.Evicted):
            list(db.buffer("train").replay("c"))


def store_rollout_with_children(train, k):
    """Store a rollout with a sub-agent, and a compaction of this sub-agent."""
    with train.episode("t", episode_id=f"root {k}", group_id="g") as root:
        root.append(**turn([1], [10 + k]), reward=float(k))
    for name, parent, relation in (
        (f"helper {k}", f"root {k}", "subagent"), (f"compact {k}", f"helper {k}", "compaction"),
    ):  # fmt: skip
        with train.episode(
            "help", episode_id=name, parent=parent, relation=relation, group_id="other"
        ) as helper:
            helper.append(**turn([5], [50 + k]), reward=9.0 if relation == "compaction" else None)


@pytest.mark.parametrize("pack", [False, True])
def test_children_of_rollouts_get_the_advantage_of_their_rollout(train, pack):
    for k in range(2):
        store_rollout_with_children(train, k)
    group = expdb.Group(2, children=True)
    plain = train.sample(1, unit=group, fields=["episode_id"])
    names = ["root 0", "root 1", "helper 0", "compact 0", "helper 1", "compact 1"]
    assert plain["episode_id"].tolist() == [names]
    assert plain["group_member"].tolist() == [[0, 1, 0, 0, 1, 1]]
    assert (plain["group_size"].tolist(), plain["group_mean"].tolist()) == ([2], [0.5])
    unit = Tokens(of=group, advantage="dr_grpo", pack=pack, max_tokens=20)
    batch = train.sample(1, unit=unit, fields=["episode_id"])
    ids = batch["episode_id"].reshape(-1).tolist()
    reward = dict(zip(ids, batch["reward"].reshape(-1).tolist(), strict=True))
    assert [reward[name] for name in names] == [0.0, 1.0, 0.0, 9.0, 1.0, 9.0]
    advantages = batch["advantage"][batch["loss_mask"]]
    outputs = batch["input_ids"][batch["loss_mask"]]
    assert {(int(o), float(a)) for o, a in zip(outputs, advantages, strict=True)} == {
        (10, -0.5), (11, 0.5), (50, -0.5), (51, 0.5),
    }  # fmt: skip
    without = train.sample(1, unit=Tokens(of=expdb.Group(2), advantage="dr_grpo"))
    assert without["loss_mask"].sum() == 2


def test_untrainable_episodes_have_no_rows(train):
    with train.episode("t", episode_id="root", group_id="g", trainable=False) as root:
        root.append(**turn([1], [10]))
        root.append(**turn([1, 10], [11]), reward=1.0)
    with train.fork("root", 1, episode_id="fork", policy_version=7) as fork:
        fork.append(**turn([1, 10], [20]), reward=0.0)
    batch = train.sample(1, unit=Tokens(of=expdb.Group(2), advantage="dr_grpo"))
    assert batch["input_ids"].tolist() == [[1, 10, 20]]
    assert batch["advantage"].tolist() == [[0, -0.5, -0.5]]
    assert train.episodes()["trainable"].to_pylist() == [False, True]
    assert train.count("trainable = false") == 2
    train.store(task_id="t", episode_id="open", **turn([1], [2]))
    with pytest.raises(errors.EpisodeMismatch, match="already has trainable=True"):
        train.store(task_id="t", episode_id="open", trainable=False, **turn([1], [2]))


def store_root_and_fork(train):
    """Store a root of two turns, and a fork that replaces the second one."""
    with train.episode("t", episode_id="root", group_id="g") as root:
        root.append(**turn([1], [10, 11, 12]))
        root.append(**turn([1, 10, 11, 12, 3], [13, 14]), reward=1.0)
    with train.fork("root", 1, episode_id="fork") as fork:
        fork.append(**turn([1, 10, 11, 12, 3], [20, 21]), reward=0.0)


def test_annotations_of_shared_tokens_come_from_the_row_that_trains_on_them(train):
    store_root_and_fork(train)
    batch = train.sample(1, unit=Tokens(of=expdb.Group(2)))
    batch.annotate(values=np.where(batch["loss_mask"], batch["input_ids"], -99))
    stored = train.get(range(3), fields=["values"])["values"]
    assert [array.tolist() for array in stored] == [[10, 11, 12], [13, 14], [20, 21]]
    consumer = train.consumer("ranks")
    lease = consumer.lease(1, unit=Tokens(of=expdb.Group(2)), pin=True, shard=(0, 2))
    for part in (lease.batch, consumer.shared(lease.id, shard=(1, 2))):
        part.annotate(version=1, others=2 * part["input_ids"])
    stored = train.get(range(3), fields=["others"])["others"]
    assert [array.tolist() for array in stored] == [[20, 22, 24], [26, 28], [40, 42]]


def test_both_rollouts_of_a_pair_train_on_shared_tokens(train):
    store_root_and_fork(train)
    batch = train.sample(1, unit=Tokens(of=expdb.Pairs()))
    assert batch["loss_mask"].astype(int).tolist() == [[0, 1, 1, 1, 0, 1, 1]] * 2
    cut = train.sample(1, unit=Tokens(of=expdb.Pairs(), max_tokens=4))
    assert cut["rollout"].tolist() == [0, 1]


def test_groups_contain_children_of_sub_agents_that_are_not_drawn(train):
    with train.episode("t", episode_id="root", group_id="g") as root:
        root.append(**turn([1], [10]), reward=1.0)
    helper = train.episode("h", episode_id="aborted", parent="root", relation="subagent")
    helper.append(**turn([1], [50]))
    helper.abort()
    with train.episode("h", episode_id="below", parent="aborted", relation="continuation") as below:
        below.append(**turn([1], [60]))
    with train.fork("root", 0, episode_id="unscored") as fork:
        fork.append(**turn([1], [70]))
    train.score(episode_id="root", name="judge", value=1.0)
    unit = expdb.Group(1, score="judge", children=True)
    batch = train.sample(1, unit=unit, fields=["episode_id"])
    assert batch["episode_id"].tolist() == [["root", "below"]]


def test_advantage_statistics_count_shared_tokens_once(train):
    store_root_and_fork(train)
    batch = train.sample(1, unit=Tokens(of=expdb.Group(2), advantage="reinforce++"))
    advantages = batch["advantage"][batch["loss_mask"]]
    assert (advantages.mean(), advantages.std()) == pytest.approx((0.0, 1.0), abs=1e-4)


def test_a_budget_does_not_count_episodes_without_rows(train):
    for k in range(4):
        with train.episode("t", trainable=k == 3) as episode:
            episode.append(**turn([1], [10] * 9))
    batch = train.sample(4, unit=Tokens(budget=10))
    assert batch["attention_mask"].sum() == 10


def test_missing_values_of_episodes_and_turns_are_marked(train):
    store_root_and_fork(train)
    train.store(task_id="t", episode_id="tool", result={"a": 1}, terminated=True, **turn([1], [2]))
    unit, fields = Tokens(of=expdb.Group(2)), ["parent_episode", "result"]
    batch = train.sample(1, unit=unit, fields=fields)
    assert batch["has_parent_episode"].tolist() == [False, True]
    assert (batch["result"].shape, batch["result"].dtype) == ((2, 2), object)
    assert batch["turn_of_token"].max() == 1
    consumer = train.consumer("c")
    lease = consumer.lease(1, unit=unit, fields=fields, shard=(0, 2), rows_multiple=2)
    assert lease.batch["result"][1].tolist() == [None, None]
