"""The steps that are loaded next, before they have rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage.reading.fetch import alive
from expdb.storage.reading.segments import Segments, Spans, inconsistent
from expdb.storage.store import State, Store

SEGMENTS_AT_ONCE = 256


@dataclass
class Incoming:
    """Steps of the positions from `begin` up to `end`, and the segments that they lie in."""

    begin: int
    end: int
    segments: Segments
    positions: np.ndarray  # that hold a step, ascending
    index: np.ndarray  # of the segment of each

    @classmethod
    def read(cls, store: Store, session: Session, begin: int, state: State) -> "Incoming":
        """Read which steps the next few segments hold."""
        segments = Segments.read(session, store.id, "AND last >= ?", begin, limit=SEGMENTS_AT_ONCE)
        count = len(segments.last)
        if count and segments.last[-1] >= state.added:
            raise inconsistent("a segment covers what was never written")
        segments.cut(begin)  # a merged segment begins among what is loaded
        end = int(segments.last[-1]) + 1 if count == SEGMENTS_AT_ONCE else state.added
        positions, index = segments.positions(begin)
        if state.gaps and len(positions):
            held = alive(store, session, positions)
            positions, index = positions[held], index[held]
        if len(positions) and (int(positions[-1]) >= end or (np.diff(positions) <= 0).any()):
            raise inconsistent("segments overlap")
        return cls(begin, end, segments, positions, index)

    @property
    def is_whole(self) -> bool:
        """Whether each of the positions holds a step."""
        return len(self.positions) == self.end - self.begin

    def of_segments(self, values: np.ndarray) -> np.ndarray:
        """Return for each step the value of its segment."""
        if self.is_whole:
            lengths = self.segments.last - self.segments.first + 1
            return np.repeat(values, lengths)
        found: np.ndarray = values[self.index]
        return found

    def ordinals(self) -> np.ndarray:
        """Return how many steps of the episode were written before each."""
        began = self.of_segments(self.segments.first - self.segments.ordinal)
        found: np.ndarray = self.positions - began
        return found

    def chunks(self) -> np.ndarray:
        """Return the ids of the chunks that hold steps, ascending."""
        if self.is_whole:
            return np.unique(self.segments.chunk)
        return np.unique(self.segments.chunk[np.unique(self.index)])

    def spans(self) -> Spans:
        """Return the runs of rows of one chunk that the steps are, in order."""
        segments = self.segments
        if not self.is_whole:
            return segments.spans(self.positions, self.index)
        stops = segments.chunk_row + segments.last - segments.first + 1
        columns = (segments.chunk.tolist(), segments.chunk_row.tolist(), stops.tolist())
        return list(zip(*columns, strict=True))

    def put(self, r: Resident, name: str, values: Any) -> None:
        """Set a column of the steps."""
        if self.is_whole:
            r.write(name, self.begin, self.end, values)
        else:
            r.columns[name][r.rows(self.positions)] = values
