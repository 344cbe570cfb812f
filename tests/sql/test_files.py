"""Tests of SQLite files: replacement, read-only media, untrusted files, locks and copies."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress

import pysqlite3.dbapi2
import pytest
from behind import writing
from click.testing import CliRunner
from contents import steps_of
from sqlalchemy.engine.default import DefaultDialect

import expdb
from expdb import errors
from expdb.cli import main
from expdb.sql.dialects.sqlite import connection as sqlite_log
from expdb.sql.dialects.sqlite import engine as sqlite_engine
from expdb.sql.dialects.sqlite import files as sqlite_files


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "runs.db")
    with expdb.open(path) as db:
        db.buffer("b").store_batch({"x": list(range(100))})
    return path


# -- replaced --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved away"])
def test_a_handle_is_refused_after_its_file_was_deleted_or_replaced(
    path, tmp_path, how, monkeypatch
):
    monkeypatch.setattr(sqlite_engine, "WATCH_SECONDS", 0.0)
    other = str(tmp_path / "other.db")
    expdb.open(other).close()
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=100)
        buffer.sample(200)
        buffer.sample(200)
        if how == "moved away":
            os.rename(path, tmp_path / "moved.db")
        else:
            os.unlink(path)
        if how == "replaced":
            shutil.copy(other, path)
        for use in (
            lambda: buffer.store(x=101),
            lambda: buffer.update({"step": 0}, reward=1.0),
            lambda: buffer.sample(200),
        ):
            with pytest.raises(
                errors.DatabaseReplaced,
                match=r"close this handle and open the database again",
            ):
                use()


def test_an_old_handle_does_not_modify_a_replacement_file(path, tmp_path):
    """A new connection would apply the WAL of the old file to the new file."""
    other = str(tmp_path / "other.db")
    with expdb.open(other) as db:
        db.buffer("b").store_batch({"x": list(range(3000))})
    with expdb.open(path) as old:
        old.buffer("b").store(x=100)
        os.replace(other, path)
        size = os.stat(path).st_size
        for use in (
            lambda: old.sql("SELECT 1"),
            lambda: len(old.buffer("b")),
            lambda: old.backup(tmp_path / "copy.db"),
            lambda: old.nbytes,
        ):
            with pytest.raises(errors.DatabaseReplaced):
                use()
        assert os.stat(path).st_size == size
    for left in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(path + left)
    with expdb.open(path) as db:
        assert len(db.buffer("b")) == 3000
        assert db.check() == []


@pytest.mark.parametrize("how", ["truncated", "without its log"])
def test_writes_are_refused_if_the_file_is_truncated_or_its_wal_is_deleted(path, how):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=100, terminated=True)
        os.truncate(path, 0) if how == "truncated" else os.unlink(path + "-wal")
        with pytest.raises((errors.DatabaseReplaced, errors.DatabaseDamaged)):
            buffer.store(x=101)


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["normal", "full"])
def test_an_interrupt_after_the_commit_does_not_write_twice(path, durability, monkeypatch):
    with expdb.open(path, durability=durability) as db:
        buffer, real, armed = db.buffer("b"), sqlite_engine.SqliteEngine.checkpoint_if_due, []

        def interrupted(engine):
            real(engine)
            if armed:
                armed.pop()
                raise KeyboardInterrupt

        def play():
            with buffer.episode("e", flush_steps=8) as episode:
                for k in range(100):
                    if k == at:
                        armed.append(True)
                    episode.append(n=k)

        monkeypatch.setattr(sqlite_engine.SqliteEngine, "checkpoint_if_due", interrupted)
        for at in (0, 20):
            with pytest.raises(KeyboardInterrupt):
                play()
            rows = [row for row in steps_of(buffer) if row["task_id"] == "e"]
            assert [row["n"] for row in rows] == list(range(at // 8 * 8 + 8))
            buffer.delete({"task_id": "e"})

        def end():
            with buffer.episode("ended") as episode:
                episode.append(n=0)
                armed.append(True)
                episode.end(n=1)

        with pytest.raises(KeyboardInterrupt):
            end()
        assert buffer.episodes({"task_id": "ended"})["status"].to_pylist() == ["complete"]
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            buffer.store(task_id="s", n=1)
        buffer.store(task_id="s", n=2)
        assert [row["n"] for row in steps_of(buffer) if row["task_id"] == "s"] == [1, 2]
        assert buffer.episodes({"task_id": "s"}).num_rows == 1, "the episode goes on"
        assert db.check() == []
    with expdb.open(path) as db:
        assert "open" not in db.buffer("b").episodes()["status"].to_pylist()


def test_an_interrupted_statement_with_unread_rows_leaves_no_lock(path, monkeypatch):
    """Without a rollback, SQLite would keep the closed connection until the cursor is deleted."""
    execute, cursors = DefaultDialect.do_execute, []

    def interrupt(self, cursor, text, parameters, context=None):
        execute(self, cursor, text, parameters, context)
        if text.startswith("SELECT") and cursor.connection.in_transaction:
            cursors.append(cursor)
            raise KeyboardInterrupt

    with expdb.open(path) as db, expdb.open(path, timeout=0.2) as other:
        buffer = db.buffer("b")
        with monkeypatch.context() as patch:
            patch.setattr(DefaultDialect, "do_execute", interrupt)
            with pytest.raises(KeyboardInterrupt):
                buffer.update({"task_id": "default"}, which="last", reward=1.0)
        assert len(cursors) == 1
        other.buffer("b").store(x=100)
        buffer.store(x=101)


# -- read only -------------------------------------------------------------------------------------


@pytest.fixture
def medium(tmp_path):
    """Yield a small mounted file system and a function that remounts it with other options."""
    folder = tmp_path / "medium"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder, lambda how: subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)
    subprocess.run(["umount", folder], check=True)


def test_a_file_on_a_read_only_file_system_can_be_read(path, medium):
    folder, remount = medium
    shutil.copy(path, folder / "runs.db")
    remount("ro")
    there = folder / "runs.db"
    with expdb.open(there, read_only=True) as db:
        assert sorted(db.buffer("b").sample(500, seed=0)["x"].tolist())[0] == 0
        assert db.sql("SELECT count(*) AS n FROM experience").to_pylist() == [{"n": 100}]
        assert db.check() == []
        assert any(finding["advice"] for finding in db.doctor() if finding["what"] == "permission")
    for command in (["info", there], ["query", there, "b"], ["check", there]):
        assert CliRunner().invoke(main, list(map(str, command))).exit_code == 0
    with (
        pytest.raises(errors.DatabaseReadOnly, match="read_only=True"),
        expdb.open(there) as db,
    ):
        db.buffer("b").store(x=1)
    assert os.listdir(folder) == ["runs.db"]


def test_a_file_with_a_wal_on_a_read_only_file_system_is_refused(path, medium):
    folder, remount = medium
    with expdb.open(path) as db:
        db.buffer("b").store(x=100)
        subprocess.run(
            ["cp", path, path + "-wal", folder], check=True
        )  # cp runs in another process, so the copy has its WAL as after a crash
    remount("ro")
    with pytest.raises(errors.DatabaseReadOnly, match="open it once on a writable file system"):
        expdb.open(folder / "runs.db", read_only=True)
    remount("rw")
    with expdb.open(folder / "runs.db") as db:
        assert len(db.buffer("b")) == 101


# -- untrusted files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON steps BEGIN DELETE FROM steps; END",
        "CREATE TRIGGER evil AFTER UPDATE ON buffers BEGIN UPDATE steps SET reward = 1e9; END",
        "CREATE TABLE json_each(value, key)",
        "CREATE VIEW json_each AS SELECT 1 AS value",
        "CREATE VIRTUAL TABLE evil USING fts5(x)",
        "DROP VIEW experience; CREATE TABLE experience(x)",
    ],
)
def test_a_file_with_foreign_triggers_or_shadowing_tables_is_refused(path, statement):
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    with pytest.raises(errors.DatabaseDamaged, match=r"evil|json_each|experience"):
        expdb.open(path)
    with pytest.raises(errors.DatabaseDamaged):
        expdb.open(path, read_only=True)


def test_tables_views_and_indexes_of_users_are_allowed(path):
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE notes(text); CREATE VIEW mine AS SELECT position FROM experience; CREATE "
        "INDEX fast ON steps(reward)"
    )
    connection.close()
    with expdb.open(path) as db:
        assert db.sql("SELECT count(*) AS n FROM mine").to_pylist() == [{"n": 100}]
        assert db.check() == []


# -- other SQLite libraries ------------------------------------------------------------------------


def test_all_operations_work_with_another_sqlite_module(tmp_path):
    path = tmp_path / "new.db"
    with expdb.open(path, sqlite_module=pysqlite3.dbapi2) as db:
        buffer = db.buffer("b", capacity=50)
        with buffer.episode("t", episode_tags={"seed": 1}) as episode:
            for k in range(60):
                episode.append(x=k, reward=1.0)
        buffer.update({"step": 59}, reward=2.0)
        assert buffer.count({"episode_tags.seed": 1}) == 50
        assert buffer.sample(20, {"reward": 2.0})["x"].tolist() == [59] * 20
        assert db.sql(
            "SELECT field(payload, 'x') AS x FROM experience WHERE reward = :r", {"r": 2.0}
        ).to_pylist() == [{"x": 59}]
        for statement in (
            "DELETE FROM steps",
            "ATTACH 'x.db' AS x",
            "PRAGMA journal_mode=DELETE",
            "VACUUM INTO 'y.db'",
            "SELECT load_extension('x')",
        ):
            with pytest.raises(errors.SqlRefused):
                db.sql(statement)
        with pytest.raises(errors.SqlError):
            db.sql("SELECT nothing FROM experience")
        db.backup(tmp_path / "copy.db")
        findings = {finding["what"]: finding for finding in db.doctor()}
        assert (
            findings["SQLite"]["found"] == f"{pysqlite3.dbapi2.sqlite_version} (pysqlite3.dbapi2)"
        )
        assert findings["SQLite"]["advice"] == ""
        again = pickle.loads(pickle.dumps(db))
        assert again._engine.module is pysqlite3.dbapi2
        again.close()
        assert db.check() == []
    with expdb.open(tmp_path / "copy.db") as db:
        assert len(db.buffer("b")) == 50
    (tmp_path / "empty.db").write_bytes(b"")
    with pytest.raises(errors.NotAnExperienceDatabase):
        expdb.open(tmp_path / "empty.db", sqlite_module=pysqlite3.dbapi2)


def test_two_sqlite_libraries_on_one_file_are_refused(path):
    with expdb.open(path), pytest.raises(expdb.InvalidValue, match="another SQLite library"):
        expdb.open(path, sqlite_module=pysqlite3.dbapi2)
    with expdb.open(path), expdb.open(path, sqlite_module=sqlite3.dbapi2) as same:
        assert len(same.buffer("b")) == 100
    with expdb.open(path, sqlite_module=pysqlite3.dbapi2) as db:
        db.buffer("b").sample(1)
        lock_holders = sqlite_files.lock_holders(path)
        for use in (
            lambda: expdb.open(path),
            lambda: expdb.upgrade(path),
            lambda: expdb.copy(path, path + "2"),
        ):
            with pytest.raises(expdb.InvalidValue, match="another SQLite library"):
                use()
        assert sqlite_files.lock_holders(path) == lock_holders != {}, (
            "to open and close the file by the other library drops the locks"
        )
    with expdb.open(path, sqlite_module=pysqlite3.dbapi2) as db:
        assert len(db.buffer("b")) == 100
    with pytest.raises(expdb.InvalidValue, match="sqlite_module must be a module"):
        expdb.open(path, sqlite_module="sqlite3")


def test_sqlite_versions_without_the_wal_reset_bug_are_recognised():
    versions = [(3, 40, 1), (3, 44, 6), (3, 45, 0), (3, 50, 7), (3, 51, 2), (3, 53, 4)]
    fixed = [version for version in versions if sqlite_files.wal_reset_is_fixed(version)]
    assert fixed == [(3, 44, 6), (3, 50, 7), (3, 53, 4)]


# -- locks and checkpoints -------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
connection.execute("SELECT count(*) FROM steps").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(path):
    """Yield a function that opens a transaction in another process until the test ends."""
    processes = []

    def hold(statement):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, path, statement],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        process.stdout.readline()
        processes.append(process)
        return process

    yield hold
    for process in processes:
        process.communicate()


def test_doctor_lists_the_reading_and_writing_processes(path, holder):
    with expdb.open(path) as db:
        assert {finding["what"]: finding["found"] for finding in db.doctor()}["writer"] == "none"
        reader, writer = holder("BEGIN"), holder("BEGIN IMMEDIATE")
        findings = {finding["what"]: finding["found"] for finding in db.doctor()}
        assert f"process {reader.pid} " in findings["readers"]
        assert f"process {writer.pid} " in findings["writer"]
        assert "this one" in findings["connected"]
        unknown = "unknown"  # in a chroot
        assert findings["file system"] == (sqlite_files.file_system(path) or unknown)


def test_a_warning_names_the_process_that_blocks_checkpoints(path, holder, monkeypatch):
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 1 << 20)
    monkeypatch.setattr(sqlite_log, "PINNED_BYTES", 1 << 20)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_WAIT_MS", 50)
    reader = holder("BEGIN")
    with expdb.open(path) as db:
        db.buffer("b").store_batch([{"y": os.urandom(50_000)} for _ in range(50)])
        with pytest.warns(errors.ExpDBWarning, match=f"process {reader.pid} .* keeps reading"):
            db.buffer("b").store(
                y=b""
            )  # it warns before the write, because a filter may turn the warning into an error
        assert os.stat(path + "-wal").st_size > 2 << 20
        reader.communicate()
        monkeypatch.setattr(sqlite_log, "CHECKPOINT_SECONDS", 0.0)
        db.buffer("b").store(y=b"")
        assert os.stat(path + "-wal").st_size == 0


def test_the_type_of_a_file_system_is_detected():
    assert sqlite_files.file_system("/proc/self/stat") == "proc"


def test_opening_a_file_on_a_network_file_system_warns(path, monkeypatch):
    monkeypatch.setattr(sqlite_files, "file_system", lambda path: "nfs4")
    with pytest.warns(errors.ExpDBWarning, match="use a local disk, or PostgreSQL"):
        expdb.open(path).close()


def test_doctor_prints_text_or_json_and_its_exit_status_shows_advice(path):
    for arguments in ([path], [path, "--json"]):
        result = CliRunner().invoke(main, ["doctor", *arguments])
        assert "WAL-reset" in result.output or sqlite_files.wal_reset_is_fixed(
            sqlite3.sqlite_version_info
        )
    with expdb.open(path) as db:
        findings = db.doctor()
    assert findings[0]["what"] == "SQLite"
    assert findings[0]["advice"] == "", "a bug that expdb avoids is nothing to be done about"
    assert result.exit_code == any(finding["advice"] for finding in findings)


def test_doctor_reports_the_settings_of_a_server(postgresql_url):
    with expdb.open(postgresql_url) as db:
        findings = {finding["what"]: finding for finding in db.doctor()}
    assert findings["role"]["found"] == "primary"
    assert findings["fsync"]["advice"] == (
        ""
        if findings["fsync"]["found"] == "on"
        else "is off, so a crash of the machine may lose the whole database; turn it on"
    )


# -- copies made with cp ---------------------------------------------------------------------------


def live_copy(path, target, *suffixes):
    """Copy an open file by `cp` in another process, so that this process keeps its locks."""
    for suffix in suffixes:
        subprocess.run(["cp", f"{path}{suffix}", f"{target}{suffix}"], check=True)


def test_the_wal_of_another_database_is_refused_before_it_is_applied(path, tmp_path):
    other = tmp_path / "other.db"
    with expdb.open(other) as theirs, expdb.open(path):
        theirs.buffer("b").store_batch([{"y": os.urandom(5000)} for _ in range(50)])
        live_copy(other, tmp_path / "kept", "-wal")
    os.replace(tmp_path / "kept-wal", f"{path}-wal")
    for read_only in (False, True):
        with pytest.raises(errors.DatabaseReplaced, match="expdb backup"):
            expdb.open(path, read_only=read_only)
    os.unlink(f"{path}-wal")
    with expdb.open(path) as db:
        assert db.check() == []


def test_a_backup_refuses_the_wal_of_its_source(path, tmp_path):
    with expdb.open(path) as db:
        db.backup(tmp_path / "backup.db")
        db.buffer("b").store_batch([{"y": os.urandom(5000)} for _ in range(50)])
        live_copy(path, tmp_path / "backup.db", "-wal")
    with pytest.raises(errors.DatabaseReplaced, match="log of another database"):
        expdb.open(tmp_path / "backup.db")


def test_a_copy_is_complete_with_its_wal_and_reports_a_missing_wal(tmp_path):
    path = tmp_path / "live.db"
    with expdb.open(path) as db:
        db.buffer("train").store(x=1)
        live_copy(path, tmp_path / "whole.db", "", "-wal")
        live_copy(path, tmp_path / "without.db", "")
    with expdb.open(tmp_path / "whole.db") as db:
        assert len(db.buffer("train")) == 1
        assert db.check() == []
    with (
        expdb.open(tmp_path / "without.db") as db,
        pytest.raises(errors.UnknownBuffer, match="its write-ahead log is missing"),
    ):
        db.buffer("train", create=False)
    result = CliRunner().invoke(main, ["info", str(tmp_path / "without.db")])
    assert "the copy lacks the write-ahead log" in result.output


def test_an_interrupted_backup_leaves_no_file(path, tmp_path, monkeypatch):
    from expdb.sql.dialects.sqlite import connection

    def interrupted(connection):
        raise KeyboardInterrupt

    with expdb.open(path) as db:
        db.buffer("another").store(x=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(connection, "name_file", interrupted)
            with pytest.raises(KeyboardInterrupt):
                db.backup(tmp_path / "copy.db")
        assert not (tmp_path / "copy.db").exists()
        db.backup(tmp_path / "copy.db")


@pytest.mark.both_databases
def test_vacuum_returns_free_space_and_keeps_the_data(db, buffer):
    if db.location.startswith("postgresql"):
        with pytest.raises(expdb.InvalidValue, match="requires an SQLite file"):
            db.vacuum()
        return
    db.buffer("large").store_batch([{"x": os.urandom(100_000)} for _ in range(20)])
    db.drop("large")
    buffer.store(x=1)
    with expdb.open(db.location) as other:
        db.vacuum()
        assert other.buffer(buffer.name).sample(1)["x"] == 1
        buffer.store(x=2)
        assert len(other.buffer(buffer.name)) == 2
        assert os.path.getsize(db.location) < 1_000_000


@pytest.mark.one_database
def test_vacuum_raises_while_another_handle_writes_or_if_read_only(path):
    with expdb.open(path, timeout=0.3) as db, expdb.open(path) as other:
        db.buffer("b").store(x=1)
        start = time.monotonic()
        with writing(other), pytest.raises(errors.DatabaseBusy, match="timeout"):
            db.vacuum()
        assert time.monotonic() - start >= 0.3
        assert db.check() == []
    with expdb.open(path, read_only=True) as db, pytest.raises(errors.DatabaseReadOnly):
        db.vacuum()
