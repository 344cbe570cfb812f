"""A sample, step by step: storage finds and reads, replay chooses. What `ReplayBuffer.sample` and `sample_tasks` call."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Sequence

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.replay import units
from expdb.replay.population import Listed, Population, Window, check_size, distinct_draws
from expdb.replay.samplers import Sampler
from expdb.replay.units import NStep
from expdb.storage import read, select
from expdb.storage.engine import Session
from expdb.storage.query import Condition
from expdb.storage.store import State, Store

_TRIES = 3  # rounds of drawing again, before the steps that can be drawn are listed


def population_of(store: Store, session: Session, state: State, condition: Condition | None) -> Population:
    """Return what a sample draws from: the positions that match, or the window of all of them."""
    if condition is not None:
        return Listed(select.positions(store, session, condition))
    return Window(state.low, state.added, state.size, lambda drawn: read.alive(store, session, drawn))


def sample_transitions(
    store: Store,
    session: Session,
    state: State,
    population: Population,
    sampler: Sampler,
    unit: NStep,
    size: int,
    fields: Sequence[str] | None,
    rng: np.random.Generator,
) -> Batch:
    """Draw steps whose successor is known, by drawing again those whose is not, and derive what NStep promises."""
    drawn: list[np.ndarray] = []
    following: list[np.ndarray] = []
    wanted, tries = size, 0
    while wanted > 0:
        tries += 1
        if tries > _TRIES or not sampler.replace:
            population, everyone_valid = _with_successor(store, session, state, population), True
            check_size(population.size, size, "steps with a known successor", sampler.replace)
            if not sampler.replace:
                drawn, following, wanted = [], [], size
        else:
            everyone_valid = False
        candidates = sampler.draw(population, wanted if everyone_valid else wanted + wanted // 8 + 8, rng)
        ok, after = _successors(store, session, state, candidates)
        picked = np.flatnonzero(ok)[:wanted]
        drawn.append(candidates[picked])
        following.append(after[picked])
        wanted -= len(picked)
    positions, after = np.concatenate(drawn), np.concatenate(following)
    return _with_next(store, session, state, positions, after, unit, fields)


def _with_successor(store: Store, session: Session, state: State, population: Population) -> Population:
    everyone = population.positions if isinstance(population, Listed) else select.positions(store, session, None)
    if not len(everyone):
        return Listed(everyone)
    return Listed(everyone[_successors(store, session, state, everyone)[0]])


def _successors(store: Store, session: Session, state: State, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each step's successor is known, and its position, LAST where that is the tail or the end."""
    segments = read.locate(store, session, positions)
    after = read.successors(store, session, state, positions, segments)
    ok = after >= 0
    at_end = np.flatnonzero(after == read.LAST)
    if len(at_end):
        ends = read.fetch(store, session, state, positions[at_end], ("terminated", "episode"), segments)
        tails = read.tails(store, session, ends["episode"])
        has_tail = np.array([episode in tails for episode in ends["episode"].tolist()], np.bool_)
        ok[at_end] = ends["terminated"] | has_tail
    return ok, after


def _with_next(
    store: Store,
    session: Session,
    state: State,
    positions: np.ndarray,
    after: np.ndarray,
    unit: NStep,
    fields: Sequence[str] | None,
) -> Batch:
    own = [] if fields is None else [name for name in fields if name in store.fields.types or not _derived(name)]
    needed = None if fields is None else list(dict.fromkeys([*own, "episode", "terminated"]))
    columns = read.fetch(store, session, state, positions, needed)
    at_end = np.flatnonzero(after == read.LAST)
    tails = read.tails(store, session, columns["episode"][at_end])
    ended_with = {name for tail in tails.values() for name in tail.fields}
    derived = units.derived_fields(unit, list(store.fields.types), ended_with)
    inside = np.flatnonzero(after >= 0)
    following = read.fetch(store, session, state, after[inside], derived)
    for name in derived:
        field = store.fields.types[name]
        source = following[name]
        column = np.zeros((len(positions), *source.shape[1:]), source.dtype)
        if field.varies:
            column[:] = None
        column[inside] = source
        for k in at_end.tolist():
            tail = tails.get(int(columns["episode"][k]))
            if tail is not None and name in tail.fields:
                found = read.gather({0: tail.chunk}, [(0, tail.row, tail.row + 1)], name, field)
                column[k] = found[0]
        columns[f"next_{name}"] = column
        if name in store.fields.optional:
            there = np.zeros(len(positions), np.bool_)
            there[inside] = following[f"has_{name}"]
            there[[k for k in at_end.tolist() if name in getattr(tails.get(int(columns["episode"][k])), "fields", ())]] = True
            columns[f"has_next_{name}"] = there
    columns["discount"] = units.discounts(unit, columns["terminated"])
    columns["n_steps"] = np.full(len(positions), unit.n, np.int64)
    if fields is not None:
        unknown = [name for name in fields if name not in columns]
        if unknown:
            raise errors.QueryError(f"no key {', '.join(unknown)} in this batch: there are {', '.join(columns)}")
        wanted = {name for one in fields for name in (one, f"has_{one}")}
        columns = {name: array for name, array in columns.items() if name in wanted}
    return Batch(columns, len(positions))


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


def _derived(name: str) -> bool:
    return name in ("discount", "n_steps") or name.startswith("next_")
