"""A handle adds its own commits to its rows in memory without reading them back."""

import numpy as np
import pytest
from behind import store_of
from row_histories import FIELDS, UNIT, History, assert_matches_new_reader

import expdb
from expdb.sampling import engine
from expdb.sql.dialects.sqlite.engine import SqliteSession


@pytest.mark.both_databases
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 40))]
)
def test_rows_in_memory_match_the_database_after_random_writes(open_db, seed):
    rng = np.random.default_rng(seed)
    capacity = None if seed % 2 else int(rng.integers(20, 60))
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=capacity, fields=FIELDS)
    history, reader = History(rng, buffer, open_db().buffer("b")), open_db().buffer("b")
    for k in range(60):
        history.write_or_change()
        if rng.random() < 0.7:
            assert_matches_new_reader(buffer, reader, k)
    history.close()
    assert_matches_new_reader(buffer, reader, seed)


def test_a_step_is_no_longer_drawn_when_its_earlier_frame_is_evicted(open_db):
    buffer = open_db().buffer("b", capacity=8)
    options = {"sampler": expdb.Prioritized(), "unit": expdb.Stack(3, stack_fields=("x",))}
    for x in range(20):
        buffer.store(task_id="t", episode_id="e", x=x)
        drawn = set(buffer.sample(64, **options)["position"].tolist())
        first = x - 7  # of the stored steps
        assert min(drawn) == (0 if first <= 0 else first + 2)


def fail_if_read(*arguments):
    raise AssertionError("the database was read")


def write_steps(buffer, episode, first):
    """Write 20 steps with every method that stores steps."""
    steps = np.arange(first, first + 20)
    for k in steps[:4]:
        episode.append(action=int(k), reward=0.5)
    episode.flush()
    buffer.store(action=int(steps[4]), reward=1.0)
    buffer.store_batch({"action": steps[5:9], "task_id": ["a", "b", "a", "b"]})
    with buffer.episode("whole") as whole:
        whole.extend({"action": steps[9:19]})
        whole.append(action=int(steps[19]), terminated=True)


def test_sample_does_not_read_own_writes(open_db, location, monkeypatch):
    monkeypatch.setattr("expdb.archive.retention.LOOK_SECONDS", 1000.0)
    lag = {"max_lag_seconds": 60.0} if "://" in location else {}
    buffer = open_db(**lag).buffer("b", capacity=60, fields={"action": expdb.Field("int64")})
    with buffer.episode("long") as episode:
        write_steps(buffer, episode, 0)
        buffer.sample(1, unit=UNIT)
        write_steps(buffer, episode, 20)  # the next sample allocates rows for later writes
        buffer.sample(1, unit=UNIT)
        with monkeypatch.context() as patched:
            patched.setattr(engine, "refresh", fail_if_read)
            patched.setattr(type(store_of(buffer).engine), "reading", fail_if_read)
            for first in (40, 60, 80, 100):
                write_steps(buffer, episode, first)
                buffer.sample(1, unit=UNIT)
        resident = buffer._sampling.resident
        actions = resident.columns["action"][resident.rows(resident.all_positions())]
        assert actions.tolist() == list(range(60, 120))


def test_sample_after_clear_does_not_read_own_writes(open_db, location, monkeypatch):
    lag = {"max_lag_seconds": 60.0} if "://" in location else {}
    buffer = open_db(**lag).buffer("b", fields={"action": expdb.Field("int64")})
    with buffer.writer() as writer:
        for first in (0, 60, 120, 180):
            writer.extend({"action": first + np.arange(60)})
            writer.flush()
            with monkeypatch.context() as patched:
                if first:
                    patched.setattr(engine, "refresh", fail_if_read)
                    patched.setattr(type(store_of(buffer).engine), "reading", fail_if_read)
                assert sorted(np.unique(buffer.sample(999)["action"])) == [
                    *range(first, first + 60)
                ]
            if not first:
                buffer.sample(1)
            buffer.clear()


def test_commit_queue_is_emptied_without_samples(db, monkeypatch):
    buffer = db.buffer("b")
    buffer.store(x=0)
    buffer.sample(1)
    buffer.sample(1)
    queue = store_of(buffer).commit_queue
    monkeypatch.setattr("expdb.storage.commits.MAX_COMMITS", 8)
    for k in range(1, 8):
        buffer.store(x=k)
        assert len(queue.queued) == k
    for k in range(8, 20):
        buffer.store(x=k)
    assert not queue.queued
    assert set(buffer.sample(500)["x"].tolist()) == set(range(20))
    buffer.store(x=20)
    assert len(queue.queued) == 1


def test_rows_of_an_episode_stay_correct_after_its_chunks_are_merged(open_db):
    ours, theirs = open_db(max_lag_seconds=0.0).buffer("b"), open_db().buffer("b")
    ours.store_batch({"x": np.arange(50)})
    with theirs.episode("e", flush_steps=1000) as episode:
        for k in range(6):
            episode.append(x=100 + k)
            if k % 2:
                episode.flush()
                ours.sample(1, unit=expdb.Step(), fields=["x"])
                ours.sample(1)
        episode.append(x=106)
    reader = open_db().buffer("b")
    assert_matches_new_reader(ours, reader, 0)
    assert ours.get(np.arange(50, 57))["x"].tolist() == list(range(100, 107))


def test_a_final_observation_in_a_separate_chunk_is_read(open_db):
    buffer, reader = open_db().buffer("b"), open_db().buffer("b")
    frame = np.zeros((40, 40), np.uint8)
    for count in range(1, 14):  # one count fills a chunk; its final row is in the next
        with buffer.episode("e", flush_steps=1000) as episode:
            for k in range(count):
                episode.append(obs=frame, action=k)
            episode.end(obs=frame + count)
        assert_matches_new_reader(buffer, reader, count)


def test_a_commit_of_another_handle_right_after_our_own_is_detected(tmp_path, monkeypatch):
    with (
        expdb.open(tmp_path / "a.db", max_lag_seconds=0.0) as own_db,
        expdb.open(tmp_path / "a.db") as other_db,
    ):
        ours, theirs = own_db.buffer("b"), other_db.buffer("b")
        ours.store_batch({"x": np.arange(3)})
        for _ in range(3):
            ours.sample(1)
        calls, original = [], SqliteSession.wal_index_header

        def after_another_commit(self):
            calls.append(self)
            if len(calls) == 2:  # after our commit
                theirs.store(x=4)
            return original(self)

        monkeypatch.setattr(SqliteSession, "wal_index_header", after_another_commit)
        ours.store(x=3)
        assert len(calls) == 2
        assert set(ours.sample(500)["x"].tolist()) == set(range(5))


@pytest.mark.filterwarnings("ignore:.*k:expdb.errors.ExpDBWarning")
def test_episode_tags_set_by_a_later_step_apply_to_filters(open_db):
    buffer = open_db().buffer("b")
    where = expdb.QueryBuilder().eq("episode_tags.k", 2)
    with buffer.writer() as writer:
        for k in range(4):
            writer.append(x=k, episode_tags={"k": 2} if k == 3 else None)
            writer.flush()
            buffer.sample(1)
            if k < 3:
                with pytest.raises(expdb.TooFewRows):
                    buffer.sample(50, where)
        assert set(buffer.sample(50, where)["x"].tolist()) == {0, 1, 2, 3}
