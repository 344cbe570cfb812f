"""Evict the steps that a policy selects; with an archive, write them to Parquet files first.

If the process is killed at any time, every step is in the buffer or in the archive. Until the next
eviction, archived steps may be in a hidden draft in the archive folder: see
storage/ledger/evictions.py.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from expdb import errors
from expdb.archive import archive_folder, parquet
from expdb.batch import Batch
from expdb.process.liveness import has_ended, named
from expdb.process.locks import locked
from expdb.sql.session import Session
from expdb.storage.ledger import evictions
from expdb.storage.ledger.evictions import NOBODY, Archiving
from expdb.storage.ledger.pins import update_pins
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading.columns import read_columns
from expdb.storage.reading.fetch import alive
from expdb.storage.store import Store
from expdb.storage.writing import eviction
from expdb.storage.writing.eviction import (
    NOTHING,
    Eviction,
    EvictionPlan,
    evict,
    pinned_from,
    plan_eviction,
)

LOOK_SECONDS = 1.0  # minimum time between two checks of one handle for due steps
LOOK_SHARE = 20.0  # minimum pause after a check, in durations of that check: 5 % of the time
WARN_SECONDS = 60.0  # minimum time between two warnings about the same buffer
LATE_SECONDS = 10.0  # time over the capacity before a warning says that no archiver keeps up
FILE_STEPS = 4_096  # maximum steps in one file, because deleting them delays other writers
WRITE_SECONDS = 0.03  # time that one write may spend on archiving
RENEW_SECONDS = 20.0  # time between two renewals while a draft is written
EXPIRE_SECONDS = 600.0  # time without a renewal after which another process may take over
ATTEMPTS = 3  # attempts to archive while other processes write

_serials = itertools.count(1)

Scan = Callable[[np.ndarray, Sequence[str]], Iterator[Batch]]


class _OwnerChanged(Exception):
    """Another process has taken over the eviction."""


@dataclass
class _Backlog:
    """The steps that are due for eviction under a policy and a capacity."""

    policy: Eviction
    capacity: int | None
    plan: EvictionPlan

    def take(self, count: int) -> np.ndarray:
        """Remove and return about `count` positions, or those of whole trees of episodes."""
        plan, taken = self.plan, np.zeros(len(self.plan.positions), np.bool_)
        taken[:count] = True
        if self.policy.whole_episodes:
            taken = np.isin(plan.trees, plan.trees[taken])
        self.plan = plan.select(~taken)
        return plan.positions[taken]


class Retention:
    """Evict and archive the steps of a buffer for one handle."""

    def __init__(self, store: Store, scan: Scan, save: Callable[[], None]):
        self._store, self._scan, self._save = store, scan, save
        self._holder = named(next(_serials))
        self.next_look, self._next_warning = time.monotonic() + LOOK_SECONDS, 0.0
        self._lock = threading.Lock()  # only one thread at a time archives
        self._backlog: _Backlog | None = None
        self._has_removed_drafts = False
        self._over_since: float | None = None  # time.monotonic()
        self._at_once = 64  # steps that one write archives; adapted to earlier durations

    def prepare(self) -> None:
        """Import the Parquet writer if the buffer has an archive."""
        if not self._store.engine.read_only:
            with suppress(errors.DatabaseDamaged):  # check() and evict() report it
                policy = self.policy()
                if policy is not None and policy.archive is not None:
                    parquet.preload()

    # -- the policy ------------------------------------------------------------------------------

    def policy(self) -> Eviction | None:
        """Return the eviction policy, or None if there is none."""
        return self._store.read(eviction.read_policy)

    def set_policy(self, policy: Eviction | None) -> None:
        """Set the policy; raise ArchiveFailed if its folder cannot be written."""
        marker = None
        if policy is not None and policy.archive is not None:
            marker = archive_folder.prepare(os.fspath(policy.archive))
            parquet.preload()
        archive_folder.trust(self._store.engine.location, self._store.name)
        locked(self._lock, self._set_policy, policy, marker)

    def _set_policy(self, policy: Eviction | None, marker: str | None) -> None:
        store, keeps = self._store, marker is not None
        for _ in range(ATTEMPTS):
            try:
                self._evict()  # the current policy archives its steps first
            except errors.ArchiveFailed as error:
                if not keeps:
                    raise errors.ArchiveFailed(
                        f"cannot replace the eviction policy of buffer {store.name!r}, because "
                        f"its current policy must archive steps first ({error}); correct this "
                        "error, or set an Eviction with a writable archive"
                    ) from error
            with store.writing() as (session, _):
                under_way = evictions.find_eviction(store, session)
                if under_way is not None and under_way.committed:
                    raise errors.ArchiveFailed(
                        f"cannot replace the eviction policy of buffer {store.name!r}, because "
                        f"{under_way.draft} contains evicted steps; make this file available and "
                        "call evict(), or discard the steps with evict(forget_missing=True)"
                    )
                if under_way is not None and keeps:
                    evictions.end(store, session, under_way)
                elif under_way is None and not keeps and self._is_to_archive(session):
                    continue  # other processes have written in the meantime
                eviction.set_policy(store, session, policy, marker)
                return
        raise errors.DatabaseBusy(
            f"cannot replace the eviction policy of buffer {store.name!r}, because other "
            "processes write steps faster than expdb archives these steps; set the policy again"
        )

    def _is_to_archive(self, session: Session) -> bool:
        """Return whether the current policy must archive steps now."""
        policy = eviction.read_policy(self._store, session)
        if policy is None or policy.archive is None:
            return False
        return len(self._due(session, policy).positions) > 0

    def count_archived(self, positions: np.ndarray) -> int:
        """Return how many of the positions, int64, are in the archive of the policy.

        Warn about a file that cannot be read, and do not count its steps.
        """
        policy, is_archived = self.policy(), np.zeros(len(positions), np.bool_)
        if policy is not None and policy.archive is not None and len(positions):
            folder = archive_folder.of_buffer(policy.archive, self._store.name)
            for path in folder.rglob("[!.]*.parquet"):
                try:
                    is_archived |= np.isin(positions, parquet.positions_of(path))
                except (OSError, KeyError, pa.ArrowException) as error:
                    errors.warn(f"{path} cannot be read ({error}); restore it or move it away")
        return int(is_archived.sum())

    def plan(self) -> pa.Table:
        """Return the steps that would be evicted now, one row per range of steps."""
        store = self._store
        names = ("episode", "first", "last", "episode_id", "task_id", "why")
        with store.engine.reading() as session:
            policy = eviction.read_policy(store, session)
            plan = NOTHING
            if policy is not None:
                plan = plan_eviction(store, session, policy, time.time())
            runs = plan.runs()
            ends = np.array([last for _, _, last, _ in runs], np.int64)
            ends = ends[alive(store, session, ends)] if runs else ends
            ids_by_last = {}
            if len(ends):
                columns = read_columns(store, session, ends, ["episode_id", "task_id"])
                pairs = zip(columns["episode_id"], columns["task_id"], strict=True)
                ids_by_last = dict(zip(ends.tolist(), pairs, strict=True))
        rows = [
            (episode, first, last, *ids_by_last.get(last, (None, None)), why)
            for episode, first, last, why in runs
        ]
        transposed = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        kinds = pa.int64(), pa.int64(), pa.int64(), pa.utf8(), pa.utf8(), pa.utf8()
        arrays = [pa.array(column, kind) for column, kind in zip(transposed, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, names)

    # -- evicting --------------------------------------------------------------------------------

    def look(self) -> None:
        """Evict due steps for a bounded time, unless the last look was too recent.

        Handles call this method after a successful write, so errors become warnings.
        """
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + LOOK_SECONDS  # other threads need not look
        try:
            locked(self._lock, self._evict_some)
        except (
            errors.ConnectionLost, errors.DatabaseBusy, errors.DatabaseClosed, errors.UnknownBuffer
        ):  # fmt: skip
            return  # the next look tries again
        except errors.ExpDBError as error:
            self._backlog = None
            if now >= self._next_warning:
                self._next_warning = now + WARN_SECONDS
                errors.warn(f"cannot evict steps of buffer {self._store.name!r}: {error}")
        finally:
            took = time.monotonic() - now
            pause = 0.0 if self._backlog else max(LOOK_SECONDS, LOOK_SHARE * took)
            self.next_look = now + took + pause

    def _evict_some(self) -> None:
        """Evict as many due steps as fit into the time that one write may spend."""
        policy = self.policy()
        if policy is None or policy.by == "archiver":
            self._backlog = None
            self._over_since = self._warn_of_no_archiver() if policy is not None else None
            return
        if policy.archive is None:
            self._evict()
            return
        start = time.monotonic()
        self._finish()
        if self._backlog is None:
            self._backlog = self._plan_due()
        if self._backlog is not None:
            steps = self._evict_backlog(self._at_once)
            took = time.monotonic() - start
            if steps:
                most = min(2 * self._at_once, FILE_STEPS)
                wanted = int(self._at_once * WRITE_SECONDS / max(took, 1e-6))
                self._at_once = max(16, min(most, wanted))

    def _warn_of_no_archiver(self) -> float | None:
        """Warn if no archiver keeps up; return the time since which the capacity is exceeded."""
        store, now = self._store, time.monotonic()
        with store.engine.reading() as session:
            state = store.state(session)
        if state.capacity is None or state.size <= state.capacity:
            return None
        since = now if self._over_since is None else self._over_since
        if now - since > LATE_SECONDS and now >= self._next_warning:
            self._next_warning = now + WARN_SECONDS
            errors.warn(
                f"buffer {store.name!r} has {state.size:,} steps, more than its capacity of "
                f"{state.capacity:,}, because by='archiver' is set and no archiver keeps up; run "
                f"`expdb evict {store.engine.location} {store.name} --follow`"
            )
        return since

    def evict(self, forget_missing: bool = False) -> int:
        """Evict the steps that the policy selects, and return their number."""
        if forget_missing:
            locked(self._lock, self._forget_missing)
        return locked(self._lock, self._evict)

    def _forget_missing(self) -> None:
        """End an eviction whose deleted steps are not in any file."""
        store = self._store
        with store.writing() as (session, _):
            entry = evictions.find_eviction(store, session)
            if entry is None or not entry.committed or entry.draft.exists() or entry.path.exists():
                return
            evictions.end(store, session, entry)
        errors.warn(
            f"evicted steps of buffer {store.name!r} are lost, because neither {entry.path} nor "
            "its draft exists; restore the file from a backup"
        )

    def _evict(self) -> int:
        """Evict the steps that are due now, without steps that are written in the meantime."""
        count = self._finish()
        self._backlog = self._plan_due()
        while self._backlog is not None:
            count += self._evict_backlog(FILE_STEPS)
        return count

    def _plan_due(self) -> _Backlog | None:
        """Return the steps that are due; None for no steps or if another process is archiving."""
        store = self._store
        with store.engine.reading() as session:
            policy = eviction.read_policy(store, session)
            if policy is None or evictions.find_eviction(store, session) is not None:
                return None
            if store.state(session).pinned is None:
                return self._backlog_of(session, policy)
        with store.writing() as (session, _):
            update_pins(store, session)  # expired leases pin nothing
            policy = eviction.read_policy(store, session)
            return None if policy is None else self._backlog_of(session, policy)

    def _backlog_of(self, session: Session, policy: Eviction) -> _Backlog | None:
        plan = self._due(session, policy)
        if not len(plan.positions):
            return None
        return _Backlog(policy, self._store.state(session).capacity, plan)

    def _due(self, session: Session, policy: Eviction) -> EvictionPlan:
        plan = plan_eviction(self._store, session, policy, time.time())
        if not len(plan.positions):
            return plan
        mask = alive(self._store, session, plan.positions)
        return plan.select(mask)

    def _evict_backlog(self, count: int) -> int:
        """Evict about `count` steps of the backlog; return the number of evicted steps."""
        store, backlog = self._store, self._backlog
        assert backlog is not None
        self._save()
        with store.writing() as (session, outcome):
            policy, marker = eviction.read_policy_and_marker(store, session)
            if (
                policy != backlog.policy
                or store.state(session).capacity != backlog.capacity
                or evictions.find_eviction(store, session) is not None
            ):
                self._backlog = None
                return 0
            if backlog.policy.archive is None:
                self._backlog = None
                positions = self._free(session, backlog.policy, backlog.plan.positions)
                return evict(store, session, outcome, positions)
            positions = self._free(session, backlog.policy, backlog.take(count))
            if not len(backlog.plan.positions):
                self._backlog = None
            positions = positions[alive(store, session, positions)] if len(positions) else positions
            if not len(positions):
                return 0
            archive_folder.check(store.engine.location, store.name, backlog.policy, marker)
            file = _file(backlog.policy, store.name, positions)
            archiving = evictions.begin(store, session, self._holder, file, positions)
        if not self._has_removed_drafts:
            self._has_removed_drafts = True
            archive_folder.remove_old_drafts(archiving.path.parent.parent)
        return self._archive(archiving)

    def _free(self, session: Session, policy: Eviction | None, positions: np.ndarray) -> np.ndarray:
        """Return the positions that may be evicted now.

        Since the steps were selected, a lease may have pinned them, or a writer may have resumed
        their episode or forked it.
        """
        pinned = pinned_from(self._store, session, self._store.state(session))
        if policy is not None and policy.whole_episodes:
            return eviction.select_whole_trees(self._store, session, positions, pinned)
        return positions if pinned is None else positions[positions < pinned]

    def _finish(self) -> int:
        """Finish an eviction that a process has left, and return the number of evicted steps."""
        store = self._store
        with store.engine.reading() as session:
            archiving = evictions.find_eviction(store, session)
            if archiving is None:
                return 0
            policy, marker = eviction.read_policy_and_marker(store, session)
        if not self._is_abandoned(archiving) and not (
            archiving.committed and (archiving.draft.exists() or archiving.path.exists())
        ):
            return 0
        if policy is None or not _is_in_archive(archiving, policy):
            raise errors.DatabaseDamaged(
                f"the unfinished eviction of buffer {store.name!r} refers to the file "
                f"{archiving.file}, which is not in the archive of the policy; restore a backup"
            )
        archive_folder.check(store.engine.location, store.name, policy, marker)
        if archiving.committed:
            self._publish(archiving)
            return 0
        with store.writing() as (session, _):
            if not evictions.is_owner(store, session, archiving):
                return 0
            taken = evictions.take_over(store, session, archiving, self._holder)
        if _is_left(archiving):  # a suspended owner removes its draft itself when it resumes
            archive_folder.remove(archiving.draft)
        return self._archive(taken)

    def publish_evicted(self) -> None:
        """Publish the draft that holds evicted steps, if a process has left one."""
        archiving = self._store.read(evictions.find_eviction)
        if archiving is not None and archiving.committed:
            locked(self._lock, self._finish)

    def _is_abandoned(self, archiving: Archiving) -> bool:
        if archiving.holder == self._holder or _is_left(archiving):
            return True
        return abs(archiving.idle) > EXPIRE_SECONDS  # the clock may have been set back

    def _archive(self, archiving: Archiving) -> int:
        """Write the draft, delete its steps and publish the file; return the number of steps."""
        try:
            count, archiving = self._moved(archiving)
        except _OwnerChanged:
            archive_folder.remove(archiving.draft)
            return 0
        except errors.UnknownBuffer:  # another process has dropped the buffer with these steps
            archive_folder.remove(archiving.draft)
            raise
        except BaseException:
            # If the outcome of a commit is unknown, the steps may be deleted: keep the draft then.
            with suppress(errors.ExpDBError), self._store.writing() as (session, _):
                stored = evictions.find_eviction(self._store, session)
                if stored is None or stored.id != archiving.id or not stored.committed:
                    archive_folder.remove(archiving.draft)
                    evictions.release_ownership(self._store, session, archiving)
            raise
        if archiving.committed:
            self._publish(archiving)
        else:
            archive_folder.remove(archiving.draft)
        return count

    def _moved(self, archiving: Archiving) -> tuple[int, Archiving]:
        """Write the draft, then check the owner and delete the steps in one transaction."""
        store = self._store
        for _ in range(ATTEMPTS):
            before = self._write_draft(archiving, self._renew)
            with store.writing() as (session, outcome):
                free = self._without_pinned(session, archiving)
                if free is archiving and (
                    evictions.fingerprint(store, session, archiving) == before
                ):
                    return self._delete(session, outcome, archiving)
            archiving = free
        with store.writing() as (session, outcome):  # other writers wait
            archiving = self._without_pinned(session, archiving)
            self._write_draft(archiving, lambda current: evictions.renew(store, session, current))
            return self._delete(session, outcome, archiving)

    def _renew(self, archiving: Archiving) -> bool:
        with self._store.writing() as (session, _):
            return evictions.renew(self._store, session, archiving)

    def _without_pinned(self, session: Session, archiving: Archiving) -> Archiving:
        """Return the eviction without the steps that leases have pinned since it began."""
        if not evictions.is_owner(self._store, session, archiving):
            raise _OwnerChanged
        policy = eviction.read_policy(self._store, session)
        free = self._free(session, policy, archiving.positions)
        if len(free) == len(archiving.positions):
            return archiving
        return evictions.shrink(self._store, session, archiving, free)

    def _delete(
        self, session: Session, outcome: WriteOutcome, archiving: Archiving
    ) -> tuple[int, Archiving]:
        """Delete the steps of a draft in a transaction that has checked the owner."""
        store, positions = self._store, archiving.positions
        stored = positions[alive(store, session, positions)] if len(positions) else positions
        if not len(stored):
            evictions.end(store, session, archiving)
            return 0, archiving
        count = evict(store, session, outcome, stored)
        return count, evictions.commit(store, session, archiving)

    def _publish(self, archiving: Archiving) -> None:
        """Rename the draft to its final name after its steps are deleted, and end the eviction."""
        store = self._store
        path = archiving.path
        if path.exists() and archiving.draft.exists():  # a restored copy of this database wrote it
            path = path.with_stem(f"{path.stem}-{uuid.uuid4().hex[:12]}")
        try:
            archiving.draft.replace(path)
            archive_folder.sync(path.parent)
            for draft in path.parent.glob(f".{path.name}.*"):
                # Drafts of previous owners, which may no longer delete the steps.
                archive_folder.remove(draft)
        except FileNotFoundError:
            stored = store.read(evictions.find_eviction)
            if stored is None or stored.id != archiving.id:
                return  # another process has renamed the draft
            if not archiving.path.exists():
                raise errors.ArchiveFailed(
                    f"cannot find {archiving.draft}, which contains evicted steps of buffer "
                    f"{store.name!r}; call evict() on a machine with the archive folder"
                ) from None
        except OSError as error:
            raise errors.ArchiveFailed(
                f"{archiving.draft}, which contains evicted steps of buffer {store.name!r}, "
                f"cannot be renamed to {archiving.path} ({error.strerror or error}); correct the "
                "permissions of the folder, then call evict()"
            ) from error
        with store.writing() as (session, _):
            evictions.end(store, session, archiving)

    def _write_draft(
        self, archiving: Archiving, renew: Callable[[Archiving], bool]
    ) -> tuple[int, ...]:
        """Write the steps to the draft; return the fingerprint of the steps before the write."""
        store, draft = self._store, archiving.draft
        with store.engine.reading() as session:
            store.state(session)  # updates the fields
            before = evictions.fingerprint(store, session, archiving)
            stored = archiving.positions
            stored = stored[alive(store, session, stored)] if len(stored) else stored
        if not len(stored):
            return before
        kinds = parquet.types_of(store)
        try:
            draft.parent.mkdir(parents=True, exist_ok=True)
            parquet.write(
                draft, kinds, lambda names: self._renewing(archiving, stored, names, renew),
                store=store, json_text=True,
            )  # fmt: skip
            archive_folder.sync(draft)
            archive_folder.sync(draft.parent)
        except errors.ExpDBError:  # some classes are also an OSError
            raise
        except OSError as error:
            with store.engine.reading() as session:
                if not evictions.is_owner(store, session, archiving):
                    raise _OwnerChanged from None
            raise archive_folder.failed(archiving.file, error) from error
        return before

    def _renewing(
        self,
        archiving: Archiving,
        positions: np.ndarray,
        names: Sequence[str],
        renew: Callable[[Archiving], bool],
    ) -> Iterator[Batch]:
        """Yield the steps in batches, and renew the eviction between batches."""
        next_renewal = time.monotonic() + RENEW_SECONDS
        for batch in self._scan(positions, names):
            yield batch
            if time.monotonic() >= next_renewal:
                if not renew(archiving):
                    raise _OwnerChanged
                next_renewal = time.monotonic() + RENEW_SECONDS


def _file(policy: Eviction, name: str, positions: np.ndarray) -> str:
    """Return the path of a new archive file for steps.

    A random part makes the name unique, because positions repeat in other databases and in a buffer
    that was dropped and created again.
    """
    assert policy.archive is not None
    folder = archive_folder.of_buffer(policy.archive, name) / f"date={datetime.now(UTC):%Y-%m-%d}"
    return str(folder / f"{positions[0]}-{positions[-1]}-{uuid.uuid4().hex[:12]}.parquet")


def _is_left(archiving: Archiving) -> bool:
    return archiving.holder == NOBODY or has_ended(archiving.holder)


def _is_in_archive(archiving: Archiving, policy: Eviction) -> bool:
    path = archiving.path
    return (
        policy.archive is not None
        and path.is_relative_to(policy.archive)
        and ".." not in path.parts
        and path.suffix == ".parquet"
    )
