"""Samplers say which steps are drawn. They are settings, frozen, and know populations only: no storage, no SQL."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from expdb.replay.population import Population, check_size


class Sampler(Protocol):
    """Which steps are drawn."""

    @property
    def replace(self) -> bool:
        """Whether a step may be drawn twice in one sample."""

    def draw(self, population: Population, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return `count` positions of the population, int64."""


@dataclass(frozen=True)
class Uniform:
    """Draw every step with the same probability; with `replace=False` no step twice in a sample."""

    replace: bool = True

    def draw(self, population: Population, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return `count` positions; raise TooFewRows where there are none, or not enough distinct ones."""
        check_size(population.size, count, "steps", self.replace)
        return population.draw(count, self.replace, rng)
