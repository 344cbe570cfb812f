"""Pages of episodes, and the items of leases."""

import numpy as np
import pytest

import expdb
from expdb import errors


@pytest.fixture
def episodes(buffer):
    for number in range(10):
        for step in range(3):
            buffer.store(
                task_id=f"t{number % 3}", episode_id=f"e{number}", n=step,
                reward=float(step == 1 and number % 2), terminated=step == 2,
            )  # fmt: skip
    return buffer


def numbers(table):
    return table["episode"].to_pylist()


@pytest.mark.both_databases
def test_newest_episodes_are_paged_and_ordered_oldest_first(episodes):
    assert numbers(episodes.episodes(limit=3)) == [7, 8, 9]
    assert numbers(episodes.episodes(limit=3, before=7)) == [4, 5, 6]
    assert numbers(episodes.episodes(limit=3, before=0)) == []
    assert numbers(episodes.episodes(after=3, before=6)) == [4, 5]
    assert numbers(episodes.episodes(after=-1)) == list(range(10))


@pytest.mark.parametrize(
    "where",
    [{"task_id": "t1"}, {"reward": 1.0}, {"reward": 1.0, "task_id": "t1"}, {"step": 2}, {"step": 0},
     {"agent_id": "agent"}, [4, 25, 26], {"length": 3}],
)  # fmt: skip
def test_episode_ranges_return_the_same_matches_as_a_full_listing(episodes, where):
    for has_gaps in (False, True):
        if has_gaps:
            episodes.delete({"episode_id": "e4", "step": 1})
            episodes.delete({"episode_id": "e7"})
        everything = numbers(episodes.episodes(where))
        assert everything
        assert numbers(episodes.episodes(where, limit=100)) == everything
        assert numbers(episodes.episodes(where, limit=2)) == everything[-2:]
        for low, high in ((-1, 5), (2, 9), (4, 8), (6, 8), (8, 9)):
            part = numbers(episodes.episodes(where, after=low, before=high))
            assert part == [number for number in everything if low < number < high]


@pytest.mark.parametrize(
    "arguments", [{"limit": 0}, {"limit": 1.5}, {"before": "e1"}, {"after": None, "limit": -1}]
)
def test_invalid_episode_ranges_are_rejected(episodes, arguments):
    with pytest.raises(expdb.InvalidValue):
        episodes.episodes(**arguments)


def test_draws_have_positions_and_probabilities(episodes):
    consumer = episodes.consumer("learner", seed=0)
    first = consumer.lease(4, sampler=expdb.Prioritized(initial=1.0))
    first.acknowledge(7)
    second = consumer.lease(2)
    table = episodes.draws()
    rows = table.to_pylist()
    assert [row["lease"] for row in rows] == [0] * 4 + [1] * 2
    assert [row["position"] for row in rows[:4]] == first.batch["position"].tolist()
    assert [row["position"] for row in rows[4:]] == second.batch["position"].tolist()
    np.testing.assert_allclose([row["probability"] for row in rows[:4]], first.batch["probability"])
    assert rows[4]["probability"] is None
    assert [row["status"] for row in rows] == ["acknowledged"] * 4 + ["leased"] * 2
    assert rows[0]["trainer_step"] == 7
    assert episodes.draws(limit=1).to_pylist() == rows[4:]
    assert episodes.draws(trainer_step=7).to_pylist() == rows[:4]
    assert episodes.draws(trainer_step=8).num_rows == 0
    assert episodes.draws(consumer="learner", lease=0).to_pylist() == rows[:4]
    assert episodes.draws([rows[2]["position"]]).to_pylist() == [
        row for row in rows if row["position"] == rows[2]["position"]
    ]
    assert episodes.draws([]).num_rows == 0
    assert episodes.draws([10**6]).num_rows == 0


def test_draws_of_whole_episodes_have_the_position_of_the_first_step(episodes):
    lease = episodes.consumer("learner", seed=0).lease(2, unit=expdb.Episode())
    firsts = {int(position[0]) for position in lease.batch["position"]}
    assert set(episodes.draws()["position"].to_pylist()) == firsts


@pytest.mark.both_databases
def test_draws_of_sequences_have_positions_of_the_batch(episodes):
    lease = episodes.consumer("learner", seed=0).lease(2, unit=expdb.Sequence(2))
    assert set(episodes.draws()["position"].to_pylist()) <= set(
        np.ravel(lease.batch["position"]).tolist()
    )


def test_invalid_draw_arguments_are_refused(episodes):
    with pytest.raises(expdb.InvalidValue, match="also pass consumer="):
        episodes.draws(lease=1)
    with pytest.raises(expdb.InvalidValue):
        episodes.draws(limit=0)
    with pytest.raises(expdb.InvalidValue):
        episodes.draws("abc")
    with pytest.raises(errors.UnknownConsumer):
        episodes.draws(consumer="unknown")


def test_draws_of_groups_have_the_probability_of_their_group(buffer):
    for group in range(3):
        for number in range(2):
            buffer.store(
                task_id="t", group_id=f"g{group}", episode_id=f"e{group}{number}", reward=1.0,
                terminated=True,
            )  # fmt: skip
    consumer = buffer.consumer("learner", seed=0)
    sampler = expdb.Prioritized(alpha=1.0, initial=1.0)
    buffer.sample(1, unit=expdb.Group(2), sampler=sampler)
    buffer.update_priorities([0, 2, 4], [1.0, 2.0, 3.0])
    lease = consumer.lease(8, unit=expdb.Group(2), sampler=sampler)
    assert len(set(lease.batch["probability"].tolist())) > 1
    draws = buffer.draws().to_pylist()
    expected = np.repeat(lease.batch["probability"], 2)
    np.testing.assert_allclose([draw["probability"] for draw in draws], expected)


def test_draws_of_discarded_groups_are_not_listed_as_acknowledged(buffer):
    for number in range(4):
        buffer.store(group_id="g", episode_id=f"e{number}", reward=1.0, terminated=True)
    consumer = buffer.consumer("learner", max_times_sampled=1)
    assert consumer.discard(expdb.Group(4, min_spread=1e-6), trainer_step=5) == 1
    assert set(buffer.draws(trainer_step=5)["status"].to_pylist()) == {"discarded"}
