"""Several processes and threads use one file.

No acknowledged step is lost, no reader sees wrong values, and an unsafe fork raises an error.
"""

import multiprocessing
import os
import re
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest
from behind import reading, store_of, writing
from processes import run_at_once

import expdb

pytestmark = pytest.mark.both_databases

FORK, SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "runs.db")
    with expdb.open(path) as db:
        db.buffer("b")
    return path


def sound(path):
    with expdb.open(path) as db:
        assert db.check() == []
        return len(db.buffer("b"))


# -- forks


def in_child(function):
    """Call `function` in a forked child; return its result or the name and text of its error."""
    results = FORK.Queue()

    def run():
        try:
            results.put(function())
        except Exception as error:
            results.put((type(error).__name__, str(error)))

    process = FORK.Process(target=run)
    process.start()
    try:
        return results.get(timeout=40)
    finally:
        process.join(timeout=5)
        process.kill()  # a child that waits for a lock would hang
        process.join()


def test_a_forked_child_can_store_steps_through_the_inherited_handle(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=-1)
        buffer.sample(1)

        def child():
            return [buffer.store(x=k) for k in range(50)], db.run

        positions, run = in_child(child)
        assert positions == list(range(1, 51))
        assert run != db.run
        buffer.store(x=99)
    # Without the fork guard, this connection would truncate the child's WAL.
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (52,)
    connection.close()
    with expdb.open(path) as db:
        episodes = db.buffer("b").episodes()
        assert sorted(episodes["length"].to_pylist()) == [2, 50]  # the child began its own
    assert sound(path) == 52


def test_steps_stored_by_a_forked_child_survive_a_close_in_the_parent(path):
    """Without the fork guard, the child relies on a lock that the parent has released.

    All of its steps would be lost.
    """
    db = expdb.open(path)
    buffer = db.buffer("b")
    buffer.store(x=-1)
    buffer.sample(1)
    closed, stored = FORK.Event(), FORK.Queue()

    def child():
        closed.wait()
        with expdb.open(path) as fresh:
            stored.put(
                [fresh.buffer("b").store(x=k) for k in range(25)]
                + [buffer.store(x=k) for k in range(25)]
            )

    process = FORK.Process(target=child)
    process.start()
    db.close()
    # The last process to close the file checkpoints and deletes the WAL.
    other = SPAWN.Process(target=sound, args=(path,))
    other.start()
    other.join()
    closed.set()
    assert len(stored.get(timeout=60)) == 50
    process.join()
    assert sound(path) == 51


@pytest.mark.parametrize("kind", ["same handle", "another handle", "opened anew"])
def test_a_child_forked_while_a_thread_uses_the_file_gets_an_error(path, kind):
    with expdb.open(path) as db, expdb.open(path) as other:
        db.buffer("b").store(x=1)
        other.buffer("b").store(x=1)
        inside, leave = threading.Event(), threading.Event()

        def hold():
            with reading(db) as session:
                session.query("SELECT count(*) FROM steps")
                inside.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()

        def use():
            if kind == "opened anew":
                return expdb.open(path)
            return (db if kind == "same handle" else other).buffer("b").store(x=2)

        try:
            name, message = in_child(use)
        finally:
            leave.set()
            thread.join()
        assert name == "ForkedWithOpenConnection"
        assert "spawn" in message
        assert db.buffer("b").store(x=3) == 2
    assert sound(path) == 3


def test_a_forked_child_inherits_the_rows_in_memory_of_its_parent(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store_batch([{"x": k, "reward": 1.0} for k in range(3_000)])
        buffer.sample(3_000, sampler=expdb.Prioritized())
        buffer.update_priorities([5], [1e30])
        in_memory = buffer.stats()["resident_bytes"]
        assert in_memory > 3_000 * 8

        def child():
            rows = buffer.stats()["resident_bytes"]
            buffer.store(x=-7)
            drawn = set(buffer.sample(20_000, seed=0)["x"].tolist())
            return (
                rows == in_memory,
                -7 in drawn,
                len(drawn) > 2_900,
                buffer.sample(50, sampler=expdb.Prioritized(), seed=0)["x"].max(),
            )

        assert in_child(child) == (True, True, True, 5)
        assert -7 in buffer.sample(20_000)["x"]
        drawn = buffer.sample(200, sampler=expdb.Prioritized())["x"]
        assert set(drawn.tolist()) == {5, -7}  # a new step has the maximum priority
    assert sound(path) == 3_001


def test_a_child_forked_during_a_sample_starts_without_rows_in_memory(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store_batch([{"x": k} for k in range(100)])
        buffer.sample(8, sampler=expdb.Prioritized())
        whole = buffer.stats()["resident_bytes"]
        inside, leave = threading.Event(), threading.Event()

        def hold():
            with buffer._sampling.resident.lock:
                inside.set()
                leave.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        try:
            resident, drawn = in_child(
                lambda: (
                    buffer.stats()["resident_bytes"],
                    sorted(set(buffer.sample(5_000)["x"].tolist())),
                )
            )
        finally:
            leave.set()
            thread.join()
        assert resident < whole
        assert drawn == list(range(100))
        assert buffer.sample(8).size == 8


def test_a_forked_child_cannot_append_to_an_episode_of_its_parent(path):
    with expdb.open(path) as db:
        writer = db.buffer("b").episode("t")
        writer.append(x=1)
        assert in_child(lambda: writer.append(x=2))[0] == "ForkedWithOpenConnection"

        def leave():
            with writer:
                pass

        assert in_child(leave) is None
        writer.end()
    assert sound(path) == 1


@pytest.mark.filterwarnings("ignore:two threads:expdb.errors.ExpDBWarning")
def test_concurrent_forks_in_several_threads_do_not_deadlock(path):
    with expdb.open(path) as db:
        buffers = [db.buffer("b")] + [expdb.open(path).buffer("b") for _ in range(2)]

        def go():
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
                buffers[0].store(x=1)

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        for buffer in buffers[1:]:
            buffer._database.close()
    assert sound(path) == 20


# -- threads


def test_threads_can_share_a_handle(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b", fields={"number": "int64"})
        errors = []

        def work(worker):
            try:
                with buffer.episode(f"t{worker}", flush_steps=5) as episode:
                    for number in range(60):
                        episode.append(worker=worker, number=number)
                        buffer.store(task_id=f"s{worker}", worker=worker, number=number)
                        if number % 10 == 5:
                            batch = buffer.sample(16, {"task_id": f"s{worker}"})
                            assert (batch["worker"] == worker).all()
                            db.sql("SELECT count(*) FROM experience")
            except Exception as error:
                errors.append(error)

        run_at_once([threading.Thread(target=work, args=(worker,)) for worker in range(8)])
        assert errors == []
        assert len(buffer) == 8 * 120
        for worker in range(8):
            (batch,) = buffer.scan({"task_id": f"s{worker}"})
            assert batch["number"].tolist() == batch["step"].tolist() == list(range(60))
    assert sound(path) == 960


def test_a_blocked_write_raises_timeout_error_after_the_timeout(path):
    with expdb.open(path) as db, expdb.open(path, timeout=0.3) as other:
        with writing(db), pytest.raises(TimeoutError, match="another writer"):
            other.buffer("b").store(x=1)
        assert other.buffer("b").store(x=1) == 0


def test_a_read_transaction_sees_one_snapshot(path):
    with expdb.open(path) as db, expdb.open(path) as other:
        buffer = db.buffer("b")
        for k in range(10):  # one chunk each, so that eviction deletes whole chunks
            buffer.store_batch({"task_id": f"t{k}", "x": [k]})
        with reading(db) as session:
            before = store_of(buffer).state(session)
            other.buffer("b").capacity = 2
            other.buffer("b").update({"step": 0}, reward=1.0)
            from expdb.storage.reading import fetch

            columns = fetch.steps(store_of(buffer), session, before, np.arange(10))
            assert columns["x"].tolist() == list(range(10))
        assert len(buffer) == 2
    sound(path)


def test_expdb_does_not_open_database_files_outside_sqlite():
    """Closing a file that was opened outside SQLite releases the locks of SQLite on it.

    Acknowledged steps could then be lost.
    """
    import ast
    from pathlib import Path

    package = Path(expdb.__file__).parent
    harmless = {
        # SQLite does not lock the WAL file itself
        ("files.py", "os.open", "folder"), ("files.py", "open", "path + '-wal'"),
        # Stays open until the file is deleted; see test_wal_index.py.
        ("wal_index.py", "os.open", "path"),
        ("temporary.py", "os.open", "lock"),
        ("archive_folder.py", "os.open", "path"),  # an archive file or its folder
        ("temporary.py", "os.open", "self.path / f'{LOCK}.new'"),
        ("locating.py", "os.open", "Path(where) / 'owner.lock'"),  # not part of the database
        ("locations.py", "open", "path"),  # a copy in a separate folder, not open elsewhere
        ("source_files.py", "open", "path"),  # a file to import, whose name ends in .jsonl or so
        ("printing.py", "open", "path"), ("printing.py", "open", "draft"),  # query results
    }  # fmt: skip
    forbidden = r"(io|os)\.open|mmap\.mmap|shutil\.copy(file|tree)?"
    for source in package.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if (source.name, name, ast.unparse(node.args[0]) if node.args else "") in harmless:
                    continue
                assert not re.fullmatch(forbidden, name), source
                assert not name.endswith((".read_bytes", ".open_binary")), source
                if name == "open":
                    assert source.name in ("database.py", "copying.py")  # this is expdb.open()


def test_a_child_does_not_use_a_session_released_just_before_the_fork(path):
    """The hook lets a thread end its write between the fork hook of expdb and the fork."""
    code = """if True:
        import os, sys, threading
        go, done, inside = threading.Event(), threading.Event(), threading.Event()
        def late():
            go.set(); done.wait(5)
        # Hooks run in the reverse of their order: this one after those of expdb.
        os.register_at_fork(before=late)
        import expdb
        db = expdb.open(sys.argv[1])
        buffer = db.buffer("b")
        buffer.store(n=0)
        def work():
            with db._engine.writing() as session:
                session.query("SELECT 1"); inside.set(); go.wait(5)
            done.set()
        thread = threading.Thread(target=work); thread.start(); inside.wait()
        child = os.fork()
        if not child:
            try:
                buffer.store(n=1)
            except expdb.errors.ForkedWithOpenConnection:
                os._exit(7)
            os._exit(0)
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        buffer.store(n=2)
        assert db.check() == [] and len(buffer) == 2
        db.close()
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
