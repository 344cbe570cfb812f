"""Store, query, change and sample the experience of one buffer."""

from __future__ import annotations  # evaluating `np.random` would import that module

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Literal, Never, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from expdb import checks, errors
from expdb.archive import parquet
from expdb.archive.exported_table import as_batch
from expdb.archive.retention import Retention
from expdb.batch import Batch, table_of_rows
from expdb.checks import UNCHANGED, Unchanged
from expdb.consumers.admission import Admission, AdmissionRequest, admit
from expdb.consumers.consumer import Consumer, checked_settings
from expdb.consumers.consumer_ledger import ConsumerLedger
from expdb.consumers.policy_versions import PolicyVersions
from expdb.consumers.replaying import checked_replay, replayed
from expdb.displays import buffer_html
from expdb.keywords import checked_keywords, deprecated, with_new_names
from expdb.memory.budget import Budget
from expdb.names import (
    COLUMN_KINDS,
    DEFAULT_TASK,
    FORK_RELATIONS,
    STORE_CALL,
    NotACollection,
    TaskReminder,
)
from expdb.process import exits
from expdb.process.awaiting import async_form, async_iteration, in_thread
from expdb.replay.rate_limiters import Pace, RateLimiter
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.units import Step, Unit
from expdb.sampling.engine import SampleEngine
from expdb.sampling.epochs import Epochs
from expdb.sampling.request import check_empty, field_names
from expdb.sampling.tasks import sample_tasks
from expdb.sampling.too_few import explain_gap, explain_too_few
from expdb.sql.conditions import Condition
from expdb.sql.engine import Attempts, Engine, retry_on_restart
from expdb.sql.query import Where
from expdb.storage.annotate import annotate, checked_positions
from expdb.storage.ledger import admissions, consumers, listing, rates, waiters
from expdb.storage.reading import fetch, groups, select, task_statistics, trees
from expdb.storage.scores import history
from expdb.storage.scores.recording import Recording, record_score
from expdb.storage.scores.requested import scores_of
from expdb.storage.store import Store, evicted
from expdb.storage.upkeep import check, workers
from expdb.storage.upkeep.metrics_history import read_metrics
from expdb.storage.upkeep.reporting import Reporter
from expdb.storage.upkeep.stats import buffer_stats
from expdb.storage.upkeep.step_history import why
from expdb.storage.writing import change, episodes
from expdb.storage.writing.batches import columns_of, rows_of, split_step
from expdb.storage.writing.eviction import Eviction
from expdb.storage.writing.requested_changes import check_changes, tags_of, warn_of_no_match
from expdb.storage.writing.write_queue import WriteQueue
from expdb.writers.episode_writer import EpisodeWriter
from expdb.writers.open_writers import OpenWriters
from expdb.writers.step_writer import StepWriter

Seed: TypeAlias = "int | np.random.Generator | None"

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]

SCANNED_AT_ONCE = 4096


class ReplayBuffer(NotACollection):
    """Store, query and sample the experience of one named buffer.

    `ExperienceDB.buffer` returns it; you cannot construct one directly. A buffer is durable, holds
    at most `capacity` steps, and is shared by every process that opens the database. Threads can
    share the object.

    A method that writes returns when its changes are durable and visible to every process; only
    `update_priorities` may write later. Each step has a position, an int64. Positions count up from
    0 and are never used twice.

    Notes
    -----
    The ``Raises`` sections list the exceptions of each method. In addition, every method that uses
    the database can raise these:

    - `DatabaseClosed` if the handle was closed, and `UnknownBuffer` if the buffer was dropped.
    - `ConnectionLost` if the server is unreachable for longer than the handle's `timeout`, and
      `DatabaseBusy` if a lock or a connection is not available within the `timeout`.
    - `CommitUnknown` if the connection was lost during the commit of a write.
    - `DatabaseReadOnly` or `StorageFull` if the handle or the disk does not permit a write.
    - `DatabaseDamaged` (or its subclass `ChunkDamaged`), `DatabaseUnreadable` or `DatabaseReplaced`
      if the stored data or the file is corrupted, unreadable or replaced.
    - `ForkedWithOpenConnection` if the process was forked while another thread used the file.
    """

    def __new__(cls, *args: Any, **options: Any) -> ReplayBuffer:
        """Reject construction by users, because `ExperienceDB.buffer` creates buffers."""
        if not (args and isinstance(args[0], Store)):
            raise errors.InvalidValue(
                "a ReplayBuffer cannot be created directly; call expdb.open(path).buffer(name)"
            )
        return super().__new__(cls)

    def __init__(self, store: Store, run: str, database: Any, budget: Budget):
        self._store, self._sampling, self._database = store, SampleEngine(store, budget), database
        # A ledger is kept while a `Consumer` refers to it. The latest 16 are kept longer, so that a
        # loop around `buffer.consumer(name).lease(...)` reads the ledger only once.
        self._consumers: WeakValueDictionary[int, ConsumerLedger] = WeakValueDictionary()
        self._latest: deque[ConsumerLedger] = deque(maxlen=16)
        self._write_queue = WriteQueue(store, run)
        self._rng: np.random.Generator | None = None
        self._writers = OpenWriters(store)
        self._task_reminder = TaskReminder()
        self._retention = Retention(store, self._scan_at, self._sampling.save)
        self._reporter = Reporter(store, run, self._sampling)

    @property
    def _engine(self) -> Engine:
        return self._store.engine

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.name!r}: {len(self)} steps, capacity {self.capacity}>"

    _repr_html_ = buffer_html

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._database, self.name)

    @property
    def name(self) -> str:
        """Name of the buffer in the database, a str."""
        return self._store.name

    # -- writing -----------------------------------------------------------------------------------

    def store(
        self,
        /,  # a field can be named self
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
    ) -> int:
        """Store one step and return its position once it is durable.

        Without `episode_id`, the step belongs to the open episode of this run, task and agent. A
        terminated or truncated step completes the episode, and the next step starts another one. If
        an exception is raised before the commit, nothing is stored.

        Parameters
        ----------
        *positional
            Not accepted: pass every argument by name.
        task_id : str, default "default"
            Task of the episode.
        agent_id : str, optional
            Agent that acts in the step. By default, the agent of the episode, or ``"agent"`` in a
            new episode. The agent of the first step is the agent of the episode.
        task_name : str, optional
            Name of the task, for example shared by several task ids.
        step : int, optional
            Number of the step in its episode, int64. By default, the greatest step number of the
            agent in the episode plus 1, or 0 for its first step. Without `episode_id`, a step
            begins another episode if its number is at most the greatest step number of the open
            episode. With `episode_id`, a step whose number is taken is not stored again, and its
            values must equal those of the stored step.
        episode_id : str, optional
            Name of the episode, unique in the buffer. The episode is created if it does not exist.
        group_id : str, optional
            Group of the episode, such as the rollouts of one prompt.
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
            Agent that acted before this step.
        execute_time : float, optional
            Time of the step in Unix seconds. By default, now.
        reward : float, optional
            Reward of the step, from -1e300 to 1e300. If it is None, the reward is unknown; set it
            later with `update`.
        terminated : bool, default False
            Whether the episode reached a terminal state.
        truncated : bool, default False
            Whether the episode was cut off, for example by a time limit.
        policy_version : int, optional
            Version of the policy that generated the step. By default, the version of the episode,
            which is the version of its first step.
        policy_version_end : int, optional
            Version of the policy that finished the step, if the weights were updated while the step
            was generated.
        tags : mapping of str to JSON values, optional
            Labels of the step. Queries name them ``tags.<key>``.
        episode_tags : mapping of str to JSON values, optional
            Labels of the episode. Queries name them ``episode_tags.<key>``.
        **fields
            Observations, actions and other data under any name: arrays, numbers, text, bytes,
            dicts, lists of messages, dataclasses or pydantic models. The first value of a field
            fixes its type.

        Returns
        -------
        int
            Position of the step.

        Raises
        ------
        InvalidValue
            If a value cannot be stored exactly or is passed by position, or if the agent already
            has a step with this number and other values in the episode.
        Evicted
            If steps of the episode were evicted or deleted, and `step` is less than all stored
            numbers of the agent.
        ReservedName
            If a field has the name of a column or of a key that expdb adds to batches, such as
            ``mask``.
        FieldMismatch
            If a value does not fit the dtype, shape or kind of its field.
        EpisodeEnded
            If the episode has ended.
        EpisodeMismatch
            If the episode belongs to another task or group, or has another `task_name`.
        RateLimited
            If the `rate_limiter` delays the write for longer than the handle's `timeout`.

        Warns
        -----
        ExpDBWarning
            If the name of a new field resembles the name of a column or of another field, or if
            its first value is an empty list. If two threads or asyncio tasks store steps of one
            episode without `episode_id`. If 1,000 episodes have ended without `task_id`. If steps
            that are due for eviction cannot be evicted.

        Examples
        --------
        >>> buffer.store(task_id="task_1", action={"tool": "search"}, reward=0.5)  # doctest: +SKIP
        0
        """
        if positional:
            raise errors.InvalidValue(
                f"store() accepts only keyword arguments, got {positional[0]!r}; call {STORE_CALL}"
            )
        if task_id is DEFAULT_TASK:
            if warning := self._task_reminder.count_step(task_id, terminated or truncated):
                errors.warn(warning)
            task_id = "default"
        row = {
            "task_id": task_id, "agent_id": agent_id, "task_name": task_name, "step": step,
            "episode_id": episode_id, "group_id": group_id, "parent": parent,
            "parent_step": parent_step, "relation": relation, "trainable": trainable,
            "pre_agent": pre_agent, "execute_time": execute_time, "reward": reward,
            "terminated": terminated, "truncated": truncated, "policy_version": policy_version,
            "policy_version_end": policy_version_end, "tags": tags,
            "episode_tags": episode_tags,
        }  # fmt: skip
        exits.watch_worker()
        position = int(self._write_queue.write([(row, fields)])[0])
        self._evict_and_report()
        return position

    def store_batch(self, rows: Any) -> np.ndarray:
        """Store many steps in one transaction and return their positions.

        All steps are stored, or none.

        Parameters
        ----------
        rows : list of mappings, mapping of columns, or table
            The arguments of `store` for each step. In a mapping of columns, lists and arrays have
            one element per step, and at least one is required. Scalars, text and JSON mappings
            apply to every step. If a column is itself a mapping with arrays, each of its arrays
            becomes a column. A table is an Arrow table or another object with
            ``__arrow_c_stream__``. A table from `to_arrow`, `expdb export` or an archive is stored
            as the same steps, without scores and final observations. To store these too, use
            `expdb.formats.import_rollouts`. In columns and tables, a bool column ``has_<field>``
            marks the steps that have the field.

        Returns
        -------
        ndarray of int64, shape (N,)
            Positions of the steps, in the order of `rows`.

        Raises
        ------
        InvalidValue
            If `rows` has another type, its columns differ in length, a value cannot be stored
            exactly, an agent already has a step with the same number and other values in the
            episode, or there are more steps than the `rate_limiter` ever admits at once.
        Evicted
            If steps of an episode were evicted or deleted, and a step number is less than all
            stored numbers of the agent.
        ReservedName
            If a field has the name of a column or of a key that expdb adds to batches, such as
            ``mask``.
        FieldMismatch
            If a value does not fit the dtype, shape or kind of its field.
        EpisodeEnded
            If an episode of the steps has ended.
        EpisodeMismatch
            If an episode belongs to another task or group, or has another `task_name`.
        RateLimited
            If the `rate_limiter` delays the write for longer than the handle's `timeout`.

        Warns
        -----
        ExpDBWarning
            For the reasons that `store` lists, except the missing `task_id`. If an exported table
            has values that steps have no argument for, such as scores.
        """
        rows, statuses = as_batch(self._store, rows)
        columns = columns_of(rows)
        steps = [split_step(row) for row in rows_of(rows)] if columns is None else columns
        positions = self._write_queue.write(steps)
        if statuses:
            self._write_queue.run(self._write_queue.episodes.end_named, statuses)
        self._evict_and_report()
        return positions

    async def store_async(self, /, *positional: Any, **arguments: Any) -> int:
        """Store one step without blocking the event loop; see `store`.

        Concurrent calls share a transaction. If the call is cancelled, the step may or may not be
        stored; the message of the CancelledError says which.

        Parameters
        ----------
        *positional
            Not accepted: pass every argument by name.
        **arguments
            The arguments of `store`.

        Returns
        -------
        int
            Position of the step.

        Raises
        ------
        InvalidValue
            If a value cannot be stored exactly, an argument is positional, or for another reason
            listed in `store`.
        FieldMismatch
            If a value does not fit the dtype, shape or kind of its field.
        EpisodeEnded
            If the episode has ended.
        EpisodeMismatch
            If the episode belongs to another task or group, or has another `task_name`.
        RateLimited
            If the `rate_limiter` holds the write back for longer than the handle's `timeout`.

        Examples
        --------
        >>> position = await buffer.store_async(episode_id="e1", reward=1.0)  # doctest: +SKIP
        """
        if positional:
            raise errors.InvalidValue(
                f"store_async() accepts only keyword arguments, got {positional[0]!r}; call "
                f"{STORE_CALL.replace('store', 'store_async', 1)}"
            )
        ends = arguments.get("terminated") or arguments.get("truncated")
        if "task_id" not in arguments and (
            warning := self._task_reminder.count_step(DEFAULT_TASK, bool(ends))
        ):
            errors.warn(warning)
        return int((await self._write_async([split_step(arguments)]))[0])

    async def store_batch_async(self, rows: Any) -> np.ndarray:
        """Store many steps without blocking the event loop; see `store_batch`.

        If the call is cancelled, either all steps are stored or none; the message of the
        CancelledError says which.

        Parameters
        ----------
        rows : list of mappings, mapping of columns, or table
            Arguments of `store` for each step; see `store_batch`.

        Returns
        -------
        ndarray of int64, shape (N,)
            Positions of the steps, in the order of `rows`.

        Raises
        ------
        InvalidValue
            If a value cannot be stored exactly, or for another reason listed in `store_batch`.
        FieldMismatch
            If a value does not fit the dtype, shape or kind of its field.
        EpisodeEnded
            If the episode has ended.
        EpisodeMismatch
            If the episode belongs to another task or group, or has another `task_name`.
        RateLimited
            If the `rate_limiter` holds the write back for longer than the handle's `timeout`.
        """
        columns = columns_of(rows)
        return await self._write_async(
            [split_step(row) for row in rows_of(rows if columns is None else columns)]
        )

    async def _write_async(self, rows: list[Any]) -> np.ndarray:
        exits.watch_worker()
        positions = await self._write_queue.write_async(rows)
        if time.monotonic() >= min(self._retention.next_look, self._reporter.next_report):
            in_thread(self._evict_and_report)
        return positions

    @checked_keywords()
    def episode(
        self,
        task_id: str,
        *,
        task_name: str | None = None,
        agent_id: str = "agent",
        episode_id: str | None = None,
        group_id: str | None = None,
        parent: str | None = None,
        parent_step: int | None = None,
        relation: str | None = None,
        trainable: bool | None = None,
        policy_version: int | None = None,
        episode_tags: Mapping[str, Any] | None = None,
        tags: None = None,
        resume: bool = False,
        flush_steps: int = 256,
        flush_bytes: int = 1 << 20,
        flush_seconds: float = 5.0,
    ) -> EpisodeWriter:
        """Return a writer that buffers the steps of one episode, by default a new one.

        Use the writer with ``with``. It gathers the steps, and flushes them when an `append` or
        `extend` reaches `flush_steps`, `flush_bytes` or `flush_seconds`.

        Parameters
        ----------
        task_id : str
            Task of the episode.
        task_name : str, optional
            Name of the task.
        agent_id : str, default "agent"
            Agent of the episode.
        episode_id : str, optional
            Name of the episode, unique in the buffer. By default, a random name.
        group_id : str, optional
            Group of the episode, such as the rollouts of one prompt.
        parent : str, optional
            `episode_id` of the parent, which this episode branches from, continues or was started
            by.
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
        policy_version : int, optional
            Version of the policy that generates the episode.
        episode_tags : mapping of str to JSON values, optional
            Labels of the episode. Queries name them ``episode_tags.<key>``.
        tags : None
            Not accepted: tags belong to a step, so pass them to `EpisodeWriter.append`.
        resume : bool, default False
            Whether to continue the episode `episode_id` if it is open or aborted. Its stored steps
            stay, and its final observation is discarded. Steps that are appended have
            `policy_version`, even if the stored steps have another version. If another writer of
            the episode still exists, its next flush raises `EpisodeResumed`.
        flush_steps : int, default 256
            Number of buffered steps that causes a flush, at least 1.
        flush_bytes : int, default 1048576
            Size of the buffered steps in bytes that causes a flush, at least 1.
        flush_seconds : float, default 5.0
            An append flushes if at least this number of seconds have passed since the last flush.
            Unless the buffer has a `rate_limiter`, `sample`, `epochs`, `score`, `score_batch` and
            `lease` of the same buffer and handle also flush then.

        Returns
        -------
        EpisodeWriter
            A writer with `append`, `extend`, `flush`, `end` and `abort`.

        Raises
        ------
        InvalidValue
            If an argument is invalid, `tags` is passed, or `resume` without `episode_id`.
        EpisodeMismatch
            If an episode with this `episode_id` exists; with `resume`, if its task, agent, group,
            `task_name` or `episode_tags` differ.
        EpisodeEnded
            If the episode to resume is complete.
        DatabaseReadOnly
            If the handle was opened with ``read_only=True``.

        Examples
        --------
        >>> with buffer.episode("task_1", episode_id="a-1", resume=True) as ep:  # doctest: +SKIP
        ...     for turn in range(ep.length, 10):
        ...         ep.append(messages=messages, action=action)
        """
        if tags is not None:
            raise errors.InvalidValue(
                "tags belong to steps; pass the tags of the episode as episode_tags=, and query "
                "them as episode_tags.<key>"
            )
        self._check_writable()
        flush_steps, flush_bytes, flush_seconds = checks.flush_limits(
            flush_steps, flush_bytes, flush_seconds
        )
        if isinstance(parent, str):
            self._writers.flush_episode(parent)
        details = {
            "task_name": task_name, "group_id": group_id, "policy_version": policy_version,
            "episode_tags": episode_tags, "parent": parent, "parent_step": parent_step,
            "relation": relation, "trainable": trainable,
        }  # fmt: skip
        episode = self._write_queue.episodes.new(task_id, agent_id, episode_id, details)
        resume = checks.flag(resume, "resume")
        episode = episodes.begin(self._store, episode, episode_id is not None, resume)
        return self._writers.add(
            EpisodeWriter(self, episode, flush_steps, flush_bytes, flush_seconds)
        )

    def fork(self, parent: str, /, at_step: int, **options: Any) -> EpisodeWriter:
        """Return a writer of a new episode that branches off from another one.

        The new episode shares the steps of the parent before `at_step`. It stores only its own
        steps, which are numbered from `at_step` on. To read it from the root, pass
        ``unit=expdb.Episode(lineage=True)`` or `expdb.Tokens`.

        Parameters
        ----------
        parent : str
            `episode_id` of the parent, which may be open. If a writer of this handle has unflushed
            steps of the parent, it flushes them first.
        at_step : int
            Number of the first step that differs from the parent.
        **options
            Other arguments of `episode`, such as the `episode_id` of the new episode,
            `policy_version` or ``relation="retry"``. The new episode has the task of the parent
            and, by default, its agent and group.

        Returns
        -------
        EpisodeWriter
            A writer of the new episode.

        Raises
        ------
        UnknownEpisode
            If the buffer has no episode `parent`.
        InvalidValue
            If the parent has no step ``at_step - 1``, or another argument is invalid.
        Evicted
            If step ``at_step - 1`` was evicted or deleted.
        EpisodeMismatch
            If an episode with the new `episode_id` exists.
        DatabaseReadOnly
            If the handle was opened with ``read_only=True``.

        Examples
        --------
        >>> with buffer.fork("rollout-1", at_step=3) as episode:  # doctest: +SKIP
        ...     episode.append(messages=messages, action=action, reward=1.0)
        """
        checks.choice(options.setdefault("relation", "fork"), "relation", *FORK_RELATIONS)
        if {"parent", "parent_step"} & options.keys():
            raise errors.InvalidValue(
                "fork() has no arguments parent and parent_step; pass at_step"
            )
        self._writers.flush_episode(checks.text(parent, "parent"))
        defaults = self._store.read(trees.read_fork_defaults, parent)
        at_step = checks.whole(at_step, "at_step", 0)
        return self.episode(**{**defaults, **options, "parent": parent, "parent_step": at_step})

    def writer(
        self, *, flush_steps: int = 256, flush_bytes: int = 1 << 20, flush_seconds: float = 5.0
    ) -> StepWriter:
        """Return a writer that buffers steps of any number of episodes.

        Use the writer with ``with``. It writes hundreds of steps in one transaction: an `append`
        that reaches one of the limits flushes. Closing the writer completes the episodes that it
        began without an `episode_id`. If an exception leaves the block, or the writer is never
        closed, these episodes are marked aborted.

        Parameters
        ----------
        flush_steps : int, default 256
            Number of buffered steps that causes a flush, at least 1.
        flush_bytes : int, default 1048576
            Size of the buffered steps in bytes that causes a flush, at least 1.
        flush_seconds : float, default 5.0
            An append flushes if at least this number of seconds have passed since the last flush.
            Unless the buffer has a `rate_limiter`, `sample`, `epochs`, `score`, `score_batch` and
            `lease` of the same buffer and handle also flush then.

        Returns
        -------
        StepWriter
            A writer whose `append` takes the arguments of `store`.

        Raises
        ------
        InvalidValue
            If a limit is invalid.
        DatabaseReadOnly
            If the handle was opened with ``read_only=True``.
        """
        self._check_writable()
        flush_steps, flush_bytes, flush_seconds = checks.flush_limits(
            flush_steps, flush_bytes, flush_seconds
        )
        return self._writers.add(StepWriter(self, flush_steps, flush_bytes, flush_seconds))

    def _check_writable(self) -> None:
        if self._store.engine.read_only:
            raise errors.DatabaseReadOnly(
                f"{self._store.engine.location} was opened with read_only=True; reopen it for "
                "writing"
            )

    def end_episode(
        self, episode_id: str, status: Literal["complete", "aborted"] = "complete"
    ) -> None:
        """End an open, stored episode and merge its chunks.

        Parameters
        ----------
        episode_id : str
            Name of the episode.
        status : {"complete", "aborted"}, default "complete"
            New status of the episode.

        Raises
        ------
        InvalidValue
            If `status` or `episode_id` is invalid.
        UnknownEpisode
            If the buffer has no such episode.
        EpisodeEnded
            If the episode has ended already.
        """
        checks.choice(status, "status", "complete", "aborted")
        self._write_queue.run(self._write_queue.episodes.end, episode_id, status)

    def _evict_and_report(self) -> None:
        """Evict due steps and report the activity of this process, if it is time."""
        if time.monotonic() >= min(self._retention.next_look, self._reporter.next_report):
            self._retention.look()
            self._store.report_if_due()

    def _end_writers(self, messages: list[str]) -> None:
        """Flush the open writers and end their episodes; append the warnings to `messages`."""
        self._writers.end_all(messages)

    def _complete_open_episodes(self) -> None:
        with suppress(errors.UnknownBuffer):  # another process dropped the buffer
            self._write_queue.run(self._write_queue.episodes.end_all, "complete")

    def _before_fork(self, deadline: float) -> None:
        self._sampling.before_fork(deadline)

    def _after_fork(self) -> None:
        self._sampling.after_fork()

    def _reset_after_fork(self, run: str) -> None:
        """Start a new run in a forked child, because the open episodes belong to the parent."""
        self._write_queue, self._writers = WriteQueue(self._store, run), OpenWriters(self._store)
        self._rng = None
        self._retention = Retention(self._store, self._scan_at, self._sampling.save)
        self._reporter = Reporter(self._store, run, self._sampling)
        self._sampling.reset_after_fork()
        for consumer in list(self._consumers.values()):
            consumer.reset_after_fork()

    # -- reading -----------------------------------------------------------------------------------

    @retry_on_restart
    def __len__(self) -> int:
        return self._store.read(Store.state).size

    def __bool__(self) -> bool:
        return True

    @property
    @retry_on_restart
    def added(self) -> int:
        """Number of steps ever stored, an int; the next step gets this position."""
        return self._store.read(Store.state).added

    @property
    @retry_on_restart
    def capacity(self) -> int | None:
        """Maximum number of steps, an int, or None if it is unlimited.

        The buffer may hold more steps while a lease with ``pin=True`` keeps them, or until an
        `eviction` policy with `whole_episodes` or `archive` evicts them. To change the
        capacity, assign a number of at least 1, or None. Surplus steps are then evicted at once,
        oldest first. With such a policy, they are evicted later.

        Raises
        ------
        InvalidValue
            If the new value is less than 1, or less than the `min_size` of the rate limiter or of
            a consumer.
        """
        return self._store.read(Store.state).capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._set_capacity(capacity)

    def _set_capacity(self, capacity: int | None) -> None:
        """Set the maximum number of steps, as assigning to `capacity` does.

        Parameters
        ----------
        capacity : int or None
            Maximum number of steps, at least 1. None means unlimited.

        Raises
        ------
        InvalidValue
            If `capacity` is less than 1, or less than the `min_size` of the rate limiter or of a
            consumer.
        """
        self._engine.retry(change.set_capacity, self._store, checks.capacity(capacity))

    set_capacity = deprecated("`buffer.capacity = n`")(_set_capacity)

    @property
    @retry_on_restart
    def revision(self) -> int:
        """Number of updates and deletions of stored steps and episodes, an int.

        Use the number to validate a cache: while it is unchanged, columns and tags that you read
        earlier are still correct. New steps, evictions and priority updates do not increase the
        number. It includes changes by other processes after at most `max_lag_seconds`.
        """
        return self._sampling.revision()

    def _compile(self, where: Where, new_tags: Set[str] = frozenset()) -> Condition | None:
        """Compile a query, and write unsaved priorities, because the query may compare them."""
        condition = self._store.compiled(where, new_tags)
        self._sampling.save()
        return condition

    @retry_on_restart
    def count(self, where: Where = None) -> int:
        """Return the number of steps that match a query.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.

        Returns
        -------
        int
            Number of matching steps.

        Raises
        ------
        QueryError
            If the query is invalid, or names an unknown column.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        condition = self._compile(where)
        return self._store.read(select.count, condition)

    @retry_on_restart
    def tasks(self, where: Where = None) -> list[str]:
        """Return the ids of the tasks that have a matching step.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.

        Returns
        -------
        list of str
            Task ids, in the order of their first matching step.

        Raises
        ------
        QueryError
            If the query is invalid, or names an unknown column.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        condition = self._compile(where)
        return self._store.read(select.tasks, condition)

    @retry_on_restart
    def task_statistics(
        self, where: Where = None, *, score: str | None = None, success: float = 1.0
    ) -> pa.Table:
        """Return the episode count, success rate and policy versions of each task.

        Use it to decide which tasks actors attempt next. To sample tasks by their success rate,
        use `ByTask`.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps. An episode counts if one of its steps matches; by default,
            all complete episodes with stored steps count.
        score : str, optional
            Name of a score that takes the place of the return; the score of an episode is that of
            its last step.
        success : float, default 1.0
            Smallest return or score of a success.

        Returns
        -------
        pyarrow.Table
            One row per task, ordered by the end of its first episode, with the columns `task_id`,
            `episodes` (number of complete episodes that count), `known` (number of these with a
            known return or score), `mean` and `success_rate` of the known values (null if `known`
            is 0), `first_policy_version`, `last_policy_version`, `staleness` (policy version of the
            buffer minus `last_policy_version`; null if either is unknown), and `last_ended` in Unix
            seconds.

        Raises
        ------
        InvalidValue
            If `score` or `success` is invalid.
        QueryError
            If the query is invalid, or names an unknown column.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, or if no score has the name
            `score` but another score has a similar name. Each handle warns once per name.

        Examples
        --------
        >>> buffer.task_statistics(success=0.5).to_pandas()  # doctest: +SKIP
        """
        name = None if score is None else checks.score_name(score)
        if name is not None:
            self._store.tags.warn_of_unknown([f"scores.{name}"])
        least, condition = checks.number(success, "success"), self._compile(where)
        rows = self._store.read(task_statistics.read, condition, name, least)
        return table_of_rows(rows, task_statistics.COLUMNS)

    @checked_keywords(newest="limit")
    @retry_on_restart
    def episodes(
        self,
        where: Where = None,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> pa.Table:
        """Return the episodes that have a matching step, oldest first.

        To read a large buffer page by page, pass `limit`. For each further page, also pass the
        number of the oldest episode of the previous page as `before`. Episode numbers increase and
        are never reused, so new episodes do not shift the pages.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        limit : int, optional
            Maximum number of episodes, at least 1. Return the newest matching episodes.
        before, after : int, optional
            Return only episodes whose number is less than `before` and greater than `after`.

        Returns
        -------
        pyarrow.Table
            One row per episode that still has a step, with the number `episode` and the columns
            `episode_id`, `run`, `task_id`, `task_name`, `agent_id`, `group_id`, `status`, `length`,
            `episode_return`, `policy_version`, `first_policy_version`, `last_policy_version`,
            `episode_tags`, `started`, `ended`, `parent_episode`, `parent_step`, `parent_position`,
            `relation`, `root_episode` and `trainable`. Tags are JSON text, and times are Unix
            seconds. See `lineage` for the relations.

        Raises
        ------
        QueryError
            If the query is invalid, or names an unknown column.
        InvalidValue
            If `limit` is not a positive integer, or `before` or `after` is not an integer.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.

        Examples
        --------
        >>> page = buffer.episodes(limit=50)  # doctest: +SKIP
        >>> buffer.episodes(limit=50, before=page["episode"][0].as_py())  # doctest: +SKIP
        """
        limit = None if limit is None else checks.whole(limit, "limit", 1)
        before = None if before is None else checks.whole(before, "before")
        after = None if after is None else checks.whole(after, "after")
        condition = self._compile(where)
        names, rows = self._store.read(select.episodes, condition, before, after, limit)
        return table_of_rows(rows, {name: COLUMN_KINDS[name] for name in names})

    @retry_on_restart
    def lineage(self, episode_id: str) -> pa.Table:
        """Return the tree of an episode: its root and all descendants of the root.

        Parameters
        ----------
        episode_id : str
            Name of any episode of the tree.

        Returns
        -------
        pyarrow.Table
            One row per stored episode, beginning with the root. Children follow their parent.
            `depth` is 0 for the root, and null if an episode on the path to the root is no longer
            stored. The other columns are those of `episodes`. `parent_episode` and `root_episode`
            contain numbers of episodes, as in `episode`.

        Raises
        ------
        UnknownEpisode
            If the buffer has no such episode.

        Examples
        --------
        >>> buffer.lineage("rollout-1")["relation"].to_pylist()  # doctest: +SKIP
        [None, 'fork', 'subagent']
        """
        rows = self._store.read(trees.read_tree, checks.text(episode_id, "episode_id"))
        return table_of_rows(rows, trees.COLUMNS)

    @retry_on_restart
    def steps_of(self, episode_id: str, lineage: bool = False) -> np.ndarray:
        """Return the positions of the steps of an episode, in the order of the steps.

        Parameters
        ----------
        episode_id : str
            Name of the episode.
        lineage : bool, default False
            Whether to include the steps that a fork or a retry shares with its parents.

        Returns
        -------
        ndarray of int64, shape (N,)
            Positions, for example for `get`.

        Raises
        ------
        UnknownEpisode
            If the buffer has no such episode.
        Evicted
            If `lineage` is True and a shared step was evicted or deleted.

        Examples
        --------
        >>> buffer.get(buffer.steps_of("rollout-1", lineage=True))  # doctest: +SKIP
        """
        name, lineage = checks.text(episode_id, "episode_id"), checks.flag(lineage, "lineage")
        return self._store.read(trees.find_positions, name, lineage)

    @retry_on_restart
    def unfinished(self, group_size: int) -> pa.Table:
        """Return the groups of rollouts with missing or interrupted rollouts, oldest first.

        A group is finished when it has `group_size` complete episodes. Evicted complete episodes
        count while another episode of the group is in the buffer. Deleted episodes do not count.
        Episodes without a `group_id` are grouped by `task_id`, as in `Group`.

        Parameters
        ----------
        group_size : int
            Number of rollouts of a group, at least 1.

        Returns
        -------
        pyarrow.Table
            One row per unfinished group, with `group_id` (null for a task without groups),
            `task_id`, the numbers of `complete`, `open` and `aborted` rollouts, `missing`, which is
            ``group_size - complete``, and `episode_ids`, the open and aborted rollouts, oldest
            first. Continue one of them with ``buffer.episode(task_id, episode_id=...,
            resume=True)``. An open rollout may still have a writer.

        Raises
        ------
        InvalidValue
            If `group_size` is not an integer of at least 1.

        Examples
        --------
        >>> buffer.unfinished(8)["missing"].to_pylist()  # doctest: +SKIP
        [3]
        """
        rows = self._store.read(groups.unfinished, checks.whole(group_size, "group_size", 1))
        return table_of_rows(rows, groups.COLUMNS)

    @retry_on_restart
    def _page(self, number: int, size: int, where: Where = None) -> list[dict[str, Any]]:
        """Return one page of the matching steps; deprecated, use `scan`.

        Parameters
        ----------
        number : int
            Number of the page, from 1.
        size : int
            Number of steps per page.
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.

        Returns
        -------
        list of dict
            One dict per step, with its fields and the columns of the step and its episode, except
            `priority`, `length`, `episode_return`, `episode_tags`, `started` and `ended`. Unknown
            values are None. The list is empty past the last page.

        Raises
        ------
        InvalidValue
            If `number` or `size` is less than 1.
        QueryError
            If the query is invalid, or names an unknown column.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        columns = self._store.read(fetch.page, self._compile(where), number, size)
        return Batch(columns).to_list()

    @retry_on_restart
    def get(
        self, positions: Sequence[int] | np.ndarray, *, fields: Sequence[str] | None = None
    ) -> Batch:
        """Return steps by position, in the order of `positions`.

        Parameters
        ----------
        positions : array_like of int, shape (N,)
            Positions of the steps. A position may occur more than once.
        fields : sequence of str, optional
            Keys of the batch: fields, and columns of the view ``experience`` such as ``"task_id"``
            or ``"tags"``. By default, `position`, `episode`, `step`, `reward`, `terminated`,
            `truncated` and every field.

        Returns
        -------
        Batch
            N steps, one row each. A field that some steps lack comes with a bool column
            ``has_<field>``.

        Raises
        ------
        InvalidValue
            If `positions` is not a 1-D sequence of integers.
        Evicted
            If a position holds no step, because it was evicted, deleted or not written yet. The
            message names up to five such positions.
        QueryError
            If `fields` has an unknown name.
        """  # noqa: DOC501
        wanted = checks.positions(positions)
        batch = self._sampling.get(wanted, fields)
        if batch is not None:
            return batch
        self._sampling.save()
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            is_stored = fetch.alive(self._store, session, wanted)
            if not is_stored.all():
                raise evicted(wanted[~is_stored])
            columns = fetch.steps(self._store, session, state, wanted, fields, finals=True)
            return Batch(columns, len(wanted))

    @checked_keywords()
    def scan(
        self,
        where: Where = None,
        *,
        after: int = -1,
        size: int = 4096,
        fields: Sequence[str] | None = None,
    ) -> Iterator[Batch]:
        """Iterate over the matching steps in batches, in the order of their positions.

        Each batch is read from one snapshot. The call checks all arguments except the names in
        `fields`, which the iterator checks.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        after : int, default -1
            Skip positions up to and including this position. To read newer steps, pass the last
            position that you have read.
        size : int, default 4096
            Maximum number of steps per batch.
        fields : sequence of str, optional
            Keys of the batch: fields, and columns of the view ``experience`` such as ``"task_id"``
            or ``"tags"``. By default, `position`, `episode`, `step`, `reward`, `terminated`,
            `truncated` and every field.

        Returns
        -------
        iterator of Batch
            Batches of up to `size` steps each.

        Raises
        ------
        InvalidValue
            If `size` is less than 1 or `after` is less than -1.
        QueryError
            If the query is invalid; the iterator raises it if `fields` has an unknown name.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        size, after = checks.whole(size, "size", 1), checks.whole(after, "after", -1)
        names = None if fields is None else field_names(fields)
        return self._scan(self._compile(where), after, size, names)

    def _scan(self, *arguments: Any) -> Iterator[Batch]:
        for columns, count in fetch.scan(self._store, *arguments):
            yield Batch(columns, count)

    def to_arrow(
        self, where: Where = None, fields: Sequence[str] | None = None, *, timestamps: bool = False
    ) -> pa.RecordBatchReader:
        """Return the matching steps as a stream of Arrow record batches, for data frame libraries.

        The stream has one row per step, in the order of positions. It reads 4,096 steps at a time,
        so the result may be larger than memory. pandas, polars, DuckDB and other libraries read it
        through ``__arrow_c_stream__``. A stream can be read once, while the database is open. Each
        record batch is read from its own snapshot.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        fields : sequence of str, optional
            Names of columns: fields, annotations, and columns of the view ``experience``. By
            default, all columns of steps and episodes, all fields and all annotations.
        timestamps : bool, default False
            Whether `started`, `ended` and `execute_time` are timestamps in UTC instead of Unix
            seconds.

        Returns
        -------
        pyarrow.RecordBatchReader
            Missing values are null. Arrays of a fixed shape are Arrow tensors, which other
            libraries see as lists. Arrays of varying shape are lists. Tags and JSON are text.

        Raises
        ------
        QueryError
            If the query is invalid, or `fields` has an unknown name.
        InvalidValue
            If `fields` is not a list of names, or is empty.

        Examples
        --------
        >>> frame = buffer.to_arrow({"task_id": "t1"}).read_pandas()  # doctest: +SKIP
        """
        names = None if fields is None else tuple(dict.fromkeys(field_names(fields)))
        arguments = self._compile(where), -1, parquet.BATCH_STEPS
        times = checks.flag(timestamps, "timestamps")
        return parquet.stream(
            self._store, names, times, lambda keys: self._scan(*arguments, keys, True)
        )

    def _scan_at(self, positions: np.ndarray, fields: Sequence[str]) -> Iterator[Batch]:
        """Yield the steps at `positions` that are still stored, in batches with JSON as text."""
        for start in range(0, len(positions), SCANNED_AT_ONCE):
            with self._store.engine.reading() as session:
                state, part = self._store.state(session), positions[start:][:SCANNED_AT_ONCE]
                stored = part[fetch.alive(self._store, session, part)]
                columns = fetch.steps(self._store, session, state, stored, fields, json_text=True)
            yield Batch(columns, len(stored))

    # -- changing ----------------------------------------------------------------------------------

    def update(
        self,
        where: Where,
        *,
        which: Literal["all", "last"] = "all",
        replace_tags: bool = False,
        required: bool = False,
        **columns: Any,
    ) -> int:
        """Set columns of the matching steps, such as a reward that arrives late.

        expdb updates the return of an episode when its rewards change. If you set a reward on
        several steps of an episode, the return counts the reward once per step.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int
            Query that selects the steps to update: conditions, values that columns must equal, or
            positions.
        which : {"all", "last"}, default "all"
            With ``"last"``, update only the last step of each episode with a matching step. If an
            episode has several agents, update the last step of each agent with a matching step.
            Use it for the reward of a whole episode.
        replace_tags : bool, default False
            Whether to replace all stored tags instead of merging the new tags into them.
        required : bool, default False
            Whether to raise `TooFewRows` if no step matches.
        **columns
            New values of `reward`, `terminated`, `truncated` and `tags`. New values of
            `episode_tags` and `policy_version` apply to the whole episode. `tags` and
            `episode_tags` are merged into the stored tags: other keys stay, and a key with the
            value None is removed. To set a single tag, pass ``**{"tags.judge": 1.0}``.
            ``tags=None`` and ``episode_tags=None`` remove all tags.

        Returns
        -------
        int
            Number of steps that matched; with ``which="last"``, the number of updated steps.

        Raises
        ------
        InvalidValue
            If `where` is None, no column is given, a column cannot be updated, or a value is
            invalid.
        QueryError
            If the query is invalid, or a tag has an invalid key.
        TooFewRows
            If `required` and no step matches.

        Warns
        -----
        ExpDBWarning
            If no step matches, and either a writer of this process has unwritten steps or the
            query names an `episode_id`. If this handle sets, for the first time, a nonzero reward
            on several steps of one episode. If this handle updates, for the first time, the last
            step of an episode that is still open. If the query names a tag that no stored step or
            episode has and that this call does not set.

        Examples
        --------
        >>> buffer.update({"episode_id": "a-1"}, reward=1.0, which="last")  # doctest: +SKIP
        1
        >>> buffer.update({"episode_id": "a-1"}, tags={"judge": 0.7})  # doctest: +SKIP
        12
        """
        checks.choice(which, "which", "all", "last")
        required = checks.flag(required, "required")
        changes = check_changes(columns, checks.flag(replace_tags, "replace_tags"))
        condition = self._required(where, "update", tags_of(changes))
        changed = change.update(self._store, condition, changes, which == "last")
        if not changed:
            names_episode = "episode_id" in condition.names
            warn_of_no_match(self.name, where, required, self._writers.unwritten(), names_episode)
        return changed

    def update_priorities(self, positions: Sequence[int] | np.ndarray, values: Any) -> int:
        """Set the sampling priority of stored steps.

        Positions without a stored step are ignored, so priorities may arrive after an eviction. If
        a position occurs more than once, the last value wins. If this handle has sampled with
        `Prioritized`, it uses the new priorities at once. It writes them to the database about
        once a second and when you close it. Otherwise the call writes the priorities before it
        returns.

        Parameters
        ----------
        positions : array_like of int
            Positions as returned in ``batch["position"]``. Negative values (padding) are ignored.
        values : array_like of float
            Priorities, finite and at least 0, usually the absolute TD errors. The shape must equal
            the shape of `positions`, apart from axes of length 1.

        Returns
        -------
        int
            Number of given positions that hold a step; a repeated position counts each time.

        Raises
        ------
        InvalidValue
            If the shapes differ, `positions` are not integers, or a priority is negative, NaN or
            infinite.
        DatabaseReadOnly
            If the handle was opened with ``read_only=True``.

        References
        ----------
        Schaul et al. (2016), *Prioritized Experience Replay*, arXiv:1511.05952.
        """
        return self._sampling.update_priorities(*checks.priorities(positions, values))

    @checked_keywords()
    def score(
        self,
        where: Where = None,
        *,
        name: str,
        value: Any,
        episode_id: str | None = None,
        by: str | None = None,
        status: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> int:
        """Record a score of the matching steps, or of an episode, such as that of a judge.

        Scores are added to a history and never overwritten. The latest value of a name counts: it
        is the score ``scores.<name>`` of the step in queries, in `fields`, and in
        `Ordered`, `Prioritized` and `Group`. The score of an episode counts for all steps that
        the episode has now.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects the steps to score, or their positions. Pass either `where` or
            `episode_id`.
        name : str
            Name of the score, 1 to 64 letters, digits and ``_``, such as ``"judge"``.
        value : float, bool, array_like of float, or None
            Value of the score, finite. With positions as `where`, also one value for each position.
            None records that no value could be found, for example because a judge timed out; an
            earlier value then still counts. None requires `status`.
        episode_id : str, optional
            Episode to score as a whole.
        by : str, optional
            Who gives the score, such as the version of a judge.
        status : str, optional
            Outcome, such as ``"timeout"``.
        detail : mapping of str to JSON values, optional
            Other information, such as the explanation of a judge.

        Returns
        -------
        int
            Number of scores that were added to the history: one for each step, or 1 for an episode.

        Raises
        ------
        InvalidValue
            If an argument is invalid, or not exactly one of `where` and `episode_id` is passed.
        QueryError
            If the query is invalid.
        UnknownEpisode
            If the buffer has no episode `episode_id`.
        Evicted
            If a position has no step.

        Warns
        -----
        ExpDBWarning
            If no step matches the query. If this handle scores an episode that is still open, for
            the first time.

        Examples
        --------
        >>> buffer.score(episode_id="a-1", name="judge", value=0.7, by="judge-v2")  # doctest: +SKIP
        1
        >>> buffer.score([7, 8], name="format", value=[1.0, 0.0])  # doctest: +SKIP
        2
        """
        self._writers.flush_overdue_steps()
        arguments = {"name": name, "value": value, "by": by, "status": status, "detail": detail}
        condition = None if where is None else self._required(where, "score")
        return record_score(self._store, where, condition, episode_id, arguments)

    def score_batch(self, scores: Any) -> int:
        """Record many scores in one transaction; either all scores are recorded, or none.

        Parameters
        ----------
        scores : list of mappings, mapping of columns, or table
            For each score, the position of a step (`position`), or an episode as `episode_id` or
            as the number `episode` that batches have, and the arguments `name`, `value`, `by`,
            `status` and `detail` of `score`. In a mapping of columns, lists and arrays have one
            element for each score, and other values apply to every score. A table is an Arrow
            table or another object with ``__arrow_c_stream__``.

        Returns
        -------
        int
            Number of scores that were added to the history.

        Raises
        ------
        InvalidValue
            If an argument is invalid; the message names the row.
        UnknownEpisode
            If the buffer lacks an episode; the message names the row.
        Evicted
            If a position has no step.

        Examples
        --------
        >>> buffer.score_batch(  # doctest: +SKIP
        ...     {"position": batch["position"], "name": "judge", "value": values}
        ... )
        64
        """
        self._writers.flush_overdue_steps()
        return Recording(self._store, scores_of(scores)).run()

    def annotate(self, positions: Any, /, version: int | None = None, **arrays: Any) -> int:
        """Add arrays to stored steps, such as advantages or reference log-probabilities.

        An annotation has a name and, optionally, a version, such as the policy version that
        computed it. An annotation with the same name and version is replaced. Read annotations
        like fields: ``fields=["ref_logprobs"]`` has the array with the greatest version, and
        ``"ref_logprobs@3"`` that of version 3. A key `has_<name>` tells which steps have it.

        Parameters
        ----------
        positions : array_like of int, shape (N,)
            Positions of the steps, as in ``batch["position"]``.
        version : int, optional
            Version of the arrays, at least 0. An array without a version counts as older than all
            versions.
        **arrays
            By name, one number or array for each position, as a list or an array of shape (N, ...).
            The first value fixes the type. If the buffer has a field that others are aligned with,
            such as ``output_ids`` of `TOKEN_FIELDS`, each array must have its length.

        Returns
        -------
        int
            Number of stored arrays.

        Raises
        ------
        InvalidValue
            If an argument is invalid, or an array has the wrong length; the message names the row.
        ReservedName
            If a name is that of a column or of a batch key, such as ``loss_mask`` of `Tokens`.
        FieldMismatch
            If an array does not fit the type of its annotation, or the name is that of a field.
        Evicted
            If a position has no step.

        Examples
        --------
        >>> buffer.annotate(batch["position"], version=7, advantages=values)  # doctest: +SKIP
        64
        """
        wanted = checked_positions(positions)
        number = None if version is None else checks.whole(version, "version", 0)
        return self._engine.retry(annotate, self._store, wanted, number, arrays)

    @retry_on_restart
    def scores(self, where: Where = None, *, name: str | None = None) -> pa.Table:
        """Return the history of the scores, oldest first.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps. Their scores, and the scores of their episodes, are returned.
            By default, all scores are returned.
        name : str, optional
            Return only scores with this name.

        Returns
        -------
        pyarrow.Table
            One row per score, with the columns `id`, `episode_id`, the number `episode`,
            `position` (null for the score of an episode), `name`, `value` (null if no value could
            be found), `scored_by`, `status`, `detail` as JSON text, and the time `scored` in Unix
            seconds.

        Raises
        ------
        InvalidValue
            If `name` is not the name of a score.
        QueryError
            If the query is invalid.
        """
        condition = self._compile(where)
        rows = self._store.read(history.read, condition, name)
        return table_of_rows(rows, history.COLUMNS)

    def delete(self, where: Where, *, keep_pinned: bool = False) -> int:
        """Delete the matching steps and return how many were deleted.

        Use `clear` to delete all steps.

        Parameters
        ----------
        where : str, QueryBuilder, mapping or array_like of int
            Query that selects the steps to delete: conditions, values that columns must equal, or
            positions.
        keep_pinned : bool, default False
            Whether to keep every episode that has a step in a lease with ``pin=True``. The leases
            are checked in the transaction that deletes.

        Returns
        -------
        int
            Number of deleted steps.

        Raises
        ------
        InvalidValue
            If `where` is None or `keep_pinned` is not a bool.
        QueryError
            If the query is invalid, or names an unknown column.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        keep = checks.flag(keep_pinned, "keep_pinned")
        condition = self._required(where, "delete")
        return self._engine.retry(change.delete, self._store, condition, keep, at_most_once=True)

    def clear(self) -> int:
        """Delete every step and episode and return the number of deleted steps.

        New steps continue after the last position. Consumers keep their ledgers, which record
        their leases. The next step of `store` or of an open `writer` starts a new episode.

        Returns
        -------
        int
            Number of deleted steps.
        """
        self._write_queue.run(self._write_queue.episodes.forget)
        self._writers.forget_episodes()
        return self._engine.retry(change.clear, self._store, at_most_once=True)

    @property
    @retry_on_restart
    def eviction(self) -> Eviction | None:
        """Policy that limits the buffer in addition to its capacity, an `Eviction`, or None.

        Assign an `Eviction` to set the policy, or None to remove it. Handles that write apply the
        policy about once a second, unless it has ``by="archiver"``. Before expdb replaces a
        policy, it evicts the steps that the old policy selects.

        Raises
        ------
        InvalidValue
            If the new value is not an `Eviction` or None.
        ArchiveFailed
            If the archive of the new policy cannot be written, or if steps that the old policy
            must archive cannot be archived.
        DatabaseBusy
            If another process is archiving steps of the buffer, or if other processes write steps
            faster than expdb archives them.
        """
        return self._retention.policy()

    @eviction.setter
    def eviction(self, policy: Eviction | None) -> None:
        if policy is not None and not isinstance(policy, Eviction):
            raise errors.InvalidValue(f"eviction must be an expdb.Eviction or None, got {policy!r}")
        self._retention.set_policy(policy)

    @retry_on_restart
    def plan_eviction(self) -> pa.Table:
        """Return the steps that `eviction` would evict now.

        Returns
        -------
        pyarrow.Table
            One row per range of consecutive steps of an episode that would be evicted for the same
            reason. The columns are `episode`, the positions `first` and `last`, `episode_id`,
            `task_id` and the reason `why`: ``"max_age_seconds"``, ``"max_steps_per_task"``,
            ``"max_bytes"`` or ``"capacity"``. Without a policy, the table is empty.
        """
        return self._retention.plan()

    def evict(self, *, forget_missing: bool = False) -> int:
        """Evict the steps that the `eviction` policy selects, and return their number.

        Parameters
        ----------
        forget_missing : bool, default False
            Whether to discard the steps of an interrupted eviction if their archive file does not
            exist, for example because the disk of the archive was lost. Pass True only on a
            machine that has the folder of the archive.

        Returns
        -------
        int
            Number of evicted steps.

        Raises
        ------
        ArchiveFailed
            If the archive cannot be written. Each step is then still in the buffer, or in the
            draft file that the message names.
        InvalidValue
            If `forget_missing` is not a bool.

        Warns
        -----
        ExpDBWarning
            If steps are discarded because of `forget_missing`.
        """
        return self._retention.evict(checks.flag(forget_missing, "forget_missing"))

    def index(self, name: str) -> None:
        """Create an index on a column, a tag or a score.

        Queries on it then read only matching steps. The index serves every buffer
        of the database. Creating an index that exists has no effect.

        Parameters
        ----------
        name : str
            A column, ``tags.<key>``, ``episode_tags.<key>`` or ``scores.<name>``, such as
            ``"tags.difficulty"``.

        Raises
        ------
        QueryError
            If `name` is unknown, or is a computed column such as ``"policy_version"``.

        Warns
        -----
        ExpDBWarning
            If no stored step or episode has the tag.
        """
        change.index(self._store, name)

    def _required(self, where: Where, verb: str, new_tags: Set[str] = frozenset()) -> Condition:
        condition = self._compile(where, new_tags)
        if condition is None:
            cure = (
                "call clear() to delete every step"
                if verb == "delete"
                else "pass QueryBuilder().gte('position', 0) to update every step"
            )
            raise errors.InvalidValue(
                f"{verb}() without a query would affect every step; pass a query, or {cure}"
            )
        return condition

    # -- maintenance -------------------------------------------------------------------------------

    @retry_on_restart
    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and fields of the buffer as JSON values.

        Returns
        -------
        dict
            `name`, `capacity`, the number of stored `steps` and of steps ever `added`, the `oldest`
            position, the oldest `pinned` position, `episodes` by status, the numbers of `tasks` and
            `chunks`, the `bytes` of chunks and shared values, `revision`, the types of `fields`,
            `optional_fields` that some steps lack, `replaced_characters`, the number of characters
            that this handle replaced (see `text` in `open`), and `resident_bytes`, the memory in
            bytes that this handle uses for sampling.
        """
        with self._store.engine.reading() as session:
            nbytes = self._sampling.nbytes + sum(
                ledger.nbytes for ledger in list(self._consumers.values())
            )
            return {**buffer_stats(self._store, session), "resident_bytes": nbytes}

    @retry_on_restart
    def check(self) -> list[str]:
        """Verify the counters, steps, episodes, chunks and ledger of the buffer.

        Returns
        -------
        list of str
            One line per problem; empty if there is none.
        """
        return self._store.read(check.check_buffer)

    @retry_on_restart
    def why(self, position: int) -> list[str]:
        """Return the history of one step, and why a consumer cannot lease it now.

        Parameters
        ----------
        position : int
            Position of the step, at least 0.

        Returns
        -------
        list of str
            One line per fact: when the step was stored, leased and acknowledged, whether the buffer
            still holds it, and for each consumer that cannot lease it now, the reason.

        Raises
        ------
        InvalidValue
            If `position` is negative or not an integer.
        """
        position = checks.whole(position, "position", 0)
        self._sampling.save()
        with self._store.engine.reading() as session:
            return list(why(self._store, session, position))

    # -- sampling ----------------------------------------------------------------------------------

    def sample(
        self,
        size: int,
        where: Where = None,
        *,
        sampler: Sampler = Uniform(),  # noqa: B008 (frozen)
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        seed: Seed = None,
        wait: float | None = None,
        shard: tuple[int, int] | None = None,
        at_least: int | None = None,
        empty: Empty = np.empty,
        **others: Never,
    ) -> Batch:
        """Draw a batch of matching steps from one snapshot.

        The `sampler` chooses the steps, and the `unit` defines what each drawn step becomes. The
        snapshot is at most `max_lag_seconds` old.

        Parameters
        ----------
        size : int
            Number of items to draw, at least 1. The `unit` builds one item from each drawn step.
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        sampler : Sampler, default Uniform()
            `Uniform`, `Prioritized`, `Ordered`, `Newest`, or your own.
        unit : Unit, default Step()
            `Step`, `Stack`, `NStep`, `Sequence`, `Episode`, `Group`, or your own.
        fields : sequence of str, optional
            Keys of the batch: fields, keys of the sampler, and columns of the view ``experience``
            such as ``"task_id"`` or ``"tags"``. By default, `position`, `episode`, `step`,
            `reward`, `terminated`, `truncated`, every field, and the keys of the sampler. The
            batch always contains the keys of the unit, such as ``"mask"``.
        seed : int or numpy.random.Generator, optional
            Seed or generator of the random numbers. By default, the generator of this object, whose
            state `sampling_state` returns.
        wait : float, optional
            Maximum time to wait while there are too few steps, in seconds. By default, do not
            wait.
        shard : tuple of (int, int), optional
            ``(k, n)`` divides the episodes (with `Group`, the groups) into n parts and draws only
            from part k, counted from 0. Use it to give learners or loader workers different steps.
            By default, draw from all episodes.
        at_least : int, optional
            Smallest number of items to accept if fewer than `size` items can be drawn without
            replacement. By default, `size`.
        empty : callable, optional
            Function ``empty(shape, dtype)`` that allocates the arrays of the fields, such as
            `expdb.integrations.torch.pinned`. By default, `numpy.empty`.
        **others
            Not accepted; an unknown name raises InvalidValue with the most similar known one.

        Returns
        -------
        Batch
            The drawn items.

        Raises
        ------
        TooFewRows
            If no step matches, or if fewer than `at_least` items can be drawn without replacement.
        InvalidValue
            If an argument is invalid, or the batch does not fit in memory.
        QueryError
            If the query, a name in `fields` or the column of `Ordered` is invalid.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.

        Examples
        --------
        >>> unit = expdb.NStep(3, gamma=0.99)  # doctest: +SKIP
        >>> buffer.sample(256, sampler=expdb.Prioritized(), unit=unit)  # doctest: +SKIP
        """  # noqa: DOC501
        if others:
            return self.sample(**with_new_names("sample", locals(), rng="seed"))
        if empty is not np.empty:
            check_empty(empty)
        generator = self._rng if seed is None and self._rng is not None else self._generator(seed)
        deadline = None if wait is None else time.monotonic() + checks.number(wait, "wait", 0)
        if fields is not None and type(fields) not in (list, tuple):
            fields = field_names(fields)  # only once: it may be an iterator
        arguments = size, where, sampler, unit, fields, shard, None, None, at_least
        before = {} if wait is None else generator.bit_generator.state
        attempts, pause = None, 0.001
        while True:
            now = time.monotonic()
            if now >= self._writers.next_flush:
                self._writers.flush_overdue_steps()
            try:
                batch = self._sampling.sample(arguments, generator, empty)
                if now >= self._reporter.next_report:
                    self._reporter.report_if_due()
                return batch
            except errors.ConnectionLost as error:
                attempts = attempts or Attempts(self._engine.timeout)
                if not attempts.again(error):
                    raise
                continue
            except errors.TooFewRows as error:
                if deadline is None or time.monotonic() >= deadline:
                    error = explain_gap(error, self._sampling.resident, unit)
                    raise self._explain_error(where, error) from None
                generator.bit_generator.state = before  # waiting must not change the batch
            except (MemoryError, ValueError) as error:
                checks.raise_if_too_large(size, error)
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    @checked_keywords(batch_size="size", n="epochs")
    def epochs(
        self,
        size: int,
        epochs: int | None = 1,
        where: Where = None,
        *,
        unit: Unit = Step(),  # noqa: B008 (frozen)
        fields: Sequence[str] | None = None,
        seed: int = 0,
        shard: tuple[int, int] | None = None,
        drop_last: bool = False,
        refresh: bool = False,
        empty: Empty = np.empty,
    ) -> Epochs:
        """Iterate over every item once per epoch, in minibatches.

        The `unit` builds an item from a step, for example a transition or a sequence. expdb lists
        the items when you request the first batch. An epoch skips an item if a later eviction,
        deletion or change prevents sampling it.

        Parameters
        ----------
        size : int
            Number of items per batch. The last batch of an epoch may have fewer.
        epochs : int or None, default 1
            Number of epochs. If None, the iterator never ends.
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        unit : Unit, default Step()
            Unit that defines the items; see `sample`.
        fields : sequence of str, optional
            Keys of the batch: fields, and columns of the view ``experience`` such as
            ``"task_id"`` or ``"tags"``. By default, `position`, `episode`, `step`, `reward`,
            `terminated`, `truncated` and every field. The batch always contains the keys of the
            unit, such as ``"mask"``.
        seed : int, default 0
            Seed of the order. Each epoch has its own order, derived from `seed` and the number of
            the epoch.
        shard : tuple of (int, int), optional
            ``(k, n)`` divides the episodes (with `Group`, the groups) into n parts and draws only
            from part k, counted from 0. Use it to give learners or loader workers different steps.
            By default, draw from all episodes.
        drop_last : bool, default False
            Whether to drop the last batch of an epoch if it has fewer than `size` items.
        refresh : bool, default False
            Whether to list the items again at the start of each epoch.
        empty : callable, optional
            Function ``empty(shape, dtype)`` that allocates the arrays of the fields, such as
            `expdb.integrations.torch.pinned`. By default, `numpy.empty`.

        Returns
        -------
        Epochs
            An iterator over batches, with `state_dict` and `load_state_dict`.

        Raises
        ------
        InvalidValue
            If an argument is invalid.
        QueryError
            If the query is invalid; the iterator raises it if `fields` has an unknown name.
        TooFewRows
            Raised by the iterator if an epoch has no batch.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has. The iterator warns if an
            epoch skips items.

        Examples
        --------
        >>> for batch in buffer.epochs(256, epochs=10, unit=expdb.NStep(1)):  # doctest: +SKIP
        ...     loss = learner(batch["obs"], batch["action"])
        """
        self._writers.flush_overdue_steps()
        names = None if fields is None else field_names(fields)  # only once: it may be an iterator
        request_args = where, unit, names, shard
        retry = self._engine.retry
        return Epochs(
            self._sampling, retry, self._no_items, size, epochs, request_args, seed, drop_last,
            refresh, empty,
        )  # fmt: skip

    def _no_items(self, where: Where, what: str) -> errors.TooFewRows:
        """Return the error for epochs without items."""
        error = errors.TooFewRows(f"no {what} for an epoch; store steps first, or widen the query")
        return self._explain_error(where, error)

    def _explain_error(self, where: Where, error: errors.TooFewRows) -> errors.TooFewRows:
        """Return the error with the numbers of stored, matching and unwritten steps."""
        condition = self._store.compiled(where)
        return self._writers.add_unwritten_steps(
            self._store.read(explain_too_few, condition, error)
        )

    def sampling_state(self) -> dict[str, Any]:
        """Return the state that, together with the stored data, determines the next samples.

        Pass it to `restore_sampling`. If the data are the same, the next samples are identical in
        any process.

        Returns
        -------
        dict
            JSON values: the state of the random generator, the priorities, and the number of calls
            of each prioritized sampler, which determines its beta.
        """
        generator = self._generator(None).bit_generator.state
        origin = {"format": 1, "buffer": self.name, "generator": generator}
        return origin | self._sampling.state()

    def restore_sampling(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `sampling_state` returned.

        Steps that were stored after the state was saved keep their priorities.

        Parameters
        ----------
        state : mapping
            Unchanged result of `sampling_state`.

        Raises
        ------
        InvalidValue
            If `state` is not a result of `sampling_state`, or belongs to a buffer with another
            name.
        """  # noqa: DOC501
        self._rng = self._sampling.restore(state)

    @checked_keywords(n="size", rng="seed")
    def sample_tasks(
        self,
        size: int,
        where: Where = None,
        *,
        rows: Literal["all", "matching"] = "all",
        fields: Sequence[str] | None = None,
        seed: Seed = None,
    ) -> dict[str, Batch]:
        """Draw distinct tasks uniformly and return their steps.

        A task can be drawn if it has a matching step.

        Parameters
        ----------
        size : int
            Number of tasks, at least 1.
        where : str, QueryBuilder, mapping or array_like of int, optional
            Query that selects steps: text such as ``"reward > 0.5"``, conditions, values that
            columns must equal, or positions. By default, every step matches.
        rows : {"all", "matching"}, default "all"
            Whether to return all steps of each task, from all agents and episodes, or only the
            matching steps.
        fields : sequence of str, optional
            Keys of the batch: fields, and columns of the view ``experience`` such as ``"task_id"``
            or ``"tags"``. By default, `position`, `episode`, `step`, `reward`, `terminated`,
            `truncated` and every field.
        seed : int or numpy.random.Generator, optional
            Seed or generator of the random numbers. By default, the generator of this object.

        Returns
        -------
        dict of str to Batch
            Steps by task id, in the order of `step` and then of their positions.

        Raises
        ------
        InvalidValue
            If `size`, `rows` or `seed` is invalid.
        TooFewRows
            If fewer than `size` tasks have a matching step.
        QueryError
            If the query is invalid, or `fields` has an unknown name.

        Warns
        -----
        ExpDBWarning
            If the query names a tag that no stored step or episode has, once per tag and handle.
        """
        size = checks.whole(size, "size", 1)
        checks.choice(rows, "rows", "all", "matching")
        generator, whole = self._generator(seed), rows == "all"
        before = generator.bit_generator.state

        def draw() -> dict[str, Batch]:
            generator.bit_generator.state = before  # a retry draws the same tasks
            return sample_tasks(self._store, size, self._compile(where), whole, fields, generator)

        return self._engine.retry(draw)

    # -- consumers, rate limiter and pace ----------------------------------------------------------

    @retry_on_restart
    def consumer(
        self,
        name: str,
        *,
        max_times_sampled: int | Unchanged | None = UNCHANGED,
        max_staleness: int | Unchanged | None = UNCHANGED,
        min_size: int | Unchanged = UNCHANGED,
        new_only: bool | Unchanged = UNCHANGED,
        seed: int | Unchanged = UNCHANGED,
    ) -> Consumer:
        """Return the consumer with a name, and create it if it does not exist.

        A consumer leases batches to learners that share the work. The database stores its settings
        and progress, so all learners that open the same name share them. Settings are fixed when
        the consumer is created. For an existing consumer, omit a setting (or pass
        `expdb.UNCHANGED`) to use the stored value.

        Parameters
        ----------
        name : str
            Name of the consumer, 1 to 255 bytes of UTF-8.
        max_times_sampled : int or None, optional
            Maximum number of leases of a step, an episode or a group. None, the default of a new
            consumer, means no limit.
        max_staleness : int or None, optional
            Largest difference between the `policy_version` of the buffer and the version of a
            leased step. For an episode or a group, the version of its oldest step counts. None,
            the default of a new consumer, means no limit.
        min_size : int, optional
            Number of steps that the buffer must hold before a lease succeeds. The default of a new
            consumer is 1.
        new_only : bool, optional
            Whether to lease only steps that are stored after the consumer is created. The default
            of a new consumer is False.
        seed : int, optional
            Seed of the drawn batches, at least 0. The default of a new consumer is a random seed.

        Returns
        -------
        Consumer
            The consumer, with `lease`, `batches`, `shared` and `acknowledge`.

        Raises
        ------
        InvalidValue
            If an argument is invalid, or `min_size` exceeds the capacity.
        ConsumerMismatch
            If the consumer exists and has another value of a setting that you pass.
        UnknownConsumer
            If the consumer does not exist and the handle was opened with ``read_only=True``.
        """
        settings = checked_settings(max_times_sampled, max_staleness, min_size, new_only, seed)
        new_seed = int(np.random.default_rng().integers(2**63))
        name = checks.name(name, "a consumer")
        record = consumers.open_consumer(self._store, name, settings, new_seed)
        ledger = self._consumers.get(record.id)
        if ledger is None or ledger.name != record.name:
            ledger = ConsumerLedger(self._store, self._sampling, record)
            self._consumers[record.id] = ledger
        if not self._latest or self._latest[-1] is not ledger:
            self._latest.append(ledger)
        return Consumer(ledger, record.name, self)

    @property
    @retry_on_restart
    def policy_version(self) -> int | None:
        """Version of the policy that is being trained, an int64, or None before it is set.

        Consumers and the `pace` measure staleness relative to this version. The version never
        decreases.

        Raises
        ------
        InvalidValue
            If the new version is less than the stored version, or is not an int64.
        """
        return self._store.read(consumers.policy_version)

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        wanted, in_doubt = checks.whole(version, "policy_version"), False

        def attempt() -> None:
            nonlocal in_doubt
            try:
                consumers.set_policy_version(self._store, wanted)
            except errors.ConnectionLost:
                in_doubt = True
                raise
            except errors.InvalidValue:
                if not in_doubt:  # otherwise an earlier attempt may have succeeded
                    raise

        self._engine.retry(attempt)

    @property
    def policy_versions(self) -> PolicyVersions:
        """Current policy versions of single agents, a mapping of `agent_id` to int.

        Assign ``buffer.policy_versions["opponent"] = 3`` if the agents of a buffer have different
        policies, as in self-play. Assign a mapping to the property to set several versions. The
        `max_staleness` of a consumer then measures each step relative to the version of its agent.
        Agents without a version of their own use `policy_version`; without that version, their
        steps are never too stale. An episode is too stale if one of its steps is. A version never
        decreases. `add_label` and `of_labels` convert text such as ``"step-42"`` to versions.
        """
        return PolicyVersions(self._store)

    @policy_versions.setter
    def policy_versions(self, versions: Mapping[str, int]) -> None:
        self.policy_versions.update(versions)

    @property
    @retry_on_restart
    def rate_limiter(self) -> RateLimiter | None:
        """Limit on how far writers and learners may get ahead of each other, or None.

        Assign a `SampleToInsertRatio`, `Queue` or `MinSize`, or None for no limit. The limiter
        counts the steps of all writers and the leased items of all consumers from the time you set
        it. It does not count `sample`. A delayed write waits up to the handle's `timeout`, and
        then raises `RateLimited`. A delayed lease waits up to the `wait` of the call.

        Raises
        ------
        InvalidValue
            If the new value is not a `RateLimiter` or None, or its `min_size` exceeds the capacity.
        """
        return self._store.read(rates.rate_limiter)[0]

    @rate_limiter.setter
    def rate_limiter(self, limiter: RateLimiter | None) -> None:
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise errors.InvalidValue(
                f"rate_limiter must be a RateLimiter such as Queue(1000), or None, got {limiter!r}"
            )
        self._engine.retry(rates.set_rate_limiter, self._store, limiter)

    @property
    @retry_on_restart
    def pace(self) -> Pace | None:
        """Limit on how far actors may get ahead of training, a `Pace`, or None.

        Assign ``expdb.Pace(max_staleness, groups_per_version)``. `admit` then delays a new group
        of episodes that would be too stale when it is trained on. The pace counts from the
        `policy_version` at which you set it, so set the version first. If you replace a pace,
        groups that have already begun still count.

        Raises
        ------
        InvalidValue
            If the new value is not a `Pace` or None, or `policy_version` was never set.
        """
        return self._store.read(admissions.pace)[0]

    @pace.setter
    def pace(self, pace: Pace | None) -> None:
        if pace is not None and not isinstance(pace, Pace):
            raise errors.InvalidValue(f"pace must be an expdb.Pace or None, got {pace!r}")
        self._engine.retry(admissions.set_pace, self._store, pace)

    @checked_keywords(seconds="expiry_seconds")
    def admit(
        self, *, wait: float | None = None, required: bool = True, expiry_seconds: float = 3600.0
    ) -> Admission | None:
        """Wait until a new group of episodes may begin, and return its admission.

        With a `pace`, a group may begin once it can be trained on before it is too stale. Without
        a pace, the group begins at once. Use the admission with ``with``: leaving the block
        finishes the group. An exception in the block cancels the group, so that another group may
        begin in its place. The group also stops counting after `expiry_seconds`, or when another
        process on the same machine finds that the process of the group has ended.

        Parameters
        ----------
        wait : float, optional
            Maximum time to wait, in seconds. By default, wait without limit.
        required : bool, default True
            Whether to raise `RateLimited` after `wait` seconds. If False, return None.
        expiry_seconds : float, default 3600.0
            Maximum duration of the group, in seconds. After this time, the group no longer counts.

        Returns
        -------
        Admission or None
            The admission, whose `policy_version` is that of the buffer when the group began. None
            only if `required` is False.

        Raises
        ------
        RateLimited
            If the group may not begin within `wait` seconds.
        InvalidValue
            If an argument is invalid.

        Warns
        -----
        ExpDBWarning
            If a call without `wait` has waited for 60 seconds.

        Examples
        --------
        >>> with buffer.admit() as group:  # doctest: +SKIP
        ...     for _ in range(8):
        ...         roll_out(buffer, policy_version=group.policy_version)
        """
        return admit(self._store, wait, required, expiry_seconds)

    @checked_keywords(seconds="expiry_seconds")
    def admit_async(
        self, *, wait: float | None = None, required: bool = True, expiry_seconds: float = 3600.0
    ) -> AdmissionRequest:
        """Wait for an admission as `admit` does, without blocking the event loop.

        Write ``await buffer.admit_async()`` or ``async with buffer.admit_async() as group``. If the
        coroutine is cancelled, the admitted group is cancelled too.

        Parameters
        ----------
        wait : float, optional
            Maximum time to wait, in seconds. By default, wait without limit.
        required : bool, default True
            Whether to raise `RateLimited` after `wait` seconds. If False, return None.
        expiry_seconds : float, default 3600.0
            Maximum duration of the group, in seconds.

        Returns
        -------
        coroutine of Admission or None
            Coroutine that returns the admission; see `admit`. An ``async with`` statement also
            enters the admission.

        Raises
        ------
        RateLimited
            If the group may not begin within `wait` seconds.
        InvalidValue
            If an argument is invalid.

        Warns
        -----
        ExpDBWarning
            If a call without `wait` has waited for 60 seconds.

        Examples
        --------
        >>> async with buffer.admit_async() as group:  # doctest: +SKIP
        ...     await generate(prompt, group.policy_version)
        """
        return AdmissionRequest(self._store, wait, required, expiry_seconds)

    @retry_on_restart
    def waiting(self, *, limit: int | None = None) -> pa.Table:
        """Return the calls of learners, writers and actors that have waited for over one second.

        `ExperienceDB.doctor` also reports these calls.

        Parameters
        ----------
        limit : int, optional
            Return only this number of calls, the longest waits. By default, there is no limit.

        Returns
        -------
        pyarrow.Table
            One row per waiting call, longest wait first. The columns are `role` (``"actor"``,
            ``"learner"``, or null if the process uses an older version of expdb); `process`, the
            process id and the machine; `seconds`, the time that the call has waited so far; and
            `waits_for`, the condition that the call waits for, as text.

        Raises
        ------
        InvalidValue
            If `limit` is not a positive integer.
        """
        return table_of_rows(self._store.read(waiters.list_waiting, limit), waiters.COLUMNS)

    @retry_on_restart
    def workers(self, *, limit: int | None = None) -> pa.Table:
        """Return the workers that write to the buffer, learn from it or judge its episodes.

        A worker is one role of one handle. Once a handle has had the buffer open for one second,
        its next write, sample, lease, acknowledgement or score registers it. From then on, it
        reports about every ten seconds while it uses the buffer. Read-only handles do not register.
        expdb removes a worker one hour after its last report if the worker has ended, and otherwise
        one day after its last report.

        Parameters
        ----------
        limit : int, optional
            Return only this number of workers, the most recently active ones. By default, there is
            no limit.

        Returns
        -------
        pyarrow.Table
            One row per worker, the most recently active one first. The columns are
            `role` (``"actor"``, ``"learner"`` or ``"judge"``); `process`, the process id and the
            machine; `run`; `state` (``"active"``; ``"waiting"``, for the reason `waits_for`;
            ``"silent"``, without a report for a minute; ``"ended"``; or ``"died"``, if the process
            ended without closing its handle); `since` and `active`, the times of the first and of
            the latest report in Unix seconds; `counts`, a struct of counters such as ``steps`` or
            ``leases``; and `rates`, a struct with the increase of each counter per second between
            the latest two reports, without sums. In the structs, a counter that a worker does not
            have is null.

        Raises
        ------
        InvalidValue
            If `limit` is not a positive integer.

        Examples
        --------
        >>> buffer.workers().select(["role", "state"]).to_pylist()  # doctest: +SKIP
        [{'role': 'actor', 'state': 'active'}, {'role': 'learner', 'state': 'waiting'}]
        """
        return table_of_rows(self._store.read(workers.list_workers, limit), workers.COLUMNS)

    @checked_keywords(newest="limit")
    @retry_on_restart
    def leases(
        self, consumer: str | None = None, *, status: str | None = None, limit: int = 100
    ) -> pa.Table:
        """Return the newest leases of one consumer or of all consumers.

        Parameters
        ----------
        consumer : str, optional
            Name of the consumer. By default, the leases of all consumers are returned.
        status : {"leased", "acknowledged", "released", "expired"}, optional
            Return only leases with this status. A lease is ``"expired"`` from its expiry until its
            consumer leases again, and then ``"released"``.
        limit : int, default 100
            Maximum number of leases, at least 1.

        Returns
        -------
        pyarrow.Table
            One row per lease, oldest first. The columns are `consumer`; `lease`, the id of the
            lease; `batch`, the number of the batch, which is the same if a released batch is leased
            again; `status`; `process`, the process id and the machine of the learner;
            `leased_at`, `expires_at` and `ended_at` in Unix seconds; `trainer_step`, the step that
            the learner passed when it acknowledged; `policy_version`, the version of the buffer at
            the time of the lease; `items`, the number of leased items; and `first_position` and
            `last_position`, the smallest and the greatest drawn position.

        Raises
        ------
        UnknownConsumer
            If there is no consumer with this name.
        InvalidValue
            If `status` is unknown, or `limit` is not a positive integer.

        Examples
        --------
        >>> buffer.leases("learner", limit=1)["trainer_step"].to_pylist()  # doctest: +SKIP
        [1200]
        """
        rows = self._store.read(listing.list_leases, consumer, status, limit)
        return table_of_rows(rows, listing.COLUMNS)

    @checked_keywords(newest="limit")
    @retry_on_restart
    def draws(
        self,
        positions: Sequence[int] | np.ndarray | None = None,
        *,
        consumer: str | None = None,
        lease: int | None = None,
        trainer_step: int | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the items of leases, with their consumers and sampling probabilities.

        Parameters
        ----------
        positions : array_like of int, optional
            Return only items with these positions. The position of an item with several steps, such
            as an episode or a sequence, is that of its first step. By default, return all items.
        consumer : str, optional
            Name of the consumer. By default, the leases of all consumers are searched.
        lease : int, optional
            Id of a lease of `consumer`. Search only this lease.
        trainer_step : int, optional
            Search all leases that were acknowledged with this trainer step, and no others.
        limit : int, optional
            Search only this number of leases of each consumer, the newest ones. By default, search
            all leases.

        Returns
        -------
        pyarrow.Table
            One row per drawn item, the oldest lease first. The columns are `consumer`, `lease`,
            `batch`, `status`, `leased_at` and `trainer_step`, as in `leases`, but with the status
            ``"discarded"`` for groups that `Consumer.discard` has marked; `position`, the
            position of the item; and `probability`, with which the sampler drew the item or its
            group, or null if the sampler does not record probabilities.

        Raises
        ------
        UnknownConsumer
            If there is no consumer with this name.
        InvalidValue
            If `positions` is not a 1-D sequence of integers, `lease` is passed without `consumer`,
            or `trainer_step` or `limit` is invalid.
        DatabaseDamaged
            If a lease is corrupted.

        Examples
        --------
        >>> buffer.draws([17])["trainer_step"].to_pylist()  # doctest: +SKIP
        [3, 12]
        """
        if lease is not None and consumer is None:
            raise errors.InvalidValue("lease ids are unique only per consumer; also pass consumer=")
        chosen = None if positions is None else checks.positions(positions)
        lease = None if lease is None else checks.whole(lease, "lease", 0)
        rows = self._store.read(listing.list_draws, chosen, consumer, lease, trainer_step, limit)
        return table_of_rows(rows, listing.DRAW_COLUMNS)

    @checked_keywords(newest="limit")
    @retry_on_restart
    def metrics(self, since: float = 0.0, *, limit: int | None = None) -> pa.Table:
        """Return the history of the metrics of the buffer.

        While processes use the buffer, one of them adds a row about every ten seconds. expdb keeps
        a row for each 10 seconds of the last hour of activity, for each minute of the day before
        it, and for each 10 minutes of the 30 days before that.

        Parameters
        ----------
        since : float, default 0.0
            Return only measurements from this time on, in Unix seconds.
        limit : int, optional
            Maximum number of measurements, at least 1. By default, there is no limit.

        Returns
        -------
        pyarrow.Table
            One row per measurement, oldest first. The column `time` has Unix seconds. All columns
            are float64, and null where a value is unknown. The guide "How to monitor a run" lists
            the columns.

        Raises
        ------
        InvalidValue
            If `since` is neither 0 nor a time in Unix seconds, or `limit` is not a positive
            integer.

        Examples
        --------
        >>> buffer.metrics(time.time() - 3600)["steps_per_second"]  # doctest: +SKIP
        """
        columns = self._store.read(read_metrics, since, limit)
        return pa.table({name: pa.array(column, "float64") for name, column in columns.items()})

    @retry_on_restart
    def consumers(self) -> list[str]:
        """Return the names of all consumers, oldest first.

        Returns
        -------
        list of str
            Names of the consumers.
        """
        return self._store.read(consumers.list_consumers)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer and its ledger.

        Parameters
        ----------
        name : str
            Name of the consumer.

        Raises
        ------
        UnknownConsumer
            If there is no consumer with this name.
        InvalidValue
            If `name` is not a valid name.
        """
        consumers.drop_consumer(self._store, checks.name(name, "a consumer"))

    @checked_keywords(steps="trainer_steps", last="limit")
    def replay(
        self,
        consumer: str,
        trainer_steps: Iterable[int] | None = None,
        *,
        limit: int | None = None,
        unit: Unit | None = None,
        units: Iterable[type[Unit]] = (),
    ) -> Iterator[Batch]:
        """Yield the batches that a consumer's learners have acknowledged, bit for bit.

        The batches come in the order of their acknowledgement. Without `trainer_steps` and `limit`,
        all acknowledged batches are replayed. The call reads which batches to replay, and the
        iterator rebuilds each batch when you request it.

        Parameters
        ----------
        consumer : str
            Name of the consumer.
        trainer_steps : iterable of int, optional
            Replay only the batches that were acknowledged with one of these trainer steps.
        limit : int, optional
            Replay only this number of the selected batches, the newest ones. By default, replay all
            selected batches.
        unit : Unit, optional
            Unit to use for all batches instead of the recorded units.
        units : iterable of type, optional
            Your own unit classes, which `replay` finds by their recorded names. You can omit a
            class if its module is imported.

        Returns
        -------
        iterator of Batch
            The batches, rebuilt one at a time.

        Raises
        ------
        InvalidValue
            If an argument is invalid. The iterator raises it if a recorded unit is unknown, belongs
            to another version of its class, or has a setting that JSON cannot hold.
        UnknownConsumer
            If there is no consumer with this name.
        Evicted
            Raised by the iterator if steps of a batch are evicted or deleted; the message names up
            to five positions.
        ReplayMismatch
            Raised by the iterator if a batch differs from the leased one, for example because its
            rewards or episodes have changed.

        Warns
        -----
        ExpDBWarning
            If `trainer_steps` is given and no batch was acknowledged with any of these steps.

        Examples
        --------
        >>> buffer.replay("trainer", units=[Pairs])  # doctest: +SKIP
        """
        arguments = checked_replay(consumer, trainer_steps, limit, unit, units)
        return self._engine.retry(replayed, self._store, self._sampling, *arguments)

    # -- asynchronous forms ------------------------------------------------------------------------

    count_async = async_form(count, reads=True)
    tasks_async = async_form(tasks, reads=True)
    task_statistics_async = async_form(task_statistics, reads=True)
    episodes_async = async_form(episodes, reads=True)
    lineage_async = async_form(lineage, reads=True)
    steps_of_async = async_form(steps_of, reads=True)
    fork_async = async_form(fork)
    unfinished_async = async_form(unfinished, reads=True)
    page = deprecated("`scan(size=n)`")(_page)
    page_async = async_form(page, reads=True)
    get_async = async_form(get, reads=True)
    scan_async = async_iteration(scan)
    plan_eviction_async = async_form(plan_eviction, reads=True)
    stats_async = async_form(stats, reads=True)
    check_async = async_form(check, reads=True)
    why_async = async_form(why, reads=True)
    sample_async = async_form(sample, reads=True)
    sample_tasks_async = async_form(sample_tasks, reads=True)
    waiting_async = async_form(waiting, reads=True)
    draws_async = async_form(draws, reads=True)
    leases_async = async_form(leases, reads=True)
    workers_async = async_form(workers, reads=True)
    metrics_async = async_form(metrics, reads=True)
    consumers_async = async_form(consumers, reads=True)
    replay_async = async_iteration(replay)
    episode_async = async_form(episode)
    end_episode_async = async_form(end_episode)
    update_async = async_form(update)
    update_priorities_async = async_form(update_priorities)
    score_async = async_form(score)
    score_batch_async = async_form(score_batch)
    scores_async = async_form(scores, reads=True)
    annotate_async = async_form(annotate)
    delete_async = async_form(delete)
    clear_async = async_form(clear)
    set_capacity_async = async_form(_set_capacity)
    evict_async = async_form(evict)
    index_async = async_form(index)
    consumer_async = async_form(consumer)
    drop_consumer_async = async_form(drop_consumer)

    def _generator(self, seed: Seed) -> np.random.Generator:
        if seed is not None:
            try:
                return np.random.default_rng(seed)
            except (TypeError, ValueError):
                raise errors.InvalidValue(
                    f"seed must be a non-negative integer or a numpy.random.Generator, got {seed!r}"
                ) from None
        self._rng = self._rng or np.random.default_rng()
        return self._rng


def _reopened(database: Any, name: str) -> ReplayBuffer:
    return database.buffer(name)  # type: ignore[no-any-return]
