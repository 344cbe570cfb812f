"""Sequences of steps that stand side by side, copied from records that were taken at once."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.memory.columns import AFTER, ORDINAL
from expdb.memory.packed import Packed
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.sequences import Sequence
from expdb.replay.units import Unit
from expdb.sampling.keys import Plan

_SOURCES = frozenset(("row", "position", "episode", "sampler", "unit"))


class SequenceCopier:
    """Makes the columns of sequences without burn-in, as `Copier` those of transitions."""

    def __init__(self, unit: Sequence, plan: Plan, packed: Packed, size: int):
        self.packed, self.size = packed, size
        records = packed.empty(size * unit.length)
        self._flat = records.view(packed.records.dtype)
        self._records = self._flat.reshape(size, unit.length)
        self._columns = records.reshape(size, unit.length)
        self._after = self._columns[AFTER]
        self._ahead = np.arange(unit.length)
        self._keys = plan.keys
        self._items = packed.as_items(self._records)
        # Where a sequence ends: with the last step, or before.
        self._ends = np.ones((size, unit.length), np.bool_)
        # Whether there are columns that are not in the records.
        names = {name for _, source, name in plan.keys if source == "row"}
        self._takes_rows = not names.union((ORDINAL,)) <= packed.names

    @staticmethod
    def makes(unit: Unit, plan: Plan) -> bool:
        """Return whether the columns of a plan can be made here."""
        return (
            type(unit) is Sequence
            and not unit.burn_in
            and all(source in _SOURCES for _, source, _ in plan.keys)
        )

    @staticmethod
    def rows_of(unit: Sequence) -> int:
        """Return how many rows are taken for each drawn step."""
        return unit.length

    def take(self, r: Resident, rows: np.ndarray) -> None:
        """Take the records of drawn rows and of those after them; all may be drawn."""
        self._rows = rows[:, None] + self._ahead
        # Else what is beyond the last row is left out with all that follows the last step.
        if r.high > r.slots and int(rows[rows.argmax()]) + len(self._ahead) > r.slots:
            self._rows %= r.slots
        self.packed.records.take(self._rows.reshape(-1), out=self._flat, mode="clip")

    def copied(
        self, r: Resident, positions: np.ndarray, drawn: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        """Return the columns of what was taken; None where steps do not stand side by side."""
        rows, made = self._rows, dict[str, np.ndarray]()
        np.not_equal(self._after[:, :-1], rows[:, 1:], self._ends[:, :-1])
        last = self._ends.argmax(1)
        made["length"] = last + 1
        mask = self._ahead <= last[:, None]
        (broken,) = (last < rows.shape[1] - 1).nonzero()
        missing = None
        if len(broken):
            following = self._after[broken, last[broken]]
            if (following.view(np.uint64) < r.slots).nonzero()[0].size:  # one goes on elsewhere
                return None
            missing = ~mask
            if self._takes_rows:
                rows[missing] = r.zero
            self._records[missing] = self.packed.records[r.zero]
        made["mask"] = mask
        batch: dict[str, np.ndarray] = {}
        for key, source, name in self._keys:
            if source == "row":
                item = self._items.get(name)
                if item is None:
                    batch[key] = r.arrays.taken(r.columns[name], rows)
                else:
                    batch[key] = item.copy().view(self.packed.dtype[name])
            elif source == "sampler":
                batch[key] = drawn[name]
            elif source == "episode":
                batch[key] = self._columns["episode"][:, 0].copy()
            elif source == "position":
                batch[key] = at = positions[:, None] + self._ahead
                if missing is not None:
                    at[missing] = UNKNOWN
            elif name == "is_first":
                packed = ORDINAL in self.packed.names
                ordinals = self._columns[ORDINAL] if packed else r.columns[ORDINAL][rows]
                batch[key] = (ordinals == 0) & mask
            else:
                batch[key] = made[name]
        return batch
