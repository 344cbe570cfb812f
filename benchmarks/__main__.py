"""Run the benchmarks and print the table of docs/explanation/performance.md.

`python3 dev.py bench [--json FILE] [--only WORD] [--quick]`.

Every figure is a ratio of medians, both sides measured alternately in this run after a warm-up
round, or a size.
"""

import argparse
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks import atari, baselines, consumption, crowd, learning, tokens, training
from benchmarks.table import Row, alternate, row
from expdb import QueryBuilder

OBS = np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32)


def live_bytes(path: Path) -> int:
    """Return the bytes of the pages in use."""
    connection = sqlite3.connect(path)
    sizes = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    ]
    connection.close()
    return int((sizes[0] - sizes[1]) * sizes[2])


def play(
    buffer: expdb.ReplayBuffer, episodes: int, steps: int, task: Callable[[int], str] = str
) -> None:
    """Write episodes of CartPole-sized steps."""
    for number in range(episodes):
        with buffer.episode(task(number), task_name=f"name_{number % 50}") as episode:
            for t in range(steps):
                episode.append(
                    obs=OBS[t & 255], action=t & 1, reward=1.0, terminated=t == steps - 1
                )


# -- the table -------------------------------------------------------------------------------------


def append(folder: Path, quick: bool) -> Iterator[Row]:
    """episode.append at capacity, and one step with store()."""
    steps = 5_000 if quick else 25_000

    def ours(_: int) -> float:
        baselines.remove(folder / "append.db")
        with expdb.open(folder / "append.db") as db:
            buffer = db.buffer("b", capacity=100_000)
            play(buffer, 501, 200)
            start = time.perf_counter()
            with buffer.episode("t") as episode:
                for t in range(steps):
                    episode.append(
                        obs=OBS[t & 255],
                        action=t & 1,
                        reward=1.0,
                        terminated=False,
                        truncated=False,
                    )
            return (time.perf_counter() - start) / steps

    sides: dict[str, Callable[[int], float]] = {
        "raw": lambda _: baselines.append(folder / "raw.db", steps),
        "expdb": ours,
    }
    try:
        from cpprb import ReplayBuffer as Volatile
    except ImportError:
        pass_note = "cpprb is not installed"
    else:
        pass_note = ""
        shapes = {
            "obs": {"shape": 4},
            "act": {"dtype": np.int64},
            "rew": {},
            "next_obs": {"shape": 4},
            "done": {},
        }

        def volatile(_: int) -> float:
            buffer = Volatile(100_000, shapes)
            start = time.perf_counter()
            for t in range(5_000):
                buffer.add(
                    obs=OBS[t & 255], act=t & 1, rew=1.0, next_obs=OBS[(t + 1) & 255], done=0.0
                )
            return (time.perf_counter() - start) / 5_000

        sides["cpprb"] = volatile
    medians = alternate(3 if quick else 7, **sides)
    yield row(
        "`episode.append`, capacity 100,000 / raw inserts",
        medians["expdb"] / medians["raw"],
        2.0,
        note=pass_note,
    )
    if "cpprb" in medians:
        yield row(
            "`episode.append` / cpprb `add` (in memory)", medians["expdb"] / medians["cpprb"], 1.0
        )


def store(folder: Path, quick: bool) -> Iterator[Row]:
    """One step a call, durable when it returns."""
    calls = 300 if quick else 1_000

    def ours(fields: dict[str, Any]) -> Callable[[int], float]:
        def side(_: int) -> float:
            baselines.remove(folder / "store.db")
            with expdb.open(folder / "store.db") as db:
                buffer = db.buffer("b", capacity=100_000)
                start = time.perf_counter()
                for _ in range(calls):
                    buffer.store(task_id="t", reward=0.5, **fields)
                return (time.perf_counter() - start) / calls

        return side

    agent = {
        "state": {"content": "x" * 300},
        "action": {"tool": "search", "arguments": '{"q": "y"}'},
    }
    medians = alternate(
        3 if quick else 9,
        raw=lambda _: baselines.store(folder / "raw.db", calls),
        arrays=ours({"obs": OBS[0], "action": 1}),
        agent=ours(agent),
    )
    yield row(
        "`store()` of a CartPole step / raw transaction", medians["arrays"] / medians["raw"], 2.5
    )
    yield row(
        "`store()` of an agent's step, 400 bytes of JSON / raw transaction",
        medians["agent"] / medians["raw"],
        2.5,
    )


def size(folder: Path, quick: bool) -> Iterator[Row]:
    """Bytes on disk."""
    path = folder / "size.db"
    episodes = 200 if quick else 1_000
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        for number in range(episodes):
            with buffer.episode(
                f"CartPole-v1/{number}", task_name="CartPole-v1", agent_id="dqn"
            ) as episode:
                for t in range(200):
                    episode.append(obs=OBS[t], action=t & 1, reward=1.0, terminated=t == 199)
                episode.end(obs=OBS[200])
    yield row(
        "file bytes a CartPole step, all included", path.stat().st_size / (200 * episodes), 100, "B"
    )
    yield from conversations(folder, quick)


def conversations(folder: Path, quick: bool) -> Iterator[Row]:
    """Bytes of conversations whose every turn stores all messages so far."""
    generator = random.Random(0)
    words = [
        "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9)))
        for _ in range(3000)
    ]

    def message(length: int) -> dict[str, Any]:
        return {
            "role": generator.choice(["user", "assistant", "tool"]),
            "content": " ".join(generator.choices(words, k=length)),
        }

    def measure(way: str, episodes: int, first: int) -> float:
        path = folder / f"{way}-{first}.db"
        unique = 0
        with expdb.open(path) as db:
            buffer = db.buffer("b")
            for number in range(episodes):
                messages = [message(60) for _ in range(first)]
                rows = []
                for _ in range(50):
                    messages.append(message(60))
                    rows.append(
                        {
                            "task_id": f"t{number}",
                            "episode_id": f"e{number}",
                            "messages": list(messages),
                        }
                    )
                    if way == "singly":
                        buffer.store(**rows[-1])
                if way == "at once":
                    buffer.store_batch(rows)
                buffer.end_episode(f"e{number}")
                distinct = {
                    json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
                    for entry in messages
                }
                unique += sum(len(text.encode()) for text in distinct)
        return live_bytes(path) / unique

    few = 20 if quick else 200
    yield row(
        "50 turns of all messages so far, at once / unique bytes", measure("at once", few, 1), 1.0
    )
    yield row("the same, one `store()` a turn, then `end_episode`", measure("singly", few, 1), 1.0)
    yield row(
        "the same with 500 KB of messages a row", measure("singly", 2 if quick else 5, 1_200), 0.9
    )


def sample(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample 256 steps on disk, nothing cached by expdb."""
    path = folder / "million.db"
    episodes = 500 if quick else 5_000
    with expdb.open(path) as db:
        play(db.buffer("b"), episodes, 200)
    from expdb.storage.reading import fetch

    # A handle each a call has no cached page, as a raw connection made for each call has none.
    def ours(seed: int) -> float:
        with expdb.open(path) as db:
            buffer = db.buffer("b")
            start = time.perf_counter()
            buffer.sample(256, seed=seed)
            return time.perf_counter() - start

    def keys(seed: int) -> list[int]:
        with expdb.open(path) as db:
            buffer = db.buffer("b")
            positions = buffer.sample(256, seed=seed)["position"]
            with db._engine.reading() as session:
                segments = fetch.locate(buffer._store, session, positions)
            return np.unique(segments.chunk[segments.find(positions)]).tolist()

    def raw(seed: int) -> float:
        wanted = keys(seed)
        connection = sqlite3.connect(path, isolation_level=None)
        seconds = baselines.fetch(connection, wanted)
        connection.close()
        return seconds

    medians = alternate(
        20 if quick else 60,
        raw=raw,
        expdb=ours,
    )
    yield row(
        f"`sample(256)` of {episodes * 200:,} steps, new connections / raw read of the same chunks",
        medians["expdb"] / medians["raw"],
        2.5,
    )


WRITER = """
import sys, time, numpy as np, expdb
with expdb.open(sys.argv[1]) as db:
    buffer, n = db.buffer("b"), 0
    print("ready", flush=True)
    while True:
        with buffer.episode(f"new_{n}", task_name="new") as episode:
            for t in range(50):
                obs = np.zeros(4, np.float32)
                episode.append(obs=obs, action=1, reward=1.0, terminated=t == 49)
        n += 1
        time.sleep(0.02)
"""


def tasks(folder: Path, quick: bool) -> Iterator[Row]:
    """sample_tasks and indexed queries, at one and at ten times the rows."""
    paths = {}
    for episodes in (200, 2_000) if quick else (2_000, 20_000):
        paths[episodes] = folder / f"tasks-{episodes}.db"
        with expdb.open(paths[episodes]) as db:
            buffer = db.buffer("b")
            for number in range(episodes):
                rewards = np.random.default_rng(number).random(50)
                with buffer.episode(f"task_{number}", task_name=f"name_{number % 50}") as episode:
                    for t in range(50):
                        episode.append(
                            obs=OBS[t], action=t & 1, reward=float(rewards[t]), terminated=t == 49
                        )
    small, large = paths.values()
    appending = subprocess.Popen([sys.executable, "-c", WRITER, str(large)], stdout=subprocess.PIPE)
    try:
        assert appending.stdout is not None
        appending.stdout.readline()
        queries: dict[str, Callable[[int], QueryBuilder]] = {
            "by name": lambda k: QueryBuilder().eq("task_name", f"name_{k % 50}"),
            "by reward": lambda k: QueryBuilder().gte("reward", 0.5 + 0.001 * k),
            "by both": lambda k: (
                QueryBuilder()
                .in_("task_name", [f"name_{k % 50}", f"name_{(k + 9) % 50}"])
                .and_()
                .gte("reward", 0.9 - 0.001 * k)
            ),
        }
        with expdb.open(large) as db:
            buffer = db.buffer("b")
            for name, query in queries.items():

                def side(number: int, query: Callable[[int], QueryBuilder] = query) -> float:
                    start = time.perf_counter()
                    assert len(buffer.sample_tasks(32 if not quick else 8, query(number))) in (
                        8,
                        32,
                    )
                    return time.perf_counter() - start

                milliseconds = alternate(20 if quick else 50, ours=side)["ours"] * 1e3
                yield row(
                    f"`sample_tasks(32, query)` {name}, a new query each, another process "
                    "appending",
                    milliseconds,
                    12,
                    "ms",
                )
    finally:
        appending.kill()
        appending.wait()
    with expdb.open(small) as small_db, expdb.open(large) as large_db:
        query = QueryBuilder().eq("task_id", "task_77")
        for method in ("count", "tasks"):

            def timed(db: expdb.ExperienceDB, method: str = method) -> Callable[[int], float]:
                call = getattr(db.buffer("b"), method)

                def side(_: int) -> float:
                    start = time.perf_counter()
                    call(query)
                    return time.perf_counter() - start

                return side

            medians = alternate(60, small=timed(small_db), large=timed(large_db))
            yield row(
                f"`{method}` by task_id, ten times the rows / one time, the same matches",
                medians["large"] / medians["small"],
                1.5,
            )


def servers(folder: Path, quick: bool) -> Iterator[Row]:
    """Write to PostgreSQL from many processes."""
    from benchmarks.servers import Server, sqlalchemy_inserts, writers

    server, flushes = Server(), 40 if quick else 150
    try:
        url = server.url(server.database())
        steps = 8 * 64 * flushes

        def ours(_: int) -> float:
            outcome = writers(server, 8, 64, flushes)
            if outcome["deadlocks"] or outcome["problems"]:
                raise RuntimeError(f"8 writers: {outcome}")
            return outcome["seconds"] / steps

        medians = alternate(
            1 if quick else 3, ours=ours, base=lambda _: sqlalchemy_inserts(url, steps)
        )
        yield row(
            "PostgreSQL, 8 writers, flushes of 64 / SQLAlchemy inserting the narrow rows alone",
            medians["ours"] / medians["base"],
            1 / 1.3,
        )
        calls = 20 if quick else 100
        rates = [writers(server, 32, 0, calls, 0.001) for _ in range(1 if quick else 3)]
        if any(
            outcome["errors"] or outcome["deadlocks"] or outcome["problems"] for outcome in rates
        ):
            raise RuntimeError(f"32 writers: {rates}")
        seconds = statistics.median(outcome["seconds"] for outcome in rates)
        yield row(
            "PostgreSQL, 32 writers of single steps, 1 ms each way: time for 300 commits",
            300 * seconds / (32 * calls),
            1.0,
            "s",
        )
    finally:
        server.remove()


def aworld(folder: Path, quick: bool) -> Iterator[Row]:
    """Run AWorld's example of four processes.

    The baseline is measured where it still ends, and grows with the rows.
    """
    from benchmarks.shared_memory import ours, theirs

    rows, fewer = (2_000, 400) if quick else (10_000, 4_000)
    medians = alternate(
        1 if quick else 3, ours=lambda _: ours(rows), theirs=lambda _: theirs(fewer)
    )
    # Each row of the baseline rewrites all rows of its task, so that its time a row is proportional
    # to their number.
    grown = medians["theirs"] * rows / fewer
    yield row(
        f"AWorld's example, {rows:,} rows / pickled lists in shared memory ({fewer:,} rows, in "
        "proportion)",
        medians["ours"] / grown,
        0.01,
    )
    yield row("the same, a row", medians["ours"] * 1e3, 0.23, "ms")


def imports(folder: Path, quick: bool) -> Iterator[Row]:
    """Import expdb; __pycache__ is written first, as pip does."""
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    code = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"

    def timed(what: str) -> Callable[[int], float]:
        return lambda _: float(
            subprocess.run(
                [sys.executable, "-c", code.format(what)],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )

    medians = alternate(
        5 if quick else 21, base=timed("sqlalchemy, numpy, pyarrow"), ours=timed("expdb")
    )
    yield row(
        "`import expdb` / importing sqlalchemy, numpy, pyarrow",
        medians["ours"] / medians["base"],
        1.3,
    )


PARTS: dict[str, Callable[[Path, bool], Iterator[Row]]] = {
    "append": append, "store": store, "size": size, "sample": sample, "tasks": tasks,
    "imports": imports, "servers": servers, "aworld": aworld,
    "memory": learning.memory, "queries": learning.queries, "server": learning.server,
    "frames": learning.frames, "filling": learning.filling, "atari": atari.frames,
    "training": training.training, "loading": training.loading, "writers": crowd.writers,
    "trajectories": crowd.trajectories, "large": crowd.large,
    "steady": crowd.steady, "leases": consumption.leases, "waiting": consumption.waiting,
    "tokens": tokens.tokens,
}  # fmt: skip


def machine() -> str:
    """Name the machine and the libraries."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python "
        f"{platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, NumPy {np.__version__}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this part")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds: to try the benchmarks out"
    )
    arguments = parser.parse_args()
    rows: list[Row] = []
    print(machine(), file=sys.stderr)
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="expdb-bench-", dir=Path.cwd()) as folder:
            for result in PARTS[name](Path(folder), arguments.quick):
                rows.append(result)
                print(
                    f"{result['work']}: {result['figure']:.3g} {result['unit']} (mark "
                    f"{result['mark']})",
                    file=sys.stderr,
                    flush=True,
                )
    print("| work | measured | mark |\n|---|---|---|")
    for line in rows:
        print(
            f"| {line['work']} | {line['figure']:.3g} "
            f"{line['unit']}{'' if line['met'] else ' (missed)'} | <= {line['mark']:.3g} "
            f"{line['unit']} |"
        )
    print(f"\n{machine()}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
