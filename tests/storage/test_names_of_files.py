"""Names of a database file: links, mounts, renamed folders, relative paths.

A file is written only if all of its names share one write-ahead log.
"""

import os
import subprocess

import pytest
from contents import steps_of

import expdb
from expdb import errors


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("b").store_batch({"x": list(range(100))})
    return path


def rows(path):
    with expdb.open(path) as db:
        assert db.check() == []
        return sorted(row["x"] for row in steps_of(db.buffer("b")))


def test_a_file_with_two_hard_links_cannot_be_opened_for_writing(path, tmp_path):
    other = tmp_path / "other.db"
    with expdb.open(path) as db:
        db.buffer("b").store(x=100)
        os.link(path, other)
        with pytest.raises(
            errors.DatabaseReadOnly,
            match=r"2 names \(hard links.*remove the other names, or copy",
        ):
            expdb.open(other)
        names = ["other.db", "runs.db", "runs.db-shm", "runs.db-wal"]
        assert sorted(os.listdir(tmp_path)) == names, "no second log"
        db.buffer("b").store(x=101)
        with pytest.raises(errors.DatabaseReadOnly, match="2 names"):
            expdb.open(path)
        with pytest.raises(errors.DatabaseReadOnly, match="2 names"):
            expdb.upgrade(other)
        with (
            pytest.warns(errors.ExpDBWarning, match="write-ahead log of another name"),
            pytest.raises(errors.DatabaseReadOnly, match="each path has its own write-ahead log"),
        ):
            expdb.open(other, read_only=True)
    other.unlink()
    assert rows(path) == list(range(102))


def test_hard_links_are_detected_behind_a_symbolic_link(path, tmp_path):
    os.link(path, tmp_path / "other.db")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link.db"
    link.symlink_to(tmp_path / "other.db")
    with pytest.raises(errors.DatabaseReadOnly, match="2 names"):
        expdb.open(link)
    with (
        pytest.warns(errors.ExpDBWarning, match="2 names"),
        expdb.open(link, read_only=True) as db,
    ):
        assert len(db.buffer("b")) == 100


def test_symbolic_links_resolve_to_one_location(path, tmp_path):
    link, folder = tmp_path / "link.db", tmp_path / "folder"
    link.symlink_to(path)
    folder.symlink_to(tmp_path, target_is_directory=True)
    names = [path, link, folder / "runs.db", folder / "link.db"]
    handles = [expdb.open(name) for name in names]
    for k in range(40):
        handles[k % 4].buffer("b").store(x=100 + k)
    assert {handle.location for handle in handles} == {str(path)}
    for handle in handles:
        handle.close()
    assert rows(path) == list(range(140))
    assert sorted(os.listdir(tmp_path)) == ["folder", "link.db", "runs.db"]


def test_a_temporary_link_left_by_a_killed_process_is_ignored(path, tmp_path):
    os.link(path, tmp_path / ".expdb-0123456789abcdef0123456789abcdef.new")
    with expdb.open(path) as db:
        db.buffer("b").store(x=100)
    assert rows(path) == list(range(101))


@pytest.fixture
def mounted(tmp_path):
    """Yield a function that mounts a file or folder at a second path."""
    places = []

    def mount(source, target):
        done = subprocess.run(["mount", "--bind", source, target], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        places.append(target)

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


def test_a_bind_mounted_file_cannot_be_opened_for_writing(path, tmp_path, mounted):
    (tmp_path / "there").mkdir()
    other = tmp_path / "there" / "other.db"
    other.touch()
    mounted(path, other)
    with pytest.raises(errors.DatabaseReadOnly, match="mount its folder instead"):
        expdb.open(other)
    with (
        pytest.warns(errors.ExpDBWarning, match="mount its folder instead"),
        expdb.open(other, read_only=True) as db,
    ):
        assert len(db.buffer("b")) == 100
    with expdb.open(path) as db:
        db.buffer("b").store(x=100)


def test_a_folder_mounted_twice_has_one_write_ahead_log(path, tmp_path, mounted):
    there = tmp_path.parent / f"{tmp_path.name}-there"
    there.mkdir()
    mounted(tmp_path, there)
    with expdb.open(path) as here, expdb.open(there / "runs.db") as other:
        for k in range(20):
            (here, other)[k % 2].buffer("b").store(x=100 + k)
    assert rows(path) == list(range(120))


def test_writing_after_a_folder_is_renamed_raises_and_loses_no_steps(path, tmp_path):
    (tmp_path / "old").mkdir()
    path = path.rename(tmp_path / "old" / "runs.db")
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=100)
        (tmp_path / "old").rename(tmp_path / "new")
        with pytest.raises(errors.DatabaseReplaced):
            buffer.store(x=101)
    assert rows(tmp_path / "new" / "runs.db") == list(range(101))


def test_relative_paths_are_resolved_once_and_need_a_current_folder(path, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path)
    with expdb.open("runs.db") as db:
        monkeypatch.chdir("gone")
        db.buffer("b").store(x=100)
        (tmp_path / "gone").rmdir()
        db.buffer("b").store(x=101)
        for use in (
            lambda: expdb.open("runs.db"),
            lambda: db.backup("copy.db"),
            lambda: expdb.copy(path, "copy.db"),
        ):
            with pytest.raises(
                errors.DatabaseMissing,
                match=r"current folder was deleted.*use an absolute path",
            ):
                use()
    assert rows(path) == list(range(102))
