"""Draw tasks by the success rate of their episodes."""

from __future__ import annotations  # evaluating `np.random` would import that module

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.replay.samplers import Draw, Population, Sampler


@dataclass(frozen=True)
class ByTask(Sampler):
    """Draw a task by the success rate of its episodes, and then one of its items uniformly.

    An episode is a success if its return, or its score, is at least `success`. The rate of a task
    is the share of successes among its episodes in the population whose return or score is known.
    With a unit that draws several episodes together, such as `Group`, only the first episode of
    each item counts. A batch has the key `probability`, the probability of each drawn item.

    Parameters
    ----------
    weight : {"difficulty", "failure"} or callable, default "difficulty"
        Weight of a task with success rate p: ``p * (1 - p)``, which prefers tasks that are
        sometimes solved, or ``1 - p``, which prefers tasks that are rarely solved. A function
        receives the rates float64 [tasks], NaN for an unknown rate, and returns finite weights
        [tasks] of at least 0.
    success : float, default 1.0
        Smallest return or score of a success.
    score : str, optional
        Name of a score, such as ``"judge"``, that takes the place of the return.
    least : float, default 0.05
        Weight that is added to every task, as a share of the greatest weight. It keeps a
        probability for tasks that are always or never solved. Tasks with an unknown rate get the
        greatest weight.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    References
    ----------
    Yu et al. (2025), *DAPO*, arXiv:2503.14476, leaves out prompts that are always or never solved.

    Examples
    --------
    >>> buffer.sample(64, sampler=expdb.ByTask(success=0.5))  # doctest: +SKIP
    """

    weight: Literal["difficulty", "failure"] | Callable[[np.ndarray], Any] = "difficulty"
    success: float = 1.0
    score: str | None = None
    least: float = 0.05

    checks_results: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.weight):
            checks.choice(self.weight, "weight", "difficulty", "failure")
        object.__setattr__(self, "success", checks.number(self.success, "success"))
        object.__setattr__(self, "least", checks.number(self.least, "least", 0))
        if self.score is not None:
            object.__setattr__(self, "score", checks.score_name(self.score))

    @property
    def _value(self) -> str:
        return "episode_return" if self.score is None else f"scores.{self.score}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that `draw` reads: the task, and the return or the score."""
        return ("task_id", self._value)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the arrays that the sampler adds to a batch.

        Returns
        -------
        tuple of str
            ``"probability"``.
        """
        return ("probability",)

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Draw positions by the success rates of their tasks.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to draw; a position may be drawn several times.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Drawn positions.
        columns : dict of str to ndarray
            `probability`, float64 of shape (size,).

        Raises
        ------
        TooFewRows
            If the population is empty.
        InvalidValue
            If the function `weight` does not return one finite weight of at least 0 for each task,
            or if all weights and `least` are 0.
        """
        tasks = population.by("task")
        shares = tasks.shares.get(self)
        if shares is None and population.size:
            shares = tasks.shares[self] = self._compute_shares(population, tasks.runs)
        positions, probabilities = tasks.draw_weighted(
            np.empty(0) if shares is None else shares, size, rng
        )
        return positions, {"probability": probabilities}

    def _compute_shares(self, population: Population, runs: np.ndarray) -> np.ndarray:
        """Return the probability of each task, in the order of the codes of the tasks.

        `runs` are the indices at which runs of steps of one episode begin in the positions.
        """
        # Each episode counts once, however many of its steps are in the population.
        episodes, starts = population.column("episode", runs), runs
        if (np.diff(episodes) <= 0).any():  # interleaved episodes may have several runs
            _, first = np.unique(episodes, return_index=True)
            starts = np.sort(runs[first])
        tasks = population.column("task_id", starts)
        values = population.column(self._value, starts)
        # `success_rates` numbers tasks from 0, but the codes may begin at -1.
        weights = self._weights(success_rates(tasks - tasks.min(), values, self.success))
        shares: np.ndarray = weights / weights.sum()
        return shares

    def _weights(self, rates: np.ndarray) -> np.ndarray:
        if callable(self.weight):
            weights = np.asarray(self.weight(rates.copy()), np.float64)
            if weights.shape != rates.shape or not (np.isfinite(weights) & (weights >= 0)).all():
                raise InvalidValue(
                    f"the function weight of ByTask must return {len(rates)} finite weights of at "
                    f"least 0, got {weights!r}"
                )
        else:
            weights = rates * (1 - rates) if self.weight == "difficulty" else 1 - rates
        highest = np.nanmax(weights, initial=0.0)
        weights = np.where(np.isnan(weights), highest or 1.0, weights)
        weights += self.least * (weights.max() or 1.0)
        if not weights.any():
            raise InvalidValue(
                "ByTask gives every task the weight 0, because weight is 0 for each success rate "
                "and least is 0; pass least above 0, or another weight"
            )
        return weights


def success_rates(tasks: np.ndarray, values: np.ndarray, success: float) -> np.ndarray:
    """Return the share of values of each task that reach `success`; NaN if no value is known.

    Parameters
    ----------
    tasks : ndarray of int, shape (N,)
        Number of the task of each episode, from 0.
    values : ndarray of float64, shape (N,)
        Return or score of each episode, NaN or negative infinity if it is unknown.
    success : float
        Smallest value of a success.

    Returns
    -------
    ndarray of float64, shape (tasks,)
        Success rates.
    """
    is_known = ~np.isnan(values) & ~np.isneginf(values)
    count = int(tasks.max(initial=-1)) + 1
    totals = np.bincount(tasks[is_known], minlength=count)
    successes = np.bincount(tasks[is_known], values[is_known] >= success, count)
    with np.errstate(invalid="ignore"):
        rates: np.ndarray = successes / totals
    return rates
