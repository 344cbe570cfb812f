"""SQL text of the statements that frequent operations execute."""

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


SIGNATURES = "SELECT id, schema, fields, crc FROM signatures WHERE buffer_id = ?"


INSERT_SIGNATURE = (
    "INSERT INTO signatures (buffer_id, id, schema, fields, crc) VALUES (?, ?, ?, ?, ?)"
)


PUT_PRIORITIES = (
    "INSERT INTO priorities (buffer_id, block, version, data) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (buffer_id, block) DO UPDATE SET version = excluded.version, data = excluded.data"
)
