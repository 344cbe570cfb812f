"""What is known of each episode in memory beside its steps: its task, or its group and return."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Callable, Hashable, Iterable

import numpy as np

from expdb.memory.resident import Resident
from expdb.sql.engine import Session
from expdb.storage.reading import select
from expdb.storage.store import Store

MANY = 4096
VALUE_BYTES = 200  # about, of a value and its number in a dict


class _Numbers:
    """A number for each value that episodes have, and what else is read with it."""

    def __init__(
        self,
        read: Callable[
            [Store, Session, int, np.ndarray], Iterable[tuple[int, Hashable, float | None]]
        ],
    ):
        self.epoch = -1
        self._read = read
        self._numbers: dict[Hashable, int] = {}
        self._ids = self._codes = np.empty(
            0, np.int64
        )  # of episodes, ascending, and the number of each
        self._more = np.empty(0)

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (
            self._ids.nbytes
            + self._codes.nbytes
            + self._more.nbytes
            + VALUE_BYTES * len(self._numbers)
        )

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        """Bring it up to date with the resident."""
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        if changes is None or len(self._ids) > 2 * resident.size + MANY:  # most of them are evicted
            changes, self._numbers, self._ids, self._codes, self._more = (
                None,
                {},
                self._ids[:0],
                self._codes[:0],
                self._more[:0],
            )
        last = int(self._ids[-1]) if len(self._ids) else -1
        changed = [ids for change in changes or () for ids in (change.episodes, change.advanced)]
        again = np.unique(np.concatenate(changed)) if changed else self._ids[:0]
        found = sorted(self._read(store, session, last, again[again <= last]))
        ids = np.array([id for id, _, _ in found], np.int64)
        codes = np.array(
            [self._numbers.setdefault(value, len(self._numbers)) for _, value, _ in found], np.int64
        )
        more = np.array([more for _, _, more in found], np.float64)
        known = ids <= last
        place = self._ids.searchsorted(ids[known])
        self._codes[place], self._more[place] = codes[known], more[known]
        self._ids = np.concatenate((self._ids, ids[~known]))
        self._codes, self._more = (
            np.concatenate((self._codes, codes[~known])),
            np.concatenate((self._more, more[~known])),
        )
        self.epoch = resident.epoch

    def of(self, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each episode's value, and what was read with it, NaN for nothing."""
        place = self._ids.searchsorted(episodes)
        return self._codes[place], self._more[place]


class TaskNumbers(_Numbers):
    """The task of each episode held, as a number."""

    def __init__(self) -> None:
        super().__init__(select.tasks_of_episodes)

    def ranked(self, episodes: np.ndarray) -> np.ndarray:
        """Return the number of each episode's task, counted as they come first.

        Whoever looks gets the same.
        """
        codes, _ = self.of(episodes)
        first = np.full(self.count, len(codes))
        first[codes[::-1]] = np.arange(len(codes))[
            ::-1
        ]  # of several assignments the last counts: the first place
        rank = np.empty(len(first), np.int64)
        rank[first.argsort(kind="stable")] = np.arange(len(first))
        found: np.ndarray = rank[codes]
        return found


class GroupNumbers(_Numbers):
    """The group of each episode held, as a number, and its return."""

    def __init__(self) -> None:
        super().__init__(select.groups_of_episodes)
