"""Many writers on one file, large files, and files that are written for long."""

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks import baselines
from benchmarks.table import Row, alternate, row

FORK = multiprocessing.get_context("fork")
OBS = np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32)
WORDS = [
    "the",
    "agent",
    "calls",
    "a",
    "tool",
    "and",
    "reads",
    "what",
    "it",
    "says",
    "then",
    "thinks",
    "of",
    "what",
    "to",
    "do",
    "next",
    "step",
    "by",
    "step",
    "until",
    "done",
]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lie."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


# -- writers ---------------------------------------------------------------------------------------


def flush_often(path: Path, steps: int, flush: int, barrier: Any, results: Any) -> None:
    """Write CartPole-sized steps; send when it began and ended, and how long each flush took.

    One flush comes before, as statements are compiled at the first one of each process.
    """
    with expdb.open(path) as db:
        buffer, taken = db.buffer("b"), list[float]()
        with buffer.episode(f"first{os.getpid()}") as episode:
            for t in range(flush):
                episode.append(obs=OBS[t & 255], action=t & 1, reward=1.0)
        barrier.wait()
        begun = time.perf_counter()
        with buffer.episode(f"t{os.getpid()}", flush_steps=1 << 30, flush_seconds=1e9) as episode:
            for t in range(steps):
                episode.append(obs=OBS[t & 255], action=t & 1, reward=1.0)
                if t % flush == flush - 1:
                    start = time.perf_counter()
                    episode.flush()
                    taken.append(time.perf_counter() - start)
        results.put((begun, time.perf_counter(), taken))


def store_often(path: Path, seconds: float, barrier: Any, results: Any) -> None:
    """Store single steps; send how long each took."""
    with expdb.open(path) as db:
        buffer, taken, errors = db.buffer("b"), list[float](), 0
        barrier.wait()
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            try:
                buffer.store(
                    task_id=f"t{os.getpid()}", obs=OBS[len(taken) & 255], action=1, reward=1.0
                )
            except expdb.ExpDBError:
                errors += 1
            taken.append(time.perf_counter() - start)
        results.put((errors, taken))


def run(target: Any, path: Path, processes: int, *arguments: Any) -> list[Any]:
    """Run processes that begin at once; return what they send."""
    barrier, results = FORK.Barrier(processes), FORK.Queue()
    running = [
        FORK.Process(target=target, args=(path, *arguments, barrier, results))
        for _ in range(processes)
    ]
    for process in running:
        process.start()
    outcomes = [results.get() for _ in running]
    for process in running:
        process.join()
    return outcomes


def writers(folder: Path, quick: bool) -> Iterator[Row]:
    """Eight writers against one, and thirty-two that store single steps."""
    steps, flushes = 6_400 if quick else 128_000, list[float]()

    def writing(processes: int) -> float:
        path = folder / f"writers{processes}.db"
        baselines.remove(path)
        with expdb.open(path) as db:
            db.buffer("b", capacity=100_000)
        outcomes = run(flush_often, path, processes, steps // processes, 64)
        if processes > 1:
            flushes.extend(seconds for _, _, taken in outcomes for seconds in taken)
        return (max(end for _, end, _ in outcomes) - min(begun for begun, _, _ in outcomes)) / (
            steps // processes * processes
        )

    times = alternate(1 if quick else 5, one=lambda _: writing(1), eight=lambda _: writing(8))
    yield row(
        "8 writer processes, one file, flushes of 64: time a step of all / of one process alone",
        times["eight"] / times["one"],
        1.176,
    )
    yield row("its 99th percentile of a flush", percentile(flushes, 0.99) * 1e3, 100, "ms")

    path = folder / "many.db"
    with expdb.open(path) as db:
        db.buffer("b", capacity=100_000)
    outcomes = run(store_often, path, 32, 2.0 if quick else 10.0)
    counts, taken = (
        [len(calls) for _, calls in outcomes],
        [seconds for _, calls in outcomes for seconds in calls],
    )
    yield row(
        "32 writer processes, single `store()` calls: errors",
        sum(errors for errors, _ in outcomes),
        0,
        "",
    )
    yield row("its 99th percentile", percentile(taken, 0.99) * 1e3, 250, "ms")
    yield row(
        "its mean rate of a writer / that of the slowest", statistics.mean(counts) / min(counts), 2
    )


def trajectories(folder: Path, quick: bool) -> Iterator[Row]:
    """Trajectories of a language model, 8 KB of text each."""
    count, rng = 400 if quick else 4_000, random.Random(0)
    texts = [
        " ".join(f"{rng.choice(WORDS)}{rng.randrange(10_000)}" for _ in range(900))[:8192]
        for _ in range(64)
    ]

    def ours(flush: int, durability: Any) -> float:
        path = folder / "texts.db"
        baselines.remove(path)
        with expdb.open(path, durability=durability) as db:
            buffer = db.buffer("b")
            rows = [
                {"task_id": f"t{k}", "text": texts[k % 64], "reward": 1.0, "terminated": True}
                for k in range(count)
            ]
            buffer.store(**rows[0])
            start = time.perf_counter()
            if flush == 1:
                for step in rows:
                    buffer.store(**step)
            else:
                for k in range(0, count, flush):
                    buffer.store_batch(rows[k : k + flush])
            return (time.perf_counter() - start) / count

    times = alternate(
        1 if quick else 3, eights=lambda _: ours(8, "normal"), synced=lambda _: ours(8, "full"),
        singly=lambda _: ours(1, "normal"),
        raw=lambda _: baselines.store(folder / "raw.db", count, payload=8192),
    )  # fmt: skip
    yield row(
        "trajectories of 8 KB, one writer, `store_batch` of 8: time each",
        times["eights"] * 1e3,
        1 / 3,
        "ms",
    )
    yield row('the same with durability="full"', times["synced"] * 1e3, 1 / 3, "ms")
    yield row(
        "the same, one `store()` each / raw transaction of 8 KB", times["singly"] / times["raw"], 2
    )


# -- large and old ---------------------------------------------------------------------------------


def open_and_sample(path: Path, barrier: Any, results: Any) -> None:
    """Send how long it takes to open a file and to draw the first batch."""
    barrier.wait()
    start = time.perf_counter()
    with expdb.open(path) as db:
        db.buffer("b").sample(256)
        results.put(time.perf_counter() - start)


def large(folder: Path, quick: bool) -> Iterator[Row]:
    """Open a file of 10 GB and take the first sample."""
    path, size, rng = (
        folder / "large.db",
        (1 << 28) if quick else 10 * 10**9,
        np.random.default_rng(0),
    )
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        while db.nbytes < size:
            noise = rng.integers(0, 256, (500, 28_224), np.uint8)
            with buffer.episode("t") as episode:
                for k in range(500):
                    episode.append(obs=noise[k], action=k, reward=1.0, terminated=k == 499)
    warm = statistics.median(run(open_and_sample, path, 1)[0] for _ in range(3))
    yield row(
        f"opening a file of {path.stat().st_size / 1e9:.0f} GB and the first `sample(256)`, the "
        "system's cache warm",
        warm,
        1,
        "s",
    )
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return
    yield row("the same, nothing in the system's cache", run(open_and_sample, path, 1)[0], 1, "s")


def steady(folder: Path, quick: bool) -> Iterator[Row]:
    """Write at capacity for long."""
    capacity, steps = (10_000, 100_000) if quick else (500_000, 5_000_000)
    path, taken = folder / "steady.db", list[float]()
    with expdb.open(path) as db:
        buffer, written = db.buffer("b", capacity=capacity), 0
        while written < capacity + steps:
            with buffer.episode(f"t{written % 50}", flush_steps=1 << 30) as episode:
                for t in range(512):
                    episode.append(obs=OBS[t & 255], action=t & 1, reward=1.0, terminated=t == 511)
                    if t % 64 == 63:
                        start = time.perf_counter()
                        episode.flush()
                        if written >= capacity:
                            taken.append(time.perf_counter() - start)
            written += 512
        ((pages, free),) = [(_pragma(db, "page_count"), _pragma(db, "freelist_count"))]
    part = len(taken) // 10
    yield row(f"at capacity for {steps:,} steps: file / live bytes", pages / (pages - free), 1.3)
    yield row(
        "p99 of a flush in the last tenth / in the first",
        percentile(taken[-part:], 0.99) / percentile(taken[:part], 0.99),
        1.25,
    )


def _pragma(db: expdb.ExperienceDB, name: str) -> int:
    with db._engine.reading() as session:
        return int(session.query(f"PRAGMA {name}")[0][0])
