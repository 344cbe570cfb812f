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
from pathlib import Path

import pyarrow.parquet as pq  # imported before forks, so that no actor is killed during the import

import expdb
from expdb import errors
from expdb.archive import retention
from expdb.sql.dialects.sqlite import statements as sqlite
from torture.kills import Crew
from torture.learners import rollouts
from torture.oracle import BUFFER, Notes
from torture.table import DATABASES, Outcome, Place, fault

ACTORS, CAPACITY = 3, 60
KINDS = "steps", "whole episodes"
ONCE = "each step is in the buffer or in the archive, once"


def act(location: str, actor: int, written: Notes, expire: float | None = None) -> None:
    """Store rollouts, record each acknowledged rollout, and evict.

    With `expire`, evictions expire after `expire` seconds, and the clocks of actors differ by
    660 s and jump by 1,000 s.
    """
    if expire is not None:
        retention.EXPIRE_SECONDS, retention.RENEW_SECONDS = expire, expire / 4
        sqlite.NOW = f"({sqlite.NOW} + {660 * (actor % 2)} + 1000 * (abs(random()) % 50 = 0))"
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for _ in rollouts(buffer, actor, 7, written):
            with suppress(errors.DatabaseBusy):  # a suspended actor holds the lock
                buffer.evict()


def create_archiving_buffer(
    database: str, kind: str, place: Place, name: str
) -> tuple[random.Random, str, Path, bool, Notes]:
    """Create a buffer that archives steps or whole episodes, and a file for the stored rollouts."""
    location, folder = place.location(database, name), place.folder / f"{name}.archive"
    is_whole = kind == "whole episodes"
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER, capacity=CAPACITY)
        buffer.eviction = expdb.Eviction(archive=folder, whole_episodes=is_whole)
    stored = Notes(place.folder / f"{name}.stored")
    return random.Random(place.seed), location, folder, is_whole, stored


@fault(
    "archivers of {kind} suspended and replaced, with clocks that differ, {database}", ONCE,
    6, 400, "suspend_archivers_of_{kind}_{database}", database=DATABASES, kind=KINDS,
)  # fmt: skip
def suspend_archivers(database: str, kind: str, place: Place, times: int) -> Outcome:
    """Suspend actors for about the expiry time of an eviction, and resume them."""
    rng, *parts = create_archiving_buffer(database, kind, place, "suspended")
    location, written, expire = parts[0], parts[-1], 0.3
    crew = Crew(ACTORS, lambda actor: (act, location, actor, written, expire))
    time.sleep(1.0)  # a first file takes a process 0.2 s
    died: list[str] = []
    for _ in range(times):
        time.sleep(rng.random() * 0.2)
        process = rng.choice(crew.processes)
        if process.pid is None or not process.is_alive():
            died.append(f"an actor ended with status {process.exitcode}")
            break
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(expire * (0.5 + 2 * rng.random()))
        os.kill(process.pid, signal.SIGCONT)
    crew.end(1.0)
    outcome = _verified(*parts, 0)
    return replace(outcome, count=times, violations=[*died, *outcome.violations])


@fault(
    "kill -9 while {kind} are archived, {database}", ONCE, 8, 400,
    "kill_archivers_of_{kind}_{database}", database=DATABASES, kind=KINDS,
)  # fmt: skip
def kill_archivers(database: str, kind: str, place: Place, kills: int) -> Outcome:
    """Run actors, and kill one of them at random times."""
    rng, *parts = create_archiving_buffer(database, kind, place, "killed")
    location, written, actors = parts[0], parts[-1], itertools.count()
    crew = Crew(ACTORS, lambda _: (act, location, next(actors), written))
    time.sleep(0.3)
    for _ in range(kills):
        time.sleep(rng.random() * 0.4)  # a first file takes a process 0.2 s
        crew.replace(rng.randrange(ACTORS))
    crew.end(0.3)
    return _verified(*parts, kills)


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
