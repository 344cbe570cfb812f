"""Changing what is stored: late rewards, deletion, capacity, indexes."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb.storage import select, tables
from expdb.storage.query import Condition, resolve
from expdb.storage.read import locate
from expdb.storage.rewrite import rewrite
from expdb.storage.store import Store

S, E = tables.steps.c, tables.episodes.c


def update(store: Store, where: Condition, changes: dict[str, Any]) -> int:
    """Set columns of the matching steps, or of their episodes; return how many steps match."""
    of_steps = {name: value for name, value in changes.items() if name in tables.STEP_COLUMNS}
    of_episodes = {name: value for name, value in changes.items() if name in tables.EPISODE_COLUMNS}
    with store.writing() as (session, _):
        found = select.positions(store, session, where)
        matching = sa.and_(S.buffer_id == store.id, store.dialect.among(S.position, found.tolist()))
        if of_episodes and len(found):
            mine = E.id.in_(sa.select(S.episode).where(matching))
            session.sa.execute(sa.update(tables.episodes).where(E.buffer_id == store.id, mine).values(of_episodes))
        if of_steps and len(found):
            session.sa.execute(sa.update(tables.steps).where(matching).values(of_steps))
    return len(found)


def update_priorities(store: Store, positions: np.ndarray, priorities: np.ndarray) -> int:
    """Set the priority of steps; return how many of the updates met a step that is held."""
    rows = [(new, store.id, at) for at, new in zip(positions.tolist(), priorities.tolist(), strict=True)]
    with store.writing() as (session, _):
        statement = "UPDATE steps SET priority = ? WHERE buffer_id = ? AND position = ?"
        return int(session.driver.executemany(statement, rows).rowcount) if rows else 0


def delete(store: Store, where: Condition) -> int:
    """Delete the matching steps, and rewrite the chunks they leave; return how many there were."""
    among = store.dialect.LISTED
    with store.writing() as (session, news):
        found = select.positions(store, session, where)
        if not len(found):
            return 0
        segments = locate(store, session, found)
        index = segments.find(found)
        listed = store.dialect.as_list(found)
        session.ask(f"DELETE FROM steps WHERE buffer_id = ? AND position IN {among}", store.id, listed)
        for chunk in np.unique(segments.chunk[index]).tolist():
            rewrite(store, session, news, [chunk])
        # The trigger took them for rows deleted by hand; now no segment covers them any more.
        session.ask(
            "UPDATE buffers SET holes = CASE WHEN holes > ? THEN holes - ? ELSE 0 END WHERE id = ?",
            len(found), len(found), store.id,
        )  # fmt: skip
        listed = store.dialect.as_list(np.unique(segments.episode[index]))
        session.ask(
            "UPDATE episodes SET last_position = coalesce((SELECT max(last) FROM segments g WHERE g.buffer_id = "
            f"episodes.buffer_id AND g.episode = episodes.id), -1) WHERE buffer_id = ? AND id IN {among}",
            store.id, listed,
        )  # fmt: skip
        session.ask(
            f"DELETE FROM episodes WHERE buffer_id = ? AND last_position < 0 AND status <> 'open' AND id IN {among}",
            store.id, listed,
        )  # fmt: skip
    return len(found)


def clear(store: Store) -> int:
    """Delete every step and episode; return how many steps there were. Positions go on where they were."""
    with store.writing() as (session, _):
        ((size,),) = session.ask("SELECT size FROM buffers WHERE id = ?", store.id)
        # As if evicted: with `low` past every position no trigger takes the rows from the count one by one.
        session.ask("UPDATE buffers SET low = added, holes = 0, revision = revision + 1 WHERE id = ?", store.id)
        for table in ("steps", "segments", "chunks", "episodes"):
            session.ask(f"DELETE FROM {table} WHERE buffer_id = ?", store.id)
        session.ask("UPDATE buffers SET size = 0, bytes = 0 WHERE id = ?", store.id)
    return int(size)


def set_capacity(store: Store, capacity: int | None) -> None:
    """Change the capacity; a lower one evicts at once, by the trigger."""
    with store.writing() as (session, _):
        session.ask("UPDATE buffers SET capacity = ? WHERE id = ?", capacity, store.id)


def index(store: Store, name: str) -> None:
    """Index a column or a tag, for the queries of every buffer; nothing happens if it is indexed."""
    table, column, key = resolve(name)
    expression = column if key is None else store.dialect.tag_value(column, key)
    label = f"{table.name}_by_{name.removeprefix('exp_meta.').replace('.', '_')}"
    with store.writing() as (session, _):
        if store.dialect.has_index(session.driver, label):
            return
        definition = sa.Index(label, table.c.buffer_id, expression)  # leads with the buffer, as every query does
        try:
            definition.create(session.sa, checkfirst=False)
        finally:
            table.indexes.discard(definition)  # it is this database's, not the schema's
        store.dialect.estimate(session.driver, table.name, label)
