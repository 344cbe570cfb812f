"""Connections to a server: how they are opened, and whether they are still usable."""

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
from expdb.sql.dialects.postgresql import statements as postgresql
from expdb.sql.session import share_compiled_statements


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
        if version < postgresql.MINIMUM_VERSION:
            raise errors.ServerTooOld(
                f"the server is PostgreSQL {version // 10_000}, but expdb requires "
                f"{postgresql.MINIMUM_VERSION // 10_000} or newer; upgrade the server"
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
