"""A sample, step by step: storage finds and holds, replay chooses. What `ReplayBuffer` calls to sample."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.replay import units
from expdb.replay.population import Grouped, Listed, Population, Window, check_size, distinct_draws
from expdb.replay.samplers import Newest, Ordered, Prioritized, Sampler, Uniform
from expdb.replay.sumtree import SumTree
from expdb.replay.units import Episode, Layout, NStep, Step, Unit
from expdb.replay.units import Sequence as SequenceUnit
from expdb.storage import priorities, read, select
from expdb.storage.chunk_cache import ChunkCache
from expdb.storage.engine import Session
from expdb.storage.matches import Matches
from expdb.storage.query import Condition, Where, key_of
from expdb.storage.refresh import load_priorities, refresh
from expdb.storage.resident import Budget, Resident
from expdb.storage.signature import SYSTEM
from expdb.storage.store import State, Store
from expdb.storage.tables import EPISODE_COLUMNS

FILL_SECONDS = 0.01  # of loading at each sample that can do without what is not loaded yet
SAVE_SECONDS = 1.0  # after which changed priorities are written
REMEMBERED = 16  # queries and the like, each kept up to date when it is used

Value = TypeVar("Value")


@dataclass
class Draws:
    """What a prioritized sampler knows of one population: the sum tree and how often it was drawn from."""

    sampler: Prioritized
    calls: int = 0
    tree: SumTree = field(default_factory=lambda: SumTree(0))
    member: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))  # by row
    epoch: int = -1  # of the resident, at which the tree is right
    slots: int = 0
    low: int = 0
    high: int = 0
    again: list[np.ndarray] = field(default_factory=list)  # positions given a priority while the tree was behind
    restored: tuple[int, np.ndarray] | None = None  # first position and weights, from a saved state


@dataclass(frozen=True)
class Plan:
    """Where the keys of a batch come from."""

    keys: list[tuple[str, str, str]]  # key, source, name there
    stored: list[str]  # read from the database, a value a step
    of_episodes: list[str]  # read from the database, a value a drawn step
    following: list[str]  # fields of what follows that are read from the database


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
    rng: np.random.Generator


class Sampling:
    """What a process holds to sample one buffer: its rows in memory, and what was worked out from them."""

    def __init__(self, store: Store, budget: Budget):
        self._store, self._budget = store, budget
        self.start_anew()

    def start_anew(self) -> None:
        """Hold nothing, as at the beginning."""
        self.resident = Resident(self._budget)
        self._cache = ChunkCache()
        self._seen: object = None
        self._asked = False  # whether a sample was ever drawn
        self._conditions: dict[str, Condition | None] = {}
        self._matches: dict[str, Matches] = {}
        self._lists: dict[Any, tuple[int, Any]] = {}
        self._tasks = _Tasks()
        self._plans: dict[Any, Plan] = {}
        self._planned = -1  # version of the resident that the plans are of
        self._draws: dict[Any, Draws] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        self._greatest = 0.0  # priority that any step was given
        self._unsaved = False
        self._left: list[tuple[np.ndarray, np.ndarray]] = []  # unsaved priorities of rows that were forgotten
        self._saved = time.monotonic()

    @property
    def nbytes(self) -> int:
        """Bytes of what is held in memory: columns, links, sum trees and lists of positions."""
        trees = sum(draws.tree.nbytes + draws.member.nbytes for draws in self._draws.values())
        lists = sum(found.nbytes for _, found in self._lists.values() if isinstance(found, np.ndarray))
        return self.resident.nbytes + trees + lists

    # -- samples ------------------------------------------------------------------------------------------------------

    def sample(
        self,
        size: int,
        where: Where,
        sampler: Sampler,
        unit: Unit,
        fields: tuple[str, ...] | None,
        rng: np.random.Generator,
    ) -> Batch:
        """Draw a batch from what is stored at this moment."""
        key = None if where is None else _key(where)
        condition = None if key is None else self._condition(key, where)
        wanted = Wanted(size, where, key, condition, sampler, unit, fields, rng)
        r, store = self.resident, self._store
        with r.lock:
            if self._unsaved:
                self.save(0.0 if self._left else SAVE_SECONDS)
            if (condition is not None and "priority" in condition.names) or (isinstance(sampler, Ordered) and sampler.column == "priority"):
                self.save()
            news = store.engine.news(self._seen)
            if news is None and r.complete and self._is_current(wanted):
                plan = self._plan(fields, unit, sampler)
                if not (plan.stored or plan.of_episodes or plan.following):
                    return self._batch(None, None, wanted, plan)
            with store.engine.reading() as session:
                state = store.state(session)
                if not r.complete and _is_plain(wanted):
                    return self._from_database(session, state, wanted, news)
                self._refresh(session, state, news)
                self._cache.limit = max(0, self._budget.left_for(r) - r.nbytes)
                return self._batch(session, state, wanted, self._plan(fields, unit, sampler))

    def _refresh(self, session: Session, state: State, news: object, seconds: float | None = None) -> None:
        try:
            refresh(self._store, session, self.resident, state, seconds)
        except BaseException:
            self._left += self._unsaved_priorities()
            self.resident.forget()  # it may be half of something
            raise
        if news is not None and self.resident.complete:
            self._seen = news

    def _from_database(self, session: Session, state: State, wanted: Wanted, news: object) -> Batch:
        """Draw single steps without what is not loaded yet; from the second time on some of that is loaded each time.

        So nobody waits for a large file to be loaded, and a program that draws one sample does not pay for it.
        """
        if self._asked:
            self._refresh(session, state, news, FILL_SECONDS)
        self._asked = True

        def held(positions: np.ndarray) -> np.ndarray:
            return read.alive(self._store, session, positions)

        allowed = None if state.size == state.added - state.low else held
        window = Window(state.low, state.added, allowed, lambda: select.positions(self._store, session, None))
        positions = window.draw(wanted.size, True, wanted.rng)
        return Batch(read.fetch(self._store, session, state, positions, wanted.fields, last=True), wanted.size)

    def _is_current(self, wanted: Wanted) -> bool:
        """Return whether what is in memory is enough to draw."""
        r, sampler = self.resident, wanted.sampler
        if wanted.condition is not None and not isinstance(wanted.where, np.ndarray):
            known = self._matches.get(wanted.key or "")
            if known is None or known.epoch != r.epoch or "priority" in wanted.condition.names:
                return False
        if isinstance(sampler, Prioritized):
            return r.priorities is not None
        if isinstance(sampler, Uniform) and sampler.over == "task":
            return self._tasks.epoch == r.epoch
        return not isinstance(sampler, Ordered)

    def _condition(self, key: str, where: Where) -> Condition | None:
        if isinstance(where, np.ndarray):
            return self._store.compiled(where)
        return _remembered(self._conditions, key, lambda: self._store.compiled(where))

    def _batch(self, session: Session | None, state: State | None, wanted: Wanted, plan: Plan) -> Batch:
        r = self.resident
        positions, drawn = self._draw(session, wanted)
        rows = r.rows(positions)
        layout = wanted.unit.layout(r, rows, wanted.rng)
        if layout.kept is not None:
            positions, drawn = positions[layout.kept], {name: array[layout.kept] for name, array in drawn.items()}
        return self._collate(session, state, plan, positions, layout, drawn)

    # -- which steps --------------------------------------------------------------------------------------------------

    def _draw(self, session: Session | None, wanted: Wanted) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions drawn, and what the sampler says of them."""
        sampler, size, rng = wanted.sampler, wanted.size, wanted.rng
        if isinstance(sampler, Prioritized):
            return self._draw_by_priority(session, wanted, sampler)
        if isinstance(sampler, Ordered):
            assert session is not None
            return self._first(session, wanted, sampler), {}
        population = self._population(session, wanted)
        if isinstance(sampler, Newest):
            return population.newest(sampler.k).draw(size, True, rng), {}
        if sampler.over == "step":
            return population.draw(size, sampler.replace, rng), {}
        return self._grouped(session, wanted, population, sampler.over).draw(size, sampler.replace, rng), {}

    def _population(self, session: Session | None, wanted: Wanted) -> Population:
        """Return the steps that the unit may start from and the query matches."""
        r, unit = self.resident, wanted.unit
        if wanted.key is not None or isinstance(unit, Episode):
            return Listed(self._listed(session, wanted), unit.what)
        allowed: Callable[[np.ndarray], np.ndarray] | None = None
        if unit.anchor:
            allowed = self._may_start if type(unit) is NStep and unit.anchor[1] == 1 and not r.gaps else (
                lambda positions: r.held(positions) & unit.may_start(r, r.rows(positions))
            )
        elif r.gaps:
            allowed = r.held
        return Window(r.low, r.high, allowed, lambda: self._listed(session, wanted), unit.what)

    def _may_start(self, positions: np.ndarray) -> np.ndarray:
        return self.resident.columns[":after"].take(positions % self.resident.slots) >= 0

    def _listed(self, session: Session | None, wanted: Wanted) -> np.ndarray:
        """Return the positions to draw from, ascending; worked out anew when something has changed."""
        r, unit = self.resident, wanted.unit
        name = (wanted.key, unit.anchor)
        known = self._lists.get(name)
        if known is not None and known[0] == r.epoch and not (wanted.condition and "priority" in wanted.condition.names):
            return known[1]  # type: ignore[no-any-return]
        if wanted.key is None:
            matching = r.everyone()
        elif isinstance(wanted.where, np.ndarray):
            given = np.unique(wanted.where.astype(np.int64))
            matching = given[r.held(given)]
        else:
            matching = self._matching(session, wanted)
        if isinstance(unit, Episode):
            everyone = r.everyone()
            starts = everyone[unit.may_start(r, r.rows(everyone))]
            if wanted.key is not None:
                episodes = np.unique(r.take("episode", r.rows(matching)))
                starts = starts[np.isin(r.take("episode", r.rows(starts)), episodes)]
            matching = starts
        elif unit.anchor and len(matching):
            matching = matching[unit.may_start(r, r.rows(matching))]
        _remember(self._lists, name, (r.epoch, matching))
        return matching

    def _matching(self, session: Session | None, wanted: Wanted) -> np.ndarray:
        assert wanted.key is not None
        assert wanted.condition is not None
        condition = wanted.condition
        known = _remembered(self._matches, wanted.key, lambda: Matches(condition))
        if known.epoch != self.resident.epoch or "priority" in condition.names:
            assert session is not None
            known.follow(self._store, session, self.resident)
        return known.positions

    def _grouped(self, session: Session | None, wanted: Wanted, population: Population, over: str) -> Grouped:
        r = self.resident
        if over == "task" and self._tasks.epoch != r.epoch:
            assert session is not None
            self._tasks.follow(self._store, session, r)
        name = (wanted.key, wanted.unit.anchor, over)
        known = self._lists.get(name)
        if known is not None and known[0] == r.epoch and not (wanted.condition and "priority" in wanted.condition.names):
            return known[1]  # type: ignore[no-any-return]
        positions = population.listed()
        groups = r.take("episode", r.rows(positions)) if len(positions) else positions
        what = f"{over}s with {wanted.unit.what}"
        found = Grouped(positions, self._tasks.of(groups) if over == "task" else groups, what)
        _remember(self._lists, name, (r.epoch, found))
        return found

    def _first(self, session: Session, wanted: Wanted, sampler: Ordered) -> np.ndarray:
        """Return the first positions in an order that the unit may start from."""
        r, size, unit = self.resident, wanted.size, wanted.unit
        found = np.empty(0, np.int64)
        offset, limit = 0, size
        episodes: list[int] = []
        while len(found) < size:
            page = select.ordered(self._store, session, wanted.condition, sampler.column, sampler.descending, limit, offset)
            offset, limit = offset + len(page), limit * 2
            rows = r.rows(page) if len(page) else page
            if isinstance(unit, Episode) and len(page):
                starts = self._listed(None, Wanted(size, None, None, None, sampler, unit, None, wanted.rng))
                owners = r.take("episode", r.rows(starts)) if len(starts) else starts
                start_of = dict(zip(owners.tolist(), starts.tolist(), strict=True))
                ids = [id for id in dict.fromkeys(r.take("episode", rows).tolist()) if id in start_of and id not in episodes]
                episodes += ids
                chosen = np.array([start_of[id] for id in ids], np.int64)
            else:
                chosen = page[unit.may_start(r, rows)] if len(page) else page
            found = np.concatenate((found, chosen))
            if len(page) < limit // 2:
                break
        check_size(len(found), size, unit.what, replace=False)
        return found[:size]

    # -- by priority --------------------------------------------------------------------------------------------------

    def _draw_by_priority(
        self, session: Session | None, wanted: Wanted, sampler: Prioritized
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        r = self.resident
        if r.priorities is None:
            assert session is not None
            self._load_priorities(session)
        name = (sampler, wanted.key, wanted.unit.anchor)
        draws = _remembered(self._draws, name, lambda: self._new_draws(_name(*name), sampler))
        if draws.epoch != r.epoch or draws.again:
            self._follow(session, wanted, draws)
        total = draws.tree.total
        if not total > 0.0:
            check_size(0, wanted.size, wanted.unit.what + " of a priority above 0", replace=True)
        rows = draws.tree.find(sampler.strata(wanted.size, wanted.rng))
        mass = draws.tree.weights.take(rows)
        least = draws.tree.minimum() if sampler.normalise == "buffer" else None
        said = {"probability": mass / total, "weight": sampler.weights(mass, draws.calls, least)}
        draws.calls += 1
        return r.positions(rows), said

    def _load_priorities(self, session: Session) -> None:
        r = self.resident
        load_priorities(self._store, session, r, self._store.state(session))
        known = r.take("priority", r.rows(r.everyone())) if r.high > r.low else np.empty(0)
        with np.errstate(invalid="ignore"):
            self._greatest = max(self._greatest, float(np.nanmax(known)) if not np.isnan(known).all() else 0.0)

    def _new_draws(self, name: str, sampler: Prioritized) -> Draws:
        saved = self._restored.pop(name, None)
        if saved is None:
            return Draws(sampler)
        return Draws(sampler, saved["calls"], restored=(saved["first"], _numbers(saved["weights"])))

    def _follow(self, session: Session | None, wanted: Wanted, draws: Draws) -> None:
        """Bring a sum tree up to date with the rows."""
        r, unit = self.resident, wanted.unit
        changes = r.since(draws.epoch) if draws.epoch >= 0 else None
        if draws.slots != r.slots:
            held = np.arange(max(draws.low, r.low), draws.high)
            old, new = held % max(draws.slots, 1), held % max(r.slots, 1)
            tree, member = SumTree(r.slots), np.zeros(r.slots, np.bool_)
            tree.weights[new], member[new] = draws.tree.weights[old], draws.member[old]
            tree.sum_up()
            draws.tree, draws.member, draws.slots = tree, member, r.slots
        else:  # evicted, and their rows may hold new steps
            self._weigh(draws, np.arange(draws.low, min(r.low, draws.high)), lambda rows: np.zeros(len(rows), np.bool_))
        again = [*draws.again, *[change.prioritised for change in changes or ()]]
        simple = wanted.key is None and (not unit.anchor or isinstance(unit, NStep) or unit.anchor[0] == "stride")
        if changes is None or not simple or any(change.deleted for change in changes):
            chosen = np.zeros(r.slots, np.bool_)
            listed = self._listed(session, wanted)
            chosen[r.rows(listed) if len(listed) else listed] = True
            self._weigh(draws, np.arange(r.low, r.high), lambda rows: chosen[rows])
        else:
            dirty = [np.arange(max(draws.high, r.low), r.high)]
            relinked = np.unique(np.concatenate([change.relinked for change in changes]))
            relinked = relinked[r.held(relinked)]
            for _ in range(unit.anchor[1] if isinstance(unit, NStep) else 1):
                dirty.append(relinked)
                before = r.preceding(r.rows(relinked))
                relinked = r.positions(before[before >= 0])
            some = np.unique(np.concatenate(dirty))
            self._weigh(draws, some[r.held(some)], lambda rows: unit.may_start(r, rows))
        if again:
            positions = np.unique(np.concatenate(again))
            rows = r.rows(positions[r.held(positions)])
            rows = rows[draws.member[rows]]
            draws.tree.set(rows, draws.sampler.mass(r.take("priority", rows), self._start()))
        draws.epoch, draws.low, draws.high, draws.again, draws.restored = r.epoch, r.low, r.high, [], None

    def _weigh(self, draws: Draws, positions: np.ndarray, chosen: Callable[[np.ndarray], np.ndarray]) -> None:
        """Give steps that may be drawn now their weight, and take that of those that may not be drawn any more."""
        if not len(positions):
            return
        r = self.resident
        rows = r.rows(positions)
        is_chosen, was = chosen(rows), draws.member[rows]
        lost, gained = rows[was & ~is_chosen], is_chosen & ~was
        draws.member[rows] = is_chosen
        draws.tree.set(lost, 0.0)
        weights = draws.sampler.mass(r.take("priority", rows[gained]), self._start())
        if draws.restored is not None:
            first, saved = draws.restored
            place = positions[gained] - first
            known = np.flatnonzero((place >= 0) & (place < len(saved)))
            known = known[saved[place[known]] >= 0]
            weights[known] = saved[place[known]]
        draws.tree.set(rows[gained], weights)

    def _start(self) -> float:
        """Return the priority of a step that was never given one, with initial="max"."""
        return self._greatest or 1.0

    def update_priorities(self, positions: np.ndarray, values: np.ndarray) -> int:
        """Set the priority of steps and return how many of the updates met a step that is held."""
        r, store = self.resident, self._store
        with r.lock:
            if r.priorities is None:  # nothing here draws by them
                return priorities.update(store, positions, values)
            if store.engine.read_only:
                raise errors.DatabaseReadOnly(f"{store.engine.location} was opened with read_only=True: open it without to write")
            news = store.engine.news(self._seen)
            if news is not None:
                with store.engine.reading() as session:
                    self._refresh(session, store.state(session), news)
                if r.priorities is None:
                    return priorities.update(store, positions, values)
            held = r.held(positions)
            count = int(held.sum())
            if count < len(positions):
                positions, values = positions[held], values[held]
            if not count:
                return 0
            rows = r.rows(positions)
            r.columns["priority"][rows] = values
            r.columns[":unsaved"][rows] = True
            self._unsaved = True
            self._greatest = max(self._greatest, float(values.max()))
            for draws in self._draws.values():
                if draws.epoch == r.epoch:
                    members = draws.member[rows]
                    mine, theirs = (rows, values) if members.all() else (rows[members], values[members])
                    draws.tree.set(mine, draws.sampler.mass(theirs, self._start()))
                else:
                    draws.again.append(positions)
            self.save(SAVE_SECONDS)
            return count

    def save(self, after: float = 0.0) -> None:
        """Write the priorities that have changed, if the last time was longer ago than `after` seconds."""
        now = time.monotonic()
        if not self._unsaved or now - self._saved < after:
            return
        r = self.resident
        with r.lock:
            self._saved = now
            unsaved = [*self._left, *self._unsaved_priorities()]
            with self._store.writing() as (session, _):
                version = priorities.write(self._store, session, *[np.concatenate(parts) for parts in zip(*unsaved, strict=True)])
            if r.priorities is not None:
                r.columns[":unsaved"][:] = False
            self._unsaved, self._left = False, []
            if r.priorities is not None and version == r.priorities + 1:
                r.priorities = version  # else others have written as well, and it is all read again

    def _unsaved_priorities(self) -> list[tuple[np.ndarray, np.ndarray]]:
        r = self.resident
        if r.priorities is None:
            return []
        rows = np.flatnonzero(r.columns[":unsaved"][: r.slots])
        positions = r.positions(rows)
        held = positions < r.high
        return [(positions[held], r.columns["priority"][rows[held]])]

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return priorities, sum trees and call counts as plain JSON values."""
        r = self.resident
        with r.lock:
            self.save()
            held = None
            if r.priorities is not None:
                window = np.arange(r.low, r.high)
                held = {"first": r.low, "values": _text(r.take("priority", r.rows(window)) if len(window) else np.empty(0))}
            saved = dict(self._restored)
            for name, draws in self._draws.items():
                rows = np.arange(draws.low, draws.high) % max(draws.slots, 1)
                weights = np.where(draws.member[rows], draws.tree.weights[rows], -1.0)
                saved[_name(*name)] = {"calls": draws.calls, "first": draws.low, "weights": _text(weights)}
            return {"greatest": self._greatest, "priorities": held, "samplers": saved}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        r, store = self.resident, self._store
        given = state["priorities"]
        with r.lock:
            self._draws.clear()
            self._restored = dict(state["samplers"])
            self._greatest = float(state["greatest"])
            if given is None:
                return
            with store.engine.reading() as session:
                self._refresh(session, store.state(session), store.engine.news(self._seen))
                if r.priorities is None:
                    self._load_priorities(session)
            self._greatest = float(state["greatest"])
            values = _numbers(given["values"])
            positions = np.arange(given["first"], given["first"] + len(values))
            held = r.held(positions)
            rows, values = r.rows(positions[held]) if held.any() else positions[:0], values[held]
            old = r.columns["priority"][rows]
            differ = (old != values) & ~(np.isnan(old) & np.isnan(values))
            r.columns["priority"][rows[differ]] = values[differ]
            if not store.engine.read_only:
                r.columns[":unsaved"][rows[differ]] = True
                self._unsaved = self._unsaved or bool(differ.any())

    # -- what each becomes --------------------------------------------------------------------------------------------

    def _plan(self, fields: tuple[str, ...] | None, unit: Unit, sampler: Sampler) -> Plan:
        r = self.resident
        if self._planned != r.version:
            self._plans, self._planned = {}, r.version
        return _remembered(self._plans, (fields, unit, type(sampler)), lambda: self._planned_keys(fields, unit, sampler))

    def _planned_keys(self, fields: tuple[str, ...] | None, unit: Unit, sampler: Sampler) -> Plan:
        r, types, optional = self.resident, self._store.fields.types, self._store.fields.optional
        own: dict[str, str] = {}
        derived: list[str] = []
        if isinstance(unit, NStep):
            derived = units.derived_fields(unit, list(types), r.tail_fields)
            own = dict.fromkeys(("reward", "terminated", "truncated", "discount", "n_steps"), "unit")
            if unit.bounds[1] == 1:
                own = dict.fromkeys(("discount", "n_steps"), "unit")
        elif isinstance(unit, (SequenceUnit, Episode)):
            own = dict.fromkeys(("is_first", "length"), "unit")
            if not (isinstance(unit, Episode) and not unit.pad):
                own["mask"] = "unit"
        if isinstance(sampler, Prioritized):
            own |= dict.fromkeys(("probability", "weight"), "sampler")
        following = {f"next_{name}": name for name in derived}
        everything = ["position", "episode", *SYSTEM, *types, *following]
        names = dict.fromkeys(everything + [name for name in own if name not in everything] if fields is None else fields)
        keys: list[tuple[str, str, str]] = []
        stored: list[str] = []
        of_episodes: list[str] = []
        after: list[str] = []
        for name in names:
            if name in own:
                keys.append((name, own[name], name))
            elif name in following:
                field_name = following[name]
                source = "next" if field_name in r.fields else "next_stored"
                after += [field_name] if source == "next_stored" else []
                keys.append((name, source, field_name))
                if field_name in optional:
                    keys.append((f"has_{name}", source, f"has_{field_name}"))
            elif name in ("position", "episode", "buffer"):
                keys.append((name, name, name))
            elif name in r.fields or name in SYSTEM or (name == "priority" and r.priorities is not None):
                keys.append((name, "row", name))
                if name in optional:
                    keys.append((f"has_{name}", "row", f"has_{name}"))
            else:
                if name not in types:
                    try:
                        read.table_column(self._store, name)
                    except errors.QueryError:
                        there = ", ".join([*everything, *[one for one in own if one not in everything]])
                        raise errors.QueryError(f"no key {name} in this batch: there are {there}, and the columns of the view") from None
                source = "episode_stored" if name in EPISODE_COLUMNS else "stored"
                (of_episodes if source == "episode_stored" else stored).append(name)
                keys.append((name, source, name))
                if name in optional:
                    keys.append((f"has_{name}", source, f"has_{name}"))
        return Plan(keys, stored, of_episodes, after)

    def _collate(
        self, session: Session | None, state: State | None, plan: Plan, positions: np.ndarray, layout: Layout, drawn: dict[str, np.ndarray]
    ) -> Batch:
        """Gather the columns of a batch."""
        r, columns = self.resident, self.resident.columns
        count, mask, rows = len(positions), layout.mask, layout.rows
        shape, flat = rows.shape, rows.reshape(-1)
        sources: dict[str, dict[str, np.ndarray]] = {"unit": layout.columns, "sampler": drawn}
        if session is not None and state is not None:
            if plan.stored:
                sources["stored"] = self._stored(session, state, plan.stored, flat, mask)
            if plan.of_episodes:
                sources["episode_stored"] = read.fetch(self._store, session, state, positions, plan.of_episodes)
            if plan.following:
                sources["next_stored"] = self._stored_after(session, state, plan.following, layout)
        out: dict[str, np.ndarray] = {}
        for key, source, name in plan.keys:
            if source == "row":
                array = columns[name].take(flat, 0)
                out[key] = array if mask is None else array.reshape(*shape, *array.shape[1:])
            elif source == "next":
                assert layout.next_rows is not None
                out[key] = columns[name].take(layout.next_rows, 0)
            elif source == "position":
                out[key] = positions if mask is None else np.where(mask, r.positions(flat).reshape(shape), -1)
            elif source == "episode":
                out[key] = r.take("episode", rows if mask is None else r.rows(positions))
            elif source == "buffer":
                out[key] = read.as_objects([self._store.name] * count)
            elif source == "stored":
                array = sources[source][name]
                out[key] = array if mask is None else array.reshape(*shape, *array.shape[1:])
            else:
                out[key] = sources[source][name]
        if layout.ragged and mask is not None:
            lengths = layout.columns["length"].tolist()
            for key, array in out.items():
                if array.ndim > 1 and array.shape[:2] == mask.shape and key not in ("probability", "weight", "length", "episode"):
                    out[key] = read.as_objects([array[k, :length].copy() for k, length in enumerate(lengths)])
        return Batch(out, count)

    def _stored(
        self, session: Session, state: State, names: list[str], flat: np.ndarray, mask: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Read what is not in memory, for steps; nothing where there is none."""
        there = np.arange(len(flat)) if mask is None else np.flatnonzero(mask.reshape(-1))
        positions = self.resident.positions(flat[there])
        found = read.fetch(self._store, session, state, positions, names, cache=self._cache)
        return found if mask is None else {name: _spread(array, there, len(flat)) for name, array in found.items()}

    def _stored_after(self, session: Session, state: State, names: list[str], layout: Layout) -> dict[str, np.ndarray]:
        """Read what is not in memory, for what follows steps: other steps, or the last observations of episodes."""
        r, rows = self.resident, layout.next_rows
        assert rows is not None
        steps, tails = np.flatnonzero(rows < r.slots), np.flatnonzero(rows > r.slots)
        found = read.fetch(self._store, session, state, r.positions(rows[steps]), names, cache=self._cache)
        out = {name: _spread(array, steps, len(rows)) for name, array in found.items()}
        episodes = r.take("episode", layout.rows[tails])  # a transition stays in its episode
        known = read.tails(self._store, session, episodes) if len(tails) else {}
        for k, episode in zip(tails.tolist(), episodes.tolist(), strict=True):
            tail = known[episode]
            for name in set(names) & set(tail.fields):
                out[name][k] = read.gather({0: tail.chunk}, [(0, tail.row, tail.row + 1)], name, self._store.fields.types[name])[0]
                if f"has_{name}" in out:
                    out[f"has_{name}"][k] = True
        return out


class _Tasks:
    """The task of each episode held, as a number."""

    def __init__(self) -> None:
        self.epoch = -1
        self._numbers: dict[str, int] = {}
        self._by_episode: dict[int, int] = {}
        self._ids = self._codes = np.empty(0, np.int64)

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        changes = resident.since(self.epoch) if self.epoch >= 0 else None
        last = max(self._by_episode, default=-1) if changes is not None else -1
        again = np.unique(np.concatenate([change.episodes for change in changes])) if changes else np.empty(0, np.int64)
        for id, task in sorted(select.tasks_of_episodes(store, session, last, again)):
            self._by_episode[id] = self._numbers.setdefault(task, len(self._numbers))
        self._ids = np.array(sorted(self._by_episode), np.int64)
        self._codes = np.array([self._by_episode[id] for id in self._ids.tolist()], np.int64)
        self.epoch = resident.epoch

    def of(self, episodes: np.ndarray) -> np.ndarray:
        return self._codes[self._ids.searchsorted(episodes)]


def _is_plain(wanted: Wanted) -> bool:
    """Return whether a sample needs nothing but positions: single steps, uniformly, of all."""
    return wanted.where is None and wanted.sampler == Uniform() and isinstance(wanted.unit, Step)


def _name(sampler: Prioritized, key: str | None, anchor: tuple[Any, ...]) -> str:
    return json.dumps([repr(sampler), key, anchor])


def _key(where: Where) -> str:
    if isinstance(where, np.ndarray):
        return f"positions {where.dtype} {base64.b64encode(where.tobytes()).decode()}"
    found = key_of(where)
    assert found is not None
    return found


def _spread(array: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Return an array of `count` entries with some values at their places, and zeros, or None, elsewhere."""
    out = np.full((count, *array.shape[1:]), None) if array.dtype == object else np.zeros((count, *array.shape[1:]), array.dtype)
    if array.dtype == object:
        for place, value in zip(places.tolist(), array, strict=True):
            out[place] = value
    else:
        out[places] = array
    return out


def _text(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)


def _remember(known: dict[Any, Any], name: Any, value: Any) -> None:
    known.pop(name, None)
    known[name] = value
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def _remembered(known: dict[Any, Value], name: Any, make: Callable[[], Value]) -> Value:
    found = known.get(name)
    if found is None:
        _remember(known, name, make())
        found = known[name]
    return found


# -- tasks ------------------------------------------------------------------------------------------------------------


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
