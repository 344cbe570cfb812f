"""Count the newest groups of rollouts by stage: open, without return, with returns, leased."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import json
import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from expdb.sql.session import Session
from expdb.storage.ledger.encoding import unpack_positions
from expdb.storage.ledger.entries import DISCARDED
from expdb.storage.store import Store

GROUP_WINDOW_EPISODES = 1_000  # episodes whose groups are counted
LEASES_PER_CONSUMER = 64  # leases that are searched for these groups
MAX_ITEMS = 1_000  # items of these leases whose groups are read

ROLLOUTS = (
    "SELECT group_id, status, started, ended, episode_return FROM episodes WHERE buffer_id = ? "
    "AND group_id IS NOT NULL AND id >= (SELECT episodes_added - ? FROM buffers WHERE id = ?)"
)
LEASES = (
    "SELECT l.positions, r.request FROM leases l JOIN requests r ON r.buffer_id = l.buffer_id "
    "AND r.id = l.request WHERE l.buffer_id = ? AND l.consumer = ? AND (l.status = 'acknowledged' "
    "OR l.status = 'leased' AND l.expires > {}) ORDER BY l.id DESC LIMIT ?"
)
GROUPS = (
    "SELECT s.position, e.group_id FROM steps s JOIN episodes e ON e.buffer_id = s.buffer_id "
    "AND e.id = s.episode WHERE s.buffer_id = ? AND e.group_id IS NOT NULL AND s.position {}"
)

Rows = Sequence[Any]


def count_groups(
    store: Store, session: Session, rollouts: Rows, consumers: Sequence[int], now: float
) -> dict[str, float]:
    """Return how many of the newest groups are in each stage, and the ages of the oldest ones.

    `rollouts` are the rows of `ROLLOUTS`; leases of the `consumers` with these ids are searched.
    """
    groups: dict[str, list[Any]] = defaultdict(list)
    for group, *rollout in rollouts:
        groups[group].append(rollout)
    if not groups:
        return {}
    open_since, without_return_since, ranges = [], [], []
    returned_since: dict[str, float] = {}
    for group, members in groups.items():
        returns = [gained for status, _, _, gained in members if status == "complete"]
        ended_at = max(ended or started for _, started, ended, _ in members)
        if any(status == "open" for status, *_ in members):
            open_since.append(min(started for _, started, _, _ in members))
        elif None in returns:
            without_return_since.append(ended_at)
        elif returns:
            returned_since[group] = ended_at
            if len(returns) > 1:
                ranges.append(max(returns) - min(returns))
    leased, discarded = (
        _leased_groups(store, session, consumers) if returned_since else (set(), set())
    )
    unleased_since = [
        since for group, since in returned_since.items() if group not in leased | discarded
    ]
    metrics = {
        "groups_open": float(len(open_since)),
        "groups_without_return": float(len(without_return_since)),
        "groups_with_returns": float(len(returned_since)),
        "groups_leased": float(len(returned_since.keys() & leased)),
        "groups_discarded": float(len(returned_since.keys() & (discarded - leased))),
    }
    for name, times in (
        ("oldest_open_group_seconds", open_since),
        ("oldest_group_without_return_seconds", without_return_since),
        ("oldest_unleased_group_seconds", unleased_since),
    ):
        if times:
            metrics[name] = max(0.0, now - min(times))
    if ranges:
        metrics["no_spread_fraction"] = ranges.count(0.0) / len(ranges)
    return metrics


def _leased_groups(
    store: Store, session: Session, consumers: Sequence[int]
) -> tuple[set[str], set[str]]:
    """Return the groups in the newest leases of whole episodes, and those that were discarded.

    The items of such a lease are the first positions of its episodes. One item shows the group.
    """
    statement = LEASES.format(store.dialect.NOW)
    answers = session.ask_all(
        *[(statement, store.id, consumer, LEASES_PER_CONSUMER) for consumer in consumers]
    )
    items: dict[bool, list[np.ndarray]] = {False: [], True: []}  # by whether they were discarded
    for positions, text in (row for rows in answers for row in rows):
        try:
            request = json.loads(text)
            if request["unit"]["name"] in ("Group", "Episode"):
                drawn = unpack_positions(bytes(positions))
                rows = drawn.positions if drawn.kept is None else drawn.positions[drawn.kept]
                first = rows if rows.ndim == 1 else rows[:, 0]
                items[request.get(DISCARDED) is True].append(first)
        except (ValueError, LookupError, TypeError, struct.error):
            continue  # `expdb check` reports the corruption
    if not any(items.values()):
        return set(), set()
    wanted = np.unique(np.concatenate([*items[False], *items[True]]))[-MAX_ITEMS:]
    groups = dict(
        session.ask(GROUPS.format(store.dialect.AMONG), store.id, store.dialect.as_list(wanted))
    )
    leased, discarded = (
        {groups[item] for part in parts for item in part.tolist() if item in groups}
        for parts in (items[False], items[True])
    )
    return leased, discarded
