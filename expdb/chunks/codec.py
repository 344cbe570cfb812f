"""Chunks: columns of steps to one Arrow IPC record-batch message, and back.

The message is what `pyarrow.ipc.read_record_batch(data, schema)` reads, with the schema of its
signature. Writing: the metadata of a message are a template with its numbers patched in
(message.py); pyarrow alone costs five times as much. Reading: the numbers are read back with every
bound checked. For chunks of fixed width the metadata says everything about the layout, so it is
looked up by its bytes, and a value is a slice of the message.
"""

import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.chunks.columns import (
    Buffer,
    Column,
    Node,
    bits_of,
    column_of,
    layout_of,
    read_bits,
    read_elements,
    read_objects,
)
from expdb.chunks.fields import SYSTEM, Field, Signature
from expdb.chunks.message import Metadata, Templates, read_metadata
from expdb.errors import ChunkDamaged

# A message is read whole, so tiny steps want small ones (a cold sample of 256 steps reads 256 of
# them), while text wants large ones, where each message of a conversation is stored once and zstd
# has something to find.
FIXED_CHUNK_BYTES = 8 << 10
VARYING_CHUNK_BYTES = 512 << 10
FIRST_ROWS = 4
MAX_CHUNK_BYTES = 64 << 20
MAX_BUFFER_BYTES = (
    1 << 30
)  # no buffer of a sound message is larger; checked before memory is taken for it
MAX_CHUNK_ROWS = 1 << 16

_CODEC = pa.Codec("zstd", compression_level=3)
_COMPRESS_ROW_BYTES = (
    1024  # narrower rows of fixed width are read one by one, and raw floats do not shrink
)
_COMPRESS_BYTES = (
    1024  # a smaller chunk gains less than the call costs; an episode's are merged when it ends
)
_SAMPLE_BYTES = 16 << 10
_WORTH = 0.9


def chunk_bytes(fields: Mapping[str, Field]) -> int:
    """Return the target size of a chunk of these fields, before compression."""
    return (
        VARYING_CHUNK_BYTES if any(field.varies for field in fields.values()) else FIXED_CHUNK_BYTES
    )


_SYSTEM_ROW_BYTES = 17
MAX_LAYOUTS = 256  # of chunks, each about 1 KB of memory

# -- writing ---------------------------------------------------------------------------------------


class Rows:
    """The fields of consecutive steps on their way into one chunk."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.count = 0
        self.tail = False
        self._varies = False
        self._row_bytes = _SYSTEM_ROW_BYTES
        self._most = FIXED_CHUNK_BYTES  # rows of a chunk of fixed width
        self._limit = VARYING_CHUNK_BYTES

    @property
    def nbytes(self) -> int:
        """About how many bytes the chunk will hold, before compression."""
        return sum([column.nbytes for column in self.columns.values()])

    @property
    def full(self) -> bool:
        """Whether the chunk has reached its target size.

        Where a first row is large (a long conversation so far), the next ones mostly repeat it, and
        belong with it.
        """
        if not self._varies:
            return self.count >= self._most
        size = self.nbytes
        if self.count == 1:
            self._limit = max(VARYING_CHUNK_BYTES, min(FIRST_ROWS * size, MAX_CHUNK_BYTES))
        return size >= self._limit or self.count >= MAX_CHUNK_ROWS

    def append(self, values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
        """Add one step's values; `fields` knows the type of each.

        All or nothing: a refused value leaves no trace.
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
            self.count = count + 1  # from here on the row is there
        except BaseException:  # an interrupt as well
            if self.count == count:
                self._take_back(before)
            raise

    def _take_back(self, columns: int) -> None:
        """Let go of what a row has left that is not counted, and of all but the first columns."""
        for name in list(self.columns)[columns:]:
            del self.columns[name]
        for column in self.columns.values():
            column.truncate(self.count)
        self._varies, self._row_bytes = False, _SYSTEM_ROW_BYTES
        for column in self.columns.values():
            self._measure(column.field)

    def _new_column(self, name: str, field: Field) -> Column:
        column = self.columns[name] = column_of(name, field)
        self._measure(field)
        for _ in range(self.count):
            column.append_null()
        return column

    def _measure(self, field: Field) -> None:
        """Take a field into account in how many rows make a chunk."""
        self._varies = self._varies or field.varies
        if not self._varies:
            self._row_bytes += field.nbytes
            self._most = max(1, -(-FIXED_CHUNK_BYTES // self._row_bytes))

    def copy(self, chunk: "Chunk", start: int, stop: int, fields: Mapping[str, Field]) -> None:
        """Add rows [start, stop) of another chunk.

        Without making Python values of them where that can be helped.
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

    def append_tail(self, values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
        """Add the row that holds the observation after the last step.

        Blanks, not nulls, for what was not given.
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
            self.tail = True
        except BaseException:
            if not self.tail:
                self.count = count
                self._take_back(columns)
            raise

    def block(self) -> "Block":
        """Return the columns as buffers, compressed where it pays."""
        for column in self.columns.values():
            column.truncate(
                self.count
            )  # whatever happened, no column has more rows than the others
            if column.rows < self.count:
                raise RuntimeError(
                    f"field {column.name!r} has {column.rows} values for {self.count} steps: "
                    "please report this"
                )
        nodes: list[Node] = []
        buffers: list[Buffer] = []
        for column in self.columns.values():
            more_nodes, more_buffers = column.encode()
            nodes += more_nodes
            buffers += more_buffers
        fields = {name: column.field for name, column in self.columns.items()}
        nullable = {name for name, column in self.columns.items() if column.nulls}
        total = sum(map(len, buffers))
        pays = any(field.varies for field in fields.values()) or total >= _COMPRESS_ROW_BYTES * max(
            self.count, 1
        )
        compressed = pays and total >= _COMPRESS_BYTES
        if compressed:
            packed = [_compress(buffer) for buffer in buffers]
            compressed = sum(map(len, packed)) < _WORTH * total
            buffers = packed if compressed else buffers
        return Block(fields, self.count, nodes, buffers, compressed, nullable, self.tail)


def _compress(buffer: Buffer) -> Buffer:
    """Return a buffer as a compressed message holds it.

    Its length and zstd, or -1 and itself where that is no gain.
    """
    if not buffer:
        return buffer
    size = len(buffer)
    if size >= 128:
        sample = buffer[:_SAMPLE_BYTES] if size > 4 * _SAMPLE_BYTES else buffer
        packed: bytes = _CODEC.compress(sample, asbytes=True)
        if len(packed) < _WORTH * len(sample):
            if len(sample) < size:
                packed = _CODEC.compress(buffer, asbytes=True)
            return struct.pack("<q", size) + packed
    return struct.pack("<q", -1) + bytes(buffer)


@dataclass
class Block:
    """Encoded fields that still want their system columns.

    Which are known only once the write has begun.
    """

    fields: dict[str, Field]
    rows: int
    nodes: list[Node]
    buffers: list[Buffer]
    compressed: bool
    nullable: set[str]
    tail: bool = False

    @property
    def steps(self) -> int:
        """Rows that are steps: all but the tail."""
        return self.rows - self.tail

    def message(
        self,
        templates: Templates,
        step: Sequence[int],
        reward: Sequence[float | None],
        terminated: Sequence[bool],
        truncated: Sequence[bool],
    ) -> bytes:
        """Return the record-batch message.

        Columns shorter than the block (the tail has no step) are padded.
        """
        rows, missing = self.rows, self.rows - len(step)
        system = [
            array("q", [*step, *[0] * missing]).tobytes(),
            array(
                "d", [_NAN if one is None else one for one in [*reward, *[None] * missing]]
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
    """Return the rows of a block as Python values again, fields that a row lacks left out."""
    decoder = Decoder(Signature(block.fields))
    message = block.message(decoder.templates, [], [], [], [])
    chunk = decoder.chunk(0, block.rows, crc_of(decoder.signature, 0, block.rows, message), message)
    rows: list[dict[str, Any]] = [{} for _ in range(block.rows)]
    for name, field in block.fields.items():
        if field.varies:
            values = chunk.objects(name, 0, block.rows)
            if field in (Field("int64", (None,)), Field("float64", (None,))):
                values = [None if value is None else value.tolist() for value in values]
        else:
            found = np.frombuffer(chunk.raw(name, 0, block.rows), field.numpy).reshape(
                block.rows, *field.shape
            )
            # Python's own numbers where a Python number made the type, so that an int still goes
            # into a float field.
            plain = not field.shape and field.dtype in ("int64", "float64", "bool")
            values = found.tolist() if plain else list(found)
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


def crc_of(signature: Signature, id: int, rows: int, data: Buffer) -> int:
    """Return the checksum of a chunk.

    Its message, and everything that decides how the message is read.

    The id comes in by XOR, so that a server that gives the positions can add it to what the writer
    has summed.
    """
    return zlib.crc32(data, zlib.crc32(struct.pack("<q", rows), signature.crc)) ^ (id & 0xFFFFFFFF)


# -- reading ---------------------------------------------------------------------------------------

Slices = dict[
    str, tuple[int, int]
]  # field -> where its first value lies in the message, bytes from one to the next


class Decoder:
    """Reads the chunks of one signature."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.templates = Templates(signature)
        self._prefix_bytes = 0
        self._layouts: dict[bytes, tuple[int, Slices, dict[str, int]]] = {}

    def chunk(self, id: int, rows: int, crc: int, data: bytes) -> "Chunk":
        """Check a chunk and return it, decoded as far as it is read.

        Raise ChunkDamaged naming it.
        """
        try:
            matches = crc_of(self.signature, id, rows, data) == crc
        except (TypeError, struct.error):  # one bit in the header of a row makes text of a number
            matches = False
        if not matches:
            raise ChunkDamaged(
                f"chunk {id} does not match its checksum: restore a backup, or delete its steps"
            )
        known = self._layouts.get(data[: self._prefix_bytes])
        if known is not None and known[0] == len(data):
            return Chunk(id, rows, crc, data, self.signature, known[1], known[2], None)
        try:
            metadata = read_metadata(data)
            if metadata.rows != rows:
                raise ChunkDamaged("it has another number of rows than it says")
            slices, bits = self._slices(metadata)
        except ChunkDamaged as error:
            raise ChunkDamaged(
                f"chunk {id} cannot be read, {error}: restore a backup, or delete its steps"
            ) from None
        if len(slices) + len(bits) == len(self.signature.fields):
            if len(self._layouts) >= MAX_LAYOUTS or self._prefix_bytes != metadata.body:
                self._layouts.clear()
            self._prefix_bytes = metadata.body
            self._layouts[data[: metadata.body]] = (len(data), slices, bits)
        return Chunk(id, rows, crc, data, self.signature, slices, bits, metadata)

    def _slices(self, metadata: Metadata) -> tuple[Slices, dict[str, int]]:
        """Check the shape of the metadata.

        Return where the values of uncompressed fixed-width fields lie.
        """
        slices: Slices = {}
        bits: dict[str, int] = {}
        node = buffer = 0
        rows = metadata.rows
        if rows < 0 or rows > 2 * MAX_CHUNK_ROWS:
            raise ChunkDamaged("its number of rows makes no sense")
        for name, field in self.signature.fields.items():
            nodes, buffers = layout_of(field)
            if node + nodes > len(metadata.nodes) or buffer + buffers > len(metadata.buffers):
                raise ChunkDamaged("it lacks columns")
            length, nulls = metadata.nodes[node].tolist()
            if length != rows or not 0 <= nulls <= rows:
                raise ChunkDamaged(f"{name} has another length than it says")
            if not field.varies and not metadata.compressed and not nulls:
                offset, size = metadata.buffers[buffer + buffers - 1].tolist()
                if size < _fixed_bytes(field, rows):
                    raise ChunkDamaged(f"{name} ends early")
                if field.dtype == "bool" and not field.shape:
                    bits[name] = metadata.body + offset
                else:
                    slices[name] = (metadata.body + offset, field.nbytes)
            node, buffer = node + nodes, buffer + buffers
        if node != len(metadata.nodes) or buffer != len(metadata.buffers):
            raise ChunkDamaged("it has columns too many")
        return slices, bits


def _fixed_bytes(field: Field, rows: int) -> int:
    return (rows + 7) // 8 if field.dtype == "bool" and not field.shape else rows * field.nbytes


class Chunk:
    """A checked chunk.

    Slices of uncompressed fixed-width fields are cut from the message as they are.
    """

    __slots__ = (
        "_bits",
        "_buffers",
        "_metadata",
        "_slices",
        "crc",
        "data",
        "id",
        "opened_bytes",
        "rows",
        "signature",
    )

    def __init__(
        self,
        id: int,
        rows: int,
        crc: int,
        data: bytes,
        signature: Signature,
        slices: Slices,
        bits: dict[str, int],
        metadata: Metadata | None,
    ):
        self.id, self.rows, self.crc, self.data, self.signature = id, rows, crc, data, signature
        self._slices, self._bits, self._metadata = slices, bits, metadata
        self._buffers: dict[str, tuple[int, list[Buffer]]] = {}
        # of memory that columns take which were read so far, decompressed where they were not
        self.opened_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the chunk takes, without what is open."""
        return CHUNK_BYTES + len(self.data)

    def close(self) -> None:
        """Let go of what has been opened."""
        self._buffers, self.opened_bytes = {}, 0

    def raw(self, name: str, start: int, stop: int) -> Buffer:
        """Return the bytes of rows [start, stop) of a fixed-width field, C order.

        Nulls are zeros.
        """
        place = self._slices.get(name)
        if place is not None:
            at, width = place
            if width < 1024:
                return self.data[at + start * width : at + stop * width]
            return memoryview(self.data)[at + start * width : at + stop * width]
        at_bits = self._bits.get(name)
        if at_bits is not None:
            if stop - start == 1:
                return _BYTES[self.data[at_bits + (start >> 3)] >> (start & 7) & 1]
            return read_bits(memoryview(self.data)[at_bits:], start, stop)
        field = self.signature.fields[name]
        buffer = self._column(name)[1][-1]
        if field.dtype == "bool" and not field.shape:
            return read_bits(buffer, start, stop)
        return memoryview(buffer)[start * field.nbytes : stop * field.nbytes]

    def place(self, name: str) -> tuple[int, int]:
        """Return where a field's first value lies in the message, and bytes to the next.

        KeyError where it has no place.
        """
        return self._slices[name]

    def bits(self, name: str) -> int:
        """Return where a bitmap begins in the message; KeyError where it has no place."""
        return self._bits[name]

    def objects(self, name: str, start: int, stop: int) -> list[Any]:
        """Return rows [start, stop) of a field of varying width as Python objects.

        Nulls are None.
        """
        nulls, buffers = self._column(name)
        try:
            found = read_objects(self.signature.fields[name], self.rows, buffers, start, stop)
        except (ChunkDamaged, ValueError, IndexError) as error:
            raise ChunkDamaged(
                f"field {name!r} of chunk {self.id} cannot be read ({error}): restore a backup, or "
                "delete its steps"
            ) from None
        if nulls:
            valid = read_bits(buffers[0], start, stop)
            return [value if there else None for value, there in zip(found, valid, strict=True)]
        return found

    def stored(self, name: str, start: int, stop: int) -> list[Any]:
        """Return rows [start, stop) of a field of varying width as `Column.copy` takes them."""
        if self.signature.fields[name].dtype != "json":
            return self.objects(name, start, stop)
        try:
            return read_elements(self.rows, self._column(name)[1], start, stop)
        except (ChunkDamaged, ValueError, IndexError) as error:
            raise ChunkDamaged(
                f"field {name!r} of chunk {self.id} cannot be read ({error}): restore a backup"
            ) from None

    def present(self, name: str, start: int, stop: int) -> bytes:
        """Return a byte a row: 1 where the step has the field."""
        if name in self._slices or name in self._bits:
            return _BYTES[1] * (stop - start)
        if name not in self.signature.fields:
            return _BYTES[0] * (stop - start)
        nulls, buffers = self._column(name)
        return read_bits(buffers[0], start, stop) if nulls else _BYTES[1] * (stop - start)

    def _column(self, name: str) -> tuple[int, list[Buffer]]:
        """Return the null count and the buffers of a column, decompressed."""
        known = self._buffers.get(name)
        if known is not None:
            return known
        metadata = self._metadata
        if metadata is None:  # the layout was known by its bytes
            metadata = self._metadata = read_metadata(self.data)
        node = first = 0
        for other, field in self.signature.fields.items():
            nodes, buffers = layout_of(field)
            if other == name:
                break
            node, first = node + nodes, first + buffers
        ranges = metadata.buffers[first : first + buffers].tolist()
        view = memoryview(self.data)[metadata.body :]
        try:
            cut = [view[offset : offset + size] for offset, size in ranges]
            found: list[Buffer] = (
                [_decompress(part) for part in cut] if metadata.compressed else list(cut)
            )
            if not field.varies and len(found[-1]) < _fixed_bytes(field, self.rows):
                raise ChunkDamaged("it ends early")
        except (ChunkDamaged, pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise ChunkDamaged(
                f"field {name!r} of chunk {self.id} cannot be read ({error}): restore a backup, or "
                "delete its steps"
            ) from None
        self._buffers[name] = (int(metadata.nodes[node, 1]), found)
        self.opened_bytes += BUFFER_BYTES * len(found) + (
            sum(map(len, found)) if metadata.compressed else 0
        )
        return self._buffers[name]


# What Python and Arrow take beside the bytes themselves, measured over 20,000 chunks of each kind
# on CPython 3.11.
CHUNK_BYTES, BUFFER_BYTES = 1500, 420

_BYTES = (b"\0", b"\1")


def _decompress(part: memoryview) -> Buffer:
    if not part:
        return part
    (size,) = struct.unpack_from("<q", part)
    if size == -1:
        return part[8:]
    if not 0 <= size <= MAX_BUFFER_BYTES:
        raise ChunkDamaged("a compressed buffer claims a size that makes no sense")
    return memoryview(_CODEC.decompress(part[8:], decompressed_size=size))
