"""Commits of this process whose steps its rows in memory have not taken in yet."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from expdb.storage.catalog import Fields
from expdb.storage.write_plan import WritePlan

MOST_BYTES = 64 << 20  # of fields that wait, before compression
MOST_COMMITS = 4096
BYTES_PER_STEP = 500  # of memory, about, beside its fields


@dataclass(frozen=True)
class Counters:
    """The counters of a buffer after a commit."""

    oldest: int  # position: every step before it is evicted
    size: int
    revision: int
    deleted: int


@dataclass(frozen=True)
class Commit:
    """What this process has committed to a buffer, with the values that it still holds."""

    first: int  # position of the first step, or of the next one to be written
    plan: WritePlan | None  # None: the buffer was cleared
    fields: Fields  # of the buffer, which the write did not change
    counters: Counters
    span: Any  # see Transaction.span


class Commits:
    """A queue from the writers of a process to its rows in memory.

    It takes commits only while the rows are in memory. If nobody samples, it empties itself: then
    the next sample reads the steps from the database.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.waiting: deque[Commit] = deque()
        self._nbytes = 0

    def put(self, commit: Commit, nbytes: int) -> None:
        """Add a commit whose fields take so many bytes."""
        count = 0 if commit.plan is None else commit.plan.count
        self._nbytes += nbytes + BYTES_PER_STEP * count
        if self._nbytes > MOST_BYTES or len(self.waiting) >= MOST_COMMITS:
            self.is_wanted = False
            self.take()
        else:
            self.waiting.append(commit)

    def take(self) -> list[Commit]:
        """Return the commits in the order of their positions; none waits from now on."""
        self._nbytes = 0
        taken: list[Commit] = []
        while self.waiting:
            taken.append(self.waiting.popleft())
        taken.sort(key=lambda commit: commit.first)
        return taken
