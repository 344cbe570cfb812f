"""A few new steps, added to the rows in memory: those of a commit of this process, or of others.

load.py loads many steps at once; its cost is that of reading thousands of them. Both leave the same
rows, which `tests/memory/test_arrivals.py` compares under random histories.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.chunk import Chunk
from expdb.chunks.fields import SYSTEM, Field
from expdb.memory.columns import AFTER, BEFORE, ORDINAL, PRESENT, PRIORITY, UNSAVED, WHOLE
from expdb.memory.journal import NONE, Change, OpenEpisode
from expdb.memory.load import overwrite, read_steps
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.commits import Commit
from expdb.storage.reading.chunk_values import blank, joined, raw_or_zeros
from expdb.storage.store import State, Store
from expdb.storage.stored_json import parse_names

MOST_RUNS = 64  # of steps of others: more are loaded at once

# Per run: its segment, its chunk and what its episode says. Only the first run of a chunk has the
# chunk's data.
READ = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row,
       c.rows, c.signature, c.crc, CASE WHEN g.chunk_row = 0 OR g.first <= ? THEN c.data END,
       e.status, e.length, e.ordered, e.tail_chunk, e.tail_row, e.tail_fields
  FROM segments g JOIN chunks c ON c.buffer_id = g.buffer_id AND c.id = g.chunk
  JOIN episodes e ON e.buffer_id = g.buffer_id AND e.id = g.episode
 WHERE g.buffer_id = ? AND g.last >= ? ORDER BY g.last LIMIT ?
"""

Rows = slice | np.ndarray


class Run(NamedTuple):
    """Neighbouring steps of an episode."""

    first: int  # position
    last: int
    episode: int
    ordinal: int  # of the first step


class Span(NamedTuple):
    """Rows of a chunk."""

    chunk: Chunk
    first: int
    stop: int


class End(NamedTuple):
    """An episode that has ended."""

    episode: int
    length: int
    is_complete: bool  # not aborted
    # The observation after its last step: chunk, row and fields; None where there is none.
    final: tuple[Chunk, int, frozenset[str]] | None


@dataclass(frozen=True)
class Arrival:
    """New steps of positions that follow each other, and what has become of their episodes."""

    first: int  # position
    count: int
    runs: list[Run]
    spans: list[Span]
    ends: list[End]


def of_commit(r: Resident, commit: Commit, store: Store) -> Arrival | None:
    """Return the steps of a commit of this process; None where they have to be read.

    They have to be if the commit does not continue the rows, if these have no room, or if an
    episode was written out of order.
    """
    plan, counters, first = commit.plan, commit.counters, commit.first
    assert plan is not None
    if (
        not r.complete
        or first != r.high
        or r.known is None
        or r.known.version != commit.fields.version
        or (counters.revision, counters.deleted) != (r.revision, r.deleted)
        or not r.low <= counters.oldest <= first
        or first + plan.count - counters.oldest > r.slots
    ):
        return None
    spans = []
    for write in plan.chunks:
        decoder = store.signatures.of_fields(write.block.fields)
        if decoder is None or not write.encoded:
            return None
        chunk = decoder.unchecked(first + write.last, write.block.rows, 0, write.encoded)
        spans.append(Span(chunk, 0, write.block.steps))
    final = None
    if plan.final is not None:
        final = spans[-1].chunk, plan.final[1], frozenset(plan.final[2])
    ends = []
    for episode in plan.episodes:
        if not episode.after.ordered:
            return None
        if episode.status != "open":
            id, is_complete = episode.after.id or 0, episode.status == "complete"
            ends.append(End(id, episode.after.length, is_complete, final))
    ids = [0, *[write.after.id or 0 for write in plan.episodes]]
    runs = [
        Run(first + begin, first + last, ids[place], ordinal)
        for last, begin, place, ordinal, _, _ in plan.segments
    ]
    return Arrival(first, plan.count, runs, spans, ends)


def read_arrival(store: Store, session: Session, r: Resident, state: State) -> Arrival | None:
    """Read the steps that are new; None where there are many, or where load.py is needed.

    It is needed for steps between which some were deleted, and for episodes written out of order.
    """
    first, count = r.high, state.added - r.high
    if state.gaps or not r.fields or state.added - state.oldest > r.slots:
        return None
    found = session.ask(READ, first, store.id, first, MOST_RUNS + 1)
    if len(found) > MOST_RUNS:
        return None
    chunks: dict[int, Chunk] = {}
    runs: list[Run] = []
    spans: list[Span] = []
    episodes: dict[int, list[Any]] = {}
    position = first
    for last, begin, episode, ordinal, id, row, rows, signature, crc, data, *details in found:
        cut = max(0, first - begin)  # a merged segment begins among what is known
        if id not in chunks and data is not None:
            chunks[id] = store.signatures.decoder(session, signature).chunk(id, rows, crc, data)
        if begin + cut != position or id not in chunks or row + last - begin >= chunks[id].rows:
            return None  # load.py says what is wrong
        chunk, start, stop = chunks[id], row + cut, row + last - begin + 1
        runs.append(Run(position, last, episode, ordinal + cut))
        if spans and spans[-1].chunk is chunk and spans[-1].stop == start:
            spans[-1] = Span(chunk, spans[-1].first, stop)
        else:
            spans.append(Span(chunk, start, stop))
        episodes[episode] = details
        position = last + 1
    if position != first + count:
        return None
    ends = []
    for episode, (status, length, ordered, tail_chunk, tail_row, tail_fields) in episodes.items():
        if not ordered or (tail_chunk is not None and tail_chunk not in chunks):
            return None
        if status != "open":
            final = None
            if tail_chunk is not None:
                names = frozenset(parse_names(tail_fields or "[]", "tail_fields"))
                final = chunks[tail_chunk], tail_row, names
            ends.append(End(episode, length, status == "complete", final))
    return Arrival(first, count, runs, spans, ends)


def add(
    r: Resident, arrival: Arrival, store: Store, session: Session | None, revised: bool = False
) -> None:
    """Add steps to the rows, which have room for them.

    `revised` says that the table may have other values than the chunks: it is asked.
    """
    first, rows = arrival.first, _rows(r, arrival.first, arrival.count)
    ends = [end for end in arrival.ends if end.final is not None]
    if ends:
        r.reserve(first, len(ends), None)
        rows = _rows(r, first, arrival.count)
    _write_columns(r, arrival, rows)
    r.high = first + arrival.count
    if revised:
        assert session is not None
        condition = "position BETWEEN ? AND ? AND revision IS NOT NULL"
        overwrite(r, *read_steps(store, session, condition, first, r.high - 1))
    relinked = _link(r, arrival)
    for end in arrival.ends:
        relinked += _end(r, arrival, end)
    ids = np.array(sorted({run.episode for run in arrival.runs}), np.int64)
    older = np.array(relinked, np.int64) if relinked else NONE
    r.record(Change(first, r.high, relinked=older, advanced=ids))


def take_in(r: Resident, commit: Commit, store: Store) -> bool:
    """Add what a commit has brought; return False, and change nothing, where it has to be read."""
    if commit.plan is None:
        return _clear(r, commit)
    arrival = of_commit(r, commit, store)
    if arrival is None:
        return False
    counters = commit.counters
    r.changing, r.complete = True, False
    if counters.oldest > r.low:
        orphaned = r.evict(counters.oldest)
        r.record(Change(r.high, r.high, orphaned=orphaned))
    add(r, arrival, store, None)
    r.size, r.gaps = counters.size, counters.size != r.high - r.low
    r.changing, r.complete = False, True
    return True


def _clear(r: Resident, commit: Commit) -> bool:
    """Let go of all steps; return False if there are other changes as well."""
    counters = commit.counters
    if not r.complete or (commit.first, counters.deleted) != (r.high, r.deleted):
        return False
    if counters.revision != r.revision + 1:
        return False
    r.changing, r.complete = True, False
    r.record(Change(r.high, r.high, orphaned=r.evict(counters.oldest)))
    r.revision, r.size, r.gaps = counters.revision, 0, False
    r.changing, r.complete = False, True
    return True


def _rows(r: Resident, first: int, count: int) -> Rows:
    """Return the rows of positions: a slice, unless they go round the ring."""
    begin = first % r.slots
    if begin + count <= r.slots:
        return slice(begin, begin + count)
    return np.arange(first, first + count) % r.slots


def _write_columns(r: Resident, arrival: Arrival, rows: Rows) -> None:
    columns, runs, count = r.columns, arrival.runs, arrival.count
    if len(runs) == 1:
        columns["episode"][rows] = runs[0].episode
        columns[ORDINAL][rows] = np.arange(runs[0].ordinal, runs[0].ordinal + count)
    else:
        first, last, episode, ordinal = np.array(runs, np.int64).T
        lengths = last - first + 1
        columns["episode"][rows] = np.repeat(episode, lengths)
        began = np.repeat(ordinal - first + arrival.first, lengths)
        columns[ORDINAL][rows] = np.arange(count) + began
    columns[PRESENT][rows] = True
    columns[WHOLE][rows] = 0
    if PRIORITY in columns:
        columns[PRIORITY][rows] = np.nan
        columns[UNSAVED][rows] = False
    for name, field in (*SYSTEM.items(), *r.fields.items()):
        values = _values(arrival.spans, name, field, count)
        there = columns.get(f"has_{name}")
        if there is not None:
            found = b"".join(
                [one.chunk.present(name, one.first, one.stop) for one in arrival.spans]
            )
            there[rows] = present = np.frombuffer(found, np.bool_)
            if not present.all():
                values = values.copy()
                blank(values, ~present)
        columns[name][rows] = values


def _values(spans: list[Span], name: str, field: Field, count: int) -> np.ndarray:
    """Return a field of fixed width of all steps; zeros where a chunk has it not."""
    if len(spans) == 1:
        data = raw_or_zeros(spans[0].chunk, name, field, spans[0].first, spans[0].stop)
        return np.ndarray((count, *field.fixed_shape), field.numpy, data)
    parts = [raw_or_zeros(one.chunk, name, field, one.first, one.stop) for one in spans]
    return joined(parts, field, count)


def _link(r: Resident, arrival: Arrival) -> list[int]:
    """Link the steps; return the older positions that have another successor now."""
    first, slots = arrival.first, r.slots
    after, before, terminated = r.columns[AFTER], r.columns[BEFORE], r.columns["terminated"]
    steps = np.arange(first - 1, first + arrival.count + 1) % slots
    rows = steps[1:-1]
    after[rows], before[rows] = steps[2:], steps[:-2]
    relinked = []
    for start, last, episode, ordinal in arrival.runs:
        row, end, count = start % slots, last % slots, last - start + 1
        before[row] = UNKNOWN
        after[end] = r.zero if terminated[end] else UNKNOWN
        known, begin = (r.open.pop(episode, None), UNKNOWN) if ordinal else (None, start)
        if known is not None:
            if known.ordinal == ordinal and r.holds(known.last):
                after[known.last % slots], before[row] = row, known.last % slots
                if known.last < first:
                    relinked.append(known.last)
            count += known.count
            begin = known.first if known.first >= r.low else UNKNOWN
        r.open[episode] = OpenEpisode(last, ordinal + last - start + 1, begin, count)
    return relinked


def _end(r: Resident, arrival: Arrival, end: End) -> list[int]:
    """End an episode; return its first position if it is an older one that begins a whole episode.

    An episode of which a step is not known here stays as it is.
    """
    known = r.open.get(end.episode)
    if known is None or known.ordinal != end.length:
        return []
    del r.open[end.episode]
    if end.final is not None:
        _keep_final(r, known.last, *end.final)
    if not end.is_complete or known.count != end.length or known.first < r.low:
        return []
    r.columns[WHOLE][known.first % r.slots] = end.length
    return [known.first] if known.first < arrival.first else []


def _keep_final(r: Resident, last: int, chunk: Chunk, row: int, given: frozenset[str]) -> None:
    """Give the observation after a last step a row behind the ring."""
    if not given <= r.final_fields:
        r.final_fields, r.version = r.final_fields | given, r.version + 1
    place = r.finals.free.pop()
    r.finals.taken.append((last, place))
    r.columns[AFTER][last % r.slots] = place
    span = [Span(chunk, row, row + 1)]
    for name, field in r.fields.items():
        if name in r.final_fields:
            value: Any = _values(span, name, field, 1)[0] if name in given else 0
            r.columns[name][place] = value
            if f"has_{name}" in r.columns:
                r.columns[f"has_{name}"][place] = name in given
