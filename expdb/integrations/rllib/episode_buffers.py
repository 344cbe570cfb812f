"""RLlib's episode replay buffers, uniform and prioritized."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import prioritized_episode_buffer as rllib_prioritized

import expdb
from expdb import errors
from expdb.integrations.rllib.stored_episodes import StoredEpisodes

FIELDS = "obs", "next_obs", "action"
ATTEMPTS = 10  # attempts to read, in case another process evicts steps


class EpisodeReplayBuffer(StoredEpisodes):
    """Store the episodes of RLlib's `EpisodeReplayBuffer` in a database.

    Parameters
    ----------
    capacity : int
        Largest number of timesteps.
    batch_size_B : int
        Default number of items of a sample.
    batch_length_T : int
        Default number of timesteps per row of a sample.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Name of the buffer in the database. An existing buffer keeps its contents.
    infos : bool
        Whether to store infos.
    seed : int, optional
        Seed of the samples.
    state_includes_data : bool
        Whether `get_state` also returns the episodes. For a private database, it always does.
    **options
        `metrics_num_episodes_for_smoothing`. Options that RLlib passes to every buffer, such as
        `type`, are ignored.

    Raises
    ------
    ValueError
        If an option is unknown.
    CapacityMismatch
        If `capacity` would evict stored episodes.
    """

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        sample_episodes: bool = False,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        **options: Any,
    ) -> Any:
        """Draw rows [B, T] of timesteps, slices of episodes, or transitions.

        By default, each row starts at a random step. If the episode of this step ends within the
        row, random other episodes follow from their first steps. With `sample_episodes=True` and
        `batch_length_T`, return slices of episodes. With `sample_episodes=True` alone, return
        transitions over `n_step` steps.

        Parameters
        ----------
        num_items, batch_size_B : int, optional
            Number of rows or transitions, or minimum number of timesteps of all slices together.
            Pass at most one of the two. The default is the buffer's `batch_size_B`.
        batch_length_T : int, optional
            Number of timesteps of a row, or largest number of timesteps of a slice.
        n_step : int or tuple of int, optional
            Number of steps of a transition. `(low, high)` draws a random number for each
            transition; `high` is excluded. Required with `sample_episodes=True`; must be 1 for
            slices.
        beta : float
            Ignored, because the sample is uniform.
        gamma : float
            Discount factor of the rewards of a transition.
        include_infos : bool
            Whether the returned episodes have infos.
        include_extra_model_outputs : bool
            Whether transitions have the extra model outputs of their first step.
        sample_episodes : bool
            Whether to return episodes.
        to_numpy : bool
            Whether to convert episodes to NumPy arrays.
        lookback : int
            Largest number of earlier steps that precede a slice.
        min_batch_length_T : int
            Minimum number of steps that the episode has after the first step of a slice.
        **options
            Other arguments, which are ignored.

        Returns
        -------
        dict of str to ndarray or list of SingleAgentEpisode
            By default, a dict with the rows of `obs`, `actions`, `rewards`, `is_first`, `is_last`,
            `is_terminated` and `is_truncated`. With `sample_episodes=True`, episodes that have the
            extra model outputs `weights` and `n_step`.

        Raises
        ------
        ValueError
            If the buffer is empty, or no episode is long enough.
        AssertionError
            If the arguments contradict each other.
        """
        assert num_items is None or batch_size_B is None, (
            "Cannot call `sample()` with both `num_items` and `batch_size_B` provided! Use either "
            "one."
        )
        size = num_items or batch_size_B or self.batch_size_B
        if not len(self):
            raise ValueError("Trying to sample from an empty buffer.")
        if not sample_episodes:
            return self._retry(self._rows, size, batch_length_T or self.batch_length_T)
        assert n_step is not None, (
            "When sampling episodes, `n_step` must be provided, but `n_step` is `None`."
        )
        if batch_length_T:
            assert n_step == 1, "When sampling sequences n-step must be 1."
            return self._retry(
                self._slices, size, batch_length_T, lookback, min_batch_length_T, include_infos,
                to_numpy,
            )  # fmt: skip
        episodes, batch = self._transitions(
            size, n_step, gamma, expdb.Uniform(True), include_infos, include_extra_model_outputs,
            to_numpy,
        )  # fmt: skip
        self._count_sample(batch["position"], batch["episode_id"], batch["n_steps"].mean())
        return episodes

    def _retry(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call `work`, and call it again if another process evicts an episode that it reads."""
        for _ in range(ATTEMPTS - 1):
            with suppress(errors.Evicted):
                return work(*arguments)
        return work(*arguments)

    def _draw_starts(self, size: int) -> list[tuple[str, int]]:
        """Draw random steps; return the episode id of each and its index in the episode."""
        batch = self._stored.draw(
            size, expdb.Uniform(replace=True), expdb.Step(), self.rng, "episode_id"
        )
        return [
            (id, int(self._stored.positions(id).searchsorted(position)))
            for id, position in zip(
                batch["episode_id"].tolist(), batch["position"].tolist(), strict=True
            )
        ]

    def _start_drawer(self, after: int) -> Callable[[], tuple[str, int]]:
        """Return a function that draws a random step followed by at least `after` steps."""
        ids = [id for id in self._stored.ids if len(self._stored.positions(id)) > after]
        if not len(ids):
            raise ValueError(
                f"the buffer has no episodes of more than {after} steps; add longer episodes"
            )
        ends = np.cumsum([len(self._stored.positions(id)) - after for id in ids])

        def draw() -> tuple[str, int]:
            drawn = int(self.rng.integers(ends[-1]))
            which = int(np.searchsorted(ends, drawn, "right"))
            return ids[which], drawn - (int(ends[which - 1]) if which else 0)

        return draw

    def _rows(self, size: int, length: int) -> dict[str, np.ndarray]:
        """Return rows of timesteps, filled up with other episodes as in RLlib's buffer."""
        shape, ids = (size, length), []
        steps = np.empty(shape, np.int64)  # position of the step that gives each action
        before = np.empty(shape, np.int64)  # position of the previous step; -1 if there is none
        is_first, is_last, is_final_obs = (np.zeros(shape, np.bool_) for _ in range(3))
        others = itertools.chain.from_iterable(self._draw_starts(size) for _ in itertools.count())
        for row, (id, first) in enumerate(self._draw_starts(size)):
            filled = 0
            while filled < length:
                own = self._stored.positions(id)
                # An episode has one more observation than steps.
                end = min(first + length - filled, len(own) + 1)
                part = np.arange(first, end)
                target = slice(filled, filled + len(part))
                steps[row, target] = own[np.minimum(part, len(own) - 1)]
                before[row, target] = np.where(part > 0, own[part - 1], -1)
                is_first[row, target.start] = is_last[row, target.stop - 1] = True
                is_final_obs[row, target.stop - 1] = end == len(own) + 1
                ids.append(id)
                filled = target.stop
                if filled < length:
                    (id, _), first = next(others), 0
        positions = np.unique(np.concatenate((steps, before), axis=None))
        positions = positions[positions >= 0]
        batch = self._stored.batch_at(positions)
        rows = positions.searchsorted(steps)
        self._count_sample(steps.reshape(-1), np.array(ids), None)
        columns = self._columns(batch)
        obs = columns["obs"][rows]
        obs[is_final_obs] = columns["next_obs"][rows[is_final_obs]]
        rewards = batch["reward"][positions.searchsorted(before).clip(0, len(positions) - 1)]
        return {
            "obs": obs, "actions": columns["action"][rows],
            "rewards": np.where(before >= 0, rewards, 0.0),
            "is_first": is_first, "is_last": is_last,
            "is_terminated": is_final_obs & batch["terminated"][rows],
            "is_truncated": is_final_obs & batch["truncated"][rows],
        }  # fmt: skip

    def _columns(self, batch: expdb.Batch) -> dict[str, np.ndarray]:
        """Return observations and actions as arrays; non-numeric values give object arrays."""
        table = self._stored.records.table(batch)
        if table is None or any(table[key].dtype == object for key in FIELDS):  # varying shapes
            values = self._stored.records.values(batch)
            table = {key: np.array([value[key] for value in values]) for key in FIELDS}
        return table

    def _slices(
        self, size: int, length: int, lookback: int, least: int, infos: bool, to_numpy: bool
    ) -> list[SingleAgentEpisode]:
        """Return slices of at least `size` timesteps in total, each with its lookback."""
        self._stored.flush()
        slices: list[SingleAgentEpisode] = []
        count, draw = 0, self._start_drawer(least)
        counted: list[tuple[np.ndarray, str]] = []
        while count < size:
            id, first = draw()
            own = self._stored.positions(id)
            begin, last = max(0, first - lookback), min(first + length, len(own))
            steps = last - begin
            more = {"n_step": [1] * steps, "weights": [1.0] * steps}
            episode = self._slice(id, begin, first, last, infos, **more)
            if to_numpy:
                episode.to_numpy()
            slices.append(episode)
            count += last - first
            counted.append((own[begin:last], id))
        for positions, id in counted:
            self._count_sample(positions, np.array([id]), 1.0)
        return slices


class PrioritizedEpisodeReplayBuffer(
    StoredEpisodes, rllib_prioritized.PrioritizedEpisodeReplayBuffer
):
    """Store the episodes of RLlib's `PrioritizedEpisodeReplayBuffer` and sample by priority.

    Priorities are stored in the database, and all processes share them. A step with fewer than
    `n_step` steps to the end of its episode is never drawn.

    Parameters
    ----------
    capacity : int
        Largest number of timesteps.
    batch_size_B : int
        Default number of items of a sample.
    batch_length_T : int
        Default number of timesteps per row of a sample.
    alpha : float
        Exponent of the priorities.
    **options
        Further arguments of `EpisodeReplayBuffer`.

    Raises
    ------
    ValueError
        If an option is unknown.
    CapacityMismatch
        If `capacity` would evict stored episodes.
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        alpha: float = 1.0,
        **options: Any,
    ):
        super().__init__(
            capacity, batch_size_B=batch_size_B, batch_length_T=batch_length_T, **options
        )
        self._alpha = alpha
        self._max_priority = 1.0
        self._last: list[np.ndarray] = []  # the positions of the last sample

    def _more(self) -> dict[str, Any]:
        return {"alpha": self._alpha}

    def _weight(self, weight: float | None) -> float | None:
        return self._max_priority if weight is None else float(weight)

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        **options: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw transitions by priority, and return them as episodes of one step.

        Parameters
        ----------
        num_items, batch_size_B : int, optional
            Number of transitions. Pass at most one of the two. The default is the buffer's
            `batch_size_B`.
        batch_length_T : int, optional
            Ignored.
        n_step : int or tuple of int, optional
            Number of steps of a transition, by default 1. `(low, high)` draws a random number for
            each transition; `high` is excluded.
        beta : float, optional
            Exponent of the importance weights; a value above 1 counts as 1.
        gamma : float
            Discount factor of the rewards of a transition.
        include_infos : bool
            Whether the returned episodes have infos.
        include_extra_model_outputs : bool
            Whether transitions have the extra model outputs of their first step.
        to_numpy : bool
            Whether to convert episodes to NumPy arrays.
        **options
            Other arguments, which are ignored.

        Returns
        -------
        list of SingleAgentEpisode
            Transitions, with the extra model outputs `weights` and `n_step`.

        Raises
        ------
        ValueError
            If there is no transition over `n_step` steps.
        AssertionError
            If `beta` is negative, or both `num_items` and `batch_size_B` are given.
        """
        beta = 0.0 if beta is None else beta
        assert beta >= 0.0
        assert num_items is None or batch_size_B is None, (
            "Cannot call `sample()` with both `num_items` and `batch_size_B` provided! Use either "
            "one."
        )
        size = num_items or batch_size_B or self.batch_size_B
        sampler = expdb.Prioritized(self._alpha, min(beta, 1.0), None, 0.0, "max", "buffer")
        episodes, batch = self._transitions(
            size, n_step or 1, gamma, sampler, include_infos, include_extra_model_outputs, to_numpy
        )
        self._count_sample(batch["position"], batch["episode_id"], batch["n_steps"].mean())
        self._last = [batch["position"]]
        return episodes

    def update_priorities(
        self, priorities: Sequence[float] | np.ndarray, module_id: Any = None
    ) -> None:
        """Set the priorities of the last sample, and ignore steps that are no longer stored.

        Parameters
        ----------
        priorities : array_like of float
            One priority for each transition of the sample. Priorities below 1e-12 become 1e-12.
        module_id : object, optional
            Ignored.

        Raises
        ------
        AssertionError
            If the number of priorities differs from the number of transitions in the last sample.
            Update the priorities once per sample.
        """
        positions = np.concatenate(self._last) if self._last else np.empty(0, np.int64)
        values = np.maximum(np.asarray(priorities, np.float64), 1e-12)
        assert len(values) == len(positions), (
            f"got {len(values)} priorities for a sample of {len(positions)} transitions; pass one "
            "priority per transition"
        )
        self.buffer.update_priorities(positions, values)
        self._max_priority = max(self._max_priority, float(values.max(initial=0.0)))
        self._last = []

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer, including the greatest priority so far.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        return {**super().get_state(), "max_priority": self._max_priority}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.

        Parameters
        ----------
        state : dict
            The state.

        Raises
        ------
        ValueError
            If the state belongs to another buffer, or its data cannot be read.
        """
        super().set_state(state)
        self._max_priority = state["max_priority"]
