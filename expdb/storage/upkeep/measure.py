"""Measure a buffer: cumulative counters, and gauges of the current state.

Every query reads a bounded number of rows, so that a measurement takes milliseconds in a
buffer of any size. On a server, most queries share one round trip.
"""

from __future__ import annotations  # so that annotations do not import numpy.random

import functools
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from expdb import errors
from expdb.process.liveness import has_ended
from expdb.sql.session import Session
from expdb.sql.tables import active_lease_condition
from expdb.storage.activity import ROLES
from expdb.storage.ledger.encoding import unpack_positions
from expdb.storage.reading import fetch
from expdb.storage.store import State, Store
from expdb.storage.stored_json import parse_numbers
from expdb.storage.upkeep.measure_groups import (
    GROUP_WINDOW_EPISODES,
    LEASES_PER_CONSUMER,
    ROLLOUTS,
    count_groups,
)

SILENT_AFTER_SECONDS = 60.0  # time without a report after which a worker is silent
MOSTLY_WAITING = 0.5  # share of the time between two reports
TOKEN_WINDOW_STEPS = 64  # steps whose tokens are counted
MAX_CONSUMERS = 20  # consumers with own metrics, the newest ones
MAX_STALENESS_STEPS = 64  # steps of a lease whose policy versions are read

TOKENS = "output_ids"

Rows = Sequence[Any]

BUFFER = "SELECT episodes_added, policy_version, admitted FROM buffers WHERE id = ?"
STEP_TIME = (
    "SELECT execute_time FROM steps WHERE buffer_id = ? AND position >= ? ORDER BY position {} "
    "LIMIT 1"
)
WORKERS = "SELECT holder, role, active, ended, counts, rates FROM workers WHERE buffer_id = ?"
WAITERS = "SELECT holder, since, role FROM waiters WHERE buffer_id = ?"
OPEN_LEASES = "SELECT count(*), min(leased) FROM leases WHERE buffer_id = ? AND {}"
CONSUMERS = (
    "SELECT k.id, k.name, k.handed_out, k.acknowledged, l.last, l.policy_version, l.positions "
    "FROM consumers k LEFT JOIN leases l ON l.buffer_id = k.buffer_id AND l.consumer = k.id "
    "AND l.id = (SELECT max(m.id) FROM leases m WHERE m.buffer_id = k.buffer_id "
    "AND m.consumer = k.id) WHERE k.buffer_id = ? ORDER BY k.id DESC LIMIT ?"
)
VERSIONS = (
    "SELECT s.position, coalesce(s.policy_version, e.policy_version) FROM steps s JOIN episodes e "
    "ON e.buffer_id = s.buffer_id AND e.id = s.episode WHERE s.buffer_id = ? AND s.position {}"
)


def measure(store: Store, session: Session, now: float) -> dict[str, float]:
    """Return the counters and gauges of a buffer by name; unknown ones are left out.

    `now` is the current time by the clock of the database.
    """
    id, state = store.id, store.state(session)
    buffer, oldest, newest, workers, waiters, leases, consumers, rollouts = session.query_all(
        (BUFFER, id),
        (STEP_TIME.format("ASC"), id, state.oldest),
        (STEP_TIME.format("DESC"), id, state.oldest),
        (WORKERS, id),
        (WAITERS, id),
        (OPEN_LEASES.format(active_lease_condition(store.dialect.NOW)), id),
        (CONSUMERS, id, MAX_CONSUMERS),
        (ROLLOUTS, id, GROUP_WINDOW_EPISODES, id),
    )
    is_ended = functools.cache(has_ended)
    metrics = _of_buffer(state, buffer[0])
    for name, rows in (("oldest_step_seconds", oldest), ("newest_step_seconds", newest)):
        if rows:
            metrics[name] = max(0.0, now - rows[0][0])
    metrics |= _of_workers(workers, now, is_ended)
    metrics |= _of_waiters(waiters, workers, now, is_ended)
    metrics |= _of_leases(leases[0], now)
    metrics |= _of_consumers(store, session, consumers, state.added)
    first_leases = {id: leased - LEASES_PER_CONSUMER for id, _, leased, *_ in consumers}
    metrics |= count_groups(store, session, rollouts, first_leases, state.oldest, now)
    metrics |= _of_tokens(store, session, state)
    return metrics | store.dialect.database_gauges(session)


def _of_buffer(state: State, row: Any) -> dict[str, float]:
    episodes_added, policy_version, admitted = row
    metrics: dict[str, float] = {
        "steps_added": state.added,
        "steps": state.size,
        "bytes": state.nbytes,
        "steps_deleted": state.deleted,
        "episodes_begun": episodes_added,
        "groups_admitted": admitted,
    }
    if state.capacity:
        metrics |= {"capacity": state.capacity, "fill": state.size / state.capacity}
    if policy_version is not None:
        metrics["policy_version"] = policy_version
    if state.pinned is not None:
        metrics["pinned_steps"] = state.added - state.pinned
    return metrics


def _of_workers(rows: Rows, now: float, is_ended: Callable[[str], bool]) -> dict[str, float]:
    """Return the sums of the counts of all workers, and the number of live ones of each role."""
    sums: dict[str, float] = defaultdict(float)
    live = {f"{role}s": 0.0 for role in ROLES}
    for holder, role, active, ended, counts, _ in rows:
        for name, count in parse_numbers(counts, "the counts of a worker").items():
            if name != "steps":  # `steps_added` also counts steps of earlier versions of expdb
                sums[name] += count
        if f"{role}s" in live and _is_live(holder, active, ended, now, is_ended):
            live[f"{role}s"] += 1
    return {**sums, **live}


def _is_live(
    holder: str, active: float, ended: float | None, now: float, is_ended: Callable[[str], bool]
) -> bool:
    is_recent = ended is None and now - active < SILENT_AFTER_SECONDS
    return is_recent and bool(holder) and not is_ended(holder)


def is_mostly_waiting(role: str, rates: Mapping[str, float]) -> bool:
    """Return whether a worker waited for most of the time between its latest two reports.

    In a loop around `admit(wait=0.5)`, each single wait is too short for a row in `waiters`.
    """
    return rates.get(f"{role}_wait_seconds", 0.0) > MOSTLY_WAITING


def _of_waiters(
    rows: Rows, workers: Rows, now: float, is_ended: Callable[[str], bool]
) -> dict[str, float]:
    """Return how many processes wait in each role, and the longest of the recorded waits."""
    seconds: dict[str, list[float]] = {"actor": [0.0], "learner": [0.0]}
    holders: dict[str, set[str]] = {"actor": set(), "learner": set()}
    for holder, since, role in rows:
        if role in seconds and not is_ended(holder):
            seconds[role].append(now - since)
            holders[role].add(holder)
    for holder, role, active, ended, _, rates in workers:
        is_waiting = is_mostly_waiting(role, parse_numbers(rates, "the rates of a worker"))
        if role in holders and is_waiting and _is_live(holder, active, ended, now, is_ended):
            holders[role].add(holder)
    return {
        "waiting_actors": len(holders["actor"]),
        "longest_actor_wait_seconds": max(seconds["actor"]),
        "waiting_learners": len(holders["learner"]),
        "longest_learner_wait_seconds": max(seconds["learner"]),
    }


def _of_leases(row: Any, now: float) -> dict[str, float]:
    count, oldest = row
    metrics = {"open_leases": float(count)}
    if count:
        metrics["oldest_lease_seconds"] = max(0.0, now - oldest)
    return metrics


def _of_consumers(store: Store, session: Session, rows: Rows, added: int) -> dict[str, float]:
    """Return the counters of the consumers, their staleness, and how far they are behind."""
    metrics: dict[str, float] = {}
    items: dict[str, tuple[int, np.ndarray]] = {}  # version and positions of the latest lease
    for _, name, leased, acknowledged, last, version, positions in rows:
        prefix = f"consumers.{name}"
        metrics[f"{prefix}.leased"], metrics[f"{prefix}.acknowledged"] = leased, acknowledged
        if last is not None:
            metrics[f"{prefix}.steps_behind"] = max(0, added - 1 - last)
        if version is not None:
            try:
                leased_items = unpack_positions(bytes(positions)).items[:MAX_STALENESS_STEPS]
            except (ValueError, struct.error):  # `expdb check` reports the corruption
                continue
            items[f"{prefix}.staleness"] = version, leased_items
    if not items:
        return metrics
    wanted = np.unique(np.concatenate([positions for _, positions in items.values()]))
    versions = dict(
        session.query(VERSIONS.format(store.dialect.AMONG), store.id, store.dialect.as_list(wanted))
    )
    for name, (version, positions) in items.items():
        known = [versions.get(position) for position in positions.tolist()]
        ages = [version - known_version for known_version in known if known_version is not None]
        if ages:
            metrics[name] = sum(ages) / len(ages)
    return metrics


def _of_tokens(store: Store, session: Session, state: State) -> dict[str, float]:
    """Return the mean number of tokens in the output of the newest steps."""
    field = store.fields.types.get(TOKENS)
    if field is None or not field.varies:
        return {}
    rows = session.query(
        "SELECT position FROM steps WHERE buffer_id = ? ORDER BY position DESC LIMIT ?",
        store.id, TOKEN_WINDOW_STEPS,
    )  # fmt: skip
    positions = np.array([position for (position,) in rows], np.int64)[::-1]
    if not len(positions):
        return {}
    try:
        outputs = fetch.steps(store, session, state, positions, [TOKENS])[TOKENS]
    except errors.DatabaseDamaged:  # `expdb check` reports the corruption
        return {}
    tokens = sum(len(output) for output in outputs if output is not None)
    return {"tokens_per_step": tokens / len(positions)}
