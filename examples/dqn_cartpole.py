"""Train double DQN on CartPole with prioritized replay and n-step returns.

After a stop, run the program again to continue from the last checkpoint.
"""

import argparse
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import expdb
from expdb import NStep, Prioritized
from expdb.integrations.gymnasium import record

GAMMA, BATCH, WARM_UP, EXPLORE, TARGET, STEPS = 0.99, 64, 500, 4_000, 0.01, 40_000


class Learner:
    """Double DQN (van Hasselt et al. 2016) with importance weights (Schaul et al. 2016)."""

    def __init__(self):
        self.online, self.target = (
            nn.Sequential(
                nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
            )
            for _ in range(2)
        )
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), 5e-4)

    @torch.no_grad()
    def act(self, obs):
        """Return the action with the highest Q value."""
        return int(self.online(torch.from_numpy(obs)).argmax())

    def learn(self, batch):
        """Take one gradient step and return the temporal-difference (TD) errors."""
        with torch.no_grad():
            best = self.online(batch["next_obs"]).argmax(1, keepdim=True)
            goal = (
                batch["reward"]
                + batch["discount"] * self.target(batch["next_obs"]).gather(1, best)[:, 0]
            )
        errors = goal - self.online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        self.optimizer.zero_grad()
        (
            batch["weight"]
            * nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")
        ).mean().backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, TARGET)
        return errors.detach().numpy()


def evaluate(learner, seeds):
    """Play one episode per seed without exploration, and return the mean return."""
    env, total = gym.make("CartPole-v1"), 0.0
    for seed in seeds:
        (obs, _), ended = env.reset(seed=seed), False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(learner.act(obs))
            total, ended = total + float(reward), terminated or truncated
    return total / len(seeds)


def train(buffer, checkpoint, goal, max_steps):
    """Train until the mean return is at least `goal`, or for `max_steps`; return the learner."""
    learner, rng, start, sampler = (
        Learner(),
        np.random.default_rng(0),
        0,
        Prioritized(alpha=0.6, beta=0.4, anneal_steps=max_steps),
    )
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for name in ("online", "target", "optimizer"):
            getattr(learner, name).load_state_dict(state[name])
        start = state["steps"]
        buffer.restore_sampling(state["sampling"])
        print(f"continuing after {start} steps")
    with record(gym.make("CartPole-v1"), buffer, agent_id="dqn", flush_steps=32) as env:
        obs, _ = env.reset(seed=start)
        for step in range(start + 1, max_steps + 1):
            explore = rng.random() < max(0.05, 1 - step / EXPLORE)
            obs, _, terminated, truncated, _ = env.step(
                int(rng.integers(2)) if explore else learner.act(obs)
            )
            if terminated or truncated:
                env.policy_version = step // 1000  # increases every 1,000 steps
                obs, _ = env.reset()
            if step >= WARM_UP:
                batch = buffer.sample(BATCH, sampler=sampler, unit=NStep(3, gamma=GAMMA))
                errors = learner.learn(batch.to_torch())
                buffer.update_priorities(batch["position"], abs(errors))
            if step % 1000 == 0:
                mean = evaluate(learner, range(1000, 1010))
                states = {
                    name: getattr(learner, name).state_dict()
                    for name in ("online", "target", "optimizer")
                }
                torch.save(
                    {**states, "steps": step, "sampling": buffer.sampling_state()}, checkpoint
                )
                print(f"{step} steps: mean return {mean:.0f}", flush=True)
                if mean >= goal:
                    break
    return learner


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="dqn.db")
    parser.add_argument("--quick", action="store_true", help="short run with a lower goal")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    goal, required = (150, 100) if arguments.quick else (475, 400)
    with expdb.open(arguments.file) as db:
        learner = train(
            db.buffer("cartpole", capacity=50_000), Path(f"{arguments.file}.pt"), goal, STEPS
        )
        mean = evaluate(learner, range(30))
        print(f"mean return of 30 new episodes: {mean:.0f}")
        assert mean >= required, f"the mean return must be at least {required}"
        print(
            db.sql("""SELECT policy_version, count(*) AS episodes, avg(episode_return) AS mean,
                      max(episode_return) AS best
            FROM experience_episodes WHERE status = 'complete' GROUP BY 1 ORDER BY 1""").to_pylist()
        )
