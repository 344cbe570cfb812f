"""Statistics of a buffer."""

from typing import Any

import sqlalchemy as sa

from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store

E = tables.episodes.c


def buffer_stats(store: Store, session: Session) -> dict[str, Any]:
    """Return counts, sizes and fields as plain JSON values.

    `bytes` is the size of the chunks and shared values; the file also holds rows, indexes and free
    pages.
    """
    state = store.state(session)
    by_status: dict[str, int] = dict(
        session.fetch(
            sa.select(E.status, sa.func.count()).where(E.buffer_id == store.id).group_by(E.status)
        )
    )
    tasks = sa.select(sa.func.count(E.task_id.distinct())).where(E.buffer_id == store.id)
    chunks = sa.select(sa.func.count()).where(tables.chunks.c.buffer_id == store.id)
    return {
        "name": store.name,
        "capacity": state.capacity,
        "steps": state.size,
        "added": state.added,
        "oldest": state.oldest,
        "pinned": state.pinned,
        "episodes": {
            status: by_status.get(status, 0) for status in ("open", "complete", "aborted")
        },
        "tasks": session.query(tasks)[0][0],
        "chunks": session.query(chunks)[0][0],
        "bytes": state.nbytes,
        "revision": state.revision,
        "fields": {name: str(field) for name, field in store.fields.types.items()},
        "optional_fields": sorted(store.fields.optional),
        "replaced_characters": 0 if store.replacements is None else store.replacements.count,
        "annotations": {name: str(field) for name, field in store.fields.annotations.items()},
    }
