"""Read the parts of the flatbuffers format that Arrow messages use (flatbuffers.dev, internals).

Every bound is checked. expdb does not use pyarrow for this: pyarrow would run the code of every
extension type that this process has registered and whose name occurs in the data.
"""

import struct

from expdb.errors import ChunkDamaged

Buffer = bytes | bytearray | memoryview


def table(data: Buffer, position: int, slots: int) -> list[int]:
    """Return the positions of the fields of a table; 0 for a missing field."""
    vtable = position - struct.unpack_from("<i", data, position)[0]
    if vtable < 0:
        raise ChunkDamaged("the metadata contain an offset before their start")
    size = struct.unpack_from("<H", data, vtable)[0]
    positions = []
    for slot in range(slots):
        at = 4 + 2 * slot
        offset = struct.unpack_from("<H", data, vtable + at)[0] if at < size else 0
        positions.append(position + offset if offset else 0)
    return positions


def vector(data: Buffer, at: int) -> tuple[int, int]:
    """Return the position of the first item of a vector of 16-byte structs, and their number."""
    start = at + struct.unpack_from("<I", data, at)[0]
    return start + 4, struct.unpack_from("<I", data, start)[0]
