"""The episodes that a process has open in a buffer: which one a step goes on with, or begins."""

import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from expdb import checks, errors
from expdb.chunks.values import encode_tags
from expdb.locks import locked
from expdb.names import EPISODE_DETAILS
from expdb.storage.records import EpisodeRecord
from expdb.storage.store import Store
from expdb.storage.writing import episodes
from expdb.storage.writing.gathering import Gathering, Key, key_of
from expdb.storage.writing.pending import Pending

Row = tuple[Mapping[str, Any], Mapping[str, Any]]  # what the columns are, what the fields are

MANY_NAMED = 4096  # episodes known by name; others are looked up
# episodes without a name that are known although the store has swept them away: their next step
# continues them
MANY_OPEN = 16_384


class KnownEpisodes:
    """Knows the open episodes, by task and agent or by name, as far as this process wrote them."""

    def __init__(self, store: Store, run: str):
        self._store, self.run = store, run
        self._open: dict[Key, EpisodeRecord] = {}
        self._named: dict[str, EpisodeRecord] = {}
        # Who stored the steps of an open episode without a name.
        self._callers: dict[Key, tuple[object, object]] = {}
        self._warned = False
        self._lock = threading.RLock()

    def _remember(self, found: Gathering) -> None:
        for key, episode in found.opened.items():
            if episode is None:
                self._open.pop(key, None)
                self._callers.pop(key, None)
            else:
                self._open.pop(key, None)  # in the order of their last steps
                self._open[key] = episode
        for name, episode in found.named.items():
            self._named.pop(name, None)
            if episode not in found.pending.ended:
                self._named[name] = episode
        while len(self._named) > MANY_NAMED:
            del self._named[next(iter(self._named))]

    def _look_again(self, rows: Sequence[Row]) -> None:
        """Learn what has become of the episodes of these rows that this handle knew as open."""
        keys = {key_of(row) for row, _ in rows if row.get("episode_id") is None}
        known = [self._open[key] for key in keys if key in self._open]
        found = episodes.find(self._store, [episode.episode_id for episode in known])
        for key in keys:
            episode = self._open.get(key)
            if episode is not None:
                current, status = found.get(episode.episode_id, (None, ""))
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
        """Let go of the episodes that the store has swept away, the oldest first.

        This happens where there are too many to remember.
        """
        while len(self._open) > MANY_OPEN:
            key, episode = next(iter(self._open.items()))
            if episode.last_position >= self._store.swept:
                return
            self._forget(key)

    def _open_episode_of(self, row: Mapping[str, Any], found: Gathering) -> EpisodeRecord:
        """Return the episode of a step to be stored; raise EpisodeEnded for one that has ended."""
        episode = self._episode_of(row, found)
        if episode in found.pending.ended:
            raise errors.EpisodeEnded(
                f"episode {episode.episode_id!r} has ended: give the next step another episode_id"
            )
        return episode

    def _episode_of(self, row: Mapping[str, Any], found: Gathering) -> EpisodeRecord:
        """Return the episode of a step to be stored."""
        given = {name: row[name] for name in EPISODE_DETAILS if row.get(name) is not None}
        if row.get("episode_id") is None:
            key = key_of(row)
            episode = found.opened[key] = self._unnamed(key, found, given)
        else:
            episode = self._by_name(row, found, given)
        if given:
            self._add_details(episode, given, found.pending)
        return episode

    def _unnamed(self, key: Key, found: Gathering, given: dict[str, Any]) -> EpisodeRecord:
        """Return the open episode of a task and an agent, or a new one."""
        task_id, agent_id = key
        try:
            episode = found.opened[key] if key in found.opened else self._open.get(key)
        except TypeError:
            episode = None  # not text: a new one says so
        if episode is None:
            episode = self.new(task_id, agent_id, None, given)
            self._callers[key] = _caller()
        elif not self._warned and self._callers.setdefault(key, _caller()) != _caller():
            self._warned = True
            errors.warn(
                f"two threads or asyncio tasks store steps of task {task_id!r} and agent "
                f"{agent_id!r} without an episode_id, which makes one "
                "episode of them: give each attempt an episode_id, or use `with "
                "buffer.episode(...)`"
            )
        return episode

    def _by_name(
        self, row: Mapping[str, Any], found: Gathering, given: dict[str, Any]
    ) -> EpisodeRecord:
        """Return the episode that a step names, or a new one."""
        episode_id = row["episode_id"]
        episode = found.named.get(episode_id) or self._named.get(episode_id)
        if episode is None and episode_id in found.stored:
            episode, status = found.stored[episode_id]
            if status != "open":
                raise errors.EpisodeEnded(
                    f"episode {episode_id!r} is {status}: give the step another episode_id"
                )
        if episode is None:
            task_id, agent_id = row.get("task_id", "default"), row.get("agent_id", "agent")
            episode = self.new(task_id, agent_id, episode_id, given)
        found.named[episode_id] = episode
        if (row.get("task_id", episode.task_id), row.get("agent_id", episode.agent_id)) != (
            episode.task_id,
            episode.agent_id,
        ):
            raise errors.EpisodeMismatch(
                f"episode {episode_id!r} is of task {episode.task_id!r} and agent "
                f"{episode.agent_id!r}: "
                "give that task_id and agent_id, or another episode_id"
            )
        return episode

    def _stored(self, rows: Sequence[Row]) -> dict[str, tuple[EpisodeRecord, str]]:
        """Look up, all at once, the episodes that rows name and this handle does not know."""
        named = dict.fromkeys(
            checks.text(row["episode_id"], "episode_id")
            for row, _ in rows
            if row.get("episode_id") is not None
        )
        unknown = [name for name in named if name not in self._named]
        return episodes.find(self._store, unknown) if unknown else {}

    def new(
        self, task_id: Any, agent_id: Any, episode_id: Any, given: Mapping[str, Any]
    ) -> EpisodeRecord:
        """Return an episode of this run that is not stored yet.

        Raise InvalidValue for what cannot name one.
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
        for name, value in _episode_details(given).items():
            setattr(episode, name, value)
        return episode

    def _add_details(
        self, episode: EpisodeRecord, given: Mapping[str, Any], pending: Pending
    ) -> None:
        """Note what a step tells of its episode and was not known.

        Raise EpisodeMismatch where it differs. Not the policy version: an episode has that of its
        first step, and a later step stores its own, because steps before it had none.
        """
        told = dict(pending.details.get(episode, {}))
        for name, value in _episode_details(given).items():
            if name == "policy_version":
                continue
            known = told.get(name, getattr(episode, name))
            if known is None or (name == "episode_tags" and known != value):
                told[name] = value
            elif name in ("task_name", "group_id") and known != value:
                raise errors.EpisodeMismatch(
                    f"episode {episode.episode_id!r} has the {name} {known!r}, not {value!r}: "
                    "start another one"
                )
        if told:
            pending.details[episode] = told

    def forget(self) -> None:
        """Know no open episode any more: the buffer was cleared."""
        locked(self._lock, self._forget_all)

    def _forget_all(self) -> None:
        self._open.clear()
        self._callers.clear()
        self._named.clear()


def _caller() -> tuple[object, object]:
    """Return the thread and the asyncio task that is running.

    Their numbers would be given again to later ones.
    """
    asyncio = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    task = asyncio.current_task(loop) if asyncio is not None and loop is not None else None
    return threading.current_thread(), task


_CHECKS: dict[str, Any] = {
    "policy_version": checks.whole,
    "episode_tags": encode_tags,
}


def _episode_details(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _CHECKS.get(name, checks.text)(value, name)
        for name, value in given.items()
        if value is not None
    }
