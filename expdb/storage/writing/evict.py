"""Evicting what a policy says, where the trigger of the capacity does not."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np
import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.outcome import WriteOutcome
from expdb.storage.store import Store
from expdb.storage.writing.change import delete_positions

B, C, E, G, P, S = (
    one.c
    for one in (
        tables.buffers, tables.chunks, tables.episodes, tables.segments, tables.priorities,
        tables.steps,
    )
)  # fmt: skip


def evict(store: Store, session: Session, outcome: WriteOutcome, positions: np.ndarray) -> int:
    """Evict steps in a transaction that holds the buffer's row; return how many there were."""
    if not len(positions):
        return 0
    oldest = sa.select(sa.func.min(S.position)).where(
        S.buffer_id == store.id, sa.not_(store.dialect.among(S.position, positions.tolist()))
    )
    ((bound,),) = session.rows(oldest)
    bound = int(store.state(session).added if bound is None else bound)
    gone = _evict_before(store, session, bound)
    rest = positions[positions > bound]
    return gone + delete_positions(store, session, outcome, rest)


def _evict_before(store: Store, session: Session, bound: int) -> int:
    """Evict the oldest steps, as the trigger `buffers_capacity` does; return how many."""
    buffer = sa.update(tables.buffers).where(B.id == store.id)
    older = sa.and_(S.buffer_id == store.id, S.position < bound)
    ((count,),) = session.rows(sa.select(sa.func.count()).select_from(tables.steps).where(older))
    # `low` moves first, so that the evicted rows do not count as deleted.
    session.execute(buffer.values(low=sa.case((B.low < bound, bound), else_=B.low)))
    session.execute(sa.delete(tables.steps).where(older))
    dead = sa.select(G.episode).where(G.buffer_id == store.id, G.last < bound)
    ended = sa.and_(E.buffer_id == store.id, E.status != "open", E.last_position < bound)
    session.execute(sa.delete(tables.episodes).where(ended, E.id.in_(dead)))
    session.execute(sa.delete(tables.segments).where(G.buffer_id == store.id, G.last < bound))
    session.execute(sa.delete(tables.chunks).where(C.buffer_id == store.id, C.id < bound))
    blocks = sa.and_(P.buffer_id == store.id, P.block < bound >> 10)
    session.execute(sa.delete(tables.priorities).where(blocks))
    size = B.size - count
    # Of what a lease pins, the oldest may have been deleted by hand; the others stay pinned.
    L = tables.leases.c
    held = sa.and_(L.buffer_id == store.id, L.status == "leased", L.pinned < bound)
    session.execute(sa.update(tables.leases).where(held).values(pinned=bound))
    values = {
        "size": size,
        "holes": sa.case((B.added - B.low == size, 0), else_=B.holes),
        "pinned": sa.case((B.pinned < B.low, B.low), else_=B.pinned),
    }
    session.execute(buffer.values(**values))
    return int(count)
