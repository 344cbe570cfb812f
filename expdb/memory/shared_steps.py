"""Find the rows of the steps that forks and retries share with their parents."""

from __future__ import annotations  # so that annotations do not import numpy.random

from typing import Any, TypeVar

import numpy as np

from expdb.memory.journal import NONE
from expdb.replay import layout

Value = TypeVar("Value")


class SharedSteps:
    """Find shared steps in memory, and cache the rows by episode.

    The episode that stores the last shared step of a fork is their owner. The fork shares the
    steps of the owner with numbers below `parent_step` and positions up to `parent_position`. If
    the owner is also a fork, the steps that it shares with its parent come first.
    """

    def __init__(self, resident: Any):
        self._resident = resident
        self._rows_of_owners: dict[int, np.ndarray] = {}  # rows of consecutive steps
        self._rows: dict[tuple[float, float], np.ndarray] = {}
        self._counts: dict[tuple[float, float], int] = {}

    def find_rows(self, end: float, step: float) -> np.ndarray:
        """Return the rows of the shared steps in memory, oldest first."""
        keys, rows = self._find_unknown(end, step, self._rows, NONE)
        for key in reversed(keys):
            rows = self._rows[key] = np.concatenate((rows, self._find_own_rows(*key)))
        return rows

    def count(self, end: float, step: float) -> int:
        """Return the number of the shared steps in memory."""
        keys, count = self._find_unknown(end, step, self._counts, 0)
        for key in reversed(keys):
            count = self._counts[key] = count + len(self._find_own_rows(*key))
        return count

    def _find_unknown(
        self, end: float, step: float, known: dict[tuple[float, float], Value], nothing: Value
    ) -> tuple[list[tuple[float, float]], Value]:
        """Return the branches before the nearest one in `known`, and the value of that branch."""
        keys: list[tuple[float, float]] = []
        while not np.isnan(end) and self._resident.is_stored(int(end)):
            if (end, step) in known:
                return keys, known[end, step]
            keys.append((end, step))
            end, step = self._find_branch(int(end))
        return keys, nothing

    def _find_branch(self, position: int) -> tuple[float, float]:
        """Return the parent position and the parent step of the episode of a step; NaN for none."""
        rows = np.array([self._resident.row(position)])
        end, step = (
            float(self._resident.of_episodes(name, rows)[0])
            for name in ("parent_position", "parent_step")
        )
        return end, step

    def _find_own_rows(self, end: float, step: float) -> np.ndarray:
        """Return the rows of the shared steps that the owner of the position `end` stores."""
        r = self._resident
        row = r.row(int(end))
        owner = int(r.columns["episode"][row])
        if owner in r.unordered:
            positions = r.unordered[owner]
            rows = r.rows(positions[(positions <= end) & r.are_stored(positions)])
            shared: np.ndarray = rows[r.columns["step"][rows] < step]
            return shared
        owner_rows = self._rows_of_owners.get(owner, NONE)
        place = int(r.ordinals(row) - r.ordinals(owner_rows[0])) if len(owner_rows) else -1
        if not (0 <= place < len(owner_rows) and owner_rows[place] == row):
            before = layout.backward(r, np.array([row]), int(r.ordinals(row)))[0]
            owner_rows = self._rows_of_owners[owner] = np.append(before[before >= 0], row)
            place = len(owner_rows) - 1
        return owner_rows[: place + 1]


def find_shared_steps(resident: Any, firsts: np.ndarray) -> list[np.ndarray]:
    """Return the rows of the shared steps of episodes, given their first own rows."""
    shared = SharedSteps(resident)
    ends, steps = (
        resident.of_episodes(name, firsts) for name in ("parent_position", "parent_step")
    )
    return [shared.find_rows(*key) for key in zip(ends.tolist(), steps.tolist(), strict=True)]


def have_whole_lineage(resident: Any, firsts: np.ndarray) -> np.ndarray:
    """Return which episodes share only steps that are in memory, given their first own rows."""
    is_whole = np.ones(len(firsts), np.bool_)
    forks = np.flatnonzero(resident.ordinals(firsts) > 0)
    if not len(forks):
        return is_whole
    shared, rows = SharedSteps(resident), firsts[forks]
    ends, steps = (resident.of_episodes(name, rows) for name in ("parent_position", "parent_step"))
    branches = dict.fromkeys(zip(ends.tolist(), steps.tolist(), strict=True))
    counts = {key: shared.count(*key) for key in sorted(branches, reverse=True)}  # longest first
    stored = [counts[key] for key in zip(ends.tolist(), steps.tolist(), strict=True)]
    is_whole[forks] = np.array(stored) == resident.ordinals(rows)
    return is_whole
