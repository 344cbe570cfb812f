"""What stands for the last commit to a file, asked no more often than is worth it."""

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from expdb.locks import locked
from expdb.sql.dialects.sqlite.open_files import open_files
from expdb.sql.dialects.sqlite.wal_index import WalIndex


class _Look(NamedTuple):
    """What was found, in one tuple, as other threads read it."""

    at: float  # when it was found, or found to be right still
    own: object  # the last commit of this process then
    header: bytes | None  # of the log's index, read before SQLite was asked
    log: WalIndex | None
    answer: object  # SQLite's


_NOTHING = _Look(-math.inf, None, None, None, None)


class CommitWatch:
    """Tells the last commit to a file, or one that was the last up to `max_lag` seconds ago.

    What this process has committed, by whatever handle, is always seen. `ask` returns what differs
    from one commit to the next, and the index of the log that the connection reads which it was
    asked of: to ask costs as much as drawing a hundred steps where the caches are cold, so it is
    not done while the index is the same.
    """

    def __init__(
        self, path: str, max_lag: float, ask: Callable[[], tuple[object, WalIndex, bytes | None]]
    ):
        self._path, self._max_lag, self._ask = path, max_lag, ask
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know nothing: at the beginning, and in a forked child."""
        self._lock = threading.Lock()
        self._last = _NOTHING

    def commit(self) -> object:
        """Return what differs from one commit to the next."""
        now, own = time.monotonic(), open_files.commits.get(self._path)
        at, after, header, log, answer = self._last
        if after is own and now - at < self._max_lag:
            return answer
        # It tells nothing once its connection is closed: then it may be another file's.
        if log is None or header is None or log.header() != header:
            answer, log, header = locked(self._lock, self._ask)
        self._last = _Look(now, own, header, log, answer)
        return answer
