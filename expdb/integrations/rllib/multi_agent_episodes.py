"""Steps of the agents of RLlib's multi-agent episodes in a buffer of a database."""

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
class Known:
    """What is known of the steps of one multi-agent episode, aligned."""

    modules: np.ndarray
    agents: np.ndarray
    begun: np.ndarray  # the environment's timestep of the observation
    ended: np.ndarray  # that of the next one, which is later where the agent had to wait


class MultiAgentEpisodes(Episodes):
    """Add, draw and evict multi-agent episodes, each of which is a group of its agents' episodes.

    A step's task is the module, its agent the agent, its group the multi-agent episode. Timesteps
    are the environment's, from the first step of an agent to the end of the last one.
    """

    KNOWN = ("group_id", "task_id", "agent_id", "env_t", "env_t_after")

    def __init__(self, *args: Any):
        self._steps_of: dict[str, Known] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # of the environment's timesteps
        self.gone: list[Known] = []  # of the last eviction
        self._by_module: Counter[str] = Counter()  # those that are known
        super().__init__(*args)
        self.added = self.timesteps

    @property
    def timesteps(self) -> int:
        """How many timesteps of environments are held."""
        return sum(last - first for first, last in self._spans.values())

    def length(self, id: str) -> int:
        """Return how many timesteps of its environment an episode has."""
        first, last = self._spans[id]
        return last - first

    def _know(self, positions: np.ndarray, ids: np.ndarray, *more: np.ndarray) -> None:
        super()._know(positions, ids)
        modules, agents, begun, ended = more
        self._by_module.update(modules.tolist())
        begun, ended = begun.astype(np.int64), ended.astype(np.int64)
        for id in dict.fromkeys(ids.tolist()):
            mine, known = ids == id, self._steps_of.get(id)
            new = [modules[mine], agents[mine], begun[mine], ended[mine]]
            self._widen(id, int(new[2].min()), int(new[3].max()))
            if known is not None:
                old = known.modules, known.agents, known.begun, known.ended
                new = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            self._steps_of[id] = Known(*new)

    def _widen(self, id: str, first: int, last: int) -> None:
        known = self._spans.get(id, (first, last))
        self._spans[id] = min(first, known[0]), max(last, known[1])

    def _forget(self) -> None:
        super()._forget()
        self._steps_of.clear()
        self._by_module.clear()
        self._spans.clear()
        for id, _, _, begun, ended in self._unwritten:
            self._widen(id, begun, ended)

    def add_parts(self, episode: Any, weights: Mapping[str, float | None]) -> int:
        """Add an episode, or its next part; return how many timesteps of the environment it has.

        `weights` are the priorities of its steps by module.
        """
        id = str(episode.id_)
        before = self.length(id) if id in self._spans else 0
        parts = []  # all or none of them
        for agent, single in episode.agent_episodes.items():
            if not len(single):
                continue
            module = str(episode.module_for(agent))
            steps = self._steps_of_agent(episode, agent, single, module)
            times = _times(episode, agent, len(single)).tolist()
            known = [(id, module, str(agent), *two) for two in itertools.pairwise(times)]
            parts.append((steps, weights[module], known))
        for steps, weight, known in parts:
            self._append(steps, weight, known)
            self._widen(id, min(row[3] for row in known), max(row[4] for row in known))
        gained = self.length(id) - before if parts else 0
        self.added += gained
        return gained

    def _steps_of_agent(
        self, episode: Any, agent: Any, single: Any, module: str
    ) -> list[dict[str, Any]]:
        if not is_json(agent):
            raise expdb.InvalidValue(f"an agent is called {agent!r}: give it text, or a number")
        times = _times(episode, agent, len(single))
        columns: dict[str, Any] = {
            "task_id": module, "agent_id": str(agent), "group_id": str(episode.id_)
        }  # fmt: skip
        if type(agent) is not str:  # RLlib's examples count their agents
            columns["tags"] = {"agent": agent}
        return self._steps(
            single, lambda k: {"env_t": int(times[k]), "env_t_after": int(times[k + 1])}, **columns
        )

    def evict(self) -> list[tuple[str, int]]:
        """Evict the oldest episodes beyond the capacity; return which, and their lengths."""
        gone = super().evict()
        self.gone = [self._steps_of.pop(id) for id, _ in gone]
        for id, _ in gone:
            del self._spans[id]
        for one in self.gone:
            self._by_module.subtract(one.modules.tolist())
        return gone

    def by_module(self) -> Counter[str]:
        """Return how many steps each module has."""
        self.flush()
        return self._by_module

    def known(self) -> list[Known]:
        """Return what is known of each episode, oldest first."""
        self.flush()
        return list(self._steps_of.values())

    def build_episode_arguments(self, id: str) -> dict[str, Any]:
        """Return an episode as the arguments of RLlib's `MultiAgentEpisode`."""
        known = self._steps_of[id]
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
            known.agents, known.modules, known.begun - first, known.ended - first,
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
        """Return the positions of the steps of each agent from a timestep to `n_step` later.

        Agents that do not act at the one, or observe nothing at the other, are left out.
        """
        known, positions = self._steps_of[id], self._positions[id]
        found = []
        within = (known.begun >= first) & (known.ended <= first + n_step)
        for agent in dict.fromkeys(known.agents[within].tolist()):
            mine = np.flatnonzero(within & (known.agents == agent))
            mine = mine[np.argsort(known.begun[mine], kind="stable")]
            reaches = known.begun[mine[0]] == first and known.ended[mine[-1]] == first + n_step
            if reaches and known.modules[mine[0]] in modules:
                found.append(positions[mine])
        return found

    def span(self, id: str) -> tuple[int, int]:
        """Return the first and the last timestep of the environment in an episode."""
        return self._spans[id]


def _times(episode: Any, agent: Any, steps: int) -> np.ndarray:
    """Return the environment's timesteps of the `steps` + 1 observations of an agent.

    Counted from the end: RLlib fills up the front of what an agent has that comes later.
    """
    data = episode.env_t_to_agent_t[agent].data
    first = episode.env_t - len(data) + 1
    seen = [first + k for k, one in enumerate(data) if one != episode.SKIP_ENV_TS_TAG]
    return np.array(seen[-(steps + 1) :], np.int64)
