"""Sample one buffer in one process: rows in memory, sample plans and priorities."""

from __future__ import annotations  # so that annotations do not import numpy.random

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from expdb import checks, errors
from expdb.batch import Batch
from expdb.memory.budget import Budget
from expdb.memory.columns import AFTER
from expdb.memory.new_steps import apply_commit
from expdb.memory.priorities import load_priorities
from expdb.memory.refresh import refresh
from expdb.memory.resident import Resident
from expdb.process.locks import NestedCall
from expdb.replay.population import check_size
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.units import Step, Unit
from expdb.sampling.advice import warn_of_ends, warn_of_equal_lists
from expdb.sampling.candidates import Candidates, remember
from expdb.sampling.drawing import Given
from expdb.sampling.extensions import check_declarations
from expdb.sampling.gatherer import Gatherer
from expdb.sampling.priority_trees import PriorityTrees, SavedState, parse_state
from expdb.sampling.request import (
    Limits,
    SampleRequest,
    as_text,
    field_names,
    find_scores,
)
from expdb.sampling.sample_plan import Context, RecordedBatch, SamplePlan
from expdb.sampling.unsaved_priorities import SAVE_SECONDS, UnsavedPriorities
from expdb.sql.query import Where, key_of, plain_where
from expdb.sql.session import Session
from expdb.storage import priorities
from expdb.storage.commits import Commit
from expdb.storage.ledger.encoding import LeasedItems
from expdb.storage.reading.chunk_values import Empty
from expdb.storage.store import Snapshot, State, Store

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

SampleArguments = tuple[Any, ...]  # the arguments of `SampleEngine._plan`; a tuple is fastest

MANY = 4096  # with fewer steps, a unit may find no step to start from
RECENT_PLANS = 4
FILL_SECONDS = 0.01  # time limit for loading rows during a sample that does not need them


def _under_lock(
    method: Callable[Concatenate[SampleEngine, Arguments], Result],
) -> Callable[Concatenate[SampleEngine, Arguments], Result]:
    """Make a method acquire the lock of the rows in memory, and refuse nested calls.

    An interrupt or a bug may leave the rows inconsistent. In that case, discard them, so that the
    next call reads them again.
    """

    def safely(engine: SampleEngine, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return method(engine, *args, **kwargs)
        except BaseException as error:
            if _is_interrupt(error):
                engine.resident.forget()
            raise

    @wraps(method)
    def call(engine: SampleEngine, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        lock = engine.resident.lock
        if lock._is_owned():  # type: ignore[attr-defined]
            raise NestedCall(engine.name)
        with lock: return safely(engine, *args, **kwargs)  # fmt: skip

    return call


def _is_interrupt(error: BaseException) -> bool:
    """Return whether an error may have left the rows in memory inconsistent."""
    return isinstance(error, NestedCall) or not isinstance(error, errors.ExpDBError)


class SampleEngine:
    """The rows of one buffer in the memory of one process, and the data derived from them."""

    def __init__(self, store: Store, budget: Budget):
        self._store, self._budget, self.name = store, budget, store.name
        self._held: threading.RLock | None = None  # the lock that the forking thread holds
        self.batches = 0  # number of batches that `sample` has returned
        self._advised: set[type[Unit]] = set()  # units whose first batch was examined
        self.reset()

    def reset(self) -> None:
        """Discard the rows in memory and all derived data."""
        self.resident = Resident(self._budget)
        self._candidates = Candidates(self._store, self.resident)
        self._unsaved = UnsavedPriorities(self._store, self.resident)
        self._priority_trees = PriorityTrees(
            self._store, self.resident, self._candidates, self._unsaved
        )
        self._gatherer = Gatherer(self._store, self.resident)
        self._plans: dict[Any, SamplePlan] = {}  # by the arguments of `_plan`
        # The newest plans. Most calls pass the same objects; comparing them is faster than hashing.
        self._recent: list[SamplePlan] = []
        self._seen: object = None
        self._rng = np.random.default_rng(0)  # passed to units that draw no random numbers
        # While this is False, a sample that needs no rows in memory does not wait until they are
        # loaded, so a program can draw one sample from a large file quickly.
        self._loads_rows = False

    # -- forks: a child process continues with the rows that its parent has in memory --------------

    def before_fork(self, deadline: float) -> None:
        """Take the lock of the rows; give up at `deadline` on the monotonic clock."""
        lock = self.resident.lock  # another thread may close the handle meanwhile
        got = lock.acquire(timeout=max(deadline - time.monotonic(), 0.0))
        self._held = lock if got else None

    def after_fork(self) -> None:
        """Release the lock of the rows in the parent process."""
        lock, self._held = self._held, None
        if lock is not None:
            lock.release()

    def reset_after_fork(self) -> None:
        """Prepare the child process: keep the rows if `before_fork` took their lock."""
        if self._held is not self.resident.lock:
            self.reset()
            return
        self.resident.lock = threading.RLock()
        self._seen = None  # the child opens its own connections
        self._unsaved.reset_after_fork()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that sampling uses.

        This includes columns, links, sum trees, lists of positions, cached chunks, and the memory
        of batches.
        """
        return self._nbytes + self._gatherer.cache.nbytes + self.resident.arrays.nbytes

    @property
    def _nbytes(self) -> int:
        """Bytes that the budget limits, without cached chunks and the memory of batches."""
        return self.resident.nbytes + self._priority_trees.nbytes + self._candidates.nbytes

    def sample(self, arguments: SampleArguments, rng: np.random.Generator, empty: Empty) -> Batch:
        """Draw a batch from the steps that are stored now, and check the user's arguments.

        If the draw raises an ExpDBError, the engine restores
        the state of `rng`. The exception is a unit that draws steps, not episodes, from `MANY` or
        more steps in memory.
        """
        lock = self.resident.lock
        if lock._is_owned():  # type: ignore[attr-defined]
            raise NestedCall(self.name)
        with lock: return self._sample(arguments, rng, empty)  # fmt: skip

    @_under_lock
    def sample_for_consumer(
        self,
        arguments: SampleArguments,
        rng: np.random.Generator,
        layout_rng: np.random.Generator,
        number: int,
        empty: Empty,
        session: Session | None,
        wants_least: bool,
    ) -> RecordedBatch:
        """Draw batch `number` of a consumer, with the data that the ledger records.

        If `session` is not None, its snapshot is used instead
        of a new session.
        """
        if session is not None:
            plan = self._plan(*arguments)
            context = Context(rng, empty, self._prepare_plan(session, plan, None))
            return plan.draw_recorded(context, layout_rng, number, wants_least)
        plan, changed = self._begin(arguments)
        if changed is None and plan.is_in_memory:
            return plan.draw_recorded(Context(rng, empty), layout_rng, number, wants_least)
        with self._store.engine.reading() as session:
            context = Context(rng, empty, self._prepare_plan(session, plan, changed))
            return plan.draw_recorded(context, layout_rng, number, wants_least)

    @_under_lock
    def rebuild_batch(
        self,
        drawn: LeasedItems,
        unit: Unit,
        fields: tuple[str, ...] | None,
        rng: np.random.Generator,
    ) -> RecordedBatch:
        """Rebuild the batch of a recorded draw; raise Evicted if a step is no longer stored."""
        plan = self._new_plan(
            SampleRequest(1, None, None, None, Given(tuple(drawn.columns)), unit, fields)
        )
        # Look for changes first: a later look could report commits that the session does not see.
        changed = self._look_for_changes()
        with self._store.engine.reading() as session:
            snapshot = self._prepare_plan(session, plan, changed)
            return plan.rebuild(drawn, Context(rng, np.empty, snapshot))

    def describe(self, *arguments: Any) -> dict[str, Any]:
        """Return buffer, query, unit and shard of a request as plain JSON values.

        Raise InvalidValue if the arguments are invalid.
        """
        with self.resident.lock: request = self._plan(*arguments).request  # fmt: skip
        text = as_text(request.where, request.sampler, request.unit, None, {})
        plain = json.loads(text)
        return {
            "buffer": self._store.name,
            "where": plain["where"],
            "unit": plain["unit"],
            "shard": None if request.shard is None else list(request.shard),
        }

    @_under_lock
    def list_items(self, arguments: SampleArguments) -> tuple[np.ndarray, object]:
        """Return the positions that can be sampled, ascending, and the version of the rows."""
        plan, changed = self._begin(arguments)
        with self._store.engine.reading() as session:
            if not self._prepare_plan(session, plan, changed, may_be_empty=True).state.size:
                return np.empty(0, np.int64), None
            positions = plan.drawable(session).listed().copy()
        return positions, (self.resident, self.resident.epoch)

    @_under_lock
    def draw_in_order(
        self,
        arguments: SampleArguments,
        order: np.ndarray,
        start: int,
        version: object,
        rng: np.random.Generator,
        empty: Empty,
    ) -> tuple[Batch | None, int, int]:
        """Build a batch from the next positions in `order` that can still be sampled.

        If `version` is the current version of the rows, no position needs to be checked. Return the
        batch (None if no position is left), the start of the next batch, and the number of skipped
        positions.
        """
        plan, changed = self._begin(arguments)
        if changed is None and plan.is_in_memory:
            if version == (self.resident, self.resident.epoch):
                stop = min(start + plan.request.size, len(order))
                return plan.build_batch(order[start:stop].copy(), Context(rng, empty)), stop, 0
            return self._draw_drawable(plan, order, start, Context(rng, empty))
        with self._store.engine.reading() as session:
            snapshot = self._prepare_plan(session, plan, changed, may_be_empty=True)
            if not snapshot.state.size:
                return None, len(order), len(order) - start
            return self._draw_drawable(plan, order, start, Context(rng, empty, snapshot))

    def _draw_drawable(
        self, plan: SamplePlan, order: np.ndarray, start: int, context: Context
    ) -> tuple[Batch | None, int, int]:
        drawable, parts = plan.drawable(context.session), list[np.ndarray]()
        count, stop = 0, start
        while count < plan.request.size and stop < len(order):
            candidates = order[stop : stop + plan.request.size - count]
            parts.append(candidates[drawable.holds(candidates)])
            count, stop = count + len(parts[-1]), stop + len(candidates)
        skipped = stop - start - count
        if not count:
            return None, stop, skipped
        return plan.build_batch(np.concatenate(parts), context), stop, skipped

    @_under_lock
    def get(self, positions: np.ndarray, fields: Any) -> Batch | None:
        """Return steps by position from memory, or None if the database must be read."""
        if not self._loads_rows or not len(positions):
            return None
        is_final_observation = self._store.fields.is_final_observation
        if fields is not None and any(map(is_final_observation, field_names(fields))):
            return None
        plan, r = self._plan(1, None, Uniform(), Step(), fields, None), self.resident
        if self._look_for_changes() is not None or not plan.is_in_memory:
            return None
        if not self._store.engine.is_unchanged(self._seen) or not r.are_stored(positions).all():
            return None
        if fields is None and (r.columns[AFTER][r.rows(positions)] > r.slots).any():
            return None  # the batch includes final observations
        return plan.build_batch(positions.copy(), Context(self._rng))

    def _plan(
        self,
        size: Any,
        where: Where,
        sampler: Any,
        unit: Any,
        fields: Any,
        shard: Any,
        limits: Limits | None = None,
        plans: dict[Any, SamplePlan] | None = None,
        at_least: Any = None,
    ) -> SamplePlan:
        """Return the plan of a request; create it if `plans` has no plan for the request."""
        if type(size) is not int:
            size = checks.rows(size, "the size of a sample")
        plans = self._plans if plans is None else plans
        key = None
        if where is not None:
            where = plain_where(where)
            key = key_of(where)
        if at_least is not None:  # checked before the lookup: 1, 1.0 and True are equal keys
            at_least = checks.whole(at_least, "at_least", 1, size)
        part = None if shard is None else checks.shard(shard)
        names = tuple(fields) if type(fields) is list else fields
        options = size, key, names, part, limits, at_least
        plan_key: Any = None
        try:
            for recent in self._recent:
                if recent.unit is unit and recent.sampler is sampler and recent.options == options:
                    return recent
            plan_key = sampler, unit, *options
            plan = plans.get(plan_key)
        except (TypeError, ValueError):  # an argument cannot be hashed or compared
            plan = plan_key = None
        if plan is None or plan.resident is not self.resident or not plan.serves(sampler, unit):
            if limits is None:
                checks.rows(size, "the size of a sample")
            checks.instance(unit, Unit, "unit", "expdb.Step()")
            arguments = checks.instance(sampler, Sampler, "sampler", "expdb.Uniform()"), unit
            sampler = sampler.for_unit(unit.lists_anchors)
            names = None if names is None else field_names(names)
            check_declarations(sampler, unit, self._store.fields.types)
            condition = None if key is None else self._candidates.condition(key, where)
            if isinstance(where, np.ndarray):
                where = where.copy()  # the caller may write to it
            plan = self._new_plan(
                SampleRequest(
                    size, key, where, condition, sampler, unit, names, part, limits, at_least
                )
            )
            (plan.sampler, plan.unit), plan.scores = arguments, find_scores(sampler, unit, names)
            plan.options = options
            if plan_key is not None:
                remember(plans, plan_key, plan)
                parameters = getattr(arguments[0], "__dataclass_params__", None)
                is_frozen = getattr(parameters, "frozen", False)  # units are always frozen
                if limits is None and not plan.scores and is_frozen:
                    self._recent = [plan, *self._recent][:RECENT_PLANS]
        if plan.scores:  # also for a reused plan: the first score may be stored later
            self._store.tags.warn_of_unknown(plan.scores)
        return plan

    def _begin(self, arguments: SampleArguments) -> tuple[SamplePlan, object | None]:
        """Return the plan of a request, and the result of `_look_for_changes`."""
        plan = self._plan(*arguments)
        if self._unsaved.exist:
            self._save_for(plan)
        return plan, self._look_for_changes()

    def _new_plan(self, request: SampleRequest) -> SamplePlan:
        return SamplePlan(
            request,
            self._store,
            self.resident,
            self._candidates,
            self._priority_trees,
            self._gatherer,
        )

    def _sample(self, arguments: SampleArguments, rng: np.random.Generator, empty: Empty) -> Batch:
        rng_state = None
        try:
            plan = self._plan(*arguments)
            if self._unsaved.exist:
                self._save_for(plan)
            changed: object = None
            # Without rows in memory, this process does not track commits.
            if self._loads_rows or not plan.request.needs_no_rows:
                store = self._store  # the body of `_look_for_changes`, which saves a function call
                if store.commit_queue.queued:
                    self._apply_commits(store.commit_queue.take_all())
                changed = store.engine.changed_since(self._seen)
                if changed is None and plan.is_in_memory and plan.unit_type in self._advised:
                    if plan.saves_generator or self.resident.size < MANY:
                        rng_state = rng.bit_generator.state
                    batch = plan.draw_in_memory(rng, empty)
                    self.batches += 1
                    return batch
            rng_state = rng.bit_generator.state
            batch = self._sample_from(plan, changed, rng, empty)
            self.batches += 1
            return batch
        except BaseException as error:
            if _is_interrupt(error):
                self.resident.forget()  # see _under_lock
            elif rng_state is not None:
                rng.bit_generator.state = rng_state
            raise

    def _sample_from(
        self, plan: SamplePlan, changed: object, rng: np.random.Generator, empty: Empty
    ) -> Batch:
        """Draw a batch once the rows in memory are up to date with the database."""
        r = self.resident
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            # If there are deleted steps between stored steps, a draw must list all positions.
            if r.complete or not (plan.request.needs_no_rows and state.is_contiguous):
                self._refresh(session, state, changed)
            elif self._loads_rows:
                self._refresh(session, state, changed, FILL_SECONDS)
            self._loads_rows = True
            if r.complete:
                if r.priorities is None and "priority" in (plan.request.fields or ()):
                    load_priorities(self._store, session, r, state)
                self._limit_chunk_cache(plan, state)
            batch = plan.draw(Context(rng, empty, Snapshot(session, state)))
            if plan.unit_type not in self._advised:
                self._advise(plan, batch, session)
            return batch

    def _advise(self, plan: SamplePlan, batch: Batch, session: Session) -> None:
        """Warn at the first batch of a unit about data that a learner probably cannot use."""
        is_first = not self._advised
        self._advised.add(plan.unit_type)
        if is_first and plan.request.fields is None:  # else the caller knows the types
            warn_of_equal_lists(batch, self._store.fields.types)
        if plan.request.unit.makes_transitions and plan.request.key is None:
            warn_of_ends(self._store, session)

    def _save_for(self, plan: SamplePlan) -> None:
        """Write changed priorities: now if the plan reads stored priorities, else when due."""
        fields = plan.request.fields or ()
        asks = self.resident.priorities is None and "priority" in fields
        self._unsaved.save(0.0 if plan.request.asks_database or asks else SAVE_SECONDS)

    def _prepare_plan(
        self, session: Session, plan: SamplePlan, changed: object, may_be_empty: bool = False
    ) -> Snapshot:
        """Update the rows, prepare the chunk cache for a plan, and return the snapshot."""
        state = self._store.state(session)
        if state.size or not may_be_empty:
            self._refresh(session, state, changed)
            self._limit_chunk_cache(plan, state)
        return Snapshot(session, state)

    def _limit_chunk_cache(self, plan: SamplePlan, state: State) -> None:
        """Limit the chunk cache to the memory that is left, if the plan reads chunks."""
        r = self.resident
        # Check the size before `plan.keys`, which fails for fields that are not stored yet.
        check_size(state.size, 1, plan.request.unit.what, replace=True)
        if not plan.keys.in_memory:
            self._gatherer.cache.evict(r.low)
            used = self._nbytes + r.arrays.nbytes
            self._gatherer.cache.limit = max(0, self._budget.bytes_left_for(r) - used)

    def _refresh(
        self, session: Session, state: State, changed: object, seconds: float | None = None
    ) -> None:
        self._store.commit_queue.is_accepting = self._loads_rows or seconds is None
        try:
            refresh(self._store, session, self.resident, state, seconds)
        except BaseException:
            self.resident.forget()  # the rows may be inconsistent
            raise
        if changed is not None and self.resident.complete:
            self._seen = changed

    def _look_for_changes(self) -> object | None:
        """Apply the commits of this process; return the result of `Engine.changed_since`."""
        store = self._store
        if store.commit_queue.queued:
            self._apply_commits(store.commit_queue.take_all())
        return store.engine.changed_since(self._seen)

    def _apply_commits(self, commits: list[Commit]) -> None:
        r, advanced = self.resident, self._store.engine.version_after_commit
        for commit in commits:
            if commit.first < r.high:
                continue  # already read by a refresh
            if not apply_commit(r, commit, self._store):
                self._seen = None  # read the remaining steps from the database
                break
            if commit.commit_versions is not None:
                self._seen = advanced(self._seen, commit.commit_versions) or self._seen

    @_under_lock
    def revision(self) -> int:
        """Return the revision of the buffer, from memory if the rows are loaded and current."""
        if self._look_for_changes() is None and self.resident.complete:
            return self.resident.revision
        with self._store.engine.reading() as session:
            return self._store.state(session).revision

    @_under_lock
    def load(self) -> None:
        """Load the rows into memory, for a caller that will need them while it holds a lock."""
        self._load()

    def _load(self) -> None:
        changed = self._look_for_changes()
        if changed is not None or not self.resident.complete:
            with self._store.engine.reading() as session:
                self._refresh(session, self._store.state(session), changed)

    # -- priorities --------------------------------------------------------------------------------

    @_under_lock
    def update_priorities(self, positions: np.ndarray, values: np.ndarray) -> int:
        """Set the priority of steps; return the number of updates of stored steps."""
        r, store = self.resident, self._store
        if r.priorities is not None:
            if store.engine.read_only:
                raise errors.DatabaseReadOnly(
                    f"{store.engine.location} was opened with read_only=True; open it without "
                    "read_only to write"
                )
            self._load()
        # This process does not draw by priority, or the rows were discarded.
        if r.priorities is None or not self._priority_trees.is_used:
            self._unsaved.save_kept()  # older updates must be written first
            return priorities.update(store, positions, values)
        return self._priority_trees.update(positions, values)

    def save(self, wait: bool = False) -> None:
        """Write the priorities that have changed.

        If another process is writing, wait for it if `wait` is True; otherwise return without
        writing.
        """
        self._unsaved.save(wait=wait)

    @_under_lock
    def state(self) -> dict[str, Any]:
        """Return priorities and call counts as plain JSON values."""
        return self._priority_trees.state()

    def restore(self, state: Mapping[str, Any]) -> np.random.Generator:
        """Restore priorities and call counts from `sampling_state`; return the generator.

        If the state is invalid, raise InvalidValue and change nothing.
        """
        try:
            generator, saved = parse_state(state, self._store.name)
            self._restore(saved)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise errors.InvalidValue(
                f"state is invalid ({error!r}); pass the result of sampling_state() of this buffer"
            ) from error
        return generator

    @_under_lock
    def _restore(self, saved: SavedState) -> None:
        if not saved.has_priorities:
            self._priority_trees.restore(saved, None)
            return
        changed = self._look_for_changes()
        with self._store.engine.reading() as session:
            self._refresh(session, self._store.state(session), changed)
            self._priority_trees.restore(saved, session)
