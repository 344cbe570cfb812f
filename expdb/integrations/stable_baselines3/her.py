"""Hindsight experience replay: relabel transitions with goals that their episodes achieved."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.her import her_replay_buffer as sb3
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)

import expdb
from expdb import errors
from expdb.integrations.positions import AtIndices
from expdb.integrations.records import Records
from expdb.integrations.stable_baselines3.buffers import StoredBuffer, check_is_dict


@dataclass(frozen=True)
class _CompleteEpisodes(expdb.Sampler):
    """Draw steps of complete episodes with NumPy's global generator, as SB3 does."""

    buffer: Any

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions that SB3 would draw from the same steps with the same seed."""
        positions = population.positions
        if not len(positions):
            return positions, {}
        # SB3's arrays are a ring that begins with the steps of the current pass.
        overwritten = np.searchsorted(positions, self.buffer.first_position)
        places = np.random.randint(0, len(positions), size=size)
        return population.at((places + overwritten) % len(positions)), {}


@dataclass(frozen=True)
class _Hindsight(expdb.Unit):
    """A step of a complete episode, and the step that provides its goal; arrays are [B, 2]."""

    strategy: GoalSelectionStrategy
    ratio: float  # share of the batch that gets a new goal; these steps come first

    reads = ("length", "ended")
    what = "steps of episodes that have ended"

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that `layout` adds to a batch."""
        return ("mask",)

    def may_start(self, trajectories: expdb.Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return a bool for each step: whether its episode has ended."""
        has_ended: np.ndarray = ~np.isnan(trajectories.of_episodes("ended", rows))
        return has_ended

    def layout(
        self, trajectories: expdb.Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> expdb.Layout:
        """Return each step, and the step of its episode that provides its goal."""
        virtual = rows[: int(self.ratio * len(rows))]
        own = trajectories.ordinals(virtual)
        lengths = trajectories.of_episodes("length", virtual).astype(np.int64)
        if self.strategy == GoalSelectionStrategy.FINAL:
            goals = lengths - 1
        elif self.strategy == GoalSelectionStrategy.FUTURE:  # the step itself included, as in SB3
            goals = np.random.randint(own, lengths)
        else:
            goals = np.random.randint(0, lengths)
        chosen = rows.copy()
        chosen[: len(virtual)] = _walked(trajectories, virtual, goals - own)
        pairs = np.column_stack((rows, chosen))
        mask = np.ones(pairs.shape, np.bool_)
        return expdb.Layout(pairs, {"mask": mask}, mask)


def _walked(trajectories: expdb.Trajectories, rows: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the row that is `steps` steps after each row, or before it if `steps` is negative.

    The count stops at the first or last stored step of the episode.
    """
    rows, steps = rows.copy(), steps.copy()
    while (on := np.flatnonzero(steps)).size:
        forward = steps[on] > 0
        there = np.where(
            forward, trajectories.next_steps(rows[on]), trajectories.previous_steps(rows[on])
        )
        rows[on] = np.where(there >= 0, there, rows[on])
        steps[on] = np.where(there >= 0, steps[on] - np.where(forward, 1, -1), 0)
    walked: np.ndarray = rows
    return walked


class HerReplayBuffer(StoredBuffer, sb3.HerReplayBuffer):
    """Store the transitions of SB3's `HerReplayBuffer` in a database.

    The class implements hindsight experience replay. Each sample first writes the unwritten
    transitions, and draws only from complete episodes.

    Parameters
    ----------
    buffer_size : int
        Largest number of transitions.
    observation_space : gymnasium.spaces.Dict
        Space of the observations, with the keys of a goal-conditioned environment.
    action_space : gymnasium.spaces.Space
        Space of the actions.
    env : VecEnv, optional
        Environment that computes the rewards of new goals.
    *args
        Further positional arguments of `ReplayBuffer`, from `device` on.
    n_sampled_goal : int
        Number of transitions with a new goal per transition with its own goal.
    goal_selection_strategy : GoalSelectionStrategy or str
        Which step of the episode provides the new goal: `"future"`, `"final"` or `"episode"`.
    copy_info_dict : bool
        Whether to store the infos and pass them to `compute_reward`. Infos round-trip exactly.
    **options
        Further keyword arguments of `ReplayBuffer`.

    Raises
    ------
    AssertionError
        If `observation_space` is not a Dict space.
    ValueError
        If `n_steps` is above 1, or `optimize_memory_usage` is True.
    CapacityMismatch
        If the stored buffer is larger than `buffer_size`.

    References
    ----------
    Andrychowicz et al. (2017), *Hindsight Experience Replay*, arXiv:1707.01495.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: Any = None,
        *args: Any,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ):
        check_is_dict(self, observation_space)
        self.copy_info_dict = copy_info_dict  # _open_buffer() reads it
        super().__init__(buffer_size, observation_space, action_space, *args, **options)
        if self.n_steps > 1:
            raise ValueError("HerReplayBuffer supports only n_steps=1; leave n_steps out")
        if isinstance(goal_selection_strategy, str):
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy.lower()]
        self._fields += ("position",)
        self.env = env
        self.goal_selection_strategy = goal_selection_strategy
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        self._sampler = _CompleteEpisodes(self)
        self._unit = _Hindsight(goal_selection_strategy, self.her_ratio)
        self._arguments |= {
            "n_sampled_goal": n_sampled_goal, "copy_info_dict": copy_info_dict,
            "goal_selection_strategy": goal_selection_strategy,
        }  # fmt: skip

    @property
    def _samples_unwritten(self) -> bool:
        return False

    def _open_buffer(self) -> None:
        super()._open_buffer()
        self._infos = Records(self.database, self.buffer) if self.copy_info_dict else None

    @property
    def first_position(self) -> int:
        """The first position of the current pass over SB3's arrays, an int."""
        capacity = self.buffer_size * self.n_envs
        return int(self._added // capacity * capacity)

    def _more(self, info: dict[str, Any]) -> dict[str, Any]:
        return {} if self._infos is None else self._infos.step({"info": info})

    def sample(self, batch_size: int, env: Any = None) -> DictReplayBufferSamples:
        """Draw transitions; the share `her_ratio` of them gets goals that their episodes achieved.

        Parameters
        ----------
        batch_size : int
            Number of transitions.
        env : VecNormalize, optional
            Environment that normalizes observations and rewards.

        Returns
        -------
        DictReplayBufferSamples
            The transitions; those with their own goals come first.

        Raises
        ------
        RuntimeError
            If no episode is complete.
        AssertionError
            If the buffer has no environment that computes rewards.
        """
        try:
            self.flush()
            pairs = self._draw(batch_size, self._fields)
        except expdb.TooFewRows as error:
            raise RuntimeError(
                "cannot sample before the end of the first episode; set learning_starts above the "
                "length of the longest episode"
            ) from error
        batch = {name: pairs[name][:, 0] for name in self._fields}
        virtual = slice(0, int(self.her_ratio * batch_size))
        goals = pairs["next_obs.achieved_goal"][virtual, 1]
        for name in ("obs.desired_goal", "next_obs.desired_goal"):
            batch[name][virtual] = goals
        assert self.env is not None, (
            "the buffer has no environment to compute rewards; call set_env() first"
        )
        batch["reward"][virtual] = self.env.env_method(
            "compute_reward",
            batch["next_obs.achieved_goal"][virtual],
            goals,
            self._infos_of(batch["position"][virtual]),
            indices=[0],
        )[0]
        # Like SB3, put the transitions with their own goals first.
        order = np.roll(np.arange(batch_size), -virtual.stop)
        return self._samples({name: array[order] for name, array in batch.items()}, env)

    def _infos_of(self, positions: np.ndarray) -> list[dict[str, Any]]:
        if self._infos is None:
            return [{} for _ in positions]
        batch = self.buffer.get(positions, fields=self._infos.fields)
        return [value["info"] for value in self._infos.values(batch)]

    def truncate_last_trajectory(self) -> None:
        """Truncate the unfinished episode of each environment, and warn if there is one.

        `load_replay_buffer()` calls this method unless you pass `truncate_last_traj=False`.
        """
        self.flush()
        count = min(len(self.buffer), self.n_envs)
        if not count:
            return
        newest = np.arange(len(self.buffer) - count, len(self.buffer))
        fields = ("position", "episode_id", "terminated", "truncated")
        last = self.buffer.sample(count, sampler=AtIndices(newest), fields=fields)
        is_open = ~(last["terminated"] | last["truncated"])
        if not is_open.any():
            return
        warnings.warn(
            "The last trajectory in the replay buffer will be truncated; steps that are added "
            "later belong to new episodes",
            errors.ExpDBWarning, stacklevel=2,
        )  # fmt: skip
        self._writer.close()
        self.buffer.update(last["position"][is_open], truncated=True)
        for episode in last["episode_id"][is_open]:
            with suppress(errors.EpisodeEnded):  # closing the writer ended its own episodes
                self.buffer.end_episode(episode)
        self._writer = self._new_writer()
