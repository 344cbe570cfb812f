"""Kill or suspend actors that archive: each step must be in the buffer or archive, once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # imported before forks, so that no actor is killed during the import

import expdb
from expdb.archive import retention
from expdb.sql.dialects.sqlite import statements as sqlite
from torture.kills import FORK, killed
from torture.learners import Notes
from torture.oracle import BUFFER
from torture.table import Outcome, Place, fault

ACTORS, CAPACITY = 3, 60


def act(location: str, actor: int, written: Notes, expire: float | None = None) -> None:
    """Store rollouts, record each acknowledged rollout, and evict.

    With `expire`, evictions expire after `expire` seconds, and the clocks of actors differ by
    660 s and jump by 1,000 s.
    """
    rng = random.Random(actor)
    if expire is not None:
        retention.EXPIRE_SECONDS, retention.RENEW_SECONDS = expire, expire / 4
        sqlite.NOW = f"({sqlite.NOW} + {660 * (actor % 2)} + 1000 * (abs(random()) % 50 = 0))"
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for number in itertools.count():
            length = rng.randrange(1, 8)
            with buffer.episode(f"task {number % 3}", episode_id=f"{actor}/{number}") as episode:
                for k in range(length):
                    episode.append(obs=float(k), reward=1.0, terminated=k == length - 1)
            written.add([f"{actor}/{number}", length])
            with suppress(expdb.DatabaseBusy):  # a suspended actor holds the lock
                buffer.evict()


def suspend_archivers(database: str, whole: bool, place: Place, times: int) -> Outcome:
    """Suspend actors for about the expiry time of an eviction, and resume them."""
    kind, expire = "whole" if whole else "steps", 0.3
    location, rng = place.location(database, f"suspended{kind}"), random.Random(place.seed)
    folder = place.folder / f"{database}{kind}.suspended"
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER, capacity=CAPACITY)
        buffer.eviction = expdb.Eviction(archive=folder, whole_episodes=whole)
    written = Notes(place.folder / f"{database}{kind}.suspended.stored")
    processes = [
        FORK.Process(target=act, args=(location, actor, written, expire)) for actor in range(ACTORS)
    ]
    for process in processes:
        process.start()
    time.sleep(1.0)  # a first file takes a process 0.2 s
    died: list[str] = []
    for _ in range(times):
        time.sleep(rng.random() * 0.2)
        process = rng.choice(processes)
        if process.pid is None or not process.is_alive():
            died.append(f"an actor ended with status {process.exitcode}")
            break
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(expire * (0.5 + 2 * rng.random()))
        os.kill(process.pid, signal.SIGCONT)
    time.sleep(1.0)
    for process in processes:
        killed(process)
    outcome = _verified(location, folder, whole, written, 0)
    return replace(outcome, count=times, violations=[*died, *outcome.violations])


def kill_archivers(database: str, whole: bool, place: Place, kills: int) -> Outcome:
    """Run actors, and kill one of them at random times."""
    kind = "whole" if whole else "steps"
    location, rng = place.location(database, f"archive{kind}"), random.Random(place.seed)
    folder = place.folder / f"{database}{kind}.archive"
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER, capacity=CAPACITY)
        buffer.eviction = expdb.Eviction(archive=folder, whole_episodes=whole)
    written = Notes(place.folder / f"{database}{kind}.stored")
    actors = itertools.count()

    def begin() -> BaseProcess:
        process = FORK.Process(target=act, args=(location, next(actors), written))
        process.start()
        return process

    processes = [begin() for _ in range(ACTORS)]
    time.sleep(0.3)
    for _ in range(kills):
        time.sleep(rng.random() * 0.4)  # a first file takes a process 0.2 s
        index = rng.randrange(ACTORS)
        killed(processes[index])
        processes[index] = begin()
    time.sleep(0.3)
    for process in processes:
        killed(process)
    return _verified(location, folder, whole, written, kills)


def _verified(location: str, folder: Path, whole: bool, written: Notes, kills: int) -> Outcome:
    files = lambda: sorted(folder.rglob("*.parquet"))  # noqa: E731
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        for number in range(CAPACITY):  # the archiving of these steps removes old drafts
            buffer.store(episode_id=f"last/{number}", obs=0.0, reward=1.0, terminated=True)
        buffer.evict()
        violations = db.check()
        in_buffer = [
            (row["episode_id"], row["step"])
            for batch in buffer.scan(fields=["episode_id", "step"])
            for row in batch.to_list()
        ]
        open_steps = int(sum(buffer.episodes({"status": "open"})["length"].to_pylist()))
        if len(in_buffer) > CAPACITY + open_steps + 8:
            violations.append(f"{len(in_buffer)} steps are held")
    there = [
        (row["episode_id"], row["step"])
        for file in files()
        for row in pq.read_table(file, columns=["episode_id", "step"]).to_pylist()
    ]
    times = Counter(in_buffer) + Counter(there)
    violations += [f"{step} is there {n} times" for step, n in times.items() if n > 1][:5]
    violations += [
        f"step {k} of {name} is lost"
        for name, length in written.read()
        for k in range(length)
        if not times[name, k]
    ][:5]
    if whole:
        split = {name for name, _ in in_buffer} & {name for name, _ in there}
        violations += [f"{name} is here and there" for name in sorted(split)][:5]
    violations += [f"{path} was left" for path in folder.rglob(".*")][:5]
    if len(written.read()) < kills or not there:
        violations.append(f"only {len(written.read())} rollouts, {len(there)} steps archived")
    note = f"{len(times):,} steps, {len(there):,} of them in {len(files())} files of the archive"
    return Outcome(kills, violations, note)


for _database in ("SQLite", "PostgreSQL"):
    for _whole in (False, True):
        _strike: Any = partial(kill_archivers, _database, _whole)
        _kind = "whole episodes" if _whole else "steps"
        _strike.__name__ = f"kill_archivers_of_{_kind.replace(' ', '_')}_{_database.lower()}"
        fault(
            f"kill -9 while {_kind} are archived, {_database}",
            "each step is in the buffer or in the archive, once",
            8,
            400,
        )(_strike)
        _strike = partial(suspend_archivers, _database, _whole)
        _strike.__name__ = f"suspend_archivers_of_{_kind.replace(' ', '_')}_{_database.lower()}"
        fault(
            f"archivers of {_kind} suspended and replaced, with clocks that differ, {_database}",
            "each step is in the buffer or in the archive, once",
            6,
            400,
        )(_strike)
