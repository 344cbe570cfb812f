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
from expdb.sql.session import Session


class SqliteSession(Session):
    """A session whose rows can be read one by one, in the same memory."""

    def __init__(self, connection: sa.Connection, use: FileUse):
        super().__init__(connection)
        self._wal_index: WalIndex | None = None
        self._use: FileUse | None = use  # for as long as the connection is open
        self.serial = next(_serials)  # never used again, as an id() is
        open_files.sessions.add(self)

    def each(self, statement: str, *params: Any) -> Iterator[Any]:
        """Run a plain statement and yield its rows; all of them are to be taken."""
        yield from self.driver.execute(statement, params)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        try:
            return bool(self.driver.in_transaction)
        except self.driver.ProgrammingError:
            # Closed: SQLAlchemy does that to a connection that an interrupt met.
            return False

    def wal_index_header(self) -> bytes | None:
        """Return the WAL-index header inside a write transaction; None if it cannot be read."""
        if self._wal_index is None:
            assert self._use is not None
            self._wal_index = WalIndex(self._use.path)
        return self._wal_index.header()

    def last_commit(self) -> LastCommit:
        """Return what stands for the last commit of any other connection."""
        if self._wal_index is None:
            connection_to.data_version(self.driver)  # from then on until it is closed there is one
            assert self._use is not None
            self._wal_index = WalIndex(self._use.path)
        header = self._wal_index.header()  # first: else it may be that of a later commit
        version = connection_to.data_version(self.driver)
        return LastCommit((self.serial, version), self._wal_index, header)

    def close(self) -> None:
        """Close the connection."""
        if self._wal_index is not None:
            self._wal_index.close()
        self.connection.close()
        self._use = None
        close_deleted()  # the last connection of all deletes the index of the log

    def abandon(self) -> None:
        """Never close the connection: it is the parent process's."""
        self._use = None

    def __del__(self) -> None:
        if getattr(self, "_use", None) is not None:  # an interrupt came before it was given back
            self.close()


_serials = itertools.count()


def connecting(path: str, module: ModuleType, **options: Any) -> sa.Engine:
    """Return what makes connections to a file, as SQLAlchemy sees them."""
    return sa.create_engine(
        "sqlite://",
        creator=lambda: connection_to.connect(path, module, **options),
        module=module,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
