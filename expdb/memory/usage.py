"""Track the steps that the learners of a consumer have leased and the steps they may lease."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from expdb.memory.journal import ENTRY_BYTES, JOURNAL, NONE
from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage.ledger import lease_rows
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.lease_rows import Counters, LeaseRow
from expdb.storage.store import Store

UNLIMITED = 2**31  # number of leases of a step that stands for "no limit"
LEAST = 1024  # minimum number of entries


class Usage:
    """The number of leases of each step and the steps that are leased now, read from the ledger.

    An item is identified by the position of a step, and an episode by the position of its first
    step. The arrays start with an entry for each position in `_sparse`, which has gaps. Entries
    for consecutive positions from `_first` follow. The last entry stands for all other positions.
    """

    def __init__(self, most: int | None, began: int):
        self.most = most  # maximum number of leases of a step; None for no limit
        self._began = began
        self.epoch = 0  # counts changes, so that sum trees and lists can find the changes to apply
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state, without any lease."""
        self.version = -1  # version of the consumer at which this object is up to date
        self.rewinds = 0  # of the consumer at this version
        self.last = -1  # greatest lease id that was read
        self.begun = 0
        self.held: dict[int, LeaseRow] = {}
        self.released: dict[
            int, LeaseRow
        ] = {}  # returned and not leased again yet, by batch number
        self._first, self._sparse = 0, NONE
        self._lease_counts = np.zeros(1, np.int32)  # leases of each step, including open ones
        self._is_held = np.zeros(1, np.bool_)  # whether the step is leased or blocked
        self._journal: deque[np.ndarray] = deque(maxlen=JOURNAL)
        self._oldest_entry = self.epoch = self.epoch + 1

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        journal = list(self._journal)  # an atomic copy, as other threads may lease meanwhile
        entries = sum(array.nbytes + ENTRY_BYTES for array in journal)
        leases = ENTRY_BYTES * (len(self.held) + len(self.released))
        arrays = self._lease_counts.nbytes + self._is_held.nbytes + self._sparse.nbytes
        return arrays + entries + leases

    # -- available steps ---------------------------------------------------------------------------

    def may_be_drawn(self, resident: Resident, rows: np.ndarray) -> np.ndarray:
        """Return a bool array: whether each step may be leased now."""
        positions = resident.positions(rows)
        if self.most is not None:
            return self.left(positions) > 0
        is_held = self._is_held.take(self._indices(positions))
        is_available: np.ndarray = ~is_held & (positions >= self._began)
        return is_available

    def left(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of times that each position may be leased in one batch."""
        indices = self._indices(positions)
        most = UNLIMITED if self.most is None else self.most
        remaining: np.ndarray = most - self._lease_counts[indices].astype(np.int64)
        remaining[self._is_held[indices] | (positions < self._began)] = 0
        return remaining

    def _indices(self, positions: np.ndarray) -> np.ndarray:
        """Return the array index of each position; the last index if it has no entry."""
        last = len(self._lease_counts) - 1
        indices: np.ndarray = np.minimum(positions - (self._first - len(self._sparse)), last)
        is_sparse = positions < self._first
        if np.count_nonzero(is_sparse):
            indices[is_sparse] = self._sparse_indices(positions[is_sparse], last)
        return indices

    def _sparse_indices(self, positions: np.ndarray, default: int) -> np.ndarray | int:
        """Return the array indices of positions before `_first`."""
        if not len(self._sparse):
            return default
        candidates = self._sparse.searchsorted(positions)
        has_entry = self._sparse.take(candidates, mode="clip") == positions
        return np.where(has_entry, candidates, default)

    def since(self, epoch: int) -> np.ndarray | None:
        """Return the positions whose leases may have changed since an epoch; None if unknown."""
        if epoch < self._oldest_entry:
            return None
        behind = self.epoch - epoch
        if behind > len(self._journal):
            return None
        recent = list(self._journal)[len(self._journal) - behind :]
        return np.unique(np.concatenate([NONE, *recent]))

    # -- updates from the ledger -----------------------------------------------------------------

    def begin_at(self, oldest: int) -> None:
        """Reset to the initial state; positions before `oldest` are evicted."""
        self.forget()
        self._first = oldest

    def follow(
        self,
        store: Store,
        session: Session,
        consumer: ConsumerRecord,
        counters: Counters | ConsumerRecord,
    ) -> None:
        """Apply the changes of the ledger since the last call."""
        if self.version == counters.version:
            return
        with self._forgetting_on_error():
            if self.version < 0 or self.rewinds != counters.rewinds:
                self._load(store, session, consumer)
                self.last, self.begun = counters.handed_out - 1, counters.begun
                self.rewinds = counters.rewinds
            else:
                for lease in lease_rows.read_changed(
                    store, session, consumer, self.last, self.held
                ):
                    self.apply(lease)
        self.version = counters.version

    def _load(self, store: Store, session: Session, consumer: ConsumerRecord) -> None:
        """Read the leases that affect which steps may be drawn."""
        oldest = store.state(session).oldest
        self.begin_at(oldest)
        if self.most is not None:
            for lease in lease_rows.acknowledged(store, session, consumer, oldest):
                self.apply(lease)
        for lease in lease_rows.open_leases(store, session, consumer):
            self.apply(lease)

    def apply(self, lease: LeaseRow) -> None:
        """Apply a lease that is new or has changed."""
        with self._forgetting_on_error():
            self._apply(lease)

    def _apply(self, lease: LeaseRow) -> None:
        before, items = self.held.pop(lease.id, None), lease.drawn.items
        counts, counted = lease.status in ("leased", "acknowledged"), before is not None
        if counts != counted:
            self._count(items, 1 if counts else -1)
        if (lease.status == "leased") != counted:
            self._hold(items, lease.status == "leased")
        again = self.released.get(lease.number)
        if again is not None and again.id <= lease.id:
            del self.released[lease.number]
        if lease.status == "leased":
            self.held[lease.id] = lease
        elif lease.status == "returned":
            self.released[lease.number] = lease
        self.last = max(self.last, lease.id)
        self.begun = max(self.begun, lease.number + 1)
        self._note(items)

    def block(self, positions: np.ndarray) -> None:
        """Exclude positions from leases until they are unblocked."""
        self._set_blocked(positions, True)

    def unblock(self, positions: np.ndarray) -> None:
        """Undo `block` for the same positions."""
        self._set_blocked(positions, False)

    def _set_blocked(self, positions: np.ndarray, is_blocked: bool) -> None:
        with self._forgetting_on_error():
            self._hold(positions, is_blocked)
            self._note(positions)

    @contextmanager
    def _forgetting_on_error(self) -> Iterator[None]:
        """Forget everything if a change is interrupted; the next lease reads the ledger again."""
        try:
            yield
        except BaseException:
            self.forget()
            raise

    def _note(self, positions: np.ndarray) -> None:
        self._journal.append(positions)
        self.epoch += 1

    def _count(self, items: np.ndarray, by: int) -> None:
        if self.most is not None:
            indices = self._reserve_entries(items)
            np.add.at(self._lease_counts, indices, by)

    def _hold(self, items: np.ndarray, is_held: bool) -> None:
        indices = self._reserve_entries(items)
        self._is_held[indices] = is_held

    def _reserve_entries(self, items: np.ndarray) -> np.ndarray:
        """Extend the arrays to cover `items`; return the indices of the items with an entry."""
        needed = int(items.max(initial=-1)) + 1 - self._first + len(self._sparse)
        if needed >= len(self._lease_counts):
            size = max(LEAST, needed + needed // 4)
            self._lease_counts, self._is_held = (
                _pad(array, size) for array in (self._lease_counts, self._is_held)
            )
        indices = self._indices(items)
        with_entry: np.ndarray = indices[indices < len(self._lease_counts) - 1]
        return with_entry

    def compact(self, resident: Resident) -> None:
        """Drop the entries of positions without a step, if these are most of the entries.

        The caller must hold `resident.lock`.
        """
        if not resident.complete or len(self._lease_counts) <= LEAST + 2 * resident.size:
            return
        sparse, first = resident.split()
        end = self._first + len(self._lease_counts) - 1 - len(self._sparse)
        indices = self._indices(np.concatenate((sparse, np.arange(first, end))))
        # Leave out the unused entries at the end; otherwise, each lease would copy them again.
        used = np.flatnonzero(self._lease_counts[indices] | self._is_held[indices])
        size = max(len(sparse), int(used[-1]) + 1 if len(used) else 0)
        lease_counts = _pad(self._lease_counts[indices[:size]], size)
        is_held = _pad(self._is_held[indices[:size]], size)
        # No function call separates these assignments, so an interrupt cannot split them.
        self._first, self._sparse = first, sparse
        self._lease_counts, self._is_held = lease_counts, is_held

    # -- next batch ------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        """The number of the next batch: the smallest number of a returned lease, or a new one."""
        return min(self.released, default=self.begun)


def _pad(array: np.ndarray, size: int) -> np.ndarray:
    """Return a copy of `array` padded with zeros to `size` entries plus the last entry."""
    padded = np.zeros(size + 1, array.dtype)
    padded[: len(array)] = array
    return padded
