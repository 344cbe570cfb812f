"""Keeping to a policy of eviction: what goes is archived first, and then goes.

What a process is killed at leaves the steps in the buffer, in the archive, or, until somebody goes
on, in both.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from expdb import errors, parquet
from expdb.batch import Batch
from expdb.locks import locked
from expdb.processes import has_ended, named
from expdb.sql.session import Session
from expdb.storage.ledger import evictions
from expdb.storage.ledger.evictions import NOBODY, Archiving
from expdb.storage.ledger.pins import settle_pins
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading.columns import read_columns
from expdb.storage.reading.fetch import alive
from expdb.storage.store import Store
from expdb.storage.upkeep import eviction
from expdb.storage.upkeep.eviction import Eviction
from expdb.storage.upkeep.plan_eviction import NOTHING, pinned_from, plan_eviction
from expdb.storage.writing.evict import evict

SECONDS = 1.0  # between two looks of a handle that writes, at least
PAUSE = 20.0  # times as long as a look took, so that they take a twentieth of the time at most
WARN_SECONDS = 60.0  # between two warnings of one that cannot archive
AT_ONCE = 65_536  # steps of a file
EXPIRES = 600.0  # seconds, after which nobody is taken to be at an eviction
LONGEST_NAME = 180  # characters of a folder's name
ATTEMPTS = 3  # to archive while others may write, before they have to wait

_serials = itertools.count(1)

Scan = Callable[[np.ndarray, Sequence[str]], Iterator[Batch]]


class Retention:
    """What a handle does about the eviction of a buffer."""

    def __init__(self, store: Store, scan: Scan, save: Callable[[], None]):
        self._store, self._scan, self._save = store, scan, save
        self._holder = named(next(_serials))
        self._next_look, self._next_warning = time.monotonic() + SECONDS, 0.0
        self._lock = threading.Lock()  # one thread at a time archives

    # -- the policy ------------------------------------------------------------------------------

    def policy(self) -> Eviction | None:
        """Return the policy, None for none."""
        with self._store.engine.reading() as session:
            return eviction.read_policy(session, self._store)

    def set_policy(self, policy: Eviction | None) -> None:
        """Keep to a policy; raise ArchiveFailed where its folder cannot be written."""
        if policy is not None and policy.archive is not None:
            _try_folder(os.fspath(policy.archive))
        locked(self._lock, self._set_policy, policy)

    def _set_policy(self, policy: Eviction | None) -> None:
        store, keeps = self._store, policy is not None and policy.archive is not None
        for _ in range(ATTEMPTS):
            try:
                self._evict()  # what the policy until now is to archive
            except errors.ArchiveFailed as error:
                if not keeps:
                    raise errors.ArchiveFailed(
                        f"steps that are due cannot be archived: {error} with an archive that can "
                        "be written, and evict() first"
                    ) from error
            with store.writing() as (session, _):
                if keeps:
                    evictions.end(session, store, evictions.NOBODY)
                elif self._is_to_archive(session):
                    continue  # others have written meanwhile
                eviction.set_policy(session, store, policy)
                return
        raise errors.DatabaseBusy(
            f"others write to buffer {store.name!r} faster than it is archived: set the policy "
            "again"
        )

    def _is_to_archive(self, session: Session) -> bool:
        """Return whether the policy until now has steps to archive, which nobody is at."""
        policy = eviction.read_policy(session, self._store)
        if policy is None or policy.archive is None:
            return False
        nobody = evictions.under_way(session, self._store) is None
        return nobody and len(self._due(session, policy)) > 0

    def plan(self) -> pa.Table:
        """Return what would go now, one row per run of steps of an episode."""
        store = self._store
        names = ("episode", "first", "last", "episode_id", "task_id", "why")
        with store.engine.reading() as session:
            policy = eviction.read_policy(session, store)
            plan = NOTHING
            if policy is not None:
                plan = plan_eviction(store, session, policy, time.time())
            runs = plan.runs()
            ends = np.array([last for _, _, last, _ in runs], np.int64)
            ends = ends[alive(store, session, ends)] if runs else ends
            known = {}
            if len(ends):
                columns = read_columns(store, session, ends, ["episode_id", "task_id"])
                pairs = zip(columns["episode_id"], columns["task_id"], strict=True)
                known = dict(zip(ends.tolist(), pairs, strict=True))
        told = [
            (episode, first, last, *known.get(last, (None, None)), why)
            for episode, first, last, why in runs
        ]
        found = list(zip(*told, strict=True)) if told else [()] * len(names)
        kinds = pa.int64(), pa.int64(), pa.int64(), pa.utf8(), pa.utf8(), pa.utf8()
        arrays = [pa.array(column, kind) for column, kind in zip(found, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, names)

    # -- evicting --------------------------------------------------------------------------------

    def look(self) -> None:
        """Evict what is due, if the last look was a second ago; warn where that fails.

        For writers, whose steps are stored: they are not to fail of it.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + SECONDS  # other threads need not look
        try:
            self.evict()
        except (
            errors.ConnectionLost, errors.DatabaseBusy, errors.DatabaseClosed, errors.UnknownBuffer
        ):  # fmt: skip
            return  # the next look will do
        except errors.ExpDBError as error:
            if now >= self._next_warning:
                self._next_warning = now + WARN_SECONDS
                errors.warn(f"what is due was not evicted: {error}")
        finally:
            took = time.monotonic() - now
            self._next_look = now + took + max(SECONDS, PAUSE * took)

    def evict(self) -> int:
        """Evict what the policy says; return how many steps went."""
        return locked(self._lock, self._evict)

    def _evict(self) -> int:
        count = self._finish()
        while True:
            gone, more = self._evict_once()
            count += gone
            if not more:
                return count

    def _evict_once(self) -> tuple[int, bool]:
        """Evict what is due; return how many steps went, and whether to look again."""
        store, holder = self._store, self._holder
        with store.engine.reading() as session:
            policy = eviction.read_policy(session, store)
            if policy is None:
                return 0, False
            is_pinned = store.state(session).pinned is not None
            if not is_pinned and not len(self._due(session, policy)):
                return 0, False
        self._save()
        with store.writing() as (session, outcome):
            policy = eviction.read_policy(session, store)
            if policy is None or evictions.under_way(session, store) is not None:
                return 0, False
            if store.state(session).pinned is not None:
                settle_pins(session, store)
            positions = self._due(session, policy)
            if not len(positions):
                return 0, False
            if policy.archive is None:
                gone = evict(store, session, outcome, positions)
                return gone, gone > 0
            if not policy.whole_episodes:
                positions = positions[:AT_ONCE]
            file = _file(policy, store.name, positions)
            archiving = evictions.begin(session, store, holder, time.time(), file, positions)
        gone = self._archive(archiving)
        return gone, gone > 0

    def _due(self, session: Session, policy: Eviction) -> np.ndarray:
        positions = plan_eviction(self._store, session, policy, time.time()).positions
        return positions[alive(self._store, session, positions)] if len(positions) else positions

    def _finish(self) -> int:
        """Go on with an eviction that was left by a process, or a handle; return how many went."""
        store = self._store
        with store.engine.reading() as session:
            if self._left(evictions.under_way(session, store)) is None:
                return 0
        with store.writing() as (session, _):
            found = self._left(evictions.under_way(session, store))
            if found is None:
                return 0
            evictions.hand_over(session, store, found.holder, self._holder)
        return self._archive(found)

    def _left(self, found: Archiving | None) -> Archiving | None:
        """Return what is under way if nobody is at it."""
        if found is None or found.holder in (self._holder, NOBODY) or has_ended(found.holder):
            return found
        return found if time.time() - found.since > EXPIRES else None

    def _archive(self, archiving: Archiving) -> int:
        """Write steps to their file, and have them go; return how many."""
        store = self._store
        try:
            for _ in range(ATTEMPTS):
                before = self._written(archiving)
                with store.writing() as (session, outcome):
                    left = self._without_pinned(session, archiving)
                    if left is archiving and (
                        evictions.fingerprint(session, store, archiving) == before
                    ):
                        return self._gone(session, outcome, archiving)
                archiving = left
            with store.writing() as (session, outcome):  # others wait
                archiving = self._without_pinned(session, archiving)
                self._written(archiving)
                return self._gone(session, outcome, archiving)
        except BaseException:
            with suppress(errors.ExpDBError), store.writing() as (session, _):
                evictions.hand_over(session, store, self._holder, NOBODY)
            raise

    def _without_pinned(self, session: Session, archiving: Archiving) -> Archiving:
        """Return what may go still: somebody may have pinned some of it meanwhile."""
        pinned = pinned_from(self._store, session, self._store.state(session))
        if pinned is None or not len(archiving.positions) or archiving.positions[-1] < pinned:
            return archiving
        free = archiving.positions[archiving.positions < pinned]
        return evictions.shrink(session, self._store, archiving, free)

    def _gone(self, session: Session, outcome: WriteOutcome, archiving: Archiving) -> int:
        store = self._store
        if not evictions.end(session, store, self._holder):
            return 0  # somebody else went on with it
        held = archiving.positions[alive(store, session, archiving.positions)]
        return evict(store, session, outcome, held)

    def _written(self, archiving: Archiving) -> tuple[int, ...]:
        """Write the file; return what tells whether the steps have changed since."""
        store, path = self._store, Path(archiving.file)
        with store.engine.reading() as session:
            store.state(session)  # which fields there are
            found = evictions.fingerprint(session, store, archiving)
            held = archiving.positions[alive(store, session, archiving.positions)]
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for left in path.parent.glob(f".{path.name}.*"):
                left.unlink()  # by a process that was killed
            if not len(held):
                path.unlink(missing_ok=True)
            else:
                kinds = {name: str(field) for name, field in store.fields.types.items()}
                parquet.write(draft, kinds, lambda names: self._scan(held, names))
                _sync(draft)
                draft.replace(path)
                _sync(path.parent)
        except errors.ExpDBError:  # some of which are an OSError too
            raise
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            raise _failed(archiving.file, error) from error
        return found


def _file(policy: Eviction, name: str, positions: np.ndarray) -> str:
    """Return the file that steps go to.

    No other eviction uses its name: positions repeat in other databases, and in a buffer that was
    dropped and made again.
    """
    assert policy.archive is not None
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    quoted = quote(name, safe="")
    if len(quoted) > LONGEST_NAME:
        quoted = f"{quoted[:LONGEST_NAME].rsplit('%', 1)[0]}-{zlib.crc32(name.encode()):08x}"
    folder = Path(policy.archive) / f"buffer={quoted}" / f"date={day}"
    return str(folder / f"{positions[0]}-{positions[-1]}-{uuid.uuid4().hex[:12]}.parquet")


def _try_folder(archive: str) -> None:
    """Raise ArchiveFailed where nothing can be written to a folder."""
    probe = Path(archive) / f".{named(0).replace('/', '-')}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"expdb")
        probe.unlink()
    except OSError as error:
        raise _failed(archive, error) from error


def _failed(path: str, error: OSError) -> errors.ArchiveFailed:
    return errors.ArchiveFailed(
        f"{path} cannot be written ({error.strerror or error}), so nothing is evicted: make room "
        "or mend its permissions, or set another buffer.eviction"
    )


def _sync(path: Path) -> None:
    """Have a file, or what a folder lists, on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # a folder cannot be opened there, and its entries are in a journal
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
