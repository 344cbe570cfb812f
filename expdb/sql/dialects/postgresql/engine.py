"""Connections to a PostgreSQL server: a pool, snapshots for readers, few round trips.

The connections are in autocommit mode, and expdb sends the statements that begin and end
transactions. So these statements share round trips with the first and the last query.
"""

import os
import re
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from expdb import errors
from expdb.process.locks import locked
from expdb.sql.dialects.base import Finding
from expdb.sql.dialects.postgresql import statements as postgresql
from expdb.sql.dialects.postgresql.connection import create_pool
from expdb.sql.dialects.postgresql.examine import examined
from expdb.sql.dialects.postgresql.session import PostgresqlSession
from expdb.sql.dialects.postgresql.translate import connect_error, translated
from expdb.sql.engine import Attempts, Engine, log
from expdb.sql.schema import newer_schema
from expdb.sql.session import Session, Transaction

READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Set explicitly, because with a stricter default, conflicting writers would fail.
WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresqlTransaction(Transaction):
    """A transaction on a connection of the pool."""

    # The value until __init__ has finished, which may be interrupted.
    _session: PostgresqlSession | None = None

    def __init__(
        self, engine: "PostgresqlEngine", opening: Sequence[str], closing: str, unlock: bool = False
    ):
        self._engine, self._opening, self._closing, self._unlock = engine, opening, closing, unlock

    def _begin(self) -> Session:
        engine = self._engine
        self._session = session = PostgresqlSession(
            engine.connect(),
            self._opening,
            self._closing,
            engine.location,
            engine.another_connection,
        )
        return session

    def _end(self) -> None:
        assert self._session is not None
        self.committed = self._session.end() and self._closing == "COMMIT"

    def _undo(self, error: BaseException | None) -> None:
        session = self._session
        if session is None:
            return
        session.abandon(is_interrupted=error is not None and not isinstance(error, Exception))
        if self._closing != "ROLLBACK":
            count = self._engine.count_commit()
            self.commit_versions = count - 1, count
        self._session = None  # before the session is given back, which must happen only once
        session.release(self._unlock)

    def _translate_errors(self, error: BaseException) -> BaseException:
        translated_error = translated(getattr(error, "orig", None) or error, self._engine.location)
        if isinstance(translated_error, errors.DatabaseDamaged):
            return newer_schema(self._engine) or translated_error
        return translated_error


class PostgresqlEngine(Engine):
    """All connections of one handle to one database of a server."""

    def __init__(
        self, url: sa.URL, *, read_only: bool, durability: str, timeout: float, max_lag: float
    ):
        self.dialect, self.max_lag = postgresql, max_lag
        self._commits = 0  # number of commits of this process
        self._commits_lock = threading.Lock()
        shown = {name: "***" if "password" in name else value for name, value in url.query.items()}
        self.location = url.set(drivername="postgresql", query=shown).render_as_string(
            hide_password=True
        )
        self.read_only, self.timeout = read_only, timeout
        self._closed = self.was_reached = False
        milliseconds = max(1, int(timeout * 1000))
        path = "SELECT set_config('search_path', 'expdb, pg_temp', true)"
        limits = (
            "SELECT set_config('search_path', 'expdb, pg_temp', true), set_config('lock_timeout', "
            "'{}', true), "
            # A client that holds the writers' lock must not be idle forever. (Best effort: the
            # server does not start this timeout after a pipeline.)
            f"set_config('idle_in_transaction_session_timeout', '{max(milliseconds, 60_000)}', "
            "true), "
            "CASE WHEN current_setting('synchronous_commit') = 'off' THEN "
            "set_config('synchronous_commit', 'on', true) END"
        )
        self._reading, self._limits, self._naming = (READING, path), limits, ""
        self._sql = (
            # read-only before the statement: see run_sql
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
            "SELECT set_config('search_path', 'expdb, public, pg_temp', true), "
            f"set_config('statement_timeout', '{milliseconds}', true)",
        )
        self._names_application = "application_name" not in url.query
        self._connections = create_pool(url, timeout)
        # For a handle that is garbage collected without being closed.
        weakref.finalize(self, self._connections.dispose)
        _engines.add(self)

    # -- sessions ----------------------------------------------------------------------------------

    def connect(self) -> sa.Connection:
        """Return a connection of the pool."""
        if self._closed:
            raise errors.DatabaseClosed(
                f"{self.location} was closed; open it again with expdb.open()"
            )
        attempts = Attempts(self.remaining())
        while True:
            try:
                connection = self._connections.connect()
            except sa.exc.TimeoutError as error:
                raise errors.DatabaseBusy(
                    f"{self.location} has no free connection, because this process uses all "
                    "connections of its pool; use fewer threads"
                ) from errors.log_cause(error)
            except sa.exc.DBAPIError as error:
                failure = self._expdb_error(
                    connect_error(error.orig or error, self.location), error
                )
                # A server that was reached before is restarting; otherwise the address may be
                # wrong.
                if not self.was_reached or not attempts.again(failure):
                    log.debug("%s: %s", self.location, error.orig)
                    raise failure from None  # the errors of the driver have many lines
            else:
                self.was_reached = True
                if not self._closed:
                    return connection
                connection.invalidate()  # `close` in another thread could not close it
                connection.close()
                return self.connect()

    def another_connection(self, dead: sa.Connection) -> sa.Connection:
        """Replace a dead connection, and discard the other pooled connections, which are as old."""
        dead.invalidate()
        dead.close()
        self._connections.dispose()
        return self.connect()

    @staticmethod
    def _expdb_error(translated: BaseException, error: BaseException) -> BaseException:
        return translated if isinstance(translated, errors.ExpDBError) else error

    def set_application_name(self, *parts: str) -> None:
        """Set the `application_name` of the connections that write, unless the URL sets it."""
        if self._names_application:
            # Only these characters, because the name becomes part of a statement.
            name = re.sub(r"[^a-zA-Z0-9_.+@:/ -]", "_", " ".join(parts))
            self._naming = f", set_config('application_name', '{name}', false)"

    def reading(self) -> Transaction:
        """Return a context manager in which all reads see one snapshot."""
        return PostgresqlTransaction(self, self._reading, "ROLLBACK")

    def sql(self) -> Transaction:
        """Return a context manager with a connection that cannot write, whatever SQL it runs."""
        return PostgresqlTransaction(self, self._sql, "ROLLBACK", unlock=True)

    def writing(self, timeout: float | None = None, *, outlives: bool = True) -> Transaction:
        """Return a context manager for a transaction.

        The transaction commits when the block ends, and rolls back if the block raises. Every
        commit is synced, because the server may lose power while the client does not.
        """
        self._refuse_to_write_read_only()
        # A timeout of 0 would wait forever.
        milliseconds = max(1, int(1000 * (self.remaining() if timeout is None else timeout)))
        settings = self._limits.format(milliseconds) + self._naming
        return PostgresqlTransaction(self, (WRITING, settings), "COMMIT")

    def appending(self) -> Transaction:
        """Return a context manager for one statement that is a transaction by itself."""
        self._refuse_to_write_read_only()
        return PostgresqlTransaction(self, (), "")

    def _refuse_to_write_read_only(self) -> None:
        if self.read_only:
            raise errors.DatabaseReadOnly(
                f"{self.location} was opened with read_only=True; open it without read_only to "
                "write"
            )

    def count_commit(self) -> int:
        """Count a possible commit of this process; return the new count."""
        return locked(self._commits_lock, self._count_commit)

    def _count_commit(self) -> int:
        self._commits += 1
        return self._commits

    def is_unchanged(self, seen: object) -> bool:
        """Return False: only a round trip could detect commits of other processes."""
        return False

    def version_after_commit(self, seen: object, commit_versions: Any) -> object | None:
        """Return the database version after a commit of this handle.

        Return None if `seen` is not the version directly before the commit. The time of
        the next query for commits of other processes does not change.
        """
        if not isinstance(seen, tuple) or seen[0] != commit_versions[0]:
            return None
        return commit_versions[1], seen[1]

    def changed_since(self, seen: object) -> object | None:
        """Return the current version of the database, or None if `seen` is recent enough.

        `seen` is recent enough if it is younger than `max_lag` and this process has not committed
        since. Detecting other commits takes a round trip. LISTEN and NOTIFY are not used: a
        commit that notifies takes a lock that all such commits share, and listeners do not work
        with a pooler that runs every transaction in another server process.
        """
        now = time.monotonic()
        if isinstance(seen, tuple) and seen[0] == self._commits and now - seen[1] < self.max_lag:
            return None
        return self._commits, now

    # -- the rest ----------------------------------------------------------------------------------

    def nbytes(self) -> int:
        """Return the size of the tables of the schema and their indexes in bytes."""
        with self.reading() as session:
            ((size,),) = session.query(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
                "WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'r'"
            )
        return int(size)

    def examine(self) -> list[Finding]:
        """Return findings about the server and its use, for `expdb doctor`."""
        with self.reading() as session:
            return examined(session)

    def backup(self, target: str) -> None:
        """Raise an error, because PostgreSQL has its own backup tool."""
        raise errors.InvalidValue(
            "backup() copies only database files; use pg_dump --schema=expdb for PostgreSQL, or "
            "`expdb copy` to a file"
        )

    def release(self) -> None:
        """Close idle connections; new connections are opened when they are needed."""
        self._connections.dispose()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._connections.dispose()
        _engines.discard(self)

    def forget_connections(self) -> None:
        """In a forked child, leave the connections to the parent process.

        New connections are opened when they are needed.
        """
        self._connections.dispose(close=False)
        self._commits_lock = threading.Lock()  # a thread of the parent may hold it


_engines: "weakref.WeakSet[PostgresqlEngine]" = weakref.WeakSet()


def _reset_after_fork() -> None:
    for engine in list(_engines):
        engine.forget_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
