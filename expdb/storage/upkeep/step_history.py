"""The history of one step, and why it cannot be leased now."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb.errors import DatabaseDamaged
from expdb.process.liveness import ProcessLiveness, describe_process
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.ledger import consumers, entries
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.entries import Entry
from expdb.storage.ledger.lease_rows import names_episodes
from expdb.storage.reading.segments import inconsistent
from expdb.storage.store import State, Store

S, E, G, L = tables.steps.c, tables.episodes.c, tables.segments.c, tables.leases.c


def why(store: Store, session: Session, position: int) -> Iterator[str]:
    """Yield the known facts about a position, one line each."""
    state = store.state(session)
    if position >= state.added:
        yield f"not written yet: the next position is {state.added}"
        return
    step = _step(store, session, position)
    if step is None:
        gone = "evicted" if position < state.oldest else "deleted"
        yield f"{gone}: the buffer holds {state.size} steps, from position {state.oldest} on"
    else:
        yield from _describe_step(step)
    version, others = consumers.policy_version(store, session), ProcessLiveness()
    ((now,),) = session.query(f"SELECT {store.dialect.NOW}")
    for name in consumers.list_consumers(store, session):
        consumer = consumers.find_consumer(store, session, name)
        assert consumer is not None
        leases = list(_leases(store, session, consumer, position, step))
        for entry, row in leases:
            yield f"{time_of(row.leased)}: {_lease_text(name, entry, row, now, others)}"
        leases = [(entry, row) for entry, row in leases if not _end_of(row, now, others)]
        reason = None if step is None else _refusal_reason(consumer, state, step, leases, version)
        if reason is not None:
            yield f"consumer {name!r} cannot lease it now: {reason}"


def _step(store: Store, session: Session, position: int) -> dict[str, Any] | None:
    """Return columns of a stored step and its episode, and the first position of the episode."""
    of_episode = sa.and_(E.buffer_id == S.buffer_id, E.id == S.episode)
    first = (
        sa.select(sa.func.min(G.first))
        .where(G.buffer_id == S.buffer_id, G.episode == S.episode)
        .correlate(tables.steps)
        .scalar_subquery()
    )
    names = ("episode_id", "task_id", "agent_id", "run", "status")
    versions = {name: tables.VIEW[name] for name in ("policy_version", "policy_version_end")}
    rows = session.query(
        sa.select(
            S.position, S.step, S.execute_time, S.reward, S.revision,
            tables.priority.label("priority"), first.label("first"), *[E[name] for name in names],
            *[column.sql.label(name) for name, column in versions.items()],
        )
        .select_from(tables.steps.join(tables.episodes, of_episode))
        .where(S.buffer_id == store.id, S.position == position)
    )  # fmt: skip
    if rows and rows[0].first is None:
        raise inconsistent(f"the episode of step {position} has no segment")
    return dict(rows[0]._mapping) if rows else None


def _describe_step(step: dict[str, Any]) -> Iterator[str]:
    """Yield lines that describe a step and its later changes."""
    yield (
        f"{time_of(step['execute_time'])}: stored as step {step['step']} of episode "
        f"{step['episode_id']!r} ({step['status']}; task {step['task_id']!r}, agent "
        f"{step['agent_id']!r}, run {step['run']!r})"
    )
    if step["revision"] is not None:
        yield f"changed since it was stored, at revision {step['revision']} of the buffer"
    if step["reward"] is not None:
        yield f"reward {step['reward']:g}"
    if step["priority"] is not None:
        yield f"priority {step['priority']:g}"
    if step["policy_version"] is not None:
        first, last = step["policy_version"], step["policy_version_end"]
        yield f"policy_version {first}" + (f" to {last}" if last != first else "")


def _leases(
    store: Store,
    session: Session,
    consumer: ConsumerRecord,
    position: int,
    step: dict[str, Any] | None,
) -> Iterator[tuple[Entry, Any]]:
    """Yield the leases of a position or of its whole episode."""
    first = position if step is None else step["first"]
    near = sa.and_(
        sa.or_(L.first <= position, L.first <= first), sa.or_(L.last >= position, L.last >= first)
    )
    columns = L.id, L.status, L.leased, L.ended, L.expires, L.holder, L.trainer_step
    of_consumer = sa.and_(L.buffer_id == store.id, L.consumer == consumer.id, near)
    rows = {row.id: row for row in session.query(sa.select(*columns).where(of_consumer))}
    for entry in entries.read_entries(store, session, consumer, near):
        if isinstance(entry, DatabaseDamaged):
            raise entry
        whole = names_episodes(entry.request["unit"])
        if np.isin(first if whole else position, entry.drawn.items):
            yield entry, rows[entry.id]


def _end_of(row: Any, now: float, others: ProcessLiveness) -> str | None:
    """Return why the next lease releases the lease in `row`, or None if it is not released."""
    if row.status != "leased":
        return None
    if row.expires <= now:
        return f"expired at {time_of(row.expires)}"
    return "its process has ended" if others.has_ended(row.holder) else None


def _lease_text(name: str, entry: Entry, row: Any, now: float, others: ProcessLiveness) -> str:
    what = f"leased in batch {entry.number} of consumer {name!r}, lease {entry.id}"
    if end := _end_of(row, now, others):
        return f"{what}; {end}, so the next lease releases it"
    if row.status == "leased":
        return f"{what}; leased until {time_of(row.expires)} by {describe_process(row.holder)}"
    if row.status == "acknowledged":
        step = "" if row.trainer_step is None else f" at step {row.trainer_step}"
        return f"{what}; acknowledged{step} at {time_of(row.ended)}"
    return f"{what}; released at {time_of(row.ended)}"


def _refusal_reason(
    consumer: ConsumerRecord,
    state: State,
    step: dict[str, Any],
    leases: list[tuple[Entry, Any]],
    version: int | None,
) -> str | None:
    """Return why a consumer cannot lease a stored step, or None if it can."""
    settings = consumer.settings
    counts = [entry for entry, row in leases if row.status in ("leased", "acknowledged")]
    lease_ids = [entry.id for entry, row in leases if row.status == "leased"]
    times = sum(int(np.isin(entry.drawn.items, _names(entry, step)).sum()) for entry in counts)
    if lease_ids:
        return f"it is in lease {lease_ids[0]}"
    most = settings.max_times_sampled
    if most is not None and times >= most:
        often = "once" if times == 1 else f"{times} times"
        return f"it was leased {often}, and max_times_sampled={most}"
    if settings.new_only and step["position"] < consumer.began:
        return f"it was stored before the consumer was created, at position {consumer.began}"
    if settings.max_staleness is not None and version is not None:
        oldest = version - settings.max_staleness
        if step["policy_version"] is None:
            return (
                f"it has no policy_version, and max_staleness is {settings.max_staleness}; store "
                "steps with policy_version="
            )
        if step["policy_version"] < oldest:
            return f"the buffer has policy_version {version}, and max_staleness is " + str(
                settings.max_staleness
            )
    if state.size < settings.min_size:
        return f"the buffer holds {state.size} steps, and min_size={settings.min_size}"
    return None


def _names(entry: Entry, step: dict[str, Any]) -> int:
    """Return the position by which a lease names a step."""
    whole = names_episodes(entry.request["unit"])
    return int(step["first"] if whole else step["position"])


def time_of(seconds: float | None) -> str:
    """Return a time as text, in UTC."""
    if seconds is None:
        return "at an unknown time"
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds")[:-6] + "Z"
    except (ValueError, OverflowError, OSError):  # outside of the years 1 to 9999
        return f"at {seconds} s"
