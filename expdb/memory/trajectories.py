"""Links between consecutive steps of one agent, without the steps of other agents."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Callable
from typing import Any

import numpy as np

from expdb.memory.resident import Resident, RowColumns
from expdb.names import UNKNOWN
from expdb.replay import layout


class AgentTrajectories(RowColumns):
    """The rows in memory, with links only between steps of the same agent and episode.

    A `Resident` links all steps of an episode in order of their numbers. This class skips the steps
    of other agents. With `cuts_gaps`, it also removes links across missing step numbers. It
    implements `Trajectories` for units.
    """

    def __init__(self, resident: Resident, cuts_gaps: bool):
        self._resident, self._cuts_gaps = resident, cuts_gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resident, name)

    def _of(self, name: str, rows: np.ndarray) -> np.ndarray:
        values: np.ndarray = self._resident.columns[name][rows]
        return values

    def next_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the next step of the agent; UNKNOWN if there is none in memory."""
        return self._neighbours(rows, self._resident.next_steps, 1)

    def previous_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the step of the agent before each step; UNKNOWN if there is none."""
        return self._neighbours(rows, self._resident.previous_steps, -1)

    def _neighbours(
        self, rows: np.ndarray, follow: Callable[[np.ndarray], np.ndarray], direction: int
    ) -> np.ndarray:
        r = self._resident
        neighbours = np.where(r.is_live(rows), follow(rows), UNKNOWN)
        if r.has_agents:
            assert r.step_agents is not None
            agents, codes = r.step_agents, r.step_agents.codes(rows)
            others = (neighbours >= 0) & (agents.codes(neighbours) != codes)
            while np.count_nonzero(others):
                neighbours[others] = follow(neighbours[others])
                others &= (neighbours >= 0) & (agents.codes(neighbours) != codes)
        if self._cuts_gaps:
            numbers = r.columns["step"]
            distance = (numbers[neighbours] - numbers[rows]) * direction
            is_cut = (neighbours >= 0) & (distance > 1)
            # `record_gap` misses a gap if the steps of other agents fill it.
            if r.number_gap is None and np.count_nonzero(is_cut):
                row, following = sorted((rows[is_cut][0], neighbours[is_cut][0]), key=numbers.take)
                episode = int(r.columns["episode"][row])
                r.record_breaks((episode, int(numbers[row]), int(numbers[following])))
            neighbours[is_cut] = UNKNOWN
        return neighbours

    def successors(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the successor of each step, or UNKNOWN if it has none."""
        after, following, r = super().successors(rows), self.next_steps(rows), self._resident
        # Otherwise, the successor is a final observation or the zero row.
        zero_or_unknown = np.where(self.terminated(rows), r.zero, UNKNOWN)
        ends = np.where(after < r.slots, zero_or_unknown, after)
        return np.where(following >= 0, following, ends)

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of earlier steps of the agent in the episode of each step."""
        agents = self._resident.step_agents if self._resident.has_agents else None
        return super().ordinals(rows) if agents is None else agents.ordinals(rows)

    def around(self, rows: np.ndarray, offsets: range) -> np.ndarray:
        """Return the rows at `offsets` from steps; UNKNOWN if there is none."""
        return layout.around(self, rows, offsets)
