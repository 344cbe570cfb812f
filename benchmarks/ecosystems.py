"""Compare the adapters of other libraries' buffers with the originals, those that are installed.

    python -m benchmarks.ecosystems        in the environment of the library

One step added, and one batch sampled, of CartPole-sized items: medians of rounds that alternate
between the two, after one to warm up. What is written is flushed within the round. For some, also
one step added and a batch sampled in turns, without a flush in between.
"""

import importlib.util
import itertools
import logging
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS, STEPS, SAMPLES = 11, 1000, 20

# Adds STEPS steps, samples one batch; for some, adds a step and samples a batch.
Side = tuple[Callable[[], Any], ...]


def alternated(ours: Callable[[], Any], theirs: Callable[[], Any], times: int) -> str:
    """Return the times of both, each for one of `times`, and their ratio."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for seconds, work in zip(taken, (ours, theirs), strict=True):
            begin = time.perf_counter()
            work()
            seconds.append((time.perf_counter() - begin) / times)
    own, other = (statistics.median(seconds[1:]) for seconds in taken)
    ratios = sorted(a / b for a, b in zip(taken[0][1:], taken[1][1:], strict=True))
    spread = f"{ratios[1]:.2f} to {ratios[-2]:.2f}"
    return f"{own / other:5.2f} x ({spread})   {own * 1e6:8.1f} us / {other * 1e6:8.1f} us"


def several(work: Callable[[], Any], times: int) -> Callable[[], None]:
    """Return work that is done several times."""

    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def stable_baselines3(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield the uniform buffer, with one environment and with eight."""
    from gymnasium import spaces
    from stable_baselines3.common import buffers

    from expdb.integrations import stable_baselines3 as ours

    for envs in (1, 8):
        space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
        obs = np.zeros((envs, 4), np.float32)
        step = (obs, obs, np.ones(envs), np.ones(envs), np.zeros(envs, bool), [{}] * envs)
        own = ours.ReplayBuffer(
            100_000, space, actions, "cpu", envs, location=folder / f"sb3_{envs}.db"
        )
        theirs = buffers.ReplayBuffer(100_000, space, actions, "cpu", envs)

        def add(buffer: Any, step: Any = step) -> Callable[[], None]:
            return several(lambda: buffer.add(*step), STEPS)

        def flushed(buffer: Any = own, add: Any = add) -> None:
            add(buffer)()
            buffer.flush()

        def in_turns(buffer: Any, step: Any = step) -> Callable[[], None]:
            def turn() -> None:
                buffer.add(*step)
                buffer.sample(256)

            return turn

        yield (
            f"Stable-Baselines3, {envs} env, sample(256)",
            (flushed, lambda own=own: own.sample(256), in_turns(own)),
            (add(theirs), lambda theirs=theirs: theirs.sample(256), in_turns(theirs)),
        )


def memmap(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield timesteps in batches of 8 and of 256; each step is flushed, as by default."""
    import memmap_replay_buffer

    from expdb.integrations import memmap as ours

    for size in (8, 256):
        sides = []
        for name, module in (("ours", ours), ("theirs", memmap_replay_buffer)):
            buffer = module.ReplayBuffer(
                folder / f"{name}_{size}", 200, 100, circular=True, overwrite=True,
                fields={"state": ("float", 4), "action": "int", "reward": "float"},
            )  # fmt: skip
            state = np.zeros(4, np.float32)

            def add(buffer: Any = buffer, state: Any = state) -> None:
                for _ in range(STEPS // 100):
                    with buffer.one_episode():
                        for _ in range(100):
                            buffer.store(state=state, action=1, reward=1.0)

            add()
            loader = buffer.dataloader(size, timestep_level=True, shuffle=True, drop_last=True)
            batches: list[Any] = [iter(loader)]

            def sample(batches: Any = batches, loader: Any = loader) -> None:
                if next(batches[0], None) is None:
                    batches[0] = iter(loader)
                    next(batches[0])

            sides.append((add, sample, buffer))
        yield f"memmap-replay-buffer, timesteps, batches of {size}", sides[0][:2], sides[1][:2]


def di_engine(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield `DequeBuffer` and `AdvancedReplayBuffer`."""
    import torch
    from ding.data.buffer import DequeBuffer
    from ding.worker.replay_buffer import AdvancedReplayBuffer

    from expdb.integrations import di_engine as ours

    os.chdir(folder)
    items = [
        {"obs": torch.randn(4), "next_obs": torch.randn(4), "action": torch.tensor([1]),
         "reward": torch.tensor([1.0]), "done": False} for _ in range(STEPS)
    ]  # fmt: skip
    sides = []
    for buffer in (ours.DequeBuffer(20_000, location=folder / "deque.db"), DequeBuffer(20_000)):

        def push(buffer: Any = buffer) -> None:
            for item in items:
                buffer.push(dict(item))
            if hasattr(buffer, "items"):
                buffer.items.flush()

        def turn(buffer: Any = buffer) -> None:
            buffer.push(dict(items[0]))
            buffer.sample(64)

        several(push, 20)()
        sides.append((push, lambda buffer=buffer: buffer.sample(64), turn))
    yield "DI-engine, DequeBuffer, sample(64)", sides[0], sides[1]
    for size in (64, 256):
        sides = []
        for kind in (ours.AdvancedReplayBuffer, AdvancedReplayBuffer):
            config = kind.default_config()
            config.replay_buffer_size = 20_000
            buffer = kind(config, None, f"experiment_{size}_{kind.__module__}", "b")

            def add(buffer: Any = buffer, items: Any = items) -> None:
                for item in items:
                    buffer.push(dict(item), 0)
                if hasattr(buffer, "items"):
                    buffer.items.flush()

            sides.append((add, lambda buffer=buffer, size=size: buffer.sample(size, 0)))
        yield f"DI-engine, advanced, sample({size})", sides[0], sides[1]


def rllib(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield the episode buffers and the prioritized timestep buffer."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy.sample_batch import SampleBatch
    from ray.rllib.utils import replay_buffers as original
    from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer

    from expdb.integrations import rllib as ours

    def parts() -> Iterator[Any]:
        """Yield 200-step episodes in parts of 8 steps."""
        for number in itertools.count():
            for start in range(0, 200, 8):
                yield SingleAgentEpisode(
                    id_=f"episode {number}", t_started=start, terminated=start == 192,
                    observations=list(np.zeros((9, 4), np.float32)), actions=[1] * 8,
                    rewards=[1.0] * 8, infos=[{}] * 9, len_lookback_buffer=0,
                )  # fmt: skip

    for name, options in (
        ("EpisodeReplayBuffer", {"num_items": 64, "n_step": 1, "sample_episodes": True}),
        ("EpisodeReplayBuffer", {"batch_size_B": 16, "batch_length_T": 64}),
        ("PrioritizedEpisodeReplayBuffer", {"num_items": 64, "n_step": 1, "beta": 0.4}),
    ):
        sides = []
        path = folder / f"{len(options)}{name}.db"
        for buffer in (getattr(ours, name)(10_000, location=path), getattr(original, name)(10_000)):
            new = parts()

            def add(buffer: Any = buffer, new: Any = new) -> None:
                for _ in range(STEPS // 8):
                    buffer.add([next(new)])
                if hasattr(buffer, "flush"):
                    buffer.flush()

            def sample(buffer: Any = buffer, options: Any = options) -> None:
                buffer.sample(**options)

            def turn(buffer: Any = buffer, new: Any = new, options: Any = options) -> None:
                buffer.add([next(new)])
                buffer.sample(**options)

            several(add, 10)()
            sides.append((add, sample, turn))
        arguments = ", ".join(f"{key}={value}" for key, value in options.items())
        yield f"RLlib, {name}.sample({arguments})", sides[0], sides[1]

    batch = SampleBatch(
        {"obs": np.zeros((1, 4), np.float32), "new_obs": np.zeros((1, 4), np.float32),
         "actions": np.array([1]), "rewards": np.ones(1, np.float32),
         "terminateds": np.zeros(1, bool)}
    )  # fmt: skip
    for size in (32, 256):
        own = ours.PrioritizedReplayBuffer(50_000, alpha=0.6, location=folder / f"r{size}.db")
        theirs = PrioritizedReplayBuffer(50_000, alpha=0.6)

        def flushed(own: Any = own) -> None:
            several(lambda: own.add(batch), STEPS)()
            own.flush()

        yield (
            f"RLlib, prioritized, sample({size})",
            (flushed, lambda own=own, size=size: own.sample(size, beta=0.4)),
            (
                several(lambda theirs=theirs: theirs.add(batch), STEPS),
                lambda theirs=theirs, size=size: theirs.sample(size, beta=0.4),
            ),
        )


def minestudio(folder: Path) -> Iterator[tuple[str, Side, Side]]:
    """Yield fragments of 256 steps beside diskcache, which MineStudio keeps them in."""
    from diskcache import FanoutCache

    from expdb.integrations.minestudio import (
        FragmentMetadata,
        ReplayBufferInterface,
        SampleFragment,
    )

    cache = FanoutCache(folder / "cache", shards=8, eviction_policy="none")
    config = {
        "max_chunks": 100_000, "max_staleness": 2, "max_reuse": 10**6, "fragments_per_chunk": 1,
        "database_config": {"path": str(folder / "fragments"), "num_shards": 8},
    }  # fmt: skip
    buffer = ReplayBufferInterface(config)
    buffer.update_model_version("s", 0)
    numbers, ids = iter(range(10**9)), []
    rng = np.random.default_rng(0)

    def fragment() -> Any:
        return SampleFragment(
            {"vector": rng.random((256, 32), np.float32)}, {"camera": np.zeros((256, 2))},
            np.zeros(256, bool), np.zeros(256, np.float32), np.zeros(256, bool),
            [np.zeros((1, 64), np.float32)], "w", next(numbers), {"vector": np.zeros(32)},
            ["episode"] * 256,
        )  # fmt: skip

    def add() -> None:
        for _ in range(20):
            new_fragment = fragment()
            buffer.add_fragment(
                new_fragment, FragmentMetadata(0, "s", "w", new_fragment.fid_in_worker)
            )

    def add_theirs() -> None:
        for _ in range(20):
            ids.append(str(uuid.uuid4()))
            cache[ids[-1]] = fragment()

    yield (
        "MineStudio, 8 fragments fetched and loaded / loaded from diskcache",
        (add, lambda: [buffer.load_fragment(id) for _, id in buffer.fetch_fragments(8)]),
        (add_theirs, lambda: [cache[id] for id in rng.choice(ids, 8).tolist()]),
    )


SECTIONS = {
    "stable_baselines3": stable_baselines3,
    "memmap_replay_buffer": memmap,
    "ding": di_engine,
    "ray": rllib,
    "diskcache": minestudio,
}


def main() -> None:
    """Print one line per row."""
    logging.disable(logging.CRITICAL)
    for module, section in SECTIONS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{module} is not installed: left out")
            continue
        with tempfile.TemporaryDirectory(prefix="expdb-bench-") as folder:
            for name, ours, theirs in section(Path(folder)):
                steps = 20 if module == "diskcache" else STEPS
                print(f"{name}:")
                print(f"  add    {alternated(ours[0], theirs[0], steps)}")
                own, other = (several(side[1], SAMPLES) for side in (ours, theirs))
                print(f"  sample {alternated(own, other, SAMPLES)}", flush=True)
                if len(ours) > 2:
                    turns = STEPS // 8 if module == "ray" else STEPS
                    own, other = (several(side[2], turns) for side in (ours, theirs))
                    print(f"  both   {alternated(own, other, turns)}", flush=True)
    os._exit(0)  # monitors of the originals never end


if __name__ == "__main__":
    main()
