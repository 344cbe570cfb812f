"""Compare writes of threads and coroutines with a loop of `store`, and the size of stored turns.

    python -m benchmarks.concurrent_writes [--steps 5120] [--rounds 5]

Each step holds 8 KB. Rounds alternate between the ways to write. Each line is the ratio of the
median rates, and the 99th percentile of the time of one `store_async`. PostgreSQL is behind a proxy
that delays each message by 1 ms.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import expdb
from tests.postgres_server import Server
from tests.proxy import Proxy

CALLERS = 256
OBS = np.zeros(2000, np.float32)


def rate(write: Callable[[int], None], steps: int) -> float:
    """Return the number of steps per second."""
    start = time.perf_counter()
    write(steps)
    return steps / (time.perf_counter() - start)


class Ways:
    """The ways to write steps into a buffer."""

    def __init__(self, buffer: expdb.ReplayBuffer):
        self._buffer = buffer
        self.seconds: list[float] = []  # of each `store_async`

    def loop(self, steps: int) -> None:
        """Store one step at a time."""
        for _ in range(steps):
            self._buffer.store(task_id="a", episode_id="loop", obs=OBS)

    def batches(self, steps: int) -> None:
        """Store batches of as many steps as there are coroutines."""
        rows = [{"task_id": "a", "episode_id": f"b{k}", "obs": OBS} for k in range(CALLERS)]
        for _ in range(steps // CALLERS):
            self._buffer.store_batch(rows)

    def threads(self, steps: int) -> None:
        """Store steps from 64 threads."""

        def run(number: int) -> None:
            for _ in range(steps // 64):
                self._buffer.store(task_id="a", episode_id=f"t{number}", obs=OBS)

        threads = [threading.Thread(target=run, args=(k,)) for k in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def coroutines(self, steps: int) -> None:
        """Store steps from coroutines."""

        async def run(number: int) -> None:
            for _ in range(steps // CALLERS):
                start = time.perf_counter()
                await self._buffer.store_async(task_id="a", episode_id=f"c{number}", obs=OBS)
                self.seconds.append(time.perf_counter() - start)

        async def main() -> None:
            await asyncio.gather(*(run(k) for k in range(CALLERS)))

        asyncio.run(main())


def compare(name: str, db: expdb.ExperienceDB, steps: int, rounds: int, share: float) -> None:
    """Print the ratios of the rates; the loop writes only a share of the steps."""
    ways = Ways(db.buffer(name))
    writes = {
        "loop": (ways.loop, int(steps * share)),
        "batches": (ways.batches, steps),
        "64 threads": (ways.threads, steps),
        "256 coroutines": (ways.coroutines, steps),
    }
    rates: dict[str, list[float]] = {way: [] for way in writes}
    for round_ in range(rounds + 1):
        for way, (write, count) in writes.items():
            measured = rate(write, count)
            if round_:  # the first round warms up
                rates[way].append(measured)
        if not round_:
            ways.seconds.clear()
    medians = {way: statistics.median(measured) for way, measured in rates.items()}
    for way in ("64 threads", "256 coroutines"):
        print(
            f"{name}: {way} / loop {medians[way] / medians['loop']:.1f} x, "
            f"/ store_batch {medians[way] / medians['batches']:.2f} x"
        )
    print(f"{name}: p99 of store_async {1e3 * np.percentile(ways.seconds, 99):.0f} ms")


def compare_sizes(folder: str, episodes: int = 40) -> None:
    """Print the stored bytes of rollouts with whole prompts, divided by their distinct bytes."""
    rng = np.random.default_rng(0)
    for kind in ("arrays", "lists"):
        distinct = 0
        with expdb.open(Path(folder) / f"{kind}.db") as db:
            buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
            for _ in range(episodes):
                prompt = rng.integers(0, 150_000, 500).astype(np.int32)
                distinct += prompt.nbytes
                with buffer.episode("task") as episode:
                    for _ in range(50):
                        output = rng.integers(0, 150_000, 100).astype(np.int32)
                        logprobs = -rng.exponential(1, 100).astype(np.float32)
                        feedback = rng.integers(0, 150_000, 100).astype(np.int32)
                        turn = {"prompt_ids": prompt, "output_ids": output, "logprobs": logprobs}
                        if kind == "lists":
                            turn = {name: value.tolist() for name, value in turn.items()}
                        episode.append(**turn)
                        prompt = np.concatenate([prompt, output, feedback])
                        distinct += output.nbytes + logprobs.nbytes + feedback.nbytes
            print(f"{kind}: stored / distinct bytes {buffer.stats()['bytes'] / distinct:.2f} x")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5120)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for durability in ("normal", "full"):
            with expdb.open(Path(folder) / f"{durability}.db", durability=durability) as db:
                compare(f"SQLite, {durability}", db, arguments.steps, arguments.rounds, 0.2)
        compare_sizes(folder)
    server = Server()
    try:
        url = server.url(server.database())
        with (
            Proxy(f"{server.folder}/.s.PGSQL.5432", delay=0.001) as proxy,
            expdb.open(proxy.url(url)) as db,
        ):
            compare("PostgreSQL, 1 ms", db, arguments.steps, arguments.rounds, 0.05)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    main()
