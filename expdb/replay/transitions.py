"""Units that make transitions: a step, its frames, and what its episode came to n steps later."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.names import OBSERVATIONS, UNKNOWN
from expdb.replay.layout import Layout, Trajectories, along
from expdb.replay.units import Unit


@dataclass(frozen=True)
class Stack(Unit):
    """The step with the last `k` frames.

    Observations are [B, k, ...], the oldest first, the step's own last.

    Frames are stored once and put together when they are drawn. Before the first step of an episode
    there are no frames: its first one is repeated (as gymnasium's `FrameStackObservation` does with
    `padding_type="reset"`). Steps are never drawn of which an earlier frame is gone, evicted or
    deleted. `stack_fields` names the fields to stack, by default `obs`, `observation` and `state`,
    with their parts.
    """

    k: int
    stack_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checks.whole(self.k, "k", 1))
        _set_names(self, "stack_fields")

    @property
    def window(self) -> range | None:
        """The frames before the step, and the step."""
        return range(1 - self.k, 1)

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        return "steps with all of their frames"

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that are stacks of frames in a batch."""
        return [] if self.k == 1 else stacked_fields(self.stack_fields, fields)

    @property
    def reach(self) -> int | None:
        """None but itself."""
        return 1

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("stack", self.k) if self.k > 1 else ()

    @property
    def lookback(self) -> int:
        """How many steps after one that is gone lack a frame."""
        return self.k - 1

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        return _has_frames(trajectories, rows, self.k)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        stacks = first_repeated(trajectories.around(rows, range(1 - self.k, 1)))
        return Layout(rows, stacks=stacks)


class Steps(NamedTuple):
    """The steps from some rows on, [B, n], and how many of them a transition takes."""

    rows: np.ndarray  # UNKNOWN after the end of an episode
    after: np.ndarray  # rows of what follows each
    terminated: np.ndarray
    taken: np.ndarray  # [B]: each of them has a known successor, and only the last one terminates


MOST_BESIDE = 128  # steps that are looked at side by side, whether their episode has them or not


@dataclass(frozen=True)
class NStep(Unit):
    """The step, and what its episode came to `n` steps later.

    A batch gets `next_<field>`, `discount` and `n_steps`.

    `reward` is the sum over the steps taken, each discounted by `gamma` once more than the one
    before; `discount` is what the value of `next_<field>` counts: `gamma ** n_steps`, and 0 where
    the episode terminated on the way; `terminated` and `truncated` are those of the last step
    taken. `n` may be a range `(low, high)`, both bounds inclusive: then each row has a random
    number of steps.

    Where an episode has fewer than `n` more steps, `end` says what happens: with "shorten" as many
    as there are are taken (`n_steps` tells), with "redraw" such steps are never drawn (of a range,
    as many of it as fit are), with "drop" they are left out of the batch, which is then smaller. A
    step whose successor is unknown, because its episode is open, was aborted, or was truncated
    without `end(...)`, is never drawn.

    `next_fields` names the fields to derive; by default those that `end` received for an episode
    that was loaded, and `obs`, `observation` and `state`, unless the user stored a `next_<field>`
    for them: then that of the last step taken is what follows.

    With `stack` observations and what follows them are stacks of so many frames, [B, stack, ...],
    as `Stack` says.
    """

    n: int | tuple[int, int] = 1
    gamma: float = 1.0
    end: Literal["shorten", "redraw", "drop"] = "shorten"
    next_fields: tuple[str, ...] | None = None
    stack: int = 1
    stack_fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        bounds = tuple(self.n) if isinstance(self.n, (tuple, list)) else (self.n, self.n)
        sound = len(bounds) == 2 and all(
            isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in bounds
        )
        if not sound or not 1 <= bounds[0] <= bounds[1] < 2**63:
            raise InvalidValue(
                f"n is {self.n!r}: give a number of steps from 1, or a range such as (1, 5), "
                "bounds inclusive"
            )
        whole = (int(bounds[0]), int(bounds[1]))
        object.__setattr__(self, "n", whole if isinstance(self.n, (tuple, list)) else whole[0])
        checks.number(self.gamma, "gamma", 0, 1)
        object.__setattr__(self, "gamma", checks.plain(self.gamma))
        checks.choice(self.end, "end", "shorten", "redraw", "drop")
        object.__setattr__(self, "stack", checks.whole(self.stack, "stack", 1))
        _set_names(self, "next_fields")
        _set_names(self, "stack_fields")

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        low = self.bounds[0] if self.end == "redraw" else 1
        return "steps with a known successor" if low == 1 else f"steps with {low} known successors"

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of the unit."""
        replaced = () if self.bounds[1] == 1 else ("reward", "terminated", "truncated")
        return (*replaced, "discount", "n_steps")

    def derived(self, fields: Sequence[str], ended_with: Set[str]) -> list[str]:
        """Return the fields of which a batch has what follows.

        None of those for which the user stored `next_<field>`.
        """
        if self.next_fields is not None:
            return _named("next_fields", self.next_fields, fields)
        heads = {name for name in fields if name.split(".", 1)[0] in OBSERVATIONS}
        return [one for one in fields if one in heads | ended_with and f"next_{one}" not in fields]

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that are stacks of frames in a batch.

        Raises InvalidValue where what follows cannot be one.
        """
        found = [] if self.stack == 1 else stacked_fields(self.stack_fields, fields)
        for name in found:
            if name not in derived and f"next_{name}" in fields:
                raise InvalidValue(
                    f"next_{name} was stored with each step and cannot be stacked: name "
                    f"next_fields=({name!r},) to derive it"
                )
        return found

    @property
    def takes_last_step(self) -> bool:
        """Whether the last step taken may be another one than the drawn one."""
        return self.bounds[1] > 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest number of steps."""
        return self.n if isinstance(self.n, tuple) else (self.n, self.n)

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        wanted = ("successors", self.bounds[0] if self.end == "redraw" else 1)
        return wanted if self.stack == 1 else (*wanted, "stack", self.stack)

    @property
    def reach(self) -> int | None:
        """How many steps may be drawn or not by what one's successor is."""
        return int(self.anchor_key[1])

    @property
    def lookback(self) -> int:
        """How many steps after one that is gone lack a frame."""
        return self.stack - 1

    @property
    def window(self) -> range | None:
        """The frames before the step, the step, and those up to the last one taken."""
        last = self.bounds[1]
        return range(1 - self.stack, last) if last <= MOST_BESIDE else None

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        found: np.ndarray
        if self.end == "redraw" and (wanted := self.bounds[0]) > 1:
            found = steps_from(trajectories, rows, wanted).taken >= wanted
        else:
            found = trajectories.successors(rows) >= 0
        return found if self.stack == 1 else found & _has_frames(trajectories, rows, self.stack)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        if self.n == 1 or self.n == (1, 1):
            taken = np.empty(len(rows), np.int64)
            taken.fill(1)
            discount = np.where(trajectories.terminated(rows), 0.0, self.gamma)
            columns = {"discount": discount, "n_steps": taken}
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
        every = np.arange(len(rows))
        last = np.maximum(taken, 1) - 1
        layout = Layout(
            rows,
            self._returns(trajectories, steps, taken, last),
            next_rows=steps.after[every, last],
            last_rows=steps.rows[every, last],
        )
        if self.stack > 1:
            frames = trajectories.around(rows, range(1 - self.stack, 1))
            layout.stacks = first_repeated(frames)
            # The frames before what follows end with the last step taken.
            found = np.concatenate((frames[:, :-1], steps.rows), 1)
            before = found[every[:, None], last[:, None] + np.arange(1, self.stack)]
            following = before, steps.after[every, last][:, None]
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
        self, trajectories: Trajectories, steps: Steps, taken: np.ndarray, last: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `keys()` of as many steps as are taken."""
        every, count = np.arange(len(taken)), steps.rows.shape[1]
        gammas = _powers(self.gamma, count + 1)
        # By step first, so that the sum is added up in the order of the steps.
        rewards = np.ascontiguousarray(trajectories.rewards(steps.rows).T)
        counted = np.arange(count)[:, None] < taken
        reward = np.add.reduce(np.where(counted, rewards, 0.0) * gammas[:count, None])
        terminated = steps.terminated[every, last]
        return {
            "reward": reward,
            "terminated": terminated,
            "truncated": trajectories.truncated(steps.rows)[every, last],
            "discount": np.where(terminated, 0.0, gammas.take(taken)),
            "n_steps": taken,
        }


@lru_cache(maxsize=16)
def _powers(gamma: float, count: int) -> np.ndarray:
    """Return gamma to the power of 0 to `count` - 1."""
    powers: np.ndarray = np.float64(gamma) ** np.arange(count)
    powers.flags.writeable = False
    return powers


def steps_from(trajectories: Trajectories, rows: np.ndarray, count: int) -> Steps:
    """Follow each step for up to `count` steps of which each has a known successor.

    A terminated step is the last one, whatever comes after it.
    """
    if count <= MOST_BESIDE:
        found = trajectories.around(rows, range(count))
    else:
        found = along(trajectories, rows, count)
    after, terminated = trajectories.successors(found), trajectories.terminated(found)
    known = after >= 0
    on = known[:, 0]
    taken = on.astype(np.int64)
    for k in range(1, found.shape[1]):
        on = on & known[:, k] & ~terminated[:, k - 1]
        taken += on
    return Steps(found, after, terminated, taken)


def _only(layout: Layout, kept: np.ndarray) -> Layout:
    """Return the layout of some of its steps."""

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
    """Return which steps have as many frames before them as a stack wants and the episode had."""
    had = np.minimum(trajectories.ordinals(rows), stack - 1)
    found: np.ndarray = (trajectories.around(rows, range(1 - stack, 0)) >= 0).sum(1) >= had
    return found


def first_repeated(frames: np.ndarray) -> np.ndarray:
    """Return stacks of rows [B, k] where the first frame stands in for those that are UNKNOWN."""
    if (frames[:, 0] >= 0).all():
        return frames
    first = frames[np.arange(len(frames)), (frames >= 0).argmax(1)]
    return np.where(frames == UNKNOWN, first[:, None], frames)


def stacked_fields(given: tuple[str, ...] | None, fields: Sequence[str]) -> list[str]:
    """Return the fields that are frames: those given, else what the agent sees."""
    if given is not None:
        return _named("stack_fields", given, fields)
    found = [name for name in fields if name.split(".", 1)[0] in OBSERVATIONS]
    if not found:
        raise InvalidValue(
            f"no field to stack: none is called {', '.join(OBSERVATIONS)}; name those that are "
            f"frames with stack_fields=(...), the fields are {', '.join(fields) or 'none yet'}"
        )
    return found


def _named(what: str, given: tuple[str, ...], known: Sequence[str]) -> list[str]:
    """Return the known fields that the names mean, each a field or the head of several."""
    parts = {
        name: [one for one in known if one == name or one.startswith(f"{name}.")] for name in given
    }
    unknown = [name for name, found in parts.items() if not found]
    if unknown:
        raise InvalidValue(
            f"{what} names {', '.join(unknown)}: the fields are {', '.join(known) or 'none yet'}"
        )
    return [one for found in parts.values() for one in found]


def _set_names(unit: Unit, name: str) -> None:
    """Have a tuple of names in a field of a unit that was given any sequence of them."""
    given = getattr(unit, name)
    object.__setattr__(unit, name, None if given is None else checks.names(given, name))
