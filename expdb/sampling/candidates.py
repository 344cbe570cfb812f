"""Find the steps that a sample may draw: the query matches them and the unit allows them."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from expdb.memory.columns import run_starts
from expdb.memory.followers import (
    EpisodeStarts,
    Matches,
    Owners,
    StepAgents,
    StepScores,
    StepVersions,
)
from expdb.memory.journal import NONE
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.population import Grouped, Interval, Listed, Positions, check_size
from expdb.sampling.extensions import check_anchors, read_only
from expdb.sampling.request import SampleRequest
from expdb.sql.conditions import Condition
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store

REMEMBERED = 16  # entries of each cache; an entry is brought up to date when it is used

Value = TypeVar("Value")


def remember(cache: dict[Any, Any], name: Any, value: Any) -> None:
    """Cache a value under a name, and remove the oldest entries if there are too many."""
    cache.pop(name, None)
    cache[name] = value
    while len(cache) > REMEMBERED:
        del cache[next(iter(cache))]


def get_or_create(cache: dict[Any, Value], name: Any, make: Callable[[], Value]) -> Value:
    """Return the value cached under a name; create it if there is none."""
    value = cache.get(name)
    if value is None:
        remember(cache, name, make())
        value = cache[name]
    return value


@dataclass(frozen=True)
class Anchors:
    """The items that may be drawn: identifying positions, and the positions of all their rows."""

    positions: np.ndarray  # ascending
    members: np.ndarray | None = None  # [A, n], padded with UNKNOWN

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.positions.nbytes + (0 if self.members is None else self.members.nbytes)


class Candidates:
    """The steps that may be drawn, by query and unit; each change causes a new search."""

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self._conditions: dict[str, Condition | None] = {}
        self._matches: dict[str, Matches] = {}
        # By name of the request: the state of the rows at a result, and the result.
        self._lists: dict[Any, tuple[tuple[int, int, int], Anchors | Grouped]] = {}
        self._owners: dict[tuple[str, ...], Owners] = {}
        self._starts = EpisodeStarts(resident)
        self._versions = StepVersions(resident)
        self._agents = StepAgents(resident)
        self._scores: dict[str, StepScores] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the lists, and of the cached data of queries and episodes."""
        cached: list[Any] = [entry for _, entry in self._lists.values()]
        cached += [*self._matches.values(), *self._owners.values(), self._versions, self._agents]
        cached.append(self._starts)
        cached += self._scores.values()
        return sum([entry.nbytes for entry in cached])

    def condition(self, key: str, where: Where) -> Condition | None:
        """Return the compiled query, which is cached by its key."""
        return get_or_create(self._conditions, key, lambda: self._store.compiled(where))

    def are_current(self, request: SampleRequest) -> bool:
        """Return whether the data in memory suffices to draw without reading the database."""
        r = self._resident
        if request.sampler.asks_database or request.asks_priorities:
            return False
        if request.condition is not None and not isinstance(request.where, np.ndarray):
            matches = self._matches.get(request.key or "")
            if matches is None or not matches.is_current:
                return False
        if request.sampler.uses_priorities:
            score = request.priority_score
            if r.priorities is None or (
                score is not None and not self._scores_of(score).is_current
            ):
                return False
        reads, limits = request.reads, request.limits
        if limits is not None and limits.reads_versions and not self._versions.is_current:
            return False
        if self._reads_agents(request) and not self._agents.is_current:
            return False
        return not reads or (reads in self._owners and self._owners[reads].is_current)

    def read_owners(self, session: Session | None, request: SampleRequest) -> None:
        """Load the episode columns and step versions that unit, sampler and consumer read."""
        reads, r, store = request.reads, self._resident, self._store
        if self._reads_agents(request):
            r.step_agents = self._agents.ensure_current(store, session)
        if not reads:
            r.owners = {}
            return
        if request.limits is not None and request.limits.reads_versions:
            r.step_versions = self._versions.ensure_current(store, session)
        owners = get_or_create(self._owners, reads, lambda: Owners(r, reads))
        r.owners = owners.ensure_current(store, session).by_name

    def _reads_agents(self, request: SampleRequest) -> bool:
        """Whether the request depends on the agents of steps."""
        if request.limits is not None and request.limits.reads_agents:
            return True
        return self._resident.has_agents and request.follows_links

    def _scores_of(self, name: str) -> StepScores:
        return get_or_create(self._scores, name, lambda: StepScores(self._resident, name))

    def scores(self, session: Session | None, name: str) -> StepScores:
        """Return the up-to-date scores of steps; if they are outdated, `session` is required."""
        return self._scores_of(name).ensure_current(self._store, session)

    def positions(
        self,
        session: Session | None,
        request: SampleRequest,
        fit: Callable[[np.ndarray], np.ndarray],
    ) -> Positions:
        """Return the positions that the unit may start from and the query matches.

        `fit` returns a mask of the stored positions from which the unit may start.
        """
        r, unit = self._resident, request.unit
        if request.key is not None or unit.lists_anchors:
            return Listed(self.listed(session, request).positions, unit.what)
        everything = lambda: self.listed(None, request).positions  # noqa: E731
        early, low = r.split()
        allowed = fit if request.anchor_key else None
        return Interval(low, r.high, allowed, everything, unit.what, early)

    def listed(self, session: Session | None, request: SampleRequest) -> Anchors:
        """Return the items that may be drawn; find them again after a change."""
        r, unit = self._resident, request.unit
        cached = self._lists.get(request.name)
        if cached is not None and cached[0] == request.state(r) and not request.asks_priorities:
            assert isinstance(cached[1], Anchors)
            return cached[1]
        matching = self._matching(session, request)
        if unit.lists_anchors and len(matching):
            anchors = self._anchors(request, matching)
        elif request.anchor_key and len(matching):
            anchors = Anchors(matching[request.may_start(r, r.rows(matching))])
        else:
            anchors = Anchors(matching)
        remember(self._lists, request.name, (request.state(r), anchors))
        return anchors

    def drawable(self, session: Session | None, request: SampleRequest) -> np.ndarray:
        """Return all positions that may be drawn; do not cache a list of every step."""
        r = self._resident
        if request.key is not None or request.unit.lists_anchors:
            return self.listed(session, request).positions
        positions = r.all_positions()
        if not request.anchor_key or not len(positions):
            return positions
        drawable: np.ndarray = positions[request.may_start(r, r.rows(positions))]
        return drawable

    def _matching(self, session: Session | None, request: SampleRequest) -> np.ndarray:
        """Return the matching positions, or the first positions of the matching episodes."""
        r = self._resident
        if request.key is None:
            return self._starts.positions() if request.unit.by_episode else r.all_positions()
        if isinstance(request.where, np.ndarray):
            positions = np.unique(request.where.astype(np.int64))
            matching: np.ndarray = positions[r.are_stored(positions)]
        else:
            matching = self.matches(session, request).positions
        if not request.unit.by_episode:
            return matching
        starts = self._starts.positions()
        if not len(starts):
            return starts
        has_match = Listed(matching).holds(starts)
        rest = np.flatnonzero(~has_match)
        if len(rest) and len(matching):
            has_match[rest] = self._have_later_match(starts[rest], matching)
        matched: np.ndarray = starts[has_match]
        return matched

    def _have_later_match(self, starts: np.ndarray, matching: np.ndarray) -> np.ndarray:
        """Return whether any step of each episode matches, given the first positions."""
        r = self._resident
        rows = r.rows(starts)
        ends = starts + r.episode_lengths(rows)
        has_match: np.ndarray = matching.searchsorted(ends) > matching.searchsorted(starts)
        # This range is wrong for episodes whose steps are not adjacent or not in order.
        last = r.rows(np.minimum(ends, r.high) - 1)
        is_adjacent = (r.positions(last) == ends - 1) & (
            r.ordinals(last) - r.ordinals(rows) == ends - starts - 1
        )
        is_adjacent &= r.episodes(last) == r.episodes(rows)
        if r.unordered:
            is_adjacent &= ~np.isin(r.episodes(rows), list(r.unordered))
        scattered = np.flatnonzero(~is_adjacent)
        if len(scattered):
            episodes = r.episodes(r.rows(matching))
            episodes = episodes[run_starts(episodes)]  # fewer, because steps are usually adjacent
            has_match[scattered] = np.isin(r.episodes(rows[scattered]), episodes)
        return has_match

    def _anchors(self, request: SampleRequest, matching: np.ndarray) -> Anchors:
        """Return the items that the unit forms from the matching steps."""
        r, unit = self._resident, request.unit
        rows = r.rows(matching)
        if request.limits is not None:
            rows = rows[request.limits.allow(r, rows)]
        if unit.checks_results:
            anchors = check_anchors(unit, unit.anchors(r, read_only(rows)), rows)
        else:
            anchors = unit.anchors(r, rows)
        first = anchors if anchors.ndim == 1 else anchors[:, 0]
        is_own = request.in_shard(r, first, anchors.ndim > 1) if len(first) else slice(None)
        anchors = anchors[is_own]
        if anchors.ndim == 1:
            return Anchors(np.sort(r.positions(anchors)))
        members = np.where(anchors >= 0, r.positions(anchors), UNKNOWN)
        members = members[np.argsort(members[:, 0])]
        return Anchors(members[:, 0].copy(), members)

    def rows(
        self, session: Session | None, request: SampleRequest, positions: np.ndarray
    ) -> np.ndarray:
        """Return the rows [B] or [B, n] of the items that these positions identify."""
        r = self._resident
        if not request.lists_anchors:
            return r.rows(positions)
        anchors = self.listed(session, request)
        if anchors.members is None:
            return r.rows(positions)
        members = anchors.members[anchors.positions.searchsorted(positions)]
        return np.where(members >= 0, r.rows(members), members)

    def matches(self, session: Session | None, request: SampleRequest) -> Matches:
        """Return the up-to-date positions that the query matches.

        If the matches in memory are not up to date, `session` is required.
        """
        assert request.key is not None
        assert request.condition is not None
        condition = request.condition
        matches = get_or_create(
            self._matches, request.key, lambda: Matches(self._resident, condition)
        )
        return matches.ensure_current(self._store, session, request.asks_priorities)

    def grouped(
        self, session: Session | None, request: SampleRequest, over: Literal["episode", "task"]
    ) -> Grouped:
        """Return the positions that may be drawn, grouped by episode or task."""
        r = self._resident
        name = (*request.name, request.unit.what, over)
        cached = self._lists.get(name)
        if cached is not None and cached[0] == request.state(r) and not request.asks_priorities:
            assert isinstance(cached[1], Grouped)
            return cached[1]
        positions = self.drawable(session, request)
        rows = r.rows(positions) if len(positions) else positions
        episodes = r.episodes(rows)
        runs = run_starts(episodes)  # the steps of an episode are usually adjacent
        groups = episodes[runs]
        if over == "task" and len(runs):
            groups = r.of_episodes("task_id", rows[runs])
        grouped = Grouped(positions, runs, groups, f"{over}s with {request.unit.what}")
        remember(self._lists, name, (request.state(r), grouped))
        return grouped

    def ordered(
        self, session: Session, request: SampleRequest, column: str, descending: bool, size: int
    ) -> np.ndarray:
        """Return the first `size` positions, ordered by a column, that the unit may start from."""
        r, unit = self._resident, request.unit
        positions = np.empty(0, np.int64)
        offset, limit = 0, size
        seen: set[int] = set()
        starts = self._starts_by_episode(session, request) if unit.by_episode else {}
        anchors = self.listed(session, request).positions if unit.lists_anchors else NONE
        while len(positions) < size:
            condition = request.condition
            page = select.ordered(
                self._store, session, condition, column, descending, limit, offset
            )
            offset, limit = offset + len(page), limit * 2
            rows = r.rows(page) if len(page) else page
            if unit.by_episode:
                episodes = dict.fromkeys(r.episodes(rows).tolist()) if len(page) else {}
                ahead = dict.fromkeys(starts[id] for id in episodes if id in starts)
                chosen = np.array([start for start in ahead if start not in seen], np.int64)
                seen.update(chosen.tolist())
            elif unit.lists_anchors:
                chosen = page[np.isin(page, anchors)]
            else:
                chosen = page[request.may_start(r, rows)] if len(page) else page
            positions = np.concatenate((positions, chosen))
            if len(page) < limit // 2:
                break
        check_size(len(positions), size, unit.what, replace=False)
        return positions[:size]

    def _starts_by_episode(self, session: Session, request: SampleRequest) -> dict[int, int]:
        """Return, for each episode, the position that identifies the item with this episode."""
        r, anchors = self._resident, self.listed(session, request)
        if not len(anchors.positions):
            return {}
        members = anchors.members
        members = anchors.positions[:, None] if members is None else members
        names = np.broadcast_to(anchors.positions[:, None], members.shape)[members >= 0]
        owners = r.episodes(r.rows(members[members >= 0]))
        return dict(zip(owners.tolist(), names.tolist(), strict=True))
