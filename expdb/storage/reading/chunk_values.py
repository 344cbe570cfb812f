"""Extract values of fields from chunks: from some spans, or from many whole chunks at once.

A span is a range of rows of one chunk. Most chunks of tiny steps have the same layout: equal
numbers of rows, and each field at the same place. Such chunks are loaded together: their messages
are joined to one array, and each field is a slice of it. Extracting the fields separately would
take a microsecond per field and chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from expdb.chunks.chunk import Chunk, ChunkLayout, read_ragged
from expdb.chunks.column import Buffer
from expdb.chunks.fields import Field
from expdb.chunks.prefix_column import check_read_size
from expdb.replay.ragged import RaggedArray
from expdb.storage.reading.segments import Spans, inconsistent

FEW = 4  # up to this number, rows or chunks are not worth joining
WIDE = 1024  # values of at least this many bytes are copied only once


def check_spans(chunks: dict[int, Chunk], spans: Spans) -> None:
    """Raise DatabaseDamaged if spans exceed the rows of their chunks."""
    for c, a, b in spans:
        if b > chunks[c].rows:
            raise inconsistent(
                f"chunk {c} has {chunks[c].rows} rows, but steps refer to its rows {a} to {b - 1}"
            )


def blank(array: np.ndarray, missing: np.ndarray | slice) -> None:
    """Replace missing values by NaN, 0, False or None."""
    array[missing] = np.nan if array.dtype.kind == "f" else None if array.dtype == object else 0


Empty = Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]  # such as numpy.empty


def gather(
    chunks: dict[int, Chunk],
    spans: Spans,
    name: str,
    field: Field,
    json_text: bool = False,
) -> np.ndarray:
    """Return a field's values in the spans, in order; 0, False or None if a chunk lacks the field.

    With `json_text`, JSON is not parsed.
    """
    if field.has_prefixes and sum([b - a for _, a, b in spans]) > FEW:
        ragged = gather_ragged(chunks, spans, name, field)
        check_read_size(ragged.lengths, ragged.values[:1].nbytes)  # each array is copied
        return as_objects(ragged.to_list())
    if field.varies:
        values: list[Any] = []
        for c, a, b in spans:
            if name not in chunks[c].signature.fields:
                values += [None] * (b - a)
            elif json_text and field.dtype == "json":
                values += chunks[c].json_texts(name, a, b)
            else:
                values += chunks[c].objects(name, a, b)
        return as_objects(values)
    count = sum([b - a for _, a, b in spans])
    try:
        parts = _slices(chunks, spans, name, field, count)
    except KeyError:
        parts = [raw_or_zeros(chunks[c], name, field, a, b) for c, a, b in spans]
    return joined(parts, field, count)


def gather_ragged(chunks: dict[int, Chunk], spans: Spans, name: str, field: Field) -> RaggedArray:
    """Return the values of a field whose first dimension varies, in the order of the spans."""
    has_field = [name in chunks[c].signature.fields for c, _, _ in spans]
    parts = list(itertools.compress(spans, has_field))
    count = sum([b - a for _, a, b in spans])
    if not parts:
        return RaggedArray.missing(count, field.numpy, field.fixed_shape[1:])
    values = read_ragged([(chunks[c], a, b) for c, a, b in parts], name)
    if len(parts) == len(spans):
        return values
    is_stored = np.repeat(has_field, [b - a for _, a, b in spans])
    return values.place_at(np.flatnonzero(is_stored), count)


def gather_wide(
    chunks: dict[int, Chunk],
    spans: Spans,
    name: str,
    field: Field,
    values: np.ndarray,
    keep_open: bool,
) -> np.ndarray:
    """Copy a field's values in the spans into the array `values`, and return `values`.

    Each chunk is decompressed once. With `keep_open`, it stays decompressed; otherwise the next
    chunk is decompressed into the same memory, which is still in the processor's cache.
    """
    room, width = values.reshape(-1).view(np.uint8), field.nbytes
    ends = np.cumsum([b - a for _, a, b in spans]).tolist()
    if (ends[-1] if ends else 0) * width != len(room):  # otherwise `values` would keep old contents
        raise inconsistent(f"the rows of chunks do not add up to {len(values)} values")
    opened: Buffer | None = b""
    last = None
    for (c, a, b), end in sorted(zip(spans, ends, strict=True)):
        if c != last:
            last, chunk = c, chunks[c]
            opened = chunk.whole(name, keep_open) if name in chunk.signature.fields else None
        part = room[(end - (b - a)) * width : end * width]
        part[:] = 0 if opened is None else np.frombuffer(opened, np.uint8, len(part), a * width)
    return values


def raw_or_zeros(chunk: Chunk, name: str, field: Field, a: int, b: int) -> Buffer:
    """Return the bytes of a field in the rows [a, b); zeros if the chunk lacks the field."""
    if name in chunk.signature.fields:
        return chunk.raw(name, a, b)
    return bytes(field.nbytes * (b - a))


def joined(parts: Sequence[Buffer], field: Field, count: int) -> np.ndarray:
    """Join parts of bytes and return them as an array of the field's values."""
    return np.frombuffer(bytearray().join(parts), field.numpy).reshape((count, *field.fixed_shape))


def gather_present(chunks: dict[int, Chunk], spans: Spans, name: str) -> np.ndarray:
    """Return for each row of the spans whether it has a value of the field, bool."""
    parts = [chunks[c].present(name, a, b) for c, a, b in spans]
    return np.frombuffer(bytearray().join(parts), np.bool_)


def _slices(
    chunks: dict[int, Chunk], spans: Spans, name: str, field: Field, count: int
) -> list[Buffer]:
    """Slice a field's values out of messages; raise KeyError if a chunk has no fixed place for it.

    The loops are simple, because they take most of the time of a sample with an empty cache.
    """
    span_chunks = [chunks[c] for c, _, _ in spans]
    if field.dtype == "bool" and not field.shape:
        if count > len(spans):
            return unpacked(span_chunks, spans, name, count)
        at = [
            chunk.bits(name) + (a >> 3) for chunk, (_, a, _) in zip(span_chunks, spans, strict=True)
        ]
        return [
            bytes(
                [
                    chunk.data[k] >> (a & 7) & 1
                    for chunk, k, (_, a, _) in zip(span_chunks, at, spans, strict=True)
                ]
            )
        ]
    places = [chunk.place(name) for chunk in span_chunks]
    width = field.nbytes
    if width >= WIDE or count > 8 * len(spans):  # a view, so that joining is the only copy
        return [
            memoryview(chunk.data)[at + a * width : at + b * width]
            for chunk, (at, _), (_, a, b) in zip(span_chunks, places, spans, strict=True)
        ]
    return [
        chunk.data[at + a * width : at + b * width]
        for chunk, (at, _), (_, a, b) in zip(span_chunks, places, spans, strict=True)
    ]


def unpacked(span_chunks: list[Chunk], spans: Spans, name: str, count: int) -> list[Buffer]:
    """Return the bits of spans as one byte each, unpacked all at once.

    Raise KeyError if a chunk has no fixed place for the bits.
    """
    cut = [
        (chunk.bits(name) + (a >> 3), chunk.bits(name) + (b + 7 >> 3))
        for chunk, (_, a, b) in zip(span_chunks, spans, strict=True)
    ]
    packed = b"".join(
        [chunk.data[first:last] for chunk, (first, last) in zip(span_chunks, cut, strict=True)]
    )
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    width = np.array([8 * (last - first) for first, last in cut])
    length = np.array([b - a for _, a, b in spans])
    skipped = (
        np.cumsum(width)
        - width
        + np.array([a & 7 for _, a, _ in spans])
        - (np.cumsum(length) - length)
    )
    return [bits[np.repeat(skipped, length) + np.arange(count)].data]


def as_objects(values: Sequence[Any]) -> np.ndarray:
    """Return a 1-D object array, whatever the values are."""
    return np.fromiter(values, object, len(values))


class Bulk:
    """The fixed-width fields of consecutive spans, which `check_spans` has checked.

    Values are grouped by chunk layout. Chunks without a common layout form the last group. Methods
    return one array per group, in the order of `places`. An entry of `places` selects the rows of
    its group.
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
        """Return the values of a field for each group; 0 or False if a chunk lacks the field."""
        arrays = [alike.values(name, field) for alike in self._alike]
        if self._others:
            arrays.append(gather(self._chunks, self._others, name, field))
        return arrays

    def present(self, name: str) -> list[np.ndarray]:
        """Return for each group which of its rows have a value of the field, bool."""
        masks = [np.full(alike.count, name in alike.signature.fields) for alike in self._alike]
        if self._others:
            masks.append(gather_present(self._chunks, self._others, name))
        return masks


def _by_layout(chunks: dict[int, Chunk], spans: Spans) -> tuple[list[list[int]], list[int]]:
    """Return the indices of spans that are whole chunks, by layout, and the other indices."""
    by_layout: dict[ChunkLayout, list[int]] = {}
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
    """Return the row numbers of all runs, concatenated."""
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    numbers: np.ndarray = np.repeat(starts, lengths) + within
    return numbers


class _Alike:
    """Chunks of one layout, joined to one array."""

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
