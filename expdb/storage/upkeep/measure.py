"""Measure a buffer: counters that only increase, and gauges of the current state.

Every query reads a bounded number of rows, so that a measurement takes a few milliseconds in a
buffer of any size.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

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
from expdb.storage.stored_json import parse_object

LIVE_SECONDS = 60.0  # time without a report after which a worker does not count as live
NEWEST_EPISODES = 1_000  # episodes whose groups are counted
NEWEST_STEPS = 64  # steps whose tokens are counted
MOST_CONSUMERS = 20  # consumers with own figures, the newest ones
MOST_POSITIONS = 64  # steps of a lease whose policy versions are read

TOKENS = "output_ids"


def measure(store: Store, session: Session, now: float) -> dict[str, float]:
    """Return the counters and gauges of a buffer by name; unknown figures are left out.

    `now` is the current time by the clock of the database.
    """
    figures = dict(_buffer(store, session, now))
    figures |= _workers(store, session, now)
    figures |= _waiters(store, session, now)
    figures |= _leases(store, session, now)
    figures |= _consumers(store, session, int(figures["added"]))
    figures |= _groups(store, session, now)
    figures |= _tokens(store, session)
    return figures | store.dialect.gauges(session)


def _buffer(store: Store, session: Session, now: float) -> Iterator[tuple[str, float]]:
    state = store.state(session)
    rows = session.ask(
        "SELECT episodes_added, policy_version, admitted FROM buffers WHERE id = ?", store.id
    )
    episodes_added, policy_version, admitted = rows[0]
    yield "added", state.added
    yield "steps", state.size
    yield "bytes", state.nbytes
    yield "deleted", state.deleted
    yield "episodes_added", episodes_added
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
    for holder, role, active, ended, counts in session.ask(
        "SELECT holder, role, active, ended, counts FROM workers WHERE buffer_id = ?", store.id
    ):
        for name, count in parse_object(counts, "the counts of a worker").items():
            if name != "steps":  # `added` also counts steps of earlier versions of expdb
                sums[name] += count
        is_recent = ended is None and now - active < LIVE_SECONDS
        if is_recent and f"{role}s" in live and holder and not has_ended(holder):
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
        "held_actors": len(waits["actor"]),
        "held_longest_seconds": max(waits["actor"], default=0.0),
        "waiting_learners": len(waits["learner"]),
        "waiting_longest_seconds": max(waits["learner"], default=0.0),
    }


def _leases(store: Store, session: Session, now: float) -> dict[str, float]:
    ((count, oldest),) = session.ask(
        "SELECT count(*), min(leased) FROM leases WHERE buffer_id = ? AND status IN ('leased', "
        f"'returned') AND status = 'leased' AND expires > {store.dialect.NOW}",
        store.id,
    )
    figures = {"open_leases": float(count)}
    if count:
        figures["oldest_lease_seconds"] = max(0.0, now - oldest)
    return figures


def _consumers(store: Store, session: Session, added: int) -> dict[str, float]:
    """Return the counters of the newest consumers, their lag in steps, and their staleness."""
    figures: dict[str, float] = {}
    for id, name, leased, acknowledged in session.ask(
        "SELECT id, name, handed_out, acknowledged FROM consumers WHERE buffer_id = ? ORDER BY id "
        "DESC LIMIT ?",
        store.id, MOST_CONSUMERS,
    ):  # fmt: skip
        prefix = f"consumers.{name}"
        figures[f"{prefix}.leased"], figures[f"{prefix}.acknowledged"] = leased, acknowledged
        newest = session.ask(
            "SELECT id, last, policy_version FROM leases WHERE buffer_id = ? AND consumer = ? "
            "ORDER BY id DESC LIMIT 1",
            store.id, id,
        )  # fmt: skip
        if not newest:
            continue
        lease, last, version = newest[0]
        figures[f"{prefix}.lag"] = max(0, added - 1 - last)
        staleness = None if version is None else _staleness(store, session, id, lease, version)
        if staleness is not None:
            figures[f"{prefix}.staleness"] = staleness
    return figures


def _staleness(
    store: Store, session: Session, consumer: int, lease: int, version: int
) -> float | None:
    """Return how many policy versions older than the buffer the leased steps were, on average."""
    ((positions,),) = session.ask(
        "SELECT positions FROM leases WHERE buffer_id = ? AND consumer = ? AND id = ?",
        store.id, consumer, lease,
    )  # fmt: skip
    try:
        items = unpack_positions(bytes(positions)).items[:MOST_POSITIONS]
    except (ValueError, struct.error):  # `check` reports it
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
        store.id, added - NEWEST_EPISODES,
    ):  # fmt: skip
        groups[group].append(rollout)
    if not groups:
        return {}
    begun, generated, spreads = [], [], []
    for rollouts in groups.values():
        returns = [gained for status, _, _, gained in rollouts if status == "complete"]
        if any(status == "open" for status, *_ in rollouts):
            begun.append(min(started for _, started, _, _ in rollouts))
        elif None in returns:
            generated.append(max(ended or started for _, started, ended, _ in rollouts))
        elif len(returns) > 1:
            spreads.append(max(returns) - min(returns))
    figures = {
        "groups_open": float(len(begun)),
        "groups_unscored": float(len(generated)),
        "groups_scored": float(len(groups) - len(begun) - len(generated)),
    }
    if begun:
        figures["oldest_open_group_seconds"] = max(0.0, now - min(begun))
    if generated:
        figures["oldest_unscored_group_seconds"] = max(0.0, now - min(generated))
    if spreads:
        figures["groups_without_spread"] = spreads.count(0.0) / len(spreads)
    return figures


def _tokens(store: Store, session: Session) -> dict[str, float]:
    """Return the mean number of tokens in the output of the newest steps."""
    field = store.fields.types.get(TOKENS)
    if field is None or not field.varies:
        return {}
    rows = session.ask(
        "SELECT position FROM steps WHERE buffer_id = ? ORDER BY position DESC LIMIT ?",
        store.id, NEWEST_STEPS,
    )  # fmt: skip
    positions = np.array([position for (position,) in rows], np.int64)[::-1]
    if not len(positions):
        return {}
    try:
        outputs = fetch.steps(store, session, store.state(session), positions, [TOKENS])[TOKENS]
    except errors.DatabaseDamaged:  # `check` reports it
        return {}
    return {"tokens_per_step": sum(map(len, outputs)) / len(positions)}
