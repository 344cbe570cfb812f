"""Memory for sampling: expdb counts every byte, and a buffer of constant size uses no more."""

import subprocess
import sys

import numpy as np
import pytest

import expdb

TURNS = 24


# SQLite caches up to 4 MB of pages per connection, and the allocator keeps some freed memory.
PAGES = 9 << 20


def play(buffer, first, steps=40, repeats=20):
    with buffer.episode(f"t{first}", flush_steps=10) as episode:
        for k in range(steps):
            text = f"{first + k} " + np.random.default_rng(first + k).bytes(8 * repeats).hex()
            episode.append(
                n=first + k,
                text=text,
                messages=[{"role": "user", "content": text}],
                reward=float(k % 3),
                step=(k ^ 1) if first % 80 else k,
            )


def test_resident_bytes_do_not_grow_while_the_buffer_size_is_constant(open_db):
    actor, learner = open_db().buffer("b", capacity=400), open_db(max_lag_seconds=0.0).buffer("b")
    sizes = []
    for turn in range(TURNS):
        play(actor, 40 * turn)
        for options in (
            {},
            {"unit": expdb.NStep(2)},
            {"where": {"reward": 1.0}, "sampler": expdb.Prioritized()},
            {"unit": expdb.Sequence(3)},
        ):
            batch = learner.sample(48, **options)
            if "sampler" in options:
                learner.update_priorities(batch["position"], np.ones(48))
        sizes.append(learner.stats()["resident_bytes"])
    assert max(sizes[-TURNS // 4 :]) <= 1.1 * max(sizes[TURNS // 4 : TURNS // 2])


LEARNER = """
import gc, sys, expdb
from pathlib import Path

def memory():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

limit = int(sys.argv[2]) or None
with expdb.open(sys.argv[1], resident_bytes=limit) as db:
    small, buffer = db.buffer("small"), db.buffer("b")
    # Exclude the memory of imports, connections and the first chunks.
    for unit in (expdb.Step(), expdb.NStep(1)):
        for _ in range(20):
            small.sample(32, unit=unit)
    before = memory()
    for _ in range(150):
        buffer.sample(64, unit=expdb.NStep(1))
    print(memory() - before, db.buffer("b").stats()["resident_bytes"])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("limit", [0, 20_000_000], ids=["no limit", "20 MB"])
@pytest.mark.parametrize("kind", ["text", "messages", "frames"])
def test_resident_bytes_bound_the_growth_of_a_learner(tmp_path, kind, limit):
    """The process may exceed the limit by 20 %, plus the page cache of SQLite."""
    path, rng = str(tmp_path / "runs.db"), np.random.default_rng(0)

    def value():
        text = rng.bytes(1500).hex()
        return {
            "text": {"text": text},
            "messages": {"messages": [{"role": "user", "content": text}]},
            "frames": {"obs": rng.integers(0, 255, (60, 60), np.uint8)},
        }[kind]

    with expdb.open(path) as db:
        for name, episodes in (("small", 3), ("b", 400)):
            for k in range(episodes):
                with db.buffer(name).episode(f"t{k}") as episode:
                    for step in range(20):
                        episode.append(**value(), reward=1.0, terminated=step == 19)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEARNER, path, str(limit)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    grown, counted = map(int, done.stdout.split())
    assert grown <= 1.2 * (limit or counted) + PAGES, f"{grown:,} bytes more, {counted:,} counted"
    if limit:
        assert counted <= limit
