"""Units that make transitions: a step, its frames, and what its episode came to n steps later."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.names import OBSERVATIONS, UNKNOWN
from expdb.replay.layout import Layout, Trajectories, Walk, backward, walk
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
        return Layout(rows, stacks=_stacks(trajectories, rows, rows[:, None], self.k))


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
        if not sound or not 1 <= bounds[0] <= bounds[1]:
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

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        wanted = int(self.anchor_key[1])
        if wanted == 1:
            found: np.ndarray = trajectories.successors(rows) >= 0
        else:
            found = walk(trajectories, rows, wanted).taken >= wanted
        return found if self.stack == 1 else found & _has_frames(trajectories, rows, self.stack)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        layout = self._transitions(trajectories, rows, rng)
        if self.stack > 1:
            rows = layout.rows
            last = rows if layout.last_rows is None else layout.last_rows
            assert layout.next_rows is not None
            layout.stacks = _stacks(trajectories, rows, rows[:, None], self.stack)
            if last is rows:
                layout.next_stacks = np.concatenate(
                    (layout.stacks[:, 1:], layout.next_rows[:, None]), 1
                )
            else:
                layout.next_stacks = _stacks(
                    trajectories, last, np.stack((last, layout.next_rows), 1), self.stack
                )
        return layout

    def _transitions(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        low, high = self.bounds
        if high == 1:
            terminated = trajectories.terminated(rows)
            columns = {key: self.of_one_step(key, terminated) for key in self.keys()}
            return Layout(rows, columns, next_rows=trajectories.successors(rows))
        kept: np.ndarray | None = None
        steps: np.ndarray | int
        if low == high:
            steps = low
        elif self.end == "redraw":
            there = walk(trajectories, rows, high).taken
            steps = rng.integers(low, there, endpoint=True)
        else:
            steps = rng.integers(low, high, len(rows), endpoint=True)
        found = walk(trajectories, rows, steps)
        if self.end == "drop":
            kept = found.taken == steps
            rows, found = rows[kept], found.some(kept)
        columns = self.returns(
            found, trajectories.rewards(found.rows), trajectories.truncated(found.rows)
        )
        last, next_rows = found.last(found.rows), found.last(found.after)
        return Layout(rows, columns, next_rows=next_rows, last_rows=last, kept=kept)

    def returns(
        self, found: Walk, rewards: np.ndarray, truncated: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `keys()`, given the rewards and flags [n, B] of the steps walked."""
        taken, count = found.taken, len(rewards)
        gammas = np.float64(self.gamma) ** np.arange(count + 1)
        counted = np.arange(count)[:, None] < taken
        reward = np.add.reduce(np.where(counted, rewards, 0.0) * gammas[:count, None])
        terminated = found.last(found.terminated)
        return {
            "reward": reward,
            "terminated": terminated,
            "truncated": found.last(truncated),
            "discount": np.where(terminated, 0.0, gammas.take(taken)),
            "n_steps": taken,
        }

    def of_one_step(self, key: str, terminated: np.ndarray) -> np.ndarray:
        """Return one of `keys()` where `n` is 1, given which of the drawn steps terminated."""
        if key == "discount":
            return np.where(terminated, 0.0, self.gamma)
        return np.ones(len(terminated), np.int64)


def _has_frames(trajectories: Trajectories, rows: np.ndarray, stack: int) -> np.ndarray:
    """Return which of the steps have the frames before them.

    That is as many as a stack wants and their episode had.
    """
    had = np.minimum(trajectories.ordinals(rows), stack - 1)
    found: np.ndarray = (backward(trajectories, rows, stack - 1) >= 0).sum(1) >= had
    return found


def _stacks(
    trajectories: Trajectories, rows: np.ndarray, newest: np.ndarray, stack: int
) -> np.ndarray:
    """Return [B, stack] rows.

    They are the newest, and before them those before `rows`, the first one repeated.
    """
    found = np.concatenate(
        (backward(trajectories, rows, max(0, stack - newest.shape[1])), newest), 1
    )[:, -stack:]
    if (found[:, 0] >= 0).all():
        return found
    first = found[np.arange(len(found)), (found >= 0).argmax(1)]
    return np.where(found == UNKNOWN, first[:, None], found)


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
