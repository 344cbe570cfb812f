"""Count the groups of rollouts that a consumer can lease, and the others by their obstacle."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import time
from typing import Any

import numpy as np

from expdb.consumers.leasing import Leasing
from expdb.replay.sequences import Group
from expdb.sql.query import Where
from expdb.storage.ledger import entries
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.reading import select


def count_groups(
    buffer: Any, leasing: Leasing, record: ConsumerRecord, unit: Group, where: Where
) -> tuple[dict[str, int], int]:
    """Return the counts of `Group.count`, and the number of groups that were discarded."""
    store, most = leasing.store, record.settings.max_staleness
    groups, returns, versions, ids, lengths = _rollouts(buffer.episodes(where))
    oldest, version, of_agents = np.nan, buffer.policy_version, dict(buffer.policy_versions)
    if most is not None and version is not None:
        oldest = version - most
    waiting = None
    first_positions, stored_steps = _find_stored_parts(buffer, ids)
    with store.engine.reading() as session:
        discarded = entries.count_discarded(session, store, record)
        if most is not None and of_agents:
            least = None if version is None else version - most
            oldest_of_agents = {agent: current - most for agent, current in of_agents.items()}
            stale = select.stale_episodes(store, session, least, oldest_of_agents)
            versions, oldest = np.where(np.isin(ids, stale), -np.inf, np.inf), 0.0
        if unit.score is not None:
            names = unit.reads[3:]
            rows = select.columns_of_episodes(store, session, names, 1 << 62, ids)
            returns, waiting = unit.values(_columns(names, rows, ids).__getitem__, time.time())
    returns[stored_steps < lengths] = np.nan  # partly evicted rollouts are not drawn
    left = leasing.left(first_positions)
    return unit.count(groups, returns, versions, left, oldest, waiting), discarded


def _columns(names: tuple[str, ...], rows: list[Any], ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of episodes by name as float64, in the order of `ids`; NaN for no value."""
    by_id = {row[0]: row[1:] for row in rows}
    none = (None,) * len(names)
    columns = np.array([by_id.get(id, none) for id in ids.tolist()], np.float64)
    return dict(zip(names, columns.reshape(-1, len(names)).T, strict=True))


def _find_stored_parts(buffer: Any, episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first stored position of each episode (-1 for none), and its number of steps."""
    first_positions: dict[int, int] = {}
    counts: dict[int, int] = {}
    for batch in buffer.scan(fields=("episode", "position"), size=1 << 16):
        numbers, places, lengths = np.unique(
            batch["episode"], return_index=True, return_counts=True
        )
        first = batch["position"][places].tolist()
        for number, position, length in zip(numbers.tolist(), first, lengths.tolist(), strict=True):
            first_positions.setdefault(number, position)
            counts[number] = counts.get(number, 0) + length
    return (
        np.array([first_positions.get(number, -1) for number in episodes.tolist()], np.int64),
        np.array([counts.get(number, 0) for number in episodes.tolist()], np.int64),
    )


def _rollouts(
    episodes: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return group, return, oldest policy version, number and length of complete episodes."""
    rows = [row for row in episodes.to_pylist() if row["status"] == "complete"]
    codes: dict[tuple[bool, str], int] = {}
    groups = [
        codes.setdefault((row["group_id"] is None, row["group_id"] or row["task_id"]), len(codes))
        for row in rows
    ]
    returns, versions = (
        np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)
        for name in ("episode_return", "first_policy_version")
    )
    numbers, lengths = (
        np.array([row[name] for row in rows], np.int64) for name in ("episode", "length")
    )
    return np.array(groups, np.int64), returns, versions, numbers, lengths
