"""The ledger: one row per leased batch, with its status.

Every change locks the row of the consumer, so leases of one consumer are made one after another.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb import errors
from expdb.sql.session import Session
from expdb.sql.tables import active_lease_condition
from expdb.storage.ledger.consumers import ConsumerRecord, is_dropped
from expdb.storage.ledger.encoding import (
    LeasedItems,
    bounds,
    crc_of,
    damaged,
    pack_columns,
    pack_positions,
    unpack_positions,
)
from expdb.storage.ledger.pins import update_pins
from expdb.storage.store import Store

log = logging.getLogger(__name__)

_CHANGED = (
    "SELECT id, number, status, holder, expires, request, positions, columns, crc FROM leases "
    "WHERE buffer_id = ? AND consumer = ? "
)
_INSERT = (
    "INSERT INTO leases (buffer_id, consumer, id, number, status, request, holder, leased, "
    "expires, policy_version, rows, first, last, positions, columns, checksum, crc, pinned) "
    "VALUES (?, ?, ?, ?, 'leased', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_COUNT = (
    "UPDATE consumers SET version = version + 1, handed_out = ?, begun = ? "
    "WHERE buffer_id = ? AND id = ?"
)
_REPEATED = "UPDATE leases SET status = 'repeated' WHERE buffer_id = ? AND consumer = ? AND id = ?"


@dataclass(frozen=True)
class Counters:
    """A consumer's counters and the current time, read while its row is locked."""

    version: int
    handed_out: int
    begun: int
    now: float
    policy_version: int | None  # of the buffer
    rate_limiter: str | None  # of the buffer, JSON
    rewinds: int
    policy_versions: str | None  # of single agents, JSON


@dataclass(frozen=True)
class LeaseRow:
    """A row of the ledger with the columns that decide which steps may be leased."""

    id: int
    number: int
    status: str
    holder: str
    expires: float
    request: int
    drawn: LeasedItems


_WHOLE = ("Episode", "Group", "Pairs")  # units whose leases name episodes by their first steps


def names_episodes(unit: Any) -> bool:
    """Return whether leases of a unit name an episode by its first step.

    `unit` contains the settings of the unit, as in a request.
    """
    settings = dict(unit or {})
    while isinstance(settings.get("of"), Mapping):  # for example Tokens(of=Group(8))
        settings = dict(settings["of"])
    return settings.get("name") in _WHOLE


def lock_consumer(store: Store, session: Session, consumer: ConsumerRecord) -> Counters:
    """Lock a consumer, so that no other transaction changes its leases; return its counters."""
    rows = session.query(*_lock_statement(store, consumer))
    if not rows:
        raise _dropped_error(store, session, consumer)
    return Counters(*rows[0])


def _lock_statement(store: Store, consumer: ConsumerRecord) -> tuple[Any, ...]:
    dialect = store.dialect
    statement = (
        f"SELECT version, handed_out, begun, {dialect.NOW}, "
        "(SELECT policy_version FROM buffers WHERE id = c.buffer_id), "
        "(SELECT rate_limiter FROM buffers WHERE id = c.buffer_id), rewinds, "
        "(SELECT policy_versions FROM buffers WHERE id = c.buffer_id) FROM consumers c "
        f"WHERE buffer_id = ? AND id = ? AND name = ?{dialect.FOR_UPDATE}"
    )
    return statement, store.id, consumer.id, consumer.name


def lock_and_acknowledge(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    id: int,
    holder: str,
    step: int | None,
) -> tuple[Counters, int | None]:
    """Lock a consumer and acknowledge a lease without pins, in one round trip.

    Return the counters before the acknowledgement and the consumer's version after it. The version
    is None if `holder` does not hold the lease.
    """
    statement = store.dialect.ACKNOWLEDGE
    assert statement is not None
    key = store.id, consumer.id
    counter_rows, version_rows = session.query_all(
        _lock_statement(store, consumer), (statement, step, *key, id, holder, step, *key)
    )
    if not counter_rows:
        raise _dropped_error(store, session, consumer)
    return Counters(*counter_rows[0]), int(version_rows[0][0]) if version_rows else None


def read_change_counters(
    store: Store, consumer: ConsumerRecord, seen: list[int] | None, seconds: float
) -> list[int]:
    """Return numbers that change whenever a consumer may be able to lease more steps.

    On PostgreSQL, wait up to `seconds` until the numbers differ from `seen`. On SQLite, read them
    once.
    """
    wait, key = store.dialect.WAIT_FOR_CHANGE, (store.id, consumer.id)
    if wait is not None:
        with store.engine.appending() as session:
            ((numbers,),) = session.query(wait, *key, seen or [], seconds)
            if numbers is None:
                raise _dropped_error(store, session, consumer)
            return list(numbers)
    with store.engine.reading() as session:
        rows = session.query(
            "SELECT c.version, b.added, b.low, b.deleted, b.revision, b.priorities, "
            "coalesce(b.policy_version, -1) FROM consumers c JOIN buffers b ON b.id = c.buffer_id "
            "WHERE c.buffer_id = ? AND c.id = ?",
            *key,
        )
    if not rows:
        raise _dropped_error(store, session, consumer)
    return list(rows[0])


def read_changed(
    store: Store, session: Session, consumer: ConsumerRecord, after: int, ids: Iterable[int]
) -> list[LeaseRow]:
    """Return the leases with an id above `after` or in `ids`, oldest first."""
    listed = store.dialect.as_list(np.array(sorted(ids), np.int64))
    rows = session.query(
        f"{_CHANGED} AND (id > ? OR id {store.dialect.AMONG}) ORDER BY id",
        store.id, consumer.id, after, listed,
    )  # fmt: skip
    return [_read(store, consumer, row) for row in rows]


def open_leases(store: Store, session: Session, consumer: ConsumerRecord) -> list[LeaseRow]:
    """Return the leases that have not ended, or were released and not drawn again yet."""
    where = "AND status IN ('leased', 'returned') ORDER BY id"
    rows = session.query(_CHANGED + where, store.id, consumer.id)
    return [_read(store, consumer, row) for row in rows]


def acknowledged(
    store: Store, session: Session, consumer: ConsumerRecord, oldest: int
) -> Iterator[LeaseRow]:
    """Yield the acknowledged leases that contain a position from `oldest` on."""
    where = "AND status = 'acknowledged' AND last >= ?"
    for row in session.iterate(_CHANGED + where, store.id, consumer.id, oldest):
        yield _read(store, consumer, row)


def _read(store: Store, consumer: ConsumerRecord, row: Any) -> LeaseRow:
    id, number, status, holder, expires, request, positions, columns, crc = row
    if crc_of(positions, columns, number, request) != crc:
        raise damaged(store.name, consumer.name, id, "checksum")
    try:
        drawn = unpack_positions(bytes(positions))
    except (ValueError, struct.error) as error:
        raise damaged(store.name, consumer.name, id, error) from error
    return LeaseRow(id, number, status, holder, expires, request, drawn)


def insert(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    counters: Counters,
    lease: LeaseRow,
    released: LeaseRow | None,
    checksum: int,
    pinned: int | None,
) -> None:
    """Insert a lease, and update the consumer's counters.

    `released` is the released lease with the same number, `checksum` is the checksum of the batch,
    and `pinned` is the first position to protect from eviction.
    """
    key, columns = (store.id, consumer.id), pack_columns(lease.drawn.columns)
    positions, (first, last) = pack_positions(lease.drawn), bounds(lease.drawn)
    begun = max(counters.begun, lease.number + 1)
    session.execute(_COUNT, counters.handed_out + 1, begun, *key)
    if released is not None:
        session.execute(_REPEATED, *key, released.id)
    session.execute(
        _INSERT, *key, lease.id, lease.number, lease.request, lease.holder, counters.now,
        lease.expires, counters.policy_version, len(lease.drawn.items), first, last, positions,
        columns, checksum, crc_of(positions, columns, lease.number, lease.request), pinned,
    )  # fmt: skip


def release(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    ids: list[int],
    now: float,
    holder: str | None = None,
) -> list[int]:
    """Release the leases in `ids` that have not ended; return the ids of the released leases.

    With `holder`, release only leases of that process.
    """
    listed = store.dialect.as_list(np.array(ids, np.int64))
    rows = session.query(
        "UPDATE leases SET status = 'returned', ended = ? WHERE buffer_id = ? AND consumer = ? "
        f"AND id {store.dialect.AMONG} AND status = 'leased' AND holder = coalesce(?, holder) "
        "RETURNING id, pinned",
        now, store.id, consumer.id, listed, holder,
    )  # fmt: skip
    if rows:
        _count_change(store, session, consumer)
        if holder is None:
            message = (
                "buffer %r, consumer %r: releasing %d leases that expired or whose process ended"
            )
            log.warning(message, store.name, consumer.name, len(rows))
    if any(pinned is not None for _, pinned in rows):
        update_pins(store, session)
    return [id for id, _ in rows]


def acknowledge(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    id: int,
    holder: str,
    step: int | None,
) -> int | None:
    """Acknowledge a lease; return the consumer's version, or None if `holder` does not hold it."""
    now = store.dialect.NOW
    _queue_consumer_lock(store, session, consumer)
    rows = session.query(
        f"UPDATE leases SET status = 'acknowledged', ended = {now}, trainer_step = ?, "
        "acknowledged = (SELECT c.acknowledged FROM consumers c "
        "WHERE c.buffer_id = leases.buffer_id AND c.id = leases.consumer) "
        "WHERE buffer_id = ? AND consumer = ? AND id = ? AND holder = ? "
        f"AND {active_lease_condition(now)} RETURNING pinned",
        step, store.id, consumer.id, id, holder,
    )  # fmt: skip
    if not rows:
        return None
    if rows[0][0] is not None:
        update_pins(store, session)
    ((version,),) = session.query(
        "UPDATE consumers SET version = version + 1, acknowledged = acknowledged + 1, "
        "last_step = coalesce(?, last_step) WHERE buffer_id = ? AND id = ? RETURNING version",
        step, store.id, consumer.id,
    )  # fmt: skip
    return int(version)


def acknowledge_and_commit(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    id: int,
    holder: str,
    step: int | None,
) -> int | None:
    """Acknowledge a lease that pins nothing and end the transaction, in one round trip.

    Return the consumer's new version, or None if `holder` does not hold the lease.
    """
    statement = store.dialect.ACKNOWLEDGE
    assert statement is not None
    _queue_consumer_lock(store, session, consumer)
    key = store.id, consumer.id
    (rows,) = session.query_all((statement, step, *key, id, holder, step, *key), last=True)
    return int(rows[0][0]) if rows else None


def renew(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    id: int,
    holder: str,
    seconds: float,
) -> int | None:
    """Set a lease to expire `seconds` from now.

    Return the consumer's new version, or None if `holder` does not hold the lease.
    """
    now = store.dialect.NOW
    _queue_consumer_lock(store, session, consumer)
    rows = session.query(
        f"UPDATE leases SET expires = {now} + ? WHERE buffer_id = ? AND consumer = ? AND id = ? "
        f"AND holder = ? AND {active_lease_condition(now)} RETURNING id",
        seconds, store.id, consumer.id, id, holder,
    )  # fmt: skip
    return _count_change(store, session, consumer) if rows else None


def _queue_consumer_lock(store: Store, session: Session, consumer: ConsumerRecord) -> None:
    """Queue a lock on the consumer's row: every transaction locks this row before its leases."""
    if not store.dialect.WRITES_ALONE:
        session.execute(
            f"SELECT id FROM consumers WHERE buffer_id = ? AND id = ?{store.dialect.FOR_UPDATE}",
            store.id, consumer.id,
        )  # fmt: skip


def _count_change(store: Store, session: Session, consumer: ConsumerRecord) -> int:
    ((version,),) = session.query(
        "UPDATE consumers SET version = version + 1 WHERE buffer_id = ? AND id = ? "
        "RETURNING version",
        store.id, consumer.id,
    )  # fmt: skip
    return int(version)


def status(store: Store, session: Session, consumer: ConsumerRecord, id: int) -> tuple[str, float]:
    """Return the status of a lease and the seconds since it expired, negative before that."""
    rows = session.query(
        f"SELECT status, {store.dialect.NOW} - expires FROM leases "
        "WHERE buffer_id = ? AND consumer = ? AND id = ?",
        store.id, consumer.id, id,
    )  # fmt: skip
    if not rows:
        counted = session.query(
            "SELECT handed_out FROM consumers WHERE buffer_id = ? AND id = ?", store.id, consumer.id
        )
        if not counted:
            raise _dropped_error(store, session, consumer)
        raise errors.LeaseLost(
            f"consumer {consumer.name!r} has no lease {id} and has created only {counted[0][0]} "
            "leases; pass the id of a lease of this consumer"
        )
    return rows[0][0], rows[0][1]


def lost_error(
    store: Store, session: Session, consumer: ConsumerRecord, id: int
) -> errors.LeaseLost:
    """Return the error for a lease that this process does not hold."""
    state, seconds_since_expiry = status(store, session, consumer, id)
    what = f"lease {id} of consumer {consumer.name!r}"
    if state == "acknowledged":
        return errors.LeaseLost(f"{what} was already acknowledged; lease another batch")
    if state == "leased" and seconds_since_expiry < 0:
        return errors.LeaseLost(
            f"{what} belongs to another process; acknowledge the lease in that process"
        )
    if seconds_since_expiry >= 0:
        return errors.LeaseLost(
            f"{what} expired {seconds_since_expiry:.1f} seconds ago, and its items may be leased "
            "again; pass more seconds to lease(), or renew the lease in time"
        )
    return errors.LeaseLost(f"{what} was released; lease another batch")


def _dropped_error(store: Store, session: Session, consumer: ConsumerRecord) -> errors.ExpDBError:
    """Return the error for a consumer that was dropped, alone or with its buffer."""
    if is_dropped(store, session):
        return store.dropped()
    return errors.UnknownConsumer(
        f"consumer {consumer.name!r} was dropped; create it again with buffer.consumer()"
    )


def request_id(text: str) -> int:
    """Return the id of a request: a hash, so that no counter must be locked."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def insert_request(store: Store, session: Session, id: int, text: str) -> None:
    """Insert a request, unless it is already stored."""
    session.execute(
        "INSERT INTO requests (buffer_id, id, request) VALUES (?, ?, ?) "
        "ON CONFLICT (buffer_id, id) DO NOTHING",
        store.id, id, text,
    )  # fmt: skip
