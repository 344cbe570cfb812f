"""The columns of a batch, copied from records of rows that were taken at once."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.memory.columns import AFTER
from expdb.memory.packed import Packed
from expdb.memory.resident import Resident
from expdb.replay.layout import beside
from expdb.replay.transitions import NStep
from expdb.replay.units import Step, Unit
from expdb.sampling.keys import Plan

# Where a key comes from that is no column of rows.
_OTHER = frozenset(("position", "sampler", "unit"))
_SOURCES = _OTHER | {"row", "next", "last", "episode"}


class Copier:
    """Makes the columns of steps, or of transitions of as many steps for each.

    The records of the drawn rows, and of the steps after them, are put where those of the last
    batch were, with views of their columns: what is handed out is copied from these. `max`, `any`
    and `sum` are avoided: NumPy implements them in Python, which costs cache misses that `argmax`,
    `nonzero` and `add.reduce` do not have.
    """

    def __init__(self, unit: Unit, plan: Plan, packed: Packed, size: int):
        self.packed, self.size = packed, size
        self._unit = unit if isinstance(unit, NStep) else None
        self._n = 0 if self._unit is None else self._unit.bounds[0]  # steps that are taken
        records = packed.empty(size * self.rows_of(unit))
        self._records = records.view(packed.records.dtype)
        self._columns = records.reshape(-1, size)  # the steps, and those after them
        self._after, self._terminated = self._columns[AFTER], self._columns["terminated"]
        following, last = packed.empty(size), packed.empty(size)
        self._following, self._last = (one.view(packed.records.dtype) for one in (following, last))
        self._beyond = np.arange(self.rows_of(unit))[:, None]
        sources = {"next": following, "last": last}
        # Key, a view of what is copied, or where else it comes from, and the name there.
        self._keys: list[tuple[str, np.ndarray | None, str, str]] = []
        for key, source, name in plan.keys:
            view = None
            if source not in _OTHER and name in packed.names:
                view = sources[source] if source in sources else self._columns[0]
                view = view[name]
            self._keys.append((key, view, source, name))
        self._takes_last = any(source == "last" for _, source, _ in plan.keys)

    @staticmethod
    def makes(unit: Unit, plan: Plan) -> bool:
        """Return whether the columns of a plan can be made here."""
        made = type(unit) is Step or (
            type(unit) is NStep
            and isinstance(unit.n, int)
            and unit.stack == 1
            and unit.end != "drop"
        )
        return made and all(source in _SOURCES for _, source, _ in plan.keys)

    @staticmethod
    def rows_of(unit: Unit) -> int:
        """Return how many rows are taken for each drawn step."""
        return unit.bounds[1] if isinstance(unit, NStep) else 1

    def take(self, r: Resident, rows: np.ndarray) -> np.ndarray | None:
        """Take the records of drawn rows.

        Return which of them may be drawn, None where all may: a transition needs a successor.
        """
        if self._n <= 1:
            self._rows = rows
        else:
            self._rows = rows + self._beyond
            if int(rows[rows.argmax()]) + self._n > r.slots:
                self._rows %= r.slots
        self.packed.records.take(self._rows.reshape(-1), out=self._records, mode="clip")
        if not self._n:
            return None
        after = self._after[0]
        return after >= 0 if after[after.argmin()] < 0 else None

    def copied(
        self, r: Resident, positions: np.ndarray, drawn: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        """Return the columns of what was taken; None where steps do not stand side by side."""
        rows = next_rows = last_rows = self._rows
        made: dict[str, np.ndarray] = {}
        unit = self._unit
        if unit is not None and self._n == 1:
            next_rows = self._after[0]
        elif unit is not None:
            walk = beside(rows, self._after, self._terminated, self._n, r.slots)
            if walk is None:
                return None
            next_rows, last_rows = walk.last(walk.after), walk.last(rows)
            made = unit.returns(walk, self._columns["reward"], self._columns["truncated"])
            if self._takes_last:
                self.packed.records.take(last_rows, out=self._last, mode="clip")
            rows = rows[0]
        if unit is not None:
            self.packed.records.take(next_rows, out=self._following, mode="clip")
        batch: dict[str, np.ndarray] = {}
        for key, view, source, name in self._keys:
            if view is not None:
                batch[key] = view.copy()
            elif source == "position":
                batch[key] = positions
            elif source == "sampler":
                batch[key] = drawn[name]
            elif source == "unit":
                assert unit is not None
                one = self._n == 1
                batch[key] = unit.of_one_step(name, self._terminated[0]) if one else made[name]
            else:
                which = {"next": next_rows, "last": last_rows}.get(source, rows)
                batch[key] = r.arrays.taken(r.columns[name], which)
        return batch
