"""Proof that a database is sound.

Counters are compared with rows, rows with chunks, chunks with their checksums.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import sqlalchemy as sa

from expdb.chunks.chunk import Chunk
from expdb.chunks.fields import SYSTEM
from expdb.errors import DatabaseDamaged, ExpDBError
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.schema import column_problems
from expdb.sql.session import Session
from expdb.storage import catalog
from expdb.storage.reading.segments import Segments
from expdb.storage.store import Store
from expdb.storage.upkeep.check_ledger import check_ledger

S, E, G, C = tables.steps.c, tables.episodes.c, tables.segments.c, tables.chunks.c

_CHUNKS_AT_ONCE = 64


def check_schema(engine: Engine, session: Session) -> list[str]:
    """Return what is missing or altered of the schema.

    Returns as well what the database itself finds wrong with its file.
    """
    problems: list[str] = engine.dialect.schema_problems(session)
    return [
        *problems, *column_problems(session, engine), *engine.dialect.file_problems(session)
    ]  # fmt: skip


def check_owners(session: Session) -> list[str]:
    """Return which rows belong to no buffer, one line per table."""
    known, problems = sa.select(tables.buffers.c.id), []
    for table in tables.OF_BUFFERS:
        lost = sa.select(sa.func.count()).where(table.c.buffer_id.not_in(known))
        ((count,),) = session.rows(lost.select_from(table))
        if count:
            problems.append(f"{count} rows of {table.name} belong to no buffer")
    return problems


def check_buffer(store: Store, session: Session) -> list[str]:
    """Return what is wrong with a buffer, one line each; empty if it is sound."""
    original = catalog.copied_name(store.name)
    if original is not None:
        return [f"the copy of {original!r} is not finished; copy it again, or drop {store.name!r}"]
    try:
        store.state(session)
    except DatabaseDamaged as error:
        return [str(error)]
    segments = Segments.read(session, store.id, "")
    parts: dict[str, Callable[[], Iterable[str]]] = {
        "counters": lambda: _counters(store, session),
        "rows": lambda: _rows(store, session),
        "returns": lambda: _returns(store, session),
        "segments": lambda: _segments(store, session, segments),
        "chunks": lambda: _chunks(store, session, segments),
        "ledger": lambda: check_ledger(store, session),
    }
    problems: list[str] = []
    for name, part in parts.items():
        try:
            problems += part()
        except (IndexError, ValueError, TypeError, OverflowError, RecursionError) as error:
            problems.append(f"the {name} cannot be checked ({error}); restore a backup")
    return [f"buffer {store.name!r}: {problem}" for problem in problems]


def _counters(store: Store, session: Session) -> Iterator[str]:
    """Compare what the buffer counts with what it holds."""
    state = store.state(session)
    ((size, low, high),) = session.rows(
        sa.select(sa.func.count(), sa.func.min(S.position), sa.func.max(S.position)).where(
            S.buffer_id == store.id
        )
    )
    ((nbytes,),) = session.rows(
        sa.select(sa.func.coalesce(sa.func.sum(C.bytes), 0)).where(C.buffer_id == store.id)
    )
    if size != state.size:
        yield f"it counts {state.size} steps and holds {size}"
    most = state.capacity if state.pinned is None or state.capacity is None else 2 * state.capacity
    if state.trigger_evicts and most is not None and size > most:
        yield f"it holds {size} steps, more than its capacity {state.capacity}"
    if size and (low < state.oldest or high >= state.added):
        yield f"positions {low} to {high} lie outside of {state.oldest} to {state.added - 1}"
    if nbytes != state.nbytes:
        yield f"it counts {state.nbytes} bytes and its chunks hold {nbytes}"


def _rows(store: Store, session: Session) -> Iterator[str]:
    """Look for rows that stand alone."""
    episode = tables.steps.outerjoin(
        tables.episodes, sa.and_(E.buffer_id == S.buffer_id, E.id == S.episode)
    )
    chunk = tables.segments.outerjoin(
        tables.chunks, sa.and_(C.buffer_id == G.buffer_id, C.id == G.chunk)
    )
    segment = tables.episodes.outerjoin(tables.segments, tables.OF_EPISODE)
    used = sa.exists().where(
        G.buffer_id == C.buffer_id, G.last.between(C.first, C.id), G.chunk == C.id
    )
    observed = sa.exists().where(
        C.buffer_id == E.buffer_id, C.id == E.tail_chunk, C.rows == E.tail_row + 1,
        E.last_position.between(C.first, C.id),
    )  # fmt: skip
    held = sa.select(sa.func.count()).select_from(tables.STEPS_OF_SEGMENTS)
    held = held.where(tables.OF_EPISODE).correlate(tables.episodes)
    for of, table, wrong, problem in (
        (S, episode, E.id.is_(None), "steps of no episode"),
        (G, chunk, C.id.is_(None), "segments of no chunk"),
        (C, tables.chunks, ~used, "chunks without a step"),
        (
            E,
            segment,
            sa.and_(E.status != "open", G.last.is_(None)),
            "ended episodes without a step",
        ),
        (
            E,
            tables.episodes,
            sa.and_(E.tail_chunk.is_not(None), ~observed),
            "episodes whose final observation is gone, or another one",
        ),
        (
            E,
            tables.episodes,
            E.length < held.scalar_subquery(),
            "episodes with more steps than were written",
        ),
    ):
        statement = sa.select(sa.func.count()).select_from(table)
        ((count,),) = session.rows(statement.where(of.buffer_id == store.id, wrong))
        if count:
            yield f"{count} {problem}"


def _returns(store: Store, session: Session) -> Iterator[str]:
    """Compare the returns of whole episodes with the sums of their rewards.

    Sums of floats depend on their order.

    Scaled, as a sum that overflows is an error on PostgreSQL.
    """
    rows = session.rows(
        sa.select(
            E.episode_id,
            E.episode_return,
            sa.func.sum(S.reward * 1e-20),
            sa.func.sum(sa.func.abs(S.reward) * 1e-20),
            sa.func.count(),
            E.length,
        )
        .select_from(tables.STEPS_OF_EPISODES)
        .where(E.buffer_id == store.id)
        .group_by(E.buffer_id, E.id)
    )
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


def _segments(store: Store, session: Session, segments: Segments) -> Iterator[str]:
    """Compare segments with the steps that they cover."""
    if len(segments.last) and not (segments.first[1:] > segments.last[:-1]).all():
        yield "segments overlap"
    rows = session.fetch(sa.select(S.position, S.episode).where(S.buffer_id == store.id))
    positions = np.array([position for position, _ in rows], np.int64)
    owners = np.array([episode for _, episode in rows], np.int64)
    try:
        index = segments.find(positions)
    except ExpDBError as error:
        yield f"steps in no segment: {error}"
        return
    if (owners != segments.episode[index]).any():
        yield "steps in a segment of another episode"
    state = store.state(session)
    covered = int(np.maximum(segments.last - np.maximum(segments.first, state.oldest) + 1, 0).sum())
    if covered - len(positions) > state.gaps:
        yield (
            f"segments cover {covered - len(positions)} steps that are gone, {state.gaps} of them "
            "known"
        )


def _chunks(store: Store, session: Session, segments: Segments) -> Iterator[str]:
    """Decode every chunk and compare it with its segments and steps."""
    listed = sa.select(C.id).where(C.buffer_id == store.id).order_by(C.id)
    ids = [id for (id,) in session.rows(listed)]
    for start in range(0, len(ids), _CHUNKS_AT_ONCE):
        some = store.dialect.as_list(np.array(ids[start : start + _CHUNKS_AT_ONCE], np.int64))
        for id, rows, signature, crc, data in session.ask(
            store.dialect.READ_CHUNKS, some, store.id
        ):
            mine = segments.chunk == id
            ends = segments.chunk_row[mine] + segments.last[mine] - segments.first[mine]
            if len(ends) and int(ends.max()) >= rows:
                yield f"chunk {id} has fewer rows than its segments say"
            try:
                chunk = store.signatures.decoder(session, signature).chunk(id, rows, crc, data)
                if not _agrees(store, session, chunk, segments.last[mine]):
                    yield (
                        f"chunk {id} has other steps or rewards than its rows: its segments point "
                        "to wrong rows"
                    )
                yield from _fields(store, id, chunk)
            except ExpDBError as error:
                yield str(error)


def _fields(store: Store, id: int, chunk: Chunk) -> Iterator[str]:
    """Decode every field of a chunk."""
    for name, field in chunk.signature.fields.items():
        chunk.present(name, 0, chunk.rows)
        (chunk.objects if field.varies else chunk.raw)(name, 0, chunk.rows)
        known = store.fields.types.get(name, SYSTEM.get(name))
        if known != field:
            yield f"chunk {id} holds {name!r} as {field}, the buffer as {known}"


def _agrees(store: Store, session: Session, chunk: Chunk, segments: np.ndarray) -> bool:
    """Return whether a chunk's own step numbers and rewards are those of its steps.

    Steps that were changed since are left out.
    """
    steps = np.frombuffer(chunk.raw("step", 0, chunk.rows), np.int64)
    rewards = np.frombuffer(chunk.raw("reward", 0, chunk.rows), np.float64)
    rows = session.fetch(
        sa.select(G.chunk_row + S.position - G.first, S.step, S.reward)
        .select_from(tables.STEPS_OF_SEGMENTS)
        .where(G.buffer_id == store.id, store.dialect.among(G.last, segments.tolist()))
        .where(S.revision.is_(None))
    )
    for row, step, reward in rows:
        if steps[row] != step or not (
            rewards[row] == reward or (reward is None and rewards[row] != rewards[row])
        ):
            return False
    return True
