"""The rows around drawn steps and their records, read once for the unit and the batch."""

from __future__ import annotations  # so that annotations do not import numpy.random

from functools import cached_property
from typing import Any

import numpy as np

from expdb.memory.columns import AFTER
from expdb.memory.records import RecordCopies
from expdb.memory.resident import Resident, RowColumns
from expdb.names import UNKNOWN
from expdb.sampling.extensions import read_only


class Window(RowColumns):
    """Rows and records around drawn steps, read together; implements `Trajectories` for a unit.

    Steps of an episode are usually adjacent in memory. `load` reads adjacent records first and
    checks their successor links. If a link does not lead to the adjacent row, `load` follows the
    links one by one. Later draws reuse the arrays, which are read-only for units. Where an episode
    has no step, the columns are -1, NaN or False if `is_exact` is True. Otherwise, they are the
    values of the zero row, with UNKNOWN as successor. `argmax` and `count_nonzero` replace `max`
    and `any`, which NumPy implements in Python.
    """

    def __init__(self, resident: Resident, offsets: range, size: int, is_exact: bool):
        self._resident, self.packed, self.size, self._offsets = (
            resident, resident.packed, size, offsets,
        )  # fmt: skip
        self._is_exact = is_exact
        self._before, self._ahead = -offsets.start, offsets.stop - 1
        self._steps = np.arange(offsets.start, offsets.stop)
        self._rows = np.empty((size, len(offsets)), np.int64)
        self.rows = read_only(self._rows)
        # True where the next row is not the successor of the row, and at the end of the window.
        self._breaks = np.ones((size, len(offsets)), np.bool_)
        # The same for the steps before the drawn step, nearest first.
        self._breaks_before = np.ones((size, self._before + 1), np.bool_)
        self._records = RecordCopies(self.packed, self._rows.shape, resident.arrays)
        self._take, self._flat = self.packed.records.take, self._records.flat
        self._others: dict[str, RecordCopies] = {}

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return self._records.columns

    @cached_property
    def _of_drawn(self) -> dict[str, np.ndarray]:
        return {name: column[:, self._before] for name, column in self._columns.items()}

    @cached_property
    def items(self) -> dict[str, np.ndarray]:
        """The record columns of all rows, as in `Records.items`."""
        return self._records.items

    @cached_property
    def of_drawn(self) -> dict[str, np.ndarray]:
        """The record columns of the drawn rows, as in `Records.items`."""
        return {name: column[:, self._before] for name, column in self.items.items()}

    def load(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Read the records around steps, which are given by position and by row."""
        self.positions_drawn, self.drawn = positions, rows
        self.is_whole = self._is_beside = True  # every offset has a step; all rows are adjacent
        self._parts: list[tuple[np.ndarray, slice]] = []  # parts of the rows that a unit has read
        if not self._ahead and not self._before:
            self.rows = rows[:, None]
            self._take(rows, 0, self._flat, "clip")
            return
        window_rows, slots = self._rows, self._resident.slots
        np.add(rows[:, None], self._steps, out=window_rows)
        lowest, highest = rows[rows.argmin()], rows[rows.argmax()]
        if lowest < self._before or highest + self._ahead >= slots:
            window_rows %= slots
        self._take(window_rows.reshape(-1), 0, self._flat, "clip")
        after, ends = self._columns[AFTER], self._breaks
        np.not_equal(after[:, :-1], window_rows[:, 1:], out=ends[:, :-1])
        if self._before:
            self._find_ends()
            return
        last = ends.argmax(1)
        (broken,) = (last < self._ahead).nonzero()
        if len(broken):
            self._mask_missing(broken, last[broken], None)

    def _find_ends(self) -> None:
        """Find the offsets, before and after the drawn step, at which the episode has no step."""
        before, ends, r = self._before, self._breaks, self._resident
        places, first = r.places(self.positions_drawn), r.first_place
        if places[places.argmin()] - before < first:  # evicted steps are still linked
            ends[:, :before] |= places[:, None] + self._steps[:before] < first
        self._breaks_before[:, :before] = ends[:, before - 1 :: -1]
        ahead, behind = ends[:, before:].argmax(1), self._breaks_before.argmax(1)
        (broken,) = ((ahead < self._ahead) | (behind < before)).nonzero()
        if len(broken):
            self._mask_missing(broken, ahead[broken], behind[broken])

    def _mask_missing(
        self, broken: np.ndarray, ahead: np.ndarray, behind: np.ndarray | None
    ) -> None:
        """Set missing steps to UNKNOWN, and their records to the record of the zero row.

        `ahead` and `behind` count the adjacent steps after and before each of the `broken` steps.
        """
        r, before = self._resident, self._before
        rows = self._rows[broken]
        goes_on = self._columns[AFTER][broken, ahead + before].view(np.uint64) < r.slots
        missing = self._steps > ahead[:, None]
        if behind is not None:
            missing |= self._steps < -behind[:, None]
            first = r.ordinals(rows[np.arange(len(rows)), before - behind])
            goes_on &= ahead < self._ahead
            goes_on |= (behind < before) & (first != 0)
        rows[missing] = UNKNOWN
        if np.count_nonzero(goes_on):  # the episode continues in rows that are not adjacent
            self._is_beside = False
            rows[goes_on] = r.around(self.drawn[broken[goes_on]], self._offsets)
        self._rows[broken], self.is_whole = rows, False
        rows[rows < 0] = r.zero
        self._records.raw[broken] = self.packed.records[rows]

    @property
    def filled(self) -> np.ndarray:
        """The rows, with the zero row where there is no step."""
        rows = self.rows
        return rows if self.is_whole else np.where(rows < 0, self._resident.zero, rows)

    def items_of(self, rows: np.ndarray, source: str) -> dict[str, np.ndarray]:
        """Return the record columns of rows; read only rows that the window lacks."""
        if rows is self.rows:
            return self.items
        for part_rows, part in self._parts:
            if part_rows is rows:
                return {name: column[:, part] for name, column in self.items.items()}
        records = self._others.get(source)
        if records is None or records.raw.shape != rows.shape:
            records = self._others[source] = RecordCopies(
                self.packed, rows.shape, self._resident.arrays
            )
        self._take(rows.reshape(-1), 0, records.flat, "clip")
        return records.items

    # -- Trajectories ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resident, name)

    def around(self, rows: np.ndarray, offsets: range) -> np.ndarray:
        """Return the rows at offsets from steps within their episodes."""
        window_offsets = self._offsets
        is_part = (
            window_offsets.start <= offsets.start <= offsets.stop <= window_offsets.stop
            and offsets.step == 1
        )
        if rows is not self.drawn or not is_part:
            return self._resident.around(rows, offsets)
        if offsets == window_offsets:
            return self.rows
        part = slice(offsets.start - window_offsets.start, offsets.stop - window_offsets.start)
        part_rows = self.rows[:, part]
        self._parts.append((part_rows, part))
        return part_rows

    def _of(self, name: str, rows: np.ndarray) -> np.ndarray:
        if name in self._columns:
            if rows is self.drawn:
                return self._of_drawn[name]
            if self.is_whole or not self._is_exact:
                if rows is self.rows:
                    return self._columns[name]
                for part_rows, part in self._parts:
                    if part_rows is rows:
                        return self._columns[name][:, part]
        column: np.ndarray = self._resident.columns[name][rows]
        return column

    def successors(self, rows: np.ndarray) -> np.ndarray:
        """Return the row that follows each row."""
        return self._of_drawn[AFTER] if rows is self.drawn else self._of(AFTER, rows)

    def terminated(self, rows: np.ndarray) -> np.ndarray:
        """Return whether the step of each row terminated its episode."""
        return self._of_drawn["terminated"] if rows is self.drawn else self._of("terminated", rows)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows."""
        if rows is not self.rows or not self._is_beside or self._resident.early.size:
            return self._resident.positions(rows)
        positions = self.positions_drawn[:, None] + self._steps
        if not self.is_whole:
            positions[rows < 0] = UNKNOWN
        return positions
