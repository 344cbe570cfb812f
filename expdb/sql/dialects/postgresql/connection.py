"""Connections to a server: opening, checks, errors, and the findings for `expdb doctor`."""

import logging
import select
import struct
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import psycopg
import sqlalchemy as sa
from psycopg.adapt import Dumper

from expdb import errors
from expdb.sql.dialects.base import Finding, finding
from expdb.sql.session import Session, share_compiled_statements

MINIMUM_VERSION = 150_000

_Meaning = tuple[type[errors.ExpDBError], str]

OUT_OF_DATE = errors.OutOfDate, "{message}"
BUSY = errors.DatabaseBusy, "{location}: {message}; try again"
DENIED = errors.AccessDenied, "{location}: {message}; check user and password"
MISSING = errors.DatabaseMissing, "{location}: {message}; create it with createdb"
NOT_WHOLE = (
    errors.DatabaseDamaged,
    "{location}: the schema expdb is incomplete ({message}); restore a backup",
)
TOO_LARGE = (
    errors.QueryError,
    "the query is too large ({message}); use in_() for long lists, or pass positions",
)
# By SQLSTATE (postgresql.org/docs, appendix "PostgreSQL Error Codes"): the error class and its
# message.
MEANINGS: dict[str, _Meaning] = {
    "XD001": OUT_OF_DATE,  # raised by the function `append`
    "XD002": (errors.RateLimited, "{message}"),
    "23505": OUT_OF_DATE,  # another episode has this name
    "55P03": (
        errors.DatabaseBusy,
        "{location} is locked by another writer; try again, or open it with a longer timeout",
    ),
    "40001": BUSY,
    "40P01": BUSY,
    "53100": (
        errors.StorageFull,
        "no space is left for {location}; free disk space and try again; no acknowledged write is "
        "lost",
    ),
    "53300": (
        errors.DatabaseBusy,
        "{location} has no free connection ({message}); raise max_connections, or use PgBouncer",
    ),
    "42501": (
        errors.AccessDenied,
        "{location}: {message}; run `expdb grant` as the owner of the schema, or connect as the "
        "owner for upgrades and index()",
    ),
    "42704": (errors.AccessDenied, "{location}: {message}; create the role with CREATE ROLE"),
    "25006": (
        errors.DatabaseReadOnly,
        "{location} cannot be written ({message}); connect to the primary server",
    ),
    "28P01": DENIED,
    "28000": DENIED,
    "3D000": MISSING,
    "42P01": NOT_WHOLE,
    "42883": NOT_WHOLE,
    "42703": NOT_WHOLE,
    "3F000": NOT_WHOLE,
    "22003": (
        errors.InvalidValue,
        "{message}; the rewards of an episode must have a finite sum",
    ),
    "54000": (
        errors.InvalidValue,
        "{message}; shorten group_id, task_id, episode_id or task_name to 2,000 bytes, or store "
        "the text in a field",
    ),
    "54001": TOO_LARGE,
    "54011": TOO_LARGE,
    "54023": TOO_LARGE,
}


def translated(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a driver's error, or the error itself if there is none."""
    if not isinstance(error, psycopg.Error):
        return error
    state, message = error.sqlstate or "", first_line(error)
    kind: type[errors.ExpDBError]
    if state in MEANINGS:
        kind, text = MEANINGS[state]
    elif "number of parameters" in message:
        kind, text = TOO_LARGE
    elif (
        state[:2] in ("08", "57")
        or (isinstance(error, psycopg.OperationalError) and not state)
        or state == "25P03"
    ):
        kind, text = (
            errors.ConnectionLost,
            (
                "{location}: {message}; nothing of this call was stored, try again when the server "
                "is reachable"
            ),
        )
    elif state[:2] == "XX":
        kind, text = errors.DatabaseDamaged, "{location}: {message}; restore a backup"
    else:
        return error
    return kind(text.format(location=location, message=message))


def connect_error(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a connection that could not be opened.

    In this case, the driver reports no error code, only the server's message.
    """
    if not isinstance(error, psycopg.Error):
        return error
    message = first_line(error)
    if (
        "password" in message
        or "no pg_hba.conf entry" in message
        or "authentication" in message
        or ('role "' in message and "exist" in message)
    ):
        return errors.AccessDenied(
            f"{location}: {message}; check user and password in the URL, or PGPASSWORD"
        )
    if 'database "' in message and "does not exist" in message:
        return errors.DatabaseMissing(f"{location}: {message}; create it with createdb")
    if "too many" in message or "remaining connection slots" in message:
        return errors.DatabaseBusy(
            f"{location}: {message}; raise max_connections, or put PgBouncer in front of the server"
        )
    if "permission denied" in message:
        return errors.AccessDenied(
            f"{location}: {message}; run GRANT CONNECT on the database for this user"
        )
    return errors.ConnectionLost(
        f"{location} cannot be reached ({message}); check host and port, and that the server runs"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of a server's or driver's message, without its prefix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    return message.split("FATAL:")[-1].strip() if "FATAL:" in message else message


class ArrayDumper(Dumper):
    """Send a 1-D NumPy array of int64 or float64 as a PostgreSQL array.

    Sending 64 numbers takes 4 us as an array, and 40 us as a list.
    """

    format = psycopg.pq.Format.BINARY
    element = 0
    pairs: Any = None

    def get_key(self, obj: np.ndarray, format: Any) -> Any:
        """Return the key under which psycopg caches the dumper."""
        return self.cls, obj.dtype.kind

    def upgrade(self, obj: np.ndarray, format: Any) -> Dumper:
        """Return the dumper of an array's dtype."""
        return (FloatsDumper if obj.dtype.kind == "f" else IntegersDumper)(self.cls)

    def dump(self, obj: np.ndarray) -> bytes:
        """Return the array in PostgreSQL's binary format.

        The format is a header, followed by the size and the value of each element.
        """
        pairs = np.empty(len(obj), self.pairs)
        pairs["size"], pairs["value"] = 8, obj
        return struct.pack(">5i", 1, 0, self.element, len(obj), 1) + pairs.tobytes()


class IntegersDumper(ArrayDumper):
    """Send arrays of int64."""

    oid, element, pairs = 1016, 20, np.dtype([("size", ">i4"), ("value", ">i8")])


class FloatsDumper(ArrayDumper):
    """Send arrays of float64."""

    oid, element, pairs = 1022, 701, np.dtype([("size", ">i4"), ("value", ">f8")])


# After an error that expdb raises, psycopg may log others. Without a handler, Python prints them.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

MAX_IDLE, MAX_CONNECTIONS = 8, 64
PAUSE_SECONDS = 0.005  # between two attempts to get a connection from the pool
# Longer idle connections are tested with a query, because firewalls drop connections silently.
IDLE_SECONDS = 60.0


class BinaryCursor(psycopg.Cursor[Any]):
    """A cursor that receives results in binary, which is three times as fast to read as text."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.format = psycopg.pq.Format.BINARY


class _Place:
    """A place in the pool, which exists as long as its connection."""


class ConnectionPool(sa.Pool):
    """A pool of connections to a server; the connection that became idle last is used first.

    The pool needs no lock, because the methods of a deque are atomic. An interrupt inside
    SQLAlchemy's `QueuePool` can leave its queue locked, so that every later call waits forever.
    """

    def __init__(self, creator: Any, timeout: float = 30.0, **options: Any):
        super().__init__(creator, **options)
        self._timeout = timeout
        self._idle: deque[sa.pool.ConnectionPoolEntry] = deque()
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()

    def _do_get(self) -> sa.pool.ConnectionPoolEntry:
        deadline = time.monotonic() + self._timeout
        while True:
            with suppress(IndexError):
                return self._idle.pop()
            self._places.add(place := _Place())  # before the connection is opened
            if len(self._places) <= MAX_CONNECTIONS:
                record = self._create_connection()
                record.record_info["place"] = place  # type: ignore[index]
                return record
            del place
            if time.monotonic() >= deadline:
                raise sa.exc.TimeoutError(f"all {MAX_CONNECTIONS} connections are in use")
            time.sleep(PAUSE_SECONDS)

    def _do_return_conn(self, record: sa.pool.ConnectionPoolEntry) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(record)
        else:
            self._close(record)

    def _close(self, record: sa.pool.ConnectionPoolEntry) -> None:
        record.record_info.clear()  # type: ignore[union-attr]
        record.close()

    def dispose(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def recreate(self) -> "ConnectionPool":
        """Return an empty pool with the same options."""
        return ConnectionPool(
            self._creator, timeout=self._timeout, recycle=self._recycle, echo=self.echo,
            logging_name=self._orig_logging_name, reset_on_return=self._reset_on_return,
            _dispatch=self.dispatch, dialect=self._dialect,
        )  # fmt: skip


def create_pool(url: sa.URL, timeout: float) -> sa.Engine:
    """Return a pool of connections that are checked before use."""
    seconds = max(2, int(timeout))
    network: dict[str, Any] = {
        "connect_timeout": seconds, "keepalives_idle": max(1, seconds // 2),
        "keepalives_interval": max(1, seconds // 6),
        "keepalives_count": 3, "tcp_user_timeout": seconds * 1000, "application_name": "expdb",
    }  # fmt: skip
    engine = sa.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        poolclass=ConnectionPool, pool_timeout=timeout, use_native_hstore=False,
        # No prepared statements: PgBouncer may run each transaction in another server process.
        connect_args={
            **{name: value for name, value in network.items() if name not in url.query},
            "prepare_threshold": None, "cursor_factory": BinaryCursor,
        },
    )  # fmt: skip
    # `insert=True` calls `_greet` before SQLAlchemy queries the server itself.
    sa.event.listen(engine, "connect", _greet, insert=True)
    sa.event.listen(engine, "checkout", _check_alive)
    sa.event.listen(engine, "checkin", _note_time)
    return share_compiled_statements(engine, url.set(database=None))


def _greet(driver: Any, record: Any) -> None:
    """Register adapters; refuse an old server, or a database with an unsuitable encoding."""
    try:
        record.info["used"] = time.monotonic()
        driver.adapters.register_dumper(np.ndarray, ArrayDumper)
        version = driver.info.server_version
        if version < MINIMUM_VERSION:
            raise errors.ServerTooOld(
                f"the server is PostgreSQL {version // 10_000}, but expdb requires "
                f"{MINIMUM_VERSION // 10_000} or newer; upgrade the server"
            )
        if driver.info.parameter_status("server_encoding") not in ("UTF8", None):
            raise errors.NotAnExperienceDatabase(
                "the database is not encoded in UTF-8; create another database with createdb "
                "--encoding=UTF8 --template=template0"
            )
    except BaseException:
        driver.close()
        raise


def _check_alive(driver: Any, record: Any, proxy: Any) -> None:
    """Raise DisconnectionError if a connection is not usable; the pool then replaces it.

    An interrupt may have left a transaction open, or the server may have closed the connection.
    Checking the socket takes no round trip, and detects every server that was stopped or restarted,
    because its last message is unread. Only after `IDLE_SECONDS`, when a firewall may have dropped
    the connection, a query tests it.
    """
    alive = driver.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
    alive = alive and not _readable(driver.fileno())
    if alive and time.monotonic() - record.info.get("used", 0.0) > IDLE_SECONDS:
        try:
            driver.execute("SELECT 1")
        except psycopg.Error:
            alive = False
    if not alive:
        raise sa.exc.DisconnectionError


def _readable(socket: int) -> bool:
    """Return whether the socket has something to read at this moment."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()  # select() supports only 1,024 files
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def _note_time(driver: Any, record: Any) -> None:
    record.info["used"] = time.monotonic()


def examine_server(session: Session) -> list[Finding]:
    """Return findings about a server, each with its value and the solution to a problem."""
    start = time.monotonic()
    session.query("SELECT 1")
    trip = time.monotonic() - start
    names = ("server_version", "fsync", "synchronous_commit", "max_connections", "server_encoding")
    settings = dict(
        session.query("SELECT name, setting FROM pg_settings WHERE name = ANY(?)", list(names))
    )
    return [
        *_server(session, settings),
        *_users(session, int(settings["max_connections"])),
        _tables(session),
        finding("encoding", settings["server_encoding"]),
        finding(
            "a round trip",
            f"{trip * 1000:.2f} ms",
            trip > 0.02,
            "takes more than 20 ms; write more steps per call with store_batch() or a writer",
        ),
    ]


def _server(session: Session, settings: dict[str, str]) -> list[Finding]:
    ((in_recovery,),) = session.query("SELECT pg_is_in_recovery()")
    return [
        finding("PostgreSQL", settings["server_version"]),
        finding(
            "role",
            "replica" if in_recovery else "primary",
            in_recovery,
            "is a replica, where commits appear late and in another order; open the primary",
        ),
        finding(
            "fsync",
            settings["fsync"],
            settings["fsync"] != "on",
            "is off, so a crash of the machine may lose the whole database; turn it on",
        ),
        finding(
            "synchronous_commit",
            settings["synchronous_commit"],
            settings["synchronous_commit"] == "off",
            "is off, so a crash of the server loses the last 0.6 s of acknowledged writes; turn "
            "it on",
        ),
    ]


def _users(session: Session, most: int) -> list[Finding]:
    ((used, waiting, oldest, who),) = session.query(
        "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock'), "
        "coalesce(max(extract(epoch FROM now() - xact_start)) FILTER (WHERE pid <> "
        "pg_backend_pid()), 0)::float8, "
        "(array_agg(pid || ' (' || coalesce(application_name, '') || ', ' || coalesce(state, '') "
        "|| ')' ORDER BY xact_start) "
        "FILTER (WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()))[1] "
        "FROM pg_stat_activity WHERE datname = current_database()"
    )
    ((connections,),) = session.query(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    return [
        finding(
            "connections",
            f"{connections} of {most}, {used} of them here",
            connections > 0.9 * most,
            "nearly all are in use; raise max_connections, or put PgBouncer in front of the server",
        ),
        finding(
            "waiting for locks",
            str(waiting),
            waiting > 10,
            "more than 10 transactions wait for locks; write more steps per transaction, or use "
            "several buffers",
        ),
        finding(
            "longest transaction",
            f"{oldest:.1f} s" + (f", process {who}" if who and oldest >= 1 else ""),
            oldest > 600,
            "prevents the removal of dead rows; end it, or set idle_in_transaction_session_timeout",
        ),
    ]


def _tables(session: Session) -> Finding:
    ((dead, live, size),) = session.query(
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint, "
        "coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables WHERE "
        "schemaname = 'expdb'"
    )
    return finding(
        "tables",
        f"{size:,} bytes, {live:,} rows, {dead:,} dead",
        dead > 4 * live and dead > 1_000_000,
        "mostly dead rows; check that autovacuum is on and not blocked",
    )
