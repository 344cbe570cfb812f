"""The index of a write-ahead log, whose header tells of every commit for the cost of one read.

It is the `-shm` file beside the database (sqlite.org/walformat.html, section 2.1). To ask SQLite
whether anything was committed, it takes locks, and wakes up a lot of code: 10 microseconds, and 100
where the caches are cold. It looks at the header, too.

**A process that closes a file drops all locks that it holds on it, SQLite's among them.** So a
descriptor is closed only once its file has no name any more: the last connection of all processes
deletes it, and then nobody has locks on it that count. Until then it is kept, and used again.
"""

import os
import sys
from contextlib import suppress

HEADER = 48  # bytes
IS_READY = 12  # where the header says that it can be used
_KNOWN_TO_WORK = sys.platform in ("linux", "darwin")  # elsewhere locks hinder reading

# Descriptors by device and inode. One that another thread has opened at the same time, too.
_descriptors: dict[tuple[int, int], int] = {}
_twice: list[int] = []


class WalIndex:
    """The index as it is while a connection is open, which it has been read by."""

    def __init__(self, path: str):
        self._descriptor: int | None = _descriptor(path + "-shm") if _KNOWN_TO_WORK else None

    def header(self) -> bytes | None:
        """Return what differs from one commit to the next, None where that cannot be told."""
        descriptor = self._descriptor
        if descriptor is None:
            return None
        try:
            found = os.pread(descriptor, HEADER, 0)
        except OSError:
            return None
        return found if len(found) == HEADER and found[IS_READY] else None

    def close(self) -> None:
        """Tell nothing from now on: the connection is closed, and what follows is another file."""
        self._descriptor = None


def _descriptor(path: str) -> int | None:
    """Return a descriptor of a file, the one that there is if any."""
    try:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        known = _descriptors.get(key)
        if known is not None:
            return known
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # there is none, or it may not be read: then SQLite is asked
        return None
    kept = _descriptors.setdefault(key, opened)
    if kept != opened:
        _twice.append(opened)
    return kept


def close_deleted() -> None:
    """Close the descriptors of files that were deleted, as nobody else ever will."""
    for key, descriptor in list(_descriptors.items()):
        if not os.fstat(descriptor).st_nlink and _descriptors.pop(key, None) is not None:
            os.close(descriptor)
    for descriptor in [*_twice]:
        if not os.fstat(descriptor).st_nlink:
            with suppress(ValueError):  # another thread has closed it
                _twice.remove(descriptor)
                os.close(descriptor)
