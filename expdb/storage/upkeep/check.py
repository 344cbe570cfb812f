"""Check a database: counters against rows, rows against chunks, chunks against checksums."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import sqlalchemy as sa

from expdb.chunks.chunk import HAS_SHARED_VALUES, Chunk
from expdb.chunks.fields import SYSTEM
from expdb.chunks.shared_values import digest_of
from expdb.errors import DatabaseDamaged, ExpDBError
from expdb.sql import tables
from expdb.sql.engine import Engine
from expdb.sql.schema import column_problems
from expdb.sql.session import Session
from expdb.storage import catalog
from expdb.storage.reading.annotations import decoded
from expdb.storage.reading.segments import Segments
from expdb.storage.reading.value_references import read_shared_values
from expdb.storage.store import Store
from expdb.storage.upkeep.check_ledger import check_ledger
from expdb.storage.upkeep.check_scores import check_scores
from expdb.storage.upkeep.metrics_history import read_metrics
from expdb.storage.upkeep.workers import list_workers

_CHUNKS_AT_ONCE = 64
_ANNOTATIONS_AT_ONCE = 1000

# Each query counts the rows of the buffer `?` that have one problem. The statements are text:
# compiling them with SQLAlchemy for each of many buffers would take longer than the queries.
_ROWS = {
    "steps without an episode": (
        "SELECT count(*) FROM steps s LEFT JOIN episodes e ON e.buffer_id = s.buffer_id "
        "AND e.id = s.episode WHERE s.buffer_id = ? AND e.id IS NULL"
    ),
    "segments without a chunk": (
        "SELECT count(*) FROM segments g LEFT JOIN chunks c ON c.buffer_id = g.buffer_id "
        "AND c.id = g.chunk WHERE g.buffer_id = ? AND c.id IS NULL"
    ),
    "chunks without a step": (
        "SELECT count(*) FROM chunks c WHERE c.buffer_id = ? AND NOT EXISTS (SELECT 1 "
        "FROM segments g WHERE g.buffer_id = c.buffer_id AND g.last BETWEEN c.first AND c.id "
        "AND g.chunk = c.id)"
    ),
    "ended episodes without a step": (
        "SELECT count(*) FROM episodes e WHERE e.buffer_id = ? AND e.status <> 'open' "
        "AND NOT EXISTS (SELECT 1 FROM segments g WHERE g.buffer_id = e.buffer_id "
        "AND g.episode = e.id)"
    ),
    # A final observation must come after the steps of the chunk with the episode's last step.
    "episodes whose final observation is missing or wrong": (
        "SELECT count(*) FROM episodes e LEFT JOIN chunks c ON c.buffer_id = e.buffer_id "
        "AND c.id = e.tail_chunk AND e.last_position BETWEEN c.first AND c.id "
        "AND e.tail_row < c.rows LEFT JOIN segments g ON g.buffer_id = e.buffer_id "
        "AND g.last = c.id AND g.chunk_row + g.last - g.first < e.tail_row "
        "WHERE e.buffer_id = ? AND e.tail_chunk IS NOT NULL AND g.last IS NULL"
    ),
    "final observations shared by several episodes": (
        "SELECT count(*) FROM (SELECT 1 FROM episodes WHERE buffer_id = ? "
        "AND tail_chunk IS NOT NULL GROUP BY tail_chunk, tail_row HAVING count(*) > 1) AS several"
    ),
    "annotations without a step": (
        "SELECT count(*) FROM annotations a LEFT JOIN steps s ON s.buffer_id = a.buffer_id "
        "AND s.position = a.position WHERE a.buffer_id = ? AND s.position IS NULL"
    ),
    "shared values without a reference": (
        "SELECT count(*) FROM shared_values v WHERE v.buffer_id = ? AND NOT EXISTS (SELECT 1 "
        "FROM value_references r WHERE r.buffer_id = v.buffer_id AND r.digest = v.digest)"
    ),
    "value references without a chunk": (
        "SELECT count(*) FROM value_references r LEFT JOIN chunks c ON c.buffer_id = r.buffer_id "
        f"AND c.id = r.chunk AND (c.crc & {HAS_SHARED_VALUES}) <> 0 WHERE r.buffer_id = ? "
        "AND c.id IS NULL"
    ),
    "scores without an episode": (
        "SELECT count(*) FROM scores r LEFT JOIN episodes e ON e.buffer_id = r.buffer_id "
        "AND e.id = r.episode WHERE r.buffer_id = ? AND e.id IS NULL"
    ),
    "groups with wrong numbers of episodes": (
        "SELECT count(*) FROM (SELECT name, is_task FROM (SELECT coalesce(group_id, task_id) AS "
        "name, group_id IS NULL AS is_task, 1 AS episodes, CASE status WHEN 'complete' THEN 1 "
        f"ELSE 0 END AS complete FROM episodes WHERE buffer_id = ? AND {tables.IS_ROLLOUT} "
        "UNION ALL SELECT name, is_task, "
        "-episodes, -complete FROM rollout_groups WHERE buffer_id = ?) AS counts "
        "GROUP BY name, is_task HAVING sum(episodes) <> 0 OR sum(complete) > 0) AS wrong"
    ),
    "episodes with a parent that began later, or with another root than their parent": (
        "SELECT count(*) FROM episodes e LEFT JOIN episodes p ON p.buffer_id = e.buffer_id "
        "AND p.id = e.parent_episode WHERE e.buffer_id = ? AND (e.parent_episode >= e.id "
        "OR e.root_episode > e.parent_episode OR coalesce(p.root_episode, p.id) <> e.root_episode "
        "OR (e.parent_episode IS NULL) <> (e.root_episode IS NULL) "
        "OR (e.parent_episode IS NULL) <> (e.relation IS NULL))"
    ),
    "forks of a step that their parent did not have": (
        "SELECT count(*) FROM episodes e JOIN episodes p ON p.buffer_id = e.buffer_id "
        "AND p.id = e.parent_episode LEFT JOIN steps s ON s.buffer_id = e.buffer_id "
        "AND s.position = e.parent_position WHERE e.buffer_id = ? AND (s.step >= e.parent_step "
        "OR (e.parent_position IS NULL) <> (coalesce(e.shared_steps, 0) = 0))"
    ),
    "episodes with more steps than were written": (
        "SELECT count(*) FROM episodes e WHERE e.buffer_id = ? "
        "AND e.length - coalesce(e.shared_steps, 0) < (SELECT count(*) "
        "FROM segments g JOIN steps s ON s.buffer_id = g.buffer_id "
        "AND s.position BETWEEN g.first AND g.last AND s.episode = g.episode "
        "WHERE g.buffer_id = e.buffer_id AND g.episode = e.id)"
    ),
}

# Scaled, because PostgreSQL raises an error if a sum overflows.
_RETURNS = (
    "SELECT e.episode_id, e.episode_return, sum(s.reward * 1e-20), sum(abs(s.reward) * 1e-20), "
    "count(*), e.length - coalesce(e.shared_steps, 0) FROM episodes e "
    "JOIN segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id "
    "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
    "AND s.episode = g.episode "
    "WHERE e.buffer_id = ? GROUP BY e.buffer_id, e.id"
)


def check_schema(engine: Engine, session: Session) -> list[str]:
    """Return the problems of the schema and the problems that the database finds in its file."""
    problems: list[str] = engine.dialect.schema_problems(session)
    return [
        *problems, *column_problems(session, engine), *engine.dialect.file_problems(session)
    ]  # fmt: skip


def check_owners(session: Session) -> list[str]:
    """Return how many rows belong to no buffer, one line for each table with such rows."""
    buffer_ids = sa.select(tables.buffers.c.id)
    counts = [
        sa.select(sa.func.count()).where(table.c.buffer_id.not_in(buffer_ids)).scalar_subquery()
        for table in tables.OF_BUFFERS
    ]
    (row,) = session.query(sa.select(*counts))
    lost = zip(tables.OF_BUFFERS, row, strict=True)
    return [f"{count} rows of {table.name} belong to no buffer" for table, count in lost if count]


def check_buffer(store: Store, session: Session) -> list[str]:
    """Return the problems of a buffer, one line each; empty if there are none."""
    original = catalog.source_of_copy(store.name)
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
        "annotations": lambda: _annotations(store, session),
        "scores": lambda: check_scores(store, session),
        "workers and metrics": lambda: _reports(store, session),
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
    """Compare the counters of the buffer with its contents."""
    state = store.state(session)
    ((size, low, high),) = session.query(
        "SELECT count(*), min(position), max(position) FROM steps WHERE buffer_id = ?", store.id
    )
    ((nbytes,),) = session.query(
        "SELECT (SELECT coalesce(sum(bytes), 0) FROM chunks WHERE buffer_id = ?) + "
        "(SELECT coalesce(sum(length(data)), 0) FROM shared_values WHERE buffer_id = ?)",
        store.id, store.id,
    )  # fmt: skip
    if size != state.size:
        yield f"the counter `size` is {state.size}, but the buffer holds {size} steps"
    most = state.capacity if state.pinned is None or state.capacity is None else 2 * state.capacity
    if state.trigger_evicts and most is not None and size > most:
        yield f"the buffer holds {size} steps, more than its capacity {state.capacity}"
    if size and (low < state.oldest or high >= state.added):
        yield f"positions {low} to {high} are not within {state.oldest} to {state.added - 1}"
    if nbytes != state.nbytes:
        yield (
            f"the counter `bytes` is {state.nbytes}, but the chunks and shared values hold "
            f"{nbytes} bytes"
        )


def _rows(store: Store, session: Session) -> Iterator[str]:
    """Yield the problems with rows that refer to missing rows."""
    statement = f"SELECT {', '.join(f'({count})' for count in _ROWS.values())}"
    (counts,) = session.query(statement, *[store.id] * statement.count("?"))
    yield from (f"{n} {problem}" for problem, n in zip(_ROWS, counts, strict=True) if n)


def _returns(store: Store, session: Session) -> Iterator[str]:
    """Compare the returns of complete episodes with the sums of their rewards.

    The comparison has a tolerance, because sums of floats depend on their order.
    """
    rows = session.query(_RETURNS, store.id)
    for episode_id, whole, summed, size, count, length in rows:
        total = None if whole is None else whole * 1e-20
        exact = total == summed or abs((total or 0.0) - (summed or 0.0)) <= 1e-6 * max(
            1e-20, size or 0.0
        )
        if count == length and not exact:
            yield (
                f"episode {episode_id!r} has the return {whole}, but its rewards sum to "
                f"{(summed or 0.0) * 1e20}"
            )


def _segments(store: Store, session: Session, segments: Segments) -> Iterator[str]:
    """Compare segments with the steps that they cover."""
    if len(segments.last) and not (segments.first[1:] > segments.last[:-1]).all():
        yield "segments overlap"
    rows = session.query("SELECT position, episode FROM steps WHERE buffer_id = ?", store.id)
    positions = np.array([position for position, _ in rows], np.int64)
    owners = np.array([episode for _, episode in rows], np.int64)
    try:
        index = segments.find(positions)
    except ExpDBError as error:
        yield f"steps without a segment: {error}"
        return
    if (owners != segments.episode[index]).any():
        yield "steps in a segment of another episode"
    state = store.state(session)
    covered = int(np.maximum(segments.last - np.maximum(segments.first, state.oldest) + 1, 0).sum())
    if covered - len(positions) > state.gaps:
        yield (
            f"segments cover {covered - len(positions)} missing steps, but the counter `holes` "
            f"is {state.gaps}"
        )


def _chunks(store: Store, session: Session, segments: Segments) -> Iterator[str]:
    """Decode every chunk and compare it with its segments and steps."""
    statement = "SELECT id FROM chunks WHERE buffer_id = ? ORDER BY id"
    ids = [id for (id,) in session.query(statement, store.id)]
    by_chunk = np.argsort(segments.chunk, kind="stable")
    in_order = segments.chunk[by_chunk]
    for start in range(0, len(ids), _CHUNKS_AT_ONCE):
        id_list = store.dialect.as_list(np.array(ids[start : start + _CHUNKS_AT_ONCE], np.int64))
        for id, rows, signature, crc, data in session.query(
            store.dialect.READ_CHUNKS, id_list, store.id
        ):
            of_chunk = by_chunk[slice(*np.searchsorted(in_order, (id, id + 1)))]
            ends = segments.chunk_row[of_chunk] + segments.last[of_chunk] - segments.first[of_chunk]
            if len(ends) and int(ends.max()) >= rows:
                yield f"chunk {id} has fewer rows than its segments need"
            try:
                chunk = store.signatures.decoder(session, signature).chunk(id, rows, crc, data)
                read_shared_values(session.query, store.id, [chunk], store.dialect)
                yield from _references(chunk)
                if not _agrees(store, session, chunk, segments.last[of_chunk]):
                    yield (
                        f"chunk {id} and the table `steps` differ in step numbers or rewards; "
                        "the segments refer to wrong rows of the chunk"
                    )
                yield from _fields(store, id, chunk)
            except ExpDBError as error:
                yield str(error)


def _references(chunk: Chunk) -> Iterator[str]:
    """Compare the shared values of a chunk with their digests and with the references."""
    if not chunk.has_shared_values:
        return
    if chunk.shared_digests() != chunk.shared_values.keys():
        yield f"the table `value_references` does not match the shared values of chunk {chunk.id}"
    for digest in chunk.shared_values:
        if digest_of(chunk.read_shared_value(digest)) != digest:
            yield f"shared value {digest.hex()} of chunk {chunk.id} does not match its digest"


def _annotations(store: Store, session: Session) -> Iterator[str]:
    """Decode every annotation."""
    last = -1
    while rows := session.query(
        "SELECT position, name, shape, crc, data FROM annotations WHERE buffer_id = ? "
        "AND position > ? ORDER BY position LIMIT ?",
        store.id, last, _ANNOTATIONS_AT_ONCE,
    ):  # fmt: skip
        # The next rows may belong to the last position, so it is read again with all of its rows.
        cut = rows[-1][0] if len(rows) == _ANNOTATIONS_AT_ONCE else None
        whole = [row for row in rows if row[0] != cut] or rows
        for position, name, shape, crc, data in whole:
            field = store.fields.annotations.get(name)
            if field is None:
                yield f"annotation {name!r} of position {position} has no type"
                continue
            try:
                decoded(store, name, position, field, shape, crc, data)
            except ExpDBError as error:
                yield str(error)
        last = whole[-1][0]


def _reports(store: Store, session: Session) -> Iterator[str]:
    """Yield the errors of reading the workers and the metrics."""
    for read in (
        lambda: list_workers(store, session, None),
        lambda: read_metrics(store, session, 0, None),
    ):
        try:
            read()
        except ExpDBError as error:
            yield str(error)


def _fields(store: Store, id: int, chunk: Chunk) -> Iterator[str]:
    """Decode every field of a chunk."""
    for name, field in chunk.signature.fields.items():
        chunk.present(name, 0, chunk.rows)
        # Reading no row of these fields checks all of their lengths. Reading all rows could take
        # many times the memory of the chunk.
        stop = 0 if name in chunk.signature.prefixed or field.ascending else chunk.rows
        (chunk.objects if field.varies else chunk.raw)(name, 0, stop)
        stored_type = store.fields.types.get(name, SYSTEM.get(name))
        if stored_type != field:
            yield f"chunk {id} stores field {name!r} as {field}, but the buffer as {stored_type}"


def _agrees(store: Store, session: Session, chunk: Chunk, segments: np.ndarray) -> bool:
    """Return whether a chunk and the table `steps` have the same step numbers and rewards.

    Steps that were changed later are ignored.
    """
    steps = np.frombuffer(chunk.raw("step", 0, chunk.rows), np.int64)
    rewards = np.frombuffer(chunk.raw("reward", 0, chunk.rows), np.float64)
    rows = session.query(
        "SELECT g.chunk_row + s.position - g.first, s.step, s.reward FROM segments g "
        "JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last "
        f"AND s.episode = g.episode WHERE g.buffer_id = ? AND g.last {store.dialect.AMONG} "
        "AND s.revision IS NULL",
        store.id, store.dialect.as_list(segments),
    )  # fmt: skip
    for row, step, reward in rows:
        if steps[row] != step or not (
            rewards[row] == reward or (reward is None and rewards[row] != rewards[row])
        ):
            return False
    return True
