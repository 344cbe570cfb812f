"""Writers that nobody ends: nothing that was appended is lost without a word."""

import gc
import multiprocessing
import subprocess
import sys
import warnings

import pytest

import expdb


def held(open_db, buffer="x"):
    with open_db() as db:
        found = db.buffer(buffer)
        return [row["n"] for row in found.page(1, 100)], found.episodes().select(["status", "length"]).to_pylist()


def test_closing_the_database_stores_what_open_writers_hold_and_says_so(open_db):
    with pytest.warns(expdb.ExpDBWarning, match="episode 'e1' of buffer 'x' was never ended: .*3 of its 3 steps"), open_db() as db:
        writer = db.buffer("x").episode("t", episode_id="e1")
        for n in range(3):
            writer.append(n=n)
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])
    with pytest.raises(expdb.EpisodeEnded, match="has ended"):
        writer.append(n=3)


def test_of_steps_that_are_written_already_none_is_written_again(open_db):
    with pytest.warns(expdb.ExpDBWarning, match="1 of its 3 steps are written only now"), open_db() as db:
        writer = db.buffer("x").episode("t", flush_steps=2)
        for n in range(3):
            writer.append(n=n)
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])


def test_a_writer_without_a_step_and_one_that_was_ended_say_nothing(open_db):
    with open_db() as db:
        empty = db.buffer("x").episode("t")
        with db.buffer("x").episode("t") as ended:
            ended.append(n=0)
            ended.flush()
    assert held(open_db)[1] == [{"status": "complete", "length": 1}]
    del empty, ended
    gc.collect()


def test_a_writer_that_is_collected_is_written_where_the_database_is_open(open_db):
    db = open_db()
    writer = db.buffer("x").episode("t", episode_id="gone")
    writer.append(n=0)
    with pytest.warns(expdb.ExpDBWarning, match="'gone' .*1 of its 1 steps"):
        del writer
        gc.collect()
    assert held(open_db) == ([0], [{"status": "aborted", "length": 1}])


def test_a_writer_outlives_the_names_of_its_database_and_buffer(open_db):
    writer = open_db().buffer("x").episode("t")
    gc.collect()
    writer.append(n=0)
    writer.end()
    assert held(open_db) == ([0], [{"status": "complete", "length": 1}])


def test_a_writer_that_is_collected_in_the_midst_of_a_write_waits_for_the_end_of_it(open_db):
    db = open_db()
    buffer = db.buffer("x")
    left = [buffer.episode("t", episode_id="left")]
    left[0].append(n=0)

    class Value:
        """An array whose making drops the last reference of a writer."""

        dtype, shape = None, ()

        def __array__(self, *_, **__):
            import numpy as np

            left.clear()
            return np.array(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.store(task_id="u", n=Value())
    with pytest.warns(expdb.ExpDBWarning, match="'left'"):
        db.close()
    assert sorted(held(open_db)[0]) == [0, 1]


def test_steps_that_cannot_be_stored_any_more_are_named_as_lost(open_db):
    db, other = open_db(), open_db()
    writer = db.buffer("x").episode("t", episode_id="e")
    writer.append(n=0)
    writer.flush()
    writer.append(n=1)
    other.buffer("x").end_episode("e")
    with pytest.warns(expdb.ExpDBWarning, match="'e' .*1 of its 2 steps are lost"):
        db.close()
    assert held(open_db)[0] == [0]


PROGRAM = """
import sys, expdb
db = expdb.open(sys.argv[1])
writer = db.buffer("x").episode("t", episode_id="e")
for n in range(3):
    writer.append(n=n)
db.buffer("x").store(task_id="implicit", n=3)
"""


def test_the_exit_of_a_program_closes_what_is_open(open_db, location):
    done = subprocess.run([sys.executable, "-W", "default", "-c", PROGRAM, location], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ExpDBWarning: episode 'e' of buffer 'x' was never ended" in done.stderr
    assert "ResourceWarning" not in done.stderr
    numbers, episodes = held(open_db)
    assert sorted(numbers) == [0, 1, 2, 3]
    assert {one["status"] for one in episodes} == {"aborted", "complete"}


def test_a_handle_that_is_dropped_leaves_no_connection_open(location):
    program = "import sys, expdb\ndef f():\n    expdb.open(sys.argv[1]).buffer('x').count()\nf()\nimport gc; gc.collect()\nexpdb.database._handles.clear()"
    done = subprocess.run([sys.executable, "-W", "error", "-X", "dev", "-c", program, location], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def left_open(location, inherited):
    buffer = (expdb.open(location) if inherited is None else inherited).buffer("x")
    writer = buffer.episode("worker")
    for n in range(3):
        writer.append(n=n)
    globals()["kept"] = writer  # until the process exits


@pytest.mark.parametrize(("method", "inherits"), [("spawn", False), ("fork", False), ("fork", True)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_exit_of_a_worker_process_closes_what_is_open(open_db, location, method, inherits):
    db = open_db()
    db.buffer("x")
    context = multiprocessing.get_context(method)
    process = context.Process(target=left_open, args=(location, db if inherits else None))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert held(open_db) == ([0, 1, 2], [{"status": "aborted", "length": 3}])
