"""The base class of the episode replay buffers for RLlib."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.replay_buffers import episode_replay_buffer as rllib

import expdb
from expdb.integrations.locations import PRIVATE, absolute, reopened
from expdb.integrations.rllib.episodes import Episodes, NextSteps
from expdb.integrations.rllib.states import (
    continue_from,
    replace_contents,
    state_of,
)

COLUMNS = "episode_id", "step", "terminated", "truncated"


class StoredEpisodes(rllib.EpisodeReplayBuffer):
    """Base of the episode buffers: store episodes in a database, and update RLlib's metrics."""

    _episodes: type[Episodes] = Episodes
    _named: tuple[str, ...] = ()  # the columns of a batch that `_whose` reads

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        location: str | os.PathLike[str] = PRIVATE,
        name: str = "episodes",
        infos: bool = True,
        seed: int | None = None,
        state_includes_data: bool = False,
        **options: Any,
    ):
        _check_options(options)
        # The constructors of RLlib's subclasses would create trees and indices.
        rllib.EpisodeReplayBuffer.__init__(
            self, capacity, batch_size_B=batch_size_B, batch_length_T=batch_length_T, **options
        )
        self.rng = np.random.default_rng(seed)
        self.location, self.name, self._infos = absolute(location), name, infos
        self.is_private = self.location == PRIVATE
        self.state_includes_data = state_includes_data
        self._stored = self._episodes(location, name, capacity, infos)
        self._spaces: tuple[Any, Any] = (None, None)

    @property
    def buffer(self) -> expdb.ReplayBuffer:
        """The buffer in the database, a `ReplayBuffer`."""
        return self._stored.buffer

    @property
    def database(self) -> expdb.ExperienceDB:
        """The handle of the database, an `ExperienceDB`."""
        return self._stored.database

    def flush(self) -> None:
        """Write all added steps, so that they are durable and visible to other processes."""
        self._stored.flush()

    def close(self) -> None:
        """Write all added steps and close the database. A private database is then deleted."""
        self._stored.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self.flush()
        options = {
            "capacity": self.capacity, "batch_size_B": self.batch_size_B,
            "batch_length_T": self.batch_length_T, "location": self.location, "name": self.name,
            "infos": self._infos, "state_includes_data": self.state_includes_data,
            **self._more(),
        }  # fmt: skip
        return reopened, (type(self), options), self.get_state() if self.is_private else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.set_state(state)

    def load(self, data: bytes) -> None:
        """Replace the contents of the buffer with the data of a state.

        Parameters
        ----------
        data : bytes
            The data.
        """
        self._stored.reopen(partial(replace_contents, self, data))

    def _more(self) -> dict[str, Any]:
        """Return the options that only a subclass has."""
        return {}

    # -- adding --------------------------------------------------------------------------------

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Add episodes, or the next parts of stored episodes, and evict the oldest episodes.

        Whole episodes are evicted until the buffer fits its capacity. The last episode is kept,
        even if it is longer than the capacity.

        Parameters
        ----------
        episodes : SingleAgentEpisode or list of SingleAgentEpisode
            Episodes, or parts of episodes.
        weight : float, optional
            Priority of the new steps in a prioritized buffer.

        Raises
        ------
        InvalidValue
            If a value cannot be stored exactly, or a reward is not finite.
        """
        ids, steps, new = set(self._stored.ids), 0, 0
        for episode in force_list(episodes):
            if self._spaces == (None, None):
                self._spaces = episode.observation_space, episode.action_space
            new += str(episode.id_) not in ids
            ids.add(str(episode.id_))
            steps += self._stored.add(episode, self._weight(weight))
        gone = self._stored.evict()
        agents, modules = DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
        lost = sum(length for _, length in gone)
        self._update_add_metrics(
            num_episodes_added=new, num_env_steps_added=steps,
            num_episodes_evicted=len(gone), num_env_steps_evicted=lost,
            agent_to_num_episodes_added={agents: new}, agent_to_num_steps_added={agents: steps},
            agent_to_num_episodes_evicted={agents: len(gone)},
            agent_to_num_steps_evicted={agents: lost},
            module_to_num_episodes_added={modules: new},
            module_to_num_steps_added={modules: steps},
            module_to_num_episodes_evicted={modules: len(gone)},
            module_to_num_steps_evicted={modules: lost},
        )  # fmt: skip

    def _weight(self, weight: float | None) -> float | None:
        """Return the priority of new steps."""
        return None

    # -- sampling ------------------------------------------------------------------------------

    @property
    def episodes(self) -> list[Any]:
        """The stored episodes, a list, oldest first, read from the database at each access."""
        self.flush()
        return [self._episode(id) for id in self._stored.ids]

    @episodes.setter
    def episodes(self, _: Any) -> None:
        """Ignore the value: RLlib's constructor sets an empty list."""

    def _episode(self, id: str) -> Any:
        return self._slice(id, 0, 0, len(self._stored.positions(id)), self._infos)

    def _slice(
        self, id: str, begin: int, first: int, last: int, infos: bool, **more: Any
    ) -> SingleAgentEpisode:
        """Return an episode's steps in `[begin, last)`; steps before `first` are the lookback."""
        own = self._stored.positions(id)
        values, batch = self._stored.at(own[begin:last], *COLUMNS)
        extra = {
            name: [value["extra"].get(name) for value in values]
            for name in dict.fromkeys(name for value in values for name in value["extra"])
        }
        at_end = last == len(own)
        return SingleAgentEpisode(
            id_=id,
            observations=[value["obs"] for value in values] + [values[-1]["next_obs"]],
            observation_space=self._spaces[0],
            infos=[value["info"] for value in values] + [values[-1]["following_info"]]
            if infos
            else None,
            actions=[value["action"] for value in values],
            action_space=self._spaces[1],
            rewards=batch["reward"].tolist(),
            terminated=bool(at_end and batch["terminated"][-1]),
            truncated=bool(at_end and batch["truncated"][-1]),
            extra_model_outputs={**extra, **more},
            len_lookback_buffer=first - begin,
            t_started=int(batch["step"][first - begin]),
        )

    def _transitions(
        self,
        size: int,
        n_step: int | tuple[int, int],
        gamma: float,
        sampler: expdb.Sampler,
        include_infos: bool,
        include_extra: bool,
        to_numpy: bool,
        where: Any = None,
    ) -> tuple[list[SingleAgentEpisode], expdb.Batch]:
        """Draw transitions over `n_step` steps; return them as one-step episodes, and the batch."""
        bounds = (n_step[0], n_step[1] - 1) if isinstance(n_step, tuple) else n_step
        keys = ("n_steps", "last_position", *COLUMNS, *self._named, *sampler.keys())
        try:
            values, batch = self._stored.sample(
                size, sampler, NextSteps(bounds, gamma), self.rng, *keys, where=where
            )
        except expdb.TooFewRows as error:
            raise ValueError(
                f"the buffer has no transitions over {n_step} steps: {error}"
            ) from error
        weights = batch["weight"] if "weight" in batch else np.ones(size)
        following = self._followed(batch, values, include_infos)
        episodes = []
        columns = [batch[key].tolist() for key in ("reward", "n_steps", *COLUMNS)]
        rows = zip(values, following, weights, self._whose(batch), *columns, strict=True)
        for value, last, weight, whose, reward, taken, id, t, terminated, truncated in rows:
            extra = (
                {name: [output] for name, output in value["extra"].items()} if include_extra else {}
            )
            episode = SingleAgentEpisode(
                id_=id,
                observations=[value["obs"], last["next_obs"]],
                infos=[value["info"], last["following_info"]] if include_infos else None,
                actions=[value["action"]],
                rewards=[reward],
                terminated=terminated,
                truncated=truncated,
                extra_model_outputs={"weights": [weight], "n_step": [taken], **extra},
                len_lookback_buffer=0,
                t_started=t,
                **whose,
            )
            if to_numpy:
                episode.to_numpy()
            episodes.append(episode)
        return episodes, batch

    def _whose(self, batch: expdb.Batch) -> list[dict[str, Any]]:
        """Return additional arguments of SingleAgentEpisode for each transition of a batch."""
        spaces = {"observation_space": self._spaces[0], "action_space": self._spaces[1]}
        return [spaces] * batch.size

    def _followed(self, batch: Any, values: list[Any], infos: bool) -> list[Any]:
        """Return the values that follow the last step of each transition."""
        if infos and (batch["last_position"] != batch["position"]).any():
            return self._stored.at(batch["last_position"])[0]
        return values  # `next_obs` in the batch already belongs to the last step

    def _count_sample(self, positions: np.ndarray, ids: Any, n_step: float | None) -> None:
        steps, episodes = len(positions), len(set(ids.tolist()))
        distinct = len(np.unique(positions))
        self.sampled_timesteps += steps
        agents, modules = DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
        self._update_sample_metrics(
            num_env_steps_sampled=steps, num_episodes_per_sample=episodes,
            num_env_steps_per_sample=distinct, sampled_n_step=n_step, num_resamples=0,
            agent_to_num_steps_sampled={agents: steps},
            agent_to_num_episodes_per_sample={agents: episodes},
            agent_to_num_steps_per_sample={agents: distinct},
            agent_to_sampled_n_step=None if n_step is None else {agents: n_step},
            agent_to_num_resamples={agents: 0},
            module_to_num_steps_sampled={modules: steps},
            module_to_num_episodes_per_sample={modules: episodes},
            module_to_num_steps_per_sample={modules: distinct},
            module_to_sampled_n_step=None if n_step is None else {modules: n_step},
            module_to_num_resamples={modules: 0},
        )  # fmt: skip

    # -- counts and states ---------------------------------------------------------------------

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return the number of stored episodes.

        Parameters
        ----------
        module_id : str, optional
            Ignored.

        Returns
        -------
        int
            The number of episodes.
        """
        return len(self._stored.ids)

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return the number of episodes that this handle has evicted.

        Parameters
        ----------
        module_id : str, optional
            Ignored.

        Returns
        -------
        int
            The number of episodes.
        """
        return self._stored.evicted

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return the number of stored timesteps.

        Parameters
        ----------
        module_id : str, optional
            Ignored.

        Returns
        -------
        int
            The number of timesteps.
        """
        return len(self._stored)

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return the number of timesteps added before this handle was opened and by this handle.

        Parameters
        ----------
        module_id : str, optional
            Ignored.

        Returns
        -------
        int
            The number of timesteps.
        """
        return self._stored.added

    def get_state(self) -> dict[str, Any]:
        """Return the location, and the contents if private or with `state_includes_data`.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        state = state_of(self, self.rng, self.sampled_timesteps)
        return state | {
            "episodes_evicted": self._stored.evicted, "timesteps_added": self._stored.added
        }  # fmt: skip

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
        self.sampled_timesteps = continue_from(self, self.rng, state)
        self._stored.evicted = state.get("episodes_evicted", self._stored.evicted)
        if "data" in state:
            self._stored.added = state["timesteps_added"]


# Options that RLlib's algorithms pass to every buffer. Options in `_IGNORED` have no effect.
_OPTIONS = {"metrics_num_episodes_for_smoothing"}
_IGNORED = {"type", "beta", "prioritized_replay_beta", "_enable_replay_buffer_api"}


def _check_options(options: dict[str, Any]) -> None:
    for name in _IGNORED & options.keys():
        del options[name]
    if unknown := options.keys() - _OPTIONS:
        raise ValueError(
            f"{min(unknown)} is not an option of this buffer; expected capacity, batch_size_B, "
            f"batch_length_T, alpha, {', '.join(sorted(_OPTIONS))}, location, name, infos, seed "
            "and state_includes_data"
        )
