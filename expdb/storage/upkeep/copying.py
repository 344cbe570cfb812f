"""Copy a buffer to another database, of any kind.

The copy has the same positions, episodes and chunks, byte for byte. expdb writes it under a
temporary name, in transactions of a few megabytes, and renames it in the last transaction. So no
process sees an incomplete buffer. The temporary name contains a hash of the source's state. If the
source has not changed, an interrupted copy therefore continues where it stopped.
"""

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.chunk import crc_after_move
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.session import Session
from expdb.storage import catalog
from expdb.storage.statements import PUT_PRIORITIES, PUT_SHARED_VALUE, STORED_BYTES

B, E, S, G = tables.buffers.c, tables.episodes.c, tables.steps.c, tables.segments.c
C, P, R = tables.chunks.c, tables.priorities, tables.scores.c
A = tables.annotations.c

_PLACE = {column.name: place for place, column in enumerate(tables.chunks.columns)}

BATCH_BYTES = 4 << 20
BATCH_CHUNKS = 512
BATCH_ROWS = 4096

Progress = Callable[[int, int], None]

# The shared values of the chunks in a range of ids.
_VALUES = (
    "SELECT digest, crc, data FROM shared_values WHERE buffer_id = ? AND digest IN "
    "(SELECT digest FROM value_references WHERE buffer_id = ? AND chunk BETWEEN ? AND ?)"
)


def copy_buffer(
    source: Engine, target: Engine, name: str, new_name: str, progress: Progress
) -> int:
    """Copy a buffer under a new name and return how many steps it has.

    Raise TargetExists if the target has a buffer with the new name.
    """
    with source.reading() as reader:
        source_rows = reader.query(sa.select(tables.buffers).where(B.name == name))
        if not source_rows:
            raise catalog.unknown_buffer(reader, name)
        counters = dict(source_rows[0]._mapping) | {"name": new_name}
        old = counters.pop("id")
        sizes = reader.query(
            f"SELECT id, {STORED_BYTES} FROM chunks c WHERE buffer_id = ? ORDER BY id", old
        )
        draft = _begin(reader, old, target, counters)
        left = [(id, size) for id, size in sizes if id > draft.last]
        progress(len(sizes) - len(left), len(sizes))
        while left:
            batch = _next_batch(left)
            _copy_chunks(reader, old, source, target, draft, batch)
            left = left[len(batch) :]
            progress(len(sizes) - len(left), len(sizes))
        with target.writing() as writer:
            draft.hold(writer, target)
            _require_free(writer, new_name, target)
            episodes = reader.fetch(sa.select(tables.episodes).where(E.buffer_id == old))
            _insert(writer, target, tables.episodes, draft.id, episodes)
            # The trigger counted only the copied episodes. The rows of the source, which are
            # copied below, also count evicted episodes.
            groups = tables.rollout_groups
            writer.execute(sa.delete(groups).where(groups.c.buffer_id == draft.id))
            from_block, as_block = source.dialect.from_block, target.dialect.as_block
            blocks = [
                (draft.id, block, version, as_block(from_block(data)))
                for _, block, version, data in reader.fetch(
                    sa.select(P).where(P.c.buffer_id == old)
                )
            ]
            writer.execute_many(PUT_PRIORITIES, blocks)
            _copy_in_batches(reader, old, writer, target, draft, tables.scores, R.id)
            keys = A.position, A.name, A.version
            _copy_in_batches(reader, old, writer, target, draft, tables.annotations, *keys)
            imports = tables.imports
            _copy_in_batches(reader, old, writer, target, draft, imports, imports.c.record)
            for table in (
                tables.rollout_groups, tables.consumers, tables.requests, tables.leases,
                tables.metrics,
            ):  # fmt: skip
                rows = reader.fetch(sa.select(table).where(table.c.buffer_id == old))
                _insert(writer, target, table, draft.id, rows)
            # Admissions of groups and pins of leases apply only to the source.
            under_way = sa.select(sa.func.count()).where(tables.admissions.c.buffer_id == old)
            counters["admitted"] -= reader.query(under_way)[0][0]
            counters["pinned"] = None
            counters["trigger_evicts"] = bool(counters["trigger_evicts"])  # SQLite stores 0 and 1
            writer.execute(sa.update(tables.buffers).where(B.id == draft.id).values(**counters))
    return int(counters["size"])


def _next_batch(left: list[tuple[int, int]]) -> list[int]:
    """Return the ids of the next chunks, at least one, from (id, bytes) in `left`."""
    ids: list[int] = []
    total = 0
    for id, size in left[:BATCH_CHUNKS]:
        total += size
        if ids and total > BATCH_BYTES:
            break
        ids.append(id)
    return ids


def _require_free(writer: Session, name: str, target: Engine) -> None:
    if catalog.find_buffer(writer, name) is not None:
        raise errors.TargetExists(
            f"{target.location} already has a buffer {name!r}; drop this buffer first, or copy "
            "to another database"
        )


@dataclass
class _CopyDraft:
    """The incomplete copy, whose name identifies the state of the source."""

    id: int
    name: str
    last: int  # last chunk that was copied

    def hold(self, writer: Session, target: Engine) -> None:
        """Lock the draft until the transaction ends; raise DatabaseBusy if it has changed.

        Another process may have added chunks, finished the copy, or dropped the draft to copy
        another state of the source.
        """
        writer.query(target.dialect.LOCK, self.id)
        last = sa.select(sa.func.coalesce(sa.func.max(C.id), -1)).where(C.buffer_id == self.id)
        rows = writer.query(sa.select(B.name, last.scalar_subquery()).where(B.id == self.id))
        if [tuple(row) for row in rows] != [(self.name, self.last)]:
            raise errors.DatabaseBusy(
                f"another process is copying a buffer of this name to {target.location}; wait "
                "until the other copy has finished, and copy again if the buffer is still missing"
            )


def _begin(reader: Session, old: int, target: Engine, counters: dict[str, Any]) -> _CopyDraft:
    """Return the draft of this copy in the target; create it if it does not exist.

    Drop drafts that belong to other states of the source.
    """
    name = counters["name"]
    f = sa.func
    columns = f.count(), f.sum(C.crc), f.min(C.id), f.max(C.id)
    (sums,) = reader.query(sa.select(*columns).where(C.buffer_id == old))
    state = hashlib.sha256(
        repr([sorted(counters.items()), list(map(str, sums))]).encode()
    ).hexdigest()[:16]
    draft = f"{name} (copying {state})"
    with target.writing() as writer:
        _require_free(writer, name, target)
        for other in catalog.list_buffers(writer):
            if catalog.source_of_copy(other) == name and other != draft:
                catalog.drop_buffer(writer, other)
        buffer = catalog.find_buffer(writer, draft)
        if buffer is None:
            catalog.create_buffer(writer, draft, None, {})
            buffer = catalog.find_buffer(writer, draft)
            assert buffer is not None
            signatures = tables.signatures
            rows = reader.fetch(sa.select(signatures).where(signatures.c.buffer_id == old))
            _insert(writer, target, signatures, buffer[0], rows)
        last = f.coalesce(f.max(C.id), -1)
        ((done,),) = writer.query(sa.select(last).where(C.buffer_id == buffer[0]))
    return _CopyDraft(buffer[0], draft, int(done))


def _copy_chunks(
    reader: Session, old: int, source: Engine, target: Engine, draft: _CopyDraft, ids: list[int]
) -> None:
    """Copy chunks with their segments and steps, in one transaction."""
    among = source.dialect.among
    statement = sa.select(tables.chunks).where(C.buffer_id == old, among(C.id, ids)).order_by(C.id)
    chunks = [_moved(row, old, draft.id) for row in reader.fetch(statement)]
    low = min(row[_PLACE["first"]] for row in chunks)
    within = sa.and_(G.buffer_id == old, G.last.between(low, ids[-1]), among(G.chunk, ids))
    segments = reader.fetch(sa.select(tables.segments).where(within).order_by(G.last))
    steps = _steps_of_segments(reader, old, segments)
    v = tables.value_references
    of_chunks = v.c.buffer_id == old, v.c.chunk.between(ids[0], ids[-1])
    references = reader.fetch(sa.select(v).where(*of_chunks))
    with target.writing() as writer:
        draft.hold(writer, target)
        for table, rows in (
            (tables.steps, steps),
            (tables.segments, segments),
            (tables.chunks, chunks),
            (tables.value_references, references),
        ):
            _insert(writer, target, table, draft.id, rows)
        values = [(draft.id, *row) for row in reader.query(_VALUES, old, old, ids[0], ids[-1])]
        writer.execute_many(PUT_SHARED_VALUE, values)
    draft.last = ids[-1]


def _copy_in_batches(
    reader: Session,
    old: int,
    writer: Session,
    target: Engine,
    draft: _CopyDraft,
    table: sa.Table,
    *keys: sa.Column[Any],
) -> None:
    """Copy the rows of a table in batches; `keys` is its primary key without the buffer."""
    statement = sa.select(table).where(table.c.buffer_id == old).order_by(*keys)
    after = statement
    while rows := reader.fetch(after.limit(BATCH_ROWS)):
        _insert(writer, target, table, draft.id, rows)
        last = [sa.literal(value) for value in rows[-1][1 : 1 + len(keys)]]
        after = statement.where(sa.tuple_(*keys) > sa.tuple_(*last))


def _steps_of_segments(reader: Session, old: int, segments: list[Any]) -> list[Any]:
    """Return the steps of segments, which must be ordered by position.

    The function does not join the tables: for a join, planners read every step of a long episode.
    """
    names = tables.segments.columns.keys()
    first, last = (
        np.array([row[names.index(name)] for row in segments]) for name in ("first", "last")
    )
    within = S.buffer_id == old, S.position.between(int(first.min()), int(last.max()))
    rows = reader.fetch(sa.select(tables.steps).where(*within).order_by(S.position))
    column = tables.steps.columns.keys().index("position")
    positions = np.array([row[column] for row in rows], np.int64)
    is_inside = first[np.searchsorted(last, positions)] <= positions
    return list(itertools.compress(rows, is_inside.tolist()))


def _moved(row: Any, old: int, new: int) -> list[Any]:
    """Return the row of a chunk with the id and the checksum for the new buffer."""
    values = list(row)
    values[_PLACE["crc"]] = crc_after_move(values[_PLACE["crc"]], old, new)
    return values


def _insert(
    writer: Session, target: Engine, table: sa.Table, buffer_id: int, rows: list[Any]
) -> None:
    """Insert rows under another buffer's id, which is the first column of each table."""
    flags = {k for k, column in enumerate(table.columns) if isinstance(column.type, sa.Boolean)}
    new_rows = [
        (
            buffer_id,
            *[
                bool(value) if k in flags and value is not None else value
                for k, value in enumerate(row[1:], 1)
            ],
        )
        if flags
        else (buffer_id, *row[1:])
        for row in rows
    ]
    target.dialect.insert_rows(writer, table, new_rows)
