"""Trees of episodes, and the steps that forks share with their parents."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import COLUMN_KINDS
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.reading.fetch import alive
from expdb.storage.reading.segments import Segments
from expdb.storage.store import Store

E = tables.episodes.c
# The columns of `ReplayBuffer.lineage`, with their types.
COLUMNS = {
    "depth": "integer", "episode": "integer",
    **{name: COLUMN_KINDS[name] for name in tables.OF_EPISODES},
}  # fmt: skip


def lineage(store: Store, session: Session, episode_id: str) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each stored episode of a tree; children follow their parent.

    Raise UnknownEpisode if the buffer has no such episode.
    """
    columns = [E.id, *tables.OF_EPISODES.values()]
    of_buffer = E.buffer_id == store.id
    root = sa.func.coalesce(E.root_episode, E.id)
    roots = session.query(sa.select(root).where(of_buffer, E.episode_id == episode_id))
    if not roots:
        raise unknown_episode(store, episode_id)
    ((root_id,),) = roots
    in_tree = sa.or_(E.id == root_id, E.root_episode == root_id)
    rows = session.fetch(sa.select(*columns).where(of_buffer, in_tree).order_by(E.id))
    place = 1 + list(tables.OF_EPISODES).index("parent_episode")
    children: dict[int | None, list[Any]] = {}
    stored = {row[0] for row in rows}
    for row in reversed(rows):
        parent = row[place] if row[place] in stored else None
        children.setdefault(parent, []).append(row)
    ordered: list[tuple[Any, ...]] = []
    # The depth of an episode whose parent is not stored any more is unknown.
    waiting = [(0 if row[place] is None else None, row) for row in children.get(None, ())]
    while waiting:
        depth, row = waiting.pop()
        ordered.append((depth, *row))
        below = None if depth is None else depth + 1
        waiting += [(below, child) for child in children.get(row[0], ())]
    return ordered


def unknown_episode(store: Store, episode_id: Any) -> errors.UnknownEpisode:
    """Return the error for an episode that the buffer does not have."""
    return errors.UnknownEpisode(
        f"no episode {episode_id!r} in buffer {store.name!r}; list the episodes with "
        "buffer.episodes()"
    )


def read_beginning(store: Store, session: Session, episode_id: str) -> dict[str, Any]:
    """Return the columns that a fork of an episode has in common with it."""
    names = "task_id", "task_name", "agent_id", "group_id"
    statement = sa.select(*[E[name] for name in names]).where(E.buffer_id == store.id)
    rows = session.query(statement.where(E.episode_id == episode_id))
    if not rows:
        raise unknown_episode(store, episode_id)
    return dict(zip(names, rows[0], strict=True))


def positions_of(store: Store, session: Session, episode_id: str, lineage: bool) -> np.ndarray:
    """Return the positions of the stored steps of an episode in their order, int64.

    With `lineage`, the steps that the episode shares with its parents come first. Raise
    UnknownEpisode if the buffer has no such episode, and Evicted if a shared step is not stored.
    """
    names = "id", "ordered", "parent_position", "shared_steps"
    select = f"SELECT {', '.join(names)} FROM episodes WHERE buffer_id = ?"
    rows = session.query(f"{select} AND episode_id = ?", store.id, episode_id)
    if not rows:
        raise unknown_episode(store, episode_id)
    id, ordered, end, shared = rows[0]
    parts = [_own_positions(store, session, id, ordered)]
    missing = shared or 0 if lineage else 0
    while missing and end is not None:
        owner = (
            f"{select} AND id = (SELECT episode FROM steps WHERE buffer_id = ? AND position = ?)"
        )
        rows = session.query(owner, store.id, store.id, end)
        if not rows:
            break
        id, ordered, earlier_end, _ = rows[0]
        own = _own_positions(store, session, id, ordered)
        own = own[: int(np.flatnonzero(own == end)[0]) + 1]
        parts.insert(0, own)
        missing, end = missing - len(own), earlier_end
    if missing:
        raise errors.Evicted(
            f"{missing} of the {shared} steps that episode {episode_id!r} shares with its parent "
            "were evicted or deleted; pass lineage=False to read its own steps"
        )
    return np.concatenate(parts)


def _own_positions(store: Store, session: Session, id: int, ordered: bool) -> np.ndarray:
    """Return the positions of the stored steps of an episode, in their order."""
    segments = Segments.read(session, store.id, "AND episode = ?", id)
    positions, _ = segments.positions(store.state(session).oldest)
    positions = positions[alive(store, session, positions)] if len(positions) else positions
    if ordered or not len(positions):
        return positions
    rows = session.query(
        f"SELECT position FROM steps WHERE buffer_id = ? AND position {store.dialect.AMONG} "
        "ORDER BY step, position",
        store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    return np.array(rows, np.int64).reshape(-1)
