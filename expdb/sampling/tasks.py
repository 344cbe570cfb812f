"""Draw whole tasks and read their steps."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Sequence

import numpy as np

from expdb.batch import Batch
from expdb.errors import TooFewRows
from expdb.replay.population import distinct_draws
from expdb.sampling.too_few import explain_too_few
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import fetch, select
from expdb.storage.store import Store


def sample_tasks(
    store: Store,
    n: int,
    condition: Condition | None,
    whole: bool,
    fields: Sequence[str] | None,
    rng: np.random.Generator,
) -> dict[str, Batch]:
    """Return the steps of `n` tasks by task: all steps if `whole`, else the matching steps."""
    with store.engine.reading() as session:
        state = store.state(session)
        try:
            chosen = draw_tasks(store, session, n, condition, rng)
        except TooFewRows as error:
            raise explain_too_few(store, session, condition, error) from None
        segments = None
        if whole and not state.gaps:
            owners, segments = select.segments_of_tasks(store, session, chosen)
            positions, index = segments.positions(state.oldest)
            owner = np.array(owners)[index]
        else:
            matching = None if whole else condition
            owners, positions = select.steps_of_tasks(store, session, chosen, matching)
            owner = np.array(owners)
        keys = None if fields is None else list(dict.fromkeys((*fields, "step")))
        columns = fetch.steps(store, session, state, positions, keys, segments)
    order, parts = columns["step"], {}
    if fields is not None and "step" not in fields:
        del columns["step"]
    for task in chosen:
        rows = np.flatnonzero(owner == task)
        rows = rows[np.lexsort((positions[rows], order[rows]))]
        parts[task] = Batch({key: array[rows] for key, array in columns.items()}, len(rows))
    return parts


def draw_tasks(
    store: Store, session: Session, n: int, condition: Condition | None, rng: np.random.Generator
) -> list[str]:
    """Return `n` tasks, drawn uniformly from the tasks with a matching step.

    The amount of data that is read depends on `n`, not on the size of the buffer.

    Tasks are tried in a uniformly random order, and the first `n` matching tasks are returned.
    expdb draws this order by drawing random episodes: an episode selects its task only if it is
    the first episode of the task. If the query's conditions on episodes leave few tasks, or if few
    tasks match, expdb lists the tasks instead.
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
    if len(chosen) < n:
        raise TooFewRows(
            f"{n} tasks were requested, but only {len(chosen)} have a matching step; request "
            "fewer, or widen the query"
        )
    return chosen


def _matching(
    store: Store, session: Session, tried: list[str], condition: Condition | None, most: int
) -> list[str]:
    matching = select.tasks_among(store, session, tried, condition)
    return [task for task in tried if task in matching][:most]
