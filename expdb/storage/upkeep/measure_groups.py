"""Count the newest groups of rollouts by stage: open, without return, with returns, leased."""

from __future__ import annotations  # so that annotations do not import numpy.random

import functools
import json
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from expdb.sql.session import Session
from expdb.sql.tables import IS_ROLLOUT, active_lease_condition
from expdb.storage.ledger.encoding import unpack_positions
from expdb.storage.ledger.entries import DISCARDED
from expdb.storage.ledger.lease_rows import names_episodes
from expdb.storage.store import Store

GROUP_WINDOW_EPISODES = 1_000  # episodes whose groups are counted
LEASES_PER_CONSUMER = 64  # the newest leases, which are searched for these groups
MAX_ITEMS = 1_000  # items of these leases whose groups are read, the newest ones

# A judge's score replaces a missing return; scores of an episode are in its last step. The last
# column is the first position, or a later one if steps of other episodes lie between its steps.
ROLLOUTS = (
    "SELECT e.group_id, e.status, e.started, e.ended, e.episode_return, "
    "CASE WHEN e.episode_return IS NULL THEN (SELECT s.scores FROM steps s "
    "WHERE s.buffer_id = e.buffer_id AND s.position = e.last_position) END, "
    "e.last_position - e.length + coalesce(e.shared_steps, 0) + 1 FROM episodes e "
    f"WHERE e.buffer_id = ? AND {IS_ROLLOUT} AND e.group_id IS NOT NULL AND "
    "e.id >= (SELECT episodes_added - ? FROM buffers WHERE id = ?)"
)
LEASES = (
    "SELECT l.positions, r.request FROM leases l JOIN requests r ON r.buffer_id = l.buffer_id "
    "AND r.id = l.request WHERE l.buffer_id = ? AND l.consumer = ? AND l.id >= ? "
    "AND (status = 'acknowledged' OR {})"
)
GROUPS = (
    "SELECT s.position, e.group_id FROM steps s JOIN episodes e ON e.buffer_id = s.buffer_id "
    "AND e.id = s.episode WHERE s.buffer_id = ? AND e.group_id IS NOT NULL AND s.position {}"
)

Rows = Sequence[Any]


class Rollout(NamedTuple):
    """An episode of a group."""

    status: str
    started: float  # in Unix seconds
    ended: float | None
    episode_return: float | None
    scores: str | None  # JSON object; read only if there is no return
    first: int | None  # position

    @property
    def is_scored(self) -> bool:
        """Whether the episode has a return, or a score that is not null."""
        if self.episode_return is not None:
            return True
        try:
            return any(value is not None for value in json.loads(self.scores or "{}").values())
        except (ValueError, AttributeError, RecursionError):
            return False  # `expdb check` reports the corruption


def count_groups(
    store: Store,
    session: Session,
    rollouts: Rows,
    first_leases: Mapping[int, int],
    oldest: int,
    now: float,
) -> dict[str, float]:
    """Return how many of the newest groups are in each stage, and the ages of the oldest ones.

    `rollouts` are the rows of `ROLLOUTS`, and `oldest` is the oldest stored position. The leases of
    each consumer are searched from the id in `first_leases` on.
    """
    groups: dict[str, list[Rollout]] = defaultdict(list)
    for group, *columns in rollouts:
        groups[group].append(Rollout(*columns))
    if not groups:
        return {}
    open_since, without_return_since, ranges = [], [], []
    returned_since: dict[str, float] = {}
    partly_evicted = set()
    for group, members in groups.items():
        complete = [rollout for rollout in members if rollout.status == "complete"]
        returns = [rollout.episode_return for rollout in complete]
        ended_at = max(rollout.ended or rollout.started for rollout in members)
        if any(rollout.status == "open" for rollout in members):
            open_since.append(min(rollout.started for rollout in members))
        elif not all(rollout.is_scored for rollout in complete):
            without_return_since.append(ended_at)
        elif complete:
            returned_since[group] = ended_at
            known_returns = [value for value in returns if value is not None]
            if len(returns) == len(known_returns) > 1:
                ranges.append(max(known_returns) - min(known_returns))
            if any(rollout.first is not None and rollout.first < oldest for rollout in complete):
                partly_evicted.add(group)
    leased, discarded = (
        _leased_groups(store, session, first_leases) if returned_since else (set(), set())
    )
    unleased_since = [
        since
        for group, since in returned_since.items()
        if group not in leased | discarded | partly_evicted
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
    store: Store, session: Session, first_leases: Mapping[int, int]
) -> tuple[set[str], set[str]]:
    """Return the leased and the discarded groups in the newest leases of whole episodes."""
    statement = LEASES.format(active_lease_condition(store.dialect.NOW))
    answers = session.query_all(
        *[(statement, store.id, consumer, first) for consumer, first in first_leases.items()]
    )
    kind_of = functools.cache(_kind_of_lease)  # leases share few different requests
    items: dict[str, list[np.ndarray]] = {"leased": [], "discarded": []}
    for positions, request in (row for rows in answers for row in rows):
        kind = kind_of(request)
        if kind is not None:
            with suppress(ValueError, struct.error):  # `expdb check` reports the corruption
                items[kind].append(unpack_positions(bytes(positions)).items)
    if not any(items.values()):
        return set(), set()
    wanted = np.unique(np.concatenate([*items["leased"], *items["discarded"]]))[-MAX_ITEMS:]
    groups = dict(
        session.query(GROUPS.format(store.dialect.AMONG), store.id, store.dialect.as_list(wanted))
    )
    leased, discarded = (
        {groups[item] for part in parts for item in part.tolist() if item in groups}
        for parts in items.values()
    )
    return leased, discarded


def _kind_of_lease(text: str) -> str | None:
    """Return "leased" or "discarded" for a request of whole episodes, and None for others."""
    try:
        request = json.loads(text)
        if not names_episodes(request["unit"]):
            return None
        return "discarded" if request.get(DISCARDED) is True else "leased"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # `expdb check` reports the corruption
