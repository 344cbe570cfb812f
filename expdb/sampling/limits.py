"""What a consumer may be handed out."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass, field

import numpy as np

from expdb.memory.resident import Resident
from expdb.memory.usage import Usage
from expdb.memory.versions import StepVersions
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
    by_episode: bool  # whether episodes are handed out, which are as old as their oldest step
    versions: StepVersions = field(default_factory=StepVersions)
    # In the end: what was drawn, and a checksum of the rows that the batch is made of.
    drawn: Drawn | None = None
    rows_crc: int = 0
    # Asked for by setting it to 0: the least position of any row that the batch is made of.
    least: int | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that it looks at."""
        if self.oldest_version is None:
            return ()
        return ("first_policy_version" if self.by_episode else "policy_version",)

    @property
    def reads_versions(self) -> bool:
        """Whether it looks at the versions that steps have of their own."""
        return self.oldest_version is not None and not self.by_episode

    def allow(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be handed out now, bool."""
        found = self.usage.may_be_drawn(resident, rows)
        if self.oldest_version is None:
            return found
        if self.by_episode:
            versions = resident.of_episodes("first_policy_version", rows)
        else:
            versions = self.versions.of(resident, rows)
        return np.asarray(found & (versions >= self.oldest_version))

    def explained(self, new_only: bool) -> str:
        """Return what the consumer has to do with there being too little."""
        held, most, oldest = sorted(self.usage.held), self.usage.most, self.oldest_version
        said = []
        if held:
            named = ", ".join(map(str, held[:3])) + ", ..." * (len(held) > 3)
            said = [
                f"lease{'s' * (len(held) > 1)} {named} hold{'s' * (len(held) == 1)} some until "
                "acknowledged, given back or expired"
            ]
        times = "once" if most == 1 else f"{most} times"
        said += [f"each may be handed out {times}"] if most is not None else []
        said += [f"the policy_version is to be {oldest} or newer"] if oldest is not None else []
        said += ["only what was stored since it was made counts"] * new_only
        return f" (consumer {self.name!r}: {', '.join(said)})" if said else ""
