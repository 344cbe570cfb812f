"""Rows that follow each other: how units find the steps around a drawn one.

Rows are places in the arrays of what is held in memory, which `Trajectories` describes.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

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

    def standing(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows hold a step that is not evicted."""

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of rows."""


@dataclass
class Layout:
    """What drawn steps become.

    Rows [B], [B, L] or [G, size, T], and what the unit adds or replaces.
    """

    rows: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None  # where `rows` are steps and not the zero row
    next_rows: np.ndarray | None = None  # [B], of what follows
    last_rows: np.ndarray | None = None  # [B], of the last step taken, where that is another one
    stacks: np.ndarray | None = None  # [B, k], of the step and those before it, oldest first
    next_stacks: np.ndarray | None = None  # [B, k], of what follows and the steps before that
    firsts: np.ndarray | None = (
        None  # rows of which each stands for an episode, UNKNOWN for none; None: the drawn ones
    )
    kept: np.ndarray | None = None  # which of the drawn steps are in it, where some are left out
    ragged: bool = False  # whether each row of the batch gets arrays of its own length


def walk(
    trajectories: Trajectories, rows: np.ndarray, steps: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Follow up to `steps` steps of which each has a known successor.

    Return the rows of the k-th ones and how many.

    A terminated step is the last one, whatever comes after it.
    """
    after = trajectories.take(":after", rows)
    taken = (after >= 0).astype(np.int64)
    path = [rows]
    current = rows
    for k in range(1, int(steps.max(initial=0))):
        on = np.flatnonzero(
            (taken == k)
            & (k < steps)
            & (after < trajectories.slots)
            & ~trajectories.take("terminated", current)
        )
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


def forward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of `count` steps from each row on, [B, count]; UNKNOWN after an end."""
    # Mostly an episode's steps stand side by side, which is checked at once; where they do not,
    # they are walked along.
    found = (rows[:, None] + np.arange(count)) % trajectories.slots
    after = trajectories.take(":after", found[:, :-1].reshape(-1)).reshape(len(rows), count - 1)
    joined = np.logical_and.accumulate(after == found[:, 1:], 1)
    found[:, 1:][~joined] = UNKNOWN
    broken = np.flatnonzero(~joined.all(1)) if count > 1 else rows[:0]
    ends = after[broken, (~joined[broken]).argmax(1)] if len(broken) else broken
    if ((ends >= 0) & (ends < trajectories.slots)).any():  # one goes on elsewhere
        found[:, 0] = current = rows
        for column in range(1, count):
            current = np.where(
                current >= 0, trajectories.following(np.maximum(current, 0)), UNKNOWN
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
    joined = (trajectories.take(":after", found) == ahead) & trajectories.standing(found)
    if joined.all():
        return found
    joined = np.logical_and.accumulate(joined[:, ::-1], 1)[:, ::-1]
    found[~joined] = UNKNOWN
    broken = np.flatnonzero(~joined[:, 0])
    column = count - 1 - joined[broken].sum(1)  # the one where the walk goes on
    current = trajectories.preceding(window[broken, column + 1])
    while (on := np.flatnonzero(current >= 0)).size:
        broken, column, current = broken[on], column[on], current[on]
        found[broken, column] = current
        on = np.flatnonzero(column > 0)
        broken, column = broken[on], column[on] - 1
        current = trajectories.preceding(current[on])
    return found


def padded(trajectories: Trajectories, found: np.ndarray) -> Layout:
    """Return the layout of rows that are masked where they are UNKNOWN; the last axis is time."""
    mask = found >= 0
    rows = np.where(mask, found, trajectories.zero)
    first = (trajectories.take(":ordinal", rows.reshape(-1)).reshape(rows.shape) == 0) & mask
    return Layout(rows, {"mask": mask, "is_first": first, "length": mask.sum(-1)}, mask)
