"""A ring of rows: one array per column, and how they grow.

Row `position % slots` of every array holds a step. Behind the ring lies the zero row, which fills
in for missing steps, and behind that lie the final observations of episodes. The last row stands
for no step, so that -1 in gives -1, NaN or False out.
"""

from collections import deque
from typing import Any

import numpy as np

from expdb.chunks.fields import Field
from expdb.memory.columns import LINKS, ORDINAL, PACKED
from expdb.memory.journal import FinalRows
from expdb.memory.packed import Packed
from expdb.names import UNKNOWN


class Ring:
    """The arrays of positions `low` to `high`, of which `slots` have room in the ring."""

    low: int
    high: int
    slots: int
    final_rows: int
    columns: dict[str, np.ndarray]
    packed: Packed  # the narrow ones of them, of which `columns` has views
    fields: dict[str, Field]  # those with an array
    finals: FinalRows

    @property
    def zero(self) -> int:
        """The zero row, which fills in for missing steps."""
        return self.slots

    @property
    def total(self) -> int:
        """Rows of each array: the ring, the zero row, final observations, and the one for none."""
        return self.slots + 1 + self.final_rows + 1

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return the rows of positions that are held; not to be written to."""
        return positions if self.high <= self.slots else positions % self.slots

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows of the ring; not to be written to."""
        if self.high <= self.slots:
            return rows
        return np.where(rows < 0, UNKNOWN, self.low + (rows - self.low) % self.slots)

    # -- room --------------------------------------------------------------------------------------

    def reserve(self, high: int, finals: int, capacity: int | None) -> None:
        """Make room for the positions up to `high` and for more final observations."""
        span, slots, final_rows = high - self.low, self.slots, self.final_rows
        if span > slots or not slots:
            most = capacity if capacity and span <= capacity else 2 * span
            slots = max(span, min(slots + slots // 2, most), 64)
        if len(self.finals.free) < finals:
            final_rows = max(final_rows + finals, final_rows + final_rows // 2, 16)
        if (slots, final_rows) != (self.slots, self.final_rows):
            self._move(slots, final_rows)

    def lay_out(self, slots: int) -> None:
        """Have a ring of so many rows, if that is room enough."""
        if self.high - self.low <= slots != self.slots:
            self._move(slots, self.final_rows)

    def _move(self, slots: int, final_rows: int) -> None:
        positions = np.arange(self.low, self.high)
        old, new = positions % max(self.slots, 1), positions % max(slots, 1)
        shift, total = slots - self.slots, slots + 1 + final_rows + 1
        columns = {}
        packed = Packed(total, self._narrow(), {ORDINAL: self.columns[ORDINAL].dtype})
        for name, array in self.columns.items():
            # Not zeros: rows are written before they are read, and fresh memory is faster in large
            # pages, which it gets.
            grown = (
                packed[name]
                if name in packed.names
                else np.empty((total, *array.shape[1:]), array.dtype)
            )
            grown[slots:] = 0
            values = array[old]
            if name in LINKS:
                inside, behind = (values >= 0) & (values < self.slots), values >= self.slots
                values[inside] = (
                    self.low + (values[inside] - self.low) % max(self.slots, 1)
                ) % slots
                values[behind] += shift
            grown[new] = values
            grown[slots : slots + 1 + self.final_rows] = array[self.slots : -1]
            grown[-1] = array[-1]
            columns[name] = grown
        self.finals.free = [row + shift for row in self.finals.free] + list(
            range(slots + 1 + self.final_rows, slots + 1 + final_rows)
        )
        self.finals.taken = deque((position, row + shift) for position, row in self.finals.taken)
        # No interrupt comes in between: what is where stays known.
        self.columns, self.packed, self.slots, self.final_rows = columns, packed, slots, final_rows

    def _narrow(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return the columns that are packed if they fit: what nearly every batch takes of a row.

        Not those that are looked through from end to end.
        """
        fields = [name for one in self.fields for name in (one, f"has_{one}")]
        names = [*PACKED, *(name for name in fields if name in self.columns)]
        return {name: (self.columns[name].dtype, self.columns[name].shape[1:]) for name in names}

    def write(self, name: str, first: int, stop: int, values: Any) -> None:
        """Set a column of the positions from `first` up to `stop`.

        `values` has one for each, or is one for all.
        """
        begin, column = first % self.slots, self.columns[name]
        until = min(stop - first, self.slots - begin)
        if until == stop - first:
            column[begin : begin + until] = values
        elif np.ndim(values) == 0:
            column[begin : self.slots] = values
            column[: stop - first - until] = values
        else:
            column[begin : self.slots] = values[:until]
            column[: stop - first - until] = values[until:]
