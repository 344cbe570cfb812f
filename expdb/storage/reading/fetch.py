"""Reading: from positions to arrays.

Segments say which chunk holds a step, chunks hold the fields.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.codec import Chunk
from expdb.chunks.columns import Buffer
from expdb.chunks.fields import SYSTEM, Field
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.reading.chunk_cache import ChunkCache
from expdb.storage.store import News, State, Store, evicted

S, E = tables.steps.c, tables.episodes.c

MOST = 1 << 62  # positions; SQLite and PostgreSQL count to twice as many

Spans = list[tuple[int, int, int]]  # chunk, first row, row after the last


@dataclass
class Segments:
    """Runs of positions, ascending, of one episode and one chunk each.

    Every array has an entry a segment.
    """

    last: np.ndarray
    first: np.ndarray
    episode: np.ndarray
    ordinal: np.ndarray
    chunk: np.ndarray
    chunk_row: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[tuple[int, ...]]) -> "Segments":
        """Make segments of rows (last, first, episode, ordinal, chunk, chunk_row)."""
        found = cls(*np.array(rows, np.int64).reshape(-1, 6).T)
        if len(rows) and (
            min(found.first.min(), found.chunk_row.min()) < 0
            or (found.last < found.first).any()
            or max(found.last.max(), found.chunk_row.max()) >= MOST
        ):
            raise inconsistent("a segment covers what cannot be")
        return found

    def positions(self, low: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions from `low` on that the segments cover.

        The index of each one's segment.
        """
        begin = np.maximum(self.first, low)
        lengths = self.last - begin + 1
        index = np.repeat(np.arange(len(lengths)), lengths)
        return begin[index] + np.arange(len(index)) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        ), index

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Return the index of each position's segment.

        Raise Evicted naming the positions that have none.
        """
        index = np.searchsorted(self.last, positions)
        inside = index < len(self.last)
        inside[inside] = self.first[index[inside]] <= positions[inside]
        if not inside.all():
            raise evicted(positions[~inside])
        return index


def locate(store: Store, session: Session, positions: np.ndarray) -> Segments:
    """Return the segments that hold the positions."""
    wanted = np.unique(positions)
    if len(wanted) and _dense(wanted):
        rows = session.ask(
            "SELECT last, first, episode, ordinal, chunk, chunk_row FROM segments WHERE buffer_id "
            "= ? AND last >= ? AND "
            "last <= coalesce((SELECT min(last) FROM segments WHERE buffer_id = ? AND last >= ?), "
            "?) ORDER BY last",
            store.id, int(wanted[0]), store.id, int(wanted[-1]), int(wanted[-1]),
        )  # fmt: skip
    else:
        # One row a position, ascending: several in one segment are told once.
        rows = list(
            dict.fromkeys(
                session.ask(store.dialect.LOCATE, store.id, store.dialect.as_list(wanted))
            )
        )
    return Segments.of(rows)


def _dense(wanted: np.ndarray) -> bool:
    """Return whether a range that holds the sorted positions is read faster than each of them."""
    return len(wanted) > 64 and int(wanted[-1]) - int(wanted[0]) < 4 * len(wanted)


def read_chunks(
    store: Store, session: Session, ids: np.ndarray, news: News | None = None
) -> dict[int, Chunk]:
    """Return chunks by id, checked."""
    found = {}
    for id, rows, signature, crc, data in session.ask(
        store.dialect.READ_CHUNKS, store.dialect.as_list(ids), store.id
    ):
        found[id] = store.decoder(session, signature, news).chunk(id, rows, crc, data)
    if len(found) < len(ids):
        gone = next(id for id in ids.tolist() if id not in found)
        raise inconsistent(f"chunk {gone}, which steps lie in, is not there")
    return found


def check_spans(chunks: dict[int, Chunk], spans: Spans) -> None:
    """Raise where rows are wanted that their chunks do not have."""
    for c, a, b in spans:
        if b > chunks[c].rows:
            raise inconsistent(
                f"chunk {c} has {chunks[c].rows} rows, and the steps at {a} to {b - 1}"
            )


def inconsistent(what: str) -> errors.DatabaseDamaged:
    """Return the error for books that contradict each other.

    Which no write of ours leaves behind.
    """
    return errors.DatabaseDamaged(
        f"the database contradicts itself ({what}): see `expdb check`, and restore a backup"
    )


def read_cached(
    store: Store, session: Session, ids: np.ndarray, cache: ChunkCache
) -> dict[int, Chunk]:
    """Return chunks by id, those that are still what the cache has from there."""
    held = {id: chunk for id in ids.tolist() if (chunk := cache.get(id)) is not None}
    if held:  # an id names another chunk once its steps were merged or deleted
        listed = store.dialect.as_list(np.array(list(held), np.int64))
        sums = dict(
            session.ask(
                f"SELECT id, crc FROM chunks WHERE buffer_id = ? AND id {store.dialect.AMONG}",
                store.id,
                listed,
            )
        )
        held = {id: chunk for id, chunk in held.items() if sums.get(id) == chunk.crc}
    missing = np.array([id for id in ids.tolist() if id not in held], np.int64)
    return {**held, **(read_chunks(store, session, missing) if len(missing) else {})}


def locate_and_read(
    store: Store, session: Session, positions: np.ndarray, last: bool
) -> tuple[Segments, dict[int, Chunk]]:
    """Return the segments that hold the positions, and their chunks: on a server in one trip."""
    statement = store.dialect.READ_AT
    if statement is None:
        segments = locate(store, session, positions)
        return segments, read_chunks(
            store, session, np.unique(segments.chunk[segments.find(positions)])
        )
    rows, schemas = session.ask_all(
        (statement, store.dialect.as_list(np.unique(positions)), store.id, store.id),
        (
            "SELECT id, schema FROM signatures WHERE buffer_id = ? AND NOT id "
            f"{store.dialect.AMONG}",
            store.id,
            store.known_signatures(),
        ),
        last=last,
    )
    store.learn_signatures(schemas)
    chunks = {}
    for row in rows:
        if row[6] is not None:
            id, count, signature, crc, _, _, data = row
            chunks[id] = store.decoder(session, signature).chunk(id, count, crc, data)
    return Segments.of(sorted(row[:6] for row in rows if row[6] is None)), chunks


# -- rows ------------------------------------------------------------------------------------------


def fetch(
    store: Store,
    session: Session,
    state: State,
    positions: np.ndarray,
    names: Iterable[str] | None = None,
    segments: Segments | None = None,
    last: bool = False,
    cache: ChunkCache | None = None,
) -> dict[str, np.ndarray]:
    """Return fields and columns of steps by name, rows in the order of `positions`.

    Raise Evicted if one holds none.

    `last` says that nothing more is read in this transaction; a `cache` has chunks that need not be
    read. `names` None means every field and the columns of a batch. `has_<field>` comes with each
    field that some rows lack.
    """
    types = store.fields.types
    names = list(
        dict.fromkeys(("position", "episode", *SYSTEM, *types) if names is None else names)
    )
    of_tables = [
        name for name in names if name not in types and (name not in SYSTEM or state.revised)
    ]
    of_tables = [name for name in of_tables if name not in ("position", "episode", "buffer")]
    for name in of_tables:
        if name not in SYSTEM:
            table_column(store, name)
    if not len(positions):
        return {key: array for name in names for key, array in _empty(store, name)}
    in_chunks = [name for name in names if name in types or (name in SYSTEM and not state.revised)]
    chunks: dict[int, Chunk] = {}
    if segments is None and in_chunks and cache is None:
        segments, chunks = locate_and_read(
            store, session, positions, last and not of_tables and not state.holes
        )
    elif segments is None:
        segments = locate(store, session, positions)
    index = segments.find(positions)
    spans = _spans(positions, index, segments)
    if in_chunks and not chunks:
        ids = np.unique(segments.chunk[index])
        chunks = (
            read_chunks(store, session, ids)
            if cache is None
            else read_cached(store, session, ids, cache)
        )
    check_spans(chunks, spans if in_chunks else [])
    rows = _read_columns(store, session, positions, of_tables) if of_tables or state.holes else {}
    out: dict[str, np.ndarray] = {}
    for name in names:
        if name == "position":
            out[name] = positions.copy()
        elif name == "buffer":
            out[name] = as_objects([store.name] * len(positions))
        elif name == "episode":
            out[name] = segments.episode[index]
        elif name in rows:
            out[name] = rows[name]
            if name in MAYBE_INTEGERS:
                out[f"has_{name}"] = rows[f"has_{name}"]
        else:
            out[name] = gather(chunks, spans, name, types.get(name) or SYSTEM[name])
            if name in store.fields.optional:
                present = bytearray().join([chunks[c].present(name, a, b) for c, a, b in spans])
                out[f"has_{name}"] = np.frombuffer(present, np.bool_)
                blank(out[name], ~out[f"has_{name}"])
    if cache is not None:
        cache.keep(chunks)
    return out


def blank(array: np.ndarray, missing: np.ndarray | slice) -> None:
    """Write what stands for a value that is not there: NaN, 0, False or None."""
    array[missing] = np.nan if array.dtype.kind == "f" else None if array.dtype == object else 0


def _spans(positions: np.ndarray, index: np.ndarray, segments: Segments) -> Spans:
    """Return the runs of neighbouring rows of one chunk that the positions make, in order."""
    chunk = segments.chunk[index]
    row = segments.chunk_row[index] + positions - segments.first[index]
    breaks = np.flatnonzero((np.diff(chunk) != 0) | (np.diff(row) != 1)) + 1
    starts, stops = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(positions)]))
    return list(
        zip(
            chunk[starts].tolist(), row[starts].tolist(), (row[stops - 1] + 1).tolist(), strict=True
        )
    )


def gather(chunks: dict[int, Chunk], spans: Spans, name: str, field: Field) -> np.ndarray:
    """Return a field's values of consecutive spans; chunks without the field give blanks."""
    if field.varies:
        values: list[Any] = []
        for c, a, b in spans:
            values += (
                chunks[c].objects(name, a, b)
                if name in chunks[c].signature.fields
                else [None] * (b - a)
            )
        return as_objects(values)
    count = sum([b - a for _, a, b in spans])
    try:
        parts = _slices(chunks, spans, name, field, count)
    except KeyError:
        parts = [
            chunks[c].raw(name, a, b)
            if name in chunks[c].signature.fields
            else bytes(field.nbytes * (b - a))
            for c, a, b in spans
        ]
    return np.frombuffer(bytearray().join(parts), field.numpy).reshape((count, *field.fixed_shape))


def _slices(
    chunks: dict[int, Chunk], spans: Spans, name: str, field: Field, count: int
) -> list[Buffer]:
    """Cut values out of messages; KeyError where a chunk has no place for them.

    Spelled out: it is most of a cold sample.
    """
    mine = [chunks[c] for c, _, _ in spans]
    if field.dtype == "bool" and not field.shape:
        if count > len(spans):
            return _unpacked(mine, spans, name, count)
        at = [chunk.bits(name) + (a >> 3) for chunk, (_, a, _) in zip(mine, spans, strict=True)]
        return [
            bytes(
                [
                    chunk.data[k] >> (a & 7) & 1
                    for chunk, k, (_, a, _) in zip(mine, at, spans, strict=True)
                ]
            )
        ]
    places = [chunk.place(name) for chunk in mine]
    width = field.nbytes
    if width >= 1024 or count > 8 * len(spans):  # a view: the joined copy is the only one
        return [
            memoryview(chunk.data)[at + a * width : at + b * width]
            for chunk, (at, _), (_, a, b) in zip(mine, places, spans, strict=True)
        ]
    return [
        chunk.data[at + a * width : at + b * width]
        for chunk, (at, _), (_, a, b) in zip(mine, places, spans, strict=True)
    ]


def _unpacked(mine: list[Chunk], spans: Spans, name: str, count: int) -> list[Buffer]:
    """Return bits of spans as a byte each, unpacked all at once.

    KeyError where a chunk has no place for them.
    """
    cut = [
        (chunk.bits(name) + (a >> 3), chunk.bits(name) + (b + 7 >> 3))
        for chunk, (_, a, b) in zip(mine, spans, strict=True)
    ]
    packed = b"".join(
        [chunk.data[first:last] for chunk, (first, last) in zip(mine, cut, strict=True)]
    )
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    width = np.array([8 * (last - first) for first, last in cut])
    length = np.array([b - a for _, a, b in spans])
    skipped = (
        np.cumsum(width)
        - width
        + np.array([a & 7 for _, a, _ in spans])
        - (np.cumsum(length) - length)
    )
    return [bits[np.repeat(skipped, length) + np.arange(count)].data]


def as_objects(values: Sequence[Any]) -> np.ndarray:
    """Return a 1-D object array, whatever the values are."""
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def table_column(store: Store, name: str) -> sa.ColumnElement[Any]:
    """Return the column of the view `experience` that a name stands for.

    Raise QueryError where there is none.
    """
    found = tables.view_column(name)
    if found is not None:
        return found[1]
    known = ", ".join((*store.fields.types, *STEP_COLUMNS, *EPISODE_COLUMNS))
    raise errors.QueryError(f"no field or column {name!r}: there are {known}")


def _read_columns(
    store: Store, session: Session, positions: np.ndarray, names: list[str]
) -> dict[str, np.ndarray]:
    """Read columns of the tables: those that chunks do not hold, or that have changed since."""
    join: sa.FromClause = tables.steps
    if any(name in EPISODE_COLUMNS for name in names):
        join = join.join(tables.episodes, sa.and_(E.buffer_id == S.buffer_id, E.id == S.episode))
    columns = [S.position, *[table_column(store, name) for name in names]]
    statement = sa.select(*columns).select_from(join).where(S.buffer_id == store.id)
    wanted = np.unique(positions)
    if _dense(wanted):
        statement = statement.where(S.position.between(int(wanted[0]), int(wanted[-1])))
    else:
        statement = statement.where(store.dialect.among(S.position, wanted.tolist()))
    rows = {row[0]: row for row in session.fetch(statement)}
    missing = [position for position in positions.tolist() if position not in rows]
    if missing:
        raise evicted(np.array(missing))
    ordered = [rows[position] for position in positions.tolist()]
    return {
        key: array
        for k, name in enumerate(names, 1)
        for key, array in column_arrays(name, [row[k] for row in ordered]).items()
    }


_REALS = frozenset(("execute_time", "reward", "priority", "episode_return", "started", "ended"))
_INTEGERS = frozenset(("step", "position", "episode", "length"))
MAYBE_INTEGERS = frozenset(
    ("policy_version",)
)  # 0 where there is none, and `has_<name>` tells, as with fields


def column_arrays(name: str, values: list[Any]) -> dict[str, np.ndarray]:
    """Return a column of the tables as a batch holds it.

    With `has_<name>` where it is of integers that may be missing.
    """
    if name not in MAYBE_INTEGERS:
        return {name: _column_array(name, values)}
    there = np.array([value is not None for value in values], np.bool_)
    return {name: np.array([value or 0 for value in values], np.int64), f"has_{name}": there}


def _column_array(name: str, values: list[Any]) -> np.ndarray:
    """Return a column of the tables: NaN for unknown reals, tags as mappings, None elsewhere."""
    if name in _REALS:
        return np.array(values, np.float64)
    if name in ("terminated", "truncated"):
        return np.array(values, np.bool_)
    if name in _INTEGERS:
        return np.array(values, np.int64)
    if name in ("tags", "episode_tags"):
        values = [None if value is None else json.loads(value) for value in values]
    return as_objects(values)


def _empty(store: Store, name: str) -> Iterable[tuple[str, np.ndarray]]:
    field = store.fields.types.get(name) or SYSTEM.get(name)
    if field is None:
        yield from column_arrays(name, []).items()
    elif field.varies:
        yield name, np.empty(0, object)
    else:
        yield name, np.empty((0, *field.fixed_shape), field.numpy)
    if name in store.fields.optional:
        yield f"has_{name}", np.empty(0, np.bool_)


def alive(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return which of the positions hold a step, bool in order."""
    found = session.ask(
        f"SELECT position FROM steps WHERE buffer_id = ? AND position {store.dialect.AMONG}",
        store.id, store.dialect.as_list(np.unique(positions)),
    )  # fmt: skip
    return np.isin(positions, np.fromiter((row[0] for row in found), np.int64, len(found)))


# -- last observations -----------------------------------------------------------------------------


@dataclass
class Tail:
    """The observation after an episode's last step."""

    chunk: Chunk
    row: int
    fields: list[str]


def tails(store: Store, session: Session, episodes: np.ndarray) -> dict[int, Tail]:
    """Return the tails of those of the episodes that have one, by episode."""
    rows = session.ask(
        "SELECT id, tail_chunk, tail_row, tail_fields FROM episodes WHERE buffer_id = ? "
        f"AND id {store.dialect.AMONG} AND tail_chunk IS NOT NULL",
        store.id, store.dialect.as_list(np.unique(episodes)),
    )  # fmt: skip
    chunks = read_chunks(store, session, np.unique(np.array([row[1] for row in rows], np.int64)))
    return {id: Tail(chunks[chunk], row, json.loads(names)) for id, chunk, row, names in rows}
