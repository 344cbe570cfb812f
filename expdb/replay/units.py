"""Units define what each drawn step becomes.

A unit is a frozen dataclass of settings. It works with every sampler and every query. It defines
which steps may be drawn (its anchors), and which rows an anchor becomes (its layout).

This module has the base class and the single step. transitions.py has the units for transitions,
and sequences.py has the units for sequences, episodes and groups.
"""

from __future__ import annotations  # evaluating `np.random` would import that module

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from expdb.replay.layout import Layout, Trajectories


class Unit:
    """Define what each drawn step becomes: the base class of all units.

    Derive your own unit as a frozen dataclass that implements `layout`, and override each member
    whose default is wrong for your unit. Your unit works with every query, sampler and database.
    "How to write a unit" in the documentation has examples; `expdb.testing.check_unit` checks your
    class.

    Attributes
    ----------
    by_episode : bool, default False
        Whether the unit draws complete episodes with at least one matching step, instead of steps.
    checks_results : bool, default True
        Whether expdb checks the rows and arrays that the methods return. Set it to False after
        `expdb.testing.check_unit` has checked the class, to sample faster. Then the methods must
        return new arrays. Subclasses do not inherit the value.
    makes_transitions : bool, default False
        Whether each item is a transition with `next_rows`. If True, expdb warns about episodes
        without a usable end, and about a stored ``next_<field>`` that only some steps have.
    pads_rows : bool, default False
        Whether `shard` can add empty rows, so that every rank gets the same number of rows.
    reads_ragged : bool, default False
        Whether `assemble` receives arrays of varying length as `RaggedArray`, and the policy
        version of each step.
    fills_with_zeros : bool, default False
        Whether missing steps in `window` have columns of 0 instead of -1, NaN or False, which is
        faster. Their successor is -1 in both cases.
    """

    by_episode: ClassVar[bool] = False
    # How a consumer with `max_staleness` treats items; see `Tokens`.
    stale: str = "drop_rollout"
    checks_results: ClassVar[bool] = True
    makes_transitions: ClassVar[bool] = False
    pads_rows: ClassVar[bool] = False
    reads_ragged: ClassVar[bool] = False
    fills_with_zeros: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "checks_results" not in vars(cls):
            cls.checks_results = True
        # A subclass that overrides a method does not inherit the hints about this method.
        overrides_start = "may_start" in vars(cls) or "anchors" in vars(cls)
        hints = ("anchor_key", "reach", "lookback") if overrides_start else ()
        if overrides_start or "layout" in vars(cls):
            hints = (*hints, "fills_with_zeros")
        for name in hints:
            if name not in vars(cls):
                setattr(cls, name, vars(Unit)[name])

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        return "complete episodes" if self.by_episode else "steps"

    @property
    def window(self) -> range | None:
        """The offsets of the steps that `layout` reads around a drawn step, a range or None.

        `range(0, 3)` means the drawn step and the two steps after it. `range(-3, 1)` means the
        three steps before the drawn step and the drawn step. The steps belong to one episode.
        expdb reads their rows together, and ``trajectories.around(rows, self.window)`` returns the
        rows. If `window` is None, the unit must find its rows with other methods of
        `Trajectories`.
        """
        return None

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit reads, such as ``"task_id"``, a tuple of str.

        ``"scores.judge"`` is the score of the last step of an episode: NaN without a score, and
        negative infinity if a judge failed to find a value.
        """
        return ()

    @property
    def uses_time(self) -> bool:
        """Whether the steps that may be drawn also depend on the time, a bool.

        If True, expdb determines these steps again every second.
        """
        return False

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            Keys that the unit adds to a batch, by default none.
        """
        return ()

    def derived(self, fields: Sequence[str], ended_with: Set[str]) -> list[str]:
        """Return the fields that get a derived ``next_<field>`` in a batch.

        Parameters
        ----------
        fields : sequence of str
            Names of all stored fields.
        ended_with : set of str
            Names of the fields that any call of `EpisodeWriter.end` received.

        Returns
        -------
        list of str
            Names of fields, by default none.
        """
        return []

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that a batch has as stacks of frames.

        Parameters
        ----------
        fields : sequence of str
            Names of all stored fields.
        derived : sequence of str
            Names of the fields that `derived` returned.

        Returns
        -------
        list of str
            Names of fields, by default none.
        """
        return []

    @property
    def joins_gaps(self) -> bool:
        """Whether trajectories continue across missing step numbers, a bool.

        True if the unit has an attribute `gaps` with the value ``"join"``.
        """
        return vars(self).get("gaps") == "join"

    @property
    def follows_links(self) -> bool:
        """Whether the unit reads neighbours of steps, so that missing step numbers matter, a bool.

        By default, True unless the unit draws episodes or defines `anchors`.
        """
        return not self.lists_anchors

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether all batches of one size have arrays of equal shapes, a bool.

        By default, True unless the unit draws episodes or defines `anchors` or `assemble`.
        """
        return not (self.lists_anchors or self.assembles)

    @property
    def takes_last_step(self) -> bool:
        """Whether stored next observations are read from the `last_rows` of the layout, a bool."""
        return False

    # -- which steps may be drawn --------------------------------------------------------------

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which steps may be drawn, a tuple.

        It is ``()`` if every step may be drawn. Units of one class with equal keys share a cached
        list of the steps that may be drawn. By default, the key contains the unit itself.
        """
        return (self,)

    @property
    def reach(self) -> int | None:
        """The number of steps that a change of one step's successor affects, an int or None.

        It counts the step and the steps before it whose eligibility to be drawn depends on this
        successor. If it is None, expdb checks all steps after each change.
        """
        return None

    @property
    def lookback(self) -> int:
        """The number of steps after a missing step that may not be drawn without it, an int."""
        return 0

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn; each step is checked independently.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of steps.

        Returns
        -------
        ndarray of bool, shape (N,)
            True for a step that may be drawn; by default every step.
        """
        return np.ones(len(rows), np.bool_)

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the rows to draw from, given all steps that match the query.

        If you can check each step independently, override `may_start` instead, which is faster.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of the matching steps, ascending by position. With `by_episode`, they are the first
            steps of complete episodes that have a matching step.

        Returns
        -------
        ndarray of int64, shape (A,) or (A, n)
            For each anchor, one of `rows`, or n of `rows` if several steps are drawn together; -1
            for a missing step. The first row identifies the anchor and must be unique.
        """
        anchors: np.ndarray = rows[self.may_start(trajectories, rows)]
        return anchors

    @property
    def lists_anchors(self) -> bool:
        """Whether the steps that may be drawn depend on all matching steps together, a bool."""
        return self.by_episode or type(self).anchors is not Unit.anchors

    @property
    def starts_anywhere(self) -> bool:
        """Whether every step may be drawn, so that no step has to be checked, a bool."""
        return not self.lists_anchors and type(self).may_start is Unit.may_start

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the layout of the drawn anchors.

        Every subclass must implement this method.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (B,) or (B, n)
            Rows of the drawn anchors, as `anchors` returned them.
        rng : numpy.random.Generator
            Source of all randomness, so that a batch can be rebuilt.

        Returns
        -------
        Layout
            Rows and columns of the batch.

        Raises
        ------
        NotImplementedError
            If the subclass does not implement the method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define the layout of its items; implement layout()"
        )

    def inputs(self, fields: Sequence[str] | None, stored: Sequence[str]) -> list[str] | None:
        """Return the keys of the batch that `assemble` receives.

        Parameters
        ----------
        fields : sequence of str, optional
            Keys that the caller requests, or None for all.
        stored : sequence of str
            Names of all stored fields.

        Returns
        -------
        list of str, optional
            By default `fields` and the keys of the unit, or None for all keys.
        """
        return None if fields is None else list(dict.fromkeys((*fields, *self.keys())))

    @property
    def assembles(self) -> bool:
        """Whether the class overrides `assemble`, a bool."""
        return type(self).assemble is not Unit.assemble

    def assemble(
        self, batch: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Mapping[str, np.ndarray]:
        """Return the arrays of a batch, computed from the batch that `layout` produced.

        Override this method to compute with values, for example to concatenate tokens or to drop
        rows.

        Parameters
        ----------
        batch : mapping of str to ndarray
            The batch that `layout` produced, with B items. If `fields` was passed to `sample`, the
            batch has these fields and the keys of the unit.
        rng : numpy.random.Generator
            Source of all randomness, so that a batch can be rebuilt.

        Returns
        -------
        mapping of str to ndarray
            Arrays of equal length R. If R differs from B, or the rows are in another order, also
            return `drawn`, integers [R] from 0 to B - 1: the index of the item of each row. expdb
            sets `position` [R] to the position of the item, and adds missing keys of the sampler.
        """
        return batch

    @property
    def has_budget(self) -> bool:
        """Whether `select_within_budget` may leave out drawn items, a bool."""
        return False

    def select_within_budget(self, batch: Mapping[str, Any], positions: np.ndarray) -> np.ndarray:
        """Return a mask of the drawn items to keep.

        If `has_budget` is True, expdb calls this method before `assemble`.

        Parameters
        ----------
        batch : mapping of str to ndarray
            The batch that `layout` produced, with B items.
        positions : ndarray of int64, shape (B,)
            Position of each item; the smallest is the oldest item.

        Returns
        -------
        ndarray of bool, shape (B,)
            True for the items to keep, by default all.
        """
        return np.ones(len(positions), np.bool_)

    @property
    def annotated_field(self) -> str | None:
        """The field with the tokens that `Batch.annotate` aligns arrays with, a str or None."""
        return None

    def shard(
        self, batch: Mapping[str, np.ndarray], rank: int, ranks: int, rows_multiple: int = 1
    ) -> dict[str, np.ndarray]:
        """Return the rows of a batch for one of several ranks.

        All rows of an item belong to one rank.

        Parameters
        ----------
        batch : mapping of str to ndarray
            A whole batch of this unit.
        rank : int
            Number of the rank, from 0.
        ranks : int
            Number of ranks, at least 1.
        rows_multiple : int, default 1
            Ignored by default. A unit with `pads_rows` adds empty rows until the number of rows is
            a multiple of this number.

        Returns
        -------
        dict of str to ndarray
            The arrays of `batch`, with the rows of this rank.
        """
        items = batch["drawn"] if self.assembles else np.arange(len(next(iter(batch.values()))))
        in_shard = items % ranks == rank
        return {name: array[in_shard] for name, array in batch.items()}


@dataclass(frozen=True)
class Step(Unit):
    """Return each drawn step as one row of the batch.

    This is the default unit.
    """

    checks_results: ClassVar[bool] = False

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The key of the steps that may be drawn: `()`, because every step may be drawn."""
        return ()

    @property
    def reach(self) -> int | None:
        """The number of steps that a change of one step's successor affects: 1, the step itself."""
        return 1

    @property
    def follows_links(self) -> bool:
        """Whether the unit reads neighbours of steps: False."""
        return False

    @property
    def window(self) -> range | None:
        """The offsets of the steps that `layout` reads: 0, the drawn step."""
        return range(1)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the layout of the drawn steps.

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
            Layout of the drawn rows, without columns.
        """
        return Layout(rows)
