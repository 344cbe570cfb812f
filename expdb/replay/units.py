"""Units say what each drawn step becomes.

They are settings, frozen, and work with every sampler and query.

A unit says which steps may be drawn (its anchors), and which rows an anchor becomes (its layout).
Here is what all have in common, and the single step; transitions.py has those that make
transitions, sequences.py those that make sequences, episodes and groups.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from expdb.replay.layout import Layout, Trajectories


class Unit:
    """Say what each drawn step becomes: the base of all units, and of your own.

    Write `layout`, and what differs from a single step, as a frozen dataclass, and every query,
    sampler and database works with it; see docs/extending.md.
    """

    by_episode: ClassVar[bool] = False  # drawn are complete episodes of which any step matches

    def __init_subclass__(cls) -> None:
        # If a subclass overrides `may_start` or `anchors`, the inherited cache hints do not apply.
        if "may_start" in vars(cls) or "anchors" in vars(cls):
            for name in ("anchor_key", "reach", "lookback"):
                if name not in vars(cls):
                    setattr(cls, name, vars(Unit)[name])

    @property
    def what(self) -> str:
        """Name what may be drawn, for people."""
        return "complete episodes" if self.by_episode else "steps"

    @property
    def window(self) -> range | None:
        """The offsets of the steps that the unit reads around a drawn step, within its episode.

        `range(0, 3)` are the step and the two after it, `range(-3, 1)` those before it and the step
        itself. These rows are read in one go, and `trajectories.around(rows, self.window)` returns
        them. If it is None, the unit finds its rows by other methods.
        """
        return None

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that it looks at, such as "task_id"."""
        return ()

    def keys(self) -> tuple[str, ...]:
        """Return the keys that a batch has of the unit: the columns of its layout."""
        return ()

    def derived(self, fields: Sequence[str], ended_with: Set[str]) -> list[str]:
        """Return the fields of which a batch has what follows, as `next_<field>`.

        `ended_with` are those that any `end()` received.
        """
        return []

    def stacked(self, fields: Sequence[str], derived: Sequence[str]) -> list[str]:
        """Return the fields that are stacks of frames in a batch."""
        return []

    @property
    def takes_last_step(self) -> bool:
        """Whether a stored `next_<field>` is that of the layout's `last_rows`."""
        return False

    # -- which steps may be drawn --------------------------------------------------------------

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """What decides which steps may be drawn: units that are equal in it share their lists.

        `()` is for those that can draw every step.
        """
        return (self,)

    @property
    def reach(self) -> int | None:
        """How many steps, a step and those before it, may be drawn or not by its successor.

        None where that is unknown: then all of them are looked at after each change.
        """
        return None

    @property
    def lookback(self) -> int:
        """How many steps after one that is gone may not be drawn because of it."""
        return 0

    def may_start(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return which of the steps may be drawn, bool, each by itself."""
        return np.ones(len(rows), np.bool_)

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the rows to draw from, [A], or [A, n] where several rows are drawn together.

        `rows` are those of the steps that match, ascending by position: with `by_episode` the first
        steps of complete episodes. The first row of each anchor names it, and no other has it;
        UNKNOWN stands for none. For what depends on each step alone `may_start` is faster.
        """
        found: np.ndarray = rows[self.may_start(trajectories, rows)]
        return found

    @property
    def lists_anchors(self) -> bool:
        """Whether which steps may be drawn depends on all that match, not on each alone."""
        return self.by_episode or type(self).anchors is not Unit.anchors

    @property
    def starts_anywhere(self) -> bool:
        """Whether every step may be drawn: then nothing has to be listed."""
        return not self.lists_anchors and type(self).may_start is Unit.may_start

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return what each drawn anchor becomes; `rows` are [B], or [B, n] as `anchors` said."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it is: write layout()")

    @property
    def assembles(self) -> bool:
        """Whether it makes other arrays of a batch."""
        return type(self).assemble is not Unit.assemble

    def assemble(
        self, batch: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Mapping[str, np.ndarray]:
        """Return the arrays of a batch, computed from the batch that `layout` produced.

        Override it to compute with values, for example to concatenate tokens or to drop rows.

        Parameters
        ----------
        batch : mapping of str to ndarray
            The batch that `layout` produced, with B items. If `fields` was passed to `sample`, it
            has these fields and the keys of the unit.
        rng : numpy.random.Generator
            The source of all randomness, so that a batch can be made again.

        Returns
        -------
        mapping of str to ndarray
            Arrays of equal length R. If R differs from B, or the rows are in another order, also
            return `drawn`, integers [R] from 0 to B - 1: the item of each row. `position` [R] is
            always that of the drawn item; the sampler's keys are added if they are missing.
        """
        return batch


@dataclass(frozen=True)
class Step(Unit):
    """The step as it is stored."""

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """Every step may be drawn."""
        return ()

    @property
    def reach(self) -> int | None:
        """None but itself."""
        return 1

    @property
    def window(self) -> range | None:
        """The step alone."""
        return range(1)

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the rows that each drawn step becomes."""
        return Layout(rows)
