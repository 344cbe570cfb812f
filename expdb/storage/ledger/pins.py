"""Pins: what held leases keep from being evicted, as their own column and the buffer's say."""

from expdb.sql.session import Session
from expdb.storage.store import Store


def settle_pins(session: Session, store: Store) -> int:
    """Have the steps kept that leases pin until they expire; return the oldest position held.

    It locks the buffer's row first: the statement after that sees the pins of all others.
    """
    session.ask(store.dialect.LOCK, store.id)
    ((low,),) = session.ask(
        "UPDATE buffers SET pinned = (SELECT min(pinned) FROM leases WHERE buffer_id = ? "
        f"AND status = 'leased' AND expires > {store.dialect.NOW} AND pinned >= buffers.low) "
        "WHERE id = ? RETURNING low",
        store.id, store.id,
    )  # fmt: skip
    return int(low)
