"""A session on a connection to a server, with as few round trips as possible."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData

from expdb import errors
from expdb.sql.dialects.postgresql import statements as postgresql
from expdb.sql.dialects.postgresql.translate import first_line
from expdb.sql.session import Session


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
