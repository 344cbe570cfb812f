"""Lease, acknowledge, renew and release the batches of a consumer.

Each operation is one transaction that locks the consumer's row. A batch is drawn within this
transaction, so no other lease holds its items. The rows in memory are loaded before the
transaction.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.consumers.replaying import Units, shared
from expdb.consumers.waiting import ConsumerWatch, Glance
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
from expdb.sampling.sample_plan import Recorded, SamplePlan
from expdb.sql.engine import Attempts
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.activity import JUDGE, LEARNER
from expdb.storage.ledger import leases
from expdb.storage.ledger.consumers import (
    ConsumerRecord,
    find_consumer,
    parse_versions,
    unknown_consumer,
)
from expdb.storage.ledger.encoding import LeasedItems, describe_columns
from expdb.storage.ledger.leases import Counters, NewLease
from expdb.storage.ledger.pins import settle_pins
from expdb.storage.ledger.rates import check_sample, count_samples
from expdb.storage.ledger.rewinding import Returned, rewind
from expdb.storage.ledger.waiters import Waiter
from expdb.storage.reading import fetch
from expdb.storage.reading.chunk_values import Empty
from expdb.storage.scores.recording import Recording
from expdb.storage.scores.requested import NewScore
from expdb.storage.store import Store


@dataclass(frozen=True)
class LeaseRequest:
    """The checked arguments of `Consumer.lease` that determine a batch."""

    size: int
    at_least: int
    where: Where
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    empty: Empty
    pin: bool = False  # whether the buffer keeps the leased steps beyond its capacity
    discards: bool = False  # whether the batch is used up without training
    ranks: tuple[int, int] | None = None  # number of ranks that share the batch, rows_multiple

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A cache key; `have_same_settings` compares requests with equal keys."""
        query = json.dumps(describe_query(self.where), default=repr)
        return repr(self.sampler), repr(self.unit), self.fields, query, self.discards, self.ranks


class _Overtaken(Exception):
    """A step of the batch was evicted before it could be pinned."""


@dataclass(frozen=True)
class DrawnLease:
    """A batch and the numbers of its lease."""

    id: int
    number: int
    batch: Batch


# The lease, the consumer's version before the lease, the id of the request, and the batch.
_CommittedLease = tuple[leases.LeaseRow, int, int, Batch]

_serials = itertools.count()

ACKNOWLEDGED = "acknowledged"
ATTEMPTS = 100  # maximum draws for one batch, if the unit drops every drawn item


class ConsumerLedger:
    """Make and end the leases of one consumer in one process. Threads may share it."""

    def __init__(self, store: Store, sampling: SampleEngine, consumer: ConsumerRecord):
        self._store, self._sampling, self._consumer = store, sampling, consumer
        settings = consumer.settings
        began = consumer.began if settings.new_only else 0
        self._usage = Usage(settings.max_times_sampled, began)
        self._random, self._layout_random = Philox(settings.seed, 0), Philox(settings.seed, 1)
        self._serial = next(_serials)
        self._issued: set[int] = set()  # ids of the leases that were returned to a caller
        self._pinning: set[int] = set()  # ids of the leases in `_issued` that pin steps
        # Sampler, unit and id of each known request, by its key and the sampler's columns.
        self._requests: dict[Any, tuple[Sampler, Unit, int]] = {}
        self._stored: set[int] = set()  # ids of requests that the database has
        self._leases_episodes: set[bool] = set()  # leased kinds: True is whole episodes
        self._others = ProcessLiveness()
        self._lock = threading.RLock()
        self._watch = ConsumerWatch(store, consumer)
        self._plans: dict[Any, SamplePlan] = {}  # by the arguments of `SampleEngine._plan`

    @property
    def store(self) -> Store:
        """The rows and chunks of the buffer."""
        return self._store

    def record(self) -> ConsumerRecord:
        """Return the stored settings and counters of the consumer."""
        return self._store.engine.retry(self._record)

    def _record(self) -> ConsumerRecord:
        with self._store.engine.reading() as session:
            record = find_consumer(self._store, session, self._consumer.name)
            if record is None:
                raise unknown_consumer(self._store, session, self._consumer.name)
            return record

    def left(self, positions: np.ndarray) -> np.ndarray:
        """Return how often the step at each position may be leased now."""
        settings = self._consumer.settings
        usage = Usage(settings.max_times_sampled, self._consumer.began if settings.new_only else 0)
        with self._store.engine.reading() as session:
            record = find_consumer(self._store, session, self._consumer.name)
            if record is None:
                raise unknown_consumer(self._store, session, self._consumer.name)
            version, leased, begun = record.version, record.handed_out, record.begun
            counters = Counters(version, leased, begun, 0.0, None, None, record.rewinds, None)
            follow(usage, self._store, session, self._consumer, counters)
        return usage.left(positions)

    def reset_after_fork(self) -> None:
        """Reset the state in a forked child; the leases belong to the parent."""
        self._lock = threading.RLock()
        self._serial, self._issued = next(_serials), set()
        self._watch.reset_after_fork()
        self._usage.forget()

    @property
    def name(self) -> str:
        """The name of the consumer, a str."""
        return self._consumer.name

    @property
    def nbytes(self) -> int:
        """Size of the usage counts in memory, in bytes."""
        return self._usage.nbytes

    # -- leases ----------------------------------------------------------------------------------

    def lease(
        self, request: LeaseRequest, seconds: float, done: tuple[int, int | None] | None = None
    ) -> DrawnLease | None:
        """Draw a batch of items that are not leased, and record its lease.

        `done` is the id and the trainer step of a lease to acknowledge in the same transaction.
        Raise LeaseLost, and draw nothing, if that lease is not held. Raise TooFewRows if there are
        too few items. Return None if the transaction released overdue leases instead of drawing.
        """
        return locked(self._lock, self._lease, request, seconds, done)

    def _lease(
        self, request: LeaseRequest, seconds: float, done: tuple[int, int | None] | None
    ) -> DrawnLease | None:
        self._warn_of_mixed_units(request.unit.by_episode)
        if not self._sampling.resident.complete:
            self._sampling.load()
        if request.sampler.asks_database:
            self._sampling.save()
        try:
            while True:
                try:
                    made = self._in_transaction(request, seconds, done)
                except _Overtaken:
                    self._usage.forget()
                    self._sampling.load()
                    continue
                break
        except BaseException:
            if done is not None:  # it is unknown whether `done` was acknowledged
                self._usage.forget()
            raise
        if done is not None:
            self._forget_given(done[0])
            self._store.activity.add(LEARNER, leases_acknowledged=1)
        if made is None:
            return None
        if isinstance(made, errors.TooFewRows):
            raise made
        lease, version, request_id, batch = made
        self._stored.add(request_id)
        self._leases_episodes.add(request.unit.by_episode)
        self._take_in(lease, version)
        resident = self._sampling.resident
        locked(resident.lock, self._usage.compact, resident)
        self._issued.add(lease.id)
        self._store.activity.add(LEARNER, leases=1, items_leased=len(lease.drawn.items))
        if request.pin:
            self._pinning.add(lease.id)
        return DrawnLease(lease.id, lease.number, batch)

    def _warn_of_mixed_units(self, by_episode: bool) -> None:
        """Warn once if this consumer leases episodes and steps, which it counts separately."""
        if self._consumer.settings.max_times_sampled and self._leases_episodes == {not by_episode}:
            errors.warn(
                f"consumer {self.name!r} leases both whole episodes and single steps, but "
                "max_times_sampled counts the lease of an episode only for its first step; use "
                "one consumer for episodes and another consumer for steps"
            )

    def _in_transaction(
        self, request: LeaseRequest, seconds: float, done: tuple[int, int | None] | None
    ) -> _CommittedLease | errors.TooFewRows | None:
        """Acknowledge `done`, then lease a batch, or release overdue leases and return None."""
        with self._store.engine.writing(outlives=done is not None) as session:
            if done is None:
                counters = leases.hold(self._store, session, self._consumer)
                follow(self._usage, self._store, session, self._consumer, counters)
            else:
                counters = self._acknowledge_first(session, *done)
            overdue = self._overdue(counters.now)
            if overdue:
                leases.release(self._store, session, self._consumer, overdue, counters.now)
                return None
            return self._draw_and_record(session, counters, request, seconds, done is not None)

    def waiter(self) -> Waiter:
        """Return a context that shows other processes that a learner waits for a lease."""
        return Waiter(self._store, LEARNER)

    def wait_for_change(
        self, seen: Glance | None, deadline: float, cancelled: threading.Event | None
    ) -> Glance:
        """Wait until the counters of the consumer differ from `seen`."""
        return self._watch.wait(seen, deadline, cancelled)

    def _acknowledge_first(self, session: Session, id: int, step: int | None) -> Counters:
        """Acknowledge a lease in an open transaction and return the updated counters."""
        asked = self._store, session, self._consumer
        if self._store.dialect.ACKNOWLEDGE is not None and id not in self._pinning:
            counters, version = leases.hold_and_acknowledge(*asked, id, self._holder, step)
        else:
            counters = leases.hold(*asked)
            version = leases.acknowledge(*asked, id, self._holder, step)
        if version is None:
            raise leases.lost(*asked, id)
        follow(self._usage, *asked, counters)
        lease = self._usage.held.get(id)
        if lease is not None:  # else `follow` has already read the acknowledgement
            self._usage.take_in(replace(lease, status=ACKNOWLEDGED))
        self._usage.version = version
        return replace(counters, version=version)

    def _draw_and_record(
        self,
        session: Session,
        counters: Counters,
        request: LeaseRequest,
        seconds: float,
        goes_on: bool,
    ) -> _CommittedLease | errors.TooFewRows:
        """Draw a batch and record it.

        If there are too few items, raise TooFewRows, or return the error if the transaction
        `goes_on`.
        """
        if counters.rate_limiter is not None and self._usage.next_number == self._usage.begun:
            check_sample(self._store, counters.rate_limiter, request.at_least)
        try:
            batch, new, text = self._draw(session, request, counters, seconds)
            if counters.rate_limiter is not None:
                before = self._usage.returned.get(new.number)  # already counted
                count = len(new.drawn.items) - (0 if before is None else len(before.drawn.items))
                if count > 0:
                    count_samples(self._store, session, count)
        except errors.TooFewRows as error:
            if goes_on:
                return error
            raise
        if text is not None:
            leases.insert_request(self._store, session, new.request, text)
        leases.insert(self._store, session, self._consumer, counters, new)
        if new.pinned is not None and settle_pins(self._store, session) > new.pinned:
            raise _Overtaken
        lease = leases.LeaseRow(
            counters.handed_out,
            new.number,
            "leased",
            new.holder,
            new.expires,
            new.request,
            new.drawn,
        )
        return lease, counters.version, new.request, batch

    @property
    def _holder(self) -> str:
        return named(self._serial)

    def _forget_given(self, id: int) -> None:
        """Forget a lease whose end is committed."""
        self._issued.discard(id)
        self._pinning.discard(id)

    def _take_in(self, lease: leases.LeaseRow, version: int) -> None:
        """Apply this process's change to the usage counts, unless they lack earlier changes."""
        if lease.status != "leased":
            self._forget_given(lease.id)
        if self._usage.version == version:
            self._usage.take_in(lease)
            self._usage.version += 1

    def _draw(
        self, session: Session, request: LeaseRequest, counters: Counters, seconds: float
    ) -> tuple[Batch, NewLease, str | None]:
        """Draw the next batch.

        Return the batch, its row of the ledger, and the text of its request, or None if the request
        is already stored.
        """
        settings, oldest = self._consumer.settings, None
        oldest_of_agents: tuple[tuple[str, int], ...] = ()
        if settings.max_staleness is not None:
            versions = parse_versions(counters.policy_versions, self._store.name)
            oldest_of_agents = tuple(
                (agent, version - settings.max_staleness) for agent, version in versions.items()
            )
            if counters.policy_version is None and not versions:
                raise errors.InvalidValue(
                    f"consumer {self.name!r} has max_staleness={settings.max_staleness}, but "
                    f"buffer {self._store.name!r} has no policy_version; set "
                    "buffer.policy_version = 0, and increase it as you train"
                )
            if counters.policy_version is not None:
                oldest = counters.policy_version - settings.max_staleness
        limits = Limits(
            self.name, self._usage, settings.min_size, request.at_least, oldest,
            request.unit.by_episode, oldest_of_agents,
        )  # fmt: skip
        number = self._usage.next_number
        for attempt in range(ATTEMPTS):
            made = self._drawn(session, request, limits, number, attempt)
            if len(made.drawn.items):
                break
        else:
            raise errors.TooFewRows(
                f"the unit excluded every drawn item in {ATTEMPTS} attempts; use a unit that "
                f"excludes fewer items, or increase size{limits.explained(settings.new_only)}"
            )
        drawn = replace(made.drawn, attempt=attempt) if attempt else made.drawn
        repeated = self._usage.returned.get(number)
        id, text = self._request_id(request, drawn)
        new = NewLease(
            number,
            None if repeated is None else repeated.id,
            id,
            self._holder,
            counters.now + seconds,
            checksum(made.batch, self._store, made.rows_crc),
            drawn,
            made.least,
        )
        return made.batch, new, text

    def _drawn(
        self, session: Session, request: LeaseRequest, limits: Limits, number: int, attempt: int
    ) -> Recorded:
        """Draw the batch with a number; each attempt draws other items."""
        rng, layout_rng = (
            generator.of_batch(number, attempt) for generator in (self._random, self._layout_random)
        )
        asked = (
            request.size, request.where, request.sampler, request.unit, request.fields, None,
            limits, self._plans,
        )  # fmt: skip
        writes_alone = self._store.dialect.WRITES_ALONE
        try:
            return self._sampling.sample_for(
                asked, rng, layout_rng, number, request.empty, session if writes_alone else None,
                request.pin,
            )  # fmt: skip
        except errors.TooFewRows as error:
            explained = limits.explained(self._consumer.settings.new_only)
            raise errors.TooFewRows(f"{error}{explained}") from None

    def _request_id(self, request: LeaseRequest, drawn: LeasedItems) -> tuple[int, str | None]:
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
        id = leases.request_id(text)
        remember(self._requests, key, (request.sampler, request.unit, id))
        return id, None if id in self._stored else text

    def acknowledge(
        self, lease: int, step: int | None, scores: list[NewScore] | None = None
    ) -> None:
        """Acknowledge a lease and record scores; raise LeaseLost if the lease is not held."""
        attempts = self.attempts()
        becomes = {"status": ACKNOWLEDGED}
        is_alone = self._store.dialect.ACKNOWLEDGE is not None and lease not in self._pinning
        change: Callable[..., int | None]
        if scores:
            change = partial(_acknowledge_with_scores, scores)
        else:
            change = leases.acknowledge_at_once if is_alone else leases.acknowledge
        while True:
            try:
                locked(self._lock, self._change, lease, change, step, becomes)
                break
            except errors.ConnectionLost as error:
                if not attempts.again(error):
                    raise
                if self.is_acknowledged(lease):
                    break
        self._store.activity.add(LEARNER, leases_acknowledged=1)
        if scores:
            self._store.activity.add(JUDGE, scores=len(scores))
        self._store.report_if_due()

    def attempts(self) -> Attempts:
        """Return the pauses between attempts to reach a server that restarts."""
        return Attempts(self._store.engine.timeout)

    def is_acknowledged(self, lease: int) -> bool:
        """Return whether a lease is acknowledged; use it after a commit with unknown outcome."""
        return self._store.engine.retry(self._is_acknowledged, lease)

    def _is_acknowledged(self, lease: int) -> bool:
        with self._store.engine.reading() as session:
            status, _ = leases.status(self._store, session, self._consumer, lease)
            return bool(status == ACKNOWLEDGED)

    def rewind(self, step: int) -> tuple[dict[str, int], np.ndarray]:
        """Release the batches that were leased after a trainer step; see `Consumer.rewind`.

        Return the figures, and the positions of the items whose steps are evicted or deleted.
        """
        store, attempts = self._store, list[tuple[Returned, np.ndarray]]()

        def attempt() -> None:
            with store.engine.writing() as session:
                returned = rewind(store, session, self._consumer, step)
                if returned.leases or not attempts:  # an earlier attempt may have been committed
                    is_stored = fetch.alive(store, session, returned.positions)
                    attempts.append((returned, returned.positions[~is_stored]))

        store.engine.retry(locked, self._lock, attempt)
        (count, positions), gone = attempts[-1]
        return {"leases": count, "items": len(positions), "evicted": len(gone)}, gone

    def renew(self, lease: int, seconds: float) -> None:
        """Let a lease expire `seconds` from now; raise LeaseLost if it is not held."""
        self._store.engine.retry(locked, self._lock, self._change, lease, leases.renew, seconds, {})

    def _change(
        self, id: int, change: Callable[..., int | None], argument: Any, becomes: dict[str, Any]
    ) -> None:
        store, consumer = self._store, self._consumer
        with store.engine.writing() as session:
            version = change(store, session, consumer, id, self._holder, argument)
        if version is None:
            raise store.read(leases.lost, consumer, id)
        lease = self._usage.held.get(id)
        if lease is not None and becomes:
            self._take_in(replace(lease, **becomes), version - 1)

    def release(self, lease: int) -> bool:
        """Release a lease; return False if it had already ended."""
        return bool(self._store.engine.retry(locked, self._lock, self._give_back, lease))

    def _give_back(self, id: int) -> bool:
        store, consumer = self._store, self._consumer
        with store.engine.writing() as session:
            counters = leases.hold(store, session, consumer)
            was_released = leases.release(
                store, session, consumer, [id], counters.now, self._holder
            )
        lease = self._usage.held.get(id)
        if was_released and lease is not None:
            self._take_in(replace(lease, status="returned"), counters.version)
        return bool(was_released)

    def shared(self, id: int, units: Units) -> tuple[Batch, Unit, tuple[int, int] | None]:
        """Return the batch of a lease of any process, its unit, and its ranks."""
        asked = self._store, self._sampling, self._consumer, id, units
        return self._store.engine.retry(shared, *asked)

    # -- leases of other processes ---------------------------------------------------------------

    def _overdue(self, now: float) -> list[int]:
        """Return the ids of leases that have expired or that no process can acknowledge."""
        holder = self._holder
        return [
            lease.id
            for lease in self._usage.held.values()
            # An interrupt may come before a lease of this process is returned to its caller.
            if lease.expires <= now
            or (lease.holder == holder and lease.id not in self._issued)
            or (lease.holder != holder and self._others.has_ended(lease.holder))
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
    """Acknowledge a lease and record scores; return what `leases.acknowledge` returns."""
    version = leases.acknowledge(store, session, consumer, id, holder, step)
    if version is not None:
        session.require(store.dropped, store.dialect.LOCK, store.id)
        Recording(store, scores).record(session, skip_missing=True)
    return version


def follow(
    usage: Usage, store: Store, session: Session, consumer: ConsumerRecord, counters: Counters
) -> None:
    """Apply the ledger's changes since the last call to the usage counts."""
    if usage.version == counters.version:
        return
    try:
        if usage.version < 0 or usage.rewinds != counters.rewinds:
            _load(usage, store, session, consumer, counters)
        else:
            for lease in leases.changed(store, session, consumer, usage.last, usage.held):
                usage.take_in(lease)
    except BaseException:
        usage.forget()
        raise
    usage.version = counters.version


def _load(
    usage: Usage, store: Store, session: Session, consumer: ConsumerRecord, counters: Counters
) -> None:
    """Read the leases that affect which steps may be drawn."""
    oldest = store.state(session).oldest
    usage.begin_at(oldest)
    if usage.most is not None:
        for lease in leases.acknowledged(store, session, consumer, oldest):
            usage.take_in(lease)
    for lease in leases.open_leases(store, session, consumer):
        usage.take_in(lease)
    usage.last, usage.begun = counters.handed_out - 1, counters.begun
    usage.rewinds = counters.rewinds
