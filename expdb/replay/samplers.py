"""Samplers say which steps are drawn.

They are settings, frozen, and know populations only: no storage, no SQL.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.replay.population import Grouped, Listed

MOST_MASS = 1e200  # sums of many of these are finite; what is greater weighs as much

Drawn = tuple[np.ndarray, dict[str, np.ndarray]]  # positions, and what the batch says of them


class PriorityTree(Protocol):
    """The weights of the steps that may be drawn by priority, ready to be drawn from."""

    def draw(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and weights at shares of the total, each from 0 to less than 1."""

    @property
    def total(self) -> float:
        """The sum of all weights."""

    def minimum(self) -> float:
        """Return the least weight above 0."""


class Population(Protocol):
    """The steps that a sampler draws from: those that the query matches and the unit can use.

    A step is named by its position, int64. What is drawn may be a whole episode, or a group of
    them; its position is that of its first step.
    """

    @property
    def positions(self) -> np.ndarray:
        """All positions, ascending, int64 [N]; not to be written to."""

    @property
    def size(self) -> int:
        """How many positions there are, N."""

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at places, each from 0, the oldest, to less than `size`.

        Mostly nothing has to be listed for it, as it has for `positions`.
        """

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of some positions may be drawn, bool."""

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Return positions [size], each as likely as every other, distinct without `replace`.

        Raises TooFewRows where there are none, or too few.
        """

    def newest(self, k: int) -> Listed:
        """Return the newest `k` positions, to draw from."""

    def by(self, over: Literal["episode", "task"]) -> Grouped:
        """Return the positions by episode or task, to draw from."""

    def column(self, name: str) -> np.ndarray:
        """Return a column of each position's step or episode, [N], as of now.

        Columns of steps: `episode`, `step`, `reward` (NaN for none), `terminated`, `truncated`.
        Columns of episodes have to be named in the sampler's `reads`: numbers are float64, NaN for
        none; texts are int64 codes, counted from 0 in the order of their first positions, -1 for
        none.
        """

    def ordered(self, column: str, descending: bool, size: int) -> np.ndarray:
        """Return the first `size` positions in the order of a column of the view."""

    def priorities(self, sampler: Prioritized) -> PriorityTree:
        """Return the weights that a sampler gives to the steps."""

    def calls(self, sampler: Prioritized) -> int:
        """Count a call of a sampler, and return how many there were before."""


class Sampler:
    """Say which steps are drawn: the base of all samplers, and of your own.

    Write `draw`, as a frozen dataclass, and every query, unit and database works with it; see
    docs/extending.md.
    """

    asks_database: ClassVar[bool] = False  # whether memory alone cannot tell what is drawn
    uses_priorities: ClassVar[bool] = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that `draw` looks at, such as "task_id"."""
        return ()

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of what was drawn."""
        return ()

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Drawn:
        """Return `size` positions of the population, and the arrays [size] of `keys()` by name."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to draw: write draw()")


@dataclass(frozen=True)
class Uniform(Sampler):
    """Draw every step with the same probability; with `replace=False` none twice in a sample.

    `over` says what is as likely as every other: each "step"; each "episode", and then each of its
    steps; or each "task". Without replacement no episode, or task, comes twice then.
    """

    replace: bool = True
    over: Literal["step", "episode", "task"] = "step"

    def __post_init__(self) -> None:
        checks.flag(self.replace, "replace")
        checks.choice(self.over, "over", "step", "episode", "task")

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that are looked at."""
        return ("task_id",) if self.over == "task" else ()

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Drawn:
        """Return positions, and nothing of them."""
        if self.over == "step":
            return population.uniform(size, rng, self.replace), {}
        return population.by(self.over).draw(size, self.replace, rng), {}


@dataclass(frozen=True)
class Prioritized(Sampler):
    r"""Draw steps in proportion to their priority.

    This is prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952).

    P(i) = p_i^alpha / sum_k p_k^alpha with p_i = priority + epsilon, proportional and stratified:
    one draw in each of `size` equal parts of the sum. The batch gets `probability`, P(i), and
    `weight`, the importance weight (N * P(i))^-beta over the greatest such weight, in the batch or,
    with `normalise="buffer"`, of any step that may be drawn. `beta` grows linearly to 1 over
    `anneal_steps` calls, or stays.

    A step that was never given a priority has the `initial` one: "max" is the greatest that this
    process has given or read (1.0 before the first) when a draw first sees the step. A process that
    opens the database later reads the priorities of the steps that are held then;
    `restore_sampling` gives it what the earlier one knew. Set priorities with
    `buffer.update_priorities`.
    """

    alpha: float = 0.6
    beta: float = 0.4
    anneal_steps: int | None = None
    epsilon: float = 1e-6
    initial: float | Literal["max"] = "max"
    normalise: Literal["batch", "buffer"] = "batch"

    uses_priorities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.number(self.alpha, "alpha", 0)
        checks.number(self.beta, "beta", 0, 1)
        checks.number(self.epsilon, "epsilon", 0)
        if self.initial != "max":
            checks.number(self.initial, "initial", 0)
        for name in ("alpha", "beta", "epsilon", "initial"):
            object.__setattr__(self, name, checks.plain(getattr(self, name)))
        if self.anneal_steps is not None:
            checks.whole(self.anneal_steps, "anneal_steps", 1)
        checks.choice(self.normalise, "normalise", "batch", "buffer")

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of what was drawn."""
        return ("probability", "weight")

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Drawn:
        """Return positions, with `probability` and `weight`."""
        tree = population.priorities(self)
        positions, mass = tree.draw(self.strata(size, rng))
        least = tree.minimum() if self.normalise == "buffer" else None
        call = 0 if self.anneal_steps is None else population.calls(self)
        return positions, {
            "probability": mass / tree.total,
            "weight": self.weights(mass, call, least),
        }

    def mass(self, priorities: np.ndarray, starts: np.ndarray | float) -> np.ndarray:
        """Return what steps of these priorities weigh in the draw: p^alpha.

        NaN is for those that were never given one. With `initial="max"` they have what is in
        `starts`.
        """
        start = starts if self.initial == "max" else self.initial
        return self.mass_of(np.where(np.isnan(priorities), start, priorities))

    def mass_of(self, given: np.ndarray) -> np.ndarray:
        """Return what steps of these priorities, which are known, weigh in the draw."""
        may_overflow = self.alpha > 1 or self.epsilon > 1
        if not may_overflow:
            return np.minimum((given + self.epsilon) ** self.alpha, MOST_MASS)
        with np.errstate(over="ignore"):
            return np.minimum((given + self.epsilon) ** self.alpha, MOST_MASS)

    def beta_at(self, call: int) -> float:
        """Return beta at a call, counted from 0."""
        if self.anneal_steps is None:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(1.0, call / self.anneal_steps)

    def strata(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random share in each of `count` equal parts of 1."""
        shares = rng.random(count)
        shares += np.arange(count)
        shares /= count
        return shares

    def weights(self, mass: np.ndarray, call: int, least: float | None) -> np.ndarray:
        """Return the importance weights of what was drawn.

        `least` is the least mass of all for normalise="buffer". N and the sum of all mass are the
        same for every step, and cancel when the weights are divided by the greatest.
        """
        if least is None:
            least = mass[mass.argmin()]
        return (mass / least) ** -self.beta_at(call)


@dataclass(frozen=True)
class Ordered(Sampler):
    """Take the first steps in the order of a column of the view, each once: nothing is drawn.

    Steps that have nothing in the column come last, and of equal ones the oldest first.
    `Ordered("position")` is a FIFO, `Ordered("position", descending=True)` a LIFO,
    `Ordered("priority")` a min-heap and with `descending=True` a max-heap.
    """

    column: str
    descending: bool = False

    asks_database: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidValue(
                f"column is {self.column!r}: give the name of a column of the view `experience`"
            )
        checks.flag(self.descending, "descending")

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Drawn:
        """Return positions, and nothing of them."""
        return population.ordered(self.column, self.descending, size), {}


@dataclass(frozen=True)
class Newest(Sampler):
    """Draw uniformly, with replacement, from the newest `k` steps."""

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checks.whole(self.k, "k", 1))

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Drawn:
        """Return positions, and nothing of them."""
        return population.newest(self.k).draw(size, True, rng), {}
