"""What was handed out to the learners of one consumer: which steps may be handed out again."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections import deque

import numpy as np

from expdb.memory.journal import ENTRY_BYTES, JOURNAL, NONE
from expdb.memory.resident import Resident
from expdb.storage.ledger.leases import Lease

UNLIMITED = 2**31  # hand-outs
ROOM = 1024  # positions that there is room for, at least


class Usage:
    """How often each step was handed out, and which are held, as the ledger says.

    A step stands for what is drawn by it: an episode by its first step. The arrays have an entry
    for each position from `first` on, behind those for the `early` positions, which have gaps
    between them. The last entry is that of unknown positions.
    """

    def __init__(self, most: int | None, began: int):
        self.most, self._began = most, began  # times that a step may be handed out
        self.epoch = 0  # counts changes, so that sum trees and lists know which they have not seen
        self.forget()

    def forget(self) -> None:
        """Know nothing, as at the beginning."""
        self.version = -1  # of the consumer, at which all of this is right
        self.last = -1  # lease that is known
        self.begun = 0
        self.held: dict[int, Lease] = {}
        self.returned: dict[int, Lease] = {}  # and not drawn again yet, by number
        self._first, self._early = 0, NONE
        self._times = np.zeros(1, np.int32)  # handed out, what is held included
        self._holds = np.zeros(1, np.bool_)  # by a lease, or blocked
        self._journal: deque[np.ndarray] = deque(maxlen=JOURNAL)
        self._oldest_entry = self.epoch = self.epoch + 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        journal = list(self._journal)  # in one step: other threads lease meanwhile
        entries = sum(array.nbytes + ENTRY_BYTES for array in journal)
        leases = ENTRY_BYTES * (len(self.held) + len(self.returned))
        arrays = self._times.nbytes + self._holds.nbytes + self._early.nbytes
        return arrays + entries + leases

    # -- what may be handed out ------------------------------------------------------------------

    def may_be_drawn(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be handed out now, bool."""
        positions = resident.positions(rows)
        if self.most is not None:
            return self.left(positions) > 0
        is_held = self._holds.take(self._places(positions))
        found: np.ndarray = ~is_held & (positions >= self._began)
        return found

    def left(self, positions: np.ndarray) -> np.ndarray:
        """Return how often each of the positions may be handed out in one batch."""
        places = self._places(positions)
        most = UNLIMITED if self.most is None else self.most
        found: np.ndarray = most - self._times[places].astype(np.int64)
        found[self._holds[places] | (positions < self._began)] = 0
        return found

    def _places(self, positions: np.ndarray) -> np.ndarray:
        """Return the indices of positions in the arrays; the last one for unknown positions."""
        unknown = len(self._times) - 1
        places: np.ndarray = np.minimum(positions - (self._first - len(self._early)), unknown)
        before = positions < self._first
        if np.count_nonzero(before):
            early = self._early.searchsorted(positions[before])
            is_known = np.append(self._early, self._first)[early] == positions[before]
            places[before] = np.where(is_known, early, unknown)
        return places

    def since(self, epoch: int) -> np.ndarray | None:
        """Return the positions of which it may have changed since an epoch; None if unknown."""
        if epoch < self._oldest_entry:
            return None
        behind = self.epoch - epoch
        if behind > len(self._journal):
            return None
        recent = list(self._journal)[len(self._journal) - behind :]
        return np.unique(np.concatenate([NONE, *recent]))

    # -- what the ledger says --------------------------------------------------------------------

    def begin_at(self, oldest: int) -> None:
        """Know nothing of positions before `oldest`, which are evicted."""
        self.forget()
        self._first = oldest

    def take_in(self, lease: Lease) -> None:
        """Take in a lease that is new, or has changed."""
        known, items = self.held.pop(lease.id, None), lease.drawn.items
        counts, counted = lease.status in ("leased", "acknowledged"), known is not None
        if counts != counted:
            self._count(items, 1 if counts else -1)
        if (lease.status == "leased") != counted:
            self._hold(items, lease.status == "leased")
        again = self.returned.get(lease.number)
        if again is not None and again.id <= lease.id:
            del self.returned[lease.number]
        if lease.status == "leased":
            self.held[lease.id] = lease
        elif lease.status == "returned":
            self.returned[lease.number] = lease
        self.last = max(self.last, lease.id)
        self.begun = max(self.begun, lease.number + 1)
        self._note(items)

    def block(self, positions: np.ndarray) -> None:
        """Have positions not handed out until they are unblocked."""
        self._hold(positions, True)
        self._note(positions)

    def unblock(self, positions: np.ndarray) -> None:
        """Undo `block` of the same positions."""
        self._hold(positions, False)
        self._note(positions)

    def _note(self, positions: np.ndarray) -> None:
        self._journal.append(positions)
        self.epoch += 1

    def _count(self, items: np.ndarray, by: int) -> None:
        if self.most is not None:
            places = self._reserved(items)
            np.add.at(self._times, places, by)

    def _hold(self, items: np.ndarray, is_held: bool) -> None:
        places = self._reserved(items)
        self._holds[places] = is_held

    def _reserved(self, items: np.ndarray) -> np.ndarray:
        """Make room for new positions; return the indices of those that are not evicted."""
        needed = int(items.max(initial=-1)) + 1 - self._first + len(self._early)
        if needed >= len(self._times):
            room = max(ROOM, needed + needed // 4)
            self._times, self._holds = _grown(self._times, room), _grown(self._holds, room)
        places = self._places(items)
        known: np.ndarray = places[places < len(self._times) - 1]
        return known

    def forget_evicted(self, resident: Resident) -> None:
        """Forget positions that hold no step, if they are most of what is known.

        `resident` must be locked.
        """
        if not resident.complete or len(self._times) <= ROOM + 2 * resident.size:
            return
        early, first = resident.split()
        end = self._first + len(self._times) - 1 - len(self._early)
        places = self._places(np.concatenate((early, np.arange(first, end))))
        times = _grown(self._times[places], len(places))
        holds = _grown(self._holds[places], len(places))
        # No call comes between these, so no interrupt does.
        self._first, self._early, self._times, self._holds = first, early, times, holds

    # -- what comes next -------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        """The number of the next batch: that of one given back, or a new one."""
        return min(self.returned, default=self.begun)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array of `size` entries and the one for unknown positions."""
    grown = np.zeros(size + 1, array.dtype)
    grown[: len(array)] = array
    return grown
