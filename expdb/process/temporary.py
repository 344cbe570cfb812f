"""Private temporary folders.

If a program is killed, the next program that creates a temporary folder removes the folder of the
killed program.
"""

import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: folders of killed programs are not removed
    fcntl = None  # type: ignore[assignment]

PREFIX = "expdb-memory-"
# The program that owns the folder locks this file. Process ids do not work across PID namespaces.
LOCK = "expdb.lock"
# Content of the lock file. It prevents the removal of a folder that expdb did not create.
MARK = b"expdb: a private temporary database\n"
FILES = ("memory.db", "memory.db-wal", "memory.db-shm", LOCK)


class Folder:
    """A temporary folder of this process. A forked child process does not remove it."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._pid = os.getpid()
        # The file is locked before it gets its final name, so that no other process takes the
        # folder for an abandoned one.
        self._lock = os.open(
            self.path / f"{LOCK}.new", os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600
        )
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, MARK)
        os.rename(self.path / f"{LOCK}.new", self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder and its contents. Calling it more than once has no effect."""
        if self._pid == os.getpid() and self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned() -> None:
    """Remove the folders whose lock file no process has locked."""
    if fcntl is None:
        return
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # the lock file belongs to another user, or was just removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(descriptor, len(MARK)) == MARK:
                for name in FILES:
                    lock.with_name(name).unlink(missing_ok=True)
                lock.parent.rmdir()
        except OSError:  # the program is running, or the folder contains other files
            continue
        finally:
            os.close(descriptor)
