"""Detect the last commit to a file with as few queries of SQLite as possible."""

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from expdb.process.locks import locked
from expdb.sql.dialects.sqlite.open_files import open_files
from expdb.sql.dialects.sqlite.wal_index import WalIndex


class LastCommit(NamedTuple):
    """The last commit to a file, as SQLite reports it."""

    version: object  # different for every commit
    log: WalIndex | None  # the index that the queried connection reads
    header: bytes | None  # header of the index before the query


_NOTHING = LastCommit(None, None, None)


class CommitWatch:
    """Return a version of the last commit to a file, at most `max_lag` seconds old.

    Commits of this process are always detected, through any handle. SQLite is not queried while the
    header of the WAL index is the same: with cold caches, a query takes as long as drawing a
    hundred steps.
    """

    def __init__(self, path: str, max_lag: float, read: Callable[[], LastCommit]):
        self._path, self._max_lag, self._read_last_commit = path, max_lag, read
        self.reset()

    def reset(self) -> None:
        """Reset the object, at the start and in a forked child."""
        self._lock = threading.Lock()
        # Time of the last check, id of this process's last commit at that time, and the result.
        # They form one tuple, because other threads read it.
        self._last_check: tuple[float, object, LastCommit] = (-math.inf, None, _NOTHING)

    @property
    def is_used(self) -> bool:
        """Whether a caller has read a version."""
        return self._last_check[2] is not _NOTHING

    def is_last(self, version: object) -> bool:
        """Return whether a version is that of the last commit, as the index header shows."""
        last = self._last_check[2]
        is_known = last.log is not None and last.header is not None and last.version == version
        return is_known and last.log is not None and last.log.header() == last.header

    def version_after_commit(
        self, seen: object, before: bytes, after: bytes, own: object
    ) -> object | None:
        """Return the version after a commit of this process, or None if `seen` is outdated.

        `before` and `after` are the WAL-index headers around the commit. `own` identifies the
        commit.
        """
        at, _, last = self._last_check
        if last.log is None or last.version != seen or last.header != before:
            return None
        version = "commit", after
        self._last_check = at, own, LastCommit(version, last.log, after)
        return version

    def version(self, now: float) -> object:
        """Return a version that is different for every commit; `now` is a monotonic time."""
        own = open_files.commits.get(self._path)
        at, after, last = self._last_check
        if after is not own or now - at >= self._max_lag:
            # Without a header, the index was closed with its connection, and the path may be
            # another file's.
            if last.log is None or last.header is None or last.log.header() != last.header:
                last = locked(self._lock, self._read_last_commit)
            self._last_check = now, own, last
        return last.version
