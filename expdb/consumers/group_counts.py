"""Count the groups of rollouts that a consumer can lease, and the others by their obstacle."""

from __future__ import annotations  # so that annotations do not import numpy.random

import time
from typing import Any

import numpy as np

from expdb.consumers.consumer_ledger import ConsumerLedger
from expdb.names import SCORE
from expdb.replay.sequences import Group
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.ledger import entries
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.reading import select, trees
from expdb.storage.store import Store


def count_groups(
    buffer: Any,
    ledger: ConsumerLedger,
    record: ConsumerRecord,
    unit: Group,
    where: Where,
    staleness: str,
) -> tuple[dict[str, int], int]:
    """Return the counts of `Group.count`, and the number of groups that were discarded."""
    store, most = ledger.store, record.settings.max_staleness
    oldest, version, of_agents = np.nan, buffer.policy_version, dict(buffer.policy_versions)
    if most is not None and version is not None and staleness != "keep":
        oldest = version - most
    waiting = None
    store.tags.warn_of_unknown(name for name in unit.reads if SCORE.fullmatch(name))
    with store.engine.reading() as session:
        groups, returns, versions, ids, lengths = _rollouts(
            store, session, where, unit.of, staleness == "mask_tokens"
        )
        first_positions, stored_steps = _find_stored_parts(store, session, ids)
        if unit.lineage:
            _add_shared_returns(store, session, ids, returns)
        discarded = entries.count_discarded(store, session, record)
        if most is not None and of_agents:
            least = None if version is None else version - most
            oldest_of_agents = {agent: current - most for agent, current in of_agents.items()}
            stale = select.stale_episodes(store, session, least, oldest_of_agents)
            versions, oldest = np.where(np.isin(ids, stale), -np.inf, np.inf), 0.0
        if unit.score is not None:
            names = tuple(name for name in unit.reads if name == "ended" or SCORE.fullmatch(name))
            rows = select.columns_of_episodes(store, session, names, 1 << 62, ids)
            returns, waiting = unit.values(_columns(names, rows, ids).__getitem__, time.time())
    is_partial = stored_steps < lengths  # partly evicted rollouts are not drawn
    returns[is_partial] = np.nan
    if waiting is not None:
        waiting = waiting & ~is_partial
    left = ledger.left(first_positions)
    return unit.count(groups, returns, versions, left, oldest, waiting), discarded


def _add_shared_returns(
    store: Store, session: Session, ids: np.ndarray, returns: np.ndarray
) -> None:
    """Add the rewards of shared steps to the returns of forks.

    The return of a fork is NaN if one of its shared steps is not stored.
    """
    shared_returns = trees.sum_shared_rewards(store, session, ids)
    for index, id in enumerate(ids.tolist()):
        if id in shared_returns:
            total, is_whole = shared_returns[id]
            if total is not None:
                returns[index] = total + np.nan_to_num(returns[index])
            if not is_whole:
                returns[index] = np.nan


def _columns(names: tuple[str, ...], rows: list[Any], ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of episodes by name as float64, in the order of `ids`; NaN for no value."""
    by_id = {row[0]: row[1:] for row in rows}
    none = (None,) * len(names)
    columns = np.array([by_id.get(id, none) for id in ids.tolist()], np.float64)
    return dict(zip(names, columns.reshape(-1, len(names)).T, strict=True))


def _find_stored_parts(
    store: Store, session: Session, episodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first stored position of each episode (-1 for none), and its number of steps.

    `episodes` must contain ascending numbers of episodes.
    """
    state = store.state(session)
    # Segments also cover deleted steps, so read `steps` if positions are missing.
    source, first = ("steps", "position") if state.gaps else ("segments", "first")
    last = "position" if state.gaps else "last"
    rows = session.query(
        f"SELECT episode, {first}, {last} FROM {source} WHERE buffer_id = ? AND {last} >= ? "
        f"ORDER BY {last}",
        store.id, state.oldest,
    )  # fmt: skip
    numbers, begins, ends = np.array(rows, np.int64).reshape(-1, 3).T
    is_counted = np.isin(numbers, episodes)
    places, begins = episodes.searchsorted(numbers[is_counted]), begins[is_counted]
    begins = np.maximum(begins, state.oldest)
    steps = np.bincount(places, ends[is_counted] + 1 - begins, len(episodes)).astype(np.int64)
    first_positions = np.full(len(episodes), -1)
    first_positions[places[::-1]] = begins[::-1]  # the last assignment wins
    return first_positions, steps


def _rollouts(
    store: Store, session: Session, where: Where, relations: tuple[str, ...], newest: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return group, return, policy version, number and own length of complete episodes.

    The policy version is that of the oldest step or, with `newest`, of the newest step.
    """
    rows = select.complete_rollouts(store, session, store.compiled(where), relations, newest)
    codes: dict[tuple[bool, str], int] = {}
    names = [(row[0] is None, row[1] if row[0] is None else row[0]) for row in rows]
    groups = [codes.setdefault(name, len(codes)) for name in names]
    values = np.array([row[2:4] for row in rows], np.float64).reshape(-1, 2).T.copy()
    numbers, lengths = np.array([row[4:] for row in rows], np.int64).reshape(-1, 2).T.copy()
    return np.array(groups, np.int64), *values, numbers, lengths
