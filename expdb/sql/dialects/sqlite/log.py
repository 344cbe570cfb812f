"""The write-ahead log of a file: when it is folded in, and who keeps it from being."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from expdb import errors
from expdb.sql.dialects.sqlite.connection import checkpoint, connect, wal_bytes
from expdb.sql.dialects.sqlite.files import may_write, readers
from expdb.sql.dialects.sqlite.open_files import FileUse

# Of log. A checkpoint syncs, which single steps would feel at 16 MiB.
CHECKPOINT_BYTES = 64 << 20
# Bounds what a power loss can take at durability="normal", while anybody writes.
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_WAIT_MS = 2_000
# Of log that cannot be folded in: from here on people are told who holds it.
PINNED_BYTES = 256 << 20


class WriteAheadLog:
    """The log of one file, as one handle sees it."""

    def __init__(self, path: str):
        self._path = path
        self._due_at, self._pinned_at = CHECKPOINT_BYTES, PINNED_BYTES
        self._checkpointed = time.monotonic()
        self._warning: str | None = None

    def is_due(self) -> bool:
        """Return whether it is time to fold the log into the file."""
        size, now = wal_bytes(self._path), time.monotonic()
        return size >= self._due_at or (size > 0 and now - self._checkpointed >= CHECKPOINT_SECONDS)

    def checkpoint(
        self, connection: Any, translated: Callable[[BaseException], BaseException]
    ) -> None:
        """Fold the log into the file, as far as readers allow it."""
        size = wal_bytes(self._path)
        try:
            complete = checkpoint(connection, CHECKPOINT_WAIT_MS)
        except Exception as error:
            # The write itself is committed; a full disk is told by the next one.
            complete = False
            if not isinstance(translated(error), errors.ExpDBError):
                raise
        # A reader pins the log: do not make every write wait for it, only one in each further
        # 64 MiB or 5 s.
        self._due_at = CHECKPOINT_BYTES if complete else size + CHECKPOINT_BYTES
        self._checkpointed = time.monotonic()
        if complete:
            self._pinned_at = PINNED_BYTES
        elif size >= self._pinned_at:
            self._pinned_at = 2 * size
            who = " and ".join(readers(self._path)) or "a reader that cannot be told here"
            self._warning = (
                f"the write-ahead log of {self._path} has {size >> 20:,} MB and cannot be folded "
                f"in: {who} has been reading one snapshot all along; end that, or the log grows on"
            )

    def warn(self) -> None:
        """Give the warning that the last checkpoint left, once."""
        if self._warning is not None:
            warning, self._warning = self._warning, None
            errors.warn(warning)


def remove_empty_log(path: str, module: ModuleType) -> None:
    """Take away the empty log that reading makes.

    Only a connection that may write removes it, as the last to leave.
    """
    if not os.path.exists(path + "-wal") or wal_bytes(path) or not may_write(path):
        return
    # Not ours to insist on: others may be at it.
    with suppress(module.Error, OSError), FileUse(path):
        connection = connect(path, module, durability="normal", busy_ms=0)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        finally:
            connection.close()
