"""Steps that are collected for one write, and their episodes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expdb.chunks.codec import decoded
from expdb.names import EPISODE_DETAILS, STEP_KEYS
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.writing.encoded_steps import EncodedSteps, Progress

Key = tuple[str, str]  # task and agent

# The default values of the columns of a step.
_USUAL = dict.fromkeys(STEP_KEYS) | {"terminated": False, "truncated": False}


def step_columns(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the columns of `STEP_KEYS` of a row."""
    return tuple([row.get(name, usual) for name, usual in _USUAL.items()])


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the task and the agent of a row."""
    agent_id = row.get("agent_id")
    return row.get("task_id", "default"), "agent" if agent_id is None else agent_id


@dataclass
class PendingSteps:
    """Pending steps and their episodes, which the handle remembers after the commit."""

    pending: EncodedSteps
    stored: dict[str, tuple[EpisodeRecord, str]] = field(default_factory=dict)
    opened: dict[Key, EpisodeRecord | None] = field(default_factory=dict)  # None if completed
    named: dict[str, EpisodeRecord] = field(default_factory=dict)
    # Stored episodes without pending steps that are completed after the write, because their task
    # and agent have begun another episode.
    replaced: list[EpisodeRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def nbytes(self) -> int:
        """Approximate size of the closed chunks before compression."""
        return self.pending.nbytes

    @property
    def is_stored(self) -> bool:
        """Whether the steps are committed."""
        return self.pending.is_stored

    @property
    def positions(self) -> np.ndarray:
        """The positions of the steps, once they are committed."""
        return self.pending.positions

    @property
    def is_in_doubt(self) -> bool:
        """Whether the outcome of the write is unknown, so that it must be repeated unchanged."""
        return self.pending.is_in_doubt

    def open_episode(self, whose: Any) -> EpisodeRecord | None:
        """Return the open episode of a step, or None if it is unknown or the step adds details."""
        key, name, _, *details = whose  # a step may have its own policy version
        if details.count(None) < len(details):
            return None
        try:
            episode = self.opened.get(key) if name is None else self.named.get(name)
        except TypeError:  # an id is not text
            return None
        if episode is None or episode in self.pending.ended:
            return None
        # Steps of several agents may name one episode.
        is_own = episode.task_id == key[0] and (name is not None or episode.agent_id == key[1])
        return episode if is_own else None

    def is_above(self, step: Any, episode: EpisodeRecord) -> bool:
        """Return whether a step number is greater than all step numbers of an episode."""
        return type(step) is int and self.pending.progress(episode).is_above(step)

    def replace(self, episode: EpisodeRecord, progress: Progress) -> None:
        """Complete an open episode because its task and agent begin another one."""
        if progress.length > episode.length:  # it has steps in this write
            self.pending.ended[episode] = "complete"
        else:
            self.replaced.append(episode)

    def complete(self, episode: EpisodeRecord, key: Key, name: str | None) -> None:
        """Record that a step completes its episode."""
        self.pending.ended[episode] = "complete"
        if name is None:
            self.opened[key] = None

    def rows(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the columns and the fields of each step as they were given."""
        self.pending.close()
        values = (row for block in self.pending.blocks for row in decoded(block))
        named = set(self.named.values())
        for (episode, *columns), fields in zip(self.pending.taken, values, strict=True):
            row = dict(zip(STEP_KEYS, columns, strict=True))
            own_version = row["policy_version"]
            details = self.pending.details.get(episode, {})
            row |= {name: details.get(name, getattr(episode, name)) for name in EPISODE_DETAILS}
            if own_version is not None:
                row["policy_version"] = own_version
            for name in ("tags", "episode_tags"):
                row[name] = row[name] and json.loads(row[name])
            row["task_id"] = episode.task_id
            if row["agent_id"] is None:
                row["agent_id"] = episode.agent_id
            if episode in named:
                row["episode_id"] = episode.episode_id
            yield row, fields
