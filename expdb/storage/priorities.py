"""Priorities: one float64 per step, in blocks of 1,024 positions, in a separate table.

A learner changes thousands of priorities per second. Writing a million priorities in blocks takes
as long as writing two thousand single rows, so priorities are not a column of `steps`. NaN means
that a step has no priority.
"""

import numpy as np

from expdb.sql.session import Session
from expdb.storage.reading import fetch
from expdb.storage.reading.columns import BLOCK_BITS as BLOCK_BITS
from expdb.storage.reading.columns import priorities_of
from expdb.storage.statements import PUT_PRIORITIES
from expdb.storage.store import Store

BLOCK = 1 << BLOCK_BITS


def update(store: Store, positions: np.ndarray, priorities: np.ndarray) -> int:
    """Set the priorities of steps; return how many of the positions hold a step."""
    if not len(positions):
        return 0
    with store.writing() as (session, _):
        is_stored = fetch.alive(store, session, positions)
        write(store, session, positions[is_stored], priorities[is_stored])
    return int(is_stored.sum())


def write(store: Store, session: Session, positions: np.ndarray, priorities: np.ndarray) -> int:
    """Set priorities in a writer's transaction; return the new version of the priorities.

    If a position occurs more than once, the last value wins. Evicted positions are skipped, because
    their blocks are deleted.
    """
    ((version, low),) = session.query(
        "UPDATE buffers SET priorities = priorities + 1 WHERE id = ? RETURNING priorities, low",
        store.id,
    )
    inside = positions >= low
    positions, priorities = positions[inside], priorities[inside]
    if not len(positions):
        return int(version)
    order = np.argsort(positions >> BLOCK_BITS, kind="stable")
    positions, priorities = positions[order], priorities[order]
    blocks, starts = np.unique(positions >> BLOCK_BITS, return_index=True)
    stored = _blocks(store, session, f"block {store.dialect.AMONG}", store.dialect.as_list(blocks))
    rows = []
    for block, start, stop in zip(
        blocks.tolist(), starts.tolist(), [*starts[1:].tolist(), len(positions)], strict=True
    ):
        values = stored[block] if block in stored else np.full(BLOCK, np.nan)
        values[positions[start:stop] & (BLOCK - 1)] = priorities[start:stop]
        rows.append((store.id, block, version, store.dialect.as_block(values)))
    session.execute_many(PUT_PRIORITIES, rows)
    return int(version)


def changed(store: Store, session: Session, version: int) -> dict[int, np.ndarray]:
    """Return the priorities of the blocks written after a version, by block number."""
    return _blocks(store, session, "version > ?", version)


def _blocks(
    store: Store, session: Session, condition: str, *params: object
) -> dict[int, np.ndarray]:
    rows = session.query(
        f"SELECT block, data FROM priorities WHERE buffer_id = ? AND {condition}", store.id, *params
    )
    return {block: priorities_of(store, block, data) for block, data in rows}
