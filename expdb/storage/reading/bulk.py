"""Values of many chunks at once, as loading into memory reads them.

Most chunks of tiny steps have one layout: as many rows, each field at the same place. Their
messages are joined to one array, of which a field of all of them is a slice; cut out of each by
itself (gather.py), they cost a microsecond per chunk and field.
"""

import numpy as np

from expdb.chunks.chunk import Chunk, Layout
from expdb.chunks.fields import Field
from expdb.storage.reading.gather import gather, gather_present
from expdb.storage.reading.segments import Spans

FEW = 4  # chunks of one layout that are not worth joining


class Bulk:
    """The fields of fixed width of consecutive spans, which `check_spans` has checked.

    What it returns is by layout, and last what has none in common: one array for each of `places`,
    which says which of the rows those are.
    """

    def __init__(self, chunks: dict[int, Chunk], spans: Spans):
        self._chunks = chunks
        alike, others = _by_layout(chunks, spans)
        self._others = [spans[k] for k in others]
        self._alike = [_Alike([chunks[spans[k][0]] for k in members]) for members in alike]
        if len(alike) + bool(others) == 1:
            self.places: list[slice | np.ndarray] = [slice(None)]
            return
        lengths = np.array([b - a for _, a, b in spans])
        starts = np.cumsum(lengths) - lengths
        self.places = [
            _runs(starts[members], lengths[members])
            for members in (*alike, *([others] if others else []))
        ]

    def values(self, name: str, field: Field) -> list[np.ndarray]:
        """Return the values of a field for each of `places`; blanks where a chunk lacks it."""
        found = [alike.values(name, field) for alike in self._alike]
        if self._others:
            found.append(gather(self._chunks, self._others, name, field))
        return found

    def present(self, name: str) -> list[np.ndarray]:
        """Return for each of `places` which rows have a value of the field, bool."""
        found = [np.full(one.count, name in one.signature.fields) for one in self._alike]
        if self._others:
            found.append(gather_present(self._chunks, self._others, name))
        return found


def _by_layout(chunks: dict[int, Chunk], spans: Spans) -> tuple[list[list[int]], list[int]]:
    """Return the indices of spans that are whole chunks, by layout, and those of all others."""
    by_layout: dict[Layout, list[int]] = {}
    others: list[int] = []
    for k, (c, a, b) in enumerate(spans):
        chunk = chunks[c]
        if a == 0 and b == chunk.rows and chunk.layout.nbytes:
            by_layout.setdefault(chunk.layout, []).append(k)
        else:
            others.append(k)
    for members in by_layout.values():
        if len(members) <= FEW:
            others += members
    return [members for members in by_layout.values() if len(members) > FEW], sorted(others)


def _runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of runs, one run after the other."""
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found: np.ndarray = np.repeat(starts, lengths) + within
    return found


class _Alike:
    """Chunks of one layout, side by side."""

    def __init__(self, chunks: list[Chunk]):
        self._first, self.signature = chunks[0], chunks[0].signature
        self._rows, self.count = chunks[0].rows, len(chunks) * chunks[0].rows
        joined = bytearray().join([chunk.data for chunk in chunks])
        self._bytes = np.frombuffer(joined, np.uint8).reshape(len(chunks), -1)

    def values(self, name: str, field: Field) -> np.ndarray:
        shape = (self.count, *field.fixed_shape)
        if name not in self.signature.fields:
            return np.zeros(shape, field.numpy)
        if field.dtype == "bool" and not field.shape:
            at = self._first.bits(name)
            bits = self._bytes[:, at : at + (self._rows + 7 >> 3)]
            unpacked = np.unpackbits(bits, axis=1, count=self._rows, bitorder="little")
            return unpacked.view(np.bool_).reshape(shape)
        at, width = self._first.place(name)
        return self._bytes[:, at : at + self._rows * width].view(field.numpy).reshape(shape)
