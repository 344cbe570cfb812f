"""RLlib's buffers of sample batches, uniform and prioritized."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ray.rllib.policy.sample_batch import SampleBatch, concat_samples
from ray.rllib.utils.replay_buffers import (
    prioritized_replay_buffer,
)
from ray.rllib.utils.replay_buffers import replay_buffer as rllib

import expdb
from expdb.integrations.locations import PRIVATE, absolute, reopened
from expdb.integrations.prioritized import PrioritizedWriter
from expdb.integrations.records import Records
from expdb.integrations.rllib.items import kinds, one_step, rows_of, step_of, sum_of_rewards
from expdb.integrations.rllib.states import (
    continue_from,
    replace_contents,
    state_of,
)

StorageUnit: Any = rllib.StorageUnit
FLUSH_STEPS = 256

# The attributes that count the items of RLlib's ring buffer.
_COUNTERS = (
    "_num_timesteps_added", "_num_timesteps_added_wrap", "_next_idx", "_most_items",
    "_eviction_started",
)  # fmt: skip

# Options that RLlib's algorithms pass to every buffer, and that have no effect here.
_IGNORED = frozenset(
    (
        "type", "prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps",
        "_enable_replay_buffer_api", "underlying_buffer_config", "beta",
    )
)  # fmt: skip


class StoredSamples(rllib.ReplayBuffer):
    """Base of the buffers: the database stores each item of any storage unit as one step."""

    splits = True  # whether `add` splits batches into items

    def __init__(
        self,
        capacity: int = 10000,
        storage_unit: Any = "timesteps",
        *,
        location: str | os.PathLike[str] = PRIVATE,
        name: str = "replay_buffer",
        state_includes_data: bool = False,
        **options: Any,
    ):
        if unknown := options.keys() - _IGNORED:
            raise ValueError(
                f"{min(unknown)} is not an option of this buffer; expected capacity, "
                "storage_unit, location, name and state_includes_data"
            )
        # RLlib would allocate memory for the capacity, but the items are in the database.
        rllib.ReplayBuffer.__init__(self, min(capacity, 1), storage_unit)
        self.capacity = capacity
        self.location, self.name = absolute(location), name
        self.is_private = self.location == PRIVATE
        self.state_includes_data = state_includes_data
        self.database = expdb.open(location)
        self._rng = np.random.default_rng(random.getrandbits(32))  # follows Python's seed
        self._open_buffer()

    def _open_buffer(self) -> None:
        is_steps = self.storage_unit == StorageUnit.TIMESTEPS
        self.buffer = self.database.buffer(
            self.name, capacity=self.capacity if is_steps else None, fields={"timesteps": "int64"}
        )
        self._records = Records(self.database, self.buffer, *kinds())
        self._writer = PrioritizedWriter(self.buffer)
        self._item_positions: deque[tuple[int, int]] = (
            deque()
        )  # positions and timesteps, oldest first
        self._after = -1
        added = int(self.buffer.stats()["added"])
        # RLlib's ring buffer starts its next round when a round has added `capacity` timesteps. It
        # holds as many items as the longest round so far.
        self._num_timesteps_added = self._num_timesteps_added_wrap = self._next_idx = 0
        self._most_items, self._eviction_started = 0, False
        if is_steps:
            self._num_timesteps_added = added
            self._num_timesteps_added_wrap = self._next_idx = added % self.capacity
            self._most_items, self._eviction_started = self.capacity, added >= self.capacity
        self._learn()
        for _, timesteps in self._item_positions:
            self._count_item(timesteps)
        self._most_items = max(self._most_items, len(self._item_positions))
        self._flushed = self._num_timesteps_added

    def _count_item(self, timesteps: int) -> None:
        self._num_timesteps_added += timesteps
        self._num_timesteps_added_wrap += timesteps
        self._next_idx += 1
        self._most_items = max(self._most_items, self._next_idx)
        if self._num_timesteps_added_wrap >= self.capacity:
            self._eviction_started = True
            self._num_timesteps_added_wrap = self._next_idx = 0

    def __len__(self) -> int:
        return min(len(self.buffer) + self._writer.unwritten, self._most_items)

    def __reduce__(self) -> tuple[Any, ...]:
        self.flush()
        options = {
            "capacity": self.capacity, "storage_unit": self.storage_unit,
            "location": self.location, "name": self.name,
            "state_includes_data": self.state_includes_data, **self._more(),
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
        self._writer.close()
        replace_contents(self, data)
        self._open_buffer()

    def _more(self) -> dict[str, Any]:
        """Return the options that only a subclass has."""
        return {}

    # -- adding --------------------------------------------------------------------------------

    def add(self, batch: Any, **options: Any) -> None:
        """Split a batch into items of the storage unit and add them.

        Parameters
        ----------
        batch : SampleBatch or MultiAgentBatch
            The timesteps to add.
        **options
            `weight` is the priority of the new items in a prioritized buffer.

        Raises
        ------
        InvalidValue
            If a value cannot be stored exactly, or a column is called `timesteps`.
        """
        if not self.splits:
            if batch.count:  # RLlib may split off an empty batch
                self._add_single_batch(batch, **options)
            return
        rows = None
        is_cut_here = type(self)._add_single_batch is StoredSamples._add_single_batch
        if is_cut_here and self.storage_unit == StorageUnit.TIMESTEPS:
            rows = rows_of(batch)
        if rows is None:
            rllib.ReplayBuffer.add(self, batch, **options)
            return
        for row in rows:  # building a batch of each step, as RLlib does, would be slow
            self._add_item(row, 1, options.get("weight"))

    def _add_single_batch(self, item: Any, **options: Any) -> None:
        """Add an item, which is a timestep, a sequence, an episode or a fragment."""
        is_step = self.storage_unit == StorageUnit.TIMESTEPS and item.count == 1
        value = one_step(item) if is_step else item
        self._add_item(value, item.count, options.get("weight"))

    def _add_item(self, value: Any, timesteps: int, weight: float | None) -> None:
        step = self._records.step(value)
        if "timesteps" in step:
            raise expdb.InvalidValue(
                "column name 'timesteps' is reserved for the number of timesteps; rename the column"
            )
        step.setdefault("reward", sum_of_rewards(value))
        self._writer.append(self._weight(weight), timesteps=timesteps, **step)
        self._count_item(timesteps)
        unflushed = self._num_timesteps_added - self._flushed
        if self._writer.unwritten >= FLUSH_STEPS or unflushed >= self.capacity:
            self.flush()

    def _weight(self, weight: float | None) -> float | None:
        """Return the priority of a new item."""
        return None

    def flush(self) -> None:
        """Write all added items, so that they are durable and visible to other processes."""
        self._flushed = self._num_timesteps_added
        if not self._writer.is_flushed:
            self._writer.flush()
        if self.storage_unit != StorageUnit.TIMESTEPS:
            try:
                self._learn()
                self._evict()
            except BaseException:  # `_item_positions` may be incomplete: read it again
                self._item_positions, self._after = deque(), -1
                raise

    def _learn(self) -> None:
        """Read the items that any process has stored since the last call."""
        if self.storage_unit == StorageUnit.TIMESTEPS:
            return
        for batch in self.buffer.scan(after=self._after, fields=["position", "timesteps"]):
            self._after = int(batch["position"][-1])
            self._item_positions.extend(
                zip(batch["position"].tolist(), batch["timesteps"].tolist(), strict=True)
            )

    def _evict(self) -> None:
        """Delete the items that RLlib's ring buffer would have overwritten."""
        over = len(self._item_positions) - self._most_items
        if over > 0:
            self.buffer.delete(np.array([self._item_positions.popleft()[0] for _ in range(over)]))

    # -- sampling ------------------------------------------------------------------------------

    def sample(self, num_items: int, **options: Any) -> Any:
        """Draw items uniformly, with replacement, and return them as one batch.

        Parameters
        ----------
        num_items : int
            Number of items. If it is 0, the batch is empty.
        **options
            Other arguments, which are ignored.

        Returns
        -------
        SampleBatch or MultiAgentBatch
            The items, concatenated.

        Raises
        ------
        ValueError
            If the buffer is empty.
        TypeError
            If `num_items` is None.
        """
        batch, _ = self._drawn(num_items, expdb.Uniform(replace=True))
        return batch

    def _drawn(self, num_items: int, sampler: expdb.Sampler) -> tuple[Any, expdb.Batch]:
        if num_items is None:
            raise TypeError("num_items is required; pass the number of items to sample")
        if not num_items and len(self):
            columns = {key: np.empty(0) for key in (*sampler.keys(), "position")}
            return SampleBatch(), expdb.Batch(columns, 0)
        self.flush()
        keys = "position", "reward", *self._records.fields, *sampler.keys()
        try:
            drawn = self.buffer.sample(num_items or 1, sampler=sampler, seed=self._rng, fields=keys)
        except (expdb.TooFewRows, expdb.QueryError) as error:  # len(self) costs a query
            if not len(self):
                raise ValueError("Trying to sample from an empty buffer.") from error
            raise
        batch = self._joined(drawn)
        self._num_timesteps_sampled += batch.count
        return batch, drawn

    def _joined(self, drawn: expdb.Batch) -> Any:
        """Return the items of a batch, concatenated."""
        if self.storage_unit == StorageUnit.TIMESTEPS:
            table = self._records.table(drawn)
            if table is not None:
                return SampleBatch(table)
            steps = self._records.values(drawn)
            return concat_samples([step_of(value) for value in steps])
        joined = concat_samples(self._records.values(drawn))
        joined.decompress_if_needed()
        return joined

    # -- counts and states ---------------------------------------------------------------------

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
        self.flush()
        return {
            "added_count": self._num_timesteps_added,
            "added_count_wrapped": self._num_timesteps_added_wrap,
            "eviction_started": self._eviction_started,
            "sampled_count": self._num_timesteps_sampled,
            "est_size_bytes": self.buffer.stats()["bytes"],
            "num_entries": len(self),
        }

    def get_state(self) -> dict[str, Any]:
        """Return the location, and the contents if private or with `state_includes_data`.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        state = state_of(self, self._rng, self._num_timesteps_sampled)
        return state | {"counters": {name: getattr(self, name) for name in _COUNTERS}}

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
        self._num_timesteps_sampled = continue_from(self, self._rng, state)
        if "data" in state:
            self.__dict__ |= state["counters"]

    def close(self) -> None:
        """Write all added items and close the database. A private database is then deleted."""
        if self._writer.is_open:
            self.flush()
            self._writer.close()
            self.database.close()


class ReplayBuffer(StoredSamples):
    """Store the items of RLlib's `ReplayBuffer` in a database and sample them uniformly.

    Once `capacity` timesteps have been added, each new item replaces the oldest item.

    Parameters
    ----------
    capacity : int
        Maximum number of timesteps, as in RLlib's buffer.
    storage_unit : str or StorageUnit
        What an item is: `"timesteps"`, `"sequences"`, `"episodes"` or `"fragments"`.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Name of the buffer in the database. An existing buffer keeps its contents.
    state_includes_data : bool
        Whether `get_state` also returns the items. For a private database, it always does.
    **options
        Options that RLlib passes to every buffer, such as `type`, which are ignored.

    Raises
    ------
    ValueError
        If an option is unknown.
    CapacityMismatch
        If `storage_unit` is `"timesteps"` and the stored buffer is larger than `capacity`.
    """


class PrioritizedReplayBuffer(StoredSamples, prioritized_replay_buffer.PrioritizedReplayBuffer):
    """Store the items of RLlib's `PrioritizedReplayBuffer` and sample them by priority.

    Sampling is stratified. `batch_indexes` are positions in the buffer. A position is never
    reused, so a late update of priorities cannot change another item.

    Parameters
    ----------
    capacity : int
        Maximum number of timesteps, as in RLlib's buffer.
    storage_unit : str or StorageUnit
        What an item is: `"timesteps"`, `"sequences"`, `"episodes"` or `"fragments"`.
    alpha : float
        Exponent of the priorities, above 0.
    **options
        Further arguments of `ReplayBuffer`.

    Raises
    ------
    AssertionError
        If `alpha` is not above 0.
    ValueError
        If an option is unknown.
    """

    def __init__(
        self,
        capacity: int = 10000,
        storage_unit: Any = "timesteps",
        alpha: float = 1.0,
        **options: Any,
    ):
        assert alpha > 0, alpha
        StoredSamples.__init__(self, capacity, storage_unit, **options)
        self._alpha, self._max_priority = alpha, 1.0
        self._by_priority = expdb.Prioritized(alpha, 1.0, None, 0.0, "max", "buffer")

    def _more(self) -> dict[str, Any]:
        return {"alpha": self._alpha}

    def _weight(self, weight: float | None) -> float | None:
        return self._max_priority if weight is None else float(weight)

    def sample(  # type: ignore[override]
        self, num_items: int, beta: float, **options: Any
    ) -> Any:
        """Draw items in proportion to their priority, and return them as one batch.

        Parameters
        ----------
        num_items : int
            Number of items.
        beta : float
            Exponent of the importance weights; a value above 1 counts as 1.
        **options
            Other arguments, which are ignored.

        Returns
        -------
        SampleBatch or MultiAgentBatch
            The items, concatenated. A SampleBatch also has the columns `weights` and
            `batch_indexes`.

        Raises
        ------
        AssertionError
            If `beta` is negative.
        ValueError
            If the buffer is empty.
        """
        assert beta >= 0.0
        if self._by_priority.beta != min(beta, 1.0):
            self._by_priority = replace(self._by_priority, beta=min(beta, 1.0))
        batch, drawn = self._drawn(num_items, self._by_priority)
        if isinstance(batch, SampleBatch):
            weights, positions = drawn["weight"], drawn["position"]
            if batch.count != len(positions):  # items of several timesteps
                counts = self.buffer.get(positions, fields=("timesteps",))["timesteps"]
                weights, positions = np.repeat(weights, counts), np.repeat(positions, counts)
            batch["weights"], batch["batch_indexes"] = weights, positions
        return batch

    def update_priorities(self, idxes: Any, priorities: Sequence[float] | np.ndarray) -> None:
        """Set the priorities of items, and ignore items that are no longer stored.

        Parameters
        ----------
        idxes : array_like of int
            `batch_indexes` of a sample.
        priorities : array_like of float
            Priorities, above 0.

        Raises
        ------
        AssertionError
            If the lengths differ, or a priority is not above 0.
        """
        values = np.asarray(priorities, np.float64)
        assert len(values) == len(idxes), (
            f"got {len(values)} priorities for {len(idxes)} items; pass one per item"
        )
        assert (values > 0).all(), f"priorities must be above 0, got {values.min()}"
        self.flush()  # an unwritten item has no position yet
        self.buffer.update_priorities(np.asarray(idxes, np.int64), values)
        self._max_priority = max(self._max_priority, float(values.max(initial=0.0)))

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
        return StoredSamples.stats(self, debug)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the buffer, including the greatest priority so far.

        Returns
        -------
        dict
            A state for `set_state`.
        """
        return {**StoredSamples.get_state(self), "max_priority": self._max_priority}

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
        self._max_priority = state["max_priority"]
