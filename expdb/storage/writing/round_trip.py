"""Write in one round trip to a server: positions, rows and chunks in one statement.

The server receives the plan and adds the first position to all step indices. If this process lacks
information, or if its cached records are out of date, the server writes nothing. transaction.py
then writes the steps statement by statement.
"""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.chunk import Decoder, crc_of
from expdb.names import COLUMN_KINDS
from expdb.sql.session import Session
from expdb.storage.commits import BufferCounters, Commit
from expdb.storage.outcome import WriteOutcome
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing import compact
from expdb.storage.writing.pending_steps import PendingSteps, StepColumns
from expdb.storage.writing.plan import make_plan


def fits_one_statement(store: Store, pending: PendingSteps) -> bool:
    """Return False if the steps certainly take several statements; the caller checks the rest."""
    return (
        len(pending) <= (store.dialect.ROUND_TRIP_STEPS or 0)
        and not pending.details
        and not any(block.shared_values for block in pending.blocks)
        and (not pending.final or pending.final_is_in_block or not len(pending))
    )


def write_at_once(store: Store, pending: PendingSteps, again: bool) -> Commit | None:
    """Write the pending steps, and set `pending.stored`.

    Return None if the write takes more than one statement. With `again`, an earlier call with this
    write id may have been committed; if so, its positions are used.
    """
    if not fits_one_statement(store, pending):
        return None
    transaction = store.engine.appending()
    try:
        plan, params = _prepare_statement(store, pending, again)
        with transaction as session:
            (answer,) = session.query(store.dialect.APPEND, *params)
    except errors.OutOfDate:
        return None
    first, counters = _read_answer(answer, plan)
    for write in plan.episodes:
        write.record.become(write.after)
    pending.stored = np.arange(first, first + plan.count, dtype=np.int64)
    compact_ended(store, [plan])
    return Commit(first, plan, store.fields, counters, transaction.commit_versions)


def append_all(
    store: Store,
    session: Session,
    group: Sequence[PendingSteps],
    outcome: WriteOutcome,
    last: bool,
) -> list[tuple[np.ndarray, WritePlan, BufferCounters]]:
    """Write the steps of several calls in one round trip; with `last`, also commit.

    Return the positions, the plan and the counters of each call. Raise OutOfDate if a call needs
    more than one statement.
    """
    statements = [_prepare_statement(store, pending, again=False) for pending in group]
    questions = [(store.dialect.APPEND, *params) for _, params in statements]
    written = []
    for (plan, _), ((answer,)) in zip(
        statements, session.query_all(*questions, last=last), strict=True
    ):
        first, counters = _read_answer(answer, plan)
        outcome.episodes += [(write.record, write.after) for write in plan.episodes]
        positions = np.arange(first, first + plan.count, dtype=np.int64)
        written.append((positions, plan, counters))
    return written


def _prepare_statement(
    store: Store, pending: PendingSteps, again: bool
) -> tuple[WritePlan, tuple[Any, ...]]:
    """Return the plan of a write, and the parameters of its statement.

    Raise OutOfDate if one statement cannot write the steps.
    """
    decoders, plan = find_decoders(store, pending), make_plan(pending)
    # JSON cannot represent infinity or NaN.
    is_finite = all(write.gained is None or isfinite(write.gained) for write in plan.episodes)
    # The function on the server assumes that steps use the policy version of their episode.
    changes_version_use = any(write.changes_version_use for write in plan.episodes)
    needs_numbers = any(write.needs_numbers for write in plan.episodes)
    # The function does not set the relation of a new episode, or `trainable`.
    is_special = any(
        write.before.id is None and (write.after.parent or write.after.trainable is not None)
        for write in plan.episodes
    )
    if decoders is None or not is_finite or changes_version_use or needs_numbers or is_special:
        raise errors.OutOfDate("one statement cannot write these steps")
    params = _parameters(store, pending, plan, decoders, again)
    if not plan.is_current:
        raise errors.OutOfDate("an episode has changed")
    return plan, params


def _read_answer(answer: Any, plan: WritePlan) -> tuple[int, BufferCounters]:
    """Set ids and last positions of the episodes; return the first position and the counters."""
    ((first, low, size, revision, deleted, *ids),) = answer
    for write, id in zip(plan.episodes, ids, strict=True):
        write.after.id, write.after.last_position = id, first + write.rows[-1]
    return first, BufferCounters(low, size, revision, deleted)


def find_decoders(store: Store, pending: PendingSteps) -> list[Decoder] | None:
    """Return the decoder of each chunk, or None if fields or signatures must be stored first."""
    stored = store.fields
    fields, lacking = pending.collect_fields(stored)
    if fields.items() - stored.types.items() or lacking - stored.optional:
        return None
    for attempt in (0, 1):
        decoders = [store.signatures.of_fields(block.fields) for block in pending.blocks]
        if None not in decoders:
            return [decoder for decoder in decoders if decoder is not None]
        if not attempt:
            store.signatures.read()
    return None


def _parameters(
    store: Store, pending: PendingSteps, plan: WritePlan, decoders: list[Decoder], again: bool
) -> tuple[Any, ...]:
    """Return the parameters of the server's function `append`, in its order."""
    several = len(plan.episodes) > 1
    episodes = [
        {
            **_description(write),
            "id": write.before.id,
            "length": write.before.length,
            "rows": len(write.rows),
            "last": write.rows[-1],
            "status": write.status,
            "gained": write.gained,
            "ordered": write.after.ordered,
            "last_step": write.after.last_step,
        }
        for write in plan.episodes
    ]
    numbers, messages = _chunks(plan, decoders, store.id)
    final: tuple[int | None, int | None, str | None] = (None, None, None)
    if plan.final is not None:
        final = (*plan.final[:2], json.dumps(plan.final[2]))
    return (
        store.id,
        store.fields.version,
        max(1, int(store.engine.remaining() * 1000)),
        pending.write_id,
        again,
        time.time(),
        json.dumps(episodes),
        np.array(plan.step, np.int64),
        np.array(plan.place, np.int64) if several else None,
        *map(_column_to_send, StepColumns._fields[2:], plan.columns),
        np.array(plan.segments, np.int64).reshape(-1),
        np.array(numbers, np.int64),
        messages,
        *final,
    )


def _description(write: EpisodeWrite) -> dict[str, Any]:
    """Return all descriptive columns of a new episode; of a stored one, those to compare."""
    record = write.record
    if write.before.id is None:
        return record.columns()
    return {
        "episode_id": record.episode_id,
        "policy_version": record.policy_version,
        "generation": record.generation,
    }


def _chunks(
    plan: WritePlan, decoders: list[Decoder], buffer_id: int
) -> tuple[list[int], list[bytes]]:
    """Return the numbers of all chunks, concatenated, and their messages."""
    numbers: list[int] = []
    messages: list[bytes] = []
    for chunk, decoder in zip(plan.chunks, decoders, strict=True):
        message = chunk.message(decoder.templates)
        rows, signature = chunk.block.rows, decoder.signature
        crc = crc_of(signature, 0, rows, message, buffer_id)
        numbers += (chunk.last, chunk.first, chunk.episode, rows, signature.id, crc)
        messages.append(message)
    return numbers, messages


def _column_to_send(name: str, column: tuple[Any, ...]) -> Any:
    """Return a column as it is sent; None if every step has the default value."""
    if COLUMN_KINDS[name] == "real":
        return np.array(column, np.float64)
    usual = False if COLUMN_KINDS[name] == "flag" else None
    return None if column.count(usual) == len(column) else list(column)


def compact_ended(store: Store, plans: Sequence[WritePlan]) -> None:
    """Merge the chunks of episodes that have ended and have chunks of earlier writes."""
    ids = [
        write.after.id or 0
        for plan in plans
        for write in plan.episodes
        if write.status != "open" and write.after.length > len(write.rows)
    ]
    if ids:
        # The steps are stored; unmerged chunks only take more space.
        with (
            suppress(errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer),
            store.writing() as (session, outcome),
        ):
            for id in ids:
                compact.compact_episode(store, session, outcome, id, None, {})
