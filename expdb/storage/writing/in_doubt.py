"""Writes whose outcome is unknown, because the connection to the server was lost."""

import numpy as np

from expdb import errors
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.writing.pending_steps import PendingSteps
from expdb.storage.writing.plan import make_plan


def commit_unknown(error: Exception, pending: PendingSteps) -> errors.CommitUnknown:
    """Return the error for a write whose outcome is unknown because of `error`."""
    return errors.CommitUnknown(
        f"{error}; look for chunks with write_id {pending.write_id!r} to find out whether this "
        "write was stored"
    )


def find_written(store: Store, session: Session, pending: PendingSteps) -> np.ndarray | None:
    """Return the positions of a write with an unknown outcome, or None if it was not committed."""
    ((last,),) = session.query(
        "SELECT max(id) FROM chunks WHERE buffer_id = ? AND write_id = ?",
        store.id,
        pending.write_id,
    )
    if last is None:
        last = _find_evicted_write(store, session, pending)
    if last is None:
        return None
    for episode in pending.episodes():
        rows = session.query(
            "SELECT id, length, last_step, ordered, last_position FROM episodes WHERE buffer_id = "
            "? AND episode_id = ?",
            store.id, episode.episode_id,
        )  # fmt: skip
        if rows:
            episode.id, episode.length, episode.last_step, episode.ordered, last_position = rows[0]
            episode.last_position, episode.greatest = last_position, None
    return np.arange(last - len(pending) + 1, last + 1, dtype=np.int64)


def _find_evicted_write(store: Store, session: Session, pending: PendingSteps) -> int | None:
    """Return the last position of a committed write whose steps were evicted, or None.

    Such a write is recognised only if it began an episode. Steps that continue an episode may
    belong to another process, and are stored again.
    """
    low = store.state(session).oldest
    for write in make_plan(pending).episodes:
        record = write.record
        rows = session.query(
            "SELECT last_position FROM episodes WHERE buffer_id = ? AND episode_id = ? "
            "AND run = ? AND started = ? AND length = ?",
            store.id, record.episode_id, record.run, record.started, len(write.rows),
        )  # fmt: skip
        if write.before.id is None and rows:
            last = int(rows[0][0]) + len(pending) - 1 - write.rows[-1]
            if len(pending) <= last + 1 <= low:
                return last
    return None
