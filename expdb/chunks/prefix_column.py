"""The column of arrays whose first dimension varies, such as token ids.

The prompt of a turn usually begins with the prompt of the previous turn. The column therefore
stores each value as a prefix length and a suffix: the number of leading elements that the value
shares with the value of the previous row, and the elements after them. Every chunk can be read
alone, because its first row has no prefix.
"""

import itertools
import math
from array import array
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.column import EMPTY, Buffer, Column, Node, offsets_of
from expdb.chunks.fields import Field
from expdb.chunks.number_arrays import array_of
from expdb.chunks.objects import read_ints, read_offsets
from expdb.chunks.values import MAX_VALUE_BYTES, check_size
from expdb.errors import ChunkDamaged

# A shorter prefix saves less space than it costs time to read.
_MIN_PREFIX_BYTES = 128


class PrefixColumn(Column):
    """A column of arrays whose first dimension varies, without repeated prefixes.

    Arrow layout: struct validity; child validity, prefix lengths in elements; list validity,
    offsets; child validity, suffixes. A row without the field repeats the value of the previous
    row, so that a step between two turns does not prevent a prefix.
    """

    nodes_per_column, buffers_per_column = 4, 7

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self._suffixes: list[bytes] = []
        self._prefixes: list[int] = []  # in bytes
        self._last = EMPTY  # the value of the last row
        self._element_bytes = field.numpy.itemsize * math.prod(field.fixed_shape[1:])

    @property
    def last_length(self) -> int:
        """The length of the first dimension of the value of the last row."""
        return len(self._last) // self._element_bytes

    def append(self, value: Any) -> None:
        elements = array_of(self, value)
        if elements.ndim != len(self.field.shape) or elements.shape[1:] != self.field.shape[1:]:
            raise self.mismatch(elements)
        check_size(elements.nbytes, self.name)
        data = elements.tobytes()
        prefix = self._shared(data)
        self._prefixes.append(prefix)
        self._suffixes.append(data[prefix:])
        self._last = data
        self.rows += 1
        self.nbytes += len(data) - prefix + 8

    def _shared(self, data: bytes) -> int:
        """Return the number of leading bytes that `data` shares with the last value."""
        last = self._last
        if len(last) < _MIN_PREFIX_BYTES or data[:_MIN_PREFIX_BYTES] != last[:_MIN_PREFIX_BYTES]:
            return 0
        if data.startswith(last):
            return len(last)
        shorter = min(len(last), len(data))
        differs = np.frombuffer(last, np.uint8, shorter) != np.frombuffer(data, np.uint8, shorter)
        shared = int(differs.argmax()) if differs.any() else shorter
        return shared - shared % self._element_bytes

    def _add_blank(self) -> None:
        self._prefixes.append(len(self._last))
        self._suffixes.append(EMPTY)
        self.nbytes += 8

    def _truncate(self, rows: int) -> None:
        if rows == len(self._prefixes) == len(self._suffixes):
            return
        del self._prefixes[rows:], self._suffixes[rows:]
        parts: list[bytes] = []
        needed = MAX_VALUE_BYTES  # the parts of the last value after this byte are in `parts`
        for prefix, suffix in zip(self._prefixes[::-1], self._suffixes[::-1], strict=True):
            if prefix < needed:
                parts.append(suffix[: needed - prefix])
                needed = prefix
            if not needed:
                break
        self._last = b"".join(reversed(parts))

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        size = self.field.numpy.itemsize
        prefixes = array("i", [prefix // size for prefix in self._prefixes])
        counts = [len(suffix) // size for suffix in self._suffixes]
        nodes: list[Node] = [(self.rows, nulls), (self.rows, 0), (self.rows, 0), (sum(counts), 0)]
        return nodes, [
            valid,
            EMPTY,
            prefixes.tobytes(),
            EMPTY,
            offsets_of(counts),
            EMPTY,
            b"".join(self._suffixes),
        ]


def read_prefixed(
    field: Field, rows: int, buffers: list[Buffer], start: int, stop: int, share: bool = False
) -> list[np.ndarray]:
    """Decode rows [start, stop) of a `PrefixColumn`; check the lengths of all rows.

    For a row without the field, the result contains the value of the previous row. With `share`,
    arrays may share memory with each other and with the buffers. A value that extends the previous
    value then begins at the same address.
    """
    dtype, data, shape = field.numpy, buffers[6], (-1, *field.fixed_shape[1:])
    width = math.prod(shape[1:])
    prefixes = read_ints(buffers[2], rows, "prefix lengths")
    cuts = read_offsets(buffers[4], rows, len(data) // dtype.itemsize)
    if not prefixes.any():
        ends = cuts[start : stop + 1].tolist()
        if width > 1 and (cuts % width).any():
            raise ChunkDamaged("a length does not fit the shape of the field")
        views = [
            np.frombuffer(data, dtype, b - a, a * dtype.itemsize)
            for a, b in itertools.pairwise(ends)
        ]
        if len(shape) > 1:
            views = [view.reshape(shape) for view in views]
        return views if share else [view.copy() for view in views]
    lengths = prefixes + np.diff(cuts).astype(np.int64)
    _check_lengths(dtype.itemsize, width, prefixes, lengths)
    stored = _Stored(dtype, shape, data, prefixes, lengths, cuts)
    if share and stop > start:
        return _read_extensions(stored, start, stop)
    return _read_copies(stored, start, stop)


class _Stored(NamedTuple):
    """The buffers of a `PrefixColumn`, and what they say about each row."""

    dtype: np.dtype
    shape: tuple[int, ...]  # of a value; -1 for its length
    data: Buffer  # the suffixes of all rows
    prefixes: np.ndarray  # number of elements that a row shares with the previous row
    lengths: np.ndarray  # number of elements of a row
    cuts: np.ndarray  # where the suffix of a row begins in `data`, in elements

    def suffixes(self, first: int, end: int) -> np.ndarray:
        """Return the suffixes of rows [first, end), concatenated."""
        begin, count = int(self.cuts[first]), int(self.cuts[end] - self.cuts[first])
        return np.frombuffer(self.data, self.dtype, count, begin * self.dtype.itemsize)


def _read_extensions(stored: _Stored, start: int, stop: int) -> list[np.ndarray]:
    """Decode rows; a value that extends the previous one shares its memory.

    The suffixes of a run of such values are adjacent in the data.
    """
    prefixes, lengths = stored.prefixes, stored.lengths
    begins = np.flatnonzero(prefixes[start + 1 : stop] != lengths[start : stop - 1]) + start + 1
    arrays: list[np.ndarray] = []
    for first, end in itertools.pairwise([start, *begins.tolist(), stop]):
        whole = stored.suffixes(first, end)
        if prefix := int(prefixes[first]):
            last = arrays[-1] if arrays else _read_copies(stored, first, first + 1)[0]
            whole = np.concatenate([last.reshape(-1)[:prefix], whole])
        arrays += [whole[:length].reshape(stored.shape) for length in lengths[first:end].tolist()]
    return arrays


def _read_copies(stored: _Stored, start: int, stop: int) -> list[np.ndarray]:
    """Decode rows into arrays of their own."""
    arrays: list[np.ndarray] = []
    for row in range(start, stop):
        prefix = int(stored.prefixes[row])
        value = np.empty(int(stored.lengths[row]), stored.dtype)
        value[prefix:] = stored.suffixes(row, row + 1)
        if prefix and arrays:
            value[:prefix] = arrays[-1].reshape(-1)[:prefix]
        # The first of these rows: copy the parts of its prefix from the rows before it.
        earlier = row
        while prefix and not arrays:
            earlier -= 1
            begin = int(stored.prefixes[earlier])
            if begin < prefix:
                value[begin:prefix] = stored.suffixes(earlier, earlier + 1)[: prefix - begin]
                prefix = begin
        arrays.append(value.reshape(stored.shape))
    return arrays


def _check_lengths(itemsize: int, width: int, prefixes: np.ndarray, lengths: np.ndarray) -> None:
    if prefixes.min() < 0 or prefixes[0] or (prefixes[1:] > lengths[:-1]).any():
        raise ChunkDamaged("a prefix is longer than the previous value")
    if (lengths % width).any():
        raise ChunkDamaged("a length does not fit the shape of the field")
    if int(lengths.max()) * itemsize > MAX_VALUE_BYTES:
        raise ChunkDamaged("a value is larger than the limit")
