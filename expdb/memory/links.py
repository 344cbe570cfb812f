"""Links from the steps in memory to their neighbours, open episodes and final observations."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb.memory.columns import AFTER, BEFORE, ORDINAL, WHOLE
from expdb.memory.journal import NONE, Change, OpenEpisode
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.reading.chunk_values import gather
from expdb.storage.reading.fetch import alive, read_final_chunks
from expdb.storage.reading.segments import Segments, Spans, breaks, inconsistent
from expdb.storage.store import State, Store
from expdb.storage.stored_json import parse_names

SEGMENTS_AT_ONCE = 256


@dataclass
class Incoming:
    """The steps at positions from `begin` up to `end`, and the segments that contain them."""

    begin: int
    end: int
    segments: Segments
    positions: np.ndarray  # positions that hold a step, ascending
    index: np.ndarray  # index in `segments` of the segment of each position

    @classmethod
    def read(cls, store: Store, session: Session, begin: int, state: State) -> "Incoming":
        """Read the next `SEGMENTS_AT_ONCE` segments and the positions of their steps."""
        segments = Segments.read(session, store.id, "AND last >= ?", begin, limit=SEGMENTS_AT_ONCE)
        count = len(segments.last)
        if count and segments.last[-1] >= state.added:
            raise inconsistent("a segment covers positions that were never written")
        segments.cut(begin)  # a merged segment may begin before the new steps
        end = int(segments.last[-1]) + 1 if count == SEGMENTS_AT_ONCE else state.added
        positions, index = segments.positions(begin)
        if state.gaps and len(positions):
            is_stored = alive(store, session, positions)
            positions, index = positions[is_stored], index[is_stored]
        if len(positions) and (int(positions[-1]) >= end or (np.diff(positions) <= 0).any()):
            raise inconsistent("segments overlap")
        return cls(begin, end, segments, positions, index)

    @property
    def is_whole(self) -> bool:
        """Whether every position from `begin` up to `end` holds a step."""
        return len(self.positions) == self.end - self.begin

    def of_segments(self, values: np.ndarray) -> np.ndarray:
        """Return the value of the segment of each step, given one value per segment."""
        if self.is_whole:
            lengths = self.segments.last - self.segments.first + 1
            return np.repeat(values, lengths)
        step_values: np.ndarray = values[self.index]
        return step_values

    def ordinals(self) -> np.ndarray:
        """Return, for each step, the number of steps of its episode that were written before it."""
        began = self.of_segments(self.segments.first - self.segments.ordinal)
        ordinals: np.ndarray = self.positions - began
        return ordinals

    def chunks(self) -> np.ndarray:
        """Return the ids of the chunks that hold steps, ascending."""
        if self.is_whole:
            return np.unique(self.segments.chunk)
        return np.unique(self.segments.chunk[np.unique(self.index)])

    def spans(self) -> Spans:
        """Return the runs of consecutive chunk rows that contain the steps, in order."""
        segments = self.segments
        if not self.is_whole:
            return segments.spans(self.positions, self.index)
        stops = segments.chunk_row + segments.last - segments.first + 1
        columns = (segments.chunk.tolist(), segments.chunk_row.tolist(), stops.tolist())
        return list(zip(*columns, strict=True))

    def put(self, r: Resident, name: str, values: Any) -> None:
        """Set the values of a column for these steps."""
        if self.is_whole:
            r.write(name, self.begin, self.end, values)
        else:
            r.columns[name][r.rows(self.positions)] = values


class Details:
    """Rows of the table `episodes`, in ascending order of id."""

    def __init__(self, rows: list[Any]):
        rows = sorted(rows)
        self.id = np.array([row[0] for row in rows], np.int64)
        self.open = np.array([row[1] == "open" for row in rows], np.bool_)
        self.complete = np.array([row[1] == "complete" for row in rows], np.bool_)
        self.length = np.array([row[2] for row in rows], np.int64)
        self.ordered = np.array([row[3] for row in rows], np.bool_)
        self.tail_chunk = np.array([-1 if row[4] is None else row[4] for row in rows], np.int64)
        self.tail_row = np.array([-1 if row[5] is None else row[5] for row in rows], np.int64)
        self.tail_fields = [row[6] or "[]" for row in rows]
        self.shared = np.array([row[7] or 0 for row in rows], np.int64)  # steps of the parent
        self.place = np.full(len(rows), UNKNOWN)  # row of the final observation, if it has one

    @classmethod
    def read(
        cls, store: Store, session: Session, ids: np.ndarray, missing: bool = False
    ) -> "Details":
        """Read episodes from the database.

        Raise DatabaseDamaged if an episode does not exist, unless `missing` allows it.
        """
        rows = session.query(
            "SELECT id, status, length, ordered, tail_chunk, tail_row, tail_fields, shared_steps "
            "FROM episodes WHERE buffer_id = ? AND id "
            f"{store.dialect.AMONG}", store.id, store.dialect.as_list(ids),
        )  # fmt: skip
        if len(rows) < len(np.unique(ids)) and not missing:
            raise inconsistent("steps belong to a missing episode")
        return cls(rows)


def link(r: Resident, new: Incoming, details: Details) -> np.ndarray:
    """Link new steps to each other and to older steps in memory.

    Return the older positions whose links or episode lengths changed.
    """
    if not len(new.positions):
        return NONE
    for id in details.id[~details.ordered].tolist():
        r.unordered[id] = NONE  # see link_unordered
        r.open.pop(id, None)
    ordered = details.ordered[np.searchsorted(details.id, new.segments.episode)]
    runs = _link_neighbours(r, new, ordered)
    if not len(runs.start):
        return NONE
    shared = details.shared[details.id.searchsorted(runs.episode)]
    ends, heads = _link_runs(r, new, runs, shared)
    relinked = _link_to_open(r, ends, runs.ordinal[heads], r.rows(new.positions[runs.start[heads]]))
    return np.concatenate((relinked, settle_ends(r, ends, details, new.begin)))


@dataclass
class _Runs:
    """Runs of consecutive new steps of one episode, sorted by episode and ordinal.

    A segment consists of several runs if some of its steps were deleted.
    """

    start: np.ndarray  # index of the first step
    stop: np.ndarray  # index of the last step
    episode: np.ndarray
    ordinal: np.ndarray  # of the first step


def _link_neighbours(r: Resident, new: Incoming, ordered: np.ndarray) -> _Runs:
    """Link the steps within each run; return the runs of episodes that were written in order."""
    rows, ends = r.rows(new.positions), breaks(new.index, new.positions)
    start, stop = np.concatenate(([0], ends)), np.concatenate((ends, [len(rows)])) - 1
    inside = ordered[new.index]
    inside[stop] = False
    follows = inside[:-1]
    new.put(r, AFTER, np.append(np.where(follows, rows[1:], UNKNOWN), UNKNOWN))
    new.put(r, BEFORE, np.append(UNKNOWN, np.where(follows, rows[:-1], UNKNOWN)))
    kept = ordered[new.index[start]]
    start, stop = start[kept], stop[kept]
    episode, ordinal = new.segments.episode[new.index[start]], new.ordinals()[start]
    order = np.lexsort((ordinal, episode))
    return _Runs(start[order], stop[order], episode[order], ordinal[order])


def _link_runs(
    r: Resident, new: Incoming, runs: _Runs, shared: np.ndarray
) -> tuple["Ends", np.ndarray]:
    """Link consecutive runs; return the ends and the index of the first run of each episode.

    `shared` is the number of steps that the episode of each run shares with its parent.
    """
    rows, length = r.rows(new.positions), runs.stop - runs.start + 1
    follows = runs.ordinal[1:] == runs.ordinal[:-1] + length[:-1]
    joined = np.flatnonzero((runs.episode[1:] == runs.episode[:-1]) & follows)
    r.columns[AFTER][rows[runs.stop[joined]]] = rows[runs.start[joined + 1]]
    r.columns[BEFORE][rows[runs.start[joined + 1]]] = rows[runs.stop[joined]]
    heads = np.concatenate(([0], np.flatnonzero(np.diff(runs.episode)) + 1))
    lasts = np.concatenate((heads[1:], [len(runs.episode)])) - 1
    return Ends(
        runs.episode[heads],
        np.where(runs.ordinal[heads] == shared[heads], new.positions[runs.start[heads]], -1),
        new.positions[runs.stop[lasts]],
        runs.ordinal[lasts] + length[lasts],
        np.add.reduceat(length, heads),
    ), heads


def _link_to_open(r: Resident, ends: "Ends", ordinal: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Link the first new step of each episode to the last older step of the episode.

    Return the positions of these older steps.
    """
    relinked = []
    for k in np.flatnonzero(ordinal > 0).tolist():
        older = r.open.pop(int(ends.episode[k]), None)
        if older is None:
            continue
        ends.count[k] += older.count
        ends.first[k] = older.first if older.first >= r.low else -1
        if older.ordinal == ordinal[k] and r.is_stored(older.last):
            previous = r.row(older.last)
            r.columns[AFTER][previous], r.columns[BEFORE][rows[k]] = rows[k], previous
            relinked.append(older.last)
    return np.array(relinked, np.int64)


def record_gap(r: Resident, rows: np.ndarray) -> None:
    """Record the first gap between the numbers of linked steps, unless one is known."""
    if not r.has_plain_links:  # a gap is known, or AgentTrajectories finds the gaps of each agent
        return
    after, numbers = r.columns[AFTER][rows], r.columns["step"]
    is_linked = (after >= 0) & (after < r.slots)
    rows, after = rows[is_linked], after[is_linked]
    gaps = np.flatnonzero(numbers[after] - numbers[rows] > 1)
    if len(gaps):
        row, following = rows[gaps[0]], after[gaps[0]]
        episode = int(r.columns["episode"][row])
        r.record_breaks((episode, int(numbers[row]), int(numbers[following])))


@dataclass
class Ends:
    """The first and the last known step of each episode, and the number of its steps in memory."""

    episode: np.ndarray
    first: np.ndarray  # position of the first step, or -1
    last: np.ndarray  # position of the last step
    ordinal: np.ndarray  # of the next step
    count: np.ndarray  # steps in memory


def settle_loose_ends(r: Resident, rows: np.ndarray) -> None:
    """Set the successor of steps that have neither a next step nor a final observation.

    The successor is the zero row if the step terminated its episode, otherwise UNKNOWN. Loading
    steps, deleting steps and updating `terminated` all use this function.
    """
    after = r.columns[AFTER]
    loose = rows[(after[rows] == UNKNOWN) | (after[rows] == r.zero)]
    after[loose] = np.where(r.columns["terminated"][loose], r.zero, UNKNOWN)


def settle_ends(r: Resident, ends: Ends, details: Details, begin: int) -> np.ndarray:
    """Link the last steps of ended episodes to rows for their final observations.

    Also set the lengths of complete episodes, and record the episodes that are still open. Return
    the last positions of the episodes, and the first positions of complete episodes, that are
    before `begin`.
    """
    at = np.searchsorted(details.id, ends.episode)
    ended = ~details.open[at] & (ends.ordinal == details.length[at])
    rows = r.rows(ends.last)
    observed = np.flatnonzero(ended & (details.tail_chunk[at] >= 0))
    places = [r.finals.free.pop() for _ in observed]
    r.finals.taken.extend(zip(ends.last[observed].tolist(), places, strict=True))
    details.place[at[observed]] = places
    r.columns[AFTER][rows[observed]] = places
    own_length = (details.length - details.shared)[at]
    whole = ended & details.complete[at] & (ends.count == own_length) & (ends.first >= r.low)
    r.columns[WHOLE][r.rows(ends.first[whole])] = own_length[whole]
    for k in np.flatnonzero(~ended).tolist():
        r.open[int(ends.episode[k])] = OpenEpisode(
            *[int(array[k]) for array in (ends.last, ends.ordinal, ends.first, ends.count)]
        )
    older = np.concatenate((ends.last, ends.first[whole]))
    return older[(older >= r.low) & (older < begin)]


def load_finals(store: Store, session: Session, r: Resident, details: Details) -> None:
    """Load final observations into the rows that `settle_ends` assigned to them."""
    placed = np.flatnonzero(details.place >= 0)
    if not len(placed):
        return
    observed_fields = {
        text: frozenset(parse_names(text, "tail_fields"))
        for text in {details.tail_fields[k] for k in placed.tolist()}
    }
    names = r.final_fields.union(*observed_fields.values())
    if names != r.final_fields:
        r.final_fields, r.version = names, r.version + 1
    wanted = [name for name in r.fields if name in r.final_fields]
    if not wanted:
        return
    chunks = read_final_chunks(
        store, session, details.id[placed], details.tail_chunk[placed], details.tail_row[placed]
    )
    for name in wanted:
        present = np.array(
            [k for k in placed.tolist() if name in observed_fields[details.tail_fields[k]]],
            np.int64,
        )
        if len(present):
            spans: Spans = [
                (c, a, a + 1)
                for c, a in zip(
                    details.tail_chunk[present].tolist(),
                    details.tail_row[present].tolist(),
                    strict=True,
                )
            ]
            r.columns[name][details.place[present]] = gather(chunks, spans, name, r.fields[name])
        others = np.setdiff1d(placed, present)
        r.columns[name][details.place[others]] = 0
        if f"has_{name}" in r.columns:
            r.columns[f"has_{name}"][details.place[present]] = True
            r.columns[f"has_{name}"][details.place[others]] = False


def link_unordered(store: Store, session: Session, r: Resident) -> None:
    """Link the steps of episodes that were written out of order, sorted by (step, position).

    Call it after all steps of the buffer are loaded. If a step of an episode was evicted or
    deleted, its place in the order is unknown, so only steps with consecutive numbers are linked.
    """
    for id, linked in list(r.unordered.items()):
        if len(linked) and linked.min() >= r.low:
            continue
        details = Details.read(store, session, np.array([id]), missing=True)
        if not len(details.id):  # evicted, cleared or deleted with all of its steps
            del r.unordered[id]
            continue
        # Not a join: see `_Steps.read` in storage/writing/compact.py.
        covered, _ = Segments.read(session, store.id, "AND episode = ?", id).positions(0)
        rows = session.query(
            "SELECT position FROM steps WHERE buffer_id = ? AND position "
            f"{store.dialect.AMONG} ORDER BY step, position",
            store.id, store.dialect.as_list(covered),
        )  # fmt: skip
        positions = np.array([row[0] for row in rows], np.int64)
        episode_rows = r.rows(positions)
        for name in (AFTER, BEFORE):
            r.columns[name][episode_rows] = UNKNOWN
        r.columns[WHOLE][episode_rows] = 0
        if len(positions) and len(positions) == details.length[0] - details.shared[0]:
            r.unordered[id] = positions
            _link_in_order(r, details, positions)
            load_finals(store, session, r, details)
        else:
            r.unordered[id] = positions
            _number_what_is_left(store, session, r, id, positions)
            _link_consecutive(r, episode_rows)
        settle_loose_ends(r, episode_rows)
        record_gap(r, episode_rows)
        if len(positions):
            r.record(Change(r.high, r.high, relinked=positions))


def _link_in_order(r: Resident, details: Details, positions: np.ndarray) -> None:
    """Link all steps of an episode; `positions` must be in the order of the steps."""
    rows = r.rows(positions)
    r.columns[AFTER][rows[:-1]] = rows[1:]
    r.columns[BEFORE][rows[1:]] = rows[:-1]
    r.columns[ORDINAL][rows] = np.arange(len(rows)) + details.shared[0]
    r.reserve(0, 1, None)
    own_length = details.length - details.shared
    ends = Ends(details.id, positions[:1], positions[-1:], details.length, own_length)
    settle_ends(r, ends, details, r.high)
    r.open.pop(int(details.id[0]), None)


def _link_consecutive(r: Resident, rows: np.ndarray) -> None:
    """Link the remaining steps of an episode, sorted by number, whose numbers are consecutive."""
    follows = np.flatnonzero(np.diff(r.columns["step"][rows]) <= 1)
    r.columns[AFTER][rows[follows]] = rows[follows + 1]
    r.columns[BEFORE][rows[follows + 1]] = rows[follows]


def _number_what_is_left(
    store: Store, session: Session, r: Resident, id: int, positions: np.ndarray
) -> None:
    """Set the ordinals of the remaining steps of an episode to at least 1.

    Ordinal 0 marks the first step of an episode, which may be missing here.
    """
    written = session.query(
        "SELECT first, last, ordinal FROM segments WHERE buffer_id = ? AND episode = ?",
        store.id,
        id,
    )
    for first, last, ordinal in written:
        remaining = positions[(positions >= first) & (positions <= last)]
        r.columns[ORDINAL][r.rows(remaining)] = np.maximum(ordinal + remaining - first, 1)


def terminate(store: Store, session: Session, r: Resident, turned: np.ndarray) -> None:
    """Update the links of steps whose `terminated` flag has changed."""
    if not len(turned):
        return
    rows = r.rows(turned)
    details = Details.read(store, session, np.unique(r.columns["episode"][rows]))
    for id in details.id[~details.ordered].tolist():
        r.unordered[id] = NONE  # see link_unordered
    settle_loose_ends(r, rows)
