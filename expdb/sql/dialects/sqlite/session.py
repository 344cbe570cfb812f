"""Sessions on connections to an SQLite file, and the detection of commits to the file."""

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from expdb.process.locks import locked
from expdb.sql.dialects.sqlite import connection as connection_to
from expdb.sql.dialects.sqlite.files import FileUse, open_files
from expdb.sql.dialects.sqlite.wal_index import WalIndex, close_deleted
from expdb.sql.session import Session, share_compiled_statements


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
