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
