"""Rows of the ledger with everything needed to rebuild their batches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from expdb.errors import DatabaseDamaged
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.encoding import (
    LeasedItems,
    bounds,
    crc_of,
    damaged,
    unpack_columns,
    unpack_positions,
)
from expdb.storage.ledger.lease_rows import request_id
from expdb.storage.store import Store

L, R = tables.leases.c, tables.requests.c


DISCARDED = "discarded"  # key of the requests of batches that were discarded without training


@dataclass(frozen=True)
class Entry:
    """A row of the ledger with everything needed to rebuild its batch."""

    id: int
    number: int
    status: str
    leased: float  # in Unix seconds
    expires: float  # in Unix seconds
    trainer_step: int | None
    request: dict[str, Any]
    checksum: int
    drawn: LeasedItems


def acknowledged(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    steps: set[int] | None,
    newest: int | None,
) -> list[int]:
    """Return the ids of acknowledged leases, in the order of acknowledgement.

    Discarded batches are left out. With `steps`, return only leases of these trainer steps. With
    `newest`, return at most this number of leases, the latest ones.
    """
    condition = sa.and_(
        L.buffer_id == store.id, L.consumer == consumer.id, L.status == "acknowledged"
    )
    if discards := find_discards(store, session):
        condition = sa.and_(condition, sa.not_(store.dialect.among(L.request, discards)))
    if steps is not None:
        condition = sa.and_(condition, store.dialect.among(L.trainer_step, sorted(steps)))
    ordered = sa.select(L.id).where(condition).order_by(L.acknowledged.desc()).limit(newest)
    return [id for (id,) in reversed(session.query(ordered))]


def find_discards(store: Store, session: Session) -> list[int]:
    """Return the ids of the requests of discarded batches."""
    pattern = store.dialect.like(R.request, f'%"{DISCARDED}": true%')
    rows = session.query(sa.select(R.id, R.request).where(R.buffer_id == store.id, pattern))
    return [row.id for row in rows if json.loads(row.request).get(DISCARDED) is True]


def count_discarded(store: Store, session: Session, consumer: ConsumerRecord) -> int:
    """Return how many different items of a consumer were discarded."""
    discards = find_discards(store, session)
    if not discards:
        return 0
    is_discard = sa.and_(store.dialect.among(L.request, discards), L.status == "acknowledged")
    items: set[int] = set()
    for entry in read_entries(store, session, consumer, is_discard):
        if isinstance(entry, DatabaseDamaged):
            raise entry
        items.update(entry.drawn.positions.reshape(len(entry.drawn.positions), -1)[:, 0].tolist())
    return len(items)


def find_acknowledged_range(
    store: Store, session: Session, consumer: ConsumerRecord
) -> tuple[int | None, int | None]:
    """Return the least and the greatest trainer step of the acknowledged leases."""
    condition = sa.and_(
        L.buffer_id == store.id, L.consumer == consumer.id, L.status == "acknowledged"
    )
    (row,) = session.query(
        sa.select(sa.func.min(L.trainer_step), sa.func.max(L.trainer_step)).where(condition)
    )
    return row[0], row[1]


class _Row(NamedTuple):
    id: int
    number: int
    status: str
    leased: float
    expires: float
    trainer_step: int | None
    request: int
    rows: int
    first: int | None
    last: int | None
    positions: bytes
    columns: bytes
    checksum: int
    crc: int


def read_entry(store: Store, session: Session, consumer: ConsumerRecord, id: int) -> Entry | None:
    """Return an entry of the ledger and end the transaction; None if there is no such entry.

    Raise DatabaseDamaged if the entry cannot be read.
    """
    names = ", ".join(f"l.{name}" for name in _Row._fields)
    statement = (
        f"SELECT {names}, r.request FROM leases l LEFT JOIN requests r "
        "ON r.buffer_id = l.buffer_id AND r.id = l.request "
        "WHERE l.buffer_id = ? AND l.consumer = ? AND l.id = ?"
    )
    (rows,) = session.query_all((statement, store.id, consumer.id, id), last=True)
    if not rows:
        return None
    *columns, text = rows[0]
    row = _Row(*columns)
    try:
        return _entry(row, {} if text is None else {row.request: text})
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise damaged(store.name, consumer.name, id, error) from error


def read_entries(
    store: Store, session: Session, consumer: ConsumerRecord, where: sa.ColumnElement[bool]
) -> Iterator[Entry | DatabaseDamaged]:
    """Yield rows of the ledger, oldest first, and an error for each unreadable row."""
    statement = sa.select(R.id, R.request).where(R.buffer_id == store.id)
    requests = {row.id: row.request for row in session.query(statement)}
    of_consumer = sa.and_(L.buffer_id == store.id, L.consumer == consumer.id)
    wanted, last = sa.select(tables.leases).where(of_consumer, where).order_by(L.id), -1
    while rows := session.query(wanted.where(L.id > last).limit(AT_ONCE)):
        for row in rows:
            try:
                yield _entry(row, requests)
            except (ValueError, LookupError, TypeError, struct.error) as error:
                yield damaged(store.name, consumer.name, row.id, error)
        last = rows[-1].id


AT_ONCE = 1000  # rows read into memory at once


def _entry(row: Any, requests: dict[int, str]) -> Entry:
    if row.id < 0:
        raise ValueError("its id is negative")
    text = requests.get(row.request)
    if text is None or request_id(text) != row.request:
        raise ValueError("its request is missing or altered")
    if crc_of(row.positions, row.columns, row.number, row.request) != row.crc:
        raise ValueError("checksum mismatch")
    request = json.loads(text)
    drawn = unpack_positions(bytes(row.positions))
    columns = unpack_columns(bytes(row.columns), request["columns"], len(drawn.positions))
    if (row.rows, row.first, row.last) != (len(drawn.items), *bounds(drawn)):
        raise ValueError("its rows, first and last do not match its positions")
    return Entry(
        row.id, row.number, row.status, row.leased, row.expires, row.trainer_step, request,
        row.checksum, replace(drawn, columns=columns),
    )  # fmt: skip
