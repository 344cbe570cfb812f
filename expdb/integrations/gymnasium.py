"""Gymnasium: record what any environment, single or vectorized, is played like.

>>> import gymnasium as gym
>>> from expdb.integrations.gymnasium import record
>>> with record(gym.make("CartPole-v1"), buffer, agent_id="random") as env:  # doctest: +SKIP
...     obs, info = env.reset(seed=0)
...     for _ in range(1000):
...         obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
...         if terminated or truncated:
...             obs, info = env.reset()
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

import expdb

__all__ = ["Recorder", "VectorRecorder", "record"]


def record(
    env: Any,
    buffer: expdb.ReplayBuffer,
    *,
    task_id: str | None = None,
    task_name: str | None = None,
    agent_id: str = "agent",
    policy_version: int | None = None,
    tags: Mapping[str, Any] | None = None,
    **flushing: Any,
) -> Any:
    """Return the environment, recorded: play it as before, and every step of it is stored.

    An episode of the environment is one of the buffer, with its last observation. Dict and Tuple spaces become a field
    a leaf (`obs.image`, `action.0`). `task_id` is by default the environment's id, and `task_name` the `task_id`; in a
    vector environment, in any of the three autoreset modes, the k-th one's agent is `<agent_id>/<k>`. `tags` are those of
    the episodes, a seed that `reset` was given among them. `flushing` goes to `buffer.episode`: `flush_steps=1` makes each
    step durable, and visible to learners, at once. An episode that `reset` or `close` cuts off is aborted: its
    transitions are drawn, but not the episode as a whole.

    The environment that is returned has, beside what the given one has, `policy_version`, which counts for episodes that
    begin after it was set; `annotate(**fields)`, fields to store with the next step, arrays [num_envs, ...] for a vector
    environment; and `flush()`.
    """
    name = task_id or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
    tape = {
        "task_id": name, "task_name": task_name or name, "agent_id": agent_id, "policy_version": policy_version,
        "tags": dict(tags or {}), **flushing,
    }  # fmt: skip
    if not isinstance(buffer, expdb.ReplayBuffer):
        raise expdb.InvalidValue(f"buffer is {buffer!r}: give one such as db.buffer('train')")
    return VectorRecorder(env, buffer, tape) if isinstance(env, VectorEnv) else Recorder(env, buffer, tape)


class _Tape:
    """The episode that one environment is in, while it is in one."""

    def __init__(self, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        self.buffer, self.options = buffer, options
        self.episode: expdb.EpisodeWriter | None = None
        self.obs: Any = None

    def begin(self, obs: Any, policy_version: int | None, seed: int | None) -> None:
        """Note the first observation; the episode is one with its first step."""
        self.cut()
        tags = self.options["tags"] | ({} if seed is None else {"seed": seed})
        self._opening = {**self.options, "policy_version": policy_version, "tags": tags or None}
        self.obs = _named(copy.deepcopy(obs))

    def step(self, action: Any, after: Any, reward: Any, terminated: Any, truncated: Any, fields: dict[str, Any]) -> None:
        """Add a step; `after` is the observation after it, the last one where the episode ends."""
        if self.episode is None:
            self.episode = self.buffer.episode(**self._opening)
        self.episode.append(
            obs=self.obs, action=_named(action), reward=float(reward), terminated=bool(terminated), truncated=bool(truncated), **fields
        )
        self.obs = _named(copy.deepcopy(after))  # some environments write each observation over the one before
        if terminated or truncated:
            self.episode.end(obs=self.obs)
            self.episode = None

    def cut(self) -> None:
        """End an episode that does not come to its end."""
        if self.episode is not None:
            self.episode.abort(obs=self.obs)
            self.episode = None

    def flush(self) -> None:
        """Write what was recorded."""
        if self.episode is not None:
            self.episode.flush()


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is recorded; see `record`."""

    def __init__(self, env: Any, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        super().__init__(env)
        self._tape, self.policy_version = _Tape(buffer, options), options["policy_version"]
        self._fields: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._tape.begin(obs, self.policy_version, seed)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and store it."""
        after, reward, terminated, truncated, info = self.env.step(action)
        fields, self._fields = self._fields, {}
        self._tape.step(action, after, reward, terminated, truncated, fields)
        return after, reward, terminated, truncated, info

    def annotate(self, **fields: Any) -> None:
        """Store fields with the next step."""
        self._fields |= fields

    def flush(self) -> None:
        """Write what was recorded: it is durable and visible to all when this returns."""
        self._tape.flush()

    def close(self) -> None:
        """Write what was recorded, and close the environment."""
        self._tape.cut()
        super().close()


class VectorRecorder(VectorWrapper):
    """A vector environment that is recorded; see `record`."""

    def __init__(self, env: Any, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        super().__init__(env)
        agent = options["agent_id"]
        self._tapes = [_Tape(buffer, {**options, "agent_id": f"{agent}/{k}"}) for k in range(env.num_envs)]
        self.policy_version = options["policy_version"]
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._fields: dict[str, Any] = {}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes: of all environments, or of those in `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")  # gymnasium takes it out of the options
        obs, info = self.env.reset(seed=seed, options=options)
        for k in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            given = seed[k] if isinstance(seed, (list, tuple)) else None if seed is None else seed + k  # as gymnasium does
            self._tapes[k].begin(_part(obs, k), self.policy_version, given)
            self._ended[k] = False
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment, and store them."""
        after, rewards, terminated, truncated, info = self.env.step(actions)
        fields, self._fields = self._fields, {}
        for k, tape in enumerate(self._tapes):
            if self._ended[k]:
                if self._mode is AutoresetMode.DISABLED:
                    raise expdb.InvalidValue(f"environment {k} has ended: reset it with options={{'reset_mask': ...}} before the next step")
                tape.begin(_part(after, k), self.policy_version, None)  # this step only reset it, and its action was ignored
                self._ended[k] = False
                continue
            ends = bool(terminated[k] or truncated[k])
            last = info["final_obs"][k] if ends and self._mode is AutoresetMode.SAME_STEP else _part(after, k)
            tape.step(_part(actions, k), last, rewards[k], terminated[k], truncated[k], {name: value[k] for name, value in fields.items()})
            if ends and self._mode is AutoresetMode.SAME_STEP:
                tape.begin(_part(after, k), self.policy_version, None)
            else:
                self._ended[k] = ends
        return after, rewards, terminated, truncated, info

    def annotate(self, **fields: Any) -> None:
        """Store fields with the next steps: arrays [num_envs, ...]."""
        for name, value in fields.items():
            if len(value) != self.num_envs:
                raise expdb.InvalidValue(f"{name} has {len(value)} entries: give one for each of the {self.num_envs} environments")
        self._fields |= fields

    def flush(self) -> None:
        """Write what was recorded: it is durable and visible to all when this returns."""
        for tape in self._tapes:
            tape.flush()

    def __enter__(self) -> VectorRecorder:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self, **options: Any) -> None:
        """Write what was recorded, and close the environments."""
        for tape in self._tapes:
            tape.cut()
        super().close(**options)


def _named(value: Any) -> Any:
    """Turn tuples into mappings, of which a field a leaf is stored."""
    if isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    return {key: _named(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _part(value: Any, k: int) -> Any:
    """Return one environment's part of what a vector environment gives or takes."""
    if isinstance(value, tuple):
        return tuple(_part(one, k) for one in value)
    return {key: _part(one, k) for key, one in value.items()} if isinstance(value, Mapping) else value[k]
