"""Record the episodes of any Gymnasium environment, single or vectorized.

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
from expdb import errors

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
    """Wrap an environment so that every step is stored.

    Use the returned environment as before. The buffer stores each episode of the environment as an
    episode, including the final observation. Dict and Tuple spaces become one field per leaf, such
    as `obs.image` and `action.0`. If `reset` or `close` interrupts an episode, the episode is
    aborted: you can sample its transitions, but not the episode as a whole.

    Vector environments are supported in all three autoreset modes.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        The environment.
    buffer : ReplayBuffer
        The buffer that stores the steps.
    task_id : str, optional
        The task of the episodes; by default the id of the environment.
    task_name : str, optional
        The name of the task; by default the `task_id`.
    agent_id : str
        The agent of the episodes. In a vector environment, the agent of environment k is
        `<agent_id>/<k>`.
    policy_version : int, optional
        The policy version of the episodes.
    episode_tags : mapping, optional
        The tags of the episodes. The seed that you pass to `reset` is stored as the tag `seed`.
    **flushing
        Options of `buffer.episode`: `flush_bytes`, `flush_seconds`, `flush_steps` and `group_id`.
        With `flush_steps=1`, each step is durable and visible to learners immediately.

    Returns
    -------
    Recorder or VectorRecorder
        The environment with three additional attributes: `policy_version`, which applies to
        episodes that begin after you set it; `annotate(**fields)`, which adds fields to the next
        step; and `flush()`, which writes the recorded steps.

    Raises
    ------
    InvalidValue
        If an argument is invalid, the environment resets itself, or the values of a space vary in
        structure, as in `gymnasium.spaces.Sequence`.
    """
    if not isinstance(env, (gym.Env, VectorEnv)):
        raise expdb.InvalidValue(
            f"env must be an environment such as gym.make('CartPole-v1'), got {env!r}"
        )
    if not isinstance(buffer, expdb.ReplayBuffer):
        raise expdb.InvalidValue(
            f"buffer must be a ReplayBuffer such as db.buffer('train'), got {buffer!r}"
        )
    if unknown := set(flushing) - _FLUSHING:
        raise expdb.InvalidValue(
            f"record() has no option {min(unknown)!r}; expected one of task_id, task_name, "
            f"agent_id, policy_version, episode_tags, {', '.join(sorted(_FLUSHING))}"
        )
    for name in ("observation_space", "action_space"):
        _check(getattr(env, f"single_{name}" if isinstance(env, VectorEnv) else name))
    if _resets_itself(env):
        raise expdb.InvalidValue(
            "the environment resets itself, so resets cannot be distinguished from steps; use "
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
    """Record the current episode of one environment."""

    def __init__(self, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        self.buffer, self.options = buffer, options
        self.episode: expdb.EpisodeWriter | None = None
        self.obs: Any = None
        self.begun = False  # True between a reset and the end of the episode

    def begin(self, obs: Any, policy_version: int | None, seed: int | None) -> None:
        """Remember the first observation; the first step creates the episode in the buffer."""
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
        """Add a step; `after` is the next observation, or the final one if the episode ends."""
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
        # Some environments overwrite the previous observation in place.
        self.obs = _named(copy.deepcopy(after))
        if terminated or truncated:
            self.episode.end(obs=self.obs)
            self.episode, self.begun = None, False

    def cut(self) -> None:
        """Abort the current episode."""
        if self.episode is not None:
            self.episode.abort(obs=self.obs)
            self.episode = None

    def flush(self) -> None:
        """Write the recorded steps."""
        if self.episode is not None:
            self.episode.flush()


class Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """A recorded environment; see `record`.

    Parameters
    ----------
    env : Env or VectorEnv
        The environment to record.
    buffer : ReplayBuffer
        The buffer that stores the steps.
    options : dict
        The options of `record`.
    """

    def __init__(self, env: Any, buffer: expdb.ReplayBuffer, options: dict[str, Any]):
        super().__init__(env)
        self._tape, self.policy_version = _Tape(buffer, options), options["policy_version"]
        self._fields: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Parameters
        ----------
        seed : int, optional
            Seed of the environment. It is stored with the episode.
        options : dict, optional
            Options of the environment.

        Returns
        -------
        obs : object
            The first observation.
        info : dict
            The infos of the environment.
        """
        obs, info = self.env.reset(seed=seed, options=options)
        self._tape.begin(obs, self.policy_version, seed)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step in the environment, and store it.

        Parameters
        ----------
        action : object
            The action.

        Returns
        -------
        obs : object
            The observation after the step.
        reward : float
            The reward.
        terminated : bool
            Whether the episode has reached a terminal state.
        truncated : bool
            Whether the episode was truncated, for example by a time limit.
        info : dict
            The infos of the environment.

        Raises
        ------
        InvalidValue
            If no episode has begun or the episode has ended.
        """
        if not self._tape.begun:
            raise expdb.InvalidValue(
                "the episode has ended or has not begun; call reset() before the next step"
            )
        after, reward, terminated, truncated, info = self.env.step(action)
        fields, self._fields = self._fields, {}
        self._tape.step(action, after, reward, terminated, truncated, fields)
        return after, reward, terminated, truncated, info

    def annotate(self, **fields: Any) -> None:
        """Store additional fields with the next step.

        Parameters
        ----------
        **fields
            Values of fields by name.

        Raises
        ------
        ReservedName
            If the recorder itself stores a field of that name.
        """
        self._fields |= _free(fields)

    def flush(self) -> None:
        """Write the recorded steps, which are then durable and visible to all processes."""
        self._tape.flush()

    def close(self) -> None:
        """Write the recorded steps, abort the current episode, and close the environment."""
        self._tape.cut()
        super().close()


class VectorRecorder(VectorWrapper):
    """A recorded vector environment; see `record`.

    Parameters
    ----------
    env : Env or VectorEnv
        The environment to record.
    buffer : ReplayBuffer
        The buffer that stores the steps.
    options : dict
        The options of `record`.
    """

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
        """Begin an episode in all environments, or in the environments of `options["reset_mask"]`.

        Parameters
        ----------
        seed : int or sequence of int, optional
            Seeds of the environments. If `seed` is an int, environment k gets `seed + k`.
        options : dict, optional
            Options of the environments, such as `reset_mask`.

        Returns
        -------
        obs : object
            The observations.
        info : dict
            The infos of the environments.
        """
        mask = (options or {}).get("reset_mask")  # gymnasium removes it from the options
        obs, info = self.env.reset(seed=seed, options=options)
        for k in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            # Environment k gets seed + k, as in Gymnasium.
            env_seed = (
                seed[k] if isinstance(seed, (list, tuple)) else None if seed is None else seed + k
            )
            self._tapes[k].begin(self._seen(obs, k), self.policy_version, env_seed)
            self._ended[k] = False
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment, and store the steps.

        Parameters
        ----------
        actions : object
            The actions of all environments.

        Returns
        -------
        obs : object
            The observations after the step.
        rewards : ndarray, shape (num_envs,)
            The rewards.
        terminated : ndarray of bool, shape (num_envs,)
            Whether each episode has reached a terminal state.
        truncated : ndarray of bool, shape (num_envs,)
            Whether each episode was truncated, for example by a time limit.
        info : dict
            The infos of the environments.

        Raises
        ------
        InvalidValue
            If an environment has no episode to continue.
        """
        for k, tape in enumerate(self._tapes):
            if not tape.begun and not (self._ended[k] and self._mode is AutoresetMode.NEXT_STEP):
                what = (
                    "has ended; reset this environment with options={'reset_mask': ...}"
                    if self._ended[k]
                    else "has not begun; call reset()"
                )
                raise expdb.InvalidValue(
                    f"the episode of environment {k} {what} before the next step"
                )
        after, rewards, terminated, truncated, info = self.env.step(actions)
        fields, self._fields = self._fields, {}
        for k, tape in enumerate(self._tapes):
            if self._ended[k]:
                # This step only reset the environment, which ignored the action.
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
        """Store additional fields with the next steps.

        Parameters
        ----------
        **fields
            Values of fields by name, each an array or list with one entry per environment.

        Raises
        ------
        ReservedName
            If the recorder itself stores a field of that name.
        InvalidValue
            If a value does not have one entry per environment.
        """
        for name, value in _free(fields).items():
            if (
                isinstance(value, (Mapping, str))
                or np.ndim(value) == 0
                or len(value) != self.num_envs
            ):
                raise expdb.InvalidValue(
                    f"{name} must be an array or a list with an entry for each of the "
                    f"{self.num_envs} environments, got {value!r}"
                )
        self._fields |= fields

    def _seen(self, obs: Any, k: int) -> Any:
        return _part(obs, k, self.single_observation_space)

    def flush(self) -> None:
        """Write the recorded steps, which are then durable and visible to all processes."""
        for tape in self._tapes:
            tape.flush()

    def __enter__(self) -> VectorRecorder:
        """Return the environment itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the environments."""
        self.close()

    def close(self, **options: Any) -> None:
        """Write the recorded steps, abort the current episodes, and close the environments.

        Parameters
        ----------
        **options
            Arguments of `VectorEnv.close`.
        """
        for tape in self._tapes:
            tape.cut()
        super().close(**options)


def _named(value: Any) -> Any:
    """Convert tuples to mappings, which are stored as one field per leaf."""
    if isinstance(value, tuple):
        value = {str(index): part for index, part in enumerate(value)}
    return (
        {key: _named(part) for key, part in value.items()} if isinstance(value, Mapping) else value
    )


def _part(value: Any, k: int, space: gym.Space[Any]) -> Any:
    """Return the value of environment `k` from a value of a vector environment.

    The leaves of a Dict or Tuple space are batched separately. Other values have one entry per
    environment.
    """
    if isinstance(space, gym.spaces.Tuple):
        return tuple(
            _part(element, k, part) for element, part in zip(value, space.spaces, strict=True)
        )
    if isinstance(space, gym.spaces.Dict):
        return {key: _part(value[key], k, part) for key, part in space.spaces.items()}
    return value[k]


def _check(space: gym.Space[Any]) -> None:
    """Raise InvalidValue if the values of a space vary in structure, which no field can store."""
    if isinstance(space, (gym.spaces.Sequence, gym.spaces.Graph, gym.spaces.OneOf)):
        raise expdb.InvalidValue(
            f"values of a {type(space).__name__} space have varying structure; wrap the "
            "environment so that it uses Box, Discrete, Text, Dict or Tuple"
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
    """Return `fields`; raise ReservedName if the recorder itself stores a field of that name."""
    for name in fields:
        if name.split(".")[0] in _TAKEN:
            raise errors.ReservedName(
                f"{name!r} cannot be the name of an annotation, because the recorder stores a "
                "field of this name; choose another name"
            )
    return fields
