"""DI-engine's newer buffer, whose items have an index and a meta dict, with middleware."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from typing import Any

import numpy as np

import expdb
from expdb import errors
from expdb.integrations.di_engine.buffered import (
    BufferedData,
    Groups,
    buffered,
    plain,
)
from expdb.integrations.di_engine.ding import BufferBase, kinds
from expdb.integrations.di_engine.items import LABEL, UPDATED, Items, push_order_keys
from expdb.integrations.di_engine.labels import INDEX, ORDER
from expdb.integrations.di_engine.monitors import logger
from expdb.integrations.di_engine.saved import load, save
from expdb.integrations.positions import AtIndices, AtPositions


def apply_middleware(func_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method of a buffer so that calls pass through the buffer's middleware.

    The middleware that was added first is the outermost.

    Parameters
    ----------
    func_name : str
        Name of the action. Each middleware is called as `(action, chain, *args, **kwargs)`.

    Returns
    -------
    callable
        The decorator.
    """

    def decorate(base: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(base)
        def handler(buffer: Any, *args: Any, **kwargs: Any) -> Any:
            def call(left: list[Any], *args: Any, **kwargs: Any) -> Any:
                if not left:
                    return base(buffer, *args, **kwargs)

                def chain(*args: Any, **kwargs: Any) -> Any:
                    return call(left[1:], *args, **kwargs)

                return left[0](func_name, chain, *args, **kwargs)

            return call(buffer._middleware, *args, **kwargs)

        return handler

    return decorate


class Buffer(BufferBase):
    """Base of buffers with middleware; implement the methods of `DequeBuffer` in a subclass.

    Parameters
    ----------
    size : int
        Maximum number of items.
    """

    def __init__(self, size: int):
        self._middleware: list[Any] = []
        self.size = size

    def use(self, func: Callable[..., Any]) -> Any:
        """Add a middleware, which runs inside the middleware that was added earlier.

        Parameters
        ----------
        func : callable
            Middleware, called as `(action, chain, *args, **kwargs)`.

        Returns
        -------
        Buffer
            This buffer.
        """
        self._middleware.append(func)
        return self

    def view(self) -> Any:
        """Return a buffer that shares the items of this buffer but has no middleware."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of stored items."""
        raise NotImplementedError

    def get(self, idx: int) -> BufferedData:
        """Return an item by its index in push order; 0 is the oldest.

        Parameters
        ----------
        idx : int
            Index of the item.

        Returns
        -------
        BufferedData
            The item.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return self.count()

    def __getitem__(self, idx: int) -> BufferedData:
        return self.get(idx)


class Indices:
    """Map item indices to offsets from the oldest item, like DI-engine's `BufferIndex`."""

    def __init__(self, indices: Iterable[str]):
        self._places = {index: place for place, index in enumerate(indices)}

    def __len__(self) -> int:
        return len(self._places)

    def has(self, key: str) -> bool:
        """Return whether an item has the index."""
        return key in self._places

    def get(self, key: str) -> int:
        """Return the offset of an item from the oldest item, or raise KeyError."""
        return self._places[key]


class DequeBuffer(Buffer):
    """Store the newest `size` items in a database, like DI-engine's `DequeBuffer`.

    Sampled items are copies. In SQL, an item is a step, and its meta dict is the tags of the step.

    Parameters
    ----------
    size : int
        Maximum number of items.
    sliced : bool
        Whether windows of `unroll_len` items start at multiples of `unroll_len` in their group.
        The last window of a group may start earlier, so that it is complete.
    location : str or path-like
        Path of a database or PostgreSQL URL. By default, the database is private and temporary.
    name : str
        Name of the buffer in the database. An existing buffer keeps its contents.

    Raises
    ------
    CapacityMismatch
        If the stored buffer is larger than `size`.
    """

    def __init__(
        self,
        size: int,
        sliced: bool = False,
        *,
        location: str | os.PathLike[str] = ":memory:",
        name: str = "deque",
    ):
        super().__init__(size)
        self.sliced = sliced
        self.items = Items(location, name, size, kinds())
        self.items.buffer.index(f"tags.{INDEX}")
        self._groups: dict[str, Groups] = {}
        self._meta_keys: dict[Any, None] = {}

    def view(self) -> DequeBuffer:
        """Return a buffer that shares the items of this buffer but has no middleware.

        Returns
        -------
        DequeBuffer
            A buffer without middleware.
        """
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._middleware = []
        return other

    __copy__ = view

    def close(self) -> None:
        """Write all pushed items and close the database. A private database is then deleted."""
        self.items.close()

    # -- adding --------------------------------------------------------------------------------

    @apply_middleware("push")
    def push(
        self, data: Any, meta: Mapping[str, Any] | None = None, *, priority: float | None = None
    ) -> BufferedData:
        """Add an item.

        Parameters
        ----------
        data : object
            Numbers, text, arrays or tensors, or dicts, lists and tuples of such values.
        meta : mapping, optional
            The meta dict of the item: text keys and plain JSON values.
        priority : float, optional
            Priority of the item.

        Returns
        -------
        BufferedData
            The item with its index.

        Raises
        ------
        InvalidValue
            If `data` or `meta` cannot be stored exactly.
        """
        index, meta = uuid.uuid1().hex, dict(meta or {})
        self.items.push(data, tags={**plain(meta), INDEX: index}, priority=priority)
        return BufferedData(data, index, meta)

    # -- sampling ------------------------------------------------------------------------------

    @apply_middleware("sample")
    def sample(
        self,
        size: int | None = None,
        indices: list[str] | None = None,
        replace: bool = False,
        sample_range: slice | None = None,
        ignore_insufficient: bool = False,
        groupby: str | None = None,
        unroll_len: int | None = None,
        *,
        sampler: expdb.Sampler | None = None,
        consumer: expdb.Consumer | None = None,
    ) -> list[Any]:
        """Draw items or groups of items uniformly, or return the items of `indices`.

        Parameters
        ----------
        size : int, optional
            Number of items, or of groups with `groupby`.
        indices : list of str, optional
            Indices of the items to return.
        replace : bool
            Whether an item or group may be drawn more than once.
        sample_range : slice, optional
            Slice of the items to draw from; 0 is the oldest item.
        ignore_insufficient : bool
            Whether to return an empty list if there are too few items.
        groupby : str, optional
            Key of the meta dict. Items with equal values form a group.
        unroll_len : int, optional
            Number of consecutive items to return from each group. Groups with fewer items are not
            drawn.
        sampler : expdb.Sampler, optional
            Sampler that draws the items. The default is `expdb.Uniform`.
        consumer : expdb.Consumer, optional
            Consumer that limits how often items are drawn.

        Returns
        -------
        list
            Items as `BufferedData`. With `groupby`, a list of items in push order for each group.

        Raises
        ------
        ValueError
            If there are too few items or groups, or if `sample_range` is passed with a sampler
            other than `expdb.Uniform`.
        KeyError
            If an item of `indices` is no longer stored.
        AssertionError
            If the arguments contradict each other.
        """
        assert size or indices, "One of size and indices must not be empty."
        assert not (indices and groupby), "Cannot use groupby and indices at the same time."
        assert not unroll_len or groupby, (
            "Parameter unroll_len needs to be used in conjunction with groupby."
        )
        if size and indices and size != len(indices):
            raise AssertionError("Size and indices length must be equal.")
        if indices:
            return self._by_index(indices)
        assert size is not None
        with self.items.lock:
            try:
                if groupby:
                    return self._by_group(size, groupby, replace, unroll_len, sample_range)
                return self._drawn(size, replace, sample_range, sampler, consumer)
            except expdb.TooFewRows as error:
                if ignore_insufficient:
                    logger.warning("sample() returned no items: %s", error)
                    return []
                raise ValueError(
                    f"There are less than {size} records/groups in buffer({self.count()})"
                ) from error

    def _drawn(
        self,
        size: int,
        replace: bool,
        sample_range: slice | None,
        sampler: expdb.Sampler | None,
        consumer: expdb.Consumer | None,
    ) -> list[BufferedData]:
        if sampler is None and consumer is None and sample_range is None:
            choose = partial(self._choose, size, replace)
            return buffered(*self.items.draw_with_unwritten(size, choose, LABEL, "priority"))
        if sampler is None:
            sampler = expdb.Uniform(replace=replace)
        if sample_range is not None:
            places = np.arange(self.count())[sample_range]
            if len(places) < (1 if replace else size):
                raise expdb.TooFewRows(
                    f"cannot sample {size} items, because {sample_range} selects only "
                    f"{len(places)} items; reduce size, or widen sample_range"
                )
            if sampler.uses_priorities:
                raise ValueError(
                    "sample_range cannot be combined with prioritized sampling; omit "
                    "sample_range, or sample uniformly"
                )
            sampler = self._at(np.random.choice(places, size, replace))
        keys = ("priority", *sampler.keys())
        if consumer is None:
            return buffered(*self.items.draw(size, sampler, LABEL, *keys))
        return buffered(*self.items.lease(consumer, size, sampler, "tags", *keys))

    def _choose(self, size: int, replace: bool, count: int) -> np.ndarray:
        if count < (1 if replace else size):
            raise expdb.TooFewRows(
                f"cannot sample {size} items, because the buffer has only {count} items; reduce "
                "size, or push more items"
            )
        rng = self.items.rng
        places = rng.integers(count, size=size)
        if replace or len(set(places.tolist())) == size:  # rarely a duplicate in a large buffer
            return places
        return rng.choice(count, size, replace=False)

    def _order(self) -> np.ndarray | None:
        """Return the positions of all items in push order, or None if they are already sorted."""
        self.items.flush()
        if not self.items.buffer.count({"agent_id": UPDATED}):
            return None
        parts = [
            (batch["position"], push_order_keys(batch))
            for batch in self.items.buffer.scan(fields=["position", "tags"])
        ]
        positions, order = (np.concatenate(column) for column in zip(*parts, strict=True))
        ordered: np.ndarray = positions[np.argsort(order, kind="stable")]
        return ordered

    def _at(self, places: np.ndarray) -> expdb.Sampler:
        """Return a sampler of the items at `places` in push order; 0 is the oldest."""
        order = self._order()
        return AtIndices(places) if order is None else AtPositions(order[places])

    def _by_index(self, indices: list[str]) -> list[BufferedData]:
        where = expdb.QueryBuilder().in_(f"tags.{INDEX}", list(dict.fromkeys(indices)))
        items = {item.index: item for item in self._matching(where)}
        if missing := set(indices) - items.keys():
            raise KeyError(
                f"no items have the indices {sorted(missing)[:3]}; pass the indices of stored "
                "items, because evicted items cannot be sampled"
            )
        # read a repeated index again, so that the copies share no memory
        return [
            items.pop(index) if index in items else self._by_index([index])[0] for index in indices
        ]

    def _matching(self, where: Any) -> Iterator[BufferedData]:
        with self.items.lock:
            self.items.flush()
            fields = self.items.fields("tags", "priority")
            for batch in self.items.buffer.scan(where, fields=fields):
                yield from buffered(self.items.records.values(batch), batch)

    def _by_group(
        self,
        size: int,
        key: str,
        replace: bool,
        unroll_len: int | None,
        sample_range: slice | None,
    ) -> list[list[BufferedData]]:
        self.items.flush()
        groups = self._groups.setdefault(key, Groups(self.items, key)).current(sample_range)
        names = [name for name, members in groups.items() if len(members) >= (unroll_len or 1)]
        if not names or (len(names) < size and not replace):
            raise expdb.TooFewRows(
                f"cannot sample {size} groups by {key!r}, because only {len(names)} groups have "
                "enough items; reduce size, or push more items"
            )
        drawn = random.choices(names, k=size) if replace else random.sample(names, size)
        parts = [self._window(groups[name], unroll_len) for name in drawn]
        positions = np.concatenate(parts)
        items = iter(
            buffered(*self.items.draw(len(positions), AtPositions(positions), LABEL, "priority"))
        )
        return [[next(items) for _ in part] for part in parts]

    def _window(self, positions: np.ndarray, length: int | None) -> np.ndarray:
        if not length:
            return positions
        if self.sliced:
            start = random.randrange(len(positions)) // length * length
            return positions[min(start, len(positions) - length) :][:length]
        return positions[random.randrange(len(positions) - length + 1) :][:length]

    def get(self, idx: int) -> BufferedData:
        """Return an item by its index in push order.

        Parameters
        ----------
        idx : int
            Index of the item; 0 is the oldest, -1 the newest.

        Returns
        -------
        BufferedData
            A copy of the item.

        Raises
        ------
        IndexError
            If `idx` is out of range.
        """
        count = self.count()
        if not -count <= idx < count:
            raise IndexError(f"item index {idx} is out of range for {count} items")
        place = np.array([idx % count])
        return buffered(*self.items.draw(1, self._at(place), LABEL, "priority"))[0]

    def get_by_index(self, index: str) -> BufferedData:
        """Return the item with a unique index.

        Parameters
        ----------
        index : str
            Unique index of the item.

        Returns
        -------
        BufferedData
            A copy of the item.

        Raises
        ------
        KeyError
            If the item is not stored.
        """
        return self._by_index([index])[0]

    def __iter__(self) -> Iterator[BufferedData]:
        with self.items.lock:
            order = self._order()
            if order is None:
                return self._matching(None)
            items = {item.meta["priority_idx"]: item for item in self._matching(None)}
            return iter([items[position] for position in order.tolist() if position in items])

    @property
    def storage(self) -> list[BufferedData]:
        """A list with copies of all items, oldest first."""
        return list(self)

    @property
    def indices(self) -> Indices:
        """A mapping from the index of each item to its offset from the oldest item."""
        return Indices(item.index for item in self)

    @property
    def meta_index(self) -> dict[Any, list[Any]]:
        """The values of chosen keys in the meta dicts of all items, oldest first.

        Assign a dict to choose the keys: ``buffer.meta_index = {"label": []}``.
        """
        metas = [item.meta for item in self] if self._meta_keys else []
        return {key: [meta.get(key) for meta in metas] for key in self._meta_keys}

    @meta_index.setter
    def meta_index(self, keys: Iterable[Any]) -> None:
        self._meta_keys = dict.fromkeys(keys)

    def count(self) -> int:
        """Return the number of stored items.

        Returns
        -------
        int
            The number of items.
        """
        return len(self.items)

    # -- changing ------------------------------------------------------------------------------

    @apply_middleware("update")
    def update(
        self, index: str, data: Any | None = None, meta: Mapping[str, Any] | None = None
    ) -> bool:
        """Replace the data of an item, or merge entries into its meta dict.

        Items keep their push order. An item whose data changes is stored again at a new position,
        and is therefore evicted later.

        Parameters
        ----------
        index : str
            Unique index of the item.
        data : object, optional
            New data.
        meta : mapping, optional
            Entries to set in the meta dict.

        Returns
        -------
        bool
            Whether the item is stored.

        Raises
        ------
        InvalidValue
            If `data` or `meta` cannot be stored exactly.
        """
        where = expdb.QueryBuilder().eq(f"tags.{INDEX}", index)
        with self.items.lock:
            items = list(self._matching(where))
            if not items:
                return False
            tags = {**plain(items[0].meta), **plain(dict(meta or {})), INDEX: index}
            old = [item.meta["priority_idx"] for item in items]
            try:
                batch = self.items.buffer.get(old, fields=("position", "tags"))
            except errors.Evicted:  # evicted after it was read
                return False
            order = int(push_order_keys(batch)[0])
            if order != old[0]:
                tags[ORDER] = order
            if data is None or self.items.is_same(data, items[0].data):
                self.items.buffer.update(where, tags=tags, replace_tags=True)
            else:
                self.items.replace(old, data, tags | {ORDER: order})
            self._groups.clear()
            return True

    @apply_middleware("delete")
    def delete(self, indices: str | Iterable[str]) -> None:
        """Delete items, and ignore indices that are not stored.

        Parameters
        ----------
        indices : str or iterable of str
            Unique indices of the items.
        """
        wanted = [indices] if isinstance(indices, str) else list(indices)
        with self.items.lock:
            self.items.flush()
            if wanted:
                self.items.buffer.delete(expdb.QueryBuilder().in_(f"tags.{INDEX}", wanted))

    @apply_middleware("clear")
    def clear(self) -> None:
        """Delete all items."""
        self.items.clear()
        self._groups.clear()

    def save_data(self, file_name: str | os.PathLike[str]) -> None:
        """Save the items to a separate database file; see `saved.save`.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        save(self.items, file_name)

    def load_data(self, file_name: str | os.PathLike[str]) -> None:
        """Replace the items with the items of a file that `save_data` wrote; see `saved.load`.

        The old items are deleted after the new items are stored.

        Parameters
        ----------
        file_name : str or path-like
            Path of the file.
        """
        with self.items.lock:
            old = [row["position"] for row in self.items.all()[1]]
            for value, options in load(file_name, self.items.kinds):
                self.items.push(value, **options)
            self.items.flush()
            self.items.delete(old)
            self._groups.clear()
