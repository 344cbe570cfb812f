"""A soak test: two writers, a learner and a process that queries and changes run at once.

`python3 dev.py torture --soak MINUTES` runs only this test. Afterwards, the test searches for every
acknowledged step with plain SQL and pyarrow. Each process reports its memory, file descriptors,
threads and latency.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import sqlite3
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

import expdb
from expdb import NStep, QueryBuilder, Sequence, Stack, errors
from torture.oracle import BUFFER, Log, content, wrong_fields
from torture.table import DATABASES, Outcome, Place, fault

CAPACITY = 20_000
SPAWN = multiprocessing.get_context("spawn")
# Errors that concurrent ends, clears, deletions and evictions may cause. All others are violations.
EXPECTED = (
    errors.EpisodeEnded, errors.EpisodeMismatch, errors.UnknownEpisode, expdb.TooFewRows,
    errors.Evicted,
)  # fmt: skip
LONG = 120  # seconds; from this duration, the limit for growth excludes the warm-up


class Diary:
    """Records the errors, call durations and resource usage of a process."""

    def __init__(self, path: Path, seconds: float):
        self.path, self.until = path, time.monotonic() + seconds
        # Memory, descriptors, threads, seconds of the longest call since the last record.
        self.held: list[tuple[float, ...]] = []
        self.wrong: list[str] = []
        self.calls: Counter[str] = Counter()
        self._noted, self._longest = 0.0, 0.0

    def turns(self) -> Iterator[int]:
        """Yield turns until the time is over, and write the report."""
        for turn in itertools.count():
            if time.monotonic() >= self.until:
                break
            yield turn
        report = {"held": self.held, "wrong": self.wrong, "calls": self.calls}
        self.path.write_text(json.dumps(report))

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of a call, or None if it raised; record unexpected errors."""
        start, name = time.perf_counter(), "done"
        try:
            return work()
        except EXPECTED as error:
            name = type(error).__name__
            return None
        except Exception:
            self.wrong.append(traceback.format_exc())
            return None
        finally:
            now = time.perf_counter()
            self.calls[name] += 1
            self._longest = max(self._longest, now - start)
            if now - self._noted > 0.5:
                usage = resident_bytes(), len(os.listdir("/proc/self/fd")), threading.active_count()
                self.held.append((*usage, self._longest))
                self._noted, self._longest = now, 0.0


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write(location: str, writer: int, seed: int, seconds: float, folder: Path) -> None:
    """Write steps in several ways."""
    warnings.simplefilter("ignore", errors.ExpDBWarning)
    rng, number = random.Random(seed), 0
    diary = Diary(folder / f"writer{writer}.json", seconds)
    log = Log(folder / f"writer{writer}.log")
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        for turn in diary.turns():
            count = rng.randint(1, 12)
            diary.call(partial(write_some, buffer, rng, log, writer, turn, number, count))
            number += count


def write_some(
    buffer: expdb.ReplayBuffer, rng: random.Random, log: Log, writer: int, turn: int, first: int,
    count: int,
) -> None:  # fmt: skip
    """Write an episode, single steps or a batch; some are out of order or never ended."""
    steps = [
        {**content(writer, first + k), "batch": first, "batch_size": count,
         "reward": float(rng.randrange(4))}
        for k in range(count)
    ]  # fmt: skip
    how, task, ends = rng.randrange(5), f"t{rng.randrange(50)}", rng.random() < 0.8
    name = {"episode_id": f"{writer}-{turn}"} if rng.random() < 0.3 else {}
    if how < 2:
        order = rng.sample(range(count), count) if how == 1 else range(count)
        options = {"group_id": task, "flush_steps": 1000, "flush_seconds": 1e6}
        episode = buffer.episode(task, **options, **name)
        for k, place in enumerate(order):
            is_last = ends and how != 1 and k == count - 1
            episode.append(**steps[k], step=place, terminated=is_last)
        log.add(episode.flush().tolist(), writer, first)
        if ends:
            episode.end(obs=steps[0]["obs"])
    elif how < 4:
        for k, step in enumerate(steps):
            is_last = ends and k == count - 1
            position = buffer.store(task_id=task, **name, **step, terminated=is_last)
            log.add([position], writer, first + k)
    else:  # these tasks are unique, so thousands of their episodes may stay open
        rows = [
            {"task_id": f"once {writer} {turn} {k % 3}", **step, "terminated": ends}
            for k, step in enumerate(steps)
        ]
        log.add(buffer.store_batch(rows).tolist(), writer, first)


def learn(location: str, seed: int, seconds: float, folder: Path) -> None:
    """Sample in several ways, verify the batches, and set priorities."""
    diary, rng = Diary(folder / "learner.json", seconds), np.random.default_rng(seed)
    by_priority = expdb.Prioritized()
    units = (
        (NStep(3, gamma=0.9), by_priority), (Sequence(4, burn_in=1), expdb.Uniform()),
        (Stack(3), by_priority), (NStep(1), expdb.Uniform(over="episode")),
        (expdb.Group(2), expdb.Uniform()),
    )  # fmt: skip
    with expdb.open(location, max_lag_seconds=0.0) as db:
        buffer = db.buffer(BUFFER)
        for turn in diary.turns():
            unit, sampler = units[turn % len(units)]
            where = None if turn % 3 else QueryBuilder().gte("reward", 2)
            batch = diary.call(partial(buffer.sample, 32, where, unit=unit, sampler=sampler))
            if batch is None:
                time.sleep(0.01)
                continue
            diary.wrong += wrong_in(batch)
            if sampler is by_priority:
                diary.call(partial(buffer.update_priorities, batch["position"], rng.random(32)))


def wrong_in(batch: Any) -> list[str]:
    """Return a problem for each sampled step that differs from the written step."""
    there = batch["mask"] if "mask" in batch else slice(None)
    keys = ("position", "writer", "number", "obs", "text", "call")
    columns = {key: batch[key][there] for key in keys}
    if columns["obs"].ndim == 3:  # the newest of stacked observations
        columns["obs"] = columns["obs"][:, -1]
    columns |= {key: list(map(int, columns[key])) for key in ("writer", "number")}
    rows = zip(*columns.values(), strict=True)
    return [line for row in rows for line in wrong_fields(dict(zip(columns, row, strict=True)))]


def query_and_change(location: str, seed: int, seconds: float, folder: Path) -> None:
    """Query and change: SQL, tasks, late rewards, deletions, capacity and ends of episodes."""
    warnings.simplefilter("ignore", errors.ExpDBWarning)
    diary, rng = Diary(folder / "asker.json", seconds), random.Random(seed)
    gone = (folder / "gone.log").open("a")
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)

        def delete() -> None:
            positions = [int(p) for p in buffer.sample(3)["position"]]
            # Record this before the delete, because its response may be lost after the commit.
            print(*positions, file=gone, flush=True)
            buffer.delete(QueryBuilder().in_("position", positions))

        def clear() -> None:
            if rng.random() < 0.02:
                print("clear", file=gone, flush=True)
                buffer.clear()
                print("cleared", buffer.stats()["added"], file=gone, flush=True)

        def end() -> None:
            still_open = buffer.episodes({"status": "open"})["episode_id"].to_pylist()
            if still_open:
                buffer.end_episode(rng.choice(still_open), rng.choice(["complete", "aborted"]))

        acts: list[Callable[[], Any]] = [
            lambda: buffer.count(
                QueryBuilder().gte("reward", 1).and_().eq("task_id", f"t{rng.randrange(50)}")),
            lambda: db.sql("SELECT task_id, count(*), avg(reward) FROM experience WHERE reward > 1 "
                           "GROUP BY 1 ORDER BY 2 DESC LIMIT 5"),
            lambda: buffer.sample_tasks(2, {"reward": 1.0}),
            lambda: next(buffer.scan(after=rng.randint(1, 2500), size=50), None),
            lambda: buffer.update({"task_id": f"t{rng.randrange(50)}", "status": "complete"},
                reward=float(rng.randrange(4)), which="last"),
            lambda: buffer.get([int(p) for p in buffer.sample(5)["position"]]),
            lambda: next(buffer.scan(size=64), None), buffer.stats,
            delete, end, clear,
            lambda: setattr(buffer, "capacity", rng.choice([CAPACITY, CAPACITY - 2_000])),
        ]  # fmt: skip
        for turn in diary.turns():
            diary.call(acts[turn % len(acts)])
            time.sleep(0.02)
    gone.close()


# -- afterwards ------------------------------------------------------------------------------------


def stored(location: str) -> tuple[dict[int, dict[str, Any]], int, int]:
    """Return the stored steps, the oldest and the next position, read with SQL and pyarrow."""
    tables = {
        "buffers": "low, added", "steps": "position, step, reward",
        "segments": "first, last, chunk, chunk_row", "chunks": "id, signature, data",
        "signatures": "id, schema",
    }  # fmt: skip
    is_server = location.startswith("postgresql")
    schema = "expdb." if is_server else ""
    with closing(psycopg.connect(location) if is_server else sqlite3.connect(location)) as database:
        contents = {
            name: database.execute(f"SELECT {columns} FROM {schema}{name}").fetchall()
            for name, columns in tables.items()
        }
    ((low, added),) = contents["buffers"]
    schemas = {
        id: pa.ipc.read_schema(pa.py_buffer(message)) for id, message in contents["signatures"]
    }
    places: dict[int, list[tuple[int, int, int]]] = {}
    for first, last, chunk, row in contents["segments"]:
        places.setdefault(chunk, []).append((first, last, row))
    positions = {position for position, *_ in contents["steps"]}
    steps: dict[int, dict[str, Any]] = {}
    for id, signature, data in contents["chunks"]:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schemas[signature])
        names = ("writer", "number", "obs", "text")
        columns = {name: batch.column(name).to_pylist() for name in names}
        for first, last, row in places.get(id, []):
            for position in range(max(first, low), last + 1):
                if position in positions:
                    steps[position] = {
                        name: values[row + position - first] for name, values in columns.items()
                    }
    missing = positions - steps.keys()
    return (steps | {position: {} for position in missing}), low, added


def lost_or_wrong(location: str, folder: Path) -> list[str]:
    """Return the problems that an independent reader finds in the stored steps."""
    steps, low, added = stored(location)
    problems = [f"the step at {at} lies in no chunk" for at, row in steps.items() if not row]
    for position, row in steps.items():
        if row:
            wanted = content(row["writer"], row["number"])
            is_same = np.array(row["obs"], np.float32).tobytes() == wanted["obs"].tobytes()
            if row["text"] != wanted["text"] or not is_same:
                problems.append(f"the step at {position} is wrong: {row}")
    names = Counter((row["writer"], row["number"]) for row in steps.values() if row)
    problems += [f"step {name} is stored {n} times" for name, n in names.items() if n > 1]
    deleted, cleared = set[int](), 0
    for line in (folder / "gone.log").read_text().splitlines():
        if line.startswith("cleared"):
            cleared = int(line.split()[1])
        elif line != "clear":
            deleted |= set(map(int, line.split()))
    acknowledged = {
        position: step
        for path in folder.glob("writer*.log")
        for position, step in Log(path).read().items()
    }
    for position, name in sorted(acknowledged.items()):
        row = steps.get(position, {})
        is_there = (row.get("writer"), row.get("number")) == name
        if position >= max(low, cleared) and position not in deleted and not is_there:
            problems.append(f"the acknowledged step (writer, number) {name} is not at {position}")
    if added - max(low, cleared) < min(added - cleared, CAPACITY - 2_000):
        problems.append(f"only {added - low} positions are held from {low}: too many were evicted")
    query = "SELECT count(*) AS n FROM experience_episodes WHERE status = 'open' AND steps_held = 0"
    with expdb.open(location) as db:
        problems += db.check()
        rows = db.sql(query).to_pylist()[0]["n"]
    if rows > 4_000:
        problems.append(f"{rows} open episodes hold no step")
    return problems


def find_growth(path: Path, seconds: float) -> tuple[list[str], str]:
    """Return the resources of a process that grew after its first quarter, and a summary."""
    report = json.loads(path.read_text())
    usage = np.array(report["held"], float)
    problems = [f"{path.stem}: {problem}" for problem in report["wrong"][:5]]
    if len(usage) < 8:
        return [*problems, f"{path.stem} did next to nothing: {report['calls']}"], ""
    quarter = len(usage) // 4
    second, last = np.median(usage[quarter : 2 * quarter], 0), np.median(usage[-quarter:], 0)
    limit = 1.05 if seconds >= LONG else 1.25
    limits = {"memory": limit, "descriptors": 1.3, "threads": 1.0}
    for (name, most), before, after in zip(limits.items(), second, last, strict=False):
        if after > most * before:
            problems.append(f"the {name} of the {path.stem} grew from {before:.0f} to {after:.0f}")
    memory = f"{last[0] / second[0]:.3f} x ({last[0] / 1e6:.0f} MB)"
    longest = f"longest calls {1000 * second[3]:.0f} and {1000 * last[3]:.0f} ms"
    return problems, f"{path.stem} {memory}, {longest}"


@fault(
    "{database}: two writers, a learner and a querying process at once, seconds",
    "no acknowledged step lost or twice, no wrong batch, no error but documented ones, no "
    "growth at constant size", 12, 1200, database=DATABASES,
)  # fmt: skip
def soak(kind: str, place: Place, seconds: int) -> Outcome:
    """Run all processes for `seconds` seconds, and verify the database."""
    location, folder = place.location(kind, "soak"), place.folder
    with expdb.open(location) as db:
        # pyarrow alone cannot read chunks with shared values.
        text, call = (expdb.Field(dtype, shared=False) for dtype in ("text", "json"))
        db.buffer(BUFFER, capacity=CAPACITY, fields={"text": text, "call": call})
    (folder / "gone.log").touch()
    roles = [(write, (location, number, place.seed + number, seconds, folder)) for number in (1, 2)]
    roles += [(role, (location, place.seed, seconds, folder)) for role in (learn, query_and_change)]
    processes = [SPAWN.Process(target=role, args=arguments) for role, arguments in roles]
    for process in processes:
        process.start()
    problems = []
    for process, (role, _) in zip(processes, roles, strict=True):
        process.join(seconds + 120)
        if process.exitcode != 0:
            problems.append(f"{role.__name__} ended with {process.exitcode}")
            process.kill()
    notes = []
    for path in sorted(folder.glob("*.json")):
        violations, note = find_growth(path, seconds)
        problems += violations
        notes.append(note)
    problems += lost_or_wrong(location, folder)
    return Outcome(seconds, problems, "; ".join(filter(None, notes)))
