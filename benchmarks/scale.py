"""Measure what writers, readers, commits, bytes and connections cost.

Compute what breaks first: `python -m benchmarks.scale`.

Prints the table of docs/explanation/performance.md. The figures are those of this machine; the
computation is the same on any.
"""

import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1] / "tests")
)  # the server that the tests start

from postgres_server import Server

import expdb
from benchmarks import crowd

SECONDS, WRITERS = 5.0, 8
CONNECTIONS, PROCESSES = (
    500,
    100,
)  # that a server, and a host, do well with: rules of thumb, not measured


@dataclass(frozen=True)
class Costs:
    """What was measured; rates a second, of all writers together."""

    short: float  # small steps in flushes of 64
    long: float  # small steps in flushes of 1,024
    single: float  # small steps by `store()`
    small_bytes: float  # on disk, a step
    text_bytes: float  # on disk, 8 KB of text
    follow: float  # steps a learner takes into memory
    connection_bytes: float  # of the server's memory


@dataclass(frozen=True)
class Actors:
    """What one actor writes."""

    name: str
    steps: float  # a second
    how: str  # of the rates
    text: bool


KINDS = [
    Actors("simulators: 100 small steps a second, flushes of 64", 100.0, "short", False),
    Actors("simulators with flushes of 1,024", 100.0, "long", False),
    Actors("language-model agents: a turn of 8 KB each 5 seconds, `store()`", 0.2, "single", True),
]


def measure(location: str) -> Costs:
    """Measure a database at the location."""
    with expdb.open(location) as db:
        db.buffer("b", capacity=1_000_000)
    rates = {}
    for flush in (64, 1024):
        work: Any = crowd.flush_often
        outcomes = crowd.run(work, location, WRITERS, 10_240, flush)
        rates[flush] = (
            WRITERS
            * 10_240
            / (max(end for _, end, _ in outcomes) - min(begun for begun, _, _ in outcomes))
        )
    with expdb.open(location) as db:
        buffer, size = db.buffer("b"), db.nbytes
        steps = len(buffer)
        start = time.perf_counter()
        while (
            buffer.stats()["resident_bytes"] < 25 * steps
        ):  # the first sample reads no more than it needs
            buffer.sample(256)
        follow = steps / (time.perf_counter() - start)
        small_bytes = size / steps
        texts = db.buffer("texts")
        rng = np.random.default_rng(0)
        words = np.array(crowd.WORDS)
        before = texts.stats()["bytes"]
        for k in range(200):
            texts.store(
                task_id=f"t{k}",
                text=" ".join(
                    f"{word}{n}"
                    for word, n in zip(
                        rng.choice(words, 900), rng.integers(0, 10_000, 900), strict=True
                    )
                )[:8192],
            )
        text_bytes = (texts.stats()["bytes"] - before) / 200 + 80
    stored = crowd.run(crowd.store_often, location, WRITERS, SECONDS)  # type: ignore[arg-type]
    single = sum(len(taken) for _, taken in stored) / SECONDS
    return Costs(rates[64], rates[1024], single, small_bytes, text_bytes, follow, 0.0)


def server_costs(server: Server) -> Costs:
    """Measure a server, with what a connection takes of its memory."""
    location = server.url(server.database())
    costs = measure(location)
    with expdb.open(location) as db:
        db.buffer("b").store(x=1)
        pids = [
            int(pid)
            for (pid,) in server.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'expdb%' OR state = "
                "'idle'"
            )
        ]  # type: ignore[call-overload]
        memory = statistics.median([_private(pid) for pid in pids] or [10 << 20])
    return replace(costs, connection_bytes=memory)


def _private(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return float(line.split()[1]) * 1024
    return float("nan")


def reckon(actors: int, kind: Actors, costs: Costs, server: bool) -> list[str]:
    """Return a line of the table.

    Loads as shares of what was measured, what breaks first, and what to do.
    """
    commits = actors * kind.steps / getattr(costs, kind.how)
    follow = actors * kind.steps / costs.follow
    disk = actors * kind.steps * (costs.text_bytes if kind.text else costs.small_bytes) * 86_400
    loads = {"writing": commits, "the learner's reading": follow}
    if server:
        loads["connections"] = actors / CONNECTIONS
    else:
        loads["processes on one host"] = actors / PROCESSES
    first = max(loads, key=lambda name: loads[name])
    return [
        f"{actors:,}", f"{commits:,.3f}", f"{follow:,.3f}", f"{disk / 1e9:,.0f} GB",
        "nothing" if loads[first] < 0.7 else first,
        str(math.ceil(max(commits, follow) / 0.7)) if server else "-",
    ]  # fmt: skip


def main() -> None:
    """Measure both databases and print the tables."""
    with tempfile.TemporaryDirectory(prefix="expdb-scale-", dir=Path.cwd()) as folder:
        costs = {"SQLite": measure(str(Path(folder, "scale.db")))}
        server = Server()
        try:
            costs["PostgreSQL"] = server_costs(server)
        finally:
            server.remove()
    print("| measured | " + " | ".join(costs) + " |\n|---|" + "---|" * len(costs))
    for name, text in (
        ("short", f"small steps a second, {WRITERS} writers, flushes of 64"),
        ("long", "the same, flushes of 1,024"), ("single", "the same, `store()`"),
        ("small_bytes", "bytes a small step takes on disk"),
        ("text_bytes", "bytes that 8 KB of words take"),
        ("follow", "steps a second that a learner takes into memory"),
        ("connection_bytes", "bytes of memory a connection takes of the server"),
    ):  # fmt: skip
        print(
            f"| {text} | "
            + " | ".join(f"{getattr(figures, name):,.0f}" for figures in costs.values())
            + " |"
        )
    for kind in KINDS:
        print(
            f"\n**{kind.name[0].upper()}{kind.name[1:]}**\n\n| actors | on | writing | reading | a "
            "day, if all is kept | breaks first | servers |\n|---|---|---|---|---|---|---|"
        )
        for actors in (10, 1_000, 100_000):
            for name, figures in costs.items():
                cells = reckon(actors, kind, figures, name == "PostgreSQL")
                print(f"| {cells[0]} | {name} | {' | '.join(cells[1:])} |")


if __name__ == "__main__":
    main()
