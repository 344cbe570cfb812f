"""Delete open episodes that no process has continued for a long time."""

import numpy as np

from expdb import errors
from expdb.sql.session import Session
from expdb.storage.store import Store

SWEEP_EVERY = 256  # episodes that a process begins between two sweeps
SWEPT_AT_ONCE = 1024  # episodes that one sweep examines, open or not


def swept_before(store: Store, session: Session) -> int:
    """Return the position before which the last step of an abandoned episode lies."""
    ((low, capacity),) = session.query("SELECT low, capacity FROM buffers WHERE id = ?", store.id)
    return 0 if capacity is None else max(0, int(low - capacity))


def sweep(store: Store) -> None:
    """Delete open episodes whose last position is more than `capacity` before the oldest step.

    Each call examines the next `SWEPT_AT_ONCE` episodes. Eviction keeps open episodes, because a
    writer may continue them. If a writer continues a swept episode, it inserts the episode again
    from memory. This is not a trigger, because a trigger would examine every open episode each
    time.
    """
    with store.writing() as (session, _):
        bound = swept_before(store, session)
        rows = session.query(
            "SELECT id, status, last_position FROM episodes WHERE buffer_id = ? AND id >= ? ORDER "
            "BY id LIMIT ?",
            store.id, store.sweep_from, SWEPT_AT_ONCE,
        )  # fmt: skip
        abandoned = [id for id, status, last in rows if status == "open" and last < bound]
        if abandoned:
            session.execute(
                f"DELETE FROM episodes WHERE buffer_id = ? AND id {store.dialect.AMONG}",
                store.id, store.dialect.as_list(np.array(abandoned, np.int64)),
            )  # fmt: skip
    store.sweep_from = rows[-1][0] + 1 if len(rows) == SWEPT_AT_ONCE else 0
    store.swept = max(store.swept, bound)


def sweep_if_due(store: Store, began: int) -> None:
    """Count the episodes that a committed write began; sweep every `SWEEP_EVERY` episodes."""
    store.begun += began
    if store.begun >= SWEEP_EVERY:
        store.begun = 0
        try:
            sweep(store)
        except (errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
            return  # the steps are stored; a later sweep deletes the episodes
