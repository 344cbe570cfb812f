"""Read and write the metadata of an Arrow record-batch message, a flatbuffer (Message.fbs).

When expdb reads the metadata, it checks every bound. For one schema, the metadata always have the
same size, and their numbers always have the same offsets. Therefore pyarrow creates a template
once, and expdb writes the metadata of a message by setting the numbers in the template.
"""

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from expdb.chunks.fields import Signature
from expdb.chunks.flatbuffer import Buffer, table, vector
from expdb.errors import ChunkDamaged


@dataclass(frozen=True)
class Metadata:
    """The numbers in the metadata of a message, and their offsets."""

    rows: int
    nodes: np.ndarray  # [nodes, 2] int64: length, nulls
    buffers: np.ndarray  # [buffers, 2] int64: offset in the body, length
    compressed: bool
    body: int  # offset of the body
    body_bytes: int
    at: tuple[int, int, int, int]  # offsets of rows, nodes, buffers and body_bytes in the message


def read_metadata(data: Buffer) -> Metadata:
    """Read the metadata of a record-batch message (Arrow's Message.fbs).

    Raise ChunkDamaged if the metadata are invalid.
    """
    try:
        mark, size = struct.unpack_from("<Ii", data, 0)
        if mark != 0xFFFFFFFF or size < 8 or size + 8 > len(data):
            raise ChunkDamaged("the data are not an Arrow message")
        _, kind, header, length, _ = table(data, 8 + struct.unpack_from("<I", data, 8)[0], 5)
        if not kind or data[kind] != 3 or not header:
            raise ChunkDamaged("the message is not a record batch")
        body_bytes = struct.unpack_from("<q", data, length)[0] if length else 0
        rows, nodes, buffers, compression = table(
            data, header + struct.unpack_from("<I", data, header)[0], 4
        )
        nodes_at, nodes_count = vector(data, nodes)
        buffers_at, buffers_count = vector(data, buffers)
        if compression:
            (codec, _) = table(
                data, compression + struct.unpack_from("<I", data, compression)[0], 2
            )
            if not codec or data[codec] != 1:
                raise ChunkDamaged("the message is not compressed with zstd")
        body = 8 + size
        if body_bytes < 0 or body + body_bytes != len(data):
            raise ChunkDamaged("the length of the message body differs from the metadata")
        places = np.frombuffer(data, np.int64, 2 * buffers_count, buffers_at).reshape(-1, 2)
        if buffers_count and (
            int(places.min()) < 0
            or int(places.max()) > body_bytes
            or int(places.sum(1).max()) > body_bytes
        ):
            raise ChunkDamaged("an Arrow buffer lies outside the body of the message")
        return Metadata(
            struct.unpack_from("<q", data, rows)[0] if rows else 0,
            np.frombuffer(data, np.int64, 2 * nodes_count, nodes_at).reshape(-1, 2),
            places,
            bool(compression),
            body,
            body_bytes,
            (rows, nodes_at, buffers_at, length),
        )
    except (struct.error, ValueError, IndexError) as error:
        if isinstance(error, ChunkDamaged):
            raise
        raise ChunkDamaged(f"the metadata cannot be read: {error}") from None


class Template:
    """The metadata of the messages of a signature; `fill` sets the numbers of one message."""

    def __init__(self, schema: pa.Schema, compressed: bool):
        # The batch has one null row. For an empty batch, flatbuffers would omit the numbers, which
        # are zero, and there would be no offsets for them.
        arrays = []
        for entry in schema:
            storage = getattr(entry.type, "storage_type", entry.type)
            null = pa.nulls(1, storage)
            arrays.append(
                null if storage is entry.type else pa.ExtensionArray.from_storage(entry.type, null)
            )
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd" if compressed else None)
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            writer.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
        reader.read_next_message()
        message = reader.read_next_message().serialize().to_pybytes()
        metadata = read_metadata(message)
        self.prefix = message[: metadata.body]
        self.at = metadata.at
        self.nodes, self.buffers = metadata.nodes.size, metadata.buffers.size

    def fill(self, rows: int, nodes: list[int], buffers: list[int], body_bytes: int) -> bytearray:
        """Return the metadata of a message with these numbers."""
        prefix = bytearray(self.prefix)
        at_rows, at_nodes, at_buffers, at_body = self.at
        struct.pack_into("<q", prefix, at_rows, rows)
        struct.pack_into(f"<{self.nodes}q", prefix, at_nodes, *nodes)
        struct.pack_into(f"<{self.buffers}q", prefix, at_buffers, *buffers)
        struct.pack_into("<q", prefix, at_body, body_bytes)
        return prefix


class Templates:
    """The templates of a signature with and without compression, each created at its first use."""

    def __init__(self, signature: Signature):
        self._schema = signature.schema
        self._made: dict[bool, Template] = {}

    def __getitem__(self, compressed: bool) -> Template:
        if compressed not in self._made:
            self._made[compressed] = Template(self._schema, compressed)
        return self._made[compressed]
