"""Sessions and transactions on an SQLite file, and the detection of commits to it.

One transaction writes at a time, readers see snapshots, and forks lose no rows.
"""

import itertools
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from expdb import errors
from expdb.process.locks import locked
from expdb.sql.dialects.base import Finding
from expdb.sql.dialects.sqlite import connection as connection_to
from expdb.sql.dialects.sqlite import files as sqlite_files
from expdb.sql.dialects.sqlite import statements as sqlite
from expdb.sql.dialects.sqlite.connection import (
    WriteAheadLog,
    copy_into,
    remove_empty_log,
    translated,
)
from expdb.sql.dialects.sqlite.files import (
    FileUse,
    examine_file,
    open_files,
    refuse_other_library,
    refuse_other_path,
)
from expdb.sql.dialects.sqlite.wal_index import WalIndex, close_deleted, is_next_commit
from expdb.sql.engine import Engine
from expdb.sql.schema import newer_schema
from expdb.sql.session import Kind, Session, Transaction, share_compiled_statements

VACUUM_PAUSE = 0.01  # seconds between two attempts while another connection writes
WATCH_SECONDS = 0.5  # seconds between checks that the file still exists, for handles that only read


class LastCommit(NamedTuple):
    """The last commit to a file, as SQLite reports it."""

    version: object  # different for every commit
    log: WalIndex | None  # the index that the queried connection reads
    header: bytes | None  # header of the index before the query


_NOTHING = LastCommit(None, None, None)


class CommitWatch:
    """Return a version of the last commit to a file, at most `max_lag` seconds old.

    Commits of this process are always detected, through any handle. SQLite is not queried while the
    header of the WAL index is the same: with cold caches, a query takes as long as drawing a
    hundred steps.
    """

    def __init__(self, path: str, max_lag: float, read: Callable[[], LastCommit]):
        self._path, self._max_lag, self._read_last_commit = path, max_lag, read
        self.reset()

    def reset(self) -> None:
        """Reset the object, at the start and in a forked child."""
        self._lock = threading.Lock()
        # Time of the last check, id of this process's last commit at that time, and the result.
        # They form one tuple, because other threads read it.
        self._last_check: tuple[float, object, LastCommit] = (-math.inf, None, _NOTHING)

    @property
    def is_used(self) -> bool:
        """Whether a caller has read a version."""
        return self._last_check[2] is not _NOTHING

    def is_last(self, version: object) -> bool:
        """Return whether a version is that of the last commit, as the index header shows."""
        last = self._last_check[2]
        is_known = last.log is not None and last.header is not None and last.version == version
        return is_known and last.log is not None and last.log.header() == last.header

    def version_after_commit(
        self, seen: object, before: bytes, after: bytes, own: object
    ) -> object | None:
        """Return the version after a commit of this process, or None if `seen` is outdated.

        `before` and `after` are the WAL-index headers around the commit. `own` identifies the
        commit.
        """
        at, _, last = self._last_check
        if last.log is None or last.version != seen or last.header != before:
            return None
        version = "commit", after
        self._last_check = at, own, LastCommit(version, last.log, after)
        return version

    def version(self, now: float) -> object:
        """Return a version that is different for every commit; `now` is a monotonic time."""
        own = open_files.commits.get(self._path)
        at, after, last = self._last_check
        if after is not own or now - at >= self._max_lag:
            # Without a header, the index was closed with its connection, and the path may be
            # another file's.
            if last.log is None or last.header is None or last.log.header() != last.header:
                last = locked(self._lock, self._read_last_commit)
            self._last_check = now, own, last
        return last.version


class SqliteSession(Session):
    """A session that can yield rows one by one."""

    def __init__(self, connection: sa.Connection, use: FileUse):
        super().__init__(connection)
        self._wal_index: WalIndex | None = None
        self._use: FileUse | None = use  # kept while the connection is open
        self.serial = next(_serials)  # never reused, unlike an id()
        open_files.sessions.add(self)

    def iterate(self, statement: str, *params: Any) -> Iterator[Any]:
        """Run a plain statement and yield its rows; the caller must read all of them."""
        yield from self.driver.execute(statement, params)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        try:
            return bool(self._driver.in_transaction)
        except self._driver.ProgrammingError:
            # The connection is closed: SQLAlchemy closes it after an interrupt.
            return False

    def wal_index_header(self) -> bytes | None:
        """Return the WAL-index header inside a write transaction; None if it cannot be read."""
        if self._wal_index is None:
            assert self._use is not None
            self._wal_index = WalIndex(self._use.path)
        return self._wal_index.header()

    def last_commit(self) -> LastCommit:
        """Return the last commit of any other connection."""
        if self._wal_index is None:
            connection_to.data_version(self.driver)  # from here on, the index exists
            assert self._use is not None
            self._wal_index = WalIndex(self._use.path)
        # Read the header first, because later it may belong to a newer commit.
        header = self._wal_index.header()
        version = connection_to.data_version(self.driver)
        return LastCommit((self.serial, version), self._wal_index, header)

    def close(self) -> None:
        """Close the connection."""
        if self._wal_index is not None:
            self._wal_index.close()
        self.connection.close()
        self._use = None
        close_deleted()  # the last connection of all processes deletes the WAL index

    def abandon(self) -> None:
        """Leave the connection open until the process ends: it belongs to the parent process."""
        self._use = None

    def __del__(self) -> None:
        # If true, an interrupt came before the session was returned.
        if getattr(self, "_use", None) is not None:
            self.close()


_serials = itertools.count()


def connecting(path: str, module: ModuleType, **options: Any) -> sa.Engine:
    """Return an SQLAlchemy engine that opens connections to a file."""
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: connection_to.connect(path, module, **options),
        module=module,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
    sa.event.listen(engine, "close", _roll_back)
    return share_compiled_statements(engine, module)


def _roll_back(connection: Any, _: object) -> None:
    """End the transaction of a connection before it is closed.

    After an interrupt, SQLAlchemy closes the connection. If a cursor still has unread rows, SQLite
    keeps the closed connection open internally. Without the rollback, its transaction would then
    lock the file until Python deletes the cursor.
    """
    if connection.in_transaction:
        connection.rollback()


class SqliteTransaction(Transaction):
    """A transaction on a connection of an engine.

    A writing transaction holds the engine's writer lock.
    """

    _is_over = True  # until __init__ has finished, which may be interrupted

    def __init__(self, engine: "SqliteEngine", kind: Kind, timeout: float = 0.0):
        self._engine, self._kind, self._timeout = engine, kind, timeout
        self.turn = object()  # identifies this transaction without keeping it alive
        self._writes = kind in ("write", "unsynced")
        self._session: SqliteSession | None = None
        self._ending = False  # whether COMMIT was sent
        self._wal_index_header: bytes | None = None  # at the beginning of the transaction
        self._is_over = False

    def _begin(self) -> Session:
        engine, kind, began = self._engine, self._kind, time.monotonic()
        if self._writes:
            engine.acquire_writer(self, self._timeout)
        self._session = session = engine.take(kind)
        if self._writes:
            waited = time.monotonic() - began
            connection_to.begin(session.driver, max(0.0, self._timeout - waited))
            engine.check_file(writing=True)
            if engine.is_watched:  # no other connection can commit from here on
                self._wal_index_header = session.wal_index_header()
        elif kind == "read":
            session.driver.execute("BEGIN")
        return session

    def _end(self) -> None:
        session = self._session
        assert session is not None
        if session.in_transaction and self._writes:
            try:
                self._ending = True
                session.driver.execute("COMMIT")
            except session.driver.Error:
                self._ending = False
                raise
        self._release(None, session)
        if self._writes:
            self._engine.checkpoint_if_due()

    def _undo(self, error: BaseException | None) -> None:
        if self._is_over:  # the object is garbage collected, maybe during another transaction
            return
        if self._session is not None:
            self._release(error, self._session)
        if self._writes:
            self._engine.release_writer(self)
        self._is_over = True

    def _release(self, error: BaseException | None, session: SqliteSession) -> None:
        is_usable = error is None or isinstance(error, errors.ExpDBError)
        if not session.in_transaction:
            self.committed = self._ending
        else:
            with suppress(Exception):  # the first error is the one to raise
                session.driver.execute("ROLLBACK")
            is_usable &= not session.in_transaction
        if self.committed and self._writes:
            own = open_files.note_commit(self._engine.path)
            if self._wal_index_header is not None:
                after = session.wal_index_header()
                if after is not None and is_next_commit(self._wal_index_header, after):
                    self.commit_versions = self._wal_index_header, after, own
        self._session = None  # before the session is given back, which must happen only once
        self._engine.return_session(self._kind, session, is_usable)

    def _translate_errors(self, error: BaseException) -> BaseException:
        translated = self._engine.translated(error)
        if isinstance(translated, errors.DatabaseDamaged):
            return newer_schema(self._engine) or translated
        # An impossible value, such as NULL in a NOT NULL column, may come from a corrupted file.
        if translated is error and self._kind == "read":
            return self._engine.damage() or error
        return translated


class SqliteEngine(Engine):
    """All connections of one handle to one database file.

    Readers take an idle connection or open a new one. A lock lets one thread write at a time, so
    that the threads of a process never compete for the database's own lock.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        durability: str,
        timeout: float,
        max_lag: float = 0.0,
        module: ModuleType = sqlite3,
    ):
        self.path = self.location = path
        self.module = module
        self.read_only, self.durability, self.timeout = read_only, durability, timeout
        self.dialect = sqlite
        how = {"read_only": read_only, "durability": durability}
        reading = connecting(path, module, busy_ms=int(timeout * 1000), **how)
        self._creators: dict[Kind, sa.Engine] = {
            "read": reading,
            "sql": reading,
            "watch": reading,
            "write": connecting(path, module, busy_ms=0, **how),
            "unsynced": connecting(
                path, module, busy_ms=0, read_only=read_only, durability="normal"
            ),
        }
        self._idle: dict[Kind, list[SqliteSession]] = {kind: [] for kind in self._creators}
        self._writer = threading.RLock()
        self._turn: object | None = None  # `turn` of the transaction that writes
        self._commits = CommitWatch(path, max_lag, self._last_commit)
        self._closed = False
        self._log, self._watched = WriteAheadLog(path), time.monotonic()
        self._file = sqlite_files.identity(path)
        self._is_immutable = read_only and connection_to.is_immutable(path)
        refuse_other_library(path, module)
        refuse_other_path(path, self._file)
        open_files.engines.add(self)

    @property
    def is_watched(self) -> bool:
        """Whether a caller has asked for the last commit."""
        return self._commits.is_used

    @property
    def identity(self) -> object:
        """Device and inode of the open file, which identify it on this machine."""
        return self._file

    # -- sessions ----------------------------------------------------------------------------------

    def take(self, kind: Kind) -> SqliteSession:
        """Return an idle session, or one with a new connection if there is none."""
        if self._closed:
            raise errors.DatabaseClosed(f"{self.path} was closed; open it again with expdb.open()")
        try:
            if kind in ("read", "sql") or not self._idle[kind]:
                # a new connection would apply the old file's log to the file that replaced it
                self.check_file()
            try:
                return self._idle[kind].pop()
            except IndexError:
                use = FileUse(self.path)
            session = SqliteSession(self._creators[kind].connect(), use)
            if kind == "sql":
                connection_to.decode_priorities(session.driver)
                connection_to.guard(session.driver)
            return session
        except Exception as error:
            raise self.translated(error) from errors.log_cause(error)

    def return_session(self, kind: Kind, session: SqliteSession, usable: bool) -> None:
        """Keep a session for later use, or close it if it is not usable."""
        if not usable:
            session.close()
            return
        self._idle[kind].append(session)
        if self._closed:  # closed by another thread
            self.close_idle()

    def translated(self, error: BaseException) -> BaseException:
        """Return the expdb error for a driver's error, or the error itself if there is none."""
        return translated(getattr(error, "orig", None) or error, self.path)

    def damage(self) -> errors.DatabaseDamaged | None:
        """Return an error with the first problem that SQLite finds in the file, or None."""
        session = self.take("read")
        try:
            for problem in self.dialect.file_problems(session):
                return errors.DatabaseDamaged(
                    f"{self.path} is corrupted ({problem}); restore a backup, or recover it with "
                    "sqlite3's .recover"
                )
            return None
        finally:
            self.return_session("read", session, usable=True)

    def reading(self) -> Transaction:
        """Return a context manager in which all reads see one snapshot."""
        return SqliteTransaction(self, "read")

    def sql(self) -> Transaction:
        """Return a context manager with a connection that cannot write, whatever SQL it runs."""
        return SqliteTransaction(self, "sql")

    def changed_since(self, seen: object) -> object | None:
        """Return the version of the last commit, at most `max_lag` seconds old.

        Return None if it equals `seen`.
        """
        now = time.monotonic()
        if now - self._watched > WATCH_SECONDS:
            self.check_file()
        return None if (version := self._commits.version(now)) == seen else version

    def is_unchanged(self, seen: object) -> bool:
        """Return whether nothing was committed since `seen`, whatever `max_lag` is."""
        return self._commits.is_last(seen)

    def version_after_commit(self, seen: object, commit_versions: Any) -> object | None:
        """Return the database version after a commit of this handle.

        Return None if `seen` is not the version directly before the commit.
        """
        return self._commits.version_after_commit(seen, *commit_versions)

    def _last_commit(self) -> LastCommit:
        # On a separate connection: data_version does not change with the connection's own writes.
        session = self.take("watch")
        commit = session.last_commit()
        self.return_session("watch", session, usable=True)
        return commit

    def writing(self, timeout: float | None = None, *, outlives: bool = True) -> Transaction:
        """Return a context manager for a transaction.

        The transaction commits when the block ends, and rolls back if the block raises.
        """
        if self.read_only:
            raise errors.DatabaseReadOnly(
                f"{self.path} was opened with read_only=True; open it without read_only to write"
            )
        kind: Kind = "write" if outlives or self.durability == "normal" else "unsynced"
        return SqliteTransaction(self, kind, self.remaining() if timeout is None else timeout)

    def acquire_writer(self, transaction: SqliteTransaction, timeout: float) -> None:
        """Wait for the lock with which one thread of this handle writes at a time."""
        if not self._writer.acquire(timeout=timeout):
            raise errors.DatabaseBusy(
                f"{self.path} is locked by another thread that writes; try again, or open it "
                "with a longer timeout"
            )
        self._turn = transaction.turn
        self._log.warn()  # before the write, because a filter may turn the warning into an error

    def release_writer(self, transaction: SqliteTransaction) -> None:
        """Release the writer lock if this transaction holds it.

        The transaction may be an old one that is being garbage collected.
        """
        # Ask the lock for its owner: a separate flag could be wrong if an interrupt came just after
        # the lock was acquired.
        if self._writer._is_owned() and self._turn in (None, transaction.turn):  # type: ignore[attr-defined]
            self._turn = None
            self._writer.release()

    def check_file(self, *, writing: bool = False) -> None:
        """Raise DatabaseReplaced if the path leads to another file, or the log was deleted.

        Writes to a deleted file would be lost.
        """
        self._watched = time.monotonic()
        if self._is_immutable and connection_to.has_log(self.path):
            raise errors.DatabaseReplaced(
                f"another process has opened {self.path}, but this handle reads it as an "
                "unchanging file because its folder is not writable; close this handle and open "
                "the database again"
            )
        if sqlite_files.identity(self.path) != self._file or (
            writing and not os.access(self.path + "-wal", os.F_OK)
        ):
            raise errors.DatabaseReplaced(
                f"{self.path} was deleted or replaced while it was open; close this handle and "
                "open the database again; acknowledged writes until now are in the original file"
            )

    # -- the write-ahead log -----------------------------------------------------------------------

    def checkpoint_if_due(self) -> None:
        """Checkpoint the log if a checkpoint is due; transactions call this after a write."""
        if self._log.is_due():
            session = self.take("write")
            try:
                self._log.checkpoint(session.driver, self.translated)
            finally:
                self.return_session("write", session, usable=True)

    def nbytes(self) -> int:
        """Return the size of the file."""
        self.check_file()
        return os.stat(self.path).st_size

    def examine(self) -> list[Finding]:
        """Return findings about the file and its use, for `expdb doctor`."""
        with self.reading() as session:
            return examine_file(self.path, self.module, session, self.durability)

    def backup(self, target: str) -> None:
        """Copy the current database into a new file, with SQLite's backup function."""
        session = self.take("read")
        try:
            copy_into(target, session, self.module)
        finally:
            self.return_session("read", session, usable=True)

    def vacuum(self) -> None:
        """Return free space to the file system, with SQLite's command VACUUM."""
        session, deadline = self.take("write"), time.monotonic() + self.remaining()
        try:
            while True:
                try:
                    session.driver.execute("VACUUM")
                    session.driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    return
                except session.driver.Error as error:
                    translated = self.translated(error)
                    is_busy = isinstance(translated, errors.DatabaseBusy)
                    if not is_busy or time.monotonic() >= deadline:
                        raise translated from errors.log_cause(error)
                    time.sleep(VACUUM_PAUSE)
        finally:
            self.return_session("write", session, usable=True)

    def release(self) -> None:
        """Close idle connections; new connections are opened when they are needed."""
        self.close_idle()

    def close(self) -> None:
        """Close every connection; the last connection of all processes checkpoints the log."""
        if self._closed:
            return
        self._closed = True
        self.close_idle()
        if self.read_only:
            remove_empty_log(self.path, self.module)
        open_files.engines.discard(self)

    def close_idle(self) -> None:
        """Close idle connections."""
        for sessions in self._idle.values():
            with suppress(IndexError):  # other threads may take sessions at the same time
                while True:
                    sessions.pop().close()

    def reset(self) -> None:
        """Reset the engine in a forked child.

        The parent's threads do not exist in the child. At the fork, one of them may have held the
        old locks or may have been returning a session.
        """
        self._idle = {kind: [] for kind in self._idle}
        self._commits.reset()
        self._writer = threading.RLock()
