"""Connections to a PostgreSQL server.

There is a pool, snapshots for readers, and as few round trips as the work allows.

The connections are in autocommit mode, and transactions are begun and ended by statements of ours:
so they can travel with the first and the last question of a transaction instead of taking trips of
their own.
"""

import os
import select
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import psycopg
import sqlalchemy as sa

from expdb import errors
from expdb.sql.dialects.base import Finding
from expdb.sql.dialects.postgresql import statements as postgresql
from expdb.sql.dialects.postgresql.arrays import ArrayDumper
from expdb.sql.dialects.postgresql.examine import examined
from expdb.sql.dialects.postgresql.translate import connect_error, first_line, translated
from expdb.sql.engine import Engine
from expdb.sql.session import Session, Transaction

POOL, OVERFLOW = 8, 56
# a connection idle for longer is asked whether it still lives, as firewalls forget silently
IDLE_SECONDS = 60.0

READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# whatever the default: stricter levels fail where writers meet
WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


class BinaryCursor(psycopg.Cursor[Any]):
    """A cursor that has results sent in binary: three times as fast to read as text."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.format = psycopg.pq.Format.BINARY


class PostgresqlSession(Session):
    """A session that puts off what nobody waits for.

    It travels with the next question, in one round trip.

    So does the beginning of the transaction.
    """

    def __init__(
        self,
        engine: "PostgresqlEngine",
        connection: sa.Connection,
        opening: Sequence[str],
        closing: str,
    ):
        super().__init__(connection)
        self._engine, self._closing = engine, closing
        self._queue: list[tuple[str, Any]] = [(statement, ()) for statement in opening]
        self._fresh = True  # nothing has been sent yet

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

    def ask(self, statement: str, *params: Any) -> list[Any]:
        """Run a plain statement and fetch all rows."""
        return self._run(postgresql.translated_statement(statement), params)

    def ask_all(self, *questions: tuple[Any, ...], last: bool = False) -> list[list[Any]]:
        """Run several plain statements in one round trip; `last` ends the transaction too."""
        translated = [
            (postgresql.translated_statement(statement), params) for statement, *params in questions
        ]
        closing = [(self._closing, ())] if last else []
        return self._send(*translated, *closing)[: len(questions)]

    def tell(self, statement: str, *params: Any) -> None:
        """Run a plain statement before the next one; an error in it is raised there."""
        self._queue.append((postgresql.translated_statement(statement), params))

    def many(self, statement: str, rows: Any) -> int:
        """Run a plain statement once a row of parameters.

        Return how many rows of tables it touched.
        """
        with self.driver.cursor() as cursor:
            cursor.executemany(postgresql.translated_statement(statement), list(rows))
            return max(0, cursor.rowcount)

    def _run(self, statement: str, params: Any) -> list[Any]:
        return self._send((statement, params))[0]

    def _send(self, *statements: tuple[str, Any]) -> list[list[Any]]:
        """Run statements, and before them what was put off, in one round trip."""
        everything = [*self._queue, *statements]
        if not everything:
            return []
        fresh, put_off = self._fresh, len(self._queue)
        self._fresh, self._queue = False, []
        try:
            return self._trip(everything)[put_off:]
        except psycopg.OperationalError:
            if not fresh or not self._driver.closed or not self._closing:
                raise
        # The server was restarted since this connection was used last. Nothing has happened in this
        # transaction yet.
        self._connection = self._engine.another_connection(self._connection)
        self._driver = self._connection.connection.driver_connection
        return self._trip(everything)[put_off:]

    def _trip(self, statements: list[tuple[str, Any]]) -> list[list[Any]]:
        if len(statements) == 1:
            cursors = [self._driver.execute(*statements[0])]
        else:
            with self._driver.pipeline():
                cursors = [
                    self._driver.execute(statement, params) for statement, params in statements
                ]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return (
            not self._driver.closed
            and self._driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        )

    def end(self) -> bool:
        """End the transaction as it is to be ended, and return whether one was begun.

        Raises CommitUnknown where nobody can tell how it ended.
        """
        if self._fresh:
            return False
        if self.in_transaction:
            try:
                self._send((self._closing, ()))
            except psycopg.OperationalError as error:
                if self._closing == "COMMIT" and self._driver.closed:
                    raise errors.CommitUnknown(
                        f"{self._engine.location} was lost during the commit "
                        f"({first_line(error)}): "
                        "look whether it has happened before you do it again"
                    ) from error
                raise
        return True

    def abandon(self) -> None:
        """Roll back."""
        if self.in_transaction:
            with suppress(psycopg.Error):  # the first error is the one to tell
                self._driver.execute("ROLLBACK")

    def release(self, unlock: bool) -> None:
        """Give the connection back to the pool.

        It is thrown away if it cannot be used again.

        `unlock` lets go of advisory locks, which a statement of a user may have taken and no
        ROLLBACK returns.
        """
        if self._connection.closed:  # it was found dead, and there was no other to be had
            return
        if unlock and not self._driver.closed:
            self._driver.execute("SELECT pg_advisory_unlock_all()")
        if self._driver.closed or self.in_transaction:
            self._connection.invalidate()
        self._connection.close()


class PostgresqlTransaction(Transaction):
    """A transaction on a connection of the pool."""

    _session: PostgresqlSession | None = None  # before it was made, too: that may be interrupted

    def __init__(
        self, engine: "PostgresqlEngine", opening: Sequence[str], closing: str, unlock: bool = False
    ):
        self._engine, self._opening, self._closing, self._unlock = engine, opening, closing, unlock

    def _begin(self) -> Session:
        engine = self._engine
        self._session = session = PostgresqlSession(
            engine, engine.connect(), self._opening, self._closing
        )
        return session

    def _end(self) -> None:
        assert self._session is not None
        self.committed = self._session.end() and self._closing == "COMMIT"

    def _undo(self, error: BaseException | None) -> None:
        session = self._session
        if session is None:
            return
        session.abandon()
        if self._closing != "ROLLBACK":
            self._engine.count_commit()
        self._session = None  # before it is given back, which must not be done twice
        session.release(self._unlock)

    def _translated(self, error: BaseException) -> BaseException:
        return translated(getattr(error, "orig", None) or error, self._engine.location)


class PostgresqlEngine(Engine):
    """All connections of one handle to one database of a server."""

    def __init__(
        self, url: sa.URL, *, read_only: bool, durability: str, timeout: float, max_lag: float = 0.1
    ):
        self.dialect, self.max_lag = postgresql, max_lag
        self._commits = 0  # of this process
        shown = {name: "***" if "password" in name else value for name, value in url.query.items()}
        self.location = url.set(drivername="postgresql", query=shown).render_as_string(
            hide_password=True
        )
        self.read_only, self.timeout = read_only, timeout
        self._closed = False
        milliseconds = max(1, int(timeout * 1000))
        path = "SELECT set_config('search_path', 'expdb, pg_temp', true)"
        limits = (
            "SELECT set_config('search_path', 'expdb, pg_temp', true), set_config('lock_timeout', "
            "'{}', true), "
            # One who holds the writers' lock and says no more should not hold it for ever. (Best
            # effort: the server does not start this clock when the last thing it got was a
            # pipeline.)
            f"set_config('idle_in_transaction_session_timeout', '{max(milliseconds, 60_000)}', "
            "true), "
            "CASE WHEN current_setting('synchronous_commit') = 'off' THEN "
            "set_config('synchronous_commit', 'on', true) END"
        )
        self._reading, self._limits = (READING, path), limits
        self._sql = (
            # read-only before the statement: see run_sql
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
            "SELECT set_config('search_path', 'expdb, public, pg_temp', true), "
            f"set_config('statement_timeout', '{milliseconds}', true)",
        )
        self._connections = self._sqlalchemy_engine(url)
        weakref.finalize(
            self, self._connections.dispose
        )  # a handle that is dropped without being closed
        _engines.add(self)

    def _sqlalchemy_engine(self, url: sa.URL) -> sa.Engine:
        seconds = max(2, int(self.timeout))
        network: dict[str, Any] = {
            "connect_timeout": seconds, "keepalives_idle": max(1, seconds // 2),
            "keepalives_interval": max(1, seconds // 6),
            "keepalives_count": 3, "tcp_user_timeout": seconds * 1000, "application_name": "expdb",
        }  # fmt: skip
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            pool_size=POOL, max_overflow=OVERFLOW, pool_timeout=self.timeout, pool_use_lifo=True,
            use_native_hstore=False,
            # No prepared statements: PgBouncer hands each transaction to another server process.
            connect_args={
                **{name: value for name, value in network.items() if name not in url.query},
                "prepare_threshold": None, "cursor_factory": BinaryCursor,
            },
        )  # fmt: skip
        sa.event.listen(
            engine, "connect", _greet, insert=True
        )  # before SQLAlchemy looks at the server itself
        sa.event.listen(engine, "checkout", _check_alive)
        sa.event.listen(engine, "checkin", _note_time)
        return engine

    # -- sessions ----------------------------------------------------------------------------------

    def connect(self) -> sa.Connection:
        """Return a connection of the pool."""
        if self._closed:
            raise errors.DatabaseClosed(
                f"{self.location} was closed: open it again with expdb.open"
            )
        try:
            return self._connections.connect()
        except sa.exc.TimeoutError as error:
            raise errors.DatabaseBusy(
                f"{self.location}: every connection of this process is in use: use fewer threads"
            ) from error
        except sa.exc.DBAPIError as error:
            raise self._told(connect_error(error.orig or error, self.location), error) from error

    def another_connection(self, dead: sa.Connection) -> sa.Connection:
        """Return a new connection for one that was found dead, and forget all that are as old."""
        dead.invalidate()
        dead.close()
        self._connections.dispose()
        return self.connect()

    @staticmethod
    def _told(translated: BaseException, error: BaseException) -> BaseException:
        return translated if isinstance(translated, errors.ExpDBError) else error

    def reading(self) -> Transaction:
        """Return a context in which everything read is one snapshot."""
        return PostgresqlTransaction(self, self._reading, "ROLLBACK")

    def sql(self) -> Transaction:
        """Return a context with a connection that cannot write whatever it is told."""
        return PostgresqlTransaction(self, self._sql, "ROLLBACK", unlock=True)

    def writing(self, timeout: float | None = None) -> Transaction:
        """Return a context with a transaction.

        It commits when the block is left, and rolls back when that raises.
        """
        self._refuse_to_write_read_only()
        milliseconds = max(
            1, int(1000 * (self.timeout if timeout is None else timeout))
        )  # 0 would wait for ever
        return PostgresqlTransaction(self, (WRITING, self._limits.format(milliseconds)), "COMMIT")

    def appending(self) -> Transaction:
        """Return a context for one statement that is a transaction by itself."""
        self._refuse_to_write_read_only()
        return PostgresqlTransaction(self, (), "")

    def _refuse_to_write_read_only(self) -> None:
        if self.read_only:
            raise errors.DatabaseReadOnly(
                f"{self.location} was opened with read_only=True: open it without to write"
            )

    def count_commit(self) -> None:
        """Note that this process may have written."""
        self._commits += 1

    def changed_since(self, seen: object) -> object | None:
        """Return what stands for the database as it is now.

        None if what was `seen` is not older than `max_lag`.

        To ask takes a round trip. Not LISTEN and NOTIFY: a commit that notifies takes a lock which
        all such commits share, and a pooler that hands every transaction to another server process
        knows no listeners.
        """
        now = time.monotonic()
        if isinstance(seen, tuple) and seen[0] == self._commits and now - seen[1] < self.max_lag:
            return None
        return self._commits, now

    # -- the rest ----------------------------------------------------------------------------------

    def nbytes(self) -> int:
        """Return how much room the tables and indexes of the schema take."""
        with self.reading() as session:
            ((size,),) = session.ask(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
                "WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'r'"
            )
        return int(size)

    def examine(self) -> list[Finding]:
        """Return what the server is, and who is at it."""
        with self.reading() as session:
            return examined(session)

    def backup(self, target: str) -> None:
        """Raise: the server has its own tool."""
        raise errors.InvalidValue(
            "backup copies files: use pg_dump --schema=expdb for PostgreSQL, or `expdb copy` to a "
            "file"
        )

    def release(self) -> None:
        """Close the connections that nobody uses; others are made when they are needed."""
        self._connections.dispose()

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        self._connections.dispose()
        _engines.discard(self)

    def forget_connections(self) -> None:
        """Leave the parent its connections, in a forked child.

        New ones are made as they are needed.
        """
        self._connections.dispose(close=False)


def _greet(driver: Any, record: Any) -> None:
    """Refuse a server that is too old, and a database that cannot hold every text."""
    try:
        record.info["used"] = time.monotonic()
        driver.adapters.register_dumper(np.ndarray, ArrayDumper)
        version = driver.info.server_version
        if version < postgresql.MINIMUM_VERSION:
            raise errors.ServerTooOld(
                f"the server is PostgreSQL {version // 10_000}: expdb works with "
                f"{postgresql.MINIMUM_VERSION // 10_000} or newer"
            )
        if driver.info.parameter_status("server_encoding") not in ("UTF8", None):
            raise errors.NotAnExperienceDatabase(
                "the database is not in UTF-8: make one with createdb --encoding=UTF8 "
                "--template=template0"
            )
    except BaseException:
        driver.close()
        raise


def _check_alive(driver: Any, record: Any, proxy: Any) -> None:
    """Have a connection replaced if the server has hung up meanwhile.

    Looking at the socket takes no round trip, and tells of every server that was stopped or
    restarted: it has said good-bye, which nobody has read. Only after a long pause, when a firewall
    may have forgotten the connection, is it asked.
    """
    alive = not _readable(driver.fileno())
    if alive and time.monotonic() - record.info.get("used", 0.0) > IDLE_SECONDS:
        try:
            driver.execute("SELECT 1")
        except psycopg.Error:
            alive = False
    if not alive:
        raise sa.exc.DisconnectionError


def _readable(socket: int) -> bool:
    """Return whether there is something to read at this moment."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()  # select() takes no more than 1,024 files
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _note_time(driver: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


_engines: "weakref.WeakSet[PostgresqlEngine]" = weakref.WeakSet()


def _forked() -> None:
    for engine in list(_engines):
        engine.forget_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
