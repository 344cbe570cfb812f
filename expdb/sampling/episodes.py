"""What is known of each episode in memory beside its steps: its task, or its group and return."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Callable, Hashable, Iterable

import numpy as np

from expdb.storage import select
from expdb.storage.engine import Session
from expdb.storage.resident import Resident
from expdb.storage.store import Store

MANY = 4096


class _Numbers:
    """A number for each value that episodes have, and what else is read with it."""

    def __init__(self, read: Callable[[Store, Session, int, np.ndarray], Iterable[tuple[int, Hashable, float | None]]]):
        self.epoch = -1
        self._read = read
        self._numbers: dict[Hashable, int] = {}
        self._by_episode: dict[int, tuple[int, float | None]] = {}
        self._ids = np.empty(0, np.int64)
        self.count = 0

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        """Bring it up to date with the resident."""
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        if changes is None or len(self._by_episode) > 2 * resident.size + MANY:  # most of them are evicted
            self._numbers, self._by_episode, changes = {}, {}, None
        last = max(self._by_episode, default=-1) if changes is not None else -1
        again = [ids for change in changes or () for ids in (change.episodes, change.advanced)]
        ids = np.unique(np.concatenate(again)) if again else np.empty(0, np.int64)
        for id, value, more in sorted(self._read(store, session, last, ids[ids <= last])):
            self._by_episode[id] = self._numbers.setdefault(value, len(self._numbers)), more
        self._ids = np.array(sorted(self._by_episode), np.int64)
        found = [self._by_episode[id] for id in self._ids.tolist()]
        self._codes = np.array([number for number, _ in found], np.int64)
        self._more = np.array([more for _, more in found], np.float64)
        self.epoch, self.count = resident.epoch, len(self._numbers)

    def of(self, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each episode's value, and what was read with it, NaN for nothing."""
        place = self._ids.searchsorted(episodes)
        return self._codes[place], self._more[place]


class TaskNumbers(_Numbers):
    """The task of each episode held, as a number."""

    def __init__(self) -> None:
        super().__init__(select.tasks_of_episodes)

    def ranked(self, episodes: np.ndarray) -> np.ndarray:
        """Return the number of each episode's task, counted as they come first: whoever looks gets the same."""
        codes, _ = self.of(episodes)
        first = np.full(self.count, len(codes))
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several assignments the last counts: the first place
        rank = np.empty(len(first), np.int64)
        rank[first.argsort(kind="stable")] = np.arange(len(first))
        found: np.ndarray = rank[codes]
        return found


class GroupNumbers(_Numbers):
    """The group of each episode held, as a number, and its return."""

    def __init__(self) -> None:
        super().__init__(select.groups_of_episodes)
