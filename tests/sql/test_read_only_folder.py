"""A finished file in a folder that its reader cannot write to."""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import expdb

FORK = multiprocessing.get_context("fork")
NOBODY = 65534


@pytest.fixture
def path():
    """Return a file in a folder that everybody may read and only its owner may write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    if (
        os.geteuid() == 0
        and subprocess.run(["test", "-x", folder], cwd="/", user=NOBODY).returncode
    ):
        folder.rmdir()  # the way to the temporary files is closed to others
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        folder.chmod(0o755)
    with expdb.open(folder / "runs.db") as db:
        db.buffer("train").store_batch({"x": np.arange(100.0), "task_id": ["a"] * 100})
        assert db.check() == []  # reads the migrations, which that user may not reach
    yield folder / "runs.db"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_reader(path, work):
    """Run work as a user who cannot write to the folder, and return what it returns."""
    received, sent = FORK.Pipe(duplex=False)

    def run():
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        else:
            path.parent.chmod(0o555)
        try:
            sent.send(work(path))
        except expdb.ExpDBError as error:
            sent.send(error)

    process = FORK.Process(target=run)
    process.start()
    assert received.poll(60)
    result = received.recv()
    process.join(60)
    path.parent.chmod(0o755)
    return result


def read(path):
    with expdb.open(path, read_only=True) as db:
        buffer = db.buffer("train")
        total = float(buffer.sample(100, sampler=expdb.Ordered("position"))["x"].sum())
        count = db.sql("SELECT count(*) AS n FROM experience")["n"].to_pylist()[0]
        return total, count, db.check()


def test_a_finished_file_is_read(path):
    assert as_reader(path, read) == (4950.0, 100, [])
    assert sorted(os.listdir(path.parent)) == ["runs.db"]


def test_opening_it_for_writing_says_how_to_read_it(path):
    error = as_reader(path, lambda path: expdb.open(path))
    assert isinstance(error, expdb.DatabaseReadOnly)
    assert "read_only=True" in str(error)


def test_a_file_that_is_open_elsewhere_is_read_with_its_log(path):
    with expdb.open(path) as db:
        db.buffer("train").store(x=50.0)
        for name in os.listdir(path.parent):
            (path.parent / name).chmod(0o644)
        readings = as_reader(path, read)
    assert readings == (4950.0, 101, [])


def test_a_writer_that_comes_later_is_noticed(path):
    def work(path):
        with expdb.open(path, read_only=True) as db:
            buffer = db.buffer("train")
            buffer.sample(4)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                buffer.sample(4)
                time.sleep(0.05)
        return "not noticed"

    received, sent = FORK.Pipe(duplex=False)
    other = FORK.Process(target=lambda: sent.send(as_reader(path, work)))
    other.start()
    time.sleep(1.0)
    if os.geteuid() != 0:
        path.parent.chmod(0o755)
    with expdb.open(path) as db:
        db.buffer("train").store(x=1.0)
        assert received.poll(60)
        error = received.recv()
    other.join(60)
    assert isinstance(error, expdb.DatabaseReplaced)
    assert "another process has opened" in str(error)
