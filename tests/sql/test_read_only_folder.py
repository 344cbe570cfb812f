"""Tests of reading a closed file in a folder without write permission."""

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
from expdb import errors

FORK = multiprocessing.get_context("fork")
NOBODY = 65534


@pytest.fixture
def path():
    """Yield a file in a folder that all users can read and only the owner can write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    if (
        os.geteuid() == 0
        and subprocess.run(["test", "-x", folder], cwd="/", user=NOBODY).returncode
    ):
        folder.rmdir()  # other users cannot reach the temporary folder
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
        folder.chmod(0o755)
    with expdb.open(folder / "runs.db") as db:
        db.buffer("train").store_batch({"x": np.arange(100.0), "task_id": ["a"] * 100})
        assert db.check() == []  # reads the migrations, which that user may be unable to reach
    yield folder / "runs.db"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_reader(path, work):
    """Run `work` as a user who cannot write to the folder, and return its result."""
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


def test_a_closed_file_is_read_without_creating_files(path):
    assert as_reader(path, read) == (4950.0, 100, [])
    assert sorted(os.listdir(path.parent)) == ["runs.db"]


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_opening_for_writing_recommends_read_only(path, mode):
    path.chmod(mode)
    error = as_reader(path, lambda path: expdb.open(path))
    assert isinstance(error, errors.DatabaseReadOnly)
    assert "read_only=True" in str(error)
    assert str(error).startswith(f"{path} cannot be written") or mode == 0o644


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_the_user_cannot_read_is_refused(path, read_only):
    path.chmod(0)
    error = as_reader(path, lambda path: expdb.open(path, read_only=read_only))
    assert isinstance(error, errors.AccessDenied)
    assert str(error).startswith(f"{path} cannot be read by this user; check its permissions")


def test_a_file_open_in_another_process_is_read_with_its_wal(path):
    with expdb.open(path) as db:
        db.buffer("train").store(x=50.0)
        for name in os.listdir(path.parent):
            (path.parent / name).chmod(0o644)
        readings = as_reader(path, read)
    assert readings == (4950.0, 101, [])


@pytest.mark.parametrize("file", ["runs.db-wal", "runs.db-shm"])
def test_the_error_names_the_unreadable_file_of_an_open_database(path, file):
    is_open, may_close = FORK.Event(), FORK.Event()

    def write():
        with expdb.open(path) as db:
            db.buffer("train").store(x=50.0)
            for name in os.listdir(path.parent):
                (path.parent / name).chmod(0 if name == file else 0o644)
            is_open.set()
            may_close.wait(60)

    writer = FORK.Process(target=write)
    writer.start()
    assert is_open.wait(60)
    error = as_reader(path, read)
    may_close.set()
    writer.join(60)
    assert isinstance(error, errors.AccessDenied)
    assert f"{file} cannot be read by this user; check its permissions" in str(error)


def test_a_reader_detects_a_process_that_opens_the_file_later(path):
    received, sent = FORK.Pipe(duplex=False)

    def work(path):
        with expdb.open(path, read_only=True) as db:
            buffer = db.buffer("train")
            buffer.sample(4)
            sent.send("the reader has opened the file")
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                buffer.sample(4)
                time.sleep(0.05)
        return "not noticed"

    other = FORK.Process(target=lambda: sent.send(as_reader(path, work)))
    other.start()
    assert received.poll(60)
    assert received.recv() == "the reader has opened the file"
    if os.geteuid() != 0:
        path.parent.chmod(0o755)
    with expdb.open(path) as db:
        db.buffer("train").store(x=1.0)
        assert received.poll(60)
        error = received.recv()
    other.join(60)
    assert isinstance(error, errors.DatabaseReplaced)
    assert "another process has opened" in str(error)
