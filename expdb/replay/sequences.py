"""Units that make sequences: stretches of an episode, whole episodes, and groups of rollouts."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from expdb.errors import InvalidValue
from expdb.replay.layout import UNKNOWN, Layout, Trajectories, backward, forward, padded
from expdb.replay.units import Unit


@dataclass(frozen=True)
class Sequence(Unit):
    """`length` consecutive steps of one episode from the drawn one on.

    After up to `burn_in` steps that precede it.

    Arrays are [B, burn_in + length]: the drawn step is in column `burn_in`, whatever is there
    before it. Where there is no step, before the episode's first one held or after its last one,
    `mask` is False, and the arrays hold zeros (None for objects, -1 for positions). `is_first`
    tells the first step of an episode. `episode` and `length`, the number of steps there, are [B],
    and so are the columns of episodes that `fields` names, `weight` and `probability`.

    Only every `stride`-th step of an episode, from its first one, may be drawn. With `pad=False`
    only steps may be drawn that have all of the others. For prioritized replay give a sequence's
    priority to the step it was drawn by: `batch["position"][:, burn_in]`.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = True

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("burn_in", 0), ("stride", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise InvalidValue(f"{name} is {value!r}: give a whole number from {least}")
            object.__setattr__(self, name, int(value))
        if not isinstance(self.pad, bool):
            raise InvalidValue(f"pad is {self.pad!r}: give True or False")

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        return "sequences"

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        if self.pad:
            return ("stride", self.stride) if self.stride > 1 else ()
        return ("sequence", self.length, self.burn_in, self.stride)

    @property
    def reach(self) -> int | None:
        """How many steps may be drawn or not by what one's successor is."""
        return 1 if self.pad else self.length

    @property
    def lookback(self) -> int:
        """How many steps after one that is gone lack a part of their burn-in."""
        return 0 if self.pad else self.burn_in

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn."""
        found: np.ndarray = trajectories.take(":ordinal", rows) % self.stride == 0
        if not self.pad:
            some = np.flatnonzero(found)
            found[some] &= (forward(trajectories, rows[some], self.length)[:, -1] >= 0) & (
                backward(trajectories, rows[some], self.burn_in)[:, :1] >= 0
            ).all(1)
        return found

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        found = forward(trajectories, rows, self.length)
        if self.burn_in:
            found = np.concatenate((backward(trajectories, rows, self.burn_in), found), 1)
        return padded(trajectories, found)


@dataclass(frozen=True)
class Episode(Unit):
    """The whole episode: complete, with no step evicted or deleted.

    Arrays are [B, T], with `mask` and `is_first`.

    An episode may be drawn where any of its steps matches the query, and is one thing to draw,
    however many match or however long it is; its priority is that of its first step,
    `batch["position"][:, 0]`. T is the length of the longest in the batch. With `max_length` the
    first `max_length` steps of longer ones are taken, and T is `max_length`. With `pad=False` there
    is no mask, and each value is an object array of one array an episode.
    """

    max_length: int | None = None
    pad: bool = True

    by_episode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_length", _max_length(self.max_length))
        if not isinstance(self.pad, bool):
            raise InvalidValue(f"pad is {self.pad!r}: give True or False")

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        return "complete episodes"

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

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        lengths = trajectories.take(":whole", rows).astype(np.int64)
        longest = int(lengths.max(initial=1)) if self.max_length is None else self.max_length
        layout = padded(trajectories, forward(trajectories, rows, longest))
        layout.ragged = not self.pad
        return layout


@dataclass(frozen=True)
class Group(Unit):
    """The rollouts of one group together.

    For group-relative policy gradients (GRPO: Shao et al. 2024, arXiv:2402.03300).

    A group is the complete episodes of one `group_id`, or of one task where they have none, whose
    return is known: until the first reward of a rollout is written, it does not count. A group has
    `size` rollouts, the newest where there are more. With a query only rollouts count of which a
    step matches. Without `complete` a group may have fewer rollouts. Groups are skipped whose
    returns have a standard deviation below `min_spread`: with a small number, such as 1e-6, those
    that have nothing to tell, as all of their returns are the same.

    Arrays of steps are [G, size, T], `mask` is True where there is a step, T is the length of the
    longest rollout in the batch, or `max_length`: then longer ones are cut after their first
    `max_length` steps. `episode`, `length` (0 where there is no rollout), `episode_return` (NaN
    there) and the columns of episodes that `fields` names are [G, size]; `group_size`, `group_mean`
    and `group_std` (population, over the rollouts in the batch) are [G], as are `weight` and
    `probability`. A group is one thing to draw; its priority is that of the first step of its first
    rollout, `batch["position"][:, 0, 0]`.

    >>> batch = buffer.sample(8, unit=expdb.Group(4, min_spread=1e-6))  # doctest: +SKIP
    >>> centred = batch["episode_return"] - batch["group_mean"][:, None]  # doctest: +SKIP
    >>> advantage = centred / batch["group_std"][:, None]  # doctest: +SKIP
    """

    size: int
    complete: bool = True
    min_spread: float = 0.0
    max_length: int | None = None

    by_episode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (
            isinstance(self.size, bool)
            or not isinstance(self.size, (int, np.integer))
            or self.size < 1
        ):
            raise InvalidValue(f"size is {self.size!r}: give a number of rollouts from 1")
        object.__setattr__(self, "size", int(self.size))
        if not isinstance(self.complete, bool):
            raise InvalidValue(f"complete is {self.complete!r}: give True or False")
        spread = self.min_spread
        if (
            isinstance(spread, bool)
            or not isinstance(spread, (int, float, np.floating))
            or not 0.0 <= spread < math.inf
        ):
            raise InvalidValue(f"min_spread is {spread!r}: give a standard deviation from 0")
        object.__setattr__(self, "max_length", _max_length(self.max_length))

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        rollouts = f"{self.size} complete rollouts" if self.complete else "a complete rollout"
        return f"groups of {rollouts} with known returns" + (
            f" that differ by {self.min_spread:g}" if self.min_spread else ""
        )

    @property
    def anchor(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("group", self.size, self.complete, self.min_spread)

    @property
    def reach(self) -> int | None:
        """Unknown: a group may be drawn or not by what any of its rollouts is."""
        return None

    def gather(self, groups: np.ndarray, starts: np.ndarray, returns: np.ndarray) -> Rollouts:
        """Put rollouts together, given the group.

        The first step (ascending) and the return of each.
        """
        scored = np.flatnonzero(~np.isnan(returns))
        order = scored[np.argsort(groups[scored], kind="stable")]
        first = np.flatnonzero(np.diff(groups[order], prepend=UNKNOWN - 1))
        counts = np.diff(first, append=len(order))
        skipped = np.maximum(counts - self.size, 0)  # the oldest
        found = np.repeat(first + skipped, self.size).reshape(-1, self.size) + np.arange(self.size)
        there = np.arange(self.size) < (counts - skipped)[:, None]
        members = order[np.where(there, found, 0)]
        rollouts = Rollouts(
            np.where(there, starts[members], UNKNOWN), np.where(there, returns[members], np.nan)
        )
        good = rollouts.std >= self.min_spread
        if self.complete:
            good &= counts >= self.size
        chosen = np.flatnonzero(good)
        return rollouts.of(chosen[np.argsort(rollouts.starts[chosen, 0])])

    def together(self, trajectories: Trajectories, rollouts: Rollouts) -> Layout:
        """Return the layout of groups, of which `starts` are rows."""
        rows = rollouts.starts
        there = rows >= 0
        lengths = np.where(
            there, trajectories.take(":whole", np.where(there, rows, trajectories.zero)), 0
        )
        longest = int(lengths.max(initial=1)) if self.max_length is None else self.max_length
        found = np.full((*rows.shape, longest), UNKNOWN)
        found[there] = forward(trajectories, rows[there], longest)
        layout = padded(trajectories, found)
        layout.firsts = rows
        layout.columns |= {
            "episode_return": rollouts.returns, "group_size": rollouts.sizes,
            "group_mean": rollouts.mean, "group_std": rollouts.std,
        }  # fmt: skip
        return layout


@dataclass(frozen=True)
class Rollouts:
    """Groups of rollouts: the first step and the return of each [G, size].

    UNKNOWN and NaN where there is none.
    """

    starts: np.ndarray
    returns: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.starts.nbytes + self.returns.nbytes

    @property
    def sizes(self) -> np.ndarray:
        """The number of rollouts of each group."""
        found: np.ndarray = (self.starts >= 0).sum(1)
        return found

    @property
    def mean(self) -> np.ndarray:
        """The mean return of each group."""
        found: np.ndarray = np.nansum(self.returns, 1) / self.sizes
        return found

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of the returns of each group.

        Exactly 0 where they are all the same.
        """
        apart = self.returns - self.mean[:, None]
        same = np.fmax.reduce(self.returns, 1, initial=-np.inf) == np.fmin.reduce(
            self.returns, 1, initial=np.inf
        )
        _, exponent = np.frexp(
            np.fmax.reduce(abs(apart), 1, initial=0.0)
        )  # squares of large returns would overflow
        scaled = np.ldexp(apart, -exponent[:, None])
        found: np.ndarray = np.where(
            same, 0.0, np.ldexp(np.sqrt(np.nansum(scaled * scaled, 1) / self.sizes), exponent)
        )
        return found

    def of(self, index: np.ndarray) -> Rollouts:
        """Return some of the groups, in the order asked."""
        return Rollouts(self.starts[index], self.returns[index])


def _max_length(value: Any) -> int | None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1
    ):
        raise InvalidValue(f"max_length is {value!r}: give a number of steps from 1, or None")
    return None if value is None else int(value)
