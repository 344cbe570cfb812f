"""Measure how the cost of whole-buffer operations grows: `python -m benchmarks.growth`.

Prints one row per operation: its time at each size relative to the smallest one, and the exponent
of the growth from size to size (1 is linear). `--largest` sets the largest number of steps, `--url`
a PostgreSQL database to measure instead of files.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import expdb
from expdb.export import export
from expdb.sql import opening, schema

SMALLEST, FACTOR, ROUNDS, STEPS = 10_000, 10, 3, 50

Operation = Callable[[str, Path], None]


def fill(location: str, steps: int) -> None:
    """Write episodes of 50 steps, 20 in one transaction."""
    rng = np.random.default_rng(3)
    with expdb.open(location) as db:
        buffer = db.buffer("train")
        for start in range(0, steps, 1000):
            buffer.store_batch(
                {
                    "task_id": [f"t{(start + k) // STEPS % 100}" for k in range(1000)],
                    "obs": rng.random((1000, 4)).astype(np.float32),
                    "reward": rng.random(1000),
                    "truncated": np.arange(1000) % STEPS == STEPS - 1,
                }
            )


def copy(location: str, folder: Path) -> None:
    expdb.copy(location, str(folder / "copy.db"))


def check(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        assert db.check() == []


def export_all(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        export(db.buffer("train"), folder / "all.parquet")


def backup(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        db.backup(str(folder / "backup.db"))


def update(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        db.buffer("train").update({"step": 7}, tags={"judge": 1})


def update_last(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        query = expdb.QueryBuilder().gte("position", 0)
        db.buffer("train").update(query, reward=1.0, which="last")


def delete(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        db.buffer("train").delete({"task_id": "t7"})


def evict(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        buffer = db.buffer("train")
        buffer.eviction = expdb.Eviction(max_bytes=buffer.stats()["bytes"] // 2)
        buffer.evict()


def archive(location: str, folder: Path) -> None:
    with expdb.open(location) as db:
        buffer = db.buffer("train")
        buffer.eviction = expdb.Eviction(
            max_bytes=buffer.stats()["bytes"] // 2, archive=folder / "archive"
        )
        buffer.evict()


def upgrade(location: str, folder: Path) -> None:
    expdb.upgrade(location)


def downgrade(location: str) -> None:
    """Bring a file back to the schema before the newest one."""
    engine = opening.SqliteEngine(location, read_only=False, durability="normal", timeout=30.0)
    try:
        with engine.writing() as session:
            schema.run_migrations(session, schema.list_revisions()[-2], down=True)
    finally:
        engine.close()


OPERATIONS: dict[str, Operation] = {
    "copy": copy,
    "check": check,
    "export": export_all,
    "backup": backup,
    "update of tags, 2 % of the steps": update,
    "update of the last step of every episode": update_last,
    "delete of one task in 100": delete,
    "evict half": evict,
    "archive half": archive,
    "upgrade": upgrade,
}


def measure(steps: int, names: list[str]) -> dict[str, float]:
    """Return the median seconds of each operation on a fresh file of `steps` steps."""
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(str(folder / "full.db"), steps)
        for _ in range(ROUNDS if steps < 1_000_000 else 1):
            for operation in names:
                work = folder / "work"
                work.mkdir()
                location = str(work / "runs.db")
                shutil.copyfile(folder / "full.db", location)
                if operation == "upgrade":
                    downgrade(location)
                start = time.perf_counter()
                OPERATIONS[operation](location, work)
                times[operation].append(time.perf_counter() - start)
                shutil.rmtree(work)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--only", action="append", choices=sorted(OPERATIONS))
    arguments = parser.parse_args()
    names = arguments.only or list(OPERATIONS)
    sizes = [SMALLEST]
    while sizes[-1] * FACTOR <= arguments.largest:
        sizes.append(sizes[-1] * FACTOR)
    by_size = [measure(size, names) for size in sizes]
    print("| operation | " + " | ".join(f"{size:,} steps" for size in sizes) + " | exponents |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name in names:
        times = [seconds[name] for seconds in by_size]
        exponents = [math.log(b / a, FACTOR) for a, b in itertools.pairwise(times)]
        cells = " | ".join(f"{seconds / times[0]:.1f} x" for seconds in times)
        print(f"| {name} | {cells} | {', '.join(f'{exponent:.2f}' for exponent in exponents)} |")
    if {"copy", "backup", "export"} <= set(names):
        last = by_size[-1]
        print(
            f"\ncopy / (backup + export): {last['copy'] / (last['backup'] + last['export']):.2f} x"
        )


if __name__ == "__main__":
    main()
