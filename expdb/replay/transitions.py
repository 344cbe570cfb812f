"""Units for transitions: a step, its frames, and the state n steps later."""

from __future__ import annotations  # evaluating `np.random` would import that module

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.names import OBSERVATIONS, UNKNOWN
from expdb.replay.layout import Layout, Trajectories, along
from expdb.replay.units import Unit


@dataclass(frozen=True)
class Stack(Unit):
    """Return each drawn step with a stack of `k` frames that ends with the frame of the step.

    Observations are [B, k, ...]: the oldest frame first, the frame of the step itself last. Each
    frame is stored once; stacks are built when a batch is drawn. At the beginning of an episode,
    its first frame is repeated, as gymnasium's `FrameStackObservation` does with
    ``padding_type="reset"``. A step is never drawn if one of its frames was evicted or deleted,
    or is on the other side of a gap between step numbers.

    Parameters
    ----------
    k : int
        Number of frames, at least 1.
    stack_fields : sequence of str, optional
        Fields to stack; a name such as ``"obs"`` also selects ``"obs.image"``. By default these are
        `obs`, `observation` and `state`. An unknown name, or a buffer without a field to stack,
        raises InvalidValue when a batch is drawn.
    gaps : {"end", "join"}, default "end"
        Treatment of missing step numbers of an agent. With ``"end"``, the trajectory ends before
        the gap, a new one begins after it, and expdb warns at the first gap. With ``"join"``, the
        steps on both sides of the gap are neighbours; use it if you skip numbers on purpose, as
        with frame skip.

    Raises
    ------
    InvalidValue
        If `k` is not an integer of at least 1, or `stack_fields` is not a tuple or list of str.

    Examples
    --------
    >>> batch = buffer.sample(32, unit=expdb.Stack(4))  # doctest: +SKIP
    >>> batch["obs"].shape  # doctest: +SKIP
    (32, 4, 84, 84)
    """

    k: int
    stack_fields: tuple[str, ...] | None = None
    gaps: Literal["end", "join"] = "end"

    checks_results: ClassVar[bool] = False
    fills_with_zeros: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checks.whole(self.k, "k", 1))
        checks.choice(self.gaps, "gaps", "end", "join")
        _set_names(self, "stack_fields")

    @property
    def window(self) -> range | None:
        """The offsets of the earlier frames and the step, a range."""
        return range(1 - self.k, 1)

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        return "steps with all of their frames"

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that a batch has as stacks of frames.

        Parameters
        ----------
        fields : sequence of str
            Names of all stored fields.
        derived : sequence of str
            Not used.

        Returns
        -------
        list of str
            Names of the fields, none if `k` is 1.

        Raises
        ------
        InvalidValue
            If there is no field to stack, or a name in `stack_fields` is not a field.
        """
        return [] if self.k == 1 else fields_to_stack(self.stack_fields, fields)

    @property
    def reach(self) -> int | None:
        """The number of steps that a change of one step's successor affects: 1, the step itself."""
        return 1

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which steps may be drawn, a tuple.

        If `k` is 1, the key is empty, because every step may be drawn.
        """
        return ("stack", self.k) if self.k > 1 else ()

    @property
    def lookback(self) -> int:
        """The number of steps after a missing step that lack a frame, an int."""
        return self.k - 1

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps have a complete stack of frames.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of steps.

        Returns
        -------
        ndarray of bool, shape (N,)
            True for a step without a missing frame.
        """
        return _has_frames(trajectories, rows, self.k)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the layout of the drawn steps, with their frames.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (B,)
            Rows of the drawn steps.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        Layout
            Drawn rows, with `stacks`.
        """
        stacks = first_repeated(trajectories.around(rows, range(1 - self.k, 1)))
        return Layout(rows, stacks=stacks)


class Steps(NamedTuple):
    """Hold up to n steps from each of B drawn steps on, and the number that a transition takes."""

    rows: np.ndarray  # [B, n]: rows of the steps; UNKNOWN after the last step of an episode
    after: np.ndarray  # [B, n]: successor of each row
    terminated: np.ndarray  # [B, n]: whether each step terminated its episode
    # [B]: number of steps that each transition takes. Every step taken has a known successor, and
    # only the last step taken may terminate the episode.
    taken: np.ndarray


MOST_BESIDE = 128  # maximum number of steps to read together, even if the episode is shorter


@dataclass(frozen=True)
class NStep(Unit):
    """Return each drawn step as a transition to the state `n` steps later.

    A batch gets ``next_<field>``, `discount` and `n_steps`, the number of steps taken. `reward` is
    the sum of ``gamma ** k * reward`` over the steps taken, from k = 0 on. It is NaN if a step
    taken has no reward. `discount` is the factor for the value of the next state:
    ``gamma ** n_steps``, or 0 if the episode terminated within these steps. `terminated` and
    `truncated` are the flags of the last step taken.

    A step is never drawn if its successor is unknown. An example is the last step of an episode
    that is open, was aborted, or was truncated without ``end(...)``.

    Parameters
    ----------
    n : int or tuple of int, default 1
        Number of steps, at least 1. For a range ``(low, high)``, both bounds inclusive, each row
        has a random number of steps.
    gamma : float, default 1.0
        Discount per step, from 0 to 1.
    end : {"shorten", "redraw", "drop"}, default "shorten"
        What happens if fewer than `n` steps with a known successor are left in the episode.
        ``"shorten"`` takes the steps that are left. ``"redraw"`` never draws such a step; for a
        range, it requires `low` steps and takes at most the steps that are left. ``"drop"`` leaves
        such a step out of the batch, which is then smaller.
    next_fields : sequence of str, optional
        Fields to derive ``next_<field>`` of; a name such as ``"obs"`` also selects ``"obs.image"``.
        By default these are `obs`, `observation`, `state` and the fields that `EpisodeWriter.end`
        received for an episode in memory, except fields with a stored ``next_<field>``. A stored
        `next_obs`, `next_observation` or `next_state` is read from the last step taken.
    stack : int, default 1
        Number of frames. If it is more than 1, the observations and the next observations are
        stacks [B, stack, ...], as `Stack` describes.
    stack_fields : sequence of str, optional
        Fields to stack, as in `Stack`.
    gaps : {"end", "join"}, default "end"
        Treatment of missing step numbers of an agent. With ``"end"``, the trajectory ends before
        the gap, a new one begins after it, and expdb warns at the first gap. With ``"join"``, the
        steps on both sides of the gap are neighbours; use it if you skip numbers on purpose, as
        with frame skip.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    Examples
    --------
    >>> batch = buffer.sample(32, unit=expdb.NStep(3, gamma=0.99))  # doctest: +SKIP
    >>> target = batch["reward"] + batch["discount"] * value(batch["next_obs"])  # doctest: +SKIP
    """

    n: int | tuple[int, int] = 1
    gamma: float = 1.0
    end: Literal["shorten", "redraw", "drop"] = "shorten"
    next_fields: tuple[str, ...] | None = None
    stack: int = 1
    stack_fields: tuple[str, ...] | None = None
    gaps: Literal["end", "join"] = "end"

    checks_results: ClassVar[bool] = False
    makes_transitions: ClassVar[bool] = True
    fills_with_zeros: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.n) is not int or not 1 <= self.n < 2**63:
            object.__setattr__(self, "n", _validate_n(self.n))
        checks.number(self.gamma, "gamma", 0, 1)
        object.__setattr__(self, "gamma", checks.plain(self.gamma))
        checks.choice(self.end, "end", "shorten", "redraw", "drop")
        checks.choice(self.gaps, "gaps", "end", "join")
        object.__setattr__(self, "stack", checks.whole(self.stack, "stack", 1))
        _set_names(self, "next_fields")
        _set_names(self, "stack_fields")

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        low = self.bounds[0] if self.end == "redraw" else 1
        return "steps with a known successor" if low == 1 else f"steps with {low} known successors"

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The names `discount` and `n_steps`; if `n` can exceed 1, also `reward`, `terminated`
            and `truncated`.
        """
        replaced = () if self.bounds[1] == 1 else ("reward", "terminated", "truncated")
        return (*replaced, "discount", "n_steps")

    def derived(self, fields: Sequence[str], ended_with: Set[str]) -> list[str]:
        """Return the fields that get a derived ``next_<field>`` in a batch.

        By default, fields with a stored ``next_<field>`` are left out.

        Parameters
        ----------
        fields : sequence of str
            Names of all stored fields.
        ended_with : set of str
            Names of the fields that any call of `EpisodeWriter.end` received.

        Returns
        -------
        list of str
            Names of fields.

        Raises
        ------
        InvalidValue
            If a name in `next_fields` is not a field.
        """
        if self.next_fields is not None:
            return _named("next_fields", self.next_fields, fields)
        heads = {name for name in fields if name.split(".", 1)[0] in OBSERVATIONS}
        return [
            name for name in fields if name in heads | ended_with and f"next_{name}" not in fields
        ]

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that a batch has as stacks of frames.

        Parameters
        ----------
        fields : sequence of str
            Names of all stored fields.
        derived : sequence of str
            Names of the fields that `derived` returned.

        Returns
        -------
        list of str
            Names of the fields, none if `stack` is 1.

        Raises
        ------
        InvalidValue
            If there is no field to stack, a name in `stack_fields` is not a field, or a field to
            stack has a stored ``next_<field>`` and is not in `derived`.
        """
        names = [] if self.stack == 1 else fields_to_stack(self.stack_fields, fields)
        for name in names:
            if name not in derived and f"next_{name}" in fields:
                raise InvalidValue(
                    f"next_{name} was stored with each step and cannot be stacked; pass "
                    f"next_fields=({name!r},) to derive next_{name} instead"
                )
        return names

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether all batches of one size have equal shapes: False with ``end="drop"``."""
        return self.end != "drop"

    @property
    def takes_last_step(self) -> bool:
        """Whether a transition can take more than the drawn step, a bool."""
        return self.bounds[1] > 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number of steps, a tuple of two ints."""
        return self.n if isinstance(self.n, tuple) else (self.n, self.n)

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which steps may be drawn, a tuple.

        It contains the number of known successors that a step needs and, if observations are
        stacked, the number of frames.
        """
        wanted = ("successors", self.bounds[0] if self.end == "redraw" else 1)
        return wanted if self.stack == 1 else (*wanted, "stack", self.stack)

    @property
    def reach(self) -> int | None:
        """The number of steps that a change of one step's successor affects, an int."""
        return int(self.anchor_key[1])

    @property
    def lookback(self) -> int:
        """The number of steps after a missing step that lack a frame, an int."""
        return self.stack - 1

    @property
    def window(self) -> range | None:
        """The offsets of the earlier frames, the step and the later steps, a range.

        It is None if a transition can take more than 128 steps.
        """
        last = self.bounds[1]
        return range(1 - self.stack, last) if last <= MOST_BESIDE else None

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of steps.

        Returns
        -------
        ndarray of bool, shape (N,)
            True for a step with a known successor and all of its frames. With ``end="redraw"``, the
            least number of steps must be left in the episode.
        """
        is_start: np.ndarray
        if self.end == "redraw" and (wanted := self.bounds[0]) > 1:
            is_start = steps_from(trajectories, rows, wanted).taken >= wanted
        else:
            is_start = trajectories.successors(rows) >= 0
        return (
            is_start if self.stack == 1 else is_start & _has_frames(trajectories, rows, self.stack)
        )

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the transition of each drawn step.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (B,)
            Rows of the drawn steps.
        rng : numpy.random.Generator
            Source of the numbers of steps, if `n` is a range.

        Returns
        -------
        Layout
            Drawn rows with `next_rows` and the columns in `keys`. With ``end="drop"``, the layout
            may have fewer rows than were drawn.
        """
        if self.n == 1 or self.n == (1, 1):
            discount = _discounts(self.gamma or 0.0).take(trajectories.terminated(rows))
            columns = {"discount": discount, "n_steps": _ones(len(rows)).copy()}
            layout = Layout(rows, columns, next_rows=trajectories.successors(rows))
            if self.stack > 1:
                layout.stacks = first_repeated(trajectories.around(rows, range(1 - self.stack, 1)))
                following = layout.stacks[:, 1:], trajectories.successors(rows)[:, None]
                layout.next_stacks = np.concatenate(following, 1)
            return layout
        steps = steps_from(trajectories, rows, self.bounds[1])
        wanted = self._steps_wanted(steps, rng)
        taken = np.minimum(steps.taken, wanted)
        kept = taken == wanted if self.end == "drop" else None
        every, count = np.arange(len(rows)), steps.rows.shape[1]
        last = np.maximum(taken, 1) - 1
        last_flat_indices = every * count + last
        next_rows = steps.after.reshape(-1)[last_flat_indices]
        layout = Layout(
            rows,
            self._returns(trajectories, steps, taken, last_flat_indices),
            next_rows=next_rows,
            last_rows=steps.rows.reshape(-1)[last_flat_indices],
        )
        if self.stack > 1:
            frames = trajectories.around(rows, range(1 - self.stack, 1))
            layout.stacks = first_repeated(frames)
            # The frames before the successor end with the last step taken.
            all_rows = np.concatenate((frames[:, :-1], steps.rows), 1)
            before = all_rows[every[:, None], last[:, None] + np.arange(1, self.stack)]
            following = before, next_rows[:, None]
            layout.next_stacks = first_repeated(np.concatenate(following, 1))
        return layout if kept is None else _only(layout, kept)

    def _steps_wanted(self, steps: Steps, rng: np.random.Generator) -> np.ndarray | int:
        low, high = self.bounds
        if low == high:
            return low
        if self.end == "redraw":
            return rng.integers(low, steps.taken, endpoint=True)
        return rng.integers(low, high, len(steps.taken), endpoint=True)

    def _returns(
        self,
        trajectories: Trajectories,
        steps: Steps,
        taken: np.ndarray,
        last_flat_indices: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Return the columns in `keys` of transitions that take `taken` steps."""
        count = steps.rows.shape[1]
        gammas = _powers(self.gamma, count + 1)
        # Steps are the first axis, so that rewards are added in the order of the steps.
        rewards = np.ascontiguousarray(trajectories.rewards(steps.rows).T)
        counted = np.arange(count)[:, None] < taken
        reward = np.add.reduce(np.where(counted, rewards, 0.0) * gammas[:count, None])
        terminated = steps.terminated.reshape(-1)[last_flat_indices]
        return {
            "reward": reward,
            "terminated": terminated,
            "truncated": trajectories.truncated(steps.rows).reshape(-1)[last_flat_indices],
            "discount": np.where(terminated, 0.0, gammas.take(taken)),
            "n_steps": taken,
        }


def _validate_n(n: Any) -> int | tuple[int, int]:
    """Return `n` as an int or a tuple of two ints; raise InvalidValue if it is invalid."""
    bounds = tuple(n) if isinstance(n, (tuple, list)) else (n, n)
    sound = len(bounds) == 2 and all(
        isinstance(bound, (int, np.integer)) and not isinstance(bound, bool) for bound in bounds
    )
    if not sound or not 1 <= bounds[0] <= bounds[1] < 2**63:
        raise InvalidValue(
            "n must be a positive number of steps, or a range such as (1, 5) with inclusive "
            f"bounds, got {n!r}"
        )
    whole = (int(bounds[0]), int(bounds[1]))
    return whole if isinstance(n, (tuple, list)) else whole[0]


@lru_cache(maxsize=16)
def _discounts(gamma: float) -> np.ndarray:
    """Return the discounts of steps, indexed by whether the step terminates its episode."""
    return np.array([gamma, 0.0])


@lru_cache(maxsize=2)  # each array is as large as a column of the batch
def _ones(count: int) -> np.ndarray:
    """Return a cached array of ones; copying it is faster than filling a new array."""
    return np.ones(count, np.int64)


@lru_cache(maxsize=16)
def _powers(gamma: float, count: int) -> np.ndarray:
    """Return gamma to the power of 0 to `count` - 1."""
    powers: np.ndarray = np.float64(gamma) ** np.arange(count)
    powers.flags.writeable = False
    return powers


def steps_from(trajectories: Trajectories, rows: np.ndarray, count: int) -> Steps:
    """Return up to `count` steps from each row on, each with a known successor.

    A step that terminated its episode is always the last step taken.
    """
    if count <= MOST_BESIDE:
        window = trajectories.around(rows, range(count))
    else:
        window = along(trajectories, rows, count)
    after, terminated = trajectories.successors(window), trajectories.terminated(window)
    # Transpose the arrays, because NumPy is faster on contiguous rows.
    has_successor = np.ascontiguousarray(after.T) >= 0
    on = has_successor[0]
    taken = on.astype(np.int64)
    for may_follow in has_successor[1:] > np.ascontiguousarray(terminated.T)[:-1]:
        on = on & may_follow
        taken += on
    return Steps(window, after, terminated, taken)


def _only(layout: Layout, kept: np.ndarray) -> Layout:
    """Return the part of a layout for the rows where `kept` is True."""

    def part(rows: np.ndarray | None) -> np.ndarray | None:
        return None if rows is None else rows[kept]

    return Layout(
        layout.rows[kept],
        {name: column[kept] for name, column in layout.columns.items()},
        next_rows=part(layout.next_rows),
        last_rows=part(layout.last_rows),
        stacks=part(layout.stacks),
        next_stacks=part(layout.next_stacks),
        kept=kept,
    )


def _has_frames(trajectories: Trajectories, rows: np.ndarray, stack: int) -> np.ndarray:
    """Return which steps lack none of the earlier frames that a stack needs."""
    had = np.minimum(trajectories.ordinals(rows), stack - 1)
    is_complete: np.ndarray = (trajectories.around(rows, range(1 - stack, 0)) >= 0).sum(1) >= had
    return is_complete


def first_repeated(frames: np.ndarray) -> np.ndarray:
    """Replace the UNKNOWN rows in stacks [B, k] with the first known row of the stack."""
    if (frames[:, 0] >= 0).all():
        return frames
    first = frames[np.arange(len(frames)), (frames >= 0).argmax(1)]
    return np.where(frames == UNKNOWN, first[:, None], frames)


def fields_to_stack(names: tuple[str, ...] | None, fields: Sequence[str]) -> list[str]:
    """Return the fields to stack: the given ones, or by default the observations."""
    if names is not None:
        return _named("stack_fields", names, fields)
    observations = [name for name in fields if name.split(".", 1)[0] in OBSERVATIONS]
    if not observations:
        raise InvalidValue(
            f"no field is named {' or '.join(OBSERVATIONS)}, so no frames can be stacked; select "
            "the fields to stack with stack_fields=(...); the fields are "
            f"{', '.join(fields) or 'none yet'}"
        )
    return observations


def _named(what: str, names: tuple[str, ...], fields: Sequence[str]) -> list[str]:
    """Return the fields that the names select; a name is a field or the prefix of fields."""
    parts = {
        name: [field for field in fields if field == name or field.startswith(f"{name}.")]
        for name in names
    }
    unknown = [name for name, matches in parts.items() if not matches]
    if unknown:
        raise InvalidValue(
            f"{what} must name stored fields, got {', '.join(unknown)}; the fields are "
            f"{', '.join(fields) or 'none yet'}"
        )
    return [field for matches in parts.values() for field in matches]


def _set_names(unit: Unit, name: str) -> None:
    """Convert the setting `name` of a unit to a tuple of field names."""
    names = getattr(unit, name)
    object.__setattr__(unit, name, None if names is None else checks.names(names, name))
