"""List the leases of a buffer."""

from typing import Any

import sqlalchemy as sa

from expdb import checks
from expdb.process.liveness import describe_process
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import find_consumer, unknown_consumer
from expdb.storage.store import Store

K, L = tables.consumers.c, tables.leases.c

# Statuses as users see them, with those in the database.
STATUSES = {
    "leased": ("leased",), "acknowledged": ("acknowledged",), "released": ("returned", "repeated"),
}  # fmt: skip
NAMES = {stored: status for status, all_stored in STATUSES.items() for stored in all_stored}
# The columns of the list, with their types.
COLUMNS = {
    "consumer": "text", "lease": "integer", "batch": "integer", "status": "text",
    "process": "text", "leased_at": "real", "expires_at": "real", "ended_at": "real",
    "trainer_step": "integer", "policy_version": "integer", "items": "integer",
    "first_position": "integer", "last_position": "integer",
}  # fmt: skip


def list_leases(
    store: Store, session: Session, consumer: str | None, status: str | None, newest: int
) -> list[tuple[Any, ...]]:
    """Return the newest leases, oldest first; see `ReplayBuffer.leases`.

    Raise UnknownConsumer if there is no such consumer, and InvalidValue for an invalid argument.
    """
    newest = checks.whole(newest, "newest", 1)
    if status is not None:
        checks.choice(status, "status", *STATUSES)
    if consumer is None:
        consumers = session.rows(sa.select(K.id, K.name).where(K.buffer_id == store.id))
    else:
        record = find_consumer(session, store, consumer)
        if record is None:
            raise unknown_consumer(session, store, consumer)
        consumers = [(record.id, record.name)]
    is_chosen = sa.true() if status is None else L.status.in_(STATUSES[status])
    leases = []
    for id, name in consumers:
        # By consumer, because only the primary key has the leases in order.
        statement = (
            sa.select(
                L.id, L.number, L.status, L.holder, L.leased, L.expires, L.ended,
                L.trainer_step, L.policy_version, L.rows, L.first, L.last,
            )
            .where(L.buffer_id == store.id, L.consumer == id, is_chosen)
            .order_by(L.id.desc())
            .limit(newest)
        )  # fmt: skip
        leases += [(name, *row) for row in session.fetch(statement)]
    leases.sort(key=lambda lease: (lease[5], lease[0], lease[1]))
    return [
        (name, id, number, NAMES[stored_status], describe_process(holder), *rest)
        for name, id, number, stored_status, holder, *rest in leases[-newest:]
    ]  # fmt: skip
