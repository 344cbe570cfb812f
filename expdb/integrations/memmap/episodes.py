"""The stored episodes of a buffer and their numbers, which determine their slots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import expdb


@dataclass
class Held:
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


def held(buffer: expdb.ReplayBuffer) -> list[Held]:
    """Return the stored episodes in order of their numbers.

    If two processes have used the same number, the later episode takes the next free number. If a
    process was killed after it wrote an episode again and before it deleted the old revision, the
    greater revision counts.
    """
    found: dict[int, Held] = {}
    table = buffer.episodes().select(["episode", "episode_id", "length", "status", "episode_tags"])
    for id, episode_id, length, status, tags in zip(*table.to_pydict().values(), strict=True):
        told = json.loads(tags or "{}")
        number, revision = told.get("number", 0), told.get("revision", 0)
        one = Held(id, episode_id, number, revision, length, status == "open", told.get("meta", {}))
        other = found.get(number)
        if other is not None and other.revision != revision:
            found[number] = max(one, other, key=lambda held: held.revision)
            continue
        while one.number in found:
            one.number += 1
        found[one.number] = one
    return [found[number] for number in sorted(found)]
