"""RLlib's multi-agent episode replay buffers, uniform and prioritized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils.replay_buffers import multi_agent_episode_buffer as rllib
from ray.rllib.utils.replay_buffers import multi_agent_prioritized_episode_buffer as prioritized

import expdb
from expdb.integrations.rllib.multi_agent_episodes import EpisodeSteps, MultiAgentEpisodes
from expdb.integrations.rllib.stored_episodes import StoredEpisodes
from expdb.integrations.rllib.synchronized import synchronized


class MultiAgentEpisodeReplayBuffer(StoredEpisodes, rllib.MultiAgentEpisodeReplayBuffer):
    """Store the episodes of RLlib's `MultiAgentEpisodeReplayBuffer` in a database.

    The capacity and the counts without a module id are timesteps of the environment. In SQL, the
    task of a step is the module, and the group is the multi-agent episode. Counts of stored steps
    include the steps of all processes. Counts by module of added, evicted and sampled steps
    include only this handle and the state that this handle restored.

    Parameters
    ----------
    capacity : int
        Largest number of timesteps of the environment.
    batch_size_B : int
        Default number of items of a sample.
    batch_length_T : int
        Default number of timesteps per row of a sample.
    **options
        Further arguments of `EpisodeReplayBuffer`.

    Raises
    ------
    ValueError
        If an option is unknown.
    CapacityMismatch
        If `capacity` would evict stored episodes.
    """

    _episodes = MultiAgentEpisodes
    _named = "task_id", "agent_id", "group_id", "tags"
    _stored: MultiAgentEpisodes

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        **options: Any,
    ):
        super().__init__(
            capacity, batch_size_B=batch_size_B, batch_length_T=batch_length_T, **options
        )
        self._spaces_of: dict[Any, tuple[Any, Any]] = {}
        self._agents: dict[str, Any] = {}  # RLlib's agent ids, by their text
        self._added: Counter[str] = Counter()  # number of added agent steps, by module
        self._evicted: Counter[str] = Counter()  # number of evicted agent episodes, by module
        self.sampled_timesteps_per_module: Counter[str] = Counter()

    # -- adding --------------------------------------------------------------------------------

    def add(self, episodes: Any, weight: Any = None) -> None:
        """Add multi-agent episodes, or the next parts of stored ones; evict the oldest episodes.

        Whole episodes are evicted until the buffer fits its capacity. The last episode is kept,
        even if it is longer than the capacity.

        Parameters
        ----------
        episodes : MultiAgentEpisode or list of MultiAgentEpisode
            Episodes, or parts of episodes.
        weight : float or dict of str to float, optional
            Priority of the new steps in a prioritized buffer, or the priority for each module.

        Raises
        ------
        InvalidValue
            If an item is not a MultiAgentEpisode, a value cannot be stored exactly, or a reward is
            not finite. Nothing of the rejected episode is added.
        """
        ids, before = set(self._stored.ids), self._stored.added
        new: list[tuple[Any, str]] = []
        steps_of_agents: Counter[Any] = Counter()
        steps_of_modules: Counter[str] = Counter()
        count = 0
        for episode in force_list(episodes):
            if not isinstance(episode, MultiAgentEpisode):
                raise expdb.InvalidValue(
                    f"expected instances of MultiAgentEpisode, got {type(episode).__name__}"
                )
            modules = {agent: str(episode.module_for(agent)) for agent in episode.agent_episodes}
            weights = {module: self._weight_of(module, weight) for module in modules.values()}
            self._stored.add_parts(episode, weights)
            if str(episode.id_) not in ids:
                ids.add(str(episode.id_))
                new += modules.items()
                count += 1
            for agent, single in episode.agent_episodes.items():
                steps_of_agents[agent] += len(single)
                steps_of_modules[modules[agent]] += len(single)
                self._agents[str(agent)] = agent
                self._spaces_of[str(agent)] = single.observation_space, single.action_space
        self._added.update(steps_of_modules)
        gone = self._stored.evict()
        pairs = [pair for steps in self._stored.gone for pair in _pairs(steps)]
        lost = [pair for steps in self._stored.gone for pair in _steps(steps)]
        self._evicted.update(module for _, module in pairs)
        self._update_add_metrics(
            num_episodes_added=count, num_env_steps_added=self._stored.added - before,
            num_episodes_evicted=len(gone),
            num_env_steps_evicted=sum(length for _, length in gone),
            agent_to_num_episodes_added=Counter(agent for agent, _ in new),
            agent_to_num_steps_added=steps_of_agents,
            agent_to_num_episodes_evicted=Counter(self._agents.get(a, a) for a, _ in pairs),
            agent_to_num_steps_evicted=Counter(self._agents.get(a, a) for a, _ in lost),
            module_to_num_episodes_added=Counter(module for _, module in new),
            module_to_num_steps_added=steps_of_modules,
            module_to_num_episodes_evicted=Counter(module for _, module in pairs),
            module_to_num_steps_evicted=Counter(module for _, module in lost),
        )  # fmt: skip

    def _weight_of(self, module: str, weight: Any) -> float | None:
        """Return the priority of new steps of a module."""
        return None

    # -- sampling ------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = 1,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        replay_mode: str = "independent",
        modules_to_sample: Any = None,
        to_numpy: bool = False,
        **options: Any,
    ) -> Any:
        """Draw transitions for each module.

        Parameters
        ----------
        num_items, batch_size_B : int, optional
            Number of transitions of each module, or number of timesteps with
            `replay_mode="synchronized"`. Pass at most one of the two. The default is the
            buffer's `batch_size_B`.
        batch_length_T : int, optional
            Ignored.
        n_step : int or tuple of int, optional
            Number of steps of a transition. `(low, high)` draws a random number of steps; `high`
            is excluded.
        gamma : float
            Discount factor of the rewards of a transition.
        include_infos : bool
            Whether the sample has infos.
        include_extra_model_outputs : bool
            Whether episodes have the extra model outputs of their first step.
        replay_mode : {"independent", "synchronized"}
            With `"independent"`, draw the transitions of each module separately. With
            `"synchronized"`, draw timesteps of environments, and return the transition of every
            agent that acts at the timestep and observes `n_step` timesteps later.
        modules_to_sample : iterable of str, optional
            Modules to sample, by default all.
        to_numpy : bool
            Whether to convert episodes to NumPy arrays.
        **options
            `beta`, the exponent of the importance weights in a prioritized buffer.

        Returns
        -------
        list of SingleAgentEpisode or dict
            Episodes, each with one step of one agent. With `replay_mode="synchronized"`, a dict of
            arrays [B, ...] for each module.

        Raises
        ------
        ValueError
            If the buffer is empty, a module has no transitions over `n_step` steps, or
            `replay_mode` is unknown.
        AssertionError
            If both `num_items` and `batch_size_B` are given.
        """
        size = self._size(num_items, batch_size_B)
        stored_modules = self.get_module_ids()
        modules = list(modules_to_sample or stored_modules)
        if missing := [module for module in modules if module not in stored_modules]:
            raise ValueError(
                f"no steps of the module {missing[0]!r}; expected one of "
                f"{', '.join(stored_modules)}"
            )
        if replay_mode not in ("independent", "synchronized"):
            raise ValueError(
                f"replay_mode must be 'independent' or 'synchronized', got {replay_mode!r}"
            )
        if replay_mode != "independent":
            return self._synchronized(size, n_step or 1, gamma, include_infos, modules)
        sampled: list[SingleAgentEpisode] = []
        batches = {}
        for module in modules:
            episodes, batches[module] = self._transitions(
                size, n_step or 1, gamma, self._sampler(options), include_infos,
                include_extra_model_outputs, to_numpy, {"task_id": module},
            )  # fmt: skip
            sampled += episodes
        self._count(batches)
        return sampled

    def _episode(self, id: str) -> MultiAgentEpisode:
        return MultiAgentEpisode(**self._stored.build_episode_arguments(id))

    def _size(self, num_items: int | None, batch_size_B: int | None) -> int:
        assert num_items is None or batch_size_B is None, (
            "Cannot call `sample()` with both `num_items` and `batch_size_B` provided! Use either "
            "one."
        )
        if not len(self):
            raise ValueError("Trying to sample from an empty buffer.")
        return num_items or batch_size_B or int(self.batch_size_B)

    def _sampler(self, options: Mapping[str, Any]) -> expdb.Sampler:
        return expdb.Uniform(replace=True)

    def _whose(self, batch: expdb.Batch) -> list[dict[str, Any]]:
        owners = []
        columns = [batch[key].tolist() for key in ("agent_id", "task_id", "group_id", "tags")]
        for agent, module, group, tags in zip(*columns, strict=True):
            spaces = self._spaces_of.get(agent, (None, None))
            owners.append({
                "agent_id": (tags or {}).get("agent", agent), "module_id": module,
                "multi_agent_episode_id": group,
                "observation_space": spaces[0], "action_space": spaces[1],
            })  # fmt: skip
        return owners

    def _count(self, batches: Mapping[str, expdb.Batch]) -> None:
        """Update RLlib's metrics and the counts of sampled timesteps."""
        rows = [
            (module, *row)
            for module, batch in batches.items()
            for row in zip(
                batch["agent_id"].tolist(), batch["episode_id"].tolist(),
                batch["group_id"].tolist(), batch["position"].tolist(),
                batch["n_steps"].tolist(), strict=True,
            )
        ]  # fmt: skip
        sizes = {module: batch.size for module, batch in batches.items()}
        self.sampled_timesteps_per_module.update(sizes)
        self.sampled_timesteps += max(sizes.values())
        of_agents = _by((self._agents.get(row[1], row[1]), row) for row in rows)
        of_modules = _by((row[0], row) for row in rows)
        self._update_sample_metrics(
            num_env_steps_sampled=len(rows),
            num_episodes_per_sample=len({row[3] for row in rows}),
            num_env_steps_per_sample=len({row[4] for row in rows}),
            sampled_n_step=float(np.mean([row[5] for row in rows])), num_resamples=0,
            **_figures("agent", of_agents), **_figures("module", of_modules),
        )  # fmt: skip

    def _synchronized(self, size: int, *wanted: Any) -> dict[str, dict[str, Any]]:
        columns_by_module = synchronized(self._stored, self.rng, size, *wanted)
        for module, columns in columns_by_module.items():
            self.sampled_timesteps_per_module[module] += len(columns["weights"])
        self.sampled_timesteps += size  # timesteps of environments, not of modules
        return columns_by_module

    # -- counts and states ---------------------------------------------------------------------

    def __len__(self) -> int:
        self._stored.learn()
        return self._stored.timesteps

    def get_module_ids(self) -> list[str]:
        """Return the ids of the modules with stored steps.

        Returns
        -------
        list of str
            The module ids.
        """
        return [module for module, steps in self._stored.by_module().items() if steps]

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return the number of stored multi-agent episodes, or of the episodes of a module.

        Parameters
        ----------
        module_id : str, optional
            Count the episodes of this module.

        Returns
        -------
        int
            The number of episodes.
        """
        if module_id is None:
            self._stored.learn()
            return len(self._stored.ids)
        return sum(
            module == module_id
            for steps in self._stored.steps_of_episodes()
            for _, module in _pairs(steps)
        )

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return the number of episodes that this handle has evicted.

        Parameters
        ----------
        module_id : str, optional
            Count the episodes of this module.

        Returns
        -------
        int
            The number of episodes.
        """
        return self._stored.evicted if module_id is None else self._evicted[module_id]

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return the number of stored timesteps of environments, or of agent steps of a module.

        Parameters
        ----------
        module_id : str, optional
            Count the agent steps of this module.

        Returns
        -------
        int
            The number of timesteps.
        """
        return len(self) if module_id is None else self._stored.by_module()[module_id]

    def get_num_agent_timesteps(self) -> int:
        """Return the number of stored agent steps.

        Returns
        -------
        int
            The number of agent steps.
        """
        return len(self._stored)

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return the number of timesteps added by this handle.

        Without `module_id`, the number includes the timesteps that were already stored when the
        handle was opened.

        Parameters
        ----------
        module_id : str, optional
            Count the agent steps of this module.

        Returns
        -------
        int
            The number of timesteps.
        """
        return self._stored.added if module_id is None else self._added[module_id]

    def get_added_agent_timesteps(self) -> int:
        """Return the number of agent steps that any process has ever added.

        Returns
        -------
        int
            The number of agent steps.
        """
        self._stored.flush()
        return int(self.buffer.stats()["added"])

    def get_sampled_timesteps(self, module_id: Any = None) -> int:
        """Return the number of sampled timesteps of all modules or of one module.

        Parameters
        ----------
        module_id : str, optional
            Count the agent steps of this module.

        Returns
        -------
        int
            The number of timesteps.
        """
        if module_id is None:
            return int(self.sampled_timesteps)
        return int(self.sampled_timesteps_per_module[module_id])

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer, including the counts of this handle.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        return {
            **super().get_state(), "added": dict(self._added), "evicted": dict(self._evicted),
            "sampled_of_modules": dict(self.sampled_timesteps_per_module),
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
        StoredEpisodes.set_state(self, state)
        self._added, self._evicted = Counter(state["added"]), Counter(state["evicted"])
        self.sampled_timesteps_per_module = Counter(state["sampled_of_modules"])


class MultiAgentPrioritizedEpisodeReplayBuffer(
    MultiAgentEpisodeReplayBuffer, prioritized.MultiAgentPrioritizedEpisodeReplayBuffer
):
    """Store the episodes of RLlib's `MultiAgentPrioritizedEpisodeReplayBuffer` in a database.

    The transitions of each module are drawn by their priorities, which are stored in the database.
    Synchronized samples are uniform, as in RLlib.

    Parameters
    ----------
    capacity : int
        Largest number of timesteps of environments.
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

    def __init__(self, capacity: int = 10000, *, alpha: float = 1.0, **options: Any):
        super().__init__(capacity, **options)
        self._alpha = alpha
        self._max_priorities: dict[str, float] = {}
        self._last: dict[str, np.ndarray] = {}  # the positions of the last sample

    def _more(self) -> dict[str, Any]:
        return {"alpha": self._alpha}

    def _weight_of(self, module: str, weight: Any) -> float | None:
        if isinstance(weight, Mapping):
            weight = weight.get(module)
        return self._max_priorities.get(module, 1.0) if weight is None else float(weight)

    def _sampler(self, options: Mapping[str, Any]) -> expdb.Sampler:
        beta = options.get("beta") or 0.0
        assert beta >= 0.0
        return expdb.Prioritized(self._alpha, min(beta, 1.0), None, 0.0, "max", "buffer")

    def _count(self, batches: Mapping[str, expdb.Batch]) -> None:
        self._last = {module: batch["position"] for module, batch in batches.items()}
        super()._count(batches)

    def update_priorities(
        self, priorities: Sequence[float] | np.ndarray, module_id: Any = None
    ) -> None:
        """Set the priorities of the last sample of a module, and ignore evicted steps.

        Parameters
        ----------
        priorities : array_like of float
            One priority for each transition of the module. Priorities below 1e-12 become 1e-12.
        module_id : str, optional
            The module; by default, the first module of `get_module_ids()`.

        Raises
        ------
        AssertionError
            If the number of priorities differs from the number of transitions in the last sample.
            Update the priorities once per sample.
        """
        module = self.get_module_ids()[0] if module_id is None else module_id
        positions = self._last.get(module, np.empty(0, np.int64))
        values = np.maximum(np.asarray(priorities, np.float64), 1e-12)
        assert len(values) == len(positions), (
            f"got {len(values)} priorities for {len(positions)} transitions of module {module!r}; "
            "pass one priority per transition, once per sample"
        )
        self._last.pop(module, None)
        self.buffer.update_priorities(positions, values)
        largest = self._max_priorities.get(module, 1.0)
        self._max_priorities[module] = max(largest, float(values.max(initial=0.0)))

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer, including the greatest priority of each module.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        return {**super().get_state(), "max_priorities": dict(self._max_priorities)}

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
        self._max_priorities = dict(state["max_priorities"])


def _steps(steps: EpisodeSteps) -> list[tuple[str, str]]:
    """Return the agent and the module of each step of an episode."""
    return list(zip(steps.agents.tolist(), steps.modules.tolist(), strict=True))


def _pairs(steps: EpisodeSteps) -> list[tuple[str, str]]:
    """Return the agent and the module of each agent's episode."""
    return list(dict.fromkeys(_steps(steps)))


def _by(rows: Iterable[tuple[Any, tuple[Any, ...]]]) -> dict[Any, list[tuple[Any, ...]]]:
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    return groups


def _figures(whose: str, rows: Mapping[Any, list[tuple[Any, ...]]]) -> dict[str, dict[Any, Any]]:
    """Return RLlib's metrics of a sample, grouped by agent or module."""
    return {
        f"{whose}_to_num_steps_sampled": {key: len(group) for key, group in rows.items()},
        f"{whose}_to_num_episodes_per_sample":
            {key: len({row[2] for row in group}) for key, group in rows.items()},
        f"{whose}_to_num_steps_per_sample":
            {key: len({row[4] for row in group}) for key, group in rows.items()},
        f"{whose}_to_sampled_n_step":
            {key: float(np.mean([row[5] for row in group])) for key, group in rows.items()},
        f"{whose}_to_num_resamples": dict.fromkeys(rows, 0),
    }  # fmt: skip
