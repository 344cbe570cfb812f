"""Preference pairs: a better and a worse rollout of one prompt."""

from __future__ import annotations  # evaluating `np.random` would import that module

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from expdb import checks
from expdb.names import ROLLOUT_RELATIONS, UNKNOWN
from expdb.replay.layout import Layout, Trajectories
from expdb.replay.sequences import Group, episode_reader, select_rollouts
from expdb.replay.units import Unit


@dataclass(frozen=True)
class Pairs(Unit):
    """Return pairs of rollouts of one group or task, the better one first.

    Use it for direct preference optimization (DPO) and for reward models. The rollouts are complete
    episodes with at least one matching step and a known return, or a score if `score` is passed.
    Within a group, the best rollout is paired with the worst one, the second best with the second
    worst, and so on, if their values differ by more than 0 and by at least `margin`. So a rollout
    belongs to at most one pair. A pair counts as one item. Its priority is the priority of the
    first step of the better rollout, ``batch["position"][:, 0, 0]``.

    Arrays of steps are [P, 2, T]: index 0 is the better rollout, the chosen one, and index 1 the
    rejected one. T is `max_length` or, by default, the length of the longest rollout in the batch;
    `mask` is True where there is a step. `episode`, `length`, `episode_return` and the columns of
    episodes that `fields` names are [P, 2], and with `score` also `episode_score`. `margin` [P] is
    the difference of the values.

    Parameters
    ----------
    score : str or mapping of str to float, optional
        Name of a score, or the weight of each score in a sum; see `Group`. By default, the returns
        are compared.
    margin : float, default 0.0
        Smallest difference of the values of a pair, at least 0.
    per : {"group", "task"}, default "group"
        Whether the rollouts of a pair have the same `group_id`, or the same `task_id`. With
        ``"group"``, episodes without a group are grouped by `task_id`.
    max_length : int, optional
        Length T of the arrays, at least 1. Longer rollouts are cut, and shorter ones are padded.
    of : tuple of str, default ("root", "fork", "retry")
        Relations of the episodes that count as rollouts, as in `Group`.
    lineage : bool, default False
        Whether forks and retries are read from the root, as in `Group`.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    References
    ----------
    Rafailov et al. (2023), *Direct Preference Optimization*, arXiv:2305.18290.

    Examples
    --------
    >>> unit = expdb.Tokens(of=expdb.Pairs(score="judge", margin=0.2))  # doctest: +SKIP
    >>> batch = buffer.sample(8, unit=unit)  # doctest: +SKIP
    >>> is_chosen = batch["rollout"] % 2 == 0  # doctest: +SKIP
    """

    score: str | Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    margin: float = 0.0
    per: Literal["group", "task"] = "group"
    max_length: int | None = None
    of: tuple[str, ...] = ROLLOUT_RELATIONS
    lineage: bool = False

    checks_results: ClassVar[bool] = False
    by_episode: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", checks.number(self.margin, "margin", 0))
        checks.choice(self.per, "per", "group", "task")
        # The weights as a tuple, which is hashable.
        group = Group(
            2, score=self.score, max_length=self.max_length, of=self.of, lineage=self.lineage
        )
        for name in ("score", "max_length", "of"):
            object.__setattr__(self, name, getattr(group, name))

    @property
    def _group(self) -> Group:
        return Group(2, score=self.score, of=self.of, lineage=self.lineage)

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        value = "returns" if self.score is None else "scores"
        return f"pairs of complete rollouts of one {self.per} whose {value} differ enough"

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit reads, a tuple of str."""
        return self._group.reads

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The names in `Layout.SEQUENCE_KEYS`, `episode_return` and `margin`, and with `score`
            also `episode_score`.
        """
        keys = (*Layout.SEQUENCE_KEYS, "episode_return", "margin")
        keys = (*keys, "shared_steps") if self.lineage else keys
        return keys if self.score is None else (*keys, "episode_score")

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which pairs may be drawn, a tuple."""
        return ("pairs", self.score, self.margin, self.per, self.of, self.lineage)

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the pairs that may be drawn, in the order of their better rollouts.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of the first steps of complete episodes with a matching step, ascending by
            position.

        Returns
        -------
        ndarray of int64, shape (P, 2)
            Rows of the first steps of the better and of the worse rollout.
        """
        rows = select_rollouts(trajectories, rows, self)
        groups = tasks = trajectories.of_episodes("task_id", rows)
        if self.per == "group":
            groups = trajectories.of_episodes("group_id", rows)
            groups = np.where(groups < 0, groups.max(initial=0) + 1 + tasks, groups)
        read = episode_reader(trajectories, rows, self.lineage)
        values, _ = self._group.values(read, time.time())
        compared = np.flatnonzero(~np.isnan(values))
        # Within a group from the best rollout to the worst; among equal ones, the older first.
        order = compared[np.lexsort((-values[compared], groups[compared]))]
        first = np.flatnonzero(np.diff(groups[order], prepend=UNKNOWN - 1))
        counts = np.diff(first, append=len(order))
        rank = np.arange(len(order)) - np.repeat(first, counts)
        last = np.repeat(first + counts - 1, counts)
        better = np.flatnonzero(rank < np.repeat(counts // 2, counts))
        worse = last[better] - rank[better]
        margins = values[order[better]] - values[order[worse]]
        chosen = (margins > 0) & (margins >= self.margin)
        pairs = np.stack([order[better[chosen]], order[worse[chosen]]], 1)
        in_order: np.ndarray = rows[pairs[np.argsort(pairs[:, 0])]]
        return in_order

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the two rollouts of each drawn pair.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (P, 2)
            Rows of the first steps of the rollouts.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        Layout
            Rows of shape (P, 2, T) with a mask, and the columns of the pairs.
        """
        read = episode_reader(trajectories, rows, self.lineage)
        values, _ = self._group.values(read, 0.0)
        layout = Layout.of_episodes(trajectories, rows, self.max_length)
        if self.lineage:
            layout = layout.from_root(trajectories, self.max_length)
        layout.columns["episode_return"] = read("episode_return")
        layout.columns["margin"] = values[:, 0] - values[:, 1]
        if self.score is not None:
            layout.columns["episode_score"] = values
        return layout
