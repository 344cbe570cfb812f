"""Add a few new steps from a commit of this process or from a query to the rows in memory.

load.py has a high fixed cost and handles large numbers of steps. Both modules produce the same
rows; `tests/memory/test_new_steps.py` compares them under random histories.
"""

from __future__ import annotations  # so that annotations do not import numpy.random

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.chunk import Chunk
from expdb.chunks.fields import SYSTEM, Field
from expdb.memory.columns import AFTER, BEFORE, ORDINAL, PRESENT, PRIORITY, UNSAVED, WHOLE
from expdb.memory.journal import NONE, Change, OpenEpisode
from expdb.memory.links import record_gap
from expdb.memory.load import overwrite, read_steps
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.commits import Commit
from expdb.storage.reading.chunk_values import blank, joined, raw_or_zeros
from expdb.storage.reading.value_references import read_shared_values
from expdb.storage.store import State, Store
from expdb.storage.stored_json import parse_names

MAX_RANGES = 64  # maximum number of step ranges to read here; load.py reads larger numbers

# Each row has one segment, its chunk and the state of its episode. Only the first row of each chunk
# has the chunk's data.
READ = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row,
       c.rows, c.signature, c.crc, CASE WHEN g.chunk_row = 0 OR g.first <= ? THEN c.data END,
       e.status, e.length, e.ordered, e.tail_chunk, e.tail_row, e.tail_fields, e.shared_steps
  FROM segments g JOIN chunks c ON c.buffer_id = g.buffer_id AND c.id = g.chunk
  JOIN episodes e ON e.buffer_id = g.buffer_id AND e.id = g.episode
 WHERE g.buffer_id = ? AND g.last >= ? ORDER BY g.last LIMIT ?
"""

Rows = slice | np.ndarray


class StepRange(NamedTuple):
    """Consecutive steps of one episode."""

    first: int  # position of the first step
    last: int  # position of the last step
    episode: int
    ordinal: int  # of the first step


class ChunkRows(NamedTuple):
    """Consecutive rows of a chunk."""

    chunk: Chunk
    first: int
    stop: int


class EndedEpisode(NamedTuple):
    """An episode that has ended."""

    episode: int
    length: int
    is_complete: bool  # not aborted
    # Final observation: chunk, row and field names; None if there is none.
    final: tuple[Chunk, int, frozenset[str]] | None


@dataclass(frozen=True)
class NewSteps:
    """New steps at consecutive positions, and the episodes that ended with them."""

    first: int  # position of the first step
    count: int
    ranges: list[StepRange]
    chunk_rows: list[ChunkRows]
    ended: list[EndedEpisode]
    shared: dict[int, int]  # number of steps that each fork shares with its parent


def build_new_steps(r: Resident, commit: Commit, store: Store) -> NewSteps | None:
    """Build the new steps from a commit of this process; return None if they must be read.

    The steps must be read from the database if the commit does not directly follow the rows in
    memory, if the ring is too small, or if the fields have changed. The same holds if an episode
    was written out of order, or if steps are evicted while such an episode is in memory.
    """
    plan, counters, first = commit.plan, commit.counters, commit.first
    assert plan is not None
    if (
        not r.complete
        or first != r.high
        or r.known_fields is None
        or r.known_fields.version != commit.fields.version
        or (counters.revision, counters.deleted) != (r.revision, r.deleted)
        or not r.low <= counters.oldest <= first
        or (r.unordered and counters.oldest > r.low)
        or r.end_place - r.first_place + plan.count - r.count_before(counters.oldest) > r.slots
    ):
        return None
    chunk_rows = []
    for write in plan.chunks:
        decoder = store.signatures.of_fields(write.block.fields)
        if decoder is None or not write.encoded:
            return None
        chunk = decoder.decode_unchecked(first + write.last, write.block.rows, 0, write.encoded)
        chunk.shared_values = write.block.shared_values
        chunk_rows.append(ChunkRows(chunk, 0, write.block.steps))
    final = (chunk_rows[-1].chunk, plan.final[1], frozenset(plan.final[2])) if plan.final else None
    ended, shared = [], {}
    for episode in plan.episodes:
        if not episode.after.ordered:
            return None
        if episode.after.parent is not None:
            shared[episode.after.id or 0] = episode.after.parent.shared
        if episode.status != "open":
            id, is_complete = episode.after.id or 0, episode.status == "complete"
            ended.append(EndedEpisode(id, episode.after.length, is_complete, final))
    ids = [0, *[episode.after.id or 0 for episode in plan.episodes]]
    ranges = [
        StepRange(first + begin, first + last, ids[place], ordinal)
        for last, begin, place, ordinal, _, _ in plan.segments
    ]
    return NewSteps(first, plan.count, ranges, chunk_rows, ended, shared)


def read_new_steps(store: Store, session: Session, r: Resident, state: State) -> NewSteps | None:
    """Read the new steps; return None if there are too many or if load.py must read them.

    load.py must read steps with gaps between them and episodes written out of order.
    """
    first, count = r.high, state.added - r.high
    if not r.fields or r.end_place - r.first_place + count > r.slots:
        return None
    if state.gaps and _count_steps(store, session, first) < count:
        return None
    rows = session.query(READ, first, store.id, first, MAX_RANGES + 1)
    if len(rows) > MAX_RANGES:
        return None
    chunks: dict[int, Chunk] = {}
    ranges: list[StepRange] = []
    chunk_rows: list[ChunkRows] = []
    episodes: dict[int, list[Any]] = {}
    position = first
    for last, begin, episode, ordinal, id, row, count_, signature, crc, data, *details in rows:
        cut = max(0, first - begin)  # a merged segment may begin before the new steps
        if id not in chunks and data is not None:
            chunks[id] = store.signatures.decoder(session, signature).chunk(id, count_, crc, data)
        if begin + cut != position or id not in chunks or row + last - begin >= chunks[id].rows:
            return None  # load.py raises the precise error
        chunk, start, stop = chunks[id], row + cut, row + last - begin + 1
        ranges.append(StepRange(position, last, episode, ordinal + cut))
        if chunk_rows and chunk_rows[-1].chunk is chunk and chunk_rows[-1].stop == start:
            chunk_rows[-1] = ChunkRows(chunk, chunk_rows[-1].first, stop)
        else:
            chunk_rows.append(ChunkRows(chunk, start, stop))
        episodes[episode] = details
        position = last + 1
    if position != first + count:
        return None
    read_shared_values(session.query, store.id, chunks.values(), store.dialect)
    ended = []
    for episode, details in episodes.items():
        status, length, ordered, tail_chunk, tail_row, tail_fields, _ = details
        if not ordered or (tail_chunk is not None and tail_chunk not in chunks):
            return None
        if status != "open":
            final = None
            if tail_chunk is not None:
                names = frozenset(parse_names(tail_fields or "[]", "tail_fields"))
                final = chunks[tail_chunk], tail_row, names
            ended.append(EndedEpisode(episode, length, status == "complete", final))
    shared = {episode: details[-1] for episode, details in episodes.items() if details[-1]}
    return NewSteps(first, count, ranges, chunk_rows, ended, shared)


def _count_steps(store: Store, session: Session, first: int) -> int:
    sql = "SELECT count(*) FROM steps WHERE buffer_id = ? AND position >= ?"
    ((count,),) = session.query(sql, store.id, first)
    return int(count)


def apply_commit(r: Resident, commit: Commit, store: Store) -> bool:
    """Apply a commit to the rows in memory.

    If the steps must be read from the database, return False and change nothing.
    """
    if commit.plan is None:
        return _apply_clear(r, commit)
    new_steps, counters = build_new_steps(r, commit, store), commit.counters
    if new_steps is None:
        return False
    r.changing, r.complete = True, False
    orphaned = r.evict(counters.oldest)
    agents = commit.plan.columns[-1]
    if agents.count(None) < len(agents):
        r.record_breaks(has_agents=True)
    add_new_steps(r, new_steps, store, None, orphaned=orphaned)
    r.size, r.gaps = counters.size, counters.size != r.high - r.low
    r.changing, r.complete = False, True
    return True


def _apply_clear(r: Resident, commit: Commit) -> bool:
    """Remove all steps from memory; return False if the buffer has other changes too."""
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


def add_new_steps(
    r: Resident,
    new_steps: NewSteps,
    store: Store,
    session: Session | None,
    revised: bool = False,
    orphaned: np.ndarray = NONE,
) -> None:
    """Add new steps to the rows in memory. The ring must be large enough for them.

    If `revised` is true, the table `steps` may have newer values than the chunks, so it is queried.
    `orphaned` are the positions whose previous step was evicted.
    """
    first = new_steps.first
    finals = sum([end.final is not None for end in new_steps.ended])
    if finals:
        r.reserve(0, finals, None)
    _write_columns(r, new_steps, _rows(r, first, new_steps.count))
    r.extend(first + new_steps.count, True)
    if revised:
        assert session is not None
        condition = "position BETWEEN ? AND ? AND revision IS NOT NULL"
        overwrite(r, *read_steps(store, session, condition, first, r.high - 1))
    relinked = _link(r, new_steps)
    if new_steps.count > 1:
        record_gap(r, r.rows(np.arange(first, r.high)))
    for end in new_steps.ended:
        relinked += _end(r, end, first, new_steps.shared)
    episodes = np.array(sorted({step_range.episode for step_range in new_steps.ranges}), np.int64)
    older = np.array(relinked, np.int64) if relinked else NONE
    r.record(Change(first, r.high, relinked=older, advanced=episodes, orphaned=orphaned))


def _rows(r: Resident, first: int, count: int) -> Rows:
    """Return the rows of consecutive positions: a slice, or indices if they wrap around."""
    begin = r.row(first)
    if begin + count <= r.slots:
        return slice(begin, begin + count)
    return np.arange(begin, begin + count) % r.slots


def _write_columns(r: Resident, new_steps: NewSteps, rows: Rows) -> None:
    columns, ranges, count = r.columns, new_steps.ranges, new_steps.count
    if len(ranges) == 1:
        columns["episode"][rows] = ranges[0].episode
        columns[ORDINAL][rows] = np.arange(ranges[0].ordinal, ranges[0].ordinal + count)
    else:
        first, last, episode, ordinal = np.array(ranges, np.int64).T
        lengths = last - first + 1
        columns["episode"][rows] = np.repeat(episode, lengths)
        ordinals = np.repeat(ordinal - first + new_steps.first, lengths)
        columns[ORDINAL][rows] = np.arange(count) + ordinals
    columns[PRESENT][rows] = True
    columns[WHOLE][rows] = 0
    if PRIORITY in columns:
        columns[PRIORITY][rows] = np.nan
        columns[UNSAVED][rows] = False
    parts = new_steps.chunk_rows
    for name, field in (*SYSTEM.items(), *r.fields.items()):
        values, present_column = _values(parts, name, field, count), columns.get(f"has_{name}")
        if present_column is not None:
            mask = b"".join([part.chunk.present(name, part.first, part.stop) for part in parts])
            present_column[rows] = present = np.frombuffer(mask, np.bool_)
            if not present.all():
                values = values.copy()
                blank(values, ~present)
        columns[name][rows] = values


def _values(parts: list[ChunkRows], name: str, field: Field, count: int) -> np.ndarray:
    """Return the values of a fixed-width field; zeros for chunks that lack the field."""
    if len(parts) == 1:
        data = raw_or_zeros(parts[0].chunk, name, field, parts[0].first, parts[0].stop)
        return np.ndarray((count, *field.fixed_shape), field.numpy, data)
    all_data = [raw_or_zeros(part.chunk, name, field, part.first, part.stop) for part in parts]
    return joined(all_data, field, count)


def _link(r: Resident, new_steps: NewSteps) -> list[int]:
    """Link the new steps to their episodes; return older positions whose successor changed."""
    first, slots, begin = new_steps.first, r.slots, r.row(new_steps.first)
    after, before, terminated = r.columns[AFTER], r.columns[BEFORE], r.columns["terminated"]
    rows: Any = [None, begin, None]  # a single new step has no links to other new steps
    if new_steps.count > 1:
        rows = np.arange(begin - 1, begin + new_steps.count + 1) % slots
        after[rows[1:-1]], before[rows[1:-1]] = rows[2:], rows[:-2]
    numbers, relinked, shared = r.columns["step"], [], new_steps.shared
    for start, last, episode, ordinal in new_steps.ranges:
        row, end, count = rows[start - first + 1], rows[last - first + 1], last - start + 1
        before[row] = UNKNOWN
        after[end] = r.zero if terminated[end] else UNKNOWN
        begins = not ordinal or (shared and shared.get(episode) == ordinal)
        earlier, head = (None, start) if begins else (r.open.pop(episode, None), UNKNOWN)
        if earlier is not None:
            if earlier.ordinal == ordinal and r.is_stored(earlier.last):
                previous = r.row(earlier.last)
                after[previous], before[row] = row, previous
                if numbers[row] - numbers[previous] > 1:
                    record_gap(r, np.array([previous]))
                if earlier.last < first:
                    relinked.append(earlier.last)
            count += earlier.count
            head = earlier.first if earlier.first >= r.low else UNKNOWN
        r.open[episode] = OpenEpisode(last, ordinal + last - start + 1, head, count)
    return relinked


def _end(r: Resident, end: EndedEpisode, new: int, shared: dict[int, int]) -> list[int]:
    """Mark an episode as ended; return its first position if it is complete and began before `new`.

    An episode is left unchanged if some of its steps are not in memory. `shared` is the number of
    steps that each fork shares with its parent.
    """
    episode = r.open.get(end.episode)
    if episode is None or episode.ordinal != end.length:
        return []
    del r.open[end.episode]
    if end.final is not None and r.is_stored(episode.last):
        _keep_final(r, episode.last, *end.final)
    own_length = end.length - shared.get(end.episode, 0)
    if not end.is_complete or episode.count != own_length or episode.first < r.low:
        return []
    r.columns[WHOLE][r.row(episode.first)] = own_length
    return [episode.first] if episode.first < new else []


def _keep_final(r: Resident, last: int, chunk: Chunk, row: int, names: frozenset[str]) -> None:
    """Store a final observation in a row after the ring, and link the last step to it."""
    if not names <= r.final_fields:
        r.final_fields, r.version = r.final_fields | names, r.version + 1
    place = r.finals.free.pop()
    r.finals.taken.append((last, place))
    r.columns[AFTER][r.row(last)] = place
    parts = [ChunkRows(chunk, row, row + 1)]
    for name, field in r.fields.items():
        if name in r.final_fields:
            value: Any = _values(parts, name, field, 1)[0] if name in names else 0
            r.columns[name][place] = value
            if f"has_{name}" in r.columns:
                r.columns[f"has_{name}"][place] = name in names
