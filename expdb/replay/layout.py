"""Rows that follow each other: how units find the steps around a drawn one.

Rows are places in the arrays of what is held in memory, which `Trajectories` describes.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from expdb.errors import InvalidValue
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

    def around(self, rows: np.ndarray, offsets: range) -> np.ndarray:
        """Return the rows at offsets from steps [B] on their episodes, [B, len(offsets)].

        A row is UNKNOWN if the episode has no step at the offset, or the step is not in memory.
        For the drawn rows and neighbouring offsets within the unit's `window`, the rows have
        already been read.
        """

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

    Without `mask`, `rows` are the drawn rows [B]. With `mask`, `rows` are any rows [B, ..., T];
    where `mask` is False, the row is ignored. `columns` has an array [B, ...] for each key in the
    unit's `keys()`.
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


def around(trajectories: Trajectories, rows: np.ndarray, offsets: range) -> np.ndarray:
    """Return what `Trajectories.around` does, step by step where steps are not side by side."""
    if rows.ndim != 1:
        raise InvalidValue(f"around() takes rows [B], got an array of shape {rows.shape}")
    there = rows >= 0
    if not there.all():
        known = np.full((len(rows), len(offsets)), UNKNOWN)
        known[there] = around(trajectories, rows[there], offsets)
        return known
    before, ahead = -min(0, 0, *offsets), max(0, 0, *offsets) + 1
    found = forward(trajectories, rows, ahead)
    if before:
        found = np.concatenate((backward(trajectories, rows, before), found), 1)
    chosen: np.ndarray = found.take(np.array(offsets, np.int64) + before, 1)
    return chosen


def along(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of up to `count` steps from each row on, as far as any episode goes."""
    columns = [rows]
    while len(columns) < count:
        following = trajectories.next_steps(columns[-1])
        if not (following >= 0).any():
            break
        columns.append(following)
    return np.stack(columns, 1)


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
    first = (trajectories.ordinals(found) == 0) & mask
    return Layout(found, {"mask": mask, "is_first": first, "length": mask.sum(-1)}, mask)
