"""Connections to a PostgreSQL server: a pool, snapshots for readers, few round trips.

The connections are in autocommit mode, and expdb sends the statements that begin and end
transactions. So these statements share round trips with the first and the last query.
"""

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from expdb import errors
from expdb.process.locks import locked
from expdb.sql.dialects.base import Finding
from expdb.sql.dialects.postgresql import statements as postgresql
from expdb.sql.dialects.postgresql.connection import (
    connect_error,
    create_pool,
    examine_server,
    first_line,
    translated,
)
from expdb.sql.engine import Attempts, Engine, log
from expdb.sql.schema import newer_schema
from expdb.sql.session import Session, Transaction


class PostgresqlSession(Session):
    """A session that queues statements without results.

    Queued statements, including the beginning of the transaction, are sent with the next query, in
    one round trip.
    """

    def __init__(
        self,
        connection: sa.Connection,
        opening: Sequence[str],
        closing: str,
        location: str,
        another: Callable[[sa.Connection], sa.Connection],
    ):
        super().__init__(connection)
        self._pool = connection.engine.pool
        self._closing, self._location, self._another = closing, location, another
        self._queue: list[tuple[str, Any]] = [(statement, ()) for statement in opening]
        # Queue indices of statements that must return a row, and functions that create the error.
        self._required: list[tuple[int, Callable[[], Exception]]] = []
        self._fresh = True  # nothing has been sent yet
        self._is_queued = False  # whether statements without results were queued
        self._has_executed = False

    @property
    def connection(self) -> sa.Connection:
        """The connection as SQLAlchemy sees it, in its transaction."""
        self._send()
        return self._connection

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """The driver's connection, in its transaction."""
        self._send()
        return self._driver  # type: ignore[no-any-return]

    def query(self, statement: str | sa.Executable, *params: Any) -> list[Any]:
        """Run a statement and return all of its rows."""
        if isinstance(statement, str):
            return self._run(postgresql.translate_statement(statement), params)
        if not self._queue or not isinstance(statement, sa.Select):
            return super().query(statement)
        names = SimpleResultMetaData(statement.selected_columns.keys())
        return list(IteratorResult(names, iter(self.fetch(statement))).fetchall())

    def query_all(self, *questions: tuple[Any, ...], last: bool = False) -> list[list[Any]]:
        """Run several plain statements in one round trip; `last` also ends the transaction."""
        translated = [
            (postgresql.translate_statement(statement), params) for statement, *params in questions
        ]
        closing = [(self._closing, ())] if last else []
        return self._send(*translated, *closing)[: len(questions)]

    def execute(self, statement: str | sa.Executable, *params: Any) -> None:
        """Queue a statement; the next statement sends it, and raises its errors."""
        self._is_queued = True
        if isinstance(statement, str):
            self._queue.append((postgresql.translate_statement(statement), params))
        else:
            self._has_executed = True
            self._queue.append(self._compile(statement))

    def require(self, missing: Callable[[], Exception], statement: str, *params: Any) -> None:
        """Queue a plain statement; if it returns no row, the next statement raises `missing()`."""
        self._required.append((len(self._queue), missing))
        self._queue.append((postgresql.translate_statement(statement), params))

    def execute_many(self, statement: str, rows: Any) -> int:
        """Run a plain statement once per row of parameters; return the number of affected rows."""
        with self.driver.cursor() as cursor:
            cursor.executemany(postgresql.translate_statement(statement), list(rows))
            return max(0, cursor.rowcount)

    def _run(self, statement: str, params: Any) -> list[Any]:
        return self._send((statement, params))[0]

    def _send(self, *statements: tuple[str, Any]) -> list[list[Any]]:
        """Send the queued and then these statements in one round trip; return the rows of these."""
        everything = [*self._queue, *statements]
        if not everything:
            return []
        fresh, put_off = self._fresh, len(self._queue)
        self._fresh, self._queue = False, []
        required, self._required = self._required, []
        try:
            return _check_required(self._trip(everything), required)[put_off:]
        except psycopg.OperationalError as error:
            if self._driver.closed and everything[-1][0] == "COMMIT":
                raise self._commit_unknown(error) from errors.log_cause(error)
            if not fresh or not self._driver.closed or not self._closing:
                raise
        # The server has restarted since the last use of this connection. Nothing has happened in
        # this transaction yet.
        self._connection = self._another(self._connection)
        self._driver = self._connection.connection.driver_connection
        self._pool = self._connection.engine.pool
        return _check_required(self._trip(everything), required)[put_off:]

    def _trip(self, statements: list[tuple[str, Any]]) -> list[list[Any]]:
        if len(statements) == 1:
            cursors = [self._driver.execute(*statements[0])]
        else:
            try:
                with self._driver.pipeline():
                    cursors = [
                        self._driver.execute(statement, params) for statement, params in statements
                    ]
            except psycopg.Error as error:
                # After an interrupt, the driver cannot leave the pipeline, and reports only this
                # problem.
                interrupt = _interrupt_before(error)
                if interrupt is None:
                    raise
                raise interrupt from None
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return (
            not self._driver.closed
            and self._driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        )

    def end(self) -> bool:
        """End the transaction with its closing statement; return whether a transaction had begun.

        Raise CommitUnknown if the connection was lost during the commit.
        """
        if self._fresh and not self._is_queued:
            return False
        # Send queued statements before the commit: they may be sent again on another connection,
        # and if the connection is lost before the commit is sent, the outcome is known.
        if self._fresh or (self._has_executed and not self.is_repeated):
            self._send()
        if self.in_transaction:
            self._send((self._closing, ()))
        return True

    def _commit_unknown(self, error: psycopg.Error) -> errors.CommitUnknown:
        """Return the error for a connection that was lost during the commit."""
        return errors.CommitUnknown(
            f"the connection to {self._location} was lost during the commit "
            f"({first_line(error)}); check whether the change was stored before you repeat it"
        )

    def abandon(self, is_interrupted: bool) -> None:
        """Roll back; close a connection after an interrupt, or if it has a running statement.

        A further statement on that connection would wait for a result that never comes.
        """
        if not self._driver.closed and (
            is_interrupted
            or self._driver.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF
            or self._driver.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
        ):
            self._driver.close()
        if self.in_transaction:
            with suppress(psycopg.Error):  # the first error is the one to raise
                self._driver.execute("ROLLBACK")

    def release(self, unlock: bool) -> None:
        """Return the connection to the pool, or discard it if it is not usable.

        `unlock` releases advisory locks: a user's statement may have taken them, and ROLLBACK keeps
        them.
        """
        if self._connection.closed:  # the connection was dead, and no other could be opened
            return
        if unlock and not self._driver.closed:
            self._driver.execute("SELECT pg_advisory_unlock_all()")
        is_disposed = self._connection.engine.pool is not self._pool  # the handle was closed
        if is_disposed or self._driver.closed or self.in_transaction:
            self._connection.invalidate()
        self._connection.close()


def _check_required(
    answers: list[list[Any]], required: list[tuple[int, Callable[[], Exception]]]
) -> list[list[Any]]:
    """Return the answers; raise the error of the first required statement without a row."""
    for place, missing in required:
        if not answers[place]:
            raise missing()
    return answers


def _interrupt_before(error: BaseException) -> BaseException | None:
    """Return the interrupt that was being handled when an error was raised, or None."""
    before = error.__context__
    while before is not None and isinstance(before, Exception):
        before = before.__context__
    return before


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
            return examine_server(session)

    def backup(self, target: str) -> None:
        """Raise an error, because PostgreSQL has its own backup tool."""
        raise errors.InvalidValue(
            "backup() copies only database files; use pg_dump --schema=expdb for PostgreSQL, or "
            "`expdb copy` to a file"
        )

    def vacuum(self) -> None:
        """Raise an error, because PostgreSQL reuses free space by itself."""
        raise errors.InvalidValue(
            "vacuum() requires an SQLite file; on PostgreSQL, autovacuum makes free space reusable"
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
