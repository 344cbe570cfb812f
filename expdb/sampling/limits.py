"""What a consumer may be handed out."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass

import numpy as np

from expdb.memory.resident import Resident
from expdb.memory.usage import Usage
from expdb.storage.ledger.packed import Drawn


@dataclass
class Limits:
    """What a consumer may be handed out of what the query and the unit allow; what it was."""

    name: str
    number: int  # of the batch
    usage: Usage
    min_size: int
    at_least: int  # rows, where there are fewer than asked for
    layout_rng: np.random.Generator  # for the unit
    oldest_version: int | None  # of the policy, that is not too stale
    # In the end: what was drawn, and a checksum of the rows that the batch is made of.
    drawn: Drawn | None = None
    rows_crc: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that it looks at."""
        return () if self.oldest_version is None else ("policy_version",)

    def allow(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be handed out now, bool."""
        found = self.usage.may_be_drawn(resident, rows)
        if self.oldest_version is None:
            return found
        fresh = resident.of_episodes("policy_version", rows) >= self.oldest_version
        return np.asarray(found & fresh)

    def explained(self, new_only: bool) -> str:
        """Return what the consumer has to do with there being too little."""
        held, most, oldest = len(self.usage.held), self.usage.most, self.oldest_version
        said = [f"{held} leases hold what they hold"] if held else []
        said += [f"each may be handed out {most} times"] if most is not None else []
        said += [f"the policy_version is to be {oldest} or newer"] if oldest is not None else []
        said += ["only what was stored since it was made counts"] * new_only
        return f" (consumer {self.name!r}: {', '.join(said)})" if said else ""
