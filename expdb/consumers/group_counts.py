"""Count the groups of rollouts that a consumer can lease, and the others by their obstacle."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import time
from typing import Any

import numpy as np

from expdb.consumers.leasing import Leasing
from expdb.replay.sequences import Group
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.ledger import entries
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.reading import select
from expdb.storage.store import Store


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
    with store.engine.reading() as session:
        first_positions, stored_steps = _find_stored_parts(store, session, ids)
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
    is_partial = stored_steps < lengths  # partly evicted rollouts are not drawn
    returns[is_partial] = np.nan
    if waiting is not None:
        waiting = waiting & ~is_partial
    left = leasing.left(first_positions)
    return unit.count(groups, returns, versions, left, oldest, waiting), discarded


def _columns(names: tuple[str, ...], rows: list[Any], ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of episodes by name as float64, in the order of `ids`; NaN for no value."""
    by_id = {row[0]: row[1:] for row in rows}
    none = (None,) * len(names)
    columns = np.array([by_id.get(id, none) for id in ids.tolist()], np.float64)
    return dict(zip(names, columns.reshape(-1, len(names)).T, strict=True))


def _find_stored_parts(
    store: Store, session: Session, episodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first stored position of each episode (-1 for none), and its number of steps."""
    if (state := store.state(session)).gaps:  # segments also cover deleted steps
        source, first, last = "steps", "position", "position"
    else:
        low = state.oldest
        source, first, last = (
            "segments",
            f"CASE WHEN first < {low} THEN {low} ELSE first END",
            "last",
        )
    rows = session.ask(
        f"SELECT episode, min({first}), CAST(sum({last} + 1 - {first}) AS BIGINT) FROM {source} "
        f"WHERE buffer_id = ? AND {last} >= ? GROUP BY episode ORDER BY episode",
        store.id, state.oldest,
    )  # fmt: skip
    parts = np.array([*rows, (2**62, -1, 0)], np.int64)  # last row: episodes without steps
    places = parts[:, 0].searchsorted(episodes)
    places[parts[places, 0] != episodes] = -1
    return parts[places, 1], parts[places, 2]


def _rollouts(
    episodes: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return group, return, oldest policy version, number and length of complete episodes."""
    is_complete = [status == "complete" for status in episodes["status"].to_pylist()]
    rows = episodes.filter(np.array(is_complete, np.bool_))
    codes: dict[tuple[bool, str], int] = {}
    names = zip(rows["group_id"].to_pylist(), rows["task_id"].to_pylist(), strict=True)
    groups = [codes.setdefault((group is None, group or task), len(codes)) for group, task in names]
    returns, versions = (
        rows[name].cast("float64").to_numpy() for name in ("episode_return", "first_policy_version")
    )
    numbers, lengths = (rows[name].to_numpy() for name in ("episode", "length"))
    return np.array(groups, np.int64), returns.copy(), versions, numbers, lengths
