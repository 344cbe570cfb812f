"""kill -9 of actors that evict into an archive: each step is in the buffer or there, once."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # before forks: actors would be killed while they import it

import expdb
from torture.kills import FORK, killed
from torture.learners import Notes
from torture.oracle import BUFFER
from torture.table import Outcome, Place, fault

ACTORS, CAPACITY = 3, 60


def act(location: str, actor: int, written: Notes) -> None:
    """Store rollouts, note each that is acknowledged, and evict."""
    rng = random.Random(actor)
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for number in itertools.count():
            length = rng.randrange(1, 8)
            with buffer.episode(f"task {number % 3}", episode_id=f"{actor}/{number}") as episode:
                for k in range(length):
                    episode.append(obs=float(k), reward=1.0, terminated=k == length - 1)
            written.add([f"{actor}/{number}", length])
            buffer.evict()


def kill_archivers(database: str, whole: bool, place: Place, kills: int) -> Outcome:
    """Keep actors at work, and kill one of them at random instants."""
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
        buffer.evict()
        violations = db.check()
        held = [
            (row["episode_id"], row["step"])
            for batch in buffer.scan(fields=["episode_id", "step"])
            for row in batch.to_list()
        ]
        open_steps = int(sum(buffer.episodes({"status": "open"})["length"].to_pylist()))
        if len(held) > CAPACITY + open_steps + 8:
            violations.append(f"{len(held)} steps are held")
    there = [
        (row["episode_id"], row["step"])
        for file in files()
        for row in pq.read_table(file, columns=["episode_id", "step"]).to_pylist()
    ]
    times = Counter(held) + Counter(there)
    violations += [f"{one} is there {n} times" for one, n in times.items() if n > 1][:5]
    violations += [
        f"step {k} of {name} is lost"
        for name, length in written.read()
        for k in range(length)
        if not times[name, k]
    ][:5]
    if whole:
        split = {name for name, _ in held} & {name for name, _ in there}
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
