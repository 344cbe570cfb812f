"""RLlib's reservoir and FIFO buffers of sample batches."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
from ray.rllib.policy.sample_batch import MultiAgentBatch
from ray.rllib.utils.replay_buffers import fifo_replay_buffer, reservoir_replay_buffer

import expdb
from expdb.integrations.positions import first_value
from expdb.integrations.rllib.sample_batches import StorageUnit, StoredSamples


class ReservoirReplayBuffer(StoredSamples, reservoir_replay_buffer.ReservoirReplayBuffer):
    """Store the items of RLlib's `ReservoirReplayBuffer`, a uniform sample of all added items.

    Parameters
    ----------
    capacity : int
        Largest number of timesteps.
    storage_unit : str or StorageUnit
        What an item is: `"timesteps"`, `"sequences"`, `"episodes"` or `"fragments"`.
    **options
        Further arguments of `ReplayBuffer`.

    References
    ----------
    Vitter (1985), *Random Sampling with a Reservoir*, algorithm R.
    """

    def __init__(
        self,
        capacity: int = 10000,
        storage_unit: Any = "timesteps",
        **options: Any,
    ):
        StoredSamples.__init__(self, capacity, storage_unit, **options)
        self._num_evicted = 0

    def _open_buffer(self) -> None:
        super()._open_buffer()
        self._offered = self.database.buffer(
            f"{self.name}.reservoir", capacity=1, fields={"add_calls": "int64"}
        )
        self._num_add_calls = self._kept = first_value(self._offered, "add_calls") or 0

    def _add_item(self, value: Any, timesteps: int, weight: float | None) -> None:
        """Add an item; if the buffer is full, replace a random item or skip the new one."""
        self._num_add_calls += 1
        full = len(self) if self.storage_unit == StorageUnit.TIMESTEPS else self._timesteps()
        if full + timesteps <= self.capacity:
            return StoredSamples._add_item(self, value, timesteps, weight)
        self._num_timesteps_added += timesteps
        place = random.randrange(self._num_add_calls)
        if place >= len(self):
            return None
        self.flush()
        drawn = self.buffer.sample(1, sampler=expdb.Uniform(), seed=self._rng, fields=["position"])
        self.buffer.delete(drawn["position"])
        self._item_positions = deque(
            item for item in self._item_positions if item[0] != int(drawn["position"][0])
        )
        self._num_evicted += 1
        StoredSamples._add_item(self, value, timesteps, weight)
        self._num_timesteps_added -= timesteps
        return None

    def flush(self) -> None:
        """Write all added items and the number of offered items, including skipped ones."""
        super().flush()
        if self._kept != self._num_add_calls:
            self._offered.store(add_calls=self._num_add_calls)
            self._kept = self._num_add_calls

    def _timesteps(self) -> int:
        self.flush()
        return sum(count for _, count in self._item_positions)

    def stats(self, debug: bool = False) -> dict[str, Any]:
        """Return the statistics that RLlib's buffer returns.

        Parameters
        ----------
        debug : bool
            Ignored.

        Returns
        -------
        dict
            The statistics by name.
        """
        return {
            **StoredSamples.stats(self, debug),
            "num_evicted": self._num_evicted, "num_add_calls": self._num_add_calls,
        }  # fmt: skip

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer, including its numbers of offered and evicted items.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        return {
            **StoredSamples.get_state(self),
            "num_evicted": self._num_evicted, "num_add_calls": self._num_add_calls,
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
        StoredSamples.set_state(self, state)
        self._num_evicted = state["num_evicted"]
        self._num_add_calls = state["num_add_calls"]


class FifoReplayBuffer(StoredSamples, fifo_replay_buffer.FifoReplayBuffer):
    """Store the batches of RLlib's `FifoReplayBuffer` and sample each once, the oldest first.

    All processes that share the buffer together sample each batch once, also after a restart. The
    buffer never evicts a batch.

    Parameters
    ----------
    *args
        Arguments of RLlib's buffer, which are ignored.
    **options
        `location`, `name` and `state_includes_data` as in `ReplayBuffer`.
    """

    def __init__(self, *args: Any, **options: Any):
        StoredSamples.__init__(self, 2**40, StorageUnit.FRAGMENTS, **options)

    def _open_buffer(self) -> None:
        super()._open_buffer()
        self._consumer = self.buffer.consumer("fifo", max_times_sampled=1)

    def _more(self) -> dict[str, Any]:
        return {}

    def __len__(self) -> int:
        return len(self.buffer) + self._writer.unwritten

    def _learn(self) -> None:
        """Do nothing: each batch is deleted when it is sampled, so no batch is evicted."""

    def add(self, batch: Any, **options: Any) -> None:
        """Add a batch.

        Parameters
        ----------
        batch : SampleBatch or MultiAgentBatch
            The batch.
        **options
            Other arguments of RLlib's method, which are ignored.

        Raises
        ------
        InvalidValue
            If the batch cannot be stored exactly.
        """
        StoredSamples._add_single_batch(self, batch)

    def sample(self, *args: Any, **options: Any) -> Any:
        """Return the oldest batch and delete it.

        Parameters
        ----------
        *args, **options
            Arguments of RLlib's method, which are ignored.

        Returns
        -------
        SampleBatch or MultiAgentBatch
            The batch, with a column `weights` of ones. If the buffer is empty, the batch is empty.
        """
        self.flush()
        fields = ["position", "reward", *self._records.fields]
        try:
            lease = self._consumer.lease(1, sampler=expdb.Ordered("position"), fields=fields)
        except expdb.TooFewRows:
            return MultiAgentBatch({}, 0)
        (batch,) = self._records.values(lease.batch)
        lease.acknowledge()
        self.buffer.delete(lease.batch["position"])
        for policy_batch in (
            batch.policy_batches.values() if hasattr(batch, "policy_batches") else (batch,)
        ):
            policy_batch["weights"] = np.ones(len(policy_batch))
        return batch

    def update_priorities(self, *args: Any, **options: Any) -> None:
        """Do nothing, because the buffer has no priorities.

        Parameters
        ----------
        *args, **options
            Arguments of RLlib's method, which are ignored.
        """
