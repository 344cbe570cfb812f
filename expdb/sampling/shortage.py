"""Why there is too little to sample from.

It says what a buffer holds, what matches, and what is missing.
"""

from expdb.errors import TooFewRows
from expdb.names import nearest
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.catalog import list_buffers
from expdb.storage.reading import select
from expdb.storage.store import Store


def explained(
    store: Store, session: Session, condition: Condition | None, error: TooFewRows
) -> TooFewRows:
    """Return the error with what the buffer holds in front of it."""
    state = store.state(session)
    if not state.added:
        other = nearest(store.name, [name for name in list_buffers(session) if name != store.name])
        meant = f" ({other.removeprefix(', ')})" if other else ""
        return TooFewRows(f"buffer {store.name!r} holds no step, and never did: {error}{meant}")
    if not state.size:
        return TooFewRows(
            f"buffer {store.name!r} holds no step, all were evicted or deleted: {error}"
        )
    found = f"buffer {store.name!r} holds {state.size:,} step{'s' * (state.size != 1)}"
    if condition is not None:
        found += f", {select.count(store, session, condition):,} of which match the query"
    open_ones = select.open_episodes(store, session, condition)
    if open_ones:
        whose, are = "its" if state.size == 1 else "their", "is" if open_ones == 1 else "are"
        found += f", and {open_ones:,} of {whose} episodes {are} open"
    return TooFewRows(f"{found}: {error}")
