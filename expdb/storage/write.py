"""Writing: one transaction a call, all or nothing.

Take positions (which locks out other writers), settle the episodes, insert steps, segments and chunks, count (which
evicts). What is slow and needs no lock, checking and encoding the fields, was done before, in `pending.py`.
"""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.storage import rewrite, tables
from expdb.storage.append import append
from expdb.storage.engine import Session
from expdb.storage.pending import Episode, Pending, runs
from expdb.storage.signature import Field
from expdb.storage.store import COUNT, INSERT_SEGMENT, TAKE, News, Store, Writing

E = tables.episodes.c
RETRY_SECONDS = 0.1


def write(store: Store, pending: Pending) -> np.ndarray:
    """Write the pending steps in one transaction and return their positions, int64 in order.

    Raises EpisodeEnded, EpisodeMismatch or FieldMismatch, with nothing stored, where another process has meanwhile
    ended an episode, used its name, or given a field another type. After anything else that is raised, interrupts
    included, `pending.stored` and `pending.is_in_doubt` tell what has become of the steps.
    """
    pending.close()
    again, deadline = pending.is_in_doubt, time.monotonic() + store.engine.timeout
    if store.dialect.LARGE and not again:  # of use only where a connection can be lost
        pending.write_id = uuid.uuid4().hex
    try:
        while pending.stored is None:
            try:
                if not len(pending):
                    _end_only(store, pending, again)
                elif not append(store, pending, again):
                    _in_transaction(store, pending, again)
            except errors.FieldMismatch:
                if pending.fields.version == store.fields.version:
                    raise
                # Another process has typed a field meanwhile; an int, say, still goes into what is now a float field.
                pending.retype(store.fields)
            except errors.ConnectionLost as error:
                # Nobody knows whether the write was committed, so it is done again under the same id, once only.
                if time.monotonic() >= deadline:
                    what = f"whether this write is stored can be told by its chunks' write_id {pending.write_id!r}"
                    raise errors.CommitUnknown(f"{error}; {what}") from error
                again = True
                time.sleep(RETRY_SECONDS)
    except errors.ExpDBError:
        if not again:
            pending.write_id = ""  # it was refused, which leaves no doubt
        raise
    return pending.stored


def _in_transaction(store: Store, pending: Pending, again: bool) -> None:
    """Write the pending steps statement by statement, with all that may be new or different from what is known."""
    writing, positions = Writing(store, News(write_id=pending.write_id or None), locked=again), None
    try:
        with writing as (session, news):
            positions = _written(store, session, pending) if again else None
            if positions is None:
                positions = _write(store, session, pending, news)
        pending.stored = positions
    except BaseException:
        if writing.committed:  # an interrupt came just after it
            pending.stored = positions
        raise


def _end_only(store: Store, pending: Pending, again: bool) -> None:
    """End an episode that has no steps to be written; nothing where it has none at all."""
    episode, nothing = pending.ending, np.empty(0, np.int64)
    if episode is None or episode.id is None:
        pending.stored = nothing
        return
    status = pending.ended[id(episode)]
    writing = Writing(store)
    try:
        with writing as (session, news):
            if not (again and session.ask("SELECT 1 FROM episodes WHERE buffer_id = ? AND id = ? AND status = ?", store.id, episode.id, status)):
                if pending.tail:
                    ((version,),) = session.ask("SELECT fields_version FROM buffers WHERE id = ?", store.id)
                    store.settle_fields(session, store.fields_at(session, version), pending.tail_types, set(), False, news)
                _end(store, session, news, episode.id, status, pending.tail, pending.tail_types)
        pending.stored = nothing
    except BaseException:
        if writing.committed:
            pending.stored = nothing
        raise


def _written(store: Store, session: Session, pending: Pending) -> np.ndarray | None:
    """Return the positions of a write that was committed unseen, None where it was not."""
    ((last,),) = session.ask("SELECT max(id) FROM chunks WHERE buffer_id = ? AND write_id = ?", store.id, pending.write_id)
    if last is None:
        return None
    for episode in {id(episode): episode for episode in pending.steps.episode}.values():
        found = session.ask(
            "SELECT id, length, last_step, ordered FROM episodes WHERE buffer_id = ? AND episode_id = ?",
            store.id, episode.episode_id,
        )  # fmt: skip
        if found:
            episode.id, episode.length, episode.last_step, episode.ordered = found[0]
    return np.arange(last - len(pending) + 1, last + 1, dtype=np.int64)


def _write(store: Store, session: Session, pending: Pending, news: News) -> np.ndarray:
    dialect, now, count = store.dialect, time.time(), len(pending)
    steps, mine = pending.steps, pending.by_episode()
    distinct = list(mine)
    by_identity = {id(episode): episode for episode in steps.episode}
    new = sum(by_identity[key].id is None for key in distinct)
    taken = session.ask(TAKE, count, new, store.id)
    if not taken:
        raise store.dropped()
    added, episodes_added, version = taken[0]
    first = added - count
    known = store.fields_at(session, version)
    store.settle_fields(session, known, *pending.found_fields(known), first == 0, news)

    # -- episodes
    step, episode_ids, ordinals = [0] * count, [0] * count, [0] * count
    next_id = episodes_added - new
    for key in distinct:
        episode = by_identity[key]
        status = pending.ended.get(key, "open")
        after = _settle_episode(session, store, pending, episode, mine[key], first, status, next_id, now, step)
        next_id += episode.id is None
        begin = after.length - len(mine[key])
        for place, index in enumerate(mine[key]):
            episode_ids[index], ordinals[index] = after.id or 0, begin + place
        news.episodes.append((episode, after))

    # -- rows and chunks
    columns = (
        range(first, added), episode_ids, step, steps.pre_agent, steps.execute_time, steps.reward, steps.terminated,
        steps.truncated, steps.tags,
    )  # fmt: skip
    dialect.insert_steps(session, store.id, columns, count)
    row = nbytes = 0
    for block in pending.blocks:
        stop = row + block.steps
        chunk = first + stop - 1
        single = episode_ids[row] if len(distinct) == 1 or len(set(episode_ids[row:stop])) == 1 else None
        system = (step[row:stop], steps.reward[row:stop], steps.terminated[row:stop], steps.truncated[row:stop])
        nbytes += store.insert_chunk(session, news, block, system, id=chunk, first=first + row, episode=single)
        segments = [(store.id, *run) for run in runs(first, episode_ids, ordinals, row, stop, chunk)]
        session.many(INSERT_SEGMENT, segments)
        row = stop
    session.ask(COUNT, count, nbytes, store.id)

    # -- ends
    for key in distinct:
        if key in pending.ended:
            episode_id = episode_ids[mine[key][0]]
            tail = pending.tail
            if tail and pending.tail_is_in_block:
                keep_tail(session, store, episode_id, chunk, pending.blocks[-1].steps, sorted(tail))
                tail = None
            rewrite.finish(store, session, news, episode_id, tail, pending.tail_types if tail else {})
    return np.arange(first, added, dtype=np.int64)


def _settle_episode(
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
    """Insert or advance an episode's row, number its steps in `step`, and return the episode as it will be."""
    details = pending.details.get(id(episode), {})
    after = Episode(**{**episode.__dict__, **details})
    if details and episode.id is not None:
        statement = sa.update(tables.episodes).where(E.buffer_id == store.id, E.id == episode.id)
        session.connection.execute(statement.values(**details))
    gained = pending.gained(mine)
    ended = None if status == "open" else now
    last_position = first + mine[-1]
    for attempt in (0, 1):
        length = after.length
        last_step, ordered = pending.number(after, mine, step)
        if after.id is None:
            _insert_episode(session, store, after, next_id, (status, len(mine), gained, ended, ordered, last_step, last_position), now)
            after.id = next_id
            break
        advanced = session.ask(
            "UPDATE episodes SET length = length + ?, status = ?, ended = ?, ordered = ?, last_step = ?, last_position = ?, "
            "episode_return = coalesce(episode_return + ?, episode_return, ?) "
            "WHERE buffer_id = ? AND id = ? AND status = 'open' AND length = ? RETURNING 1",
            len(mine), status, ended, ordered, last_step, last_position, gained, gained, store.id, after.id, length,
        )  # fmt: skip
        if advanced:
            break
        # Another process has written to it, or ended it.
        current = session.ask(
            "SELECT status, length, last_step, ordered FROM episodes WHERE buffer_id = ? AND id = ?", store.id, after.id
        )
        if attempt or not current or current[0][0] != "open":
            state = current[0][0] if current else "gone"
            raise errors.EpisodeEnded(f"episode {after.episode_id!r} is {state}: start another one")
        _, after.length, after.last_step, ordered = current[0]
        after.ordered = bool(ordered)
    after.length, after.last_step, after.ordered = length + len(mine), last_step, ordered
    return after


def _insert_episode(
    session: Session,
    store: Store,
    episode: Episode,
    id: int,
    progress: tuple[object, ...],
    now: float,
) -> None:
    if session.ask("SELECT 1 FROM episodes WHERE buffer_id = ? AND episode_id = ?", store.id, episode.episode_id):
        raise errors.EpisodeMismatch(f"episode {episode.episode_id!r} exists already: choose another episode_id")
    status, length, gained, ended, ordered, last_step, last_position = progress
    session.ask(
        "INSERT INTO episodes (buffer_id, id, episode_id, run, task_id, task_name, agent_id, group_id, policy_version, "
        "episode_tags, started, status, length, episode_return, ended, ordered, last_step, last_position) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        store.id, id, episode.episode_id, episode.run, episode.task_id, episode.task_name, episode.agent_id,
        episode.group_id, episode.policy_version, episode.episode_tags, episode.started or now, status, length, gained,
        ended, ordered, last_step, last_position,
    )  # fmt: skip


def keep_tail(session: Session, store: Store, episode: int, chunk: int, row: int, fields: list[str]) -> None:
    """Note where the observation after an episode's last step lies."""
    session.ask(
        "UPDATE episodes SET tail_chunk = ?, tail_row = ?, tail_fields = ? WHERE buffer_id = ? AND id = ?",
        chunk, row, json.dumps(fields), store.id, episode,
    )  # fmt: skip


def end_episode(store: Store, id: int, status: str) -> None:
    """End a stored episode that has nothing pending."""
    with store.writing() as (session, news):
        _end(store, session, news, id, status, None, {})


def _end(
    store: Store, session: Session, news: News, id: int, status: str, tail: dict[str, Any] | None, tail_types: dict[str, Field]
) -> None:
    """Set an episode's status, merge its chunks, and keep its tail."""
    ended = session.ask(
        "UPDATE episodes SET status = ?, ended = ? WHERE buffer_id = ? AND id = ? AND status = 'open' RETURNING 1",
        status, time.time(), store.id, id,
    )  # fmt: skip
    if not ended:
        raise errors.EpisodeEnded("the episode has ended already, or is gone: start another one")
    rewrite.finish(store, session, news, id, tail, tail_types)


NAMES_AT_ONCE = 500


def find_episodes(store: Store, names: Sequence[str]) -> dict[str, tuple[Episode, str]]:
    """Return the episodes that there are of these names, and the status of each."""
    columns = (
        E.episode_id, E.run, E.task_id, E.agent_id, E.task_name, E.group_id, E.policy_version, E.episode_tags,
        E.started, E.id, E.length, E.last_step, E.ordered, E.status,
    )  # fmt: skip
    with store.engine.reading() as session:
        rows = [
            row for start in range(0, len(names), NAMES_AT_ONCE)
            for row in session.rows(sa.select(*columns).where(E.buffer_id == store.id, E.episode_id.in_(names[start : start + NAMES_AT_ONCE])))
        ]  # fmt: skip
    found = {}
    for *values, ordered, status in rows:
        episode = Episode(*values)
        episode.ordered = bool(ordered)
        found[episode.episode_id] = episode, status
    return found
