"""SB3's uniform replay buffers, which store each transition as a step in a database."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

import expdb
from expdb import errors
from expdb.integrations.locations import (
    PRIVATE,
    absolute,
    check_contents,
    reopened,
    restore_buffer,
    serialize_buffer,
)


@dataclass(frozen=True)
class _Rows(expdb.Sampler):
    """Draw transitions with NumPy's global generator, exactly as SB3 draws them.

    The column `unwritten` is -1 for a written transition. For an unwritten transition, the column
    is the number of transitions added later, and the position is a placeholder.
    """

    buffer: Any

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that `draw` adds to a batch."""
        return ("unwritten",)

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions of the transitions."""
        count, capacity, unwritten = (
            self.buffer.n_envs, self.buffer.buffer_size, self.buffer.unwritten,
        )  # fmt: skip
        stored = min((population.size + unwritten) // count, capacity)
        rows, envs = self.buffer.choose_rows(size, stored)
        if stored == capacity:  # SB3 overwrites row `pos` next, so row `pos` is the oldest
            rows = (rows - self.buffer.pos) % capacity
        newer = stored * count - 1 - (rows * count + envs)
        places = np.minimum(population.size - 1 - newer + unwritten, population.size - 1)
        return population.at(places), {"unwritten": np.where(newer < unwritten, newer, -1)}


@dataclass(frozen=True)
class _NStep(expdb.NStep):
    """Transitions over up to `n` steps, also in an unfinished episode."""

    may_start = expdb.Unit.may_start

    def layout(
        self, trajectories: expdb.Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> expdb.Layout:
        """Return each step with its n-step return and the last step of its transition."""
        last, taken, gained = rows, np.ones(len(rows), np.int64), trajectories.rewards(rows)
        for k in range(1, self.bounds[1]):
            on = ~trajectories.terminated(last) & ~trajectories.truncated(last) & (taken == k)
            after = np.where(on, trajectories.next_steps(last), -1)
            on &= after >= 0
            last = np.where(on, after, last)
            taken = taken + on
            gained = gained + np.where(on, self.gamma**k * trajectories.rewards(last), 0.0)
        terminated = trajectories.terminated(last)
        columns = {
            "reward": gained, "terminated": terminated, "truncated": trajectories.truncated(last),
            "discount": np.where(terminated, 0.0, self.gamma**taken), "n_steps": taken,
        }  # fmt: skip
        return expdb.Layout(rows, columns, last_rows=last)


class StoredBuffer(buffers.BaseBuffer):
    """Base of the replay buffers: each transition is a step of a buffer in a database.

    A row of SB3's arrays corresponds to `n_envs` steps, in the order of the environments.
    """

    @property
    def _has_discounts(self) -> bool:
        return self.n_steps > 1

    @property
    def _samples_unwritten(self) -> bool:
        """Whether samples include unwritten transitions; if not, sampling writes them first."""
        return self.n_steps == 1

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        location: str | os.PathLike[str] | None = None,
        name: str = "replay_buffer",
        task_id: str = "default",
        n_steps: int = 1,
        gamma: float = 0.99,
        flush_steps: int = 256,
        flush_seconds: float = 5.0,
        **options: Any,
    ):
        if optimize_memory_usage:
            raise ValueError(
                "optimize_memory_usage=True is not supported, because transitions are stored in "
                "a database; omit optimize_memory_usage"
            )
        if options:
            raise TypeError(
                f"{type(self).__name__} has no option {min(options)!r}; check its spelling"
            )
        # The constructor of SB3's ReplayBuffer would allocate arrays for the whole capacity.
        buffers.BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        location = PRIVATE if location is None else location
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        self._arguments = {
            "buffer_size": buffer_size, "observation_space": observation_space,
            "action_space": action_space, "device": device, "n_envs": n_envs,
            "handle_timeout_termination": handle_timeout_termination,
            "location": absolute(location),
            "name": name, "task_id": task_id, "n_steps": n_steps, "gamma": gamma,
            "flush_steps": flush_steps, "flush_seconds": flush_seconds,
        }  # fmt: skip
        self._unit: expdb.Unit = expdb.Step() if n_steps == 1 else _NStep(n_steps, gamma)
        self._sampler: expdb.Sampler = _Rows(self)
        self._given_rows: np.ndarray | None = None
        self._lock = threading.RLock()
        self._newest: deque[dict[str, Any]] = deque()  # including all unwritten steps
        self._may_lack_steps = False  # whether `_newest` may lack unwritten steps
        self._rng = np.random.default_rng(0)  # _Rows draws nothing from it
        self._is_declared_full = False
        self._columns = [
            *_columns("obs", observation_space, self.obs_shape),
            *_columns("next_obs", observation_space, self.obs_shape),
        ]
        self._action = np.dtype(buffers.ReplayBuffer._maybe_cast_dtype(action_space.dtype))
        fields = {name: expdb.Field(dtype.name, shape) for name, _, dtype, shape in self._columns}
        fields["action"] = expdb.Field(self._action.name, (self.action_dim,))
        self._fields = (*fields, "reward", "terminated", "truncated")
        if n_steps > 1:
            self._fields += ("n_steps",)
        self._buffer_fields = fields
        self.database = expdb.open(location)
        self._agents = [f"env_{k}" for k in range(n_envs)]
        self._open_buffer()

    def _open_buffer(self) -> None:
        name, capacity = self._arguments["name"], self.buffer_size * self.n_envs
        if name in self.database.buffers():  # another n_envs can give a slightly larger capacity
            stored_capacity = self.database.buffer(name).capacity or 0
            capacity = (
                stored_capacity
                if capacity <= stored_capacity < capacity + self.n_envs
                else capacity
            )
        self.buffer = self.database.buffer(name, capacity=capacity, fields=self._buffer_fields)
        self._writer = self._new_writer()
        self._added = self.buffer.stats()["added"]  # number of steps that were ever added

    def _new_writer(self) -> expdb.StepWriter:
        rows = -(-self._arguments["flush_steps"] // self.n_envs)
        return self.buffer.writer(
            flush_steps=rows * self.n_envs, flush_seconds=self._arguments["flush_seconds"]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self.flush()
        data = None
        if (
            self._arguments["location"] == PRIVATE
        ):  # no other process can open a private database, so copy the contents
            data = serialize_buffer(self.database.location, self.buffer)
        return reopened, (type(self), self._arguments), data

    def __setstate__(self, data: bytes) -> None:
        """Fill the empty buffer of a private database with the pickled contents."""
        check_contents(self.buffer.name, data, self.buffer.capacity)
        self._writer.close()
        restore_buffer(self.database, self.database.location, self.buffer.name, data)
        self._open_buffer()
        # The writer of these episodes no longer exists, so new steps start new episodes.
        for row in self.buffer.episodes().to_pylist():
            if row["status"] == "open":
                self.buffer.end_episode(row["episode_id"])

    # -- SB3's attributes ----------------------------------------------------------------------

    @property
    def pos(self) -> int:
        """The index of the row of SB3's arrays that is written next, an int."""
        return int(self._added // self.n_envs % self.buffer_size)

    @pos.setter
    def pos(self, _: int) -> None:
        """Ignore the value: SB3 sets 0 in `__init__`, but `pos` follows from the added steps."""

    @property
    def full(self) -> bool:
        """Whether all rows contain transitions, or `full` was set to True."""
        return self._is_declared_full or self.size() == self.buffer_size

    @full.setter
    def full(self, value: bool) -> None:
        """Set whether to also sample rows that were never added, which contain zeros."""
        self._is_declared_full = bool(value)
        if value and (size := self.size()) < self.buffer_size:
            warnings.warn(
                f"full was set to True, but only {size} of {self.buffer_size} rows were added, "
                "so samples contain zeros for the missing rows; add the missing rows, or set "
                "full to False",
                errors.ExpDBWarning, stacklevel=2,
            )  # fmt: skip

    @property
    def observations(self) -> Any:
        """The observations of all rows, [buffer_size, n_envs, ...], or a dict of such arrays.

        Like the other arrays, they are read-only and are read from the database at each access.
        Rows that were never added are 0.
        """
        return self._seen_rows("obs")

    @property
    def next_observations(self) -> Any:
        """The next observations of all rows, in the form of `observations`."""
        return self._seen_rows("next_obs")

    @property
    def actions(self) -> np.ndarray:
        """The actions of all rows, [buffer_size, n_envs, action_dim]."""
        return self._rows(("action",), self._action, (self.action_dim,))

    @property
    def rewards(self) -> np.ndarray:
        """The rewards of all rows, float32 [buffer_size, n_envs]."""
        return self._rows(("reward",), np.dtype(np.float32), ())

    @property
    def dones(self) -> np.ndarray:
        """Whether the episode ended with the step, float32 [buffer_size, n_envs]."""
        return self._rows(("terminated", "truncated"), np.dtype(np.float32), ())

    @property
    def timeouts(self) -> np.ndarray:
        """Whether a time limit ended the episode, float32 [buffer_size, n_envs]."""
        return self._rows(("truncated",), np.dtype(np.float32), ())

    def _seen_rows(self, what: str) -> Any:
        arrays = {
            key: self._rows((name,), dtype, shape)
            for name, key, dtype, shape in self._columns
            if name.partition(".")[0] == what
        }
        return arrays if isinstance(self.obs_shape, dict) else arrays[None]

    def _rows(
        self, names: tuple[str, ...], dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return the elementwise maximum of columns, arranged in the rows of SB3's arrays."""
        self.flush()
        rows = np.zeros((self.buffer_size, self.n_envs, *shape), dtype)
        first = self._added - self.size() * self.n_envs
        number = self._added - len(self.buffer)  # number of the oldest stored step
        for batch in self.buffer.scan(fields=names):
            numbers = np.arange(number, number + batch.size)
            number += batch.size
            is_visible = numbers >= first
            slots, envs = np.divmod(numbers[is_visible], self.n_envs)
            values = np.maximum.reduce([batch[name][is_visible] for name in names])
            rows[slots % self.buffer_size, envs] = values
        rows.flags.writeable = False
        return rows

    @property
    def unwritten(self) -> int:
        """The number of added transitions that are not written yet, an int."""
        return self._writer.unwritten

    def size(self) -> int:
        """Return the number of rows, each with `n_envs` transitions.

        Returns
        -------
        int
            The number of rows.
        """
        steps = len(self.buffer) + self._writer.unwritten
        return int(min(steps // self.n_envs, self.buffer_size))

    # -- writing -------------------------------------------------------------------------------

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Add one transition of each environment, which is durable after the next flush.

        Parameters
        ----------
        obs, next_obs : ndarray or dict of ndarray
            Observations before and after the actions.
        action : ndarray
            Actions.
        reward, done : ndarray, shape (n_envs,)
            Rewards, and whether each episode ended.
        infos : list of dict
            Infos. `TimeLimit.truncated` marks an episode that a time limit ended.

        Raises
        ------
        InvalidValue
            If a reward is NaN or infinite. Nothing is added.
        """
        count = self.n_envs
        seen = {"obs": obs, "next_obs": next_obs}
        # Copy the arrays, because environments reuse them.
        names, arrays = ["action"], [np.array(action, self._action).reshape(count, -1)]
        for name, key, dtype, shape in self._columns:
            of = seen[name.partition(".")[0]]
            names.append(name)
            arrays.append(np.array(of if key is None else of[key], dtype).reshape(count, *shape))
        rewards = np.asarray(reward, np.float64).reshape(count)
        if not np.isfinite(rewards).all():
            raise expdb.InvalidValue(f"rewards must be finite, got {rewards.tolist()}")
        # Build all steps before any is appended: an incomplete row would shift all later rows.
        steps = [
            self._step(k, rewards[k], done[k], infos[k], names, values)
            for k, values in enumerate(zip(*arrays, strict=True))
        ]
        with self._lock:
            self._append(steps)

    def _append(self, steps: list[dict[str, Any]]) -> None:
        may_lack_steps, self._may_lack_steps = (
            self._may_lack_steps,
            True,
        )  # stays True after an interrupt or an error
        for step in steps:
            self._writer.append(**step)
        self._added += len(steps)
        if self._samples_unwritten:
            self._newest.extend(steps)
            while len(self._newest) > self._writer.unwritten:
                self._newest.popleft()
        self._may_lack_steps = may_lack_steps

    def _step(
        self, k: int, reward: Any, done: Any, info: dict[str, Any], names: Any, values: Any
    ) -> dict[str, Any]:
        """Return the arguments of `StepWriter.append` for the step of environment `k`."""
        timeout = bool(info.get("TimeLimit.truncated", False))
        return {
            "task_id": self._arguments["task_id"], "agent_id": self._agents[k],
            "reward": float(reward), "terminated": bool(done) and not timeout,
            "truncated": timeout, **dict(zip(names, values, strict=True)), **self._more(info),
        }  # fmt: skip

    def _more(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that store an info."""
        return {}

    def flush(self) -> None:
        """Write all added transitions, so that they are durable and visible to other processes."""
        if self._writer.unwritten:
            self._writer.flush()

    def reset(self) -> None:
        """Delete all transitions, including those of other processes."""
        self._writer.close()
        self.buffer.clear()
        self._writer = self._new_writer()
        self._added = self.buffer.stats()["added"]

    def close(self) -> None:
        """Write all added transitions and close the database."""
        self._writer.close()
        self.database.close()

    # -- sampling ------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions uniformly, exactly as SB3's buffer does with the same seed.

        Parameters
        ----------
        batch_size : int
            Number of transitions.
        env : VecNormalize, optional
            Environment that normalizes observations and rewards.

        Returns
        -------
        ReplayBufferSamples or DictReplayBufferSamples
            The transitions.

        Raises
        ------
        TooFewRows
            If the buffer has no transitions.
        ValueError
            If `n_steps` is above 1 and `env` normalizes rewards.
        """
        if self._is_declared_full:
            rows = np.random.randint(0, self.buffer_size, size=batch_size)
            return self._get_samples(rows, env)
        return self._samples(self._draw_with_unwritten(batch_size), env)

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        """Return transitions of the given rows, each from a random environment."""
        if self._is_declared_full and self.size() < self.buffer_size:
            return super()._get_samples(batch_inds, env)  # reads the arrays, with zeros
        self._given_rows = batch_inds
        try:
            return self._samples(self._draw_with_unwritten(len(batch_inds)), env)
        finally:
            self._given_rows = None

    def choose_rows(self, size: int, stored: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and an environment for each, as SB3 would with the same seed.

        Within `_get_samples`, return the rows that its caller has passed.

        Parameters
        ----------
        size : int
            Number of rows to draw.
        stored : int
            Number of rows with transitions.

        Returns
        -------
        rows : ndarray of int64, shape (size,)
            The rows.
        envs : ndarray of int64, shape (size,)
            The environment of each row.
        """
        rows = self._given_rows
        if rows is None:
            rows = np.random.randint(0, stored, size=size)
        return rows, np.random.randint(0, high=self.n_envs, size=len(rows))

    def _draw_with_unwritten(self, batch_size: int) -> dict[str, np.ndarray]:
        """Draw a batch; copy unwritten transitions from `_newest`."""
        with self._lock:
            return self._draw_under_lock(batch_size)

    def _draw_under_lock(self, batch_size: int) -> dict[str, np.ndarray]:
        fields = (*self._fields, "unwritten")
        if self._may_lack_steps or not self._samples_unwritten:
            self.flush()
            self._may_lack_steps = False
        try:
            batch = dict(self._draw(batch_size, fields))
        except expdb.TooFewRows as error:
            if not self.unwritten:
                raise expdb.TooFewRows(
                    f"buffer {self.buffer.name!r} has no transitions; add transitions before "
                    "sample()"
                ) from error
            self.flush()
            batch = dict(self._draw(batch_size, fields))
        newer = batch.pop("unwritten")
        names = [name for name in batch if name != "n_steps"]
        for row in np.flatnonzero(newer >= 0).tolist():
            step = self._newest[-1 - int(newer[row])]
            for name in names:
                batch[name][row] = step[name]
        return batch

    def _draw(self, batch_size: int, fields: tuple[str, ...]) -> expdb.Batch:
        return self.buffer.sample(
            batch_size,
            sampler=self._sampler,
            unit=self._unit,
            fields=fields,
            seed=self._rng,
        )

    def _samples(self, batch: Any, env: Any) -> Any:
        """Convert a batch to SB3's samples, and normalize them if `env` is given."""
        if env is not None and env.norm_reward and self.n_steps > 1:
            raise ValueError(
                "VecNormalize with norm_reward=True cannot normalize n-step returns; set "
                "norm_reward=False, or leave n_steps out"
            )
        done = batch["terminated"]
        if not self.handle_timeout_termination:
            done = done | batch["truncated"]
        reward = self._normalize_reward(batch["reward"].astype(np.float32).reshape(-1, 1), env)
        discounts = None
        if self._has_discounts:
            taken = batch["n_steps"] if self.n_steps > 1 else np.ones(len(done))
            discounts = (self.gamma ** taken.astype(np.float32)).reshape(-1, 1)
        kind = DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples
        return kind(
            observations=self._seen("obs", batch, env),
            actions=self._tensor(batch["action"]),
            next_observations=self._seen("next_obs", batch, env),
            dones=self._tensor(done.astype(np.float32).reshape(-1, 1)),
            rewards=self._tensor(reward),
            discounts=None if discounts is None else self._tensor(discounts),
        )

    def _seen(self, what: str, batch: Any, env: Any) -> Any:
        if not isinstance(self.obs_shape, dict):
            return self._tensor(self._normalize_obs(batch[what], env))
        seen = {key: batch[f"{what}.{key}"] for key in self.obs_shape}
        return {key: self._tensor(array) for key, array in self._normalize_obs(seen, env).items()}

    def _tensor(self, array: Any) -> torch.Tensor:
        return self.to_torch(array, copy=False)  # the batch has no other user


class ReplayBuffer(StoredBuffer, buffers.ReplayBuffer):
    """Store the transitions of SB3's `ReplayBuffer` in a database.

    Steps are written in groups. Samples include unwritten steps. If `n_steps` is above 1, each
    sample first writes the unwritten steps.

    Parameters
    ----------
    buffer_size : int
        Largest number of transitions.
    observation_space : gymnasium.spaces.Space
        Space of the observations.
    action_space : gymnasium.spaces.Space
        Space of the actions.
    device : torch.device or str
        Device of the sampled tensors.
    n_envs : int
        Number of environments.
    optimize_memory_usage : bool
        Must be False.
    handle_timeout_termination : bool
        Argument of SB3's `ReplayBuffer`. Timeouts are stored as `truncated` in both cases.
    location : str or path-like, optional
        Path of a database or PostgreSQL URL. By default, the database is private and temporary; it
        is deleted when it is closed.
    name : str
        Name of the buffer in the database. An existing buffer keeps its contents.
    task_id : str
        Name of the environment in SQL.
    n_steps : int
        Number of steps of a transition. Above 1, the buffer works like SB3's `NStepReplayBuffer`.
    gamma : float
        Discount factor for `n_steps` above 1.
    flush_steps : int
        Number of unwritten steps at which the buffer writes them.
    flush_seconds : float
        Number of seconds after which the next `add` writes the unwritten steps.
    **options
        Not supported; any other option raises TypeError.

    Raises
    ------
    ValueError
        If `optimize_memory_usage` is True.
    TypeError
        If an option is unknown.
    CapacityMismatch
        If the stored buffer is larger than `buffer_size`.
    """


class NStepReplayBuffer(ReplayBuffer):
    """Store the transitions of SB3's `NStepReplayBuffer` in a database.

    Parameters
    ----------
    *args
        Positional arguments of `ReplayBuffer`.
    n_steps : int
        Number of steps of a transition.
    gamma : float
        Discount factor.
    **options
        Further keyword arguments of `ReplayBuffer`.

    Raises
    ------
    ValueError
        If `optimize_memory_usage` is True.
    TypeError
        If an option is unknown.
    CapacityMismatch
        If the stored buffer is larger than `buffer_size`.
    """

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **options: Any):
        super().__init__(*args, n_steps=n_steps, gamma=gamma, **options)

    @property
    def _has_discounts(self) -> bool:
        return True


class DictReplayBuffer(StoredBuffer, buffers.DictReplayBuffer):
    """Store the transitions of SB3's `DictReplayBuffer` in a database.

    The fields of a step are `obs.<key>` and `next_obs.<key>`.

    Parameters
    ----------
    buffer_size : int
        Largest number of transitions.
    observation_space : gymnasium.spaces.Dict
        Space of the observations.
    *args, **options
        Further arguments of `ReplayBuffer`.

    Raises
    ------
    AssertionError
        If `observation_space` is not a Dict space.
    ValueError
        If `optimize_memory_usage` is True.
    TypeError
        If an option is unknown.
    CapacityMismatch
        If the stored buffer is larger than `buffer_size`.
    """

    def __init__(self, buffer_size: int, observation_space: Any, *args: Any, **options: Any):
        check_is_dict(self, observation_space)
        super().__init__(buffer_size, observation_space, *args, **options)


def check_is_dict(buffer: StoredBuffer, space: Any) -> None:
    """Raise AssertionError unless `space` is a Dict space, as SB3 does."""
    assert isinstance(space, spaces.Dict), (
        f"{type(buffer).__name__} must be used with Dict obs space only, got {space}"
    )


def seeded() -> np.random.Generator:
    """Return a generator that is seeded from NumPy's global generator."""
    return np.random.default_rng(np.random.randint(2**31))


def _columns(
    what: str, space: Any, shape: Any
) -> list[tuple[str, str | None, np.dtype[Any], tuple[int, ...]]]:
    """Return the field, key, dtype and shape of each part of an observation."""
    if isinstance(shape, dict):
        return [(f"{what}.{key}", key, np.dtype(space[key].dtype), shape[key]) for key in shape]
    return [(what, None, np.dtype(space.dtype), shape)]
