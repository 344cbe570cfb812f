"""The column of arrays whose first dimension varies, such as token ids.

The prompt of a turn usually begins with the prompt of the previous turn. The column therefore
stores each value as a prefix length and a suffix: the number of leading elements that the value
shares with the value of the previous row, and the elements after them. Every chunk can be read
alone, because its first row has no prefix.
"""

import itertools
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.column import EMPTY, Buffer, Column, Node, offsets_of
from expdb.chunks.fields import Field
from expdb.chunks.number_arrays import array_of
from expdb.chunks.values import MAX_VALUE_BYTES, check_size
from expdb.errors import ChunkDamaged, InvalidValue
from expdb.replay.ragged import RaggedArray

# A shorter prefix saves less space than it costs time to read.
_MIN_PREFIX_BYTES = 128
# Prompts with a common beginning share its parts of this size, such as those of a system prompt.
_PART_BYTES = 4096
_FIRST = np.zeros(1, np.int64)  # the index of the first row, if there is one column


class PrefixColumn(Column):
    """A column of arrays whose first dimension varies, without repeated prefixes.

    Arrow layout: struct validity; child validity, prefix lengths in elements; list validity,
    offsets; child validity, suffixes. A row without the field repeats the value of the previous
    row, so that a step between two turns does not prevent a prefix.
    """

    nodes_per_column, buffers_per_column = 4, 7
    value_buffer = 6

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
        # Values such as masks repeat by chance, and a prefix would save nothing after compression.
        prefix = 0 if self.field.aligned_with is not None else self._shared(data)
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

    def value_sizes(self) -> list[int]:
        sizes: list[int] = []
        for suffix in self._suffixes:
            whole, rest = divmod(len(suffix), _PART_BYTES)
            sizes += [_PART_BYTES] * whole
            if rest or not whole:
                sizes.append(rest)
        return sizes

    def value_counts(self) -> list[int]:
        return [max(1, -(-len(suffix) // _PART_BYTES)) for suffix in self._suffixes]

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


MAX_READ_BYTES = 512 << 20  # of the values of one field in one read of several rows


class ReadTooLarge(InvalidValue):
    """The values of a field are too large for one read; `scan` then reads fewer steps at a time."""


def check_read_size(lengths: np.ndarray, itemsize: int) -> None:
    """Raise ReadTooLarge if several arrays of these lengths exceed `MAX_READ_BYTES`.

    A short chunk can contain many long arrays, because an array only stores its differences from
    the previous one.
    """
    nbytes = int(np.maximum(lengths, 0).sum()) * itemsize
    if nbytes > MAX_READ_BYTES and len(lengths) > 1:
        raise ReadTooLarge(
            f"{len(lengths):,} values of a field take {nbytes:,} bytes, more than the limit of "
            f"{MAX_READ_BYTES:,} bytes for one read; read fewer steps at a time, or use scan()"
        )


class StoredColumn(NamedTuple):
    """The buffers of a `PrefixColumn`."""

    rows: int
    buffers: list[Buffer]


@dataclass(frozen=True)
class PrefixedRows:
    """All rows of several columns. Lengths and offsets count elements.

    `data` and `first_rows` have one entry per column, the other arrays one entry per row.
    """

    dtype: np.dtype
    data: list[Buffer]  # the suffixes of each column
    first_rows: np.ndarray  # index of the first row of each column
    prefixes: np.ndarray  # number of elements that a row shares with the previous row
    cuts: np.ndarray  # where the suffix begins in the data of its column
    lengths: np.ndarray  # number of elements of the value
    # Number of elements of the value of the previous row of the column; -1 if no row has a prefix.
    previous: np.ndarray

    @classmethod
    def of(cls, field: Field, columns: Sequence[StoredColumn]) -> "PrefixedRows":
        """Read the lengths of the rows; raise ChunkDamaged if they are not valid."""
        dtype = field.numpy
        data = [column.buffers[6] for column in columns]
        prefixes = _join_ints([column.buffers[2] for column in columns], columns, 0)
        offsets = _join_ints([column.buffers[4] for column in columns], columns, 1)
        cuts, ends, begins = offsets[:-1], offsets[1:], _FIRST
        if len(columns) > 1:  # leave out the differences between two columns
            counts = np.array([column.rows for column in columns])
            begins = np.cumsum(counts) - counts
            places = np.arange(len(prefixes)) + np.repeat(np.arange(len(columns)), counts)
            cuts, ends = cuts[places], ends[places]
        suffixes = ends - cuts
        lasts = np.append(begins[1:], len(ends)) - 1
        limits = [len(buffer) // dtype.itemsize for buffer in data]
        if suffixes.min() < 0 or (cuts[begins] < 0).any() or (ends[lasts] > limits).any():
            raise ChunkDamaged("offsets point outside their data")
        lengths, previous = prefixes + suffixes, prefixes - 1
        if prefixes.any():
            previous[1:] = lengths[:-1]
            previous[begins] = 0
            if prefixes.min() < 0 or (prefixes > previous).any():
                raise ChunkDamaged("a prefix is longer than the previous value")
        width = math.prod(field.fixed_shape[1:])
        if width > 1 and (lengths % width).any():
            raise ChunkDamaged("a length does not fit the shape of the field")
        if int(lengths.max()) * dtype.itemsize > MAX_VALUE_BYTES:
            raise ChunkDamaged("a value is larger than the limit")
        return cls(dtype, data, begins, prefixes, cuts, lengths, previous)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return 4 * self.lengths.nbytes

    def suffixes(self, number: int, first: int, end: int) -> np.ndarray:
        """Return the suffixes of rows [first, end) of a column, concatenated."""
        begin, last = int(self.cuts[first]), end - 1
        count = int(self.cuts[last] + self.lengths[last] - self.prefixes[last]) - begin
        return np.frombuffer(self.data[number], self.dtype, count, begin * self.dtype.itemsize)

    def suffixes_of_spans(
        self, owners: np.ndarray, firsts: np.ndarray, lasts: np.ndarray
    ) -> list[np.ndarray]:
        """Return the suffixes of rows [first, last] of the owning columns, concatenated."""
        begins, dtype, size = self.cuts[firsts], self.dtype, self.dtype.itemsize
        counts = self.cuts[lasts] + self.lengths[lasts] - self.prefixes[lasts] - begins
        return [
            np.frombuffer(self.data[owner], dtype, count, begin * size)
            for owner, begin, count in zip(
                owners.tolist(), begins.tolist(), counts.tolist(), strict=True
            )
        ]

    def read_leading(self, number: int, row: int, count: int) -> np.ndarray:
        """Return the first `count` elements of the value of a row, from this and earlier rows."""
        value = np.empty(count, self.dtype)
        while count:
            prefix = int(self.prefixes[row])
            if prefix < count:
                value[prefix:count] = self.suffixes(number, row, row + 1)[: count - prefix]
                count = prefix
            row -= 1
        return value

    def join_runs(self, number: int, runs: list[int], end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the runs of a column in one array, and the index where each value begins.

        `runs` are the first rows of the runs, and `end` is the row after the last row of the last
        run.
        """
        arrays: list[np.ndarray] = []
        for first, following in itertools.pairwise([*runs, end]):
            array = self.suffixes(number, first, following)
            if prefix := int(self.prefixes[first]):
                before = arrays[-1][:prefix] if arrays else self.read_leading(number, first, prefix)
                array = np.concatenate([before, array])
            arrays.append(array)
        sizes = np.array([len(array) for array in arrays])
        starts = np.repeat(np.cumsum(sizes) - sizes, np.diff([*runs, end]))
        return np.concatenate(arrays), starts


def read_prefixed(
    field: Field, columns: Sequence[StoredColumn], spans: Sequence[tuple[int, int, int]]
) -> RaggedArray:
    """Decode spans of rows of several columns, and check the lengths of all rows of the columns.

    A span is the index of a column, the first row, and the row after the last row; it is not empty.
    A row without the field has the value of the previous row. Within a span, a value that is stored
    as an extension of the previous value has the same start. The result may share memory with the
    buffers.
    """
    return read_spans(field, PrefixedRows.of(field, columns), spans)


def read_spans(
    field: Field, joined: PrefixedRows, spans: Sequence[tuple[int, int, int]]
) -> RaggedArray:
    """Decode spans of rows; see `read_prefixed`."""
    shape = (-1, *field.fixed_shape[1:])
    width = math.prod(shape[1:])
    owners, starts, stops = np.array(spans, np.int64).T
    firsts, counts = joined.first_rows[owners] + starts, stops - starts
    span_begins = np.cumsum(counts) - counts
    rows = np.repeat(firsts - span_begins, counts) + np.arange(int(counts.sum()))
    # A run is a row and the following rows that each extend the row before. The suffixes of a run
    # are adjacent in the data, so the last value of the run contains all other values.
    begins_run = joined.prefixes[rows] != joined.previous[rows]
    begins_run[span_begins] = True
    first_of_run = rows[np.maximum.accumulate(np.where(begins_run, np.arange(len(rows)), 0))]
    begins = joined.cuts[first_of_run] - np.repeat(joined.cuts[firsts], counts)
    if np.count_nonzero(begins_run & (joined.prefixes[rows] > 0)):  # runs are copied
        last_of_run = np.append(begins_run[1:], True)
        check_read_size(joined.lengths[rows[last_of_run]], joined.dtype.itemsize)
    values = joined.suffixes_of_spans(owners, firsts, firsts + counts - 1)
    needs_copy = begins_run & (joined.prefixes[rows] > 0)
    for span in np.unique(span_begins.searchsorted(np.flatnonzero(needs_copy), "right") - 1):
        begin, end = span_begins[span], span_begins[span] + counts[span]
        runs = rows[begin:end][begins_run[begin:end]].tolist()
        values[span], begins[begin:end] = joined.join_runs(owners[span], runs, rows[end - 1] + 1)
    sizes = np.array([len(array) for array in values])
    begins += np.repeat(np.cumsum(sizes) - sizes, counts)
    whole = values[0] if len(values) == 1 else np.concatenate(values)
    return RaggedArray(whole.reshape(shape), begins // width, joined.lengths[rows] // width)


def _join_ints(buffers: Sequence[Buffer], columns: Sequence[StoredColumn], more: int) -> np.ndarray:
    """Return the int32 values of the rows of each column, and `more` values, as one int64 array."""
    sizes = [4 * (column.rows + more) for column in columns]
    parts = [memoryview(buffer)[:size] for buffer, size in zip(buffers, sizes, strict=True)]
    if sum(map(len, parts)) < sum(sizes):
        raise ChunkDamaged("prefix lengths or offsets end early")
    joined = parts[0] if len(parts) == 1 else b"".join(parts)
    return np.frombuffer(joined, np.int32).astype(np.int64)
