"""The rows of episodes: begun, advanced and ended by writers, looked up by name.

Swept away where nobody ends them.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field
from expdb.sql import tables
from expdb.sql.engine import Session
from expdb.storage.store import News, Store
from expdb.storage.writing import compact as rewrite
from expdb.storage.writing.pending import Episode, Pending

E = tables.episodes.c


def settle(
    session: Session,
    store: Store,
    pending: Pending,
    episode: Episode,
    mine: list[int],
    first: int,
    status: str,
    next_id: int,
    now: float,
    step: list[int],
) -> Episode:
    """Insert or advance an episode's row, number its steps in `step`.

    Return the episode as it will be.
    """
    details = pending.details.get(id(episode), {})
    after = Episode(**{**episode.__dict__, **details})
    if details and episode.id is not None:
        statement = sa.update(tables.episodes).where(E.buffer_id == store.id, E.id == episode.id)
        session.connection.execute(statement.values(**details))
    gained, last_position = pending.gained(mine), first + mine[-1]
    ended = None if status == "open" else now
    for attempt in (0, 1):
        length = after.length
        last_step, ordered = pending.number(after, mine, step)
        total = after.gained if gained is None else gained + (after.gained or 0.0)
        if after.id is None:
            after.id = next_id
            _insert_episode(
                session,
                store,
                after,
                (status, length + len(mine), total, ended, ordered, last_step, last_position),
                now,
            )
            break
        advanced = session.ask(
            "UPDATE episodes SET length = length + ?, status = ?, ended = ?, ordered = ?, "
            "last_step = ?, last_position = ?, "
            "episode_return = coalesce(episode_return + ?, episode_return, ?) "
            "WHERE buffer_id = ? AND id = ? AND status = 'open' AND length = ? RETURNING 1",
            len(mine), status, ended, ordered, last_step, last_position, gained, gained, store.id,
            after.id, length,
        )  # fmt: skip
        if advanced:
            break
        # Another process has written to it, ended it, or swept it away.
        current = session.ask(
            "SELECT status, length, last_step, ordered FROM episodes WHERE buffer_id = ? AND id = "
            "?",
            store.id,
            after.id,
        )
        if not current and not attempt and 0 <= after.last_position < swept_before(store, session):
            after.id = None
            ((next_id,),) = session.ask(
                "UPDATE buffers SET episodes_added = episodes_added + 1 WHERE id = ? RETURNING "
                "episodes_added - 1",
                store.id,
            )
            continue
        if attempt or not current or current[0][0] != "open":
            state = current[0][0] if current else "gone"
            raise errors.EpisodeEnded(f"episode {after.episode_id!r} is {state}: start another one")
        _, after.length, after.last_step, ordered = current[0]
        after.ordered = bool(ordered)
    after.length, after.last_step, after.ordered = length + len(mine), last_step, ordered
    after.last_position, after.gained = last_position, total
    return after


def _insert_episode(
    session: Session,
    store: Store,
    episode: Episode,
    progress: tuple[object, ...],
    now: float,
) -> None:
    if session.ask(
        "SELECT 1 FROM episodes WHERE buffer_id = ? AND episode_id = ?",
        store.id,
        episode.episode_id,
    ):
        raise errors.EpisodeMismatch(
            f"episode {episode.episode_id!r} exists already: choose another episode_id"
        )
    status, length, gained, ended, ordered, last_step, last_position = progress
    session.ask(
        "INSERT INTO episodes (buffer_id, id, episode_id, run, task_id, task_name, agent_id, "
        "group_id, policy_version, "
        "episode_tags, started, status, length, episode_return, ended, ordered, last_step, "
        "last_position) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        store.id, episode.id, episode.episode_id, episode.run, episode.task_id, episode.task_name,
        episode.agent_id,
        episode.group_id, episode.policy_version, episode.episode_tags, episode.started or now,
        status, length, gained,
        ended, ordered, last_step, last_position,
    )  # fmt: skip


def end_stored(store: Store, id: int, status: str) -> None:
    """End a stored episode that has nothing pending."""
    with store.writing() as (session, news):
        end(store, session, news, id, status, None, {})


def end(
    store: Store,
    session: Session,
    news: News,
    id: int,
    status: str,
    tail: dict[str, Any] | None,
    tail_types: dict[str, Field],
) -> None:
    """Set an episode's status, merge its chunks, and keep its tail."""
    ended = session.ask(
        "UPDATE episodes SET status = ?, ended = ? WHERE buffer_id = ? AND id = ? AND status = "
        "'open' RETURNING 1",
        status, time.time(), store.id, id,
    )  # fmt: skip
    if not ended:
        raise errors.EpisodeEnded("the episode has ended already, or is gone: start another one")
    rewrite.finish(store, session, news, id, tail, tail_types)


ENDED_AT_ONCE = 500


def complete(store: Store, ids: Sequence[int]) -> None:
    """Complete those of the episodes that are still open, many in one transaction."""
    for start in range(0, len(ids), ENDED_AT_ONCE):
        with store.writing() as (session, news):
            listed = store.dialect.as_list(np.array(ids[start : start + ENDED_AT_ONCE], np.int64))
            ended = session.ask(
                "UPDATE episodes SET status = 'complete', ended = ? WHERE buffer_id = ? AND "
                f"status = 'open' AND id {store.dialect.AMONG} RETURNING id",
                time.time(), store.id, listed,
            )  # fmt: skip
            for (id,) in sorted(ended):
                rewrite.finish(store, session, news, id, None, {})


# -- episodes that nobody ends ---------------------------------------------------------------------

SWEEP_EVERY = 256  # episodes that a process begins between two sweeps
SWEPT_AT_ONCE = 1024  # of all episodes, in turns


def swept_before(store: Store, session: Session) -> int:
    """Return the position before which an open episode must have been written to last.

    To be swept away.
    """
    ((low, capacity),) = session.ask("SELECT low, capacity FROM buffers WHERE id = ?", store.id)
    return 0 if capacity is None else max(0, int(low - capacity))


def sweep(store: Store) -> None:
    """Delete the next open episodes that nobody goes on with.

    That is: nobody has written to them while the buffer was filled twice over.

    Eviction leaves open episodes, because somebody may go on with them; a writer that does so after
    all finds its episode gone and inserts it again, with what it remembers. Not by a trigger: it
    would look at every open episode each time.
    """
    with store.writing() as (session, _):
        bound = swept_before(store, session)
        rows = session.ask(
            "SELECT id, status, last_position FROM episodes WHERE buffer_id = ? AND id >= ? ORDER "
            "BY id LIMIT ?",
            store.id, store.sweep_from, SWEPT_AT_ONCE,
        )  # fmt: skip
        gone = [(store.id, id) for id, status, last in rows if status == "open" and last < bound]
        session.many("DELETE FROM episodes WHERE buffer_id = ? AND id = ?", gone)
    store.sweep_from = rows[-1][0] + 1 if len(rows) == SWEPT_AT_ONCE else 0
    store.swept = max(store.swept, bound)


def sweep_if_due(store: Store, began: int) -> None:
    """Note how many episodes were begun, and sweep now and then.

    The write that began them is committed.
    """
    store.begun += began
    if store.begun >= SWEEP_EVERY:
        store.begun = 0
        try:
            sweep(store)
        except (errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
            return  # the steps are stored; the next sweep will do


NAMES_AT_ONCE = 500


def find(store: Store, names: Sequence[str]) -> dict[str, tuple[Episode, str]]:
    """Return the episodes that there are of these names, and the status of each."""
    columns = (
        E.episode_id, E.run, E.task_id, E.agent_id, E.task_name, E.group_id, E.policy_version,
        E.episode_tags,
        E.started, E.id, E.length, E.last_step, E.last_position, E.ordered, E.status,
    )  # fmt: skip
    with store.engine.reading() as session:
        rows = [
            row for start in range(0, len(names), NAMES_AT_ONCE)
            for row in session.rows(
                sa.select(*columns).where(
                    E.buffer_id == store.id, E.episode_id.in_(names[start : start + NAMES_AT_ONCE])
                )
            )
        ]  # fmt: skip
    found = {}
    for *values, last_position, ordered, status in rows:
        episode = Episode(*values)
        episode.ordered, episode.last_position = bool(ordered), last_position
        found[episode.episode_id] = episode, status
    return found
