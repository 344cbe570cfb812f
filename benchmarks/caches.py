"""Compare sampling with warm caches and with cold ones, as a learner's network leaves them.

    python -m benchmarks.caches [STEPS]      needs cpprb: the group `bench`

Cold means that 64 MB were read since the last call. Every line has the same keys on both sides.
Medians of calls that alternate; the figures are those of three runs, from the least to the
greatest.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import expdb

RUNS, JUNK = 3, np.ones(64 * 2**20 // 8)
KEYS = ["obs", "action", "reward", "next_obs", "terminated"]
CARTPOLE = {
    "obs": {"shape": 4, "dtype": np.float32}, "action": {"dtype": np.int64}, "reward": {},
    "next_obs": {"shape": 4, "dtype": np.float32}, "terminated": {},
}  # fmt: skip


def stored(folder: Path, steps: int) -> expdb.ReplayBuffer:
    """Return a buffer of CartPole-sized steps that is in memory."""
    buffer = expdb.open(folder / "runs.db").buffer("b")
    rng = np.random.default_rng(0)
    for _ in range(steps // 200):
        with buffer.episode("CartPole-v1", flush_steps=1000) as episode:
            episode.extend(
                {"obs": rng.random((200, 4), np.float32), "action": rng.integers(0, 2, 200),
                 "reward": np.ones(200), "terminated": np.arange(200) == 199}
            )  # fmt: skip
    for _ in range(3):
        buffer.sample(256, unit=expdb.NStep(1))
    return buffer


def sides(
    buffer: expdb.ReplayBuffer, steps: int
) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return what is compared: ours and the other, by name."""
    import cpprb

    rng = np.random.default_rng(1)
    # Not zeros: all pages of those are the same one until they are written to.
    arrays = {key: np.ones((steps, 4) if "obs" in key else steps) for key in KEYS}
    plain = cpprb.ReplayBuffer(steps, CARTPOLE)
    by_priority = cpprb.PrioritizedReplayBuffer(steps, CARTPOLE)
    for replay in (plain, by_priority):
        replay.add(**arrays)
    td_errors = rng.random(256)
    sampler, unit = expdb.Prioritized(), expdb.NStep(1)

    def prioritized() -> None:
        batch = buffer.sample(256, sampler=sampler, unit=unit, fields=[*KEYS, "position", "weight"])
        buffer.update_priorities(batch["position"], td_errors)

    def theirs_prioritized() -> None:
        batch = by_priority.sample(256)
        by_priority.update_priorities(batch["indexes"], td_errors)

    def indexed() -> list[np.ndarray]:
        rows = rng.integers(0, steps, 256)
        return [array[rows] for array in arrays.values()]

    return {
        "NStep(1) / cpprb": (
            lambda: buffer.sample(256, unit=unit, fields=KEYS), lambda: plain.sample(256)
        ),
        "NStep(1), all keys / cpprb": (
            lambda: buffer.sample(256, unit=unit), lambda: plain.sample(256)
        ),
        "sample, all keys / NumPy, five arrays": (lambda: buffer.sample(256), indexed),
        "Prioritized, NStep(1), and update / cpprb": (prioritized, theirs_prioritized),
    }  # fmt: skip


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any], cold: bool) -> float:
    """Return how much longer ours takes, medians of calls that alternate."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(60 if cold else 400):
        for seconds, work in zip(taken, (ours, theirs), strict=True):
            if cold:
                JUNK.sum()
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
    return statistics.median(taken[0][5:]) / statistics.median(taken[1][5:])


def main() -> None:
    """Print one line per comparison."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="expdb-bench-") as folder:
        compared = sides(stored(Path(folder), steps), steps)
        gc.collect()
        gc.freeze()
        for name, (ours, theirs) in compared.items():
            for cold in (False, True):
                ratios = sorted(ratio(ours, theirs, cold) for _ in range(RUNS))
                spread = " to ".join(f"{value:.2f}" for value in ratios[:: RUNS - 1])
                print(f"{name:45} {'cold' if cold else 'warm'}  {ratios[1]:5.2f} x ({spread})")


if __name__ == "__main__":
    main()
