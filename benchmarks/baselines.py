"""The same work straight on the driver, nothing of expdb: what the figures are ratios to.

Plain tables with every column, one secondary index and a trigger that evicts; ready-made blobs for
payload.
"""

import os
import sqlite3
import time
from pathlib import Path

SCHEMA = """
CREATE TABLE buffers (
    id INTEGER PRIMARY KEY, capacity INTEGER NOT NULL, added INTEGER NOT NULL
) STRICT;
CREATE TABLE steps (
    buffer_id INTEGER NOT NULL, position INTEGER NOT NULL, episode INTEGER NOT NULL,
    step INTEGER NOT NULL, pre_agent TEXT, execute_time REAL, reward REAL,
    terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, policy_version INTEGER, priority REAL,
    tags TEXT, chunk INTEGER NOT NULL, chunk_row INTEGER NOT NULL,
    PRIMARY KEY (buffer_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX steps_by_episode ON steps (buffer_id, episode, step);
CREATE TABLE chunks (
    buffer_id INTEGER NOT NULL, id INTEGER NOT NULL, last_position INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (buffer_id, id)
) STRICT;
CREATE TRIGGER evict AFTER INSERT ON chunks BEGIN
    DELETE FROM steps WHERE buffer_id = NEW.buffer_id
        AND position <= NEW.last_position - (SELECT capacity FROM buffers WHERE id = NEW.buffer_id);
    DELETE FROM chunks WHERE buffer_id = NEW.buffer_id AND id < NEW.id
        AND last_position <=
            NEW.last_position - (SELECT capacity FROM buffers WHERE id = NEW.buffer_id);
END;
"""


def database(path: Path, capacity: int) -> sqlite3.Connection:
    """Make a fresh database with a write-ahead log."""
    remove(path)
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "mmap_size=0", "secure_delete=OFF"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO buffers VALUES (1, ?, 0)", (capacity,))
    return connection


def remove(path: Path) -> None:
    """Delete a database and its log."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def write(connection: sqlite3.Connection, chunk: int, steps: int, data: bytes) -> None:
    """Write steps and their chunk in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    ((added,),) = connection.execute(
        "UPDATE buffers SET added = added + ? WHERE id = 1 RETURNING added", (steps,)
    ).fetchall()
    rows = [
        (1, added - steps + k, chunk, k, None, 0.0, 1.0, 0, 0, None, None, None, chunk, k)
        for k in range(steps)
    ]
    connection.executemany(f"INSERT INTO steps VALUES ({', '.join('?' * 14)})", rows)
    connection.execute("INSERT INTO chunks VALUES (1, ?, ?, 0, ?)", (chunk, added - 1, data))
    connection.execute("COMMIT")


def append(path: Path, steps: int, flush: int = 256, capacity: int = 100_000) -> float:
    """Return seconds a step of appending chunks of CartPole-sized steps (29 bytes) at capacity."""
    connection, data = database(path, capacity), os.urandom(29 * flush)
    full, count = capacity // flush + 1, steps // flush
    for chunk in range(full):
        write(connection, chunk, flush, data)
    start = time.perf_counter()
    for chunk in range(full, full + count):
        write(connection, chunk, flush, data)
    seconds = time.perf_counter() - start
    connection.close()
    return seconds / (count * flush)


def store(path: Path, calls: int, payload: int = 400) -> float:
    """Return seconds a call of storing one step, each in a transaction of its own."""
    connection, data = database(path, 100_000), os.urandom(payload)
    start = time.perf_counter()
    for chunk in range(calls):
        write(connection, chunk, 1, data)
    seconds = time.perf_counter() - start
    connection.close()
    return seconds / calls


def fetch(connection: sqlite3.Connection, keys: list[int]) -> float:
    """Return seconds of reading the blobs of some chunks of an expdb file, undecoded."""
    start = time.perf_counter()
    listed = ",".join(map(str, keys))
    connection.execute(
        f"SELECT data FROM chunks WHERE buffer_id = 1 AND id IN ({listed})"
    ).fetchall()
    return time.perf_counter() - start
