"""Find the rows of the steps that forks and retries share with their parents."""

from __future__ import annotations  # so that annotations do not import numpy.random

from typing import Any, TypeVar

import numpy as np

from expdb.memory.journal import NONE
from expdb.replay import layout

Value = TypeVar("Value")


class SharedSteps:
    """The steps of episodes up to the steps at which others branch off.

    A fork shares the steps of an episode, its owner, that have smaller numbers than `parent_step`
    and positions up to `parent_position`. If the owner is a fork, its own shared steps come before.
    """

    def __init__(self, resident: Any):
        self._resident = resident
        self._lines: dict[int, np.ndarray] = {}  # rows of consecutive steps by owner
        self._rows: dict[tuple[float, float], np.ndarray] = {}
        self._counts: dict[tuple[float, float], int] = {}

    def rows(self, end: float, step: float) -> np.ndarray:
        """Return the rows of the shared steps that are in memory, oldest first."""
        line, rows = self._find_unknown(end, step, self._rows, NONE)
        for key in reversed(line):
            rows = self._rows[key] = np.concatenate((rows, self._own(*key)))
        return rows

    def count(self, end: float, step: float) -> int:
        """Return the number of these steps."""
        line, count = self._find_unknown(end, step, self._counts, 0)
        for key in reversed(line):
            count = self._counts[key] = count + len(self._own(*key))
        return count

    def _find_unknown(
        self, end: float, step: float, known: dict[tuple[float, float], Value], nothing: Value
    ) -> tuple[list[tuple[float, float]], Value]:
        """Return the branches up to the first known one, and the value of this one."""
        line: list[tuple[float, float]] = []
        while not np.isnan(end) and self._resident.is_stored(int(end)):
            if (end, step) in known:
                return line, known[end, step]
            line.append((end, step))
            end, step = self._branch_of(int(end))
        return line, nothing

    def _branch_of(self, position: int) -> tuple[float, float]:
        """Return the parent position and the parent step of the episode of a step; NaN for none."""
        rows = np.array([self._resident.row(position)])
        end, step = (
            float(self._resident.of_episodes(name, rows)[0])
            for name in ("parent_position", "parent_step")
        )
        return end, step

    def _own(self, end: float, step: float) -> np.ndarray:
        """Return the rows of the shared steps of the episode with a step at the position `end`."""
        r = self._resident
        row = r.row(int(end))
        owner = int(r.columns["episode"][row])
        if owner in r.unordered:
            positions = r.unordered[owner]
            rows = r.rows(positions[(positions <= end) & r.are_stored(positions)])
            shared: np.ndarray = rows[r.columns["step"][rows] < step]
            return shared
        line = self._lines.get(owner, NONE)
        place = int(r.ordinals(row) - r.ordinals(line[0])) if len(line) else -1
        if not (0 <= place < len(line) and line[place] == row):
            before = layout.backward(r, np.array([row]), int(r.ordinals(row)))[0]
            line = self._lines[owner] = np.append(before[before >= 0], row)
            place = len(line) - 1
        return line[: place + 1]


def find_shared_steps(resident: Any, firsts: np.ndarray) -> list[np.ndarray]:
    """Return the rows of the shared steps of episodes, given their first own rows."""
    shared = SharedSteps(resident)
    ends, steps = (
        resident.of_episodes(name, firsts) for name in ("parent_position", "parent_step")
    )
    return [shared.rows(end, step) for end, step in zip(ends.tolist(), steps.tolist(), strict=True)]


def have_whole_lineage(resident: Any, firsts: np.ndarray) -> np.ndarray:
    """Return which episodes share only steps that are in memory, given their first own rows."""
    is_whole = np.ones(len(firsts), np.bool_)
    forks = np.flatnonzero(resident.ordinals(firsts) > 0)
    if not len(forks):
        return is_whole
    shared, rows = SharedSteps(resident), firsts[forks]
    ends, steps = (resident.of_episodes(name, rows) for name in ("parent_position", "parent_step"))
    found = dict.fromkeys(zip(ends.tolist(), steps.tolist(), strict=True))
    counts = {key: shared.count(*key) for key in sorted(found, reverse=True)}  # the longest first
    stored = [counts[key] for key in zip(ends.tolist(), steps.tolist(), strict=True)]
    is_whole[forks] = np.array(stored) == resident.ordinals(rows)
    return is_whole
