"""StepWriter: write the steps of any number of episodes."""

from __future__ import annotations  # so that annotations do not import numpy.random

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from expdb import errors
from expdb.names import DEFAULT_TASK, TaskReminder
from expdb.process.awaiting import AsyncExit, async_form
from expdb.process.locks import locked
from expdb.storage.writing.batches import columns_of, flatten_rollout, rows_of, split_step
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.writers.buffered_writer import BufferedWriter
from expdb.writers.unclosed_episodes import LostSteps


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

    _episodes: OpenEpisodes

    def __init__(self, buffer: Any, flush_steps: int, flush_bytes: int, flush_seconds: float):
        self._queue = buffer._write_queue
        self._episodes = OpenEpisodes(buffer._store, self._queue.episodes.run)
        self._has_ended = False
        self._task_reminder = TaskReminder()
        super().__init__(buffer, flush_steps, flush_bytes, flush_seconds)

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
        parent: str | None = None,
        parent_step: int | None = None,
        relation: str | None = None,
        trainable: bool | None = None,
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
        parent : str, optional
            `episode_id` of the parent, which this episode branches from, continues or was started
            by. Pass `parent`, `parent_step` and `relation` with the first step of the episode.
        parent_step : int, optional
            Number of the step of the parent at which this episode begins. For a fork or a retry,
            this is the first step that differs. For other relations, it is the step that started
            this episode. Required for a fork; 0 by default for a retry.
        relation : {"fork", "retry", "subagent", "continuation", "compaction"}, optional
            Relation to the parent, required with `parent`. A fork or a retry shares the steps of
            the parent before `parent_step`. It stores only its own steps, which are numbered from
            `parent_step` on.
        trainable : bool, default True
            Whether `expdb.Tokens` returns rows of this episode. Forks of the episode still train on
            the steps that they share with it.
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
        key = task_id, "agent" if agent_id is None else agent_id
        details = task_name, group_id, episode_tags, trainable, parent, parent_step, relation
        columns = (
            step, pre_agent, execute_time, reward, terminated, truncated, tags,
            policy_version, policy_version_end, agent_id,
        )  # fmt: skip
        if self._pid != os.getpid():  # before the lock, which may have been locked at the fork
            self._refuse()
        with self._lock: self._append(key, episode_id, details, fields, columns)  # fmt: skip

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

    def _forget_episodes(self) -> None:
        """Start new episodes with the next steps; `ReplayBuffer.clear` calls it."""
        self._queue.run(self._episodes.forget)

    def _extend(self, columns: Any) -> None:
        if self._has_ended:
            self._refuse()
        self._refuse_nested_call()
        try:
            self._is_adding = True
            self._gather_batch(columns)
        finally:
            self._is_adding = False
        self._flush_if_due()

    def _gather_batch(self, batch: Any) -> None:
        """Add all steps of a batch or none."""
        columns = columns_of(batch)
        if columns is None or not self._episodes.gather_columns(columns, self._steps):
            rows = rows_of(batch if columns is None else columns)
            self._episodes.gather_rows([split_step(row) for row in rows], self._steps)

    def _append(
        self,
        key: tuple[str, str],
        episode_id: str | None,
        details: tuple[Any, ...],
        fields: Mapping[str, Any],
        columns: tuple[Any, ...],
    ) -> None:
        if self._has_ended:
            self._refuse()
        if self._is_adding:
            self._refuse_nested_call()
        try:
            self._is_adding = True
            self._episodes.gather(key, episode_id, details, fields, columns, self._steps)
        finally:
            self._is_adding = False
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
            self._refuse_nested_call()
            self._flush()
            with suppress(errors.UnknownBuffer):  # another handle has dropped the buffer
                self._queue.run(self._episodes.end_all, status)
            self._has_ended = True

    @property
    def _is_closed(self) -> bool:
        return self._has_ended

    def _end_under_lock(self) -> LostSteps | None:
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
            self._buffer._writers.collected(self)
            return
        self._finish("complete" if kind is None else "aborted")
