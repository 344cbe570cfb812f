"""Sessions on connections to an SQLite file."""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from expdb.sql.dialects.sqlite import connection as connection_to
from expdb.sql.dialects.sqlite.commit_watch import LastCommit
from expdb.sql.dialects.sqlite.open_files import FileUse, open_files
from expdb.sql.dialects.sqlite.wal_index import WalIndex, close_deleted
from expdb.sql.session import Session, share_compiled_statements


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
