"""Train a recurrent double Q-learner (R2D2) on a memory task.

The learner trains on sequences with burn-in and with the stored memory of the actor.
"""

import argparse
from copy import deepcopy

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

import expdb
from expdb import QueryBuilder, Sequence
from expdb.integrations.gymnasium import record

CUES, LENGTH, HIDDEN, GAMMA, ENVS, BURN_IN = 4, 12, 48, 0.9, 32, 4


class Recall(gym.Env):
    """An environment that shows one of four cues at a random step of the first half.

    The last reward is 1 if the last action is the number of the cue.
    """

    observation_space = gym.spaces.Box(0, 1, (CUES + 1,), np.float32)
    action_space = gym.spaces.Discrete(CUES)

    def reset(self, *, seed=None, options=None):
        """Choose a cue."""
        super().reset(seed=seed)
        self.cue, self.shown, self.t = (
            int(self.np_random.integers(CUES)),
            int(self.np_random.integers(LENGTH // 2)),
            0,
        )
        return self.observe(), {}

    def observe(self):
        """Return the cue as one-hot vector (zeros at other steps), and 1 at the last step."""
        obs = np.zeros(CUES + 1, np.float32)
        obs[self.cue], obs[CUES] = self.t == self.shown, self.t == LENGTH - 1
        return obs

    def step(self, action):
        """Advance by one step."""
        self.t += 1
        return (
            self.observe(),
            float(self.t == LENGTH and action == self.cue),
            self.t == LENGTH,
            False,
            {},
        )


class Network(nn.Module):
    """A GRU that estimates one Q value per action."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(CUES + 1, HIDDEN), nn.Linear(HIDDEN, CUES)

    def forward(self, obs, memory, mask):
        """Return the Q values of sequences, with the shape [B, L, CUES].

        The memory does not change at padded steps.
        """
        values = []
        for t in range(obs.shape[1]):
            memory = memory.detach() if t == BURN_IN else memory  # burn-in gets no gradient
            memory = torch.where(mask[:, t, None], self.cell(obs[:, t], memory), memory)
            values.append(self.head(memory))
        return torch.stack(values, 1)


def loss_of(online, target, batch):
    """Return the squared errors of double Q-learning over the steps after the burn-in."""
    memory = batch["memory"][:, 0]  # the actor's memory at the first step, or zeros
    values = online(batch["obs"], memory, batch["mask"])
    with torch.no_grad():
        best = values[:, 1:].argmax(2, keepdim=True)
        following = target(batch["obs"], memory, batch["mask"])[:, 1:].gather(2, best)[:, :, 0]
    goal = batch["reward"].clone()
    goal[:, :-1] += GAMMA * following * ~batch["terminated"][:, :-1]
    taken = values.gather(2, batch["action"][:, :, None])[:, :, 0]
    inside = batch["mask"].clone()
    inside[:, :BURN_IN] = False
    inside[:, -1] &= batch["terminated"][:, -1]  # unknown next value
    return ((goal - taken)[inside] ** 2).mean()


def play(env, network, explore, rng):
    """Play one episode in each environment, and return the mean return."""
    obs, _ = env.reset(seed=int(rng.integers(1 << 30)))
    memory, total = torch.zeros(ENVS, HIDDEN), 0.0
    for _ in range(LENGTH):
        if hasattr(env, "annotate"):
            env.annotate(memory=memory.numpy().copy())
        with torch.no_grad():
            memory = network.cell(torch.from_numpy(obs), memory)
            action = network.head(memory).argmax(1).numpy()
        action = np.where(rng.random(ENVS) < explore, rng.integers(0, CUES, ENVS), action)
        obs, reward, *_ = env.step(action)
        total += float(reward.mean())
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="memory.db")
    parser.add_argument("--quick", action="store_true", help="short run with a lower goal")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng, online = np.random.default_rng(0), Network()
    target, optimizer = deepcopy(online), torch.optim.Adam(online.parameters(), 3e-3)
    envs = SyncVectorEnv([Recall] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    with expdb.open(arguments.file) as db:
        buffer = db.buffer("recall", capacity=100_000)
        recorded = record(envs, buffer, task_id="recall", agent_id="gru")
        for version in range(60 if arguments.quick else 150):
            recorded.policy_version = version
            play(recorded, online, max(0.1, 1 - version / 40), rng)
            # The network has changed too much since it computed the memories of older steps.
            fresh = QueryBuilder().eq("run", db.run).and_().gte("policy_version", version - 50)
            for _ in range(8):
                batch = buffer.sample(
                    64,
                    fresh,
                    unit=Sequence(LENGTH - BURN_IN, burn_in=BURN_IN, stride=BURN_IN),
                    seed=rng,
                )
                optimizer.zero_grad()
                loss_of(online, target, batch.to_torch()).backward()
                optimizer.step()
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.data.lerp_(fast.data, 0.02)
            if version % 20 == 19:
                print(
                    f"{version + 1} episodes per environment: mean return "
                    f"{play(envs, online, 0.0, rng):.2f}",
                    flush=True,
                )
        mean = np.mean([play(envs, online, 0.0, rng) for _ in range(8)])
        required = 0.5 if arguments.quick else 0.9
        print(f"mean return of {8 * ENVS} episodes: {mean:.2f}; random actions: {1 / CUES:.2f}")
        assert mean >= required, f"the mean return must be at least {required}"
        print(
            db.sql(
                """SELECT policy_version / 10 AS tens, count(*) AS episodes,
                          avg(episode_return) AS mean
                   FROM experience_episodes
            WHERE run = :run GROUP BY 1 ORDER BY 1""",
                {"run": db.run},
            ).to_pylist()
        )
