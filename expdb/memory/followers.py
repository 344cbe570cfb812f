"""Caches derived from the rows in memory, updated from the journal of changes."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections import deque
from collections.abc import Hashable
from typing import Any, Self

import numpy as np

from expdb.memory.columns import ORDINAL
from expdb.memory.journal import ENTRY_BYTES, JOURNAL, NONE, Change
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store


class Follower:
    """A cache that is valid at one epoch of the rows in memory and can be updated."""

    def __init__(self, resident: Resident):
        self._resident = resident
        self.epoch = -1  # the epoch at which the cache is valid

    @property
    def is_current(self) -> bool:
        """Whether the rows have not changed since `epoch`."""
        return self.epoch == self._resident.epoch

    def changes(self) -> list[Change] | None:
        """Return the changes since `epoch`, or None if the journal no longer has all of them."""
        return self._resident.since(self.epoch) if self.epoch >= 0 else None

    def follow(self, store: Store, session: Session) -> None:
        """Update the cache from the rows in memory, which must match the session's snapshot."""
        raise NotImplementedError

    def ensure_current(self, store: Store, session: Session | None, force: bool = False) -> Self:
        """Update this cache if it is outdated or with `force`, and return it.

        An update requires a session.
        """
        if force or not self.is_current:
            assert session is not None
            self.follow(store, session)
        return self


# Columns of an episode that may change with every new step. Only updates change its other columns.
PROGRESS = frozenset(
    ("status", "length", "episode_return", "ended", "first_policy_version", "last_policy_version")
)


def _size(positions: np.ndarray | None) -> int:
    return ENTRY_BYTES + (0 if positions is None else positions.nbytes)


class EpisodeStarts(Follower):
    """The first positions of the complete episodes in memory, ascending."""

    def __init__(self, resident: Resident):
        super().__init__(resident)
        self._positions = NONE

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._positions.nbytes

    def positions(self) -> np.ndarray:
        """Return the positions; do not write to the array."""
        if self.is_current:
            return self._positions
        r, changes = self._resident, self.changes()
        if changes is None:
            self._positions = r.starts()
        else:  # check only changed positions; a search through all rows takes longer
            new = [np.arange(max(change.begin, r.low), change.end) for change in changes]
            relinked = [change.relinked for change in changes]
            changed = np.concatenate((*new, *relinked))
            unchanged = self._positions[~np.isin(self._positions, changed, kind="sort")]
            positions = np.sort(np.concatenate((unchanged, np.unique(changed))), kind="stable")
            positions = positions[r.are_stored(positions)]
            self._positions = positions[r.episode_lengths(r.rows(positions)) > 0]
        self.epoch = r.epoch
        return self._positions


class Matches(Follower):
    """The positions in memory that match a condition, ascending."""

    def __init__(self, resident: Resident, condition: Condition):
        super().__init__(resident)
        self.condition = condition
        self._storage = np.empty(0, np.int64)  # with spare capacity at the end
        self._begin = self._end = 0
        # For each update: the epoch, and the older positions that were checked again (None: all).
        self._looked: deque[tuple[int, np.ndarray | None]] = deque(maxlen=JOURNAL)
        self._looked_bytes = 0

    @property
    def positions(self) -> np.ndarray:
        """The matching positions, ascending; do not write to the array."""
        return self._storage[self._begin : self._end]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._storage.nbytes + self._looked_bytes

    def contain(self, positions: np.ndarray) -> np.ndarray:
        """Return a bool array: whether each position matches."""
        matching = self.positions
        place = matching.searchsorted(positions)
        is_match = place < len(matching)
        is_match[is_match] = matching[place[is_match]] == positions[is_match]
        return is_match

    def find_changed_matches(self, epoch: int) -> np.ndarray | None:
        """Return the older positions whose match may have changed since an epoch.

        New positions are not included. Return None if the changes are unknown.
        """
        since = [positions for at, positions in self._looked if at > epoch]
        if any(positions is None for positions in since) or (
            self._looked and self._looked[0][0] > epoch
        ):
            return None
        return np.concatenate([NONE, *[positions for positions in since if positions is not None]])

    def changes(self) -> list[Change] | None:
        """Return the changes since `epoch`, or None if the condition must be evaluated again.

        A condition must be evaluated again if it reads priorities, or if the journal lacks some
        changes.
        """
        return None if "priority" in self.condition.names else super().changes()

    def follow(self, store: Store, session: Session) -> None:
        """Update the matches to the rows in memory, which must be up to date with the session."""
        changes = self.changes()
        again: np.ndarray | None = None
        if changes is None:
            self._set(select.positions(store, session, self.condition))
        else:
            again = self._advance(store, session, changes)
        self._looked_bytes += _size(again) - (
            _size(self._looked[0][1]) if len(self._looked) == JOURNAL else 0
        )
        self.epoch = self._resident.epoch
        self._looked.append((self.epoch, again))

    def _set(self, positions: np.ndarray) -> None:
        self._storage, self._begin, self._end = positions, 0, len(positions)

    def _advance(self, store: Store, session: Session, changes: list[Change]) -> np.ndarray:
        resident = self._resident
        self._begin += int(self.positions.searchsorted(resident.low))
        if any(change.deleted for change in changes):
            self._set(self.positions[resident.are_stored(self.positions)])
        first_new = min(
            [change.begin for change in changes if change.end > change.begin], default=resident.high
        )
        again = self._again(store, session, changes, first_new)
        if len(again):
            cut = int(self.positions.searchsorted(again[0]))
            rest = self.positions[cut:]
            matching = select.positions(store, session, self.condition, among=again)
            did_match, match = self.contain(again), np.isin(again, matching, assume_unique=True)
            rest = np.delete(rest, rest.searchsorted(again[did_match & ~match]))
            added = again[match & ~did_match]
            rest = np.insert(rest, rest.searchsorted(added), added)
            self._end = self._begin + cut
            self._append(rest)
        if first_new < resident.high:
            self._append(select.positions(store, session, self.condition, after=first_new - 1))
        return again

    def _again(
        self, store: Store, session: Session, changes: list[Change], first_new: int
    ) -> np.ndarray:
        """Return the older positions that must be checked again, ascending."""
        episodes = [change.episodes for change in changes]
        if self.condition.names & PROGRESS:
            episodes += [change.advanced for change in changes]
        ids = np.unique(np.concatenate(episodes)) if episodes else np.empty(0, np.int64)
        candidates = [change.revised for change in changes]
        if len(ids) and self.condition.of_episodes:
            candidates.append(select.positions_of_episodes(store, session, ids, first_new))
        again = np.unique(np.concatenate(candidates)) if candidates else np.empty(0, np.int64)
        return again[self._resident.are_stored(again) & (again < first_new)]

    def _append(self, positions: np.ndarray) -> None:
        if self._end + len(positions) > len(self._storage):
            grown = np.empty((self._end - self._begin + len(positions)) * 5 // 4 + 64, np.int64)
            grown[: self._end - self._begin] = self.positions
            self._storage, self._begin, self._end = grown, 0, self._end - self._begin
        self._storage[self._end : self._end + len(positions)] = positions
        self._end += len(positions)


MANY = 4096
VALUE_BYTES = 200  # approximate size of a text and its code in a dict


class Owners(Follower):
    """The columns `names` of the episodes in memory, one entry per episode.

    Texts are stored as integer codes.
    """

    def __init__(self, resident: Resident, names: tuple[str, ...]):
        super().__init__(resident)
        self.names = names
        self.by_name = dict.fromkeys(names, self)
        self._forget()

    def _forget(self) -> None:
        self._ids = np.empty(0, np.int64)  # ascending
        self._values = {name: np.empty(0) for name in self.names}
        self._codes: dict[str, dict[Hashable, int]] = {
            name: {} for name in self.names if not select.is_number(name)
        }

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        texts = sum(map(len, self._codes.values()))
        return self._ids.nbytes * (1 + len(self.names)) + VALUE_BYTES * texts

    def follow(self, store: Store, session: Session) -> None:
        """Update the columns to the rows in memory, which must be up to date with the session."""
        changes = self.changes()
        if changes is None or len(self._ids) > 2 * self._resident.size + MANY:  # most are evicted
            changes = None
            self._forget()
        last = int(self._ids[-1]) if len(self._ids) else -1
        changed = [ids for change in changes or () for ids in (change.episodes, change.advanced)]
        again = np.unique(np.concatenate(changed)) if changed else self._ids[:0]
        rows = select.columns_of_episodes(store, session, self.names, last, again[again <= last])
        rows.sort(key=lambda row: int(row[0]))
        ids = np.array([row[0] for row in rows], np.int64)
        existing = ids <= last
        place = self._ids.searchsorted(ids[existing])
        for k, name in enumerate(self.names, 1):
            fresh = self._encoded(name, [row[k] for row in rows])
            self._values[name][place] = fresh[existing]
            self._values[name] = np.concatenate((self._values[name], fresh[~existing]))
        self._ids = np.concatenate((self._ids, ids[~existing]))
        self.epoch = self._resident.epoch

    def _encoded(self, name: str, values: list[Hashable]) -> np.ndarray:
        if name not in self._codes:
            return np.array([np.nan if value is None else value for value in values], np.float64)
        codes = self._codes[name]
        return np.array(
            [-1 if value is None else codes.setdefault(value, len(codes)) for value in values],
            np.float64,
        )

    def of(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return a column of episodes: float64 for numbers, int64 codes for texts.

        The codes number the texts in the order of their first occurrence in `episodes`, so they do
        not depend on earlier reads. The code -1 stands for no text.
        """
        values: np.ndarray = self._values[name].take(self._places(episodes))
        if name not in self._codes:
            return values
        codes = values.astype(np.int64).reshape(-1)
        count = len(self._codes[name]) + 1  # the last entry, at index -1, stands for no text
        first = np.full(count, len(codes))
        # If a code is repeated, the last assignment wins. The order is reversed, so the last
        # assignment is for the first occurrence.
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        first[-1] = len(codes) + 1
        rank = np.empty(count, np.int64)
        rank[first.argsort(kind="stable")] = np.arange(count)
        rank[-1] = -1
        return rank[codes].reshape(episodes.shape)

    def parent_of(self, episode: int) -> int:
        """Return the parent of an episode; UNKNOWN if it has no parent or is not stored."""
        place = int(self._ids.searchsorted(episode))
        if place == len(self._ids) or self._ids[place] != episode:
            return UNKNOWN
        parent = self._values["parent_episode"][place]
        return UNKNOWN if np.isnan(parent) else int(parent)

    def texts(self, name: str, episodes: np.ndarray) -> list[str | None]:
        """Return the texts of a column of episodes."""
        texts: list[Any] = [*self._codes[name], None]  # None has the code -1
        codes = self._values[name].take(self._places(episodes)).astype(np.int64)
        return [texts[code] for code in codes.tolist()]

    def _places(self, episodes: np.ndarray) -> np.ndarray:
        ids = self._ids
        if len(ids) and ids[-1] - ids[0] == len(ids) - 1:  # ids are usually consecutive
            places: np.ndarray = episodes - ids[0]
            return places
        return ids.searchsorted(episodes)


class SparseColumn(Follower):
    """A column of the few steps that have a value of their own."""

    def __init__(self, resident: Resident):
        super().__init__(resident)
        self._positions, self._values = NONE, np.empty(0)  # ascending by position

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._positions.nbytes + self._values.nbytes

    def _read(
        self, store: Store, session: Session, first: int, among: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and values of steps from `first` on, or with a position in `among`."""
        raise NotImplementedError

    def follow(self, store: Store, session: Session) -> None:
        """Update the values to the rows in memory, which must be up to date with the session."""
        resident, changes = self._resident, self.changes()
        if changes is None:
            first_new, again = resident.low, NONE
        else:
            begun = [change.begin for change in changes if change.end > change.begin]
            first_new = max(resident.low, min(begun, default=resident.high))
            again = np.unique(np.concatenate([NONE, *[change.revised for change in changes]]))
            again = again[(again >= resident.low) & (again < first_new)]
        kept = resident.are_stored(self._positions) & (self._positions < first_new)
        kept &= ~np.isin(self._positions, again)
        new_positions, new_values = self._read(store, session, first_new, again)
        positions = np.concatenate((self._positions[kept], new_positions))
        order = positions.argsort()
        values = np.concatenate((self._values[kept], new_values))
        self._positions, self._values = positions[order], values[order]
        self.epoch = resident.epoch

    def replace(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return `values` of rows, replaced where a step has a value of its own."""
        if not len(self._positions):
            return values
        positions = self._resident.positions(rows)
        place = self._positions.searchsorted(positions)
        place[place == len(self._positions)] = 0
        own = self._positions[place] == positions
        return np.where(own, self._values[place], values)


class StepVersions(SparseColumn):
    """The `policy_version` of the few steps whose version differs from that of their episode."""

    def _read(
        self, store: Store, session: Session, first: int, among: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return select.own_versions(store, session, first, among)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the policy version of steps as float64; NaN for none.

        A step without a version of its own has the version of its episode.
        """
        return self.replace(self._resident.of_episodes("policy_version", rows), rows)


class StepAgents(SparseColumn):
    """The agent of every step, as a number."""

    def __init__(self, resident: Resident):
        super().__init__(resident)
        self._codes: dict[str, int] = {}
        self._ordinals = NONE  # by row
        self._ordinals_state = -1, -1  # the epoch and the layout version of `_ordinals`

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return super().nbytes + self._ordinals.nbytes

    def _read(
        self, store: Store, session: Session, first: int, among: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = select.agents_of_steps(store, session, first, among)
        codes = self._codes
        return (
            np.array([row[0] for row in rows], np.int64),
            np.array([codes.setdefault(row[1], len(codes)) for row in rows], np.float64),
        )

    def are(self, agent_id: str, rows: np.ndarray) -> np.ndarray:
        """Return whether each step has this agent, bool."""
        are_own: np.ndarray = self.codes(rows) == self._codes.get(agent_id, -2)
        return are_own

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for the agent of each step, float64; -1 if the agent is unknown."""
        return self.replace(np.full(rows.shape, -1.0), rows)

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of earlier steps of the agent in the episode of each step.

        If the first steps of the episode are not in memory, the result is an estimate. The estimate
        is 0 only if the step number is at most 0.
        """
        r = self._resident
        if self._ordinals_state != (r.epoch, r.layout_version):
            ordinals, live = r.columns[ORDINAL].copy(), r.rows(r.all_positions())
            episodes, agents, numbers = r.episodes(live), self.codes(live), r.numbers(live)
            order = np.lexsort((numbers, agents, episodes))
            live, episodes, agents = live[order], episodes[order], agents[order]
            first = np.flatnonzero(
                np.diff(episodes, prepend=UNKNOWN) | (np.diff(agents, prepend=np.nan) != 0)
            )
            is_cut = ~np.isin(episodes[first], episodes[ordinals[live] == 0])
            offsets = np.where(is_cut, np.minimum(ordinals[live], numbers[order])[first], 0)
            lengths = np.diff(first, append=len(live))
            ordinals[live] = np.arange(len(live)) + np.repeat(
                np.maximum(offsets, 0) - first, lengths
            )
            self._ordinals, self._ordinals_state = ordinals, (r.epoch, r.layout_version)
        counts: np.ndarray = self._ordinals[rows]
        return counts


class StepScores(SparseColumn):
    """The latest scores of one name."""

    def __init__(self, resident: Resident, name: str):
        super().__init__(resident)
        self._name = name

    def _read(
        self, store: Store, session: Session, first: int, among: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return select.own_scores(store, session, self._name, first, among)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the score of steps as float64; NaN for none."""
        return self.replace(np.full(len(rows), np.nan), rows)
