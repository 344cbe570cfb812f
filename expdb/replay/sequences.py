"""Units for sequences: parts of episodes, whole episodes, and groups of rollouts."""

from __future__ import annotations  # evaluating `np.random` would import that module

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue
from expdb.names import RELATIONS, ROLLOUT_RELATIONS, UNKNOWN
from expdb.replay.layout import Layout, Trajectories, padded
from expdb.replay.units import Unit

LINEAGE = "parent_position", "parent_step"  # columns that locate the shared steps of forks


@dataclass(frozen=True)
class Sequence(Unit):
    """Return `length` consecutive steps of one episode, from the drawn step on.

    Up to `burn_in` earlier steps precede them, for example to warm up a recurrent network. Arrays
    are [B, burn_in + length], and the drawn step is always in column `burn_in`. Where the episode
    has no step in the buffer, `mask` is False, and the arrays hold zeros (None in object arrays, -1
    in `position`).

    A batch gets the keys `mask`, `is_first` (True at the first step of an episode) and `length`,
    the number of steps in each sequence. `length`, `episode`, the columns of episodes that
    `fields` names, `weight` and `probability` have the shape [B].

    For prioritized replay, set the priority of the drawn steps, ``batch["position"][:, burn_in]``.

    Parameters
    ----------
    length : int
        Number of steps from the drawn step on, at least 1.
    burn_in : int, default 0
        Number of steps before the drawn step, at least 0.
    stride : int, default 1
        Draw only every `stride`-th step of an episode, counted from its first step. At least 1.
    pad : bool, default True
        Whether sequences may be incomplete. If False, a step is drawn only if all other steps of
        its sequence are in the buffer.
    gaps : {"end", "join"}, default "end"
        Treatment of missing step numbers of an agent. With ``"end"``, the trajectory ends before
        the gap, a new one begins after it, and expdb warns at the first gap. With ``"join"``, the
        steps on both sides of the gap are neighbours; use it if you skip numbers on purpose, as
        with frame skip.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    References
    ----------
    Kapturowski et al. (2019), *Recurrent Experience Replay in Distributed Reinforcement Learning*
    (burn-in).

    Examples
    --------
    >>> batch = buffer.sample(8, unit=expdb.Sequence(80, burn_in=40))  # doctest: +SKIP
    >>> batch["obs"].shape  # doctest: +SKIP
    (8, 120, 4)
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = True
    gaps: Literal["end", "join"] = "end"

    checks_results: ClassVar[bool] = False
    fills_with_zeros: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.choice(self.gaps, "gaps", "end", "join")
        for name, least in (("length", 1), ("burn_in", 0), ("stride", 1)):
            object.__setattr__(self, name, checks.whole(getattr(self, name), name, least))
        checks.flag(self.pad, "pad")

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The names in `Layout.SEQUENCE_KEYS`.
        """
        return Layout.SEQUENCE_KEYS

    @property
    def window(self) -> range:
        """The offsets of the burn-in, the drawn step and the steps after it, a range."""
        return range(-self.burn_in, self.length)

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        return "sequences" if self.pad else f"sequences of {self.burn_in + self.length} steps"

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which steps may be drawn, a tuple."""
        if self.pad:
            return ("stride", self.stride) if self.stride > 1 else ()
        return ("sequence", self.length, self.burn_in, self.stride)

    @property
    def reach(self) -> int | None:
        """The number of steps that a change of one step's successor affects, an int."""
        return 1 if self.pad else self.length

    @property
    def lookback(self) -> int:
        """The number of steps after a missing step that lack a part of their burn-in, an int."""
        return 0 if self.pad else self.burn_in

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
            True for every `stride`-th step of an episode; with ``pad=False``, only if all other
            steps of the sequence are in the buffer.
        """
        is_start: np.ndarray = trajectories.ordinals(rows) % self.stride == 0
        if not self.pad:
            starts = np.flatnonzero(is_start)
            around = trajectories.around(rows[starts], self.window)
            is_start[starts] = (around[:, 0] >= 0) & (around[:, -1] >= 0)
        return is_start

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the sequence of each drawn step.

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
            Rows of shape (B, burn_in + length) with a mask.
        """
        return padded(trajectories, trajectories.around(rows, self.window))


@dataclass(frozen=True)
class Episode(Unit):
    """Return whole complete episodes.

    An episode may be drawn if it is complete, none of its steps was evicted or deleted, and at
    least one of them matches the query. An episode counts as one item, however long it is and
    however many of its steps match. Its priority is the priority of its first step,
    ``batch["position"][:, 0]``.

    Arrays are [B, T], where T is the length of the longest episode in the batch. A batch gets the
    keys `mask` (True where there is a step), `is_first` (True at the first step of an episode) and
    `length`, the number of steps in each episode.

    Parameters
    ----------
    max_length : int, optional
        Length T of the arrays, at least 1; only the first steps of longer episodes are taken.
    pad : bool, default True
        Whether the arrays are padded to T. If False, the batch has no `mask`, and each array of
        steps becomes an object array with one array per episode.
    lineage : bool, default False
        Whether forks and retries are read from the root: the steps that they share with their
        parents come before their own steps. If a shared step was evicted or deleted, the episode is
        then not drawn. The batch has the key `shared_steps`, the number of shared steps. The
        priority of item k is that of its first own step, at the position
        ``batch["position"][k, batch["shared_steps"][k]]``. By default, only the own steps of each
        episode are read.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    Examples
    --------
    >>> batch = buffer.sample(8, unit=expdb.Episode())  # doctest: +SKIP
    >>> steps = batch["obs"][batch["mask"]]  # doctest: +SKIP
    """

    max_length: int | None = None
    pad: bool = True
    lineage: bool = False

    checks_results: ClassVar[bool] = False
    by_episode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _set_max_length(self)
        checks.flag(self.pad, "pad")
        checks.flag(self.lineage, "lineage")

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        shared = " whose shared steps are all stored" if self.lineage else ""
        return f"complete episodes{shared}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit reads, a tuple of str."""
        return LINEAGE if self.lineage else ()

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The names `is_first`, `length` and, if the arrays are padded, `mask`.
        """
        keys = Layout.SEQUENCE_KEYS if self.pad else Layout.SEQUENCE_KEYS[:2]
        return (*keys, "shared_steps") if self.lineage else keys

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which steps may be drawn, a tuple."""
        return ("episode", self.lineage)

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the episodes that may be drawn.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of the first steps of complete episodes with a matching step, ascending by
            position.

        Returns
        -------
        ndarray of int64, shape (A,)
            Rows of the first own steps of the episodes.
        """
        return rows[trajectories.have_whole_lineage(rows)] if self.lineage else rows

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the steps of each drawn episode.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (B,)
            Rows of the first steps of the drawn episodes.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        Layout
            Rows of shape (B, T) with a mask.
        """
        layout = Layout.of_episodes(trajectories, rows, self.max_length)
        if self.lineage:
            layout = layout.from_root(trajectories, self.max_length)
        layout.ragged = not self.pad
        return layout


@dataclass(frozen=True)
class Group(Unit):
    """Return the rollouts of one group together, for group-relative policy gradients such as GRPO.

    The rollouts of a group are the complete episodes with the same `group_id`. Episodes without a
    group are grouped by `task_id`. An episode counts only if one of its steps matches the query
    and its return is known. The return is known once the first reward of the episode was written.
    With `score`, the score of the last step of an episode takes the place of its return; see
    `ReplayBuffer.score`.
    A group has `size` rollouts; if there are more, the newest are taken. A group counts as one
    item. Its priority is the priority of the first step of its first rollout,
    ``batch["position"][:, 0, 0]``.

    A batch has G groups. Arrays of steps are [G, size, T], where T is the length of the longest
    rollout in the batch, and `mask` is True where there is a step. `episode`, `length` (0 for a
    missing rollout), `episode_return` (NaN for a missing rollout) and the columns of episodes that
    `fields` names are [G, size]. `group_size`, `group_mean` and `group_std` (the population
    standard deviation) are computed from the returns in the batch. These three arrays are [G],
    like `weight` and `probability`. With `score`, the batch also has `episode_score` [G, size], and
    the mean and the standard deviation are those of the scores.

    Parameters
    ----------
    size : int
        Number of rollouts of a group, at least 1.
    complete : bool, default True
        Whether groups with fewer than `size` rollouts are skipped.
    min_spread : float, default 0.0
        Skip groups whose returns have a standard deviation below this number. A small number, such
        as 1e-6, skips groups whose returns are all equal; such groups have no learning signal.
    max_length : int, optional
        Length T of the arrays, at least 1; only the first steps of longer rollouts are taken.
    max_spread : float, optional
        Skip groups whose returns have a standard deviation above this number.
    score : str or mapping of str to float, optional
        Name of a score, or the weight of each score in a sum, such as
        ``{"judge": 0.7, "format": 0.3}``.
    missing : {"drop", "wait", "ignore"} or float, default "drop"
        Treatment of a rollout that lacks a score. ``"drop"`` leaves out the rollout, and ``"wait"``
        waits for the score. With ``"ignore"``, the value of a rollout is the weighted mean of its
        known scores, and the weights must be greater than 0; a rollout without known scores is left
        out. A number replaces each missing
        score in the weighted sum. Only ``"wait"`` or a `deadline` delays the group of the rollout.
    deadline : float, optional
        Seconds after the end of a rollout during which its group waits for a missing score.
        Afterwards, ``"wait"`` leaves the rollout out. By default 0, or without limit for
        ``"wait"``. A group does not wait for a score that a judge has recorded as a failure.
    of : tuple of str, default ("root", "fork", "retry")
        Relations of the episodes that count as rollouts of the group. ``"root"`` stands for
        episodes without a parent.
    lineage : bool, default False
        Whether forks and retries are read from the root: the steps that they share with their
        parents come before their own steps. If a shared step was evicted or deleted, the rollout
        then does not count. Returns include the rewards of the shared steps. The batch has the key
        `shared_steps`, the number of shared steps. By default, only the own steps of each episode
        are read.
    children : bool, default False
        Whether an item also contains the other descendants of its rollouts, such as sub-agents,
        after the rollouts. Only complete episodes with a matching step are included. They do not
        count towards `size`, the mean and the standard deviation. The batch has the key
        `group_member` [G, n], the index of the rollout that an episode belongs to; -1 for a missing
        episode. With `Tokens`, the rows of these episodes get the advantage of their rollout. If
        their own reward is unknown, they also get the reward of their rollout.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    References
    ----------
    Shao et al. (2024), *DeepSeekMath*, arXiv:2402.03300 (GRPO).

    Examples
    --------
    >>> batch = buffer.sample(8, unit=expdb.Group(4, min_spread=1e-6))  # doctest: +SKIP
    >>> centred = batch["episode_return"] - batch["group_mean"][:, None]  # doctest: +SKIP
    >>> advantage = centred / batch["group_std"][:, None]  # doctest: +SKIP
    """

    size: int
    complete: bool = True
    min_spread: float = 0.0
    max_length: int | None = None
    max_spread: float | None = None
    score: str | Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    missing: Literal["drop", "wait", "ignore"] | float = "drop"
    deadline: float | None = None
    of: tuple[str, ...] = ROLLOUT_RELATIONS
    lineage: bool = False
    children: bool = False

    checks_results: ClassVar[bool] = False
    by_episode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checks.whole(self.size, "size", 1))
        set_relations(self)
        checks.flag(self.lineage, "lineage")
        checks.flag(self.children, "children")
        checks.flag(self.complete, "complete")
        checks.number(self.min_spread, "min_spread", 0)
        _set_max_length(self)
        if self.max_spread is not None and (
            checks.number(self.max_spread, "max_spread") < self.min_spread
        ):
            raise InvalidValue(
                f"max_spread must be at least min_spread, got {self.max_spread} for "
                f"min_spread={self.min_spread}"
            )
        if self.score is not None:
            object.__setattr__(self, "score", _weights(self.score))
        elif self.missing != "drop" or self.deadline is not None:
            raise InvalidValue(
                "missing and deadline of a Group apply to scores; also pass score, such as 'judge'"
            )
        if self.missing is None or isinstance(self.missing, str):
            if self.missing not in ("drop", "wait", "ignore"):
                raise InvalidValue(
                    f"missing must be 'drop', 'wait', 'ignore' or a number, got {self.missing!r}"
                )
            weights: Any = self.score or ()
            if self.missing == "ignore" and any(weight <= 0 for _, weight in weights):
                raise InvalidValue(
                    "missing='ignore' divides by the weights of scores, so they must be greater "
                    f"than 0, got score={dict(weights)}"
                )
        else:
            object.__setattr__(self, "missing", checks.number(self.missing, "missing"))
        if self.deadline is not None:
            object.__setattr__(self, "deadline", checks.number(self.deadline, "deadline", 0))

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        rollouts = f"{self.size} complete rollouts" if self.complete else "a complete rollout"
        differ = f" that differ by {self.min_spread:g}" if self.min_spread else ""
        if self.score is not None:
            scores = f"the score{'s' * (len(self._names) > 1)} {', '.join(self._names)}"
            waits = self.missing == "wait" or self.deadline
            waiting = " and no missing score" if waits else ""
            return f"groups of {rollouts} with {scores}{waiting}{differ}"
        return f"groups of {rollouts} with known returns{differ}"

    @property
    def _names(self) -> tuple[str, ...]:
        weights: Any = self.score
        return tuple(name for name, _ in weights)

    @property
    def uses_time(self) -> bool:
        """Whether a group may be drawn after a `deadline`, a bool."""
        return bool(self.deadline)

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit reads, a tuple of str."""
        names: tuple[str, ...] = ("group_id", "task_id", "episode_return", "relation")
        if self.lineage:
            names = (*names, *LINEAGE)
        if self.children:
            names = (*names, "parent_episode")
        if self.score is None:
            return names
        return (*names, "ended", *[f"scores.{name}" for name in self._names])

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The names in `Layout.SEQUENCE_KEYS`, `episode_return`, `group_size`, `group_mean` and
            `group_std`, and with `score` also `episode_score`.
        """
        keys = (*Layout.SEQUENCE_KEYS, "episode_return", "group_size", "group_mean", "group_std")
        keys = (*keys, "shared_steps") if self.lineage else keys
        keys = (*keys, "group_member") if self.children else keys
        return keys if self.score is None else (*keys, "episode_score")

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which groups may be drawn, a tuple."""
        key = ("group", self.size, self.complete, self.min_spread)
        others = self.max_spread, self.score, self.missing, self.deadline
        branching = self.of, self.lineage, self.children
        if (*others, *branching) == (None, None, "drop", None, ROLLOUT_RELATIONS, False, False):
            return key
        return (*key, *others, *branching)

    def _has_spread(self, scores: np.ndarray) -> np.ndarray:
        if not self.min_spread and self.max_spread is None:
            return np.ones(len(scores), np.bool_)
        spreads = spread(scores, mean(scores))
        most = np.inf if self.max_spread is None else self.max_spread
        has_spread: np.ndarray = (spreads >= self.min_spread) & (spreads <= most)
        return has_spread

    def values(
        self, read: Callable[[str], np.ndarray], now: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each rollout that the group compares, and which rollouts must wait.

        Parameters
        ----------
        read : callable
            Function that returns a column of the episodes as float64, such as ``"episode_return"``
            or ``"scores.judge"``; see `Unit.reads`.
        now : float
            The time in Unix seconds.

        Returns
        -------
        values : ndarray of float64
            The sum of the weighted scores, or the return; NaN if it is unknown.
        waiting : ndarray of bool
            Whether a rollout lacks a score that may still arrive.

        Raises
        ------
        InvalidValue
            If the weighted sum of the scores is too large for a float.
        """
        if self.score is None:
            returns = read("episode_return")
            return returns, np.zeros(returns.shape, np.bool_)
        weights: Any = self.score
        scores = np.stack([read(f"scores.{name}") for name, _ in weights])
        failed = np.isneginf(scores)
        is_due = np.isnan(scores)  # no judge has recorded a score or a failure
        number = np.nan if isinstance(self.missing, str) else self.missing
        scores = np.where(is_due | failed, number, scores)
        factors = np.array([weight for _, weight in weights]).reshape(-1, *[1] * (scores.ndim - 1))
        is_known = ~np.isnan(scores)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            values = (scores * factors).sum(0)
            if self.missing == "ignore":
                values = (scores * factors).sum(0, where=is_known) / (factors * is_known).sum(0)
        if not np.isfinite(values[is_known.all(0)]).all():
            raise InvalidValue(
                f"the weighted sum of the scores {', '.join(self._names)} of a rollout is too "
                "large for a float; use smaller weights in score="
            )
        if self.missing != "wait" and not self.deadline:
            return values, np.zeros(values.shape, np.bool_)
        seconds = np.inf if self.deadline is None else self.deadline
        waiting = is_due.any(0) & (now < read("ended") + seconds)
        if self.missing in ("drop", "wait"):  # a rollout with a failure is left out in any case
            waiting &= ~failed.any(0)
        return values, waiting

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the groups that may be drawn, oldest first.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of the first steps of complete episodes with a matching step, ascending by
            position.

        Returns
        -------
        ndarray of int64, shape (G, size) or (G, n)
            Rows of the first steps of the rollouts, -1 for each missing rollout. With `children`,
            the rows of their descendants follow.
        """
        all_rows, rows = rows, select_rollouts(trajectories, rows, self)
        groups, tasks = (trajectories.of_episodes(name, rows) for name in ("group_id", "task_id"))
        groups = np.where(groups < 0, groups.max(initial=0) + 1 + tasks, groups)
        read = episode_reader(trajectories, rows, self.lineage)
        returns, waiting = self.values(read, time.time())
        if waiting.any():
            ready = ~np.isin(groups, groups[waiting])
            rows, groups, returns = rows[ready], groups[ready], returns[ready]
        members, there, counts = self._newest(groups, returns)
        scores = np.where(there, returns[members], np.nan)
        chosen = self._has_spread(scores)
        if self.complete:
            chosen &= counts >= self.size
        rollouts: np.ndarray = np.where(there, rows[members], UNKNOWN)[chosen]
        # This order is oldest first, because `rows` ascend by position.
        in_order: np.ndarray = rollouts[np.argsort(members[chosen, 0])]
        if not self.children:
            return in_order
        return _append_children(trajectories, in_order, all_rows, self.of)

    def _newest(
        self, groups: np.ndarray, returns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Select the newest rollouts with a known return in each group.

        Return the indices [G, size] of the rollouts, a bool mask of the entries that are rollouts,
        and the number of rollouts with a known return in each group. Groups without such rollouts
        are omitted.
        """
        known = np.flatnonzero(~np.isnan(returns))
        order = known[np.argsort(groups[known], kind="stable")]
        first = np.flatnonzero(np.diff(groups[order], prepend=UNKNOWN - 1))
        counts = np.diff(first, append=len(order))
        skipped = np.maximum(counts - self.size, 0)  # number of oldest rollouts to leave out
        index = np.repeat(first + skipped, self.size).reshape(-1, self.size) + np.arange(self.size)
        there = np.arange(self.size) < (counts - skipped)[:, None]
        members = order[np.where(there, index, 0)] if len(order) else index
        return members, there, counts

    def count(
        self,
        groups: np.ndarray,
        returns: np.ndarray,
        versions: np.ndarray,
        left: np.ndarray,
        oldest: float,
        waiting: np.ndarray | None = None,
    ) -> dict[str, int]:
        """Count the groups that can be drawn, and the other groups by the first obstacle found.

        Parameters
        ----------
        groups : ndarray of int64, shape (N,)
            The group of each complete episode, oldest first.
        returns, versions : ndarray of float64, shape (N,)
            Return, or score, and oldest policy version of each episode, NaN if unknown.
        left : ndarray of int64, shape (N,)
            How often each episode may still be leased.
        oldest : float
            The lowest policy version that is not too stale; NaN accepts all.
        waiting : ndarray of bool, shape (N,), optional
            Whether an episode waits for a score.

        Returns
        -------
        dict of str to int
            Number of groups for each of `ready`, `leased`, `incomplete`, `no_spread` and
            `too_stale`, and with `score` also `waiting`.
        """
        names = ("ready", "leased", "incomplete", "no_spread", "too_stale")
        members, there, scored = self._newest(groups, returns)
        scores = np.where(there, returns[members], np.nan)
        codes, others = groups[members[:, 0]], np.unique(groups)
        others = others[~np.isin(others, codes)]  # groups without a known return
        late = groups[:0] if waiting is None else groups[waiting]
        is_stale = ~np.isnan(oldest) & (there & ~(versions[members] >= oldest)).any(1)
        obstacles = {
            "waiting": np.isin(codes, late),
            "incomplete": scored < (self.size if self.complete else 1),
            "no_spread": ~self._has_spread(scores),
            "too_stale": is_stale,
            "leased": (there & (left[members] <= 0)).any(1),
        }
        counts = dict.fromkeys(names if self.score is None else (*names, "waiting"), 0)
        is_free = np.ones(len(codes), np.bool_)
        for name, is_hit in obstacles.items():
            counts[name] = int((is_free & is_hit).sum()) + counts.get(name, 0)
            is_free &= ~is_hit
        counts["ready"] = int(is_free.sum())
        count_late = int(np.isin(others, late).sum())
        counts["incomplete"] += len(others) - count_late
        counts["waiting"] += count_late
        if self.score is None:
            del counts["waiting"]
        return counts

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rollouts of each drawn group.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (G, size)
            Rows of the first steps of the rollouts, -1 for no rollout.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        Layout
            Rows of shape (G, size, T) with a mask, and the columns of the groups.
        """
        there, read = rows[:, : self.size] >= 0, episode_reader(trajectories, rows, self.lineage)
        returns = all_values = read("episode_return")
        if self.score is not None:
            all_values, _ = self.values(read, 0.0)
            all_values = np.where(rows >= 0, all_values, np.nan)
        values = all_values[:, : self.size]
        layout, means = Layout.of_episodes(trajectories, rows, self.max_length), mean(values)
        if self.lineage:
            layout = layout.from_root(trajectories, self.max_length)
        layout.columns |= {
            "episode_return": returns,
            "group_size": there.sum(1),
            "group_mean": means,
            "group_std": spread(values, means),
        }
        if self.score is not None:
            layout.columns["episode_score"] = all_values
        if self.children:
            layout.columns["group_member"] = _find_members(trajectories, rows, self.size)
        return layout


def _inherit(trajectories: Trajectories, rows: np.ndarray, indices: dict[int, int]) -> list[int]:
    """Return the entry of each episode in `indices`, or else that of its nearest parent.

    Also add these entries to `indices`. The entry is UNKNOWN if no parent has one.
    """
    inherited = []
    for episode in trajectories.episodes(rows).tolist():
        path = [episode]
        while path[-1] not in indices and path[-1] != UNKNOWN:
            path.append(trajectories.parent_of(path[-1]))
        index = indices.get(path[-1], UNKNOWN)
        indices |= dict.fromkeys(path, index)
        inherited.append(index)
    return inherited


def _append_children(
    trajectories: Trajectories, rollouts: np.ndarray, rows: np.ndarray, relations: tuple[str, ...]
) -> np.ndarray:
    """Return groups [G, n]: their rollouts, and the episodes among `rows` that descend from these.

    Episodes with a relation in `relations` are left out, because they are rollouts.
    """
    there = rollouts >= 0
    groups = np.broadcast_to(np.arange(len(rollouts))[:, None], rollouts.shape)
    episodes = trajectories.episodes(rollouts[there]).tolist()
    group_of = dict(zip(episodes, groups[there].tolist(), strict=True))
    candidates = rows[trajectories.of_episodes("parent_episode", rows) >= 0]
    names = trajectories.texts_of_episodes("relation", candidates)
    candidates = candidates[[name not in relations for name in names]]
    of_groups: list[list[int]] = [[] for _ in rollouts]
    groups_of_candidates = _inherit(trajectories, candidates, group_of)
    for row, group in zip(candidates.tolist(), groups_of_candidates, strict=True):
        if group != UNKNOWN:
            of_groups[group].append(row)
    children = np.full((len(rollouts), max(map(len, of_groups), default=0)), UNKNOWN)
    for group, child_rows in enumerate(of_groups):
        children[group, : len(child_rows)] = child_rows
    return np.concatenate((rollouts, children), 1)


def _find_members(trajectories: Trajectories, rows: np.ndarray, size: int) -> np.ndarray:
    """Return the index of the rollout that each episode of a group [G, n] belongs to."""
    members = np.full(rows.shape, UNKNOWN)
    for group, group_rows in enumerate(rows):
        there = np.flatnonzero(group_rows >= 0)
        rollouts = there[there < size]
        episodes = trajectories.episodes(group_rows[rollouts]).tolist()
        member_of = dict(zip(episodes, rollouts.tolist(), strict=True))
        members[group, there] = _inherit(trajectories, group_rows[there], member_of)
    return members


def set_relations(unit: Any) -> None:
    """Check the setting `of` of a unit, and convert it to a tuple."""
    names = (unit.of,) if isinstance(unit.of, str) else unit.of
    if not isinstance(names, (tuple, list, set, frozenset)) or not names:
        raise InvalidValue(f"of must be a tuple such as ('root', 'fork'), got {names!r}")
    for name in names:
        checks.choice(name, "of", "root", *RELATIONS)
    kinds = ("root", *RELATIONS)
    object.__setattr__(unit, "of", tuple(kind for kind in kinds if kind in names))


def select_rollouts(trajectories: Trajectories, rows: np.ndarray, unit: Any) -> np.ndarray:
    """Return the rows of the episodes that count as rollouts of a group or a pair."""
    is_child = trajectories.of_episodes("relation", rows) != UNKNOWN
    is_member = np.full(len(rows), "root" in unit.of)
    if is_child.any():
        names = trajectories.texts_of_episodes("relation", rows[is_child])
        is_member[is_child] = [name in unit.of for name in names]
    rows = rows[is_member]
    return rows[trajectories.have_whole_lineage(rows)] if unit.lineage else rows


def episode_reader(
    trajectories: Trajectories, rows: np.ndarray, lineage: bool
) -> Callable[[str], np.ndarray]:
    """Return a function that reads a column of the episodes of `rows`.

    A row of -1 stands for no episode. With `lineage`, returns include the rewards of shared steps.
    """

    def read(name: str) -> np.ndarray:
        values = trajectories.of_episodes(name, rows)
        if name == "episode_return" and lineage:
            is_fork = rows >= 0
            is_fork[is_fork] = trajectories.ordinals(rows[is_fork]) > 0
            if is_fork.any():
                shared_rows = trajectories.shared_steps(rows[is_fork])
                shared = [_sum_known(trajectories.rewards(steps)) for steps in shared_rows]
                own, values = values[is_fork], values.copy()
                values[is_fork] = [
                    total if np.isnan(value) else value + np.nan_to_num(total)
                    for value, total in zip(own.tolist(), shared, strict=True)
                ]
        return values

    return read


def _sum_known(rewards: np.ndarray) -> float:
    """Return the sum of the known rewards; NaN if none is known."""
    known = rewards[~np.isnan(rewards)]
    return float(known.sum()) if len(known) else np.nan


def _weights(score: Any) -> tuple[tuple[str, float], ...]:
    """Return the names and weights of scores."""
    pairs = {score: 1.0} if isinstance(score, str) else score
    try:
        weights = dict(pairs)
    except (TypeError, ValueError):
        weights = {}
    if not weights:
        raise InvalidValue(
            f"score must be a name such as 'judge', or a mapping of names to weights, got {score!r}"
        )
    return tuple(
        (checks.score_name(name), checks.number(weight, f"the weight of the score {name!r}"))
        for name, weight in weights.items()
    )


def mean(returns: np.ndarray) -> np.ndarray:
    """Return the mean of each row of returns, ignoring NaN."""
    means: np.ndarray = np.nansum(returns, 1) / (~np.isnan(returns)).sum(1)
    return means


def spread(returns: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each row of returns, ignoring NaN.

    The result is exactly 0 if all returns in the row are equal. Deviations from the mean are
    scaled by powers of two before they are squared; otherwise, large deviations would overflow.
    """
    apart = returns - means[:, None]
    highest = np.fmax.reduce(returns, 1, initial=-np.inf)
    same = highest == np.fmin.reduce(returns, 1, initial=np.inf)
    _, exponent = np.frexp(np.fmax.reduce(abs(apart), 1, initial=0.0))
    scaled = np.ldexp(apart, -exponent[:, None])
    deviation = np.sqrt(np.nansum(scaled * scaled, 1) / (~np.isnan(returns)).sum(1))
    spreads: np.ndarray = np.where(same, 0.0, np.ldexp(deviation, exponent))
    return spreads


def _set_max_length(unit: Episode | Group) -> None:
    if unit.max_length is not None:
        length = checks.whole(unit.max_length, "max_length", 1)
        object.__setattr__(unit, "max_length", length)
