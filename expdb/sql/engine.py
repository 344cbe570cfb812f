"""The interface of a database: connections, and transactions to read and write.

The dialects implement this interface.
"""

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from expdb import errors
from expdb.keywords import checked_keywords
from expdb.sql.dialects.base import Dialect, Finding
from expdb.sql.session import Transaction

Result = TypeVar("Result")
Owner = TypeVar("Owner", bound="_HasEngine")
Given = ParamSpec("Given")

log = logging.getLogger(__name__)

FIRST_SECONDS = 2.0  # for the attempts to reach a server whose URL may be wrong
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two attempts to reach a server


class Attempts:
    """Wait between attempts to reach a server, longer each time and with jitter."""

    def __init__(self, seconds: float):
        self._deadline, self._pause = time.monotonic() + seconds, SHORTEST_PAUSE

    def again(self, error: BaseException) -> bool:
        """Wait and return True if another attempt may help and the deadline has not passed."""
        if not isinstance(error, errors.ConnectionLost) or time.monotonic() >= self._deadline:
            return False
        pause = self._pause * (0.5 + random.random())
        log.warning("%s; trying again in %.2f s", error, pause)
        time.sleep(pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


class Engine(ABC):
    """All connections of one handle to one database. Threads may share it."""

    dialect: Dialect
    location: str  # without passwords, for messages
    read_only: bool
    timeout: float
    replaces_text = False  # whether characters that cannot be stored are replaced
    was_reached = True  # whether a connection was ever open
    # Its `limit` is an engine and a deadline for its calls, a time of `time.monotonic`.
    _thread = threading.local()

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Set a deadline, a time of `time.monotonic`, for calls of this thread inside the block."""
        before = getattr(self._thread, "limit", None)
        self._thread.limit = self, deadline
        try:
            yield
        finally:
            self._thread.limit = before

    def remaining(self) -> float:
        """Return how many seconds a call that begins now may wait."""
        owner, deadline = getattr(self._thread, "limit", None) or (None, 0.0)
        left: float = deadline - time.monotonic() if owner is self else self.timeout
        return min(self.timeout, max(0.0, left))

    @abstractmethod
    def examine(self) -> list[Finding]:
        """Return findings about the database and its use, for `expdb doctor`.

        Each finding has a subject, a value, and a problem with its solution, or "" without a
        problem.
        """

    @abstractmethod
    def reading(self) -> Transaction:
        """Return a context manager in which all reads see one snapshot."""

    @abstractmethod
    def writing(self, timeout: float | None = None, *, outlives: bool = True) -> Transaction:
        """Return a context manager for a transaction.

        The transaction commits when the block ends, and rolls back if the block raises. It waits
        for other writers up to `timeout` seconds, by default up to `remaining()`. With
        `outlives`, the durability of the handle applies. Without `outlives`, a power loss may undo
        the commit; this suits writes about processes that the power loss would also end.
        """

    def appending(self) -> Transaction:
        """Return a context manager for one statement that is a transaction by itself."""
        return self.writing()

    @abstractmethod
    def sql(self) -> Transaction:
        """Return a context manager with a connection that cannot write, whatever SQL it runs."""

    @abstractmethod
    def changed_since(self, seen: object) -> object | None:
        """Return the current version of the database, or None if it equals `seen`.

        The result may be up to `max_lag` seconds old.
        """

    def is_unchanged(self, seen: object) -> bool:
        """Return whether nothing was committed since `seen`, whatever `max_lag` is.

        By default, return False, because only a round trip could detect commits.
        """
        return False

    @abstractmethod
    def version_after_commit(self, seen: object, commit_versions: Any) -> object | None:
        """Return the database version after a commit of this handle.

        Return None if `seen` is not the version directly before the commit.
        """

    def set_application_name(self, *parts: str) -> None:  # noqa: B027
        """Set the name of this process in the list of connections of a server; files have none."""

    def retry(
        self, work: Callable[..., Result], *arguments: Any, at_most_once: bool = False
    ) -> Result:
        """Retry `work` while the server restarts; `at_most_once` excludes commits in doubt."""
        seconds = self.remaining()
        attempts = Attempts(seconds if self.was_reached else min(seconds, FIRST_SECONDS))
        while True:
            try:
                return work(*arguments)
            except errors.ConnectionLost as error:
                in_doubt = at_most_once and isinstance(error, errors.CommitUnknown)
                if in_doubt or not attempts.again(error):
                    raise

    @abstractmethod
    def nbytes(self) -> int:
        """Return the size of the database in bytes."""

    @abstractmethod
    def backup(self, target: str) -> None:
        """Copy the current database into a new file."""

    @abstractmethod
    def vacuum(self) -> None:
        """Return free space to the file system."""

    @abstractmethod
    def release(self) -> None:
        """Close idle connections; new connections are opened when they are needed."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


class _HasEngine(Protocol):
    @property
    def _engine(self) -> Engine: ...


def retry_on_restart(
    method: Callable[Concatenate[Owner, Given], Result],
) -> Callable[Concatenate[Owner, Given], Result]:
    """Retry a method while the server restarts, as `Engine.retry` does.

    Use it only for methods that are safe to repeat. The method also refuses unknown arguments.
    """
    method = checked_keywords()(method)

    @wraps(method)
    def call(owner: Owner, /, *arguments: Given.args, **options: Given.kwargs) -> Result:
        return owner._engine.retry(partial(method, owner, *arguments, **options))

    return call
