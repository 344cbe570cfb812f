"""Leases beside what they are made of: a sample, and a commit of the same durability."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import expdb
from benchmarks.table import Row, alternate, row

STEPS = 500


def _filled(path: Path, steps: int, durability: str = "normal") -> expdb.ReplayBuffer:
    buffer = expdb.open(path, durability=durability).buffer("train")  # type: ignore[arg-type]
    obs = np.zeros(4, np.float32)
    for _ in range(steps // STEPS):
        with buffer.episode("t") as episode:
            for t in range(STEPS):
                episode.append(obs=obs, action=t & 1, reward=1.0, terminated=t == STEPS - 1)
    return buffer


def _times(work: Callable[[], object], count: int = 20) -> Callable[[int], float]:
    def run(_: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count

    return run


def _beside_a_commit(path: Path, durability: str, rounds: int, steps: int) -> Iterator[Row]:
    buffer = _filled(path, steps, durability)
    consumer = buffer.consumer("trainer")
    raw = sqlite3.connect(path, isolation_level=None)
    for pragma in (f"synchronous={durability.upper()}", "wal_autocheckpoint=0"):
        raw.execute(f"PRAGMA {pragma}")
    raw.execute("CREATE TABLE raw (value)")
    raw.execute("INSERT INTO raw VALUES (0)")
    stream = consumer.batches(64)

    def committed() -> None:
        buffer.sample(64)
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("UPDATE raw SET value = value + 1")
        raw.execute("COMMIT")

    def leased() -> None:
        with consumer.lease(64):
            pass

    medians = alternate(
        rounds, base=_times(committed), lease=_times(leased), stream=_times(lambda: next(stream))
    )
    what = f'64 rows, durability="{durability}" / `sample(64)` and one raw commit'
    yield row(f"`lease` and acknowledge, {what}", medians["lease"] / medians["base"], 2.0)
    yield row(f"`batches`, {what}", medians["stream"] / medians["base"], 2.0)
    sizes = "sum(length(positions) + length(columns) + length(holder) + 60.0) / sum(rows)"
    ((nbytes,),) = raw.execute(f"SELECT {sizes} FROM leases")
    yield row(f"the ledger, bytes per row handed out, {durability}", nbytes, 20.0, "B")
    raw.close()
    buffer._database.close()


def leases(folder: Path, quick: bool) -> Iterator[Row]:
    """Lease and acknowledge, beside a sample and a raw commit; the ledger's bytes."""
    rounds, steps = (7, 10_000) if quick else (31, 100_000)
    for durability in ("normal", "full"):
        yield from _beside_a_commit(folder / f"{durability}.db", durability, rounds, steps)
    plain, consumed = _filled(folder / "plain.db", steps), _filled(folder / "consumed.db", steps)
    for _ in range(200):
        with consumed.consumer("trainer", max_times_sampled=1000).lease(64):
            pass
    medians = alternate(
        rounds,
        plain=_times(lambda: plain.sample(64), 200),
        consumed=_times(lambda: consumed.sample(64), 200),
    )
    yield row(
        "`sample(64)` of a buffer with a consumer and a ledger / without",
        medians["consumed"] / medians["plain"],
        1.02,
    )
    for buffer in (plain, consumed):
        buffer._database.close()


def _wait(location: str, sender: object, count: int) -> None:
    consumer = expdb.open(location).buffer("train").consumer("waiting")
    for _ in range(count):
        with consumer.lease(1, wait=60.0) as batch:
            sender.send(time.time() - float(batch["stored"][0]))  # type: ignore[attr-defined]
    start, cpu = time.monotonic(), time.process_time()
    try:
        consumer.lease(1, wait=3.0)
    except expdb.TooFewRows:
        sender.send((time.process_time() - cpu) / (time.monotonic() - start))  # type: ignore[attr-defined]


def waiting(folder: Path, quick: bool) -> Iterator[Row]:
    """Wake a learner of another process, on a file and on a server."""
    from tests.postgres_server import Server

    server, count = Server(), 10 if quick else 40
    try:
        for name, location, mark in (
            ("SQLite", str(folder / "waiting.db"), 0.05),
            ("PostgreSQL", server.url(server.database()), 0.02),
        ):
            with expdb.open(location) as db:
                buffer = db.buffer("train")
                buffer.consumer("waiting", max_times_sampled=1)
                ours, theirs = multiprocessing.get_context("spawn").Pipe()
                learner = multiprocessing.get_context("spawn").Process(
                    target=_wait, args=(location, theirs, count)
                )
                learner.start()
                delays = []
                for _ in range(count):
                    time.sleep(0.15)
                    buffer.store(stored=time.time())
                    delays.append(ours.recv())
                used = ours.recv()
                learner.join()
            late = float(np.median(delays[1:]))
            yield row(f"a learner that waits wakes after the commit, {name}", late, mark, "s")
            yield row(f"it takes of a core meanwhile, {name}", used, 0.01)
    finally:
        server.remove()
