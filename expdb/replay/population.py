"""Sets of positions to draw from: arrays, intervals and groups."""

from __future__ import annotations  # evaluating `np.random` would import that module

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from expdb.errors import TooFewRows

ROUNDS = 8  # redraws of positions that are not allowed, before the allowed positions are listed


class Positions(Protocol):
    """Represent a set of positions to draw from."""

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return `count` uniformly drawn positions, which are distinct if `replace` is False.

        Raise TooFewRows if the set is empty, or too small for `count` distinct positions.
        """

    def newest(self, count: int) -> Listed:
        """Return the newest `count` positions, or all if there are fewer."""

    def listed(self) -> np.ndarray:
        """Return all positions, ascending."""

    def count(self) -> int:
        """Return the number of positions."""

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at indices; index 0 is the oldest position."""

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of the given positions are in the set."""


def _random_below(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random integers from 0 to `size` - 1.

    This is three times as fast as `Generator.integers`. The probability of each integer has a
    relative error of at most size / 2**53.
    """
    return (rng.random(count) * size).astype(np.int64)


def random_positions(low: int, high: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return random positions from `low` to `high` - 1."""
    drawn: np.ndarray = (rng.random(count) * (high - low)).astype(np.int64)  # see _random_below
    if low:
        drawn += low
    return drawn


@dataclass(frozen=True)
class Listed:
    """Represent a set of positions by an ascending array.

    `Population.newest` returns such a set. `what` is the plural noun for the positions in error
    messages.
    """

    positions: np.ndarray
    what: str = "steps"

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return uniformly drawn positions.

        Parameters
        ----------
        count : int
            Number of positions to draw.
        replace : bool
            Whether a position may be drawn more than once.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        ndarray of int64, shape (count,)
            Drawn positions.

        Raises
        ------
        TooFewRows
            If the set is empty, or smaller than `count` and `replace` is False.
        """
        size = len(self.positions)
        check_size(size, count, self.what, replace)
        if replace:
            return self.positions.take(_random_below(size, count, rng))
        return self.positions[rng.choice(size, count, replace=False, shuffle=True)]

    def newest(self, count: int) -> Listed:
        """Return the newest `count` positions, or all if there are fewer."""
        return Listed(self.positions[max(0, len(self.positions) - count) :], self.what)

    def listed(self) -> np.ndarray:
        """Return all positions, ascending."""
        return self.positions

    def count(self) -> int:
        """Return the number of positions."""
        return len(self.positions)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at indices."""
        positions: np.ndarray = self.positions[places]
        return positions

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of the given positions are in the set."""
        if not len(self.positions):
            return np.zeros(positions.shape, np.bool_)
        places = np.searchsorted(self.positions, positions)
        is_member: np.ndarray = (
            self.positions[np.minimum(places, len(self.positions) - 1)] == positions
        )
        return is_member


@dataclass
class Interval:
    """Represent the positions from `low` to `high` - 1 and the positions in `early`.

    Positions in `early` are less than `low`. `allowed` returns False for positions that are not in
    the set; None allows all positions. With replacement, `draw` usually avoids listing the
    positions: it draws again in place of each position that is not allowed. The result is uniform
    over the allowed positions. If a list is needed, `all_positions` returns the allowed positions.
    """

    low: int
    high: int
    allowed: Callable[[np.ndarray], np.ndarray] | None
    all_positions: Callable[[], np.ndarray]
    what: str = "steps"
    early: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return uniformly drawn positions."""
        first, high, allowed = self.low - len(self.early), self.high, self.allowed
        if not replace or first == high:
            return Listed(self.listed(), self.what).draw(count, replace, rng)
        drawn = random_positions(first, high, count, rng)
        if first < self.low:
            drawn = self._to_positions(drawn)
        if allowed is None:
            return drawn
        fit = allowed(drawn)
        # `argmin` is faster than `all` and `count_nonzero`, which call Python code in NumPy.
        return drawn if count and fit[fit.argmin()] else self.redraw(drawn, fit, rng)

    def redraw(self, drawn: np.ndarray, fit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Replace the positions in `drawn` where `fit` is False, in place, and return `drawn`."""
        first, high, allowed = self.low - len(self.early), self.high, self.allowed
        assert allowed is not None
        again = np.flatnonzero(~fit)
        for _ in range(ROUNDS):
            if not len(again):
                return drawn
            others = self._to_positions(first + _random_below(high - first, len(again), rng))
            drawn[again] = others
            again = again[~allowed(others)]
        if len(again):
            drawn[again] = Listed(self.listed(), self.what).draw(len(again), True, rng)
        return drawn

    def newest(self, count: int) -> Listed:
        """Return the newest `count` positions, or all if there are fewer."""
        span, newest = count, np.empty(0, np.int64)
        first = self.low - len(self.early)
        while len(newest) < count:
            positions = self._to_positions(np.arange(max(first, self.high - span), self.high))
            newest = positions if self.allowed is None else positions[self.allowed(positions)]
            if span >= self.high - first:
                break
            span *= 2
        return Listed(newest[max(0, len(newest) - count) :], self.what)

    def listed(self) -> np.ndarray:
        """Return all positions, ascending."""
        if self.allowed is not None:
            return self.all_positions()
        return self._to_positions(np.arange(self.low - len(self.early), self.high))

    def count(self) -> int:
        """Return the number of positions."""
        if self.allowed is not None:
            return len(self.listed())
        return self.high - self.low + len(self.early)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at indices."""
        if self.allowed is None:
            return self._to_positions(self.low - len(self.early) + places)
        positions: np.ndarray = self.listed()[places]
        return positions

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of the given positions are in the set."""
        is_member: np.ndarray = (positions >= self.low) & (positions < self.high)
        if len(self.early):
            is_member |= Listed(self.early).holds(positions)
        if self.allowed is not None:
            is_member[is_member] = self.allowed(positions[is_member])
        return is_member

    def _to_positions(self, numbers: np.ndarray) -> np.ndarray:
        """Map numbers from `low - len(early)` on to positions; below `low`, they index `early`."""
        if not len(self.early):
            return numbers
        early = self.early.take(numbers - self.low + len(self.early), mode="clip")
        return np.where(numbers < self.low, early, numbers)


class Grouped:
    """Represent positions in groups: a draw selects a group, then one of its positions.

    `Population.by` returns such a set.
    """

    def __init__(self, positions: np.ndarray, runs: np.ndarray, groups: np.ndarray, what: str):
        # `runs` are the indices in `positions` at which runs of steps of one episode begin, and
        # `groups` are the groups of the runs. Sorting runs is faster than sorting positions.
        self._positions, self.runs, self._what = positions, runs, what
        order = np.argsort(groups, kind="stable")
        lengths = np.diff(runs, append=len(positions))[order]
        # The following arrays hold sorted indices: indices into the positions sorted by group.
        self._ends = np.cumsum(lengths)  # the end of each run, exclusive
        self._shifts = runs[order] - (self._ends - lengths)  # sorted index + shift = index
        first_runs = np.flatnonzero(np.diff(groups[order], prepend=-2) != 0)  # groups are >= -1
        self._starts = (self._ends - lengths)[first_runs]  # the start of each group
        self._sizes = np.diff(self._starts, append=len(positions))
        # Shares that samplers have computed for `draw_weighted`, by sampler. They are valid as long
        # as this object: after a change of the steps or episodes, expdb makes another one.
        self.shares: dict[object, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        arrays = self._positions, self.runs, self._ends, self._shifts, self._starts, self._sizes
        return sum(array.nbytes for array in arrays)

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return drawn positions: groups are equally likely, and so are the positions of a group.

        Parameters
        ----------
        count : int
            Number of positions to draw.
        replace : bool
            Whether a group may be drawn more than once.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        ndarray of int64, shape (count,)
            Drawn positions.

        Raises
        ------
        TooFewRows
            If there is no group, or there are fewer than `count` groups and `replace` is False.
        """
        check_size(len(self._starts), count, self._what, replace)
        groups = (
            _random_below(len(self._starts), count, rng)
            if replace
            else rng.choice(len(self._starts), count, replace=False)
        )
        return self._draw_from(groups, rng)

    def draw_weighted(
        self, shares: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return positions, drawn with replacement from groups of different probability.

        Parameters
        ----------
        shares : ndarray of float64, shape (groups,)
            Probability of each group, in the order of the codes of the groups; the sum is 1.
        count : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        positions : ndarray of int64, shape (count,)
            Drawn positions.
        probabilities : ndarray of float64, shape (count,)
            Probability of each drawn position.

        Raises
        ------
        TooFewRows
            If there is no group.
        """
        check_size(len(self._starts), count, self._what, replace=True)
        groups = rng.choice(len(shares), count, p=shares)
        return self._draw_from(groups, rng), shares[groups] / self._sizes[groups]

    def _draw_from(self, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a position of each group, all positions of a group being equally likely."""
        sorted_indices = self._starts[groups] + rng.integers(0, self._sizes[groups])
        runs = self._ends.searchsorted(sorted_indices, "right")
        indices = sorted_indices + self._shifts[runs]
        positions: np.ndarray = self._positions[indices]
        return positions


MOST_DRAWS = 4096


def distinct_draws(
    low: int, high: int, count: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield growing arrays of distinct integers from `low` to `high` - 1, in random order.

    The arrays together are the beginning of a uniformly random permutation, which is not computed
    in full: integers are drawn with replacement, and repeated integers are dropped. The generator
    stops after at least 4096 integers, or after more than half of the range.
    """
    seen: set[int] = set()
    while high > low and len(seen) < MOST_DRAWS and 2 * len(seen) <= high - low:
        drawn = dict.fromkeys(rng.integers(low, high, min(count, MOST_DRAWS)).tolist())
        fresh = [value for value in drawn if value not in seen]
        seen.update(fresh)
        yield np.array(fresh, np.int64)
        count *= 3


def check_size(size: int, wanted: int, what: str, replace: bool) -> None:
    """Raise TooFewRows if `wanted` items cannot be drawn from `size`."""
    end = ""
    if "successor" in what:
        end = (
            ", end the episodes with end(obs=...) or terminated=True (for stored episodes, call "
            "update(query, terminated=True, which='last'))"
        )
    if size == 0 and wanted:
        raise TooFewRows(
            f"no {what} to sample from; store steps first, widen the query{end}, or wait with "
            "wait=seconds"
        )
    if not replace and wanted > size:
        raise TooFewRows(
            f"{wanted} {what} were requested, but only {size} can be sampled without replacement; "
            "pass at_least=1 to accept fewer, pass sampler=Uniform(replace=True) to allow "
            f"repeats, widen the query{end}, or wait with wait=seconds"
        )
