"""Batches for the learners of a consumer: handed out, acknowledged, given back.

Each of these is one transaction that holds the consumer's row. A lease is drawn in it, so that what
it draws is what nobody else holds; the rows are read before.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import itertools
import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from expdb import errors
from expdb.batch import Batch
from expdb.locks import locked
from expdb.memory.usage import Usage
from expdb.processes import has_ended, this_process
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sampling.candidates import Limits
from expdb.sampling.sampler import Sampling
from expdb.sql.query import QueryBuilder, Where
from expdb.sql.session import Session
from expdb.storage.ledger import leases
from expdb.storage.ledger.consumers import ConsumerRecord, find_consumer, unknown_consumer
from expdb.storage.ledger.leases import Counters, NewLease
from expdb.storage.ledger.packed import Drawn, described
from expdb.storage.store import Store


@dataclass(frozen=True)
class Request:
    """What a lease asks for."""

    size: int
    at_least: int
    where: Where
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]

    def as_text(self, drawn: Drawn) -> str:
        """Return what the ledger says of it."""
        where = self.where.build() if isinstance(self.where, QueryBuilder) else self.where
        said = {
            "unit": _settings(self.unit),
            "sampler": _settings(self.sampler),
            "where": where,
            "fields": self.fields,
            "columns": described(drawn.columns),
        }
        return json.dumps(said, default=_plain)


def _settings(one: Sampler | Unit) -> dict[str, Any]:
    name = type(one).__name__ if one.is_trusted else f"{type(one).__module__}.{type(one).__name__}"
    return {"name": name, **(asdict(one) if is_dataclass(one) else {})}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


@dataclass(frozen=True)
class Leased:
    """A batch that was handed out."""

    id: int
    number: int
    batch: Batch


_serials = itertools.count()

LOOK_SECONDS = 1.0  # between looks whether a process that holds a lease is there still


class Leasing:
    """The leases of one consumer, as a process makes them. Threads may share it."""

    def __init__(self, store: Store, sampling: Sampling, consumer: ConsumerRecord):
        self._store, self._sampling, self._consumer = store, sampling, consumer
        settings = consumer.settings
        began = consumer.began if settings.new_only else 0
        self._usage = Usage(settings.max_times_sampled, began)
        self._serial = next(_serials)
        self._given: set[int] = set()  # leases that a caller got
        self._requests: set[str] = set()  # that are stored
        self._ended: set[str] = set()  # processes
        self._looked: dict[str, float] = {}  # when a process is to be looked for again
        self._lock = threading.RLock()

    def record(self) -> ConsumerRecord:
        """Return the consumer as it is stored now."""
        with self._store.engine.reading() as session:
            found = find_consumer(session, self._store, self._consumer.name)
            if found is None:
                raise unknown_consumer(session, self._store, self._consumer.name)
            return found

    def lease(self, request: Request, seconds: float) -> Leased:
        """Draw a batch that nobody else holds, and record it; raise TooFewRows where none is."""
        return locked(self._lock, self._lease, request, seconds)

    def _lease(self, request: Request, seconds: float) -> Leased:
        store, consumer = self._store, self._consumer
        self._sampling.load()
        if request.sampler.asks_database:
            self._sampling.save()
        while True:
            with store.engine.writing() as session:
                counters = leases.hold(session, store, consumer)
                self._follow(session, counters)
                overdue = self._overdue(counters.now)
                if not overdue:
                    batch, new, text = self._draw(request, counters.now + seconds)
                    if text not in self._requests:
                        leases.insert_request(session, store, new.request, text)
                    leases.insert(session, store, consumer, counters, new)
                    break
                leases.give_back(session, store, consumer, overdue, counters.now)
        self._requests.add(text)
        made = counters.handed_out
        lease = leases.Lease(made, new.number, "leased", new.holder, new.expires, new.drawn)
        self._take_in(lease, counters)
        self._given.add(made)
        return Leased(made, new.number, batch)

    @property
    def _holder(self) -> str:
        return f"{this_process()} {self._serial}"

    def _take_in(self, lease: leases.Lease, counters: Counters) -> None:
        """Take in what this process has changed, if it knows all that came before."""
        if self._usage.version == counters.version:
            self._usage.take_in(lease)
            self._usage.version += 1

    def _draw(self, request: Request, expires: float) -> tuple[Batch, NewLease, str]:
        """Draw the next batch; return it, its row of the ledger, and what was asked for."""
        usage, settings = self._usage, self._consumer.settings
        number = usage.next_number
        rng, layout_rng = (generator(settings.seed, number, part) for part in (0, 1))
        limits = Limits(self._consumer.name, usage, settings.min_size, request.at_least, layout_rng)
        try:
            batch = self._sampling.sample(
                request.size, request.where, request.sampler, request.unit, request.fields, None,
                rng, request.empty, limits,
            )  # fmt: skip
        except errors.TooFewRows as error:
            raise errors.TooFewRows(f"{error}{self._explained()}") from None
        drawn, repeated = limits.drawn, usage.returned.get(number)
        assert drawn is not None
        text = request.as_text(drawn)
        new = NewLease(
            number,
            None if repeated is None else repeated.id,
            leases.request_id(text),
            self._holder,
            expires,
            checksum(batch, self._store),
            drawn,
        )
        return batch, new, text

    def acknowledge(self, lease: int, step: int | None) -> None:
        """Have a batch count as trained on, for ever; raise LeaseLost where it is not held."""
        locked(self._lock, self._acknowledge, lease, step)

    def _acknowledge(self, id: int, step: int | None) -> None:
        store, consumer = self._store, self._consumer
        with store.engine.writing() as session:
            counters = leases.hold(session, store, consumer)
            if not leases.acknowledge(session, store, consumer, id, counters.now, step):
                raise self._lost(session, id, counters.now)
        self._changed(id, counters, status="acknowledged")

    def renew(self, lease: int, seconds: float) -> None:
        """Have a lease expire so many seconds from now; raise LeaseLost where it is not held."""
        locked(self._lock, self._renew, lease, seconds)

    def _renew(self, id: int, seconds: float) -> None:
        store, consumer = self._store, self._consumer
        with store.engine.writing() as session:
            counters = leases.hold(session, store, consumer)
            if not leases.renew(session, store, consumer, id, counters.now, seconds):
                raise self._lost(session, id, counters.now)
        self._changed(id, counters, expires=counters.now + seconds)

    def give_back(self, lease: int) -> bool:
        """Have a batch drawn again; return whether it was held still."""
        return locked(self._lock, self._give_back, lease)

    def _give_back(self, id: int) -> bool:
        store, consumer = self._store, self._consumer
        with store.engine.writing() as session:
            counters = leases.hold(session, store, consumer)
            found = leases.give_back(session, store, consumer, [id], counters.now)
        if found:
            self._changed(id, counters, status="returned")
        return bool(found)

    def _changed(self, id: int, counters: Counters, **what: Any) -> None:
        lease = self._usage.held.get(id)
        if lease is not None:
            self._take_in(replace(lease, **what), counters)

    def _explained(self) -> str:
        """Return what the consumer has to do with there being too little."""
        held, most = len(self._usage.held), self._usage.most
        said = [f"{held} leases hold what they hold"] if held else []
        said += [f"each may be handed out {most} times"] if most is not None else []
        said += ["only what was stored since it was made counts"] * self._consumer.settings.new_only
        return f" (consumer {self._consumer.name!r}: {', '.join(said)})" if said else ""

    def _lost(self, session: Session, lease: int, now: float) -> errors.LeaseLost:
        """Return the error for a lease that is not held."""
        status, expires = leases.status(session, self._store, self._consumer, lease)
        what = f"lease {lease} of consumer {self._consumer.name!r}"
        if status == "acknowledged":
            return errors.LeaseLost(f"{what} was acknowledged already: do it once")
        if status == "leased" or expires <= now:
            return errors.LeaseLost(
                f"{what} expired {now - expires:.1f} seconds ago, and its rows may be drawn "
                "again: lease with more seconds, or with renew=True"
            )
        return errors.LeaseLost(f"{what} was given back: lease another batch")

    # -- what others do --------------------------------------------------------------------------

    def _follow(self, session: Session, counters: Counters) -> None:
        """Know what others have leased, acknowledged and given back."""
        usage, store, consumer = self._usage, self._store, self._consumer
        if usage.version == counters.version:
            return
        try:
            if usage.version < 0:
                self._load(session, counters)
            else:
                known = usage.held
                for lease in leases.changed(session, store, consumer, usage.last, known):
                    usage.take_in(lease)
        except BaseException:
            usage.forget()
            raise
        usage.version = counters.version

    def _load(self, session: Session, counters: Counters) -> None:
        """Read the ledger, as far as it tells of what is held."""
        usage, store, consumer = self._usage, self._store, self._consumer
        usage.begin_at(store.state(session).oldest)
        if usage.most is not None:
            oldest = store.state(session).oldest
            for lease in leases.acknowledged(session, store, consumer, oldest):
                usage.take_in(lease)
        for lease in leases.open_leases(session, store, consumer):
            usage.take_in(lease)
        usage.last, usage.begun = counters.handed_out - 1, counters.begun

    def _overdue(self, now: float) -> list[int]:
        """Return the leases that have expired, or that nobody can acknowledge any more."""
        clock, mine, found = time.monotonic(), self._holder, []
        for lease in self._usage.held.values():
            if lease.expires <= now:
                found.append(lease.id)
            elif lease.holder == mine:
                if lease.id not in self._given:  # an interrupt came before the caller had it
                    found.append(lease.id)
            else:
                if clock >= self._looked.get(lease.holder, clock):
                    self._looked[lease.holder] = clock + LOOK_SECONDS
                    if has_ended(lease.holder):
                        self._ended.add(lease.holder)
                if lease.holder in self._ended:
                    found.append(lease.id)
        return found


def generator(seed: int, number: int, part: int) -> np.random.Generator:
    """Return the generator of a batch: the same whoever draws it, and whenever.

    Counter-based (Philox: Salmon et al. 2011, doi:10.1145/2063384.2063405), so that one seed gives
    as many that do not meet as there are batches.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, number, part]))


def checksum(batch: Batch, store: Store) -> int:
    """Return a checksum of what may change in a batch; its fields never do."""
    fields, crc = store.fields.types, 0
    for name, array in batch.items():
        if name.removeprefix("next_").removeprefix("has_") not in fields:
            for part in array if array.dtype == object else (array,):
                crc = zlib.crc32(part.tobytes() if isinstance(part, np.ndarray) else b"", crc)
    return crc
