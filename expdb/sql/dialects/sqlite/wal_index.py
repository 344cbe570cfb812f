"""The index of a write-ahead log, whose header tells of every commit for the cost of looking at it.

It is the `-shm` file beside the database, which SQLite maps into memory, too
(sqlite.org/walformat.html, section 2.1). To ask SQLite whether anything was committed, it takes
locks, and wakes up a lot of code: 10 microseconds, and 100 where the caches are cold. It looks at
the same header.

**A process that closes a file drops all locks that it holds on it, SQLite's among them.** So none
is closed until it has no name any more: the last connection of all processes deletes it, and then
nobody has locks on it that count. Until then it is kept, and used again.
"""

import ctypes
import mmap
import os
import sys
from contextlib import suppress

HEADER = 48  # bytes
IS_READY = 12  # where the header says that it can be used
_KNOWN_TO_WORK = sys.platform in ("linux", "darwin")  # elsewhere locks hinder reading

_Mapped = tuple[int, mmap.mmap]  # a file and its beginning
_mapped: dict[tuple[int, int], _Mapped] = {}  # by device and inode
_twice: list[_Mapped] = []  # those that another thread has mapped at the same time


class WalIndex:
    """The index as it is while a connection is open that has read it."""

    def __init__(self, path: str):
        self._memory = _memory(path + "-shm") if _KNOWN_TO_WORK else None

    def header(self) -> bytes | None:
        """Return what differs from one commit to the next, None where that cannot be told."""
        memory = self._memory
        if memory is None:
            return None
        try:
            found = memory[:HEADER]
        except ValueError:  # another thread has closed it
            return None
        return found if found[IS_READY] else None

    def close(self) -> None:
        """Tell nothing from now on: the connection is closed, and what follows is another file."""
        self._memory = None


def _memory(path: str) -> mmap.mmap | None:
    """Return the beginning of a file, mapped only once; None where it cannot be."""
    try:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key in _mapped:
            return _mapped[key][1]
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        memory = mmap.mmap(file, HEADER, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # there is none, or it may not be read: then SQLite is asked
        return None
    # It has a descriptor of its own, which is closed when it is deallocated: so it never is, not
    # even when the interpreter ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
    if _mapped.setdefault(key, (file, memory))[1] is not memory:
        _twice.append((file, memory))
    return memory


def close_deleted() -> None:
    """Close the files that were deleted, as nobody else ever will."""
    for key, one in list(_mapped.items()):
        if _is_deleted(one) and _mapped.pop(key, None) is not None:
            _close(one)
    for one in [*_twice]:
        if _is_deleted(one):
            with suppress(ValueError):  # another thread has taken it
                _twice.remove(one)
                _close(one)


def _is_deleted(one: _Mapped) -> bool:
    try:
        return os.fstat(one[0]).st_nlink == 0
    except OSError:  # another thread has closed it
        return False


def _close(one: _Mapped) -> None:
    file, memory = one
    memory.close()
    os.close(file)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(memory))
