"""Pins: steps that active leases (leased and not expired) protect from eviction."""

import numpy as np

from expdb.sql.session import Session
from expdb.sql.tables import active_lease_condition
from expdb.storage.ledger.encoding import unpack_positions
from expdb.storage.store import Store


def update_pins(store: Store, session: Session) -> int:
    """Update the buffer's oldest pinned position; return the position of its oldest step.

    The function locks the buffer's row first, so that the next statement sees the pins of all other
    transactions.
    """
    session.query(store.dialect.LOCK, store.id)
    ((low,),) = session.query(
        "UPDATE buffers SET pinned = (SELECT min(pinned) FROM leases WHERE buffer_id = ? "
        f"AND {active_lease_condition(store.dialect.NOW)} AND pinned >= buffers.low) "
        "WHERE id = ? RETURNING low",
        store.id, store.id,
    )  # fmt: skip
    return int(low)


def pinned_positions(store: Store, session: Session) -> np.ndarray:
    """Return the positions that active leases pin, int64.

    The transaction must have locked the buffer's row, as every transaction that pins steps does.
    """
    rows = session.query(
        "SELECT positions FROM leases WHERE buffer_id = ? AND pinned IS NOT NULL "
        f"AND {active_lease_condition(store.dialect.NOW)}",
        store.id,
    )
    if not rows:
        return np.empty(0, np.int64)
    return np.unique(
        np.concatenate([unpack_positions(bytes(positions)).items for (positions,) in rows])
    )
