"""EpisodeWriter and StepWriter: steps are gathered, and written once whatever happens."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from expdb import errors
from expdb.names import DEFAULT_TASK, TaskReminder
from expdb.process.locks import locked
from expdb.storage.writing.batches import flatten_rollout
from expdb.writers.left_open import LeftOpen, Unwritten
from expdb.writers.sinks import EpisodeSink, StepSink


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
        """Write the steps that are gathered and return their positions, int64 in order.

        Steps that were written before, at a limit of the writer, are not among them. If the last
        flush failed, its steps are.
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
            self._steps = self._sink.gathering()  # not `following`: the write may add fields
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


class EpisodeWriter(GatheringWriter):
    """Write one new episode; made by `buffer.episode(...)`, used with `with`.

    `append` gathers steps, and flushes at a limit; what `flush` or the end of the block has
    returned is durable. Leaving the block completes the episode; an exception in it flushes what
    was appended and marks the episode aborted, as `abort` does. A writer that is left open is
    flushed when the database is closed, the program exits or the writer is collected, and its
    episode marked aborted, or complete where its last step says so; with an ExpDBWarning.

    >>> with buffer.episode("CartPole-v1/17") as episode:  # doctest: +SKIP
    ...     episode.append(obs=obs, action=action, reward=reward, terminated=terminated)
    ...     episode.end(obs=last_obs)
    """

    _begun_at = ("?", 0)  # before it was made, too: that may be interrupted

    _sink: EpisodeSink

    def __init__(
        self,
        sink: EpisodeSink,
        episode: Any,
        flush_steps: int,
        flush_bytes: int,
        flush_seconds: float,
    ):
        self._episode = episode
        self._takes_steps = True
        self._whole = False  # whether the last step ends the episode
        self._last: Any = None  # what is, or was to be, the write that ends the episode
        self._given_up = self._in_block = False
        super().__init__(sink, flush_steps, flush_bytes, flush_seconds)
        frame, _ = errors.calling_frame()
        # Put together only where it is told.
        self._begun_at = (
            frame.f_code.co_filename,
            frame.f_lineno,
        )

    @property
    def begun_at(self) -> str:
        """Where in the program the episode was begun, "file:line"."""
        return f"{self._begun_at[0]}:{self._begun_at[1]}"

    @property
    def is_whole(self) -> bool:
        """Whether the last step that was appended ends the episode: by terminated or truncated."""
        return self._whole

    @property
    def episode_id(self) -> str:
        """The name of the episode, unique in the buffer."""
        return str(self._episode.episode_id)

    def append(
        self,
        /,  # a field may be called self
        *positional: Any,
        step: int | None = None,
        pre_agent: str | None = None,
        execute_time: float | None = None,
        reward: float | None = None,
        terminated: bool = False,
        truncated: bool = False,
        tags: Mapping[str, Any] | None = None,
        policy_version: int | None = None,
        policy_version_end: int | None = None,
        **fields: Any,
    ) -> None:
        """Add a step; it is durable after the next flush.

        Arguments and errors as of `ReplayBuffer.store`.

        Values are copied: the environment may write into the same arrays again.
        """
        if positional:
            raise errors.InvalidValue(
                f"append() accepts only keyword arguments, got {positional[0]!r}; call "
                "append(obs=..., action=..., reward=...)"
            )
        if self._pid != os.getpid():
            self._refuse()
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end,
        )  # fmt: skip
        with self._lock: self._append(fields, columns)  # fmt: skip

    def _append(self, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if not self._takes_steps:
            self._resume()
        if self._steps.add(self._episode, fields, columns):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def extend(self, columns: Any) -> None:
        """Add many steps given as columns: sequences or arrays [steps, ...] of one length.

        Scalars are broadcast, and a list of rows is accepted, as by `store_batch`. If any step is
        invalid, no step is added and the error of `append` is raised. Raises EpisodeEnded if a
        step before the last one ends the episode. Arrays of known fields are encoded together.

        >>> episode.extend({"obs": obs, "action": actions, "reward": rewards})  # doctest: +SKIP
        """
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._extend, columns)

    def _extend(self, columns: Any) -> None:
        if not self._takes_steps:
            self._resume()
        if self._sink.gather_many(self._episode, columns, self._steps):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def end(self, **last: Any) -> None:
        """Complete the episode, keeping the observation after its last step.

        It becomes `next_<field>` of that step.
        """
        self._close("complete", last)

    def abort(self, **last: Any) -> None:
        """Flush, and mark the episode aborted.

        What it came to is kept, where given, as by `end`.
        """
        self._close("aborted", last)

    def _close(self, status: str, last: Mapping[str, Any]) -> None:
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._end, status, last)

    def _end(self, status: str, last: Mapping[str, Any]) -> None:
        if self._is_closed:
            self._refuse()
        self._write_in_doubt()
        if not self._is_closed:  # else it was an earlier end that was in doubt
            self._write_end(status, last)

    def _write_end(self, status: str, last: Mapping[str, Any]) -> None:
        steps = self._steps
        try:
            if last:
                if not len(steps) and self._episode.id is None:
                    raise errors.InvalidValue(
                        "end() of an episode without a step: append one first"
                    )
                steps.add_final(last)
            steps.end(self._episode, status)
            self._takes_steps, self._last = False, steps
            self._write()
        except BaseException:
            if not steps.is_stored and not steps.is_in_doubt:
                steps.take_back_end()
                self._last, self._takes_steps = None, not self._whole
            raise

    def _resume(self) -> None:
        """Take steps again after an end() that was interrupted before anything was written.

        Raise EpisodeEnded after any other.
        """
        if self._whole or self._is_closed or self._in_doubt is not None or self._last is None:
            self._refuse()
        self._steps.take_back_end()
        self._last, self._takes_steps = None, True

    @property
    def _is_closed(self) -> bool:
        """Whether the episode has ended."""
        return self._given_up or (self._last is not None and self._last.is_stored)

    @property
    def length(self) -> int:
        """How many steps the episode has, those included that are not written yet."""
        return int(self._episode.length) + self.unwritten

    @property
    def unwritten(self) -> int:
        """How many steps were appended and are not known to be written."""
        return 0 if self._given_up else super().unwritten

    def _end_left_open(self) -> LeftOpen | None:
        # Complete where its last step says so, else aborted. Steps that cannot be written are
        # given up.
        if not self.is_open:
            return None
        left = LeftOpen(
            self.episode_id,
            self.begun_at,
            "complete" if self._whole else "aborted",
            self.unwritten,
            self.length,
            self._in_block,
        )
        try:
            self._end(left.status, {})
        except Exception as error:
            self._given_up, self._takes_steps = True, False
            return left._replace(error=error)
        return left if left.length else None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this episode belongs to the parent process: begin another one here"
            )
        raise errors.EpisodeEnded(
            f"episode {self.episode_id!r} has ended: begin another one with buffer.episode"
        )

    def __enter__(self) -> EpisodeWriter:
        self._in_block = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_open:
            return
        if kind is GeneratorExit:  # maybe from the garbage collector, in the midst of anything
            return self._sink.collected(self)
        self._close("complete" if kind is None else "aborted", {})


class Whose(NamedTuple):
    """What a step says of its episode."""

    key: tuple[str, str]  # task and agent
    episode_id: str | None
    policy_version: int | None
    task_name: str | None
    group_id: str | None
    episode_tags: Mapping[str, Any] | None


class StepWriter(GatheringWriter):
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

    _sink: StepSink

    def __init__(self, sink: StepSink, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._has_ended = False
        self._task_reminder = TaskReminder()
        super().__init__(sink, flush_steps, flush_bytes, flush_seconds)

    def append(
        self,
        /,  # a field may be called self
        *positional: Any,
        task_id: str = DEFAULT_TASK,
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
        if positional:
            raise errors.InvalidValue(
                f"append() accepts only keyword arguments, got {positional[0]!r}; call "
                "append(obs=..., action=..., reward=...)"
            )
        if task_id is DEFAULT_TASK:
            if warning := self._task_reminder.count_step(task_id, terminated or truncated):
                errors.warn(warning)
            task_id = "default"
        whose = Whose(
            (task_id, agent_id), episode_id, policy_version, task_name, group_id, episode_tags
        )
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end,
        )  # fmt: skip
        if self._pid != os.getpid():  # before the lock, which another thread had at the fork
            self._refuse()
        with self._lock: self._append(whose, fields, columns)  # fmt: skip

    def extend(self, columns: Any, agents: Sequence[str] | None = None) -> None:
        """Add many steps, given as columns.

        `extend` adds all steps or none. The next flush makes them durable. For fields that the
        buffer already has, arrays are much faster than one `append` per step.

        Parameters
        ----------
        columns : mapping, table or list of mappings
            A batch as for `ReplayBuffer.store_batch`. A scalar applies to every step.
        agents : sequence of str, optional
            The `agent_id` of each of N agents. Each column is then [T, N, ...], T steps per agent,
            such as the rollout of a vectorised environment. The steps of one agent are stored at
            consecutive positions. A step after a terminated or truncated step starts a new episode.

        Raises
        ------
        InvalidValue
            If `agents` is given and a column is not [T, N, ...], or for the reasons that
            `ReplayBuffer.store` gives.

        Examples
        --------
        >>> writer.extend({"agent_id": names, "obs": obs, "action": actions})  # doctest: +SKIP
        >>> rollout = {"obs": obs, "reward": rewards}  # doctest: +SKIP
        >>> writer.extend(rollout, agents=["env0", "env1"])  # doctest: +SKIP
        """
        if self._pid != os.getpid():
            self._refuse()
        if agents is not None:
            columns = flatten_rollout(columns, agents)
        locked(self._lock, self._extend, columns)

    def forget_episodes(self) -> None:
        """Start new episodes with the next steps, because the buffer was cleared."""
        self._sink.forget_episodes()

    def _extend(self, columns: Any) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather_many(columns, self._steps)
        self._flush_if_due()

    def _append(self, whose: Whose, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather(whose, fields, columns, self._steps)
        self._flush_if_due()

    def close(self) -> None:
        """Flush, and complete the episodes that were begun without an `episode_id`."""
        self._finish("complete")

    def _finish(self, status: str) -> None:
        if self._pid == os.getpid():
            locked(self._lock, self._close, status)

    def _close(self, status: str) -> None:
        if not self._has_ended:
            self._flush()
            self._sink.end_all(status)
            self._has_ended = True

    @property
    def _is_closed(self) -> bool:
        return self._has_ended

    def _end_left_open(self) -> Unwritten | None:
        if not self.is_open:
            return None
        try:
            self._close("aborted")
        except Exception as error:
            self._has_ended = True
            return Unwritten(self.unwritten, error) if self.unwritten else None
        return None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this writer belongs to the parent process: make another one here"
            )
        raise errors.InvalidValue("the writer is closed: make another one with buffer.writer")

    def __enter__(self) -> StepWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:  # maybe from the garbage collector, in the midst of anything
            return self._sink.collected(self)
        self._finish("complete" if kind is None else "aborted")
