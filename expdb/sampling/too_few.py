"""Explain why a sample cannot be drawn from a buffer."""

from expdb import errors
from expdb.memory.resident import Resident
from expdb.names import nearest
from expdb.replay.units import Unit
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.catalog import list_buffers
from expdb.storage.reading import select
from expdb.storage.store import Store


def explain_gap(error: errors.TooFewRows, resident: Resident, unit: Unit) -> errors.TooFewRows:
    """Return an error that also names missing step numbers if they end trajectories of the unit."""
    if resident.number_gap is None or not unit.follows_links or unit.joins_gaps:
        return error
    episode, before, after = resident.number_gap
    return errors.TooFewRows(
        f"{error}; step numbers are missing, such as those between step {before} and step {after} "
        f"of episode {episode}, and trajectories end at these gaps unless gaps='join'"
    )


def explain_too_few(
    store: Store, session: Session, condition: Condition | None, error: errors.TooFewRows
) -> errors.TooFewRows:
    """Return an error that also counts the stored steps, the matches and the open episodes."""
    state = store.state(session)
    if not state.added:
        other = nearest(store.name, [name for name in list_buffers(session) if name != store.name])
        meant = f" ({other.removeprefix(', ')})" if other else ""
        return errors.TooFewRows(
            f"buffer {store.name!r} of {store.engine.location} is empty, and no step was ever "
            f"stored; {error}{meant}"
        )
    if not state.size:
        return errors.TooFewRows(
            f"buffer {store.name!r} is empty, because all steps were evicted or deleted; {error}"
        )
    summary = f"buffer {store.name!r} holds {state.size:,} step{'s' * (state.size != 1)}"
    if condition is not None:
        summary += f", {select.count(store, session, condition):,} of which match the query"
    open_ones = select.open_episodes(store, session, condition)
    if open_ones:
        whose, are = "its" if state.size == 1 else "their", "is" if open_ones == 1 else "are"
        summary += f", and {open_ones:,} of {whose} episodes {are} open"
    if state.capacity is not None:
        ((long_episodes,),) = session.query(
            "SELECT count(*) FROM episodes WHERE buffer_id = ? AND length > ?",
            store.id, state.capacity,
        )  # fmt: skip
        if long_episodes:
            summary += f"; raise its capacity of {state.capacity:,} to sample whole episodes"
    return errors.TooFewRows(f"{summary}; {error}")
