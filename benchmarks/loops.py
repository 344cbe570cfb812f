"""Time training loops that alternate between writing and sampling.

    python -m benchmarks.loops [--quick] [--only WORD] [--sqlite]    needs cpprb: the group `bench`

Each line compares one iteration of a loop with the same iteration on NumPy arrays, with cpprb, or
with the sum of its parts. Blocks of calls alternate between the sides. The output is the ratio of
the medians and the 99th percentile of an iteration. PostgreSQL lines start a temporary server, so
its programs must be installed.
"""

import argparse
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from tests.postgres_server import Server

Work = Callable[[], Any]
BATCH, CAPACITY, EPISODE = 256, 100_000, 200
OBS = np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32)
UNIT = expdb.NStep(1)
KEYS = ["obs", "action", "reward", "next_obs", "terminated"]


class Ring:
    """A minimal replay buffer of NumPy arrays."""

    def __init__(self, capacity: int, **fields: tuple[tuple[int, ...], Any]):
        self._arrays = {
            name: np.ones((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()
        }
        self._capacity, self._place = capacity, 0
        self.size, self._rng = capacity, np.random.default_rng(0)

    def add(self, **values: Any) -> None:
        """Add a step."""
        for name, value in values.items():
            self._arrays[name][self._place] = value
        self._place = (self._place + 1) % self._capacity

    def sample(self, size: int) -> dict[str, np.ndarray]:
        """Return random steps."""
        rows = self._rng.integers(0, self.size, size)
        return {name: array[rows] for name, array in self._arrays.items()}

    def sample_sequences(self, size: int, length: int) -> dict[str, np.ndarray]:
        """Return random runs of steps."""
        rows = self._rng.integers(0, self.size - length, size)[:, None] + np.arange(length)
        return {name: array[rows] for name, array in self._arrays.items()}


def small_ring() -> Ring:
    """Return a ring of CartPole-sized transitions."""
    return Ring(
        CAPACITY, obs=((4,), np.float32), next_obs=((4,), np.float32), action=((), np.int64),
        reward=((), np.float64), terminated=((), np.bool_),
    )  # fmt: skip


class Actor:
    """Plays one environment: episodes of 200 small steps."""

    def __init__(self, buffer: expdb.ReplayBuffer, fields: Callable[[int], Any], **limits: Any):
        self._buffer, self._fields, self._limits = buffer, fields, {"flush_steps": 10**6} | limits
        self._episode: Any = None
        self._steps = 0

    def append(self, count: int = 1) -> None:
        """Append steps, and begin another episode after the last step of one."""
        for _ in range(count):
            if self._episode is None:
                self._episode = self._buffer.episode("CartPole-v1", **self._limits)
            self._steps += 1
            is_last = self._steps % EPISODE == 0
            self._episode.append(**self._fields(self._steps), terminated=is_last)
            if is_last:
                self._episode.end()
                self._episode = None

    def flush(self) -> None:
        """Flush what was appended."""
        if self._episode is not None:
            self._episode.flush()

    def close(self) -> None:
        """End the episode."""
        if self._episode is not None:
            self._episode.end()
            self._episode = None


def small_step_fields(step: int) -> dict[str, Any]:
    """Return the fields of a CartPole-sized step."""
    return {"obs": OBS[step & 255], "action": step & 1, "reward": 1.0}


def fill(buffer: expdb.ReplayBuffer, steps: int) -> None:
    """Store whole episodes of small steps."""
    for _ in range(steps // EPISODE):
        with buffer.episode("CartPole-v1", flush_steps=1000) as episode:
            episode.extend(
                {"obs": OBS[np.arange(EPISODE) & 255], "action": np.arange(EPISODE) & 1,
                 "reward": np.ones(EPISODE), "terminated": np.arange(EPISODE) == EPISODE - 1}
            )  # fmt: skip


def measure(calls: int, sides: dict[str, Work], rounds: int = 5) -> dict[str, tuple[float, float]]:
    """Return median and 99th percentile of a call of each side, in blocks that alternate.

    The first block of each side warms up and does not count.
    """
    durations: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            gc.collect()
            for _ in range(calls):
                start = time.perf_counter()
                work()
                if number:
                    durations[name].append(time.perf_counter() - start)
    return {
        name: (statistics.median(times), float(np.percentile(times, 99)))
        for name, times in durations.items()
    }


class Report:
    """Print each result after its measurement."""

    def __init__(self, only: str):
        self._only = only

    def is_selected(self, work: str) -> bool:
        """Return whether a benchmark is selected."""
        return self._only in work

    def line(self, work: str, to: str, ratio: float, limit: float, p99: float = 0.0) -> None:
        """Print a ratio, its mark and the 99th percentile in seconds."""
        tail = f"  p99 {p99 * 1e3:.2f} ms" if p99 else ""
        print(f"{work:54} / {to:16} {ratio:6.2f} x  (<= {limit:g} x){tail}", flush=True)

    def time(self, work: str, seconds: float, limit: float) -> None:
        """Print a time in milliseconds and its limit."""
        print(f"{work:54}   {'':16} {seconds * 1e3:6.1f} ms (<= {limit:g} ms)", flush=True)


# -- the loops -------------------------------------------------------------------------------------


def dqn(report: Report, kind: str, db: expdb.ExperienceDB, calls: int) -> None:
    """Write some steps of one environment, and sample a batch."""
    import cpprb

    buffer, ring = db.buffer("dqn", capacity=CAPACITY), small_ring()
    fill(buffer, 20_000)
    shapes = {"obs": {"shape": 4}, "next_obs": {"shape": 4}, "action": {}, "reward": {}}
    other = cpprb.ReplayBuffer(CAPACITY, shapes | {"terminated": {}})
    other.add(**{name: np.ones((20_000, *([4] if "obs" in name else []))) for name in KEYS})

    def sample() -> None:
        buffer.sample(BATCH, unit=UNIT, fields=KEYS)

    def add(writer: Any) -> None:
        for k in range(4):
            values = {"obs": OBS[k], "next_obs": OBS[k + 1], "action": 1, "reward": 1.0}
            writer.add(**values, terminated=False)

    def numpy_loop() -> None:
        add(ring)
        ring.sample(BATCH)

    def cpprb_loop() -> None:
        add(other)
        other.sample(BATCH)

    def store(count: int) -> None:
        for k in range(count):
            buffer.store(task_id="stored", **small_step_fields(k))

    flushing, timed = (
        Actor(buffer, small_step_fields),
        Actor(buffer, small_step_fields, flush_seconds=0.05),
    )

    def append_flush() -> None:
        flushing.append(4)
        flushing.flush()

    def in_sequence(*works: Work) -> Work:
        return lambda: [work() for work in works]

    results = measure(
        calls,
        {
            "sample": sample,
            "ring": lambda: ring.sample(BATCH),
            "cpprb sample": lambda: other.sample(BATCH),
            "numpy": numpy_loop,
            "cpprb": cpprb_loop,
            "store": lambda: store(1),
            "store, sample": in_sequence(lambda: store(1), sample),
            "4 store": lambda: store(4),
            "4 store, sample": in_sequence(lambda: store(4), sample),
            "flush": append_flush,
            "flush, sample": in_sequence(append_flush, sample),
            "timed": in_sequence(lambda: timed.append(4), sample),
        },
    )
    flushing.close()
    timed.close()

    def ratio(whole: str, *others: str) -> float:
        return results[whole][0] / sum(results[other][0] for other in others)

    report.line(f"{kind}: sample(256, NStep(1))", "NumPy", ratio("sample", "ring"), 2)
    report.line(f"{kind}: sample(256, NStep(1))", "cpprb", ratio("sample", "cpprb sample"), 1)
    for work, parts, mark in (
        ("store, sample", ("store", "sample"), 1.2),
        ("4 store, sample", ("4 store", "sample"), 1.2),
        ("flush, sample", ("flush", "sample"), 1.2),
    ):
        name = work.replace("flush", "4 append, flush")
        report.line(
            f"{kind} DQN: {name}", "sum of the parts", ratio(work, *parts), mark, results[work][1]
        )
    report.line(
        f"{kind} DQN: 4 append, flush, sample", "cpprb", ratio("flush, sample", "cpprb"), 2.0,
        results["flush, sample"][1],
    )  # fmt: skip
    report.line(
        f"{kind} DQN: 4 append, sample; flush_seconds=0.05", "NumPy", ratio("timed", "numpy"), 1.5,
        results["timed"][1],
    )  # fmt: skip


def sac(report: Report, kind: str, db: expdb.ExperienceDB, calls: int) -> None:
    """Append a step of each of eight environments, flush now and then, and sample a batch."""
    buffer, ring = db.buffer("sac", capacity=CAPACITY), small_ring()
    fill(buffer, 20_000)
    names = [f"env{k}" for k in range(8)]

    def numpy_loop() -> None:
        for k in range(8):
            ring.add(obs=OBS[k], next_obs=OBS[k + 1], action=1, reward=1.0, terminated=False)
        ring.sample(BATCH)

    def loop(every: int) -> Work:
        writer, count = buffer.writer(flush_steps=10**6), 0

        def iteration() -> None:
            nonlocal count
            count += 1
            for k, name in enumerate(names):
                writer.append(agent_id=name, task_id="sac", **small_step_fields(count + k))
            if count % every == 0:
                writer.flush()
            buffer.sample(BATCH, unit=UNIT, fields=KEYS)

        return iteration

    results = measure(calls, {"numpy": numpy_loop} | {str(n): loop(n) for n in (1, 8, 64)})
    for every, mark in ((1, 8.0), (8, 2.0), (64, 2.0)):
        median, p99 = results[str(every)]
        work = f"{kind} SAC: 8 append, flush every {every}, sample"
        report.line(work, "NumPy", median / results["numpy"][0], mark, p99)


def ppo(report: Report, kind: str, db: expdb.ExperienceDB, rounds: int) -> None:
    """Write a rollout of 2,048 steps of 8 environments, draw ten epochs, and clear."""
    buffer, rng, steps, envs = db.buffer("ppo"), np.random.default_rng(0), 2048, 8
    rollout = {
        "obs": rng.random((steps, envs, 4), np.float32),
        "action": rng.integers(0, 2, (steps, envs)),
        "reward": rng.random((steps, envs)),
        "terminated": rng.random((steps, envs)) < 0.01,
        "log_prob": rng.random((steps, envs)),
        "value": rng.random((steps, envs)),
    }
    flat = {name: array.reshape(-1, *array.shape[2:]).copy() for name, array in rollout.items()}
    durations: dict[str, list[float]] = {}

    def timed(name: str, work: Work) -> None:
        start = time.perf_counter()
        work()
        durations.setdefault(name, []).append(time.perf_counter() - start)

    def numpy_epochs() -> None:
        for _ in range(10):
            order = rng.permutation(steps * envs)
            for start in range(0, steps * envs, BATCH):
                rows = order[start : start + BATCH]
                _ = {name: array[rows] for name, array in flat.items()}

    with buffer.writer(flush_steps=10**6, flush_bytes=2**30) as writer:

        def write() -> None:
            writer.extend(rollout, agents=[f"env{k}" for k in range(envs)])
            writer.flush()

        def epochs() -> None:
            for _ in buffer.epochs(BATCH, 10, fields=list(rollout)):
                pass

        for _ in range(rounds + 1):
            timed("write", write)
            timed("epochs", epochs)
            timed("numpy", numpy_epochs)
            timed("clear", buffer.clear)
    median = {name: statistics.median(times[1:]) for name, times in durations.items()}
    report.time(f"{kind} PPO: write 16,384 steps as columns", median["write"], 60)
    report.line(f"{kind} PPO: 640 minibatches", "NumPy", median["epochs"] / median["numpy"], 2)
    report.time(f"{kind} PPO: clear", median["clear"], 15)


def dreamer(report: Report, kind: str, db: expdb.ExperienceDB, calls: int) -> None:
    """Append a step, flush, and sample 16 sequences of 64 steps."""
    rng = np.random.default_rng(0)
    for name, shape, dtype, steps, mark in (
        ("17 floats", (17,), np.float32, 20_000, 4.0),
        ("64x64x3 frames", (64, 64, 3), np.uint8, 2_000, 1.3),
    ):
        values = (rng.random((256, *shape)) * 255).astype(dtype)
        buffer = db.buffer(f"dreamer {name}", capacity=CAPACITY)
        for _ in range(steps // EPISODE):
            with buffer.episode("dreamer") as episode:
                episode.extend(
                    {"obs": values[np.arange(EPISODE) & 255], "action": np.zeros((EPISODE, 6)),
                     "reward": np.ones(EPISODE)}
                )  # fmt: skip
        ring = Ring(steps, obs=(shape, dtype), action=((6,), np.float64), reward=((), np.float64))
        action = np.zeros(6)
        unit = expdb.Sequence(64)

        def fields(step: int, values: Any = values, action: Any = action) -> dict[str, Any]:
            return {"obs": values[step & 255], "action": action, "reward": 1.0}

        actor = Actor(buffer, fields)

        def loop(actor: Any = actor, buffer: Any = buffer, unit: Any = unit) -> None:
            actor.append()
            actor.flush()
            buffer.sample(16, unit=unit, fields=["obs", "action", "reward", "is_first", "mask"])

        def numpy_loop(ring: Any = ring, values: Any = values, action: Any = action) -> None:
            ring.add(obs=values[0], action=action, reward=1.0)
            ring.sample_sequences(16, 64)

        results = measure(calls, {"ours": loop, "numpy": numpy_loop})
        actor.close()
        ratio = results["ours"][0] / results["numpy"][0]
        report.line(f"{kind} Dreamer: {name}", "NumPy", ratio, mark, results["ours"][1])


def updates(report: Report, kind: str, db: expdb.ExperienceDB, calls: int) -> None:
    """Append four steps, flush, and sample 20 batches."""
    buffer, ring = db.buffer("updates", capacity=CAPACITY), small_ring()
    fill(buffer, 20_000)
    actor = Actor(buffer, small_step_fields)

    def loop() -> None:
        actor.append(4)
        actor.flush()
        for _ in range(20):
            buffer.sample(BATCH, unit=UNIT, fields=KEYS)

    def numpy_loop() -> None:
        for k in range(4):
            ring.add(obs=OBS[k], next_obs=OBS[k + 1], action=1, reward=1.0, terminated=False)
        for _ in range(20):
            ring.sample(BATCH)

    results = measure(max(calls // 5, 20), {"ours": loop, "numpy": numpy_loop})
    actor.close()
    ratio = results["ours"][0] / results["numpy"][0]
    report.line(f"{kind}: one write, 20 samples", "NumPy", ratio, 1.5, results["ours"][1])


def epoch(report: Report, kind: str, db: expdb.ExperienceDB, steps: int) -> None:
    """Draw every transition once."""
    buffer, rng = db.buffer("offline"), np.random.default_rng(0)
    fill(buffer, steps)
    arrays = {name: np.ones((steps, *([4] if "obs" in name else []))) for name in KEYS}

    def ours() -> None:
        for _ in buffer.epochs(BATCH, unit=UNIT, fields=KEYS, seed=int(rng.integers(1 << 30))):
            pass

    def numpy_epoch() -> None:
        order = rng.permutation(steps)
        for start in range(0, steps, BATCH):
            rows = order[start : start + BATCH]
            _ = {name: array[rows] for name, array in arrays.items()}

    results = measure(1, {"ours": ours, "numpy": numpy_epoch})
    report.line(
        f"{kind}: epoch over {steps:,} steps", "NumPy", results["ours"][0] / results["numpy"][0], 2
    )


def commit(location: str, count: int, asked: Any, done: Any) -> None:
    """Commit `count` steps per request, in a separate process."""
    with expdb.open(location) as db:
        buffer = db.buffer("others")
        columns = {"obs": OBS[np.arange(count) & 255], "action": np.ones(count, np.int64)}
        while asked.recv():
            buffer.store_batch(columns | {"task_id": "other", "reward": np.ones(count)})
            done.send(True)


def others(report: Report, kind: str, location: str, calls: int) -> None:
    """Sample after a commit of another process."""
    spawn = multiprocessing.get_context("spawn")
    with expdb.open(location, max_lag_seconds=0.0) as db:
        buffer = db.buffer("others", capacity=CAPACITY)
        fill(buffer, 20_000)

        def sample() -> None:
            buffer.sample(BATCH, unit=UNIT, fields=KEYS)

        for count, mark in ((1, 3.0), (16, 4.0), (256, 10.0)):
            asked, asks = spawn.Pipe(False)
            answers, done = spawn.Pipe(False)
            process = spawn.Process(target=commit, args=(location, count, asked, done))
            process.start()
            after: list[float] = []
            warm: list[float] = []
            for k in range(calls + 20):
                asks.send(True)
                answers.recv()
                for times in (after, warm):
                    start = time.perf_counter()
                    sample()
                    if k >= 20:
                        times.append(time.perf_counter() - start)
            asks.send(False)
            process.join()
            ratio = statistics.median(after) / statistics.median(warm)
            work = f"{kind}: sample after {count} steps of another process"
            report.line(work, "warm sample", ratio, mark, float(np.percentile(after, 99)))


def open_front(report: Report, kind: str, location: str, steps: int) -> None:
    """Sample after a write, with and without an episode that stays open at the front."""
    with expdb.open(location) as db:
        buffers = {name: db.buffer(name, capacity=2_000) for name in ("closed front", "open front")}
        held_open = buffers["open front"].episode("open")
        held_open.extend({"x": np.zeros((5, 4), np.float32)})
        held_open.flush()
        columns = {"x": np.zeros((100, 4), np.float32)}
        for buffer in buffers.values():
            buffer.eviction = expdb.Eviction(whole_episodes=True)
            for k in range(steps // 100):
                with buffer.episode("short") as episode:
                    episode.extend(columns)
                if k % 10 == 0:
                    buffer.evict()
                    buffer.sample(BATCH, unit=UNIT)
        times: dict[str, list[float]] = {name: [] for name in buffers}
        for _ in range(600):
            for name, buffer in buffers.items():
                buffer.store(x=np.zeros(4, np.float32), task_id="short")
                start = time.perf_counter()
                buffer.sample(BATCH, unit=UNIT)
                times[name].append(time.perf_counter() - start)
        medians = [statistics.median(times[name][100:]) for name in ("open front", "closed front")]
        sizes = [buffers[name]._sampling.resident.nbytes for name in ("open front", "closed front")]
        work = f"{kind}: {steps:,} steps after an open episode"
        report.line(f"{work}, sample", "closed", medians[0] / medians[1], 1.1)
        report.line(f"{work}, memory", "closed", sizes[0] / sizes[1], 1.1)
        held_open.end()


def locations(folder: Path, sqlite_alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the databases to measure: name and location."""
    yield "SQLite", str(folder / "loops.db")
    if not sqlite_alone:
        server = Server()
        server.start()
        try:
            yield "PostgreSQL", server.url(server.database())
        finally:
            server.stop()
            server.remove()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls and steps")
    parser.add_argument("--only", default="", metavar="WORD", help="dqn, sac, ppo, dreamer, ...")
    parser.add_argument("--sqlite", action="store_true", help="leave out PostgreSQL")
    arguments = parser.parse_args()
    report, calls = Report(arguments.only), 100 if arguments.quick else 400
    loops: list[tuple[str, Callable[..., None], int]] = [
        ("dqn", dqn, calls),
        ("sac", sac, calls),
        ("ppo", ppo, 3 if arguments.quick else 9),
        ("dreamer", dreamer, calls),
        ("updates", updates, calls),
        ("epoch", epoch, 100_000 if arguments.quick else 1_000_000),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind, location in locations(Path(folder), arguments.sqlite):
            for name, loop, amount in loops:
                if report.is_selected(name):
                    with expdb.open(location) as db:
                        loop(report, kind, db, amount)
            if report.is_selected("others"):
                others(report, kind, location, calls)
            if report.is_selected("front"):
                open_front(report, kind, location, 50_000 if arguments.quick else 1_000_000)


if __name__ == "__main__":
    main()
