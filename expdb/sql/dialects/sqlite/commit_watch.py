"""What stands for the last commit to a file, asked no more often than is worth it."""

import math
import threading
import time
from collections.abc import Callable

from expdb.locks import locked
from expdb.sql.dialects.sqlite.open_files import open_files


class CommitWatch:
    """Tells the last commit to a file, or one that was the last up to `max_lag` seconds ago.

    What this process has committed, by whatever handle, is always seen. To ask the file costs as
    much as drawing a hundred steps where the caches are cold, so it is not asked at every sample.
    """

    def __init__(self, path: str, max_lag: float, ask: Callable[[], object]):
        self._path, self._max_lag, self._ask = path, max_lag, ask
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know nothing: at the beginning, and in a forked child."""
        self._lock = threading.Lock()
        # When it was asked, after which commit of this process, and what the answer was: one tuple,
        # as other threads read it.
        self._last: tuple[float, object, object] = (-math.inf, None, None)

    def commit(self) -> object:
        """Return what differs from one commit to the next."""
        now, own = time.monotonic(), open_files.commits.get(self._path)
        asked, after, answer = self._last
        if after is not own or now - asked >= self._max_lag:
            answer = locked(self._lock, self._ask)
            self._last = now, own, answer
        return answer
