"""What a sampler sees of the steps that one sample draws from."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from typing import Literal

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.memory.resident import Resident
from expdb.names import EPISODE_COLUMNS
from expdb.replay.population import Grouped, Listed, Positions
from expdb.replay.samplers import Prioritized, PriorityTree
from expdb.sampling.by_priority import ByPriority
from expdb.sampling.candidates import Candidates, Wanted
from expdb.sampling.extensions import read_only, unknown_column
from expdb.sql.session import Session

STEP_COLUMNS = ("episode", "step", "reward", "terminated", "truncated")


class MatchingPopulation:
    """The steps that one sample draws from, as replay/samplers.py describes a `Population`."""

    def __init__(
        self,
        resident: Resident,
        candidates: Candidates,
        by_priority: ByPriority,
        session: Session | None,
        wanted: Wanted,
    ):
        self._resident, self._candidates, self._by_priority = resident, candidates, by_priority
        self._session, self._wanted = session, wanted

    def _known(self) -> Positions:
        return self._candidates.positions(self._session, self._wanted)

    @property
    def positions(self) -> np.ndarray:
        """All positions, ascending."""
        return read_only(self._known().listed())

    @property
    def size(self) -> int:
        """How many positions there are."""
        return self._known().count()

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at places, counted from 0, the oldest."""
        known, places = self._known(), np.asarray(places)
        if places.size and not 0 <= places.min() <= places.max() < known.count():
            raise InvalidValue(
                f"a place is {places.min()} or {places.max()}, of {known.count()}: places count "
                "from 0"
            )
        return known.at(places)

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of some positions may be drawn."""
        return self._known().holds(np.asarray(positions))

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Return positions, each as likely as every other."""
        return self._known().draw(size, replace, rng)

    def newest(self, k: int) -> Listed:
        """Return the newest positions."""
        checks.whole(k, "k", 1)
        return self._known().newest(k)

    def by(self, over: Literal["episode", "task"]) -> Grouped:
        """Return the positions by episode or task."""
        checks.choice(over, "over", "episode", "task")
        return self._candidates.grouped(self._session, self._wanted, over)

    def column(self, name: str) -> np.ndarray:
        """Return a column of each position's step or episode."""
        positions, r = self.positions, self._resident
        rows = r.rows(positions) if len(positions) else positions
        if name in STEP_COLUMNS:
            return read_only(r.columns[name][rows])
        if name not in EPISODE_COLUMNS:
            raise unknown_column(name)
        return read_only(r.of_episodes(name, rows))

    def ordered(self, column: str, descending: bool, size: int) -> np.ndarray:
        """Return the first positions in the order of a column of the view."""
        if not self._wanted.sampler.asks_database:
            raise InvalidValue("ordered() asks the database: set asks_database = True")
        assert self._session is not None
        return self._candidates.ordered(self._session, self._wanted, column, descending, size)

    def priorities(self, sampler: Prioritized) -> PriorityTree:
        """Return the weights that a sampler gives to the steps."""
        if not self._wanted.sampler.uses_priorities:
            raise InvalidValue("priorities() has to be announced: set uses_priorities = True")
        return self._by_priority.tree(self._session, self._wanted, sampler)

    def calls(self, sampler: Prioritized) -> int:
        """Count a call of a sampler, and return how many there were before.

        Those of a consumer are its batches, so that one that is drawn again is the same.
        """
        if self._wanted.limits is not None:
            return self._wanted.limits.number
        return self._by_priority.count_call(self._wanted, sampler)
