"""Middleware for `DequeBuffer`, as in DI-engine."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import expdb
from expdb.integrations.di_engine.advanced import EPSILON
from expdb.integrations.di_engine.buffered import BufferedData
from expdb.integrations.di_engine.ding import PriorityBase

Middleware = Callable[..., Any]


def _flat(sample: list[Any]) -> list[BufferedData]:
    """Return the items of a result that may be nested."""
    return [item for entry in sample for item in (entry if isinstance(entry, list) else [entry])]


def clone_object() -> Middleware:
    """Return a middleware that does nothing, because the buffer always stores copies.

    Returns
    -------
    callable
        The middleware.
    """

    def clone(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        return chain(*args, **kwargs)

    return clone


def use_time_check(buffer_: Any, max_use: float = float("inf")) -> Middleware:
    """Return a middleware that limits how often each item is sampled.

    In a sampled item, `meta["use_count"]` is how often this process has sampled the item. The
    limit applies within a sample, to all processes together and after a restart. Samples with
    `indices`, `groupby` or `sample_range` are an exception: the middleware checks the limit only
    after the sample, and only for this process. An item that this process has sampled `max_use`
    times is deleted.

    Parameters
    ----------
    buffer_ : DequeBuffer
        The buffer that uses the middleware.
    max_use : float
        Maximum number of times that an item is sampled.

    Returns
    -------
    callable
        The middleware.

    Raises
    ------
    ConsumerMismatch
        If the stored buffer has another limit.
    """
    uses: dict[str, int] = {}
    consumer = None
    if max_use != float("inf"):
        consumer = buffer_.items.consumer("use_time_check", max_use)

    def check(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        if action == "clear":
            uses.clear()
        if action != "sample":
            return chain(*args, **kwargs)
        by_hand = kwargs.get("indices") or kwargs.get("groupby") or kwargs.get("sample_range")
        if consumer is not None and not by_hand and len(args) < 2:
            kwargs["consumer"] = consumer
        sample = chain(*args, **kwargs)
        used_up = set()
        for item in _flat(sample):
            uses[item.index] = item.meta["use_count"] = uses.get(item.index, 0) + 1
            if uses[item.index] >= max_use:
                used_up.add(item.index)
        if used_up:
            buffer_.delete(used_up)
            for index in used_up:
                del uses[index]
        return sample

    return check


def staleness_check(buffer_: Any, max_staleness: float = float("inf")) -> Middleware:
    """Return a middleware that deletes stale items before each sample.

    Push items with `meta={"train_iter_data_collected": i}` and sample them with
    `train_iter_sample_data=j`. The middleware sets `meta["staleness"]` of each sampled
    item to `j - i`.

    Parameters
    ----------
    buffer_ : DequeBuffer
        The buffer that uses the middleware.
    max_staleness : float
        Largest staleness of an item.

    Returns
    -------
    callable
        The middleware.
    """
    key = "train_iter_data_collected"

    def check(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        if action == "push":
            meta = kwargs.get("meta") or (args[1] if len(args) > 1 else None) or {}
            assert key in meta, (
                f"staleness_check middleware must push data with meta={{'{key}': <iter>}}"
            )
        if action != "sample":
            return chain(*args, **kwargs)
        now = kwargs.pop("train_iter_sample_data")
        if max_staleness != float("inf"):
            items = buffer_.items
            items.flush()
            items.buffer.delete(expdb.QueryBuilder().lt(f"tags.{key}", now - max_staleness))
        sample = chain(*args, **kwargs)
        for item in _flat(sample):
            item.meta["staleness"] = now - item.meta[key]
        return sample

    return check


def sample_range_view(buffer_: Any, start: int | None = None, end: int | None = None) -> Middleware:
    """Return a middleware that restricts samples to a range of the items in push order.

    Parameters
    ----------
    buffer_ : DequeBuffer
        The buffer that uses the middleware.
    start : int, optional
        Index of the first item; 0 is the oldest, -1 the newest.
    end : int, optional
        Index after the last item.

    Returns
    -------
    callable
        The middleware.

    Raises
    ------
    AssertionError
        If both `start` and `end` are None.
    """
    assert start is not None or end is not None
    within = slice(start, end)

    def view(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        if action == "sample":
            kwargs["sample_range"] = within
        return chain(*args, **kwargs)

    return view


def group_sample(
    size_in_group: int, ordered_in_group: bool = True, max_use_in_group: bool = True
) -> Middleware:
    """Return a middleware that takes some items from each group of a sample with `groupby`.

    Parameters
    ----------
    size_in_group : int
        Number of items to take from each group.
    ordered_in_group : bool
        Whether to take consecutive items. If False, take random items.
    max_use_in_group : bool
        Whether to start early enough to take `size_in_group` consecutive items. If False, a group
        may end before that many items are taken.

    Returns
    -------
    callable
        The middleware. It raises ValueError for samples without `groupby`.
    """

    def take(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        if action != "sample":
            return chain(*args, **kwargs)
        if not kwargs.get("groupby"):
            raise ValueError(
                "group_sample requires a sample with groups; pass groupby= to sample()"
            )
        groups = chain(*args, **kwargs)
        for k, group in enumerate(groups):
            if not ordered_in_group:
                groups[k] = random.sample(group, size_in_group)
                continue
            last = max(0, len(group) - size_in_group) if max_use_in_group else len(group) - 1
            start = random.randint(0, last)
            groups[k] = group[start : start + size_in_group]
        return groups

    return take


def padding(policy: str = "random") -> Middleware:
    """Return a middleware that pads the groups of a sample to the length of the longest group.

    Parameters
    ----------
    policy : {"random", "none"}
        With `"random"`, pad with copies of random items of the group. With `"none"`, pad with
        items whose data is None.

    Returns
    -------
    callable
        The middleware.

    Raises
    ------
    ValueError
        If `policy` is unknown.
    """
    if policy not in ("random", "none"):
        raise ValueError(f"policy must be 'random' or 'none', got {policy!r}")

    def pad(action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        groups = chain(*args, **kwargs)
        if action != "sample" or not groups or isinstance(groups[0], BufferedData):
            return groups
        longest = max(map(len, groups))
        for group in groups:
            own = list(group)
            while len(group) < longest:
                empty = BufferedData(None, None, None)
                group.append(copy.deepcopy(random.choice(own)) if policy == "random" else empty)
        return groups

    return pad


class PriorityExperienceReplay(PriorityBase):
    """Sample items in proportion to their priority, as a middleware.

    Sampling is stratified. Priorities are stored in the database, and all processes share them.
    A new item gets the `priority` of its meta dict or data, or else the greatest priority so far.
    `update(index, meta={"priority": p, ...})` sets the priority of a sampled item, and ignores
    items that are no longer stored.

    Parameters
    ----------
    buffer : DequeBuffer
        The buffer that uses the middleware.
    IS_weight : bool
        Whether to add the importance weight `priority_IS` to `meta` and `data` of sampled items.
    priority_power_factor : float
        Exponent of the priorities.
    IS_weight_power_factor : float
        Exponent of the importance weights in the first sample.
    IS_weight_anneal_train_iter : int
        Number of samples over which the exponent of the importance weights grows linearly to 1.
    """

    def __init__(
        self,
        buffer: Any,
        IS_weight: bool = True,
        priority_power_factor: float = 0.6,
        IS_weight_power_factor: float = 0.4,
        IS_weight_anneal_train_iter: int = int(1e5),
    ):
        self.buffer, self.IS_weight = buffer, IS_weight
        self.priority_power_factor = priority_power_factor
        self.IS_weight_power_factor = IS_weight_power_factor
        self.IS_weight_anneal_train_iter = IS_weight_anneal_train_iter
        self.delta_anneal = (1 - IS_weight_power_factor) / IS_weight_anneal_train_iter
        self.max_priority = 1.0
        self._changed: dict[int, float] = {}  # by position; written by the next sample
        self._meta: dict[str, dict[str, Any]] = {}  # meta dicts of the last sample
        self._moved: dict[str, int] = {}  # new positions of items updated since then

    @property
    def buffer_idx(self) -> dict[int, str]:
        """A dict from the offset of each item from the oldest item to the index of the item."""
        return dict(enumerate(item.index for item in self.buffer))

    def __call__(self, action: str, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        """Call the method of this middleware that has the name of the action."""
        if action in ("push", "sample", "update", "delete", "clear"):
            return getattr(self, action)(chain, *args, **kwargs)
        return chain(*args, **kwargs)

    def push(
        self, chain: Middleware, data: Any, meta: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Add an item with its priority.

        Parameters
        ----------
        chain : callable
            The next middleware, or the method of the buffer.
        data : object
            The data of the item. If it is a dict, its `priority` is removed.
        meta : mapping, optional
            Meta entries. The entry `priority` sets the priority of the item.
        *args, **kwargs
            Further arguments of `DequeBuffer.push`.

        Returns
        -------
        BufferedData
            The pushed item.

        Raises
        ------
        InvalidValue
            If the item cannot be stored exactly.
        """
        meta = dict(meta or {})
        if "priority" not in meta and isinstance(data, dict) and "priority" in data:
            data = dict(data)
            meta["priority"] = float(data.pop("priority"))
        priority = float(meta.setdefault("priority", self.max_priority))
        return chain(data, *args, meta=meta, priority=priority, **kwargs)

    def sample(self, chain: Middleware, size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Sample items by priority, or return the items of `indices`.

        Parameters
        ----------
        chain : callable
            The next middleware, or the method of the buffer.
        size : int, optional
            Number of items.
        *args, **kwargs
            Further arguments of `DequeBuffer.sample`.

        Returns
        -------
        list of BufferedData
            Copies of the items.

        Raises
        ------
        ValueError
            If `groupby` is given, or there are too few items.
        """
        self._set_changed()
        if kwargs.get("groupby"):
            raise ValueError("groupby cannot be combined with priorities; use only one of them")
        if kwargs.get("indices"):
            return chain(size, *args, **kwargs)
        sampler = expdb.Prioritized(
            self.priority_power_factor, self.IS_weight_power_factor, None, EPSILON, "max", "buffer"
        )
        items = chain(size, *args, sampler=sampler, **kwargs)
        for item in _flat(items):
            weight = item.meta.pop("priority_IS")
            if self.IS_weight:
                item.meta["priority_IS"] = weight
                _set(item.data, "priority_IS", weight)
        self._meta = {item.index: _own(item.meta) for item in _flat(items) if item.index}
        for index in self._meta:
            self._moved.pop(index, None)
        if self.IS_weight:
            self.IS_weight_power_factor = min(1.0, self.IS_weight_power_factor + self.delta_anneal)
        return items

    def update(
        self, chain: Middleware, index: str, data: Any = None, meta: Any = None, **kwargs: Any
    ) -> bool:
        """Set the priority of an item, and update its data and meta dict if they change.

        Parameters
        ----------
        chain : callable
            The next middleware, or the method of the buffer.
        index : str
            The index of the item.
        data : object, optional
            New data of the item.
        meta : dict
            The meta dict of the sampled item, with its new `priority`.
        **kwargs
            Further arguments of the next middleware.

        Returns
        -------
        bool
            Whether the item is stored.

        Raises
        ------
        AssertionError
            If `meta` is None, or the priority is negative.
        ValueError
            If `meta` has no priority.
        """
        assert meta is not None, "Please indicate dict-type meta in priority update"
        if "priority" not in meta:
            raise ValueError("meta has no priority; pass the meta dict of the sampled item")
        priority = float(meta["priority"])
        assert priority >= 0, f"new_priority should greater than 0, but found {priority}"
        if isinstance(data, dict) and "priority_IS" in data:  # the last sample added it
            data = {key: entry for key, entry in data.items() if key != "priority_IS"}
        if data is not None or _own(meta) != self._meta.get(index):
            if not chain(index, data=data, meta=_own(meta), **kwargs):
                return False
            if data is not None:
                self._moved[index] = self.buffer.get_by_index(index).meta["priority_idx"]
        position = self._moved.get(index, meta.get("priority_idx"))
        if position is None:  # the item was sampled before it was written
            try:
                position = self.buffer.get_by_index(index).meta["priority_idx"]
            except KeyError:
                return False
        if position < self.buffer.items.pushed - self.buffer.size:
            return False  # the item is evicted
        self._changed[position] = priority
        self.max_priority = max(self.max_priority, priority)
        return True

    def _set_changed(self) -> None:
        if self._changed:
            positions = np.array(list(self._changed), np.int64)
            self.buffer.items.buffer.update_priorities(positions, list(self._changed.values()))
            self._changed = {}

    def delete(self, chain: Middleware, *args: Any, **kwargs: Any) -> Any:
        """Delete items.

        Parameters
        ----------
        chain : callable
            The next middleware, or the method of the buffer.
        *args, **kwargs
            Arguments of `DequeBuffer.delete`.

        Returns
        -------
        object
            The result of `chain`.
        """
        return chain(*args, **kwargs)

    def clear(self, chain: Middleware) -> Any:
        """Delete all items, and reset the default priority of new items to 1.

        Parameters
        ----------
        chain : callable
            The next middleware, or the method of the buffer.

        Returns
        -------
        object
            The result of `chain`.
        """
        self.max_priority, self._changed, self._moved = 1.0, {}, {}
        return chain()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is not in the database.

        Returns
        -------
        dict
            A state for `load_state_dict`.
        """
        self._set_changed()
        return {
            "max_priority": self.max_priority,
            "IS_weight_power_factor": self.IS_weight_power_factor,
        }

    def load_state_dict(self, _state_dict: dict[str, Any], deepcopy: bool = False) -> None:
        """Restore a state that `state_dict` returned.

        Parameters
        ----------
        _state_dict : dict
            A state that `state_dict` returned.
        deepcopy : bool
            Ignored.
        """
        self.max_priority = _state_dict["max_priority"]
        self.IS_weight_power_factor = _state_dict["IS_weight_power_factor"]


_BOOKKEEPING = ("priority", "priority_idx", "priority_IS", "use_count", "staleness")


def _own(meta: dict[str, Any]) -> dict[str, Any]:
    """Return a meta dict without the entries that expdb sets."""
    return {key: entry for key, entry in meta.items() if key not in _BOOKKEEPING}


def _set(data: Any, name: str, value: float) -> None:
    """Set a number in the data of an item, as a tensor with one element."""
    import torch

    data[name] = torch.tensor([value], dtype=torch.float32)
