"""Response times of the pages, and how much open pages delay a writer.

`python -m benchmarks.pages [LOCATION] [--episodes N] [--seconds S]` writes rollouts of 50 steps
into a new database (by default 20,000, which takes several minutes), requests random pages from
`expdb serve`, and then measures the flushes of a writer of 1,000 steps per second with and without
five open pages, in turns of ten seconds. Pages are requested as a browser does, but not drawn.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np

import expdb

STEPS, TASKS, GROUP = 50, 200, 8
PAGES_AT_ONCE = 50
TURN = 10.0  # seconds
OPEN_PAGES = ("", "/episodes", "/ledger", "/e/e0", "/episodes?q=reward+%3E+0")


def fill(location: str, episodes: int) -> None:
    """Write groups of rollouts with messages and tokens, and lease some of them."""
    rng = np.random.default_rng(0)
    words = ("the", "agent", "reads", "a", "file", "runs", "tests", "and", "fixes", "an", "error")
    with expdb.open(location) as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        for number in range(episodes):
            group = number // GROUP
            skill = group % TASKS / TASKS
            with buffer.episode(
                f"task-{group % TASKS:03d}", episode_id=f"e{number}", group_id=f"g{group}",
                policy_version=number // 1000,
            ) as episode:  # fmt: skip
                for step in range(STEPS):
                    text = " ".join(rng.choice(words, 12))
                    is_last = step == STEPS - 1
                    episode.append(
                        messages=[{"role": "assistant", "content": text}],
                        output_ids=rng.integers(0, 1000, 20).astype(np.int32),
                        logprobs=-rng.random(20).astype(np.float32),
                        reward=float(rng.random() < skill) if is_last else 0.0,
                        terminated=is_last,
                    )
        consumer = buffer.consumer("learner", seed=0)
        for step in range(50):
            consumer.lease(16, unit=expdb.Group(GROUP)).acknowledge(step)


@contextmanager
def serving(location: str) -> Iterator[tuple[int, int]]:
    """Serve a database, and yield the port and the process id."""
    command = [sys.executable, "-m", "expdb", "serve", location, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            yield int(url.rstrip("/").rpartition(":")[2]), server.pid
        finally:
            server.terminate()


def get(port: int, path: str) -> float:
    """Request a page, and return the seconds that it took."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"accept": "text/html"})
    response = connection.getresponse()
    response.read()
    connection.close()
    if response.status >= 400:
        raise RuntimeError(f"{path} returned status {response.status}")
    return time.perf_counter() - began


def random_path(rng: random.Random, episodes: int) -> str:
    """Return the address of a random page."""
    number = rng.randrange(episodes)
    group, task = number // GROUP, f"task-{number // GROUP % TASKS:03d}"
    query = rng.choice(["reward > 0", f"task_id = '{task}' and episode_return < 1"])
    paths = (
        "", "/episodes", f"/episodes?before={number}", f"/episodes?q={quote(query)}", "/facets",
        f"/facets?q={quote(query)}", f"/e/e{number}", f"/e/e{number}?from=20",
        f"/e/e{number}/draws", f"/e/e{number}/series.json", f"/group?task={task}&group=g{group}",
        "/ledger", f"/ledger/learner/{number % 50}", "/random", f"/p/{number * STEPS}",
        f"/p/{number * STEPS}/tokens.json", "/history.json?seconds=86400",
    )  # fmt: skip
    return f"/b/train{rng.choice(paths)}"


def resident_megabytes(process: int) -> float:
    """Return the memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    return int(match[1]) / 1024 if match else float("nan")


def measure_pages(location: str, episodes: int) -> None:
    """Print percentiles of response times, and the memory of the server."""
    rng = random.Random(0)
    with serving(location) as (port, process):
        for name, count in (("first 50", 50), ("next 50", 50), ("next 1,000", 1_000)):
            times = [get(port, random_path(rng, episodes)) for _ in range(count)]
            shown = [f"p{q} {1000 * np.percentile(times, q):.0f} ms" for q in (50, 95, 100)]
            print(f"{name} pages: {', '.join(shown)}; {resident_megabytes(process):.0f} MB")


def keep_open(port: int, path: str, is_on: threading.Event) -> None:
    """Request a page again after each event, as an open page does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/b/train/events")
    is_wanted = threading.Event()

    def read() -> None:
        for line in connection.getresponse():
            if line.startswith(b"data"):
                is_wanted.set()

    threading.Thread(target=read, daemon=True).start()
    while True:
        is_on.wait()
        is_wanted.wait()
        is_wanted.clear()
        seconds = get(port, f"/b/train{path}")
        time.sleep(max(0.5, 10 * seconds))


def open_pages(port: int) -> None:
    """Keep five pages open; stdin turns them on and off."""
    is_on = threading.Event()
    for path in OPEN_PAGES:
        threading.Thread(target=keep_open, args=(port, path, is_on), daemon=True).start()
    for line in sys.stdin:
        (is_on.set if line == "on\n" else is_on.clear)()


def measure_writer(location: str, seconds: float) -> None:
    """Print the ratio of the times of flushes with and without open pages."""
    times: dict[bool, list[float]] = {False: [], True: []}
    obs = np.zeros((10, 8))
    with expdb.open(location) as db, serving(location) as (port, _):
        buffer = db.buffer("train")
        command = [sys.executable, "-m", "benchmarks.pages", "--open", str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as pages:
            assert pages.stdin is not None
            began = due = time.perf_counter()
            turn, settled, number = -1, 0.0, 0
            while (now := time.perf_counter()) - began < seconds:
                if int((now - began) / TURN) != turn:
                    turn = int((now - began) / TURN)
                    pages.stdin.write("on\n" if turn % 2 else "off\n")
                    pages.stdin.flush()
                    settled = now + 1.0
                is_last = number % 20 == 19
                rows = {
                    "task_id": ["t"] * 10, "episode_id": [f"w{number // 20}"] * 10,
                    "note": obs, "terminated": [False] * 9 + [is_last],
                }  # fmt: skip
                start = time.perf_counter()
                buffer.store_batch(rows)
                if start > settled:
                    times[turn % 2 == 1].append(time.perf_counter() - start)
                number, due = number + 1, due + 0.01
                time.sleep(max(0.0, due - time.perf_counter()))
            pages.terminate()
    ratios = [np.percentile(times[True], q) / np.percentile(times[False], q) for q in (50, 99)]
    counts = len(times[True]), len(times[False])
    print(f"flushes with and without pages: p50 {ratios[0]:.2f}x, p99 {ratios[1]:.2f}x of {counts}")


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("location", nargs="?")
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--open", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        return open_pages(arguments.open)
    with tempfile.TemporaryDirectory() as folder:
        location = arguments.location or str(Path(folder) / "pages.db")
        fill(location, arguments.episodes)
        measure_pages(location, arguments.episodes)
        measure_writer(location, arguments.seconds)


if __name__ == "__main__":
    main()
