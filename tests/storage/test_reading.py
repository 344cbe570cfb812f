"""Reading and changing stored steps: pages, scans, late rewards, deletion, batches."""

import numpy as np
import pyarrow as pa
import pytest

import expdb
from expdb import QueryBuilder, errors
from expdb.names import EPISODE_COLUMNS

pytestmark = [
    pytest.mark.filterwarnings("ignore:update.. sets the reward:expdb.errors.ExpDBWarning"),
]  # the tests set the reward of every step on purpose


@pytest.fixture
def filled(buffer):
    for k in range(25):
        buffer.store(task_id=f"t{k // 5}", x=k, reward=k / 10, tags={"k": k}, terminated=k % 5 == 4)
    return buffer


def test_get_returns_steps_in_the_order_of_the_positions(filled):
    batch = filled.get([7, 3, 7, 24])
    assert batch["x"].tolist() == [7, 3, 7, 24]
    assert batch["position"].tolist() == [7, 3, 7, 24]
    assert filled.get([]).size == 0
    assert filled.get([])["x"].dtype == np.int64
    with pytest.raises(errors.Evicted, match="25"):
        filled.get([25])
    with pytest.raises(expdb.InvalidValue):
        filled.get([0.5])


def test_long_ranges_have_the_same_columns_as_short_ones(buffer):
    lengths = [700, 1, 900, 3, 500]
    for number, length in enumerate(lengths):
        group = f"g{number}" if number % 2 else None
        with buffer.episode(
            f"t{number}", episode_id=f"e{number}", group_id=group, policy_version=number or None,
            episode_tags={"number": number},
        ) as episode:  # fmt: skip
            episode.extend({"x": np.arange(length)})
    names = [*EPISODE_COLUMNS, "agent_id", "policy_version", "trainable"]
    positions = np.r_[np.arange(2104)[::-1], 5, 5]
    long = buffer.get(positions, fields=names).to_list()
    short = [
        row
        for part in np.array_split(positions, 4)
        for row in buffer.get(part, fields=names).to_list()
    ]
    assert repr(long) == repr(short)  # nan equals nan
    assert long[-3]["episode_tags"] is not long[-4]["episode_tags"]


def test_scan_reads_incrementally(filled):
    assert [batch.size for batch in filled.scan(size=10)] == [10, 10, 5]
    (batch,) = filled.scan({"task_id": "t4"}, after=21)
    assert batch["x"].tolist() == [22, 23, 24]
    assert list(filled.scan(after=24)) == []
    filled.store(x=99)
    (batch,) = filled.scan(after=24)
    assert batch["x"].tolist() == [99]


def test_fields_can_select_fields_and_columns(filled):
    batch = filled.sample(8, fields=["x", "task_id", "tags", "episode_return"], seed=0)
    assert list(batch) == ["x", "task_id", "tags", "episode_return"]
    for x, task, tags in zip(batch["x"].tolist(), batch["task_id"], batch["tags"], strict=True):
        assert (task, tags) == (f"t{x // 5}", {"k": x})
    with pytest.raises(expdb.QueryError, match=r"no (field or column|key) 'nope'"):
        filled.sample(2, fields=["nope"])


def test_episodes_returns_a_table_of_episodes_with_a_matching_step(filled):
    table = filled.episodes()
    assert isinstance(table, pa.Table)
    assert table["task_id"].to_pylist() == [f"t{k}" for k in range(5)]
    assert table["episode_return"].to_pylist() == pytest.approx([1.0, 3.5, 6.0, 8.5, 11.0])
    rewarded = filled.episodes(QueryBuilder().gte("reward", 1.2))
    assert rewarded["task_id"].to_pylist() == ["t2", "t3", "t4"]
    assert filled.episodes({"task_id": "t3"})["length"].to_pylist() == [5]
    assert filled.episodes({"task_id": "none"}).num_rows == 0


@pytest.mark.both_databases
def test_a_late_reward_is_visible_to_all_reads_immediately(db, filled):
    assert filled.update({"task_id": "t1"}, reward=7.0) == 5
    assert filled.get([5, 4])["reward"].tolist() == [7.0, 0.4]
    assert filled.episodes({"task_id": "t1"})["episode_return"].to_pylist() == pytest.approx([35.0])
    assert filled.count(QueryBuilder().eq("reward", 7)) == 5
    assert (filled.sample(10, {"task_id": "t1"})["reward"] == 7).all()
    assert db.sql("SELECT sum(reward) AS r FROM experience WHERE task_id = 't1'").to_pylist() == [
        {"r": 35.0}
    ]
    assert filled.update({"task_id": "t1"}, reward=None) == 5
    assert np.isnan(filled.get([5])["reward"][0])


@pytest.mark.both_databases
def test_flags_tags_and_policy_versions_can_be_changed(filled):
    filled.update(
        np.array([0, 1]), terminated=True, truncated=True, tags={"new": 1}, policy_version=9
    )
    batch = filled.get([0, 1, 2], fields=["terminated", "truncated", "tags", "policy_version"])
    assert batch["terminated"].tolist() == [True, True, False]
    assert batch["tags"].tolist() == [{"k": 0, "new": 1}, {"k": 1, "new": 1}, {"k": 2}]
    assert batch["policy_version"].tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": 5}, "pass reward"),
        ({}, "no column to set"),
        ({"reward": float("nan")}, "finite"),
        ({"tags": 5}, "tags"),
        ({"terminated": None}, "True or False"),
        ({"step": 3}, "cannot set step"),
    ],
)
def test_invalid_updates_are_rejected(filled, changes, message):
    with pytest.raises(expdb.InvalidValue, match=message):
        filled.update({"task_id": "t1"}, **changes)


@pytest.mark.both_databases
def test_update_and_delete_require_a_query(filled):
    with pytest.raises(expdb.InvalidValue, match=r"gte\('position', 0\)"):
        filled.update(None, reward=1.0)
    with pytest.raises(expdb.InvalidValue, match="clear"):
        filled.delete(None)
    assert len(filled) == 25


@pytest.mark.both_databases
def test_deleted_steps_disappear_from_scans_tasks_and_episodes(db, filled):
    assert filled.delete(QueryBuilder().in_("step", [1, 3])) == 10
    assert filled.delete({"task_id": "nope"}) == 0
    assert len(filled) == 15
    (batch,) = filled.scan()
    assert batch["x"].tolist() == [k for k in range(25) if k % 5 not in (1, 3)]
    filled.delete({"task_id": "t0"})
    assert filled.tasks() == ["t1", "t2", "t3", "t4"]
    assert filled.episodes()["task_id"].to_pylist() == ["t1", "t2", "t3", "t4"]
    assert filled.episodes()["length"].to_pylist() == [5, 5, 5, 5]


@pytest.mark.both_databases
def test_episode_returns_are_recomputed_exactly_after_an_update(buffer):
    buffer.store(task_id="a", reward=1e18)
    buffer.update({"task_id": "a"}, reward=0.5)
    assert buffer.episodes()["episode_return"].to_pylist() == [0.5]
    buffer.update({"task_id": "a"}, reward=None)
    assert buffer.episodes()["episode_return"].to_pylist() == [None]
    buffer.store(task_id="b", reward=-0.0)
    assert not np.signbit(buffer.get([1])["reward"][0])


def test_invalid_arguments_of_read_methods_are_rejected(filled):
    for call in (
        lambda: filled.scan(size=10**30), lambda: filled.sample("4"), lambda: filled.sample(2.5),
        lambda: filled.sample(True), lambda: filled.scan(after="x"), lambda: filled.scan(size=0),
        lambda: filled.sample_tasks(1.5),
        lambda: filled.sample(1, seed=-1), lambda: filled.sample(1, seed="a"),
        lambda: filled.sample(1, unit="Step"),
        lambda: filled.sample(1, unit=expdb.NStep), lambda: filled.sample(1, sampler=expdb.Uniform),
        lambda: filled.get([[1], [1, 2]]),
        lambda: filled.episode("t", flush_steps="a"),
        lambda: filled.episode("t", flush_seconds=None),
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue):
            call()
    (batch,) = filled.scan(after=np.int64(22))
    assert batch["x"].tolist() == [23, 24]


def test_priorities_can_be_read_and_invalid_priorities_are_rejected(filled):
    assert filled.update_priorities([1, 2, 2, 99], [0.5, 1.0, 2.0, 1.0]) == 3
    assert filled.get([1, 2], fields=["priority"])["priority"].tolist() == [0.5, 2.0]
    assert np.isnan(filled.get([3], fields=["priority"])["priority"][0])
    for bad in (float("nan"), float("inf"), -1.0):
        with pytest.raises(expdb.InvalidValue, match="finite"):
            filled.update_priorities([1], [bad])
    with pytest.raises(expdb.InvalidValue, match="one priority for each position"):
        filled.update_priorities([1, 2], [1.0])


def test_reading_an_empty_buffer_returns_empty_results(buffer):
    assert (len(buffer), buffer.count(), buffer.tasks()) == (0, 0, [])
    assert list(buffer.scan()) == []
    assert buffer.episodes().num_rows == 0
    assert buffer.stats()["steps"] == 0
    assert bool(buffer)
