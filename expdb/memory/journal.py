"""What the rows in memory keep beside their arrays: changes, open episodes, final observations."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

NONE = np.empty(0, np.int64)


MANY_OPEN = 4096  # episodes that runs left open are forgotten with their steps


ENTRY_BYTES = 250  # of memory, about, that Python takes for a small object and what leads to it


# Entries and bytes kept for those who follow; whoever is further behind begins anew.
JOURNAL, JOURNAL_BYTES = 4096, 1 << 16


class Change(NamedTuple):
    """A change to the rows in memory; positions `begin` to `end` are new."""

    begin: int
    end: int
    # Rows that were loaded before and say something else now.
    revised: np.ndarray = NONE
    # Rows that were loaded before and have another successor, or whose episode has ended.
    relinked: np.ndarray = NONE
    # Rows whose priority another process has set.
    prioritised: np.ndarray = NONE
    episodes: np.ndarray = NONE  # episodes whose own columns were changed
    advanced: np.ndarray = NONE  # episodes that have new steps
    # Rows held of which the step before was evicted.
    orphaned: np.ndarray = NONE
    deleted: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        arrays = [one for one in self[2:8] if one is not NONE]
        return ENTRY_BYTES + sum([array.nbytes + ENTRY_BYTES // 2 for array in arrays])


@dataclass
class OpenEpisode:
    """Where an episode that may go on stands, as far as it is loaded."""

    last: int  # position
    ordinal: int  # of the next step
    first: int  # position of its first step, -1 where that is not held
    count: int  # steps held


@dataclass
class FinalRows:
    """Which rows behind the zero row are taken, and until which position is evicted."""

    free: list[int] = field(default_factory=list)
    taken: deque[tuple[int, int]] = field(default_factory=deque)  # position of the step before, row


@dataclass
class Priorities:
    """What was known of the priorities of steps when their rows were forgotten."""

    positions: np.ndarray  # ascending
    priority: np.ndarray  # and what steps that were given none start with, below 0
    unsaved: np.ndarray
    started: int

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.positions.nbytes + self.priority.nbytes + self.unsaved.nbytes


class EpisodeColumns(Protocol):
    """Columns of episodes, by the id of the episode."""

    def of(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return a column of episodes."""


class StepColumn(Protocol):
    """A column of steps that few of them have a value of their own in."""

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the values of rows."""
