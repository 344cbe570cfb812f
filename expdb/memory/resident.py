"""The rows of a buffer in memory: one array per column, with links from steps to their neighbours.

The successor of a step is always a row: a step, the zero row or a final observation. A batch is
therefore a copy of some rows. refresh.py fills the arrays, and links.py links the steps.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.fields import Field
from expdb.memory.batch_arrays import BatchArrays
from expdb.memory.budget import Budget, fitting
from expdb.memory.columns import (
    AFTER,
    BATCH_COLUMNS,
    BEFORE,
    LINKS,
    NO_STEP,
    ORDINAL,
    PACKED,
    PRESENT,
    PRIORITY,
    UNSAVED,
    WHOLE,
    last_run,
    run_starts,
)
from expdb.memory.journal import (
    ENTRY_BYTES,
    JOURNAL,
    JOURNAL_BYTES,
    MANY_OPEN,
    NONE,
    AgentColumn,
    Change,
    EpisodeColumns,
    FinalRows,
    OpenEpisode,
    Priorities,
    StepColumn,
)  # fmt: skip
from expdb.memory.records import RecordArray
from expdb.memory.shared_steps import find_shared_steps, have_whole_lineage
from expdb.names import UNKNOWN
from expdb.replay import layout
from expdb.storage.catalog import Fields
from expdb.storage.reading.chunk_values import blank

LEAST = 64  # minimum number of rows in the ring
SPARE = 32  # if positions have gaps, the ring has one spare row per `SPARE` steps


def sparse_slots(count: int) -> int:
    """Return the number of ring rows to allocate for `count` steps with gaps between them."""
    return count + count // SPARE + LEAST


class RowColumns(ABC):
    """The columns that sampling units read; implements part of the protocol `Trajectories`."""

    __slots__ = ()

    @abstractmethod
    def _of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the values of a column at `rows`."""

    def successors(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the successor of each step, or UNKNOWN if it has none.

        The successor is the next step, a final observation or the zero row.
        """
        return self._of(AFTER, rows)

    def episodes(self, rows: np.ndarray) -> np.ndarray:
        """Return the episode of each step."""
        return self._of("episode", rows)

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each step in its episode."""
        return self._of("step", rows)

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return, for each step, the number of steps of its episode that were written before it."""
        return self._of(ORDINAL, rows)

    def episode_lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the length of the complete episode that begins at each step; 0 for other steps."""
        return self._of(WHOLE, rows)

    def rewards(self, rows: np.ndarray) -> np.ndarray:
        """Return the reward of each step; NaN if it has none."""
        return self._of("reward", rows)

    def terminated(self, rows: np.ndarray) -> np.ndarray:
        """Return a bool array: whether each step terminated its episode."""
        return self._of("terminated", rows)

    def truncated(self, rows: np.ndarray) -> np.ndarray:
        """Return a bool array: whether the episode was truncated at each step."""
        return self._of("truncated", rows)


class Resident(RowColumns):
    """The steps of one buffer in memory, from position `low` up to `high`. Use it under its lock.

    The first `slots` rows of every array are a ring. Each position with a row has a place, and its
    row is `place % slots`. Places are consecutive and ascend with positions. A position from `base`
    on has the place `position - offset`. The places directly before it belong to the positions in
    `early`: older positions, ascending, with gaps between them that take no rows. An old open
    episode therefore does not reserve rows for the evicted steps after it.

    After the ring come the zero row, which replaces missing steps, the final observations of
    episodes, and a last row for "no step", so that the index -1 reads -1, NaN or False.
    """

    # Slots are faster: Python looks up attributes slowly if an instance dict has more than 30.
    __slots__ = (
        "__weakref__", "_split", "arrays", "base", "budget", "changing", "columns",
        "complete", "deleted", "early", "epoch", "field_bytes", "fields", "final_fields",
        "final_rows", "finals", "gaps", "greatest", "has_agents", "has_plain_links",
        "high", "is_gap_reported",
        "journal", "journal_bytes", "kept", "known_fields", "layout_version", "lock", "low",
        "number_gap", "offset", "open", "owners", "packed", "priorities", "revision",
        "size", "slots", "started", "step_agents", "step_versions", "unordered",
        "unordered_bytes", "version",
    )  # fmt: skip

    def __init__(self, budget: Budget):
        self.lock = threading.RLock()
        self.budget = budget
        self.arrays = BatchArrays()  # memory for copies of the columns
        self.field_bytes = 0  # memory that counts towards the budget
        self.greatest = 0.0  # greatest priority that was set for any step
        self.complete = False  # whether all stored steps are loaded
        self.changing = False  # whether a change is in progress, or was interrupted
        self.version = 0  # incremented whenever a column is added or removed
        self.layout_version = 0  # incremented whenever rows move
        # Version of the loaded priorities; None if they are not loaded.
        self.priorities: int | None = None
        self.kept: Priorities | None = None  # priorities from before `forget`, until the next load
        # Columns of episodes that are up to date, by name.
        self.owners: Mapping[str, EpisodeColumns] = {}
        self.step_versions: StepColumn | None = None  # policy versions, if they are up to date
        self.step_agents: AgentColumn | None = None  # agents of steps, if they are up to date
        self.is_gap_reported = False  # whether a warning has named the first gap
        # The epoch never decreases; otherwise, a follower could mistake an old state for the
        # current state.
        self.epoch = 0
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state, but keep the priorities, which may not be saved yet."""
        self.changing, self.complete = True, False
        if self.priorities is not None:
            self.kept = self._get_known_priorities()
            self.priorities = None
        self.size = 0  # number of steps in memory
        self.gaps = False  # whether some positions from `low` up to `high` hold no step
        # Whether no step number is missing and `has_agents` is False.
        self.has_plain_links = True
        self.has_agents = False  # whether any step has another agent than its episode
        # An episode with missing step numbers, and the numbers before and after the first gap.
        self.number_gap: tuple[int, int, int] | None = None
        self.slots = self.final_rows = 0
        self.begin_at(0)
        self.columns: dict[str, np.ndarray] = {
            name: np.array([0, NO_STEP.get(name, 0)], dtype)
            for name, dtype in BATCH_COLUMNS.items()
        }
        self.packed = RecordArray(0, {})
        self.fields: dict[str, Field] = {}  # the fields that have an array
        self.known_fields: Fields | None = None
        self.open: dict[int, OpenEpisode] = {}
        # Positions of the steps of each episode that was written out of order, by episode.
        self.unordered: dict[int, np.ndarray] = {}
        self.finals = FinalRows()
        self.final_fields: set[str] = set()  # fields that any final observation has
        self.revision = self.deleted = 0
        self.started = 0  # position of the first step that no draw by priority has included
        self.epoch, self.version = self.epoch + 1, self.version + 1
        self.journal: deque[Change] = deque()
        self.journal_bytes = self.unordered_bytes = 0
        self.changing = False

    def begin_at(self, position: int) -> None:
        """Start without steps; `position` is the next position to load."""
        self.low = self.high = self.base = position
        self.offset, self.early = 0, NONE
        self._split: tuple[np.ndarray, int] | None = None  # see `split`

    # -- rows --------------------------------------------------------------------------------------

    @property
    def zero(self) -> int:
        """The index of the zero row, which replaces missing steps."""
        return self.slots

    @property
    def total(self) -> int:
        """The number of rows of each array.

        The rows are the ring, the zero row, the final observations and the row for "no step".
        """
        return self.slots + 1 + self.final_rows + 1

    @property
    def first_place(self) -> int:
        """The first place in use."""
        return self.base - self.offset - len(self.early)

    @property
    def end_place(self) -> int:
        """The place after the last place in use."""
        return self.high - self.offset

    def places(self, positions: np.ndarray) -> np.ndarray:
        """Return the places of positions in memory. Do not write to the result."""
        places = positions - self.offset if self.offset else positions
        if len(self.early) and np.count_nonzero(early := positions < self.base):
            places = places.copy()
            places[early] = self.first_place + self.early.searchsorted(positions[early])
        return places

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the rows of positions in memory. Do not write to the result."""
        if self.high <= self.slots and not (self.offset or self.early.size):
            return positions
        return self.places(positions) % self.slots

    def row(self, position: int) -> int:
        """Return the row of a position in memory."""
        if position >= self.base:
            return (position - self.offset) % self.slots
        return (self.first_place + int(self.early.searchsorted(position))) % self.slots

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows of the ring. Do not write to the result."""
        if self.high <= self.slots and not (self.offset or self.early.size):
            return rows
        first = self.first_place
        places = first + (rows - first) % self.slots
        positions = places + self.offset
        if len(self.early):
            early = self.early.take(places - first, mode="clip")
            positions = np.where(positions < self.base, early, positions)
        return np.where(rows < 0, UNKNOWN, positions)

    def are_stored(self, positions: np.ndarray) -> np.ndarray:
        """Return a bool array: whether each position holds a step."""
        is_stored = (positions >= self.low) & (positions < self.high)
        if not self.gaps:
            return is_stored
        if self.base > self.low:
            is_stored &= positions >= self.base
            if len(self.early):
                places = self.early.searchsorted(positions)
                is_stored |= self.early.take(places, mode="clip") == positions
        is_stored[is_stored] = self.columns[PRESENT][self.rows(positions[is_stored])]
        return is_stored

    def is_stored(self, position: int) -> bool:
        """Return whether a position holds a step."""
        if not self.low <= position < self.high:
            return False
        if self.gaps and position < self.base:
            return bool(self.are_stored(np.array([position]))[0])
        return not self.gaps or bool(self.columns[PRESENT][self.row(position)])

    def positions_and_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions with a row, ascending, and their rows; some rows have no step."""
        places = np.arange(self.first_place, self.end_place)
        positions = np.concatenate((self.early, places[len(self.early) :] + self.offset))
        return positions, places % max(self.slots, 1)

    def positions_from(self, first: int) -> np.ndarray:
        """Return the positions with a row from `first` on, ascending; some have no step."""
        if first >= self.base:
            return np.arange(first, self.high)
        positions, _ = self.positions_and_rows()
        return positions[positions.searchsorted(first) :]

    def all_positions(self) -> np.ndarray:
        """Return all positions that hold a step, ascending."""
        if not self.gaps and not len(self.early):
            return np.arange(self.base, self.high)
        positions, rows = self.positions_and_rows()
        if not self.gaps:
            return positions
        stored: np.ndarray = positions[self.columns[PRESENT][rows]]
        return stored

    def split(self) -> tuple[np.ndarray, int]:
        """Return the positions before the last consecutive run, and the first position of the run.

        Unlike `early` and `base`, the result depends only on which steps are in memory.
        """
        if not self.gaps:
            return NONE, self.low
        if self._split is None:
            positions = self.all_positions()
            begin = last_run(positions, self.high)
            self._split = positions[: positions.searchsorted(begin)], begin
        return self._split

    def starts(self) -> np.ndarray:
        """Return the first positions of complete episodes, ascending.

        All steps of these episodes are in memory.
        """
        rows = np.flatnonzero(self.columns[WHOLE][: self.slots])
        return np.sort(self.positions(rows[self.is_live(rows)]))

    def next_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the next step of each step; UNKNOWN if there is none in the ring."""
        after = self._of(AFTER, rows)
        after[after >= self.slots] = UNKNOWN
        return after

    def previous_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the step before each step; UNKNOWN if there is none in memory."""
        flat = rows.reshape(-1)
        before = self._of(BEFORE, flat)
        behind = np.flatnonzero(before >= 0)
        candidates = before[behind]
        # If the previous step was evicted, its row may hold another step, which does not lead here,
        # or still hold the evicted step, which is no longer live.
        leads_here = self.columns[AFTER][candidates] == flat[behind]
        before[behind[~(leads_here & self.is_live(candidates))]] = UNKNOWN
        return before.reshape(rows.shape)

    def around(self, rows: np.ndarray, offsets: range) -> np.ndarray:
        """Return the rows at `offsets` from steps in their episodes; UNKNOWN if there is none."""
        return layout.around(self, rows, offsets)

    def is_live(self, rows: np.ndarray) -> np.ndarray:
        """Return a bool array: whether each row belongs to a position that was not evicted.

        The step at this position may have been deleted.
        """
        first = self.first_place
        live: np.ndarray = (rows - first) % self.slots < self.end_place - first
        return live

    def record_breaks(
        self, gap: tuple[int, int, int] | None = None, has_agents: bool = False
    ) -> None:
        """Record a gap between step numbers, or that a step has another agent than its episode."""
        self.number_gap = self.number_gap or gap
        self.has_agents = self.has_agents or has_agents
        self.has_plain_links = self.number_gap is None and not self.has_agents

    # -- columns -----------------------------------------------------------------------------------

    def _of(self, name: str, rows: np.ndarray) -> np.ndarray:
        # `take` would first copy the whole column if it is packed.
        values: np.ndarray = self.columns[name][rows]
        return values

    def of_episodes(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a column of the episode of each step.

        The unit or the sampler must name the column in `reads`.
        """
        if name not in self.owners:
            raise errors.InvalidValue(
                f"{name!r} is not in `reads`; add this episode column to `reads` of the unit or "
                "sampler"
            )
        there = rows >= 0
        if there.all():
            episodes = self.episodes(rows)
            begins = run_starts(episodes) if rows.ndim == 1 else episodes
            if 2 * len(begins) > len(episodes):
                return self.owners[name].of(name, episodes)
            # Steps of an episode are usually adjacent, so each run of them is looked up once.
            values = self.owners[name].of(name, episodes[begins])
            return np.repeat(values, np.diff(begins, append=len(episodes)))
        values = self.owners[name].of(name, self.episodes(rows[there]))
        column = np.full(rows.shape, np.nan if values.dtype.kind == "f" else UNKNOWN, values.dtype)
        column[there] = values
        return column

    shared_steps, have_whole_lineage = find_shared_steps, have_whole_lineage

    def parent_of(self, episode: int) -> int:
        """Return the number of the parent of an episode, or UNKNOWN."""
        return self.owners["parent_episode"].parent_of(episode)

    def texts_of_episodes(self, name: str, rows: np.ndarray) -> list[str | None]:
        """Return a text column of the episode of each step; it must be named in `reads`."""
        return self.owners[name].texts(name, self.episodes(rows))

    # -- priorities --------------------------------------------------------------------------------

    def _get_known_priorities(self) -> Priorities:
        positions, rows = self.positions_and_rows()
        values, unsaved = (self.columns[name][rows] for name in (PRIORITY, UNSAVED))
        return Priorities(positions, values, unsaved, self.started)

    # -- memory ------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Size in bytes of all arrays and entries.

        Rows that were never written take no memory and do not count.
        """
        entries = len(self.open) + len(self.unordered)
        entries += len(self.finals.taken) + len(self.finals.free) // 8
        behind = self.total - self.slots
        used = (min(self.end_place, self.slots) + behind) / self.total
        alone = [array for name, array in self.columns.items() if name not in self.packed.names]
        arrays = int(used * (self.packed.nbytes + sum(array.nbytes for array in alone)))
        arrays += 0 if self.kept is None else self.kept.nbytes
        return arrays + ENTRY_BYTES * entries + self.journal_bytes + self.unordered_bytes

    def over(self, rows: int) -> bool:
        """Return whether the fields of `rows` rows exceed the budget."""
        return rows * self._width() > self.budget.bytes_left_for(self)

    def _width(self) -> int:
        return sum(field.nbytes + (f"has_{n}" in self.columns) for n, field in self.fields.items())

    def settle_fields(self, fields: Fields, rows: int) -> None:
        """Allocate arrays for the fixed-width fields, narrowest first, that fit the budget.

        The budget must suffice for `rows` rows. Arrays of other fields are removed.
        """
        # A field without an array does not get one later, as the loaded rows lack its values.
        left_out = (
            set()
            if self.known_fields is None
            else self.known_fields.types.keys() - self.fields.keys()
        )
        chosen = fitting(fields, self.budget.bytes_left_for(self) / max(rows, 1), left_out)
        total = self.total
        for name, field in chosen.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((total, *field.fixed_shape), field.numpy)
                if self.high > self.low:  # the loaded steps were stored before the field existed
                    blank(self.columns[name], slice(self.slots))
                    self.columns[f"has_{name}"] = np.zeros(total, np.bool_)
            if name in fields.optional and f"has_{name}" not in self.columns:
                self.columns[f"has_{name}"] = np.zeros(total, np.bool_)
        for name in self.fields.keys() - chosen.keys():
            del self.columns[name]
            self.columns.pop(f"has_{name}", None)
        self.fields, self.known_fields = chosen, fields
        self.budget.take(self, rows * self._width())
        self.version += 1

    def reserve(self, count: int, finals: int, capacity: int | None) -> None:
        """Allocate rows for `count` more steps and `finals` more final observations."""
        span, slots, final_rows = (
            self.end_place - self.first_place + count,
            self.slots,
            self.final_rows,
        )
        kept = None
        if span > slots and self.gaps and slots:
            kept = self.all_positions()
            slots = max(slots, sparse_slots(len(kept) + count))
        elif span > slots or not slots:
            most = capacity if capacity and span <= capacity else 2 * span
            slots = max(span, min(slots + slots // 2, most), LEAST)
        if len(self.finals.free) < finals:
            final_rows = max(final_rows + finals, final_rows + final_rows // 2, 16)
        if kept is not None or (slots, final_rows) != (self.slots, self.final_rows):
            self._move(slots, final_rows, kept)

    def rearrange(self, slots: int) -> None:
        """Rearrange the rows into a ring of `slots` rows.

        If the steps do not fit, or need far fewer rows, the ring keeps its size. Afterwards, the
        row of each step depends only on the positions in memory and the size of the ring.
        """
        kept = self.all_positions() if self.gaps or self.offset else None
        count = self.end_place - self.first_place if kept is None else len(kept)
        is_room = count <= slots and (kept is None or slots <= 4 * sparse_slots(count))
        if kept is not None or slots != self.slots:
            self._move(slots if is_room else self.slots, self.final_rows, kept)
            self.record(
                Change(self.high, self.high)
            )  # a new epoch for followers that store row numbers

    def extend(self, high: int, is_whole: bool) -> None:
        """Add a row for every position before `high`; with `is_whole`, each of them has a step."""
        self.high, self.gaps = high, self.gaps or not is_whole
        if not is_whole:
            self._split = None

    def extend_sparse(self, positions: np.ndarray, high: int) -> None:
        """Add reserved rows for new `positions`; other positions before `high` get no row."""
        with_row, _ = self.positions_and_rows()
        with_row, end = np.concatenate((with_row, positions)), self.end_place + len(positions)
        self.base = last_run(with_row, high)
        self.early = with_row[: with_row.searchsorted(self.base)]
        self.offset, self.high, self.gaps, self._split = high - end, high, True, None

    def _move(self, slots: int, final_rows: int, kept: np.ndarray | None = None) -> None:
        """Move the rows to new arrays; with `kept`, only the rows of these positions."""
        base, early, offset = self.base, self.early, self.offset
        if kept is None:
            _, old = self.positions_and_rows()
        else:
            old, offset, base = self.rows(kept), 0, last_run(kept, self.high)
            early = kept[: kept.searchsorted(base)]
        new = np.arange(self.high - offset - len(old), self.high - offset) % max(slots, 1)
        moved = np.full(self.slots, UNKNOWN)
        moved[old] = new
        shift, total = slots - self.slots, slots + 1 + final_rows + 1
        columns = {}
        packed = RecordArray(total, self._narrow(), {ORDINAL: self.columns[ORDINAL].dtype})
        for name, array in self.columns.items():
            # `np.empty` instead of zeros: every row is written before it is read, and the first
            # access to this memory is faster because it gets large pages.
            grown = (
                packed[name]
                if name in packed.names
                else np.empty((total, *array.shape[1:]), array.dtype)
            )
            grown[slots:] = 0
            values = array[old]
            if name in LINKS:
                inside, behind = (values >= 0) & (values < self.slots), values >= self.slots
                values[inside] = moved[values[inside]]
                values[behind] += shift
            grown[new] = values
            grown[slots : slots + 1 + self.final_rows] = array[self.slots : -1]
            grown[-1] = array[-1]
            if name in LINKS:  # rows after the ring are not steps, so they have no neighbours
                grown[slots:] = UNKNOWN
            columns[name] = grown
        self.finals.free = [row + shift for row in self.finals.free] + list(
            range(slots + 1 + self.final_rows, slots + 1 + final_rows)
        )
        self.finals.taken = deque((position, row + shift) for position, row in self.finals.taken)
        # No function call separates these assignments, so an interrupt cannot split them.
        self.columns, self.packed, self.slots, self.final_rows = columns, packed, slots, final_rows
        self.base, self.early, self.offset = base, early, offset
        self.layout_version += 1

    def _narrow(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return the columns to pack if they fit: the columns that nearly every batch reads.

        Columns that are scanned as a whole are not packed.
        """
        fields = [name for field_name in self.fields for name in (field_name, f"has_{field_name}")]
        names = [*PACKED, *(name for name in fields if name in self.columns)]
        return {name: (self.columns[name].dtype, self.columns[name].shape[1:]) for name in names}

    def write(self, name: str, first: int, stop: int, values: Any) -> None:
        """Set a column at the positions from `first` up to `stop`.

        `values` is an array with one value per position, or one value for all of them.
        """
        begin, column = self.row(first), self.columns[name]
        until = min(stop - first, self.slots - begin)
        if until == stop - first:
            column[begin : begin + until] = values
        elif np.ndim(values) == 0:
            column[begin : self.slots] = values
            column[: stop - first - until] = values
        else:
            column[begin : self.slots] = values[:until]
            column[: stop - first - until] = values[until:]

    def evict(self, low: int) -> np.ndarray:
        """Evict the positions before `low`; return the positions that lost their previous step."""
        if low <= self.low:
            return NONE
        orphaned = self._positions_after(low)
        self.early = self.early[self.early.searchsorted(low) :]
        self.low, self.base, self.high = low, max(low, self.base), max(low, self.high)
        if self._split is not None:
            early, begin = self._split
            self._split = early[early.searchsorted(low) :], max(begin, low)
        if len(self.open) > MANY_OPEN:
            self.open = {id: episode for id, episode in self.open.items() if episode.last >= low}
        while self.finals.taken and self.finals.taken[0][0] < low:
            self.finals.free.append(self.finals.taken.popleft()[1])
        return orphaned

    def _positions_after(self, low: int) -> np.ndarray:
        """Return the positions from `low` on whose previous step is before `low`."""
        first, count = self.first_place, self.count_before(low)
        if count == 1 and not len(self.early):  # the usual case of a buffer at its capacity
            row = int(self.columns[AFTER][first % self.slots])
            position = first + (row - first) % self.slots + self.offset
            return np.array([position]) if 0 <= row < self.slots and position >= low else NONE
        rows = self.next_steps(np.arange(first, first + count) % max(self.slots, 1))
        positions = self.positions(rows[rows >= 0])
        return positions[positions >= low]

    def count_before(self, low: int) -> int:
        """Return the number of positions before `low` that have a row."""
        return int(self.early.searchsorted(low)) + max(0, min(low, self.high) - self.base)

    def delete(self, positions: np.ndarray) -> None:
        """Mark steps as deleted, and free the rows of their final observations."""
        self.columns[PRESENT][self.rows(positions)] = False
        self.gaps, self._split = self.gaps or len(positions) > 0, None
        gone, kept = set(positions.tolist()), deque[tuple[int, int]]()
        for last, row in self.finals.taken:
            if last in gone:
                self.finals.free.append(row)
            else:
                kept.append((last, row))
        self.finals.taken = kept

    # -- followers ---------------------------------------------------------------------------------

    def record(self, change: Change) -> None:
        """Add a change to the journal for the followers."""
        self.epoch += 1
        self.journal.append(change)
        self.journal_bytes += change.nbytes
        while len(self.journal) > JOURNAL or self.journal_bytes > max(JOURNAL_BYTES, self.size * 8):
            self.journal_bytes -= self.journal.popleft().nbytes

    def since(self, epoch: int) -> list[Change] | None:
        """Return the changes since an epoch, or None if the journal no longer has all of them."""
        behind = self.epoch - epoch
        if behind > len(self.journal):
            return None
        return [self.journal[len(self.journal) - behind + k] for k in range(behind)]
