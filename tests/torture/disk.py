"""A layer below SQLite that records writes and syncs, and fails on demand.

SQLite accesses the disk through a table of functions, its VFS (sqlite.org/vfs.html). This module
copies the default VFS of the library that Python's `sqlite3` is linked to, and replaces the
functions that change files by callbacks. expdb runs on it unchanged. `Images` uses the recorded
events to write the files that a power failure may leave.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import random
import re
import sqlite3
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512  # bytes that a disk writes atomically
NO_LIBRARY = (
    "this Python contains SQLite; use a Python that loads libsqlite3 from a shared library, such "
    "as the Python of Debian or conda"
)
OK, IOERR_WRITE, FULL = 0, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_FULL

_XCLOSE = CFUNCTYPE(c_int, c_void_p)
_XWRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_XTRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_XSYNC = CFUNCTYPE(c_int, c_void_p, c_int)
# Pass the name by address: SQLite stores more data after it.
_XOPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_XDELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)


class _Methods(Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = [
        ("version", c_int), ("close", c_void_p), ("read", c_void_p), ("write", c_void_p),
        ("truncate", c_void_p), ("sync", c_void_p),
    ] + [(f"other_{k}", c_void_p) for k in range(13)]  # fmt: skip


class _Vfs(Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = [
        ("version", c_int), ("file_bytes", c_int), ("longest_path", c_int), ("next", c_void_p),
        ("name", c_char_p), ("data", c_void_p), ("open", c_void_p), ("delete", c_void_p),
    ] + [(f"other_{k}", c_void_p) for k in range(14)]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """An operation on a file: write, truncate, sync or delete."""

    kind: str
    file: str
    offset: int = 0
    data: bytes = b""


def library() -> str | None:
    """Return the path of the SQLite library that Python's `sqlite3` is linked to.

    Return None if SQLite is compiled into Python.
    """
    sqlite3.connect(":memory:").close()
    maps = Path("/proc/self/maps")
    text = maps.read_text() if maps.exists() else ""
    found = re.search(r"\s(/\S*libsqlite3\S*)$", text, re.MULTILINE)
    return found[1] if found else None


# Keeps the callbacks alive: connections that are garbage collected later still call them.
_used: list[Disk] = []


class Disk:
    """A context that records and controls changes of files whose path begins with `prefix`."""

    def __init__(self, prefix: str):
        self.prefix, self.events = os.path.realpath(prefix), list[Event]()
        # Returns an SQLite error code for (kind, file), or 0 for no error.
        self.fault: Callable[[str, str], int] | None = None
        self._files: dict[int, str] = {}
        self._methods: dict[int, _Methods] = {}  # the original methods by file
        # The new methods by the address of the original ones; SQLite keeps pointers to both.
        self._tables: dict[int, tuple[_Methods, int]] = {}

    def __enter__(self) -> Disk:
        path = library()
        assert path is not None, NO_LIBRARY
        self._sqlite = ctypes.CDLL(path)
        self._sqlite.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self._sqlite.sqlite3_vfs_find.argtypes = [c_char_p]
        self._sqlite.sqlite3_vfs_register.argtypes = [POINTER(_Vfs), c_int]
        self._sqlite.sqlite3_vfs_unregister.argtypes = [POINTER(_Vfs)]
        self._theirs = self._sqlite.sqlite3_vfs_find(None)
        theirs = self._theirs.contents
        self._vfs = _Vfs.from_buffer_copy(theirs)
        self._open, self._delete = _XOPEN(theirs.open), _XDELETE(theirs.delete)
        self._callbacks = [
            _XOPEN(self._on_open), _XDELETE(self._on_delete), _XCLOSE(self._on_close),
            _XWRITE(self._on_write), _XTRUNCATE(self._on_truncate), _XSYNC(self._on_sync),
        ]  # fmt: skip
        pointers = [ctypes.cast(callback, c_void_p).value for callback in self._callbacks]
        _used.append(self)
        self._vfs.name, self._vfs.open, self._vfs.delete = b"remembering", pointers[0], pointers[1]
        names = "close", "write", "truncate", "sync"
        self._replaced = dict(zip(names, pointers[2:], strict=True))
        assert self._sqlite.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == OK
        return self

    def __exit__(self, *_: object) -> None:
        self._sqlite.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        self._sqlite.sqlite3_vfs_register(self._theirs, 1)

    # -- callbacks ---------------------------------------------------------------------------------

    def _on_open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        status = self._open(ctypes.addressof(self._theirs.contents), name, file, flags, out)
        path = "" if name is None else os.fsdecode(ctypes.string_at(name))
        if status == OK and path.startswith(self.prefix):
            methods = c_void_p.from_address(file)
            theirs = methods.value
            if theirs not in self._tables:
                ours = _Methods.from_buffer_copy(_Methods.from_address(theirs))
                for which, pointer in self._replaced.items():
                    setattr(ours, which, pointer)
                self._tables[theirs] = (ours, theirs)
            methods.value = ctypes.addressof(self._tables[theirs][0])
            self._files[file] = path
            self._methods[file] = _Methods.from_address(theirs)
        return status

    def _do(self, event: Event, run: Callable[[], int]) -> int:
        status = self.fault(event.kind, event.file) if self.fault is not None else OK
        if status == OK:
            status = run()
            if status == OK:
                self.events.append(event)
        return status

    def _on_delete(self, vfs: int, name: bytes, sync: int) -> int:
        theirs = ctypes.addressof(self._theirs.contents)
        run = functools.partial(self._delete, theirs, name, sync)
        path = os.fsdecode(name)
        return self._do(Event("delete", path), run) if path.startswith(self.prefix) else run()

    def _on_close(self, file: int) -> int:
        del self._files[file]
        return _XCLOSE(self._methods.pop(file).close)(file)

    def _on_write(self, file: int, data: int, size: int, offset: int) -> int:
        event = Event("write", self._files[file], offset, ctypes.string_at(data, size))
        return self._do(event, lambda: _XWRITE(self._methods[file].write)(file, data, size, offset))

    def _on_truncate(self, file: int, size: int) -> int:
        event = Event("truncate", self._files[file], size)
        return self._do(event, lambda: _XTRUNCATE(self._methods[file].truncate)(file, size))

    def _on_sync(self, file: int, flags: int) -> int:
        event = Event("sync", self._files[file])
        return self._do(event, lambda: _XSYNC(self._methods[file].sync)(file, flags))


# -- images ----------------------------------------------------------------------------------------


class Images:
    """The files that a power failure may leave: all synced data and some of the other sectors."""

    def __init__(self, events: list[Event], before: dict[str, bytes]):
        self.events, self.before = events, before

    def write(self, upto: int, folder: Path, rng: random.Random) -> None:
        """Write the files as a power failure after the first `upto` events may leave them."""
        synced = {name: bytearray(content) for name, content in self.before.items()}
        pending: dict[str, list[Event]] = {}
        for event in self.events[:upto]:
            if event.kind == "sync":
                for unsynced in pending.pop(event.file, []):
                    _apply(synced.setdefault(event.file, bytearray()), unsynced)
            elif event.kind == "delete":
                synced.pop(event.file, None)
                pending.pop(event.file, None)
            else:
                pending.setdefault(event.file, []).append(event)
        for name in {*synced, *pending}:
            content = synced.get(name, bytearray())
            whole = rng.random()  # the share of unsynced sectors that reach the disk
            for unsynced in pending.get(name, []):
                for part in _sectors(unsynced):
                    if rng.random() < whole:
                        _apply(content, part)
            (folder / Path(name).name).write_bytes(content)


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        del content[event.offset :]
        content.extend(bytes(event.offset - len(content)))
        return
    content.extend(bytes(max(event.offset - len(content), 0)))
    content[event.offset : event.offset + len(event.data)] = event.data


def _sectors(event: Event) -> list[Event]:
    if event.kind == "truncate":
        return [event]
    start, end = event.offset, event.offset + len(event.data)
    cuts = [start, *range(start // SECTOR * SECTOR + SECTOR, end, SECTOR), end]
    return [
        Event("write", event.file, a, event.data[a - start : b - start])
        for a, b in itertools.pairwise(cuts)
    ]
