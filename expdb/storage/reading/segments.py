"""Segments: which chunk and row holds each position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expdb import errors
from expdb.sql.session import Session
from expdb.storage.store import Store, evicted

MOST = 1 << 62  # exclusive limit of positions; database integers can be twice as large


Spans = list[tuple[int, int, int]]  # chunk, first row, row after the last


@dataclass
class Segments:
    """Runs of ascending positions, each of one episode in one chunk.

    Every array has one entry per segment.
    """

    last: np.ndarray
    first: np.ndarray
    episode: np.ndarray
    ordinal: np.ndarray
    chunk: np.ndarray
    chunk_row: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[tuple[int, ...]]) -> "Segments":
        """Create segments from rows (last, first, episode, ordinal, chunk, chunk_row)."""
        segments = cls(*np.array(rows, np.int64).reshape(-1, 6).T)
        if len(rows) and (
            min(segments.first.min(), segments.chunk_row.min()) < 0
            or (segments.last < segments.first).any()
            or max(segments.last.max(), segments.chunk_row.max()) >= MOST
        ):
            raise inconsistent("a segment has impossible positions")
        return segments

    @classmethod
    def read(
        cls, session: Session, buffer_id: int, where: str, *params: Any, limit: int | None = None
    ) -> "Segments":
        """Read the segments of a buffer that meet a condition, such as "AND last >= ?"."""
        most = () if limit is None else (limit,)
        statement = (
            "SELECT last, first, episode, ordinal, chunk, chunk_row FROM segments "
            f"WHERE buffer_id = ? {where} ORDER BY last{' LIMIT ?' * len(most)}"
        )
        return cls.of(session.query(statement, buffer_id, *params, *most))

    def positions(self, low: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions from `low` on that segments cover, and the segment index of each."""
        begin = np.maximum(self.first, low)
        lengths = self.last - begin + 1
        index = np.repeat(np.arange(len(lengths)), lengths)
        return begin[index] + np.arange(len(index)) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        ), index

    def cut(self, low: int) -> None:
        """Remove the positions before `low` from the segments."""
        late = np.maximum(low - self.first, 0)
        self.first, self.ordinal = self.first + late, self.ordinal + late
        self.chunk_row = self.chunk_row + late

    def spans(self, positions: np.ndarray, index: np.ndarray) -> Spans:
        """Return the chunk rows of the positions as runs of neighbouring rows, in order."""
        if index[0] == index[-1] and not breaks(index, positions).size:  # usually a single step
            k = index[0]
            row = int(self.chunk_row[k] + positions[0] - self.first[k])
            return [(int(self.chunk[k]), row, row + len(positions))]
        chunk, row = self.chunk[index], self.chunk_row[index] + positions - self.first[index]
        ends = breaks(chunk, row)
        starts, stops = np.concatenate(([0], ends)), np.concatenate((ends, [len(positions)]))
        return list(
            zip(
                chunk[starts].tolist(),
                row[starts].tolist(),
                (row[stops - 1] + 1).tolist(),
                strict=True,
            )
        )

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Return the index of each position's segment; raise Evicted for positions without one."""
        index = np.searchsorted(self.last, positions)
        inside = index < len(self.last)
        inside[inside] = self.first[index[inside]] <= positions[inside]
        if not inside.all():
            raise evicted(positions[~inside])
        return index


def breaks(owners: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the indices at which a new run begins: another owner, or a gap between places."""
    return np.flatnonzero((owners[1:] != owners[:-1]) | (places[1:] != places[:-1] + 1)) + 1


def locate(store: Store, session: Session, positions: np.ndarray) -> Segments:
    """Return the segments that hold the positions."""
    wanted = np.unique(positions)
    if len(wanted) and is_dense(wanted):
        low, high = int(wanted[0]), int(wanted[-1])
        last = "(SELECT min(last) FROM segments WHERE buffer_id = ? AND last >= ?)"
        where = f"AND last >= ? AND last <= coalesce({last}, ?)"
        return Segments.read(session, store.id, where, low, store.id, high, high)
    # The statement returns one row per position, ascending; dict.fromkeys keeps each segment once.
    rows = session.query(store.dialect.LOCATE, store.id, store.dialect.as_list(wanted))
    return Segments.of(list(dict.fromkeys(rows)))


def is_dense(wanted: np.ndarray) -> bool:
    """Return whether reading the whole range is faster than reading each sorted position."""
    return len(wanted) > 64 and int(wanted[-1]) - int(wanted[0]) < 4 * len(wanted)


def inconsistent(what: str) -> errors.DatabaseDamaged:
    """Return the error for contradictory rows, which expdb never writes."""
    return errors.DatabaseDamaged(
        f"the database is inconsistent ({what}); run `expdb check`, and restore a backup"
    )
