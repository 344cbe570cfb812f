"""Read the history of scores."""

from typing import Any

import sqlalchemy as sa

from expdb import checks
from expdb.sql import tables
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.store import Store

E, R, S = tables.episodes.c, tables.scores.c, tables.steps.c

# The columns of the history, with their types.
COLUMNS = {
    "id": "integer", "episode_id": "text", "episode": "integer", "position": "integer",
    "name": "text", "value": "real", "scored_by": "text", "status": "text", "detail": "text",
    "scored": "real",
}  # fmt: skip


def read(store: Store, session: Session, where: Condition | None, name: str | None) -> list[Any]:
    """Return the scores of the matching steps and of their episodes, oldest first."""
    of_episode = sa.and_(E.buffer_id == R.buffer_id, E.id == R.episode)
    statement = (
        sa.select(*[R.get(column, E.episode_id) for column in COLUMNS])
        .select_from(tables.scores.join(tables.episodes, of_episode))
        .where(R.buffer_id == store.id)
        .order_by(R.id)
    )
    if where is not None:
        matching = tables.STEPS_OF_EPISODES if where.of_episodes else tables.steps
        steps = sa.select(S.position, S.episode).select_from(matching)
        chosen = steps.where(S.buffer_id == store.id, where.sql).subquery()
        of_step = R.position.in_(sa.select(chosen.c.position))
        of_whole = sa.and_(R.position.is_(None), R.episode.in_(sa.select(chosen.c.episode)))
        statement = statement.where(sa.or_(of_step, of_whole))
    if name is not None:
        statement = statement.where(R.name == checks.score_name(name))
    return session.fetch(statement)
