"""Write steps to the episodes that a process has open."""

import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.chunks.values import encode_tags
from expdb.names import BEGINNING_KEYS, DEFAULT_TASK, EPISODE_DETAILS, RELATION_KEYS, STEP_KEYS
from expdb.process.awaiting import current_caller
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.reading.trees import unknown_episode
from expdb.storage.store import Store
from expdb.storage.writing import episodes, relations, transaction
from expdb.storage.writing.columnar import Columnar, columnar
from expdb.storage.writing.pending_steps import (
    Key,
    PendingSteps,
    Progress,
    Row,
    create_steps,
    key_of,
    step_columns,
)

_DETAILS = (*EPISODE_DETAILS, *RELATION_KEYS)
MANY_NAMED = 4096  # maximum number of cached episodes by name; other episodes are looked up
# Number of cached episodes without a name. Above this number, swept episodes are removed. The next
# step of a cached episode continues the episode.
MANY_OPEN = 16_384
# expdb warns after this number of episodes with one step that ended because the number of the next
# step was not greater.
MANY_SINGLE_STEPS = 3
# Other processes may begin or end an episode of this write before each attempt.
ATTEMPTS = 8


class _OwnAgents(Exception):
    """Some steps have another agent than their episode, so they must be added one by one."""


class OpenEpisodes:
    """Find the open episodes of steps in one process, and write the steps.

    Episodes that this process wrote are known by task and agent, or by name. Only one thread may
    call the methods at a time; see `WriteQueue.run`.
    """

    def __init__(self, store: Store, run: str):
        self._store, self.run = store, run
        self._open: OrderedDict[Key, EpisodeRecord] = OrderedDict()
        self._named: OrderedDict[str, EpisodeRecord] = OrderedDict()
        # The thread and asyncio task that stored steps of each open episode without a name.
        self._callers: dict[Key, tuple[object, object]] = {}
        self._warned = False
        # Number of one-step episodes, counted when another episode of the task and agent begins.
        self._single_step_episodes = 0
        # Episodes to complete after the write, because their task and agent have begun another one.
        self._replaced: dict[EpisodeRecord, None] = {}

    # -- writing -----------------------------------------------------------------------------------

    def gather(
        self,
        key: Key,
        episode_id: str | None,
        details: tuple[Any, ...],
        fields: Mapping[str, Any],
        columns: tuple[Any, ...],
        pending: PendingSteps,
    ) -> None:
        """Add a step to the pending steps, or raise and change nothing.

        `key` is the task and the agent of the step. `details` holds the values of `BEGINNING_KEYS`.
        """
        if pending.fields.version != self._store.fields.version:  # other fields were declared
            pending.cut()
            pending.retype(self._store.fields, None)
        episode = pending.open_episode(key, episode_id, details)
        step = columns[0]
        is_own_number = step is not None and episode_id is None
        if episode is not None and is_own_number and not pending.is_above(step, episode):
            episode = None  # the number may begin another episode
        if episode is not None:  # the usual case, without a lookup
            if pending.add(episode, fields, columns):
                pending.complete(episode, key, episode_id)
            return
        row = dict(zip((*STEP_KEYS, *BEGINNING_KEYS), (*columns, *details), strict=True))
        row |= {"task_id": key[0], "episode_id": episode_id}
        before = dict(pending.opened), dict(pending.named), list(pending.replaced)
        before_details, ended = dict(pending.details), dict(pending.ended)
        try:
            self._gather([(row, fields)], pending)
        except BaseException:
            pending.opened, pending.named, pending.replaced = before
            pending.details, pending.ended = before_details, ended
            raise

    def gather_columns(self, columns: Mapping[str, Sequence[Any]], pending: PendingSteps) -> bool:
        """Add columns of steps, all or none; return False if they must be added row by row."""
        if pending.fields.version != self._store.fields.version:
            if len(pending):
                return False
            pending.retype(self._store.fields, None)
        many = columnar(columns, pending.types) if pending.rows.takes_arrays else None
        if many is None:
            return False
        state = pending.capture_state()
        before = dict(pending.opened), dict(pending.named), list(pending.replaced)
        try:
            pending.extend(self._episodes_of(many, pending), many)
        except BaseException as error:
            pending.restore_state(state)
            pending.opened, pending.named, pending.replaced = before
            if isinstance(error, _OwnAgents):
                return False
            raise
        return True

    def gather_rows(
        self,
        rows: Sequence[Row],
        pending: PendingSteps,
        stored: dict[str, tuple[EpisodeRecord, str]] | None = None,
    ) -> None:
        """Add steps one by one; if one is refused, add none.

        `stored` holds the stored episodes that the steps name, if the caller has looked them up.
        """
        if pending.fields.version != self._store.fields.version:
            pending.cut()
            pending.retype(self._store.fields, None)
        state, before = pending.capture_state(), list(_open_episodes_of(rows, pending))
        replaced = list(pending.replaced)
        try:
            self._gather(rows, pending, stored)
        except BaseException:
            pending.restore_state(state)
            pending.replaced = replaced
            for episodes_by, key, episode in before:
                if episode is _ABSENT:
                    episodes_by.pop(key, None)
                else:
                    episodes_by[key] = episode
            raise

    def _episodes_of(self, many: Columnar, pending: PendingSteps) -> list[EpisodeRecord]:
        """Return the episode of each step, and record which episodes they open and complete."""
        row_of = {
            key: dict(zip(("task_id", "agent_id", "episode_id"), key, strict=True))
            for key in dict.fromkeys(many.episode_keys())
        }
        pending.stored_by_name = self.find_stored([(row, {}) for row in row_of.values()])
        records = []
        open_records: dict[Any, EpisodeRecord] = {}  # open episodes with steps here
        progress: dict[EpisodeRecord, Progress] = {}
        has_numbers = any(number is not None for number in many.steps)
        for episode_key, ends, step in zip(many.episode_keys(), many.ends, many.steps, strict=True):
            record = open_records.get(episode_key)
            if record is None:
                record = pending.open_episode(episode_key[:2], episode_key[2])
                record = record or self._open_episode_of(row_of[episode_key], pending)
                if record.agent_id != episode_key[1]:
                    raise _OwnAgents
                open_records[episode_key] = record
            if has_numbers and episode_key[2] is None:
                before = progress.get(record) or pending.progress(record)
                if step is not None and not before.is_above(step):
                    self._replace(record, before, pending)
                    record = self.new(episode_key[0], episode_key[1], None, {})
                    open_records[episode_key] = pending.opened[episode_key[:2]] = record
                    before = Progress(0, None)
                progress[record] = before.add(step)
            if record.parent is not None and step is not None:
                record.parent.check_number(record.episode_id, step)
            records.append(record)
            if ends:
                pending.complete(record, episode_key[:2], episode_key[2])
                del open_records[episode_key]
        return records

    def write_gathered(
        self, pending: PendingSteps, rows: Sequence[Row] | None = None
    ) -> np.ndarray:
        """Write gathered steps, or `rows` with empty `pending` steps; return their positions.

        If another process has ended, deleted or evicted an episode that this handle knew as open,
        or has begun an episode of the same name, the steps are gathered again.
        """
        for attempt in range(ATTEMPTS):
            try:
                if rows is not None:
                    steps = create_steps(self._store) if attempt else pending
                    self._gather(rows, steps)  # may raise, but only before `pending` changes
                    if attempt:
                        pending.become(steps)
                return self.commit(pending)
            except errors.EpisodeResumed:
                raise
            except (errors.EpisodeEnded, errors.EpisodeMismatch):
                if attempt + 1 == ATTEMPTS or pending.is_stored or pending.is_in_doubt:
                    raise
                rows = list(pending.as_rows()) if rows is None else rows
                self._update_cached_episodes(rows)
        raise AssertionError("the last attempt returns or raises")

    def commit(self, pending: PendingSteps) -> np.ndarray:
        """Write gathered steps in one transaction, cache their episodes and return the positions.

        Raise EpisodeEnded or EpisodeMismatch instead of gathering the steps again.
        """
        try:
            positions = transaction.write(self._store, pending)
        finally:
            # Run this also if an interrupt came just after the commit, or the outcome is unknown.
            if pending.stored is not None or pending.is_in_doubt:
                self.cache_episodes(pending)
        if self._replaced:
            self._complete_replaced()
        return positions

    def _complete_replaced(self) -> None:
        """Complete the episodes whose tasks and agents have begun another episode.

        The steps of the caller are already stored, so errors of the database are suppressed. A
        later write or `close` completes the remaining episodes.
        """
        with suppress(errors.ConnectionLost, errors.DatabaseBusy, errors.UnknownBuffer):
            self._end_episodes(list(self._replaced), "complete")
            self._replaced.clear()

    def _end_episodes(self, records: Sequence[EpisodeRecord], status: str) -> None:
        """End stored episodes that are still open and were not resumed."""
        stored = {record.id: record.generation for record in records if record.id is not None}
        episodes.end_all(self._store, stored, status)
        ended = [record for record in records if record.id is not None]
        self._store.activity.add_steps(0, ended)

    def _gather(
        self,
        rows: Sequence[Row],
        pending: PendingSteps,
        stored: dict[str, tuple[EpisodeRecord, str]] | None = None,
    ) -> None:
        """Add rows to the pending steps, and record which episodes they open and complete."""
        pending.stored_by_name = self.find_stored(rows) if stored is None else stored
        for index, (row, fields) in enumerate(rows):
            try:
                episode = self._open_episode_of(row, pending)
                if pending.add(episode, fields, step_columns(row)):
                    pending.complete(episode, key_of(row), row.get("episode_id"))
            except (errors.InvalidValue, errors.FieldMismatch) as error:
                if len(rows) > 1:
                    errors.name_row(error, index)
                raise

    def end(self, episode_id: Any, status: str) -> None:
        """End an open episode by its name.

        Raise UnknownEpisode if the buffer has no such episode, and EpisodeEnded if it has ended.
        """
        stored = episodes.find(self._store, [checks.text(episode_id, "episode_id")]).get(episode_id)
        if stored is None:
            raise unknown_episode(self._store, episode_id)
        episode, current = stored
        if current != "open" or episode.id is None:
            raise errors.EpisodeEnded(
                f"episode {episode_id!r} cannot be ended, because it is already {current}; end "
                "only open episodes"
            )
        end = episodes.end_stored
        self._store.engine.retry(end, self._store, episode.id, status, at_most_once=True)
        self._store.activity.add_steps(0, [episode])
        self._named.pop(episode_id, None)
        for key in [
            key for key, candidate in self._open.items() if candidate.episode_id == episode_id
        ]:
            self._forget(key)

    def end_named(self, statuses: Mapping[str, str]) -> None:
        """End the open episodes with these names; `statuses` may also map names to "open"."""
        for status in ("complete", "aborted"):
            names = [name for name, own in statuses.items() if own == status]
            found = episodes.find(self._store, names).values()
            self._end_episodes([record for record, current in found if current == "open"], status)
            for name in names:
                self._named.pop(name, None)

    def end_all(self, status: str) -> None:
        """End the episodes that began without a name; no other process can continue them."""
        self._end_episodes([*self._replaced, *self._open.values()], status)
        self._replaced.clear()
        self._open.clear()
        self._callers.clear()

    # -- the episode that a step continues or begins -----------------------------------------------

    def cache_episodes(self, pending: PendingSteps) -> None:
        """Cache the open episodes of stored steps, and remove the ended ones from the cache."""
        for key, episode in pending.opened.items():
            if episode is None:
                self._open.pop(key, None)
                self._callers.pop(key, None)
            else:
                # Do not remove the episode and add it again: an interrupt in between would lose it.
                self._open[key] = episode
                self._open.move_to_end(key)  # keep the episodes in the order of their last steps
        self._replaced |= dict.fromkeys(pending.replaced)
        pending.replaced = []  # this method may be called again after the episodes are completed
        for name, episode in pending.named.items():
            if episode in pending.ended:
                self._named.pop(name, None)
            else:
                self._named[name] = episode
                self._named.move_to_end(name)
        while len(self._named) > MANY_NAMED:
            del self._named[next(iter(self._named))]
        if len(self._open) > MANY_OPEN:
            self._forget_swept()

    def _update_cached_episodes(self, rows: Sequence[Row]) -> None:
        """Update the cached episodes of these rows from the database."""
        keys = {key_of(row) for row, _ in rows if row.get("episode_id") is None}
        open_episodes = [self._open[key] for key in keys if key in self._open]
        stored = episodes.find(self._store, [episode.episode_id for episode in open_episodes])
        for key in keys:
            episode = self._open.get(key)
            if episode is not None:
                current, status = stored.get(episode.episode_id, (None, ""))
                if current is not None and status == "open":
                    episode.become(current)
                else:
                    self._forget(key)
        for row, _ in rows:
            self._named.pop(row.get("episode_id") or "", None)

    def _forget(self, key: Key) -> None:
        self._open.pop(key, None)
        self._callers.pop(key, None)

    def _forget_swept(self) -> None:
        """Remove swept episodes, oldest first, while there are more than `MANY_OPEN`."""
        while len(self._open) > MANY_OPEN:
            key, episode = next(iter(self._open.items()))
            if episode.last_position >= self._store.swept:
                return
            self._forget(key)

    def _open_episode_of(self, row: Mapping[str, Any], pending: PendingSteps) -> EpisodeRecord:
        """Return the episode of a step to be stored; raise EpisodeEnded if it has ended."""
        episode, step = self._episode_of(row, pending), row.get("step")
        if episode in pending.ended and not (
            row.get("episode_id") is not None
            and isinstance(step, (int, np.integer))
            and not pending.progress(episode).is_above(int(step))
        ):
            raise errors.EpisodeEnded(
                f"episode {episode.episode_id!r} has ended; pass another episode_id with the next "
                "step"
            )
        return episode

    def _episode_of(self, row: Mapping[str, Any], pending: PendingSteps) -> EpisodeRecord:
        """Return the episode of a step to be stored, and record its details."""
        details = {name: row[name] for name in _DETAILS if row.get(name) is not None}
        if row.get("episode_id") is None:
            key = key_of(row)
            episode = self._find_open_episode(key, pending, details, row.get("step"))
            pending.opened[key] = episode
        else:
            episode = self._by_name(row, pending, details)
        if details:
            self._add_details(episode, details, pending)
        return episode

    def _find_open_episode(
        self, key: Key, pending: PendingSteps, details: dict[str, Any], step: Any
    ) -> EpisodeRecord:
        """Return the open episode of a task and an agent, or a new one.

        A step whose number is at most the greatest number of the open episode begins another one.
        """
        task_id, agent_id = key
        if "parent" in details:
            raise errors.InvalidValue(
                f"parent={details['parent']!r} requires an episode_id, because several episodes "
                "may have this parent; pass episode_id= with each step, or use buffer.episode()"
            )
        try:
            episode = pending.opened[key] if key in pending.opened else self._open.get(key)
        except TypeError:
            episode = None  # an id is not text, so `new` raises
        if episode is not None and isinstance(step, (int, np.integer)):
            progress = pending.progress(episode)
            if not progress.is_above(int(step)):
                self._replace(episode, progress, pending)
                episode = None
        caller = current_caller()
        if episode is None:
            episode = self._begin(task_id, agent_id, None, details, pending)
            self._callers[key] = caller
        elif not self._warned and self._callers.setdefault(key, caller) != caller:
            self._warned = True
            errors.warn(
                f"two threads or asyncio tasks store steps of task {task_id!r} and agent "
                f"{agent_id!r} without an episode_id, so their steps form one episode; pass an "
                "episode_id for each attempt, or use `with buffer.episode(...)`"
            )
        return episode

    def _replace(self, episode: EpisodeRecord, progress: Progress, pending: PendingSteps) -> None:
        """Record that another episode replaces an open one; warn about episodes with one step."""
        pending.replace(episode, progress)
        self._single_step_episodes += progress.length == 1
        if self._single_step_episodes == MANY_SINGLE_STEPS:
            errors.warn(
                f"{MANY_SINGLE_STEPS} episodes have only one step, the latest of task "
                f"{episode.task_id!r} and agent {episode.agent_id!r}, because a step number that "
                "does not increase begins another episode; if the steps of several environments "
                "are interleaved, pass an episode_id for each environment"
            )

    def _by_name(
        self, row: Mapping[str, Any], pending: PendingSteps, details: dict[str, Any]
    ) -> EpisodeRecord:
        """Return the episode that a step names, or a new one."""
        episode_id = row["episode_id"]
        episode = pending.named.get(episode_id) or self._named.get(episode_id)
        if episode is None and episode_id in pending.stored_by_name:
            episode, status = pending.stored_by_name[episode_id]
            step, last = row.get("step"), episode.last_step
            may_repeat = isinstance(step, (int, np.integer)) and last is not None and step <= last
            if status != "open" and not may_repeat:
                raise errors.EpisodeEnded(
                    f"episode {episode_id!r} is {status}; pass another episode_id with the step"
                )
        if episode is None:
            episode = self._begin(*key_of(row), episode_id, details, pending)
        pending.named[episode_id] = episode
        task_id = row.get("task_id", episode.task_id)
        if task_id != episode.task_id and (episode.parent is None or task_id != DEFAULT_TASK):
            raise errors.EpisodeMismatch(
                f"episode {episode_id!r} belongs to task {episode.task_id!r}; pass that task_id, "
                "or another episode_id"
            )
        return episode

    def find_stored(
        self, rows: Sequence[Row], strict: bool = True
    ) -> dict[str, tuple[EpisodeRecord, str]]:
        """Look up, all at once, the episodes that rows name and this handle has not cached.

        Raise InvalidValue for a name that is not valid text, or ignore it if not `strict`.
        """
        named: dict[str, None] = {}
        for row, _ in rows:
            try:
                if row.get("episode_id") is not None:
                    named[checks.text(row["episode_id"], "episode_id")] = None
            except errors.InvalidValue:
                if strict:
                    raise
        if not named:
            return {}
        unknown = [name for name in named if name not in self._named]
        return episodes.find(self._store, unknown) if unknown else {}

    def new(
        self, task_id: Any, agent_id: Any, episode_id: Any, details: Mapping[str, Any]
    ) -> EpisodeRecord:
        """Return an episode of this run that is not stored yet.

        Raise InvalidValue if an id or a detail is not valid.
        """
        episode = EpisodeRecord(
            episode_id=uuid.uuid4().hex
            if episode_id is None
            else checks.text(episode_id, "episode_id"),
            run=self.run,
            task_id=checks.text(task_id, "task_id"),
            agent_id=checks.text(agent_id, "agent_id"),
            started=time.time(),
        )
        for name, value in episode_details(details).items():
            setattr(episode, name, value)
        episode.parent = relations.parse_relation(details, episode.episode_id)
        return episode

    def _begin(
        self,
        task_id: Any,
        agent_id: Any,
        episode_id: Any,
        details: Mapping[str, Any],
        pending: PendingSteps,
    ) -> EpisodeRecord:
        """Return a new episode; find its parent unless the parent has only pending steps."""
        episode = self.new(task_id, agent_id, episode_id, details)
        if episode.parent is not None:
            relations.resolve_stored_parent(self._store, episode, pending.named)
        return episode

    def _add_details(
        self, episode: EpisodeRecord, details: Mapping[str, Any], pending: PendingSteps
    ) -> None:
        """Record episode details that a step adds.

        Raise EpisodeMismatch if a detail differs. `policy_version` is skipped: only the first step
        sets the version of its episode, and later steps store their own versions.
        """
        link = relations.parse_relation(details, episode.episode_id)
        if link is not None:
            relations.require_same_relation(episode, link)
        pending_details = dict(pending.details.get(episode, {}))
        for name, value in episode_details(details).items():
            if name == "policy_version":
                continue
            current = pending_details.get(name, getattr(episode, name))
            if name == "trainable":  # None stands for True
                current = current is not False
            if current is None or (name == "episode_tags" and current != value):
                pending_details[name] = value
            elif current != value:
                raise errors.EpisodeMismatch(
                    f"episode {episode.episode_id!r} already has {name}={current!r}, got "
                    f"{value!r}; start another episode"
                )
        if pending_details:
            pending.details[episode] = pending_details

    def forget(self) -> None:
        """Forget all open episodes, because the buffer was cleared."""
        self._open.clear()
        self._callers.clear()
        self._named.clear()
        self._replaced.clear()


_ABSENT: Any = object()


def _open_episodes_of(
    rows: Sequence[Row], pending: PendingSteps
) -> Iterator[tuple[dict[Any, Any], Any, Any]]:
    """Yield the entries of `opened` and `named` that the rows may change."""
    for row, _ in rows:
        opened: dict[Any, Any] = pending.opened
        named: dict[Any, Any] = pending.named
        key, name = key_of(row), row.get("episode_id")
        with suppress(TypeError):  # an id that is not text is refused
            yield opened, key, opened.get(key, _ABSENT)
            yield named, name, named.get(name, _ABSENT)


_CHECKS: dict[str, Any] = {
    "policy_version": checks.whole,
    "trainable": checks.flag,
    "episode_tags": encode_tags,
}


def episode_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked details of an episode, without its relation."""
    return {
        name: _CHECKS.get(name, checks.text)(value, name)
        for name, value in details.items()
        if value is not None and name not in RELATION_KEYS
    }
