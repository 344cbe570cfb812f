"""List the leases of a buffer and their items."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import checks
from expdb.errors import DatabaseDamaged
from expdb.names import DRAW_COLUMNS as DRAW_COLUMNS
from expdb.names import UNKNOWN
from expdb.process.liveness import describe_process
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.sql.tables import expired_lease_condition
from expdb.storage.ledger.consumers import find_consumer, list_consumers, unknown_consumer
from expdb.storage.ledger.entries import DISCARDED, Entry, read_entries
from expdb.storage.store import Store

STATUSES = ("leased", "acknowledged", "released", "expired")
# SQL expression of the status as users see it; `{}` is the condition of an expired lease.
SHOWN_STATUS = (
    "CASE WHEN {} THEN 'expired' WHEN status IN ('returned', 'repeated') THEN 'released' "
    "ELSE status END"
)
# The columns of the list, with their types.
COLUMNS = {
    "consumer": "text", "lease": "integer", "batch": "integer", "status": "text",
    "process": "text", "leased_at": "real", "expires_at": "real", "ended_at": "real",
    "trainer_step": "integer", "policy_version": "integer", "items": "integer",
    "first_position": "integer", "last_position": "integer",
}  # fmt: skip


# By consumer, because only the primary key has the leases in order.
NEWEST = (
    "SELECT id, number, {status}, holder, leased, expires, ended, trainer_step, policy_version, "
    "rows, first, last FROM leases WHERE buffer_id = ? AND consumer = ? {condition} "
    "ORDER BY id DESC LIMIT ?"
)


def list_leases(
    store: Store, session: Session, consumer: str | None, status: str | None, limit: int
) -> list[tuple[Any, ...]]:
    """Return the newest leases, oldest first; see `ReplayBuffer.leases`.

    Raise UnknownConsumer if there is no such consumer, and InvalidValue for an invalid argument.
    """
    limit, condition = checks.whole(limit, "limit", 1), ""
    status_expression = SHOWN_STATUS.format(expired_lease_condition(store.dialect.NOW))
    if status is not None:
        condition = f"AND {status_expression} = '{checks.choice(status, 'status', *STATUSES)}'"
    if consumer is None:
        consumers = session.query("SELECT id, name FROM consumers WHERE buffer_id = ?", store.id)
    else:
        record = find_consumer(store, session, consumer)
        if record is None:
            raise unknown_consumer(store, session, consumer)
        consumers = [(record.id, record.name)]
    statement = NEWEST.format(status=status_expression, condition=condition)
    answers = session.query_all(*[(statement, store.id, id, limit) for id, _ in consumers])
    leases = [
        (name, *row) for (_, name), rows in zip(consumers, answers, strict=True) for row in rows
    ]
    leases.sort(key=lambda lease: (lease[5], lease[0], lease[1]))
    return [
        (name, id, number, shown_status, describe_process(holder), *rest)
        for name, id, number, shown_status, holder, *rest in leases[-limit:]
    ]


L = tables.leases.c


def list_draws(
    store: Store,
    session: Session,
    positions: np.ndarray | None,
    consumer: str | None,
    lease: int | None,
    trainer_step: int | None,
    limit: int | None,
) -> list[tuple[Any, ...]]:
    """Return the items of leases, oldest lease first; see `ReplayBuffer.draws`.

    Raise UnknownConsumer if there is no such consumer.
    """
    if limit is not None:
        limit = checks.whole(limit, "limit", 1)
    if trainer_step is not None:
        trainer_step = checks.whole(trainer_step, "trainer_step")
    if positions is not None and not len(positions):
        return []
    draws, ((now,),) = [], session.query(f"SELECT {store.dialect.NOW}")
    for name in list_consumers(store, session) if consumer is None else [consumer]:
        record = find_consumer(store, session, name)
        if record is None:
            raise unknown_consumer(store, session, name)
        condition = L.id >= (0 if limit is None else record.handed_out - limit)
        if lease is not None:
            condition = L.id == lease
        if trainer_step is not None:
            condition &= L.trainer_step == trainer_step
        if positions is not None:
            condition &= sa.and_(L.first <= int(positions.max()), L.last >= int(positions.min()))
        for entry in read_entries(store, session, record, condition):
            if isinstance(entry, DatabaseDamaged):
                raise entry
            items, probabilities = _items(entry)
            rows = np.arange(len(items))
            if positions is not None:
                rows = rows[np.isin(items, positions)]
            common = name, entry.id, entry.number, _status(entry, now), entry.leased
            draws += [
                (*common, entry.trainer_step, int(items[row]), probabilities[row]) for row in rows
            ]
    draws.sort(key=lambda draw: (draw[4], draw[0], draw[1]))
    return draws


def _status(entry: Entry, now: float) -> str:
    """Return the status of a lease as users see it."""
    if entry.status == "leased":
        return "expired" if entry.expires <= now else "leased"
    if entry.status != "acknowledged":
        return "released"
    return "discarded" if entry.request.get(DISCARDED) is True else "acknowledged"


def _items(entry: Entry) -> tuple[np.ndarray, list[float | None]]:
    """Return the positions of the items of a lease, and their probabilities, if they are stored."""
    drawn = entry.drawn
    items, probabilities = drawn.items, drawn.columns.get("probability")
    if probabilities is None or probabilities.ndim != 1:
        return items, [None] * len(items)
    positions = drawn.positions
    if drawn.kept is not None:
        positions, probabilities = positions[drawn.kept], probabilities[drawn.kept]
    if positions.ndim > 1:  # each draw has several items
        probabilities = np.repeat(probabilities, positions.shape[1])[positions.ravel() != UNKNOWN]
    return items, probabilities.tolist()
