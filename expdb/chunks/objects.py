"""Decode columns to Python objects: text, bytes, arrays of varying shape, and JSON."""

import itertools
import json
from typing import Any

import numpy as np

from expdb.chunks.column import Buffer
from expdb.chunks.fields import Field
from expdb.errors import ChunkDamaged


def read_ints(buffer: Buffer, count: int, what: str) -> np.ndarray:
    """Return `count` int32 values of a buffer; raise ChunkDamaged if the buffer is too short."""
    if len(buffer) < 4 * count:
        raise ChunkDamaged(f"{what} end early")
    return np.frombuffer(buffer, np.int32, count)


def read_offsets(buffer: Buffer, rows: int, limit: int) -> np.ndarray:
    """Return the offsets in a buffer.

    Raise ChunkDamaged if an offset is negative, exceeds `limit` or is less than the offset before.
    """
    offsets = read_ints(buffer, rows + 1, "offsets")
    if offsets[0] < 0 or offsets[-1] > limit or (rows and int(np.diff(offsets).min()) < 0):
        raise ChunkDamaged("offsets point outside their data")
    return offsets


def read_objects(
    field: Field, rows: int, buffers: list[Buffer], start: int, stop: int
) -> list[Any]:
    """Decode rows [start, stop) of a variable-width column; nulls become blank values."""
    if field.dtype in ("text", "bytes"):
        data = bytes(buffers[2])
        cuts = read_offsets(buffers[1], rows, len(data))[start : stop + 1].tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(cuts)]
        return [part.decode() for part in parts] if field.dtype == "text" else parts
    if field.dtype == "json":
        return _read_json(rows, buffers, start, stop)
    size = field.numpy.itemsize
    several = len(field.shape) > 1
    offsets, values = (buffers[2], buffers[4]) if several else (buffers[1], buffers[3])
    cuts = read_offsets(offsets, rows, len(values) // size)[start : stop + 1].tolist()
    arrays = [
        np.frombuffer(values, field.numpy, b - a, a * size).copy()
        for a, b in itertools.pairwise(cuts)
    ]
    if not several:
        return arrays
    dimensions = len(field.shape)
    shapes = (
        read_ints(buffers[7], rows * dimensions, "shapes")
        .reshape(rows, dimensions)[start:stop]
        .tolist()
    )
    for array, shape in zip(arrays, shapes, strict=True):
        if min(shape) < 0 or int(np.prod(shape, dtype=object)) != array.size:
            raise ChunkDamaged("a shape does not fit its values")
    return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]


def _read_json(rows: int, buffers: list[Buffer], start: int, stop: int) -> list[Any]:
    values: list[Any] = []
    for texts, is_list in read_elements(rows, buffers, start, stop):
        if is_list:
            values.append(json.loads(b"[%b]" % b",".join(texts)))
        else:
            values.append(json.loads(texts[0]) if texts else None)
    return values


def read_json_texts(rows: int, buffers: list[Buffer], start: int, stop: int) -> list[str | None]:
    """Return rows [start, stop) of a JSON column as JSON text; None for null."""
    json_texts: list[str | None] = []
    for texts, is_list in read_elements(rows, buffers, start, stop):
        if is_list:
            json_texts.append((b"[%b]" % b",".join(texts)).decode())
        else:
            json_texts.append(texts[0].decode() if texts and texts[0] != b"null" else None)
    return json_texts


def read_elements(
    rows: int, buffers: list[Buffer], start: int, stop: int
) -> list[tuple[list[bytes], bool]]:
    """Return the JSON of the elements of rows [start, stop), and whether each row is a list."""
    text = bytes(buffers[5])
    count = len(buffers[4]) // 4 - 1
    elements = read_offsets(buffers[4], max(count, 0), len(text)).tolist()
    places = np.frombuffer(buffers[9], np.int32, len(buffers[9]) // 4)
    cuts = read_offsets(buffers[7], rows, len(places)).tolist()
    flags = buffers[11]
    if len(flags) * 8 < rows:
        raise ChunkDamaged("flags end early")
    used = places[cuts[start] : cuts[stop]]
    if len(used) and (int(used.min()) < 0 or int(used.max()) >= count):
        raise ChunkDamaged("a reference points to a missing element")
    return [
        (
            [
                text[elements[k] : elements[k + 1]]
                for k in places[cuts[row] : cuts[row + 1]].tolist()
            ],
            bool(flags[row >> 3] >> (row & 7) & 1),
        )
        for row in range(start, stop)
    ]


def read_bits(buffer: Buffer, start: int, stop: int) -> bytes:
    """Return bits [start, stop) of a bitmap as one byte per bit."""
    if len(buffer) * 8 < stop:
        raise ChunkDamaged("a bitmap ends early")
    if stop - start == 1:
        return _BITS[buffer[start >> 3] >> (start & 7) & 1]
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=stop, bitorder="little")[
        start:
    ].tobytes()


_BITS = (b"\0", b"\1")
