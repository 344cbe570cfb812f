"""A DQN learner for CartPole that takes all its training data from a database.

The learner uses only the public API. If you run the demo again on the same file, the learner first
trains on the stored steps, so that its first episodes have higher returns.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import expdb

TASK = "CartPole-v1"
GAMMA = 0.98
BATCH = 64
BATCHES_A_SAMPLE = 16  # updates per sample from the database
HIDDEN = 64
SCALE = np.array([2.4, 3.0, 0.21, 3.0])  # approximate scale of the observation
WARM_UP_STEPS = 500
UPDATES_ON_STORED = 16_000
WARM_UP_SHARE = 0.5  # maximum fraction of the time limit for training on stored steps
EVERY = 20  # episodes per mean
ENOUGH_UPDATES = 10_000  # with every tested seed, the agent had learned after this many updates


class Network:
    """Estimate the Q values of two actions with two hidden ReLU layers, trained with Adam.

    The forward and the backward pass are written in NumPy.
    """

    def __init__(self, rng: np.random.Generator):
        sizes = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]
        self.weights = [rng.standard_normal(size) * np.sqrt(2 / size[0]) for size in sizes]
        self.biases = [np.zeros(size[1]) for size in sizes]
        self._moments = [
            [np.zeros_like(array) for array in (*self.weights, *self.biases)] for _ in range(2)
        ]
        self._updates = 0

    def copy_from(self, other: "Network") -> None:
        """Copy the parameters of another network."""
        self.weights = [array.copy() for array in other.weights]
        self.biases = [array.copy() for array in other.biases]

    def layers(self, obs: np.ndarray) -> list[np.ndarray]:
        """Return the activations of every layer; the last layer has the Q values [batch, 2]."""
        out = [obs / SCALE]
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            raw = out[-1] @ weight + bias
            out.append(raw if k == len(self.weights) - 1 else np.maximum(raw, 0.0))
        return out

    def update(self, obs: np.ndarray, action: np.ndarray, target: np.ndarray, rate: float) -> None:
        """Take one Adam step on the Huber loss between Q values and their targets."""
        out = self.layers(obs)
        rows = np.arange(len(obs))
        slope = np.zeros_like(out[-1])
        slope[rows, action] = np.clip(out[-1][rows, action] - target, -1.0, 1.0) / len(obs)
        layers = len(self.weights)
        gradients = [np.empty(0)] * (2 * layers)
        for k in reversed(range(layers)):
            gradients[k], gradients[layers + k] = out[k].T @ slope, slope.sum(0)
            slope = (slope @ self.weights[k].T) * (out[k] > 0)
        self._updates += 1
        first, second = self._moments
        for k, gradient in enumerate(gradients):
            first[k] = 0.9 * first[k] + 0.1 * gradient
            second[k] = 0.999 * second[k] + 0.001 * gradient**2
            step = first[k] / (1 - 0.9**self._updates)
            step /= np.sqrt(second[k] / (1 - 0.999**self._updates)) + 1e-8
            (self.weights if k < layers else self.biases)[k % layers] -= rate * step


class Learner:
    """A Double DQN (van Hasselt et al. 2016) that takes every transition from the database."""

    def __init__(self, buffer: "expdb.ReplayBuffer", seed: int):
        self.buffer, self.rng = buffer, np.random.default_rng(seed)
        self.online, self.target = Network(self.rng), Network(self.rng)
        self.target.copy_from(self.online)
        self.stored, self.steps, self.updates = len(buffer), 0, 0
        self._batches: list[tuple[np.ndarray, ...]] = []

    def act(self, obs: np.ndarray) -> int:
        """Return the best action, or a random action with a decreasing probability.

        If the buffer has steps at the start, the probability is constant and low.
        """
        epsilon = 0.05 if self.stored else max(0.05, 1.0 - self.steps / 2500)
        if self.rng.random() < epsilon:
            return int(self.rng.integers(2))
        return int(self.online.layers(obs[None])[-1][0].argmax())

    def learn(self) -> None:
        """Take one gradient step."""
        if not self._batches:
            batch = self.buffer.sample(
                BATCH * BATCHES_A_SAMPLE,
                {"task_name": TASK},
                unit=expdb.NStep(1, gamma=GAMMA),
                seed=self.rng,
            )
            keys = ("obs", "action", "reward", "next_obs", "discount")
            self._batches = list(
                zip(*[np.split(batch[key], BATCHES_A_SAMPLE) for key in keys], strict=True)
            )
        obs, action, reward, next_obs, discount = self._batches.pop()
        best = self.online.layers(next_obs)[-1].argmax(1)
        value = self.target.layers(next_obs)[-1][np.arange(len(best)), best]
        # No return exceeds this bound. Without it, Q values of untried actions diverge.
        goal = np.clip(reward + discount * value, 0.0, 1.0 / (1.0 - GAMMA))
        self.online.update(obs, action, goal, rate=1e-3)
        self.updates += 1
        if self.updates % 150 == 0:
            self.target.copy_from(self.online)


def run(
    path: str, *, seconds: float = 22.0, seed: int = 0, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train on a database file and return statistics.

    Training stops after `seconds`, or after 60 episodes if the mean return of the last 20 episodes
    is at least 350. A run always has at least 20 episodes and 10,000 updates.
    """
    try:
        import gymnasium
    except ImportError:
        raise expdb.ExpDBError(
            "the demo requires gymnasium; run `pip install 'expdb[gym]'`"
        ) from None
    started = time.monotonic()
    with expdb.open(path) as db:
        buffer = db.buffer("cartpole", capacity=200_000)
        generation = db.sql("SELECT DISTINCT run FROM experience").num_rows
        learner = Learner(buffer, seed + generation)
        stored = learner.stored
        if stored > WARM_UP_STEPS:
            say(f"{path} contains {stored:,} steps; the agent trains on these steps, then plays")
        else:
            say(f"training for about {seconds:.0f} seconds; the steps are stored in {path}")
        if stored > WARM_UP_STEPS:
            enough = started + WARM_UP_SHARE * seconds
            while learner.updates < UPDATES_ON_STORED and time.monotonic() < enough:
                learner.learn()
        env = gymnasium.make(TASK)
        returns: list[float] = []
        limit = started + seconds
        while not _has_enough_data(returns, learner.updates) or (
            time.monotonic() < limit and not _is_solved(returns)
        ):
            obs, _ = env.reset(seed=seed + 1000 * generation + len(returns))
            returns.append(_play(buffer, env, obs, learner, len(returns)))
        env.close()
        ever = buffer.episodes({"task_name": TASK}).column("episode_return").to_pylist()
        return {
            "file": path,
            "seconds": round(time.monotonic() - started, 1),
            "stored_at_start": stored,
            "stored": len(buffer),
            "episodes": len(returns),
            "updates": learner.updates,
            "first_ever": mean(ever[:EVERY]),
            "first": mean(returns[:EVERY]),
            "last": mean(returns[-EVERY:]),
            "returns": returns,
            "learned": verdict(returns, ever),
        }


def _play(buffer: expdb.ReplayBuffer, env: Any, obs: Any, learner: Learner, number: int) -> float:
    """Play one episode, learn at each step, and return the episode's return."""
    episode_return, done = 0.0, False
    task_id = f"{TASK}/{number % 10}"
    with buffer.episode(
        task_id, task_name=TASK, agent_id="dqn", policy_version=learner.updates
    ) as episode:
        while not done:
            action = learner.act(obs)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            episode.append(
                obs=obs,
                action=action,
                reward=float(reward),
                terminated=terminated,
                truncated=truncated,
            )
            obs, done = next_obs, terminated or truncated
            episode_return += float(reward)
            learner.steps += 1
            if number > 1 and learner.stored + learner.steps > WARM_UP_STEPS:
                learner.learn()
        episode.end(obs=obs)
    return episode_return


def _has_enough_data(returns: list[float], updates: int) -> bool:
    """Return whether there are enough episodes and updates to judge whether the agent learned."""
    return len(returns) >= EVERY and updates >= ENOUGH_UPDATES


def verdict(returns: list[float], ever: list[float]) -> bool:
    """Return whether the last episodes have at least 3 times the return of the first episodes."""
    return mean(returns[-EVERY:]) >= 3 * mean(ever[:EVERY])


def _is_solved(returns: list[float]) -> bool:
    return len(returns) >= 3 * EVERY and mean(returns[-EVERY:]) >= 350


def mean(values: list[float]) -> float:
    """Return the rounded mean, or 0 if there are no values."""
    return round(float(np.mean(values)), 1) if values else 0.0


def curve(returns: list[float], width: int = 60, height: int = 8) -> list[str]:
    """Draw a learning curve with characters, one line per level."""
    if not returns:
        return []
    columns = [float(np.mean(part)) for part in np.array_split(returns, min(width, len(returns)))]
    top = max(columns)
    lines = []
    for level in range(height, 0, -1):
        low, high = top * (level - 1) / height, top * level / height
        marks = "".join(
            "█" if value >= high else "▄" if value > (low + high) / 2 else " " for value in columns
        )
        lines.append(f"{high:6.0f} │{marks}")
    return [*lines, f"{'':6} └{'─' * len(columns)}  {len(returns)} episodes"]
