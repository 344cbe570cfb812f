"""Read chunks: verify their checksums, decompress columns when needed, and return values."""

import functools
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.chunks.column import Buffer
from expdb.chunks.column_kinds import layout_of
from expdb.chunks.fields import Field, Signature
from expdb.chunks.message import Metadata, Templates, read_metadata
from expdb.chunks.objects import read_bits, read_elements, read_json_texts, read_objects
from expdb.chunks.prefix_column import (
    PrefixedRows,
    ReadTooLarge,
    StoredColumn,
    read_prefixed,
    read_spans,
)
from expdb.chunks.run_column import read_runs
from expdb.chunks.shared_values import (
    POINTERS_MARKER,
    check_pointers,
    decode_pointers,
    restore_values,
)
from expdb.errors import ChunkDamaged
from expdb.replay.ragged import RaggedArray

# Maximum size of a buffer in a valid message. It is checked before memory is allocated.
MAX_BUFFER_BYTES = 1 << 30
MAX_CHUNK_ROWS = 1 << 16
# Up to 64 shared values of at most this size stay decompressed, whatever `resident_bytes` is.
MAX_RECENT_BYTES = 64 << 10
MAX_LAYOUTS = 256  # cached layouts per signature, each about 1 KB of memory

CODEC = pa.Codec("zstd", compression_level=3)

# Field -> offset of its first value in the message, and bytes from one value to the next.
Slices = dict[str, tuple[int, int]]
# Field -> its first node, its first buffer, its number of nodes, its number of buffers.
AtIndices = dict[str, tuple[int, int, int, int]]


@dataclass(eq=False, slots=True)
class ChunkLayout:
    """Offsets of metadata and values in messages of one signature (list of fields).

    Chunks with equal offsets share one layout if all or none of their fields are slices of the
    message. A cache holds thousands of chunks, and a layout for each of them would cost memory and
    a CPU cache miss when it is read.
    """

    nodes: int  # offset of the lengths and null counts of the nodes
    buffers: int  # offset of the offsets and lengths of the buffers
    body: int  # offset of the body
    compressed: bool
    nbytes: int  # size of a message; 0 if messages with this layout differ in size
    slices: Slices  # of uncompressed fixed-width fields without nulls, except boolean scalars
    bits: dict[str, int]  # uncompressed boolean scalar without nulls -> offset of its bitmap
    own_bytes: int = 0  # memory of a layout that only one chunk uses; otherwise 0


class Decoder:
    """Read the chunks of one signature in one buffer."""

    def __init__(self, signature: Signature, buffer_id: int | None = None):
        self.signature, self._buffer_id = signature, buffer_id
        self.templates = Templates(signature)
        self._places = _places_of(signature)
        self._prefix_bytes = 0
        self._layouts: dict[bytes, ChunkLayout] = {}
        self._varying: dict[tuple[int, int, int, bool], ChunkLayout] = {}

    def chunk(self, id: int, rows: int, crc: int, data: bytes) -> "Chunk":
        """Verify the checksum of a chunk and return the chunk.

        Columns are decoded when they are read. Raise ChunkDamaged, with the id of the chunk, if it
        is corrupted.
        """
        try:
            owner = self._buffer_id if crc & COVERS_BUFFER else None
            matches = crc_of(self.signature, id, rows, data, owner) == crc & ~HAS_SHARED_VALUES
        except (TypeError, struct.error):  # a corrupted row header can turn a number into text
            matches = False
        if not matches:
            raise ChunkDamaged(
                f"chunk {id} does not match its checksum, or belongs to another buffer; restore a "
                "backup, or delete its steps"
            )
        return self.decode_unchecked(id, rows, crc, data)

    def decode_unchecked(self, id: int, rows: int, crc: int, data: bytes) -> "Chunk":
        """Return a chunk, such as one that was just written, without verifying its checksum."""
        cached = self._layouts.get(data[: self._prefix_bytes])
        if cached is not None and cached.nbytes == len(data):
            return Chunk(id, rows, crc, data, self.signature, self._places, cached)
        try:
            metadata = read_metadata(data)
            if metadata.rows != rows:
                raise ChunkDamaged("its number of rows differs from the metadata of its message")
            layout = self._layout(metadata, len(data))
        except ChunkDamaged as error:
            raise ChunkDamaged(
                f"chunk {id} cannot be read ({error}); restore a backup, or delete its steps"
            ) from None
        if len(layout.slices) + len(layout.bits) == len(self.signature.fields):
            if len(self._layouts) >= MAX_LAYOUTS or self._prefix_bytes != metadata.body:
                self._layouts.clear()
            self._prefix_bytes = metadata.body
            self._layouts[data[: metadata.body]] = layout
        elif not layout.slices and not layout.bits:
            layout.nbytes = 0
            key = (layout.nodes, layout.buffers, layout.body, layout.compressed)
            layout = self._varying.setdefault(key, layout)
        else:
            layout.own_bytes = LAYOUT_BYTES
        return Chunk(id, rows, crc, data, self.signature, self._places, layout)

    def _layout(self, metadata: Metadata, nbytes: int) -> ChunkLayout:
        """Check the metadata against the signature, and return the layout of the message."""
        slices: Slices = {}
        bits: dict[str, int] = {}
        rows = metadata.rows
        if rows < 0 or rows > 2 * MAX_CHUNK_ROWS:
            raise ChunkDamaged("the number of rows is not valid")
        node = buffer = nodes = buffers = 0
        for name, (node, buffer, nodes, buffers) in self._places.items():
            field = self.signature.fields[name]
            if node + nodes > len(metadata.nodes) or buffer + buffers > len(metadata.buffers):
                raise ChunkDamaged("the message has too few columns")
            length, nulls = metadata.nodes[node].tolist()
            if length != rows or not 0 <= nulls <= rows:
                raise ChunkDamaged(f"the length of field {name} is not valid")
            if not field.varies and not metadata.compressed and not nulls:
                offset, size = metadata.buffers[buffer + buffers - 1].tolist()
                if size < _fixed_bytes(field, rows):
                    raise ChunkDamaged(f"the data of field {name} end early")
                if field.dtype == "bool" and not field.shape:
                    bits[name] = metadata.body + offset
                else:
                    slices[name] = (metadata.body + offset, field.nbytes)
        if node + nodes != len(metadata.nodes) or buffer + buffers != len(metadata.buffers):
            raise ChunkDamaged("the message has too many columns")
        _, nodes_at, buffers_at, _ = metadata.at
        return ChunkLayout(
            nodes_at, buffers_at, metadata.body, metadata.compressed, nbytes, slices, bits
        )


def _places_of(signature: Signature) -> AtIndices:
    places: AtIndices = {}
    node = buffer = 0
    for name, field in signature.fields.items():
        nodes, buffers = layout_of(field, name in signature.prefixed)
        places[name] = node, buffer, nodes, buffers
        node, buffer = node + nodes, buffer + buffers
    return places


def _fixed_bytes(field: Field, rows: int) -> int:
    return (rows + 7) // 8 if field.dtype == "bool" and not field.shape else rows * field.nbytes


class Chunk:
    """A chunk whose metadata have been checked.

    Values of uncompressed fixed-width fields are slices of the message.
    """

    __slots__ = (
        "_bits",
        "_buffers",
        "_places",
        "_prefixed",
        "_slices",
        "crc",
        "data",
        "id",
        "layout",
        "opened_bytes",
        "rows",
        "shared_values",
        "signature",
    )

    def __init__(
        self,
        id: int,
        rows: int,
        crc: int,
        data: bytes,
        signature: Signature,
        places: AtIndices,
        layout: ChunkLayout,
    ):
        self.id, self.rows, self.crc, self.data, self.signature = id, rows, crc, data, signature
        self.layout, self._places = layout, places
        self._slices, self._bits = layout.slices, layout.bits
        self._buffers: dict[str, list[Buffer]] = {}
        self._prefixed: dict[str, PrefixedRows] = {}
        self.shared_values: Mapping[bytes, Buffer] = {}  # compressed shared values by digest
        # Memory of the columns that were opened so far, including decompressed buffers.
        self.opened_bytes = 0

    @property
    def nbytes(self) -> int:
        """Size of the chunk in memory in bytes, without opened columns."""
        return CHUNK_BYTES + self.layout.own_bytes + self.stored_bytes

    @property
    def stored_bytes(self) -> int:
        """Size of the message and of the compressed shared values in bytes."""
        if not self.shared_values:
            return len(self.data)
        return len(self.data) + sum(map(len, self.shared_values.values()))

    def read_shared_value(self, digest: bytes, length: int | None = None) -> Buffer:
        """Return a shared value, decompressed.

        Raise ChunkDamaged if the value is missing or corrupted, or if its length differs.
        """
        packed = self.shared_values.get(digest)
        try:
            if packed is None:
                raise ChunkDamaged("it is missing")
            (size,) = _INT64.unpack_from(packed)
            if length is not None and length != (len(packed) - 8 if size == -1 else size):
                raise ChunkDamaged("its length differs from the pointer to it")
            if size <= MAX_RECENT_BYTES and isinstance(packed, bytes):
                return _decompress_recent(packed)
            return decompress(memoryview(packed))
        except (ChunkDamaged, pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise ChunkDamaged(
                f"shared value {digest.hex()} of chunk {self.id} cannot be read ({error}); restore "
                "a backup, or delete the steps of the chunk"
            ) from None

    @property
    def has_shared_values(self) -> bool:
        """Whether the chunk has shared values. The reader must assign them to `shared_values`."""
        return bool(self.crc & HAS_SHARED_VALUES)

    def shared_digests(self) -> set[bytes]:
        """Return the digests of the chunk's shared values."""
        digests: set[bytes] = set()
        for name, (_, _, _, count) in self._places.items() if self.layout.compressed else ():
            for index in range(count):
                part = self._stored_buffer(name, index)
                if len(part) > 8 and _INT64.unpack_from(part)[0] == POINTERS_MARKER:
                    try:
                        digests.update(pointer.digest for pointer in decode_pointers(part)[0])
                    except (ChunkDamaged, struct.error) as error:
                        raise self._damage(name, error) from None
        return digests

    def close(self) -> None:
        """Release the opened columns."""
        self._buffers, self._prefixed, self.opened_bytes = {}, {}, 0

    def raw(self, name: str, start: int, stop: int) -> Buffer:
        """Return the bytes of rows [start, stop) of a fixed-width field in C order.

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
        buffer = self.column_buffers(name)[-1]
        if field.dtype == "bool" and not field.shape:
            return read_bits(buffer, start, stop)
        return memoryview(buffer)[start * field.nbytes : stop * field.nbytes]

    def whole(self, name: str, keep_open: bool) -> Buffer:
        """Return the bytes of all rows of a fixed-width field; other bytes may follow them.

        The field must not be a boolean scalar. With `keep_open`, the column stays open.
        """
        place = self._slices.get(name)
        if place is not None:
            return memoryview(self.data)[place[0] :]
        if keep_open or name in self._buffers:
            return self.column_buffers(name)[-1]
        values = self._read(name, self._places[name][3] - 1)
        if len(values) < self.rows * self.signature.fields[name].nbytes:
            raise self._damage(name, "the data end early")
        return values

    def place(self, name: str) -> tuple[int, int]:
        """Return the offset of the first value of a field, and bytes from one value to the next.

        Raise KeyError if the values are not a slice of the message.
        """
        return self._slices[name]

    def bits(self, name: str) -> int:
        """Return the offset of the bitmap of a field; raise KeyError if `layout.bits` lacks it."""
        return self._bits[name]

    def objects(self, name: str, start: int, stop: int) -> list[Any]:
        """Return rows [start, stop) of a variable-width field as Python objects; nulls are None."""
        if start == stop:
            return []
        field, buffers = self.signature.fields[name], self.column_buffers(name)
        try:
            if name in self.signature.prefixed:
                rows = self._prefixed_rows(name)
                if stop == start + 1:
                    value = rows.read_leading(0, start, int(rows.lengths[start]))
                    values: list[Any] = [value.reshape(-1, *field.fixed_shape[1:])]
                else:
                    values = list(read_spans(field, rows, [(0, start, stop)]).to_list())
            elif field.ascending:
                values = read_runs(field, self.rows, buffers, start, stop).to_list()
            else:
                values = read_objects(field, self.rows, buffers, start, stop)
        except ReadTooLarge as error:
            raise ReadTooLarge(f"field {name!r} of chunk {self.id}: {error}") from None
        except (ChunkDamaged, ValueError, IndexError) as error:
            raise self._damage(name, error) from None
        if self.count_nulls(name):
            valid = read_bits(buffers[0], start, stop)
            return [value if there else None for value, there in zip(values, valid, strict=True)]
        return values

    def _prefixed_rows(self, name: str) -> PrefixedRows:
        """Return the lengths of all rows of a field, and keep them."""
        rows = self._prefixed.get(name)
        if rows is None:
            column = StoredColumn(self.rows, self.column_buffers(name))
            rows = self._prefixed[name] = PrefixedRows.of(self.signature.fields[name], [column])
            self.opened_bytes += rows.nbytes
        return rows

    def json_texts(self, name: str, start: int, stop: int) -> list[str | None]:
        """Return rows [start, stop) of a JSON field as the stored text; None for null."""
        buffers = self.column_buffers(name)
        try:
            texts = read_json_texts(self.rows, buffers, start, stop)
        except (ChunkDamaged, ValueError, IndexError) as error:
            raise self._damage(name, error) from None
        if self.count_nulls(name):
            valid = read_bits(buffers[0], start, stop)
            return [text if there else None for text, there in zip(texts, valid, strict=True)]
        return texts

    def stored(self, name: str, start: int, stop: int) -> list[Any]:
        """Return rows [start, stop) of a variable-width field in the form that `Column.copy` reads.

        For JSON, this is the text of each element; otherwise, it is the same as `objects`.
        """
        if self.signature.fields[name].dtype != "json":
            return self.objects(name, start, stop)
        try:
            return read_elements(self.rows, self.column_buffers(name), start, stop)
        except (ChunkDamaged, ValueError, IndexError) as error:
            raise self._damage(name, error) from None

    def present(self, name: str, start: int, stop: int) -> bytes:
        """Return one byte per row: 1 if the step has the field, otherwise 0."""
        if name in self._slices or name in self._bits:
            return _BYTES[1] * (stop - start)
        if name not in self.signature.fields:
            return _BYTES[0] * (stop - start)
        if not self.count_nulls(name):
            return _BYTES[1] * (stop - start)
        buffers = self._buffers.get(name)
        return read_bits(self._read(name, 0) if buffers is None else buffers[0], start, stop)

    def count_nulls(self, name: str) -> int:
        """Return the number of rows that lack a field."""
        at = self.layout.nodes + 16 * self._places[name][0] + 8
        return int(_INT64.unpack_from(self.data, at)[0])

    def column_buffers(self, name: str) -> list[Buffer]:
        """Return the decompressed buffers of a column, and keep them open.

        The first buffer is the validity bitmap. For a fixed-width field, the last buffer contains
        the values.
        """
        buffers = self._buffers.get(name)
        if buffers is None:
            field, count = self.signature.fields[name], self._places[name][3]
            buffers = [self._read(name, index) for index in range(count)]
            if not field.varies and len(buffers[-1]) < _fixed_bytes(field, self.rows):
                raise self._damage(name, "the data end early")
            self._buffers[name] = buffers
            self.opened_bytes += BUFFER_BYTES * count
            if self.layout.compressed:
                self.opened_bytes += sum(map(len, buffers))
        return buffers

    def _stored_buffer(self, name: str, index: int) -> memoryview:
        """Return a buffer of a column in its stored form."""
        at = self.layout.buffers + 16 * (self._places[name][1] + index)
        offset, size = _PLACE.unpack_from(self.data, at)
        offset += self.layout.body
        return memoryview(self.data)[offset : offset + size]

    def _read(self, name: str, index: int) -> Buffer:
        """Return one buffer of a column, decompressed and with its shared values."""
        part = self._stored_buffer(name, index)
        try:
            if not self.layout.compressed or not len(part):
                return part
            if _INT64.unpack_from(part)[0] != POINTERS_MARKER:
                return decompress(part)
            pointers, end = decode_pointers(part)
            rest = decompress(part[end:]) if end < len(part) else b""
            check_pointers(pointers, len(rest), MAX_BUFFER_BYTES)
        except (ChunkDamaged, pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise self._damage(name, error) from None
        lengths = {pointer.digest: pointer.length for pointer in pointers}
        values = {digest: self.read_shared_value(digest, n) for digest, n in lengths.items()}
        return restore_values(pointers, rest, values)

    def _damage(self, name: str, why: object) -> ChunkDamaged:
        return ChunkDamaged(
            f"field {name!r} of chunk {self.id} cannot be read ({why}); restore a backup, or "
            "delete its steps"
        )


def read_ragged(spans: Sequence[tuple["Chunk", int, int]], name: str) -> RaggedArray:
    """Read a field whose first dimension varies from several chunks; a null is a missing array.

    Each span is `(chunk, start, stop)`: at least one row, [start, stop), of a chunk that has the
    field. The result may share memory with the chunks.
    """
    field = spans[0][0].signature.fields[name]
    if field.ascending or not all(name in chunk.signature.prefixed for chunk, _, _ in spans):
        arrays = [array for chunk, a, b in spans for array in chunk.objects(name, a, b)]
        return RaggedArray.from_arrays(arrays, field.numpy, field.fixed_shape[1:])
    numbers = {chunk: number for number, chunk in enumerate({chunk: None for chunk, _, _ in spans})}
    columns = [StoredColumn(chunk.rows, chunk.column_buffers(name)) for chunk in numbers]
    try:
        values = read_prefixed(field, columns, [(numbers[chunk], a, b) for chunk, a, b in spans])
    except ReadTooLarge as error:
        first, last = spans[0][0].id, spans[-1][0].id
        raise ReadTooLarge(f"field {name!r} of chunks {first} to {last}: {error}") from None
    except (ChunkDamaged, ValueError, IndexError):
        for chunk in numbers:
            chunk.objects(name, 0, chunk.rows)  # raises an error that names the chunk
        raise
    if any(chunk.count_nulls(name) for chunk in numbers):
        valid = bytearray().join([chunk.present(name, a, b) for chunk, a, b in spans])
        return values.mask_missing(np.frombuffer(valid, np.bool_))
    return values


# Memory overhead of Python and Arrow in bytes per object, measured with thousands of chunks of each
# kind on CPython 3.11.
CHUNK_BYTES, LAYOUT_BYTES, BUFFER_BYTES = 500, 1000, 420


_INT64, _PLACE = struct.Struct("<q"), struct.Struct("<2q")
_BYTES = (b"\0", b"\1")


def decompress(part: Buffer) -> Buffer:
    """Decompress a stored buffer."""
    (size,) = _INT64.unpack_from(part)
    if size == -1:
        return part[8:]
    if not 0 <= size <= MAX_BUFFER_BYTES:
        raise ChunkDamaged("the size of a compressed Arrow buffer is not valid")
    return memoryview(CODEC.decompress(part[8:], decompressed_size=size))


@functools.lru_cache(64)
def _decompress_recent(packed: bytes) -> Buffer:
    """Decompress a shared value; the chunks of one read often share a few values."""
    return decompress(memoryview(packed))


# Marks a checksum that covers the buffer id. Checksums from before schema 0008 do not cover it.
COVERS_BUFFER = 1 << 32
# Marks a chunk that refers to shared values.
HAS_SHARED_VALUES = 1 << 33


def crc_of(
    signature: Signature, id: int, rows: int, data: Buffer, buffer_id: int | None = None
) -> int:
    """Return the checksum of a chunk.

    The checksum covers the message, the signature and number of rows that are needed to read the
    message, and the id and the buffer of the chunk.

    The id and the buffer are combined with the rest of the checksum by XOR. A server that assigns
    the positions can therefore add the id to the checksum from the writer. For a copy in another
    buffer, expdb can change the checksum without reading the chunk.
    """
    summed = zlib.crc32(data, zlib.crc32(struct.pack("<q", rows), signature.crc))
    placed = summed ^ (id & 0xFFFFFFFF)
    return placed if buffer_id is None else _of_buffer(placed, buffer_id) | COVERS_BUFFER


def crc_after_move(crc: int, old: int, new: int) -> int:
    """Return the checksum of a chunk that was copied from the buffer `old` to the buffer `new`."""
    return _of_buffer(_of_buffer(crc, old), new) if crc & COVERS_BUFFER else crc


def _of_buffer(crc: int, buffer_id: int) -> int:
    return crc ^ zlib.crc32(struct.pack("<q", buffer_id))
