"""Lease, acknowledge, renew and release the batches of a consumer.

Each operation is one transaction that locks the consumer's row. A batch is drawn within this
transaction, so no other lease holds its items. The rows in memory are loaded before the
transaction.
"""

from __future__ import annotations  # so that annotations do not import numpy.random

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.consumers.replaying import Units, shared
from expdb.consumers.waiting import ConsumerWatch, CounterSnapshot
from expdb.memory.usage import Usage
from expdb.process.liveness import ProcessLiveness, named
from expdb.process.locks import locked
from expdb.replay.samplers import Sampler
from expdb.replay.settings import have_same_settings
from expdb.replay.units import Unit
from expdb.sampling.candidates import remember
from expdb.sampling.checksums import checksum
from expdb.sampling.engine import SampleEngine
from expdb.sampling.philox import Philox
from expdb.sampling.request import Limits, as_text, describe_query
from expdb.sampling.sample_plan import RecordedBatch, SamplePlan
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.activity import JUDGE, LEARNER
from expdb.storage.ledger import lease_rows
from expdb.storage.ledger.consumers import (
    ConsumerRecord,
    parse_versions,
    require_consumer,
)
from expdb.storage.ledger.encoding import LeasedItems, describe_columns
from expdb.storage.ledger.lease_rows import Counters
from expdb.storage.ledger.pins import update_pins
from expdb.storage.ledger.rates import check_sample, count_samples
from expdb.storage.ledger.rewinding import ReleasedLeases, rewind
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.reading import fetch
from expdb.storage.reading.chunk_values import Empty
from expdb.storage.scores.recording import Recording
from expdb.storage.scores.requested import NewScore
from expdb.storage.store import Store

Result = TypeVar("Result")


@dataclass(frozen=True)
class BatchRequest:
    """The checked arguments of `Consumer.lease` that determine a batch."""

    size: int
    at_least: int
    where: Where
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    empty: Empty
    pin: bool = False  # whether the buffer keeps the leased steps beyond its capacity
    discards: bool = False  # whether the batch is discarded without training
    ranks: tuple[int, int] | None = None  # number of ranks that share the batch, rows_multiple

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A cache key; `have_same_settings` compares requests with equal keys."""
        query = json.dumps(describe_query(self.where), default=repr)
        return repr(self.sampler), repr(self.unit), self.fields, query, self.discards, self.ranks


@dataclass
class Acknowledgement:
    """A lease to acknowledge in the transaction of the next lease."""

    id: int
    step: int | None  # the trainer step
    end: Callable[[], None]  # marks the lease as ended in this process
    is_complete: bool = False

    def complete(self) -> None:
        """Record that the database has acknowledged the lease."""
        self.is_complete = True
        self.end()


class _EvictedBeforePin(Exception):
    """A step of the batch was evicted before it could be pinned."""


# The lease, the consumer's version before the lease, and the batch.
_CommittedLease = tuple[lease_rows.LeaseRow, int, Batch]

_serials = itertools.count()

ACKNOWLEDGED = "acknowledged"
ATTEMPTS = 100  # maximum draws for one batch, if the unit drops every drawn item


class ConsumerLedger:
    """Make and end the leases of one consumer in one process. Threads may share it."""

    def __init__(self, store: Store, sampling: SampleEngine, consumer: ConsumerRecord):
        self.store, self._sampling, self._consumer = store, sampling, consumer
        self.name = consumer.name
        settings = consumer.settings
        began = consumer.began if settings.new_only else 0
        self._usage = Usage(settings.max_times_sampled, began)
        self._random, self._layout_random = Philox(settings.seed, 0), Philox(settings.seed, 1)
        self._serial = next(_serials)
        self._delivered_lease_ids: set[int] = set()  # ids of the leases that a caller has received
        self._pinning: set[int] = set()  # ids of the delivered leases that pin steps
        # Sampler, unit and id of each known request, by its key and the sampler's columns.
        self._requests: dict[Any, tuple[Sampler, Unit, int]] = {}
        self._stored: set[int] = set()  # ids of requests that the database has
        self._leases_episodes: set[bool] = set()  # leased kinds: True is whole episodes
        self._liveness = ProcessLiveness()
        self._lock = threading.RLock()
        self._watch = ConsumerWatch(store, consumer)
        self._plans: dict[Any, SamplePlan] = {}  # by the arguments of `SampleEngine._plan`

    def record(self) -> ConsumerRecord:
        """Return the stored settings and counters of the consumer."""
        store = self.store
        record: ConsumerRecord = store.engine.retry(store.read, require_consumer, self.name)
        return record

    def left(self, positions: np.ndarray) -> np.ndarray:
        """Return how often the step at each position may be leased now."""
        settings = self._consumer.settings
        usage = Usage(settings.max_times_sampled, self._consumer.began if settings.new_only else 0)
        with self.store.engine.reading() as session:
            record = require_consumer(self.store, session, self.name)
            usage.follow(self.store, session, record, record)
        return usage.left(positions)

    def reset_after_fork(self) -> None:
        """Reset the state in a forked child; the leases belong to the parent."""
        self._lock = threading.RLock()
        self._serial, self._delivered_lease_ids = next(_serials), set()
        self._watch.reset_after_fork()
        self._usage.forget()

    @property
    def nbytes(self) -> int:
        """Size of the usage counts in memory, in bytes."""
        return self._usage.nbytes

    # -- leases ----------------------------------------------------------------------------------

    def lease(
        self, request: BatchRequest, seconds: float, acknowledgement: Acknowledgement | None = None
    ) -> tuple[lease_rows.LeaseRow, Batch]:
        """Draw a batch of items that are not leased, and record its lease.

        Unless `acknowledgement` is complete, the transaction also acknowledges its lease. Raise
        LeaseLost, and draw nothing, if that lease is no longer active. If there are too few items,
        acknowledge the lease and raise TooFewRows.
        """

        def attempt() -> tuple[lease_rows.LeaseRow, Batch] | None:
            return locked(self._lock, self._lease, request, seconds, acknowledgement)

        if acknowledgement is not None:
            attempt = self._repeatable(acknowledgement.id, attempt, acknowledgement.complete)
        while (leased := self.store.engine.retry(attempt)) is None:
            continue  # the transaction released overdue leases instead
        return leased

    def _lease(
        self, request: BatchRequest, seconds: float, acknowledgement: Acknowledgement | None
    ) -> tuple[lease_rows.LeaseRow, Batch] | None:
        if acknowledgement is not None and acknowledgement.is_complete:
            acknowledgement = None
        self._warn_of_mixed_units(request.unit.by_episode)
        if not self._sampling.resident.complete:
            self._sampling.load()
        if request.sampler.asks_database:
            self._sampling.save()
        try:
            while True:
                try:
                    result = self._in_transaction(request, seconds, acknowledgement)
                except _EvictedBeforePin:
                    self._usage.forget()
                    self._sampling.load()
                    continue
                break
        except BaseException:
            if acknowledgement is not None:  # it is unknown whether it was acknowledged
                self._usage.forget()
            raise
        if acknowledgement is not None:
            self._forget_lease(acknowledgement.id)
            self.store.activity.add(LEARNER, leases_acknowledged=1)
            acknowledgement.complete()
        if result is None:
            return None
        if isinstance(result, errors.TooFewRows):
            raise result
        lease, version, batch = result
        self._stored.add(lease.request)
        self._leases_episodes.add(request.unit.by_episode)
        self._apply_change(lease, version)
        resident = self._sampling.resident
        locked(resident.lock, self._usage.compact, resident)
        self._delivered_lease_ids.add(lease.id)
        self.store.activity.add(LEARNER, leases=1, items_leased=len(lease.drawn.items))
        if request.pin:
            self._pinning.add(lease.id)
        return lease, batch

    def _warn_of_mixed_units(self, by_episode: bool) -> None:
        """Warn once if this consumer leases episodes and steps, which it counts separately."""
        if self._consumer.settings.max_times_sampled and self._leases_episodes == {not by_episode}:
            errors.warn(
                f"consumer {self.name!r} leases both whole episodes and single steps, but "
                "max_times_sampled counts the lease of an episode only for its first step; use "
                "one consumer for episodes and another consumer for steps"
            )

    def _in_transaction(
        self, request: BatchRequest, seconds: float, acknowledgement: Acknowledgement | None
    ) -> _CommittedLease | errors.TooFewRows | None:
        """Acknowledge a lease, then lease a batch, or release overdue leases and return None."""
        acknowledges = acknowledgement is not None
        with self.store.engine.writing(outlives=acknowledges) as session:
            if acknowledgement is None:
                counters = lease_rows.lock_consumer(self.store, session, self._consumer)
                self._usage.follow(self.store, session, self._consumer, counters)
            else:
                counters = self._acknowledge_first(
                    session, acknowledgement.id, acknowledgement.step
                )
            overdue = self._overdue(counters.now)
            if overdue:
                lease_rows.release(self.store, session, self._consumer, overdue, counters.now)
                return None
            return self._draw_and_record(session, counters, request, seconds, acknowledges)

    def waiter(self) -> Waiter:
        """Return a context that shows other processes that a learner waits for a lease."""
        return Waiter(self.store, LEARNER)

    def wait_for_change(
        self, seen: CounterSnapshot | None, deadline: float, cancelled: threading.Event | None
    ) -> CounterSnapshot:
        """Wait until the counters of the consumer differ from `seen`."""
        return self._watch.wait(seen, deadline, cancelled)

    def _acknowledge_first(self, session: Session, id: int, step: int | None) -> Counters:
        """Acknowledge a lease in an open transaction and return the updated counters."""
        key = self.store, session, self._consumer
        if self.store.dialect.ACKNOWLEDGE is not None and id not in self._pinning:
            counters, version = lease_rows.lock_and_acknowledge(*key, id, self._holder, step)
        else:
            counters = lease_rows.lock_consumer(*key)
            version = lease_rows.acknowledge(*key, id, self._holder, step)
        if version is None:
            raise lease_rows.lost_error(*key, id)
        self._usage.follow(*key, counters)
        lease = self._usage.held.get(id)
        if lease is not None:  # else `follow` has already read the acknowledgement
            self._usage.apply(replace(lease, status=ACKNOWLEDGED))
        self._usage.version = version
        return replace(counters, version=version)

    def _draw_and_record(
        self,
        session: Session,
        counters: Counters,
        request: BatchRequest,
        seconds: float,
        has_acknowledged: bool,
    ) -> _CommittedLease | errors.TooFewRows:
        """Draw the next batch and record its lease.

        If there are too few items, raise TooFewRows. With `has_acknowledged`, return the error
        instead, so that the transaction commits the acknowledgement.
        """
        store, number = self.store, self._usage.next_number
        request = self._with_oldest_version(request, counters)
        released = self._usage.released.get(number)  # the released lease of the same batch
        if counters.rate_limiter is not None and number == self._usage.begun:
            check_sample(store, counters.rate_limiter, request.at_least)
        try:
            recorded, drawn = self._draw(session, request, counters, number)
            if counters.rate_limiter is not None:
                counted = 0 if released is None else len(released.drawn.items)
                if len(drawn.items) > counted:
                    count_samples(store, session, len(drawn.items) - counted)
        except errors.TooFewRows as error:
            if has_acknowledged:
                return error
            raise
        request_id, text = self._request_id(request, drawn)
        if text is not None:
            lease_rows.insert_request(store, session, request_id, text)
        expires = counters.now + seconds
        lease = lease_rows.LeaseRow(
            counters.handed_out, number, "leased", self._holder, expires, request_id, drawn
        )
        crc = checksum(recorded.batch, store, recorded.rows_crc)
        lease_rows.insert(
            store, session, self._consumer, counters, lease, released, crc, recorded.least
        )
        if recorded.least is not None and update_pins(store, session) > recorded.least:
            raise _EvictedBeforePin
        return lease, counters.version, recorded.batch

    @property
    def _holder(self) -> str:
        return named(self._serial)

    def _forget_lease(self, id: int) -> None:
        """Forget a lease whose end is committed."""
        self._delivered_lease_ids.discard(id)
        self._pinning.discard(id)

    def _apply_change(self, lease: lease_rows.LeaseRow, version: int) -> None:
        """Apply this process's change to the usage counts, unless they lack earlier changes."""
        if lease.status != "leased":
            self._forget_lease(lease.id)
        if self._usage.version == version:
            self._usage.apply(lease)
            self._usage.version += 1

    def _draw(
        self, session: Session, request: BatchRequest, counters: Counters, number: int
    ) -> tuple[RecordedBatch, LeasedItems]:
        """Draw the batch with a number; return it with its items."""
        settings, unit = self._consumer.settings, request.unit
        oldest, oldest_of_agents = self._find_oldest_versions(counters)
        if unit.stale == "keep":
            oldest, oldest_of_agents = None, ()
        limits = Limits(
            self.name, self._usage, settings.min_size, request.at_least, oldest, unit.by_episode,
            unit.stale == "mask_tokens", oldest_of_agents,
        )  # fmt: skip
        for attempt in range(ATTEMPTS):
            recorded = self._draw_attempt(session, request, limits, number, attempt)
            if len(recorded.drawn.items):
                break
        else:
            raise errors.TooFewRows(
                f"the unit excluded every drawn item in {ATTEMPTS} attempts; use a unit that "
                f"excludes fewer items, or increase size{limits.explained(settings.new_only)}"
            )
        drawn = recorded.drawn
        return recorded, replace(drawn, attempt=attempt) if attempt else drawn

    def _find_oldest_versions(
        self, counters: Counters
    ) -> tuple[int | None, tuple[tuple[str, int], ...]]:
        """Return the oldest policy version that is not too stale, and those of single agents."""
        settings = self._consumer.settings
        if settings.max_staleness is None:
            return None, ()
        versions = parse_versions(counters.policy_versions, self.store.name)
        oldest_of_agents = tuple(
            (agent, version - settings.max_staleness) for agent, version in versions.items()
        )
        if counters.policy_version is not None:
            return counters.policy_version - settings.max_staleness, oldest_of_agents
        if not versions:
            raise errors.InvalidValue(
                f"consumer {self.name!r} has max_staleness={settings.max_staleness}, but "
                f"buffer {self.store.name!r} has no policy_version; set "
                "buffer.policy_version = 0, and increase it as you train"
            )
        return None, oldest_of_agents

    def _with_oldest_version(self, request: BatchRequest, counters: Counters) -> BatchRequest:
        """Return the request with a unit that masks tokens of older policy versions."""
        unit: Any = request.unit
        if unit.stale != "mask_tokens":
            return request
        oldest, of_agents = self._find_oldest_versions(counters)
        if of_agents and unit.agent is None:
            raise errors.InvalidValue(
                "stale='mask_tokens' cannot compare the tokens of several agents that have policy "
                "versions of their own; also pass agent= to Tokens"
            )
        return replace(
            request, unit=replace(unit, oldest_version=dict(of_agents).get(unit.agent, oldest))
        )

    def _draw_attempt(
        self, session: Session, request: BatchRequest, limits: Limits, number: int, attempt: int
    ) -> RecordedBatch:
        """Draw the batch with a number; each attempt draws other items."""
        rng, layout_rng = (
            generator.of_batch(number, attempt) for generator in (self._random, self._layout_random)
        )
        arguments = (
            request.size, request.where, request.sampler, request.unit, request.fields, None,
            limits, self._plans,
        )  # fmt: skip
        snapshot = session if self.store.dialect.WRITES_ALONE else None
        try:
            return self._sampling.sample_for_consumer(
                arguments, rng, layout_rng, number, request.empty, snapshot, request.pin
            )
        except errors.TooFewRows as error:
            explained = limits.explained(self._consumer.settings.new_only)
            raise errors.TooFewRows(f"{error}{explained}") from None

    def _request_id(self, request: BatchRequest, drawn: LeasedItems) -> tuple[int, str | None]:
        """Return the id of a request, and its text, or None if the request is already stored."""
        columns = describe_columns(drawn)
        key = request.key, tuple((name, *kind) for name, kind in columns.items())
        cached = self._requests.get(key)
        if cached is not None:
            sampler, unit, id = cached
            is_same = have_same_settings(request.sampler, sampler)
            if id in self._stored and is_same and have_same_settings(request.unit, unit):
                return id, None
        text = as_text(
            request.where, request.sampler, request.unit, request.fields, columns,
            request.discards, request.ranks,
        )  # fmt: skip
        id = lease_rows.request_id(text)
        remember(self._requests, key, (request.sampler, request.unit, id))
        return id, None if id in self._stored else text

    def acknowledge(
        self, lease: int, step: int | None, scores: list[NewScore] | None = None
    ) -> None:
        """Acknowledge a lease and record scores; raise LeaseLost if the lease is not active."""
        fits_one_statement = (
            self.store.dialect.ACKNOWLEDGE is not None and lease not in self._pinning
        )
        change: Callable[..., int | None]
        if scores:
            change = partial(_acknowledge_with_scores, scores)
        else:
            change = (
                lease_rows.acknowledge_and_commit if fits_one_statement else lease_rows.acknowledge
            )

        arguments = lease, change, step, {"status": ACKNOWLEDGED}
        work = partial(locked, self._lock, self._change, *arguments)
        self.store.engine.retry(self._repeatable(lease, work))
        self.store.activity.add(LEARNER, leases_acknowledged=1)
        if scores:
            self.store.activity.add(JUDGE, scores=len(scores))
        self.store.report_if_due()

    def _repeatable(
        self, lease: int, work: Callable[[], Result], complete: Callable[[], None] | None = None
    ) -> Callable[[], Result | None]:
        """Return `work`, which acknowledges a lease, as a function that can be called again.

        If an earlier call has acknowledged the lease, the function calls `complete` and then
        `work`, or returns None without `complete`.
        """
        calls = itertools.count()

        def attempt() -> Result | None:
            is_retry = next(calls) > 0
            if is_retry and self._is_acknowledged(lease):
                if complete is None:
                    return None
                complete()
            try:
                return work()
            except errors.LeaseLost:
                # The server may have received the commit of an earlier call only now.
                if not is_retry or not self._is_acknowledged(lease):
                    raise
                return attempt()

        return attempt

    def _is_acknowledged(self, lease: int) -> bool:
        """Return whether a lease is acknowledged; use it after a commit with unknown outcome."""
        status, _ = self.store.read(lease_rows.status, self._consumer, lease)
        return bool(status == ACKNOWLEDGED)

    def rewind(self, step: int) -> tuple[dict[str, int], np.ndarray]:
        """Release the batches that were leased after a trainer step; see `Consumer.rewind`.

        Return the figures, and the positions of the items whose steps are evicted or deleted.
        """
        store, attempts = self.store, list[tuple[ReleasedLeases, np.ndarray]]()

        def attempt() -> None:
            with store.engine.writing() as session:
                released = rewind(store, session, self._consumer, step)
                if released.leases or not attempts:  # an earlier attempt may have been committed
                    is_stored = fetch.alive(store, session, released.positions)
                    attempts.append((released, released.positions[~is_stored]))

        store.engine.retry(locked, self._lock, attempt)
        (count, positions), gone = attempts[-1]
        return {"leases": count, "items": len(positions), "evicted": len(gone)}, gone

    def renew(self, lease: int, seconds: float) -> None:
        """Let a lease expire `seconds` from now; raise LeaseLost if it is not active."""
        self.store.engine.retry(
            locked, self._lock, self._change, lease, lease_rows.renew, seconds, {}
        )

    def _change(
        self,
        id: int,
        change: Callable[..., int | None],
        argument: Any,
        changed_values: dict[str, Any],
    ) -> None:
        store, consumer = self.store, self._consumer
        with store.engine.writing() as session:
            version = change(store, session, consumer, id, self._holder, argument)
        if version is None:
            raise store.read(lease_rows.lost_error, consumer, id)
        lease = self._usage.held.get(id)
        if lease is not None and changed_values:
            self._apply_change(replace(lease, **changed_values), version - 1)

    def release(self, lease: int) -> bool:
        """Release a lease; return False if it had already ended."""
        return bool(self.store.engine.retry(locked, self._lock, self._release, lease))

    def _release(self, id: int) -> bool:
        store, consumer = self.store, self._consumer
        with store.engine.writing() as session:
            counters = lease_rows.lock_consumer(store, session, consumer)
            was_released = lease_rows.release(
                store, session, consumer, [id], counters.now, self._holder
            )
        lease = self._usage.held.get(id)
        if was_released and lease is not None:
            self._apply_change(replace(lease, status="returned"), counters.version)
        return bool(was_released)

    def shared(self, id: int, units: Units) -> tuple[Batch, Unit, tuple[int, int] | None]:
        """Return the batch of a lease of any process, its unit, and its ranks."""
        store = self.store
        return store.engine.retry(shared, store, self._sampling, self._consumer, id, units)

    # -- leases of other processes ---------------------------------------------------------------

    def _overdue(self, now: float) -> list[int]:
        """Return the ids of leases that have expired or that no process can acknowledge."""
        holder = self._holder
        return [
            lease.id
            for lease in self._usage.held.values()
            # An interrupt may come before a lease of this process is returned to its caller.
            if lease.expires <= now
            or (lease.holder == holder and lease.id not in self._delivered_lease_ids)
            or (lease.holder != holder and self._liveness.has_ended(lease.holder))
        ]


def _acknowledge_with_scores(
    scores: list[NewScore],
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    id: int,
    holder: str,
    step: int | None,
) -> int | None:
    """Acknowledge a lease and record scores; return what `lease_rows.acknowledge` returns."""
    version = lease_rows.acknowledge(store, session, consumer, id, holder, step)
    if version is not None:
        session.require(store.dropped, store.dialect.LOCK, store.id)
        Recording(store, scores).record(session, skip_missing=True)
    return version
