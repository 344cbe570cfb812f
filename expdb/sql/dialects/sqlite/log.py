"""The write-ahead log of a file: when to checkpoint it, and which processes prevent that."""

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from types import ModuleType
from typing import Any

from expdb import errors
from expdb.sql.dialects.sqlite.connection import checkpoint, connect, wal_bytes
from expdb.sql.dialects.sqlite.files import FileUse, may_write, readers

# Log size from which a checkpoint is due. At 16 MiB, syncs would slow down writes of single steps.
CHECKPOINT_BYTES = 64 << 20
# Longest time between checkpoints; limits the loss in a power failure at durability="normal".
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_WAIT_MS = 2_000
# Log size above which a warning names the processes that prevent checkpoints.
PINNED_BYTES = 256 << 20


class WriteAheadLog:
    """The write-ahead log of one file, with the checkpoints of one handle."""

    def __init__(self, path: str):
        self._path = path
        self._due_at, self._pinned_at = CHECKPOINT_BYTES, PINNED_BYTES
        self._checkpointed = time.monotonic()
        self._warning: str | None = None

    def is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        size, now = wal_bytes(self._path), time.monotonic()
        return size >= self._due_at or (size > 0 and now - self._checkpointed >= CHECKPOINT_SECONDS)

    def checkpoint(
        self, connection: Any, translated: Callable[[BaseException], BaseException]
    ) -> None:
        """Checkpoint the log, as far as readers allow it."""
        size = wal_bytes(self._path)
        try:
            complete = checkpoint(connection, CHECKPOINT_WAIT_MS)
        except Exception as error:
            # The write itself is committed; the next write reports a full disk.
            complete = False
            if not isinstance(translated(error), errors.ExpDBError):
                raise
        # If a reader blocks the checkpoint, try again after another 64 MiB or 5 s, so that not
        # every write waits for the checkpoint.
        self._due_at = CHECKPOINT_BYTES if complete else size + CHECKPOINT_BYTES
        self._checkpointed = time.monotonic()
        if complete:
            self._pinned_at = PINNED_BYTES
        elif size >= self._pinned_at:
            self._pinned_at = 2 * size
            who = " and ".join(readers(self._path)) or "an unknown reader"
            self._warning = (
                f"the write-ahead log of {self._path} has {size >> 20:,} MB and cannot be "
                f"checkpointed, because {who} keeps reading one snapshot; end that reader, or the "
                "log keeps growing"
            )

    def warn(self) -> None:
        """Emit the warning of the last checkpoint, once."""
        if self._warning is not None:
            warning, self._warning = self._warning, None
            errors.warn(warning)


def remove_empty_log(path: str, module: ModuleType) -> None:
    """Remove the empty log that a reading connection creates.

    SQLite removes the log only if the last connection that closes may write.
    """
    if not os.path.exists(path + "-wal") or wal_bytes(path) or not may_write(path):
        return
    # Best effort: other processes may use the file.
    with (
        suppress(module.Error, OSError),
        FileUse(path),
        closing(connect(path, module, durability="normal", busy_ms=0)) as connection,
    ):
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
