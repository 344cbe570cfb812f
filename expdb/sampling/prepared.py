"""A sample that was asked for before: settled once, and then made in as few calls as it takes."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import replace
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.memory.columns import AFTER
from expdb.memory.packed import Packed
from expdb.memory.resident import Resident
from expdb.replay.population import Window, random_positions
from expdb.replay.samplers import Prioritized, Uniform
from expdb.replay.transitions import NStep
from expdb.replay.units import Step
from expdb.sampling.by_priority import ByPriority
from expdb.sampling.candidates import Candidates, Wanted
from expdb.sampling.keys import Plan
from expdb.sampling.population import MatchingPopulation

MANY_KINDS = 4  # of samples that are asked for in turns
MOST_ROWS = 4096  # of a batch: of larger ones the rows are what takes the time
# Where a key comes from that is no column of the drawn rows, or of those that follow.
_OTHER = frozenset(("position", "sampler", "unit"))
_SOURCES = _OTHER | {"row", "next", "episode"}


class PreparedSamples:
    """The samples that were asked for last."""

    def __init__(self, resident: Resident, candidates: Candidates, by_priority: ByPriority):
        self._resident, self._candidates = resident, candidates
        self._by_priority = by_priority
        self._known: list[Prepared] = []

    def find(self, sampler: object, unit: object, fields: object) -> Prepared | None:
        """Return the one that makes what is asked for, None where there is none."""
        for one in self._known:
            if one.is_for(sampler, unit, fields):
                return one
        return None

    def add(self, wanted: Wanted, plan: Plan) -> None:
        """Have the next sample like this one made in fewer calls, if it may be."""
        if Prepared.may_be(wanted, plan):
            r, candidates, wanted = self._resident, self._candidates, replace(wanted)
            population = MatchingPopulation(r, candidates, self._by_priority, None, wanted)
            current = [one for one in self._known if one.is_current]
            made = Prepared(wanted, plan, r, candidates, population)
            self._known = [made, *current][:MANY_KINDS]


class Prepared:
    """Steps, or transitions of one step, drawn from all that is stored, while that is in memory.

    That is what most learners ask for, again and again. Between two batches their network takes the
    caches, and then a sample waits for the instructions and objects of Python more than for its
    rows: what follows does with twenty calls what the general way does with ninety. It draws the
    same, and makes the same batch.
    """

    def __init__(
        self,
        wanted: Wanted,
        plan: Plan,
        resident: Resident,
        candidates: Candidates,
        population: MatchingPopulation,
    ):
        self.sampler, self.unit, self.fields = wanted.sampler, wanted.unit, wanted.fields
        self._wanted, self._plan, self._resident = wanted, plan, resident
        self._candidates, self._population = candidates, population
        self._version = resident.version
        self._settle(resident.packed, 0)

    @property
    def is_current(self) -> bool:
        """Whether the columns are those that it was prepared for."""
        return self._version == self._resident.version

    @staticmethod
    def may_be(wanted: Wanted, plan: Plan) -> bool:
        """Return whether a sample is one of those that are made here."""
        sampler, unit = wanted.sampler, wanted.unit
        plain = wanted.key is None and wanted.shard is None and wanted.limits is None
        drawn = type(sampler) is Prioritized or sampler == Uniform()
        made = type(unit) is Step or (
            type(unit) is NStep and unit.bounds == (1, 1) and unit.stack == 1
        )
        found = plan.in_memory and all(source in _SOURCES for _, source, _ in plan.keys)
        return plain and drawn and made and found and wanted.empty is np.empty

    def is_for(self, sampler: Any, unit: Any, fields: Any) -> bool:
        """Return whether it makes what is asked for."""
        return (
            (unit is self.unit or (type(unit) is type(self.unit) and unit == self.unit))
            and (
                sampler is self.sampler
                or (type(sampler) is type(self.sampler) and sampler == self.sampler)
            )
            and (fields is None if self.fields is None else _names(fields) == self.fields)
        )

    def sample(self, size: int, rng: np.random.Generator) -> Batch | None:
        """Draw a batch; None where the general way has to be taken. Use it under the lock."""
        r, packed = self._resident, self._resident.packed
        if r.version != self._version or r.gaps or r.low == r.high or size > MOST_ROWS:
            return None
        by_priority = self.sampler.uses_priorities
        if by_priority and r.priorities is None:
            return None
        if packed is not self._packed or size != self._size:
            self._settle(packed, size)
        drawn: dict[str, np.ndarray] = {}
        if by_priority:
            self._wanted.size, self._wanted.rng = size, rng
            positions, drawn = self.sampler.draw(self._population, size, rng)
        else:
            positions = random_positions(r.low, r.high, size, rng)
        rows = positions if r.high <= r.slots else positions % r.slots
        packed.records.take(rows, out=self._records, mode="clip")
        next_rows = self._after
        if self._next_records is not None:
            if not by_priority and next_rows.min() < 0:
                positions = self._drawn_again(positions, next_rows >= 0, rng)
                rows = r.rows(positions)
                packed.records.take(rows, out=self._records, mode="clip")
            packed.records.take(next_rows, out=self._next_records, mode="clip")
        batch: dict[str, np.ndarray] = {}
        for key, column, source, name in self._copies:
            if column is not None:
                batch[key] = column.copy()
            elif source == "position":
                batch[key] = positions
            elif source == "sampler":
                batch[key] = drawn[name]
            elif isinstance(self.unit, NStep) and source == "unit":
                batch[key] = self.unit.of_one_step(name, self._terminated)
            else:
                batch[key] = r.columns[name].take(next_rows if source == "next" else rows, 0)
        return Batch(batch, size)

    def _settle(self, packed: Packed, size: int) -> None:
        """Settle what is copied from where.

        Records of drawn rows are put where those of the last sample were: nobody else sees them.
        """
        self._packed, self._size = packed, size
        drawn, following = packed.empty(size), packed.empty(size)
        self._records, self._next_records = drawn.view(packed.records.dtype), None
        if type(self.unit) is NStep:
            self._next_records = following.view(packed.records.dtype)
        self._after, self._terminated = drawn[AFTER], drawn["terminated"]
        self._copies = [
            (
                key,
                (following if source == "next" else drawn)[name]
                if source not in _OTHER and name in packed.names
                else None,
                source,
                name,
            )
            for key, source, name in self._plan.keys
        ]

    def _drawn_again(
        self, positions: np.ndarray, fit: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return positions, those drawn anew whose successor is not known."""
        known = self._candidates.positions(None, self._wanted)
        assert isinstance(known, Window)
        return known.drawn_again(positions, fit, rng)


def _names(fields: Any) -> tuple[str, ...] | None:
    return tuple(fields) if isinstance(fields, (list, tuple)) else None
