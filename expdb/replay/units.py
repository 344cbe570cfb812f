"""Units say what each drawn step becomes. They are settings, frozen, and work with every sampler and query.

A unit says which steps may be drawn (its anchors), and which rows an anchor becomes (its layout). Rows are places in the
arrays of what is held in memory, which `Trajectories` describes.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from expdb.errors import InvalidValue

SUCCESSOR_FIELDS = ("obs", "observation", "state")
UNKNOWN = -1


class Trajectories(Protocol):
    """Rows in memory and how they follow each other."""

    @property
    def slots(self) -> int:
        """Rows of steps; those behind hold what is not a step."""

    @property
    def zero(self) -> int:
        """The row that stands for what is not there."""

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a copy of some rows of a column."""

    def following(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the steps after, UNKNOWN where there is none."""

    def preceding(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the steps before, UNKNOWN where there is none."""

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows."""


@dataclass
class Layout:
    """What drawn steps become: rows [B] or [B, L], and what the unit adds or replaces."""

    rows: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None  # [B, L], where `rows` are steps and not the zero row
    next_rows: np.ndarray | None = None  # [B], of what follows
    last_rows: np.ndarray | None = None  # [B], of the last step taken, where that is another one
    kept: np.ndarray | None = None  # which of the drawn steps are in it, where some are left out
    ragged: bool = False  # whether each row of the batch gets arrays of its own length


@dataclass(frozen=True)
class Step:
    """The step as it is stored."""

    what: ClassVar[str] = "steps"

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn; units that are the same in it may draw the same steps."""
        return ()

    @property
    def reach(self) -> int | None:
        """How many steps, itself and those before, may be drawn or not by what a step's successor is; None if unknown."""
        return 1

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        return np.ones(len(rows), np.bool_)

    def layout(self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator) -> Layout:
        """Return the rows that each drawn step becomes."""
        return Layout(rows)


@dataclass(frozen=True)
class NStep:
    """The step, and what its episode came to `n` steps later: `next_<field>`, `discount`, `n_steps`.

    `reward` is the sum over the steps taken, each discounted by `gamma` once more than the one before; `discount` is what
    the value of `next_<field>` counts: `gamma ** n_steps`, and 0 where the episode terminated on the way; `terminated`
    and `truncated` are those of the last step taken. `n` may be a range `(low, high)`, both bounds inclusive: then each
    row has a random number of steps.

    Where an episode has fewer than `n` more steps, `end` says what happens: with "shorten" as many as there are are
    taken (`n_steps` tells), with "redraw" such steps are never drawn (of a range, as many of it as fit are), with "drop"
    they are left out of the batch, which is then smaller. A step whose successor is unknown, because its episode is
    open, was aborted, or was truncated without `end(...)`, is never drawn.

    `next_fields` names the fields to derive; by default those that `end` received for an episode that was loaded, and `obs`, `observation` and
    `state`, unless the user stored a `next_<field>` for them: then that of the last step taken is what follows.
    """

    n: int | tuple[int, int] = 1
    gamma: float = 1.0
    end: Literal["shorten", "redraw", "drop"] = "shorten"
    next_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        bounds = tuple(self.n) if isinstance(self.n, (tuple, list)) else (self.n, self.n)
        sound = len(bounds) == 2 and all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in bounds)
        if not sound or not 1 <= bounds[0] <= bounds[1]:
            raise InvalidValue(f"n is {self.n!r}: give a number of steps from 1, or a range such as (1, 5), bounds inclusive")
        whole = (int(bounds[0]), int(bounds[1]))
        object.__setattr__(self, "n", whole if isinstance(self.n, (tuple, list)) else whole[0])
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, (int, float)) or not 0.0 <= self.gamma <= 1.0:
            raise InvalidValue(f"gamma is {self.gamma!r}: give a number from 0 to 1")
        if self.end not in ("shorten", "redraw", "drop"):
            raise InvalidValue(f"end is {self.end!r}: give 'shorten', 'redraw' or 'drop'")
        if self.next_fields is not None:
            given = self.next_fields
            if not isinstance(given, (tuple, list)) or not all(isinstance(name, str) for name in given):
                raise InvalidValue(f"next_fields is {given!r}: give a tuple of names")
            object.__setattr__(self, "next_fields", tuple(given))

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        low = self.bounds[0] if self.end == "redraw" else 1
        return "steps with a known successor" if low == 1 else f"steps with {low} known successors"

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number of steps."""
        return self.n if isinstance(self.n, tuple) else (self.n, self.n)

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("successors", self.bounds[0] if self.end == "redraw" else 1)

    @property
    def reach(self) -> int | None:
        """How many steps may be drawn or not by what one's successor is."""
        return int(self.anchor[1])

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        (_, wanted) = self.anchor
        if wanted == 1:
            return trajectories.take(":after", rows) >= 0
        enough: np.ndarray = _walk(trajectories, rows, np.full(len(rows), wanted))[1] >= wanted
        return enough

    def layout(self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator) -> Layout:
        """Return the rows that each drawn step becomes."""
        low, high = self.bounds
        if high == 1:
            terminated = trajectories.take("terminated", rows)
            columns = {
                "discount": np.where(terminated, 0.0, self.gamma),
                "n_steps": np.ones(len(rows), np.int64),
            }
            return Layout(rows, columns, next_rows=trajectories.take(":after", rows))
        kept = None
        if low == high:
            steps = np.full(len(rows), low)
        elif self.end == "redraw":
            there = _walk(trajectories, rows, np.full(len(rows), high))[1]
            steps = rng.integers(low, there, endpoint=True)
        else:
            steps = rng.integers(low, high, len(rows), endpoint=True)
        path, taken = _walk(trajectories, rows, steps)
        if self.end == "drop":
            kept = taken == steps
            rows, taken, path = rows[kept], taken[kept], [part[kept] for part in path]
        reward, last = trajectories.take("reward", rows), rows
        for k, part in enumerate(path[1:], 1):
            on = np.flatnonzero(k < taken)
            reward[on] += self.gamma**k * trajectories.take("reward", part[on])
            last = np.where(k < taken, part, last)
        terminated = trajectories.take("terminated", last)
        columns = {
            "reward": reward,
            "terminated": terminated,
            "truncated": trajectories.take("truncated", last),
            "discount": np.where(terminated, 0.0, np.float64(self.gamma) ** taken),
            "n_steps": taken,
        }
        return Layout(rows, columns, next_rows=trajectories.take(":after", last), last_rows=last, kept=kept)


def _walk(trajectories: Trajectories, rows: np.ndarray, steps: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Follow up to `steps` steps of which each has a known successor; return the rows of the k-th ones and how many.

    A terminated step is the last one, whatever comes after it.
    """
    after = trajectories.take(":after", rows)
    taken = (after >= 0).astype(np.int64)
    path = [rows]
    current = rows
    for k in range(1, int(steps.max(initial=0))):
        on = np.flatnonzero((taken == k) & (k < steps) & (after < trajectories.slots) & ~trajectories.take("terminated", current))
        if not len(on):
            break
        further = after[on]
        beyond = trajectories.take(":after", further)
        known = beyond >= 0
        on, further, beyond = on[known], further[known], beyond[known]
        current, after = current.copy(), after.copy()
        current[on], after[on] = further, beyond
        taken[on] += 1
        path.append(current)
    return path, taken


@dataclass(frozen=True)
class Sequence:
    """`length` consecutive steps of one episode from the drawn one on, after up to `burn_in` steps that precede it.

    Arrays are [B, burn_in + length]: the drawn step is in column `burn_in`, whatever is there before it. Where there is
    no step, before the episode's first one held or after its last one, `mask` is False, and the arrays hold zeros (None
    for objects, -1 for positions). `is_first` tells the first step of an episode. `episode` and `length`, the number of
    steps there, are [B], and so are the columns of episodes that `fields` names, `weight` and `probability`.

    Only every `stride`-th step of an episode, from its first one, may be drawn. With `pad=False` only steps may be drawn
    that have all of the others. For prioritized replay give a sequence's priority to the step it was drawn by:
    `batch["position"][:, burn_in]`.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = True

    what: ClassVar[str] = "sequences"

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("stride", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise InvalidValue(f"{name} is {value!r}: give a whole number from {least}")
            object.__setattr__(self, name, int(value))
        if not isinstance(self.pad, bool):
            raise InvalidValue(f"pad is {self.pad!r}: give True or False")

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        if self.pad:
            return ("stride", self.stride) if self.stride > 1 else ()
        return ("sequence", self.length, self.burn_in, self.stride)

    @property
    def reach(self) -> int | None:
        """How many steps may be drawn or not by what one's successor is; unknown where eviction of others decides too."""
        return 1 if self.pad else None if self.burn_in else self.length

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        found: np.ndarray = trajectories.take(":ordinal", rows) % self.stride == 0
        if not self.pad:
            some = np.flatnonzero(found)
            found[some] &= (_forward(trajectories, rows[some], self.length)[:, -1] >= 0) & (
                _backward(trajectories, rows[some], self.burn_in)[:, :1] >= 0
            ).all(1)
        return found

    def layout(self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator) -> Layout:
        """Return the rows that each drawn step becomes."""
        found = _forward(trajectories, rows, self.length)
        if self.burn_in:
            found = np.concatenate((_backward(trajectories, rows, self.burn_in), found), 1)
        return _padded(trajectories, found)


@dataclass(frozen=True)
class Episode:
    """The whole episode: complete, with no step evicted or deleted; arrays are [B, T], with `mask` and `is_first`.

    An episode may be drawn where any of its steps matches the query, and is one thing to draw, however many match or
    however long it is; its priority is that of its first step, `batch["position"][:, 0]`. T is the length of the longest
    in the batch. With `max_length` the first `max_length` steps of longer ones are taken, and T is `max_length`. With
    `pad=False` there is no mask, and each value is an object array of one array an episode.
    """

    max_length: int | None = None
    pad: bool = True

    what: ClassVar[str] = "complete episodes"

    def __post_init__(self) -> None:
        value = self.max_length
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
            raise InvalidValue(f"max_length is {value!r}: give a number of steps from 1, or None")
        object.__setattr__(self, "max_length", None if value is None else int(value))
        if not isinstance(self.pad, bool):
            raise InvalidValue(f"pad is {self.pad!r}: give True or False")

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("episode",)

    @property
    def reach(self) -> int | None:
        """Unknown: the first step of an episode may be drawn or not by what any other is."""
        return None

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        return trajectories.take(":whole", rows) > 0

    def layout(self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator) -> Layout:
        """Return the rows that each drawn step becomes."""
        lengths = trajectories.take(":whole", rows).astype(np.int64)
        longest = int(lengths.max(initial=1)) if self.max_length is None else self.max_length
        layout = _padded(trajectories, _forward(trajectories, rows, longest))
        layout.ragged = not self.pad
        return layout


Unit = Step | NStep | Sequence | Episode


def _forward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of `count` steps from each row on, [B, count]; UNKNOWN after an end."""
    # Mostly an episode's steps stand side by side, which is checked at once; where they do not, they are walked along.
    found = (rows[:, None] + np.arange(count)) % trajectories.slots
    after = trajectories.take(":after", found[:, :-1].reshape(-1)).reshape(len(rows), count - 1)
    joined = np.logical_and.accumulate(after == found[:, 1:], 1)
    found[:, 1:][~joined] = UNKNOWN
    broken = np.flatnonzero(~joined.all(1)) if count > 1 else rows[:0]
    ends = after[broken, (~joined[broken]).argmax(1)] if len(broken) else broken
    if ((ends >= 0) & (ends < trajectories.slots)).any():  # one goes on elsewhere
        found[:, 0] = current = rows
        for column in range(1, count):
            current = np.where(current >= 0, trajectories.following(np.maximum(current, 0)), UNKNOWN)
            found[:, column] = current
    return found


def _backward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` steps before each row, [B, count]; UNKNOWN before a beginning."""
    found = np.full((len(rows), count), UNKNOWN)
    current, on = rows, np.arange(len(rows))
    for column in range(count - 1, -1, -1):
        current = trajectories.preceding(current)
        on, current = on[current >= 0], current[current >= 0]
        if not len(on):
            break
        found[on, column] = current
    return found


def _padded(trajectories: Trajectories, found: np.ndarray) -> Layout:
    mask = found >= 0
    rows = np.where(mask, found, trajectories.zero)
    first = (trajectories.take(":ordinal", rows.reshape(-1)).reshape(rows.shape) == 0) & mask
    columns = {"mask": mask, "is_first": first, "length": mask.sum(1)}
    return Layout(rows, columns, mask)


def derived_fields(unit: NStep, known: list[str], ended_with: set[str]) -> list[str]:
    """Return the fields whose successors a batch gets; none of those for which the user stored `next_<field>`."""
    if unit.next_fields is not None:
        parts = {name: [one for one in known if one == name or one.startswith(f"{name}.")] for name in unit.next_fields}
        unknown = [name for name, found in parts.items() if not found]
        if unknown:
            raise InvalidValue(f"next_fields names {', '.join(unknown)}: the fields are {', '.join(known) or 'none yet'}")
        return [one for found in parts.values() for one in found]
    heads = {name for name in known if name.split(".", 1)[0] in SUCCESSOR_FIELDS}
    return [name for name in known if name in heads | ended_with and f"next_{name}" not in known]
