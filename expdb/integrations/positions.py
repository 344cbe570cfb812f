"""Samplers that draw the steps at given positions or indices, and a read of the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import expdb
from expdb import errors


@dataclass(frozen=True)
class AtPositions(expdb.Sampler):
    """Draw the steps at given positions, in the given order, from memory if possible."""

    positions: Any

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions; raise Evicted if the step at a position is no longer stored."""
        there = population.holds(self.positions)
        if not there.all():
            gone = np.asarray(self.positions)[~there]
            raise errors.Evicted(
                f"the step at position {gone[0]} was evicted or deleted; sample again"
            )
        return self.positions, {}


@dataclass(frozen=True)
class AtIndices(expdb.Sampler):
    """Draw the steps at given indices, in the given order; index 0 is the oldest step."""

    places: Any

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions at the indices."""
        return population.at(self.places), {}


def first_value(buffer: expdb.ReplayBuffer, field: str, where: Any = None) -> Any:
    """Return the value of a field of the first matching step, or None if no step matches."""
    steps = next(buffer.scan(where, size=1), None)
    return None if steps is None else steps.to_list()[0][field]
