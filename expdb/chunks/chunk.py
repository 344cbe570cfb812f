"""Chunks as they are read: checked, opened when needed, cut into values."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from expdb.chunks.column import Buffer
from expdb.chunks.columns import layout_of
from expdb.chunks.fields import Field, Signature
from expdb.chunks.message import Metadata, Templates, read_metadata
from expdb.chunks.objects import read_bits, read_elements, read_objects
from expdb.errors import ChunkDamaged

# No buffer of a sound message is larger; checked before memory is taken for it.
MAX_BUFFER_BYTES = 1 << 30
MAX_CHUNK_ROWS = 1 << 16
MAX_LAYOUTS = 256  # of chunks, each about 1 KB of memory

CODEC = pa.Codec("zstd", compression_level=3)

# Field -> where its first value lies in the message, bytes from one to the next.
Slices = dict[str, tuple[int, int]]
# Field -> its first node, its first buffer, how many nodes and buffers it has.
Places = dict[str, tuple[int, int, int, int]]


@dataclass(eq=False, slots=True)
class Layout:
    """Where values of uncompressed fixed-width fields lie in messages.

    Chunks that share one are of one signature, and have as many rows and bytes.
    """

    nbytes: int  # of a message
    slices: Slices
    bits: dict[str, int]  # field -> where its bitmap begins


class Decoder:
    """Reads the chunks of one signature."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.templates = Templates(signature)
        self._places = _places_of(signature)
        self._prefix_bytes = 0
        self._layouts: dict[bytes, Layout] = {}

    def chunk(self, id: int, rows: int, crc: int, data: bytes) -> "Chunk":
        """Check a chunk and return it, decoded as far as it is read.

        Raises ChunkDamaged, which names it.
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
        if known is not None and known.nbytes == len(data):
            return Chunk(id, rows, crc, data, self.signature, self._places, known, None)
        try:
            metadata = read_metadata(data)
            if metadata.rows != rows:
                raise ChunkDamaged("it has another number of rows than it says")
            layout = self._layout(metadata, len(data))
        except ChunkDamaged as error:
            raise ChunkDamaged(
                f"chunk {id} cannot be read, {error}: restore a backup, or delete its steps"
            ) from None
        if len(layout.slices) + len(layout.bits) == len(self.signature.fields):
            if len(self._layouts) >= MAX_LAYOUTS or self._prefix_bytes != metadata.body:
                self._layouts.clear()
            self._prefix_bytes = metadata.body
            self._layouts[data[: metadata.body]] = layout
        return Chunk(id, rows, crc, data, self.signature, self._places, layout, metadata)

    def _layout(self, metadata: Metadata, nbytes: int) -> Layout:
        """Check the shape of the metadata.

        Returns where the values of uncompressed fixed-width fields lie.
        """
        slices: Slices = {}
        bits: dict[str, int] = {}
        rows = metadata.rows
        if rows < 0 or rows > 2 * MAX_CHUNK_ROWS:
            raise ChunkDamaged("its number of rows makes no sense")
        node = buffer = nodes = buffers = 0
        for name, (node, buffer, nodes, buffers) in self._places.items():
            field = self.signature.fields[name]
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
        if node + nodes != len(metadata.nodes) or buffer + buffers != len(metadata.buffers):
            raise ChunkDamaged("it has columns too many")
        return Layout(nbytes, slices, bits)


def _places_of(signature: Signature) -> Places:
    places: Places = {}
    node = buffer = 0
    for name, field in signature.fields.items():
        nodes, buffers = layout_of(field)
        places[name] = node, buffer, nodes, buffers
        node, buffer = node + nodes, buffer + buffers
    return places


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
        "_places",
        "_slices",
        "crc",
        "data",
        "id",
        "layout",
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
        places: Places,
        layout: Layout,
        metadata: Metadata | None,
    ):
        self.id, self.rows, self.crc, self.data, self.signature = id, rows, crc, data, signature
        self.layout, self._places, self._metadata = layout, places, metadata
        self._slices, self._bits = layout.slices, layout.bits
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

        Raises KeyError where it has no place.
        """
        return self._slices[name]

    def bits(self, name: str) -> int:
        """Return where a bitmap begins in the message; raise KeyError where it has no place."""
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
        """Return one byte per row: 1 where the step has the field."""
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
        field, (node, first, _, buffers) = self.signature.fields[name], self._places[name]
        ranges = metadata.buffers[first : first + buffers].tolist()
        view, body, compressed = memoryview(self.data), metadata.body, metadata.compressed
        found: list[Buffer] = []
        opened = 0
        try:
            for offset, size in ranges:
                part: Buffer = view[body + offset : body + offset + size]
                if compressed and size:
                    part = _decompress(part)
                    opened += len(part)
                found.append(part)
            if not field.varies and len(found[-1]) < _fixed_bytes(field, self.rows):
                raise ChunkDamaged("it ends early")
        except (ChunkDamaged, pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise ChunkDamaged(
                f"field {name!r} of chunk {self.id} cannot be read ({error}): restore a backup, or "
                "delete its steps"
            ) from None
        self._buffers[name] = (int(metadata.nodes[node, 1]), found)
        self.opened_bytes += BUFFER_BYTES * len(found) + opened
        return self._buffers[name]


# What Python and Arrow take beside the bytes themselves, measured over 20,000 chunks of each kind
# on CPython 3.11.
CHUNK_BYTES, BUFFER_BYTES = 1500, 420


_BYTES = (b"\0", b"\1")


def _decompress(part: Buffer) -> Buffer:
    (size,) = struct.unpack_from("<q", part)
    if size == -1:
        return part[8:]
    if not 0 <= size <= MAX_BUFFER_BYTES:
        raise ChunkDamaged("a compressed buffer claims a size that makes no sense")
    return memoryview(CODEC.decompress(part[8:], decompressed_size=size))


def crc_of(signature: Signature, id: int, rows: int, data: Buffer) -> int:
    """Return the checksum of a chunk.

    It covers the message and everything that decides how the message is read.

    The id comes in by XOR, so that a server that gives the positions can add it to what the writer
    has summed.
    """
    return zlib.crc32(data, zlib.crc32(struct.pack("<q", rows), signature.crc)) ^ (id & 0xFFFFFFFF)
