"""A prioritized buffer for Stable-Baselines3, which has none of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import expdb
from expdb.integrations.stable_baselines3.buffers import ReplayBuffer, seeded


class PrioritizedReplayBufferSamples(NamedTuple):
    """What `PrioritizedReplayBuffer.sample` returns: one of SB3's samples, and two columns more."""

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    weights: torch.Tensor  # importance weights, [B, 1]
    positions: np.ndarray  # of the steps, for update_priorities


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draw transitions by priority (Schaul et al. 2016), of any observation space.

    `alpha`, `beta` and `anneal_steps` are those of `expdb.Prioritized`. Samples have `weights` and
    `positions` too; give new priorities to `update_priorities` after the loss.
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float = 0.4,
        anneal_steps: int | None = None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self._sampler = expdb.Prioritized(alpha, beta, anneal_steps)
        self._rng = seeded()
        self._fields += ("position", "weight")
        self._given |= {"alpha": alpha, "beta": beta, "anneal_steps": anneal_steps}

    @property
    def _samples_unwritten(self) -> bool:
        return False

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedReplayBufferSamples:
        """Return transitions, each drawn in proportion to its priority."""
        self.flush()
        batch = self._draw(batch_size, self._fields)
        weights = self._tensor(batch["weight"].astype(np.float32).reshape(-1, 1))
        samples = self._samples(batch, env)
        return PrioritizedReplayBufferSamples(
            **samples._asdict(), weights=weights, positions=batch["position"]
        )

    def update_priorities(self, positions: np.ndarray, priorities: Any) -> int:
        """Set the priorities of transitions to their |TD errors|; return how many are held."""
        values = priorities.detach().cpu().numpy() if hasattr(priorities, "detach") else priorities
        values = np.abs(np.asarray(values, np.float64)).reshape(-1)
        self.flush()  # of transitions that were just added, too
        return self.buffer.update_priorities(positions, values)
