"""What a write stores, as data: the rows of its episodes, steps, segments and chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from expdb.chunks.codec import Block
from expdb.chunks.message import Templates
from expdb.storage.records import EpisodeRecord


@dataclass(frozen=True)
class EpisodeWrite:
    """What a write does to one episode."""

    record: EpisodeRecord
    before: EpisodeRecord  # what is believed to be stored; `id` is None for a new one
    after: EpisodeRecord  # `last_position` is that of the write, counted from 0
    rows: list[int]  # of the write
    status: str
    gained: float | None  # sum of the rewards of its rows
    details: Mapping[str, Any]  # what its steps tell of it that was not known


@dataclass
class ChunkWrite:
    """A chunk: rows `first` to `last` of the write."""

    last: int
    first: int
    episode: int  # place of the only episode it has steps of, 0 for several
    block: Block
    system: tuple[Any, ...]  # step, reward, terminated, truncated
    encoded: bytes = b""

    def message(self, templates: Templates) -> bytes:
        """Return the record-batch message, which is made once."""
        if not self.encoded:
            self.encoded = self.block.message(templates, *self.system)
        return self.encoded


# last, first, episode, ordinal, chunk, chunk_row: rows of the write, the chunk by its last one, and
# the place of the episode.
Segment = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class WritePlan:
    """All rows of a write, with positions counted from 0 and episodes by their place, from 1."""

    count: int
    episodes: list[EpisodeWrite]
    step: list[int]  # the number of each step in its episode
    place: list[int]  # of the episode of each step
    chunks: list[ChunkWrite]
    segments: list[Segment]
    final: tuple[int, int, list[str]] | None  # chunk, row and fields of the final observation
    # Of the steps, the columns that are stored as they are: those after episode and step.
    columns: tuple[tuple[Any, ...], ...]

    @property
    def is_current(self) -> bool:
        """Whether its episodes are still where they stood when it was made."""
        return all(
            write.before.length + len(write.rows) == write.after.length for write in self.episodes
        )
