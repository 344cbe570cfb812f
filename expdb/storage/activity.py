"""Count what one process does with a buffer, as an actor, a learner and a judge."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from expdb.process.locks import locked
from expdb.storage.cached_records import EpisodeRecord

ACTOR, LEARNER, JUDGE = ROLES = ("actor", "learner", "judge")


class Activity:
    """Counts of one handle by role; threads may share it.

    Counts only increase, except for the sum of returns.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close the handle
        self._counts: dict[str, dict[str, float]] = {}

    def add(self, role: str, **amounts: float) -> None:
        """Add amounts to the counts of a role."""
        locked(self._lock, self._add, role, amounts)

    def _add(self, role: str, amounts: Mapping[str, float]) -> None:
        counts = self._counts.setdefault(role, {})
        for name, amount in amounts.items():
            counts[name] = counts.get(name, 0) + amount

    def add_steps(self, count: int, ended: Iterable[EpisodeRecord]) -> None:
        """Count stored steps, and the episodes that ended with their lengths and returns."""
        amounts: dict[str, float] = {"steps": count}
        for episode in ended:
            amounts["episodes_ended"] = amounts.get("episodes_ended", 0) + 1
            lengths = amounts.get("episode_length_sum", 0)
            amounts["episode_length_sum"] = lengths + episode.length
            if episode.gained is not None:
                amounts["returns"] = amounts.get("returns", 0) + 1
                amounts["return_sum"] = amounts.get("return_sum", 0.0) + episode.gained
        if count or "episodes_ended" in amounts:
            locked(self._lock, self._add, ACTOR, amounts)

    def add_wait(self, role: str, seconds: float) -> None:
        """Count the time that an actor may not write, or that a learner has nothing to lease."""
        self.add(role, **{f"{role}_wait_seconds": seconds})

    def counts(self) -> dict[str, dict[str, float]]:
        """Return a copy of all counts by role."""
        return locked(self._lock, self._copy)

    def _copy(self) -> dict[str, dict[str, Any]]:
        return {role: dict(counts) for role, counts in self._counts.items()}
