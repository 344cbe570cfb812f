"""What a write stores, worked out without a database."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from expdb.chunks.codec import Block
from expdb.chunks.message import Templates
from expdb.storage.records import EpisodeRecord
from expdb.storage.writing.pending import Pending, Steps


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


def make_plan(
    pending: Pending, known: Mapping[EpisodeRecord, EpisodeRecord] | None = None
) -> WritePlan:
    """Return what the pending steps become; `known` are episodes that are not as their record is.

    The steps of an episode are numbered from where it stands, so a plan is made anew where that
    turns out to be another place.
    """
    steps, mine, count = pending.steps, pending.by_episode(), len(pending)
    alone = len(mine) == 1  # nearly always, and then a third of the work
    numbers, place_of, ordinals = [0] * count, [1] * count, [0] * count
    episodes: list[EpisodeWrite] = []
    for place, (record, rows) in enumerate(mine.items(), 1):
        before, details = (known or {}).get(record, record), pending.details.get(record, {})
        last_step, ordered = pending.number(before, rows, numbers)
        if alone:
            ordinals = list(range(before.length, before.length + count))
        else:
            for ordinal, row in enumerate(rows, before.length):
                place_of[row], ordinals[row] = place, ordinal
        gained = pending.gained(rows)
        after = before.changed(
            length=before.length + len(rows),
            last_step=last_step,
            ordered=ordered,
            last_position=rows[-1],
            gained=before.gained if gained is None else gained + (before.gained or 0.0),
            **details,
        )
        status = pending.ended.get(record, "open")
        episodes.append(EpisodeWrite(record, before, after, rows, status, gained, details))
    chunks: list[ChunkWrite] = []
    segments: list[Segment] = []
    row = 0
    for block in pending.blocks:
        stop = row + block.steps
        is_single = alone or len(set(place_of[row:stop])) == 1
        columns = numbers, steps.reward, steps.terminated, steps.truncated
        system = tuple(column[row:stop] for column in columns)
        chunks.append(ChunkWrite(stop - 1, row, place_of[row] if is_single else 0, block, system))
        if alone:
            segments.append((stop - 1, row, 1, ordinals[row], stop - 1, 0))
        else:
            segments += _runs(place_of, ordinals, row, stop)
        row = stop
    final = None
    if pending.final and pending.final_is_in_block:
        final = (row - 1, pending.blocks[-1].steps, sorted(pending.final))
    others = tuple(steps[2:]) if count else ()
    if count and steps.has_versions:
        others = (*others[:-2], *_own_versions(steps, episodes))
    return WritePlan(count, episodes, numbers, place_of, chunks, segments, final, others)


def _own_versions(
    steps: Steps, episodes: list[EpisodeWrite]
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Return the versions of the steps that differ from those of their episodes, None elsewhere."""
    own, ends = list(steps.policy_version), list(steps.policy_version_end)
    for write in episodes:
        usual = write.after.policy_version
        for row in write.rows:
            began = usual if own[row] is None else own[row]
            ends[row] = None if ends[row] == began else ends[row]
            own[row] = None if began == usual else began
    return tuple(own), tuple(ends)


def _runs(places: list[int], ordinals: list[int], start: int, stop: int) -> Iterator[Segment]:
    """Yield the segments of a chunk: its runs of neighbouring steps of one episode."""
    begin = start
    for row in range(start + 1, stop + 1):
        if row == stop or places[row] != places[begin] or ordinals[row] != ordinals[row - 1] + 1:
            yield row - 1, begin, places[begin], ordinals[begin], stop - 1, begin - start
            begin = row
