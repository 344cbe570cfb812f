"""kill -9 of learners and actors that share a consumer.

A learner records a batch after its acknowledgement has returned. At the end, one learner leases
the remaining items. Then every acknowledged rollout must have been trained exactly `MOST` times.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import expdb
from torture.kills import FORK, killed
from torture.oracle import BUFFER
from torture.table import Outcome, Place, fault

ACTORS, LEARNERS = 2, 3
MOST = 2
UNITS: dict[str, expdb.Unit] = {"rollouts": expdb.Episode(), "transitions": expdb.NStep(1)}


class Notes:
    """A file of JSON lines that many processes append to; the lines survive a kill."""

    def __init__(self, path: Path):
        self._path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def add(self, line: Any) -> None:
        """Append a line atomically."""
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def read(self) -> list[Any]:
        """Return all lines."""
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def act(location: str, actor: int, written: Notes) -> None:
    """Store rollouts of random lengths, and record each acknowledged rollout."""
    rng = random.Random(actor)
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for number in itertools.count():
            length = rng.randrange(1, 6)
            with buffer.episode(f"task {number % 3}", episode_id=f"{actor}/{number}") as episode:
                for k in range(length):
                    episode.append(obs=float(k), reward=1.0, terminated=k == length - 1)
            written.add([f"{actor}/{number}", length])
            time.sleep(0.002)


def learn(location: str, kind: str, trained: Notes, rest: bool = False) -> None:
    """Lease and acknowledge forever; with `rest`, until nothing is left or for 60 s."""
    end = time.monotonic() + 60.0
    with expdb.open(location, timeout=120.0) as db:
        consumer = db.buffer(BUFFER).consumer("trainer")
        unit = UNITS[kind]
        while not rest or time.monotonic() < end:
            try:
                with consumer.lease(
                    5, unit=unit, at_least=1, wait=0.0 if rest else 60.0, fields=["position"]
                ) as batch:
                    positions = batch["position"]
                    if kind == "rollouts":
                        positions = positions[:, 0]
            except expdb.TooFewRows:
                return
            trained.add(positions.tolist())


def kill_learners(database: str, kind: str, place: Place, kills: int) -> Outcome:
    """Run actors and learners, and kill one or all of them at random times."""
    location, rng = place.location(database, f"learners{kind}"), random.Random(place.seed)
    with expdb.open(location) as db:
        db.buffer(BUFFER).consumer("trainer", max_times_sampled=MOST)
    written = Notes(place.folder / f"{database}{kind}.written")
    trained = Notes(place.folder / f"{database}{kind}.trained")
    actors = itertools.count()

    def begin(index: int) -> BaseProcess:
        process = (
            FORK.Process(target=act, args=(location, next(actors), written))
            if index < ACTORS
            else FORK.Process(target=learn, args=(location, kind, trained))
        )
        process.start()
        return process

    processes = [begin(index) for index in range(ACTORS + LEARNERS)]
    time.sleep(0.5)
    for _ in range(kills):
        time.sleep(rng.random() * 0.08)
        several = rng.random() < 0.1
        for index in range(len(processes)) if several else [rng.randrange(len(processes))]:
            killed(processes[index])
            processes[index] = begin(index)
    time.sleep(0.3)
    end = (
        time.monotonic() + 30.0
    )  # a slow machine starts processes more slowly than they are killed
    while len(written.read()) < kills and time.monotonic() < end:
        time.sleep(0.05)
    for process in processes:
        killed(process)
    learn(location, kind, trained, rest=True)
    return _verified(location, kind, written, trained, kills)


def _verified(location: str, kind: str, written: Notes, trained: Notes, kills: int) -> Outcome:
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        violations = db.check()
        by_ledger = Counter(
            position
            for batch in buffer.replay("trainer")
            for position in (
                batch["position"][:, 0] if kind == "rollouts" else batch["position"]
            ).tolist()
        )
        by_learners = Counter(position for batch in trained.read() for position in batch)
        rows = [
            row
            for batch in buffer.scan(fields=["position", "episode_id", "step", "status"])
            for row in batch.to_list()
        ]
        stored = {row["episode_id"]: row["position"] for row in rows if row["step"] == 0}
        due = {
            row["position"]
            for row in rows
            if (row["status"] == "complete" and row["step"] == 0) or kind == "transitions"
        }
    lost = [name for name, _ in written.read() if name not in stored]
    violations += [f"rollout {name} was acknowledged and is not there" for name in lost[:5]]
    wrong = {position: by_ledger[position] for position in due if by_ledger[position] != MOST}
    violations += [
        f"position {position} was trained {times} times" for position, times in wrong.items()
    ][:5]
    over = by_learners - by_ledger
    violations += [f"{over} was acknowledged and is not in the ledger"] if over else []
    if len(written.read()) < kills:
        violations.append(f"only {len(written.read())} rollouts: the actors hardly wrote")
    note = f"{len(due):,} {kind}, each trained {MOST} times; {len(trained.read()):,} batches noted"
    return Outcome(kills, violations, note)


for _database in ("SQLite", "PostgreSQL"):
    for _kind in UNITS:
        _strike: Any = partial(kill_learners, _database, _kind)
        _strike.__name__ = f"kill_learners_of_{_kind}_{_database.lower()}"
        fault(
            f"kill -9 of learners and actors, {_kind}, {_database}",
            f"each that is stored is trained exactly {MOST} times, 0 lost",
            12,
            1_000,
        )(_strike)
