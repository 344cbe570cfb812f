"""A sum tree over the rows in memory, as a sampler sees it: by position."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.memory.resident import Resident
from expdb.memory.usage import Usage
from expdb.replay.sumtree import SumTree
from expdb.sampling.candidates import Wanted
from expdb.sampling.drawing import surplus


class TreeByPosition:
    """A sum tree that is drawn from by position."""

    def __init__(self, tree: SumTree, resident: Resident, wanted: Wanted):
        self._tree, self._resident, self.total = tree, resident, tree.total
        self._wanted = wanted

    def draw(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and weights at shares of the total.

        From the oldest step on, wherever in the ring that is: so that the ring's size decides
        nothing.
        """
        r, limits = self._resident, self._wanted.limits
        rows, weights = self._tree.find(shares, r.low % r.slots)
        if limits is not None and limits.usage.most is not None:
            return self._draw_within(limits.usage, rows, weights)
        return r.positions(rows), weights

    def _draw_within(
        self, usage: Usage, rows: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw again, of the others, what comes more often than it may be handed out."""
        r, tree = self._resident, self._tree
        blocked: list[tuple[np.ndarray, np.ndarray]] = []
        while (again := np.flatnonzero(surplus(usage, r.positions(rows)))).size:
            full = np.unique(rows[again])
            blocked.append((full, tree.weights.take(full)))
            tree.set(full, 0.0)
            if not tree.total > 0.0:
                break  # what is too much is left out of the batch
            rows[again], weights[again] = tree.find(self._wanted.rng.random(len(again)))
        for full, before in reversed(blocked):
            tree.set(full, before)
        return r.positions(rows), weights

    def minimum(self) -> float:
        """Return the least weight above 0."""
        return self._tree.minimum()
