"""Steps that are gathered for one write, and the episodes they go to."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expdb.chunks.codec import decoded
from expdb.names import EPISODE_DETAILS, STEP_KEYS
from expdb.storage.records import EpisodeRecord
from expdb.storage.writing.pending import Pending

Key = tuple[str, str]  # task and agent

# What a row has in the columns of a step that it does not name.
_USUAL = dict.fromkeys(STEP_KEYS) | {"terminated": False, "truncated": False}


def step_columns(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the columns of `STEP_KEYS` of a row."""
    return tuple([row.get(name, usual) for name, usual in _USUAL.items()])


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the task and the agent of a row."""
    return row.get("task_id", "default"), row.get("agent_id", "agent")


@dataclass
class Gathering:
    """Steps that are pending, and their episodes, which the handle knows once it is committed."""

    pending: Pending
    stored: dict[str, tuple[EpisodeRecord, str]] = field(default_factory=dict)
    opened: dict[Key, EpisodeRecord | None] = field(default_factory=dict)  # None: completed
    named: dict[str, EpisodeRecord] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def nbytes(self) -> int:
        """About what its closed chunks hold, before compression."""
        return self.pending.nbytes

    @property
    def is_stored(self) -> bool:
        """Whether the steps are committed."""
        return self.pending.is_stored

    @property
    def positions(self) -> np.ndarray:
        """Where the steps are, once they are committed."""
        return self.pending.positions

    @property
    def is_in_doubt(self) -> bool:
        """Whether they may be stored, or not: they are to be written again as they are."""
        return self.pending.is_in_doubt

    def known(self, whose: Any) -> EpisodeRecord | None:
        """Return the episode of a step that says nothing new of one that has steps here already."""
        key, name, _, *details = whose  # a step has a policy version of its own
        if details.count(None) < len(details):
            return None
        try:
            episode = self.opened.get(key) if name is None else self.named.get(name)
        except TypeError:  # not text
            return None
        if episode is None or episode in self.pending.ended:
            return None
        return episode if (episode.task_id, episode.agent_id) == key else None

    def complete(self, episode: EpisodeRecord, key: Key, name: str | None) -> None:
        """Note that a step completes its episode."""
        self.pending.ended[episode] = "complete"
        if name is None:
            self.opened[key] = None

    def rows(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the steps as they were given: what the columns are, and what the fields are."""
        self.pending.close()
        values = (row for block in self.pending.blocks for row in decoded(block))
        named = set(self.named.values())
        for (episode, *columns), fields in zip(self.pending.taken, values, strict=True):
            row = dict(zip(STEP_KEYS, columns, strict=True))
            own_version = row["policy_version"]
            told = self.pending.details.get(episode, {})
            row |= {name: told.get(name, getattr(episode, name)) for name in EPISODE_DETAILS}
            if own_version is not None:
                row["policy_version"] = own_version
            for name in ("tags", "episode_tags"):
                row[name] = row[name] and json.loads(row[name])
            row |= {"task_id": episode.task_id, "agent_id": episode.agent_id}
            if episode in named:
                row["episode_id"] = episode.episode_id
            yield row, fields
