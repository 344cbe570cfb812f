"""Find the steps, tasks and episodes of a buffer that match a condition."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import COLUMN_KINDS, EPISODE_COLUMNS, SCORE, STEP_COLUMNS, nearest
from expdb.sql import tables
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading.segments import Segments
from expdb.storage.store import State, Store

S, E, G = tables.steps.c, tables.episodes.c, tables.segments.c


def _steps(
    store: Store, where: Condition | None, *columns: Any, join: bool = False
) -> sa.Select[Any]:
    """Return a SELECT over steps.

    With `join`, or if the condition uses columns of episodes, the SELECT joins the episodes.
    """
    if join or (where is not None and where.of_episodes):
        statement = (
            sa.select(*columns)
            .select_from(tables.STEPS_OF_EPISODES)
            .where(E.buffer_id == store.id, S.buffer_id == store.id)
        )
    else:
        statement = sa.select(*columns).select_from(tables.steps).where(S.buffer_id == store.id)
    return statement if where is None else statement.where(where.sql)


def _episodes(store: Store, where: Condition | None, *columns: Any) -> sa.Select[Any]:
    """Return a SELECT over episodes and their segments, where `_by_episode` allows it."""
    statement = (
        sa.select(*columns).select_from(tables.SEGMENTS_OF_EPISODES).where(E.buffer_id == store.id)
    )
    if where is None:
        return statement
    return statement.where(_whole(where))


def _whole(where: Condition) -> sa.ColumnElement[bool]:
    assert where.whole is not None
    return where.whole


def _by_episode(where: Condition | None, state: State) -> bool:
    """Return whether segments are enough to evaluate a condition.

    They are enough if the condition uses no columns of steps and no segment covers a deleted step.
    """
    if state.gaps or where is None:
        return not state.gaps
    return where.whole is not None and not (where.asks_agents and state.has_agents)


def count(store: Store, session: Session, where: Condition | None) -> int:
    """Return how many steps match."""
    state = store.state(session)
    if where is None:
        return state.size
    if _by_episode(where, state):
        length = G.last - sa.case((G.first < state.oldest, state.oldest), else_=G.first) + 1
        ((total,),) = session.fetch(
            _episodes(store, where, sa.func.coalesce(sa.func.sum(length), 0))
        )
    else:
        ((total,),) = session.fetch(_steps(store, where, sa.func.count(S.position)))
    return int(total)


def open_episodes(store: Store, session: Session, where: Condition | None) -> int:
    """Return how many open episodes have a matching step."""
    statement = _steps(store, where, sa.func.count(sa.distinct(E.id)), join=True).where(
        E.status == "open"
    )
    ((total,),) = session.fetch(statement)
    return int(total)


def positions(
    store: Store,
    session: Session,
    where: Condition | None,
    *,
    after: int = -1,
    among: np.ndarray | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> np.ndarray:
    """Return the matching positions above `after` and in `among`, if given, ascending, int64."""
    statement = _steps(store, where, S.position).order_by(S.position)
    if among is not None:
        statement = statement.where(store.dialect.among(S.position, among.tolist()))
    if after >= 0:
        statement = statement.where(S.position > after)
    if limit is not None:
        statement = statement.limit(limit).offset(offset)
    rows = session.fetch(statement)
    return np.fromiter((row[0] for row in rows), np.int64, len(rows))


def positions_of_episodes(
    store: Store, session: Session, ids: np.ndarray, before: int
) -> np.ndarray:
    """Return the positions below `before` that segments of the episodes cover, ascending."""
    rows = session.query(
        f"SELECT last, first FROM segments WHERE buffer_id = ? AND episode {store.dialect.AMONG} "
        "AND first < ? ORDER BY last",
        store.id, store.dialect.as_list(ids), before,
    )  # fmt: skip
    ranges = [np.arange(first, min(last + 1, before)) for last, first in rows]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)


def ordered(
    store: Store,
    session: Session,
    where: Condition | None,
    column: str,
    descending: bool,
    limit: int,
    offset: int,
) -> np.ndarray:
    """Return matching positions, int64, ordered by a column (NULL last) and then by position."""
    view_column = tables.view_column(column)
    if view_column is None:
        names = dict.fromkeys((*STEP_COLUMNS, *EPISODE_COLUMNS))
        raise errors.QueryError(
            f"no column {column!r} to order by{nearest(column, names) or ';'} the columns are "
            f"{', '.join(names)} and scores.<name>"
        )
    by = view_column.sql
    statement = _steps(store, where, S.position, join=view_column.of_episodes)
    order = [by.is_(None), by.desc() if descending else by.asc()] if by is not S.position else []
    last = S.position.desc() if descending and not order else S.position
    rows = session.fetch(statement.order_by(*order, last).limit(limit).offset(offset))
    return np.fromiter((row[0] for row in rows), np.int64, len(rows))


# Columns of episodes with numbers; the other columns hold text.
NUMBERS_OF_EPISODES = tuple(
    name
    for name in EPISODE_COLUMNS
    if COLUMN_KINDS[name] in ("integer", "integer?", "real", "flag")
)


def is_number(name: str) -> bool:
    """Return whether a column of episodes has numbers; the score of an episode is a number."""
    return name in NUMBERS_OF_EPISODES or SCORE.fullmatch(name) is not None


def columns_of_episodes(
    store: Store, session: Session, names: tuple[str, ...], after: int, ids: np.ndarray
) -> list[Any]:
    """Return the id and columns of the episodes whose id is above `after` or in `ids`.

    `scores.<name>` is the score of the last step, or negative infinity if a judge failed.
    """
    if any(map(SCORE.fullmatch, names)):
        return _scores_of_episodes(store, session, names, after, ids)
    columns = [tables.COMPUTED_SQL.get(name, name) for name in names]
    statement = f"SELECT id, {', '.join(columns)} FROM episodes WHERE buffer_id = ? AND id"
    rows: list[Any] = list(session.query(f"{statement} > ?", store.id, after))
    if len(ids):
        listed = store.dialect.as_list(ids)
        rows += session.query(f"{statement} {store.dialect.AMONG}", store.id, listed)
    return rows


def _scores_of_episodes(
    store: Store, session: Session, names: tuple[str, ...], after: int, ids: np.ndarray
) -> list[Any]:
    scores = {name: match[1] for name in names if (match := SCORE.fullmatch(name))}
    columns = [
        tables.score_of_episode(scores[name]) if name in scores else tables.OF_EPISODES[name]
        for name in names
    ]
    chosen = sa.or_(E.id > after, store.dialect.among(E.id, ids.tolist()))
    return session.fetch(sa.select(E.id, *columns).where(E.buffer_id == store.id, chosen))


def complete_rollouts(
    store: Store, session: Session, where: Condition | None, relations: Sequence[str], newest: bool
) -> list[Any]:
    """Return the complete episodes with a matching step, in the order of their numbers.

    `relations` are the relations to their parents; "root" stands for no parent. Each row contains
    the group, task, return, oldest policy version (with `newest` the newest one), number, and the
    number of own steps.
    """
    version = E.last_policy_version if newest else E.first_policy_version
    own_length = E.length - sa.func.coalesce(E.shared_steps, 0)
    columns = E.group_id, E.task_id, E.episode_return, version, E.id, own_length
    is_rollout = sa.func.coalesce(E.relation, "root").in_(relations)
    rows = sa.select(*columns).where(E.buffer_id == store.id, E.status == "complete", is_rollout)
    if where is not None:
        rows = rows.where(has_matching_step(store, session, where))
    return session.fetch(rows.order_by(E.id))


def own_versions(
    store: Store, session: Session, first: int, among: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and versions of the steps with their own `policy_version`, int64.

    Only steps from position `first` on, or with a position in `among`, are included.
    """
    statement = (
        "SELECT position, policy_version FROM steps WHERE buffer_id = ? AND policy_version IS NOT "
        "NULL AND position"
    )
    rows: list[Any] = list(session.query(f"{statement} >= ?", store.id, first))
    if len(among):
        listed = store.dialect.as_list(among)
        rows += session.query(f"{statement} {store.dialect.AMONG}", store.id, listed)
    versions = np.array(rows, np.int64).reshape(-1, 2)
    return versions[:, 0], versions[:, 1]


def agents_of_steps(
    store: Store, session: Session, first: int, among: np.ndarray
) -> list[tuple[int, str]]:
    """Return position and agent of the steps from `first` on, or with a position in `among`."""
    chosen = S.position >= first
    if len(among):
        chosen = sa.or_(chosen, store.dialect.among(S.position, among.tolist()))
    agent = tables.VIEW["agent_id"].sql
    return session.fetch(_steps(store, None, S.position, agent, join=True).where(chosen))


def stale_episodes(
    store: Store, session: Session, oldest: int | None, oldest_of_agents: Mapping[str, int]
) -> np.ndarray:
    """Return the ids of the episodes with a step whose policy version is too old or unknown.

    `oldest` is the lowest version that is not too old; `oldest_of_agents` has that of some agents.
    """
    agent, version = tables.VIEW["agent_id"].sql, tables.VIEW["policy_version"].sql
    usual = sa.literal(oldest, sa.BigInteger())
    limit = sa.case(*[(agent == name, sa.literal(least, sa.BigInteger()))
                      for name, least in oldest_of_agents.items()], else_=usual)  # fmt: skip
    is_stale = sa.and_(limit.is_not(None), sa.or_(version.is_(None), version < limit))
    rows = session.fetch(_steps(store, None, E.id, join=True).where(is_stale).distinct())
    return np.array(sorted(row[0] for row in rows), np.int64)


def own_scores(
    store: Store, session: Session, name: str, first: int, among: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions, int64, and scores, float64, of the steps with a score of this name.

    Only steps from position `first` on, or with a position in `among`, are included.
    """
    column = tables.view_column(f"scores.{name}")
    assert column is not None
    chosen = S.position >= first
    if len(among):
        chosen = sa.or_(chosen, store.dialect.among(S.position, among.tolist()))
    has_scores = S.buffer_id == store.id, S.scores.is_not(None), column.sql.is_not(None)
    rows = session.fetch(sa.select(S.position, column.sql).where(chosen, *has_scores))
    positions = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    return positions, np.fromiter((row[1] for row in rows), np.float64, len(rows))


def tasks(store: Store, session: Session, where: Condition | None) -> list[str]:
    """Return the ids of the tasks with a matching step, ordered by their first matching step."""
    if _by_episode(where, store.state(session)):
        statement = _episodes(store, where, E.task_id, sa.func.min(G.first).label("first"))
    else:
        statement = _steps(
            store, where, E.task_id, sa.func.min(S.position).label("first"), join=True
        )
    return [
        task
        for task, _ in session.fetch(
            statement.group_by(E.task_id).order_by(sa.literal_column("first"))
        )
    ]


def episode_ids(store: Store, session: Session) -> tuple[int, int]:
    """Return the least episode id and the greatest one plus 1; (0, 0) without episodes."""
    ((least, greatest),) = session.query(
        "SELECT (SELECT min(id) FROM episodes WHERE buffer_id = ?), (SELECT max(id) FROM episodes "
        "WHERE buffer_id = ?)",
        store.id, store.id,
    )  # fmt: skip
    return (0, 0) if least is None else (least, greatest + 1)


def first_of_tasks(store: Store, session: Session, ids: np.ndarray) -> dict[int, str]:
    """Return, by episode id, the task of each of the episodes that is the first of its task."""
    return dict(session.query(store.dialect.FIRST_OF_TASKS, store.dialect.as_list(ids), store.id))


def tasks_required(
    store: Store, session: Session, where: Condition | None, limit: int
) -> list[str] | None:
    """Return the tasks with an episode that meets the condition's part about episodes, sorted.

    Return None if the condition has no such part, or if more than `limit` tasks meet it.
    """
    if where is None or where.of_episode is None:
        return None
    statement = (
        sa.select(E.task_id)
        .where(E.buffer_id == store.id, where.of_episode)
        .distinct()
        .limit(limit + 1)
    )
    names = sorted(task for (task,) in session.fetch(statement))
    return names if len(names) <= limit else None


def tasks_among(
    store: Store, session: Session, candidates: list[str], where: Condition | None
) -> set[str]:
    """Return the candidates that have a matching step.

    The search for a task ends at its first matching step.
    """
    if not candidates:
        return set()
    statement = sa.select(E.task_id).where(
        E.buffer_id == store.id, store.dialect.among(E.task_id, candidates)
    )
    matching = statement.where(has_matching_step(store, session, where))
    return {task for (task,) in session.fetch(matching.distinct())}


def has_matching_step(
    store: Store, session: Session, where: Condition | None
) -> sa.ColumnElement[bool]:
    """Return the SQL condition that an episode has a matching step."""
    source: sa.FromClause = tables.segments
    by_episode = _by_episode(where, store.state(session))
    if not by_episode:
        source = tables.STEPS_OF_SEGMENTS
    matching: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(source)
    matching = matching.where(tables.OF_EPISODE).correlate(tables.episodes)
    if where is not None:
        matching = matching.where(_whole(where) if by_episode else where.sql)
    return matching.exists()


def segments_of_tasks(
    store: Store, session: Session, chosen: list[str]
) -> tuple[list[str], Segments]:
    """Return the task of each segment of the chosen tasks, and the segments, ascending."""
    columns = (E.task_id, G.last, G.first, G.episode, G.ordinal, G.chunk, G.chunk_row)
    of_tasks = store.dialect.among(E.task_id, chosen)
    among = Condition(of_tasks, False, True, whole=of_tasks)
    rows = session.fetch(_episodes(store, among, *columns).order_by(G.last))
    return [row[0] for row in rows], Segments.of([row[1:] for row in rows])


def steps_of_tasks(
    store: Store, session: Session, chosen: list[str], where: Condition | None
) -> tuple[list[str], np.ndarray]:
    """Return tasks and positions of the matching steps of the chosen tasks, by position."""
    among = Condition(store.dialect.among(E.task_id, chosen), False, True)
    both = among if where is None else Condition(sa.and_(among.sql, where.sql), True, True)
    rows = session.fetch(_steps(store, both, E.task_id, S.position).order_by(S.position))
    return [row[0] for row in rows], np.fromiter((row[1] for row in rows), np.int64, len(rows))


# PostgreSQL assumes that each segment covers a ninth of all steps. Without constant bounds on the
# position, it would read the whole table instead of using the index.
MAX_BOUNDED_EPISODES = 10_000


def _positions_between(store: Store, session: Session, after: int, before: int) -> tuple[int, int]:
    """Return the first and the last position of the episodes between two numbers."""
    ((first, last),) = session.query(
        "SELECT min(first), max(last) FROM segments WHERE buffer_id = ? AND episode > ? "
        "AND episode < ?",
        store.id, after, before,
    )  # fmt: skip
    return (0, -1) if first is None else (first, last)


def episodes(
    store: Store,
    session: Session,
    where: Condition | None,
    before: int | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names, and the rows of the episodes with a matching step, oldest first.

    Return only episodes whose numbers are between `after` and `before`, both exclusive, and at most
    `limit` episodes.
    """
    columns = [E.id.label("episode"), *tables.OF_EPISODES.values()]
    segments: sa.Select[Any] = (
        sa.select(sa.literal_column("1")).where(tables.OF_EPISODE).correlate(tables.episodes)
    )
    statement = sa.select(*columns).where(E.buffer_id == store.id)
    if before is not None:
        statement = statement.where(E.id < before)
    if after is not None:
        statement = statement.where(E.id > after)
    if where is None:
        statement = statement.where(segments.exists())
    elif not where.of_steps or _by_episode(where, store.state(session)):
        statement = statement.where(segments.exists(), _whole(where))
    elif before is None and after is None and limit is None:
        statement = statement.where(segments.exists(), E.id.in_(_steps(store, where, S.episode)))
    else:  # test each episode of the range
        steps = segments.join(tables.steps, tables.IN_SEGMENT).where(where.sql)
        if before is not None and after is not None and before - after <= MAX_BOUNDED_EPISODES:
            first, last = _positions_between(store, session, after, before)
            steps = steps.where(S.position >= first, S.position <= last)
        statement = statement.where(steps.exists())
    ascending = limit is None
    statement = statement.order_by(E.id if ascending else E.id.desc()).limit(limit)
    rows = session.fetch(statement)
    return [column.name for column in columns], rows if ascending else rows[::-1]
