"""Faults of the machine: full and failing disks, suspended writers, forks, clocks, crashes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import expdb
from expdb import errors
from expdb.sql.dialects.sqlite import connection as sqlite_log
from torture.disk import FULL, IOERR_WRITE, NO_LIBRARY, OK, Disk, library
from torture.kills import FORK
from torture.oracle import BUFFER, Log, step, verify
from torture.table import DATABASES, Outcome, Place, fault

GOES_ON = "typed error, 0 lost, the same handle goes on"


class Writer:
    """Writes through one handle and remembers the acknowledged steps."""

    def __init__(self, db: expdb.ExperienceDB, number: int = 0):
        self.db, self.buffer, self.writer, self.number = db, db.buffer(BUFFER), number, 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.lock = threading.Lock()

    def write(self, size: int = 1) -> None:
        """Write a batch; if it raises, it is not acknowledged and its numbers are not reused."""
        with self.lock:
            first, self.number = self.number, self.number + size
        rows = [
            {"task_id": f"t{first % 3}", **step(self.writer, first + k, first, size)}
            for k in range(size)
        ]
        store = self.buffer.store_batch
        positions = store(rows).tolist() if size > 1 else [self.buffer.store(**rows[0])]
        written = {position: (self.writer, first + k) for k, position in enumerate(positions)}
        with self.lock:
            self.acknowledged.update(written)


# -- disks -----------------------------------------------------------------------------------------


@fault("full disk (ENOSPC from every write), and space returning", GOES_ON, 3, 20)
def fill_disk(place: Place, rounds: int) -> Outcome:
    """Repeatedly make the disk full after a random number of writes."""
    if library() is None:
        return Outcome(0, [NO_LIBRARY])
    rng, violations, refused = random.Random(place.seed), list[str](), 0
    path = place.folder / "full.db"
    with (
        Disk(str(path)) as disk,
        mock.patch.object(sqlite_log, "CHECKPOINT_BYTES", 64 << 10),
        expdb.open(path) as db,
    ):
        writer = Writer(db)
        writer.buffer.capacity = 400
        for _ in range(rounds):
            left = itertools.count(rng.randrange(60), -1)
            disk.fault = lambda kind, file, left=left: (  # type: ignore[misc]
                FULL if kind == "write" and next(left) <= 0 else OK
            )
            for _ in range(40):
                try:
                    writer.write(rng.choice((1, 5)))
                except errors.StorageFull:
                    refused += 1
                except expdb.ExpDBError as error:
                    violations.append(f"a full disk was told as {type(error).__name__}: {error}")
            disk.fault = None
            for _ in range(20):
                writer.write(3)
            violations += verify(db, writer.acknowledged)
    with expdb.open(path) as db:
        violations += verify(db, writer.acknowledged)
    return Outcome(rounds, violations, f"{refused} writes refused")


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[bool]:
    """Mount a small file system at a folder, and yield whether this was permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    done = subprocess.run(command, capture_output=True)
    try:
        yield not done.returncode
    finally:
        if not done.returncode:
            subprocess.run(["umount", folder], check=True)


@fault("full file system of 4 MB, and a larger one", GOES_ON, 3, 20)
def fill_file_system(place: Place, rounds: int) -> Outcome:
    """Fill a real file system, enlarge it, and continue."""
    violations, refused = list[str](), 0
    for number in range(rounds):
        folder = place.folder / f"small{number}"
        with mounted(folder, "4m") as there:
            if not there:
                return Outcome(0, [], "NOT RUN: no file system can be mounted here (it takes root)")
            with expdb.open(folder / "full.db") as db:
                writer = Writer(db)
                for _ in range(100_000):
                    try:
                        writer.write(7)
                    except errors.StorageFull:
                        refused += 1
                        break
                else:
                    violations.append("the file system was never full")
                violations += verify(db, writer.acknowledged)
                subprocess.run(["mount", "-o", "remount,size=32m", folder], check=True)
                for _ in range(50):
                    writer.write(7)
                violations += verify(db, writer.acknowledged)
    return Outcome(rounds, violations, f"{refused} writes refused")


@fault(
    "the N-th write, sync, truncation or deletion fails, once and for ever",
    "typed error, 0 lost, sound once the disk works", 40, 400,
)  # fmt: skip
def fail_disk(place: Place, times: int) -> Outcome:
    """Let each operation of a short history fail in turn, as in SQLite's own tests.

    See sqlite.org/testing.html, section 3.2.
    """
    if library() is None:
        return Outcome(0, [NO_LIBRARY])
    rng, violations = random.Random(place.seed), list[str]()
    path, reported, done = place.folder / "fails.db", 0, 0
    with expdb.open(path) as db:
        db.buffer(BUFFER, capacity=60)
    base = path.read_bytes()
    for number in range(times):
        for left in place.folder.glob("fails.db*"):
            left.unlink()
        path.write_bytes(base)
        nth, once = number * 8 % 160 + rng.randrange(8), number % 2 == 0
        count = itertools.count()

        def failing(
            kind: str, file: str, count: Iterator[int] = count, nth: int = nth, once: bool = once
        ) -> int:
            at = next(count)
            return IOERR_WRITE if at == nth or (at > nth and not once) else OK

        acknowledged = dict[int, tuple[int, int]]()
        with Disk(str(path)) as disk, mock.patch.object(sqlite_log, "CHECKPOINT_BYTES", 32 << 10):
            try:
                with expdb.open(path, durability=rng.choice(("normal", "full"))) as db:
                    writer = Writer(db)
                    acknowledged = writer.acknowledged
                    disk.fault = failing
                    for _ in range(30):
                        try:
                            writer.write(rng.choice((1, 4)))
                        except (errors.DatabaseUnreadable, errors.StorageFull):
                            reported += 1
                    disk.fault = None
            except (errors.DatabaseUnreadable, errors.StorageFull):
                reported += 1  # on closing
            disk.fault = None
        with expdb.open(path) as db:
            violations += [
                f"operation {nth} failed{' once' * once}: {problem}"
                for problem in verify(db, acknowledged)
            ]
        done += 1
    return Outcome(done, violations, f"{reported} errors reported")


# -- snapshots and suspended writers ---------------------------------------------------------------


def hold_snapshot(path: str, taken: Any, leave: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM steps").fetchall()
    taken.set()
    leave.wait()
    os._exit(0)


@fault(
    "a reader that holds a snapshot",
    "a warning names the reader, and the WAL is checkpointed after it ends", 1, 10,
)  # fmt: skip
def pin_log(place: Place, rounds: int) -> Outcome:
    """Keep a snapshot open in another process during many writes."""
    violations, largest = list[str](), 0
    path = str(place.folder / "pinned.db")
    with expdb.open(path) as db:
        db.buffer(BUFFER, capacity=500)
    limits = {
        "CHECKPOINT_BYTES": 1 << 20, "PINNED_BYTES": 2 << 20, "CHECKPOINT_WAIT_MS": 50,
        "CHECKPOINT_SECONDS": 0.5,
    }  # fmt: skip
    acknowledged = dict[int, tuple[int, int]]()
    for number in range(rounds):
        taken, leave = FORK.Event(), FORK.Event()
        reader = FORK.Process(target=hold_snapshot, args=(path, taken, leave))
        reader.start()
        taken.wait()
        with (
            mock.patch.multiple(sqlite_log, **limits),
            expdb.open(path) as db,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            writer = Writer(db, number)
            for _ in range(60):
                writer.write(100)
            largest = max(largest, os.stat(path + "-wal").st_size)
            messages = [str(warning.message) for warning in caught]
            if not any(f"process {reader.pid} " in message for message in messages):
                violations.append(f"nobody was told of process {reader.pid}: {messages}")
            leave.set()
            reader.join()
            time.sleep(0.6)
            writer.write()
            if (after := os.stat(path + "-wal").st_size) > 1 << 20:
                violations.append(f"the log still has {after} bytes after the reader has gone")
            acknowledged.update(writer.acknowledged)
            violations += verify(db, acknowledged)
    return Outcome(rounds, violations, f"the log grew to {largest >> 20} MB meanwhile")


def write_and_stop(location: str, number: int) -> None:
    """Suspend this process in a transaction, and write after it is resumed."""
    with expdb.open(location) as db:
        writer = Writer(db, number)
        with db._engine.writing() as session:
            session.query("UPDATE buffers SET id = id")
            os.kill(os.getpid(), signal.SIGSTOP)
        writer.write(5)


@fault(
    "a writer suspended in a transaction, {database}",
    "others get DatabaseBusy in time, nothing is lost", 1, 10, database=DATABASES,
)  # fmt: skip
def suspend_writer(kind: str, place: Place, rounds: int) -> Outcome:
    """Suspend a process during its transaction.

    Other writers must get DatabaseBusy in time, and the process must continue later.
    """
    violations, waited = list[str](), list[float]()
    location = place.location(kind, "suspended")
    with expdb.open(location, timeout=1.0) as db:
        writer = Writer(db, 0)
        writer.write(3)
        for number in range(rounds):
            process = FORK.Process(target=write_and_stop, args=(location, 1 + number))
            process.start()
            assert process.pid is not None
            os.waitpid(process.pid, os.WUNTRACED)
            start = time.monotonic()
            try:
                writer.write(3)
                violations.append("a write went through while another process held the transaction")
            except errors.DatabaseBusy:
                waited.append(time.monotonic() - start)
            if writer.buffer.sample(2).size != 2:
                violations.append("a reader was held up")
            os.kill(process.pid, signal.SIGCONT)
            process.join()
            if process.exitcode:
                violations.append(f"the suspended writer left with {process.exitcode}")
            writer.write(3)
            violations += verify(db, writer.acknowledged)
    return Outcome(rounds, violations, f"told after {max(waited, default=0):.1f} s (timeout 1 s)")


# -- forks and threads -----------------------------------------------------------------------------


class WritingDataset:
    """A dataset that writes the steps of an item in the worker that loads it."""

    def __init__(self, db: expdb.ExperienceDB, log: Log):
        self.db, self.log = db, log

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        rows = [step(1000 + index, k, 0, 4) for k in range(4)]
        self.log.add(self.db.buffer(BUFFER).store_batch(rows).tolist(), 1000 + index, 0)
        return index


def open_and_close(location: str) -> None:
    expdb.open(location).close()


@fault(
    "forks with open connections, 16 threads on one handle, DataLoader workers, {database}",
    "0 lost", 5, 50, database=DATABASES,
)  # fmt: skip
def fork_and_share(kind: str, place: Place, rounds: int) -> Outcome:
    """Fork with open connections, and write from many processes and threads at once.

    Forked children, 16 threads with one handle and the workers of a DataLoader write.
    """
    # Imported here, because a process that has loaded torch forks slowly.
    from torch.utils.data import DataLoader

    violations, total = list[str](), 0
    for number in range(rounds):
        location = place.location(kind, f"forks{number}")
        log = Log(place.folder / f"{kind}{number}.log")
        with expdb.open(location, timeout=60.0) as db:
            buffer = db.buffer(BUFFER)
            buffer.store(**step(999, 0))
            buffer.sample(1)

            def child(writer: int, db: expdb.ExperienceDB = db, log: Log = log) -> None:
                for k in range(10):
                    log.add([db.buffer(BUFFER).store(**step(writer, k))], writer, k)

            closed = FORK.Event()

            def late(child: Callable[[int], None] = child, closed: Any = closed) -> None:
                closed.wait()
                child(500)

            last = FORK.Process(target=late)
            last.start()
            children = [FORK.Process(target=child, args=(k,)) for k in range(4)]
            for process in children:
                process.start()
            loader = DataLoader(
                WritingDataset(db, log), batch_size=4, num_workers=2, multiprocessing_context="fork"
            )
            seen = sorted(index for batch in loader for index in batch.tolist())
            threads = [threading.Thread(target=child, args=(100 + k,)) for k in range(16)]
            for thread in threads:
                thread.start()
            for worker in (*threads, *children):
                worker.join()
            codes = [process.exitcode for process in children]
            violations += [f"the children left with {codes}"] * any(codes)
            acknowledged = log.read()
            violations += verify(db, acknowledged)
        # The handle is closed. Another process opens and closes the file while a child still
        # has its inherited connections.
        other = FORK.Process(target=open_and_close, args=(location,))
        other.start()
        other.join()
        closed.set()
        last.join()
        acknowledged = log.read()
        with expdb.open(location) as db:
            violations += verify(db, acknowledged)
        if len(acknowledged) != 5 * 10 + 16 * 10 + 24 * 4 or seen != list(range(24)):
            violations.append(f"{len(acknowledged)} steps were acknowledged")
        total += len(acknowledged)
        log.close()
    return Outcome(rounds, violations, f"{total:,} steps acknowledged")


# -- time ------------------------------------------------------------------------------------------


@fault("the clock set back and forth", "order and eviction unchanged", 10, 100)
def set_clock(place: Place, rounds: int) -> Outcome:
    """Let the clock jump by up to years between writes.

    Positions, eviction and the newest steps must not depend on the clock.
    """
    rng, violations = random.Random(place.seed), list[str]()
    true, path = time.time, place.folder / "clock.db"
    with expdb.open(path) as db:
        writer = Writer(db)
        writer.buffer.capacity = 50
        for _ in range(rounds):
            ahead = rng.choice((-1e9, -3600, 0, 3600, 1e8)) * rng.random()
            with mock.patch.object(time, "time", lambda ahead=ahead: true() + ahead):
                for _ in range(10):
                    writer.write(rng.choice((1, 3)))
                violations += verify(db, writer.acknowledged)
                sampled = writer.buffer.sample(200, sampler=expdb.Newest(10), seed=0)
                newest, added = set(sampled["position"].tolist()), writer.buffer.stats()["added"]
                if newest != set(range(added - 10, added)):
                    violations.append(f"the newest 10 of {added} are {sorted(newest)}")
        (steps,) = writer.buffer.scan(size=50, fields=["execute_time"])
    if len({*steps["execute_time"].tolist()}) < 2:
        violations.append("the clock did not jump")
    return Outcome(rounds, violations)


# -- servers ---------------------------------------------------------------------------------------


@fault("crash of the PostgreSQL server under load (-m immediate)", "0 lost, 0 duplicated", 3, 20)
def crash_server(place: Place, crashes: int) -> Outcome:
    """Crash the server while four threads write; every write must be stored exactly once."""
    rng, server = random.Random(place.seed), place.server(fsync="on")
    violations, stop = list[str](), threading.Event()
    with expdb.open(server.url(server.database()), timeout=60.0) as db:
        writer = Writer(db)

        def write() -> None:
            while not stop.is_set():
                try:
                    writer.write(random.choice((1, 5)))
                except errors.CommitUnknown as error:
                    violations.append(f"a write does not know whether it happened: {error}")

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(crashes):
            time.sleep(0.2 + rng.random() * 0.3)
            server.stop(signal.SIGQUIT)
            server.start()
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join()
        violations += verify(db, writer.acknowledged)
        added = db.buffer(BUFFER).stats()["added"]
    if added != len(writer.acknowledged):
        violations.append(f"{added} steps are stored of {len(writer.acknowledged)} acknowledged")
    return Outcome(crashes, violations, f"{len(writer.acknowledged):,} steps acknowledged")
