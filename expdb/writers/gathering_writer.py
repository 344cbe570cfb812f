"""What the writers have in common: steps are gathered, and written once whatever happens."""

import os
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, NoReturn, Protocol

import numpy as np

from expdb.process.locks import locked
from expdb.writers.left_open import LeftOpen, Unwritten


class Gathered(Protocol):
    """Steps that are gathered, and not written yet."""

    @property
    def nbytes(self) -> int:
        """About how many bytes they take."""

    @property
    def is_stored(self) -> bool:
        """Whether they are committed."""

    @property
    def positions(self) -> np.ndarray:
        """Where they are, once they are committed."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether nobody knows if they are: they are to be written again as they are."""

    def __len__(self) -> int: ...


class Sink(Protocol):
    """Where the steps go; `buffer.py` gives one, so that writers know no storage."""

    def gathering(self) -> Any:
        """Return an empty collection of steps, which are `Gathered`."""

    def write(self, steps: Any) -> np.ndarray:
        """Write them, and what they say of their episodes; return the positions."""

    def collected(self, writer: Any) -> None:
        """Take care of a writer that is open and that nobody can use any more, at any moment."""


class GatheringWriter(ABC):
    """Gather steps, and flush them at a limit; the base of `EpisodeWriter` and `StepWriter`.

    The database may be closed by another thread than the one that appends, so whatever is done
    holds the lock. A subclass sets its own state before it calls `__init__` here, which is done
    with once `_pid` is set: a writer whose making was interrupted is left alone.
    """

    def __init__(self, sink: Any, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._sink, self._flush_steps = sink, flush_steps
        self._flush_bytes, self._flush_seconds = flush_bytes, flush_seconds
        self._steps = sink.gathering()
        # steps of which nobody knows whether they are stored; they are written before any others
        self._in_doubt: Any = None
        self._untold = np.empty(0, np.int64)  # positions that a flush found out and did not return
        self._flushed_at = time.monotonic()
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether it takes no more steps, for good."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise the error of a writer that is closed, or belongs to the parent process."""

    @abstractmethod
    def _end_left_open(self) -> LeftOpen | Unwritten | None:
        """Close it; return what is to be told of that, and of what is lost."""

    @property
    def is_open(self) -> bool:
        """Whether it can be written with, and has yet to be closed, by this process."""
        return not self._is_closed and self._pid == os.getpid()

    @property
    def unwritten(self) -> int:
        """How many steps were appended and are not known to be written."""
        if self._in_doubt is None:  # as nearly always: adapters ask at every step
            return 0 if self._steps.is_stored else len(self._steps)
        waiting = self._steps, self._in_doubt
        return sum(len(steps) for steps in waiting if not steps.is_stored)

    @property
    def unreturned(self) -> int:
        """How many steps were appended of which no flush has returned the position yet."""
        return len(self._untold) + self.unwritten

    def flush(self) -> np.ndarray:
        """Write what was appended and return its positions, int64 in order.

        After a flush that has failed they are those of all steps since the last one that returned.
        """
        if self._pid != os.getpid():  # before the lock, which another thread had at the fork
            self._refuse()
        return locked(self._lock, self._checked_flush)

    def _checked_flush(self) -> np.ndarray:
        if not self.is_open:
            self._refuse()
        return self._flush()

    def _flush(self) -> np.ndarray:
        self._flushed_at = time.monotonic()
        self._write_in_doubt()
        if len(self._steps):
            self._write()
        positions, self._untold = self._untold, np.empty(0, np.int64)
        return positions

    def _flush_if_due(self) -> None:
        steps = self._steps
        if (
            len(steps) >= self._flush_steps
            or steps.nbytes >= self._flush_bytes
            or time.monotonic() - self._flushed_at >= self._flush_seconds
        ):
            self._flush()

    def _write_in_doubt(self) -> None:
        """Write again, as they were, the steps of which nobody knows whether they are stored."""
        if self._in_doubt is not None:
            self._sink.write(self._in_doubt)
            self._told_of(self._in_doubt.positions)
            self._in_doubt = None

    def _write(self) -> None:
        """Write what is gathered.

        Whatever happens, no step is written twice, and those that come later are not mixed with it.
        """
        steps, following = self._steps, self._sink.gathering()
        try:
            self._sink.write(steps)
            self._told_of(steps.positions)
            self._steps = following
        except BaseException:
            if steps.is_stored:  # an interrupt came just after the commit
                self._told_of(steps.positions)
                self._steps = following
            elif steps.is_in_doubt:
                self._steps, self._in_doubt = following, steps
            raise

    def _told_of(self, positions: np.ndarray) -> None:
        is_new = len(positions) and (not len(self._untold) or self._untold[-1] < positions[0])
        if is_new:  # else an interrupt came after it was done
            self._untold = np.concatenate((self._untold, positions))

    def end_left_open(self) -> LeftOpen | Unwritten | None:
        """Close it, as there is no later time; return what is to be told of it, and of losses."""
        return locked(self._lock, self._end_left_open)

    def __del__(self) -> None:
        if getattr(self, "_pid", None) is not None and self.is_open:
            self._sink.collected(self)
