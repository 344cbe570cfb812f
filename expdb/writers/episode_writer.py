"""EpisodeWriter: write the steps of one episode."""

from __future__ import annotations  # so that annotations do not import numpy.random

import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, NoReturn, ParamSpec

from expdb import errors
from expdb.process.awaiting import AsyncExit, async_form, complete, in_thread
from expdb.process.locks import locked
from expdb.storage.writing.batches import (
    EPISODE_NAMES,
    STEP_NAMES,
    columns_of,
    rows_of,
)
from expdb.storage.writing.columnar import columnar
from expdb.storage.writing.pending_steps import step_columns
from expdb.writers.buffered_writer import BufferedWriter
from expdb.writers.unclosed_episodes import UnclosedEpisode

Parameters = ParamSpec("Parameters")


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

    def __init__(
        self,
        buffer: Any,
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
        super().__init__(buffer, flush_steps, flush_bytes, flush_seconds)
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
        if self._is_adding:
            self._refuse_nested_call()
        if not self._takes_steps:
            self._resume()
        try:
            self._is_adding = True
            ends = self._steps.add(self._episode, fields, columns)
        finally:
            self._is_adding = False
        if ends:
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
        self._refuse_nested_call()
        if not self._takes_steps:
            self._resume()
        try:
            self._is_adding = True
            ends = self._gather_batch(columns)
        finally:
            self._is_adding = False
        if ends:
            self._whole, self._takes_steps = True, False
        self._flush_if_due()

    def _gather_batch(self, batch: Any) -> bool:
        """Add all steps of a batch or none; return whether the last one ends the episode."""
        columns, episode, steps = columns_of(batch), self._episode, self._steps
        many = None
        if columns is not None and steps.rows.takes_arrays and EPISODE_NAMES.isdisjoint(columns):
            many = columnar(columns, steps.types)
        state = steps.capture_state()
        try:
            if many is not None:
                steps.extend([episode] * many.size, many)
                ends = many.ends
            else:
                rows = rows_of(batch if columns is None else columns)
                ends = [self._add_row(row, k) for k, row in enumerate(rows)]
            if True in ends[:-1]:
                raise errors.EpisodeEnded(
                    f"step {ends.index(True) + 1} of {len(ends)} ends episode "
                    f"{episode.episode_id!r}, so no step was added; pass only the steps up to "
                    f"step {ends.index(True) + 1}"
                )
        except BaseException:
            steps.restore_state(state)
            raise
        return bool(ends) and ends[-1]

    def _add_row(self, row: Mapping[str, Any], index: int) -> bool:
        fields = {name: value for name, value in row.items() if name not in STEP_NAMES}
        try:
            return self._steps.add(self._episode, fields, step_columns(row))
        except (errors.InvalidValue, errors.FieldMismatch) as error:
            errors.name_row(error, index)
            raise

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
        self._refuse_nested_call()
        self._write_in_doubt()
        if not self._is_closed:  # the write in doubt may have ended the episode
            self._write_end(status, last)

    def _write_end(self, status: str, last: Mapping[str, Any]) -> None:
        steps = self._steps
        try:
            if last:
                if not len(steps) and self._episode.id is None:
                    raise errors.InvalidValue(
                        "the final observation requires at least one step; append a step first"
                    )
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

    def _end_under_lock(self) -> UnclosedEpisode | None:
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
        return left if self._episode.own_length + left.unwritten else None

    def _refuse(self) -> NoReturn:
        if self._pid != os.getpid():
            raise errors.ForkedWithOpenConnection(
                "this episode belongs to the parent process; begin another episode in this process"
            )
        if self._resumed is not None:
            raise errors.EpisodeResumed(*self._resumed.args)
        with self._buffer._store.engine.reading():  # raises DatabaseClosed if it is closed
            pass
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
            self._buffer._writers.collected(self)
            return
        self._close("complete" if kind is None or self._whole else "aborted", {})
