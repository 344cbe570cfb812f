"""Count the complete episodes of each task, and their successes."""

from typing import Any

import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store

B, E = tables.buffers.c, tables.episodes.c
COLUMNS = {
    "task_id": "text", "episodes": "integer", "known": "integer", "mean": "real",
    "success_rate": "real", "first_policy_version": "integer?", "last_policy_version": "integer?",
    "staleness": "integer?", "last_ended": "real",
}  # fmt: skip


def read(
    store: Store, session: Session, where: Condition | None, score: str | None, success: float
) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each task with a complete episode that has a matching step."""
    value = E.episode_return if score is None else tables.score_of_episode(score)
    complete = (
        sa.select(
            E.task_id, E.first_policy_version, E.last_policy_version, E.ended, value.label("value")
        )
        .where(E.buffer_id == store.id, E.status == "complete")
    )  # fmt: skip
    if where is not None:
        complete = complete.where(select.has_matching_step(store, session, where))
    episodes = complete.subquery().c
    # Negative infinity means that a judge failed.
    value_or_null = sa.case((episodes.value > sa.literal(float("-inf")), episodes.value))
    first = sa.func.min(episodes.ended)
    statement = sa.select(
        episodes.task_id,
        sa.func.count(),
        sa.func.count(value_or_null),
        sa.func.avg(value_or_null),
        sa.func.avg(sa.case((value_or_null >= success, 1.0), (value_or_null < success, 0.0))),
        sa.func.min(episodes.first_policy_version),
        sa.func.max(episodes.last_policy_version),
        sa.func.max(episodes.ended),
    )
    newest = session.query(
        sa.select(tables.buffers.c.policy_version).where(tables.buffers.c.id == store.id)
    )[0][0]
    return [
        (
            task, count, scored, mean, None if rate is None else float(rate), oldest, latest,
            None if newest is None or latest is None else newest - latest, ended,
        )
        for task, count, scored, mean, rate, oldest, latest, ended in session.fetch(
            statement.group_by(episodes.task_id).order_by(first, episodes.task_id)
        )
    ]  # fmt: skip
