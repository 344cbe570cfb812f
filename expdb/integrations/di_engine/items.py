"""Store the items of a DI-engine buffer. Each item is one step in the database."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import expdb
from expdb import errors
from expdb.integrations.di_engine.labels import ORDER, LabelCache, label_of
from expdb.integrations.prioritized import PrioritizedWriter
from expdb.integrations.records import Kind, Records

FLUSH_STEPS, FLUSH_SECONDS = 256, 5.0
UPDATE_SECONDS = 2.0  # a process that replaces an item for longer counts as killed
UPDATED = "updated"  # agent_id of items that replaced another item


def push_order_keys(batch: expdb.Batch) -> np.ndarray:
    """Return sort keys that put items in push order."""
    rows = zip(batch["tags"].tolist(), batch["position"].tolist(), strict=True)
    return np.array([(tags or {}).get(ORDER, position) for tags, position in rows], np.int64)


# Names that no field can have: data may have fields called "label" or "unwritten".
LABEL, UNWRITTEN = "=label", "=unwritten"


@dataclass(frozen=True)
class _PlaceSampler(expdb.Sampler):
    """Select the stored and unwritten items at the indices that `items.choose` returns.

    The column `UNWRITTEN` is -1 for a stored item. For an unwritten item, the column is the index
    of the item in `Items._unwritten`, and the position is a placeholder.
    """

    items: Any

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that `draw` adds to a batch."""
        return (UNWRITTEN,)

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions and `UNWRITTEN` of the items that `Items.choose` selects."""
        unwritten: int = self.items.unwritten
        count = min(population.size + unwritten, self.items.size)
        places = self.items.choose(count) - count  # -1 is the newest item
        stored = np.minimum(places + population.size + unwritten, population.size - 1)
        return population.at(stored), {UNWRITTEN: np.maximum(places + unwritten, -1)}


class Items:
    """Push, draw and change the items of a buffer. Threads may share it.

    Pushed items are written in groups. A push writes them if `FLUSH_STEPS` items are unwritten. A
    push or uniform sample also writes them if the last write was at least `FLUSH_SECONDS` ago.
    Methods that read items first write the unwritten items, except `draw_with_unwritten`.
    """

    def __init__(
        self, location: str | os.PathLike[str], name: str, size: int, kinds: tuple[Kind, ...] = ()
    ):
        self.location, self.name, self.size, self.kinds = location, name, size, kinds
        self.database = expdb.open(location)
        try:
            self.buffer = self.database.buffer(name, capacity=size)
        except errors.CapacityMismatch:
            capacity = self._await_update(size)
            if capacity == size:
                self.buffer = self.database.buffer(name, capacity=size)
            else:
                self.database.close()
                raise errors.CapacityMismatch(
                    f"buffer {name!r} in {self.database.location} has a capacity of {capacity} "
                    f"items, but size is {size}; set size (replay_buffer_size) to {capacity}, or "
                    "choose another exp_name, instance_name or location"
                ) from None
        self.records = Records(self.database, self.buffer, *kinds)
        self._writer = PrioritizedWriter(self.buffer)
        self._flushed_at = time.monotonic()
        self.rng = np.random.default_rng(np.random.randint(2**31))  # follows NumPy's seed
        self.lock = threading.RLock()
        self.pushed = int(self.buffer.stats()["added"])
        self.choose: Callable[[int], np.ndarray]  # set by draw_with_unwritten() for each sample
        self._place_sampler = _PlaceSampler(self)
        self._labels = LabelCache(self.buffer, size)
        # Copies of the steps in the writer, and the priority and label of each. After an interrupt
        # or an error, the writer may hold more or fewer steps than this list.
        self._unwritten: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def _await_update(self, size: int) -> int | None:
        """Wait while another process replaces an item, and return the capacity.

        While a process replaces an item of a full buffer, the capacity is `size` + 1. If a process
        was killed meanwhile, delete the replaced items and reset the capacity.
        """
        buffer = self.database.buffer(self.name, create=False)
        until = time.monotonic() + UPDATE_SECONDS
        while buffer.capacity == size + 1 and time.monotonic() < until:
            time.sleep(0.01)
        if buffer.capacity == size + 1:
            self._delete_replaced(buffer)
            buffer.capacity = size
        return buffer.capacity

    def _delete_replaced(self, buffer: expdb.ReplayBuffer) -> None:
        """Delete items whose replacement is also stored."""
        newest: dict[int, int] = {}
        old = []
        for batch in buffer.scan(fields=("position", "tags")):
            for key, position in zip(
                push_order_keys(batch).tolist(), batch["position"].tolist(), strict=True
            ):
                if key in newest:
                    old.append(newest[key])
                newest[key] = position
        if old:
            buffer.delete(np.array(old, np.int64))

    def __len__(self) -> int:
        return min(len(self.buffer) + self._writer.unwritten, self.size)

    def push(
        self,
        value: Any,
        *,
        priority: float | None = None,
        policy_version: int | None = None,
        tags: Mapping[str, Any] | None = None,
        agent_id: str = "agent",
    ) -> None:
        """Add an item; raise InvalidValue if it cannot be stored exactly."""
        with self.lock:
            if self._writer.unwritten != self.unwritten:
                self.flush()
            step = self.records.step(value)
            self._writer.append(
                priority, policy_version=policy_version, tags=tags, agent_id=agent_id, **step
            )
            columns = {
                "priority": math.nan if priority is None else priority, LABEL: label_of(tags),
            }  # fmt: skip
            self._unwritten.append((deep_copy(step), deep_copy(columns)))
            self.pushed += 1
            if (
                self._writer.unwritten >= FLUSH_STEPS
                or time.monotonic() - self._flushed_at >= FLUSH_SECONDS
            ):
                self.flush()

    def consumer(self, name: str, max_use: float) -> expdb.Consumer:
        """Return the consumer that limits how often items are sampled.

        Raises ConsumerMismatch if the stored buffer has another limit.
        """
        try:
            return self.buffer.consumer(name, max_times_sampled=int(max_use))
        except errors.ConsumerMismatch as error:
            raise errors.ConsumerMismatch(
                f"max_use={int(max_use)} differs from the value stored for buffer {self.name!r} in "
                f"{self.database.location} ({error}); set max_use to the stored value, or choose "
                "another exp_name, instance_name or location"
            ) from None

    def flush(self) -> None:
        """Write all pushed items, so that they are durable and visible to other processes."""
        with self.lock:
            self._flushed_at = time.monotonic()
            if self._writer.is_flushed:
                self._unwritten = []
                return
            positions = self._writer.flush().tolist()
            steps, self._unwritten = self._unwritten, []
            if len(steps) == len(positions):
                self._labels.add(positions, [columns[LABEL] for _, columns in steps])

    @property
    def unwritten(self) -> int:
        """The number of items that are not written yet."""
        return len(self._unwritten)

    def draw(
        self,
        size: int,
        sampler: expdb.Sampler,
        *keys: str,
        where: Any = None,
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of drawn items, and their columns `position` and `keys`.

        The column `LABEL` is a list of `Label`.
        """
        with self.lock:
            self.flush()
            columns = self._draw_columns(size, sampler, *keys, where=where)
            return self.records.values(columns), columns

    def draw_with_unwritten(
        self, size: int, choose: Callable[[int], np.ndarray], *keys: str
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the values and columns of `size` stored or unwritten items; see `draw`.

        `choose` gets the number of items and returns `size` indices; 0 is the oldest item. The
        position of an unwritten item is -1. Raises TooFewRows if the buffer is empty, and any
        error that `choose` raises.
        """
        with self.lock:
            is_due = time.monotonic() - self._flushed_at >= FLUSH_SECONDS
            if is_due or self._writer.unwritten != self.unwritten:
                self.flush()
            self.choose = choose
            draw = partial(self._draw_columns, size, self._place_sampler, *keys, UNWRITTEN)
            try:
                columns = draw()
            except expdb.TooFewRows:
                if len(self.buffer) or not self.unwritten:
                    raise
                self.flush()  # the sampler needs at least one stored item
                columns = draw()
            values = self.records.values(columns)
            unwritten = columns.pop(UNWRITTEN)
            for row in np.flatnonzero(unwritten >= 0).tolist():
                step, own = self._unwritten[unwritten[row]]
                values[row] = self.records.value(deep_copy(step))
                for key in keys:
                    columns[key][row] = own[key]
                columns["position"][row] = -1
            return values, columns

    def _draw_columns(
        self, size: int, sampler: expdb.Sampler, *keys: str, where: Any = None
    ) -> dict[str, Any]:
        """Draw items and return their columns, including the fields that `records` needs."""
        names = [key for key in keys if key != LABEL]
        draw = partial(self.buffer.sample, size, where, sampler=sampler, seed=self.rng)
        columns: dict[str, Any] = dict(draw(fields=self.fields(*names)))
        if len(names) < len(keys):
            try:
                columns[LABEL] = self._labels.at(columns["position"].tolist())
            except errors.Evicted:  # an item was evicted after it was drawn
                columns = dict(draw(fields=self.fields(*names, "tags")))
                columns[LABEL] = [label_of(tags) for tags in columns["tags"].tolist()]
        return columns

    def lease(
        self, consumer: expdb.Consumer, size: int, sampler: expdb.Sampler, *keys: str
    ) -> tuple[list[Any], expdb.Batch]:
        """Draw items within a consumer's limits, and acknowledge their lease.

        Return the values of the items and the leased batch.
        """
        with self.lock:
            self.flush()
            lease = consumer.lease(size, sampler=sampler, fields=self.fields(*keys))
            values = self.records.values(lease.batch)
            lease.acknowledge()
            return values, lease.batch

    def fields(self, *keys: str) -> tuple[str, ...]:
        """Return `keys` and the names of the columns that a batch needs for the items."""
        return ("position", "reward", *self.records.fields, *keys)

    def all(self, *keys: str) -> tuple[list[Any], list[dict[str, Any]]]:
        """Return the values of all items, oldest first, and the position and `keys` of each."""
        values: list[Any] = []
        table: list[dict[str, Any]] = []
        with self.lock:
            self.flush()
            for batch in self.buffer.scan(fields=self.fields(*keys)):
                values += self.records.values(batch)
                columns = [batch[key].tolist() for key in ("position", *keys)]
                table += [
                    dict(zip(("position", *keys), row, strict=True))
                    for row in zip(*columns, strict=True)
                ]
        return values, table

    def is_same(self, value: Any, other: Any) -> bool:
        """Return whether two values are stored as the same step."""
        step, other_step = self.records.step(value), self.records.step(other)
        return step.keys() == other_step.keys() and all(
            _equal(step[key], other_step[key]) for key in step
        )

    def replace(self, old: list[int], value: Any, tags: Mapping[str, Any]) -> None:
        """Replace the items at the positions `old` by a new item, without evicting other items."""
        with self.lock:
            self.flush()
            is_full = len(self) >= self.size
            if is_full:
                self.buffer.capacity = self.size + 1
            try:
                self.push(value, tags=tags, agent_id=UPDATED)
                self.flush()
                self.delete(old)
            finally:
                if is_full:
                    self.buffer.capacity = self.size

    def delete(self, positions: Any) -> None:
        """Delete items by position."""
        if len(positions):
            self.buffer.delete(np.asarray(positions, np.int64))

    def clear(self) -> None:
        """Delete all items."""
        with self.lock:
            self.flush()
            self.buffer.clear()

    def close(self) -> None:
        """Write all pushed items and close the database. A private database is then deleted."""
        with self.lock:
            if self._writer.is_open:
                self._writer.close()
                self.database.close()


def deep_copy(value: Any) -> Any:
    """Return a deep copy of dicts, lists, tuples and arrays; other values are not copied."""
    kind = type(value)
    if kind is dict:
        return {key: deep_copy(item) for key, item in value.items()}
    if kind in (list, tuple):
        return kind([deep_copy(item) for item in value])
    return value.copy() if kind is np.ndarray else value


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        alike = (
            type(value) is type(other) and value.dtype == other.dtype and value.shape == other.shape
        )
        return bool(alike and value.tobytes() == other.tobytes())
    return type(value) is type(other) and bool(value == other)
