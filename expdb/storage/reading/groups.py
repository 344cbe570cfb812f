"""Find groups of rollouts that are not finished."""

from typing import Any

from expdb.sql.session import Session
from expdb.sql.tables import IS_ROLLOUT
from expdb.storage.store import Store

# The columns of `unfinished`, with their types.
COLUMNS = {
    "group_id": "text", "task_id": "text", "complete": "integer", "open": "integer",
    "aborted": "integer", "missing": "integer", "episode_ids": "texts",
}  # fmt: skip


def unfinished(store: Store, session: Session, group_size: int) -> list[tuple[Any, ...]]:
    """Return a row of `COLUMNS` for each group with too few complete rollouts, oldest first."""
    # This condition must equal that of the partial index `episodes_incomplete`.
    rows = session.query(
        "SELECT group_id, task_id, status, episode_id FROM episodes "
        f"WHERE buffer_id = ? AND status <> 'complete' AND {IS_ROLLOUT} ORDER BY id",
        store.id,
    )
    interrupted: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for group_id, task, status, episode_id in rows:
        group = (task, True) if group_id is None else (group_id, False)
        interrupted.setdefault(group, []).append((status, episode_id))
    groups = session.query(
        "SELECT name, is_task, task_id, complete FROM rollout_groups "
        "WHERE buffer_id = ? AND complete < ? ORDER BY first_episode",
        store.id, group_size,
    )  # fmt: skip
    unfinished_groups: list[tuple[Any, ...]] = []
    for name, is_task, task, complete in groups:
        rollouts = interrupted.get((name, bool(is_task)), [])
        open_count = sum(status == "open" for status, _ in rollouts)
        aborted, ids = len(rollouts) - open_count, [episode_id for _, episode_id in rollouts]
        group_id, missing = None if is_task else name, group_size - complete
        unfinished_groups.append((group_id, task, complete, open_count, aborted, missing, ids))
    return unfinished_groups
