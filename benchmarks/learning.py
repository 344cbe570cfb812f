"""Sampling from memory: against plain arrays and cpprb, beside a writer, by query, from a server.

Frames.
"""

import mmap
import sqlite3
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks.table import Row, alternate, row
from expdb import NStep, Prioritized, QueryBuilder, Sequence

EPISODE = 200
FRAME = (84, 84, 4)  # uint8: 28 KB

WRITER = """
import sys, time, numpy as np, expdb
with expdb.open(sys.argv[1]) as db:
    buffer, single, n = db.buffer("b"), sys.argv[2] == "single", 0
    obs = np.zeros(4, np.float32)
    given = dict(obs=obs, action=1, reward=1.0, next_obs=obs)
    print("ready", flush=True)
    begun = time.perf_counter()
    while True:
        with buffer.episode(f"new_{n}", flush_steps=64) as episode:
            for t in range(200):
                if single:
                    buffer.store(task_id="new", terminated=t == 199, **given)
                else:
                    episode.append(terminated=t == 199, **given)
                n += 1
                time.sleep(max(0.0, begun + n / 1000 - time.perf_counter()))
"""


def steps(count: int) -> dict[str, np.ndarray]:
    """Return CartPole-sized steps in episodes of 200."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((count, 4)).astype(np.float32)
    terminated = np.zeros(count, np.bool_)
    terminated[EPISODE - 1 :: EPISODE] = True
    return {
        "obs": obs,
        "action": rng.integers(0, 2, count),
        "reward": np.ones(count),
        "next_obs": np.roll(obs, -1, 0),
        "terminated": terminated,
    }


def write(buffer: expdb.ReplayBuffer, columns: dict[str, np.ndarray]) -> None:
    """Write steps as episodes of 200, task names in a hundred kinds."""
    count = len(columns["obs"])
    for start in range(0, count, EPISODE):
        with buffer.episode(f"t{start}", task_name=f"name_{start // EPISODE % 100}") as episode:
            episode.extend(
                {name: values[start : start + EPISODE] for name, values in columns.items()}
            )


def timed(call: Callable[[], Any], times: int = 200) -> Callable[[int], float]:
    """Return a side that makes a call some times and tells the seconds of one."""

    def side(_: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - begun) / times

    return side


def memory(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample steps that fit in memory, with and without somebody writing."""
    count = 100_000 if quick else 1_000_000
    columns = steps(count)
    path = folder / "memory.db"
    with expdb.open(path) as db:
        write(db.buffer("b"), columns)
    rng, rounds = np.random.default_rng(1), 5 if quick else 15
    names = ("obs", "action", "reward", "next_obs", "terminated")

    def fancy() -> dict[str, np.ndarray]:
        index = rng.integers(0, count, 256)
        return {name: values[index] for name, values in columns.items()}

    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.sample(256, unit=NStep(1))
        sides = {
            "arrays": timed(fancy),
            "all": timed(lambda: buffer.sample(256)),
            "five": timed(lambda: buffer.sample(256, fields=names)),
        }
        try:
            import cpprb
        except ImportError:
            volatile = None
        else:
            shapes = {
                "obs": {"shape": 4},
                "action": {"dtype": np.int64},
                "reward": {},
                "next_obs": {"shape": 4},
                "terminated": {},
            }
            volatile, by_priority = (
                cpprb.ReplayBuffer(count, shapes),
                cpprb.PrioritizedReplayBuffer(count, shapes),
            )
            volatile.add(**columns)
            by_priority.add(**columns)
            sides["cpprb"] = timed(lambda: volatile.sample(256))
        medians = alternate(rounds, **sides)
        what = f"`sample(256)` of {count:,} CartPole-sized steps"
        yield row(
            f"{what}, all eleven keys / NumPy fancy indexing of five arrays",
            medians["all"] / medians["arrays"],
            1.0,
        )
        yield row("the same, the same five keys", medians["five"] / medians["arrays"], 1.0)
        if volatile is None:
            yield row("no figures against cpprb, which is not installed", float("nan"), 1.0)
        else:
            yield row(
                f"{what}, all eleven keys / cpprb, five", medians["all"] / medians["cpprb"], 0.8
            )
            for kind, mark in (("flushes of 64", 1.0), ("single", 1.3)):
                yield row(
                    f"the same while another process appends 1,000 steps a second ({kind}) / cpprb "
                    "without a writer",
                    _beside_a_writer(path, kind, buffer, volatile), mark,
                )  # fmt: skip
            yield from _prioritized(buffer, by_priority, rounds, count)
        resident_bytes = buffer.stats()["resident_bytes"]
        own = (
            columns["obs"].dtype.itemsize * 8 + 8 + 1 + 8 + 1 + 1 + 8 + 8
        )  # fields, reward, flags, step, episode
        yield row(
            "memory a row beyond the columns of a batch, sum tree and priorities included",
            resident_bytes / buffer.stats()["added"] - own,
            64,
            "B",
        )
        for name, unit in (
            ("NStep(5)", NStep(5, gamma=0.99)),
            ("Sequence(32)", Sequence(32)),
            ("Sequence(32, burn_in=8)", Sequence(32, burn_in=8)),
        ):
            medians = alternate(
                rounds,
                plain=timed(lambda: buffer.sample(64), 50),
                unit=timed(lambda unit=unit: buffer.sample(64, unit=unit), 50),
            )
            yield row(f"`{name}`, 64 / `sample(64)`", medians["unit"] / medians["plain"], 20)


def _beside_a_writer(path: Path, kind: str, buffer: expdb.ReplayBuffer, volatile: Any) -> float:
    """Return the mean time of a sample while another process writes.

    Over that of cpprb while nobody does.
    """
    theirs, ours = [], []
    for _ in range(5):
        theirs.append(timed(lambda: volatile.sample(256), 4000)(0))
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), kind], stdout=subprocess.PIPE
        )
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            timed(lambda: buffer.sample(256), 1000)(0)
            ours.append(
                timed(lambda: buffer.sample(256), 20_000)(0)
            )  # a mean, so that every refresh is in it
        finally:
            writer.kill()
            writer.wait()
    return statistics.median(ours) / statistics.median(theirs)


def _prioritized(buffer: expdb.ReplayBuffer, theirs: Any, rounds: int, count: int) -> Iterator[Row]:
    sampler, errors = Prioritized(), np.random.default_rng(0).random(256)
    begun = time.perf_counter()
    buffer.sample(256, sampler=sampler)
    first = time.perf_counter() - begun

    def ours() -> None:
        buffer.update_priorities(buffer.sample(256, sampler=sampler)["position"], errors)

    def peer() -> None:
        theirs.update_priorities(theirs.sample(256)["indexes"], errors)

    medians = alternate(rounds, ours=timed(ours), theirs=timed(peer))
    yield row(
        f"`Prioritized` sample(256) + update, {count:,} steps / cpprb",
        medians["ours"] / medians["theirs"],
        0.7,
        note=f"first call {first:.2f} s",
    )


def queries(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample by a query that matches one step in a hundred."""
    count = 200_000 if quick else 10_000_000
    path = folder / "queries.db"
    columns = steps(min(count, 1_000_000))
    with expdb.open(path) as db:
        for _ in range(count // len(columns["obs"])):
            write(db.buffer("b"), columns)
    with expdb.open(path) as db:
        buffer, query = db.buffer("b"), QueryBuilder().eq("task_name", "name_7")
        begun = time.perf_counter()
        buffer.sample(256, query)
        first = time.perf_counter() - begun
        arrays = timed(
            lambda: [values[np.random.randint(0, len(values), 256)] for values in columns.values()]
        )
        sides = {"arrays": arrays, "ours": timed(lambda: buffer.sample(256, query))}
        try:
            import cpprb
        except ImportError:
            baseline, what = "arrays", "fancy indexing of plain arrays (cpprb is not installed)"
        else:
            shapes = {
                "obs": {"shape": 4},
                "action": {"dtype": np.int64},
                "reward": {},
                "next_obs": {"shape": 4},
                "terminated": {},
            }
            volatile = cpprb.ReplayBuffer(len(columns["obs"]), shapes)
            volatile.add(**columns)
            sides["cpprb"], baseline, what = (
                timed(lambda: volatile.sample(256)),
                "cpprb",
                "cpprb's uniform `sample(256)`",
            )
        medians = alternate(5 if quick else 15, **sides)
        yield row(
            f"`sample(256, query)`, 1 % of {count:,} steps / {what}",
            medians["ours"] / medians[baseline],
            1.2,
        )
        single = timed(lambda: buffer.sample(256, query), 1)
        slowest = np.percentile([single(0) for _ in range(5000)], 99) * 1e3
        yield row("its 99th percentile", float(slowest), 1.0, "ms")
        yield row("its first call, with everything loaded", first, 60, "s")


def server(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample the same from PostgreSQL and from a file."""
    from benchmarks.servers import Server

    running = Server()
    try:
        columns = steps(20_000 if quick else 200_000)
        with (
            expdb.open(folder / "file.db") as file_db,
            expdb.open(running.url(running.database())) as server_db,
        ):
            buffers = [file_db.buffer("b"), server_db.buffer("b")]
            for buffer in buffers:
                write(buffer, columns)
                buffer.sample(256, unit=NStep(1))
            file, remote = (
                timed(lambda buffer=buffer: buffer.sample(256), 2000) for buffer in buffers
            )
            medians = alternate(5 if quick else 15, file=file, remote=remote)
            yield row(
                "`sample(256)` in memory, of PostgreSQL at the default lag / of SQLite",
                medians["remote"] / medians["file"],
                1.2,
            )
    finally:
        running.remove()


def frames(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample frames of 28 KB, in memory and beyond the budget, and load them."""
    count = 1_000 if quick else 20_000
    path = folder / "frames.db"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, *FRAME), np.uint8)
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        for start in range(0, count, EPISODE):
            with buffer.episode(f"t{start}") as episode:
                for k in range(start, start + EPISODE):
                    episode.append(
                        obs=images[k], action=k % 4, reward=0.0, terminated=k == start + EPISODE - 1
                    )
    size = count * images[0].nbytes

    def fancy() -> np.ndarray:
        return images[rng.integers(0, count, 256)]

    with (
        expdb.open(path, resident_bytes=2 * size) as within,
        expdb.open(path, resident_bytes=size // 4) as beyond,
    ):
        resident, spilled = within.buffer("b"), beyond.buffer("b")
        resident.sample(1, unit=NStep(1, next_fields=()))
        spilled.sample(1, unit=NStep(1, next_fields=()))
        for _ in range(30):
            spilled.sample(256)
        medians = alternate(
            5 if quick else 11,
            arrays=timed(fancy, 10),
            within=timed(lambda: resident.sample(256), 10),
            beyond=timed(lambda: spilled.sample(256), 10),
        )
        yield row(
            "256 frames of 28 KB, in memory / NumPy fancy indexing",
            medians["within"] / medians["arrays"],
            1.1,
        )
        yield row(
            "the same, four times the budget, the system's cache warm / NumPy fancy indexing",
            medians["beyond"] / medians["arrays"],
            2.0,
        )
    yield from _filling("frames", path, 2 * size, quick)


def filling(folder: Path, quick: bool) -> Iterator[Row]:
    """Load tiny steps."""
    path = folder / "filling.db"
    with expdb.open(path) as db:
        write(db.buffer("b"), steps(50_000 if quick else 1_000_000))
    yield from _filling("tiny steps", path, 4 << 30, quick)


def _filling(what: str, path: Path, budget: int, quick: bool) -> Iterator[Row]:
    resident_bytes = 0

    def raw(_: int) -> float:
        connection = sqlite3.connect(path)
        begun = time.perf_counter()
        for (data,) in connection.execute(
            "SELECT data FROM chunks WHERE buffer_id = 1 ORDER BY id"
        ):
            zlib.crc32(data)
        fresh = np.empty(resident_bytes, np.uint8)
        fresh[:: mmap.PAGESIZE] = 1
        seconds = time.perf_counter() - begun
        connection.close()
        return seconds

    def ours(_: int) -> float:
        nonlocal resident_bytes
        with expdb.open(path, resident_bytes=budget) as db:
            buffer = db.buffer("b")
            begun = time.perf_counter()
            buffer.sample(1, unit=NStep(1, next_fields=()))
            seconds = time.perf_counter() - begun
            resident_bytes = buffer.stats()["resident_bytes"]
            return seconds

    medians = alternate(3 if quick else 7, ours=ours, raw=raw)
    yield row(
        f"loading {what} into memory / reading the chunks, crc32, touching as much fresh memory",
        medians["ours"] / medians["raw"],
        2.0,
    )
