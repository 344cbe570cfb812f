"""Rows of the ledger with all that is needed to make their batches again."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.leases import request_id
from expdb.storage.ledger.packed import (
    Drawn,
    crc_of,
    damaged,
    unpack_columns,
    unpack_positions,
)
from expdb.storage.store import Store


@dataclass(frozen=True)
class Entry:
    """A row of the ledger with all that is needed to make its batch again."""

    id: int
    number: int
    status: str
    trainer_step: int | None
    request: dict[str, Any]
    checksum: int
    drawn: Drawn


def acknowledged(
    session: Session,
    store: Store,
    consumer: ConsumerRecord,
    steps: set[int] | None,
    newest: int | None,
) -> list[int]:
    """Return the ids of the acknowledged leases of some trainer steps, or the newest ones."""
    c = tables.leases.c
    mine = sa.and_(c.buffer_id == store.id, c.consumer == consumer.id, c.status == "acknowledged")
    if steps is not None:
        mine = sa.and_(mine, store.dialect.among(c.trainer_step, sorted(steps)))
    ordered = sa.select(c.id).where(mine).order_by(c.ended.desc(), c.id.desc()).limit(newest)
    return [id for (id,) in reversed(session.rows(ordered))]


def read_entry(session: Session, store: Store, consumer: ConsumerRecord, id: int) -> Entry:
    """Return a row of the ledger; raise DatabaseDamaged where it cannot be read."""
    c, r = tables.leases.c, tables.requests.c
    same = sa.and_(r.buffer_id == c.buffer_id, r.id == c.request)
    ((number, status, step, checksum, request, positions, columns, crc, text),) = session.rows(
        sa.select(
            c.number, c.status, c.trainer_step, c.checksum, c.request, c.positions, c.columns,
            c.crc, r.request,
        )
        .select_from(tables.leases.join(tables.requests, same))
        .where(c.buffer_id == store.id, c.consumer == consumer.id, c.id == id)
    )  # fmt: skip
    try:
        if crc_of(positions, columns, number, request) != crc or request_id(text) != request:
            raise ValueError("checksum")
        asked = json.loads(text)
        drawn = unpack_positions(bytes(positions))
        given = unpack_columns(bytes(columns), asked["columns"], len(drawn.positions))
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise damaged(store.name, consumer.name, id, error) from error
    return Entry(id, number, status, step, asked, checksum, replace(drawn, columns=given))
