"""Transitions of stacked frames, made of rows that stand side by side."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.memory.columns import AFTER
from expdb.memory.packed import Packed
from expdb.memory.resident import Resident
from expdb.replay.transitions import NStep
from expdb.replay.units import Unit
from expdb.sampling.keys import Plan

_SOURCES = frozenset(
    ("row", "last", "next", "stack", "next_stack", "position", "episode", "sampler", "unit")
)


class StackCopier:
    """Makes the columns of transitions of one step with stacks, as `Copier` those without."""

    def __init__(self, unit: NStep, plan: Plan, packed: Packed, size: int):
        self.packed, self.size = packed, size
        self._unit, self._keys = unit, plan.keys
        records = packed.empty(size * unit.stack)
        self._flat = records.view(packed.records.dtype)
        self._columns = records.reshape(size, unit.stack)  # oldest first
        self._after, self._drawn = self._columns[AFTER], self._columns[:, -1]
        self._back = np.arange(1 - unit.stack, 1)

    @staticmethod
    def makes(unit: Unit, plan: Plan) -> bool:
        """Return whether the columns of a plan can be made here."""
        return (
            type(unit) is NStep
            and unit.n == 1
            and unit.stack > 1
            and unit.end != "drop"
            and all(source in _SOURCES for _, source, _ in plan.keys)
        )

    @staticmethod
    def rows_of(unit: NStep) -> int:
        """Return how many rows are taken for each drawn step."""
        return unit.stack

    def take(self, r: Resident, rows: np.ndarray) -> np.ndarray | None:
        """Take the records of drawn rows and of those before them.

        Return which of them may be drawn, None where all may: a successor is known, and the frames
        are there.
        """
        window = rows[:, None] + self._back
        window %= r.slots
        self.packed.records.take(window.reshape(-1), out=self._flat, mode="clip")
        self._stacks: np.ndarray | None = window
        after = self._after
        joined = (after[:, :-1] == window[:, 1:]) & r.is_live(window[:, :-1])
        fit = after[:, -1] >= 0
        if not joined.all():
            # From the drawn step back, as far as one follows the other.
            joined = np.logical_and.accumulate(joined[:, ::-1], 1)[:, ::-1]
            first = (~joined).sum(1)
            beginning = window[np.arange(len(rows)), first]
            if not (r.ordinals(beginning)[first > 0] == 0).all():
                self._stacks = None  # some of the frames are elsewhere, or gone
                fit = self._unit.may_start(r, rows)
                return None if fit.all() else fit
            self._stacks = window[
                np.arange(len(rows))[:, None],
                np.maximum(np.arange(window.shape[1]), first[:, None]),
            ]
        return None if fit.all() else fit

    def copied(
        self, r: Resident, positions: np.ndarray, drawn: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        """Return the columns of what was taken; None where steps do not stand side by side."""
        stacks, columns = self._stacks, self._drawn
        if stacks is None:
            return None
        next_rows = columns[AFTER].copy()
        next_stacks = np.concatenate((stacks[:, 1:], next_rows[:, None]), 1)
        rows = {"next": next_rows, "stack": stacks, "next_stack": next_stacks}
        batch: dict[str, np.ndarray] = {}
        for key, source, name in self._keys:
            if source == "position":
                batch[key] = positions
            elif source == "sampler":
                batch[key] = drawn[name]
            elif source == "unit":
                batch[key] = self._unit.of_one_step(name, columns["terminated"])
            elif source not in rows and name in self.packed.names:
                batch[key] = columns[name].copy()
            else:
                which = rows.get(source, stacks[:, -1])
                batch[key] = r.arrays.taken(r.columns[name], which)
        return batch
