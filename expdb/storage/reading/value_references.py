"""Read the shared values of chunks."""

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from expdb.chunks.chunk import Chunk
from expdb.errors import ChunkDamaged
from expdb.sql.dialects.base import Dialect

_REFERENCES = "SELECT chunk, digest FROM value_references WHERE buffer_id = ? AND chunk {}"
_VALUES = (
    "SELECT digest, crc, data FROM shared_values WHERE buffer_id = ? AND digest IN "
    "(SELECT digest FROM value_references WHERE buffer_id = ? AND chunk {})"
)


def read_shared_values(
    query: Callable[..., Iterable[Any]],
    buffer_id: int,
    chunks: Iterable[Chunk],
    dialect: Dialect | None = None,
) -> None:
    """Assign the shared values of chunks, and verify their checksums.

    If `dialect` is None, at most one chunk may have shared values. Raise ChunkDamaged if a value is
    missing or corrupted.
    """
    chunks_by_id = {chunk.id: chunk for chunk in chunks if chunk.has_shared_values}
    if not chunks_by_id:
        return
    id_condition, id_parameter = "= ?", next(iter(chunks_by_id))
    if dialect is not None:
        ids = np.array(list(chunks_by_id), np.int64)
        id_condition, id_parameter = dialect.AMONG, dialect.as_list(ids)
    values = {
        bytes(digest): (crc, data)
        for digest, crc, data in query(
            _VALUES.format(id_condition), buffer_id, buffer_id, id_parameter
        )
    }
    intact = {
        digest: data
        for digest, (crc, data) in values.items()
        if zlib.crc32(data, zlib.crc32(digest)) == crc
    }
    values_of_chunks: dict[int, dict[bytes, bytes]] = {id: {} for id in chunks_by_id}
    for id, stored in query(_REFERENCES.format(id_condition), buffer_id, id_parameter):
        digest = bytes(stored)
        if digest not in intact:
            state = "corrupted" if digest in values else "missing"
            raise ChunkDamaged(
                f"shared value {digest.hex()} of chunk {id} is {state}; restore a backup, or "
                "delete the steps of the chunk"
            )
        values_of_chunks[id][digest] = intact[digest]
    for id, chunk in chunks_by_id.items():
        chunk.shared_values = values_of_chunks[id]
