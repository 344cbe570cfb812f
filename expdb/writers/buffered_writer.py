"""BufferedWriter: gather steps, flush them at a limit, and write each of them exactly once."""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from expdb import errors
from expdb.process.awaiting import async_form
from expdb.process.locks import NestedCall, locked
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.pending_steps import PendingSteps, create_steps
from expdb.storage.writing.submissions import EncodedWrite
from expdb.writers.unclosed_episodes import LostSteps, UnclosedEpisode

log = logging.getLogger(__name__)

# Errors that a later flush cannot resolve: it would raise them again, or a step was discarded.
_REFUSALS = (
    errors.EpisodeEnded, errors.EpisodeMismatch, errors.Evicted, errors.FieldMismatch,
    errors.InvalidValue,
)  # fmt: skip


class BufferedWriter(ABC):
    """Gather steps and flush them at a limit; the base of `EpisodeWriter` and `StepWriter`.

    Every operation holds the lock, because another thread may close the database during an append.
    A subclass sets its own state before it calls this `__init__`, which sets `_pid` last. A writer
    without `_pid` was interrupted during construction, and its finalizer ignores it.
    """

    def __init__(self, buffer: Any, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._buffer = buffer  # so that the handle is not garbage-collected before its writers
        self._flush_steps, self._flush_bytes = flush_steps, flush_bytes
        self._flush_seconds, self._steps = flush_seconds, create_steps(buffer._store)
        # Steps of a commit with unknown outcome. They are written again before any other steps.
        self._in_doubt: Any = None
        self._unreturned = np.empty(0, np.int64)  # positions that no flush has returned yet
        self._flushed_at = time.monotonic()
        self._is_adding = False  # whether a step is being added
        self._defers_flush = False  # True while `append_async` or `extend_async` adds steps
        self._lock = threading.RLock()
        self._pid = os.getpid()

    _episodes: OpenEpisodes | None = None  # the open episodes of a StepWriter

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the writer is closed, a bool."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise the error of a closed writer or of a writer of the parent process."""

    @abstractmethod
    def _end_under_lock(self) -> UnclosedEpisode | LostSteps | None:
        """Close the writer and return the warning to emit, or None."""

    @property
    def is_open(self) -> bool:
        """Whether the writer is not closed and belongs to this process, a bool."""
        return not self._is_closed and self._pid == os.getpid()

    @property
    def unwritten(self) -> int:
        """The number of appended steps that are not known to be stored, an int."""
        if self._in_doubt is None:  # the fast path, because adapters read this at every step
            return 0 if self._steps.is_stored else len(self._steps)
        waiting = self._steps, self._in_doubt
        return sum(len(steps) for steps in waiting if not steps.is_stored)

    @property
    def unreturned(self) -> int:
        """The number of appended steps whose positions no flush has returned yet, an int."""
        return len(self._unreturned) + self.unwritten

    def flush(self) -> np.ndarray:
        """Write the gathered steps and return their positions.

        The steps are durable and visible to every process when this method returns. Steps that the
        writer flushed by itself at a limit are not included in the result. If the last flush
        failed, its steps are included. After an error the writer keeps the steps, and the next
        flush writes them.

        Returns
        -------
        numpy.ndarray of int64, shape (N,)
            Positions of the N written steps, in the order of the appends.

        Raises
        ------
        EpisodeEnded
            If an episode of the steps has already ended, for example in another process.
        EpisodeMismatch
            If another process has begun an episode with the same `episode_id`.
        FieldMismatch
            If another process has given a field another type.
        InvalidValue
            If a StepWriter is closed, if the rate limiter of the buffer never allows this number of
            steps in one write, or if an agent already has a step with the same number and other
            values in the episode. In the last case, the writer discards the refused step.
        Evicted
            If steps of an episode were evicted or deleted, and a step number is less than all
            stored numbers of the agent. The writer then discards the refused step.
        ForkedWithOpenConnection
            If the writer belongs to the parent process.
        CommitUnknown
            If the connection to the server is lost during a flush and does not return within the
            handle's `timeout`. The steps may or may not be stored. The next flush writes them if
            they are missing.
        RateLimited
            If the rate limiter of the buffer does not allow the steps within the handle's
            `timeout`.
        DatabaseBusy
            If another process locks the database for longer than the handle's `timeout`.
        UnknownBuffer
            If the buffer was dropped.
        """
        if self._pid != os.getpid():  # before the lock, which may have been locked at the fork
            self._refuse()
        return locked(self._lock, self._flush_if_open)

    flush_async = async_form(flush)

    def _refuse_nested_call(self) -> None:
        """Raise NestedCall if a signal handler interrupted `append` or `extend`."""
        if self._is_adding:
            raise NestedCall(self._buffer.name)

    def _flush_if_open(self) -> np.ndarray:
        if not self.is_open:
            self._refuse()
        self._refuse_nested_call()
        return self._flush()

    def _flush(self) -> np.ndarray:
        try:
            self._write_in_doubt()
            if len(self._steps):
                self._write()
        finally:
            self._flushed_at = time.monotonic()
        positions, self._unreturned = self._unreturned, np.empty(0, np.int64)
        return positions

    def _flush_if_due(self) -> None:
        if not self._defers_flush and self._is_flush_due():
            self._flush()

    def _has_overdue_steps(self, now: float) -> bool:
        """Return whether appended steps have waited for `flush_seconds` at the time `now`.

        Steps of a commit with unknown outcome are ignored: a call of the writer must report them.
        """
        is_overdue = now - self._flushed_at >= self._flush_seconds
        return is_overdue and self._in_doubt is None and len(self._steps) > 0

    def _flush_overdue_steps(self) -> None:
        """Write overdue steps, unless another call of the writer is running.

        No ExpDBError is raised, because the caller did not call this writer. Steps that were not
        written stay in the writer. Warn if the next flush cannot write them either.
        """
        if self._lock._is_owned():  # type: ignore[attr-defined]  # called from a signal handler
            return
        try:
            if self._lock.acquire(blocking=False):
                self._flush_if_due()
        except _REFUSALS as error:
            errors.warn(f"a writer could not flush its steps: {error}")
        except errors.ExpDBError as error:
            log.info("%d appended steps are not written yet: %s", self.unwritten, error)
        finally:
            if self._lock._is_owned():  # type: ignore[attr-defined]
                self._lock.release()

    def _has_steps_of(self, episode_id: str) -> bool:
        """Return whether the writer has unflushed steps of an episode."""
        return any(episode.episode_id == episode_id for episode in self._steps.episodes())

    def _next_flush_time(self, now: float) -> float:
        """Return the earliest time after `now` at which appended steps can become overdue."""
        flush_time = self._flushed_at + self._flush_seconds
        return flush_time if flush_time > now else now + self._flush_seconds

    def _is_flush_due(self) -> bool:
        steps = self._steps
        return (
            len(steps) >= self._flush_steps
            or steps.nbytes >= self._flush_bytes
            or time.monotonic() - self._flushed_at >= self._flush_seconds
        )

    def _write_in_doubt(self) -> None:
        """Write the steps of a commit with unknown outcome again, without changing them."""
        if self._in_doubt is not None:
            self._store_steps(self._in_doubt)
            self._add_unreturned(self._in_doubt.positions)
            self._in_doubt = None

    def _write(self) -> None:
        """Write the gathered steps.

        No step is written twice. If the outcome of the commit is unknown, later steps are gathered
        separately.
        """
        steps, following = self._steps, create_steps(self._buffer._store)
        try:
            self._write_others(steps)
            self._add_unreturned(steps.positions)
            # Not `following`: the write may add fields.
            self._steps = create_steps(self._buffer._store)
        except BaseException:
            if steps.is_stored:  # an interrupt came just after the commit
                self._add_unreturned(steps.positions)
                self._steps = following
            elif steps.is_in_doubt:
                self._steps, self._in_doubt = following, steps
            raise

    def _write_others(self, steps: Any) -> None:
        """Write steps; if some were refused and discarded, write the others and then raise."""
        try:
            self._store_steps(steps)
        except (errors.InvalidValue, errors.Evicted, errors.UnknownEpisode) as error:
            if not error.discarded_steps:
                raise
            self._write_others(steps)
            raise

    def _store_steps(self, steps: PendingSteps) -> None:
        """Write steps and update their episodes."""
        queue = self._buffer._write_queue
        queue.encode(steps)
        queue.write(EncodedWrite(steps, self._episodes))
        self._buffer._evict_and_report()

    def _add_unreturned(self, positions: np.ndarray) -> None:
        # An interrupt may repeat the call with the same positions.
        if not np.array_equal(
            self._unreturned[len(self._unreturned) - len(positions) :], positions
        ):
            self._unreturned = np.concatenate((self._unreturned, positions))

    def _end_unclosed(self) -> UnclosedEpisode | LostSteps | None:
        """Close an unclosed writer without raising; return the warning to emit, or None."""
        return locked(self._lock, self._end_under_lock)

    def __del__(self) -> None:
        if getattr(self, "_pid", None) is not None and self.is_open:
            self._buffer._writers.collected(self)
