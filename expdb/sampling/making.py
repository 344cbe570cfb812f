"""Batches of what is in memory: drawn, laid out, put together."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.batch import Batch
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.units import Unit
from expdb.sampling.by_priority import ByPriority
from expdb.sampling.candidates import Candidates, Wanted
from expdb.sampling.collate import Collator
from expdb.sampling.drawing import Recorded, draw, draw_within, lay_out, positions_of
from expdb.sampling.keys import Plan
from expdb.sampling.population import MatchingPopulation
from expdb.sampling.repeatable import least_position, rows_crc
from expdb.sql.session import Session
from expdb.storage.ledger.packed import Drawn
from expdb.storage.store import State, evicted


class BatchMaker:
    """Makes batches of rows that are up to date."""

    def __init__(
        self,
        resident: Resident,
        candidates: Candidates,
        by_priority: ByPriority,
        collator: Collator,
    ):
        self._resident, self._candidates = resident, candidates
        self._by_priority, self._collator = by_priority, collator

    def batch(
        self, session: Session | None, state: State | None, wanted: Wanted, plan: Plan
    ) -> Batch:
        """Draw a batch; a session is needed where it is not all in memory."""
        r, candidates = self._resident, self._candidates
        candidates.read_owners(session, wanted)
        population = self.population(session, wanted)
        if wanted.limits is None:
            positions, columns = draw(population, wanted, wanted.size)
            rows = candidates.rows(session, wanted, positions)
        else:
            positions, rows, columns = draw_within(candidates, session, r, population, wanted)
        return self.made(session, state, wanted, plan, positions, rows, columns)

    def population(self, session: Session | None, wanted: Wanted) -> MatchingPopulation:
        """Return what a sampler draws from."""
        return MatchingPopulation(
            self._resident, self._candidates, self._by_priority, session, wanted
        )

    def made(
        self,
        session: Session | None,
        state: State | None,
        wanted: Wanted,
        plan: Plan,
        positions: np.ndarray,
        rows: np.ndarray,
        columns: dict[str, np.ndarray],
    ) -> Batch:
        """Make a batch of what was drawn."""
        layout = lay_out(self._resident, wanted, rows)
        if wanted.limits is not None or isinstance(wanted.sampler, Recorded):
            wanted.rows_crc = rows_crc(self._resident, layout)
        if wanted.limits is not None:
            wanted.limits.rows_crc = wanted.rows_crc
            if wanted.limits.least is not None:
                wanted.limits.least = least_position(self._resident, layout)
            wanted.limits.drawn = Drawn(positions_of(self._resident, rows), columns, layout.kept)
        if layout.kept is not None:
            positions = positions[layout.kept]
            columns = {name: array[layout.kept] for name, array in columns.items()}
        return self._collator.collate(
            session, state, plan, positions, layout, columns, wanted.empty
        )

    def again(
        self,
        session: Session,
        state: State,
        drawn: Drawn,
        unit: Unit,
        fields: tuple[str, ...] | None,
        rng: np.random.Generator,
    ) -> tuple[Batch, int]:
        """Return the batch of what was drawn before, and a checksum of the rows it is made of.

        Raise Evicted where some of what was drawn is gone.
        """
        r, items = self._resident, drawn.items
        if not (held := r.held(items)).all():
            raise evicted(np.unique(items[~held]))
        wanted = Wanted(1, None, None, None, Recorded(), unit, fields, None, rng, np.empty)
        self._candidates.read_owners(session, wanted)
        there = drawn.positions >= 0
        positions = np.where(there, drawn.positions, r.low)
        rows = np.where(there, r.rows(positions), UNKNOWN)
        plan = self._collator.plan(fields, unit, Recorded(tuple(drawn.columns)))
        names = positions if positions.ndim == 1 else positions[:, 0]
        batch = self.made(session, state, wanted, plan, names, rows, drawn.columns)
        return batch, wanted.rows_crc
