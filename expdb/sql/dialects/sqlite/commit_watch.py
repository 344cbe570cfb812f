"""What stands for the last commit to a file, asked no more often than is worth it."""

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from expdb.process.locks import locked
from expdb.sql.dialects.sqlite.open_files import open_files
from expdb.sql.dialects.sqlite.wal_index import WalIndex


class LastCommit(NamedTuple):
    """What SQLite says of the last commit to a file."""

    version: object  # differs from one commit to the next
    log: WalIndex | None  # that was read by the connection that was asked
    header: bytes | None  # of the log's index, as it was before


_NOTHING = LastCommit(None, None, None)


class CommitWatch:
    """Tells the last commit to a file, or one that was the last up to `max_lag` seconds ago.

    What this process has committed, by whatever handle, is always seen. SQLite is not asked while
    the index of its log is the same: where the caches are cold, its answer takes as long as drawing
    a hundred steps.
    """

    def __init__(self, path: str, max_lag: float, ask: Callable[[], LastCommit]):
        self._path, self._max_lag, self._ask = path, max_lag, ask
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know nothing: at the beginning, and in a forked child."""
        self._lock = threading.Lock()
        # When that was known last, after which commit of this process, and what it is: one tuple,
        # as other threads read it.
        self._known: tuple[float, object, LastCommit] = (-math.inf, None, _NOTHING)

    @property
    def is_used(self) -> bool:
        """Whether a caller has asked for a version."""
        return self._known[2] is not _NOTHING

    def is_last(self, version: object) -> bool:
        """Return whether a version is that of the last commit, as the log's index says now."""
        last = self._known[2]
        is_known = last.log is not None and last.header is not None and last.version == version
        return is_known and last.log is not None and last.log.header() == last.header

    def version_after_commit(
        self, seen: object, before: bytes, after: bytes, own: object
    ) -> object | None:
        """Return the version after a commit of this process; None if `seen` is not the one before.

        `before` and `after` are the WAL-index headers around that commit. `own` identifies it.
        """
        at, _, last = self._known
        if last.log is None or last.version != seen or last.header != before:
            return None
        version = "commit", after
        self._known = at, own, LastCommit(version, last.log, after)
        return version

    def version(self, now: float) -> object:
        """Return what differs from one commit to the next, at a time of the monotonic clock."""
        own = open_files.commits.get(self._path)
        at, after, last = self._known
        if after is not own or now - at >= self._max_lag:
            # The index tells nothing once its connection is closed: then it may be another file's.
            if last.log is None or last.header is None or last.log.header() != last.header:
                last = locked(self._lock, self._ask)
            self._known = now, own, last
        return last.version
