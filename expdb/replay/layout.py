"""Rows that follow each other: how units find the steps around a drawn one.

Rows are places in the arrays of what is held in memory, which `Trajectories` describes.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from expdb.names import UNKNOWN


class Trajectories(Protocol):
    """Rows in memory and how they follow each other.

    A row is a place in the arrays, and holds a step. The rows behind those of steps are the zero
    row, which fills in for missing steps, and the final observations of episodes. All methods take
    and return arrays of rows, of any shape.
    """

    @property
    def slots(self) -> int:
        """Rows of steps; those from here on hold what is not a step."""

    @property
    def zero(self) -> int:
        """The zero row: it holds zeros, and follows a terminated step, for example."""

    def successors(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of what follows: a step, a final observation, zero; UNKNOWN for none."""

    def next_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the steps after, UNKNOWN where there is none."""

    def previous_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the steps before, UNKNOWN where there is none."""

    def is_live(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows hold a step that is not evicted."""

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows."""

    def episodes(self, rows: np.ndarray) -> np.ndarray:
        """Return the episode of each step, int64."""

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return how many steps of the episode were written before each."""

    def episode_lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths of the complete episodes that begin at the rows; 0 for other steps."""

    def rewards(self, rows: np.ndarray) -> np.ndarray:
        """Return the reward of each step, float64, NaN for none."""

    def terminated(self, rows: np.ndarray) -> np.ndarray:
        """Return which steps terminated their episode."""

    def truncated(self, rows: np.ndarray) -> np.ndarray:
        """Return at which steps their episode was truncated."""

    def of_episodes(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a column of the episode of each step, which the unit names in its `reads`.

        Numbers are float64, NaN for none; texts are int64 codes, counted from 0 in the order in
        which they first come, -1 for none. A row of -1 has none.
        """


@dataclass
class Layout:
    """Say what drawn steps become: the rows of each, and what the unit adds or replaces.

    `rows` are [B], or [B, ..., T] with `mask`, which is False where there is no step. `columns` are
    the arrays of the unit's `keys()`, the first axis [B].
    """

    SEQUENCE_KEYS: ClassVar[tuple[str, ...]] = ("is_first", "length", "mask")

    rows: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None
    next_rows: np.ndarray | None = None  # [B], of what follows
    last_rows: np.ndarray | None = None  # [B], of the last step taken, where that is another one
    stacks: np.ndarray | None = None  # [B, k], of the step and those before it, oldest first
    next_stacks: np.ndarray | None = None  # [B, k], of what follows and the steps before that
    # Rows of which each stands for an episode, UNKNOWN for none; None: the drawn ones.
    firsts: np.ndarray | None = None
    kept: np.ndarray | None = None  # which of the drawn steps are in it, where some are left out
    ragged: bool = False  # whether each row of the batch gets arrays of its own length

    @classmethod
    def of_episodes(
        cls, trajectories: Trajectories, firsts: np.ndarray, max_length: int | None = None
    ) -> Layout:
        """Return the layout of whole episodes, given their first rows [B] or [B, n].

        Arrays are [B, T] or [B, n, T], and `episode` and the columns of episodes are [B] or [B, n].
        T is the length of the longest episode, or `max_length`, where longer ones are cut; in
        [B, n] -1 stands for no episode. The keys are those of `Layout.SEQUENCE_KEYS`.
        """
        if firsts.ndim == 1:
            lengths = trajectories.episode_lengths(firsts)
            longest = int(lengths.max(initial=1)) if max_length is None else max_length
            return padded(trajectories, forward(trajectories, firsts, longest))
        there = firsts >= 0
        lengths = trajectories.episode_lengths(np.where(there, firsts, trajectories.zero))
        longest = int(lengths.max(initial=1, where=there)) if max_length is None else max_length
        found = np.full((*firsts.shape, longest), UNKNOWN)
        found[there] = forward(trajectories, firsts[there], longest)
        layout = padded(trajectories, found)
        layout.firsts = firsts
        return layout


MOST_BESIDE = 128  # steps that are looked at side by side, whether their episode has them or not


class Walk:
    """Where some steps lead: the steps themselves and what comes after them, [n, B].

    Of a column the first `taken` entries count: steps of which each has a known successor.
    """

    def __init__(
        self, rows: np.ndarray, after: np.ndarray, terminated: np.ndarray, taken: np.ndarray
    ):
        self.rows, self.after, self.terminated, self.taken = rows, after, terminated, taken
        self._last = np.maximum(taken, 1) - 1, np.arange(len(taken))

    def last(self, column: np.ndarray) -> np.ndarray:
        """Return what a column [n, B] says of the last step taken."""
        found: np.ndarray = column[self._last]
        return found

    def some(self, which: np.ndarray) -> Walk:
        """Return the walks of some steps."""
        rows, after, terminated = self.rows, self.after, self.terminated
        return Walk(rows[:, which], after[:, which], terminated[:, which], self.taken[which])


def walk(trajectories: Trajectories, rows: np.ndarray, steps: np.ndarray | int) -> Walk:
    """Follow each step for up to `steps` steps of which each has a known successor.

    `steps` is [B], or the same for all. A terminated step is the last one, whatever comes after it.
    """
    count = steps if isinstance(steps, int) else int(steps.max(initial=1))
    slots = trajectories.slots
    if count > MOST_BESIDE:  # than any episode may have
        return _walk_along(trajectories, rows, steps)
    # As forward: mostly they stand side by side.
    found = rows + np.arange(count)[:, None]
    if int(rows.max(initial=0)) + count > slots:
        found %= slots
    after, terminated = trajectories.successors(found), trajectories.terminated(found)
    walked = beside(found, after, terminated, steps, slots)
    return _walk_along(trajectories, rows, steps) if walked is None else walked


def beside(
    found: np.ndarray,
    after: np.ndarray,
    terminated: np.ndarray,
    steps: np.ndarray | int,
    slots: int,
) -> Walk | None:
    """Return the walk along rows [n, B] that stand side by side; None where a step goes elsewhere.

    `after` and `terminated` are what the rows say, `slots` the rows of steps.
    """
    count = len(found)
    known, ends = after >= 0, terminated[:-1]
    joined = after[:-1] == found[1:]
    elsewhere = known[:-1] & (after[:-1] < slots)
    if (elsewhere > (joined | ends)).nonzero()[0].size:  # not `any`: see Copier
        return None
    joined = (joined & known[1:]) > ends
    if not isinstance(steps, int):
        joined &= np.arange(1, count)[:, None] < steps
    on, taken = known[0], known[0].astype(np.int64)
    for k in range(count - 1):
        on = on & joined[k]
        taken += on
    return Walk(found, after, terminated, taken)


def _walk_along(trajectories: Trajectories, rows: np.ndarray, steps: np.ndarray | int) -> Walk:
    """Follow each step one by one, wherever the next one stands, as far as any episode goes."""
    steps, taken = np.broadcast_to(steps, len(rows)), np.zeros(len(rows), np.int64)
    walked: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    on, current = np.arange(len(rows)), rows
    while len(on) or not walked:
        following, ends = trajectories.successors(current), trajectories.terminated(current)
        known = following >= 0
        on, current, following, ends = on[known], current[known], following[known], ends[known]
        found, after, terminated = (
            rows.copy(),
            np.full(len(rows), UNKNOWN),
            np.zeros(len(rows), "?"),
        )
        found[on], after[on], terminated[on] = current, following, ends
        walked.append((found, after, terminated))
        taken[on] += 1
        further = (taken[on] < steps[on]) & (following < trajectories.slots) & ~ends
        on, current = on[further], following[further]
    found, after, terminated = (np.stack(one) for one in zip(*walked, strict=True))
    return Walk(found, after, terminated, taken)


def forward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of `count` steps from each row on, [B, count]; UNKNOWN after an end."""
    # Mostly an episode's steps stand side by side, which is checked at once; where they do not,
    # they are walked along.
    found = (rows[:, None] + np.arange(count)) % trajectories.slots
    after = trajectories.successors(found[:, :-1].reshape(-1)).reshape(len(rows), count - 1)
    joined = np.logical_and.accumulate(after == found[:, 1:], 1)
    found[:, 1:][~joined] = UNKNOWN
    broken = np.flatnonzero(~joined.all(1)) if count > 1 else rows[:0]
    ends = after[broken, (~joined[broken]).argmax(1)] if len(broken) else broken
    if ((ends >= 0) & (ends < trajectories.slots)).any():  # one goes on elsewhere
        found[:, 0] = current = rows
        for column in range(1, count):
            current = np.where(
                current >= 0, trajectories.next_steps(np.maximum(current, 0)), UNKNOWN
            )
            found[:, column] = current
    return found


def backward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` steps before each row, [B, count].

    UNKNOWN before a beginning.
    """
    if not count:
        return np.empty((len(rows), 0), np.int64)
    # As forward: side by side at first.
    window = (rows[:, None] - np.arange(count, -1, -1)) % trajectories.slots
    found, ahead = window[:, :-1], window[:, 1:]
    joined = (trajectories.successors(found) == ahead) & trajectories.is_live(found)
    if joined.all():
        return found
    joined = np.logical_and.accumulate(joined[:, ::-1], 1)[:, ::-1]
    found[~joined] = UNKNOWN
    broken = np.flatnonzero(~joined[:, 0])
    column = count - 1 - joined[broken].sum(1)  # the one where the walk goes on
    current = trajectories.previous_steps(window[broken, column + 1])
    while (on := np.flatnonzero(current >= 0)).size:
        broken, column, current = broken[on], column[on], current[on]
        found[broken, column] = current
        on = np.flatnonzero(column > 0)
        broken, column = broken[on], column[on] - 1
        current = trajectories.previous_steps(current[on])
    return found


def padded(trajectories: Trajectories, found: np.ndarray) -> Layout:
    """Return the layout of rows that are masked where they are UNKNOWN; the last axis is time."""
    mask = found >= 0
    rows = np.where(mask, found, trajectories.zero)
    first = (trajectories.ordinals(rows.reshape(-1)).reshape(rows.shape) == 0) & mask
    return Layout(rows, {"mask": mask, "is_first": first, "length": mask.sum(-1)}, mask)
