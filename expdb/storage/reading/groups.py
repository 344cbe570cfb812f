"""Find groups of rollouts that are not finished."""

from typing import NamedTuple

import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store

E = tables.episodes.c

# The columns of `unfinished`, with their types.
COLUMNS = {
    "group_id": "text", "task_id": "text", "complete": "integer", "open": "integer",
    "aborted": "integer", "missing": "integer", "episode_ids": "texts",
}  # fmt: skip


class UnfinishedGroup(NamedTuple):
    """A group with fewer complete rollouts than it needs."""

    group_id: str | None  # None for the episodes of a task without a group
    task_id: str
    complete: int
    open: int
    aborted: int
    missing: int
    episode_ids: list[str]  # of the open and aborted rollouts, oldest first


def unfinished(store: Store, session: Session, group_size: int) -> list[UnfinishedGroup]:
    """Return the groups with fewer than `group_size` complete rollouts, oldest first."""
    own_task = sa.case((E.group_id.is_(None), E.task_id))
    counts = [
        sa.func.sum(sa.case((E.status == status, 1), else_=0))
        for status in ("complete", "open", "aborted")
    ]
    groups = session.fetch(
        sa.select(E.group_id, own_task, sa.func.min(E.task_id), *counts)
        .where(E.buffer_id == store.id)
        .group_by(E.group_id, own_task)
        .having(counts[0] < sa.literal(group_size, sa.BigInteger()))
        .order_by(sa.func.min(E.id))
    )
    interrupted: dict[tuple[str | None, str | None], list[str]] = {}
    rows = session.fetch(
        sa.select(E.group_id, own_task, E.episode_id)
        .where(E.buffer_id == store.id, E.status != "complete")
        .order_by(E.id)
    )
    for group_id, task, episode_id in rows:
        interrupted.setdefault((group_id, task), []).append(episode_id)
    return [
        UnfinishedGroup(
            group_id, first_task, int(complete), int(is_open), int(aborted),
            group_size - int(complete), interrupted.get((group_id, task), []),
        )
        for group_id, task, first_task, complete, is_open, aborted in groups
    ]  # fmt: skip
