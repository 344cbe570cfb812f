"""The stored episodes of a buffer and their numbers, which determine their slots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import expdb


@dataclass
class StoredEpisode:
    """A stored episode: its tags and its number of steps.

    Episodes are numbered in the order in which they begin, and the slot is the number modulo
    `max_episodes`, as in a ring. An episode that `update` has written again has a greater revision.
    """

    id: int
    episode_id: str
    number: int
    revision: int
    length: int
    is_open: bool
    meta: dict[str, Any]

    def tags(self) -> dict[str, Any]:
        """Return the tags of the episode."""
        return {"number": self.number, "revision": self.revision, "meta": self.meta}


def read_episodes(buffer: expdb.ReplayBuffer) -> list[StoredEpisode]:
    """Return the stored episodes in order of their numbers.

    If two processes have used the same number, the later episode takes the next free number. If a
    process was killed after it wrote an episode again and before it deleted the old revision, the
    greater revision counts.
    """
    episodes: dict[int, StoredEpisode] = {}
    table = buffer.episodes().select(["episode", "episode_id", "length", "status", "episode_tags"])
    for id, episode_id, length, status, tags in zip(*table.to_pydict().values(), strict=True):
        episode_tags = json.loads(tags or "{}")
        number, revision = episode_tags.get("number", 0), episode_tags.get("revision", 0)
        episode = StoredEpisode(
            id, episode_id, number, revision, length, status == "open", episode_tags.get("meta", {})
        )
        other = episodes.get(number)
        if other is not None and other.revision != revision:
            episodes[number] = max(episode, other, key=lambda version: version.revision)
            continue
        while episode.number in episodes:
            episode.number += 1
        episodes[episode.number] = episode
    return [episodes[number] for number in sorted(episodes)]
