"""Creating a file on a full disk raises an error and leaves no partial file."""

import os
from contextlib import suppress

import numpy as np
import pytest
from torture.disk import FULL, OK, Disk, library

import expdb
from expdb import errors

pytestmark = pytest.mark.skipif(library() is None, reason="sqlite3 is a part of this Python")


class FullAfter:
    """Fail every write to files of one kind after the first `writes` writes."""

    def __init__(self, disk, writes, is_log):
        self.left, self.is_log, self.failed = writes, is_log, False
        disk.fault = self

    def __call__(self, kind, file):
        if kind != "write" or file.endswith("-wal") != self.is_log:
            return OK
        self.left -= 1
        self.failed = self.failed or self.left < 0
        return FULL if self.left < 0 else OK


def creations(disk, folder, is_log, create):
    """Create files on a disk that is full after 0, 1, 2, ... writes, until one succeeds."""
    writes = 0
    while True:
        fault = FullAfter(disk, writes, is_log)
        path = folder / f"{writes}.db"
        with suppress(errors.StorageFull):
            create(path)
        disk.fault = None
        yield path, fault.failed
        if not fault.failed:
            return
        writes += 1 if writes < 8 else 1 + writes // 3


@pytest.mark.parametrize("is_log", [False, True], ids=["file", "log"])
def test_a_new_file_on_a_full_disk_is_complete_or_absent(tmp_path, is_log):
    refused = 0
    with Disk(str(tmp_path)) as disk:
        for path, failed in creations(
            disk, tmp_path, is_log, lambda path: expdb.open(path).close()
        ):
            if path.exists():
                with expdb.open(path, create=False) as db:
                    db.buffer("b").store(x=1)
                    assert db.check() == []
                path.unlink()
            else:
                assert failed
                refused += 1
            assert os.listdir(tmp_path) == []
    assert refused > 3


@pytest.mark.parametrize(
    "is_log", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["file", "log"]
)
def test_copies_and_backups_on_a_full_disk_are_complete_or_absent(tmp_path, is_log):
    source, folder = tmp_path / "runs.db", tmp_path / "full"
    folder.mkdir()
    with expdb.open(source) as db:
        db.buffer("b").store_batch({"x": np.arange(2000.0)})

    def backup(path):
        with expdb.open(source) as db:
            db.backup(path)

    refused = 0
    with Disk(str(folder)) as disk:
        for path, failed in creations(disk, folder, is_log, backup):
            assert path.exists() or failed
            refused += not path.exists()
            if path.exists():
                with expdb.open(path, create=False) as db:
                    assert len(db.buffer("b")) == 2000
                    assert db.check() == []
                path.unlink()
            assert os.listdir(folder) == []
        assert refused or is_log
        for path, _ in creations(disk, folder, is_log, lambda path: expdb.copy(source, path)):
            if path.exists():
                with expdb.open(path, create=False) as db:
                    assert db.buffers() != ["b"] or len(db.buffer("b")) == 2000
            for name in os.listdir(folder):
                assert name.startswith(path.stem)
                (folder / name).unlink()
