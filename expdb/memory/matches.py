"""The positions that match a query, remembered: found once, and followed from there."""

from collections import deque

import numpy as np

from expdb.memory.journal import ENTRY_BYTES, JOURNAL, NONE, Change
from expdb.memory.resident import Resident
from expdb.sql.conditions import Condition
from expdb.sql.session import Session
from expdb.storage.reading import select
from expdb.storage.store import Store

# Columns of an episode that change with every step it gets: its other columns change by an update
# only.
PROGRESS = frozenset(
    ("status", "length", "episode_return", "ended", "first_policy_version", "last_policy_version")
)


def _size(positions: np.ndarray | None) -> int:
    return ENTRY_BYTES + (0 if positions is None else positions.nbytes)


class Matches:
    """The positions held by a resident that match a condition, ascending."""

    def __init__(self, condition: Condition):
        self.condition = condition
        self.epoch = -1  # of the resident, at which they are right
        self._found = np.empty(0, np.int64)  # with room at the end
        self._begin = self._end = 0
        # Epoch, known positions looked at again.
        self._looked: deque[tuple[int, np.ndarray | None]] = deque(maxlen=JOURNAL)
        self._looked_bytes = 0

    @property
    def positions(self) -> np.ndarray:
        """The matching positions, ascending; not to be written to."""
        return self._found[self._begin : self._end]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._found.nbytes + self._looked_bytes

    def contain(self, positions: np.ndarray) -> np.ndarray:
        """Return which of the positions match, bool."""
        mine = self.positions
        place = mine.searchsorted(positions)
        found = place < len(mine)
        found[found] = mine[place[found]] == positions[found]
        return found

    def looked_at(self, epoch: int) -> np.ndarray | None:
        """Return the positions that may match otherwise than they did at an epoch, new ones aside.

        Returns None if that is not known.
        """
        since = [positions for at, positions in self._looked if at > epoch]
        if any(positions is None for positions in since) or (
            self._looked and self._looked[0][0] > epoch
        ):
            return None
        return np.concatenate([NONE, *[positions for positions in since if positions is not None]])

    def follow(self, store: Store, session: Session, resident: Resident) -> None:
        """Bring them up to date with the resident, which is up to date with the session."""
        changes = (
            resident.since(self.epoch)
            if self.epoch >= 0 and "priority" not in self.condition.names
            else None
        )
        again: np.ndarray | None = None
        if changes is None:
            self._set(select.positions(store, session, self.condition))
        else:
            again = self._advance(store, session, resident, changes)
        self.epoch = resident.epoch
        self._looked_bytes += _size(again) - (
            _size(self._looked[0][1]) if len(self._looked) == JOURNAL else 0
        )
        self._looked.append((self.epoch, again))

    def _set(self, found: np.ndarray) -> None:
        self._found, self._begin, self._end = found, 0, len(found)

    def _advance(
        self, store: Store, session: Session, resident: Resident, changes: list[Change]
    ) -> np.ndarray:
        self._begin += int(self.positions.searchsorted(resident.low))
        if any(change.deleted for change in changes):
            self._set(self.positions[resident.held(self.positions)])
        known = min(
            [change.begin for change in changes if change.end > change.begin], default=resident.high
        )
        again = self._again(store, session, resident, changes, known)
        if len(again):
            cut = int(self.positions.searchsorted(again[0]))
            rest = self.positions[cut:]
            kept = rest[~np.isin(rest, again, assume_unique=True)]
            matching = select.positions(store, session, self.condition, among=again)
            self._end = self._begin + cut
            self._append(np.sort(np.concatenate((kept, matching))))
        if known < resident.high:
            self._append(select.positions(store, session, self.condition, after=known - 1))
        return again

    def _again(
        self, store: Store, session: Session, resident: Resident, changes: list[Change], known: int
    ) -> np.ndarray:
        """Return the known positions that have to be looked at again, ascending."""
        episodes = [change.episodes for change in changes]
        if self.condition.names & PROGRESS:
            episodes += [change.advanced for change in changes]
        ids = np.unique(np.concatenate(episodes)) if episodes else np.empty(0, np.int64)
        found = [change.revised for change in changes]
        if len(ids) and self.condition.of_episodes:
            found.append(select.positions_of_episodes(store, session, ids, known))
        again = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        return again[resident.held(again) & (again < known)]

    def _append(self, found: np.ndarray) -> None:
        if self._end + len(found) > len(self._found):
            grown = np.empty((self._end - self._begin + len(found)) * 5 // 4 + 64, np.int64)
            grown[: self._end - self._begin] = self.positions
            self._found, self._begin, self._end = grown, 0, self._end - self._begin
        self._found[self._end : self._end + len(found)] = found
        self._end += len(found)
