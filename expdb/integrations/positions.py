"""Samplers for steps that are chosen already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import expdb


@dataclass(frozen=True)
class At(expdb.Sampler):
    """Take the steps at some positions, in their order: from memory, where they are there."""

    positions: Any

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions; raise Evicted if the step at one of them is gone."""
        there = population.holds(self.positions)
        if not there.all():
            gone = np.asarray(self.positions)[~there]
            raise expdb.Evicted(f"the step at position {gone[0]} is gone; draw again")
        return self.positions, {}


@dataclass(frozen=True)
class Places(expdb.Sampler):
    """Take the steps at some places, counted from 0, the oldest, in their order."""

    places: Any

    def draw(
        self, population: expdb.Population, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the positions."""
        return population.at(self.places), {}
