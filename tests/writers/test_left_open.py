"""Writers left open: each appended step is stored, or a warning reports its loss."""

import contextlib
import gc
import inspect
import multiprocessing
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from contents import steps_of

import expdb
from expdb import errors
from expdb.storage.writing import transaction

pytestmark = pytest.mark.both_databases


def held(open_db, name="x"):
    with open_db() as db:
        buffer = db.buffer(name)
        return [row["n"] for row in steps_of(buffer)], buffer.episodes().select(
            ["status", "length"]
        ).to_pylist()


@pytest.mark.parametrize(("flush_steps", "unwritten"), [(256, 3), (2, 1)])
def test_close_stores_the_unwritten_steps_of_open_writers_and_warns(
    open_db, flush_steps, unwritten
):
    message = f"episode 'e1' of buffer 'x', begun at .*, was never ended: .*{unwritten} of its 3 "
    with (
        pytest.warns(errors.ExpDBWarning, match=message + "steps are written only now"),
        open_db() as db,
    ):
        writer = db.buffer("x").episode("t", episode_id="e1", flush_steps=flush_steps)
        for n in range(3):
            writer.append(n=n)
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])
    with pytest.raises(errors.DatabaseClosed):
        writer.append(n=3)


def test_close_completes_an_open_episode_with_a_terminated_last_step(open_db):
    db = open_db()
    writer, line = db.buffer("x").episode("t"), inspect.currentframe().f_lineno
    message = rf"begun at {__file__}:{line}, was never ended: it is marked complete"
    with pytest.warns(errors.ExpDBWarning, match=message), db:
        writer.append(n=0)
        writer.append(n=1, terminated=True)
    assert held(open_db) == ([0, 1], [{"status": "complete", "length": 2}])


def test_empty_and_ended_writers_do_not_warn(open_db):
    with open_db() as db:
        empty = db.buffer("x").episode("t")
        with db.buffer("x").episode("t") as ended:
            ended.append(n=0)
            ended.flush()
    assert held(open_db)[1] == [{"status": "complete", "length": 1}]
    del empty, ended
    gc.collect()


def test_a_garbage_collected_writer_stores_its_steps_and_warns(open_db):
    db = open_db()
    writer = db.buffer("x").episode("t", episode_id="gone")
    writer.append(n=0)
    with pytest.warns(errors.ExpDBWarning, match="'gone' .*1 of its 1 steps"):
        del writer
        gc.collect()
    assert held(open_db) == ([0], [{"status": "aborted", "length": 1}])


def test_a_writer_works_without_references_to_its_database_and_buffer(open_db):
    writer = open_db().buffer("x").episode("t")
    gc.collect()
    writer.append(n=0)
    writer.end()
    assert held(open_db) == ([0], [{"status": "complete", "length": 1}])


def left_in_block(buffer):
    with buffer.episode("t", episode_id="left") as episode:
        episode.append(n=0)
        yield


@pytest.mark.parametrize("kind", ["writer", "generator"])
def test_a_writer_collected_during_a_write_is_stored_after_the_write(open_db, kind):
    db = open_db(timeout=2.0)
    buffer = db.buffer("x")
    if kind == "writer":
        left = [buffer.episode("t", episode_id="left")]
        left[0].append(n=0)
    else:
        left = [left_in_block(buffer)]
        next(left[0])

    class Value:
        """A value that drops the last reference to a writer when NumPy converts it."""

        dtype, shape = None, ()

        def __array__(self, *_, **__):
            left.clear()
            return np.array(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.store(task_id="u", n=Value())
    with pytest.warns(errors.ExpDBWarning, match="'left'"):
        db.close()
    assert sorted(held(open_db)[0]) == [0, 1]


def test_close_warns_about_lost_steps_if_another_handle_ended_the_episode(open_db):
    db, other = open_db(), open_db()
    writer = db.buffer("x").episode("t", episode_id="e")
    writer.append(n=0)
    writer.flush()
    writer.append(n=1)
    other.buffer("x").end_episode("e")
    with pytest.warns(errors.ExpDBWarning, match="'e' .*1 of its 2 steps are lost"):
        db.close()
    assert held(open_db)[0] == [0]


@pytest.mark.parametrize("rounds", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_close_during_appends_in_other_threads_loses_no_step(open_db, rounds):
    """Each step that `append` accepted is stored exactly once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(rounds):
            db, taken = open_db(), {}
            buffer = db.buffer(f"x{number}")

            def act(k, buffer=buffer, taken=taken):
                writer = buffer.episode(f"t{k}", flush_steps=3)
                taken[k] = 0
                with contextlib.suppress(errors.EpisodeEnded, errors.DatabaseClosed):
                    while True:
                        writer.append(n=taken[k])
                        taken[k] += 1

            threads = [threading.Thread(target=act, args=(k,)) for k in range(4)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for thread in threads:
                    thread.start()
                while len(taken) < 4 or min(taken.values()) < 5:
                    pass
                db.close()
                for thread in threads:
                    thread.join()
            with open_db() as again:
                for k, count in taken.items():
                    (batch,) = again.buffer(f"x{number}").scan({"task_id": f"t{k}"}, size=1 << 20)
                    assert batch["n"].tolist() in (list(range(count)), list(range(count + 1))), (
                        k
                    )  # the last append may be in progress
    finally:
        sys.setswitchinterval(interval)


def test_steps_are_stored_if_a_writer_and_its_database_are_collected(open_db, location):
    class Actor:
        def __init__(self):
            self.db = expdb.open(location)
            self.writer, self.itself = self.db.buffer("x").episode("t"), self

    actor = Actor()
    for n in range(3):
        actor.writer.append(n=n)
    with pytest.warns(errors.ExpDBWarning, match="3 of its 3 steps are written only now"):
        del actor
        gc.collect()
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])


def test_close_stores_the_other_writers_if_one_writer_fails(open_db, monkeypatch):
    db = open_db()
    writers = [db.buffer("x").episode(f"t{k}", episode_id=f"e{k}") for k in range(3)]
    for k, writer in enumerate(writers):
        writer.append(n=k)
    db.buffer("x").store(task_id="implicit", n=3)
    real, calls = transaction.write, []

    def failing(store, pending):
        calls.append(pending)
        if len(calls) == 1:
            raise KeyboardInterrupt
        if len(calls) == 3:
            raise errors.StorageFull("no space left")
        return real(store, pending)

    monkeypatch.setattr(transaction, "write", failing)
    with pytest.warns(errors.ExpDBWarning) as caught, pytest.raises(KeyboardInterrupt):
        db.close()
    assert sorted("lost" in str(warning.message) for warning in caught) == [False, False, True]
    monkeypatch.undo()
    numbers, episodes = held(open_db)
    assert len(numbers) == 3
    assert [row["status"] for row in episodes].count("complete") == 1
    with pytest.raises(errors.DatabaseClosed):
        db.buffers()


PROGRAM = """
import sys, expdb
db = expdb.open(sys.argv[1])
writer = db.buffer("x").episode("t", episode_id="e")
for n in range(3):
    writer.append(n=n)
db.buffer("x").store(task_id="implicit", n=3)
"""


def test_program_exit_stores_the_steps_of_open_writers_and_warns(open_db, location):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM, location], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (
        "ExpDBWarning: episode 'e' of buffer 'x', begun at <string>:4, was never ended"
        in done.stderr
    )
    assert "ResourceWarning" not in done.stderr
    numbers, episodes = held(open_db)
    assert sorted(numbers) == [0, 1, 2, 3]
    assert {row["status"] for row in episodes} == {"aborted", "complete"}


def test_a_garbage_collected_handle_closes_its_connections(location):
    program = (
        "import sys, expdb\ndef f():\n    expdb.open(sys.argv[1]).buffer('x').count()\nf()\nimport "
        "gc; gc.collect()\nexpdb.database._handles.__init__()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program, location],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def left_open(location, inherited):
    buffer = (expdb.open(location) if inherited is None else inherited).buffer("x")
    writer = buffer.episode("worker")
    for n in range(3):
        writer.append(n=n)
    globals()["kept"] = writer  # until the process exits


@pytest.mark.parametrize(
    ("method", "inherits"), [("spawn", False), ("fork", False), ("fork", True)]
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_process_exit_stores_the_steps_of_open_writers(open_db, location, method, inherits):
    db = open_db()
    db.buffer("x")
    context = multiprocessing.get_context(method)
    process = context.Process(target=left_open, args=(location, db if inherits else None))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])


def test_a_thread_local_writer_is_stored_after_its_thread_ends(open_db):
    db, local = open_db(), threading.local()

    def work():
        local.writer = db.buffer("x").episode("t")
        for n in range(3):
            local.writer.append(n=n)

    thread = threading.Thread(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ExpDBWarning)
        thread.start()
        thread.join()
        db.close()
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])
