"""A prioritized replay buffer for Stable-Baselines3, which does not include one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import expdb
from expdb.integrations.stable_baselines3.buffers import ReplayBuffer, seeded


class PrioritizedReplayBufferSamples(NamedTuple):
    """Transitions that `PrioritizedReplayBuffer.sample` returns.

    Parameters
    ----------
    observations : torch.Tensor or dict of torch.Tensor
        Observations before the transitions.
    actions : torch.Tensor
        Actions.
    next_observations : torch.Tensor or dict of torch.Tensor
        Observations after the transitions.
    dones : torch.Tensor, shape (B, 1)
        1 for terminal transitions, else 0.
    rewards : torch.Tensor, shape (B, 1)
        Rewards, or n-step returns.
    discounts : torch.Tensor or None, shape (B, 1)
        Discount factors of the next values, for n-step transitions.
    weights : torch.Tensor, shape (B, 1)
        Importance weights, float32.
    positions : ndarray of int64, shape (B,)
        Positions of the transitions, for `update_priorities`.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    discounts: torch.Tensor | None
    weights: torch.Tensor
    positions: np.ndarray


class PrioritizedReplayBuffer(ReplayBuffer):
    """Sample transitions in proportion to their priority.

    The buffer supports every observation space. Samples also have `weights` and `positions`. After
    you compute the loss, pass the TD errors to `update_priorities`. Each sample first writes the
    unwritten transitions.

    Parameters
    ----------
    *args
        Positional arguments of `ReplayBuffer`.
    alpha : float
        Exponent of the priorities.
    beta : float
        Exponent of the importance weights in the first sample.
    anneal_steps : int, optional
        Number of samples over which `beta` grows to 1.
    **options
        Keyword arguments of `ReplayBuffer`.

    Raises
    ------
    InvalidValue
        If `alpha`, `beta` or `anneal_steps` is invalid.
    CapacityMismatch
        If the stored buffer is larger than `buffer_size`.

    References
    ----------
    Schaul et al. (2016), *Prioritized Experience Replay*, arXiv:1511.05952.
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
        self._arguments |= {"alpha": alpha, "beta": beta, "anneal_steps": anneal_steps}

    @property
    def _samples_unwritten(self) -> bool:
        return False

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedReplayBufferSamples:
        """Draw transitions in proportion to their priority.

        Parameters
        ----------
        batch_size : int
            Number of transitions.
        env : VecNormalize, optional
            Environment that normalizes observations and rewards.

        Returns
        -------
        PrioritizedReplayBufferSamples
            The transitions, their importance weights and their positions.

        Raises
        ------
        TooFewRows
            If the buffer has no transitions.
        ValueError
            If `n_steps` is above 1 and `env` normalizes rewards.
        """
        self.flush()
        batch = self._draw(batch_size, self._fields)
        weights = self._tensor(batch["weight"].astype(np.float32).reshape(-1, 1))
        samples = self._samples(batch, env)
        return PrioritizedReplayBufferSamples(
            **samples._asdict(), weights=weights, positions=batch["position"]
        )

    def update_priorities(self, positions: np.ndarray, priorities: Any) -> int:
        """Set the priority of each transition to its absolute TD error.

        Transitions that were evicted are ignored.

        Parameters
        ----------
        positions : ndarray of int64, shape (N,)
            `positions` of a sample.
        priorities : torch.Tensor or array_like, N elements
            TD errors. The priorities are their absolute values.

        Returns
        -------
        int
            Number of positions that hold a transition.

        Raises
        ------
        InvalidValue
            If the lengths differ, or a TD error is NaN or infinite.
        """
        values = priorities.detach().cpu().numpy() if hasattr(priorities, "detach") else priorities
        values = np.abs(np.asarray(values, np.float64)).reshape(-1)
        self.flush()  # an unwritten transition has no position yet
        return self.buffer.update_priorities(positions, values)
