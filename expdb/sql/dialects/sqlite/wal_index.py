"""The index of a write-ahead log, whose header tells of every commit for the cost of one read.

It is the `-shm` file beside the database (sqlite.org/walformat.html, section 2.1). To ask SQLite
whether anything was committed, it takes locks, and wakes up a lot of code: 10 microseconds, and 100
where the caches are cold. It looks at the same header.

**A process that closes a file drops all locks that it holds on it, SQLite's among them.** So no
descriptor is closed until the file has no name any more: the last connection of all processes
deletes it, and then nobody has locks on it that count. Until then it is kept, and used again. A
descriptor is a number, which nobody closes when it is lost; an `mmap` has one of its own that it
closes when it is collected, or cannot be made.
"""

import os
import sys
from contextlib import suppress

HEADER = 48  # bytes
CHANGE_COUNTER = slice(8, 12)  # commit counter in the header, in native byte order
IS_READY = 12  # where the header says that it can be used
_KNOWN_TO_WORK = sys.platform in ("linux", "darwin")  # elsewhere locks hinder reading

_descriptors: dict[tuple[int, int], int] = {}  # by device and inode
_twice: list[int] = []  # those that another thread has opened at the same time


class WalIndex:
    """The index as it is while a connection is open that has read it."""

    def __init__(self, path: str):
        self._descriptor = _descriptor(path + "-shm") if _KNOWN_TO_WORK else None

    def header(self) -> bytes | None:
        """Return what differs from one commit to the next, None where that cannot be told."""
        descriptor = self._descriptor
        if descriptor is None:
            return None
        try:
            found = os.pread(descriptor, HEADER, 0)
        except OSError:  # another thread has closed it
            return None
        return found if len(found) == HEADER and found[IS_READY] else None

    def close(self) -> None:
        """Tell nothing from now on: the connection is closed, and what follows is another file."""
        self._descriptor = None


def is_next_commit(before: bytes, after: bytes) -> bool:
    """Return whether exactly one commit separates two headers."""
    counts = [int.from_bytes(header[CHANGE_COUNTER], sys.byteorder) for header in (before, after)]
    return counts[1] == (counts[0] + 1) % 2**32


def _descriptor(path: str) -> int | None:
    """Return a descriptor of a file, the one that there is if any; None where it cannot be read."""
    try:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key in _descriptors:
            return _descriptors[key]
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, KeyError):  # there is none, or it may not be read: then SQLite is asked
        return None
    kept = _descriptors.setdefault(key, opened)
    if kept != opened:
        _twice.append(opened)
    return kept


def close_deleted() -> None:
    """Close the descriptors of files that were deleted, as nobody else ever will."""
    for key, descriptor in list(_descriptors.items()):
        if _is_deleted(descriptor) and _descriptors.pop(key, None) is not None:
            os.close(descriptor)
    for descriptor in [*_twice]:
        if _is_deleted(descriptor):
            with suppress(ValueError):  # another thread has taken it
                _twice.remove(descriptor)
                os.close(descriptor)


def _is_deleted(descriptor: int) -> bool:
    try:
        return os.fstat(descriptor).st_nlink == 0
    except OSError:  # another thread has closed it
        return False
