"""Samplers choose which steps are drawn.

A sampler is a frozen dataclass of settings. It draws from a `Population` and knows neither storage
nor SQL.
"""

from __future__ import annotations  # evaluating `np.random` would import that module

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.replay.population import Grouped, Listed

MOST_MASS = 1e200  # greatest weight of a step, so that sums of weights are finite

Draw = tuple[np.ndarray, dict[str, np.ndarray]]  # positions, and the arrays of `Sampler.keys`


class PriorityTree(Protocol):
    """Hold the weights of the steps that may be drawn by priority.

    `Population.priorities` returns such an object.
    """

    def draw(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps that shares of the sum of all weights select.

        Parameters
        ----------
        shares : ndarray of float64, shape (B,)
            Shares of the sum of all weights, each from 0 to less than 1.

        Returns
        -------
        positions : ndarray of int64, shape (B,)
            Positions of the steps.
        weights : ndarray of float64, shape (B,)
            Weights of the steps.
        """

    @property
    def total(self) -> float:
        """The sum of all weights, a float."""

    def minimum(self) -> float:
        """Return the least weight above 0.

        Returns
        -------
        float
            Least weight above 0.
        """


class Population(Protocol):
    """Provide the steps that a sampler draws from.

    expdb passes such an object to `Sampler.draw`; you do not construct it. It contains the steps
    that the query matches and the unit can use. A step is identified by its position, an int64. An
    item may also be a whole episode or a group of episodes; its position is then the position of
    its first step.
    """

    @property
    def positions(self) -> np.ndarray:
        """All positions, ascending, a read-only ndarray of int64 with shape (N,)."""

    @property
    def size(self) -> int:
        """The number of positions N, an int."""

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the positions at indices.

        This is usually faster than indexing `positions`, because the positions need not be listed.

        Parameters
        ----------
        places : ndarray of int
            Indices of any shape, from 0 (the oldest position) to `size` - 1.

        Returns
        -------
        ndarray of int64
            Positions in the shape of `places`.

        Raises
        ------
        InvalidValue
            If an index is out of range.
        """

    def holds(self, positions: np.ndarray) -> np.ndarray:
        """Return which of the given positions may be drawn.

        Parameters
        ----------
        positions : ndarray of int64, shape (M,)
            Positions to look up.

        Returns
        -------
        ndarray of bool, shape (M,)
            True for a position that may be drawn.
        """

    def uniform(self, size: int, rng: np.random.Generator, replace: bool = True) -> np.ndarray:
        """Return uniformly drawn positions.

        Parameters
        ----------
        size : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness.
        replace : bool, default True
            Whether a position may be drawn more than once.

        Returns
        -------
        ndarray of int64, shape (size,)
            Drawn positions.

        Raises
        ------
        TooFewRows
            If the population is empty, or smaller than `size` and `replace` is False.
        """

    def newest(self, k: int) -> Listed:
        """Return the newest `k` positions to draw from.

        Parameters
        ----------
        k : int
            Number of positions, at least 1. If there are fewer positions, all are returned.

        Returns
        -------
        Listed
            Positions with a method ``draw(count, replace, rng)``.

        Raises
        ------
        InvalidValue
            If `k` is not an integer of at least 1.
        """

    def by(self, over: Literal["episode", "task"]) -> Grouped:
        """Return the positions grouped by episode or task, to draw a group and then a position.

        Parameters
        ----------
        over : {"episode", "task"}
            Groups that are equally likely. The sampler must name ``"task_id"`` in `Sampler.reads`
            to group by task.

        Returns
        -------
        Grouped
            Positions with a method ``draw(count, replace, rng)``.

        Raises
        ------
        InvalidValue
            If `over` is not valid, or ``"task_id"`` is not in `reads`.
        """

    def column(self, name: str, places: np.ndarray | None = None) -> np.ndarray:
        """Return the current values of a column for all positions, or for those at `places`.

        Columns of steps are `episode`, `step`, `reward`, `terminated` and `truncated`. Columns of
        episodes must be named in `Sampler.reads`.

        Parameters
        ----------
        name : str
            Column of the step or of its episode.
        places : ndarray of int64, shape (N,), optional
            Indices into `positions`. By default, values of all N positions are returned.

        Returns
        -------
        ndarray, shape (N,)
            Read-only values. Numeric columns of episodes are float64, with NaN for a missing
            value, as in `reward`. Text columns are int64 codes, with -1 for a missing value; the
            codes number the texts from 0 in the order of their first positions.

        Raises
        ------
        InvalidValue
            If there is no such column, or a column of episodes is not in `reads`.
        """

    def ordered(self, column: str, descending: bool, size: int) -> np.ndarray:
        """Return the first `size` positions in the order of a column of the view `experience`.

        Steps without a value come last, and steps with equal values are ordered by position. The
        sampler must set `Sampler.asks_database` to True.

        Parameters
        ----------
        column : str
            Column of the view.
        descending : bool
            Whether the greatest value comes first.
        size : int
            Number of positions.

        Returns
        -------
        ndarray of int64, shape (size,)
            Positions in this order.

        Raises
        ------
        InvalidValue
            If `Sampler.asks_database` is False.
        QueryError
            If the view has no such column.
        TooFewRows
            If there are fewer than `size` positions.
        """

    def priorities(self, sampler: Prioritized) -> PriorityTree:
        """Return the weights that a prioritized sampler gives to the steps.

        Parameters
        ----------
        sampler : Prioritized
            Sampler that computes weights from priorities. Its class must set
            `Sampler.uses_priorities` to True.

        Returns
        -------
        PriorityTree
            Weights to draw from.

        Raises
        ------
        InvalidValue
            If `Sampler.uses_priorities` is False.
        TooFewRows
            If the population has no step with a weight above 0.
        """

    def calls(self, sampler: Prioritized) -> int:
        """Count a draw of a sampler, and return the number of its earlier draws.

        For a consumer, return the number of the batch instead.

        Parameters
        ----------
        sampler : Prioritized
            Sampler that draws.

        Returns
        -------
        int
            Number of earlier draws with the same settings, query and drawable steps.
        """


class Sampler:
    """Choose which steps are drawn: the base class of all samplers.

    Derive your own sampler as a frozen dataclass that implements `draw`. Your sampler works with
    every query, unit and database. "How to write a sampler" in the documentation has an example;
    `expdb.testing.check_sampler` checks your class.

    Attributes
    ----------
    checks_results : bool, default True
        Whether expdb checks the positions and arrays that `draw` returns. Set it to False after
        `expdb.testing.check_sampler` has checked the class, to sample faster. Subclasses do not
        inherit the value.
    asks_database : bool, default False
        Whether `draw` queries the database, as `Population.ordered` does.
    uses_priorities : bool, default False
        Whether `draw` calls `Population.priorities`.
    """

    checks_results: ClassVar[bool] = True
    asks_database: ClassVar[bool] = False
    uses_priorities: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "checks_results" not in vars(cls):
            cls.checks_results = True

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that `draw` reads, such as ``"task_id"``, a tuple of str."""
        return ()

    @property
    def named_columns(self) -> tuple[str, ...]:
        """All columns that the settings name, such as ``"scores.judge"``, a tuple of str.

        If one of them is a score that is not stored, and a stored score has a similar name, expdb
        warns. By default, these are the columns in `reads`.
        """
        return self.reads

    @property
    def priority_score(self) -> str | None:
        """The name of the score that replaces the priorities of steps, a str or None."""
        return None

    @property
    def is_independent(self) -> bool:
        """Whether all draws of a batch are independent of each other, a bool."""
        return False

    def for_unit(self, lists_anchors: bool) -> Sampler:
        """Return this sampler with its unset settings filled in for a unit.

        Parameters
        ----------
        lists_anchors : bool
            `Unit.lists_anchors`: whether the unit draws episodes or defines `anchors`.

        Returns
        -------
        Sampler
            By default, this sampler.
        """
        return self

    def keys(self) -> tuple[str, ...]:
        """Return the names of the arrays that the sampler adds to a batch.

        Returns
        -------
        tuple of str
            Names of the arrays, by default none.
        """
        return ()

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Draw positions from the population.

        Every subclass must implement this method.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness, so that a seed reproduces the batch.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Drawn positions of the population.
        columns : dict of str to ndarray
            An array of shape (size, ...) for each name in `keys`.

        Raises
        ------
        NotImplementedError
            If the subclass does not implement the method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define how to draw; implement draw()"
        )


@dataclass(frozen=True)
class Uniform(Sampler):
    """Draw every step with the same probability.

    Parameters
    ----------
    replace : bool, optional
        Whether a step can occur more than once in a batch. If False, each step, episode or task is
        drawn at most once, depending on `over`. By default, False for units that draw whole
        episodes (`Episode`, `Group`, `Pairs`, `Tokens`) and for your own units that set
        `by_episode` or define `anchors`, and True for all other units.
    over : {"step", "episode", "task"}, default "step"
        Unit of uniform sampling. With ``"episode"`` or ``"task"``, each episode or task is equally
        likely, and so is each of its steps.

    Raises
    ------
    InvalidValue
        If a parameter is not valid.

    Examples
    --------
    >>> buffer.sample(32, sampler=expdb.Uniform(over="task"))  # doctest: +SKIP
    """

    replace: bool | None = None
    over: Literal["step", "episode", "task"] = "step"

    checks_results: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.replace is not None:
            checks.flag(self.replace, "replace")
        checks.choice(self.over, "over", "step", "episode", "task")

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that `draw` reads: ``"task_id"`` if it draws tasks."""
        return ("task_id",) if self.over == "task" else ()

    @property
    def is_independent(self) -> bool:
        """Whether the draws of a batch are independent: True unless `replace` is False."""
        return self.replace is not False

    def for_unit(self, lists_anchors: bool) -> Sampler:
        """Return this sampler with the default `replace` for a unit if it is None.

        Parameters
        ----------
        lists_anchors : bool
            Whether the unit draws episodes or defines `anchors`.

        Returns
        -------
        Uniform
            This sampler, or a sampler that sets `replace`.
        """
        if self.replace is not None or type(self) is not Uniform:  # a subclass may not be copied
            return self
        return dataclasses.replace(self, replace=not lists_anchors)

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Draw positions uniformly.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Drawn positions.
        columns : dict
            Empty dict.

        Raises
        ------
        TooFewRows
            If the population is empty, or has too few steps, episodes or tasks to draw without
            replacement.
        """
        # `for_unit` has already replaced None with the default of the unit.
        if self.over == "step":
            return population.uniform(size, rng, self.replace is not False), {}
        return population.by(self.over).draw(size, self.replace is not False, rng), {}


@dataclass(frozen=True)
class Prioritized(Sampler):
    """Draw steps in proportion to their priority.

    Step i has the sampling weight ``p_i ** alpha``, where ``p_i = priority + epsilon``. Sampling
    weights are at most 1e200. The step is drawn with probability
    ``P(i) = p_i ** alpha / sum(p_k ** alpha)``. Sampling is stratified: one step is drawn from
    each of `size` equal parts of the sum.

    A batch has the key `probability`, which is P(i), and the key `weight`. For N steps, `weight`
    is the importance weight ``(N * P(i)) ** -beta``, divided by the greatest importance weight.

    Set priorities with `ReplayBuffer.update_priorities`. A process that opens the database later
    reads the priorities of the stored steps. `ReplayBuffer.restore_sampling` also restores the
    initial priorities and the progress of `beta`.

    Parameters
    ----------
    alpha : float, default 0.6
        Exponent of the priorities, at least 0. With 0, sampling is uniform.
    beta : float, default 0.4
        Exponent of the importance weights, from 0 to 1.
    anneal_steps : int, optional
        Number of calls over which `beta` grows linearly to 1. By default `beta` is constant.
    epsilon : float, default 1e-6
        Number that is added to every priority, at least 0.
    initial : float or "max", default "max"
        Priority of a step whose priority was never set. ``"max"`` is the greatest priority that
        this process has set or read before the first draw that includes the step, or 1.0 if no
        priority is above 0.
    normalise : {"batch", "buffer"}, default "batch"
        Whether weights are divided by the greatest importance weight in the batch, or by the
        greatest importance weight of all steps that may be drawn.
    score : str, optional
        Name of a score to use as the priority, such as ``"judge"``; see `ReplayBuffer.score`. A
        negative score counts as 0. Steps without a score get `initial`, where ``"max"`` is 1.0.

    Raises
    ------
    InvalidValue
        If a parameter is not valid.

    References
    ----------
    Schaul et al. (2016), *Prioritized Experience Replay*, arXiv:1511.05952.

    Examples
    --------
    >>> batch = buffer.sample(32, sampler=expdb.Prioritized(beta=0.5))  # doctest: +SKIP
    >>> buffer.update_priorities(batch["position"], td_error)  # doctest: +SKIP
    """

    alpha: float = 0.6
    beta: float = 0.4
    anneal_steps: int | None = None
    epsilon: float = 1e-6
    initial: float | Literal["max"] = "max"
    normalise: Literal["batch", "buffer"] = "batch"
    score: str | None = None

    checks_results: ClassVar[bool] = False
    uses_priorities: ClassVar[bool] = True

    @property
    def named_columns(self) -> tuple[str, ...]:
        """All columns that the settings name, also ``"scores.<score>"`` if `score` is set."""
        return self.reads if self.score is None else (*self.reads, f"scores.{self.score}")

    @property
    def priority_score(self) -> str | None:
        """The name of the score that replaces the priorities of steps: `score`."""
        return self.score

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
        if self.score is not None:
            checks.score_name(self.score)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the arrays that the sampler adds to a batch.

        Returns
        -------
        tuple of str
            The names `probability` and `weight`.
        """
        return ("probability", "weight")

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Draw positions in proportion to their weights.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Drawn positions.
        columns : dict of str to ndarray
            Arrays `probability` and `weight`, float64 of shape (size,).

        Raises
        ------
        TooFewRows
            If the population has no step with a weight above 0.
        """
        tree = population.priorities(self)
        positions, mass = tree.draw(self.strata(size, rng))
        least = tree.minimum() if self.normalise == "buffer" else None
        call = 0 if self.anneal_steps is None else population.calls(self)
        return positions, {
            "probability": mass / tree.total,
            "weight": self.weights(mass, call, least),
        }

    def mass(self, priorities: np.ndarray, starts: np.ndarray | float) -> np.ndarray:
        """Return the sampling weights of steps with the given priorities.

        Parameters
        ----------
        priorities : ndarray of float64
            Priorities, NaN for a step without a priority.
        starts : ndarray of float64 or float
            Initial priorities of these steps, used with ``initial="max"``.

        Returns
        -------
        ndarray of float64
            Sampling weights ``(priority + epsilon) ** alpha``, at most 1e200.
        """
        start = starts if self.initial == "max" else self.initial
        return self.mass_of(np.where(np.isnan(priorities), start, priorities))

    def mass_of(self, given: np.ndarray) -> np.ndarray:
        """Return the sampling weights of steps whose priorities are all known.

        Parameters
        ----------
        given : ndarray of float64
            Priorities.

        Returns
        -------
        ndarray of float64
            Sampling weights ``(priority + epsilon) ** alpha``, at most 1e200.
        """
        may_overflow = self.alpha > 1 or self.epsilon > 1
        if not may_overflow:
            return np.minimum((given + self.epsilon) ** self.alpha, MOST_MASS)
        with np.errstate(over="ignore"):
            return np.minimum((given + self.epsilon) ** self.alpha, MOST_MASS)

    def beta_at(self, call: int) -> float:
        """Return the value of `beta` for one call.

        Parameters
        ----------
        call : int
            Number of the call, from 0.

        Returns
        -------
        float
            Exponent of the importance weights, from `beta` to 1.
        """
        if self.anneal_steps is None:
            return self.beta
        return self.beta + (1.0 - self.beta) * min(1.0, call / self.anneal_steps)

    def strata(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return a random number in each of `count` equal parts of the interval from 0 to 1.

        Parameters
        ----------
        count : int
            Number of parts.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        ndarray of float64, shape (count,)
            Random numbers, ascending.
        """
        shares = rng.random(count)
        shares += np.arange(count)
        shares /= count
        return shares

    def weights(self, mass: np.ndarray, call: int, least: float | None) -> np.ndarray:
        """Return the normalised importance weights of drawn steps.

        The number of steps and the sum of all sampling weights cancel out, because they are the
        same for every step.

        Parameters
        ----------
        mass : ndarray of float64, shape (B,)
            Sampling weights of the drawn steps.
        call : int
            Number of the call, from 0, which determines `beta`.
        least : float or None
            Least sampling weight above 0 of all steps that may be drawn. If None, the least weight
            in `mass` is used.

        Returns
        -------
        ndarray of float64, shape (B,)
            Importance weights.
        """
        if least is None:
            least = mass[mass.argmin()]
        return (mass / least) ** -self.beta_at(call)


@dataclass(frozen=True)
class Ordered(Sampler):
    """Take the first steps in the order of a column, each at most once.

    The sampler uses no random numbers. Steps without a value in the column come last, and steps
    with equal values are ordered by position, oldest first. ``Ordered("position")`` is first in,
    first out; ``Ordered("position", descending=True)`` is last in, first out.
    ``Ordered("priority")`` takes the least priorities first, and with ``descending=True`` the
    greatest.

    Parameters
    ----------
    column : str
        Column of the view `experience`, or ``scores.<name>``. An unknown column raises QueryError
        when a batch is drawn.
    descending : bool, default False
        Whether the greatest value comes first.

    Raises
    ------
    InvalidValue
        If `column` is not text or `descending` is not a bool.
    """

    column: str
    descending: bool = False

    checks_results: ClassVar[bool] = False
    asks_database: ClassVar[bool] = True

    @property
    def named_columns(self) -> tuple[str, ...]:
        """All columns that the settings name, also `column`."""
        return (*self.reads, self.column)

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InvalidValue(
                f"column must be the name of a column of the view `experience`, got {self.column!r}"
            )
        checks.flag(self.descending, "descending")

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Return the first positions in the order of the column.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to return.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Positions in the order of the column.
        columns : dict
            Empty dict.

        Raises
        ------
        QueryError
            If the view has no such column.
        TooFewRows
            If there are fewer than `size` steps.
        """
        return population.ordered(self.column, self.descending, size), {}


@dataclass(frozen=True)
class Newest(Sampler):
    """Draw uniformly, with replacement, from the newest `k` steps.

    If the query and the unit allow fewer than `k` steps, the sampler draws from all of them.

    Parameters
    ----------
    k : int
        Number of steps to draw from, at least 1.

    Raises
    ------
    InvalidValue
        If `k` is not an integer of at least 1.
    """

    k: int

    checks_results: ClassVar[bool] = False

    @property
    def is_independent(self) -> bool:
        """Whether the draws of a batch are independent: always True."""
        return True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checks.whole(self.k, "k", 1))

    def draw(self, population: Population, size: int, rng: np.random.Generator) -> Draw:
        """Draw positions uniformly from the newest `k`.

        Parameters
        ----------
        population : Population
            Steps that may be drawn.
        size : int
            Number of positions to draw.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        positions : ndarray of int64, shape (size,)
            Drawn positions.
        columns : dict
            Empty dict.

        Raises
        ------
        TooFewRows
            If the population is empty.
        """
        return population.newest(self.k).draw(size, True, rng), {}
