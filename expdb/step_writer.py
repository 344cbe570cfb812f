"""StepWriter: steps of any episodes, gathered and written in chunks."""

import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from expdb import errors
from expdb.left_open import Unwritten
from expdb.locks import locked


class Steps(Protocol):
    """Steps that are gathered, and not written yet."""

    @property
    def nbytes(self) -> int:
        """About how many bytes they take."""

    @property
    def is_stored(self) -> bool:
        """Whether they are committed."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether nobody knows if they are: they are to be written again as they are."""

    def __len__(self) -> int: ...


class Whose(NamedTuple):
    """What a step says of its episode."""

    key: tuple[str, str]  # task and agent
    episode_id: str | None
    task_name: str | None
    group_id: str | None
    policy_version: int | None
    episode_tags: Mapping[str, Any] | None


class Sink(Protocol):
    """Where the steps go; `buffer.py` gives one, so that this file knows no storage."""

    def gathering(self) -> Any:
        """Return an empty collection of steps, which are `Steps`."""

    def gather(
        self, whose: Whose, fields: Mapping[str, Any], columns: tuple[Any, ...], steps: Any
    ) -> None:
        """Add a step, or raise and change nothing; `columns` are those of `STEP_KEYS`."""

    def write(self, steps: Any) -> np.ndarray:
        """Write them and return the positions."""

    def complete(self) -> None:
        """Complete the episodes that were begun without a name."""

    def collected(self, writer: Any) -> None:
        """Take care of a writer that nobody can use any more, at any moment."""


class StepWriter:
    """Write steps of any episodes in few transactions; made by `buffer.writer(...)`.

    `append` takes what `ReplayBuffer.store` takes, and gathers; what `flush` has returned is
    durable and visible to everybody. It flushes by itself at the append that reaches a limit, and
    when it is closed, collected or left open at the end of the program. It is for vector
    environments and for loops that store one step at a time: hundreds of steps share a commit.
    Threads may share it.

    >>> with buffer.writer(flush_steps=512) as writer:  # doctest: +SKIP
    ...     for k, (obs, action, reward) in enumerate(steps):
    ...         writer.append(agent_id=f"env-{k}", obs=obs, action=action, reward=reward)
    """

    def __init__(self, sink: Sink, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._sink, self._flush_steps = sink, flush_steps
        self._flush_bytes, self._flush_seconds = flush_bytes, flush_seconds
        self._steps = sink.gathering()
        # steps of which nobody knows whether they are stored; they are written before any others
        self._in_doubt: Any = None
        self._flushed_at = time.monotonic()
        self._is_closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def append(
        self,
        /,  # a field may be called self
        *,
        task_id: str = "default",
        agent_id: str = "agent",
        task_name: str | None = None,
        step: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        pre_agent: str | None = None,
        execute_time: float | None = None,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        policy_version: int | None = None,
        policy_version_end: int | None = None,
        tags: Mapping[str, Any] | None = None,
        episode_tags: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Add a step; it is durable after the next flush.

        Arguments are those of `ReplayBuffer.store`, and values are copied: the environment may
        write into the same arrays again. Raises as `store` does, and adds nothing then.
        """
        whose = Whose(
            (task_id, agent_id), episode_id, task_name, group_id, policy_version, episode_tags
        )
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end,
        )  # fmt: skip
        with self._lock: self._append(whose, fields, columns)  # fmt: skip

    def _append(self, whose: Whose, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if self._is_closed or self._pid != os.getpid():
            self._refuse()
        steps = self._steps
        self._sink.gather(whose, fields, columns, steps)
        if (
            len(steps) >= self._flush_steps
            or steps.nbytes >= self._flush_bytes
            or time.monotonic() - self._flushed_at >= self._flush_seconds
        ):
            self._flush()

    def flush(self) -> np.ndarray:
        """Write what was appended and return its positions, int64 in order."""
        return locked(self._lock, self._checked_flush)

    def _checked_flush(self) -> np.ndarray:
        if not self.is_open:
            self._refuse()
        return self._flush()

    def _flush(self) -> np.ndarray:
        self._flushed_at = time.monotonic()
        positions = [self._write_in_doubt()]
        if len(self._steps):
            positions.append(self._write())
        return np.concatenate(positions)

    def _write_in_doubt(self) -> np.ndarray:
        """Write again, as they were, the steps of which nobody knows whether they are stored."""
        if self._in_doubt is None:
            return np.empty(0, np.int64)
        positions = self._sink.write(self._in_doubt)
        self._in_doubt = None
        return positions

    def _write(self) -> np.ndarray:
        """Write what is gathered; whatever happens, no step is written twice."""
        steps, following = self._steps, self._sink.gathering()
        try:
            positions = self._sink.write(steps)
            self._steps = following
        except BaseException:
            if steps.is_stored:  # an interrupt came just after the commit
                self._steps = following
            elif steps.is_in_doubt:
                self._steps, self._in_doubt = following, steps
            raise
        return positions

    def close(self) -> None:
        """Flush, and complete the episodes that were begun without an `episode_id`."""
        if self._pid == os.getpid():
            locked(self._lock, self._close)

    def _close(self) -> None:
        if not self._is_closed:
            self._flush()
            self._sink.complete()
            self._is_closed = True

    @property
    def is_open(self) -> bool:
        """Whether it takes steps, in this process."""
        return not self._is_closed and self._pid == os.getpid()

    @property
    def unwritten(self) -> int:
        """How many steps were appended and are not known to be written."""
        waiting = [steps for steps in (self._steps, self._in_doubt) if steps is not None]
        return sum(len(steps) for steps in waiting if not steps.is_stored)

    def end_left_open(self) -> "Unwritten | None":
        """Close it; return what is lost where that cannot be done, as there is no later time."""
        return locked(self._lock, self._end_left_open)

    def _end_left_open(self) -> "Unwritten | None":
        if not self.is_open:
            return None
        try:
            self._close()
        except Exception as error:
            self._is_closed = True
            return Unwritten(self.unwritten, error) if self.unwritten else None
        return None

    def __del__(self) -> None:
        # Without `_pid` its making was interrupted.
        if getattr(self, "_pid", None) is not None and self.is_open:
            self._sink.collected(self)

    def _refuse(self) -> None:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this writer belongs to the parent process: make another one here"
            )
        raise errors.InvalidValue("the writer is closed: make another one with buffer.writer")

    def __enter__(self) -> "StepWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:  # maybe from the garbage collector, in the midst of anything
            return self._sink.collected(self)
        self.close()
