"""Connections to an SQLite file: one writer at a time, snapshots for readers, forks that lose nothing."""

import os
import sqlite3
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from expdb import errors
from expdb.storage.dialects import sqlite, sqlite_files
from expdb.storage.engine import Engine, Kind, Session

CHECKPOINT_BYTES = 64 << 20  # of write-ahead log; a checkpoint syncs, which single steps would feel at 16 MiB
CHECKPOINT_SECONDS = 5.0  # bounds what a power loss can take at durability="normal", while anybody writes
CHECKPOINT_WAIT_MS = 2_000
PINNED_BYTES = 256 << 20  # of log that cannot be folded in; from here on people are told who holds it
WATCH_SECONDS = 0.5  # between looks whether the file is still there, of those who only read


class SqliteSession(Session):
    """A session whose rows can be read one by one, in the same memory."""

    def each(self, statement: str, *params: Any) -> Iterator[Any]:
        """Run a plain statement and yield its rows; all of them are to be taken."""
        yield from self.driver.execute(statement, params)


class SqliteEngine(Engine):
    """All connections of one handle to one database file.

    Readers take a connection from a stack, or open one; the writer's is a single one behind a lock, so that the threads
    of a process never compete for the database's own lock.
    """

    def __init__(self, path: str, *, read_only: bool, durability: str, timeout: float, module: ModuleType = sqlite3):
        self.path = self.location = path
        self.module = module
        self.read_only, self.durability, self.timeout = read_only, durability, timeout
        self.dialect = sqlite
        self._creators = {
            "read": self._sqlalchemy_engine(busy_ms=int(timeout * 1000)),
            "write": self._sqlalchemy_engine(busy_ms=0),
        }
        self._idle: dict[Kind, list[Session]] = {"read": [], "write": [], "sql": [], "watch": []}
        self._writer = threading.RLock()
        self._closed = False
        self._warning: str | None = None  # for the next write to give
        self._checkpoint_at, self._pinned_at = CHECKPOINT_BYTES, PINNED_BYTES
        self._checkpointed = self._watched = time.monotonic()
        self._file = sqlite_files.identity(path)
        with _fork.lock:
            refuse_other_library(path, module)
            _fork.engines.add(self)

    def _sqlalchemy_engine(self, busy_ms: int) -> sa.Engine:
        def creator() -> Any:
            return self.dialect.connect(self.path, self.module, read_only=self.read_only, durability=self.durability, busy_ms=busy_ms)

        return sa.create_engine("sqlite://", creator=creator, module=self.module, poolclass=NullPool, isolation_level="AUTOCOMMIT")

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _take(self, kind: Kind) -> Session:
        with _fork.lock:
            if self._closed:
                raise errors.DatabaseClosed(f"{self.path} was closed: open it again with expdb.open")
            _fork.begin_use(self.path)
        try:
            if kind in ("read", "sql") or not self._idle[kind]:
                self._check_file()  # a new connection would apply the old file's log to the one that took its place
            with _fork.lock:
                if self._idle[kind]:
                    return self._idle[kind].pop()
            session = SqliteSession(self._creators["write" if kind == "write" else "read"].connect())
            if kind == "sql":
                self.dialect.guard(session.driver)
            return session
        except BaseException as error:
            _fork.end_use(self.path)
            raise self._translated(error) from error

    def _give_back(self, kind: Kind, session: Session, usable: bool) -> None:
        with _fork.lock:
            if usable and not self._closed:
                self._idle[kind].append(session)
                _fork.end_use(self.path)
                return
        session.connection.close()
        _fork.end_use(self.path)

    def _translated(self, error: BaseException) -> BaseException:
        return sqlite.translated(getattr(error, "orig", None) or error, self.path)

    @contextmanager
    def _session(self, kind: Kind, begin: bool) -> Iterator[Session]:
        session = self._take(kind)
        driver, usable, ending = session.driver, False, False
        session.committed = False
        try:
            try:
                if kind == "write":
                    self.dialect.begin(driver, self.timeout)
                    self._check_file(writing=True)
                elif begin:
                    driver.execute("BEGIN")
                yield session
                if driver.in_transaction:
                    ending = True
                    driver.execute("COMMIT" if kind == "write" else "ROLLBACK")
                session.committed = True
            except BaseException as error:
                with suppress(Exception):  # the first error is the one to tell; SQLAlchemy closes what an interrupt met
                    if driver.in_transaction:
                        driver.execute("ROLLBACK")
                    elif ending:  # an interrupt just after the commit
                        session.committed = not isinstance(error, driver.Error)
                raise
            usable = True
        except errors.ExpDBError:
            with suppress(driver.ProgrammingError):  # closed
                usable = not driver.in_transaction
            raise
        except Exception as error:
            translated = self._translated(error)
            if isinstance(translated, errors.ExpDBError):
                raise translated from error
            if kind == "read":  # what cannot be, such as NULL where there is none, may come from the file
                for problem in self.dialect.file_problems(session):
                    raise errors.DatabaseDamaged(f"{self.path} is damaged ({problem}): restore a backup, or recover it with .recover") from error
            raise
        finally:
            self._give_back(kind, session, usable)

    def reading(self) -> AbstractContextManager[Session]:
        """Return a context in which everything read is one snapshot."""
        return self._session("read", begin=True)

    def appending(self) -> AbstractContextManager[Session]:
        """Return a context for one statement that is a transaction by itself."""
        return self.writing()

    def sql(self) -> AbstractContextManager[Session]:
        """Return a context with a connection that cannot write whatever it is told."""
        return self._session("sql", begin=False)

    def news(self, seen: object) -> object | None:
        """Return what stands for the database as it is now; None if nothing was committed since that was `seen`.

        By a connection that nothing else is done with: `data_version` does not count its own connection's writes.
        """
        if time.monotonic() - self._watched > WATCH_SECONDS:
            self._check_file()
        with _fork.lock:  # nobody forks meanwhile, so this use need not be counted
            if not self._idle["watch"]:
                self._give_back("watch", self._take("watch"), usable=True)
            session = self._idle["watch"][-1]
            now = (session, self.dialect.data_version(session.driver))
        return None if now == seen else now

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open an immediate transaction; it commits when the block is left, and rolls back when that raises."""
        if self.read_only:
            raise errors.DatabaseReadOnly(f"{self.path} was opened with read_only=True: open it without to write")
        try:
            if not self._writer.acquire(timeout=self.timeout):
                raise errors.DatabaseBusy(f"{self.path} is held by another thread's write: try again, or raise timeout")
            if self._warning is not None:  # before anything is written, as a filter may make it an error
                warning, self._warning = self._warning, None
                errors.warn(warning)
            with self._session("write", begin=True) as session:
                yield session
            self._checkpoint_if_due()
        finally:
            # Asked of the lock, not remembered: an interrupt may come between its being taken and the next instruction.
            if self._writer._is_owned():  # type: ignore[attr-defined]
                self._writer.release()

    def _check_file(self, *, writing: bool = False) -> None:
        """Raise where the path leads to another file by now, or its log is gone: what is written into one without a name is lost."""
        self._watched = time.monotonic()
        if sqlite_files.identity(self.path) != self._file or (writing and not os.path.exists(self.path + "-wal")):
            raise errors.DatabaseReplaced(
                f"{self.path} was deleted or replaced while it was open: close this handle and open it again; what is acknowledged "
                "until now lies in the file that was there"
            )

    # -- the write-ahead log ------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        size, now = self.dialect.wal_bytes(self.path), time.monotonic()
        if size >= self._checkpoint_at or (size and now - self._checkpointed >= CHECKPOINT_SECONDS):
            session = self._take("write")
            try:
                complete = self.dialect.checkpoint(session.driver, CHECKPOINT_WAIT_MS)
            except Exception as error:
                # The write itself is committed; a full disk is told by the next one.
                complete = False
                if not isinstance(self._translated(error), errors.ExpDBError):
                    raise
            finally:
                self._give_back("write", session, usable=True)
            # A reader pins the log: do not make every write wait for it, only one in each further 64 MiB or 5 s.
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
            f"the write-ahead log of {self.path} has {size >> 20:,} MB and cannot be folded in: {who} has been reading one snapshot "
            "all along; end that, or the log grows on"
        )

    def nbytes(self) -> int:
        """Return the size of the file."""
        self._check_file()
        return os.stat(self.path).st_size

    def examine(self) -> list[tuple[str, str, str]]:
        """Return what the file stands on."""
        with self.reading() as session:
            return sqlite_files.examined(self.path, self.module, session, self.durability)

    def backup(self, target: str) -> None:
        """Copy the database as it is now into a new file, through SQLite's own backup."""
        if os.path.exists(target):
            raise errors.TargetExists(f"{target} exists: name a new file for the backup")
        if not os.path.isdir(os.path.dirname(target)):
            raise errors.DatabaseMissing(f"the folder {os.path.dirname(target)} does not exist: create it first")
        session = self._take("read")
        try:
            with connection_of(target):
                copy = self.dialect.connect(target, self.module, create=True, durability="full", busy_ms=0)
                try:
                    session.driver.backup(copy)
                    self.dialect.name_file(copy)
                finally:
                    copy.close()
        except Exception as error:
            with suppress(OSError):  # what is there is no backup, and would be in the way of the next one
                os.unlink(target)
            raise self.dialect.translated(error, target) from error
        finally:
            self._give_back("read", session, usable=True)

    def release(self) -> None:
        """Close the connections that nobody uses; others are made when they are needed."""
        with _fork.lock:
            self.close_idle()

    def close(self) -> None:
        """Close every connection; the last one of all processes folds the log into the file."""
        with _fork.lock:
            if self._closed:
                return
            self._closed = True
            self.close_idle()
            if self.read_only:
                self._remove_log()
            _fork.engines.discard(self)

    def _remove_log(self) -> None:
        """Take away the empty log that reading makes, and that only one who may write removes as the last to leave."""
        if not os.path.exists(self.path + "-wal") or self.dialect.wal_bytes(self.path) or not sqlite_files.may_write(self.path):
            return
        with suppress(self.module.Error, OSError), connection_of(self.path):  # not ours to insist on: others may be at it
            connection = self.dialect.connect(self.path, self.module, durability="normal", busy_ms=0)
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            finally:
                connection.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses; the caller holds the fork lock."""
        for sessions in self._idle.values():
            while sessions:
                sessions.pop().connection.close()

    def renew_locks(self) -> None:
        """Have fresh locks in a forked child: a thread that is not there any more may hold the old ones."""
        self._writer = threading.RLock()


def refuse_other_library(path: str, module: ModuleType) -> None:
    """Raise where this process has the file open by another SQLite library; to be asked before the file is opened at all."""
    for engine in list(_fork.engines):
        if engine.path == path and engine.module.connect is not module.connect:
            raise errors.InvalidValue(
                f"{path} is open in this process by {engine.module.__name__}, another SQLite library: two of them on one file undo "
                "each other's locks; use one sqlite_module for all handles"
            )


# -- fork -------------------------------------------------------------------------------------------------------------


class _Fork:
    """Keeps forks from losing rows.

    SQLite keeps its locks a process, in a table that a fork copies: a child that inherits an open file believes that it
    holds the parent's locks, and loses rows silently, even through a new connection. So nothing is open at a fork but
    what a thread is using, and a file that is in use then is refused in the child, by whatever handle.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engines: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()
        self.in_use: Counter[str] = Counter()
        self.refused: set[str] = set()

    def begin_use(self, path: str) -> None:
        """Count a connection that is being opened, used or closed."""
        with self.lock:
            if path in self.refused:
                raise errors.ForkedWithOpenConnection(
                    f"this process was forked while a thread used {path}: start processes by spawn or forkserver"
                )
            self.in_use[path] += 1

    def end_use(self, path: str) -> None:
        with self.lock:
            self.in_use[path] -= 1
            if not self.in_use[path]:
                del self.in_use[path]

    def before(self) -> None:
        self.lock.acquire()  # until after the fork; forks of several threads take turns
        for engine in list(self.engines):
            engine.close_idle()

    def in_parent(self) -> None:
        self.lock.release()

    def in_child(self) -> None:
        self.lock = threading.RLock()
        self.refused |= set(self.in_use)
        self.in_use.clear()
        for engine in list(self.engines):
            engine.renew_locks()


_fork = _Fork()


@contextmanager
def connection_of(path: str) -> Iterator[None]:
    """Count a connection that no engine opens."""
    _fork.begin_use(path)
    try:
        yield
    finally:
        _fork.end_use(path)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork.before, after_in_parent=_fork.in_parent, after_in_child=_fork.in_child)
