"""Kill writers that fork episodes, delete them and evict trees."""

from __future__ import annotations

import itertools
import random
import time
from contextlib import suppress

import pyarrow.parquet as pq  # imported before forks, so that no writer is killed during the import

import expdb
from expdb import errors
from torture.kills import Crew
from torture.oracle import BUFFER, Notes
from torture.table import DATABASES, Outcome, Place, fault

WRITERS, CAPACITY = 4, 80
PROMPTS = "short", *[f"prompt {number} " * 200 for number in range(20)]  # large ones are shared
KINDS = "steps", "trees"
REFUSALS = (
    errors.DatabaseBusy, errors.EpisodeEnded, errors.Evicted, errors.InvalidValue,
    errors.UnknownEpisode,
)  # fmt: skip


def store_trees_forever(location: str, writer: int, written: Notes, deletes: bool) -> None:
    """Store trees of episodes; record the steps of each episode after their flush."""
    rng = random.Random(writer)
    with expdb.open(location, timeout=120.0) as db:
        buffer = db.buffer(BUFFER)
        for number in itertools.count():
            name = f"{writer}/{number}"
            episodes = buffer.episodes(limit=20)["episode_id"].to_pylist()
            with suppress(*REFUSALS):  # another writer may evict or delete the parent
                if not episodes or rng.random() < 0.3:
                    shared, episode = [], buffer.episode("t", episode_id=name)
                else:
                    parent = rng.choice(episodes)
                    steps = buffer.get(buffer.steps_of(parent, lineage=True))
                    at_step = rng.randint(0, len(steps["step"]))
                    shared = steps["position"][:at_step].tolist()
                    episode = buffer.fork(parent, at_step, episode_id=name)
                positions: list[int] = []
                for _ in range(rng.randint(1, 3)):
                    for _ in range(rng.randint(1, 4)):
                        prompt = rng.choice(PROMPTS)
                        episode.append(x=f"{name} {rng.random()}", prompt=prompt)
                    positions += episode.flush().tolist()
                    written.add([name, shared, positions])
                episode.end()
                if deletes and rng.random() < 0.2:
                    victim = rng.choice(episodes or [name])
                    written.add([victim, None, None])  # before the deletion
                    buffer.delete({"episode_id": victim})
                if not deletes:
                    buffer.evict()


@fault(
    "kill -9 of {processes} writers of trees, eviction of {kind}, {database}",
    "each acknowledged step is in the buffer or the archive, or was evicted or deleted; each fork "
    "has all shared steps or is reported as incomplete", 40, 200, "kill_trees_{kind}_{database}",
    database=DATABASES, kind=KINDS, processes=(str(WRITERS),),
)  # fmt: skip
def kill_writers_of_trees(
    database: str, kind: str, processes: str, place: Place, kills: int
) -> Outcome:
    """Kill one writer at a time, and then verify the stored trees."""
    location, rng = place.location(database, f"trees of {kind}"), random.Random(place.seed)
    folder, archives = place.folder / f"{database} {kind}", kind == "trees"
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER, capacity=CAPACITY)
        if archives:
            buffer.eviction = expdb.Eviction(whole_episodes=True, archive=folder)
    written, numbers = Notes(place.folder / f"{database} {kind}.log"), itertools.count()
    crew = Crew(
        WRITERS, lambda _: (store_trees_forever, location, next(numbers), written, not archives)
    )
    time.sleep(0.5)
    for _ in range(kills):
        time.sleep(rng.random() * 0.2)
        crew.replace(rng.randrange(WRITERS))
    crew.end(0.5)
    with expdb.open(location, timeout=60.0) as db:
        buffer = db.buffer(BUFFER)
        if archives:
            buffer.evict()  # publish the file of an evictor that was killed
        violations, forks = verify_trees(buffer, written.read(), folder if archives else None)
        added = buffer.added
    written.close()
    if forks < kills // 4:
        violations.append(f"only {forks} forks were written: the writers hardly wrote")
    return Outcome(kills, violations, f"{added:,} steps, {forks:,} forks")


def verify_trees(buffer, lines, archive):
    """Return the problems of a buffer with trees, and the number of forks that were written."""
    problems = buffer.check()
    newest = {name: (shared, own) for name, shared, own in lines if shared is not None}
    deleted = {name for name, shared, _ in lines if shared is None}
    contents = {}
    for batch in buffer.scan(fields=["position", "x", "prompt"]):
        contents |= dict(zip(batch["position"].tolist(), batch["x"].tolist(), strict=True))
        wrong = set(batch["prompt"].tolist()) - set(PROMPTS)
        problems += [f"{len(wrong)} prompts are wrong"] if wrong else []
    oldest = max(0, buffer.added - CAPACITY)
    archived: list[int] = []
    if archive is not None:
        for path in archive.rglob("[!.]*.parquet"):
            archived += pq.read_table(path, columns=["position"])["position"].to_pylist()
        twice = len(archived) - len(set(archived)) + len(set(archived) & contents.keys())
        problems += [f"{twice} steps are stored twice"] if twice else []
    kept = set(archived)
    stored = set(buffer.episodes()["episode_id"].to_pylist())
    for name, (shared, own) in newest.items():
        lost = [at for at in own if at not in contents and at not in kept]
        if archive is None:
            lost = [at for at in lost if at >= oldest and name not in deleted]
        problems += [f"steps {lost} of {name} are lost"] if lost else []
        if name not in stored:
            continue
        here = buffer.steps_of(name).tolist()
        wrong = [at for at in here if not contents[at].startswith(f"{name} ")]
        problems += [f"steps {wrong} of {name} have other values"] if wrong else []
        if not shared:
            continue
        try:
            steps = buffer.steps_of(name, lineage=True).tolist()
        except errors.Evicted:
            if all(at in contents for at in shared):
                problems.append(f"{name} is incomplete, although its shared steps are stored")
        else:
            if steps != shared + here:
                problems.append(f"{name} has the steps {steps}, expected {shared + here}")
    return problems, sum(bool(shared) for shared, _ in newest.values())
