"""Write the steps of one call, or of several calls, in one transaction, all or nothing.

A write reserves positions (which locks out other writers), resolves the episodes, inserts steps,
segments and chunks, and updates the counters (which evicts). Checking and encoding the fields is
slow and needs no lock, so `pending_steps.py` does both beforehand.
"""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.catalog import Fields
from expdb.storage.commits import BufferCounters, Commit
from expdb.storage.outcome import WriteOutcome
from expdb.storage.statements import (
    COUNT,
    COUNT_AND_RETURN,
    COUNTERS,
    KEEP_FINAL,
    RESERVE_EPISODE,
    RESERVE_POSITIONS,
)
from expdb.storage.store import Store, Writing
from expdb.storage.write_plan import WritePlan
from expdb.storage.writing import abandoned_episodes, compact, episodes, relations, step_numbers
from expdb.storage.writing.in_doubt import commit_unknown, find_written
from expdb.storage.writing.pending_steps import PendingSteps
from expdb.storage.writing.plan import make_plan
from expdb.storage.writing.round_trip import (
    append_all,
    compact_ended,
    find_decoders,
    fits_one_statement,
    write_at_once,
)

E, B = tables.episodes.c, tables.buffers.c

RETRY_SECONDS = 0.1


def write(store: Store, pending: PendingSteps) -> np.ndarray:
    """Write the pending steps in one transaction and return their positions, int64 in order.

    Raise RateLimited if the rate limiter does not allow the steps yet. Raise EpisodeEnded,
    EpisodeMismatch or FieldMismatch, and store nothing, if another process has ended an episode,
    used its name, or given a field another type. After any other exception, including interrupts,
    `pending.stored` and `pending.is_in_doubt` show whether the steps are stored.
    """
    pending.close()
    again, deadline = pending.is_in_doubt, time.monotonic() + store.engine.remaining()
    # The id is needed only if a connection can be lost.
    if store.dialect.ROUND_TRIP_STEPS and not again:
        pending.write_id = uuid.uuid4().hex
    new_episodes = len([record for record in pending.episodes() if record.id is None])
    repeats: _RepeatedSteps | None = None
    try:
        while pending.stored is None:
            try:
                if not pending.taken:
                    _end_only(store, pending, again)
                else:
                    at_once = store.dialect.ROUND_TRIP_STEPS
                    commit = write_at_once(store, pending, again) if at_once else None
                    commit = commit or _in_transaction(store, pending, again)
                    if not again:
                        _enqueue_commit(store, pending, commit)
            except step_numbers.NumberConflicts as error:
                repeats = repeats or _RepeatedSteps(len(pending))
                repeats.discard(store, pending, error.steps)
            except errors.FieldMismatch:
                if pending.fields.version == store.fields.version:
                    raise
                # Another process has set the type of a field. The values may still fit: an int, for
                # example, can be stored in a float field.
                pending.retype(store.fields, pending.final)
            except (errors.ConnectionLost, errors.DatabaseBusy) as error:
                is_busy = isinstance(error, errors.DatabaseBusy)
                if is_busy and not again:
                    raise
                # It is unknown whether the write was committed, so it is repeated under the same
                # id; the steps are stored only once.
                if is_busy or time.monotonic() >= deadline:
                    raise commit_unknown(error, pending) from error
                again = True
                time.sleep(RETRY_SECONDS)
    except errors.ExpDBError:
        if not again:
            pending.write_id = ""  # the write was refused, so nothing is stored
        raise
    if repeats is not None:
        pending.stored = repeats.merge(pending.stored)
    store.activity.add_steps(len(pending), pending.ended)
    if new_episodes:
        abandoned_episodes.sweep_if_due(store, new_episodes)
    return pending.stored


class _RepeatedSteps:
    """The steps of a write that repeat other steps, so they are not stored again."""

    def __init__(self, count: int):
        self._count, self._taken = count, dict[int, step_numbers.NumberConflict]()

    def discard(
        self, store: Store, pending: PendingSteps, taken: list[step_numbers.NumberConflict]
    ) -> None:
        """Discard steps whose numbers are taken; raise if one is not equal to the stored step."""
        rest = [index for index in range(self._count) if index not in self._taken]
        places = {step.place for step in taken}
        try:
            step_numbers.require_equal(store, pending, taken)
        except (errors.InvalidValue, errors.Evicted) as error:
            error.discarded_steps = len(places)
            pending.discard(places)  # so that a writer can still write its other steps
            raise
        pending.discard(places)
        self._taken |= {
            rest[step.place]: step._replace(first=None if step.first is None else rest[step.first])
            for step in taken
        }

    def merge(self, stored: np.ndarray) -> np.ndarray:
        """Return the positions of all steps, given those of the steps that were stored."""
        rest = iter(stored.tolist())
        positions: list[int] = []
        for index in range(self._count):
            if (step := self._taken.get(index)) is None:
                positions.append(next(rest))
            else:
                at = positions[step.first] if step.first is not None else step.position
                assert at is not None
                positions.append(at)
        return np.array(positions, np.int64)


def can_share_transaction(store: Store, pending: PendingSteps) -> bool:
    """Close the pending steps; return whether they can share a transaction with other steps.

    They cannot if an earlier write of them has an unknown outcome, if fields or signatures must
    be stored first, or if one statement of PostgreSQL cannot write them. A write without steps
    can share a transaction only if it ends a stored episode.
    """
    pending.close()
    if pending.is_stored or pending.is_in_doubt:
        return False
    if not len(pending) and (pending.ending is None or pending.ending.id is None):
        return False
    if store.dialect.ROUND_TRIP_STEPS and not fits_one_statement(store, pending):
        return False
    return find_decoders(store, pending) is not None


def write_together(store: Store, group: Sequence[PendingSteps]) -> None:
    """Write the steps of several calls in one transaction, all or nothing, and set their positions.

    `can_share_transaction` must be true for each call. Raise OutOfDate and store nothing if each
    call needs its own transaction. After ConnectionLost, the outcome of every call is unknown.
    `write` then checks whether the steps of a call are stored, and writes missing steps.
    """
    new_episodes = sum(record.id is None for steps in group for record in steps.episodes())
    if store.dialect.ROUND_TRIP_STEPS:
        for steps in group:
            steps.write_id = uuid.uuid4().hex
    try:
        _commit_together(store, group)
    except errors.ConnectionLost:
        raise
    except errors.ExpDBError:
        for steps in group:
            steps.write_id = ""  # nothing is stored
        raise
    for steps in group:
        store.activity.add_steps(len(steps), steps.ended)
    if new_episodes:
        abandoned_episodes.sweep_if_due(store, new_episodes)


def _commit_together(store: Store, group: Sequence[PendingSteps]) -> None:
    added = [steps for steps in group if len(steps)]
    endings = [(steps, steps.ending) for steps in group if not len(steps)]
    uses_append = bool(store.dialect.ROUND_TRIP_STEPS)
    drafts = [] if uses_append else [build_draft(store, steps) for steps in added]
    written: list[tuple[np.ndarray, WritePlan, BufferCounters | None]] = []
    writing = Writing(store)
    try:
        with writing as (session, outcome):
            if uses_append and added:
                written += append_all(store, session, added, outcome, last=not endings)
            for steps, draft in zip(added, drafts, strict=False):
                written.append(write_draft(store, session, steps, draft, outcome))
                refuse_new_fields(outcome)
            for steps, episode in endings:
                assert episode is not None
                _end_stored(store, session, outcome, steps, episode, False)
                refuse_new_fields(outcome)
    finally:
        if writing.committed:
            for steps, (positions, _, _) in zip(added, written, strict=True):
                steps.stored = positions
            for steps, _ in endings:
                steps.stored = np.empty(0, np.int64)
    if uses_append:
        compact_ended(store, [plan for _, plan, _ in written])
    # Only the last commit has the versions, so the rows in memory count as current only after all
    # commits are applied.
    versions: list[Any] = [None] * len(written)
    if written and not endings:
        versions[-1] = writing.commit_versions
    for steps, (positions, plan, counters), version in zip(added, written, versions, strict=True):
        if counters is not None:
            commit = Commit(int(positions[0]), plan, store.fields, counters, version)
            _enqueue_commit(store, steps, commit)


def refuse_new_fields(outcome: WriteOutcome) -> None:
    """Raise OutOfDate if a write of a shared transaction has changed the fields of the buffer.

    The next write would adopt the fields, which are not committed, and keep them after a rollback.
    `can_share_transaction` excludes such writes, but another process may have changed the fields.
    """
    if outcome.fields is not None:
        raise errors.OutOfDate("the fields of the buffer have changed")


def _enqueue_commit(store: Store, pending: PendingSteps, commit: Commit | None) -> None:
    """Queue a commit for the rows in memory, unless its final observation is in a separate chunk.

    If the commit changed columns of an episode, its revision differs from that of the rows in
    memory, and they are read again.
    """
    if commit is None or commit.plan is None or not store.commit_queue.is_accepting:
        return
    if pending.final and commit.plan.final is None:
        return
    texts = [
        *commit.plan.columns[0], *commit.plan.columns[5], *commit.plan.columns[-1],
        *[write.after.episode_tags for write in commit.plan.episodes],
    ]  # fmt: skip
    nbytes = sum([len(text) for text in texts if text])
    store.commit_queue.put(commit, pending.nbytes + nbytes)


def _in_transaction(store: Store, pending: PendingSteps, again: bool) -> Commit | None:
    """Write the pending steps statement by statement.

    Fields, signatures and episodes may differ from the cached ones. Return None if the write added
    fields or if an earlier attempt had already written the steps.
    """
    draft = build_draft(store, pending)  # build it before the lock, which makes other writers wait
    writing = Writing(store, WriteOutcome(write_id=pending.write_id or None), locked=again)
    positions, plan, counters = None, None, None
    try:
        with writing as (session, outcome):
            positions = find_written(store, session, pending) if again else None
            if positions is None:
                positions, plan, counters = write_draft(store, session, pending, draft, outcome)
        pending.stored = positions
        if plan is None or counters is None or outcome.fields is not None:
            return None
        return Commit(int(positions[0]), plan, store.fields, counters, writing.commit_versions)
    except BaseException as error:
        # An interrupt may come just after the commit, or before `pending.stored` is set.
        writing.__exit__(type(error), error, None)
        if writing.committed:
            pending.stored = positions
        raise


def _end_only(store: Store, pending: PendingSteps, again: bool) -> None:
    """End an episode without steps to write; do nothing if none of its steps are stored."""
    episode, nothing = pending.ending, np.empty(0, np.int64)
    if episode is None or episode.id is None:
        pending.stored = nothing
        return
    writing = Writing(store)
    try:
        with writing as (session, outcome):
            _end_stored(store, session, outcome, pending, episode, again)
        pending.stored = nothing
    except BaseException as error:
        writing.__exit__(type(error), error, None)
        if writing.committed:
            pending.stored = nothing
        raise


def _end_stored(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    pending: PendingSteps,
    episode: EpisodeRecord,
    again: bool,
) -> None:
    """End an episode whose steps are stored, unless it has ended already or was swept."""
    assert episode.id is not None
    status, is_episode = pending.ended[episode], (E.buffer_id == store.id, E.id == episode.id)
    rows = session.query(sa.select(E.status, E.generation).where(*is_episode))
    if rows and rows[0][1] != episode.generation:
        raise episodes.resumed(episode.episode_id)
    current = [stored_status for stored_status, _ in rows]
    if not current and 0 <= episode.last_position < abandoned_episodes.swept_before(store, session):
        return
    if again and current == [status]:
        return
    types = pending.final_types
    if pending.final:
        version = session.query(sa.select(B.fields_version).where(B.id == store.id))[0][0]
        fields = store.fields_at(session, version)
        store.settle_fields(session, fields, types, set(), False, outcome)
    episodes.end(store, session, outcome, episode.id, status, pending.final, types)


@dataclass(frozen=True)
class Draft:
    """A plan made before the write has the lock; it is valid if nothing changes until then."""

    plan: WritePlan
    fields: Fields
    fields_of_steps: tuple[
        dict[str, Field], set[str]
    ]  # returned by `PendingSteps.collect_fields` for `fields`


def build_draft(store: Store, pending: PendingSteps) -> Draft:
    """Plan the write of pending steps, and encode their chunks."""
    fields, plan = store.fields, make_plan(pending)
    for chunk in plan.chunks:
        decoder = store.signatures.of_fields(chunk.block.fields)
        if decoder is not None:
            chunk.message(decoder.templates)
    return Draft(plan, fields, pending.collect_fields(fields))


def write_draft(
    store: Store, session: Session, pending: PendingSteps, draft: Draft, outcome: WriteOutcome
) -> tuple[np.ndarray, WritePlan, BufferCounters | None]:
    """Write the steps in a transaction; return their positions, the plan and the counters.

    The counters are None if no rows are in memory.
    """
    count, now = len(pending.taken), time.time()
    plan = draft.plan if draft.plan.is_current else make_plan(pending)
    new = len([write for write in plan.episodes if write.before.id is None])
    taken = session.query(RESERVE_POSITIONS, count, new, store.id)
    if not taken:
        raise store.dropped()
    added, episodes_added, version = taken[0]
    first = added - count
    fields = store.fields_at(session, version)
    fields_of_steps = (
        draft.fields_of_steps if fields is draft.fields else pending.collect_fields(fields)
    )
    store.settle_fields(session, fields, *fields_of_steps, first == 0, outcome)
    plan = _put_episodes(store, session, pending, plan, first, episodes_added - new, now)
    ids = [0]
    for write in plan.episodes:
        outcome.episodes.append((write.record, write.after))
        ids.append(write.after.id or 0)
    owners = list(map(ids.__getitem__, plan.place))
    columns = (range(first, added), owners, plan.step, *plan.columns)
    store.dialect.insert_steps(session, store.id, columns, count)
    episodes.widen_versions(store, session, plan)
    nbytes = 0
    for chunk in plan.chunks:
        nbytes += store.insert_chunk(
            session, outcome, chunk.block, chunk.message, id=first + chunk.last,
            first=first + chunk.first, episode=ids[chunk.episode] if chunk.episode else None,
        )  # fmt: skip
    segments = [
        (store.id, first + last, first + begin, ids[place], ordinal, first + chunk_id, row)
        for last, begin, place, ordinal, chunk_id, row in plan.segments
    ]
    store.dialect.insert_rows(session, tables.segments, segments)
    counters = _count(store, session, count, nbytes)
    if pending.ended:
        _compact_ended(store, session, pending, plan, first, outcome)
    return np.arange(first, added, dtype=np.int64), plan, counters


def _count(store: Store, session: Session, count: int, nbytes: int) -> BufferCounters | None:
    """Count new steps, which may evict; return the counters if the rows in memory need them."""
    if not store.commit_queue.is_accepting:
        session.execute(COUNT, count, nbytes, store.id)
        return None
    ((*counters, capacity),) = session.query(COUNT_AND_RETURN, count, nbytes, store.id)
    if capacity is not None and counters[1] > capacity:
        (counters,) = session.query(COUNTERS, store.id)
    return BufferCounters(*counters)


def _put_episodes(
    store: Store,
    session: Session,
    pending: PendingSteps,
    plan: WritePlan,
    first: int,
    next_id: int,
    now: float,
) -> WritePlan:
    """Insert and advance the episodes; return the plan, made again if an episode was outdated."""
    current: dict[EpisodeRecord, EpisodeRecord] = {}
    with_numbers: set[EpisodeRecord] = set()  # episodes whose stored numbers were read
    unused: set[EpisodeRecord] = set()  # new episodes whose names are not stored
    if any(write.after.parent is not None for write in plan.episodes):
        plan = relations.relate_episodes(store, session, pending, plan, first, next_id, current)
    put = 0
    ids: list[int] = []
    while put < len(plan.episodes):
        write = plan.episodes[put]
        if write.needs_numbers and write.record not in with_numbers:
            with_numbers.add(write.record)
            plan = step_numbers.plan_with_numbers(store, session, pending, write, current)
            continue
        if write.before.id is None:
            if write.record.id is not None:  # it was swept, and no id was reserved for it
                ((id,),) = session.query(RESERVE_EPISODE, store.id)
            else:
                id, next_id = next_id, next_id + 1
            write.after.id = id
            if write.record not in unused:
                unused |= {new.record for new in plan.episodes if new.before.id is None}
                episodes.require_unused(store, session, list(unused))
        elif not episodes.advance(store, session, write, first, now):
            if write.record in current:
                raise errors.EpisodeEnded(
                    f"episode {write.record.episode_id!r} was deleted; start another episode"
                )
            current[write.record] = episodes.current(store, session, write.record)
            plan = make_plan(pending, current)
            continue
        ids.append(write.after.id or 0)
        put += 1
    for write, id in zip(plan.episodes, ids, strict=True):
        write.after.id, write.after.last_position = id, first + write.rows[-1]
    new = [write for write in plan.episodes if write.before.id is None]
    if new:
        episodes.insert(store, session, new, first, now)
    return plan


def _compact_ended(
    store: Store,
    session: Session,
    pending: PendingSteps,
    plan: WritePlan,
    first: int,
    outcome: WriteOutcome,
) -> None:
    """Merge the chunks of the episodes that this write ends, and keep the final observation."""
    ids, final = (
        [write.after.id or 0 for write in plan.episodes if write.status != "open"],
        pending.final,
    )
    if plan.final is not None:
        chunk, row, names = plan.final
        session.execute(KEEP_FINAL, first + chunk, row, json.dumps(names), store.id, ids[0])
        final = None
    if ids and not final:
        ids = episodes.find_episodes_to_compact(store, session, ids)
    for id in ids:
        compact.compact_episode(
            store, session, outcome, id, final, pending.final_types if final else {}
        )
