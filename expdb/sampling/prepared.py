"""A sample that was asked for before: settled once, and then made in as few calls as it takes."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import replace
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.memory.resident import Resident
from expdb.replay.population import Window, random_positions
from expdb.replay.samplers import Uniform
from expdb.sampling.candidates import Candidates, Wanted
from expdb.sampling.copier import Copier
from expdb.sampling.keys import Plan
from expdb.sampling.making import BatchMaker
from expdb.sampling.sequence_copier import SequenceCopier
from expdb.sampling.stack_copier import StackCopier

COPIERS: tuple[Any, ...] = (Copier, SequenceCopier, StackCopier)
MANY_KINDS = 4  # of samples that are asked for in turns
MOST_ROWS = 4096  # to take: of larger batches these are what takes the time


class PreparedSamples:
    """The samples that were asked for last."""

    def __init__(self, resident: Resident, candidates: Candidates, maker: BatchMaker):
        self._resident, self._candidates, self._maker = resident, candidates, maker
        self._known: list[Prepared] = []

    def find(
        self, key: str | None, sampler: object, unit: object, fields: object
    ) -> Prepared | None:
        """Return the one that makes what is asked for, None where there is none."""
        for one in self._known:
            if one.is_for(key, sampler, unit, fields):
                return one
        return None

    def add(self, wanted: Wanted, plan: Plan) -> None:
        """Have the next sample like this one made in fewer calls, if it may be."""
        if not Prepared.may_be(wanted):
            return
        known = [one for one in self._known if one.is_current]
        if not any(
            one.is_for(wanted.key, wanted.sampler, wanted.unit, wanted.fields) for one in known
        ):
            wanted = replace(wanted)  # nobody else's
            made = Prepared(wanted, plan, self._resident, self._candidates, self._maker)
            known = [made, *known][:MANY_KINDS]
        self._known = known


class Prepared:
    """A sample that needs nothing but what is in memory, and whose arguments are checked.

    Learners ask for the same again and again. Between two batches their network takes the caches,
    and then a sample waits for the instructions and objects of Python more than for its rows: what
    follows does with twenty calls what the general way does with ninety, for single steps and for
    transitions. It draws the same, and makes the same batch.
    """

    def __init__(
        self,
        wanted: Wanted,
        plan: Plan,
        resident: Resident,
        candidates: Candidates,
        maker: BatchMaker,
    ):
        self.sampler, self.unit, self.fields = wanted.sampler, wanted.unit, wanted.fields
        self._wanted, self._plan, self._resident = wanted, plan, resident
        self._candidates, self._maker = candidates, maker
        self._population = maker.population(None, wanted)
        self._version, self._key = resident.version, wanted.key
        # Whether every position may be drawn that has a successor and frames, or every one at all.
        anchors = wanted.anchor_key[:2] in ((), ("successors", 1)) and wanted.key is None
        self._is_uniform = anchors and wanted.sampler == Uniform()
        # What copies the columns from records, and for how many steps drawn at once.
        kind: Any = next((one for one in COPIERS if one.makes(wanted.unit, plan)), None)
        self._most = 0 if kind is None else MOST_ROWS // kind.rows_of(wanted.unit)
        self._kind, self._copier = kind, None

    @property
    def is_current(self) -> bool:
        """Whether the columns are those that it was prepared for."""
        return self._version == self._resident.version

    @staticmethod
    def may_be(wanted: Wanted) -> bool:
        """Return whether a sample is one of those that are made here."""
        return (
            wanted.shard is None
            and wanted.limits is None
            and not wanted.reads
            and wanted.empty is np.empty
            and wanted.sampler.is_trusted
            and wanted.unit.is_trusted
            and not wanted.asks_database
            and not isinstance(wanted.where, np.ndarray)
        )

    def is_for(self, key: str | None, sampler: Any, unit: Any, fields: Any) -> bool:
        """Return whether it makes what is asked for."""
        return (
            key == self._key
            and (unit is self.unit or (type(unit) is type(self.unit) and unit == self.unit))
            and (
                sampler is self.sampler
                or (type(sampler) is type(self.sampler) and sampler == self.sampler)
            )
            and self._are_mine(fields)
        )

    def _are_mine(self, fields: Any) -> bool:
        """Return whether fields are those that it makes; they may be anything."""
        if fields is None or self.fields is None:
            return fields is self.fields
        try:
            return type(fields) in (list, tuple) and (*fields,) == self.fields
        except ValueError:  # of arrays among them
            return False

    def sample(self, size: int, rng: np.random.Generator) -> Batch | None:
        """Draw a batch; None where the general way has to be taken. Use it under the lock."""
        r, wanted = self._resident, self._wanted
        if r.version != self._version or not (r.complete and r.size) or size > MOST_ROWS:
            return None
        if self.sampler.uses_priorities and r.priorities is None:
            return None
        if self._key is not None and not self._candidates.are_current(wanted):
            return None
        wanted.size = size
        drawn: dict[str, np.ndarray] = {}
        # What may not be drawn is found where records are taken.
        is_uniform = self._is_uniform and not r.gaps and size <= self._most
        if is_uniform:
            positions = random_positions(r.low, r.high, size, rng)
        else:
            positions, drawn = self.sampler.draw(self._population, size, rng)
        if size <= self._most:
            # Nobody else has it while it is used, as a signal's handler may draw in between.
            copier, self._copier = self._copier, None
            if copier is None or copier.packed is not r.packed or copier.size != size:
                copier = self._kind(self.unit, self._plan, r.packed, size)
            rows = positions if r.high <= r.slots else positions % r.slots
            fit = copier.take(r, rows)
            if fit is not None and is_uniform:
                positions = self._drawn_again(positions, fit, rng)
                copier.take(r, r.rows(positions))
            batch = copier.copied(r, positions, drawn)
            self._copier = copier
            if batch is not None:
                return Batch(batch, size)
        wanted = replace(wanted, size=size, rng=rng)
        rows = self._candidates.rows(None, wanted, positions)
        return self._maker.made(None, None, wanted, self._plan, positions, rows, drawn)

    def _drawn_again(
        self, positions: np.ndarray, fit: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return positions, those drawn anew whose successor is not known."""
        known = self._candidates.positions(None, self._wanted)
        assert isinstance(known, Window)
        return known.drawn_again(positions, fit, rng)
