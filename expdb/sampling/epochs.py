"""Iterate over every item of a buffer once per epoch, in minibatches."""

from __future__ import annotations  # so that annotations do not import numpy.random

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from expdb import checks, errors
from expdb.batch import Batch
from expdb.errors import InvalidValue, TooFewRows
from expdb.process.awaiting import AsyncIteration
from expdb.process.locks import locked
from expdb.replay.samplers import Uniform
from expdb.sampling.engine import SampleEngine
from expdb.sampling.request import check_empty
from expdb.storage.reading.chunk_values import Empty

Retry = Callable[..., Any]

Explain = Callable[[Any, str], TooFewRows]

_SETTINGS = ("size", "seed", "drop_last", "refresh", "request")
_STATE = {*_SETTINGS, "epoch", "start", "items", "skipped", "generator"}


class Epochs(AsyncIteration[Batch], Iterator[Batch]):
    """Iterate over every item of a buffer once per epoch, in minibatches.

    `ReplayBuffer.epochs` returns the iterator. If you leave a loop early, the next loop continues
    after the last batch. In a coroutine, use ``async for``. `state_dict` and `load_state_dict`
    resume the iteration in another process. The unit defines an item: a step, an n-step
    transition, a sequence, an episode or a group.
    Threads that share the iterator get different batches.

    Attributes
    ----------
    epoch : int
        Number of completed epochs.
    items : numpy.ndarray or None
        Positions of the items of this epoch, int64, ascending. None before the first batch.
    skipped : int
        Number of items skipped in this epoch because they were evicted, deleted or changed.

    Examples
    --------
    >>> epochs = buffer.epochs(256, epochs=10, unit=expdb.NStep(1))  # doctest: +SKIP
    >>> for batch in epochs:  # doctest: +SKIP
    ...     loss = learner(batch["obs"], batch["action"])
    ...     checkpoint["epochs"] = epochs.state_dict()
    """

    def __init__(
        self,
        sampling: SampleEngine,
        retry: Retry,
        explain: Explain,
        size: int,
        epochs: int | None,
        request_args: tuple[Any, ...],
        seed: int,
        drop_last: bool,
        refresh: bool,
        empty: Empty,
    ):
        if empty is not np.empty:
            check_empty(empty)
        self._sampling, self._retry, self._explain, self._empty = sampling, retry, explain, empty
        self._size = checks.rows(size, "size")
        self._epochs = None if epochs is None else _check_epoch_count(epochs)
        self._seed = _check_seed(seed)
        self._drop_last = checks.flag(drop_last, "drop_last")
        self._refresh = checks.flag(refresh, "refresh")
        where, unit, fields, shard = request_args
        self._request_args = self._size, where, Uniform(), unit, fields, shard
        self._request = sampling.describe(*self._request_args)
        if unit.has_budget:
            raise InvalidValue(
                "the unit of epochs() must not have a budget, because an epoch must return every "
                f"item, got {unit!r}; omit budget, or lease batches from a consumer"
            )
        self._lock = threading.RLock()  # threads may share the iterator
        self.epoch = 0
        self.items: np.ndarray | None = None
        self.skipped = 0
        self._rows_version: object = None  # version of the rows when the items were listed
        self._order: np.ndarray | None = None  # positions of this epoch, shuffled
        self._start = 0  # index in `_order` of the next batch
        self._has_yielded = False  # whether this epoch has yielded a batch
        self._rng = np.random.default_rng(0)

    def __repr__(self) -> str:
        count = "not listed yet" if self.items is None else f"{len(self.items):,}"
        return (
            f"<Epochs: {self.epoch} of {self._epochs or 'endless'} completed, size "
            f"{self._size}, items: {count}>"
        )

    def __next__(self) -> Batch:
        """Return the next batch.

        Returns
        -------
        Batch
            Up to `size` items.

        Raises
        ------
        StopIteration
            If all epochs are completed.
        TooFewRows
            If an epoch has no batch because the buffer has no items, because every item was
            skipped, or because `drop_last` drops the only batch.
        QueryError
            If `fields` has an unknown name.
        InvalidValue
            If your own unit returns arrays of a wrong shape or type, or if `empty` does.

        Warns
        -----
        ExpDBWarning
            Once per epoch, if items are skipped.
        """
        return locked(self._lock, self._next)

    def _next(self) -> Batch:
        while True:
            if self._order is None:
                if self._epochs is not None and self.epoch >= self._epochs:
                    raise StopIteration
                self._begin()
            assert self._order is not None
            if self._start < len(self._order):
                batch = self._next_in_epoch(self._order)
                if batch is not None:
                    self._has_yielded = True
                    return batch
            else:
                self._require_batch(len(self._order))
                self.epoch, self._order = self.epoch + 1, None

    def _require_batch(self, count: int) -> None:
        """Raise TooFewRows if no batch of an epoch of `count` items was yielded."""
        if not self._has_yielded:
            if self.skipped == count:
                raise TooFewRows(
                    f"epoch {self.epoch} has no batch, because all {count} items were evicted, "
                    "deleted or changed after expdb listed the items; pass refresh=True to list "
                    "the items again"
                )
            raise TooFewRows(
                f"epoch {self.epoch} has no batch of {self._size} items, because only "
                f"{count - self.skipped} of {count} items are left; use a smaller size or "
                "drop_last=False"
            )

    def _begin(self) -> None:
        """Start an epoch: list the items if necessary, and shuffle them."""
        if self.items is None or self._refresh:
            items, version = self._retry(self._sampling.list_items, self._request_args)
            if not len(items):
                raise self._explain(self._request_args[1], self._request_args[3].what)
            self.items, self._rows_version = items, version
        self._shuffle(self.items)

    def _shuffle(self, items: np.ndarray) -> None:
        self.skipped, self._start, self._has_yielded = 0, 0, False
        order = np.random.default_rng((self._seed, self.epoch)).permutation(len(items))
        self._order = items[order]
        self._rng = np.random.default_rng((self._seed, self.epoch, 1))

    def _next_in_epoch(self, order: np.ndarray) -> Batch | None:
        """Return the next batch of the epoch, or None if the remaining items make no batch."""
        start = self._start
        batch, self._start, skipped = self._retry(
            self._sampling.draw_in_order,
            self._request_args, order, start, self._rows_version, self._rng, self._empty,
        )  # fmt: skip
        if skipped and not self.skipped:
            errors.warn(
                f"epoch {self.epoch} skips items that were evicted, deleted or changed after "
                "expdb listed the items (epochs.skipped is their number); pass refresh=True or "
                "raise the capacity"
            )
        self.skipped += skipped
        is_short = self._start - start - skipped < self._size
        return None if is_short and self._drop_last else batch

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the iteration for a checkpoint.

        The state includes the positions of the items, so a resumed epoch has the same items.

        Returns
        -------
        dict of str
            Plain JSON values that `load_state_dict` accepts.

        Examples
        --------
        >>> checkpoint["epochs"] = epochs.state_dict()  # doctest: +SKIP
        """
        return locked(self._lock, self._state)

    def _state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, f"_{name}") for name in _SETTINGS},
            "epoch": self.epoch,
            "start": None if self._order is None else self._start,
            "items": None if self.items is None else _position_ranges(self.items),
            "skipped": self.skipped,
            "generator": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the last batch that was yielded before `state_dict` was called.

        Call this method on an iterator that was created with the same arguments. Only `epochs`,
        `fields` and `empty` may differ. If `where` is an array of positions, only its length is
        compared.

        Parameters
        ----------
        state : mapping
            Return value of `state_dict`.

        Raises
        ------
        InvalidValue
            If `state` was not returned by `state_dict`, or if the buffer, `size`, `where`,
            `unit`, `seed`, `shard`, `drop_last` or `refresh` differs from the saved value.

        Examples
        --------
        >>> epochs = buffer.epochs(256, epochs=10, unit=expdb.NStep(1))  # doctest: +SKIP
        >>> epochs.load_state_dict(checkpoint["epochs"])  # doctest: +SKIP
        """
        if not isinstance(state, Mapping):
            raise InvalidValue(
                f"state must be a mapping, got {type(state).__name__}; pass the value that "
                "state_dict() returned"
            )
        if "batch_size" in state:  # it was saved by version 0.2 or earlier
            state = {**state, "size": state["batch_size"]}
        if missing := _STATE - state.keys():
            raise InvalidValue(
                f"state has no key {', '.join(sorted(missing))}; pass the value that "
                "state_dict() returned"
            )
        for name in _SETTINGS:
            if state[name] != (own_value := getattr(self, f"_{name}")):
                raise InvalidValue(
                    f"{name} is {own_value}, but the state was saved with {name}={state[name]}; "
                    "pass the saved value to epochs()"
                )
        try:
            epoch = checks.whole(state["epoch"], "epoch", 0)
            items = None if state["items"] is None else _positions_of(state["items"])
            most = 0 if items is None else len(items)
            start = (
                None if state["start"] is None else checks.whole(state["start"], "start", 0, most)
            )
            skipped = checks.whole(state["skipped"], "skipped", 0)
            rng = np.random.default_rng(0)
            rng.bit_generator.state = state["generator"]
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise InvalidValue(
                f"state cannot be read ({error}); pass the value that state_dict() returned"
            ) from error
        self.epoch, self.items, self._order, self._rows_version = epoch, items, None, None
        if start is not None and items is not None:
            self._shuffle(items)
            self._start, self._rng, self._has_yielded = start, rng, start > 0
            self.skipped = skipped


def _check_epoch_count(n: Any) -> int:
    """Return a number of epochs; raise InvalidValue for any other value."""
    if isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1:
        return checks.whole(n, "epochs", 1)
    query = "" if isinstance(n, (int, float, bool)) else "; pass a query as where="
    raise InvalidValue(
        f"epochs must be a positive number of epochs, or None for no end, got {n!r}{query}"
    )


def _check_seed(seed: Any) -> int:
    """Return a seed; raise InvalidValue for any other value."""
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0:
        return checks.whole(seed, "seed", 0)
    raise InvalidValue(
        f"seed must be a non-negative integer, such as the number of the iteration, got {seed!r}"
    )


def _position_ranges(items: np.ndarray) -> list[list[int]]:
    """Return the ranges of consecutive positions as pairs [first, stop]."""
    if not len(items):
        return []
    ends = np.flatnonzero(np.diff(items) != 1)
    firsts, lasts = items[np.append(0, ends + 1)], items[np.append(ends, len(items) - 1)]
    ranges: list[list[int]] = np.stack((firsts, lasts + 1), 1).tolist()
    return ranges


def _positions_of(ranges: Any) -> np.ndarray:
    """Return the positions in the ranges; raise ValueError if they are not ascending."""
    pairs = np.array(ranges).reshape(-1, 2) if len(ranges) else np.empty((0, 2), np.int64)
    bounds = pairs.reshape(-1)
    if pairs.dtype != np.int64 or (bounds < 0).any() or (np.diff(bounds) < 0).any():
        raise ValueError("the items are not ascending positions")
    counts = pairs[:, 1] - pairs[:, 0]
    if counts.sum() > 2**33:
        raise ValueError("the state has too many items")
    starts = np.cumsum(counts) - counts
    positions: np.ndarray = np.arange(counts.sum()) + np.repeat(pairs[:, 0] - starts, counts)
    return positions
