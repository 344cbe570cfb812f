"""Units that make sequences: stretches of an episode, whole episodes, and groups of rollouts."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from expdb import checks
from expdb.names import UNKNOWN
from expdb.replay.layout import Layout, Trajectories, padded
from expdb.replay.units import Unit


@dataclass(frozen=True)
class Sequence(Unit):
    """`length` consecutive steps of one episode from the drawn one on.

    Up to `burn_in` steps that precede it come first.

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
            object.__setattr__(self, name, checks.whole(getattr(self, name), name, least))
        checks.flag(self.pad, "pad")

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of the unit."""
        return Layout.SEQUENCE_KEYS

    @property
    def window(self) -> range:
        """The burn-in, the drawn step and those after it."""
        return range(-self.burn_in, self.length)

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        return "sequences" if self.pad else f"sequences of {self.burn_in + self.length} steps"

    @property
    def anchor_key(self) -> tuple[Any, ...]:
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
        found: np.ndarray = trajectories.ordinals(rows) % self.stride == 0
        if not self.pad:
            some = np.flatnonzero(found)
            around = trajectories.around(rows[some], self.window)
            found[some] = (around[:, 0] >= 0) & (around[:, -1] >= 0)
        return found

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        return padded(trajectories, trajectories.around(rows, self.window))


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
        _set_max_length(self)
        checks.flag(self.pad, "pad")

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of the unit."""
        return Layout.SEQUENCE_KEYS if self.pad else Layout.SEQUENCE_KEYS[:2]

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("episode",)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn episode becomes."""
        layout = Layout.of_episodes(trajectories, rows, self.max_length)
        layout.ragged = not self.pad
        return layout


@dataclass(frozen=True)
class Group(Unit):
    """The rollouts of one group together.

    They serve group-relative policy gradients (GRPO: Shao et al. 2024, arXiv:2402.03300).

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
        object.__setattr__(self, "size", checks.whole(self.size, "size", 1))
        checks.flag(self.complete, "complete")
        checks.number(self.min_spread, "min_spread", 0)
        _set_max_length(self)

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        rollouts = f"{self.size} complete rollouts" if self.complete else "a complete rollout"
        differ = f" that differ by {self.min_spread:g}" if self.min_spread else ""
        return f"groups of {rollouts} with known returns{differ}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that it looks at."""
        return ("group_id", "task_id", "episode_return")

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of the unit."""
        return (*Layout.SEQUENCE_KEYS, "episode_return", "group_size", "group_mean", "group_std")

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn."""
        return ("group", self.size, self.complete, self.min_spread)

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Put rollouts together; return the first row of each, [G, size]."""
        groups, tasks = (trajectories.of_episodes(name, rows) for name in ("group_id", "task_id"))
        groups = np.where(groups < 0, groups.max(initial=0) + 1 + tasks, groups)
        returns = trajectories.of_episodes("episode_return", rows)
        scored = np.flatnonzero(~np.isnan(returns))
        order = scored[np.argsort(groups[scored], kind="stable")]
        first = np.flatnonzero(np.diff(groups[order], prepend=UNKNOWN - 1))
        counts = np.diff(first, append=len(order))
        skipped = np.maximum(counts - self.size, 0)  # the oldest
        found = np.repeat(first + skipped, self.size).reshape(-1, self.size) + np.arange(self.size)
        there = np.arange(self.size) < (counts - skipped)[:, None]
        members = order[np.where(there, found, 0)]
        scores = np.where(there, returns[members], np.nan)
        chosen = spread(scores, mean(scores)) >= self.min_spread
        if self.complete:
            chosen &= counts >= self.size
        rollouts = np.where(there, rows[members], UNKNOWN)[chosen]
        # Oldest first, as their rows are given by position.
        return rollouts[np.argsort(members[chosen, 0])]

    def count(
        self,
        groups: np.ndarray,
        returns: np.ndarray,
        versions: np.ndarray,
        left: np.ndarray,
        oldest: float,
    ) -> dict[str, int]:
        """Count the groups that can be drawn, and the others by the first reason why not.

        Parameters
        ----------
        groups : ndarray of int64, shape (N,)
            The group of each complete episode, oldest first.
        returns, versions : ndarray of float64, shape (N,)
            Return and oldest policy version of each episode, NaN if unknown.
        left : ndarray of int64, shape (N,)
            How often each episode may still be leased.
        oldest : float
            The lowest policy version that is not too stale; NaN accepts all.

        Returns
        -------
        dict of str to int
            Numbers of groups by `ready`, `leased`, `incomplete`, `no_spread` and `too_stale`.
        """
        counts = dict.fromkeys(("ready", "leased", "incomplete", "no_spread", "too_stale"), 0)
        order = np.argsort(groups, kind="stable")
        borders = np.flatnonzero(np.diff(groups[order])) + 1
        for mine in np.split(order, borders) if len(order) else ():
            scored = mine[~np.isnan(returns[mine])][-self.size :]
            scores = returns[scored][None, :]
            if len(scored) < (self.size if self.complete else 1):
                reason = "incomplete"
            elif spread(scores, mean(scores))[0] < self.min_spread:
                reason = "no_spread"
            elif not (np.isnan(oldest) or (versions[scored] >= oldest).all()):
                reason = "too_stale"
            elif (left[scored] <= 0).any():
                reason = "leased"
            else:
                reason = "ready"
            counts[reason] += 1
        return counts

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn group becomes, [G, size, T]."""
        there = rows >= 0
        returns = trajectories.of_episodes("episode_return", rows)
        layout, means = Layout.of_episodes(trajectories, rows, self.max_length), mean(returns)
        layout.columns |= {
            "episode_return": returns,
            "group_size": there.sum(1),
            "group_mean": means,
            "group_std": spread(returns, means),
        }
        return layout


def mean(returns: np.ndarray) -> np.ndarray:
    """Return the mean of each row of returns, NaN for none left out."""
    found: np.ndarray = np.nansum(returns, 1) / (~np.isnan(returns)).sum(1)
    return found


def spread(returns: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each row of returns; exactly 0 where they are all the same.

    Squares of large returns would overflow, so they are scaled by powers of two.
    """
    apart = returns - means[:, None]
    highest = np.fmax.reduce(returns, 1, initial=-np.inf)
    same = highest == np.fmin.reduce(returns, 1, initial=np.inf)
    _, exponent = np.frexp(np.fmax.reduce(abs(apart), 1, initial=0.0))
    scaled = np.ldexp(apart, -exponent[:, None])
    deviation = np.sqrt(np.nansum(scaled * scaled, 1) / (~np.isnan(returns)).sum(1))
    found: np.ndarray = np.where(same, 0.0, np.ldexp(deviation, exponent))
    return found


def _set_max_length(unit: Episode | Group) -> None:
    if unit.max_length is not None:
        length = checks.whole(unit.max_length, "max_length", 1)
        object.__setattr__(unit, "max_length", length)
