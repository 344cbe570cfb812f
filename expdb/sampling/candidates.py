"""Which steps there are to draw from: those that the query matches and the unit may start from."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb.memory.matches import Matches
from expdb.memory.resident import NONE, Resident
from expdb.replay.population import Grouped, Listed, Population, Window, check_size
from expdb.replay.samplers import Ordered, Prioritized, Sampler, Uniform
from expdb.replay.sequences import Group, Rollouts
from expdb.replay.units import NStep, Unit
from expdb.sampling.memo import remember, remembered
from expdb.sampling.owners import GroupNumbers, TaskNumbers
from expdb.sql.engine import Session
from expdb.sql.query import Condition, Where, key_of
from expdb.storage.reading import select
from expdb.storage.store import Store


@dataclass
class Wanted:
    """One call of `sample`."""

    size: int
    where: Where
    key: str | None
    condition: Condition | None
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    shard: tuple[int, int] | None
    rng: np.random.Generator
    empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides, beside the query, which steps may be drawn."""
        return self.unit.anchor if self.shard is None else (*self.unit.anchor, "shard", *self.shard)

    def may_start(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        found = self.unit.may_start(resident, rows)
        return found if self.shard is None else found & self._in_shard(resident, rows)

    def _in_shard(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        assert self.shard is not None
        index, count = self.shard
        found: np.ndarray = resident.take("episode", rows) % count == index
        return found

    @property
    def by_priority(self) -> bool:
        """Whether stored priorities decide what is meant, or in which order."""
        return (self.condition is not None and "priority" in self.condition.names) or (
            isinstance(self.sampler, Ordered) and self.sampler.column == "priority"
        )


class Populations:
    """The steps to draw from, by query and unit.

    Each worked out anew when something has changed.
    """

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self._conditions: dict[str, Condition | None] = {}
        self._matches: dict[str, Matches] = {}
        self._lists: dict[
            Any, tuple[int, Any]
        ] = {}  # epoch of the resident, and what was right then
        self._tasks, self._groups = TaskNumbers(), GroupNumbers()

    @property
    def nbytes(self) -> int:
        """Bytes of the lists, and of what is known of queries and episodes."""
        known = [
            *[found for _, found in self._lists.values()],
            *self._matches.values(),
            self._tasks,
            self._groups,
        ]
        return sum(one.nbytes for one in known)

    def condition(self, key: str, where: Where) -> Condition | None:
        """Return the compiled query, remembered by its key."""
        return remembered(self._conditions, key, lambda: self._store.compiled(where))

    def are_current(self, wanted: Wanted) -> bool:
        """Return whether what is in memory is enough to draw, without a look at the database."""
        r, sampler = self._resident, wanted.sampler
        if wanted.condition is not None and not isinstance(wanted.where, np.ndarray):
            known = self._matches.get(wanted.key or "")
            if known is None or known.epoch != r.epoch or "priority" in wanted.condition.names:
                return False
        if isinstance(wanted.unit, Group) and self._groups.epoch != r.epoch:
            return False
        if isinstance(sampler, Prioritized):
            return r.priorities is not None
        if isinstance(sampler, Uniform) and sampler.over == "task":
            return self._tasks.epoch == r.epoch
        return not isinstance(sampler, Ordered)

    def population(self, session: Session | None, wanted: Wanted) -> Population:
        """Return the steps that the unit may start from and the query matches."""
        r, unit = self._resident, wanted.unit
        if wanted.key is not None or unit.by_episode:
            return Listed(self.listed(session, wanted), unit.what)
        allowed: Callable[[np.ndarray], np.ndarray] | None = None
        if wanted.anchor:
            allowed = (
                self._may_start
                if isinstance(unit, NStep) and wanted.anchor == ("successors", 1) and not r.gaps
                else (lambda positions: r.held(positions) & wanted.may_start(r, r.rows(positions)))
            )
        elif r.gaps:
            allowed = r.held
        return Window(r.low, r.high, allowed, lambda: self.listed(session, wanted), unit.what)

    def _may_start(self, positions: np.ndarray) -> np.ndarray:
        return self._resident.columns[":after"].take(positions % self._resident.slots) >= 0

    def listed(self, session: Session | None, wanted: Wanted) -> np.ndarray:
        """Return the positions to draw from, ascending.

        Worked out anew when something has changed.
        """
        r, unit = self._resident, wanted.unit
        name = (wanted.key, wanted.anchor)
        known = self._lists.get(name)
        if (
            known is not None
            and known[0] == r.epoch
            and not (wanted.condition and "priority" in wanted.condition.names)
        ):
            return known[1]  # type: ignore[no-any-return]
        if wanted.key is None:
            matching = r.everyone() if not unit.by_episode else NONE
        elif isinstance(wanted.where, np.ndarray):
            given = np.unique(wanted.where.astype(np.int64))
            matching = given[r.held(given)]
        else:
            matching = self.matches(session, wanted).positions
        if unit.by_episode:
            starts = r.starts()
            if wanted.key is not None:
                episodes = np.unique(r.take("episode", r.rows(matching)))
                starts = starts[np.isin(r.take("episode", r.rows(starts)), episodes)]
            matching = (
                starts if not isinstance(unit, Group) else self._gather(session, name, unit, starts)
            )
        if wanted.anchor and len(matching):
            matching = matching[wanted.may_start(r, r.rows(matching))]
        remember(self._lists, name, (r.epoch, matching))
        return matching

    def _gather(
        self, session: Session | None, name: Any, unit: Group, starts: np.ndarray
    ) -> np.ndarray:
        """Return the first step of the first rollout of each group, and remember the groups."""
        r = self._resident
        if self._groups.epoch != r.epoch:
            assert session is not None
            self._groups.follow(self._store, session, r)
        groups, returns = (
            self._groups.of(r.take("episode", r.rows(starts)))
            if len(starts)
            else (starts, starts.astype(np.float64))
        )
        rollouts = unit.gather(groups, starts, returns)
        remember(self._lists, (*name, "rollouts"), (r.epoch, rollouts))
        return rollouts.starts[:, 0]

    def rollouts(self, session: Session | None, wanted: Wanted, positions: np.ndarray) -> Rollouts:
        """Return the groups that were drawn by these positions, with rows."""
        r = self._resident
        name = (wanted.key, wanted.anchor, "rollouts")
        if self._lists.get(name, (-1, None))[0] != r.epoch:
            self._lists.pop((wanted.key, wanted.anchor), None)
            self.listed(session, wanted)
        known: Rollouts = self._lists[name][1]
        drawn = known.of(known.starts[:, 0].searchsorted(positions))
        there = drawn.starts >= 0
        return Rollouts(np.where(there, r.rows(drawn.starts), drawn.starts), drawn.returns)

    def matches(self, session: Session | None, wanted: Wanted) -> Matches:
        """Return the positions that the query matches, brought up to date.

        A session is needed where they are not.
        """
        assert wanted.key is not None
        assert wanted.condition is not None
        condition = wanted.condition
        known = remembered(self._matches, wanted.key, lambda: Matches(condition))
        if known.epoch != self._resident.epoch or "priority" in condition.names:
            assert session is not None
            known.follow(self._store, session, self._resident)
        return known

    def grouped(
        self, session: Session | None, wanted: Wanted, population: Population, over: str
    ) -> Grouped:
        """Return the steps of a population by episode or task."""
        r = self._resident
        if over == "task" and self._tasks.epoch != r.epoch:
            assert session is not None
            self._tasks.follow(self._store, session, r)
        name = (wanted.key, wanted.anchor, wanted.unit.what, over)
        known = self._lists.get(name)
        if (
            known is not None
            and known[0] == r.epoch
            and not (wanted.condition and "priority" in wanted.condition.names)
        ):
            return known[1]  # type: ignore[no-any-return]
        positions = population.listed()
        groups = r.take("episode", r.rows(positions)) if len(positions) else positions
        what = f"{over}s with {wanted.unit.what}"
        found = Grouped(positions, self._tasks.ranked(groups) if over == "task" else groups, what)
        remember(self._lists, name, (r.epoch, found))
        return found

    def first(self, session: Session, wanted: Wanted, sampler: Ordered) -> np.ndarray:
        """Return the first positions in an order that the unit may start from."""
        r, size, unit = self._resident, wanted.size, wanted.unit
        found = np.empty(0, np.int64)
        offset, limit = 0, size
        seen: set[int] = set()
        start_of: dict[int, int] = {}
        while len(found) < size:
            page = select.ordered(
                self._store,
                session,
                wanted.condition,
                sampler.column,
                sampler.descending,
                limit,
                offset,
            )
            offset, limit = offset + len(page), limit * 2
            rows = r.rows(page) if len(page) else page
            if unit.by_episode and len(page):
                if not start_of:
                    start_of = self._starts_by_episode(session, wanted)
                ahead = [
                    start_of[id]
                    for id in dict.fromkeys(r.take("episode", rows).tolist())
                    if id in start_of
                ]
                fresh = [start for start in dict.fromkeys(ahead) if start not in seen]
                seen.update(fresh)
                chosen = np.array(fresh, np.int64)
            else:
                chosen = page[wanted.may_start(r, rows)] if len(page) else page
            found = np.concatenate((found, chosen))
            if len(page) < limit // 2:
                break
        check_size(len(found), size, unit.what, replace=False)
        return found[:size]

    def _starts_by_episode(self, session: Session, wanted: Wanted) -> dict[int, int]:
        """Return the step that stands for each episode that may be drawn.

        Its first, or that of its group's first.
        """
        r = self._resident
        starts = self.listed(session, wanted)
        if not len(starts):
            return {}
        if isinstance(wanted.unit, Group):
            members = self.rollouts(session, wanted, starts).starts
            owners = [
                (episode, start)
                for start, rows in zip(starts.tolist(), members, strict=True)
                for episode in r.take("episode", rows[rows >= 0]).tolist()
            ]
            return dict(owners)
        return dict(zip(r.take("episode", r.rows(starts)).tolist(), starts.tolist(), strict=True))


def key_of_any(where: Where) -> str:
    """Return what tells a query from others."""
    if isinstance(where, np.ndarray):
        return f"positions {where.dtype} {base64.b64encode(where.tobytes()).decode()}"
    found = key_of(where)
    assert found is not None
    return found
