"""Groups of rollouts, stacks of frames, and shards.

These tests cover cases that test_learning and test_residents do not.
"""

import numpy as np
import pytest

import expdb
from expdb import Group, NStep, Prioritized, QueryBuilder, Stack, Uniform

ALL = Uniform(replace=False)


def rollout(buffer, group, rewards, **options):
    """Write an episode with one step per reward and return its id.

    A reward of None is set later.
    """
    with buffer.episode(options.pop("task", "prompt"), group_id=group, **options) as episode:
        for t, reward in enumerate(rewards):
            episode.append(obs=float(t), reward=reward, terminated=t == len(rewards) - 1)
    return episode.episode_id


def test_a_group_waits_for_its_late_rewards(db):
    buffer = db.buffer("b")
    ids = [rollout(buffer, "a", [None, None]) for _ in range(2)]
    with pytest.raises(
        expdb.TooFewRows, match="no groups of 2 complete rollouts with known returns"
    ):
        buffer.sample(1, unit=Group(2))
    buffer.update(QueryBuilder().eq("episode_id", ids[0]).and_().eq("step", 1), reward=1.0)
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, unit=Group(2))
    buffer.update(QueryBuilder().eq("episode_id", ids[1]).and_().eq("step", 1), reward=-1.0)
    assert buffer.sample(1, unit=Group(2))["episode_return"].tolist() == [[1.0, -1.0]]
    buffer.update(QueryBuilder().eq("episode_id", ids[0]).and_().eq("step", 1), reward=3.0)
    assert buffer.sample(1, unit=Group(2))["group_mean"].tolist() == [1.0]


def test_min_spread_skips_groups_with_equal_returns(db):
    buffer = db.buffer("b")
    for rewards in ([0.1, 0.1, 0.1], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]):
        for reward in rewards:
            rollout(buffer, str(rewards), [reward])
    assert buffer.sample(3, unit=Group(3), sampler=ALL).size == 3
    with pytest.raises(expdb.TooFewRows, match="but only 1"):
        buffer.sample(3, unit=Group(3, min_spread=1e-6), sampler=ALL)
    assert buffer.sample(1, unit=Group(3, min_spread=1e-6), sampler=ALL)[
        "episode_return"
    ].tolist() == [[0.0, 1.0, 0.0]]
    with pytest.raises(expdb.TooFewRows, match=r"that differ by 0\.5"):
        buffer.sample(1, unit=Group(3, min_spread=0.5))


def test_complete_false_pads_incomplete_groups(db):
    buffer = db.buffer("b")
    rollout(buffer, "a", [1.0, 2.0])
    rollout(buffer, "a", [5.0])
    with buffer.episode("prompt", group_id="a") as episode:
        episode.append(obs=0.0, reward=9.0)
        episode.flush()
        with pytest.raises(expdb.TooFewRows):
            buffer.sample(1, unit=Group(3))
        batch = buffer.sample(1, unit=Group(3, complete=False), fields=[
            "obs", "mask", "length", "episode", "episode_return", "group_size", "group_mean",
            "task_id", "position", "buffer",
        ])  # fmt: skip
        assert batch["mask"][0].tolist() == [[True, True], [True, False], [False, False]], (
            "the open one does not count"
        )
        assert batch["length"].tolist() == [[2, 1, 0]]
        assert batch["episode"][0, 2] == -1
        assert batch["position"][0].tolist() == [[0, 1], [2, -1], [-1, -1]]
        assert batch["task_id"].tolist() == [["prompt", "prompt", None]]
        assert np.isnan(batch["episode_return"][0, 2])
        assert batch["group_size"].tolist() == [2]
        assert batch["group_mean"].tolist() == [4.0]


def test_groups_use_the_newest_rollouts_that_match_the_query(db):
    buffer = db.buffer("b")
    for k in range(5):
        rollout(buffer, "a", [float(k)], policy_version=k % 2)
    assert buffer.sample(1, unit=Group(2))["episode_return"].tolist() == [[3.0, 4.0]]
    assert buffer.sample(1, QueryBuilder().eq("policy_version", 1), unit=Group(2))[
        "episode_return"
    ].tolist() == [[1.0, 3.0]]
    assert buffer.sample(1, {"policy_version": 0}, unit=Group(3, max_length=4))["mask"].shape == (
        1,
        3,
        4,
    )


def test_groups_can_be_sampled_by_priority(db):
    buffer = db.buffer("b")
    for group in "abc":
        for k in range(2):
            rollout(buffer, group, [float(k)])
    batch = buffer.sample(3, unit=Group(2), sampler=ALL, fields=["position", "group_id"])
    values = [{"a": 0.0, "b": 1.0, "c": 3.0}[name] for name in batch["group_id"][:, 0]]
    assert buffer.update_priorities(batch["position"][:, 0, 0], values) == 3
    sampler, fields = Prioritized(alpha=1.0, epsilon=0.0), ["group_id", "probability"]
    batch = buffer.sample(400, unit=Group(2), sampler=sampler, fields=fields, seed=0)
    assert (batch["group_id"] == "c").sum() == 600  # of 800, because samples are stratified
    assert set(batch["probability"].round(9).tolist()) == {0.25, 0.75}


# -- stacks ----------------------------------------------------------------------------------------


def test_deleting_a_frame_removes_the_stacks_that_contain_it(db):
    buffer = db.buffer("b")
    for t in range(8):
        obs = {"image": np.full((2, 2), t, np.uint8), "speed": float(t)}
        buffer.store(episode_id="e", obs=obs, action=t)
    buffer.delete(QueryBuilder().eq("position", 3))
    batch = buffer.sample(5, unit=Stack(3), sampler=ALL)
    assert sorted(batch["position"].tolist()) == [0, 1, 2, 6, 7]
    assert (batch["obs.image"][:, -1, 0, 0] == batch["action"]).all()
    assert batch["obs.speed"].shape == (5, 3)
    with pytest.raises(expdb.TooFewRows, match="steps with all of their frames"):
        buffer.sample(6, unit=Stack(3), sampler=ALL)


def test_errors_for_invalid_stacks_name_the_argument(db):
    buffer = db.buffer("b")
    for t in range(4):
        buffer.store(obs=float(t), next_obs=t + 1.0, truncated=t == 3)
    with pytest.raises(expdb.InvalidValue, match=r"pass next_fields=\('obs',\)"):
        buffer.sample(1, unit=NStep(1, stack=2))
    batch = buffer.sample(3, unit=NStep(1, stack=2, next_fields=("obs",)), sampler=ALL)
    assert sorted(batch["next_obs"].tolist()) == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    with pytest.raises(
        expdb.InvalidValue, match="must name stored fields, got pixels; the fields are"
    ):
        buffer.sample(1, unit=Stack(2, stack_fields=("pixels",)))


# -- shards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit",
    [expdb.Step(), NStep(1), expdb.Sequence(2), expdb.Episode(), Group(2), Stack(2)],
    ids=str,
)
@pytest.mark.parametrize("sampler", [Uniform(replace=True), Prioritized()], ids=str)
@pytest.mark.slow
def test_shards_are_disjoint_and_cover_all_items(db, unit, sampler):
    buffer = db.buffer("b")
    for k in range(18):
        rollout(buffer, f"g{k % 9}", [0.0, 0.0, float(k)], task=f"t{k % 4}")

    def anchors(**options):
        batch = buffer.sample(400, unit=unit, sampler=sampler, seed=3, **options)
        return set(batch["position"].reshape(400, -1)[:, 0].tolist())

    parts = [anchors(shard=(k, 3)) for k in range(3)]
    assert set().union(*parts) == anchors()
    assert sum(map(len, parts)) == len(anchors())
    assert all(parts)
    shards = [
        anchors(shard=(k, 3), where=QueryBuilder().in_("task_id", ["t0", "t1"])) for k in range(3)
    ]
    assert sum(map(len, shards)) == len(set().union(*shards)) > 0
    assert anchors(shard=[0, 1]) == anchors()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_consecutive_groups_are_spread_over_all_shards(db, size):
    buffer = db.buffer("b")
    for k in range(24 * size):
        rollout(buffer, f"g{k // size}", [float(k)])
    for count in (2, 3, 4):
        shards = [
            {
                int(batch["position"][0, 0, 0])
                for batch in buffer.epochs(1, unit=Group(size), shard=(k, count))
            }
            for k in range(count)
        ]
        assert all(shards)
        assert sum(map(len, shards)) == len(set().union(*shards)) == 24


def test_rows_of_sequences_and_groups_are_dicts_of_arrays(db):
    buffer = db.buffer("b")
    for k in range(4):
        with buffer.episode("t", group_id="g") as episode:
            episode.append(x=k, reward=float(k))
            episode.append(x=k, y=1.0, terminated=True)
    for unit in (expdb.Sequence(2), expdb.Episode(), expdb.Episode(pad=False), expdb.Group(4)):
        (row, *_) = buffer.sample(1, unit=unit, seed=0).to_list()
        assert np.shape(row["x"])[-1] == 2, unit
        assert np.isnan(np.asarray(row["reward"], float)).any(), unit


def test_only_groups_that_can_be_drawn_are_counted_as_ready(db):
    buffer, unit = db.buffer("evicting", capacity=4), expdb.Group(2)
    for reward in (0.0, 1.0):
        with buffer.episode("t", group_id="g", policy_version=5) as episode:
            episode.extend({"x": [1, 2, 3], "reward": [0.0, 0.0, reward]})
    groups = buffer.consumer("c").stats(unit=unit)["groups"]
    assert (groups["ready"], groups["incomplete"]) == (0, 1)
    buffer = db.buffer("without version")
    for reward in (0.0, 1.0):
        with buffer.episode("t", group_id="g") as episode:
            episode.append(x=1, reward=reward)
    assert buffer.consumer("any").stats(unit=unit)["groups"]["ready"] == 1
    buffer.policy_version = 0
    groups = buffer.consumer("fresh", max_staleness=1).stats(unit=unit)["groups"]
    assert (groups["ready"], groups["too_stale"]) == (0, 1)


def test_stats_count_groups_by_the_reason_they_cannot_be_leased(db, buffer):
    def rollout(group, reward, version=5):
        with buffer.episode("t", group_id=group, policy_version=version) as episode:
            episode.append(x=1, reward=reward, terminated=True)

    for k in range(2):
        rollout("ready", float(k))
        rollout("same", 1.0)
        rollout("old", float(k), version=1 + k)
    rollout("half", 0.0)
    rollout("unscored", 0.0)
    rollout("unscored", None)
    buffer.policy_version = 6
    unit = expdb.Group(2, min_spread=1e-6)
    consumer = buffer.consumer("c", max_times_sampled=1, max_staleness=3)
    assert consumer.stats(unit=unit)["groups"] == {
        "ready": 1, "leased": 0, "incomplete": 2, "no_spread": 1, "too_stale": 1
    }  # fmt: skip
    lease = consumer.lease(1, unit=unit)
    assert consumer.stats(unit=unit)["groups"]["leased"] == 1
    lease.acknowledge(trainer_step=7)
    with pytest.raises(expdb.TooFewRows):
        consumer.lease(1, unit=unit)
    figures = consumer.stats(unit=unit)
    assert (figures["groups"]["ready"], figures["groups"]["leased"]) == (0, 1)
    figures = consumer.stats(unit=unit, where={"group_id": "same"})
    assert sum(figures["groups"].values()) == figures["groups"]["no_spread"] == 1
    assert (figures["acknowledged"], figures["last_trainer_step"], figures["max_staleness"]) == (
        1,
        7,
        3,
    )
    assert "groups" not in consumer.stats()
    with pytest.raises(expdb.InvalidValue, match="unit must be a Group such as"):
        consumer.stats(unit=expdb.Step())
