"""Whole tasks: which are drawn."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import numpy as np

from expdb.replay.population import check_size, distinct_draws
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store


def draw_tasks(
    store: Store, session: Session, n: int, condition: Condition | None, rng: np.random.Generator
) -> list[str]:
    """Return `n` tasks, uniformly among those with a matching step.

    What is read follows `n`, not all that is held.

    Tasks are tried in a uniformly random order, and the first `n` that match are taken. The order
    comes from random episodes, where only the first episode of a task stands for it; where the
    query leaves few tasks by its conditions on episodes, or few match at all, they are listed
    instead.
    """
    low, high = select.episode_ids(store, session)
    listed = select.tasks_required(
        store, session, condition, max(256, int((n * (high - low)) ** 0.5))
    )
    chosen: list[str] = []
    if listed is None:
        draws = distinct_draws(low, high, 2 * n, rng)
        for ids in draws:
            first = select.first_of_tasks(store, session, ids)
            tried = [first[id] for id in ids.tolist() if id in first]
            chosen += _matching(store, session, tried, condition, n - len(chosen))
            if len(chosen) == n:
                return chosen
        listed = [
            task for task in select.tasks(store, session, condition) if task not in set(chosen)
        ]
    order = rng.permutation(len(listed)).tolist()
    for start in range(0, len(order), 4 * n):
        tried = [listed[k] for k in order[start : start + 4 * n]]
        chosen += _matching(store, session, tried, condition, n - len(chosen))
        if len(chosen) == n:
            break
    check_size(len(chosen), n, "tasks", replace=False)
    return chosen


def _matching(
    store: Store, session: Session, tried: list[str], condition: Condition | None, most: int
) -> list[str]:
    found = select.tasks_among(store, session, tried, condition)
    return [task for task in tried if task in found][:most]
