"""The state of sampling as plain JSON values."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Saved:
    """What `ByPriority.state` returned, read again."""

    greatest: float
    calls: dict[str, int]
    ends: set[str]  # fields that an end() was ever given: batches have `next_<field>` of them
    has_priorities: bool = False
    first: int = 0  # position of the first step
    values: np.ndarray = field(default_factory=lambda: np.empty(0))  # priorities
    starts: np.ndarray = field(default_factory=lambda: np.empty(0))
    started: int = 0
    slots: int = 0

    @classmethod
    def of(cls, state: dict[str, Any]) -> Saved:
        """Return the state as it was; raise KeyError, TypeError or ValueError where it is none."""
        saved = cls(
            float(state["greatest"]),
            {str(name): int(count) for name, count in state["calls"].items()},
            set(map(str, state.get("ends", []))),
        )
        if not 0.0 <= saved.greatest < float("inf"):
            raise ValueError(f"greatest {saved.greatest}")
        given = state["priorities"]
        if given is None:
            return saved
        saved.has_priorities, saved.first, saved.values = (
            True,
            int(given["first"]),
            decoded(given["values"]),
        )
        # States of earlier versions do not say what steps without a priority weighed: they weigh
        # what new ones do.
        saved.starts = (
            decoded(given["starts"])
            if "starts" in given
            else np.full(len(saved.values), saved.greatest or 1.0)
        )
        saved.started, saved.slots = (
            int(given.get("started", saved.first + len(saved.values))),
            int(given.get("slots", 0)),
        )
        if len(saved.starts) != len(saved.values):
            raise ValueError(f"{len(saved.starts)} starts of {len(saved.values)} steps")
        return saved


def encoded(values: np.ndarray) -> str:
    """Return float64 as text."""
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def decoded(text: str) -> np.ndarray:
    """Return the float64 of a text; raise ValueError where it is none."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
