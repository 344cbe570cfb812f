"""The contents of a write: the rows of its episodes, steps, segments and chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from expdb.chunks.codec import Block
from expdb.chunks.message import Templates
from expdb.storage.cached_records import EpisodeRecord


@dataclass(frozen=True)
class EpisodeWrite:
    """The changes that a write makes to one episode."""

    record: EpisodeRecord
    before: EpisodeRecord  # expected stored state; `id` is None for a new episode
    after: EpisodeRecord  # here, `last_position` is an index into the steps of the write
    rows: list[int]  # indices of its steps in the write
    status: str
    gained: float | None  # sum of the rewards of these steps
    details: Mapping[str, Any]  # new details that its steps add
    # Indices of steps whose number is not above the earlier numbers of their agent.
    out_of_order: list[int]
    needs_numbers: bool  # whether the write requires the stored step numbers of the episode

    @property
    def changes_version_use(self) -> bool:
        """Whether the write changes `uses_version`, which is True by default in a new episode."""
        return self.after.uses_version != (self.before.id is None or self.before.uses_version)


@dataclass
class ChunkWrite:
    """A chunk with the steps `first` to `last` of the write."""

    last: int
    first: int
    episode: int  # number of its only episode in the plan, from 1; 0 for several episodes
    block: Block
    system: tuple[Any, ...]  # step, reward, terminated, truncated
    encoded: bytes = b""

    def message(self, templates: Templates) -> bytes:
        """Return the record-batch message; the first call encodes it."""
        if not self.encoded:
            self.encoded = self.block.message(templates, *self.system)
        return self.encoded


# last, first, episode, ordinal, chunk, chunk_row. Positions are step indices in the write, the id
# of a chunk is the index of its last step, and episodes are numbered as in `WritePlan.episodes`.
Segment = tuple[int, int, int, int, int, int]


@dataclass(frozen=True)
class WritePlan:
    """All rows of a write. Positions are step indices; episodes are numbered from 1."""

    count: int
    episodes: list[EpisodeWrite]
    step: list[int]  # number of each step in its episode
    place: list[int]  # number of each step's episode in `episodes`
    chunks: list[ChunkWrite]
    segments: list[Segment]
    final: tuple[int, int, list[str]] | None  # chunk, row and fields of the final observation
    # The other columns of the steps, from `pre_agent` on.
    columns: tuple[tuple[Any, ...], ...]

    @property
    def is_current(self) -> bool:
        """Whether the lengths of the episodes still equal those that the plan assumes."""
        lengths = [write.after.length - len(write.rows) for write in self.episodes]
        return lengths == [write.before.length for write in self.episodes]
