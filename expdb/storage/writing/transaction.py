"""Writing: one transaction a call, all or nothing.

Take positions (which locks out other writers), settle the episodes, insert steps, segments and
chunks, count (which evicts). What is slow and needs no lock, checking and encoding the fields, was
done before, in `pending.py`.
"""

import json
import time
import uuid

import numpy as np

from expdb import errors
from expdb.sql.engine import Session
from expdb.storage.store import COUNT, INSERT_SEGMENT, TAKE, News, Store, Writing
from expdb.storage.writing import compact as rewrite
from expdb.storage.writing import episodes
from expdb.storage.writing.append import append
from expdb.storage.writing.pending import Pending, runs

RETRY_SECONDS = 0.1


def write(store: Store, pending: Pending) -> np.ndarray:
    """Write the pending steps in one transaction and return their positions, int64 in order.

    Raises EpisodeEnded, EpisodeMismatch or FieldMismatch, with nothing stored, where another
    process has meanwhile ended an episode, used its name, or given a field another type. After
    anything else that is raised, interrupts included, `pending.stored` and `pending.is_in_doubt`
    tell what has become of the steps.
    """
    pending.close()
    again, deadline = pending.is_in_doubt, time.monotonic() + store.engine.timeout
    if store.dialect.LARGE and not again:  # of use only where a connection can be lost
        pending.write_id = uuid.uuid4().hex
    began = sum(episode.id is None for episode in pending.distinct.values())
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
                # Another process has typed a field meanwhile; an int, say, still goes into what is
                # now a float field.
                pending.retype(store.fields, pending.tail)
            except errors.ConnectionLost as error:
                # Nobody knows whether the write was committed, so it is done again under the same
                # id, once only.
                if time.monotonic() >= deadline:
                    what = (
                        "whether this write is stored can be told by its chunks' write_id "
                        f"{pending.write_id!r}"
                    )
                    raise errors.CommitUnknown(f"{error}; {what}") from error
                again = True
                time.sleep(RETRY_SECONDS)
    except errors.ExpDBError:
        if not again:
            pending.write_id = ""  # it was refused, which leaves no doubt
        raise
    if began:
        episodes.sweep_if_due(store, began)
    return pending.stored


def _in_transaction(store: Store, pending: Pending, again: bool) -> None:
    """Write the pending steps statement by statement.

    With all that may be new or different from what is known.
    """
    writing, positions = Writing(store, News(write_id=pending.write_id or None), locked=again), None
    try:
        with writing as (session, news):
            positions = _written(store, session, pending) if again else None
            if positions is None:
                positions = _write(store, session, pending, news)
        pending.stored = positions
    except BaseException as error:
        writing.__exit__(
            type(error), error, None
        )  # an interrupt may have come just before that, or just after the commit
        if writing.committed:
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
            current = [
                status
                for (status,) in session.ask(
                    "SELECT status FROM episodes WHERE buffer_id = ? AND id = ?",
                    store.id,
                    episode.id,
                )
            ]
            was_swept = not current and 0 <= episode.last_position < episodes.swept_before(
                store, session
            )
            if not was_swept and not (again and current == [status]):
                if pending.tail:
                    ((version,),) = session.ask(
                        "SELECT fields_version FROM buffers WHERE id = ?", store.id
                    )
                    store.settle_fields(
                        session,
                        store.fields_at(session, version),
                        pending.tail_types,
                        set(),
                        False,
                        news,
                    )
                episodes.end(
                    store, session, news, episode.id, status, pending.tail, pending.tail_types
                )
        pending.stored = nothing
    except BaseException as error:
        writing.__exit__(type(error), error, None)
        if writing.committed:
            pending.stored = nothing
        raise


def _written(store: Store, session: Session, pending: Pending) -> np.ndarray | None:
    """Return the positions of a write that was committed unseen, None where it was not."""
    ((last,),) = session.ask(
        "SELECT max(id) FROM chunks WHERE buffer_id = ? AND write_id = ?",
        store.id,
        pending.write_id,
    )
    if last is None:
        return None
    for episode in pending.distinct.values():
        found = session.ask(
            "SELECT id, length, last_step, ordered, last_position FROM episodes WHERE buffer_id = "
            "? AND episode_id = ?",
            store.id, episode.episode_id,
        )  # fmt: skip
        if found:
            (
                episode.id,
                episode.length,
                episode.last_step,
                episode.ordered,
                episode.last_position,
            ) = found[0]
    return np.arange(last - len(pending) + 1, last + 1, dtype=np.int64)


def _write(store: Store, session: Session, pending: Pending, news: News) -> np.ndarray:
    dialect, now, count = store.dialect, time.time(), len(pending)
    steps, mine = pending.steps, pending.by_episode()
    by_identity = pending.distinct
    distinct = list(mine)
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
        after = episodes.settle(
            session, store, pending, episode, mine[key], first, status, next_id, now, step
        )
        next_id += episode.id is None
        begin = after.length - len(mine[key])
        for place, index in enumerate(mine[key]):
            episode_ids[index], ordinals[index] = after.id or 0, begin + place
        news.episodes.append((episode, after))

    # -- rows and chunks
    columns = (
        range(first, added), episode_ids, step, steps.pre_agent, steps.execute_time, steps.reward,
        steps.terminated,
        steps.truncated, steps.tags,
    )  # fmt: skip
    dialect.insert_steps(session, store.id, columns, count)
    row = nbytes = 0
    for block in pending.blocks:
        stop = row + block.steps
        chunk = first + stop - 1
        single = (
            episode_ids[row] if len(distinct) == 1 or len(set(episode_ids[row:stop])) == 1 else None
        )
        system = (
            step[row:stop],
            steps.reward[row:stop],
            steps.terminated[row:stop],
            steps.truncated[row:stop],
        )
        nbytes += store.insert_chunk(
            session, news, block, system, id=chunk, first=first + row, episode=single
        )
        segments = [
            (store.id, *run) for run in runs(first, episode_ids, ordinals, row, stop, chunk)
        ]
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
            rewrite.finish(
                store, session, news, episode_id, tail, pending.tail_types if tail else {}
            )
    return np.arange(first, added, dtype=np.int64)


def keep_tail(
    session: Session, store: Store, episode: int, chunk: int, row: int, fields: list[str]
) -> None:
    """Note where the observation after an episode's last step lies."""
    session.ask(
        "UPDATE episodes SET tail_chunk = ?, tail_row = ?, tail_fields = ? WHERE buffer_id = ? AND "
        "id = ?",
        chunk, row, json.dumps(fields), store.id, episode,
    )  # fmt: skip
