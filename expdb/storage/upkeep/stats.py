"""Figures about a buffer, for people and machines."""

from typing import Any

from expdb.sql.session import Session
from expdb.storage.store import Store


def buffer_stats(store: Store, session: Session) -> dict[str, Any]:
    """Return counts, sizes and fields as plain JSON values.

    `bytes` is what the chunks hold; rows, indexes and free pages come on top in the file.
    """
    state = store.state(session)
    by_status = dict(
        session.ask(
            "SELECT status, count(*) FROM episodes WHERE buffer_id = ? GROUP BY status", store.id
        )
    )
    ((tasks,),) = session.ask(
        "SELECT count(DISTINCT task_id) FROM episodes WHERE buffer_id = ?", store.id
    )
    ((chunks,),) = session.ask("SELECT count(*) FROM chunks WHERE buffer_id = ?", store.id)
    return {
        "name": store.name,
        "capacity": state.capacity,
        "steps": state.size,
        "added": state.added,
        "oldest": state.oldest,
        "episodes": {
            status: by_status.get(status, 0) for status in ("open", "complete", "aborted")
        },
        "tasks": tasks,
        "chunks": chunks,
        "bytes": state.nbytes,
        "revision": state.revision,
        "fields": {name: str(field) for name, field in store.fields.types.items()},
        "optional_fields": sorted(store.fields.optional),
    }
