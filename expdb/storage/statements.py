"""SQL text of the statements that frequent operations execute."""

from expdb.chunks.chunk import HAS_SHARED_VALUES

RESERVE_POSITIONS = (
    "UPDATE buffers SET added = added + ?, episodes_added = episodes_added + ? WHERE id = ? "
    "RETURNING added, episodes_added, fields_version"
)


RESERVE_EPISODE = (
    "UPDATE buffers SET episodes_added = episodes_added + 1 WHERE id = ? "
    "RETURNING episodes_added - 1"
)


KEEP_FINAL = (
    "UPDATE episodes SET tail_chunk = ?, tail_row = ?, tail_fields = ? "
    "WHERE buffer_id = ? AND id = ?"
)


COUNT = "UPDATE buffers SET size = size + ?, bytes = bytes + ? WHERE id = ?"
COUNT_AND_RETURN = f"{COUNT} RETURNING low, size, revision, deleted, capacity"


# Reads the counters after an eviction: RETURNING gives the values from before the trigger runs.
COUNTERS = "SELECT low, size, revision, deleted FROM buffers WHERE id = ?"


INSERT_SEGMENT = (
    "INSERT INTO segments (buffer_id, last, first, episode, ordinal, chunk, chunk_row) VALUES (?, "
    "?, ?, ?, ?, ?, ?)"
)


DELETE_SEGMENT = "DELETE FROM segments WHERE buffer_id = ? AND last = ?"


INSERT_CHUNK = (
    "INSERT INTO chunks (buffer_id, id, first, episode, rows, signature, bytes, crc, write_id, "
    "data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


PUT_SHARED_VALUE = (
    "INSERT INTO shared_values (buffer_id, digest, crc, data) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (buffer_id, digest) DO NOTHING"
)
INSERT_REFERENCE = "INSERT INTO value_references (buffer_id, chunk, digest) VALUES (?, ?, ?)"


# The size of a chunk `c` with all its shared values; CASE, because most chunks have none.
STORED_BYTES = (
    f"c.bytes + CASE WHEN (c.crc & {HAS_SHARED_VALUES}) <> 0 THEN (SELECT "
    "cast(coalesce(sum(length(v.data)), 0) AS bigint) FROM value_references r JOIN shared_values v "
    "ON v.buffer_id = r.buffer_id AND v.digest = r.digest WHERE r.buffer_id = c.buffer_id "
    "AND r.chunk = c.id) ELSE 0 END"
)


SIGNATURES = "SELECT id, schema, fields, crc FROM signatures WHERE buffer_id = ?"


INSERT_SIGNATURE = (
    "INSERT INTO signatures (buffer_id, id, schema, fields, crc) VALUES (?, ?, ?, ?, ?)"
)


PUT_PRIORITIES = (
    "INSERT INTO priorities (buffer_id, block, version, data) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (buffer_id, block) DO UPDATE SET version = excluded.version, data = excluded.data"
)
