"""Record a single Gymnasium environment, and vectorized environments in each autoreset mode."""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import expdb
from expdb.integrations.gymnasium import record

if __name__ == "__main__":
    with expdb.open(sys.argv[1] if len(sys.argv) > 1 else "recording.db") as db:
        with record(gym.make("CartPole-v1"), db.buffer("single"), agent_id="random") as env:
            env.reset(seed=0)
            for _ in range(300):
                *_, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    env.reset()
        for mode in AutoresetMode:
            envs = gym.make_vec("CartPole-v1", 4, "sync", vector_kwargs={"autoreset_mode": mode})
            with record(envs, db.buffer(mode.name), agent_id="random") as envs:
                envs.reset(seed=0)
                for step in range(100):
                    envs.annotate(time=np.full(4, step))
                    _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
                    if mode is AutoresetMode.DISABLED and (terminated | truncated).any():
                        envs.reset(options={"reset_mask": terminated | truncated})
        print(
            db.sql(
                "SELECT buffer, count(*) AS steps, count(DISTINCT episode) AS episodes FROM "
                "experience GROUP BY 1"
            ).to_pylist()
        )
        assert db.check() == []
