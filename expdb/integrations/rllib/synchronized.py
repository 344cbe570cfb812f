"""Draw transitions of all agents of an environment between the same timesteps."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import batch as batched

from expdb.integrations.rllib.multi_agent_episodes import MultiAgentEpisodes

DRAWS = 100  # attempts per timestep: in some games, few start timesteps have a transition


def synchronized(
    stored: MultiAgentEpisodes,
    rng: np.random.Generator,
    size: int,
    n_step: int | tuple[int, int],
    gamma: float,
    infos: bool,
    modules: list[str],
) -> dict[str, dict[str, Any]]:
    """Draw `size` timesteps of environments; return a dict of arrays [B, ...] for each module.

    Each row is the transition of one agent from a drawn timestep to `n_step` timesteps later.
    Raise ValueError if no agent has such a transition, or if such transitions are too rare.
    """
    stored.flush()
    spans = {id: stored.span(id) for id in stored.ids}
    ids, lengths = list(spans), np.array([last - first for first, last in spans.values()])
    ends_of: dict[int, np.ndarray] = {}  # by n: cumulative counts of start timesteps
    parts: list[np.ndarray] = []
    for _ in range(DRAWS * size):
        n = int(rng.integers(*n_step)) if isinstance(n_step, tuple) else n_step
        if n not in ends_of:
            ends_of[n] = np.cumsum(np.maximum(lengths + 1 - n, 0))
        ends = ends_of[n]
        if not ends[-1]:
            break
        drawn = int(rng.integers(ends[-1]))
        which = int(np.searchsorted(ends, drawn, "right"))
        id = ids[which]
        first = spans[id][0] + drawn - int(ends[which - 1] if which else 0)
        transitions = stored.transitions_at(id, first, n, modules)
        parts += transitions
        size -= bool(transitions)
        if not size:
            return _arrays(stored, parts, gamma, infos)
    raise ValueError(
        f"too few transitions over {n_step} timesteps; add longer episodes or reduce n_step"
    )


def _arrays(
    stored: MultiAgentEpisodes, parts: list[np.ndarray], gamma: float, infos: bool
) -> dict[str, dict[str, Any]]:
    """Return the arrays of each module; each part has the positions of one transition."""
    values, batch = stored.at(np.concatenate(parts), "task_id")
    rows: dict[str, dict[str, list[Any]]] = {}
    offset = 0
    for part in parts:
        steps = slice(offset, offset := offset + len(part))
        taken = values[steps]
        begun = taken[0]["env_t"]
        after = np.array([step["env_t_after"] - 1 - begun for step in taken])
        transition = {
            Columns.OBS: taken[0]["obs"], Columns.ACTIONS: taken[0]["action"],
            Columns.REWARDS: float((batch["reward"][steps] * gamma**after).sum()),
            Columns.NEXT_OBS: taken[-1]["next_obs"],
            Columns.TERMINATEDS: bool(batch["terminated"][steps][-1]),
            Columns.TRUNCATEDS: bool(batch["truncated"][steps][-1]),
            "weights": 1.0, "n_step": taken[-1]["env_t_after"] - begun,
        }  # fmt: skip
        if infos:
            transition[Columns.INFOS] = taken[-1]["following_info"]
        columns = rows.setdefault(str(batch["task_id"][offset - 1]), {})
        for name, value in transition.items():
            columns.setdefault(name, []).append(value)
    return {
        module: {name: _stacked(name, column) for name, column in columns.items()}
        for module, columns in rows.items()
    }


def _stacked(name: str, column: list[Any]) -> Any:
    if name == Columns.INFOS:
        return column
    if name in (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS):
        return batched(column)
    return np.array(column)
