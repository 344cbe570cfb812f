"""State of the rows in memory besides the arrays: changes, open episodes, final observations."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

NONE = np.empty(0, np.int64)


# With more open episodes than this, open episodes whose last step is no longer in memory are
# dropped.
MANY_OPEN = 4096


ENTRY_BYTES = 250  # approximate memory of a small Python object and the references to it


# Maximum number of entries and bytes of the journal. A follower that is further behind is rebuilt.
JOURNAL, JOURNAL_BYTES = 4096, 1 << 16


class Change(NamedTuple):
    """A change to the rows in memory; the positions from `begin` up to `end` are new."""

    begin: int
    end: int
    # Older positions with changed values.
    revised: np.ndarray = NONE
    # Older positions whose successor changed, or whose episode has ended.
    relinked: np.ndarray = NONE
    # Positions whose priority was read from the database.
    prioritised: np.ndarray = NONE
    episodes: np.ndarray = NONE  # episodes whose own columns were changed
    advanced: np.ndarray = NONE  # episodes that have new steps
    # Positions in memory whose previous step was evicted.
    orphaned: np.ndarray = NONE
    deleted: bool = False

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        arrays = [array for array in self[2:8] if array is not NONE]
        return ENTRY_BYTES + sum([array.nbytes + ENTRY_BYTES // 2 for array in arrays])


@dataclass
class OpenEpisode:
    """The loaded part of an episode that may continue."""

    last: int  # position of the last step
    ordinal: int  # of the next step
    first: int  # position of the first step, -1 if it is not in memory
    count: int  # steps in memory


@dataclass
class FinalRows:
    """The rows of final observations: free rows, and rows in use with the step before each."""

    free: list[int] = field(default_factory=list)
    taken: deque[tuple[int, int]] = field(default_factory=deque)  # position of the step before, row


@dataclass
class Priorities:
    """The priorities of steps, kept while `Resident.forget` drops the rows."""

    positions: np.ndarray  # ascending
    priority: np.ndarray  # as in the column `:priority`; negative for an initial priority
    unsaved: np.ndarray
    started: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.positions.nbytes + self.priority.nbytes + self.unsaved.nbytes


class EpisodeColumns(Protocol):
    """Columns of episodes, by the id of the episode."""

    def of(self, name: str, episodes: np.ndarray) -> np.ndarray:
        """Return a column of episodes."""

    def parent_of(self, episode: int) -> int:
        """Return the parent of an episode, or UNKNOWN."""

    def texts(self, name: str, episodes: np.ndarray) -> list[str | None]:
        """Return the texts of a column of episodes."""


class StepColumn(Protocol):
    """A column in which few steps have a value of their own."""

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the values of rows."""


class AgentColumn(Protocol):
    """The agents of steps."""

    def codes(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for the agent of each step."""

    def are(self, agent_id: str, rows: np.ndarray) -> np.ndarray:
        """Return whether each step has this agent, bool."""

    def ordinals(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of earlier steps of the agent in the episode of each step."""
