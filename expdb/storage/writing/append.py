"""Writing in one trip to a server.

Positions, rows and chunks in one statement, a transaction by itself.

All that a write needs is worked out here from what the process knows, with positions counted from
0; the server adds the first one. Where the process does not know enough, or its view turns out to
be out of date, nothing is written and the write is done statement by statement (`write.py`).
"""

import json
import time
from math import isfinite
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.codec import crc_of
from expdb.storage.store import Store
from expdb.storage.writing import compact as rewrite
from expdb.storage.writing.pending import Episode, Pending, runs


def append(store: Store, pending: Pending, again: bool) -> bool:
    """Write the pending steps, and set `pending.stored`.

    Return False where it takes more than one statement.

    `again` says that an earlier call with this write id may have succeeded unseen; then its
    positions are taken.
    """
    count = len(pending)
    if (
        count > store.dialect.LARGE
        or pending.details
        or (pending.tail and not pending.tail_is_in_block)
    ):
        return False
    known = store.fields
    found, lacking = pending.found_fields(known)
    if found.items() - known.types.items() or lacking - known.optional:
        return False
    decoders = [store.known_decoder(block.fields) for block in pending.blocks]
    if None in decoders:
        store.read_signatures()
        decoders = [store.known_decoder(block.fields) for block in pending.blocks]
        if None in decoders:
            return False

    # -- episodes
    steps, mine = pending.steps, pending.by_episode()
    by_identity = pending.distinct
    step, place_of, ordinals = [0] * count, [0] * count, [0] * count
    after: list[tuple[Episode, Episode]] = []
    columns: list[dict[str, Any]] = []
    for place, (key, indexes) in enumerate(mine.items(), 1):
        episode = by_identity[key]
        gained = pending.gained(indexes)
        if gained is not None and not isfinite(gained):
            return False  # JSON has no word for it
        last_step, ordered = pending.number(episode, indexes, step)
        for ordinal, index in enumerate(indexes, episode.length):
            place_of[index], ordinals[index] = place, ordinal
        here = {
            "rows": len(indexes), "last": indexes[-1], "status": pending.ended.get(key, "open"),
            "gained": gained,
            "ordered": ordered, "last_step": last_step,
        }  # fmt: skip
        columns.append({**episode.__dict__, **here})
        total = episode.gained if gained is None else gained + (episode.gained or 0.0)
        changed = {
            "length": episode.length + len(indexes),
            "last_step": last_step,
            "ordered": ordered,
            "gained": total,
        }
        after.append((episode, Episode(**{**episode.__dict__, **changed})))

    # -- segments and chunks
    segments: list[tuple[int, ...]] = []
    chunks: list[int] = []
    messages: list[bytes] = []
    row = 0
    for block, decoder in zip(pending.blocks, decoders, strict=True):
        assert decoder is not None
        stop = row + block.steps
        system = (
            step[row:stop],
            steps.reward[row:stop],
            steps.terminated[row:stop],
            steps.truncated[row:stop],
        )
        data = block.message(decoder.templates, *system)
        single = place_of[row] if len(mine) == 1 or len(set(place_of[row:stop])) == 1 else 0
        crc = crc_of(decoder.signature, 0, block.rows, data)
        chunks += (stop - 1, row, single, block.rows, decoder.signature.id, crc)
        messages.append(data)
        segments += runs(0, place_of, ordinals, row, stop, stop - 1)
        row = stop
    tail = (
        (stop - 1, pending.blocks[-1].steps, json.dumps(sorted(pending.tail)))
        if pending.tail
        else (None, None, None)
    )
    params = (
        store.id, known.version, max(1, int(store.engine.timeout * 1000)), pending.write_id, again,
        time.time(),
        json.dumps(columns), np.array(step, np.int64),
        np.array(place_of, np.int64) if len(mine) > 1 else None,
        _known(steps.pre_agent), np.array(steps.execute_time, np.float64),
        np.array(steps.reward, np.float64),
        _known(steps.terminated, False), _known(steps.truncated, False), _known(steps.tags),
        np.array(segments, np.int64).reshape(-1), np.array(chunks, np.int64), messages, *tail,
    )  # fmt: skip
    try:
        with store.engine.appending() as session:
            (((first, *ids),),) = session.ask(store.dialect.APPEND, *params)
    except errors.OutOfDate:
        return False
    for (before, now), number, indexes in zip(after, ids, mine.values(), strict=True):
        now.id, now.last_position = number, first + indexes[-1]
        before.__dict__.update(now.__dict__)
    pending.stored = np.arange(first, first + count, dtype=np.int64)
    _seal(store, pending, mine, by_identity)
    return True


def _seal(
    store: Store, pending: Pending, mine: dict[int, list[int]], by_identity: dict[int, Episode]
) -> None:
    """Merge the chunks of the episodes that have ended and that earlier writes began."""
    for key in pending.ended:
        episode = by_identity[key]
        if episode.length > len(mine[key]):
            try:
                with store.writing() as (session, news):
                    rewrite.finish(store, session, news, episode.id or 0, None, {})
            except (errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
                # The steps are stored; that their chunks stay as small as they came takes room, and
                # no more.
                return


def _known(column: tuple[Any, ...], usual: Any = None) -> list[Any] | None:
    """Return a column, or None where every step has the usual value, which the server knows."""
    return None if column.count(usual) == len(column) else list(column)
