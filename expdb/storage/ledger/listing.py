"""List the leases of a buffer."""

from typing import Any

from expdb import checks
from expdb.process.liveness import describe_process
from expdb.sql.session import Session
from expdb.storage.ledger.consumers import find_consumer, unknown_consumer
from expdb.storage.store import Store

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


# By consumer, because only the primary key has the leases in order.
NEWEST = (
    "SELECT id, number, status, holder, leased, expires, ended, trainer_step, policy_version, "
    "rows, first, last FROM leases WHERE buffer_id = ? AND consumer = ? {} ORDER BY id DESC LIMIT ?"
)


def list_leases(
    store: Store, session: Session, consumer: str | None, status: str | None, newest: int
) -> list[tuple[Any, ...]]:
    """Return the newest leases, oldest first; see `ReplayBuffer.leases`.

    Raise UnknownConsumer if there is no such consumer, and InvalidValue for an invalid argument.
    """
    newest, condition = checks.whole(newest, "newest", 1), ""
    if status is not None:
        checks.choice(status, "status", *STATUSES)
        condition = f"AND status IN ({', '.join(map(repr, STATUSES[status]))})"
    if consumer is None:
        consumers = session.ask("SELECT id, name FROM consumers WHERE buffer_id = ?", store.id)
    else:
        record = find_consumer(session, store, consumer)
        if record is None:
            raise unknown_consumer(session, store, consumer)
        consumers = [(record.id, record.name)]
    statement = NEWEST.format(condition)
    answers = session.ask_all(*[(statement, store.id, id, newest) for id, _ in consumers])
    leases = [
        (name, *row) for (_, name), rows in zip(consumers, answers, strict=True) for row in rows
    ]
    leases.sort(key=lambda lease: (lease[5], lease[0], lease[1]))
    return [
        (name, id, number, NAMES[stored_status], describe_process(holder), *rest)
        for name, id, number, stored_status, holder, *rest in leases[-newest:]
    ]
