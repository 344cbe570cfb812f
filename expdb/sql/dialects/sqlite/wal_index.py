"""Read the header of the WAL index, which changes with every commit, in one system call.

The index is the `-shm` file beside the database (sqlite.org/walformat.html, section 2.1). SQLite
reads the same header to detect commits, but takes locks and runs more code. It takes 10
microseconds, or 100 with cold caches.

**A process that closes a file drops all locks that it holds on the file, including SQLite's.** So a
descriptor stays open, and is reused, until the file is deleted. The last connection of all
processes deletes the file; after that, no lock on it matters. The descriptor is a plain number, so
garbage collection does not close it. An `mmap` would have its own descriptor, which is closed when
the object is collected or cannot be created.
"""

import os
import sys
from contextlib import suppress

HEADER = 48  # bytes
CHANGE_COUNTER = slice(8, 12)  # commit counter in the header, in native byte order
IS_READY = 12  # byte that shows whether the header is initialized
_KNOWN_TO_WORK = sys.platform in ("linux", "darwin")  # on other systems, locks prevent reading

_descriptors: dict[tuple[int, int], int] = {}  # by device and inode
_twice: list[int] = []  # duplicate descriptors, opened by two threads at the same time


class WalIndex:
    """The WAL index, while a connection that has read it is open."""

    def __init__(self, path: str):
        self._descriptor = _descriptor(path + "-shm") if _KNOWN_TO_WORK else None

    def header(self) -> bytes | None:
        """Return bytes that are different for every commit, or None if they cannot be read."""
        descriptor = self._descriptor
        if descriptor is None:
            return None
        try:
            header = os.pread(descriptor, HEADER, 0)
        except OSError:  # another thread has closed it
            return None
        return header if len(header) == HEADER and header[IS_READY] else None

    def close(self) -> None:
        """Stop reading, because the connection is closed and the path may lead to another file."""
        self._descriptor = None


def is_next_commit(before: bytes, after: bytes) -> bool:
    """Return whether exactly one commit separates two headers."""
    counts = [int.from_bytes(header[CHANGE_COUNTER], sys.byteorder) for header in (before, after)]
    return counts[1] == (counts[0] + 1) % 2**32


def _descriptor(path: str) -> int | None:
    """Return a descriptor of a file, an existing one if possible; None if it cannot be read."""
    try:
        status = os.stat(path)
        key = status.st_dev, status.st_ino
        if key in _descriptors:
            return _descriptors[key]
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, KeyError):  # missing or unreadable: SQLite is queried instead
        return None
    kept = _descriptors.setdefault(key, opened)
    if kept != opened:
        _twice.append(opened)
    return kept


def close_deleted() -> None:
    """Close the descriptors of deleted files."""
    for key, descriptor in list(_descriptors.items()):
        if _is_deleted(descriptor) and _descriptors.pop(key, None) is not None:
            os.close(descriptor)
    for descriptor in [*_twice]:
        if _is_deleted(descriptor):
            with suppress(ValueError):  # another thread has removed it
                _twice.remove(descriptor)
                os.close(descriptor)


def _is_deleted(descriptor: int) -> bool:
    try:
        return os.fstat(descriptor).st_nlink == 0
    except OSError:  # another thread has closed it
        return False
