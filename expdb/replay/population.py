"""Populations: the positions that a sampler draws from."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from expdb.errors import TooFewRows


class Population(Protocol):
    """Positions to draw from."""

    @property
    def size(self) -> int:
        """How many there are."""

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return positions, each as likely as every other; distinct ones without replacement."""


@dataclass(frozen=True)
class Listed:
    """The positions that a query found."""

    positions: np.ndarray

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.positions)

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return positions, each as likely as every other."""
        if replace:
            return self.positions[rng.integers(0, self.size, count)]
        return self.positions[rng.choice(self.size, count, replace=False, shuffle=True)]


@dataclass(frozen=True)
class Window:
    """All positions from `low` up to, not including, `high`, less those that `alive` says are gone.

    Nothing is listed: a position drawn that is gone is drawn again, which leaves every other as likely as before.
    """

    low: int
    high: int
    size: int
    alive: Callable[[np.ndarray], np.ndarray]

    def draw(self, count: int, replace: bool, rng: np.random.Generator) -> np.ndarray:
        """Return positions, each as likely as every other."""
        span = self.high - self.low
        if self.size == span:
            if replace:
                return rng.integers(self.low, self.high, count)
            return self.low + rng.choice(span, count, replace=False, shuffle=True)
        if not replace:
            everyone = np.arange(self.low, self.high)
            return Listed(everyone[self.alive(everyone)]).draw(count, replace, rng)
        found = np.empty(0, np.int64)
        while len(found) < count:
            wanted = int((count - len(found)) * span / self.size * 1.2) + 8
            drawn = rng.integers(self.low, self.high, min(wanted, 1 << 20))
            found = np.concatenate([found, drawn[self.alive(drawn)]])
        return found[:count]


MOST_DRAWS = 4096


def distinct_draws(low: int, high: int, some: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield growing arrays of integers from `low` to `high`, none twice, in a uniformly random order; 4096 in all at most.

    Drawn with replacement, repeats left out: that is the beginning of a random permutation, without making all of it.
    """
    seen: set[int] = set()
    while high > low and len(seen) < MOST_DRAWS and 2 * len(seen) <= high - low:
        drawn = dict.fromkeys(rng.integers(low, high, some).tolist())
        fresh = [value for value in drawn if value not in seen]
        seen.update(fresh)
        yield np.array(fresh, np.int64)
        some *= 3


def check_size(size: int, wanted: int, what: str, replace: bool) -> None:
    """Raise TooFewRows if a sample of `wanted` cannot be drawn from `size`."""
    if size == 0 and wanted:
        end = ", or end(obs=...) the episodes" if "successor" in what else ""
        raise TooFewRows(f"no {what} to sample from: store some first, widen the query{end}")
    if not replace and wanted > size:
        raise TooFewRows(f"{wanted} {what} wanted and {size} held: ask for fewer, or widen the query")
