"""EpisodeWriter and StepWriter: gather steps, and write each of them exactly once."""

from __future__ import annotations  # so that annotations do not import numpy.random

import functools
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec

import numpy as np

from expdb import errors
from expdb.names import DEFAULT_TASK, TaskReminder
from expdb.process.awaiting import AsyncExit, async_form, complete, in_thread
from expdb.process.locks import locked
from expdb.storage.writing.batches import flatten_rollout
from expdb.writers.sinks import EpisodeSink, StepSink
from expdb.writers.unclosed_episodes import LostSteps, UnclosedEpisode

Parameters = ParamSpec("Parameters")

log = logging.getLogger(__name__)


def async_append_form(
    method: Callable[Concatenate[Any, Parameters], None],
) -> Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, None]]:
    """Return the asynchronous form of a method of EpisodeWriter that adds steps.

    It starts a thread only to flush or to wait for the writer's lock, because starting a thread
    takes longer than adding a step.
    """
    call_in_thread = async_form(method)

    @functools.wraps(call_in_thread)
    async def form(
        writer: EpisodeWriter, /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> None:
        if not writer._lock.acquire(blocking=False):  # another thread uses the writer
            return await call_in_thread(writer, *arguments, **named)
        try:
            writer._defers_flush = True
            method(writer, *arguments, **named)
        finally:
            writer._defers_flush = False
            writer._lock.release()
        if writer._is_flush_due():
            flush = in_thread(locked, writer._lock, writer._flush_if_due)
            await complete(flush, f"{form.__name__}()")
        return None

    return form


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

    def __init__(self, sink: Any, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._sink, self._flush_steps = sink, flush_steps
        self._flush_bytes, self._flush_seconds = flush_bytes, flush_seconds
        self._steps = sink.create_steps()
        # Steps of a commit with unknown outcome. They are written again before any other steps.
        self._in_doubt: Any = None
        self._unreturned = np.empty(0, np.int64)  # positions that no flush has returned yet
        self._flushed_at = time.monotonic()
        self._defers_flush = False  # True while `append_async` or `extend_async` adds steps
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Whether the writer is closed, a bool."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise the error of a closed writer or of a writer of the parent process."""

    @abstractmethod
    def _end_left_open(self) -> UnclosedEpisode | LostSteps | None:
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

    def _flush_if_open(self) -> np.ndarray:
        if not self.is_open:
            self._refuse()
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

    def has_overdue_steps(self, now: float) -> bool:
        """Return whether appended steps have waited for `flush_seconds` at the time `now`.

        Steps of a commit with unknown outcome are ignored: a call of the writer must report them.
        """
        is_overdue = now - self._flushed_at >= self._flush_seconds
        return is_overdue and self._in_doubt is None and len(self._steps) > 0

    def flush_overdue_steps(self) -> None:
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

    def next_flush_time(self, now: float) -> float:
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
            self._sink.write(self._in_doubt)
            self._add_unreturned(self._in_doubt.positions)
            self._in_doubt = None

    def _write(self) -> None:
        """Write the gathered steps.

        No step is written twice. If the outcome of the commit is unknown, later steps are gathered
        separately.
        """
        steps, following = self._steps, self._sink.create_steps()
        try:
            self._write_others(steps)
            self._add_unreturned(steps.positions)
            self._steps = self._sink.create_steps()  # not `following`: the write may add fields
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
            self._sink.write(steps)
        except (errors.InvalidValue, errors.Evicted) as error:
            if not error.discarded_steps:
                raise
            self._write_others(steps)
            raise

    def _add_unreturned(self, positions: np.ndarray) -> None:
        # An interrupt may repeat the call with the same positions.
        if not np.array_equal(
            self._unreturned[len(self._unreturned) - len(positions) :], positions
        ):
            self._unreturned = np.concatenate((self._unreturned, positions))

    def end_left_open(self) -> UnclosedEpisode | LostSteps | None:
        """Close a writer that the program left open, without raising; for internal use.

        Returns
        -------
        UnclosedEpisode, LostSteps or None
            The warning to emit, or None if there is nothing to report.
        """
        return locked(self._lock, self._end_left_open)

    def __del__(self) -> None:
        if getattr(self, "_pid", None) is not None and self.is_open:
            self._sink.collected(self)


class EpisodeWriter(BufferedWriter, AsyncExit["EpisodeWriter"]):
    """Write one episode, which is new or resumed.

    `ReplayBuffer.episode` returns a writer. Use it in a ``with`` or ``async with`` statement:
    leaving the block completes the episode. An exception in the block flushes the appended steps
    and marks the episode aborted, as `abort` does, unless the last step is terminated or truncated.

    `append` and `extend` gather steps, and flush them at a limit. Steps are durable and visible to
    every process when `flush`, `end` or `abort` returns, or when the block ends.

    A writer that is left open is flushed when the database is closed, the program exits or the
    writer is garbage-collected. Its episode is then marked aborted, or complete if its last step is
    terminated or truncated, and an ExpDBWarning reports it. An episode without steps is not stored.

    Examples
    --------
    >>> with buffer.episode("CartPole-v1/17") as episode:  # doctest: +SKIP
    ...     episode.append(obs=obs, action=action, reward=reward, terminated=terminated)
    ...     episode.end(obs=last_obs)
    """

    _begun_at = ("?", 0)  # in case an interrupt stops the constructor

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
        self._whole = bool(episode.is_over)  # whether the last step ends the episode
        self._takes_steps = not self._whole
        self._last: Any = None  # the steps of the write that ends the episode or failed to end it
        self._given_up = self._in_block = False
        self._resumed: errors.EpisodeResumed | None = None  # raised when another writer resumed it
        super().__init__(sink, flush_steps, flush_bytes, flush_seconds)
        # `begun_at` formats it only when it is read.
        self._begun_at = errors.current_line()

    @property
    def begun_at(self) -> str:
        """The line of the program that began the episode, a str such as ``train.py:12``."""
        return f"{self._begun_at[0]}:{self._begun_at[1]}"

    @property
    def is_whole(self) -> bool:
        """Whether the last appended step is terminated or truncated, a bool."""
        return self._whole

    @property
    def episode_id(self) -> str:
        """The id of the episode, a str that is unique in the buffer."""
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
        agent_id: str | None = None,
        **fields: Any,
    ) -> None:
        """Add a step, which the next flush makes durable.

        The append that reaches a limit of the writer flushes. Values are copied, so the environment
        may reuse its arrays. If a value is refused, no step is added. If the flush fails, the
        writer keeps the step, and the next flush writes it.

        Parameters
        ----------
        *positional
            Not accepted; pass every value by keyword.
        step : int, optional
            Number of the step within its episode. Defaults to the greatest step number of the
            agent in the episode plus 1, or 0 for its first step. A step whose number is taken is
            not stored again, and its values must equal those of the stored step.
        pre_agent : str, optional
            Name of the agent that acted before this step.
        execute_time : float, optional
            Time of the step in Unix seconds. Defaults to the current time.
        reward : float, optional
            Reward of the step, from -1e300 to 1e300. By default, the reward is unknown.
        terminated : bool, default False
            Whether the step ends the episode in a terminal state.
        truncated : bool, default False
            Whether the step ends the episode for another reason, such as a time limit.
        tags : mapping of str, optional
            Tags of the step, stored as JSON. Queries name them ``tags.<key>``.
        policy_version : int, optional
            Version of the policy that generated the step. Defaults to the version of the episode.
        policy_version_end : int, optional
            Version of the policy that finished the step, if the weights were updated during the
            step.
        agent_id : str, optional
            Agent that acts in the step, if several agents act in the episode. Defaults to the agent
            of the episode.
        **fields
            Data of the agent under any names: arrays, numbers, text, bytes, dicts, lists of
            messages, dataclasses, pydantic models.

        Raises
        ------
        EpisodeEnded
            If the episode has ended, or its last step is terminated or truncated.
        EpisodeResumed
            If a flush finds that another writer has resumed the episode. This writer is then
            closed, and its gathered steps are lost.
        EpisodeMismatch
            If a flush finds that another process has begun an episode with the same `episode_id`.
        InvalidValue
            If a value or a name is invalid, or a value is passed by position.
        ReservedName
            If a field has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
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

        Warns
        -----
        ExpDBWarning
            If the name of a new field resembles the name of a column or of another field.
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
            policy_version, policy_version_end, agent_id,
        )  # fmt: skip
        with self._lock: self._append(fields, columns)  # fmt: skip

    def _append(self, fields: Mapping[str, Any], columns: tuple[Any, ...]) -> None:
        if not self._takes_steps:
            self._resume()
        if self._steps.add(self._episode, fields, columns):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def extend(self, columns: Any) -> None:
        """Add many steps, which the next flush makes durable.

        If any step is refused, no step is added. Arrays of fields that the buffer already has are
        encoded together, which is much faster than one `append` per step.

        Parameters
        ----------
        columns : mapping, table or list of mappings
            A batch as for `ReplayBuffer.store_batch`: sequences or arrays of shape (steps, ...) by
            name, an Arrow table, or one mapping per step. A scalar applies to every step. Columns
            of the whole episode, such as `task_id`, are not accepted.

        Raises
        ------
        EpisodeEnded
            If the episode has ended, if its last step is terminated or truncated, or if a step in
            `columns` other than the last step is terminated or truncated.
        EpisodeMismatch
            If a flush finds that another process has begun an episode with the same `episode_id`.
        InvalidValue
            If a value or a name is invalid, or the columns have different lengths.
        ReservedName
            If a field has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
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

        Warns
        -----
        ExpDBWarning
            If the name of a new field resembles the name of a column or of another field.

        Examples
        --------
        >>> episode.extend({"obs": obs, "action": actions, "reward": rewards})  # doctest: +SKIP
        """
        if self._pid != os.getpid():
            self._refuse()
        locked(self._lock, self._extend, columns)

    def _extend(self, columns: Any) -> None:
        if not self._takes_steps:
            self._resume()
        if self._sink.gather_batch(self._episode, columns, self._steps):
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def end(self, **last: Any) -> None:
        """Write the gathered steps and complete the episode.

        If the final observation is refused, the episode stays open.

        Parameters
        ----------
        **last
            The observation after the last step, such as ``obs=...``. It becomes `next_<field>` of
            that step.

        Raises
        ------
        EpisodeEnded
            If this process or another process has already ended the episode.
        InvalidValue
            If `last` is given and the episode has no step, if `last` has a column of a step or
            lacks the observation, or if a value is invalid.
        ReservedName
            If a field in `last` has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
        EpisodeMismatch
            If another process has begun an episode with the same `episode_id`.
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

        Examples
        --------
        >>> episode.end(obs=last_obs)  # doctest: +SKIP
        """
        self._close("complete", last)

    def abort(self, **last: Any) -> None:
        """Write the gathered steps and mark the episode aborted.

        If the final observation is refused, the episode stays open.

        Parameters
        ----------
        **last
            The observation after the last step, as for `end`.

        Raises
        ------
        EpisodeEnded
            If this process or another process has already ended the episode.
        InvalidValue
            If `last` is given and the episode has no step, if `last` has a column of a step or
            lacks the observation, or if a value is invalid.
        ReservedName
            If a field in `last` has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
        EpisodeMismatch
            If another process has begun an episode with the same `episode_id`.
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
        if not self._is_closed:  # the write in doubt may have ended the episode
            self._write_end(status, last)

    def _write_end(self, status: str, last: Mapping[str, Any]) -> None:
        steps = self._steps
        try:
            if last:
                if not len(steps) and self._episode.id is None:
                    raise errors.InvalidValue("end() requires at least one step; append one first")
                steps.add_final(last)
            steps.end(self._episode, status)
            self._takes_steps, self._last = False, steps
            self._write()
        except BaseException:
            if not steps.is_stored and not steps.is_in_doubt:
                steps.take_back_end()
                self._last, self._takes_steps = None, not (self._whole or self._given_up)
            raise

    def _write(self) -> None:
        steps = self._steps
        try:
            super()._write()
        except (errors.InvalidValue, errors.Evicted) as error:
            if error.discarded_steps and self._last is None and not steps.ends_episode:
                self._whole, self._takes_steps = False, True  # the last step was discarded
            raise
        except errors.EpisodeResumed as error:  # another writer has the episode now
            self._resumed, self._given_up, self._takes_steps = error, True, False
            raise

    def _resume(self) -> None:
        """Accept steps again after an `end` that was interrupted before it wrote anything.

        In every other state, raise EpisodeEnded.
        """
        if self._whole or self._is_closed or self._in_doubt is not None or self._last is None:
            self._refuse()
        self._steps.take_back_end()
        self._last, self._takes_steps = None, True

    @property
    def _is_closed(self) -> bool:
        """Whether the episode has ended, a bool."""
        return self._given_up or (self._last is not None and self._last.is_stored)

    @property
    def length(self) -> int:
        """The number of steps of the episode, including unwritten steps, an int."""
        return int(self._episode.length) + self.unwritten

    @property
    def unwritten(self) -> int:
        """The number of appended steps that are not known to be stored, an int."""
        return 0 if self._given_up else super().unwritten

    def _end_left_open(self) -> UnclosedEpisode | None:
        # The episode is complete if its last step ends it, else aborted. If its steps cannot be
        # written, they are lost.
        if not self.is_open:
            return None
        left = UnclosedEpisode(
            self.episode_id,
            self.begun_at,
            "complete" if self._whole else "aborted",
            self.unwritten,
            self.length,
            self._in_block,
        )
        try:
            self._end(left.status, {})
        except errors.EpisodeResumed as error:
            return left._replace(error=error) if left.unwritten else None
        except Exception as error:
            self._given_up, self._takes_steps = True, False
            return left._replace(error=error)
        return left if left.length else None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this episode belongs to the parent process; begin another episode in this process"
            )
        if self._resumed is not None:
            raise errors.EpisodeResumed(*self._resumed.args)
        self._sink.require_open()
        raise errors.EpisodeEnded(
            f"episode {self.episode_id!r} has ended; begin another episode with buffer.episode()"
        )

    append_async = async_append_form(append)
    extend_async = async_append_form(extend)
    end_async = async_form(end)
    abort_async = async_form(abort)

    def __enter__(self) -> EpisodeWriter:
        self._in_block = True
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if not self.is_open:
            return
        if kind is GeneratorExit:  # the garbage collector may raise it at any time
            return self._sink.collected(self)
        self._close("complete" if kind is None or self._whole else "aborted", {})


class EpisodeArguments(NamedTuple):
    """The arguments of a step that concern its episode."""

    key: tuple[str, str]  # task and agent
    episode_id: str | None
    policy_version: int | None
    task_name: str | None
    group_id: str | None
    episode_tags: Mapping[str, Any] | None


class StepWriter(BufferedWriter, AsyncExit["StepWriter"]):
    """Write the steps of any number of episodes in few transactions.

    Use it for vector environments and for loops that store one step at a time: hundreds of steps
    share a commit. `ReplayBuffer.writer` returns a writer. Threads may share it.

    `append` takes the arguments of `ReplayBuffer.store` and gathers steps. Steps are durable and
    visible to every process when `flush` or `close` returns. The writer also flushes by itself at
    the `append` or `extend` that reaches a limit, and when it is closed, garbage-collected or left
    open at the end of the program.

    Use the writer in a ``with`` or ``async with`` statement. When the block ends, the episodes that
    the writer began without an `episode_id` are completed. If the block ends by an exception, or
    the writer is left open, these episodes are marked aborted. Episodes with an `episode_id` stay
    open until one of their steps is terminated or truncated, or until `ReplayBuffer.end_episode`.

    Examples
    --------
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
        agent_id: str | None = None,
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
        """Add a step, which the next flush makes durable.

        The append that reaches a limit of the writer flushes. Values are copied, so the environment
        may reuse its arrays. If a value is refused, no step is added. If the flush fails, the
        writer keeps the step, and the next flush writes it.

        Parameters
        ----------
        *positional
            Not accepted; pass every value by keyword.
        task_id : str, default "default"
            Task that the episode belongs to.
        agent_id : str, optional
            Agent that acts in the step. By default, the agent of the episode, or ``"agent"`` in a
            new episode.
        task_name : str, optional
            Human-readable name of the task.
        step : int, optional
            Number of the step within its episode. Defaults to the greatest step number of the
            agent in the episode plus 1, or 0 for its first step. Without `episode_id`, a step
            begins another episode if its number is at most the greatest step number of the open
            episode.
        episode_id : str, optional
            Id of the episode, unique in the buffer. By default, the step belongs to the open
            episode of this writer, task and agent; the step after a terminated or truncated step
            begins another one.
        group_id : str, optional
            Group of the episode, for units such as `expdb.Group`.
        pre_agent : str, optional
            Name of the agent that acted before this step.
        execute_time : float, optional
            Time of the step in Unix seconds. Defaults to the current time.
        reward : float, optional
            Reward of the step, from -1e300 to 1e300. By default, the reward is unknown.
        terminated : bool, default False
            Whether the step ends the episode in a terminal state.
        truncated : bool, default False
            Whether the step ends the episode for another reason, such as a time limit.
        policy_version : int, optional
            Version of the policy that generated the step. Defaults to the version of the episode,
            which is the version of its first step.
        policy_version_end : int, optional
            Version of the policy that finished the step, if the weights were updated during the
            step.
        tags : mapping of str, optional
            Tags of the step, stored as JSON. Queries name them ``tags.<key>``.
        episode_tags : mapping of str, optional
            Tags of the episode, stored as JSON. Queries name them ``episode_tags.<key>``.
        **fields
            Data of the agent under any names: arrays, numbers, text, bytes, dicts, lists of
            messages, dataclasses, pydantic models.

        Raises
        ------
        InvalidValue
            If a value or a name is invalid, a value is passed by position, or the writer is closed.
        ReservedName
            If a field has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
        EpisodeEnded
            If the episode has ended.
        EpisodeMismatch
            If the episode has another task, agent, group or `task_name`.
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

        Warns
        -----
        ExpDBWarning
            If the name of a new field resembles the name of a column or of another field, if two
            threads or asyncio tasks add steps to one episode without an `episode_id`, or if 1,000
            episodes end without a `task_id`.
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
        arguments = EpisodeArguments(
            (task_id, "agent" if agent_id is None else agent_id), episode_id, policy_version,
            task_name, group_id, episode_tags,
        )  # fmt: skip
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end, agent_id,
        )  # fmt: skip
        if self._pid != os.getpid():  # before the lock, which may have been locked at the fork
            self._refuse()
        with self._lock: self._append(arguments, fields, columns)  # fmt: skip

    def extend(self, columns: Any, agents: Sequence[str] | None = None) -> None:
        """Add many steps, which the next flush makes durable.

        If any step is refused, no step is added. For fields that the buffer already has, arrays are
        much faster than one `append` per step.

        Parameters
        ----------
        columns : mapping, table or list of mappings
            A batch as for `ReplayBuffer.store_batch`. A scalar applies to every step.
        agents : sequence of str, optional
            The `agent_id` of each of N agents. Each column then has the shape (T, N, ...), with T
            steps per agent, such as the rollout of a vectorised environment. Columns of episodes,
            such as `task_id`, may have one value per agent. The steps of one agent are stored at
            consecutive positions. A step after a terminated or truncated step starts a new
            episode.

        Raises
        ------
        InvalidValue
            If a value or a name is invalid, the columns have different lengths, `agents` is given
            and a column does not have the shape (T, N, ...), or the writer is closed.
        ReservedName
            If a field has the name of a column, of a batch key or of a derived key.
        FieldMismatch
            If a value has another type or shape than its field.
        EpisodeEnded
            If an episode of the steps has ended.
        EpisodeMismatch
            If an episode has another task, agent, group or `task_name`.
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

        Warns
        -----
        ExpDBWarning
            If the name of a new field resembles the name of a column or of another field, or if
            two threads or asyncio tasks add steps to one episode without an `episode_id`.

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
        """Start new episodes with the next steps; `ReplayBuffer.clear` calls it."""
        self._sink.forget_episodes()

    def _extend(self, columns: Any) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather_batch(columns, self._steps)
        self._flush_if_due()

    def _append(
        self, arguments: EpisodeArguments, fields: Mapping[str, Any], columns: tuple[Any, ...]
    ) -> None:
        if self._has_ended:
            self._refuse()
        self._sink.gather(arguments, fields, columns, self._steps)
        self._flush_if_due()

    def close(self) -> None:
        """Write the gathered steps and complete the episodes begun without an `episode_id`.

        Calling `close` again, or in a forked child, has no effect. If the flush fails, the writer
        stays open.

        Raises
        ------
        EpisodeEnded
            If another process has ended an episode of the steps.
        EpisodeMismatch
            If another process has begun an episode with the same `episode_id`.
        FieldMismatch
            If another process has given a field another type.
        InvalidValue
            If the rate limiter of the buffer never allows this number of steps in one write.
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
            If the buffer was dropped while the writer had unwritten steps.
        """
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

    def _end_left_open(self) -> LostSteps | None:
        if not self.is_open:
            return None
        try:
            self._close("aborted")
        except Exception as error:
            self._has_ended = True
            return LostSteps(self.unwritten, error) if self.unwritten else None
        return None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this writer belongs to the parent process; create another writer in this process"
            )
        raise errors.InvalidValue(
            "the writer is closed; create another writer with buffer.writer()"
        )

    append_async = async_form(append)
    extend_async = async_form(extend)
    close_async = async_form(close)

    def __enter__(self) -> StepWriter:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is GeneratorExit:  # the garbage collector may raise it at any time
            return self._sink.collected(self)
        self._finish("complete" if kind is None else "aborted")
