"""Steps that this process has committed, added to its rows in memory without reading them back.

The rows are then the same as if refresh.py had read them; `tests/memory/test_write_through.py`
compares the two.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from typing import Any

import numpy as np

from expdb.chunks.codec import Block
from expdb.memory.columns import AFTER, BEFORE, ORDINAL, PRESENT, PRIORITY, UNSAVED, WHOLE
from expdb.memory.journal import NONE, Change, OpenEpisode
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.storage.commits import Commit
from expdb.storage.reading.chunk_values import blank
from expdb.storage.write_plan import EpisodeWrite

Places = slice | np.ndarray


def take_in(r: Resident, commit: Commit) -> bool:
    """Add the steps of a commit; return False, and change nothing, where they have to be read.

    They have to be if the commit does not continue the rows, if these have no room, or if an
    episode was written out of order.
    """
    plan, counters, first = commit.plan, commit.counters, commit.first
    if (
        not r.complete
        or first != r.high
        or r.known is None
        or r.known.version != commit.fields.version
        or (counters.revision, counters.deleted) != (r.revision, r.deleted)
        or not r.low <= counters.oldest <= first
        or first + plan.count - counters.oldest > r.slots
        or not all(write.after.ordered for write in plan.episodes)
    ):
        return False
    r.changing, r.complete = True, False
    if counters.oldest > r.low:
        orphaned = r.evict(counters.oldest)
        r.record(Change(first, first, orphaned=orphaned))
    if plan.final is not None:
        r.reserve(first, 1, None)
    places = _places(r, first, plan.count)
    _write_columns(r, commit, places)
    r.high = first + plan.count
    relinked = _link(r, commit)
    ids = np.sort(np.array([write.after.id for write in plan.episodes], np.int64))
    for write in plan.episodes:
        if write.status != "open":
            relinked += _end(r, commit, write)
    older = np.array(relinked, np.int64) if relinked else NONE
    r.record(Change(first, r.high, relinked=older, advanced=ids))
    r.size, r.gaps = counters.size, counters.size != r.high - r.low
    r.changing, r.complete = False, True
    return True


def _places(r: Resident, first: int, count: int) -> Places:
    """Return the rows of positions: a slice, unless they go round the ring."""
    begin = first % r.slots
    if begin + count <= r.slots:
        return slice(begin, begin + count)
    return np.arange(first, first + count) % r.slots


def _write_columns(r: Resident, commit: Commit, places: Places) -> None:
    plan, columns = commit.plan, r.columns
    if len(plan.segments) == 1:
        last, _, place, ordinal, _, _ = plan.segments[0]
        columns["episode"][places] = plan.episodes[place - 1].after.id
        columns[ORDINAL][places] = np.arange(ordinal, ordinal + last + 1)
    else:
        last, begin, place, ordinal, _, _ = np.array(plan.segments, np.int64).T
        lengths = last - begin + 1
        ids = np.array([0, *[write.after.id for write in plan.episodes]], np.int64)
        columns["episode"][places] = np.repeat(ids[place], lengths)
        columns[ORDINAL][places] = np.arange(plan.count) + np.repeat(ordinal - begin, lengths)
    _, _, reward, terminated, truncated = plan.columns[:5]
    columns["step"][places] = plan.step
    columns["reward"][places] = np.array(reward, np.float64)  # None becomes NaN
    columns["terminated"][places] = terminated
    columns["truncated"][places] = truncated
    columns[PRESENT][places] = True
    columns[WHOLE][places] = 0
    if PRIORITY in columns:
        columns[PRIORITY][places] = np.nan
        columns[UNSAVED][places] = False
    blocks = [chunk.block for chunk in plan.chunks]
    for name in r.fields:
        _write_field(columns, name, blocks, places)


def _write_field(
    columns: dict[str, np.ndarray], name: str, blocks: list[Block], places: Places
) -> None:
    column, optional = columns[name], columns.get(f"has_{name}")
    if len(blocks) == 1 and name in blocks[0].fields and not blocks[0].nullable:
        column[places] = blocks[0].values(name)
        if optional is not None:
            optional[places] = True
        return
    there: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for block in blocks:
        present = np.full(block.steps, name in block.fields)
        if name in block.fields:
            parts.append(block.values(name))
            present[block.missing(name)] = False
        else:
            parts.append(np.zeros((block.steps, *column.shape[1:]), column.dtype))
        there.append(present)
    values, present = np.concatenate(parts), np.concatenate(there)
    if optional is not None:
        blank(values, ~present)
        optional[places] = present
    column[places] = values


def _link(r: Resident, commit: Commit) -> list[int]:
    """Link the steps; return the older positions that have another successor now."""
    first, plan, slots = commit.first, commit.plan, r.slots
    after, before, terminated = r.columns[AFTER], r.columns[BEFORE], plan.columns[3]
    run = np.arange(first - 1, first + plan.count + 1) % slots
    rows = run[1:-1]
    after[rows], before[rows] = run[2:], run[:-2]
    relinked = []
    for last, begin, place, ordinal, _, _ in plan.segments:
        id = plan.episodes[place - 1].after.id or 0
        count, start = last - begin + 1, first + begin
        row = start % slots
        before[row] = UNKNOWN
        after[(first + last) % slots] = r.zero if terminated[last] else UNKNOWN
        known = r.open.pop(id, None) if ordinal else None
        if known is not None:
            if known.ordinal == ordinal and r.holds(known.last):
                after[known.last % slots], before[row] = row, known.last % slots
                if known.last < first:
                    relinked.append(known.last)
            count += known.count
            start = known.first if known.first >= r.low else UNKNOWN
        elif ordinal:
            start = UNKNOWN
        r.open[id] = OpenEpisode(first + last, ordinal + last - begin + 1, start, count)
    return relinked


def _end(r: Resident, commit: Commit, write: EpisodeWrite) -> list[int]:
    """End an episode; return its first position if it is an older one that begins a whole episode.

    An episode of which a step is not known here stays as it is.
    """
    id, length, first = write.after.id or 0, write.after.length, commit.first
    known = r.open.get(id)
    if known is None or known.ordinal != length:
        return []
    del r.open[id]
    if commit.plan.final is not None:
        _keep_final(r, commit, known.last)
    if write.status != "complete" or known.count != length or known.first < r.low:
        return []
    r.columns[WHOLE][known.first % r.slots] = length
    return [known.first] if known.first < first else []


def _keep_final(r: Resident, commit: Commit, last: int) -> None:
    """Give the observation after a last step a row behind the ring."""
    assert commit.plan.final is not None
    given = frozenset(commit.plan.final[2])
    if not given <= r.final_fields:
        r.final_fields, r.version = r.final_fields | given, r.version + 1
    place, block = r.finals.free.pop(), commit.plan.chunks[-1].block
    r.finals.taken.append((last, place))
    r.columns[AFTER][last % r.slots] = place
    for name in r.fields:
        if name in r.final_fields:
            value: Any = block.values(name, final=True)[-1] if name in given else 0
            r.columns[name][place] = value
            if f"has_{name}" in r.columns:
                r.columns[f"has_{name}"][place] = name in given
