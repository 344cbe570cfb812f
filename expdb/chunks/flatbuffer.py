"""Flatbuffers, as far as Arrow's messages need them (flatbuffers.dev, internals).

They are read with every bound checked.

Not by pyarrow: it would run the code of whatever extension types this process has registered, as
soon as it sees their names.
"""

import struct

from expdb.errors import ChunkDamaged

Buffer = bytes | bytearray | memoryview


def table(data: Buffer, position: int, slots: int) -> list[int]:
    """Return the positions of a table's fields, 0 for those left out."""
    vtable = position - struct.unpack_from("<i", data, position)[0]
    if vtable < 0:
        raise ChunkDamaged("metadata point before their start")
    size = struct.unpack_from("<H", data, vtable)[0]
    found = []
    for slot in range(slots):
        at = 4 + 2 * slot
        offset = struct.unpack_from("<H", data, vtable + at)[0] if at < size else 0
        found.append(position + offset if offset else 0)
    return found


def vector(data: Buffer, at: int) -> tuple[int, int]:
    """Return where the 16-byte structs of a vector begin, and how many there are."""
    start = at + struct.unpack_from("<I", data, at)[0]
    return start + 4, struct.unpack_from("<I", data, start)[0]


def follow(data: Buffer, at: int) -> int:
    """Return the position that an offset leads to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def text(data: Buffer, at: int) -> bytes:
    """Return a string, given the position of its offset."""
    start = follow(data, at)
    size = struct.unpack_from("<I", data, start)[0]
    if start + 4 + size > len(data):
        raise ChunkDamaged("a text ends after its message")
    return bytes(data[start + 4 : start + 4 + size])


def tables(data: Buffer, at: int) -> list[int]:
    """Return the positions of the tables in a vector, given the position of its offset."""
    start = follow(data, at)
    count = struct.unpack_from("<I", data, start)[0]
    if start + 4 + 4 * count > len(data):
        raise ChunkDamaged("a list ends after its message")
    return [follow(data, start + 4 + 4 * k) for k in range(count)]


def read_schema(data: Buffer) -> list[tuple[str, dict[bytes, bytes]]]:
    """Return the names of an Arrow schema message's fields, with their metadata (Schema.fbs).

    Raise ChunkDamaged for no schema.
    """
    try:
        mark, size = struct.unpack_from("<Ii", data, 0)
        if mark != 0xFFFFFFFF or size < 8 or size + 8 > len(data):
            raise ChunkDamaged("no Arrow message")
        _, kind, header = table(data, 8 + struct.unpack_from("<I", data, 8)[0], 3)
        if not kind or data[kind] != 1 or not header:
            raise ChunkDamaged("no schema")
        _, fields = table(data, follow(data, header), 2)
        found = []
        for position in tables(data, fields) if fields else []:
            name, *_, metadata = table(data, position, 7)
            pairs = [table(data, pair, 2) for pair in (tables(data, metadata) if metadata else [])]
            if not name or not all(map(all, pairs)):
                raise ChunkDamaged("a field without a name, or a name without a value")
            found.append(
                (
                    text(data, name).decode(),
                    {text(data, key): text(data, value) for key, value in pairs},
                )
            )
        return found
    except (struct.error, ValueError, IndexError) as error:
        if isinstance(error, ChunkDamaged):
            raise
        raise ChunkDamaged(f"a schema cannot be read ({error})") from None
