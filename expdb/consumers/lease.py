"""Lease: a batch that one learner holds."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import threading
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any

from expdb import checks, errors
from expdb.batch import Batch
from expdb.consumers.leasing import Leased, Leasing

GONE = (errors.DatabaseClosed, errors.UnknownBuffer, errors.UnknownConsumer)

RENEWALS = 3  # times that a lease is renewed before it would expire


class Lease:
    """A batch that is held by one learner until it is acknowledged, given back or expires.

    Use it with `with`: leaving the block acknowledges the batch, an exception gives it back.
    """

    def __init__(
        self, leasing: Leasing, leased: Leased, seconds: float, step: int | None, renew: bool
    ):
        self._leasing, self._leased = leasing, leased
        self._seconds, self.step = seconds, step
        self._is_over, self._ended = False, threading.Event()
        if renew:
            threading.Thread(
                target=_renew, args=(leasing, leased.id, seconds, self._ended), daemon=True
            ).start()
            weakref.finalize(self, self._ended.set).atexit = False

    def __repr__(self) -> str:
        return f"<Lease {self.id}: {self.batch.size} rows>"

    def __reduce__(self) -> Any:
        raise errors.InvalidValue(
            "a lease is held by the process that made it: hand its id to others, which read it "
            "with consumer.shared(id)"
        )

    @property
    def id(self) -> int:
        """The number of the lease, counted from 0: no other lease of the consumer has it."""
        return self._leased.id

    @property
    def number(self) -> int:
        """The number of the batch, counted from 0.

        One that was given back is drawn again under the same number.
        """
        return self._leased.number

    @property
    def batch(self) -> Batch:
        """What was drawn."""
        return self._leased.batch

    def acknowledge(self, step: int | None = None) -> None:
        """Have the batch count as trained on, for ever, with the trainer's own step number.

        `step` defaults to the one that the lease was made with. Raises LeaseLost where the lease
        is not held any more: it was acknowledged or given back, or has expired.
        """
        step = self.step if step is None else checks.whole(step, "step")
        self._leasing.acknowledge(self.id, step)
        self.end()

    def give_back(self) -> None:
        """Have the batch drawn again, by whoever leases next; nothing where it is not held."""
        self._leasing.give_back(self.id)
        self.end()

    @property
    def is_over(self) -> bool:
        """Whether it was acknowledged or given back, as far as this object knows."""
        return self._is_over

    def end(self) -> None:
        """Know that the lease is over, and renew it no more."""
        self._is_over = True
        self._ended.set()

    def renew(self, seconds: float | None = None) -> None:
        """Hold the batch for so many seconds from now, as many as at first by default.

        Raises LeaseLost where the lease is not held any more.
        """
        seconds = self._seconds if seconds is None else checks.seconds(seconds)
        self._leasing.renew(self.id, seconds)

    def __enter__(self) -> Batch:
        if self._is_over:
            raise errors.LeaseLost(f"{self!r} is over: lease another batch")
        return self.batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_over:
            return
        if error is None:
            self.acknowledge()
        else:
            with suppress(*GONE):  # the error of the block is the one to tell
                self.give_back()


def _renew(leasing: Leasing, id: int, seconds: float, ended: threading.Event) -> None:
    """Renew a lease until it has ended, or is lost."""
    while not ended.wait(seconds / RENEWALS):
        try:
            leasing.renew(id, seconds)
        except errors.DatabaseBusy:
            continue
        except errors.ExpDBError:  # its learner is told when it acknowledges
            return
