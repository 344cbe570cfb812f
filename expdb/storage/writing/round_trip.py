"""Write in one round trip to a server: positions, rows and chunks in one statement.

The server receives the plan and adds the first position to all step indices. If this process lacks
information, or if its cached records are out of date, the server writes nothing. transaction.py
then writes the steps statement by statement.
"""

import json
import time
from math import isfinite
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.chunk import Decoder, crc_of
from expdb.names import COLUMN_KINDS
from expdb.storage.commits import BufferCounters, Commit
from expdb.storage.store import Store
from expdb.storage.write_plan import EpisodeWrite, WritePlan
from expdb.storage.writing import compact
from expdb.storage.writing.encoded_steps import EncodedSteps, PlannedSteps
from expdb.storage.writing.plan import make_plan


def write_at_once(store: Store, pending: EncodedSteps, again: bool) -> Commit | None:
    """Write the pending steps, and set `pending.stored`.

    Return None if the write takes more than one statement. With `again`, an earlier call with this
    write id may have been committed; if so, its positions are used.
    """
    if len(pending) > (store.dialect.ROUND_TRIP_STEPS or 0) or pending.details:
        return None
    if pending.final and not pending.final_is_in_block:
        return None
    decoders = _find_decoders(store, pending)
    if decoders is None:
        return None
    plan = make_plan(pending)
    if not all(write.gained is None or isfinite(write.gained) for write in plan.episodes):
        return None  # JSON cannot represent infinity or NaN
    transaction = store.engine.appending()
    try:
        with transaction as session:
            params = _parameters(store, pending, plan, decoders, again)
            if not plan.is_current:
                return None
            (((first, low, size, revision, deleted, *ids),),) = session.ask(
                store.dialect.APPEND, *params
            )
    except errors.OutOfDate:
        return None
    for write, number in zip(plan.episodes, ids, strict=True):
        write.after.id, write.after.last_position = number, first + write.rows[-1]
        write.record.become(write.after)
    pending.stored = np.arange(first, first + plan.count, dtype=np.int64)
    _compact_ended(store, plan)
    counters = BufferCounters(low, size, revision, deleted)
    return Commit(first, plan, store.fields, counters, transaction.commit_versions)


def _find_decoders(store: Store, pending: EncodedSteps) -> list[Decoder] | None:
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
    store: Store, pending: EncodedSteps, plan: WritePlan, decoders: list[Decoder], again: bool
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
        max(1, int(store.engine.timeout * 1000)),
        pending.write_id,
        again,
        time.time(),
        json.dumps(episodes),
        np.array(plan.step, np.int64),
        np.array(plan.place, np.int64) if several else None,
        *map(_column_to_send, PlannedSteps._fields[2:], plan.columns),
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


def _compact_ended(store: Store, plan: WritePlan) -> None:
    """Merge the chunks of episodes that have ended and have chunks of earlier writes."""
    for write in plan.episodes:
        if write.status != "open" and write.after.length > len(write.rows):
            try:
                with store.writing() as (session, outcome):
                    compact.compact_episode(store, session, outcome, write.after.id or 0, None, {})
            except (errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
                # The steps are stored; unmerged chunks only take more space.
                return
