"""What a sampler sees of the steps that one sample draws from."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from typing import Literal

import numpy as np

from expdb.errors import InvalidValue
from expdb.memory.resident import Resident
from expdb.replay.population import Grouped, Listed
from expdb.replay.samplers import Drawn, Prioritized, PriorityTree
from expdb.sampling.by_priority import ByPriority
from expdb.sampling.candidates import Populations, Wanted
from expdb.sql.session import Session

STEP_COLUMNS = ("episode", "step", "reward", "terminated", "truncated")


class Candidates:
    """The steps that one sample draws from, as replay/samplers.py describes a `Population`."""

    def __init__(
        self,
        resident: Resident,
        populations: Populations,
        by_priority: ByPriority,
        session: Session | None,
        wanted: Wanted,
    ):
        self._resident, self._populations, self._by_priority = resident, populations, by_priority
        self._session, self._wanted = session, wanted

    @property
    def positions(self) -> np.ndarray:
        """All positions, ascending."""
        return self._populations.positions(self._session, self._wanted).listed()

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Return positions, each as likely as every other."""
        return self._populations.positions(self._session, self._wanted).draw(size, replace, rng)

    def newest(self, k: int) -> Listed:
        """Return the newest positions."""
        return self._populations.positions(self._session, self._wanted).newest(k)

    def by(self, over: Literal["episode", "task"]) -> Grouped:
        """Return the positions by episode or task."""
        return self._populations.grouped(self._session, self._wanted, over)

    def column(self, name: str) -> np.ndarray:
        """Return a column of each position's step or episode."""
        positions, r = self.positions, self._resident
        rows = r.rows(positions) if len(positions) else positions
        if name in STEP_COLUMNS:
            return r.columns[name].take(rows)
        return r.of_episodes(name, rows)

    def ordered(self, column: str, descending: bool, size: int) -> np.ndarray:
        """Return the first positions in the order of a column of the view."""
        if self._session is None:
            raise InvalidValue("ordered() asks the database: set asks_database = True")
        return self._populations.ordered(self._session, self._wanted, column, descending, size)

    def priorities(self, sampler: Prioritized) -> PriorityTree:
        """Return the weights that a sampler gives to the steps."""
        return self._by_priority.tree(self._session, self._wanted, sampler)

    def calls(self, sampler: Prioritized) -> int:
        """Count a call of a sampler, and return how many there were before."""
        return self._by_priority.count_call(self._wanted, sampler)

    def checked(self, drawn: Drawn) -> Drawn:
        """Return what a sampler of a user drew; raise InvalidValue where it cannot be."""
        sampler, size = self._wanted.sampler, self._wanted.size
        try:
            positions, columns = drawn
            positions = np.asarray(positions)
            sound = positions.shape == (size,) and positions.dtype.kind in "iu"
            sound = sound and columns.keys() == set(sampler.keys())
            sound = sound and all(np.shape(array)[:1] == (size,) for array in columns.values())
        except (TypeError, ValueError, AttributeError):
            sound = False
        if not sound:
            raise InvalidValue(
                f"{type(sampler).__name__}.draw is to return positions, integers [{size}], and a "
                f"dict of arrays [{size}, ...] named {', '.join(sampler.keys()) or 'nothing'}"
            )
        if not np.isin(positions, self.positions).all():
            raise InvalidValue(
                f"{type(sampler).__name__}.draw returned positions that are not of the population"
            )
        return positions.astype(np.int64), {name: np.asarray(columns[name]) for name in columns}
