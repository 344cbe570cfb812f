"""What learners consume of a buffer: by whom, how often, how old, and how fast."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from expdb import checks, errors
from expdb.admission import Admission, admit, admit_async
from expdb.batch import Batch
from expdb.checks import KEEP, Keep
from expdb.consumer import Consumer
from expdb.names import nearest
from expdb.replay.rate_limiters import Pace, RateLimiter
from expdb.replay.samplers import Uniform
from expdb.replay.units import Unit
from expdb.sampling.leasing import Leasing
from expdb.sampling.replaying import replayed
from expdb.sampling.request import check_instances
from expdb.sampling.sampling import Sampling
from expdb.sql.engine import Engine, retry_on_restart
from expdb.storage.ledger import admissions, consumers, rates, waiters
from expdb.storage.store import Store


class Consumption:
    """The part of a `ReplayBuffer` that is about its consumers, rate limiter and pace."""

    def __init__(self, store: Store, sampling: Sampling):
        self._store, self._sampling = store, sampling
        # A `Leasing` lives as long as a `Consumer` refers to it. The latest ones live on, so that a
        # loop around `buffer.consumer(name).lease(...)` reads the ledger once.
        self._consumers: WeakValueDictionary[int, Leasing] = WeakValueDictionary()
        self._latest: deque[Leasing] = deque(maxlen=16)

    @property
    def _engine(self) -> Engine:
        return self._store.engine

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a misspelt setting, such as `buffer.policy_verison = 7`."""
        if not name.startswith("_") and not hasattr(type(self), name):
            settings = "policy_version", "rate_limiter", "pace", "eviction"
            raise AttributeError(
                f"a buffer has no {name!r}{nearest(name, settings) or ':'} settings are "
                f"{', '.join(settings)}"
            )
        super().__setattr__(name, value)

    @retry_on_restart
    def consumer(
        self,
        name: str,
        *,
        max_times_sampled: int | Keep | None = KEEP,
        max_staleness: int | Keep | None = KEEP,
        min_size: int | Keep = KEEP,
        new_only: bool | Keep = KEEP,
        seed: int | Keep = KEEP,
    ) -> Consumer:
        """Return the consumer of a name, made where there is none.

        It hands out batches to learners that share the work. `max_times_sampled` is how often a
        step, an episode or a group may be handed out at most, None for ever again. `max_staleness`
        is how far its `policy_version` may be behind that of the buffer, the oldest one of what is
        drawn whole, None for any. Nothing is handed out before the buffer holds `min_size` steps.
        With `new_only` it sees only what is stored after it was made. `seed` decides what is drawn.
        A setting that is left out stays as it is stored; raises ConsumerMismatch for one that is
        stored otherwise.
        """
        given = {
            "max_times_sampled": None
            if max_times_sampled is None
            else checks.kept(max_times_sampled, checks.whole, "max_times_sampled", 1),
            "max_staleness": None
            if max_staleness is None
            else checks.kept(max_staleness, checks.whole, "max_staleness", 0),
            "min_size": checks.kept(min_size, checks.whole, "min_size", 1),
            "new_only": checks.kept(new_only, checks.flag, "new_only"),
            "seed": checks.kept(seed, checks.whole, "seed", 0),
        }
        record = consumers.open_consumer(
            self._store,
            checks.name(name, "a consumer"),
            {key: value for key, value in given.items() if value is not KEEP},
            int(np.random.default_rng().integers(2**63)),
        )
        known = self._consumers.get(record.id)
        if known is None or known.name != record.name:
            known = self._consumers[record.id] = Leasing(self._store, self._sampling, record)
        if not self._latest or self._latest[-1] is not known:
            self._latest.append(known)
        return Consumer(known, record.name, self)

    @property
    @retry_on_restart
    def policy_version(self) -> int | None:
        """The version of the policy that is trained now; None before it was ever set.

        Consumers measure by it how stale experience is. It never goes back: setting a smaller one
        raises InvalidValue.
        """
        with self._store.engine.reading() as session:
            return consumers.policy_version(session, self._store)

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        wanted, in_doubt = checks.whole(version, "policy_version"), False

        def attempt() -> None:
            nonlocal in_doubt
            try:
                consumers.set_policy_version(self._store, wanted)
            except errors.CommitUnknown:
                in_doubt = True
                raise
            except errors.InvalidValue:
                if not in_doubt:  # else another process has set a later version since
                    raise

        self._engine.retry(attempt)

    @property
    @retry_on_restart
    def rate_limiter(self) -> RateLimiter | None:
        """How far writers and learners may be ahead of each other; None for any distance.

        Set `expdb.SampleToInsertRatio(...)`, `Queue(...)` or `MinSize(...)`, and it counts from
        then on, over all writers and the leases of all consumers. A write that it holds back waits
        up to the handle's `timeout`, and raises RateLimited then; a lease waits as its `wait` says.
        `sample` is not counted.
        """
        with self._store.engine.reading() as session:
            return rates.rate_limiter(session, self._store)[0]

    @rate_limiter.setter
    def rate_limiter(self, limiter: RateLimiter | None) -> None:
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise errors.InvalidValue(
                f"rate_limiter is {limiter!r}: give one such as expdb.Queue(1000), or None"
            )
        self._engine.retry(rates.set_rate_limiter, self._store, limiter)

    @property
    @retry_on_restart
    def pace(self) -> Pace | None:
        """How far actors may be ahead of the training; None for any distance.

        Set `expdb.Pace(max_staleness, groups_per_version)`, and `admit` holds new groups back that
        would be stale when they are trained on. It counts from the `policy_version` of then on, so
        that has to be set before. Another one that is set later goes on with what has begun.
        """
        with self._store.engine.reading() as session:
            return admissions.pace(session, self._store)[0]

    @pace.setter
    def pace(self, pace: Pace | None) -> None:
        if pace is not None and not isinstance(pace, Pace):
            raise errors.InvalidValue(f"pace is {pace!r}: give expdb.Pace(...), or None")
        self._engine.retry(admissions.set_pace, self._store, pace)

    def admit(
        self, *, wait: float | None = None, required: bool = True, seconds: float = 3600.0
    ) -> Admission | None:
        """Wait until a new group of episodes may begin, and return its admission.

        With a `pace`, a group is let in once it can be trained on before it is too stale; without
        one, at once. Use it with `with`: leaving the block finishes the group, an exception takes
        it back, so that another may begin in its place. So does the end of its process, or of its
        `seconds`. Raises RateLimited after `wait` seconds, never by default; with `required=False`
        it returns None then.

        >>> with buffer.admit() as group:  # doctest: +SKIP
        ...     for _ in range(8):
        ...         roll_out(buffer, policy_version=group.policy_version)
        """
        return admit(self._store, wait, required, seconds)

    async def admit_async(
        self, *, wait: float | None = None, required: bool = True, seconds: float = 3600.0
    ) -> Admission | None:
        """Do what `admit` does, while other tasks run."""
        return await admit_async(self._store, wait, required, seconds)

    @retry_on_restart
    def waiting(self) -> list[dict[str, Any]]:
        """Return the learners, writers and actors that have waited for more than a second.

        One dict for each: `who`, the process by machine and number; `seconds`; and `for`, what is
        missing. `db.doctor()` names them too.
        """
        return waiters.waiting(self._store)

    @retry_on_restart
    def consumers(self) -> list[str]:
        """Return the names of all consumers, oldest first."""
        with self._store.engine.reading() as session:
            return consumers.list_consumers(session, self._store)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer and its ledger; raise UnknownConsumer where there is none."""
        consumers.drop_consumer(self._store, checks.name(name, "a consumer"))

    def replay(
        self,
        consumer: str,
        steps: Iterable[int] | None = None,
        *,
        last: int | None = None,
        unit: Unit | None = None,
        units: Iterable[type[Unit]] = (),
    ) -> Iterator[Batch]:
        """Yield the batches again that a consumer's learners have acknowledged, as they were.

        In the order of their acknowledgement: those of the trainer's `steps`, the `last` so many,
        or all. Raises Evicted, which names the positions, if steps of a batch are gone, and
        ReplayMismatch if its rewards or episodes have changed since. Warns if no batch was
        acknowledged with any of the given `steps`.

        A unit of your own is found by its name if its module is imported, or its class is among
        `units`. `unit` replaces the units of all batches.

        >>> buffer.replay("trainer", units=[Pairs])  # doctest: +SKIP
        """
        if steps is not None and not isinstance(steps, Iterable):
            raise errors.InvalidValue(f"steps is {steps!r}: give several, such as range(900, 1000)")
        wanted = None if steps is None else {checks.whole(step, "step") for step in steps}
        newest = None if last is None else checks.whole(last, "last", 1)
        if unit is not None:
            check_instances(Uniform(), unit)
        classes = tuple(units) if isinstance(units, Iterable) else (units,)
        for kind in classes:
            if not isinstance(kind, type) or not issubclass(kind, Unit):
                raise errors.InvalidValue(f"units has {kind!r}: give classes, such as [Pairs]")
        consumer = checks.name(consumer, "a consumer")
        used = classes if unit is None else unit
        return self._engine.retry(
            replayed, self._store, self._sampling, consumer, wanted, newest, used
        )
