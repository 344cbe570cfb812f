"""Changing what is stored: late rewards, deletion, capacity, indexes."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS
from expdb.sql import tables
from expdb.sql.conditions import Condition, resolve
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.reading.segments import locate
from expdb.storage.store import Store
from expdb.storage.writing.compact import rewrite

S, E = tables.steps.c, tables.episodes.c


def update(store: Store, where: Condition, changes: dict[str, Any], last: bool) -> int:
    """Set columns of the matching steps, or of their episodes; return of how many steps.

    With `last` those are meant which are the last ones of the episodes that match.
    """
    of_steps = {name: value for name, value in changes.items() if name in STEP_COLUMNS}
    of_episodes = {name: value for name, value in changes.items() if name in EPISODE_COLUMNS}
    with store.writing() as (session, _):
        found = select.positions(store, session, where)
        if last:
            found = _last_steps(store, session, found)
            _warn_of_open_episodes(store, session, found)
        elif changes.get("reward") and len(found):
            _warn_of_repeated_rewards(store, session, found)
        matching = sa.and_(S.buffer_id == store.id, store.dialect.among(S.position, found.tolist()))
        if of_episodes and len(found):
            mine = E.id.in_(sa.select(S.episode).where(matching))
            session.connection.execute(
                sa.update(tables.episodes).where(E.buffer_id == store.id, mine).values(of_episodes)
            )
        if of_steps and len(found):
            session.connection.execute(sa.update(tables.steps).where(matching).values(of_steps))
        if "reward" in of_steps and len(found):
            _sum_returns(store, session, found)
    return len(found)


def _last_steps(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return the last step of each episode of these positions.

    The one of the greatest `step`, of equal ones the newest.
    """
    among = store.dialect.AMONG
    rows = session.ask(
        "SELECT g.episode, s.step, s.position FROM segments g JOIN steps s ON s.buffer_id = "
        "g.buffer_id AND s.position BETWEEN g.first "
        "AND g.last AND s.episode = g.episode WHERE g.buffer_id = ? AND g.episode IN (SELECT "
        f"episode FROM steps WHERE buffer_id = ? AND position {among})",
        store.id, store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    last = {episode: position for episode, _, position in sorted(rows)}
    return np.array(sorted(last.values()), np.int64)


def _warn_of_open_episodes(store: Store, session: Session, positions: np.ndarray) -> None:
    if store.warned_of_open or not len(positions):
        return
    ((count,),) = session.ask(
        f"SELECT count(*) FROM episodes WHERE buffer_id = ? AND status = 'open' AND id IN "
        f"(SELECT episode FROM steps WHERE buffer_id = ? AND position {store.dialect.AMONG})",
        store.id, store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    if count:
        store.warned_of_open = True
        errors.warn(
            f"{count} of the {len(positions)} episodes whose last step is updated "
            f"{'is' if count == 1 else 'are'} still open: the next step will be "
            "the last one; end it first, by terminated=True, end(), the end of the `with` block or "
            "end_episode"
        )


def _warn_of_repeated_rewards(store: Store, session: Session, positions: np.ndarray) -> None:
    if store.warned_of_rewards:
        return
    ((steps, episodes),) = session.ask(
        "SELECT count(*), count(DISTINCT episode) FROM steps WHERE buffer_id = ? AND position "
        f"{store.dialect.AMONG}",
        store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    if steps > episodes:
        store.warned_of_rewards = True
        errors.warn(
            f"update gives the reward to {steps} steps of {episodes} "
            f"episode{'s' * (episodes != 1)}, so that returns grow with length: "
            'for the reward of a whole episode use update(..., which="last")'
        )


def _sum_returns(store: Store, session: Session, positions: np.ndarray) -> None:
    """Sum the rewards of whole episodes anew.

    The trigger adds differences, which round, and that is for the others.
    """
    among = store.dialect.AMONG
    rows = session.ask(
        "SELECT e.id, e.length, count(*), sum(s.reward) FROM episodes e "
        "JOIN segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id "
        "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
        "WHERE e.buffer_id = ? AND e.id IN (SELECT episode FROM steps WHERE buffer_id = ? AND "
        f"position {among}) GROUP BY e.buffer_id, e.id",
        store.id, store.id, store.dialect.as_list(positions),
    )  # fmt: skip
    whole = [(total, store.id, id) for id, length, count, total in rows if length == count]
    session.many("UPDATE episodes SET episode_return = ? WHERE buffer_id = ? AND id = ?", whole)


def delete(store: Store, where: Condition) -> int:
    """Delete the matching steps, and rewrite the chunks they leave; return how many there were."""
    among = store.dialect.AMONG
    with store.writing() as (session, outcome):
        found = select.positions(store, session, where)
        if not len(found):
            return 0
        segments = locate(store, session, found)
        index = segments.find(found)
        listed = store.dialect.as_list(found)
        session.ask(f"DELETE FROM steps WHERE buffer_id = ? AND position {among}", store.id, listed)
        for chunk in np.unique(segments.chunk[index]).tolist():
            rewrite(store, session, outcome, [chunk])
        listed = store.dialect.as_list(np.unique(segments.episode[index]))
        session.ask(
            "UPDATE episodes SET tail_chunk = NULL, tail_row = NULL, tail_fields = NULL WHERE "
            "buffer_id = ? "
            f"AND id {among} AND last_position "
            f"{among}", store.id, listed, store.dialect.as_list(found),
        )  # fmt: skip
        session.ask(
            "UPDATE episodes SET last_position = coalesce((SELECT max(last) FROM segments g WHERE "
            "g.buffer_id = "
            "episodes.buffer_id AND g.episode = episodes.id), -1) WHERE buffer_id = ? AND id "
            f"{among}",
            store.id, listed,
        )  # fmt: skip
        # Who holds the episodes in memory may never have seen the steps that are gone, and what
        # they made of them: out of order.
        session.ask(
            "UPDATE episodes SET revision = (SELECT revision FROM buffers WHERE id = ?) WHERE "
            f"buffer_id = ? AND id {among}",
            store.id, store.id, listed,
        )  # fmt: skip
        session.ask(
            "DELETE FROM episodes WHERE buffer_id = ? AND last_position < 0 AND status <> 'open' "
            f"AND id {among}",
            store.id, listed,
        )  # fmt: skip
    return len(found)


def clear(store: Store) -> int:
    """Delete every step and episode; return how many steps there were.

    Positions go on where they were.
    """
    with store.writing() as (session, _):
        ((size,),) = session.ask("SELECT size FROM buffers WHERE id = ?", store.id)
        # As if evicted: with `low` past every position no trigger takes the rows from the count one
        # by one.
        session.ask(
            "UPDATE buffers SET low = added, holes = 0, revision = revision + 1 WHERE id = ?",
            store.id,
        )
        for table in ("priorities", "steps", "segments", "chunks", "episodes"):
            session.ask(f"DELETE FROM {table} WHERE buffer_id = ?", store.id)
        session.ask("UPDATE buffers SET size = 0, bytes = 0 WHERE id = ?", store.id)
    return int(size)


def declare(store: Store, fields: dict[str, Field]) -> None:
    """Fix the types of fields before a first value does.

    Raise FieldMismatch where they are stored otherwise.
    """
    with store.writing() as (session, outcome):
        ((version, added),) = session.ask(
            "SELECT fields_version, added FROM buffers WHERE id = ?", store.id
        )
        store.settle_fields(
            session, store.fields_at(session, version), fields, set(), added == 0, outcome
        )


def raise_capacity(store: Store, capacity: int | None) -> int | bool | None:
    """Raise the capacity, None for no limit, and return True.

    Return the stored one where that would lower it.
    """
    with store.writing() as (session, _):
        ((stored,),) = session.ask("SELECT capacity FROM buffers WHERE id = ?", store.id)
        if stored is None or (capacity is not None and capacity < stored):
            return True if stored == capacity else stored
        _set_capacity(session, store, capacity)
        return True


def set_capacity(store: Store, capacity: int | None) -> None:
    """Change the capacity; a lower one evicts at once, by the trigger."""
    with store.writing() as (session, _):
        _set_capacity(session, store, capacity)


def _set_capacity(session: Session, store: Store, capacity: int | None) -> None:
    statement = sa.update(tables.buffers).where(tables.buffers.c.id == store.id)
    session.connection.execute(statement.values(capacity=capacity))


def index(store: Store, name: str) -> None:
    """Index a column or a tag, for the queries of every buffer.

    Nothing happens if it is indexed.
    """
    table, column, key = resolve(name)
    if not isinstance(column, sa.Column):
        raise errors.QueryError(
            f"{name!r} cannot be indexed: choose a column of the tables, or a tag"
        )
    if key is not None:
        store.warn_of_unknown_tags([name.removeprefix("exp_meta.")])
    expression = column if key is None else store.dialect.tag_value(column, key)
    label = f"{table.name}_by_{name.removeprefix('exp_meta.').replace('.', '_')}"
    with store.writing() as (session, _):
        if store.dialect.has_index(session, label):
            return
        definition = sa.Index(
            label, table.c.buffer_id, expression
        )  # leads with the buffer, as every query does
        try:
            definition.create(session.connection, checkfirst=False)
        finally:
            table.indexes.discard(definition)  # it is this database's, not the schema's
        store.dialect.estimate(session, table.name, label)
