"""Train with expdb and with cpprb: wall time of DQN and SAC with small networks on a CPU.

    python -m benchmarks.learners [--steps 20000] [--rounds 3]    needs torch, gymnasium and cpprb

Runs alternate between the two buffers. Each line is the ratio of the median wall times.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import cpprb
import gymnasium
import numpy as np
import torch
from torch import nn

import expdb

BATCH, CAPACITY, WARM_UP = 256, 100_000, 1_000
KEYS = ["obs", "action", "reward", "next_obs", "terminated"]
Batch = dict[str, torch.Tensor]


class Buffer(Protocol):
    """What a learner writes to and samples from."""

    def begin(self, obs: np.ndarray) -> None:
        """Begin an episode."""

    def add(
        self, action: Any, reward: float, next_obs: np.ndarray, ended: tuple[bool, bool]
    ) -> None:
        """Add a transition; `ended` says whether it is terminated, and whether truncated."""

    def sample(self) -> Batch:
        """Return a batch of transitions."""


class ExpdbBuffer:
    """Transitions in a file."""

    def __init__(self, path: Path):
        self._db = expdb.open(path)
        self._buffer = self._db.buffer("train", capacity=CAPACITY)
        self._unit = expdb.NStep(1)

    def begin(self, obs: np.ndarray) -> None:
        """Begin an episode."""
        self._episode, self._obs = self._buffer.episode("task", flush_seconds=0.05), obs

    def add(
        self, action: Any, reward: float, next_obs: np.ndarray, ended: tuple[bool, bool]
    ) -> None:
        """Add a transition."""
        self._episode.append(
            obs=self._obs, action=action, reward=reward, terminated=ended[0], truncated=ended[1]
        )
        if any(ended):
            self._episode.end(obs=next_obs)
        self._obs = next_obs

    def sample(self) -> Batch:
        """Return a batch of transitions."""
        batch = self._buffer.sample(BATCH, unit=self._unit, fields=KEYS)
        return {key: torch.from_numpy(batch[key]) for key in KEYS}

    def close(self) -> None:
        """End the episode, and close the file."""
        self._episode.abort()
        self._db.close()


class CpprbBuffer:
    """Transitions in memory."""

    def __init__(self, obs: int, action: int, is_discrete: bool):
        kind = {"dtype": np.int64} if is_discrete else {"shape": action}
        shapes = {"obs": {"shape": obs}, "next_obs": {"shape": obs}, "action": kind}
        self._buffer = cpprb.ReplayBuffer(CAPACITY, shapes | {"reward": {}, "terminated": {}})

    def begin(self, obs: np.ndarray) -> None:
        """Begin an episode."""
        self._obs = obs

    def add(
        self, action: Any, reward: float, next_obs: np.ndarray, ended: tuple[bool, bool]
    ) -> None:
        """Add a transition."""
        self._buffer.add(
            obs=self._obs, action=action, reward=reward, next_obs=next_obs, terminated=ended[0]
        )
        self._obs = next_obs

    def sample(self) -> Batch:
        """Return a batch of transitions."""
        batch = self._buffer.sample(BATCH)
        shaped = {key: batch[key] for key in KEYS}
        for key in ("reward", "terminated"):
            shaped[key] = batch[key][:, 0]
        return {key: torch.from_numpy(array) for key, array in shaped.items()}


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with two layers of 64 units."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


class DQN:
    """Learns CartPole; trains on a batch after every fourth step."""

    task, every = "CartPole-v1", 4

    def __init__(self, env: Any):
        self._actions = env.action_space.n
        self._net = network(4, self._actions)
        self._optimizer = torch.optim.Adam(self._net.parameters(), 1e-3)

    def act(self, obs: np.ndarray) -> Any:
        """Return an action."""
        with torch.no_grad():
            best = int(self._net(torch.from_numpy(obs)).argmax())
        return best if np.random.random() > 0.1 else np.random.randint(self._actions)

    def train(self, batch: Batch) -> None:
        """Train on a batch."""
        action = batch["action"].long().reshape(-1, 1)
        values = self._net(batch["obs"].float()).gather(1, action)[:, 0]
        with torch.no_grad():
            following = self._net(batch["next_obs"].float()).max(1).values
            target = batch["reward"].float() + 0.99 * ~batch["terminated"].bool() * following
        self._optimizer.zero_grad()
        nn.functional.mse_loss(values, target).backward()
        self._optimizer.step()


class SAC:
    """Learns Pendulum, with one critic; trains on a batch after every step."""

    task, every = "Pendulum-v1", 1

    def __init__(self, env: Any):
        self._actor, self._critic = network(3, 2), network(4, 1)
        self._optimizers = [
            torch.optim.Adam(net.parameters(), 1e-3) for net in (self._actor, self._critic)
        ]

    def _draw(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self._actor(obs).split(1, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        action = raw.tanh()
        return action, (normal.log_prob(raw) - (1 - action**2 + 1e-6).log()).sum(-1)

    def act(self, obs: np.ndarray) -> Any:
        """Return an action."""
        with torch.no_grad():
            return 2 * self._draw(torch.from_numpy(obs))[0].numpy()

    def train(self, batch: Batch) -> None:
        """Train on a batch."""
        obs, following = batch["obs"].float(), batch["next_obs"].float()
        with torch.no_grad():
            action, log_prob = self._draw(following)
            value = self._critic(torch.cat((following, action), 1))[:, 0] - 0.1 * log_prob
            target = batch["reward"].float() + 0.99 * ~batch["terminated"].bool() * value
        taken = batch["action"].float().reshape(-1, 1) / 2
        estimate = self._critic(torch.cat((obs, taken), 1))[:, 0]
        self._step(1, nn.functional.mse_loss(estimate, target))
        action, log_prob = self._draw(obs)
        value = self._critic(torch.cat((obs, action), 1))[:, 0]
        self._step(0, (0.1 * log_prob - value).mean())

    def _step(self, which: int, loss: torch.Tensor) -> None:
        self._optimizers[which].zero_grad()
        loss.backward()
        self._optimizers[which].step()


def run(learner: Any, buffer: Buffer, steps: int) -> float:
    """Return the wall time of a training."""
    torch.manual_seed(0)
    np.random.seed(0)
    env = gymnasium.make(learner.task)
    agent = learner(env)
    obs, _ = env.reset(seed=0)
    buffer.begin(obs)
    began = time.perf_counter()
    for step in range(steps):
        action = agent.act(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(action, float(reward), obs, (terminated, truncated))
        if terminated or truncated:
            obs, _ = env.reset()
            buffer.begin(obs)
        if step >= WARM_UP and step % learner.every == 0:
            agent.train(buffer.sample())
    return time.perf_counter() - began


def main() -> None:
    """Print a line per learner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for learner, sizes in ((DQN, (4, 1, True)), (SAC, (3, 1, False))):
        times: dict[str, list[float]] = {"expdb": [], "cpprb": []}
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                ours = ExpdbBuffer(Path(folder) / "train.db")
                times["expdb"].append(run(learner, ours, arguments.steps))
                ours.close()
            times["cpprb"].append(run(learner, CpprbBuffer(*sizes), arguments.steps))
        ratio = statistics.median(times["expdb"]) / statistics.median(times["cpprb"])
        print(
            f"{learner.__name__:4} {arguments.steps:,} steps   {ratio:.3f} x of cpprb", flush=True
        )


if __name__ == "__main__":
    main()
