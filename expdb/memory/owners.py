"""Columns of episodes in memory, for units and samplers that look at them."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Hashable

import numpy as np

from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store

MANY = 4096
VALUE_BYTES = 200  # about, of a text and its code in a dict


class Owners:
    """Some columns of the episodes that are held, one entry per episode.

    Numbers are kept as they are, texts as codes.
    """

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.by_name = dict.fromkeys(names, self)
        self.epoch = -1  # of the resident, at which they are right
        self._forget()

    def _forget(self) -> None:
        self._ids = np.empty(0, np.int64)  # ascending
        self._values = {name: np.empty(0) for name in self.names}
        self._codes: dict[str, dict[Hashable, int]] = {
            name: {} for name in self.names if name not in select.NUMBERS_OF_EPISODES
        }

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        texts = sum(map(len, self._codes.values()))
        return self._ids.nbytes * (1 + len(self.names)) + VALUE_BYTES * texts

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        """Bring them up to date with the resident."""
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        if changes is None or len(self._ids) > 2 * resident.size + MANY:  # most are evicted
            changes = None
            self._forget()
        last = int(self._ids[-1]) if len(self._ids) else -1
        changed = [ids for change in changes or () for ids in (change.episodes, change.advanced)]
        again = np.unique(np.concatenate(changed)) if changed else self._ids[:0]
        found = select.columns_of_episodes(store, session, self.names, last, again[again <= last])
        found.sort(key=lambda row: int(row[0]))
        ids = np.array([row[0] for row in found], np.int64)
        known = ids <= last
        place = self._ids.searchsorted(ids[known])
        for k, name in enumerate(self.names, 1):
            fresh = self._encoded(name, [row[k] for row in found])
            self._values[name][place] = fresh[known]
            self._values[name] = np.concatenate((self._values[name], fresh[~known]))
        self._ids = np.concatenate((self._ids, ids[~known]))
        self.epoch = resident.epoch

    def _encoded(self, name: str, values: list[Hashable]) -> np.ndarray:
        if name not in self._codes:
            return np.array([np.nan if value is None else value for value in values], np.float64)
        codes = self._codes[name]
        return np.array(
            [-1 if value is None else codes.setdefault(value, len(codes)) for value in values],
            np.float64,
        )

    def of(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return a column of episodes: float64, or codes of texts in the order in which they come.

        So whoever looks gets the same codes, whatever was read before.
        """
        found: np.ndarray = self._values[name].take(self._ids.searchsorted(episodes))
        if name not in self._codes:
            return found
        codes = found.astype(np.int64).reshape(-1)
        count = len(self._codes[name]) + 1  # the last one, at -1, stands for none
        first = np.full(count, len(codes))
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several the last counts: the first
        first[-1] = len(codes) + 1
        rank = np.empty(count, np.int64)
        rank[first.argsort(kind="stable")] = np.arange(count)
        rank[-1] = -1
        return rank[codes].reshape(episodes.shape)
