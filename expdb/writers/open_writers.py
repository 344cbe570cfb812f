"""Flush overdue writers of a buffer, and end the writers that a program leaves open.

Appended steps are never lost without a warning.
"""

import math
import sys
import time
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from expdb import errors
from expdb.process import exits
from expdb.process.locks import NestedCall
from expdb.process.weak_registry import WeakRegistry
from expdb.storage.ledger.rates import rate_limiter
from expdb.storage.store import Store
from expdb.writers.episode_writer import EpisodeWriter
from expdb.writers.step_writer import StepWriter

Kind = TypeVar("Kind", EpisodeWriter, StepWriter)


Writer: TypeAlias = EpisodeWriter | StepWriter

# Seconds that one call may wait for locks of the database to flush overdue steps.
FLUSH_SECONDS = 0.02
# Most seconds between two searches for overdue steps.
SEARCH_SECONDS = 0.5


class OpenWriters:
    """Flush overdue steps, and end the writers that a program leaves open.

    A writer is ended when it is garbage-collected, the database is closed or the program exits.
    """

    def __init__(self, store: Store):
        self._store = store
        self._open: WeakRegistry[Writer] = WeakRegistry()
        self._waiting: list[Writer] = []  # collected while writing was not possible
        self.next_flush = math.inf  # monotonic time of the next search for overdue steps

    def add(self, writer: Kind) -> Kind:
        """Track a writer until it is closed, and return it."""
        self._open.add(writer)
        self.next_flush = 0.0
        exits.watch_worker()
        if self._waiting:
            self._end_collected(self._waiting)
        return writer

    def flush_overdue_steps(self) -> None:
        """Flush the writers whose `flush_seconds` have passed, within `FLUSH_SECONDS`.

        If the buffer has a rate limiter, do nothing, because the flush could wait for a lease that
        only this thread can create.
        """
        if (now := time.monotonic()) < self.next_flush:
            return
        self.next_flush = now + SEARCH_SECONDS
        writers = [writer for writer in self._open.list() if writer.is_open]
        overdue = [writer for writer in writers if writer._has_overdue_steps(now)]
        deadline = now + FLUSH_SECONDS
        with self._store.engine.until(deadline):
            if overdue and not self._is_limited():
                for writer in overdue:
                    writer._flush_overdue_steps()
                    if time.monotonic() > deadline:
                        break
        for writer in writers:
            self.next_flush = min(self.next_flush, writer._next_flush_time(now))

    def flush_episode(self, episode_id: str) -> None:
        """Flush the open writers that have unflushed steps of an episode."""
        for writer in self._open.list():
            if writer.is_open and writer._has_steps_of(episode_id):
                with suppress(errors.EpisodeEnded):  # another thread has ended it
                    writer.flush()

    def add_unwritten_steps(self, error: errors.TooFewRows) -> errors.TooFewRows:
        """Return the error with the number of steps that are not flushed."""
        if not (unwritten := self.unwritten()):
            return error
        return errors.TooFewRows(
            f"{error}; writers of this handle have {unwritten:,} steps that are not flushed; call "
            "flush()"
        )

    def _is_limited(self) -> bool:
        """Return whether the buffer has a rate limiter, or True if it cannot be read."""
        try:
            limiter, _since = self._store.read(rate_limiter)
        except errors.ExpDBError:
            return True
        return limiter is not None

    def collected(self, writer: Writer) -> None:
        """End a writer that is being garbage-collected.

        If the garbage collector interrupted code of this package, the writer is ended later.
        """
        # This line comes first: if an interrupt stops the rest, closing the handle ends the
        # writer.
        self._waiting.append(writer)
        if _is_running(_find_interrupted_frame()):
            return
        self._end_collected([writer])
        self._store.engine.release()  # the database may have been collected with the writer

    def _end_collected(self, writers: list[Writer]) -> None:
        messages: list[str] = []
        self._end(writers, messages)
        for message in messages:
            errors.warn(message)

    def forget_episodes(self) -> None:
        """Start new episodes with the next steps, because the buffer was cleared."""
        for writer in self._open.list():
            if isinstance(writer, StepWriter):
                writer._forget_episodes()

    def refuse_nested_call(self) -> None:
        """Raise NestedCall if a signal handler interrupted a call of a writer."""
        if any(writer._lock._is_owned() for writer in self._open.list()):  # type: ignore[attr-defined]
            raise NestedCall(self._store.name)

    def unwritten(self) -> int:
        """Return the number of appended steps that are not written."""
        return sum(writer.unwritten for writer in self._open.list())

    def end_all(self, messages: list[str]) -> None:
        """Flush all writers, end their episodes, and append the warnings to `messages`.

        An episode is complete if its last step is terminated or truncated, else aborted.
        """
        self._end([*self._open.list(), *self._waiting], messages)

    def _end(self, writers: list[Writer], messages: list[str]) -> None:
        """End as many writers as possible; after an interrupt, the call can be repeated."""
        failed = None
        for writer in list(writers):
            try:
                self._end_one(writer, messages)
            except Exception as error:
                failed = failed or error
            with suppress(ValueError):  # the writer was not waiting
                self._waiting.remove(writer)
        if failed is not None:
            raise failed

    def _end_one(self, writer: Writer, messages: list[str]) -> None:
        left = writer._end_unclosed()
        if left is None:
            return
        messages.append(left.message(self._store.name))
        if left.error is not None and not isinstance(left.error, errors.ExpDBError):
            raise left.error


def _find_interrupted_frame() -> Any:
    """Return the frame that the finalizer of a writer interrupted.

    Return None if no Python code was running.
    """
    # The finalizer of the writer calls OpenWriters.collected.
    frame: Any = sys._getframe(1)
    for _ in range(2):
        frame = frame and frame.f_back
    return frame


def _is_running(frame: Any) -> bool:
    """Return whether a frame or one of its callers belongs to this package.

    Such a frame may hold locks that writing needs.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "expdb" or name.startswith("expdb."):
            return True
        frame = frame.f_back
    return False
