"""The policy versions of steps that have one of their own, for consumers that look at staleness."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.memory.journal import NONE
from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store


class StepVersions:
    """The `policy_version` of each step that differs from that of its episode; few do."""

    def __init__(self, resident: Resident) -> None:
        self._resident = resident
        self.epoch = -1  # of the resident, at which they are right
        self._positions, self._versions = NONE, NONE  # ascending by position

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._positions.nbytes + self._versions.nbytes

    def follow(self, store: Store, session: Session) -> None:
        """Bring them up to date with the resident."""
        resident = self._resident
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        if changes is None:
            known, again = resident.low, NONE
        else:
            begun = [change.begin for change in changes if change.end > change.begin]
            known = max(resident.low, min(begun, default=resident.high))
            again = np.unique(np.concatenate([NONE, *[change.revised for change in changes]]))
            again = again[(again >= resident.low) & (again < known)]
        kept = (self._positions >= resident.low) & (self._positions < known)
        kept &= ~np.isin(self._positions, again)
        new_positions, new_versions = select.own_versions(store, session, known, again)
        positions = np.concatenate((self._positions[kept], new_positions))
        order = positions.argsort()
        versions = np.concatenate((self._versions[kept], new_versions))
        self._positions, self._versions = positions[order], versions[order]
        self.epoch = resident.epoch

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the version of steps, float64: their own, or their episode's; NaN for none."""
        resident = self._resident
        found = resident.of_episodes("policy_version", rows)
        if len(self._positions):
            positions = resident.positions(rows)
            place = self._positions.searchsorted(positions)
            place[place == len(self._positions)] = 0
            own = self._positions[place] == positions
            found = np.where(own, self._versions[place], found)
        return found
