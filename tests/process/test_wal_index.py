"""The WAL index reveals commits without a query, and reading it keeps the locks of SQLite."""

import gc
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from test_interrupted import everywhere
from test_max_lag import drawn, learner, store_in_another_process

import expdb
from expdb.sql.dialects.sqlite import wal_index

pytestmark = pytest.mark.skipif(
    sys.platform not in ("linux", "darwin"), reason="elsewhere SQLite itself is asked"
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("b").store(n=0)
    return path


def asked(monkeypatch):
    """Return a list that grows with every query of `data_version`."""
    versions, ask = [], expdb.sql.dialects.sqlite.connection.data_version

    def counting(connection):
        versions.append(ask(connection))
        return versions[-1]

    monkeypatch.setattr(expdb.sql.dialects.sqlite.connection, "data_version", counting)
    return versions


def test_sqlite_is_queried_only_after_a_commit(path, monkeypatch):
    buffer, count = learner(path, max_lag_seconds=0), asked(monkeypatch)
    for _ in range(5):
        drawn(buffer)
    assert count == []
    store_in_another_process(path, 1)
    assert drawn(buffer) == {0, 1}
    assert count != []


def test_sqlite_is_queried_for_each_sample_if_the_wal_index_is_unreadable(path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError

    monkeypatch.setattr(wal_index.os, "open", refused)
    buffer, count = learner(path, max_lag_seconds=0), asked(monkeypatch)
    for number in range(1, 4):
        drawn(buffer)
        assert len(count) >= number
    store_in_another_process(path, 1)
    assert drawn(buffer) == {0, 1}


def test_commits_are_detected_after_a_fork_closed_the_connection(path):
    buffer = learner(path, max_lag_seconds=0)
    pid = os.fork()  # a fork closes unused connections, which deletes the WAL index
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    for number in (1, 2):
        store_in_another_process(path, number)
        assert number in drawn(buffer)


def test_closing_a_handle_leaves_no_file_descriptor_open(tmp_path):
    def once(number):
        with expdb.open(tmp_path / f"{number}.db") as db:
            buffer = db.buffer("b")
            buffer.store(n=0)
            for _ in range(3):
                buffer.sample(1)

    once(0)
    before = len(os.listdir("/dev/fd"))
    for number in range(1, 8):
        once(number)
    assert len(os.listdir("/dev/fd")) <= before  # other handles may have been closed meanwhile


def locks(path):
    """Return the byte ranges of a file that this process has locked."""
    status = os.stat(path)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {(line[6], line[7]) for line in lines if line[4:6] == [str(os.getpid()), name]}


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell of locks")
def test_the_locks_of_a_user_connection_are_kept(path):
    """If a process closes any descriptor of a file, it loses all its locks on that file."""
    theirs = sqlite3.connect(path, isolation_level=None)
    theirs.execute("SELECT count(*) FROM steps").fetchone()
    before = {part: locks(f"{path}{part}") for part in ("", "-shm")}
    assert all(before.values())
    for _ in range(2):
        with expdb.open(path, max_lag_seconds=0) as db:
            for _ in range(3):
                drawn(db.buffer("b"))
        assert {part: locks(f"{path}{part}") for part in ("", "-shm")} == before
    theirs.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell of locks")
def test_an_interrupt_does_not_release_locks(path):
    theirs = sqlite3.connect(path, isolation_level=None)
    theirs.execute("BEGIN IMMEDIATE")
    before = locks(f"{path}-shm")

    def scenario(at, strike):
        with strike:
            wal_index.WalIndex(str(path)).header()
        gc.collect()
        assert locks(f"{path}-shm") == before
        wal_index._descriptors.clear()  # makes the next run open the file again

    assert everywhere(KeyboardInterrupt, 5, scenario) > 5
    theirs.execute("ROLLBACK")
    theirs.close()
