"""kill -9 of learners and actors that share a consumer.

A learner records a batch after its acknowledgement has returned. At the end, one learner leases
the remaining items. Then every acknowledged rollout must have been trained exactly `MOST` times.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import expdb
from torture.kills import Crew
from torture.oracle import BUFFER, Notes
from torture.table import DATABASES, Outcome, Place, fault

ACTORS, LEARNERS = 2, 3
MOST = 2
UNITS: dict[str, expdb.Unit] = {"rollouts": expdb.Episode(), "transitions": expdb.NStep(1)}


def rollouts(buffer: expdb.ReplayBuffer, actor: int, longest: int, written: Notes) -> Iterator[Any]:
    """Store rollouts of random lengths, and record and yield each acknowledged rollout."""
    rng = random.Random(actor)
    for number in itertools.count():
        length = rng.randint(1, longest)
        with buffer.episode(f"task {number % 3}", episode_id=f"{actor}/{number}") as episode:
            for k in range(length):
                episode.append(obs=float(k), reward=1.0, terminated=k == length - 1)
        written.add([f"{actor}/{number}", length])
        yield number


def act(location: str, actor: int, written: Notes) -> None:
    """Store rollouts."""
    with expdb.open(location, timeout=120.0) as db:
        for _ in rollouts(db.buffer(BUFFER), actor, 5, written):
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
                    positions = drawn(batch, kind)
            except expdb.TooFewRows:
                return
            trained.add(positions)


def drawn(batch: expdb.Batch, kind: str) -> list[int]:
    """Return the positions of the drawn steps."""
    position = batch["position"]
    return list((position[:, 0] if kind == "rollouts" else position).tolist())


@fault(
    "kill -9 of learners and actors, {kind}, {database}",
    f"each stored item is trained exactly {MOST} times, 0 lost", 12, 1_000,
    "kill_learners_of_{kind}_{database}", database=DATABASES, kind=tuple(UNITS),
)  # fmt: skip
def kill_learners(database: str, kind: str, place: Place, kills: int) -> Outcome:
    """Run actors and learners, and kill one or all of them at random times."""
    location, rng = place.location(database, f"learners{kind}"), random.Random(place.seed)
    with expdb.open(location) as db:
        db.buffer(BUFFER).consumer("trainer", max_times_sampled=MOST)
    written = Notes(place.folder / f"{database}{kind}.written")
    trained = Notes(place.folder / f"{database}{kind}.trained")
    actors = itertools.count()

    def work(index: int) -> tuple[Any, ...]:
        if index < ACTORS:
            return act, location, next(actors), written
        return learn, location, kind, trained

    size = ACTORS + LEARNERS
    crew = Crew(size, work)
    time.sleep(0.5)
    for _ in range(kills):
        time.sleep(rng.random() * 0.08)
        several = rng.random() < 0.1
        for index in range(size) if several else [rng.randrange(size)]:
            crew.replace(index)
    time.sleep(0.3)
    end = time.monotonic() + 30.0  # a slow machine starts processes slower than they are killed
    while len(written.read()) < kills and time.monotonic() < end:
        time.sleep(0.05)
    crew.end(0.0)
    learn(location, kind, trained, rest=True)
    return _verified(location, kind, written, trained, kills)


def _verified(location: str, kind: str, written: Notes, trained: Notes, kills: int) -> Outcome:
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        violations = db.check()
        by_ledger = Counter(
            position for batch in buffer.replay("trainer") for position in drawn(batch, kind)
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
    violations += [f"position {at} was trained {times} times" for at, times in wrong.items()][:5]
    over = by_learners - by_ledger
    violations += [f"{over} was acknowledged and is not in the ledger"] if over else []
    if len(written.read()) < kills:
        violations.append(f"only {len(written.read())} rollouts: the actors hardly wrote")
    note = f"{len(due):,} {kind}, each trained {MOST} times; {len(trained.read()):,} batches noted"
    return Outcome(kills, violations, note)
