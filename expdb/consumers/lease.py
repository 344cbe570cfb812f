"""Lease: a batch that one learner holds for a limited time."""

from __future__ import annotations  # so that annotations do not import numpy.random

import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from expdb import checks, errors
from expdb.batch import Batch
from expdb.consumers.consumer_ledger import ConsumerLedger
from expdb.keywords import checked_keywords, deprecated
from expdb.process.awaiting import AsyncExit, async_form
from expdb.storage.ledger.lease_rows import LeaseRow
from expdb.storage.scores.requested import scores_of

GONE = (errors.DatabaseClosed, errors.UnknownBuffer, errors.UnknownConsumer)

RENEWALS = 3  # renewals per duration of a lease


class Lease(AsyncExit[Batch]):
    """Hold a batch for one learner until it is acknowledged or released, or expires.

    `Consumer.lease` returns a lease. Use it in a ``with`` or ``async with`` statement, which
    returns the batch: leaving the block acknowledges the lease, and an exception in the block
    releases the lease. A lease cannot be pickled. Another process reads its batch with
    `Consumer.shared`.

    Attributes
    ----------
    trainer_step : int or None
        The trainer's own step number, as passed to `Consumer.lease`.

    Examples
    --------
    >>> with consumer.lease(64, trainer_step=100) as batch:  # doctest: +SKIP
    ...     train(batch)
    """

    _is_over = True  # in case an interrupt stops the constructor

    def __init__(
        self,
        ledger: ConsumerLedger,
        row: LeaseRow,
        batch: Batch,
        seconds: float,
        trainer_step: int | None,
        renew: bool,
    ):
        self._ledger, self._row, self._batch = ledger, row, batch
        self._seconds, self.trainer_step = seconds, trainer_step
        self._ended, self._renews = threading.Event(), renew
        self._expires, self._begun_at = time.monotonic() + seconds, errors.current_line()
        self._is_over, self._pid = False, os.getpid()
        if renew:
            threading.Thread(
                target=_renew, args=(ledger, row.id, seconds, self._ended), daemon=True
            ).start()
            weakref.finalize(self, self._ended.set).atexit = False

    def __del__(self) -> None:
        is_held = self._renews or time.monotonic() < self._expires
        if self._is_over or not is_held or self._pid != os.getpid() or sys.is_finalizing():
            return
        begun_at = ":".join(map(str, self._begun_at))
        errors.warn(
            f"lease {self.id} of {self.batch.size} rows, drawn at {begun_at}, "
            "was dropped without acknowledge() or release(), so its items stay leased until the "
            f"lease expires after {self._seconds:g} s; use `with consumer.lease(...) as batch`"
        )

    def __repr__(self) -> str:
        return f"<Lease {self.id}: {self.batch.size} rows>"

    def __reduce__(self) -> Any:
        raise errors.InvalidValue(
            "a lease cannot be passed to another process; pass its id, and read the batch in the "
            "other process with consumer.shared(id)"
        )

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(f"a Lease is not a batch; use lease.batch[{key!r}]")

    @property
    def id(self) -> int:
        """The number of the lease, an int from 0 that no other lease of the consumer has."""
        return self._row.id

    @property
    @deprecated("`trainer_step`")
    def step(self) -> int | None:
        """The trainer's own step number; use `trainer_step`."""
        return self.trainer_step

    @property
    @deprecated("`batch_number`")
    def number(self) -> int:
        """The number of the batch; use `batch_number`."""
        return self.batch_number

    @property
    def batch_number(self) -> int:
        """The number of the batch, an int from 0.

        A batch that was released or has expired is drawn again under the same number.
        """
        return self._row.number

    @property
    def batch(self) -> Batch:
        """The leased batch, a Batch."""
        return self._batch

    @checked_keywords(step="trainer_step")
    def acknowledge(self, trainer_step: int | None = None, *, scores: Any = None) -> None:
        """Record permanently that the batch was trained on, and end the lease.

        If the connection to the server is lost, the call is retried for up to the handle's
        `timeout`.

        Parameters
        ----------
        trainer_step : int, optional
            The trainer's own step number, stored in the same transaction. Defaults to the
            `trainer_step` of the lease.
        scores : list of mappings, mapping of columns, or table, optional
            Scores to record in the same transaction; see `ReplayBuffer.score_batch`. Use it for a
            judge that leases the steps or episodes that it scores.

        Raises
        ------
        LeaseLost
            If the lease was acknowledged or released, or has expired. No score is recorded.
        InvalidValue
            If `trainer_step` is not an integer, or a score is invalid.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.

        Warns
        -----
        ExpDBWarning
            If scores are not recorded because their steps were evicted or deleted.

        Examples
        --------
        >>> unscored = QueryBuilder().is_null("scores.judge")
        >>> lease = judge.lease(8, unscored, unit=expdb.Episode(), at_least=1)  # doctest: +SKIP
        >>> lease.acknowledge(  # doctest: +SKIP
        ...     scores={"episode": lease.batch["episode"], "name": "judge", "value": values}
        ... )
        """
        step = self.trainer_step
        if trainer_step is not None:
            step = checks.whole(trainer_step, "trainer_step")
        rows = None if scores is None else scores_of(scores)
        try:
            self._ledger.acknowledge(self.id, step, rows)
        except (errors.LeaseLost, errors.UnknownConsumer):
            self._renews, self._expires = False, 0.0  # the items are no longer leased
            raise
        self._end()

    def release(self) -> None:
        """Release the lease, so that the next lease of the consumer draws the batch again.

        Calling `release` after the lease was acknowledged or released has no effect.

        Raises
        ------
        UnknownConsumer
            If the consumer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        """
        self._ledger.release(self.id)
        self._end()

    @deprecated("`release`")
    def give_back(self) -> None:
        """Release the lease (deprecated alias of `release`)."""
        self.release()

    @property
    def is_over(self) -> bool:
        """Whether this process has acknowledged or released the lease, a bool.

        The value stays False when the lease expires.
        """
        return self._is_over

    def _end(self) -> None:
        """Mark the lease as ended in this process, and stop its renewal."""
        self._is_over = True
        self._ended.set()

    end = deprecated("`release` or `acknowledge`")(_end)

    @checked_keywords(seconds="expiry_seconds")
    def renew(self, expiry_seconds: float | None = None) -> None:
        """Postpone the expiry of the lease.

        Parameters
        ----------
        expiry_seconds : float, optional
            Seconds from now until the lease expires. Defaults to the `expiry_seconds` that
            were passed to `Consumer.lease`.

        Raises
        ------
        LeaseLost
            If the lease was acknowledged or released, or has expired.
        InvalidValue
            If `expiry_seconds` is not a positive number.
        UnknownConsumer
            If the consumer was dropped.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        """
        given = expiry_seconds
        seconds = self._seconds if given is None else checks.seconds(given)
        self._ledger.renew(self.id, seconds)
        self._expires = time.monotonic() + seconds

    acknowledge_async = async_form(acknowledge)
    release_async = async_form(release)
    give_back_async = async_form(give_back)
    renew_async = async_form(renew)

    def __enter__(self) -> Batch:
        if self._is_over:
            raise errors.LeaseLost(f"{self!r} has ended; lease another batch")
        return self.batch

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._is_over:
            return
        if error is None:
            self.acknowledge()
        else:
            with suppress(*GONE):  # raise the error of the block instead
                self.release()


def _renew(ledger: ConsumerLedger, id: int, seconds: float, ended: threading.Event) -> None:
    """Renew a lease until it has ended or is lost."""
    while not ended.wait(seconds / RENEWALS):
        try:
            ledger.renew(id, seconds)
        except errors.DatabaseBusy:
            continue
        except errors.ExpDBError:  # acknowledge() will raise it in the learner
            return
