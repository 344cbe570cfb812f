"""Compare defaults of `flush_seconds`.

    python -m benchmarks.flushing [--seconds 5 1 0.5 0.1] [--duration 15]

Run three loads with each value: 32 processes that append 100 steps per second each; 250 threads
that append one turn of 2 KB per second each, on SQLite and on PostgreSQL; 20 rollouts of 50 turns
at one turn per second, each turn with its whole message list. For the rollouts, the bytes written
are those that the process passes to `write`, and the sizes are those of the pages in use.
"""

import argparse
import multiprocessing
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks.__main__ import live_bytes
from benchmarks.crowd import WORDS, percentile
from tests.postgres_server import Server

FORK = multiprocessing.get_context("fork")
OBS = np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32)
TURNS, ROLLOUTS = 50, 20


def act(path: Path, seconds: float, duration: float, barrier: Any, results: Any) -> None:
    """Append 100 steps per second; send the times of `append` and the CPU time."""
    with expdb.open(path) as db:
        buffer, append_seconds = db.buffer("train"), list[float]()
        with buffer.episode("task", flush_seconds=seconds) as episode:
            episode.append(obs=OBS[0], action=0, reward=1.0)
            episode.flush()
            barrier.wait()
            begin, before = time.perf_counter(), time.process_time()
            for t in range(int(duration * 100)):
                time.sleep(max(begin + t / 100 - time.perf_counter(), 0))
                start = time.perf_counter()
                episode.append(obs=OBS[t & 255], action=t & 1, reward=1.0)
                append_seconds.append(time.perf_counter() - start)
        results.put((append_seconds, time.process_time() - before))


def measure_processes(folder: Path, seconds: float, duration: float) -> str:
    """Measure 32 processes that append 100 steps per second each; return the figures as text."""
    path = folder / f"processes{seconds}.db"
    with expdb.open(path) as db:
        db.buffer("train")
    barrier, results = FORK.Barrier(32), FORK.Queue()
    running = [
        FORK.Process(target=act, args=(path, seconds, duration, barrier, results))
        for _ in range(32)
    ]
    for process in running:
        process.start()
    outcomes = [results.get() for _ in running]
    for process in running:
        process.join()
    append_seconds = [value for times, _ in outcomes for value in times]
    cpu = sum(cpu for _, cpu in outcomes) / len(append_seconds)
    return (
        f"CPU time of a step {1e6 * cpu:.0f} us, p99 of append "
        f"{1e3 * percentile(append_seconds, 0.99):.1f} ms"
    )


def measure_writers(location: Any, seconds: float, duration: float) -> str:
    """Measure 250 threads that append one turn of 2 KB per second each; return the figures."""
    append_seconds, before = list[float](), 0.0
    text = " ".join(WORDS * 20)[:2048]
    with expdb.open(location) as db:
        buffer = db.buffer(f"writers{seconds}")
        begin = time.perf_counter() + 1

        def write(number: int) -> None:
            with buffer.episode("task", flush_seconds=seconds) as episode:
                for t in range(int(duration)):
                    time.sleep(max(begin + t + number / 250 - time.perf_counter(), 0))
                    start = time.perf_counter()
                    episode.append(text=text, reward=1.0)
                    append_seconds.append(time.perf_counter() - start)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(250)]
        before = time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cpu = (time.process_time() - before) / len(append_seconds)
    return (
        f"CPU time of a turn {1e6 * cpu:.0f} us, p99 of append "
        f"{1e3 * percentile(append_seconds, 0.99):.1f} ms"
    )


def build_turns(rng: np.random.Generator) -> list[list[dict[str, str]]]:
    """Return the message list of each turn of one rollout, about 0.5 KB longer each turn."""

    def words(count: int) -> str:
        return " ".join(f"{WORDS[k % 22]}{k}" for k in rng.integers(0, 20_000, count))

    messages, whole = [{"role": "system", "content": words(500)}], []
    for _ in range(TURNS):
        messages = [
            *messages,
            {"role": "assistant", "content": words(30)},
            {"role": "tool", "content": words(40)},
        ]
        whole.append(messages)
    return whole


def measure_rollouts(folder: Path, seconds: float) -> str:
    """Measure the bytes that rollouts write and occupy at one turn per second."""
    sizes = {}
    path = folder / f"rollouts{seconds}.db"
    rng = np.random.default_rng(0)
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        lists = [build_turns(rng) for _ in range(ROLLOUTS)]
        empty, written = live_bytes(path), bytes_written()
        episodes = [buffer.episode(f"task {k}", flush_seconds=seconds) for k in range(ROLLOUTS)]
        begin = time.perf_counter()
        for t in range(TURNS):
            for k, episode in enumerate(episodes):
                at = begin + t + k / ROLLOUTS
                time.sleep(max(at - time.perf_counter(), 0))
                episode.append(messages=lists[k][t], reward=1.0)
        sizes["open"] = live_bytes(path) - empty
        for k, episode in enumerate(episodes):
            if k % 2:
                episode.abort()
            else:
                episode.end()
        written = bytes_written() - written
        sizes["ended"] = live_bytes(path) - empty
    return f"{written / 1e6:.2f} MB written, " + ", ".join(
        f"{size / 1e6:.2f} MB {state}" for state, size in sizes.items()
    )


def bytes_written() -> int:
    """Return how many bytes this process has passed to `write`."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no line 'wchar'")


def main() -> None:
    """Print one line for each load and value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="+", default=[5.0, 1.0, 0.5, 0.1])
    parser.add_argument("--duration", type=float, default=15.0)
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    server = Server()
    try:
        url = server.url(server.database())
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for seconds in arguments.seconds:
                loads = {
                    "32 processes": lambda s: measure_processes(folder, s, arguments.duration),
                    "250 writers, SQLite": lambda s: measure_writers(
                        folder / f"w{s}.db", s, arguments.duration
                    ),
                    "250 writers, PostgreSQL": lambda s: measure_writers(
                        url, s, arguments.duration
                    ),
                    "rollouts": lambda s: measure_rollouts(folder, s),
                }
                for load, describe in loads.items():
                    print(f"flush_seconds={seconds:g}, {load}: {describe(seconds)}", flush=True)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    main()
