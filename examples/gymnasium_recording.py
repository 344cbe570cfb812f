"""Record any Gymnasium environment, single or vectorized, in any of the three autoreset modes."""

import sys
from contextlib import ExitStack

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import expdb


def named(value):
    """Turn Dict and Tuple spaces into mappings, which expdb stores as one field a leaf (obs.image, obs.1)."""
    if isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    return {key: named(part) for key, part in value.items()} if isinstance(value, dict) else value


def part(value, index):
    """Pick one environment's part of a vector environment's observation or action."""
    if isinstance(value, tuple):
        return tuple(part(one, index) for one in value)
    return {key: part(one, index) for key, one in value.items()} if isinstance(value, dict) else value[index]


def record(env, buffer, steps, policy, seed=0):
    """Take `steps` steps of one environment."""
    with ExitStack() as open_episode:
        episode = None
        for _ in range(steps):
            if episode is None:
                obs, _ = env.reset(seed=seed)
                seed, episode = None, open_episode.enter_context(buffer.episode(env.spec.id, task_name=env.spec.id))
            action = policy(obs)
            after, reward, terminated, truncated, _ = env.step(action)
            episode.append(obs=named(obs), action=named(action), reward=float(reward),
                           terminated=bool(terminated), truncated=bool(truncated))  # fmt: skip
            obs = after
            if terminated or truncated:
                episode.end(obs=named(obs))
                episode = None


def record_vector(envs, buffer, steps, policy, seed=0):
    """Take `steps` steps of every environment; each has its own episodes."""
    mode, name = envs.metadata["autoreset_mode"], envs.spec.id
    obs, _ = envs.reset(seed=seed)
    with ExitStack() as open_episodes:
        episodes = [None] * envs.num_envs
        resetting = np.zeros(envs.num_envs, bool)
        for _ in range(steps):
            actions = policy(obs)
            after, rewards, terminated, truncated, info = envs.step(actions)
            done = terminated | truncated
            for k in np.flatnonzero(~resetting):  # NEXT_STEP: the step after an end only resets, its action is ignored
                if episodes[k] is None:
                    writer = buffer.episode(f"{name}/{k}", task_name=name, agent_id=f"env{k}")
                    episodes[k] = open_episodes.enter_context(writer)
                episodes[k].append(obs=named(part(obs, k)), action=named(part(actions, k)), reward=float(rewards[k]),
                                   terminated=bool(terminated[k]), truncated=bool(truncated[k]))  # fmt: skip
                if done[k]:  # SAME_STEP: `after` is the next episode's first, the last one is in info
                    last = info["final_obs"][k] if mode is AutoresetMode.SAME_STEP else part(after, k)
                    episodes[k].end(obs=named(last))
                    episodes[k] = None
            resetting = done if mode is AutoresetMode.NEXT_STEP else np.zeros_like(done)
            if mode is AutoresetMode.DISABLED and done.any():
                after, _ = envs.reset(options={"reset_mask": done})
            obs = after


if __name__ == "__main__":
    with expdb.open(sys.argv[1] if len(sys.argv) > 1 else "recording.db") as db:
        single = gym.make("CartPole-v1")
        record(single, db.buffer("single"), 300, lambda obs: single.action_space.sample())
        for mode in AutoresetMode:
            envs = gym.make_vec("CartPole-v1", 4, "sync", vector_kwargs={"autoreset_mode": mode})
            record_vector(envs, db.buffer(mode.name), 100, lambda obs, envs=envs: envs.action_space.sample())
        print(db.sql("SELECT buffer, count(*) AS steps, count(DISTINCT episode) AS episodes FROM experience GROUP BY 1").to_pylist())
        assert db.check() == []
