"""Trees of episodes, and the steps that forks share with their parents."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import COLUMN_KINDS
from expdb.sql import tables
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.reading.segments import Segments
from expdb.storage.store import Store

E = tables.episodes.c
# The columns of `ReplayBuffer.lineage`, with their types.
COLUMNS = {
    "depth": "integer", "episode": "integer",
    **{name: COLUMN_KINDS[name] for name in tables.OF_EPISODES},
}  # fmt: skip

_BRANCH = (
    "SELECT id, ordered, parent_episode, parent_position, parent_step, shared_steps FROM episodes "
    "WHERE buffer_id = ?"
)


def read_tree(store: Store, session: Session, episode_id: str) -> list[tuple[Any, ...]]:
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
    parent_index = 1 + list(tables.OF_EPISODES).index("parent_episode")
    children: dict[int | None, list[Any]] = {}
    stored = {row[0] for row in rows}
    for row in reversed(rows):
        parent = row[parent_index] if row[parent_index] in stored else None
        children.setdefault(parent, []).append(row)
    ordered: list[tuple[Any, ...]] = []
    # If the parent of an episode is no longer stored, the depth of the episode is unknown.
    pending = [(0 if row[parent_index] is None else None, row) for row in children.get(None, ())]
    while pending:
        depth, row = pending.pop()
        ordered.append((depth, *row))
        child_depth = None if depth is None else depth + 1
        pending += [(child_depth, child) for child in children.get(row[0], ())]
    return ordered


def unknown_episode(store: Store, episode_id: Any) -> errors.UnknownEpisode:
    """Return the error for an episode that the buffer does not have."""
    return errors.UnknownEpisode(
        f"no episode {episode_id!r} in buffer {store.name!r}; list the episodes with "
        "buffer.episodes()"
    )


def read_fork_defaults(store: Store, session: Session, episode_id: str) -> dict[str, Any]:
    """Return the columns that a fork takes from its parent by default."""
    names = "task_id", "task_name", "agent_id", "group_id"
    statement = sa.select(*[E[name] for name in names]).where(E.buffer_id == store.id)
    rows = session.query(statement.where(E.episode_id == episode_id))
    if not rows:
        raise errors.UnknownEpisode(
            f"no episode {episode_id!r} in buffer {store.name!r}; store a step of the parent "
            "first, or flush its writer"
        )
    return dict(zip(names, rows[0], strict=True))


def find_positions(store: Store, session: Session, episode_id: str, lineage: bool) -> np.ndarray:
    """Return the positions of the stored steps of an episode, int64, in the order of the steps.

    With `lineage`, the steps that the episode shares with its parents come first. Raise
    UnknownEpisode if the buffer has no such episode, and Evicted if a shared step is not stored.
    """
    rows = session.query(f"{_BRANCH} AND episode_id = ?", store.id, episode_id)
    if not rows:
        raise unknown_episode(store, episode_id)
    id, ordered, parent, end, before, shared = rows[0]
    parts = [_find_own_positions(store, session, id, ordered)]
    if not lineage or not shared:
        return parts[0]
    parts = _find_shared_positions(store, session, parent, end, before, set()) + parts
    missing = shared - sum(map(len, parts[:-1]))
    if missing > 0:
        raise errors.Evicted(
            f"{missing} of the {shared} steps that episode {episode_id!r} shares with its "
            "parent were evicted or deleted; pass lineage=False to read its own steps"
        )
    return np.concatenate(parts)


def find_with_shared_steps(
    store: Store, session: Session, condition: Condition | None
) -> tuple[np.ndarray, int]:
    """Return the positions of matching steps and of shared steps of matching forks, ascending.

    Also return the number of matching forks that lack a shared step.
    """
    matching = select.positions(store, session, condition)
    ids = session.query(
        "SELECT DISTINCT episode FROM steps WHERE buffer_id = ? "
        f"AND position {store.dialect.AMONG}",
        store.id, store.dialect.as_list(matching),
    )  # fmt: skip
    episodes = np.array(ids, np.int64).reshape(-1)
    branches = session.query(
        "SELECT DISTINCT parent_episode, parent_position, parent_step FROM episodes "
        f"WHERE buffer_id = ? AND shared_steps > 0 AND id {store.dialect.AMONG}",
        store.id, store.dialect.as_list(episodes),
    )  # fmt: skip
    parts, visited = [matching], set[tuple[int, int, int]]()
    for parent, end, before in branches:
        parts += _find_shared_positions(store, session, parent, end, before, visited)
    are_whole = [whole for _, whole in sum_shared_rewards(store, session, episodes).values()]
    return np.unique(np.concatenate(parts)), are_whole.count(False)


def _find_shared_positions(
    store: Store,
    session: Session,
    parent: int | None,
    end: int,
    before: int,
    visited: set[tuple[int, int, int]],
) -> list[np.ndarray]:
    """Return the positions of a fork's stored shared steps, one array per parent, root first.

    `end` and `before` are the parent position and the parent step of the fork. Stop at a branch in
    `visited`, and add the others to it.
    """
    parts: list[np.ndarray] = []
    while parent is not None and (parent, end, before) not in visited:
        visited.add((parent, end, before))
        rows = session.query(f"{_BRANCH} AND id = ?", store.id, parent)
        if not rows:
            break
        id, ordered, parent, parent_end, parent_before, shared = rows[0]
        parts.insert(0, _find_own_positions(store, session, id, ordered, end, before))
        if not shared:
            break
        end, before = min(end, parent_end), min(before, parent_before)
    return parts


def _find_own_positions(
    store: Store,
    session: Session,
    id: int,
    ordered: bool,
    end: int = 1 << 62,
    before: int | None = None,
) -> np.ndarray:
    """Return the positions of the stored own steps of an episode, in the order of the steps.

    Return only positions up to `end`, and steps with numbers less than `before`.
    """
    segments = Segments.read(session, store.id, "AND episode = ?", id)
    positions, _ = segments.positions(store.state(session).oldest)
    positions = positions[positions <= end]
    rows = session.query(
        f"SELECT position, step FROM steps WHERE buffer_id = ? AND position {store.dialect.AMONG}",
        store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    stored = np.array(rows, np.int64).reshape(-1, 2)
    stored = stored if before is None else stored[stored[:, 1] < before]
    order = np.argsort(stored[:, 0]) if ordered else np.lexsort((stored[:, 0], stored[:, 1]))
    in_order: np.ndarray = stored[order, 0]
    return in_order


def sum_shared_rewards(
    store: Store, session: Session, ids: np.ndarray
) -> dict[int, tuple[float | None, bool]]:
    """Return, for each fork, the sum of its shared rewards; True if all shared steps are stored."""
    forks = session.query(
        "SELECT id, parent_position, parent_step, shared_steps FROM episodes WHERE buffer_id = ? "
        "AND root_episode IS NOT NULL AND shared_steps > 0",
        store.id,
    )
    ends = np.unique(np.array([end for _, end, _, _ in forks], np.int64))
    parts_of_owners = {
        (end, step): (owner, total, count)
        for end, step, owner, total, count in session.query(
            "SELECT p.position, f.parent_step, p.episode, sum(s.reward), count(*) FROM steps p "
            "JOIN (SELECT DISTINCT parent_position, parent_step FROM episodes WHERE buffer_id = ? "
            "AND root_episode IS NOT NULL AND shared_steps > 0) f "
            "ON f.parent_position = p.position "
            "JOIN segments g ON g.buffer_id = p.buffer_id AND g.episode = p.episode "
            "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
            "AND s.episode = g.episode AND s.position <= p.position "
            "AND s.step < f.parent_step "
            f"WHERE p.buffer_id = ? AND p.position {store.dialect.AMONG} GROUP BY 1, 2, 3",
            store.id, store.id, store.dialect.as_list(ends),
        )
    }  # fmt: skip
    branches = {id: (end, step) for id, end, step, _ in forks}
    returns: dict[int, tuple[float | None, bool]] = {}
    requested_ids = set(ids.tolist())
    for id, _, _, shared in forks:
        if id not in requested_ids:
            continue
        key, totals, stored_steps = branches.get(id), list[float](), 0
        while key in parts_of_owners:
            owner, total, count = parts_of_owners[key]
            totals += [] if total is None else [total]
            key, stored_steps = branches.get(owner), stored_steps + count
        returns[id] = (sum(totals) if totals else None), stored_steps == shared
    return returns
