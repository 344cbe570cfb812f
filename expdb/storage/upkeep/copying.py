"""Copying a buffer to another database, of any kind.

It gets the same positions, episodes and chunks, byte for byte.

It is written under a draft's name, in transactions of a few megabytes, and gets its own name with
the last of them. So nobody ever meets half a buffer, and a copy that was interrupted goes on where
it was, as long as the source is what it was: the draft's name tells of which state it is a copy.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.session import Session
from expdb.storage import catalog

BATCH_BYTES = 4 << 20
BATCH_CHUNKS = 512

Progress = Callable[[int, int], None]


def copy_buffer(source: Engine, target: Engine, name: str, progress: Progress) -> int:
    """Copy a buffer and return how many steps it has.

    Raise TargetExists where the target has one of that name.
    """
    with source.reading() as reader:
        found = reader.rows(sa.select(tables.buffers).where(tables.buffers.c.name == name))
        if not found:
            raise catalog.unknown_buffer(reader, name)
        counters = dict(found[0]._mapping)
        old = counters.pop("id")
        sizes = reader.ask("SELECT id, bytes FROM chunks WHERE buffer_id = ? ORDER BY id", old)
        new, done = _draft(reader, old, source, target, counters)
        left = [(id, size) for id, size in sizes if id > done]
        progress(len(sizes) - len(left), len(sizes))
        while left:
            count = total = 0
            while (
                count < len(left)
                and count < BATCH_CHUNKS
                and (not count or total + left[count][1] <= BATCH_BYTES)
            ):
                total += left[count][1]
                count += 1
            _copy_chunks(reader, old, source, target, new, [id for id, _ in left[:count]])
            left = left[count:]
            progress(len(sizes) - len(left), len(sizes))
        with target.writing() as writer:
            _require_free(writer, name, target)
            _insert(
                writer,
                source,
                target,
                tables.episodes,
                new,
                _rows(reader, tables.episodes, "WHERE buffer_id = ?", old),
            )
            for block, version, data in reader.ask(
                "SELECT block, version, data FROM priorities WHERE buffer_id = ?", old
            ):
                stored = target.dialect.as_block(source.dialect.from_block(data))
                writer.ask(
                    "INSERT INTO priorities (buffer_id, block, version, data) VALUES (?, ?, ?, ?)",
                    new,
                    block,
                    version,
                    stored,
                )
            b = tables.buffers
            writer.connection.execute(sa.update(b).where(b.c.id == new).values(**counters))
    return int(counters["size"])


def _require_free(writer: Session, name: str, target: Engine) -> None:
    if catalog.find_buffer(writer, name) is not None:
        raise errors.TargetExists(
            f"{target.location} has a buffer {name!r} already: drop it there first, or copy to "
            "another database"
        )


def _draft(
    reader: Session, old: int, source: Engine, target: Engine, counters: dict[str, Any]
) -> tuple[int, int]:
    """Return the id of the draft in the target, and the last chunk that it has.

    Drafts of other states are dropped.
    """
    name = counters["name"]
    (sums,) = reader.ask(
        "SELECT count(*), sum(crc), min(id), max(id) FROM chunks WHERE buffer_id = ?", old
    )
    state = hashlib.sha256(
        repr([sorted(counters.items()), list(map(str, sums))]).encode()
    ).hexdigest()[:16]
    prefix = f"{name} (copying "
    draft = f"{prefix}{state})"
    with target.writing() as writer:
        _require_free(writer, name, target)
        for other in catalog.list_buffers(writer):
            if other.startswith(prefix) and other != draft:
                catalog.drop_buffer(writer, other)
        found = catalog.find_buffer(writer, draft)
        if found is None:
            catalog.create_buffer(writer, draft, None, {})
            found = catalog.find_buffer(writer, draft)
            assert found is not None
            rows = _rows(reader, tables.signatures, "WHERE buffer_id = ?", old)
            _insert(writer, source, target, tables.signatures, found[0], rows)
        ((done,),) = writer.ask(
            "SELECT coalesce(max(id), -1) FROM chunks WHERE buffer_id = ?", found[0]
        )
    return found[0], int(done)


def _copy_chunks(
    reader: Session, old: int, source: Engine, target: Engine, new: int, ids: list[int]
) -> None:
    """Copy chunks with their segments and steps, in one transaction."""
    among, listed = source.dialect.AMONG, source.dialect.as_list(np.array(ids, np.int64))
    chunks = _rows(
        reader, tables.chunks, f"WHERE buffer_id = ? AND id {among} ORDER BY id", old, listed
    )
    columns = [column.name for column in tables.chunks.columns]
    low, high = min(row[columns.index("first")] for row in chunks), ids[-1]
    of_chunks = f"WHERE buffer_id = ? AND last BETWEEN ? AND ? AND chunk {among}"
    segments = _rows(reader, tables.segments, f"{of_chunks} ORDER BY last", old, low, high, listed)
    lasts = source.dialect.as_list(np.array([row[1] for row in segments], np.int64))
    steps = reader.ask(
        f"SELECT {', '.join(f's.{column.name}' for column in tables.steps.columns)} FROM segments "
        "g "
        "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
        f"WHERE g.buffer_id = ? AND g.last {among} ORDER BY s.position",
        old, lasts,
    )  # fmt: skip
    with target.writing() as writer:
        for table, rows in (
            (tables.steps, steps),
            (tables.segments, segments),
            (tables.chunks, chunks),
        ):
            _insert(writer, source, target, table, new, rows)


def _rows(reader: Session, table: sa.Table, where: str, *params: Any) -> list[Any]:
    return reader.ask(
        f"SELECT {', '.join(column.name for column in table.columns)} FROM {table.name} {where}",
        *params,
    )


def _insert(
    writer: Session,
    source: Engine,
    target: Engine,
    table: sa.Table,
    buffer_id: int,
    rows: list[Any],
) -> None:
    """Insert rows as they were read, under another buffer's id.

    That id is the first column of each table.
    """
    flags = {k for k, column in enumerate(table.columns) if isinstance(column.type, sa.Boolean)}
    given = [
        (buffer_id, *[bool(value) if k in flags else value for k, value in enumerate(row[1:], 1)])
        if flags
        else (buffer_id, *row[1:])
        for row in rows
    ]
    target.dialect.insert_rows(writer, table, given)
