"""Measure a buffer: counters that only increase, and gauges of the current state.

Every query reads a bounded number of rows, so that a measurement takes a few milliseconds in a
buffer of any size.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import functools
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from expdb import errors
from expdb.process.liveness import has_ended
from expdb.sql.session import Session
from expdb.storage.activity import ROLES
from expdb.storage.ledger.encoding import unpack_positions
from expdb.storage.reading import fetch
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_numbers

SILENT_AFTER_SECONDS = 60.0  # time without a report after which a worker is silent
GROUP_WINDOW_EPISODES = 1_000  # episodes whose groups are counted
TOKEN_WINDOW_STEPS = 64  # steps whose tokens are counted
MAX_CONSUMERS = 20  # consumers with own metrics, the newest ones
MAX_STALENESS_STEPS = 64  # steps of a lease whose policy versions are read

TOKENS = "output_ids"


def measure(store: Store, session: Session, now: float) -> dict[str, float]:
    """Return the counters and gauges of a buffer by name; unknown ones are left out.

    `now` is the current time by the clock of the database.
    """
    metrics = dict(_buffer(store, session, now))
    metrics |= _workers(store, session, now)
    metrics |= _waiters(store, session, now)
    metrics |= _leases(store, session, now)
    metrics |= _consumers(store, session, int(metrics["steps_added"]))
    metrics |= _groups(store, session, now)
    metrics |= _tokens(store, session)
    return metrics | store.dialect.database_gauges(session)


def _buffer(store: Store, session: Session, now: float) -> Iterator[tuple[str, float]]:
    state = store.state(session)
    rows = session.ask(
        "SELECT episodes_added, policy_version, admitted FROM buffers WHERE id = ?", store.id
    )
    episodes_added, policy_version, admitted = rows[0]
    yield "steps_added", state.added
    yield "steps", state.size
    yield "bytes", state.nbytes
    yield "steps_deleted", state.deleted
    yield "episodes_begun", episodes_added
    yield "groups_admitted", admitted
    if state.capacity:
        yield "capacity", state.capacity
        yield "fill", state.size / state.capacity
    if policy_version is not None:
        yield "policy_version", policy_version
    if state.pinned is not None:
        yield "pinned_steps", state.added - state.pinned
    for name, order in (("oldest_step_seconds", "ASC"), ("newest_step_seconds", "DESC")):
        times = session.ask(
            "SELECT execute_time FROM steps WHERE buffer_id = ? AND position >= ? "
            f"ORDER BY position {order} LIMIT 1",
            store.id, state.oldest,
        )  # fmt: skip
        if times:
            yield name, max(0.0, now - times[0][0])


def _workers(store: Store, session: Session, now: float) -> dict[str, float]:
    """Return the sums of the counts of all workers, and the number of live ones of each role."""
    sums: dict[str, float] = defaultdict(float)
    live = {f"{role}s": 0.0 for role in ROLES}
    is_ended = functools.cache(has_ended)
    for holder, role, active, ended, counts in session.ask(
        "SELECT holder, role, active, ended, counts FROM workers WHERE buffer_id = ?", store.id
    ):
        for name, count in parse_numbers(counts, "the counts of a worker").items():
            if name != "steps":  # `steps_added` also counts steps of earlier versions of expdb
                sums[name] += count
        is_recent = ended is None and now - active < SILENT_AFTER_SECONDS
        if is_recent and f"{role}s" in live and holder and not is_ended(holder):
            live[f"{role}s"] += 1
    return {**sums, **live}


def _waiters(store: Store, session: Session, now: float) -> dict[str, float]:
    waits: dict[str, list[float]] = {"actor": [], "learner": []}
    for holder, since, role in session.ask(
        "SELECT holder, since, role FROM waiters WHERE buffer_id = ?", store.id
    ):
        if role in waits and not has_ended(holder):
            waits[role].append(max(0.0, now - since))
    return {
        "waiting_actors": len(waits["actor"]),
        "longest_actor_wait_seconds": max(waits["actor"], default=0.0),
        "waiting_learners": len(waits["learner"]),
        "longest_learner_wait_seconds": max(waits["learner"], default=0.0),
    }


def _leases(store: Store, session: Session, now: float) -> dict[str, float]:
    ((count, oldest),) = session.ask(
        "SELECT count(*), min(leased) FROM leases WHERE buffer_id = ? AND status IN ('leased', "
        f"'returned') AND status = 'leased' AND expires > {store.dialect.NOW}",
        store.id,
    )
    metrics = {"open_leases": float(count)}
    if count:
        metrics["oldest_lease_seconds"] = max(0.0, now - oldest)
    return metrics


def _consumers(store: Store, session: Session, added: int) -> dict[str, float]:
    """Return the counters of the newest consumers, their staleness, and how far they are behind."""
    metrics: dict[str, float] = {}
    for id, name, leased, acknowledged in session.ask(
        "SELECT id, name, handed_out, acknowledged FROM consumers WHERE buffer_id = ? ORDER BY id "
        "DESC LIMIT ?",
        store.id, MAX_CONSUMERS,
    ):  # fmt: skip
        prefix = f"consumers.{name}"
        metrics[f"{prefix}.leased"], metrics[f"{prefix}.acknowledged"] = leased, acknowledged
        newest = session.ask(
            "SELECT id, last, policy_version FROM leases WHERE buffer_id = ? AND consumer = ? "
            "ORDER BY id DESC LIMIT 1",
            store.id, id,
        )  # fmt: skip
        if not newest:
            continue
        lease, last, version = newest[0]
        metrics[f"{prefix}.steps_behind"] = max(0, added - 1 - last)
        staleness = None if version is None else _staleness(store, session, id, lease, version)
        if staleness is not None:
            metrics[f"{prefix}.staleness"] = staleness
    return metrics


def _staleness(
    store: Store, session: Session, consumer: int, lease: int, version: int
) -> float | None:
    """Return how many policy versions older than the buffer the leased steps were, on average."""
    ((positions,),) = session.ask(
        "SELECT positions FROM leases WHERE buffer_id = ? AND consumer = ? AND id = ?",
        store.id, consumer, lease,
    )  # fmt: skip
    try:
        items = unpack_positions(bytes(positions)).items[:MAX_STALENESS_STEPS]
    except (ValueError, struct.error):  # `expdb check` reports the corruption
        return None
    versions = session.ask(
        "SELECT coalesce(s.policy_version, e.policy_version) FROM steps s JOIN episodes e ON "
        "e.buffer_id = s.buffer_id AND e.id = s.episode WHERE s.buffer_id = ? AND s.position "
        f"{store.dialect.AMONG}",
        store.id, store.dialect.as_list(items),
    )  # fmt: skip
    ages = [version - row[0] for row in versions if row[0] is not None]
    return sum(ages) / len(ages) if ages else None


def _groups(store: Store, session: Session, now: float) -> dict[str, float]:
    """Return how many of the newest groups are in each stage, and the ages of the oldest ones."""
    ((added,),) = session.ask("SELECT episodes_added FROM buffers WHERE id = ?", store.id)
    groups: dict[str, list[Any]] = defaultdict(list)
    for group, *rollout in session.ask(
        "SELECT group_id, status, started, ended, episode_return FROM episodes WHERE buffer_id = ? "
        "AND id >= ? AND group_id IS NOT NULL",
        store.id, added - GROUP_WINDOW_EPISODES,
    ):  # fmt: skip
        groups[group].append(rollout)
    if not groups:
        return {}
    open_since, without_return_since, ranges = [], [], []
    for rollouts in groups.values():
        returns = [gained for status, _, _, gained in rollouts if status == "complete"]
        if any(status == "open" for status, *_ in rollouts):
            open_since.append(min(started for _, started, _, _ in rollouts))
        elif None in returns:
            without_return_since.append(max(ended or started for _, started, ended, _ in rollouts))
        elif returns:
            ranges.append(None if len(returns) == 1 else max(returns) - min(returns))
    metrics = {
        "groups_open": float(len(open_since)),
        "groups_without_return": float(len(without_return_since)),
        "groups_with_returns": float(len(ranges)),
    }
    if open_since:
        metrics["oldest_open_group_seconds"] = max(0.0, now - min(open_since))
    if without_return_since:
        age = max(0.0, now - min(without_return_since))
        metrics["oldest_group_without_return_seconds"] = age
    known = [value for value in ranges if value is not None]
    if known:
        metrics["no_spread_fraction"] = known.count(0.0) / len(known)
    return metrics


def _tokens(store: Store, session: Session) -> dict[str, float]:
    """Return the mean number of tokens in the output of the newest steps."""
    field = store.fields.types.get(TOKENS)
    if field is None or not field.varies:
        return {}
    rows = session.ask(
        "SELECT position FROM steps WHERE buffer_id = ? ORDER BY position DESC LIMIT ?",
        store.id, TOKEN_WINDOW_STEPS,
    )  # fmt: skip
    positions = np.array([position for (position,) in rows], np.int64)[::-1]
    if not len(positions):
        return {}
    try:
        outputs = fetch.steps(store, session, store.state(session), positions, [TOKENS])[TOKENS]
    except errors.DatabaseDamaged:  # `expdb check` reports the corruption
        return {}
    return {"tokens_per_step": sum(map(len, outputs)) / len(positions)}
