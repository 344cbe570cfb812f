"""ReplayBuffer: where storage and replay meet.

Storage finds and reads, replay chooses; this file joins the two.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from expdb import checks, errors
from expdb.archive.retention import Retention
from expdb.batch import Batch
from expdb.checks import KEEP, Keep
from expdb.consumers.admission import Admission, admit, admit_async
from expdb.consumers.consumer import Consumer
from expdb.consumers.leasing import Leasing
from expdb.consumers.replaying import replayed
from expdb.memory.budget import Budget
from expdb.names import (
    BUFFER_HINTS,
    COLUMN_KINDS,
    DEFAULT_TASK,
    EPISODE_COLUMNS,
    STEP_COLUMNS,
    STORE_CALL,
    TaskReminder,
    build_attribute_error,
    nearest,
)
from expdb.process import exits
from expdb.replay.rate_limiters import Pace, RateLimiter
from expdb.replay.samplers import Sampler, Uniform
from expdb.replay.units import Step, Unit
from expdb.sampling.epochs import Epochs
from expdb.sampling.request import check_empty, check_instances, field_names
from expdb.sampling.sampling import Sampling, explained
from expdb.sampling.tasks import sample_tasks
from expdb.sql.conditions import Condition
from expdb.sql.engine import Attempts, Engine, retry_on_restart
from expdb.sql.query import Where, shown
from expdb.storage.ledger import admissions, consumers, rates, waiters
from expdb.storage.reading import fetch, select
from expdb.storage.store import Store, evicted
from expdb.storage.upkeep.check import check_buffer
from expdb.storage.upkeep.stats import buffer_stats
from expdb.storage.upkeep.why import why
from expdb.storage.writing import change, episodes
from expdb.storage.writing.batches import columns_of, rows_of
from expdb.storage.writing.eviction import Eviction
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.requested_changes import checked_changes, tags_of
from expdb.writers.open_writers import OpenWriters
from expdb.writers.sinks import EpisodeSink, StepSink, parted
from expdb.writers.writers import EpisodeWriter, StepWriter

Seed: TypeAlias = "int | np.random.Generator | None"

Empty: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]

SCANNED_AT_ONCE = 4096


class ReplayBuffer:
    """Hold experience under a name.

    Bounded, durable, shared by every process that opens the database.

    Made by `db.buffer(name)`. Threads may share it. Writing methods return when what they wrote is
    durable and visible to everybody; positions are int64, count up from 0 and are never used twice.
    """

    def __new__(cls, *args: Any, **options: Any) -> ReplayBuffer:
        """Refuse a buffer that is not made by its database."""
        if not (args and isinstance(args[0], Store)):
            raise errors.InvalidValue(
                "a ReplayBuffer cannot be created directly; call expdb.open(path).buffer(name)"
            )
        return super().__new__(cls)

    def __init__(self, store: Store, run: str, database: Any, budget: Budget):
        self._store, self._sampling, self._database = store, Sampling(store, budget), database
        # A `Leasing` lives as long as a `Consumer` refers to it. The latest ones live on, so that a
        # loop around `buffer.consumer(name).lease(...)` reads the ledger once.
        self._consumers: WeakValueDictionary[int, Leasing] = WeakValueDictionary()
        self._latest: deque[Leasing] = deque(maxlen=16)
        self._open_episodes = OpenEpisodes(store, run)
        self._rng: np.random.Generator | None = None
        self._writers = OpenWriters(store)
        self._task_reminder = TaskReminder()
        self._retention = Retention(store, self._scan_at, self._sampling.save)

    @property
    def _engine(self) -> Engine:
        return self._store.engine

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a misspelt setting, such as `buffer.policy_verison = 7`."""
        if not name.startswith("_") and not hasattr(type(self), name):
            settings = "policy_version", "rate_limiter", "pace", "eviction"
            raise AttributeError(
                f"a buffer has no {name!r}{nearest(name, settings) or ':'} settings are "
                f"{', '.join(settings)}"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.name!r}: {len(self)} steps, capacity {self.capacity}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._database, self.name)

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a ReplayBuffer is not iterable; scan() yields its steps in batches, and page(1, 100) "
            "returns them as dicts"
        )

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(
            "a ReplayBuffer cannot be indexed; use get([position]), sample(size) or scan(where)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise build_attribute_error("a ReplayBuffer", name, dir(type(self)), BUFFER_HINTS)

    @property
    def name(self) -> str:
        """The name in the database."""
        return self._store.name

    # -- writing -----------------------------------------------------------------------------------

    def store(
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
    ) -> int:
        """Store one step and return its position, once it is durable.

        Without `episode_id` it goes to the open episode of this run, task and agent; a terminated
        or truncated step completes that, and the next step starts another. `step` defaults to the
        number of steps the episode has, `execute_time` to now (Unix seconds), `policy_version` to
        that of the episode, which is that of its first step. `policy_version_end` is for a step
        that was generated across an update of the weights: the version that finished it. `fields`
        are what the agent saw and did, any names and values: arrays, numbers, text, bytes, dicts,
        lists of messages, dataclasses, pydantic models.

        Raises ReservedName, InvalidValue or FieldMismatch before anything is stored, EpisodeEnded
        if the episode has ended, EpisodeMismatch if it is another task's, agent's or group's.

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
            "episode_id": episode_id,
            "group_id": group_id, "pre_agent": pre_agent, "execute_time": execute_time,
            "reward": reward,
            "terminated": terminated, "truncated": truncated, "policy_version": policy_version,
            "policy_version_end": policy_version_end, "tags": tags,
            "episode_tags": episode_tags,
        }  # fmt: skip
        exits.watch_worker()
        position = int(self._open_episodes.write([(row, fields)])[0])
        self._retention.look()
        return position

    def store_batch(self, rows: Any) -> np.ndarray:
        """Store many steps in one transaction and return their positions, int64 in the order given.

        `rows` is a list of mappings with the arguments of `store`, a mapping of columns (scalars,
        text and mappings are broadcast; arrays are [rows, ...]), or an Arrow table or anything with
        `__arrow_c_stream__`. All or nothing.
        """
        columns = columns_of(rows)
        positions = None if columns is None else self._open_episodes.write_columns(columns)
        if positions is None:
            pending = [parted(row) for row in rows_of(rows if columns is None else columns)]
            positions = self._open_episodes.write(pending)
        self._retention.look()
        return positions

    def episode(
        self,
        task_id: str,
        *,
        task_name: str | None = None,
        agent_id: str = "agent",
        episode_id: str | None = None,
        group_id: str | None = None,
        policy_version: int | None = None,
        episode_tags: Mapping[str, Any] | None = None,
        tags: None = None,
        flush_steps: int = 256,
        flush_bytes: int = 1 << 20,
        flush_seconds: float = 5.0,
    ) -> EpisodeWriter:
        """Return a writer of one new episode, which buffers steps and writes them in chunks.

        Use it with `with`.

        A flush happens at the append that reaches a limit: `flush_steps`, `flush_bytes` or
        `flush_seconds` since the last one. Raises EpisodeMismatch if the `episode_id` is taken, and
        InvalidValue for `tags`, which are a step's: `append(tags=...)` takes them.
        """
        if tags is not None:
            raise errors.InvalidValue(
                "tags are a step's: give the episode's as episode_tags=, which queries know as "
                "episode_tags.<key>"
            )
        self._check_writable()
        flush_steps, flush_bytes, flush_seconds = _limits(flush_steps, flush_bytes, flush_seconds)
        given = {
            "task_name": task_name,
            "group_id": group_id,
            "policy_version": policy_version,
            "episode_tags": episode_tags,
        }
        if episode_id is not None and episodes.find(
            self._store, [checks.text(episode_id, "episode_id")]
        ):
            raise errors.EpisodeMismatch(
                f"episode {episode_id!r} exists already: choose another episode_id"
            )
        episode = self._open_episodes.new(task_id, agent_id, episode_id, given)
        return self._writers.add(
            EpisodeWriter(EpisodeSink(self), episode, flush_steps, flush_bytes, flush_seconds)
        )

    def writer(
        self, *, flush_steps: int = 256, flush_bytes: int = 1 << 20, flush_seconds: float = 5.0
    ) -> StepWriter:
        """Return a writer of steps of any episodes, which writes hundreds in one transaction.

        Its `append` takes what `store` takes. Use it with `with`. A flush happens at the append
        that reaches a limit, as for `episode`. Episodes without an `episode_id` are its own:
        complete when it is closed, aborted where the block ends by an exception or nobody closes
        it.
        """
        self._check_writable()
        flush_steps, flush_bytes, flush_seconds = _limits(flush_steps, flush_bytes, flush_seconds)
        sink = StepSink(self, OpenEpisodes(self._store, self._open_episodes.run))
        return self._writers.add(StepWriter(sink, flush_steps, flush_bytes, flush_seconds))

    def _check_writable(self) -> None:
        if self._store.engine.read_only:
            raise errors.DatabaseReadOnly(
                f"{self._store.engine.location} was opened with read_only=True: open it without to "
                "write"
            )

    def end_episode(
        self, episode_id: str, status: Literal["complete", "aborted"] = "complete"
    ) -> None:
        """End an open episode that `store` has written; its chunks are merged.

        Raises UnknownEpisode, or EpisodeEnded if it has ended.
        """
        checks.choice(status, "status", "complete", "aborted")
        self._open_episodes.end(episode_id, status)

    def _end_writers(self, told: list[str]) -> None:
        """Flush the writers that are open as the handle is closed, and end their episodes.

        Adds the warnings about them to `told`.
        """
        self._writers.end_all(told)

    def _complete_open_episodes(self) -> None:
        with suppress(errors.UnknownBuffer):  # dropped by somebody else
            self._open_episodes.end_all("complete")

    def _before_fork(self, deadline: float) -> None:
        self._sampling.before_fork(deadline)

    def _after_fork(self) -> None:
        self._sampling.after_fork()

    def _forked(self, run: str) -> None:
        """Be another run in a forked child: the open episodes are the parent's."""
        self._open_episodes, self._rng, self._writers = (
            OpenEpisodes(self._store, run),
            None,
            OpenWriters(self._store),
        )
        self._retention = Retention(self._store, self._scan_at, self._sampling.save)
        self._sampling.forked()
        for consumer in list(self._consumers.values()):
            consumer.forked()

    # -- reading -----------------------------------------------------------------------------------

    @retry_on_restart
    def __len__(self) -> int:
        with self._store.engine.reading() as session:
            return self._store.state(session).size

    def __bool__(self) -> bool:
        return True

    @property
    @retry_on_restart
    def capacity(self) -> int | None:
        """Steps kept at most; None for all."""
        with self._store.engine.reading() as session:
            return self._store.state(session).capacity

    @property
    @retry_on_restart
    def revision(self) -> int:
        """The number of updates and deletions of stored steps and episodes.

        Use it to validate a cache: while it is unchanged, columns and tags read earlier are still
        correct. New steps, evictions and priority updates do not increase it. Changes by other
        processes are included up to `max_lag` seconds late.
        """
        return self._sampling.revision()

    def _compiled(self, where: Where, new_tags: Set[str] = frozenset()) -> Condition | None:
        """Return the condition; what it may ask for is written first."""
        condition = self._store.compiled(where, new_tags)
        self._sampling.save()
        return condition

    @retry_on_restart
    def count(self, where: Where = None) -> int:
        """Return how many steps match."""
        condition = self._compiled(where)
        with self._store.engine.reading() as session:
            return select.count(self._store, session, condition)

    @retry_on_restart
    def tasks(self, where: Where = None) -> list[str]:
        """Return the ids of the tasks that have a matching step, in order of their first one."""
        condition = self._compiled(where)
        with self._store.engine.reading() as session:
            return select.tasks(self._store, session, condition)

    @retry_on_restart
    def episodes(self, where: Where = None) -> pa.Table:
        """Return the episodes that have a matching step as an Arrow table, oldest first.

        Tags are JSON text.
        """
        condition = self._compiled(where)
        with self._store.engine.reading() as session:
            names, rows = select.episodes(self._store, session, condition)
        return pa.Table.from_arrays(
            [
                pa.array([row[k] for row in rows], _ARROW_TYPES.get(COLUMN_KINDS[name], pa.utf8()))
                for k, name in enumerate(names)
            ],
            names,
        )

    @retry_on_restart
    def page(self, number: int, size: int, where: Where = None) -> list[dict[str, Any]]:
        """Return page `number` (from 1) of `size` matching steps, by position, as dicts.

        Returns `[]` past the end.
        """
        number, size = (
            checks.whole(number, "the page's number", 1),
            checks.whole(size, "the page's size", 1),
        )
        condition = self._compiled(where)
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            offset = (number - 1) * size
            if offset >= state.added:
                return []
            found = select.positions(
                self._store, session, condition, limit=min(size, state.added), offset=offset
            )
            return Batch(
                fetch.steps(self._store, session, state, found, (*_PAGE, *self._store.fields.types))
            ).to_list()

    @retry_on_restart
    def get(
        self, positions: Sequence[int] | np.ndarray, *, fields: Sequence[str] | None = None
    ) -> Batch:
        """Return steps by position, in the order asked.

        Raises Evicted, which names those that are not held.
        """
        wanted = _positions(positions)
        batch = self._sampling.get(wanted, fields)
        if batch is not None:
            return batch
        self._sampling.save()
        with self._store.engine.reading() as session:
            state = self._store.state(session)
            held = fetch.alive(self._store, session, wanted)
            if not held.all():
                raise evicted(wanted[~held])
            return Batch(fetch.steps(self._store, session, state, wanted, fields), len(wanted))

    def scan(
        self,
        where: Where = None,
        *,
        after: int = -1,
        size: int = 4096,
        fields: Sequence[str] | None = None,
    ) -> Iterator[Batch]:
        """Yield all matching steps in order of position, in batches of up to `size`.

        Each batch is one snapshot.

        `after` leaves out positions up to it: with the last one seen it reads what has come since.
        """
        size, after = checks.whole(size, "size", 1), checks.whole(after, "after", -1)
        return self._scan(self._compiled(where), after, size, fields)

    def _scan(
        self, condition: Condition | None, after: int, size: int, fields: Sequence[str] | None
    ) -> Iterator[Batch]:
        while True:
            with self._store.engine.reading() as session:
                state = self._store.state(session)
                found = select.positions(self._store, session, condition, after=after, limit=size)
                columns = fetch.steps(self._store, session, state, found, fields)
            if not len(found):
                return
            yield Batch(columns, len(found))
            after = int(found[-1])

    def _scan_at(self, positions: np.ndarray, fields: Sequence[str]) -> Iterator[Batch]:
        """Yield the held steps of some positions in batches, with JSON as text."""
        for start in range(0, len(positions), SCANNED_AT_ONCE):
            with self._store.engine.reading() as session:
                state, some = self._store.state(session), positions[start:][:SCANNED_AT_ONCE]
                found = some[fetch.alive(self._store, session, some)]
                columns = fetch.steps(self._store, session, state, found, fields, json_text=True)
            yield Batch(columns, len(found))

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
        """Set columns of the matching steps, such as a late reward, and return how many matched.

        A reward that is given to several steps of one episode counts once for each in its return,
        so the first such update is warned of. `episode_return` follows rewards.

        Parameters
        ----------
        where : query, mapping or positions
            Which steps to update. An `episode_id` that matches no step is warned of: another
            process may not have flushed it yet.
        which : {"all", "last"}
            With "last", update only the last step of each matching episode, which is where the
            reward of a whole episode belongs.
        replace_tags : bool
            Replace all tags instead of merging the given ones into them.
        required : bool
            Raise TooFewRows if no step matches.
        **columns
            `reward`, `terminated`, `truncated`, `tags`, and of the whole episode `episode_tags`
            and `policy_version`. `tags` and `episode_tags` are merged into the stored tags: other
            keys stay, and a key with the value None is removed. A single tag can be given as
            ``**{"tags.judge": 1.0}``. Tags that are None as a whole are removed.

        Returns
        -------
        int
            Number of steps that matched.

        Raises
        ------
        InvalidValue
            For any other column, and for `where=None`.
        TooFewRows
            If `required` and no step matches.

        Examples
        --------
        >>> buffer.update({"episode_id": "a-1"}, reward=1.0, which="last")  # doctest: +SKIP
        1
        >>> buffer.update({"episode_id": "a-1"}, tags={"judge": 0.7})  # doctest: +SKIP
        12
        """
        checks.choice(which, "which", "all", "last")
        required = checks.flag(required, "required")
        changes = checked_changes(columns, checks.flag(replace_tags, "replace_tags"))
        condition = self._required(where, "update", tags_of(changes))
        changed = change.update(self._store, condition, changes, which == "last")
        if not changed and required:
            raise errors.TooFewRows(
                f"update found no step of buffer {self.name!r} that matches {shown(where)}; check "
                "the query, and that the writer of the steps has flushed them"
            )
        if not changed and (unwritten := self._writers.unwritten()):
            errors.warn(
                f"update found no step, and {unwritten} that were appended are not written yet: "
                "flush() or end the episode first"
            )
        elif not changed and "episode_id" in condition.names:
            errors.warn(
                f"update changed nothing: no stored step of buffer {self.name!r} matches "
                f"{shown(where)}; the steps may be evicted, or not yet flushed by another process "
                "(required=True raises an error instead)"
            )
        return changed

    def update_priorities(self, positions: Sequence[int] | np.ndarray, values: Any) -> int:
        """Set the priority of steps and return how many were set.

        Positions that are gone are left out.

        Raises InvalidValue for a priority that is negative, NaN or infinite. Of duplicates the last
        counts.
        """
        try:
            wanted = _positions(np.asarray(positions).reshape(-1))
            given = np.asarray(values, np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise errors.InvalidValue(
                f"positions or priorities are no arrays of numbers ({error}): give one number for "
                "each"
            ) from None
        if not _alike(np.shape(positions), np.shape(values)):
            raise errors.InvalidValue(
                f"positions {list(np.shape(positions))} and priorities {list(np.shape(values))}: "
                "give one for each, in the same order"
            )
        if len(given) and not (given.min() >= 0 and given.max() < np.inf):  # nor where one is NaN
            raise errors.InvalidValue(
                "a priority is negative, NaN or infinite: give finite numbers from 0"
            )
        return self._sampling.update_priorities(wanted, given)

    def delete(self, where: Where, *, keep_pinned: bool = False) -> int:
        """Delete the matching steps and return how many there were; `clear` deletes all.

        With `keep_pinned` those stay, in the same transaction, whose episodes have steps that
        somebody holds by a lease with `pin=True`.
        """
        keep = checks.flag(keep_pinned, "keep_pinned")
        condition = self._required(where, "delete")
        return self._engine.retry(change.delete, self._store, condition, keep, at_most_once=True)

    def clear(self) -> int:
        """Delete every step and episode and return how many steps there were.

        Positions go on where they were, and consumers keep their ledgers.
        """
        self._open_episodes.forget()
        self._writers.forget_episodes()
        return self._engine.retry(change.clear, self._store, at_most_once=True)

    def set_capacity(self, capacity: int | None) -> None:
        """Keep `capacity` steps from now on, None for all.

        What is over is evicted at once, oldest first.
        """
        self._engine.retry(change.set_capacity, self._store, checked_capacity(capacity))

    @property
    @retry_on_restart
    def eviction(self) -> Eviction | None:
        """What is kept beside the newest steps up to the capacity; None for these alone.

        Set `expdb.Eviction(...)`, or None. Handles that write keep to it, about once a second.
        Raises ArchiveFailed where its archive cannot be written.
        """
        return self._retention.policy()

    @eviction.setter
    def eviction(self, policy: Eviction | None) -> None:
        if policy is not None and not isinstance(policy, Eviction):
            raise errors.InvalidValue(f"eviction is {policy!r}: give expdb.Eviction(...), or None")
        self._retention.set_policy(policy)

    @retry_on_restart
    def plan_eviction(self) -> pa.Table:
        """Return what `eviction` would have go now, as an Arrow table.

        One row per run of neighbouring steps of an episode: `episode`, the positions `first` to
        `last`, `episode_id`, `task_id`, and `why`.
        """
        return self._retention.plan()

    def evict(self, *, forget_missing: bool = False) -> int:
        """Evict now what `eviction` says, and return how many steps went.

        Parameters
        ----------
        forget_missing : bool
            If the file that holds the steps of an earlier, interrupted eviction does not exist,
            for example because the disk of the archive was lost, give those steps up with a
            warning. Do this only on a machine that has the archive's folder.

        Raises
        ------
        ArchiveFailed
            If the steps cannot be archived; then nothing is evicted.
        """
        return self._retention.evict(checks.flag(forget_missing, "forget_missing"))

    def index(self, name: str) -> None:
        """Index a column or a tag, such as "tags.difficulty".

        Queries by it then read only what matches.
        """
        change.index(self._store, name)

    def _required(self, where: Where, verb: str, new_tags: Set[str] = frozenset()) -> Condition:
        condition = self._compiled(where, new_tags)
        if condition is None:
            cure = (
                "clear() is for that"
                if verb == "delete"
                else "QueryBuilder().gte('position', 0) is for that"
            )
            raise errors.InvalidValue(
                f"{verb} without a query would change every step: give one; if all are meant, "
                f"{cure}"
            )
        return condition

    # -- looking after -----------------------------------------------------------------------------

    @retry_on_restart
    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and fields as plain JSON values."""
        with self._store.engine.reading() as session:
            nbytes = self._sampling.nbytes + sum(
                one.nbytes for one in list(self._consumers.values())
            )
            return {**buffer_stats(self._store, session), "resident_bytes": nbytes}

    @retry_on_restart
    def check(self) -> list[str]:
        """Return what is wrong with the buffer's counters or chunks, one line each.

        Empty if it is sound.
        """
        with self._store.engine.reading() as session:
            return check_buffer(self._store, session)

    @retry_on_restart
    def why(self, position: int) -> list[str]:
        """Return what has become of a step, one line each.

        When it was stored, leased and acknowledged, whether it is held still, and why a consumer
        does not hand it out now.
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
        rng: Seed = None,
        wait: float | None = None,
        shard: tuple[int, int] | None = None,
        empty: Empty = np.empty,
    ) -> Batch:
        """Draw `size` steps that match, as one snapshot, and return what each becomes.

        `sampler` says which are drawn, `unit` what each becomes, `fields` selects keys and may name
        columns of the view (`task_id`, `tags`), `rng` is a seed or a generator. Raises TooFewRows
        where nothing matches, or less than asked for without replacement; with `wait`, only after
        that many seconds in which it did not change. With `shard=(k, n)` only the k-th of n parts
        of the episodes (of the groups with `Group`) is drawn from, counted from 0: for learners or
        loader workers that are to see different steps. `empty(shape, dtype)` makes the arrays that
        fields held in memory are gathered into: `expdb.integrations.torch.pinned`, say.

        >>> unit = expdb.NStep(3, gamma=0.99)
        >>> buffer.sample(256, sampler=expdb.Prioritized(), unit=unit)  # doctest: +SKIP
        """
        if empty is not np.empty:
            check_empty(empty)
        generator = self._rng if rng is None and self._rng is not None else self._generator(rng)
        deadline = None if wait is None else time.monotonic() + checks.number(wait, "wait", 0)
        if fields is not None and type(fields) not in (list, tuple):
            fields = field_names(fields)  # once: it may be an iterator
        attempts, pause = None, 0.001
        while True:
            try:
                return self._sampling.sample(
                    size, where, sampler, unit, fields, shard, generator, empty
                )
            except errors.ConnectionLost as error:
                attempts = attempts or Attempts(self._engine.timeout)
                if not attempts.again(error):
                    raise
                continue
            except errors.TooFewRows as error:
                if deadline is None or time.monotonic() >= deadline:
                    raise self._explained(where, error) from None
            except (MemoryError, ValueError) as error:
                checks.raise_if_too_large(size, error)
                raise
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def epochs(
        self,
        batch_size: int,
        n: int | None = 1,
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
        """Yield every item once per epoch, in minibatches, in an order determined by `seed`.

        The items are listed when you request the first batch. If an item is evicted, deleted or
        changed so that it can no longer be sampled, its epoch skips it with an ExpDBWarning.

        Parameters
        ----------
        batch_size : int
            Number of items per batch. The last batch of an epoch may have fewer.
        n : int or None
            Number of epochs. If None, the iterator never ends.
        where, unit, fields, shard, empty
            See `sample`.
        seed : int
            Seed of the order. Each epoch has another order, derived from `seed` and its number.
        drop_last : bool
            Whether to drop the last batch of an epoch if it has fewer than `batch_size` items.
        refresh : bool
            Whether to list the items again at the start of each epoch.

        Returns
        -------
        Epochs
            An iterator over batches, with `state_dict` and `load_state_dict`.

        Raises
        ------
        InvalidValue
            If an argument is invalid.
        TooFewRows
            Raised by the iterator if an epoch has no batch.

        Examples
        --------
        >>> for batch in buffer.epochs(256, n=10, unit=expdb.NStep(1)):  # doctest: +SKIP
        ...     loss = learner(batch["obs"], batch["action"])
        """
        names = None if fields is None else field_names(fields)  # once: it may be an iterator
        request_args = where, unit, names, shard
        retry = self._engine.retry
        return Epochs(
            self._sampling, retry, self._no_items, batch_size, n, request_args, seed, drop_last,
            refresh, empty,
        )  # fmt: skip

    def _no_items(self, where: Where, what: str) -> errors.TooFewRows:
        """Return the error of epochs without items."""
        error = errors.TooFewRows(f"no {what} for an epoch; store some first, or widen the query")
        return self._explained(where, error)

    def _explained(self, where: Where, error: errors.TooFewRows) -> errors.TooFewRows:
        """Return the error with what the buffer holds."""
        condition = self._store.compiled(where)
        with self._store.engine.reading() as session:
            found = explained(self._store, session, condition, error)
        if unwritten := self._writers.unwritten():
            return errors.TooFewRows(
                f"{found}; writers of this process hold {unwritten:,} steps that are not written: "
                "call flush()"
            )
        return found

    def sampling_state(self) -> dict[str, Any]:
        """Return what sampling depends on beside the data, as plain JSON values.

        `restore_sampling` resumes there.

        The state of the random generator, priorities, and the calls of each prioritized sampler
        (for beta). With the same data, `restore_sampling` makes the next samples the very same, in
        any process.
        """
        return {
            "format": 1,
            "buffer": self.name,
            "generator": self._generator(None).bit_generator.state,
            **self._sampling.state(),
        }

    def restore_sampling(self, state: Mapping[str, Any]) -> None:
        """Go on from what `sampling_state` returned; steps stored since then keep what they have.

        Raises InvalidValue for anything else.
        """
        try:
            if state["format"] != 1:
                raise ValueError(f"format {state['format']}")
            if state["buffer"] != self.name:
                raise ValueError(f"it is of the buffer {state['buffer']!r}, not of {self.name!r}")
            generator = np.random.default_rng()
            generator.bit_generator.state = state["generator"]
            self._sampling.restore(
                {key: state[key] for key in state if key not in ("format", "buffer", "generator")}
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise errors.InvalidValue(
                f"no state of sampling_state(): {error!r}; give what it returned, unchanged"
            ) from error
        self._rng = generator

    def sample_tasks(
        self,
        n: int,
        where: Where = None,
        *,
        rows: Literal["all", "matching"] = "all",
        fields: Sequence[str] | None = None,
        rng: Seed = None,
    ) -> dict[str, Batch]:
        """Draw `n` distinct tasks, uniformly among those that have a matching step.

        Return their steps by task id.

        Each with all its steps over all agents and attempts, or only the matching ones, in order of
        step and position. Raises TooFewRows if fewer than `n` tasks match.
        """
        n = checks.whole(n, "the number of tasks", 1)
        checks.choice(rows, "rows", "all", "matching")
        generator, whole = self._generator(rng), rows == "all"
        before = generator.bit_generator.state

        def draw() -> dict[str, Batch]:
            generator.bit_generator.state = before  # a repetition draws what the first attempt did
            return sample_tasks(self._store, n, self._compiled(where), whole, fields, generator)

        return self._engine.retry(draw)

    # -- consumers, rate limiter and pace ----------------------------------------------------------

    @retry_on_restart
    def consumer(
        self,
        name: str,
        *,
        max_times_sampled: int | Keep | None = KEEP,
        max_staleness: int | Keep | None = KEEP,
        min_size: int | Keep = KEEP,
        new_only: bool | Keep = KEEP,
        seed: int | Keep = KEEP,
    ) -> Consumer:
        """Return the consumer of a name, made where there is none.

        It hands out batches to learners that share the work. `max_times_sampled` is how often a
        step, an episode or a group may be handed out at most, None for ever again. `max_staleness`
        is how far its `policy_version` may be behind that of the buffer, the oldest one of what is
        drawn whole, None for any. Nothing is handed out before the buffer holds `min_size` steps.
        With `new_only` it sees only what is stored after it was made. `seed` decides what is drawn.
        A setting that is left out stays as it is stored; raises ConsumerMismatch for one that is
        stored otherwise.
        """
        given = {
            "max_times_sampled": None
            if max_times_sampled is None
            else checks.kept(max_times_sampled, checks.whole, "max_times_sampled", 1),
            "max_staleness": None
            if max_staleness is None
            else checks.kept(max_staleness, checks.whole, "max_staleness", 0),
            "min_size": checks.kept(min_size, checks.whole, "min_size", 1),
            "new_only": checks.kept(new_only, checks.flag, "new_only"),
            "seed": checks.kept(seed, checks.whole, "seed", 0),
        }
        record = consumers.open_consumer(
            self._store,
            checks.name(name, "a consumer"),
            {key: value for key, value in given.items() if value is not KEEP},
            int(np.random.default_rng().integers(2**63)),
        )
        known = self._consumers.get(record.id)
        if known is None or known.name != record.name:
            known = self._consumers[record.id] = Leasing(self._store, self._sampling, record)
        if not self._latest or self._latest[-1] is not known:
            self._latest.append(known)
        return Consumer(known, record.name, self)

    @property
    @retry_on_restart
    def policy_version(self) -> int | None:
        """The version of the policy that is trained now; None before it was ever set.

        Consumers measure by it how stale experience is. It never goes back: setting a smaller one
        raises InvalidValue.
        """
        with self._store.engine.reading() as session:
            return consumers.policy_version(session, self._store)

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
                if not in_doubt:  # else another process has set a later version since
                    raise

        self._engine.retry(attempt)

    @property
    @retry_on_restart
    def rate_limiter(self) -> RateLimiter | None:
        """How far writers and learners may be ahead of each other; None for any distance.

        Set `expdb.SampleToInsertRatio(...)`, `Queue(...)` or `MinSize(...)`, and it counts from
        then on, over all writers and the leases of all consumers. A write that it holds back waits
        up to the handle's `timeout`, and raises RateLimited then; a lease waits as its `wait` says.
        `sample` is not counted.
        """
        with self._store.engine.reading() as session:
            return rates.rate_limiter(session, self._store)[0]

    @rate_limiter.setter
    def rate_limiter(self, limiter: RateLimiter | None) -> None:
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise errors.InvalidValue(
                f"rate_limiter is {limiter!r}: give one such as expdb.Queue(1000), or None"
            )
        self._engine.retry(rates.set_rate_limiter, self._store, limiter)

    @property
    @retry_on_restart
    def pace(self) -> Pace | None:
        """How far actors may be ahead of the training; None for any distance.

        Set `expdb.Pace(max_staleness, groups_per_version)`, and `admit` holds new groups back that
        would be stale when they are trained on. It counts from the `policy_version` of then on, so
        that has to be set before. Another one that is set later goes on with what has begun.
        """
        with self._store.engine.reading() as session:
            return admissions.pace(session, self._store)[0]

    @pace.setter
    def pace(self, pace: Pace | None) -> None:
        if pace is not None and not isinstance(pace, Pace):
            raise errors.InvalidValue(f"pace is {pace!r}: give expdb.Pace(...), or None")
        self._engine.retry(admissions.set_pace, self._store, pace)

    def admit(
        self, *, wait: float | None = None, required: bool = True, seconds: float = 3600.0
    ) -> Admission | None:
        """Wait until a new group of episodes may begin, and return its admission.

        With a `pace`, a group is let in once it can be trained on before it is too stale; without
        one, at once. Use it with `with`: leaving the block finishes the group, an exception takes
        it back, so that another may begin in its place. So does the end of its process, or of its
        `seconds`. Raises RateLimited after `wait` seconds, never by default; with `required=False`
        it returns None then.

        >>> with buffer.admit() as group:  # doctest: +SKIP
        ...     for _ in range(8):
        ...         roll_out(buffer, policy_version=group.policy_version)
        """
        return admit(self._store, wait, required, seconds)

    async def admit_async(
        self, *, wait: float | None = None, required: bool = True, seconds: float = 3600.0
    ) -> Admission | None:
        """Do what `admit` does, while other tasks run."""
        return await admit_async(self._store, wait, required, seconds)

    @retry_on_restart
    def waiting(self) -> list[dict[str, Any]]:
        """Return the learners, writers and actors that have waited for more than a second.

        One dict for each: `who`, the process by machine and number; `seconds`; and `for`, what is
        missing. `db.doctor()` names them too.
        """
        return waiters.waiting(self._store)

    @retry_on_restart
    def consumers(self) -> list[str]:
        """Return the names of all consumers, oldest first."""
        with self._store.engine.reading() as session:
            return consumers.list_consumers(session, self._store)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer and its ledger; raise UnknownConsumer where there is none."""
        consumers.drop_consumer(self._store, checks.name(name, "a consumer"))

    def replay(
        self,
        consumer: str,
        steps: Iterable[int] | None = None,
        *,
        last: int | None = None,
        unit: Unit | None = None,
        units: Iterable[type[Unit]] = (),
    ) -> Iterator[Batch]:
        """Yield the batches again that a consumer's learners have acknowledged, as they were.

        In the order of their acknowledgement: those of the trainer's `steps`, the `last` so many,
        or all. Raises Evicted, which names the positions, if steps of a batch are gone, and
        ReplayMismatch if its rewards or episodes have changed since. Warns if no batch was
        acknowledged with any of the given `steps`.

        A unit of your own is found by its name if its module is imported, or its class is among
        `units`. `unit` replaces the units of all batches.

        >>> buffer.replay("trainer", units=[Pairs])  # doctest: +SKIP
        """
        if steps is not None and not isinstance(steps, Iterable):
            raise errors.InvalidValue(f"steps is {steps!r}: give several, such as range(900, 1000)")
        wanted = None if steps is None else {checks.whole(step, "step") for step in steps}
        newest = None if last is None else checks.whole(last, "last", 1)
        if unit is not None:
            check_instances(Uniform(), unit)
        classes = tuple(units) if isinstance(units, Iterable) else (units,)
        for kind in classes:
            if not isinstance(kind, type) or not issubclass(kind, Unit):
                raise errors.InvalidValue(f"units has {kind!r}: give classes, such as [Pairs]")
        consumer = checks.name(consumer, "a consumer")
        used = classes if unit is None else unit
        return self._engine.retry(
            replayed, self._store, self._sampling, consumer, wanted, newest, used
        )

    def _generator(self, rng: Seed) -> np.random.Generator:
        if rng is not None:
            try:
                return np.random.default_rng(rng)
            except (TypeError, ValueError):
                raise errors.InvalidValue(
                    f"rng is {rng!r}: give a seed from 0, or a numpy.random.Generator"
                ) from None
        if self._rng is None:
            self._rng = np.random.default_rng()
        return self._rng


_LEFT_OUT = ("length", "episode_return", "episode_tags", "started", "ended", "priority")  # of pages
_ALL = dict.fromkeys((*STEP_COLUMNS[:2], *EPISODE_COLUMNS, *STEP_COLUMNS[2:]))
_PAGE = [name for name in _ALL if name not in _LEFT_OUT]
_ARROW_TYPES = {"integer": pa.int64(), "integer?": pa.int64(), "real": pa.float64()}


def _limits(steps: Any, nbytes: Any, seconds: Any) -> tuple[int, int, float]:
    """Return the limits at which a writer flushes."""
    return (
        checks.whole(steps, "flush_steps", 1),
        checks.whole(nbytes, "flush_bytes", 1),
        checks.number(seconds, "flush_seconds", 0),
    )


def _alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether shapes are the same, but for axes of length 1."""
    return one == other or [n for n in one if n != 1] == [n for n in other if n != 1]


def _positions(positions: Any) -> np.ndarray:
    try:
        found = np.asarray(positions)
    except ValueError:
        raise errors.InvalidValue(
            "positions are a 1-D sequence of integers, not one of sequences"
        ) from None
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise errors.InvalidValue(
            f"positions are 1-D integers, not {found.dtype}{list(found.shape)}"
        )
    if found.dtype == np.uint64 and (found >= 2**63).any():
        raise errors.InvalidValue("a position does not fit 64 bits: no step has such")
    return found.astype(np.int64)


def checked_capacity(capacity: Any) -> int | None:
    """Return a capacity, None for unlimited."""
    return None if capacity is None else checks.whole(capacity, "capacity", 1)


def _reopened(database: Any, name: str) -> ReplayBuffer:
    buffer: ReplayBuffer = database.buffer(name)
    return buffer
