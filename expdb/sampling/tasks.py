"""Whole tasks: which are drawn, and the task of each episode in memory."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.replay.population import check_size, distinct_draws
from expdb.storage import select
from expdb.storage.engine import Session
from expdb.storage.query import Condition
from expdb.storage.resident import Resident
from expdb.storage.store import Store

MANY = 4096


class TaskNumbers:
    """The task of each episode held, as a number."""

    def __init__(self) -> None:
        self.epoch = -1
        self._numbers: dict[str, int] = {}
        self._by_episode: dict[int, int] = {}
        self._ids = self._codes = np.empty(0, np.int64)

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        """Bring it up to date with the resident."""
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        if changes is None or len(self._by_episode) > 2 * resident.size + MANY:  # most of them are evicted
            self._numbers, self._by_episode, changes = {}, {}, None
        last = max(self._by_episode, default=-1) if changes is not None else -1
        again = np.unique(np.concatenate([change.episodes for change in changes])) if changes else np.empty(0, np.int64)
        for id, task in sorted(select.tasks_of_episodes(store, session, last, again)):
            self._by_episode[id] = self._numbers.setdefault(task, len(self._numbers))
        self._ids = np.array(sorted(self._by_episode), np.int64)
        self._codes = np.array([self._by_episode[id] for id in self._ids.tolist()], np.int64)
        self.epoch = resident.epoch

    def of(self, episodes: np.ndarray) -> np.ndarray:
        """Return the number of each episode's task, counted as they come first: whoever looks gets the same."""
        codes = self._codes[self._ids.searchsorted(episodes)]
        first = np.full(len(self._numbers), len(codes))
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several assignments the last counts: the first place
        rank = np.empty(len(first), np.int64)
        rank[first.argsort(kind="stable")] = np.arange(len(first))
        return rank[codes]


def draw_tasks(store: Store, session: Session, n: int, condition: Condition | None, rng: np.random.Generator) -> list[str]:
    """Return `n` tasks, uniformly among those with a matching step; what is read follows `n`, not all that is held.

    Tasks are tried in a uniformly random order, and the first `n` that match are taken. The order comes from random
    episodes, where only the first episode of a task stands for it; where the query leaves few tasks by its
    conditions on episodes, or few match at all, they are listed instead.
    """
    low, high = select.episode_ids(store, session)
    listed = select.tasks_required(store, session, condition, max(256, int((n * (high - low)) ** 0.5)))
    chosen: list[str] = []
    if listed is None:
        draws = distinct_draws(low, high, 2 * n, rng)
        for ids in draws:
            first = select.first_of_tasks(store, session, ids)
            tried = [first[id] for id in ids.tolist() if id in first]
            chosen += _matching(store, session, tried, condition, n - len(chosen))
            if len(chosen) == n:
                return chosen
        listed = [task for task in select.tasks(store, session, condition) if task not in set(chosen)]
    order = rng.permutation(len(listed)).tolist()
    for start in range(0, len(order), 4 * n):
        tried = [listed[k] for k in order[start : start + 4 * n]]
        chosen += _matching(store, session, tried, condition, n - len(chosen))
        if len(chosen) == n:
            break
    check_size(len(chosen), n, "tasks", replace=False)
    return chosen


def _matching(store: Store, session: Session, tried: list[str], condition: Condition | None, most: int) -> list[str]:
    found = select.tasks_among(store, session, tried, condition)
    return [task for task in tried if task in found][:most]
