"""Layouts of drawn steps, and functions that find the steps around a drawn one.

A row is an index into the arrays of a buffer in memory, which `Trajectories` describes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np

from expdb.errors import InvalidValue
from expdb.names import UNKNOWN


class Trajectories(Protocol):
    """Describe the steps of a buffer in memory and the links between them.

    expdb passes such an object to `Unit.may_start`, `Unit.anchors` and `Unit.layout`; you do not
    construct it. A row is an index into the arrays in memory. The rows below `slots` hold steps.
    After them come the zero row, which replaces missing steps, and the final observations of
    episodes.

    All methods take and return arrays of rows of any shape, except `around`. Row -1 means "no
    step"; the columns of row -1 are -1, NaN, 0 or False.
    """

    @property
    def slots(self) -> int:
        """The number of rows for steps, an int; rows from `slots` on do not hold steps."""

    @property
    def zero(self) -> int:
        """The index of the row that holds zeros and replaces missing steps, an int."""

    def successors(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the successor of each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Rows in the shape of `rows`: the next step or the final observation of the episode. The
            zero row, if the step terminated its episode and has neither of them. -1 if the
            successor is unknown.
        """

    def next_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the next step in the episode of each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Rows in the shape of `rows`, -1 if no next step is in memory.
        """

    def previous_steps(self, rows: np.ndarray) -> np.ndarray:
        """Return the row of the previous step in the episode of each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Rows in the shape of `rows`, -1 if no previous step is in memory.
        """

    def around(self, rows: np.ndarray, offsets: range) -> np.ndarray:
        """Return the rows at offsets from steps, within their episodes.

        The call is fast for the drawn rows and consecutive offsets within `Unit.window`, because
        expdb has already read these rows.

        Parameters
        ----------
        rows : ndarray of int64, shape (B,)
            Rows of steps, -1 for no step.
        offsets : range
            Offsets in steps: 0 is the step itself, and -1 the step before it.

        Returns
        -------
        ndarray of int64, shape (B, len(offsets))
            Rows of steps, -1 if the episode has no step at the offset, or the step is not in
            memory.

        Raises
        ------
        InvalidValue
            If `rows` does not have one dimension.
        """

    def is_live(self, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps have not been evicted.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape, without -1.

        Returns
        -------
        ndarray of bool
            True for a step that was not evicted. The value may also be True for a deleted step.
        """

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions of steps.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Positions in the shape of `rows`, -1 for row -1.
        """

    def episodes(self, rows: np.ndarray) -> np.ndarray:
        """Return the episode of each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Numbers of the episodes, as in ``batch["episode"]``; -1 for row -1.
        """

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each step in its episode, the key `step` of batches.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int64
            Step numbers in the shape of `rows`.
        """

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return how many steps of its episode were written before each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int
            Numbers of earlier steps: 0 for the first step of an episode, -1 for row -1.
        """

    def episode_lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths of the complete episodes that begin at the rows.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of int
            Lengths in steps; 0 for a step that is not the first step of a complete episode.
        """

    def rewards(self, rows: np.ndarray) -> np.ndarray:
        """Return the reward of each step.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of float64
            Rewards, NaN if a step has none.
        """

    def terminated(self, rows: np.ndarray) -> np.ndarray:
        """Return which steps terminated their episode.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of bool
            True for a step that terminated its episode.
        """

    def truncated(self, rows: np.ndarray) -> np.ndarray:
        """Return which steps truncated their episode.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of bool
            True for a step that truncated its episode.
        """

    def of_episodes(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return a column of the episode of each step.

        Parameters
        ----------
        name : str
            Column of episodes, such as ``"task_id"``. The unit must name it in `Unit.reads`.
        rows : ndarray of int64
            Rows of steps, of any shape.

        Returns
        -------
        ndarray of float64 or int64
            Numbers as float64, with NaN for a missing value. Text as int64 codes, with -1 for a
            missing value; the codes number the texts from 0 in the order of their first
            occurrence. Values of row -1 are missing.

        Raises
        ------
        InvalidValue
            If neither the unit nor the sampler names the column in `reads`.
        """

    def shared_steps(self, firsts: np.ndarray) -> list[np.ndarray]:
        """Return the steps that forks and retries share with their parents.

        The unit must name ``"parent_position"`` and ``"parent_step"`` in `Unit.reads`.

        Parameters
        ----------
        firsts : ndarray of int64, shape (N,)
            Rows of the first own steps of episodes.

        Returns
        -------
        list of ndarray of int64
            For each episode, the rows of its shared steps in memory, oldest first.
        """

    def have_whole_lineage(self, firsts: np.ndarray) -> np.ndarray:
        """Return which episodes share no step that was evicted or deleted.

        The unit must name ``"parent_position"`` and ``"parent_step"`` in `Unit.reads`.

        Parameters
        ----------
        firsts : ndarray of int64, shape (N,)
            Rows of the first own steps of episodes.

        Returns
        -------
        ndarray of bool, shape (N,)
            True for an episode that can be read from the root.
        """

    def parent_of(self, episode: int) -> int:
        """Return the number of the parent of an episode, or -1.

        The unit must name ``"parent_episode"`` in `Unit.reads`.

        Parameters
        ----------
        episode : int
            Number of an episode.

        Returns
        -------
        int
            Number of the parent; -1 if the episode has no parent or is no longer stored.
        """

    def texts_of_episodes(self, name: str, rows: np.ndarray) -> list[str | None]:
        """Return a text column of the episode of each step.

        Parameters
        ----------
        name : str
            Column of episodes, such as ``"relation"``. The unit must name it in `Unit.reads`.
        rows : ndarray of int64, shape (N,)
            Rows of steps, without -1.

        Returns
        -------
        list of str or None
            The text of the episode of each step; None if it has no text.
        """


@dataclass
class Layout:
    """Describe what drawn steps become: rows in memory, and the columns that the unit adds.

    `Unit.layout` returns a layout. Without `mask`, each of the B drawn steps becomes one step in
    the batch. With `mask`, each drawn step becomes several steps.

    Parameters
    ----------
    rows : ndarray of int64, shape (B,) or (B, ..., T)
        Without `mask`, the drawn rows in their order. With `mask`, any rows of steps; a row is
        ignored where `mask` is False.
    columns : dict of str to ndarray, optional
        An array of shape (B, ...) for each key that `Unit.keys` returns.
    mask : ndarray of bool, shape (B, ..., T), optional
        True where `rows` has a step.
    next_rows : ndarray of int64, shape (B,), optional
        Rows of the successors. The batch then has ``next_<field>`` for the fields that
        `Unit.derived` returns.
    last_rows : ndarray of int64, shape (B,), optional
        Row of the last step of each transition, for units whose transitions can have several
        steps. If `Unit.takes_last_step` is True, expdb reads a stored `next_obs`,
        `next_observation` or `next_state` from these rows.
    stacks : ndarray of int64, shape (B, k), optional
        Rows of each step and the steps before it, oldest first, for the fields that `Unit.stacked`
        returns.
    next_stacks : ndarray of int64, shape (B, k), optional
        Rows of each successor and the steps before the successor, oldest first.
    firsts : ndarray of int64, shape (B, n), optional
        Rows of steps, -1 for no step. `episode` and the columns of episodes have one value for
        the episode of each of these steps. By default these are the drawn rows.
    kept : ndarray of bool, optional
        True for each drawn step that the layout contains, if the layout leaves some drawn steps
        out. B is then the number of steps that it contains, and all other arrays describe only
        these steps.
    ragged : bool, default False
        Whether each row of the batch gets arrays of its own length. If True, the layout needs a
        mask and a column `length`.

    Attributes
    ----------
    SEQUENCE_KEYS : tuple of str
        The keys of the columns in a layout that `of_episodes` returns.
    """

    SEQUENCE_KEYS: ClassVar[tuple[str, ...]] = ("is_first", "length", "mask")

    rows: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    mask: np.ndarray | None = None
    next_rows: np.ndarray | None = None
    last_rows: np.ndarray | None = None
    stacks: np.ndarray | None = None
    next_stacks: np.ndarray | None = None
    firsts: np.ndarray | None = None
    kept: np.ndarray | None = None
    ragged: bool = False

    def from_root(self, trajectories: Trajectories, max_length: int | None = None) -> Layout:
        """Return the layout with the shared steps of forks and retries before their own steps.

        The unit must name ``"parent_position"`` and ``"parent_step"`` in `Unit.reads`. The column
        `shared_steps` is the number of the shared steps.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        max_length : int, optional
            Length T of the arrays; longer episodes are cut.

        Returns
        -------
        Layout
            A layout like that of `of_episodes`, with the same other columns as this layout.
        """
        firsts = self.rows[..., 0].reshape(-1)
        forks = np.flatnonzero(firsts >= 0)
        forks = forks[trajectories.ordinals(firsts[forks]) > 0]
        counts = np.zeros(len(firsts), np.int64)
        columns = {**self.columns, "shared_steps": counts.reshape(self.rows.shape[:-1])}
        if not len(forks):
            return replace(self, columns=columns)
        shared = trajectories.shared_steps(firsts[forks])
        counts[forks] = [len(shared_rows) for shared_rows in shared]
        own = self.rows.reshape(len(firsts), -1)
        width = int((counts + (own >= 0).sum(1)).max())
        rows = np.full((len(firsts), width), UNKNOWN)
        for index, own_rows in enumerate(own):
            own_rows = own_rows[own_rows >= 0]
            rows[index, counts[index] :][: len(own_rows)] = own_rows
        for index, shared_rows in zip(forks.tolist(), shared, strict=True):
            rows[index, : len(shared_rows)] = shared_rows
        rows = rows[:, :max_length] if max_length is not None else rows
        layout = padded(trajectories, rows.reshape(*self.rows.shape[:-1], -1))
        layout.columns = {**columns, **layout.columns}
        layout.firsts = self.rows[..., 0] if self.firsts is None else self.firsts
        layout.ragged = self.ragged
        return layout

    @classmethod
    def of_episodes(
        cls, trajectories: Trajectories, firsts: np.ndarray, max_length: int | None = None
    ) -> Layout:
        """Return the layout of whole episodes, given their first rows.

        The layout has the columns in `Layout.SEQUENCE_KEYS`: `is_first`, `length` and `mask`. In
        the batch, arrays of steps have the shape [B, T] or [B, n, T]. `episode` and the columns of
        episodes have the shape [B] or [B, n].

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        firsts : ndarray of int64, shape (B,) or (B, n)
            Rows of the first steps of complete episodes. In an array (B, n), -1 means no episode.
        max_length : int, optional
            Length T of the arrays; longer episodes are cut. By default, T is the length of the
            longest episode.

        Returns
        -------
        Layout
            Layout with a mask that is False after the end of each episode.
        """
        if firsts.ndim == 1:
            lengths = trajectories.episode_lengths(firsts)
            longest = int(lengths.max(initial=1)) if max_length is None else max_length
            return padded(trajectories, forward(trajectories, firsts, longest))
        there = firsts >= 0
        lengths = trajectories.episode_lengths(np.where(there, firsts, trajectories.zero))
        longest = int(lengths.max(initial=1, where=there)) if max_length is None else max_length
        rows = np.full((*firsts.shape, longest), UNKNOWN)
        rows[there] = forward(trajectories, firsts[there], longest)
        layout = padded(trajectories, rows)
        layout.firsts = firsts
        return layout


def around(trajectories: Trajectories, rows: np.ndarray, offsets: range) -> np.ndarray:
    """Return the rows at offsets from steps [B], for `Trajectories.around`."""
    if rows.ndim != 1:
        raise InvalidValue(
            f"rows must be one-dimensional, got an array of shape {rows.shape}; pass rows [B] to "
            "around()"
        )
    there = rows >= 0
    if not there.all():
        neighbours = np.full((len(rows), len(offsets)), UNKNOWN)
        neighbours[there] = around(trajectories, rows[there], offsets)
        return neighbours
    before, ahead = -min(0, 0, *offsets), max(0, 0, *offsets) + 1
    window = forward(trajectories, rows, ahead)
    if before:
        window = np.concatenate((backward(trajectories, rows, before), window), 1)
    chosen: np.ndarray = window.take(np.array(offsets, np.int64) + before, 1)
    return chosen


def along(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of up to `count` steps from each row on; fewer if all episodes end first."""
    columns = [rows]
    while len(columns) < count:
        following = trajectories.next_steps(columns[-1])
        if not (following >= 0).any():
            break
        columns.append(following)
    return np.stack(columns, 1)


def forward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows [B, count] of steps from each row on; UNKNOWN after the last step."""
    # The steps of an episode are usually adjacent in memory, so try adjacent rows first. If any
    # episode continues in another place, follow the links of all steps.
    window = (rows[:, None] + np.arange(count)) % trajectories.slots
    after = trajectories.successors(window[:, :-1].reshape(-1)).reshape(len(rows), count - 1)
    joined = np.logical_and.accumulate(after == window[:, 1:], 1)
    window[:, 1:][~joined] = UNKNOWN
    broken = np.flatnonzero(~joined.all(1)) if count > 1 else rows[:0]
    ends = after[broken, (~joined[broken]).argmax(1)] if len(broken) else broken
    if ((ends >= 0) & (ends < trajectories.slots)).any():  # an episode continues elsewhere
        window[:, 0] = current = rows
        for column in range(1, count):
            current = np.where(
                current >= 0, trajectories.next_steps(np.maximum(current, 0)), UNKNOWN
            )
            window[:, column] = current
    return window


def backward(trajectories: Trajectories, rows: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` steps before each row, [B, count].

    A row is UNKNOWN where the episode has no earlier step in memory.
    """
    if not count:
        return np.empty((len(rows), 0), np.int64)
    # Try adjacent rows first, as in `forward`.
    window = (rows[:, None] - np.arange(count, -1, -1)) % trajectories.slots
    earlier, ahead = window[:, :-1], window[:, 1:]
    joined = (trajectories.successors(earlier) == ahead) & trajectories.is_live(earlier)
    if joined.all():
        return earlier
    joined = np.logical_and.accumulate(joined[:, ::-1], 1)[:, ::-1]
    earlier[~joined] = UNKNOWN
    broken = np.flatnonzero(~joined[:, 0])
    column = count - 1 - joined[broken].sum(1)  # where to continue along the links
    current = trajectories.previous_steps(window[broken, column + 1])
    while (on := np.flatnonzero(current >= 0)).size:
        broken, column, current = broken[on], column[on], current[on]
        earlier[broken, column] = current
        on = np.flatnonzero(column > 0)
        broken, column = broken[on], column[on] - 1
        current = trajectories.previous_steps(current[on])
    return earlier


def padded(trajectories: Trajectories, rows: np.ndarray) -> Layout:
    """Return the layout of rows [..., T], masked where a row is UNKNOWN."""
    mask = rows >= 0
    first = (trajectories.ordinals(rows) == 0) & mask
    return Layout(rows, {"mask": mask, "is_first": first, "length": mask.sum(-1)}, mask)
