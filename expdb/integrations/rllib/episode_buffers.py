"""RLlib's episode replay buffers, uniform and prioritized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import prioritized_episode_buffer as rllib_prioritized

import expdb
from expdb.integrations.rllib.stored_episodes import Stored


class EpisodeReplayBuffer(Stored):
    """RLlib's `EpisodeReplayBuffer` in a database.

    Arguments are RLlib's, and `location`, a path or a PostgreSQL URL (default: a private temporary
    database), `name`, a buffer there, which is gone on with, `infos`, whether infos are kept, and
    `seed`. Unknown options raise ValueError.
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
        """Return a batch [B, T], or with `sample_episodes` a list of episodes.

        Rows of a batch begin at a random step and go on with other episodes from their starts.
        Episodes are slices of `batch_length_T` steps, or transitions over `n_step` steps. Raises
        ValueError where there are none.
        """
        assert num_items is None or batch_size_B is None, (
            "Cannot call `sample()` with both `num_items` and `batch_size_B` provided! Use either "
            "one."
        )
        size = num_items or batch_size_B or self.batch_size_B
        if not len(self):
            raise ValueError("Trying to sample from an empty buffer.")
        if not sample_episodes:
            return self._rows(size, batch_length_T or self.batch_length_T)
        assert n_step is not None, (
            "When sampling episodes, `n_step` must be provided, but `n_step` is `None`."
        )
        if batch_length_T:
            assert n_step == 1, "When sampling sequences n-step must be 1."
            return self._slices(
                size, batch_length_T, lookback, min_batch_length_T, include_infos, to_numpy
            )
        found, batch = self._transitions(
            size, n_step, gamma, expdb.Uniform(), include_infos, include_extra_model_outputs,
            to_numpy,
        )  # fmt: skip
        self._count_sample(batch["position"], batch["episode_id"], batch["n_steps"].mean())
        return found

    def _starts(self, size: int, after: int = 0) -> list[tuple[str, int]]:
        """Return random steps, each as likely as any other, that have more than `after` to come."""
        ids = [id for id in self._stored.ids if len(self._stored.positions(id)) > after]
        lengths = np.array([len(self._stored.positions(id)) - after for id in ids], np.int64)
        if not len(ids):
            raise ValueError(f"no episodes of more than {after} steps are held")
        ends = np.cumsum(lengths)
        drawn = self.rng.integers(ends[-1], size=size)
        which = np.searchsorted(ends, drawn, "right")
        return [
            (ids[e], int(d - (ends[e] - lengths[e]))) for e, d in zip(which, drawn, strict=True)
        ]

    def _rows(self, size: int, length: int) -> dict[str, np.ndarray]:
        """Return rows of observations, filled up with other episodes; see RLlib's docstring."""
        self._stored.flush()
        parts: list[tuple[int, str, int, int]] = []  # row, episode, first and last observation
        for row, (id, first) in enumerate(self._starts(size)):
            filled = 0
            while filled < length:
                seen = min(len(self._stored.positions(id)) + 1 - first, length - filled)
                parts.append((row, id, first, first + seen))
                filled += seen
                ((id, _),), first = self._starts(1), 0
        where = [self._stored.positions(id) for _, id, _, _ in parts]
        wanted = [
            np.concatenate(
                (
                    own[np.minimum(np.arange(first, last), len(own) - 1)],
                    own[max(first - 1, 0) :][:1],
                )
            )
            for own, (_, _, first, last) in zip(where, parts, strict=True)
        ]
        values, batch = self._stored.at(np.concatenate(wanted))
        names = "obs", "actions", "rewards"
        flags = "is_first", "is_last", "is_terminated", "is_truncated"
        out: dict[str, Any] = {name: [[] for _ in range(size)] for name in (*names, *flags)}
        offset = 0
        for own, (row, _, first, last) in zip(where, parts, strict=True):
            taken = last - first
            mine = values[offset:][: taken + 1]
            rewards = batch["reward"][offset:][: taken + 1]
            before, at_end = rewards[-1], last == len(own) + 1
            observed = [one["obs"] for one in mine[:taken]]
            if at_end:
                observed[-1] = mine[taken - 1]["next_obs"]
            out["obs"][row] += observed
            out["actions"][row] += [one["action"] for one in mine[:taken]]
            out["rewards"][row] += [0.0 if first == 0 else before, *rewards[: taken - 1].tolist()]
            ends = {
                "is_first": [True] + [False] * (taken - 1),
                "is_last": [False] * (taken - 1) + [True],
                "is_terminated": [False] * (taken - 1)
                + [bool(at_end and batch["terminated"][offset + taken - 1])],
                "is_truncated": [False] * (taken - 1)
                + [bool(at_end and batch["truncated"][offset + taken - 1])],
            }
            for name, marks in ends.items():
                out[name][row] += marks
            offset += taken + 1
        self._count_sample(batch["position"], np.array([id for _, id, _, _ in parts]), None)
        return {name: np.array(rows) for name, rows in out.items()}

    def _slices(
        self, size: int, length: int, lookback: int, least: int, infos: bool, to_numpy: bool
    ) -> list[SingleAgentEpisode]:
        """Return slices of episodes of `size` timesteps in all, with the steps before each."""
        self._stored.flush()
        found: list[SingleAgentEpisode] = []
        count = 0
        while count < size:
            ((id, first),) = self._starts(1, least)
            own = self._stored.positions(id)
            begin, last = max(0, first - lookback), min(first + length, len(own))
            steps = last - begin
            more = {"n_step": [1] * steps, "weights": [1.0] * steps}
            episode = self._slice(id, begin, first, last, infos, **more)
            if to_numpy:
                episode.to_numpy()
            found.append(episode)
            count += last - first
            self._count_sample(own[begin:last], np.array([id]), 1.0)
        return found


class PrioritizedEpisodeReplayBuffer(Stored, rllib_prioritized.PrioritizedEpisodeReplayBuffer):
    """RLlib's `PrioritizedEpisodeReplayBuffer` in a database: transitions are drawn by priority.

    Arguments are RLlib's, and those of `EpisodeReplayBuffer` here. Priorities are in the database,
    and are the same for all processes. A transition over more steps than its episode has is never
    drawn.
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
        """Return transitions as episodes of one step, with `weights` and `n_step`.

        Of `n_step=(low, high)` each takes a random number of steps, `high` excluded.
        """
        beta = 0.0 if beta is None else beta
        assert beta >= 0.0
        assert num_items is None or batch_size_B is None, (
            "Cannot call `sample()` with both `num_items` and `batch_size_B` provided! Use either "
            "one."
        )
        size = num_items or batch_size_B or self.batch_size_B
        sampler = expdb.Prioritized(self._alpha, min(beta, 1.0), None, 0.0, "max", "buffer")
        found, batch = self._transitions(
            size, n_step or 1, gamma, sampler, include_infos, include_extra_model_outputs, to_numpy
        )
        self._count_sample(batch["position"], batch["episode_id"], batch["n_steps"].mean())
        self._last = [batch["position"]]
        return found

    def update_priorities(
        self, priorities: Sequence[float] | np.ndarray, module_id: Any = None
    ) -> None:
        """Set the priorities of the last sample; steps that are gone meanwhile are left out."""
        positions = np.concatenate(self._last) if self._last else np.empty(0, np.int64)
        values = np.maximum(np.asarray(priorities, np.float64), 1e-12)
        assert len(values) == len(positions), (
            f"{len(values)} priorities for a sample of {len(positions)}"
        )
        self.buffer.update_priorities(positions, values)
        self._max_priority = max(self._max_priority, float(values.max(initial=0.0)))
        self._last = []

    def get_state(self) -> dict[str, Any]:
        """Return where the buffer is, and the greatest priority so far."""
        return {**super().get_state(), "max_priority": self._max_priority}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of this buffer."""
        super().set_state(state)
        self._max_priority = state["max_priority"]
