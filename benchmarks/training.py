"""Training: whole runs of the DQN of the examples, on expdb and on cpprb.

Loaders beside plain sampling.
"""

import importlib.util
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import expdb
from benchmarks.learning import steps, write
from benchmarks.table import Row, alternate, row
from expdb import NStep, Prioritized

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "dqn_cartpole.py"


def example() -> Any:
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("dqn_cartpole", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training(folder: Path, quick: bool) -> Iterator[Row]:
    """Play and learn for some thousand steps.

    Environment, network, sampling, priorities, and durable writing in one.
    """
    import gymnasium as gym
    import torch
    from cpprb import PrioritizedReplayBuffer

    from expdb.integrations.gymnasium import record

    dqn, count, numbers = example(), 1_500 if quick else 4_000, itertools.count()
    torch.set_num_threads(1)

    def played(env: Any, learner: Any, learn: Any, see: Any = None) -> float:
        rng, begun = np.random.default_rng(0), time.perf_counter()
        obs, _ = env.reset(seed=0)
        for step in range(count):
            action = int(rng.integers(2)) if rng.random() < 0.5 else learner.act(obs)
            after, reward, terminated, truncated, _ = env.step(action)
            if see is not None:
                see(obs, action, reward, terminated, after, terminated or truncated)
            obs = env.reset()[0] if terminated or truncated else after
            if step >= 200:
                learn()
        return time.perf_counter() - begun

    def ours(_: int) -> float:
        torch.manual_seed(0)
        learner, sampler, unit = (
            dqn.Learner(),
            Prioritized(alpha=0.6, beta=0.4),
            NStep(3, gamma=0.99),
        )
        with expdb.open(folder / f"training{next(numbers)}.db") as db:
            buffer = db.buffer("b", capacity=50_000)

            def learn() -> None:
                batch = buffer.sample(64, sampler=sampler, unit=unit)
                buffer.update_priorities(batch["position"], abs(learner.learn(batch.to_torch())))

            return played(record(gym.make("CartPole-v1"), buffer, flush_steps=32), learner, learn)

    def theirs(_: int) -> float:
        torch.manual_seed(0)
        learner = dqn.Learner()
        shapes = {
            "obs": {"shape": 4},
            "action": {"dtype": np.int64},
            "reward": {},
            "next_obs": {"shape": 4},
            "done": {},
        }
        buffer = PrioritizedReplayBuffer(
            50_000, shapes, Nstep={"size": 3, "gamma": 0.99, "rew": "reward", "next": "next_obs"}
        )

        def see(
            obs: Any, action: int, reward: Any, terminated: bool, after: Any, ended: bool
        ) -> None:
            buffer.add(obs=obs, action=action, reward=reward, done=terminated, next_obs=after)
            if ended:
                buffer.on_episode_end()

        def learn() -> None:
            sampled = buffer.sample(64, 0.4)
            batch = {name: torch.from_numpy(sampled[name]) for name in ("obs", "next_obs")}
            flat = {
                name: torch.from_numpy(sampled[name][:, 0].copy())
                for name in ("action", "reward", "done")
            }
            batch |= {
                "action": flat["action"],
                "reward": flat["reward"].float(),
                "weight": torch.from_numpy(sampled["weights"]),
            }
            batch["discount"] = 0.99**3 * (1 - flat["done"].float())
            buffer.update_priorities(sampled["indexes"], abs(learner.learn(batch)))

        return played(gym.make("CartPole-v1"), learner, learn, see)

    medians = alternate(3 if quick else 7, ours=ours, theirs=theirs)
    yield row(
        f"prioritized 3-step double DQN on CartPole, {count:,} steps from nothing / the same on "
        "cpprb",
        medians["ours"] / medians["theirs"],
        1.05,
    )


def loading(folder: Path, quick: bool) -> Iterator[Row]:
    """Take batches of 256 small steps from two workers, and without any."""
    from torch.utils.data import DataLoader

    from expdb.integrations.torch import Loader, Samples

    path, count = folder / "loading.db", 100 if quick else 4_000
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        write(buffer, steps(100_000 if quick else 1_000_000))
        buffer.sample(256, unit=NStep(1))
        packed = iter(Loader(Samples(buffer, 256), num_workers=2, multiprocessing_context="fork"))
        single = iter(
            DataLoader(
                Samples(buffer, 256), batch_size=None, num_workers=2, multiprocessing_context="fork"
            )
        )

        def taken(batches: Any, times: int) -> float:
            for _ in range(times // 4):  # what was drawn ahead while the others were measured
                next(batches)
            begun = time.perf_counter()
            for _ in range(times):
                next(batches)
            return (time.perf_counter() - begun) / times

        def direct(_: int) -> float:
            begun = time.perf_counter()
            for _ in range(count):
                buffer.sample(256).to_torch()
            return (time.perf_counter() - begun) / count

        medians = alternate(
            5 if quick else 11,
            direct=direct,
            packed=lambda _: taken(packed, count),
            single=lambda _: taken(single, count // 20),
        )
        yield row(
            "`Loader`, 2 workers, batches of 256: time a batch / `sample(256).to_torch()` without "
            "a loader",
            medians["packed"] / medians["direct"],
            1.25,
        )
        yield row(
            "(a plain `DataLoader` of the same, a batch a message)",
            medians["single"] / medians["direct"],
            float("inf"),
        )
