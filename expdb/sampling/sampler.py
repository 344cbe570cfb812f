"""A sample, step by step: storage finds and holds, replay chooses.

`ReplayBuffer` calls this to sample.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.locks import locked
from expdb.memory.budget import Budget
from expdb.memory.refresh import refresh
from expdb.memory.resident import Resident
from expdb.replay.population import check_size
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sampling.by_priority import ByPriority
from expdb.sampling.candidates import Candidates, Wanted
from expdb.sampling.collate import Collator
from expdb.sampling.extensions import check_sampler, check_unit
from expdb.sampling.limits import Limits
from expdb.sampling.making import BatchMaker
from expdb.sampling.prepared import PreparedSamples
from expdb.sampling.saved import Saved
from expdb.sampling.unloaded import drawn_unloaded, is_plain
from expdb.sql.query import QueryBuilder, Where, key_of, plain_where
from expdb.sql.session import Session
from expdb.storage import priorities
from expdb.storage.ledger.packed import Drawn
from expdb.storage.store import State, Store

Result = TypeVar("Result")


QUERIES = (dict, QueryBuilder)  # those that have a key, by which the same is known again
FILL_SECONDS = 0.01  # of loading at each sample that can do without what is not loaded yet


class Sampling:
    """What a process holds to sample one buffer.

    These are its rows in memory, and what was worked out from them.
    """

    def __init__(self, store: Store, budget: Budget):
        self._store, self._budget = store, budget
        self._held: threading.RLock | None = None  # by the thread that forks
        self.start_anew()

    def start_anew(self) -> None:
        """Hold nothing, as at the beginning."""
        self.resident = Resident(self._budget)
        self._candidates = Candidates(self._store, self.resident)
        self._by_priority = ByPriority(self._store, self.resident, self._candidates)
        self._collator = Collator(self._store, self.resident)
        self._maker = BatchMaker(self.resident, self._candidates, self._by_priority, self._collator)
        self._prepared = PreparedSamples(self.resident, self._candidates, self._maker)
        self._seen: object = None
        self._asked = False  # whether a sample was ever drawn

    # -- forks: a child goes on with the rows that its parent has in memory, of which it shares the

    def before_fork(self, deadline: float) -> None:
        """Wait until no thread is at the rows, or until `deadline` on the monotonic clock."""
        lock = self.resident.lock  # another thread may close the handle meanwhile
        got = lock.acquire(timeout=max(deadline - time.monotonic(), 0.0))
        self._held = lock if got else None

    def after_fork(self) -> None:
        """Go on, in the parent."""
        lock, self._held = self._held, None
        if lock is not None:
            lock.release()

    def forked(self) -> None:
        """Go on, in the child: with the same rows, unless a thread of the parent was at them."""
        if self._held is not self.resident.lock:
            self.start_anew()
            return
        self.resident.lock = threading.RLock()
        self._seen = None  # the child asks by connections of its own
        self._by_priority.forked()

    @property
    def nbytes(self) -> int:
        """Bytes of what is held in memory.

        It counts columns, links, sum trees, lists of positions, chunks, and the memory of batches.
        """
        return self._nbytes + self._collator.cache.nbytes + self.resident.arrays.nbytes

    @property
    def _nbytes(self) -> int:
        """Bytes beside the chunks, that the budget is for."""
        return self.resident.nbytes + self._by_priority.nbytes + self._candidates.nbytes

    def sample(
        self,
        size: int,
        where: Where,
        sampler: Sampler,
        unit: Unit,
        fields: tuple[str, ...] | None,
        shard: tuple[int, int] | None,
        rng: np.random.Generator,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray],
        limits: Limits | None = None,
        session: Session | None = None,
    ) -> Batch:
        """Draw a batch from what is stored at this moment, within the limits of a consumer.

        A session that is given sees one snapshot, and is asked in place of another one.
        """
        if not (sampler.is_trusted and unit.is_trusted):
            check_sampler(sampler, self._store.fields.types)
            check_unit(unit, sampler, self._store.fields.types)
        where = plain_where(where)
        key = None if where is None else key_of(where)
        condition = None if key is None else self._candidates.condition(key, where)
        wanted = Wanted(
            size, where, key, condition, sampler, unit, fields, shard, rng, empty, limits
        )
        with self.resident.lock: return self._safely(self._sample, wanted, session)  # fmt: skip

    def repeated(
        self,
        size: object,
        where: Where,
        sampler: object,
        unit: object,
        fields: object,
        rng: object,
    ) -> Batch | None:
        """Draw what was drawn before, in fewer calls, if nothing has changed that it depends on.

        None is for what was not, and for all that is to be checked first.
        """
        if type(size) is not int or size < 1 or type(rng) is not np.random.Generator:
            return None
        key = None if where is None else key_of(where) if type(where) in QUERIES else ""
        asked = size, key, sampler, unit, fields, rng
        with self.resident.lock: return self._safely(self._repeated, *asked)  # fmt: skip

    def _repeated(
        self,
        size: int,
        key: str | None,
        sampler: object,
        unit: object,
        fields: object,
        rng: np.random.Generator,
    ) -> Batch | None:
        prepared = self._prepared.find(key, sampler, unit, fields)
        if prepared is None:
            return None
        if self._by_priority.unsaved:
            self._by_priority.save_if_due()
        changed = self._store.engine.changed_since(self._seen)
        try:
            return prepared.sample(size, rng) if changed is None else None
        except errors.TooFewRows:
            return None  # the general way says why

    def _safely(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do something to the rows.

        Where an interrupt or a bug leaves it half done, the rows are forgotten and read again.
        """
        try:
            return work(*arguments)
        except errors.ExpDBError:
            raise
        except BaseException:
            self.resident.forget()
            raise

    def _sample(self, wanted: Wanted, session: Session | None) -> Batch:
        r, store = self.resident, self._store
        if session is not None:
            return self._sample_at(session, store.state(session), wanted, None)
        self._by_priority.save_if_due()
        asks = r.priorities is None and "priority" in (wanted.fields or ())
        if wanted.asks_database or asks:
            self._by_priority.save()
        if not self._asked and not r.complete and is_plain(wanted):
            with store.engine.reading() as session:
                return self._from_database(session, store.state(session), wanted, None)
        changed = store.engine.changed_since(self._seen)
        if changed is None and r.complete and r.size and self._candidates.are_current(wanted):
            plan = self._collator.plan(wanted.fields, wanted.unit, wanted.sampler)
            if plan.in_memory:
                self._prepared.add(wanted, plan)
                return self._maker.batch(None, None, wanted, plan)
        with store.engine.reading() as session:
            state = store.state(session)
            if not r.complete and is_plain(wanted):
                return self._from_database(session, state, wanted, changed)
            return self._sample_at(session, state, wanted, changed)

    def _sample_at(self, session: Session, state: State, wanted: Wanted, changed: object) -> Batch:
        """Draw a batch from what a session sees."""
        r, cache = self.resident, self._collator.cache
        self._refresh(session, state, changed)
        # Before fields are asked for that nobody has stored yet.
        check_size(state.size, 1, wanted.unit.what, replace=True)
        plan = self._collator.plan(wanted.fields, wanted.unit, wanted.sampler)
        if not plan.in_memory:
            cache.evict(r.low)
            cache.limit = max(0, self._budget.left_for(r) - self._nbytes)
        return self._maker.batch(session, state, wanted, plan)

    def _refresh(
        self, session: Session, state: State, changed: object, seconds: float | None = None
    ) -> None:
        try:
            refresh(self._store, session, self.resident, state, seconds)
        except BaseException:
            self.resident.forget()  # it may be half of something
            raise
        if changed is not None and self.resident.complete:
            self._seen = changed

    def _from_database(
        self, session: Session, state: State, wanted: Wanted, changed: object
    ) -> Batch:
        """Draw single steps without what is not loaded yet.

        From the second time on some of that is loaded each time.

        So nobody waits for a large file to be loaded, and a program that draws one sample does not
        pay for it.
        """
        if self._asked:
            self._refresh(session, state, changed, FILL_SECONDS)
        self._asked = True

        return drawn_unloaded(self._store, session, state, wanted)

    def load(self) -> None:
        """Have the rows in memory, so that nobody waits for that under a lock."""
        locked(self.resident.lock, self._safely, self._load)

    def _load(self) -> None:
        changed = self._store.engine.changed_since(self._seen)
        if changed is not None or not self.resident.complete:
            with self._store.engine.reading() as session:
                self._refresh(session, self._store.state(session), changed)

    def again(
        self,
        drawn: Drawn,
        unit: Unit,
        fields: tuple[str, ...] | None,
        rng: np.random.Generator,
    ) -> tuple[Batch, int]:
        """Return the batch of what was drawn before, and a checksum of the rows it is made of.

        Raise Evicted where some of what was drawn is gone.
        """
        made: tuple[Batch, int] = locked(
            self.resident.lock, self._safely, self._again, drawn, unit, fields, rng
        )
        return made

    def _again(
        self,
        drawn: Drawn,
        unit: Unit,
        fields: tuple[str, ...] | None,
        rng: np.random.Generator,
    ) -> tuple[Batch, int]:
        changed = self._store.engine.changed_since(self._seen)  # before what is read: else it
        with self._store.engine.reading() as session:  # may tell of later commits
            state = self._store.state(session)
            self._refresh(session, state, changed)
            return self._maker.again(session, state, drawn, unit, fields, rng)

    # -- priorities --------------------------------------------------------------------------------

    def update_priorities(self, positions: np.ndarray, values: np.ndarray) -> int:
        """Set the priority of steps and return how many of the updates met a step that is held."""
        update = self._update_priorities
        count: int = locked(self.resident.lock, self._safely, update, positions, values)
        return count

    def _update_priorities(self, positions: np.ndarray, values: np.ndarray) -> int:
        r, store = self.resident, self._store
        if r.priorities is not None:
            if store.engine.read_only:
                raise errors.DatabaseReadOnly(
                    f"{store.engine.location} was opened with read_only=True: open it without to "
                    "write"
                )
            changed = store.engine.changed_since(self._seen)
            if changed is not None:
                with store.engine.reading() as session:
                    self._refresh(session, store.state(session), changed)
        if r.priorities is None:  # nothing here draws by them, or the rows were forgotten
            self._by_priority.save_kept()  # those that are older
            return priorities.update(store, positions, values)
        return self._by_priority.update(positions, values)

    def save(self, wait: bool = False) -> None:
        """Write the priorities that have changed.

        It does not while somebody else writes, unless it is to `wait`.
        """
        self._by_priority.save(wait=wait)

    def state(self) -> dict[str, Any]:
        """Return priorities and call counts as plain JSON values."""
        return locked(self.resident.lock, self._safely, self._by_priority.state)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises KeyError, TypeError or ValueError, and changes nothing, where it is none.
        """
        saved = Saved.of(state)
        locked(self.resident.lock, self._safely, self._restore, saved)

    def _restore(self, saved: Saved) -> None:
        if not saved.has_priorities:
            self._by_priority.restore(saved, None)
            return
        changed = self._store.engine.changed_since(self._seen)
        with self._store.engine.reading() as session:
            self._refresh(session, self._store.state(session), changed)
            self._by_priority.restore(saved, session)
