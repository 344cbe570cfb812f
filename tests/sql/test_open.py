"""Tests of opening: it destroys no data, and its errors are one line."""

import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from behind import writing

import expdb

pytestmark = pytest.mark.both_databases


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "runs.db")


def fill_file(path):
    with expdb.open(path) as db:
        db.buffer("b").store_batch({"x": np.arange(2_000), "t": ["some text"] * 2_000})
    return path


@pytest.mark.parametrize(
    "name", ["plain.db", "with space?.db", "100%25.db", "é#&=.db", "sub/../up.db"]
)
def test_any_file_name_can_be_opened_as_a_path_or_a_url(tmp_path, name):
    (tmp_path / "sub").mkdir()
    for location in (tmp_path / name, str(tmp_path / name)):
        with expdb.open(location) as db:
            db.buffer("b").store(x=1)
    assert os.path.exists(tmp_path / name)
    with expdb.open(f"sqlite:///{str(tmp_path / name).replace('%', '%25')}", create=False) as db:
        assert len(db.buffer("b")) == 2


def test_memory_is_a_private_temporary_database(tmp_path):
    with expdb.open(":memory:") as first, expdb.open(":memory:") as second:
        first.buffer("b").store(x=1)
        assert (len(first.buffer("b")), len(second.buffer("b"))) == (1, 0)
        folder = os.path.dirname(first.location)
        assert os.path.exists(folder)
        with pytest.raises(expdb.InvalidValue, match="another process"):
            pickle.dumps(first)
    assert not os.path.exists(folder)


def test_create_false_and_read_only_do_not_create_a_missing_file(path):
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(FileNotFoundError, match="check the path"):
            expdb.open(path, **options)
    assert not os.path.exists(path)
    with pytest.raises(expdb.errors.DatabaseMissing, match="folder"):
        expdb.open(os.path.join(path, "deep", "x.db"))


def test_an_empty_file_is_refused(path):
    open(path, "w").close()
    with pytest.raises(expdb.errors.NotAnExperienceDatabase, match="is empty"):
        expdb.open(path)
    assert os.path.getsize(path) == 0


@pytest.mark.parametrize("content", [b"<html>", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_foreign_file_is_refused_and_not_modified(path, content):
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(expdb.ExpDBError) as caught:
        expdb.open(path)
    assert "\n" not in str(caught.value)
    with open(path, "rb") as file:
        assert file.read() == content


def test_a_database_of_another_application_is_refused_and_not_modified(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    before = os.stat(path).st_mtime_ns
    with pytest.raises(expdb.errors.NotAnExperienceDatabase, match="another application"):
        expdb.open(path)
    assert os.stat(path).st_mtime_ns == before
    assert not os.path.exists(path + "-wal")


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_a_truncated_file_is_an_error_and_not_reinitialised(path, share):
    fill_file(path)
    with open(path, "r+b") as file:
        file.truncate(int(os.path.getsize(path) * share))
    size = os.path.getsize(path)

    def use():
        with expdb.open(path) as db:
            assert db.check() != []
            list(db.buffer("b").scan())

    with pytest.raises(expdb.errors.DatabaseDamaged):
        use()
    assert os.path.getsize(path) == size


def test_a_corrupted_chunk_is_named_and_other_chunks_are_read(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        for k in range(3):
            buffer.store_batch({"task_id": f"t{k}", "x": np.full(100, k)})
    with sqlite3.connect(path) as connection:
        (data,) = connection.execute("SELECT data FROM chunks WHERE id = 199").fetchone()
        damaged = bytearray(data)
        damaged[-5] ^= 4
        connection.execute("UPDATE chunks SET data = ? WHERE id = 199", (bytes(damaged),))
    connection.close()
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        assert (buffer.get([99, 200])["x"] == [0, 2]).all()
        with pytest.raises(expdb.errors.ChunkDamaged, match="chunk 199"):
            buffer.get([150])
        with pytest.raises(expdb.errors.ChunkDamaged, match="chunk 199"):
            db.sql("SELECT field(payload, 'x') FROM experience")
        assert any("chunk 199" in problem for problem in db.check())


@pytest.mark.parametrize(
    ("statement", "problem_text"),
    [
        ("UPDATE chunks SET crc = crc + 1 WHERE id = 1999", "checksum"),
        ("UPDATE chunks SET rows = rows + 1 WHERE id = 1999", "checksum"),
        ("UPDATE buffers SET size = size + 1", "is 2001, but the buffer holds 2000 steps"),
        ("UPDATE buffers SET bytes = bytes + 1", "bytes"),
        ("DELETE FROM segments", "segment"),
        ("UPDATE segments SET chunk_row = chunk_row + 5", "rows"),
        ("DELETE FROM episodes", "steps without an episode"),
        ("UPDATE episodes SET episode_return = 7", "return"),
        ("UPDATE signatures SET schema = x'00'", "signature"),
        ("UPDATE signatures SET fields = replace(fields, '64', '32')", "signature"),
        ("UPDATE signatures SET crc = crc + 1", "signature"),
        ("DELETE FROM chunks", "segments without a chunk"),
        ("UPDATE rollout_groups SET complete = 0", "groups with wrong numbers of episodes"),
    ],
)
def test_check_reports_inconsistent_rows(path, statement, problem_text):
    fill_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    with expdb.open(path) as db:
        problems = db.check()
        assert any(problem_text in problem for problem in problems), problems
        assert all("\n" not in problem for problem in problems)


def test_a_buffer_with_corrupted_field_types_is_refused(path):
    fill_file(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE buffers SET fields = '{'")
    connection.close()
    with expdb.open(path) as db, pytest.raises(expdb.errors.DatabaseDamaged, match="fields"):
        db.buffer("b")


def test_read_only_reads_and_refuses_to_write(path):
    fill_file(path)
    with expdb.open(path, read_only=True) as db:
        buffer = db.buffer("b")
        assert buffer.sample(4).size == 4
        assert db.check() == []
        for call in (
            lambda: buffer.store(x=1),
            lambda: buffer.update({"step": 0}, reward=1.0),
            lambda: buffer.delete({"step": 0}),
            lambda: buffer.clear(),
            lambda: db.drop("b"),
            lambda: setattr(buffer, "capacity", 5),
        ):
            with pytest.raises(expdb.errors.DatabaseReadOnly, match="read_only"):
                call()
        with pytest.raises(expdb.errors.UnknownBuffer, match="without read_only=True"):
            db.buffer("new")


def test_a_full_disk_raises_storage_full_and_the_handle_stays_usable(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=b"0" * 1000)
        with writing(db) as session:
            ((pages,),) = session.query("PRAGMA page_count")
            session.query(f"PRAGMA max_page_count = {pages + 20}")
        positions = [0]

        def fill():
            for k in range(1_000):
                positions.append(buffer.store(x=np.random.default_rng(k).bytes(3000)))

        with pytest.raises(expdb.errors.StorageFull, match="no acknowledged write is lost"):
            fill()
        assert len(buffer) == len(positions) > 5
        with writing(db) as session:
            session.query("PRAGMA max_page_count = 1000000")
        buffer.store(x=b"more")
        assert len(buffer) == len(positions) + 1
        assert db.check() == []


def test_a_closed_handle_raises_database_closed(path):
    db = expdb.open(path)
    buffer = db.buffer("b")
    db.close()
    db.close()
    calls = (lambda: buffer.store(x=1), lambda: len(buffer), lambda: db.sql("SELECT 1"))
    for call in (*calls, lambda: db.buffer("b")):
        with pytest.raises(expdb.errors.DatabaseClosed, match="open it again"):
            call()


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        ("", {}), ("a\0b", {}), (5, {}), (None, {}), ("mysql://host/db", {}),
        ("postgresql+asyncpg://host/db", {}), (":memory:", {"read_only": True}),
        (":memory:", {"timeout": 0}), (":memory:", {"timeout": float("nan")}),
        (":memory:", {"timeout": float("inf")}),
        (":memory:", {"durability": "off"}), (":memory:", {"resident_bytes": "1"}),
        (":memory:", {"run": 5}),
    ],
)  # fmt: skip
def test_errors_for_bad_arguments_are_one_line(wrong, options):
    with pytest.raises(expdb.InvalidValue) as caught:
        expdb.open(wrong, **options)
    assert "\n" not in str(caught.value)


def test_durability_sets_the_synchronous_mode(path):
    for durability, level in (("normal", 1), ("full", 2)):
        with expdb.open(path, durability=durability) as db, writing(db) as session:
            assert session.query("PRAGMA synchronous") == [(level,)]
            assert session.query("PRAGMA journal_mode") == [("wal",)]
            assert session.query("PRAGMA mmap_size") in ([(0,)], [])
            assert session.query("PRAGMA wal_autocheckpoint") == [(0,)]


def test_buffers_are_listed_and_dropped(path):
    with expdb.open(path) as db, expdb.open(path) as other:
        db.buffer("one").store(x=1)
        db.buffer("two", capacity=5).store_batch({"x": np.arange(9)})
        assert db.buffers() == other.buffers() == ["one", "two"]
        stale = db.buffer("one")
        other.drop("one")
        with pytest.raises(
            expdb.errors.UnknownBuffer, match="no buffer 'one'; the buffers are two"
        ):
            other.drop("one")
        with pytest.raises(expdb.errors.UnknownBuffer, match=r"db\.buffer"):
            stale.store(x=1)
        assert db.check() == []
        fresh = db.buffer("one")
        assert fresh.store(y="another type") == 0
        assert len(db.buffer("two")) == 5


@pytest.mark.parametrize("name", ["", "a\0", None, 5, "x" * 300, "\ud800"])
def test_bad_buffer_names_are_refused(path, name):
    with expdb.open(path) as db, pytest.raises(expdb.InvalidValue):
        db.buffer(name)


def test_a_backup_is_a_valid_copy_and_overwrites_no_file(path, tmp_path):
    fill_file(path)
    with expdb.open(path) as db:
        db.backup(tmp_path / "copy.db")
        db.buffer("b").store(x=1)
        with pytest.raises(FileExistsError, match="choose a new file"):
            db.backup(tmp_path / "copy.db")
        with pytest.raises(expdb.errors.DatabaseMissing, match="folder"):
            db.backup(tmp_path / "nowhere" / "copy.db")
    with expdb.open(tmp_path / "copy.db") as copy:
        assert copy.check() == []
        assert len(copy.buffer("b")) == 2_000


def test_checkpoints_keep_the_wal_short_and_closing_removes_it(path):
    with expdb.open(path) as db:
        buffer = db.buffer("b", capacity=50)
        longest = 0
        for k in range(110):
            buffer.store(x=np.random.default_rng(k).bytes(1 << 20))
            longest = max(longest, os.path.getsize(path + "-wal"))
        assert 50 << 20 < longest < 85 << 20
    assert not os.path.exists(path + "-wal")


def test_errors_derive_from_expdb_error_and_a_builtin_exception():
    from expdb import errors

    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
        if value is not errors.ExpDBWarning
    ]
    assert len(classes) > 20
    for class_ in classes:
        assert issubclass(class_, expdb.ExpDBError)
        assert class_.__doc__
        if class_ is not expdb.ExpDBError:
            assert any(
                issubclass(class_, builtin)
                for builtin in (ValueError, LookupError, OSError, RuntimeError, ImportError)
            )


ABANDONED = """
import os, sys, expdb
db = expdb.open(":memory:")
db.buffer("b").store(x=1)
print(db.location, flush=True)
sys.stdin.read() if sys.argv[1] == "stay" else os.kill(os.getpid(), 9)
"""


def test_opening_removes_temporary_databases_of_killed_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def program(how):
        return subprocess.Popen(
            [sys.executable, "-c", ABANDONED, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )

    with program("stay") as living:
        kept = living.stdout.readline().strip()
        with program("die") as dead:
            left = dead.stdout.readline().strip()
        assert os.path.exists(kept)
        assert os.path.exists(left)
        with expdb.open(":memory:") as db:
            assert os.path.exists(kept)
            assert not os.path.exists(os.path.dirname(left))
            assert len(list(tmp_path.iterdir())) == 2
            assert os.path.dirname(db.location) != os.path.dirname(kept)
        living.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_folders_with_similar_names_to_temporary_databases_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("expdb-results", "expdb-memory-results"):
        (tmp_path / name).mkdir()
        for file in ("lock", "expdb.lock", "thesis.txt"):
            (tmp_path / name / file).write_text("work")
    expdb.open(":memory:").close()
    assert sorted(len(list(folder.iterdir())) for folder in tmp_path.iterdir()) == [3, 3]
