"""Commits of this process that are not yet applied to its rows in memory."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from expdb.storage.catalog import Fields
from expdb.storage.write_plan import WritePlan

MAX_BYTES = 64 << 20  # approximate limit for queued commits, before compression
MAX_COMMITS = 4096
BYTES_PER_STEP = 500  # approximate memory per step, without its fields


@dataclass(frozen=True)
class BufferCounters:
    """Counters of a buffer directly after a commit."""

    oldest: int  # every step before this position is evicted
    size: int
    revision: int
    deleted: int


@dataclass(frozen=True)
class Commit:
    """A commit of this process to one buffer, with the values that were written."""

    first: int  # position of the first new step; after clear(), the next position
    plan: WritePlan | None  # None if the buffer was cleared
    fields: Fields  # fields of the buffer, unchanged by the write
    counters: BufferCounters
    commit_versions: Any  # see `Transaction`


class CommitQueue:
    """A queue that passes commits from the writers of a process to its rows in memory.

    The queue accepts commits only while the rows are in memory. If the process does not sample, the
    queue may exceed a limit. It then drops all commits, and the next sample reads the steps from
    the database.
    """

    def __init__(self) -> None:
        self.is_accepting = False
        self.queued: deque[Commit] = deque()
        self._nbytes = 0

    def put(self, commit: Commit, nbytes: int) -> None:
        """Add a commit whose fields take `nbytes` bytes."""
        count = 0 if commit.plan is None else commit.plan.count
        self._nbytes += nbytes + BYTES_PER_STEP * count
        if self._nbytes > MAX_BYTES or len(self.queued) >= MAX_COMMITS:
            self.is_accepting = False
            self.take_all()
        else:
            self.queued.append(commit)

    def take_all(self) -> list[Commit]:
        """Remove all commits and return them in order of position."""
        self._nbytes = 0
        taken: list[Commit] = []
        while self.queued:
            taken.append(self.queued.popleft())
        taken.sort(key=lambda commit: commit.first)
        return taken
