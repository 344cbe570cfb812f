"""Read the steps at given positions as arrays.

A segment names the chunk that holds its steps, and the chunk holds their fields.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb import checks
from expdb.chunks.chunk import Chunk
from expdb.chunks.fields import SYSTEM
from expdb.chunks.prefix_column import ReadTooLarge
from expdb.names import COLUMN_KINDS, EPISODE_COLUMNS, STEP_COLUMNS
from expdb.replay.ragged import RaggedArray
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.catalog import alignment_of, find_token_field
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading import select
from expdb.storage.reading.annotations import find_annotation, read_annotation
from expdb.storage.reading.chunk_cache import ChunkCache
from expdb.storage.reading.chunk_values import (
    WIDE,
    Empty,
    as_objects,
    blank,
    check_spans,
    gather,
    gather_present,
    gather_ragged,
    gather_wide,
)
from expdb.storage.reading.columns import column_arrays, read_columns, table_column
from expdb.storage.reading.segments import Segments, inconsistent, is_dense, locate
from expdb.storage.reading.value_references import read_shared_values
from expdb.storage.statements import SIGNATURES
from expdb.storage.store import State, Store
from expdb.storage.stored_json import parse_names

BLOCK = 1024  # positions per block in `find_missing`


def read_chunks(
    store: Store, session: Session, ids: np.ndarray, outcome: WriteOutcome | None = None
) -> dict[int, Chunk]:
    """Read and verify chunks; return them by id."""
    chunks = {}
    for id, rows, signature, crc, data in session.query(
        store.dialect.READ_CHUNKS, store.dialect.as_list(ids), store.id
    ):
        chunks[id] = store.signatures.decoder(session, signature, outcome).chunk(
            id, rows, crc, data
        )
    read_shared_values(session.query, store.id, chunks.values(), store.dialect)
    _check_found(chunks, ids)
    return chunks


def _check_found(chunks: dict[int, Chunk], ids: np.ndarray) -> None:
    for id in ids.tolist():
        if id not in chunks:
            raise inconsistent(f"chunk {id}, to which steps refer, is missing")


def read_cached(
    store: Store, session: Session, ids: np.ndarray, cache: ChunkCache | None
) -> dict[int, Chunk]:
    """Return chunks by id, from the cache if their checksums still match the database."""
    if cache is None:
        return read_chunks(store, session, ids)
    cached = {id: chunk for id in ids.tolist() if (chunk := cache.get(id)) is not None}
    if cached:  # after a merge or a deletion, an id may belong to another chunk
        listed = store.dialect.as_list(np.array(list(cached), np.int64))
        sums = dict(
            session.query(
                f"SELECT id, crc FROM chunks WHERE buffer_id = ? AND id {store.dialect.AMONG}",
                store.id,
                listed,
            )
        )
        cached = {id: chunk for id, chunk in cached.items() if sums.get(id) == chunk.crc}
    missing = np.array([id for id in ids.tolist() if id not in cached], np.int64)
    return {**cached, **(read_chunks(store, session, missing) if len(missing) else {})}


def locate_and_read(
    store: Store, session: Session, positions: np.ndarray, last: bool, cache: ChunkCache | None
) -> tuple[Segments, dict[int, Chunk]]:
    """Return the segments that contain the positions, and their chunks.

    On PostgreSQL, this takes one round trip. If `cache` has a chunk with the checksum of the
    database, the chunk is not read again.
    """
    statement, as_list = store.dialect.READ_AT, store.dialect.as_list
    if statement is None:
        segments = locate(store, session, positions)
        ids = np.unique(segments.chunk[segments.find(positions)])
        return segments, read_cached(store, session, ids, cache)
    wanted = np.unique(positions)
    candidates = {} if cache is None else cache.find_candidates(wanted)
    checksums = np.array([chunk.crc for chunk in candidates.values()], np.int64)
    ids = np.array(list(candidates), np.int64)
    rows, schemas = session.query_all(
        (statement, as_list(wanted), store.id, store.id, as_list(ids), as_list(checksums)),
        (
            f"{SIGNATURES} AND NOT id {store.dialect.AMONG}",
            store.id,
            store.signatures.list_known_ids(),
        ),
        last=last,
    )
    store.signatures.take(schemas)
    chunks = {}
    for row in rows:
        if row[6] is not None:
            id, count, signature, crc, _, _, data = row
            candidate = candidates.get(id)
            if candidate is not None and candidate.crc == crc:
                chunks[id] = candidate
            else:
                decoder = store.signatures.decoder(session, signature)
                chunks[id] = decoder.chunk(id, count, crc, data)
    segments = Segments.of(sorted(row[:6] for row in rows if row[6] is None))
    new = [chunk for id, chunk in chunks.items() if chunk is not candidates.get(id)]
    read_shared_values(session.query, store.id, new, store.dialect)
    _check_found(chunks, np.unique(segments.chunk))
    return segments, chunks


# -- rows ------------------------------------------------------------------------------------------


def steps(
    store: Store,
    session: Session,
    state: State,
    positions: np.ndarray,
    names: Iterable[str] | None = None,
    segments: Segments | None = None,
    last: bool = False,
    cache: ChunkCache | None = None,
    empty: Empty | None = None,
    json_text: bool = False,
    as_ragged: bool = False,
    finals: bool = False,
) -> dict[str, Any]:
    """Return fields and columns of steps by name, in the order of `positions`.

    If `names` is None, return every field and the columns of a batch. With `finals`, also return
    ``next_<field>``, the final observation after each step that is the last one of its episode. If
    some steps lack a field, also return `has_<field>`. `last` means that nothing more is read in
    this transaction. `cache` provides chunks and keeps the chunks that are read. `empty` allocates
    the arrays of large values. With `json_text`, JSON fields and tags are text. With `as_ragged`,
    arrays whose first dimension varies are `RaggedArray`, and the caller must not change them.

    Raise Evicted if a position has no step.
    """
    types = store.fields.types
    final_names = None if finals else list[str]()
    if names is None:
        names = ("position", "episode", *SYSTEM, *types)
    else:
        final_names = list(filter(store.fields.is_final_observation, names := tuple(names)))
    names = [name for name in dict.fromkeys(names) if name not in (final_names or ())]
    in_chunks = [name for name in names if name in types or (name in SYSTEM and not state.revised)]
    of_tables = [
        name for name in names if name not in (*in_chunks, "position", "episode", "buffer")
    ]
    noted = [name for name in of_tables if find_annotation(store, name) is not None]
    of_tables = [name for name in of_tables if name not in noted]
    for name in of_tables:
        if name not in SYSTEM:
            table_column(store, name)
    if not len(positions):
        return {
            key: array
            for name in (*names, *(final_names or ()))
            for key, array in _empty(store, name)
        }
    last = last and not of_tables and not noted and not state.gaps and final_names == []
    last = last and not state.has_shared_values
    segments, index, chunks = _locate(store, session, positions, segments, in_chunks, last, cache)
    spans = segments.spans(positions, index)
    check_spans(chunks, spans if in_chunks else [])
    rows = (
        read_columns(store, session, positions, of_tables, json_text)
        if of_tables or state.gaps
        else {}
    )
    out: dict[str, Any] = {}
    for name in names:
        if name == "position":
            out[name] = positions.copy()
        elif name == "buffer":
            out[name] = as_objects([store.name] * len(positions))
        elif name == "episode":
            out[name] = segments.episode[index]
        elif name in rows:
            out[name] = rows[name]
            if COLUMN_KINDS.get(name) == "integer?":
                out[f"has_{name}"] = rows[f"has_{name}"]
        elif name in noted:
            out |= read_annotation(store, session, positions, name)
            if as_ragged and out[name].dtype == object:
                arrays = RaggedArray.from_arrays(out[name].tolist())
                out[name] = replace(arrays, aligned_with=find_token_field(types))
        else:
            field = types.get(name) or SYSTEM[name]
            if as_ragged and (field.has_prefixes or field.ascending):
                arrays = gather_ragged(chunks, spans, name, field)
                filler = 0 if field.filler is None else field.filler
                out[name] = replace(arrays, aligned_with=alignment_of(field, types), filler=filler)
            elif empty is None or field.varies or field.nbytes < WIDE:
                out[name] = gather(chunks, spans, name, field, json_text)
            else:
                values = empty((len(positions), *field.fixed_shape), field.numpy)
                opened = field.nbytes * sum([chunk.rows for chunk in chunks.values()])
                keep_open = cache is not None and cache.keeps_open(opened, len(chunks))
                out[name] = gather_wide(chunks, spans, name, field, values, keep_open)
            if name in store.fields.optional:
                out[f"has_{name}"] = gather_present(chunks, spans, name)
                if not isinstance(out[name], RaggedArray):
                    blank(out[name], ~out[f"has_{name}"])
    if final_names != []:
        episodes = segments.episode[index]
        out |= final_columns(store, session, positions, episodes, final_names, json_text=json_text)
    if cache is not None:
        cache.keep(chunks)
    return out


def scan(
    store: Store,
    condition: Condition | None,
    after: int,
    size: int,
    names: Sequence[str] | None,
    json_text: bool = False,
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield columns and number of the next matching steps; each batch is one snapshot.

    With `json_text`, JSON fields and tags are text.
    """
    while True:
        with store.engine.reading() as session:
            state = store.state(session)
            hits = select.positions(store, session, condition, after=after, limit=size)
            try:
                columns = steps(
                    store, session, state, hits, names, json_text=json_text, finals=True
                )
            except ReadTooLarge:
                size = max(1, len(hits) // 2)
                continue
        if not len(hits):
            return
        yield columns, len(hits)
        after = int(hits[-1])


_LEFT_OUT = ("length", "episode_return", "episode_tags", "started", "ended", "priority")
_OF_PAGE = [
    name
    for name in dict.fromkeys((*STEP_COLUMNS[:2], *EPISODE_COLUMNS, *STEP_COLUMNS[2:]))
    if name not in _LEFT_OUT
]


def page(
    store: Store,
    session: Session,
    condition: Condition | None,
    number: int,
    size: int,
) -> dict[str, Any]:
    """Return columns and all fields of one page of matching steps; see `ReplayBuffer.page`."""
    number = checks.whole(number, "the page number", 1)
    size = checks.whole(size, "the page size", 1)
    state, offset = store.state(session), (number - 1) * size
    if offset >= state.added:
        return {}
    limit = min(size, state.added)
    hits = select.positions(store, session, condition, limit=limit, offset=offset)
    return steps(store, session, state, hits, (*_OF_PAGE, *store.fields.types))


def _locate(
    store: Store,
    session: Session,
    positions: np.ndarray,
    segments: Segments | None,
    in_chunks: list[str],
    last: bool,
    cache: ChunkCache | None,
) -> tuple[Segments, np.ndarray, dict[int, Chunk]]:
    """Return the segments, the segment index of each position, and the chunks of `in_chunks`."""
    if segments is None and in_chunks:
        segments, chunks = locate_and_read(store, session, positions, last, cache)
        return segments, segments.find(positions), chunks
    if segments is None:
        segments = locate(store, session, positions)
    index = segments.find(positions)
    if not in_chunks:
        return segments, index, {}
    return segments, index, read_cached(store, session, np.unique(segments.chunk[index]), cache)


def _empty(store: Store, name: str) -> Iterable[tuple[str, np.ndarray]]:
    field = store.fields.types.get(name) or SYSTEM.get(name)
    if store.fields.is_final_observation(name):
        field = store.fields.types[name.removeprefix("next_")]
        yield f"has_{name}", np.empty(0, np.bool_)
    annotation = find_annotation(store, name) if field is None else None
    if annotation is not None:
        field = annotation[2]
        yield f"has_{name}", np.empty(0, np.bool_)
    if field is None:
        yield from column_arrays(name, []).items()
    elif field.varies:
        yield name, np.empty(0, object)
    else:
        yield name, np.empty((0, *field.fixed_shape), field.numpy)
    if name in store.fields.optional:
        yield f"has_{name}", np.empty(0, np.bool_)


def alive(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return for each position whether it holds a step, bool."""
    wanted = np.unique(positions)
    condition, params = f"position {store.dialect.AMONG}", [store.dialect.as_list(wanted)]
    if is_dense(wanted):
        condition, params = "position BETWEEN ? AND ?", [int(wanted[0]), int(wanted[-1])]
    rows = session.query(
        f"SELECT position FROM steps WHERE buffer_id = ? AND {condition}", store.id, *params
    )
    return np.isin(positions, np.fromiter((row[0] for row in rows), np.int64, len(rows)))


def find_missing(store: Store, session: Session, positions: np.ndarray) -> np.ndarray:
    """Return the positions whose steps have been deleted or evicted.

    `positions` must be ascending and include every step stored between its first and last value.
    The function reads only the blocks with fewer stored steps than expected. This is about ten
    times as fast as reading every position.
    """
    if not len(positions):
        return positions
    counts = session.query(
        f"SELECT position / {BLOCK}, count(*) FROM steps WHERE buffer_id = ? AND position BETWEEN ?"
        " AND ? GROUP BY 1",
        store.id, int(positions[0]), int(positions[-1]),
    )  # fmt: skip
    blocks = positions // BLOCK
    numbers, expected = np.unique(blocks, return_counts=True)
    stored_counts = dict(counts)
    changed = [
        number
        for number, count in zip(numbers.tolist(), expected.tolist(), strict=True)
        if stored_counts.get(number, 0) != count
    ]
    uncertain = positions[np.isin(blocks, changed)]
    return uncertain[~alive(store, session, uncertain)] if len(uncertain) else uncertain


# -- final observations ----------------------------------------------------------------------------


@dataclass
class FinalObservation:
    """The observation after an episode's last step."""

    chunk: Chunk
    row: int
    fields: list[str]


def final_rows(store: Store, session: Session, episodes: np.ndarray) -> list[Any]:
    """Return the episode id, chunk, row and fields (JSON) of each final observation."""
    return session.query(
        "SELECT id, tail_chunk, tail_row, tail_fields FROM episodes WHERE buffer_id = ? "
        f"AND id {store.dialect.AMONG} AND tail_chunk IS NOT NULL",
        store.id,
        store.dialect.as_list(np.unique(episodes)),
    )


def read_final_chunks(
    store: Store, session: Session, episodes: np.ndarray, ids: np.ndarray, rows: np.ndarray
) -> dict[int, Chunk]:
    """Read and verify the chunks with the final observations of episodes; return them by id."""
    chunks = read_chunks(store, session, np.unique(ids))
    check_final_rows(store, session, chunks, episodes, ids, rows)
    return chunks


def check_final_rows(
    store: Store,
    session: Session,
    chunks: dict[int, Chunk],
    episodes: np.ndarray,
    ids: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Raise DatabaseDamaged if a row of a chunk is not the final observation of its episode.

    The row must follow the last step row of the chunk that holds the episode's last step.
    """
    records = session.query(
        "SELECT e.id, (SELECT g.chunk FROM segments g WHERE g.buffer_id = e.buffer_id "
        "AND g.last >= e.last_position ORDER BY g.last LIMIT 1), "
        "(SELECT g.chunk_row + g.last - g.first FROM segments g WHERE g.buffer_id = e.buffer_id "
        "AND g.last = e.tail_chunk) FROM episodes e "
        f"WHERE e.buffer_id = ? AND e.id {store.dialect.AMONG}",
        store.id, store.dialect.as_list(np.unique(episodes)),
    )  # fmt: skip
    last_rows = {(episode, chunk): row for episode, chunk, row in records if row is not None}
    for episode, id, row in zip(episodes.tolist(), ids.tolist(), rows.tolist(), strict=True):
        if not last_rows.get((episode, id), row) < row < chunks[id].rows:
            raise inconsistent(
                f"row {row} of chunk {id} is not the final observation of episode {episode}"
            )


def final_columns(
    store: Store,
    session: Session,
    positions: np.ndarray,
    episodes: np.ndarray,
    names: Sequence[str] | None,
    *,
    json_text: bool,
) -> dict[str, np.ndarray]:
    """Return the final observations after the steps at `positions`, as `next_<field>`.

    For each column, also return a bool column ``has_next_<field>``, which is True for steps with a
    final observation of the field. If `names` is None, return each column with at least one value.
    """
    last = _last_positions(store, session, positions, episodes)
    ids = np.array(list(last), np.int64)
    finals = [
        (last[id], final) for id, final in final_observations(store, session, ids).items()
    ] if last else []  # fmt: skip
    if names is None:
        keys = dict.fromkeys(f"next_{name}" for _, final in finals for name in final.fields)
        names = [key for key in keys if store.fields.is_final_observation(key)]
    columns: dict[str, np.ndarray] = {}
    for key in names:
        name = key.removeprefix("next_")
        field = store.fields.types[name]
        present = sorted(
            (position, final.chunk.id, final.row) for position, final in finals
            if name in final.fields
        )  # fmt: skip
        at = np.array([position for position, _, _ in present], np.int64)
        has = np.isin(positions, at)
        shape = () if field.varies else field.fixed_shape
        columns[key] = np.zeros((len(positions), *shape), object if field.varies else field.numpy)
        blank(columns[key], ~has)
        if present:
            chunks = {final.chunk.id: final.chunk for _, final in finals}
            spans = [(chunk, row, row + 1) for _, chunk, row in present]
            values = gather(chunks, spans, name, field, json_text)
            columns[key][has] = values[np.searchsorted(at, positions[has])]
        columns[f"has_{key}"] = has
    return columns


def final_types(store: Store, session: Session) -> dict[str, str]:
    """Return the types of all final observations of the buffer, by names such as ``next_obs``."""
    rows = session.query(
        "SELECT DISTINCT tail_fields FROM episodes WHERE buffer_id = ? AND tail_chunk IS NOT NULL",
        store.id,
    )
    fields = dict.fromkeys(name for (text,) in rows for name in parse_names(text, "tail_fields"))
    types = store.fields.types
    return {
        f"next_{name}": str(types[name])
        for name in fields
        if name in types and store.fields.is_final_observation(f"next_{name}")
    }


def _last_positions(
    store: Store, session: Session, positions: np.ndarray, episodes: np.ndarray
) -> dict[int, int]:
    """Return the position of the last step of each episode with a final observation, by episode id.

    Episodes whose last step is not at one of `positions` are omitted.
    """
    rows = session.query(
        "SELECT id, ordered, last_position, last_step FROM episodes WHERE buffer_id = ? AND id "
        f"{store.dialect.AMONG} AND tail_chunk IS NOT NULL",
        store.id, store.dialect.as_list(np.unique(episodes)),
    )  # fmt: skip
    wanted, last = set(positions.tolist()), {}
    for id, ordered, position, number in rows:
        if not ordered:  # the last step has the greatest number, but not the greatest position
            own = select.positions_of_episodes(store, session, np.array([id]), 1 << 62)
            ((position,),) = session.query(
                "SELECT max(position) FROM steps WHERE buffer_id = ? AND position "
                f"{store.dialect.AMONG} AND step = ?", store.id, store.dialect.as_list(own), number,
            )  # fmt: skip
        if position in wanted:
            last[id] = position
    return last


def final_observations(
    store: Store, session: Session, episodes: np.ndarray
) -> dict[int, FinalObservation]:
    """Return the final observations by episode id, for the episodes that have one."""
    rows = final_rows(store, session, episodes)
    numbers = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
    chunks = read_final_chunks(store, session, *numbers.T)
    return {
        id: FinalObservation(chunks[chunk], row, parse_names(names, "tail_fields"))
        for id, chunk, row, names in rows
    }
