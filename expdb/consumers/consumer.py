"""Consumer: batches for learners that share the work, each handed out to one of them."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.batch import Batch
from expdb.consumers.lease import GONE, Lease
from expdb.consumers.leasing import LeaseRequest, Leasing
from expdb.process.awaiting import in_thread, obtain
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.sequences import Group
from expdb.replay.units import Step, Unit
from expdb.sampling.request import check_empty, check_instances, field_names
from expdb.sql.query import Where


class Consumer:
    """Hand out batches to learners: each row to one of them at a time, as often as the limits say.

    Made by `buffer.consumer(name)`. Its settings and its progress are in the database: learners on
    any machine that open the consumer of this name share it, and go on where it was after a
    restart. Threads may share it.

    >>> consumer = buffer.consumer("trainer", max_times_sampled=1)  # doctest: +SKIP
    >>> with consumer.lease(64, step=100) as batch:  # doctest: +SKIP
    ...     train(batch)
    """

    def __init__(self, leasing: Leasing, name: str, buffer: Any):
        self._leasing, self.name, self._buffer = leasing, name, buffer

    def __reduce__(self) -> Any:
        return _reopened, (self._buffer, self.name)

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r}>"

    @property
    def last_step(self) -> int | None:
        """The trainer's step number of the latest acknowledgement, None before any had one."""
        return self._leasing.record().last_step

    def stats(self, *, unit: Group | None = None, where: Where = None) -> dict[str, Any]:
        """Return the settings and counters of the consumer, and counts of its groups.

        Parameters
        ----------
        unit : Group, optional
            Count the groups that this unit would draw.
        where : query, optional
            Count only the episodes that have a matching step.

        Returns
        -------
        dict
            `name`, `max_times_sampled`, `max_staleness`, `min_size`, the numbers of leases `leased`
            and `acknowledged`, and `last_step`. With `unit`, `groups` has the number of groups for
            each of `ready`, `leased` (now, or as often as `max_times_sampled` allows), `incomplete`
            (too few complete rollouts with a known return and without evicted steps), `no_spread`
            (the standard deviation of the returns is below `min_spread`) and `too_stale` (a rollout
            exceeds `max_staleness` or has no policy version).

        Examples
        --------
        >>> consumer.stats(unit=expdb.Group(8, min_spread=1e-6))["groups"]  # doctest: +SKIP
        {'ready': 12, 'leased': 2, 'incomplete': 3, 'no_spread': 40, 'too_stale': 0}
        """
        record = self._leasing.record()
        settings = record.settings
        figures = {
            "name": self.name, "max_times_sampled": settings.max_times_sampled,
            "max_staleness": settings.max_staleness, "min_size": settings.min_size,
            "leased": record.handed_out, "acknowledged": record.acknowledged,
            "last_step": record.last_step,
        }  # fmt: skip
        if unit is None:
            if where is not None:
                raise errors.InvalidValue("where selects groups; pass unit=expdb.Group(size), too")
            return figures
        if not isinstance(unit, Group):
            raise errors.InvalidValue(f"unit must be a Group, got {unit!r}; pass expdb.Group(size)")
        oldest = np.nan
        version = self._buffer.policy_version
        if settings.max_staleness is not None and version is not None:
            oldest = version - settings.max_staleness
        groups, returns, versions, ids, lengths = _rollouts(self._buffer.episodes(where))
        first_positions, stored_steps = _stored_parts(self._buffer, ids)
        returns[stored_steps < lengths] = np.nan  # partly evicted rollouts are not drawn
        left = self._leasing.left(first_positions)
        return figures | {"groups": unit.count(groups, returns, versions, left, oldest)}

    def lease(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        at_least: int | None = None,
        seconds: float = 300.0,
        step: int | None = None,
        wait: float | None = None,
        renew: bool = False,
        pin: bool = False,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty,
    ) -> Lease:
        """Draw `size` of what the unit draws, which no other learner of the consumer holds.

        The arguments are those of `ReplayBuffer.sample`. Where there are fewer, `at_least` so many
        will do. The lease expires after `seconds`, and what it holds may be drawn again then, or as
        soon as its process has ended, where that can be seen. `step` is the trainer's own number of
        the step that the batch is for. What is drawn depends on the data, the consumer's seed and
        the number of the batch alone, so that a batch that is drawn again is the same. With `pin`
        the steps of the batch, and all that are newer, stay in the buffer until the lease is over,
        so that other processes can read it with `shared`; a buffer that would hold more than twice
        its capacity evicts them all the same.

        Raises TooFewRows where there is not enough, with `wait` only after that many seconds.
        """
        request = _request(size, where, sampler, unit, fields, at_least, pin, empty)
        how = _How.checked(seconds, wait, renew)
        return self._lease(request, how, _step(step))

    def batches(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        at_least: int | None = None,
        seconds: float = 300.0,
        first_step: int | None = None,
        wait: float | None = None,
        renew: bool = False,
        pin: bool = False,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty,
    ) -> Iterator[Batch]:
        """Yield one leased batch after another, until there is not enough.

        Asking for the next one acknowledges the one before, in the transaction that leases: half
        the commits of `lease`. The trainer's steps count up from `first_step`, by default from the
        one after `last_step`. A batch that the loop is left with is given back. The other arguments
        are those of `lease`.

        >>> for batch in consumer.batches(64, wait=60.0):  # doctest: +SKIP
        ...     train(batch)
        """
        request = _request(size, where, sampler, unit, fields, at_least, pin, empty)
        if first_step is None:
            last = self.last_step
            first_step = 0 if last is None else last + 1
        step = checks.whole(first_step, "first_step")
        return self._batches(request, _How.checked(seconds, wait, renew), step)

    def _batches(self, request: LeaseRequest, how: _How, step: int) -> Iterator[Batch]:
        lease: Lease | None = None
        try:
            while True:
                done, lease = lease, None
                try:
                    lease = self._lease(request, how, step, done)
                except errors.TooFewRows:
                    return
                except errors.LeaseLost:
                    raise
                except Exception:
                    if done is not None and not done.is_over:
                        done.acknowledge()  # it was trained on
                    raise
                yield lease.batch
                step += 1
        finally:
            if lease is not None:
                with suppress(*GONE):  # it is given back when the process ends, or is no more
                    lease.give_back()

    def _lease(
        self,
        request: LeaseRequest,
        how: _How,
        step: int | None,
        done: Lease | None = None,
        cancelled: threading.Event | None = None,
    ) -> Lease:
        """Lease, waiting for what there is to come; acknowledge `done` first."""
        deadline, seen = time.monotonic() + how.wait, None
        attempts = self._leasing.attempts()
        with self._leasing.waiter() as waiter:
            while True:
                acknowledge = None if done is None else (done.id, done.step)
                try:
                    leased = self._leasing.lease(request, how.seconds, acknowledge)
                    if done is not None:
                        done.end()
                        done = None
                    if leased is None:  # it released overdue leases
                        continue
                    return Lease(self._leasing, leased, how.seconds, step, how.renew)
                except errors.ConnectionLost as error:
                    if not attempts.again(error):
                        raise
                    if done is not None and self._leasing.is_acknowledged(done.id):
                        done.end()
                        done = None
                except errors.TooFewRows as error:
                    if done is not None:  # which is acknowledged
                        done.end()
                        done = None
                    if time.monotonic() >= deadline:
                        raise
                    waiter.wait_for(f"consumer {self.name!r}: {error}")
                    seen = self._leasing.wait_for_change(seen, deadline, cancelled)
                    if cancelled is not None and cancelled.is_set():
                        raise
                except (MemoryError, ValueError) as error:
                    checks.raise_if_too_large(request.size, error)
                    raise

    async def lease_async(self, size: int, where: Where = None, **arguments: Any) -> Lease:
        """Do what `lease` does, while other tasks run."""
        names = ("seconds", "wait", "renew", "step")
        if unknown := arguments.keys() - {*_DEFAULTS, *names}:
            raise errors.InvalidValue(f"lease_async has no argument {min(unknown)!r}; see lease")
        given = {name: arguments.pop(name) for name in names if name in arguments}
        step = _step(given.pop("step", None))
        request = _request(size, where, **{**_DEFAULTS, **arguments})
        how = _How.checked(**given)
        return await obtain(
            lambda cancelled: self._lease(request, how, step, None, cancelled),
            lambda lease: lease.give_back(),
        )

    def shared(
        self, lease: int, *, shard: tuple[int, int] | None = None, unit: Unit | None = None
    ) -> Batch:
        """Return the batch of a lease that another process holds, bit for bit, or a part of it.

        For the ranks of one training: the first one leases with `pin=True`, tells the others
        `lease.id`, and acknowledges when all are done. With `shard=(k, n)` the rows of every n-th
        drawn item are returned, from the k-th on. If the module of your own unit is not imported,
        pass `unit`. Raises LeaseLost if the lease is not held, and Evicted if steps of the batch
        are gone.

        >>> consumer.shared(id, shard=(rank, ranks))  # doctest: +SKIP
        """
        id = checks.whole(lease.id if isinstance(lease, Lease) else lease, "lease", 0)
        k, n = (0, 1) if shard is None else checks.shard(shard)
        batch, items = self._leasing.shared(id, () if unit is None else unit)
        mine = items % n == k
        return Batch({name: array[mine] for name, array in batch.items()})

    def acknowledge(self, lease: Lease, step: int | None = None) -> None:
        """Acknowledge a lease; see `Lease.acknowledge`."""
        _checked(lease).acknowledge(step)

    async def acknowledge_async(self, lease: Lease, step: int | None = None) -> None:
        """Do what `acknowledge` does, while other tasks run."""
        await in_thread(_checked(lease).acknowledge, step)


_DEFAULTS: dict[str, Any] = {
    "sampler": Uniform(),
    "unit": Step(),
    "fields": None,
    "at_least": None,
    "pin": False,
    "empty": np.empty,
}


def _request(
    size: int,
    where: Where,
    sampler: Sampler,
    unit: Unit,
    fields: Sequence[str] | None,
    at_least: int | None,
    pin: bool,
    empty: Any,
) -> LeaseRequest:
    size = checks.whole(size, "the size of a lease", 1)
    if at_least is None:
        least = checks.rows(size, "the size of a lease")
    else:
        least = checks.rows(checks.whole(at_least, "at_least", 1, size), "at_least")
    check_instances(sampler, unit)
    check_empty(empty)
    names = None if fields is None else field_names(fields)
    pin = checks.flag(pin, "pin")
    return LeaseRequest(size, least, where, sampler, unit, names, empty, pin)


def _stored_parts(buffer: Any, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first stored position of each episode, -1 for none, and its stored steps."""
    first_positions: dict[int, int] = {}
    counts: dict[int, int] = {}
    for batch in buffer.scan(fields=("episode", "position"), size=1 << 16):
        numbers, places, lengths = np.unique(
            batch["episode"], return_index=True, return_counts=True
        )
        first = batch["position"][places].tolist()
        for number, position, length in zip(numbers.tolist(), first, lengths.tolist(), strict=True):
            first_positions.setdefault(number, position)
            counts[number] = counts.get(number, 0) + length
    return (
        np.array([first_positions.get(number, -1) for number in episodes.tolist()], np.int64),
        np.array([counts.get(number, 0) for number in episodes.tolist()], np.int64),
    )


def _rollouts(
    episodes: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return group, return, oldest policy version, number and length of complete episodes."""
    rows = [row for row in episodes.to_pylist() if row["status"] == "complete"]
    codes: dict[tuple[bool, str], int] = {}
    groups = [
        codes.setdefault((row["group_id"] is None, row["group_id"] or row["task_id"]), len(codes))
        for row in rows
    ]
    returns, versions = (
        np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)
        for name in ("episode_return", "first_policy_version")
    )
    numbers, lengths = (
        np.array([row[name] for row in rows], np.int64) for name in ("episode", "length")
    )
    return np.array(groups, np.int64), returns, versions, numbers, lengths


def _reopened(buffer: Any, name: str) -> Consumer:
    consumer: Consumer = buffer.consumer(name)
    return consumer


@dataclass(frozen=True)
class _How:
    """How a lease is held, and waited for."""

    seconds: float
    wait: float
    renew: bool

    @classmethod
    def checked(
        cls, seconds: float = 300.0, wait: float | None = None, renew: bool = False
    ) -> _How:
        """Return checked arguments."""
        until = 0.0 if wait is None else checks.number(wait, "wait", 0)
        return cls(checks.seconds(seconds), until, checks.flag(renew, "renew"))


def _step(step: Any) -> int | None:
    return None if step is None else checks.whole(step, "step")


def _checked(lease: Any) -> Lease:
    if not isinstance(lease, Lease):
        raise errors.InvalidValue(f"a lease is what lease() returned, not {lease!r}")
    return lease
