"""Which steps there are to draw from: those that the query matches and the unit may start from."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from expdb.memory.journal import NONE
from expdb.memory.matches import Matches
from expdb.memory.owners import Owners
from expdb.memory.resident import Resident
from expdb.memory.versions import StepVersions
from expdb.names import UNKNOWN
from expdb.replay.population import Grouped, Listed, Positions, Window, check_size
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sampling.extensions import checked_anchors, checked_starts, read_only
from expdb.sampling.limits import Limits
from expdb.sampling.memo import remember, remembered
from expdb.sql.conditions import Condition
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store


@dataclass
class Wanted:
    """One call of `sample`."""

    size: int
    where: Where
    key: str | None
    condition: Condition | None
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    shard: tuple[int, int] | None
    rng: np.random.Generator
    empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
    limits: Limits | None = None  # of the consumer that it is for
    # The columns of episodes that the unit and the sampler look at.
    reads: tuple[str, ...] = ()
    rows_crc: int = 0  # of the rows that the batch is made of, in the end

    def __post_init__(self) -> None:
        # Of a unit that derives from one of ours nobody knows what else it depends on.
        unit = self.unit
        own = () if unit.is_trusted or unit.starts_anywhere else (unit,)
        key = unit.anchor_key if unit.is_trusted else own
        self._anchor_key = key if self.shard is None else (*key, "shard", *self.shard)
        reads = (*self.unit.reads, *self.sampler.reads)
        if self.limits is not None:
            reads += self.limits.reads
        if reads:
            self.reads = tuple(sorted(set(reads)))

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides, beside the query, which steps may be drawn."""
        if self.limits is None:
            return self._anchor_key
        return *self._anchor_key, "consumer", self.limits.name, self.limits.oldest_version

    @property
    def name(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return self.key, self.anchor_key

    @property
    def asks_priorities(self) -> bool:
        """Whether the query asks for priorities, which no list of positions follows."""
        return self.condition is not None and "priority" in self.condition.names

    @property
    def asks_database(self) -> bool:
        """Whether the query or the sampler asks for what may be stored only in the database."""
        return self.asks_priorities or self.sampler.asks_database

    def may_start(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn, each by itself."""
        if self.unit.is_trusted:
            found = self.unit.may_start(resident, rows)
        else:
            given = self.unit.may_start(resident, read_only(rows))
            found = checked_starts(self.unit, given, len(rows))
        if self.limits is not None:
            found = found & self.limits.allow(resident, rows)
        return found if self.shard is None else found & self.in_shard(resident, rows)

    def epoch(self, resident: Resident) -> tuple[int, int]:
        """Return what counts the changes of the steps that may be drawn."""
        return resident.epoch, 0 if self.limits is None else self.limits.usage.epoch

    def in_shard(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps are of the episodes that are drawn from."""
        if self.shard is None:
            return np.ones(len(rows), np.bool_)
        index, count = self.shard
        found: np.ndarray = resident.episodes(rows) % count == index
        return found


@dataclass(frozen=True)
class Anchors:
    """What may be drawn: positions that name it, ascending, and those of all rows it is made of."""

    positions: np.ndarray
    members: np.ndarray | None = None  # [A, n], UNKNOWN for none

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.positions.nbytes + (0 if self.members is None else self.members.nbytes)


class Candidates:
    """The steps to draw from, by query and unit; worked out anew when something has changed."""

    def __init__(self, store: Store, resident: Resident):
        self._store, self._resident = store, resident
        self._conditions: dict[str, Condition | None] = {}
        self._matches: dict[str, Matches] = {}
        # Epochs, and what was right then.
        self._lists: dict[Any, tuple[tuple[int, int], Anchors | Grouped]] = {}
        self._owners: dict[tuple[str, ...], Owners] = {}
        self._versions = StepVersions()

    @property
    def nbytes(self) -> int:
        """Bytes of the lists, and of what is known of queries and episodes."""
        known: list[Any] = [found for _, found in self._lists.values()]
        known += [*self._matches.values(), *self._owners.values(), self._versions]
        return sum(one.nbytes for one in known)

    def condition(self, key: str, where: Where) -> Condition | None:
        """Return the compiled query, remembered by its key."""
        return remembered(self._conditions, key, lambda: self._store.compiled(where))

    def are_current(self, wanted: Wanted) -> bool:
        """Return whether what is in memory is enough to draw, without a look at the database."""
        r = self._resident
        if wanted.sampler.asks_database or wanted.asks_priorities:
            return False
        if wanted.condition is not None and not isinstance(wanted.where, np.ndarray):
            known = self._matches.get(wanted.key or "")
            if known is None or known.epoch != r.epoch:
                return False
        if wanted.sampler.uses_priorities and r.priorities is None:
            return False
        reads, limits = wanted.reads, wanted.limits
        if limits is not None and limits.reads_versions and self._versions.epoch != r.epoch:
            return False
        return not reads or (reads in self._owners and self._owners[reads].epoch == r.epoch)

    def read_owners(self, session: Session | None, wanted: Wanted) -> None:
        """Have in memory what unit, sampler and consumer look at beside the columns of a batch."""
        reads, r = wanted.reads, self._resident
        if not reads:
            r.owners = {}
            return
        if wanted.limits is not None and wanted.limits.reads_versions:
            if self._versions.epoch != r.epoch:
                assert session is not None
                self._versions.follow(self._store, session, r)
            wanted.limits.versions = self._versions
        owners = self._owners.get(reads)
        if owners is not None and owners.epoch == r.epoch:
            r.owners = owners.by_name
            return
        owners = remembered(self._owners, reads, lambda: Owners(reads))
        assert session is not None
        owners.follow(self._store, session, r)
        r.owners = owners.by_name

    def positions(self, session: Session | None, wanted: Wanted) -> Positions:
        """Return the positions that the unit may start from and the query matches."""
        r, unit = self._resident, wanted.unit
        if wanted.key is not None or unit.lists_anchors:
            return Listed(self.listed(session, wanted).positions, unit.what)
        allowed: Callable[[np.ndarray], np.ndarray] | None = None
        if wanted.anchor_key and r.gaps:
            allowed = lambda positions: self._held_and_fit(wanted, positions)  # noqa: E731
        elif wanted.anchor_key:
            allowed = lambda positions: wanted.may_start(r, r.rows(positions))  # noqa: E731
        elif r.gaps:
            allowed = r.held
        everything = lambda: self.listed(session, wanted).positions  # noqa: E731
        return Window(r.low, r.high, allowed, everything, unit.what)

    def _held_and_fit(self, wanted: Wanted, positions: np.ndarray) -> np.ndarray:
        """Return which positions hold a step that the unit may start from."""
        r = self._resident
        found = r.held(positions)
        found[found] = wanted.may_start(r, r.rows(positions[found]))
        return found

    def listed(self, session: Session | None, wanted: Wanted) -> Anchors:
        """Return what may be drawn; worked out anew when something has changed."""
        r, unit = self._resident, wanted.unit
        known = self._lists.get(wanted.name)
        if known is not None and known[0] == wanted.epoch(r) and not wanted.asks_priorities:
            assert isinstance(known[1], Anchors)
            return known[1]
        matching = self._matching(session, wanted)
        if unit.lists_anchors and len(matching):
            found = self._anchors(wanted, matching)
        elif wanted.anchor_key and len(matching):
            found = Anchors(matching[wanted.may_start(r, r.rows(matching))])
        else:
            found = Anchors(matching)
        remember(self._lists, wanted.name, (wanted.epoch(r), found))
        return found

    def rows_to_draw(self, session: Session | None, wanted: Wanted) -> np.ndarray:
        """Return the rows of what may be drawn; all of them are listed only if they have to be."""
        r = self._resident
        if wanted.key is not None or wanted.unit.lists_anchors:
            positions = self.listed(session, wanted).positions
            return r.rows(positions) if len(positions) else positions
        rows = r.rows(r.all_positions())
        return rows[wanted.may_start(r, rows)] if wanted.anchor_key and len(rows) else rows

    def _matching(self, session: Session | None, wanted: Wanted) -> np.ndarray:
        """Return the positions that match, or the first ones of the episodes that do."""
        r = self._resident
        if wanted.key is None:
            return r.starts() if wanted.unit.by_episode else r.all_positions()
        if isinstance(wanted.where, np.ndarray):
            given = np.unique(wanted.where.astype(np.int64))
            matching: np.ndarray = given[r.held(given)]
        else:
            matching = self.matches(session, wanted).positions
        if not wanted.unit.by_episode:
            return matching
        starts = r.starts()
        episodes = np.unique(r.episodes(r.rows(matching))) if len(matching) else NONE
        return starts[np.isin(r.episodes(r.rows(starts)), episodes)] if len(starts) else starts

    def _anchors(self, wanted: Wanted, matching: np.ndarray) -> Anchors:
        """Ask the unit what it draws, given the steps that match."""
        r, unit = self._resident, wanted.unit
        rows = r.rows(matching)
        if wanted.limits is not None:
            rows = rows[wanted.limits.allow(r, rows)]
        if unit.is_trusted:
            found = unit.anchors(r, rows)
        else:
            found = checked_anchors(unit, unit.anchors(r, read_only(rows)), rows)
        first = found if found.ndim == 1 else found[:, 0]
        found = found[wanted.in_shard(r, first)] if len(first) else found
        if found.ndim == 1:
            return Anchors(np.sort(r.positions(found)))
        members = np.where(found >= 0, r.positions(found), UNKNOWN)
        members = members[np.argsort(members[:, 0])]
        return Anchors(members[:, 0].copy(), members)

    def rows(self, session: Session | None, wanted: Wanted, positions: np.ndarray) -> np.ndarray:
        """Return the rows of what was drawn by these positions, [B] or [B, n]."""
        r = self._resident
        if not wanted.unit.lists_anchors:
            return r.rows(positions)
        anchors = self.listed(session, wanted)
        if anchors.members is None:
            return r.rows(positions)
        members = anchors.members[anchors.positions.searchsorted(positions)]
        return np.where(members >= 0, r.rows(members), members)

    def matches(self, session: Session | None, wanted: Wanted) -> Matches:
        """Return the positions that the query matches, brought up to date.

        A session is needed where they are not.
        """
        assert wanted.key is not None
        assert wanted.condition is not None
        condition = wanted.condition
        known = remembered(self._matches, wanted.key, lambda: Matches(condition))
        if known.epoch != self._resident.epoch or wanted.asks_priorities:
            assert session is not None
            known.follow(self._store, session, self._resident)
        return known

    def grouped(
        self, session: Session | None, wanted: Wanted, over: Literal["episode", "task"]
    ) -> Grouped:
        """Return the positions to draw from by episode or task."""
        r = self._resident
        name = (*wanted.name, wanted.unit.what, over)
        known = self._lists.get(name)
        if known is not None and known[0] == wanted.epoch(r) and not wanted.asks_priorities:
            assert isinstance(known[1], Grouped)
            return known[1]
        positions = self.positions(session, wanted).listed()
        rows = r.rows(positions) if len(positions) else positions
        groups = r.of_episodes("task_id", rows) if over == "task" else r.episodes(rows)
        found = Grouped(positions, groups, f"{over}s with {wanted.unit.what}")
        remember(self._lists, name, (wanted.epoch(r), found))
        return found

    def ordered(
        self, session: Session, wanted: Wanted, column: str, descending: bool, size: int
    ) -> np.ndarray:
        """Return the first positions in an order that the unit may start from."""
        r, unit = self._resident, wanted.unit
        found = np.empty(0, np.int64)
        offset, limit = 0, size
        seen: set[int] = set()
        starts = self._starts_by_episode(session, wanted) if unit.by_episode else {}
        anchors = self.listed(session, wanted).positions if unit.lists_anchors else NONE
        while len(found) < size:
            condition = wanted.condition
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
                chosen = page[wanted.may_start(r, rows)] if len(page) else page
            found = np.concatenate((found, chosen))
            if len(page) < limit // 2:
                break
        check_size(len(found), size, unit.what, replace=False)
        return found[:size]

    def _starts_by_episode(self, session: Session, wanted: Wanted) -> dict[int, int]:
        """Return the position that names what each episode is drawn with."""
        r, anchors = self._resident, self.listed(session, wanted)
        if not len(anchors.positions):
            return {}
        members = anchors.members
        members = anchors.positions[:, None] if members is None else members
        names = np.broadcast_to(anchors.positions[:, None], members.shape)[members >= 0]
        owners = r.episodes(r.rows(members[members >= 0]))
        return dict(zip(owners.tolist(), names.tolist(), strict=True))
