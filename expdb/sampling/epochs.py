"""Epochs: every item of a buffer once, in minibatches, in an order that a seed gives."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from expdb import checks, errors
from expdb.batch import Batch
from expdb.errors import InvalidValue
from expdb.replay.population import check_size
from expdb.replay.samplers import Uniform
from expdb.sampling.request import check_empty
from expdb.sampling.sampling import Sampling
from expdb.storage.reading.chunk_values import Empty

Result = TypeVar("Result")
Retry = Callable[..., Any]

_SETTINGS = ("batch_size", "seed", "drop_last", "follow")


class Epochs(Iterator[Batch]):
    """Yield every item of a buffer once per epoch; made by `buffer.epochs(...)`.

    It is an iterator: a loop that was left goes on where it was. `state_dict` and `load_state_dict`
    resume it in another process. An item is what the unit makes of a step: `len(epochs.items)` is
    their number, once the first batch was drawn.

    Attributes
    ----------
    epoch : int
        Epochs that are complete.
    items : numpy.ndarray or None
        Positions of the items of this epoch, int64, ascending; None before the first batch.
    left_out : int
        Items of this epoch that were evicted, deleted or changed before their turn.

    Examples
    --------
    >>> epochs = buffer.epochs(256, n=10, unit=expdb.NStep(1))  # doctest: +SKIP
    >>> for batch in epochs:  # doctest: +SKIP
    ...     loss = learner(batch["obs"], batch["action"])
    ...     checkpoint["epochs"] = epochs.state_dict()
    """

    def __init__(
        self,
        sampling: Sampling,
        retry: Retry,
        batch_size: int,
        n: int | None,
        asked: tuple[Any, ...],
        seed: int,
        drop_last: bool,
        follow: bool,
        empty: Empty,
    ):
        if empty is not np.empty:
            check_empty(empty)
        self._sampling, self._retry, self._empty = sampling, retry, empty
        self._batch_size = checks.rows(batch_size, "batch_size")
        self._n = None if n is None else checks.whole(n, "n", 1)
        self._seed = checks.whole(seed, "seed", 0)
        self._drop_last = checks.flag(drop_last, "drop_last")
        self._follow = checks.flag(follow, "follow")
        where, unit, fields, shard = asked
        self._asked = self._batch_size, where, Uniform(), unit, fields, shard
        sampling.check(*self._asked)
        self.epoch = 0
        self.items: np.ndarray | None = None
        self.left_out = 0
        self._known: object = None  # what stands for the buffer when its items were listed
        self._order: np.ndarray | None = None  # of this epoch: positions
        self._start = 0  # of the next batch, in that order
        self._rng = np.random.default_rng(0)

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises
        ------
        TooFewRows
            At the beginning of an epoch, if there is no item.
        """
        while True:
            if self._order is None:
                if self._n is not None and self.epoch >= self._n:
                    raise StopIteration
                self._begin()
            assert self._order is not None
            if self._start < len(self._order):
                batch = self._next()
                if batch is not None:
                    return batch
            else:
                self.epoch, self._order = self.epoch + 1, None

    def _begin(self) -> None:
        """Begin an epoch: list its items, if need be, and put them in order."""
        if self.items is None or self._follow:
            items, known = self._retry(self._sampling.list_items, self._asked)
            check_size(len(items), 1, self._asked[3].what, replace=True)
            self.items, self._known = items, known
        order = np.random.default_rng((self._seed, self.epoch))
        self.left_out = 0
        self._order, self._start = self.items[order.permutation(len(self.items))], 0
        self._rng = np.random.default_rng((self._seed, self.epoch, 1))

    def _next(self) -> Batch | None:
        """Return the next batch of the epoch; None if what is left of it makes none."""
        order, start = self._order, self._start
        assert order is not None
        asked = self._asked, order, start, self._known, self._rng, self._empty
        batch, self._start, left_out = self._retry(self._sampling.draw_in_order, *asked)
        if left_out and not self.left_out:
            errors.warn(
                f"epoch {self.epoch} leaves out items that were evicted, deleted or changed before "
                "their turn (epochs.left_out counts them): raise the capacity, or use follow=True"
            )
        self.left_out += left_out
        is_short = self._start - start - left_out < self._batch_size
        return None if is_short and self._drop_last else batch

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain JSON values, for a checkpoint.

        It holds the positions of the items as runs of neighbouring positions, so that a resumed
        epoch has the same items.
        """
        return {
            **{name: getattr(self, f"_{name}") for name in _SETTINGS},
            "epoch": self.epoch,
            "start": None if self._order is None else self._start,
            "items": None if self.items is None else _runs(self.items),
            "generator": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state_dict` was called, with the batches that were left.

        Raises
        ------
        InvalidValue
            If `state` is none, or that of other settings: batch_size, seed, drop_last, follow.
        """
        known = {*_SETTINGS, "epoch", "start", "items", "generator"}
        if not isinstance(state, Mapping) or known - state.keys():
            raise InvalidValue(
                f"expected a state that state_dict() returned, got {type(state).__name__}"
            )
        for name in _SETTINGS:
            if state[name] != (mine := getattr(self, f"_{name}")):
                raise InvalidValue(
                    f"the state was saved with {name}={state[name]}, and these epochs have "
                    f"{name}={mine}; use the same value"
                )
        self.epoch, self._order, self._known = checks.whole(state["epoch"], "epoch", 0), None, None
        if state["items"] is not None:
            runs = np.array(state["items"], np.int64).reshape(-1, 2)
            self.items = np.concatenate(
                [np.arange(0), *[np.arange(first, stop) for first, stop in runs.tolist()]]
            )
        if state["start"] is not None and self.items is not None:
            follow, self._follow = self._follow, False
            self._begin()
            self._follow, self._start = follow, checks.whole(state["start"], "start", 0)
            self._rng.bit_generator.state = state["generator"]


def _runs(items: np.ndarray) -> list[list[int]]:
    """Return the runs of neighbouring positions, [first, stop] each."""
    ends = np.flatnonzero(np.diff(items) != 1)
    firsts, lasts = items[np.append(0, ends + 1)], items[np.append(ends, len(items) - 1)]
    return np.stack((firsts, lasts + 1), 1).tolist() if len(items) else []
