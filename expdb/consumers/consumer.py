"""Consumer: lease batches of a buffer to learners that share the work."""

from __future__ import annotations  # so that annotations do not import numpy.random

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.batch import Batch
from expdb.consumers.consumer_ledger import Acknowledgement, BatchRequest, ConsumerLedger
from expdb.consumers.group_counts import count_groups
from expdb.consumers.lease import GONE, Lease
from expdb.consumers.replaying import check_rows_multiple, select_shard
from expdb.keywords import checked_keywords, deprecated, translate
from expdb.process.awaiting import async_form, in_thread, obtain
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.sequences import Group
from expdb.replay.tokens import Tokens, with_lineage
from expdb.replay.units import Step, Unit
from expdb.sampling.request import check_empty, field_names
from expdb.sql.query import Where

DISCARDED_AT_ONCE = 256  # groups of one lease


class Consumer:
    """Lease batches to learners, each step to one learner at a time.

    `ReplayBuffer.consumer` returns a consumer. Its settings and its progress are stored in the
    database. Learners on any machine share a consumer if they open it by its name. After a
    restart, they continue where the consumer stopped. Threads may share a Consumer object.

    Attributes
    ----------
    name : str
        Name of the consumer, unique in the buffer.

    Examples
    --------
    >>> consumer = buffer.consumer("trainer", max_times_sampled=1)  # doctest: +SKIP
    >>> with consumer.lease(64, trainer_step=100) as batch:  # doctest: +SKIP
    ...     train(batch)
    """

    def __init__(self, ledger: ConsumerLedger, name: str, buffer: Any):
        self._ledger, self.name, self._buffer = ledger, name, buffer

    def __reduce__(self) -> Any:
        return _reopened, (self._buffer, self.name)

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r}>"

    @property
    def last_trainer_step(self) -> int | None:
        """The latest trainer step that a lease was acknowledged with, an int, or None."""
        return self._ledger.record().last_step

    @property
    @deprecated("`last_trainer_step`")
    def last_step(self) -> int | None:
        """The latest trainer step; use `last_trainer_step`."""
        return self.last_trainer_step

    def stats(self, *, unit: Group | Tokens | None = None, where: Where = None) -> dict[str, Any]:
        """Return the settings and counters of the consumer, and counts of its groups.

        Parameters
        ----------
        unit : Group or Tokens, optional
            Count the groups that this unit would draw.
        where : query, optional
            Count only episodes with a matching step. It requires `unit`.

        Returns
        -------
        dict
            `name`, `max_times_sampled`, `max_staleness`, `min_size`, `last_trainer_step`, `leased`
            (the number of leases so far) and `acknowledged` (the number of acknowledged leases).
            With `unit`, `discarded` is the number of groups that `discard` has marked as leased,
            and `groups` maps each state to a number of groups:

            - ``"ready"``: can be leased,
            - ``"leased"``: leased now, or leased `max_times_sampled` times,
            - ``"incomplete"``: too few complete rollouts with a known return and without evicted
              steps,
            - ``"no_spread"``: the standard deviation of the returns is below `min_spread`,
            - ``"too_stale"``: a rollout exceeds `max_staleness` or has no policy version,
            - ``"waiting"``: a rollout has no score yet; only if the unit has `score`.

        Raises
        ------
        InvalidValue
            If `where` is given without `unit`, or if `unit` does not draw groups.
        QueryError
            If `where` is not a valid query.
        UnknownConsumer
            If the consumer was dropped.

        Warns
        -----
        ExpDBWarning
            If no score has the name in the unit's `score`, but another score has a similar name.
            Each handle warns once per name.

        Examples
        --------
        >>> consumer.stats(unit=expdb.Group(8, min_spread=1e-6))["groups"]  # doctest: +SKIP
        {'ready': 12, 'leased': 2, 'incomplete': 3, 'no_spread': 40, 'too_stale': 0}
        """
        record = self._ledger.record()
        settings = record.settings
        figures = {
            "name": self.name, "max_times_sampled": settings.max_times_sampled,
            "max_staleness": settings.max_staleness, "min_size": settings.min_size,
            "leased": record.handed_out, "acknowledged": record.acknowledged,
            "last_trainer_step": record.last_step,
        }  # fmt: skip
        if unit is None:
            if where is not None:
                raise errors.InvalidValue(
                    "stats() with where= requires unit=; pass unit=expdb.Group(size)"
                )
            return figures
        group = _get_group(unit)
        groups, discarded = count_groups(
            self._buffer, self._ledger, record, group, where, unit.stale
        )
        return figures | {"groups": groups, "discarded": discarded}

    @checked_keywords(step="trainer_step", seconds="expiry_seconds")
    def lease(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        at_least: int | None = None,
        expiry_seconds: float = 300.0,
        trainer_step: int | None = None,
        wait: float | None = None,
        renew: bool = False,
        pin: bool = False,
        shard: tuple[int, int] | None = None,
        rows_multiple: int = 1,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty,
    ) -> Lease:
        """Lease a batch of items that no other learner of the consumer has leased.

        A lease lasts until it is acknowledged, is released or expires. The items of a released or
        expired lease may be drawn again. If the process of a lease has ended, learners on the same
        machine may draw its items immediately. The drawn items depend only on the data, the
        consumer's seed and the number of the batch, so the batch of a released or expired lease has
        the same items when it is drawn again.

        Parameters
        ----------
        size : int
            Number of items to draw. An item is one unit: a step, a sequence, an episode or a group.
        where : str, QueryBuilder, mapping or array_like of int64, optional
            Query that the steps must match, or their positions; see `ReplayBuffer.sample`. By
            default, every step matches.
        sampler : Sampler, default Uniform()
            Sampler that chooses which matching steps are drawn.
        unit : Unit, default Step()
            Unit that defines what each drawn step becomes.
        fields : sequence of str, optional
            Keys of the batch: fields, columns of the view `experience` such as `task_id`, and keys
            of the unit or the sampler. By default, the same keys as in `ReplayBuffer.sample`.
        at_least : int, optional
            Smallest batch to accept if fewer than `size` items can be leased. Defaults to `size`.
        expiry_seconds : float, default 300.0
            Seconds until the lease expires.
        trainer_step : int, optional
            Training step that uses the batch, as numbered by the trainer. The number is stored
            when the lease is acknowledged; see `last_trainer_step`.
        wait : float, optional
            Seconds to wait for enough items. By default, the call does not wait.
        renew : bool, default False
            Whether a background thread renews the lease three times per `expiry_seconds`, as long
            as the Lease object exists and is neither acknowledged nor released.
        pin : bool, default False
            Whether the buffer keeps the steps of the batch and all newer steps until the lease
            ends, so that other processes can read the batch with `shared`. A buffer that would
            hold more than twice its capacity evicts these steps anyway.
        shard : tuple of (int, int), optional
            With ``(0, n)``, `Lease.batch` has only the rows for rank 0 of n ranks. The other ranks
            read their rows with `shared` and do not lease. `acknowledge` ends the lease of the
            whole batch. By default, the batch has all rows.
        rows_multiple : int, default 1
            For the unit `Tokens`, add rows without tokens until the number of rows of each rank is
            a multiple of this number. Other units require 1.
        empty : callable, default numpy.empty
            Function ``empty(shape, dtype)`` that creates the arrays for fields held in memory, for
            example `expdb.integrations.torch.pinned`.

        Returns
        -------
        Lease
            The lease; `Lease.batch` is the batch.

        Raises
        ------
        TooFewRows
            If fewer than `at_least` items can be leased, or the rate limiter of the buffer does not
            allow them yet. With `wait`, the error is raised after that many seconds.
        InvalidValue
            If an argument is invalid, if the batch does not fit in memory, if the rate limiter
            never allows a lease of this size, or if the consumer has a `max_staleness` and the
            buffer has no `policy_version`.
        QueryError
            If `where` is not a valid query, or `fields` has an unknown name.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseReadOnly
            If the database was opened with ``read_only=True``.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.

        Warns
        -----
        ExpDBWarning
            If the consumer has a `max_times_sampled` and this handle leases both whole episodes
            and single steps, because the lease of an episode counts only for its first step.

        Examples
        --------
        >>> lease = consumer.lease(64, at_least=1, trainer_step=100)  # doctest: +SKIP
        >>> train(lease.batch)  # doctest: +SKIP
        >>> lease.acknowledge()  # doctest: +SKIP
        """
        request = _request(size, where, sampler, unit, fields, at_least, pin, empty)
        options = _LeaseOptions.checked(expiry_seconds, wait, renew, shard, rows_multiple)
        return self._lease(_with_ranks(request, options), options, _step(trainer_step))

    @checked_keywords(step="trainer_step")
    def discard(
        self, unit: Group | Tokens, where: Where = None, *, trainer_step: int | None = None
    ) -> int:
        """Discard the groups that `unit` skips because their returns or scores hardly differ.

        Without this call, the groups remain in the population, and every later sample examines
        them again. A discarded group counts as leased and acknowledged, but `ReplayBuffer.replay`
        omits it, because no learner trained on it.

        Parameters
        ----------
        unit : Group or Tokens
            The unit that the trainer leases, with `min_spread` above 0.
        where : str, QueryBuilder, mapping or array_like of int64, optional
            The query that the trainer passes to `lease`.
        trainer_step : int, optional
            The trainer's own step number, stored with the discarded groups; see `rewind`.

        Returns
        -------
        int
            Number of discarded groups. `stats` counts all discarded groups.

        Raises
        ------
        InvalidValue
            If `unit` does not draw groups, its `min_spread` is 0, or the consumer has no
            `max_times_sampled`.
        QueryError
            If `where` is not a valid query.
        UnknownConsumer
            If the consumer was dropped.

        Examples
        --------
        >>> unit = expdb.Group(8, min_spread=1e-6)
        >>> consumer.discard(unit)  # doctest: +SKIP
        3
        """
        unit = _get_group(unit)
        if not unit.min_spread:
            raise errors.InvalidValue(
                f"unit must be a Group with min_spread above 0, got {unit!r}; pass the unit of the "
                "trainer, such as expdb.Group(8, min_spread=1e-6)"
            )
        if self._ledger.record().settings.max_times_sampled is None:
            raise errors.InvalidValue(
                f"consumer {self.name!r} has no max_times_sampled, so discarded groups could be "
                "leased again; create another consumer with max_times_sampled=1"
            )
        below = float(np.nextafter(unit.min_spread, -np.inf))
        skipped = replace(unit, min_spread=0.0, max_spread=below)
        request = _request(
            DISCARDED_AT_ONCE, where, Uniform(replace=False), skipped, ("position",), 1, False,
            np.empty,
        )  # fmt: skip
        request, options = replace(request, discards=True), _LeaseOptions.checked()
        groups: set[int] = set()  # each may be leased until it reaches max_times_sampled
        while True:
            try:
                lease = self._lease(request, options, _step(trainer_step))
            except errors.TooFewRows:
                return len(groups)
            lease.acknowledge()
            groups.update(lease.batch["position"][:, 0, 0].tolist())

    @checked_keywords(step="trainer_step")
    def rewind(self, trainer_step: int) -> dict[str, int]:
        """Release the leases after a trainer step, so that their items can be leased again.

        Call it when a trainer restarts from a checkpoint of an earlier step. expdb releases the
        leases with a greater trainer step, the leases without a trainer step that were acknowledged
        after this step, and all active leases. Acknowledging a released lease raises `LeaseLost`,
        so restart all learners. `last_trainer_step` becomes the latest one up to `trainer_step`.

        Parameters
        ----------
        trainer_step : int
            Trainer step of the checkpoint, as passed to `lease` or `acknowledge`. If it is less
            than every trainer step, every lease is released.

        Returns
        -------
        dict of str to int
            `leases` is the number of released leases, and `items` the number of different items in
            them. `evicted` is the number of these items that cannot be leased again, because their
            steps were evicted or deleted. `archived` is the number of evicted items that are in the
            archive of the eviction policy.

        Raises
        ------
        InvalidValue
            If `trainer_step` is not an integer, or if no lease was acknowledged with one.
        UnknownConsumer
            If the consumer was dropped.

        Warns
        -----
        ExpDBWarning
            If items cannot be leased again because their steps were evicted or deleted.

        Examples
        --------
        >>> consumer.rewind(checkpoint["step"])  # doctest: +SKIP
        {'leases': 40, 'items': 2560, 'evicted': 0, 'archived': 0}
        """
        figures, gone = self._ledger.rewind(checks.whole(trainer_step, "trainer_step"))
        figures["archived"] = self._buffer._retention.count_archived(gone)
        if figures["evicted"]:
            errors.warn(
                f"{figures['evicted']} of {figures['items']} items that consumer {self.name!r} "
                f"leased after step {trainer_step} cannot be leased again, because their steps "
                f"were evicted or deleted ({figures['archived']} are in the archive); keep more "
                "steps, or write checkpoints more often"
            )
        return figures

    @checked_keywords(first_step="first_trainer_step", seconds="expiry_seconds")
    def batches(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        at_least: int | None = None,
        expiry_seconds: float = 300.0,
        first_trainer_step: int | None = None,
        wait: float | None = None,
        renew: bool = False,
        pin: bool = False,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray] = np.empty,
    ) -> Iterator[Batch]:
        """Yield one leased batch after another, until too few items are left.

        Requesting the next batch acknowledges the current batch in the same transaction, so a
        batch costs one commit instead of two. If the loop ends early or by an exception, the
        current batch is released. If leasing the next batch fails with an error other than
        `LeaseLost`, the current batch is acknowledged first.

        Parameters
        ----------
        size : int
            Number of items per batch.
        where : str, QueryBuilder, mapping or array_like of int64, optional
            Query that the steps must match, or their positions; see `ReplayBuffer.sample`. By
            default, every step matches.
        sampler : Sampler, default Uniform()
            Sampler that chooses which matching steps are drawn.
        unit : Unit, default Step()
            Unit that defines what each drawn step becomes.
        fields : sequence of str, optional
            Keys of the batches; see `lease`.
        at_least : int, optional
            Smallest batch to accept if fewer than `size` items can be leased. Defaults to `size`.
        expiry_seconds : float, default 300.0
            Seconds until each lease expires.
        first_trainer_step : int, optional
            The trainer's own step number of the first batch; each further batch has the next
            number. Defaults to ``last_trainer_step + 1``, or to 0
            if `last_trainer_step` is None.
        wait : float, optional
            Seconds to wait for the items of each batch before the iteration ends. By default, the
            iterator does not wait.
        renew : bool, default False
            Whether a background thread renews the lease of the current batch.
        pin : bool, default False
            Whether the buffer keeps the steps of the current batch; see `lease`.
        empty : callable, default numpy.empty
            Function ``empty(shape, dtype)`` that creates the arrays; see `lease`.

        Returns
        -------
        iterator of Batch
            The leased batches. The arguments are checked when `batches` is called.

        Raises
        ------
        LeaseLost
            Raised by the iterator if the lease of the current batch has expired.
        InvalidValue
            If an argument is invalid, or for the other reasons that `lease` lists.
        QueryError
            Raised by the iterator if `where` is not a valid query, or `fields` has an unknown name.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseReadOnly
            Raised by the iterator if the database was opened with ``read_only=True``.
        DatabaseBusy
            Raised by the iterator if another process locks the database for longer than the
            handle's `timeout`.

        Examples
        --------
        >>> for batch in consumer.batches(64, wait=60.0):  # doctest: +SKIP
        ...     train(batch)
        """
        request = _request(size, where, sampler, unit, fields, at_least, pin, empty)
        if first_trainer_step is None:
            last = self.last_trainer_step
            first_trainer_step = 0 if last is None else last + 1
        step = checks.whole(first_trainer_step, "first_trainer_step")
        return self._batches(request, _LeaseOptions.checked(expiry_seconds, wait, renew), step)

    def _batches(self, request: BatchRequest, options: _LeaseOptions, step: int) -> Iterator[Batch]:
        lease: Lease | None = None
        try:
            while True:
                finished, lease = lease, None
                try:
                    lease = self._lease(request, options, step, finished)
                except errors.TooFewRows:
                    return
                except errors.LeaseLost:
                    raise
                except Exception:
                    if finished is not None and not finished.is_over:
                        with suppress(errors.LeaseLost):  # the failed call may have acknowledged it
                            finished.acknowledge()  # the learner has trained on it
                    raise
                yield lease.batch
                step += 1
        finally:
            if lease is not None:
                with suppress(*GONE):  # it was deleted, or is released when the process ends
                    lease.release()

    def _lease(
        self,
        request: BatchRequest,
        options: _LeaseOptions,
        step: int | None,
        finished: Lease | None = None,
        cancelled: threading.Event | None = None,
    ) -> Lease:
        """Acknowledge `finished`, then lease a batch; wait for items until the deadline."""
        deadline, seen = time.monotonic() + options.wait, None
        acknowledgement = None
        if finished is not None:
            acknowledgement = Acknowledgement(finished.id, finished.trainer_step, finished._end)
        self._ledger.store.report_if_due()  # not later, because an interrupt would lose the lease
        with self._ledger.waiter() as waiter:
            while True:
                self._buffer._writers.flush_overdue_steps()
                try:
                    row, batch = self._ledger.lease(request, options.seconds, acknowledgement)
                    if options.shard is not None or options.rows_multiple != 1:
                        shard = options.shard or (0, 1)
                        batch = select_shard(batch, request.unit, shard, options.rows_multiple)
                    return Lease(self._ledger, row, batch, options.seconds, step, options.renew)
                except errors.TooFewRows as error:
                    if time.monotonic() >= deadline:
                        raise self._buffer._writers.add_unwritten_steps(error) from None
                    waiter.wait_for(f"consumer {self.name!r}: {error}")
                    seen = self._ledger.wait_for_change(seen, deadline, cancelled)
                    if cancelled is not None and cancelled.is_set():
                        raise
                except (MemoryError, ValueError) as error:
                    checks.raise_if_too_large(request.size, error)
                    raise

    async def lease_async(self, size: int, where: Where = None, **arguments: Any) -> Lease:
        """Lease a batch as `lease` does, while other asyncio tasks run.

        If the call is cancelled after the lease was made, the lease is released.

        Parameters
        ----------
        size : int
            Number of items to draw.
        where : str, QueryBuilder, mapping or array_like of int64, optional
            Query that the steps must match, or their positions; see `ReplayBuffer.sample`. By
            default, every step matches.
        **arguments
            The keyword arguments of `lease`.

        Returns
        -------
        Lease
            The lease; `Lease.batch` is the batch.

        Raises
        ------
        InvalidValue
            If an argument is unknown or invalid, or for the other reasons that `lease` lists.
        TooFewRows
            If fewer than `at_least` items can be leased; see `lease`.
        QueryError
            If `where` is not a valid query, or `fields` has an unknown name.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseReadOnly
            If the database was opened with ``read_only=True``.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.

        Examples
        --------
        >>> lease = await consumer.lease_async(64, wait=60.0)  # doctest: +SKIP
        """
        names = *_DEFAULTS, *_OPTIONS
        arguments = translate(
            "lease_async", names, {"step": "trainer_step", "seconds": "expiry_seconds"}, arguments
        )
        settings = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
        step = _step(settings.pop("trainer_step", None))
        options = _LeaseOptions.checked(**settings)
        request = _with_ranks(_request(size, where, **{**_DEFAULTS, **arguments}), options)
        return await obtain(
            lambda cancelled: self._lease(request, options, step, None, cancelled),
            lambda lease: lease.release(),
        )

    def shared(
        self,
        lease: int,
        *,
        shard: tuple[int, int] | None = None,
        rows_multiple: int = 1,
        unit: Unit | None = None,
    ) -> Batch:
        """Return a batch that any process has leased, or a part of the batch, bit for bit.

        Use it for the ranks of one training run. Rank 0 leases with ``pin=True``, sends `lease.id`
        to the other ranks, and acknowledges when all ranks are done.

        Parameters
        ----------
        lease : int or Lease
            Number of the lease, `Lease.id`.
        shard : tuple of (int, int), optional
            With ``(k, n)``, return only the rows for rank k of n ranks, counted from 0. For the
            unit `Tokens`, `Tokens.shard` selects them. For other units, they are the rows of the
            drawn items k, k + n, k + 2 n and so on. By default, return all rows.
        rows_multiple : int, default 1
            For the unit `Tokens`, add rows without tokens until the number of rows of each rank is
            a multiple of this number. Other units require 1.
        unit : Unit, optional
            Unit to use instead of the recorded unit. Pass it for a unit of your own if this
            process has not imported its module.

        Returns
        -------
        Batch
            The rows of the batch, or of the shard.

        Raises
        ------
        LeaseLost
            If the lease does not exist, or was acknowledged or released.
        Evicted
            If steps of the batch are no longer in the buffer.
        ReplayMismatch
            If the batch differs from the leased one, for example because rewards were changed.
        InvalidValue
            If `lease`, `shard` or `rows_multiple` is invalid or differs from the lease, or the unit
            is not defined in this process.
        UnknownConsumer
            If the consumer was dropped.

        Examples
        --------
        >>> consumer.shared(id, shard=(rank, ranks))  # doctest: +SKIP
        """
        id = checks.whole(lease.id if isinstance(lease, Lease) else lease, "lease", 0)
        part = None if shard is None else checks.shard(shard)
        multiple = checks.whole(rows_multiple, "rows_multiple", 1)
        batch, used, ranks = self._ledger.shared(id, () if unit is None else unit)
        check_rows_multiple(used, multiple)
        if part is None and multiple == 1:
            return batch
        if ranks is not None and ranks != ((part or (0, 1))[1], multiple):
            raise errors.InvalidValue(
                f"the lease divides its batch among {ranks[0]} ranks with rows_multiple="
                f"{ranks[1]}, got shard={part} and rows_multiple={multiple}; pass the same values "
                "on each rank"
            )
        return select_shard(batch, used, part or (0, 1), multiple)

    @deprecated("`Lease.acknowledge`")
    @checked_keywords(step="trainer_step")
    def acknowledge(
        self, lease: Lease, trainer_step: int | None = None, *, scores: Any = None
    ) -> None:
        """Record permanently that a leased batch was trained on; use `Lease.acknowledge`.

        Parameters
        ----------
        lease : Lease
            The lease to acknowledge.
        trainer_step : int, optional
            The trainer's own step number. Defaults to the `trainer_step` of the lease.
        scores : list of mappings, mapping of columns, or table, optional
            Scores to record in the same transaction; see `Lease.acknowledge`.

        Raises
        ------
        LeaseLost
            If the lease was acknowledged or released, or has expired.
        InvalidValue
            If `lease` is not a Lease, `trainer_step` is not an integer, or a score is invalid.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        """
        _checked(lease).acknowledge(trainer_step, scores=scores)

    async def batches_async(
        self,
        size: int,
        where: Where = None,
        *,
        first_trainer_step: int | None = None,
        **arguments: Any,
    ) -> AsyncIterator[Batch]:
        """Yield one leased batch after another, while other asyncio tasks run; see `batches`.

        Requesting the next batch acknowledges the current batch first, in a transaction of its
        own. If the loop ends early, is cancelled or raises, the current batch is released.

        Parameters
        ----------
        size : int
            Number of items per batch.
        where : str, QueryBuilder, mapping or array_like of int64, optional
            Query that the steps must match, or their positions; see `ReplayBuffer.sample`. By
            default, every step matches.
        first_trainer_step : int, optional
            The trainer's own step number of the first batch; see `batches`.
        **arguments
            The other keyword arguments of `batches`.

        Yields
        ------
        Batch
            The leased batch.

        Raises
        ------
        LeaseLost
            If the lease of the current batch has expired.
        InvalidValue
            If an argument is unknown or invalid, or for the other reasons that `lease` lists.
        QueryError
            If `where` is not a valid query, or `fields` has an unknown name.

        Examples
        --------
        >>> async for batch in consumer.batches_async(64, wait=60.0):  # doctest: +SKIP
        ...     await train(batch)
        """
        names = *_DEFAULTS, *_OPTIONS, "first_trainer_step"
        old = {"first_step": "first_trainer_step", "seconds": "expiry_seconds"}
        if first_trainer_step is not None:
            arguments["first_trainer_step"] = first_trainer_step
        arguments = translate("batches_async", names, old, arguments)
        first_trainer_step = arguments.pop("first_trainer_step", None)
        if first_trainer_step is None:
            last = await in_thread(lambda: self.last_trainer_step)
            first_trainer_step = 0 if last is None else last + 1
        step, lease = checks.whole(first_trainer_step, "first_trainer_step"), None
        try:
            while True:
                if lease is not None:
                    finished, lease = lease, None
                    await finished.acknowledge_async()
                try:
                    lease = await self.lease_async(size, where, trainer_step=step, **arguments)
                except errors.TooFewRows:
                    return
                yield lease.batch
                step += 1
        finally:
            if lease is not None:
                with suppress(*GONE):  # it was deleted, or is released when the process ends
                    await lease.release_async()

    acknowledge_async = async_form(acknowledge)
    stats_async = async_form(stats, reads=True)
    rewind_async = async_form(rewind)
    discard_async = async_form(discard)
    shared_async = async_form(shared, reads=True)


_OPTIONS = "expiry_seconds", "wait", "renew", "shard", "rows_multiple", "trainer_step"
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
) -> BatchRequest:
    size = checks.whole(size, "the size of a lease", 1)
    if at_least is None:
        least = checks.rows(size, "the size of a lease")
    else:
        least = checks.rows(checks.whole(at_least, "at_least", 1, size), "at_least")
    checks.instance(unit, Unit, "unit", "expdb.Step()")
    checks.instance(sampler, Sampler, "sampler", "expdb.Uniform()")
    check_empty(empty)
    names = None if fields is None else field_names(fields)
    pin = checks.flag(pin, "pin")
    return BatchRequest(size, least, where, sampler, unit, names, empty, pin)


def _get_group(unit: Any) -> Group:
    """Return the Group that a unit draws; for `Tokens`, with ``lineage=True``."""
    group = with_lineage(unit.of) if isinstance(unit, Tokens) else unit
    checks.instance(group, Group, "unit", "expdb.Group(8) or expdb.Tokens(of=expdb.Group(8))")
    assert isinstance(group, Group)
    return group


def checked_settings(
    max_times_sampled: Any, max_staleness: Any, min_size: Any, new_only: Any, seed: Any
) -> dict[str, Any]:
    """Return the checked settings of a consumer that change."""
    settings: dict[str, Any] = {}
    for name, value, least in (
        ("max_times_sampled", max_times_sampled, 1), ("max_staleness", max_staleness, 0),
        ("min_size", min_size, 1), ("seed", seed, 0),
    ):  # fmt: skip
        if value is None and name.startswith("max_"):
            settings[name] = None
        elif value is not checks.UNCHANGED:
            settings[name] = checks.whole(value, name, least)
    if new_only is not checks.UNCHANGED:
        settings["new_only"] = checks.flag(new_only, "new_only")
    return settings


def _reopened(buffer: Any, name: str) -> Consumer:
    consumer: Consumer = buffer.consumer(name)
    return consumer


@dataclass(frozen=True)
class _LeaseOptions:
    """Checked arguments of `lease` that do not affect which items are drawn."""

    seconds: float
    wait: float
    renew: bool
    shard: tuple[int, int] | None  # the part of the batch that the lease has
    rows_multiple: int

    @classmethod
    def checked(
        cls,
        expiry_seconds: float = 300.0,
        wait: float | None = None,
        renew: bool = False,
        shard: tuple[int, int] | None = None,
        rows_multiple: int = 1,
    ) -> _LeaseOptions:
        """Check the arguments and return them."""
        until = 0.0 if wait is None else checks.number(wait, "wait", 0)
        part = None if shard is None else checks.shard(shard)
        multiple = checks.whole(rows_multiple, "rows_multiple", 1)
        return cls(
            checks.seconds(expiry_seconds), until, checks.flag(renew, "renew"), part, multiple
        )


def _with_ranks(request: BatchRequest, options: _LeaseOptions) -> BatchRequest:
    """Return a request with its ranks; raise InvalidValue if `shard` is not valid."""
    check_rows_multiple(request.unit, options.rows_multiple)
    if options.shard is None:
        return request
    rank, ranks = options.shard
    if rank:
        raise errors.InvalidValue(
            f"shard of a lease must be (0, n), got {options.shard}; lease on rank 0, and read the "
            "rows of the other ranks with shared(lease.id, shard=(k, n))"
        )
    return replace(request, ranks=(ranks, options.rows_multiple))


def _step(step: Any) -> int | None:
    return None if step is None else checks.whole(step, "trainer_step")


def _checked(lease: Any) -> Lease:
    if not isinstance(lease, Lease):
        raise errors.InvalidValue(
            f"expected a Lease, got {lease!r}; pass the object returned by Consumer.lease()"
        )
    return lease
