"""The contents of a write: the rows of its episodes, steps, segments and chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from expdb.chunks.codec import Block
from expdb.chunks.message import Templates
from expdb.storage.cached_records import EpisodeRecord


@dataclass(frozen=True)
class EpisodeWrite:
    """The changes of a write to one episode."""

    record: EpisodeRecord
    before: EpisodeRecord  # expected stored state; `id` is None for a new episode
    after: EpisodeRecord  # `last_position` is relative to the write, from 0
    rows: list[int]  # of the write
    status: str
    gained: float | None  # sum of the rewards of its rows
    details: Mapping[str, Any]  # new details that its steps add


@dataclass
class ChunkWrite:
    """A chunk: rows `first` to `last` of the write."""

    last: int
    first: int
    episode: int  # place of its only episode, 0 for several
    block: Block
    system: tuple[Any, ...]  # step, reward, terminated, truncated
    encoded: bytes = b""

    def message(self, templates: Templates) -> bytes:
        """Return the record-batch message, which is encoded once."""
        if not self.encoded:
            self.encoded = self.block.message(templates, *self.system)
        return self.encoded


# last, first, episode, ordinal, chunk, chunk_row: rows of the write, the last row of the chunk as
# its id, and the place of the episode.
Segment = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class WritePlan:
    """All rows of a write, with positions relative to it and episodes by place, from 1."""

    count: int
    episodes: list[EpisodeWrite]
    step: list[int]  # the number of each step in its episode
    place: list[int]  # of the episode of each step
    chunks: list[ChunkWrite]
    segments: list[Segment]
    final: tuple[int, int, list[str]] | None  # chunk, row and fields of the final observation
    # The other columns of the steps, from `pre_agent` on.
    columns: tuple[tuple[Any, ...], ...]

    @property
    def is_current(self) -> bool:
        """Whether its episodes still have the length from which the plan was made."""
        return all(
            write.before.length + len(write.rows) == write.after.length for write in self.episodes
        )
