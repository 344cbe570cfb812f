"""Samplers say which steps are drawn.

They are settings, frozen, and know populations only: no storage, no SQL.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from expdb.errors import InvalidValue

MOST_MASS = 1e200  # sums of many of these are finite; what is greater weighs as much


@dataclass(frozen=True)
class Uniform:
    """Draw every step with the same probability; with `replace=False` none twice in a sample.

    `over` says what is as likely as every other: each "step"; each "episode", and then each of its
    steps; or each "task". Without replacement no episode, or task, comes twice then.
    """

    replace: bool = True
    over: Literal["step", "episode", "task"] = "step"

    def __post_init__(self) -> None:
        if not isinstance(self.replace, bool):
            raise InvalidValue(f"replace is {self.replace!r}: give True or False")
        if self.over not in ("step", "episode", "task"):
            raise InvalidValue(f"over is {self.over!r}: give 'step', 'episode' or 'task'")


@dataclass(frozen=True)
class Prioritized:
    r"""Draw steps in proportion to their priority.

    Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952).

    P(i) = p_i^alpha / sum_k p_k^alpha with p_i = priority + epsilon, proportional and stratified:
    one draw in each of `size` equal parts of the sum. The batch gets `probability`, P(i), and
    `weight`, the importance weight (N * P(i))^-beta over the greatest such weight, in the batch or,
    with `normalise="buffer"`, of any step that may be drawn. `beta` grows linearly to 1 over
    `anneal_steps` calls, or stays.

    A step that was never given a priority has the `initial` one: "max" is the greatest that any
    step was given (1.0 before the first), as of when the step is first seen. Set priorities with
    `buffer.update_priorities`.
    """

    alpha: float = 0.6
    beta: float = 0.4
    anneal_steps: int | None = None
    epsilon: float = 1e-6
    initial: float | Literal["max"] = "max"
    normalise: Literal["batch", "buffer"] = "batch"

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha, 0, math.inf)
        _check_number("beta", self.beta, 0, 1)
        _check_number("epsilon", self.epsilon, 0, math.inf)
        if self.initial != "max":
            _check_number("initial", self.initial, 0, math.inf)
        if self.anneal_steps is not None and (
            isinstance(self.anneal_steps, bool)
            or not isinstance(self.anneal_steps, int)
            or self.anneal_steps < 1
        ):
            raise InvalidValue(
                f"anneal_steps is {self.anneal_steps!r}: give the number of calls after which beta "
                "is 1, or None"
            )
        if self.normalise not in ("batch", "buffer"):
            raise InvalidValue(f"normalise is {self.normalise!r}: give 'batch' or 'buffer'")

    def mass(self, priorities: np.ndarray, starts: np.ndarray | float) -> np.ndarray:
        """Return what steps of these priorities weigh in the draw: p^alpha.

        NaN is for those that were never given one.

        With `initial="max"` they have what is in `starts`.
        """
        start = starts if self.initial == "max" else self.initial
        with np.errstate(over="ignore"):
            return np.minimum(
                (np.where(np.isnan(priorities), start, priorities) + self.epsilon) ** self.alpha,
                MOST_MASS,
            )

    def beta_at(self, call: int) -> float:
        """Return beta at a call, counted from 0."""
        if self.anneal_steps is None:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(1.0, call / self.anneal_steps)

    def strata(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random share in each of `count` equal parts of 1."""
        return (np.arange(count) + rng.random(count)) / count

    def weights(self, mass: np.ndarray, call: int, least: float | None) -> np.ndarray:
        """Return the importance weights of what was drawn.

        `least` is the least mass of all for normalise="buffer".

        N and the sum of all mass are the same for every step, and cancel when the weights are
        divided by the greatest.
        """
        return (mass / (mass.min() if least is None else least)) ** -self.beta_at(call)


@dataclass(frozen=True)
class Ordered:
    """Take the first steps in the order of a column of the view, each once: nothing is drawn.

    Steps that have nothing in the column come last, and of equal ones the oldest first.
    `Ordered("position")` is a FIFO, `Ordered("position", descending=True)` a LIFO,
    `Ordered("priority")` a min-heap and with `descending=True` a max-heap.
    """

    column: str
    descending: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidValue(
                f"column is {self.column!r}: give the name of a column of the view `experience`"
            )
        if not isinstance(self.descending, bool):
            raise InvalidValue(f"descending is {self.descending!r}: give True or False")


@dataclass(frozen=True)
class Newest:
    """Draw uniformly, with replacement, from the newest `k` steps."""

    k: int

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, (int, np.integer)) or self.k < 1:
            raise InvalidValue(f"k is {self.k!r}: give a whole number from 1")
        object.__setattr__(self, "k", int(self.k))


Sampler = Uniform | Prioritized | Ordered | Newest


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        raise InvalidValue(
            f"{name} is {value!r}: give a number from {least}"
            + (f" to {most}" if most < math.inf else "")
        )
