"""Connections to an SQLite file.

One writer writes at a time, readers see snapshots, and forks lose nothing.
"""

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from expdb import errors
from expdb.living import Living
from expdb.sql.dialects.base import Finding
from expdb.sql.dialects.sqlite import connection as connection_to
from expdb.sql.dialects.sqlite import files as sqlite_files
from expdb.sql.dialects.sqlite import statements as sqlite
from expdb.sql.dialects.sqlite.examine import examined
from expdb.sql.dialects.sqlite.translate import translated
from expdb.sql.engine import Engine
from expdb.sql.session import Kind, Session, Transaction

CHECKPOINT_BYTES = (
    64 << 20
)  # of write-ahead log; a checkpoint syncs, which single steps would feel at 16 MiB
CHECKPOINT_SECONDS = (
    5.0  # bounds what a power loss can take at durability="normal", while anybody writes
)
CHECKPOINT_WAIT_MS = 2_000
PINNED_BYTES = (
    256 << 20
)  # of log that cannot be folded in; from here on people are told who holds it
WATCH_SECONDS = 0.5  # between looks whether the file is still there, of those who only read


class SqliteSession(Session):
    """A session whose rows can be read one by one, in the same memory."""

    def __init__(self, connection: sa.Connection, use: "FileUse"):
        super().__init__(connection)
        self._use: FileUse | None = use  # for as long as the connection is open
        self.serial = next(_serials)  # never used again, as an id() is
        _fork.sessions.add(self)

    def each(self, statement: str, *params: Any) -> Iterator[Any]:
        """Run a plain statement and yield its rows; all of them are to be taken."""
        yield from self.driver.execute(statement, params)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        try:
            return bool(self.driver.in_transaction)
        except (
            self.driver.ProgrammingError
        ):  # closed: SQLAlchemy does that to a connection that an interrupt met
            return False

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
        self._use = None

    def abandon(self) -> None:
        """Never close the connection: it is the parent process's."""
        self._use = None

    def __del__(self) -> None:
        if getattr(self, "_use", None) is not None:  # an interrupt came before it was given back
            self.close()


_serials = itertools.count()


class SqliteTransaction(Transaction):
    """A transaction on a connection of an engine.

    One that writes holds the engine's turn to write.
    """

    _is_over = True  # before it was made, too: that may be interrupted

    def __init__(self, engine: "SqliteEngine", kind: Kind, timeout: float = 0.0):
        self._engine, self._kind, self._timeout = engine, kind, timeout
        self._session: SqliteSession | None = None
        self._ending = False  # whether COMMIT was sent
        self._is_over = False

    def _begin(self) -> Session:
        engine, kind = self._engine, self._kind
        if kind == "write":
            engine.take_turn(self, self._timeout)
        self._session = session = engine.take(kind)
        if kind == "write":
            connection_to.begin(session.driver, self._timeout)
            engine.check_file(writing=True)
        elif kind == "read":
            session.driver.execute("BEGIN")
        return session

    def _end(self) -> None:
        session = self._session
        assert session is not None
        if session.in_transaction and self._kind == "write":
            try:
                self._ending = True
                session.driver.execute("COMMIT")
            except session.driver.Error:
                self._ending = False
                raise
        self._let_go(None)
        if self._kind == "write":
            self._engine.checkpoint_if_due()

    def _undo(self, error: BaseException | None) -> None:
        if self._is_over:  # collected, maybe in the midst of another one
            return
        self._let_go(error)
        if self._kind == "write":
            self._engine.end_turn(self)
        self._is_over = True

    def _let_go(self, error: BaseException | None) -> None:
        session = self._session
        if session is None:
            return
        if not session.in_transaction:
            self.committed = self._ending
        else:
            with suppress(Exception):  # the first error is the one to tell
                session.driver.execute("ROLLBACK")
        usable = (
            error is None or isinstance(error, errors.ExpDBError)
        ) and not session.in_transaction
        self._session = None  # before it is given back, which must not be done twice
        self._engine.give_back(self._kind, session, usable)

    def _translated(self, error: BaseException) -> BaseException:
        translated = self._engine.translated(error)
        if (
            translated is error and self._kind == "read"
        ):  # what cannot be, such as NULL where there is none, may come from the file
            return self._engine.damage() or error
        return translated


class SqliteEngine(Engine):
    """All connections of one handle to one database file.

    Readers take a connection from a stack, or open one; the writer's is a single one behind a lock,
    so that the threads of a process never compete for the database's own lock.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        durability: str,
        timeout: float,
        module: ModuleType = sqlite3,
    ):
        self.path = self.location = path
        self.module = module
        self.read_only, self.durability, self.timeout = read_only, durability, timeout
        self.dialect = sqlite
        self._creators = {
            "read": self._sqlalchemy_engine(busy_ms=int(timeout * 1000)),
            "write": self._sqlalchemy_engine(busy_ms=0),
        }
        self._idle: dict[Kind, list[SqliteSession]] = {
            "read": [],
            "write": [],
            "sql": [],
            "watch": [],
        }
        self._writer, self._watching = threading.RLock(), threading.Lock()
        self._turn: SqliteTransaction | None = None
        self._closed = False
        self._warning: str | None = None  # for the next write to give
        self._checkpoint_at, self._pinned_at = CHECKPOINT_BYTES, PINNED_BYTES
        self._checkpointed = self._watched = time.monotonic()
        self._file = sqlite_files.identity(path)
        refuse_other_library(path, module)
        self._refuse_other_path()
        _fork.engines.add(self)

    def _refuse_other_path(self) -> None:
        """Raise where this process has the file open by another path, in another folder.

        Its log would be another one there.
        """
        for engine in _fork.engines.list():
            if (
                engine.path != self.path
                and self._file is not None
                and engine.identity == self._file == sqlite_files.identity(engine.path)
            ):
                folders = os.path.dirname(engine.path), os.path.dirname(self.path)
                if not os.path.samefile(*folders) or os.path.basename(
                    engine.path
                ) != os.path.basename(self.path):
                    raise errors.DatabaseReadOnly(
                        f"{self.path} is open in this process as {engine.path}: open it by that "
                        "path, as each has a log of its own"
                    )

    @property
    def identity(self) -> object:
        """What tells the file that is open from every other one on this machine."""
        return self._file

    def _sqlalchemy_engine(self, busy_ms: int) -> sa.Engine:
        def creator() -> Any:
            return connection_to.connect(
                self.path,
                self.module,
                read_only=self.read_only,
                durability=self.durability,
                busy_ms=busy_ms,
            )

        return sa.create_engine(
            "sqlite://",
            creator=creator,
            module=self.module,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
        )

    # -- sessions ----------------------------------------------------------------------------------

    def take(self, kind: Kind) -> SqliteSession:
        """Return a session that nobody else uses, of a new connection where there is none."""
        if self._closed:
            raise errors.DatabaseClosed(f"{self.path} was closed: open it again with expdb.open")
        try:
            if kind in ("read", "sql") or not self._idle[kind]:
                # a new connection would apply the old file's log to the one that took its place
                self.check_file()
            try:
                return self._idle[kind].pop()
            except IndexError:
                use = FileUse(self.path)
            session = SqliteSession(
                self._creators["write" if kind == "write" else "read"].connect(), use
            )
            if kind == "sql":
                connection_to.guard(session.driver)
            return session
        except Exception as error:
            raise self.translated(error) from error

    def give_back(self, kind: Kind, session: SqliteSession, usable: bool) -> None:
        """Keep a session for the next one who takes one of its kind.

        It is closed where it cannot be used again.
        """
        if not usable:
            session.close()
            return
        self._idle[kind].append(session)
        if self._closed:  # meanwhile
            self.close_idle()

    def translated(self, error: BaseException) -> BaseException:
        """Return the expdb error for a driver's, or the error itself where there is none."""
        return translated(getattr(error, "orig", None) or error, self.path)

    def damage(self) -> errors.DatabaseDamaged | None:
        """Return an error that says what SQLite finds wrong with the file.

        None where that is nothing.
        """
        session = self.take("read")
        try:
            for problem in self.dialect.file_problems(session):
                return errors.DatabaseDamaged(
                    f"{self.path} is damaged ({problem}): restore a backup, or recover it with "
                    ".recover"
                )
            return None
        finally:
            self.give_back("read", session, usable=True)

    def reading(self) -> Transaction:
        """Return a context in which everything read is one snapshot."""
        return SqliteTransaction(self, "read")

    def appending(self) -> Transaction:
        """Return a context for one statement that is a transaction by itself."""
        return self.writing()

    def sql(self) -> Transaction:
        """Return a context with a connection that cannot write whatever it is told."""
        return SqliteTransaction(self, "sql")

    def changed_since(self, seen: object) -> object | None:
        """Return what stands for the database as it is now.

        None if nothing was committed since that was `seen`.

        By a connection that nothing else is done with: `data_version` does not count its own
        connection's writes.
        """
        if time.monotonic() - self._watched > WATCH_SECONDS:
            self.check_file()
        with self._watching: return self._look(seen)  # fmt: skip

    def _look(self, seen: object) -> object | None:
        session = self.take("watch")
        now = (session.serial, connection_to.data_version(session.driver))
        self.give_back("watch", session, usable=True)
        return None if now == seen else now

    def writing(self, timeout: float | None = None) -> Transaction:
        """Return a context with a transaction.

        It commits when the block is left, and rolls back when that raises.
        """
        if self.read_only:
            raise errors.DatabaseReadOnly(
                f"{self.path} was opened with read_only=True: open it without to write"
            )
        return SqliteTransaction(self, "write", self.timeout if timeout is None else timeout)

    def take_turn(self, transaction: SqliteTransaction, timeout: float) -> None:
        """Wait for the turn of a transaction of this thread to write."""
        if not self._writer.acquire(timeout=timeout):
            raise errors.DatabaseBusy(
                f"{self.path} is held by another thread's write: try again, or raise timeout"
            )
        self._turn = transaction
        if (
            self._warning is not None
        ):  # before anything is written, as a filter may make it an error
            warning, self._warning = self._warning, None
            errors.warn(warning)

    def end_turn(self, transaction: SqliteTransaction) -> None:
        """Let the next thread write, if it is the turn of this transaction.

        It may be an old one that is collected now.
        """
        # Asked of the lock, not remembered: an interrupt may come between its being taken and the
        # next instruction.
        if self._writer._is_owned() and self._turn in (None, transaction):  # type: ignore[attr-defined]
            self._turn = None
            self._writer.release()

    def check_file(self, *, writing: bool = False) -> None:
        """Raise where the path leads to another file by now, or its log is gone.

        What is written into one without a name is lost.
        """
        self._watched = time.monotonic()
        if sqlite_files.identity(self.path) != self._file or (
            writing and not os.path.exists(self.path + "-wal")
        ):
            raise errors.DatabaseReplaced(
                f"{self.path} was deleted or replaced while it was open: close this handle and "
                "open it again; what is acknowledged "
                "until now lies in the file that was there"
            )

    # -- the write-ahead log -----------------------------------------------------------------------

    def checkpoint_if_due(self) -> None:
        """Fold the log into the file where it is time.

        Whoever has just written does it, in their turn.
        """
        size, now = connection_to.wal_bytes(self.path), time.monotonic()
        if size >= self._checkpoint_at or (size and now - self._checkpointed >= CHECKPOINT_SECONDS):
            session = self.take("write")
            try:
                complete = connection_to.checkpoint(session.driver, CHECKPOINT_WAIT_MS)
            except Exception as error:
                # The write itself is committed; a full disk is told by the next one.
                complete = False
                if not isinstance(self.translated(error), errors.ExpDBError):
                    raise
            finally:
                self.give_back("write", session, usable=True)
            # A reader pins the log: do not make every write wait for it, only one in each further
            # 64 MiB or 5 s.
            self._checkpoint_at = CHECKPOINT_BYTES if complete else size + CHECKPOINT_BYTES
            self._checkpointed = time.monotonic()
            if complete:
                self._pinned_at = PINNED_BYTES
            elif size >= self._pinned_at:
                self._pinned_at = 2 * size
                self._tell_who_pins(size)

    def _tell_who_pins(self, size: int) -> None:
        who = " and ".join(sqlite_files.readers(self.path)) or "a reader that cannot be told here"
        self._warning = (
            f"the write-ahead log of {self.path} has {size >> 20:,} MB and cannot be folded in: "
            f"{who} has been reading one snapshot "
            "all along; end that, or the log grows on"
        )

    def nbytes(self) -> int:
        """Return the size of the file."""
        self.check_file()
        return os.stat(self.path).st_size

    def examine(self) -> list[Finding]:
        """Return what the file stands on."""
        with self.reading() as session:
            return examined(self.path, self.module, session, self.durability)

    def backup(self, target: str) -> None:
        """Copy the database as it is now into a new file, through SQLite's own backup."""
        if os.path.exists(target):
            raise errors.TargetExists(f"{target} exists: name a new file for the backup")
        if not os.path.isdir(os.path.dirname(target)):
            raise errors.DatabaseMissing(
                f"the folder {os.path.dirname(target)} does not exist: create it first"
            )
        session = self.take("read")
        try:
            with FileUse(target):
                copy = connection_to.connect(
                    target, self.module, create=True, durability="full", busy_ms=0
                )
                try:
                    session.driver.backup(copy)
                    connection_to.name_file(copy)
                finally:
                    copy.close()
        except Exception as error:
            with suppress(
                OSError
            ):  # what is there is no backup, and would be in the way of the next one
                os.unlink(target)
            raise translated(error, target) from error
        finally:
            self.give_back("read", session, usable=True)

    def release(self) -> None:
        """Close the connections that nobody uses; others are made when they are needed."""
        self.close_idle()

    def close(self) -> None:
        """Close every connection; the last one of all processes folds the log into the file."""
        if self._closed:
            return
        self._closed = True
        self.close_idle()
        if self.read_only:
            self._remove_log()
        _fork.engines.discard(self)

    def _remove_log(self) -> None:
        """Take away the empty log that reading makes.

        Only a connection that may write removes it, as the last to leave.
        """
        if (
            not os.path.exists(self.path + "-wal")
            or connection_to.wal_bytes(self.path)
            or not sqlite_files.may_write(self.path)
        ):
            return
        with (
            suppress(self.module.Error, OSError),
            FileUse(self.path),
        ):  # not ours to insist on: others may be at it
            connection = connection_to.connect(
                self.path, self.module, durability="normal", busy_ms=0
            )
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            finally:
                connection.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        for sessions in self._idle.values():
            with suppress(IndexError):  # threads may take some meanwhile
                while True:
                    sessions.pop().close()

    def begin_anew(self) -> None:
        """Begin anew in a forked child.

        A thread that is not there any more may hold the old locks, and may have given back a
        session.
        """
        self._idle = {kind: [] for kind in self._idle}
        self._writer, self._watching = threading.RLock(), threading.Lock()


def refuse_other_library(path: str, module: ModuleType) -> None:
    """Raise where this process has the file open by another SQLite library.

    Call it before the file is opened at all.
    """
    for engine in _fork.engines.list():
        if engine.path == path and engine.module.connect is not module.connect:
            raise errors.InvalidValue(
                f"{path} is open in this process by {engine.module.__name__}, another SQLite "
                "library: two of them on one file undo "
                "each other's locks; use one sqlite_module for all handles"
            )


# -- fork ------------------------------------------------------------------------------------------


class _Fork:
    """Keeps forks from losing rows.

    SQLite keeps its locks a process, in a table that a fork copies: a child that inherits an open
    file believes that it holds the parent's locks, and loses rows silently, even through a new
    connection. So nothing is open at a fork but what a thread is using, and a file that is in use
    then is refused in the child, by whatever handle.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.engines: Living[SqliteEngine] = Living()
        self.uses: Living[FileUse] = Living()
        self.sessions: Living[SqliteSession] = Living()
        self.refused: set[str] = set()
        # Never closed: that would drop the parent's locks, or wait for a thread that is not there.
        self.inherited: list[SqliteSession] = []

    def before(self) -> None:
        self.turn.acquire()  # until after the fork; forks of several threads take turns
        for engine in self.engines.list():
            engine.close_idle()

    def in_parent(self) -> None:
        self.turn.release()

    def in_child(self) -> None:
        self.turn = threading.Lock()
        self.refused |= {use.path for use in self.uses.list()}
        self.inherited += self.sessions.list()
        self.uses, self.sessions = Living(), Living()
        for session in self.inherited:
            session.abandon()
        for engine in self.engines.list():
            engine.begin_anew()


_fork = _Fork()


class FileUse:
    """Says, for as long as it lives, that a connection to a file is being opened, used or closed.

    Or use it with `with`.
    """

    def __init__(self, path: str):
        if path in _fork.refused:
            raise errors.ForkedWithOpenConnection(
                f"this process was forked while a thread used {path}: start processes by spawn or "
                "forkserver"
            )
        self.path = path
        _fork.uses.add(self)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _fork.uses.discard(self)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child
    )
