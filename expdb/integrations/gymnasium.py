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

_FLUSHING = {"flush_bytes", "flush_seconds", "flush_steps", "group_id"}
_TAKEN = {"obs", "action", "reward", "terminated", "truncated", "step"}


def record(
    env: Any,
    buffer: expdb.ReplayBuffer,
    *,
    task_id: str | None = None,
    task_name: str | None = None,
    agent_id: str = "agent",
    policy_version: int | None = None,
    episode_tags: Mapping[str, Any] | None = None,
    **flushing: Any,
) -> Any:
    """Return the environment, recorded: play it as before, and every step of it is stored.

    An episode of the environment is one of the buffer, with its final observation. Dict and Tuple
    spaces become one field per leaf (`obs.image`, `action.0`). `task_id` is by default the
    environment's id, and `task_name` the `task_id`; in a vector environment, in any of the three
    autoreset modes, the k-th one's agent is `<agent_id>/<k>`. `episode_tags` are those of the
    episodes, a seed that `reset` was given among them. `flushing` goes to `buffer.episode`:
    `flush_steps=1` makes each step durable, and visible to learners, at once. An episode that
    `reset` or `close` cuts off is aborted: its transitions are drawn, but not the episode as a
    whole.

    The environment that is returned has, beside what the given one has, `policy_version`, which
    counts for episodes that begin after it was set; `annotate(**fields)`, fields to store with the
    next step, arrays [num_envs, ...] for a vector environment; and `flush()`.
    """
    if not isinstance(env, (gym.Env, VectorEnv)):
        raise expdb.InvalidValue(
            f"env is {env!r}: give an environment such as gym.make('CartPole-v1')"
        )
    if not isinstance(buffer, expdb.ReplayBuffer):
        raise expdb.InvalidValue(f"buffer is {buffer!r}: give one such as db.buffer('train')")
    if unknown := set(flushing) - _FLUSHING:
        raise expdb.InvalidValue(
            f"record has no option {min(unknown)!r}: there are task_id, task_name, agent_id, "
            f"policy_version, episode_tags, {', '.join(sorted(_FLUSHING))}"
        )
    for name in ("observation_space", "action_space"):
        _check(getattr(env, f"single_{name}" if isinstance(env, VectorEnv) else name))
    if _resets_itself(env):
        raise expdb.InvalidValue(
            "the environment resets itself, which cannot be told from a step: wrap the other way, "
            "Autoreset(record(env, buffer))"
        )
    name = task_id or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
    tape = {
        "task_id": name, "task_name": task_name or name, "agent_id": agent_id,
        "policy_version": policy_version,
        "episode_tags": dict(episode_tags or {}), **flushing,
    }  # fmt: skip
    return (
        VectorRecorder(env, buffer, tape)
        if isinstance(env, VectorEnv)
        else Recorder(env, buffer, tape)
    )


class _Tape:
    """The episode that one environment is in, while it is in one."""

    def __init__(self, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        self.buffer, self.options = buffer, options
        self.episode: expdb.EpisodeWriter | None = None
        self.obs: Any = None
        self.begun = False  # between a reset and the end of the episode

    def begin(self, obs: Any, policy_version: int | None, seed: int | None) -> None:
        """Note the first observation; the episode is one with its first step."""
        self.cut()
        tags = self.options["episode_tags"] | ({} if seed is None else {"seed": seed})
        self._opening = {
            **self.options,
            "policy_version": policy_version,
            "episode_tags": tags or None,
        }
        self.obs, self.begun = _named(copy.deepcopy(obs)), True

    def step(
        self,
        action: Any,
        after: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        fields: dict[str, Any],
    ) -> None:
        """Add a step; `after` is the observation after it, the last one where the episode ends."""
        if self.episode is None:
            self.episode = self.buffer.episode(**self._opening)
        self.episode.append(
            obs=self.obs,
            action=_named(action),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            **fields,
        )
        # Some environments write each observation over the one before.
        self.obs = _named(copy.deepcopy(after))
        if terminated or truncated:
            self.episode.end(obs=self.obs)
            self.episode, self.begun = None, False

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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._tape.begin(obs, self.policy_version, seed)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and store it.

        Raise expdb.InvalidValue before a reset, as the episode has not begun or has ended.
        """
        if not self._tape.begun:
            raise expdb.InvalidValue(
                "there is no episode, or it has ended: call reset() before the next step"
            )
        after, reward, terminated, truncated, info = self.env.step(action)
        fields, self._fields = self._fields, {}
        self._tape.step(action, after, reward, terminated, truncated, fields)
        return after, reward, terminated, truncated, info

    def annotate(self, **fields: Any) -> None:
        """Store fields with the next step."""
        self._fields |= _free(fields)

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
        self._tapes = [
            _Tape(buffer, {**options, "agent_id": f"{agent}/{k}"}) for k in range(env.num_envs)
        ]
        self.policy_version = options["policy_version"]
        self._mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._fields: dict[str, Any] = {}

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes: of all environments, or of those in `options["reset_mask"]`."""
        mask = (options or {}).get("reset_mask")  # gymnasium takes it out of the options
        obs, info = self.env.reset(seed=seed, options=options)
        for k in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            # One seed counts up over the environments, as in Gymnasium.
            given = (
                seed[k] if isinstance(seed, (list, tuple)) else None if seed is None else seed + k
            )
            self._tapes[k].begin(self._seen(obs, k), self.policy_version, given)
            self._ended[k] = False
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment, and store them.

        Raise expdb.InvalidValue where one has no episode to go on with.
        """
        for k, tape in enumerate(self._tapes):
            if not tape.begun and not (self._ended[k] and self._mode is AutoresetMode.NEXT_STEP):
                what = (
                    "has ended: reset it with options={'reset_mask': ...}"
                    if self._ended[k]
                    else "has not begun: call reset()"
                )
                raise expdb.InvalidValue(f"environment {k} {what} before the next step")
        after, rewards, terminated, truncated, info = self.env.step(actions)
        fields, self._fields = self._fields, {}
        for k, tape in enumerate(self._tapes):
            if self._ended[k]:
                # This step only reset it, and its action was ignored.
                tape.begin(self._seen(after, k), self.policy_version, None)
                self._ended[k] = False
                continue
            ends = bool(terminated[k] or truncated[k])
            last = (
                info["final_obs"][k]
                if ends and self._mode is AutoresetMode.SAME_STEP
                else self._seen(after, k)
            )
            tape.step(
                _part(actions, k, self.single_action_space),
                last,
                rewards[k],
                terminated[k],
                truncated[k],
                {name: value[k] for name, value in fields.items()},
            )
            if ends and self._mode is AutoresetMode.SAME_STEP:
                tape.begin(self._seen(after, k), self.policy_version, None)
            else:
                self._ended[k] = ends
        return after, rewards, terminated, truncated, info

    def annotate(self, **fields: Any) -> None:
        """Store fields with the next steps: arrays [num_envs, ...]."""
        for name, value in _free(fields).items():
            if (
                isinstance(value, (Mapping, str))
                or np.ndim(value) == 0
                or len(value) != self.num_envs
            ):
                raise expdb.InvalidValue(
                    f"{name} is {value!r}: give an array or a list with an entry for each of the "
                    f"{self.num_envs} environments"
                )
        self._fields |= fields

    def _seen(self, obs: Any, k: int) -> Any:
        return _part(obs, k, self.single_observation_space)

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
    """Turn tuples into mappings, which are stored as one field per leaf."""
    if isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    return (
        {key: _named(part) for key, part in value.items()} if isinstance(value, Mapping) else value
    )


def _part(value: Any, k: int, space: gym.Space[Any]) -> Any:
    """Return one environment's part of what a vector environment gives or takes.

    It is batched leaf by leaf, or has one entry per environment.
    """
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_part(one, k, part) for one, part in zip(value, space.spaces, strict=True))
    if isinstance(space, gym.spaces.Dict):
        return {key: _part(value[key], k, part) for key, part in space.spaces.items()}
    return value[k]


def _check(space: gym.Space[Any]) -> None:
    """Raise where values of a space have no fields of their own."""
    if isinstance(space, (gym.spaces.Sequence, gym.spaces.Graph, gym.spaces.OneOf)):
        raise expdb.InvalidValue(
            f"a space {type(space).__name__} has values of changing structure: wrap the "
            "environment so that it has Box, Discrete, Text, Dict or Tuple"
        )
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces:
            _check(part)


def _resets_itself(env: Any) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.Autoreset):
            return True
        env = env.env
    return False


def _free(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields none of which the recorder stores itself."""
    for name in fields:
        if name.split(".")[0] in _TAKEN:
            raise expdb.ReservedName(f"{name} is recorded already: annotate under another name")
    return fields
