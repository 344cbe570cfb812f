"""Encode the fields of consecutive steps as one Arrow IPC record-batch message.

`pyarrow.ipc.read_record_batch(data, schema)` can read the message with the schema of its signature.
To write the metadata of a message, expdb sets the numbers in a template (message.py), because
pyarrow takes five times as long. When expdb reads the metadata, it checks every bound. The
metadata of a fixed-width chunk determine its layout. expdb therefore looks up the layout by the
bytes of the metadata, and a value is a slice of the message.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np

from expdb import checks
from expdb.chunks.chunk import CODEC, MAX_CHUNK_ROWS, Chunk, Decoder, crc_of
from expdb.chunks.column import Buffer, Column, Node, bits_of
from expdb.chunks.column_kinds import column_of
from expdb.chunks.fields import SYSTEM, Field, Signature
from expdb.chunks.message import Templates
from expdb.chunks.shared_values import (
    ValuePointer,
    ValueSelector,
    encode_pointers,
    extract_values,
    find_values_to_share,
)
from expdb.errors import InvalidValue

# A chunk is always read as a whole. Small steps are stored in small chunks, because a sample of
# 256 steps with an empty cache may read 256 chunks. Text is stored in large chunks: a large chunk
# stores each message of a conversation once and compresses well with zstd.
FIXED_CHUNK_BYTES = 8 << 10
VARYING_CHUNK_BYTES = 512 << 10
FIRST_ROWS = 4
MAX_CHUNK_BYTES = 64 << 20
# Fixed-width rows narrower than this are not compressed: they are read one by one, and compression
# does not make raw floats smaller.
_COMPRESS_ROW_BYTES = 1024
# For a smaller chunk, compression saves less than the call costs. The chunks of an episode are
# merged when the episode ends.
_COMPRESS_BYTES = 1024
_SAMPLE_BYTES = 16 << 10
_WORTH = 0.9


def chunk_bytes(fields: Mapping[str, Field]) -> int:
    """Return the target size of a chunk of these fields, before compression."""
    return (
        VARYING_CHUNK_BYTES if any(field.varies for field in fields.values()) else FIXED_CHUNK_BYTES
    )


_SYSTEM_ROW_BYTES = 17

# -- writing ---------------------------------------------------------------------------------------


class Rows:
    """The fields of consecutive steps that will form one chunk."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.count = 0
        self.has_final = False
        self._varies = False
        self._row_bytes = _SYSTEM_ROW_BYTES
        self._most = FIXED_CHUNK_BYTES  # maximum number of rows of a fixed-width chunk
        self._limit = VARYING_CHUNK_BYTES
        self._aligned: list[tuple[str, str]] = []  # fields, and those whose length they must have

    @property
    def nbytes(self) -> int:
        """Approximate size of the chunk in bytes, before compression."""
        return sum([column.nbytes for column in self.columns.values()])

    @property
    def full(self) -> bool:
        """Whether the chunk has reached its target size.

        If the first row is large, for example a long conversation, the next rows usually repeat
        most of it. The target size is therefore larger, so that the same chunk stores these rows.
        """
        if not self._varies:
            return self.count >= self._most
        size = self.nbytes
        if self.count == 1:
            self._limit = max(VARYING_CHUNK_BYTES, min(FIRST_ROWS * size, MAX_CHUNK_BYTES))
        return size >= self._limit or self.count >= MAX_CHUNK_ROWS

    def append(self, values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
        """Add the values of one step; `fields` has the type of each field.

        If a value is invalid, nothing is added.
        """
        columns, count, before = self.columns, self.count, len(self.columns)
        try:
            for name, value in values.items():
                column = columns.get(name)
                if column is None:
                    column = self._new_column(name, fields[name])
                if value is None:
                    column.append_null()
                else:
                    column.append(value)
            if len(values) < len(columns):
                for column in columns.values():
                    if column.rows <= count:
                        column.append_null()
            if self._aligned:
                self._check_aligned(values)
            self.count = count + 1  # from here on, the row counts as added
        except BaseException:  # also after an interrupt
            if self.count == count:
                self._take_back(before)
            raise

    @property
    def takes_arrays(self) -> bool:
        """Whether `extend` may be called: the number of rows that fit is known in advance."""
        return not self._varies

    def extend(
        self, values: Mapping[str, np.ndarray], fields: Mapping[str, Field], start: int
    ) -> int:
        """Add as many rows of arrays as fit, from row `start` on; return the next row to add.

        The types of the arrays must be the exact types of their fields. If an error occurs, nothing
        is added.
        """
        columns, count, before = self.columns, self.count, len(self.columns)
        try:
            for name in values:
                if name not in columns:
                    self._new_column(name, fields[name])
            length = min(map(len, values.values()))
            stop = min(length, start + max(1, self._most - count))
            for name, array in values.items():
                columns[name].extend(array[start:stop])
            if len(values) < len(columns):
                for column in columns.values():
                    while column.rows < count + stop - start:
                        column.append_null()
            self.count = count + stop - start
        except BaseException:
            if self.count == count:
                self._take_back(before)
            raise
        return stop

    def cut_back(self, count: int, columns: int) -> None:
        """Keep only the first `count` rows and the first `columns` columns."""
        self.count = count
        self._take_back(columns)

    def _take_back(self, columns: int) -> None:
        """Remove values of rows that are not counted, and all but the first `columns` columns."""
        for name in list(self.columns)[columns:]:
            del self.columns[name]
        for column in self.columns.values():
            column.truncate(self.count)
        self._varies, self._row_bytes, self._aligned = False, _SYSTEM_ROW_BYTES, []
        for column in self.columns.values():
            self._measure(column.name, column.field)

    def _check_aligned(self, values: Mapping[str, Any]) -> None:
        """Raise InvalidValue if two fields of the last row must have one length, but differ."""
        for name, other in self._aligned:
            if values.get(name) is None:
                continue
            if values.get(other) is None:
                raise InvalidValue(
                    f"{name} must have the length of {other}, but the step has no {other}; pass "
                    "both"
                )
            length, expected = self.columns[name].last_length, self.columns[other].last_length
            if length != expected:
                raise InvalidValue(
                    f"{name} has {length} elements, but {other} has {expected}; pass one element "
                    f"of {name} for each element of {other}"
                )
            if name == checks.LOGPROBS:
                checks.logprobs(values[name], values.get("output_mask"))

    def _new_column(self, name: str, field: Field) -> Column:
        column = self.columns[name] = column_of(name, field)
        self._measure(name, field)
        for _ in range(self.count):
            column.append_null()
        return column

    def _measure(self, name: str, field: Field) -> None:
        """Update the maximum number of rows of a chunk, and the fields to check."""
        if field.aligned_with is not None:
            self._aligned = [*self._aligned, (name, field.aligned_with)]
        self._varies = self._varies or field.varies
        if not self._varies:
            self._row_bytes += field.nbytes
            self._most = max(1, -(-FIXED_CHUNK_BYTES // self._row_bytes))

    def copy(self, chunk: "Chunk", start: int, stop: int, fields: Mapping[str, Field]) -> None:
        """Add rows [start, stop) of another chunk.

        The stored bytes are copied without conversion to Python values if possible.
        """
        for name in chunk.signature.fields:
            if name not in SYSTEM:
                column = self.columns.get(name) or self._new_column(name, fields[name])
                present = chunk.present(name, start, stop)
                if fields[name].varies:
                    column.copy(chunk.stored(name, start, stop), present)
                else:
                    column.copy(chunk.raw(name, start, stop), present)
        self.count += stop - start
        for column in self.columns.values():
            while column.rows < self.count:
                column.append_null()

    def append_final(self, values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
        """Add a row with the final observation.

        Fields without a value in this row are blank, not null.
        """
        columns, count = len(self.columns), self.count
        try:
            self.append(values, fields)
            for name, column in self.columns.items():
                if (
                    values.get(name) is None
                    and column.nulls
                    and column.nulls[-1] == column.rows - 1
                ):
                    column.nulls.pop()
            self.has_final = True
        except BaseException:
            if not self.has_final:
                self.count = count
                self._take_back(columns)
            raise

    def block(self, selector: ValueSelector | None = None) -> "Block":
        """Return the columns as buffers, compressed if that saves enough space.

        With `selector`, move the selected values from the buffers to `Block.shared_values`.
        """
        for column in self.columns.values():
            # After an error or an interrupt, some columns may have more rows than the others.
            column.truncate(self.count)
            if column.rows < self.count:
                raise RuntimeError(
                    f"field {column.name!r} has {column.rows} values for {self.count} steps; "
                    "please report this error"
                )
        nodes: list[Node] = []
        buffers: list[Buffer] = []
        shared: dict[bytes, bytes] = {}
        pointers: dict[int, list[ValuePointer]] = {}  # by buffer index
        for column in self.columns.values():
            more_nodes, more_buffers = column.encode()
            if selector is not None and (at := column.value_buffer) is not None:
                spans = find_values_to_share(column, more_buffers[at], selector)
                if spans:
                    column_pointers, more_buffers[at], values = extract_values(
                        more_buffers[at], spans
                    )
                    pointers[len(buffers) + at] = column_pointers
                    for pointer, value in zip(column_pointers, values, strict=True):
                        if pointer.digest not in shared:
                            shared[pointer.digest] = bytes(_compress(value))
            nodes += more_nodes
            buffers += more_buffers
        fields = {name: column.field for name, column in self.columns.items()}
        nullable = {name for name, column in self.columns.items() if column.nulls}
        total = sum(map(len, buffers))
        pays = any(field.varies for field in fields.values()) or total >= _COMPRESS_ROW_BYTES * max(
            self.count, 1
        )
        compressed = bool(pointers) or (pays and total >= _COMPRESS_BYTES)
        if compressed:
            packed = [_compress(buffer) for buffer in buffers]
            compressed = bool(pointers) or sum(map(len, packed)) < _WORTH * total
            buffers = packed if compressed else buffers
            for index, column_pointers in pointers.items():
                buffers[index] = encode_pointers(column_pointers, buffers[index])
        return Block(
            fields, self.count, nodes, buffers, compressed, nullable, self.has_final, shared
        )


def _compress(buffer: Buffer) -> Buffer:
    """Return a buffer in the form of a compressed message.

    The form is the length of the buffer and the zstd data, or -1 and the buffer itself if
    compression gains little.
    """
    if not buffer:
        return buffer
    size = len(buffer)
    if size >= 128:
        sample = buffer[:_SAMPLE_BYTES] if size > 4 * _SAMPLE_BYTES else buffer
        packed: bytes = CODEC.compress(sample, asbytes=True)
        if len(packed) < _WORTH * len(sample):
            if len(sample) < size:
                packed = CODEC.compress(buffer, asbytes=True)
            return struct.pack("<q", size) + packed
    return struct.pack("<q", -1) + bytes(buffer)


@dataclass
class Block:
    """Encoded fields without the system columns, which are known only after the write has begun."""

    fields: dict[str, Field]
    rows: int
    nodes: list[Node]
    buffers: list[Buffer]
    compressed: bool
    nullable: set[str]
    has_final: bool = False
    # Compressed values by digest.
    shared_values: Mapping[bytes, bytes] = dataclass_field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The number of rows that are steps: all rows except a final observation."""
        return self.rows - self.has_final

    def message(
        self,
        templates: Templates,
        step: Sequence[int],
        reward: Sequence[float | None],
        terminated: Sequence[bool],
        truncated: Sequence[bool],
    ) -> bytes:
        """Return the record-batch message.

        System columns with fewer rows than the block are padded, for example for the row of a final
        observation.
        """
        rows, missing = self.rows, self.rows - len(step)
        system = [
            array("q", [*step, *[0] * missing]).tobytes(),
            array(
                "d", [_NAN if number is None else number for number in [*reward, *[None] * missing]]
            ).tobytes(),
            bits_of([*terminated, *[False] * missing]),
            bits_of([*truncated, *[False] * missing]),
        ]
        body: list[Buffer] = []
        ranges: list[int] = []
        at = 0
        uncompressed = _UNCOMPRESSED if self.compressed else b""
        for data in system:
            at = _place(b"", at, body, ranges)
            at = _place(uncompressed + data, at, body, ranges)
        for buffer in self.buffers:
            at = _place(buffer, at, body, ranges)
        nodes = [rows, 0] * len(system)
        for node in self.nodes:
            nodes += node
        return b"".join((templates[self.compressed].fill(rows, nodes, ranges, at), *body))


def decoded(block: Block) -> list[dict[str, Any]]:
    """Return the rows of a block as dicts of Python values, without the fields that a row lacks."""
    decoder = Decoder(Signature(block.fields))
    message = block.message(decoder.templates, [], [], [], [])
    chunk = decoder.chunk(0, block.rows, crc_of(decoder.signature, 0, block.rows, message), message)
    chunk.shared_values = block.shared_values
    rows: list[dict[str, Any]] = [{} for _ in range(block.rows)]
    for name, field in block.fields.items():
        if field.varies:
            values = chunk.objects(name, 0, block.rows)
            if field in (Field("int64", (None,)), Field("float64", (None,))):
                values = [None if value is None else value.tolist() for value in values]
        else:
            matrix = np.frombuffer(chunk.raw(name, 0, block.rows), field.numpy).reshape(
                block.rows, *field.shape
            )
            # Return Python numbers for the types that expdb infers from Python numbers, so that an
            # int can still be stored in a float field.
            plain = not field.shape and field.dtype in ("int64", "float64", "bool")
            values = matrix.tolist() if plain else list(matrix)
        for row, value, there in zip(rows, values, chunk.present(name, 0, block.rows), strict=True):
            if there:
                row[name] = value
    return rows


_NAN = float("nan")
_UNCOMPRESSED = struct.pack("<q", -1)
_PADDING = [b"\0" * n for n in range(8)]


def _place(buffer: Buffer, at: int, body: list[Buffer], ranges: list[int]) -> int:
    size = len(buffer)
    ranges += (at, size)
    if size:
        body.append(buffer)
        if size & 7:
            body.append(_PADDING[8 - (size & 7)])
            size += 8 - (size & 7)
    return at + size
