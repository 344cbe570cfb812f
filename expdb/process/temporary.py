"""Private temporary folders.

One whose program was killed is removed by the next program that makes one.
"""

import os
import shutil
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where folders of killed programs stay
    fcntl = None  # type: ignore[assignment]

PREFIX = "expdb-memory-"
# a file that the folder's program holds locked, whatever its process number means elsewhere
LOCK = "expdb.lock"
# what it holds, so that nobody else's folder is taken for ours
MARK = b"expdb: a private temporary database\n"
FILES = ("memory.db", "memory.db-wal", "memory.db-shm", LOCK)


class Folder:
    """A folder of this process; a forked child leaves it to the parent."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._pid = os.getpid()
        # Locked before it has its name, so that nobody finds the folder without an owner.
        self._lock = os.open(
            self.path / f"{LOCK}.new", os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600
        )
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, MARK)
        os.rename(self.path / f"{LOCK}.new", self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder with all that is in it; twice is once."""
        if self._pid == os.getpid() and self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned() -> None:
    """Remove the folders that no process holds."""
    if fcntl is None:
        return
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # somebody else's, or gone just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.read(descriptor, len(MARK)) == MARK:
                for name in FILES:
                    lock.with_name(name).unlink(missing_ok=True)
                lock.parent.rmdir()
        except OSError:  # its program runs, or somebody keeps more in it
            continue
        finally:
            os.close(descriptor)
