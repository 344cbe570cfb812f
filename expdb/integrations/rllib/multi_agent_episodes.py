"""Store the steps of RLlib's multi-agent episodes in a buffer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import expdb
from expdb.integrations.records import is_json
from expdb.integrations.rllib.episodes import Episodes


@dataclass
class EpisodeSteps:
    """The stored steps of one multi-agent episode; element i of each array is step i."""

    modules: np.ndarray
    agents: np.ndarray
    begun: np.ndarray  # timestep of the environment at the observation
    ended: np.ndarray  # timestep at the next observation, which is later if the agent waited


class MultiAgentEpisodes(Episodes):
    """Add, draw and evict multi-agent episodes. Each is a group of episodes, one per agent.

    The task of a step is the module, and the group is the multi-agent episode. Timesteps of an
    episode are timesteps of the environment, from the first step of any agent to the end of the
    last step.
    """

    STEP_COLUMNS = ("group_id", "task_id", "agent_id", "env_t", "env_t_after")

    def __init__(self, *args: Any):
        self._steps_of: dict[str, EpisodeSteps] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # first and last timestep of the environment
        self.gone: list[EpisodeSteps] = []  # steps of the episodes that the last eviction removed
        self._by_module: Counter[str] = Counter()  # number of added or read steps
        super().__init__(*args)
        self.added = self.timesteps

    @property
    def timesteps(self) -> int:
        """The number of stored timesteps of environments, an int."""
        return sum(last - first for first, last in self._spans.values())

    def length(self, id: str) -> int:
        """Return the number of timesteps of the environment in an episode."""
        first, last = self._spans[id]
        return last - first

    def _add_positions(self, positions: np.ndarray, ids: np.ndarray, *more: np.ndarray) -> None:
        super()._add_positions(positions, ids)
        modules, agents, begun, ended = more
        self._by_module.update(modules.tolist())
        begun, ended = begun.astype(np.int64), ended.astype(np.int64)
        for id in dict.fromkeys(ids.tolist()):
            is_own, stored = ids == id, self._steps_of.get(id)
            new = [modules[is_own], agents[is_own], begun[is_own], ended[is_own]]
            self._widen(id, int(new[2].min()), int(new[3].max()))
            if stored is not None:
                old = stored.modules, stored.agents, stored.begun, stored.ended
                new = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            self._steps_of[id] = EpisodeSteps(*new)

    def _widen(self, id: str, first: int, last: int) -> None:
        span = self._spans.get(id, (first, last))
        self._spans[id] = min(first, span[0]), max(last, span[1])

    def _forget(self) -> None:
        super()._forget()
        self._steps_of.clear()
        self._by_module.clear()
        self._spans.clear()
        for id, _, _, begun, ended in self._unwritten:
            self._widen(id, begun, ended)

    def add_parts(self, episode: Any, weights: Mapping[str, float | None]) -> int:
        """Add an episode, or its next part; return the number of timesteps that the episode gains.

        `weights` maps each module to the priority of its new steps.
        """
        id = str(episode.id_)
        before = self.length(id) if id in self._spans else 0
        parts = []  # built before any is appended, so that an error adds nothing
        for agent, single in episode.agent_episodes.items():
            if not len(single):
                continue
            module = str(episode.module_for(agent))
            steps = self._steps_of_agent(episode, agent, single, module)
            times = _times(episode, agent, len(single)).tolist()
            rows = [(id, module, str(agent), *two) for two in itertools.pairwise(times)]
            parts.append((steps, weights[module], rows))
        for steps, weight, rows in parts:
            self._append(steps, weight, rows)
            self._widen(id, min(row[3] for row in rows), max(row[4] for row in rows))
        gained = self.length(id) - before if parts else 0
        self.added += gained
        return gained

    def _steps_of_agent(
        self, episode: Any, agent: Any, single: Any, module: str
    ) -> list[dict[str, Any]]:
        if not is_json(agent):
            raise expdb.InvalidValue(f"agent id {agent!r} must be text or a number")
        times = _times(episode, agent, len(single))
        columns: dict[str, Any] = {
            "task_id": module, "agent_id": str(agent), "group_id": str(episode.id_)
        }  # fmt: skip
        if type(agent) is not str:  # RLlib's examples use numbers as agent ids
            columns["tags"] = {"agent": agent}
        return self._steps(
            single, lambda k: {"env_t": int(times[k]), "env_t_after": int(times[k + 1])}, **columns
        )

    def evict(self) -> list[tuple[str, int]]:
        """Evict the oldest episodes beyond the capacity; return their ids and lengths."""
        gone = super().evict()
        self.gone = [self._steps_of.pop(id) for id, _ in gone]
        for id, _ in gone:
            del self._spans[id]
        for steps in self.gone:
            self._by_module.subtract(steps.modules.tolist())
        return gone

    def by_module(self) -> Counter[str]:
        """Return the number of stored steps of each module."""
        self.flush()
        return self._by_module

    def steps_of_episodes(self) -> list[EpisodeSteps]:
        """Return the columns of the steps of each episode, oldest first."""
        self.flush()
        return list(self._steps_of.values())

    def build_episode_arguments(self, id: str) -> dict[str, Any]:
        """Return the arguments of RLlib's `MultiAgentEpisode` for a stored episode."""
        steps = self._steps_of[id]
        values, batch = self.at(self._positions[id], "terminated", "truncated", "tags")
        first, last = self._spans[id]
        seen: list[dict[Any, Any]] = [{} for _ in range(last - first + 1)]
        infos: list[dict[Any, Any]] = [{} for _ in seen]
        actions: list[dict[Any, Any]] = [{} for _ in seen[1:]]
        rewards: list[dict[Any, float]] = [{} for _ in seen[1:]]
        extra: list[dict[Any, Any]] = [{} for _ in seen[1:]]
        ends: dict[str, dict[Any, bool]] = {"terminateds": {}, "truncateds": {}}
        modules: dict[Any, str] = {}
        columns = (
            steps.agents, steps.modules, steps.begun - first, steps.ended - first,
            batch["tags"], batch["reward"], batch["terminated"], batch["truncated"],
        )  # fmt: skip
        rows = zip(values, *[column.tolist() for column in columns], strict=True)
        for value, agent, module, begun, ended, tags, reward, terminated, truncated in rows:
            agent = (tags or {}).get("agent", agent)
            modules[agent] = module
            seen[begun][agent], seen[ended][agent] = value["obs"], value["next_obs"]
            infos[begun][agent], infos[ended][agent] = value["info"], value["following_info"]
            actions[begun][agent], rewards[ended - 1][agent] = value["action"], reward
            if value["extra"]:
                extra[begun][agent] = value["extra"]
            ends["terminateds"][agent], ends["truncateds"][agent] = terminated, truncated
        for flags in ends.values():
            flags["__all__"] = all(flags.values())
        return {
            "id_": id, "env_t_started": first, "len_lookback_buffer": 0,
            "observations": seen, "infos": infos, "actions": actions, "rewards": rewards,
            "extra_model_outputs": extra, "agent_module_ids": modules, **ends,
        }  # fmt: skip

    def transitions_at(
        self, id: str, first: int, n_step: int, modules: list[str]
    ) -> list[np.ndarray]:
        """Return, for each agent, the positions of its steps from `first` to `first + n_step`.

        Agents that do not act at the first timestep, or do not observe at the last timestep, are
        omitted.
        """
        steps, positions = self._steps_of[id], self._positions[id]
        transitions = []
        within = (steps.begun >= first) & (steps.ended <= first + n_step)
        for agent in dict.fromkeys(steps.agents[within].tolist()):
            own = np.flatnonzero(within & (steps.agents == agent))
            own = own[np.argsort(steps.begun[own], kind="stable")]
            reaches = steps.begun[own[0]] == first and steps.ended[own[-1]] == first + n_step
            if reaches and steps.modules[own[0]] in modules:
                transitions.append(positions[own])
        return transitions

    def span(self, id: str) -> tuple[int, int]:
        """Return the first and the last timestep of the environment in an episode."""
        return self._spans[id]


def _times(episode: Any, agent: Any, steps: int) -> np.ndarray:
    """Return the timesteps of the environment at the `steps` + 1 observations of an agent.

    Count from the end, because RLlib pads the beginning for an agent that starts later.
    """
    data = episode.env_t_to_agent_t[agent].data
    first = episode.env_t - len(data) + 1
    seen = [first + k for k, timestep in enumerate(data) if timestep != episode.SKIP_ENV_TS_TAG]
    return np.array(seen[-(steps + 1) :], np.int64)
