"""Proof that a database is sound.

Counters are compared with rows, rows with chunks, chunks with their checksums.
"""

from collections.abc import Iterator

import numpy as np

from expdb.chunks.chunk import Chunk
from expdb.chunks.fields import SYSTEM
from expdb.errors import DatabaseDamaged, ExpDBError
from expdb.sql.engine import Engine
from expdb.sql.session import Session
from expdb.storage.reading.segments import Segments
from expdb.storage.store import Store

_CHUNKS_AT_ONCE = 64


def check_schema(engine: Engine, session: Session) -> list[str]:
    """Return what is missing or altered of the schema.

    Returns as well what the database itself finds wrong with its file.
    """
    problems: list[str] = engine.dialect.schema_problems(session)
    return [*problems, *engine.dialect.file_problems(session)]


def check_buffer(store: Store, session: Session) -> list[str]:
    """Return what is wrong with a buffer, one line each; empty if it is sound."""
    try:
        store.state(session)
    except DatabaseDamaged as error:
        return [str(error)]
    return [
        f"buffer {store.name!r}: {problem}"
        for problem in (*_books(store, session), *_chunks(store, session))
    ]


def _books(store: Store, session: Session) -> Iterator[str]:
    state = store.state(session)
    ((size, low, high),) = session.ask(
        "SELECT count(*), min(position), max(position) FROM steps WHERE buffer_id = ?", store.id
    )
    ((nbytes,),) = session.ask(
        "SELECT coalesce(sum(bytes), 0) FROM chunks WHERE buffer_id = ?", store.id
    )
    if size != state.size:
        yield f"it counts {state.size} steps and holds {size}"
    if state.capacity is not None and size > state.capacity:
        yield f"it holds {size} steps, more than its capacity {state.capacity}"
    if size and (low < state.oldest or high >= state.added):
        yield f"positions {low} to {high} lie outside of {state.oldest} to {state.added - 1}"
    if nbytes != state.nbytes:
        yield f"it counts {state.nbytes} bytes and its chunks hold {nbytes}"
    for statement, problem in (
        (
            "SELECT count(*) FROM steps s LEFT JOIN episodes e ON e.buffer_id = s.buffer_id AND "
            "e.id = s.episode "
            "WHERE s.buffer_id = ? AND e.id IS NULL",
            "steps of no episode",
        ),
        (
            "SELECT count(*) FROM segments g LEFT JOIN chunks c ON c.buffer_id = g.buffer_id AND "
            "c.id = g.chunk "
            "WHERE g.buffer_id = ? AND c.id IS NULL",
            "segments of no chunk",
        ),
        (
            "SELECT count(*) FROM chunks c WHERE c.buffer_id = ? AND NOT EXISTS (SELECT 1 FROM "
            "segments g WHERE "
            "g.buffer_id = c.buffer_id AND g.last BETWEEN c.first AND c.id AND g.chunk = c.id)",
            "chunks without a step",
        ),
        (
            "SELECT count(*) FROM episodes e LEFT JOIN segments g ON g.buffer_id = e.buffer_id AND "
            "g.episode = e.id "
            "WHERE e.buffer_id = ? AND e.status <> 'open' AND g.last IS NULL",
            "ended episodes without a step",
        ),
        (
            "SELECT count(*) FROM episodes e WHERE e.buffer_id = ? AND e.tail_chunk IS NOT NULL "
            "AND NOT EXISTS "
            "(SELECT 1 FROM chunks c WHERE c.buffer_id = e.buffer_id AND c.id = e.tail_chunk AND "
            "c.rows > e.tail_row)",
            "episodes whose last observation is gone",
        ),
        (
            "SELECT count(*) FROM episodes e WHERE e.buffer_id = ? AND e.length < (SELECT count(*) "
            "FROM segments g "
            "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
            "WHERE g.buffer_id = e.buffer_id AND g.episode = e.id)",
            "episodes with more steps than were written",
        ),
    ):
        ((count,),) = session.ask(statement, store.id)
        if count:
            yield f"{count} {problem}"
    yield from _returns(store, session)


def _returns(store: Store, session: Session) -> Iterator[str]:
    """Compare the returns of whole episodes with the sums of their rewards.

    Sums of floats depend on their order.

    Scaled, as a sum that overflows is an error on PostgreSQL.
    """
    rows = session.ask(
        "SELECT e.episode_id, e.episode_return, sum(s.reward * 1e-20), sum(abs(s.reward) * 1e-20), "
        "count(*), e.length FROM episodes e "
        "JOIN segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id "
        "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
        "WHERE e.buffer_id = ? GROUP BY e.buffer_id, e.id", store.id,
    )  # fmt: skip
    for episode_id, whole, found, size, count, length in rows:
        total = None if whole is None else whole * 1e-20
        exact = total == found or abs((total or 0.0) - (found or 0.0)) <= 1e-6 * max(
            1e-20, size or 0.0
        )
        if count == length and not exact:
            yield (
                f"episode {episode_id!r} has the return {whole}, and its rewards sum to "
                f"{(found or 0.0) * 1e20}"
            )


def _chunks(store: Store, session: Session) -> Iterator[str]:
    segments = Segments.read(session, store.id, "")
    if len(segments.last) and not (segments.first[1:] > segments.last[:-1]).all():
        yield "segments overlap"
    positions = np.array(
        [p for (p,) in session.ask("SELECT position FROM steps WHERE buffer_id = ?", store.id)],
        np.int64,
    )
    try:
        index = segments.find(positions)
    except ExpDBError as error:
        yield f"steps in no segment: {error}"
        return
    owner = dict(session.ask("SELECT position, episode FROM steps WHERE buffer_id = ?", store.id))
    if any(
        owner[p] != e
        for p, e in zip(positions.tolist(), segments.episode[index].tolist(), strict=True)
    ):
        yield "steps in a segment of another episode"
    covered = int((segments.last - segments.first + 1).sum()) if len(segments.last) else 0
    state = store.state(session)
    evicted = int(np.maximum(state.oldest - segments.first, 0).sum()) if len(segments.last) else 0
    if covered - evicted - len(positions) > state.gaps:
        yield (
            f"segments cover {covered - evicted - len(positions)} steps that are gone, "
            f"{state.gaps} of them known"
        )
    ids = [
        id
        for (id,) in session.ask("SELECT id FROM chunks WHERE buffer_id = ? ORDER BY id", store.id)
    ]
    for start in range(0, len(ids), _CHUNKS_AT_ONCE):
        listed = store.dialect.as_list(np.array(ids[start : start + _CHUNKS_AT_ONCE], np.int64))
        for id, rows, signature, crc, data in session.ask(
            store.dialect.READ_CHUNKS, listed, store.id
        ):
            mine = segments.chunk == id
            ends = segments.chunk_row[mine] + segments.last[mine] - segments.first[mine]
            if len(ends) and int(ends.max()) >= rows:
                yield f"chunk {id} has fewer rows than its segments say"
            try:
                chunk = store.decoder(session, signature).chunk(id, rows, crc, data)
                if not _agrees(store, session, chunk, segments, mine):
                    yield (
                        f"chunk {id} has other steps or rewards than its rows: its segments point "
                        "to wrong rows"
                    )
                for name, field in chunk.signature.fields.items():
                    chunk.present(name, 0, rows)
                    (chunk.objects if field.varies else chunk.raw)(name, 0, rows)
                    known = store.fields.types.get(name, SYSTEM.get(name))
                    if known != field:
                        yield f"chunk {id} holds {name!r} as {field}, the buffer as {known}"
            except ExpDBError as error:
                yield str(error)


def _agrees(
    store: Store, session: Session, chunk: Chunk, segments: Segments, mine: np.ndarray
) -> bool:
    """Return whether a chunk's own step numbers and rewards are those of its steps.

    Steps that were changed since are left out.
    """
    steps = np.frombuffer(chunk.raw("step", 0, chunk.rows), np.int64)
    rewards = np.frombuffer(chunk.raw("reward", 0, chunk.rows), np.float64)
    rows = session.ask(
        "SELECT g.chunk_row + s.position - g.first, s.step, s.reward FROM segments g JOIN steps s "
        "ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
        f"WHERE g.buffer_id = ? AND g.last {store.dialect.AMONG} AND s.revision IS NULL",
        store.id, store.dialect.as_list(segments.last[mine]),
    )  # fmt: skip
    for row, step, reward in rows:
        if steps[row] != step or not (
            rewards[row] == reward or (reward is None and rewards[row] != rewards[row])
        ):
            return False
    return True
