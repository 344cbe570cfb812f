"""Writes whose commit is unknown, and the calls after such a write."""

import contextlib
import itertools
import sqlite3

import numpy as np
import pytest
from behind import dialect_of, engine_of, writing
from contents import steps_of
from torture.disk import Disk, library

import expdb
from expdb import errors
from expdb.integrations.prioritized import PrioritizedWriter
from expdb.storage.writing import round_trip

pytestmark = pytest.mark.both_databases


def numbers(url):
    with expdb.open(url) as db:
        assert db.check() == []
        buffer = db.buffer("b")
        stored = [row["n"] for row in steps_of(buffer)]
        steps = buffer.get(range(len(stored)), fields=["step"])["step"]
        assert steps.tolist() == list(range(len(stored)))
        return stored, buffer.episodes().select(["status", "length"]).to_pylist()


def step(k):
    return {"n": k, "text": f"step {k}"}


def play(db, trouble, at, later):
    """Write an episode, with faults from step `at` to step `at + later`.

    Return the appended numbers and the types of the errors.
    """
    taken, raised = [], []

    def attempt(work, *arguments, **values):
        try:
            work(*arguments, **values)
        except (
            errors.ConnectionLost,
            errors.DatabaseBusy,
            errors.DatabaseUnreadable,
        ) as error:
            raised.append(type(error))

    writer = db.buffer("b").episode("t", flush_steps=4)
    for k in range(24):
        if k == at:
            trouble(True)
        if k == at + later:
            trouble(False)
        taken.append(k)
        attempt(writer.append, **step(k))
    attempt(writer.flush)
    trouble(False)
    positions = writer.flush()
    for k in range(24, 27):
        taken.append(k)
        writer.append(**step(k))
    if at % 2:
        trouble(True)
        attempt(writer.end, n=99)
        trouble(False)
    if writer.is_open:
        writer.end(n=99)
    assert (np.diff(positions) > 0).all()
    assert (positions >= 0).all()
    return taken, raised


@pytest.mark.parametrize(
    "at", [2, 8, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 3, 7, 12))]
)
def test_steps_appended_after_a_lost_response_are_stored_once(postgresql_url, proxy, at):
    def trouble(begins):
        proxy.swallow, proxy.refuse = begins, begins

    with expdb.open(proxy.url(postgresql_url), timeout=0.3) as db:
        taken, raised = play(db, trouble, at, later=9)
    assert errors.CommitUnknown in raised
    assert numbers(postgresql_url) == (taken, [{"status": "complete", "length": 27}])


@pytest.mark.parametrize("is_known", [True, False], ids=["in one trip", "statement by statement"])
@pytest.mark.slow
def test_a_write_is_stored_once_whichever_response_is_lost(postgresql_url, proxy, is_known):
    """Lose each response of the server in turn.

    The first write to a buffer sends its statements one by one.
    """
    for message in itertools.count(1):
        with expdb.open(postgresql_url) as db:
            if "b" in db.buffers():
                db.drop("b")
            if is_known:
                db.buffer("b").store(task_id="others", n=0, text="", terminated=True)
        with expdb.open(proxy.url(postgresql_url), timeout=0.3) as db:
            writer = db.buffer("b").episode("t", flush_steps=100)
            for k in range(3):
                writer.append(**step(k))
            proxy.swallow_after, proxy.refuse = message, True
            with contextlib.suppress(errors.ConnectionLost):
                writer.flush()
            was_reached = proxy.swallow_after is None
            proxy.swallow_after, proxy.refuse = None, False
            engine_of(db).timeout = 30.0
            for k in range(3, 6):
                writer.append(**step(k))
            writer.end(n=99)
            stored = [row["n"] for row in steps_of(db.buffer("b"), {"task_id": "t"})]
            assert stored == list(range(6)), message
            (row,) = db.buffer("b").episodes({"task_id": "t"}).to_pylist()
            assert (row["status"], row["length"]) == ("complete", 6)
            assert db.check() == []
        if not was_reached:
            assert message > 1
            break


@pytest.mark.skipif(library() is None, reason="sqlite3 is a part of this Python")
@pytest.mark.parametrize("at", [1, 2, 3, 7, 8, 12])
def test_steps_appended_after_a_failed_sync_are_stored_once(tmp_path, at):
    path = str(tmp_path / "runs.db")
    with Disk(str(tmp_path)) as disk:

        def fail(kind, file):
            return sqlite3.SQLITE_IOERR_FSYNC if kind == "sync" else 0

        def trouble(begins):
            disk.fault = fail if begins else None

        with expdb.open(path, durability="full", timeout=0.3) as db:
            taken, raised = play(db, trouble, at, later=9)
    assert errors.DatabaseUnreadable in raised
    assert numbers(path) == (taken, [{"status": "complete", "length": 27}])


@pytest.mark.parametrize("terminated", [False, True])
def test_an_unnamed_episode_continues_after_an_unknown_commit(postgresql_url, proxy, terminated):
    with expdb.open(proxy.url(postgresql_url), timeout=0.3) as db:
        buffer = db.buffer("b")
        proxy.swallow, proxy.refuse = True, True
        with pytest.raises(errors.CommitUnknown, match="write_id"):
            buffer.store(n=0, terminated=terminated)
        proxy.swallow = proxy.refuse = False
        engine_of(db).timeout = 30.0
        buffer.store(n=1)
        buffer.store(n=2, terminated=True)
        lengths = buffer.episodes()["length"].to_pylist()
        assert lengths in ([3], [2]) if not terminated else lengths in ([1, 2], [2])
        assert "open" not in buffer.episodes()["status"].to_pylist()


def test_steps_can_be_appended_after_a_failed_end(open_db):
    db, other = open_db(timeout=0.1), open_db()
    writer = db.buffer("b").episode("t")
    writer.append(n=0)
    with writing(other) as session:
        session.query(dialect_of(other).LOCK, 1)
        session.query("UPDATE buffers SET name = name")
        with pytest.raises(errors.DatabaseBusy):
            writer.end(n=1)
    writer.append(n=1)
    writer.flush()
    assert db.buffer("b").episodes().select(["status", "length"]).to_pylist() == [
        {"status": "open", "length": 2}
    ]
    writer.append(n=2)
    writer.end(n=2)
    assert db.buffer("b").get([2])["next_n"].tolist() == [2]
    assert [row["n"] for row in steps_of(db.buffer("b"))] == [0, 1, 2]


def priorities_by_number(buffer):
    batches = buffer.scan(fields=("n", "priority"))
    return {row["n"]: row["priority"] for batch in batches for row in batch.to_list()}


def test_priorities_belong_to_the_right_steps_after_lost_responses(postgresql_url, proxy):
    with expdb.open(proxy.url(postgresql_url), timeout=0.3) as db:
        buffer = db.buffer("b")
        buffer.store(n=-1, terminated=True)
        writer = PrioritizedWriter(buffer)
        for n in range(3):
            writer.append(100.0 + n, n=n)
        proxy.swallow = proxy.refuse = True
        with pytest.raises(errors.ConnectionLost):
            writer.flush()
        proxy.swallow = proxy.refuse = False
        engine_of(db).timeout = 30.0
        for n in range(3, 6):
            writer.append(None if n == 4 else 100.0 + n, n=n)
        write, calls = writer._writer._store_steps, []

        def lost(steps):
            calls.append(1)
            if len(calls) == 2:  # writes the steps in doubt but not the later ones
                raise errors.ConnectionLost("lost between the two")
            return write(steps)

        writer._writer._store_steps = lost
        with pytest.raises(errors.ConnectionLost):
            writer.flush()
        writer.append(106.0, n=6)
        assert writer.flush().tolist() == [1, 2, 3, 4, 5, 6, 7]
        writer.close()
        by_number = priorities_by_number(buffer)
    assert {n: p for n, p in by_number.items() if p is not None} == {
        n: 100.0 + n for n in (0, 1, 2, 3, 5, 6)
    }


def test_the_next_flush_sets_priorities_that_an_interrupt_prevented(tmp_path, monkeypatch):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b")
        writer = PrioritizedWriter(buffer)
        for n in range(3):
            writer.append(0.5 + n, n=n)
        with monkeypatch.context() as patch:
            patch.setattr(type(buffer), "update_priorities", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.flush()
        assert not writer.is_flushed
        writer.append(9.0, n=3)
        writer.flush()
        assert priorities_by_number(buffer) == {0: 0.5, 1: 1.5, 2: 2.5, 3: 9.0}
        assert writer.is_flushed
        writer.close()


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "message", [1, 2, 3, *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 9))]
)
def test_scores_whose_commit_is_unknown_are_recorded_once(postgresql_url, proxy, message):
    """Lose each response of the server in turn, including that to the commit."""
    with expdb.open(postgresql_url) as db:
        for k in range(4):
            db.buffer("b").store(episode_id=f"e{k}", n=k, terminated=True)
    with expdb.open(proxy.url(postgresql_url)) as db:
        buffer = db.buffer("b")
        buffer.score([0], name="judge", value=0.5)
        proxy.swallow_after = message
        assert buffer.score([1, 2], name="judge", value=[1.0, 2.0]) == 2
        proxy.swallow_after = message
        lease = buffer.consumer("judge").lease(1, [3])
        proxy.swallow_after = message
        lease.acknowledge(scores=[{"position": 3, "name": "judge", "value": 3.0}])
        proxy.swallow_after = None
    with expdb.open(postgresql_url) as db:
        assert db.check() == []
        table = db.buffer("b").scores()
        assert table["position"].to_pylist() == [0, 1, 2, 3]
        assert table["value"].to_pylist() == [0.5, 1.0, 2.0, 3.0]
        values = db.buffer("b").get(range(4), fields=["scores.judge"])["scores.judge"]
        assert values.tolist() == [0.5, 1.0, 2.0, 3.0]


def test_a_repeated_write_that_meets_a_lock_is_still_in_doubt(postgresql_url, monkeypatch):
    """The commit was stored, but its response is lost, and another writer then holds the lock."""
    read, lost = round_trip._read_answer, []
    with expdb.open(postgresql_url, timeout=0.5) as db, expdb.open(postgresql_url) as other:
        buffer = db.buffer("b")
        buffer.store(episode_id="first", n=0)
        lock = writing(other)

        def lose(answer, plan):
            if lost:
                return read(answer, plan)
            lost.append(lock.__enter__())
            lost[0].query("UPDATE buffers SET name = name RETURNING id")
            raise errors.ConnectionLost("cut after the commit")

        monkeypatch.setattr(round_trip, "_read_answer", lose)
        with pytest.raises(errors.CommitUnknown, match="write_id"):
            buffer.store(episode_id="second", n=1)
        lock.__exit__(None, None, None)
        assert [row["n"] for row in steps_of(buffer)] == [0, 1]


def test_steps_that_are_evicted_after_a_lost_response_are_not_stored_again(postgresql_url, proxy):
    with expdb.open(postgresql_url) as other, expdb.open(proxy.url(postgresql_url)) as db:
        others = other.buffer("b", capacity=6)
        db.buffer("b").store(task_id="others", n=0, text="", terminated=True)
        writer = db.buffer("b").episode("t", flush_steps=100)
        for k in range(3):
            writer.append(**step(k))
        engine_of(db).timeout = 0.3
        proxy.swallow, proxy.refuse = True, True
        with pytest.raises(errors.CommitUnknown):
            writer.flush()
        proxy.swallow, proxy.refuse = False, False
        engine_of(db).timeout = 30.0
        for k in range(8):
            others.store(task_id="others", n=k, text="", terminated=True)
        assert writer.flush().tolist() == [1, 2, 3]
        writer.append(**step(3))
        writer.end(n=99)
        (row,) = steps_of(others, {"task_id": "t"})
        assert (row["step"], row["n"]) == (3, 3)
        assert other.check() == []
