"""Files that this process has open, and their protection in forks."""

import os
import threading
from types import ModuleType
from typing import Protocol

from expdb import errors
from expdb.process.weak_registry import WeakRegistry
from expdb.sql.dialects.sqlite.files import identity


class OpenFile(Protocol):
    """An engine: all connections of one handle to one file."""

    path: str
    module: ModuleType

    @property
    def identity(self) -> object:
        """The identity of the open file, unique on this machine."""

    def close_idle(self) -> None:
        """Close idle connections."""

    def reset(self) -> None:
        """Reset the engine in a forked child."""


class Inherited(Protocol):
    """A connection that a forked child has inherited."""

    def abandon(self) -> None:
        """Leave the connection open until the process ends."""


class OpenFiles:
    """Prevent forks from losing rows.

    SQLite keeps the locks of a process in a table, which a fork copies. A child that inherits an
    open file therefore assumes that it holds the parent's locks. It would lose rows silently, even
    through a new connection. So idle connections are closed before a fork. If a thread uses a file
    during the fork, the child refuses the file for every handle.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.engines: WeakRegistry[OpenFile] = WeakRegistry()
        self.uses: WeakRegistry[FileUse] = WeakRegistry()
        self.sessions: WeakRegistry[Inherited] = WeakRegistry()
        self.refused: set[str] = set()
        self.commits: dict[str, object] = {}  # by path, the id of this process's last commit
        # These are never closed: closing would drop the parent's locks, or wait for a thread that
        # does not exist here.
        self.inherited: list[Inherited] = []

    def note_commit(self, path: str) -> object:
        """Record that a handle of this process committed to a file; return the commit's id."""
        noted = self.commits[path] = object()  # not a number: concurrent increments could be lost
        return noted

    def before(self) -> None:
        """Close idle connections before a fork."""
        self.turn.acquire()  # until after the fork; only one thread forks at a time
        for engine in self.engines.list():
            engine.close_idle()

    def in_parent(self) -> None:
        """Let the next thread fork."""
        self.turn.release()

    def in_child(self) -> None:
        """Refuse files that were in use, and reset all engines."""
        self.turn = threading.Lock()
        self.refused |= {use.path for use in self.uses.list()}
        self.inherited += self.sessions.list()
        self.uses, self.sessions = WeakRegistry(), WeakRegistry()
        for session in self.inherited:
            session.abandon()
        for engine in self.engines.list():
            engine.reset()


open_files = OpenFiles()


class FileUse:
    """Mark a file as in use while a connection is opened, used or closed.

    The mark ends when the object is garbage collected, or at the end of a `with` block.
    """

    def __init__(self, path: str):
        if path in open_files.refused:
            raise errors.ForkedWithOpenConnection(
                f"this process was forked while a thread used {path}; start processes with spawn "
                "or forkserver"
            )
        self.path = path
        open_files.uses.add(self)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        open_files.uses.discard(self)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=open_files.before,
        after_in_parent=open_files.in_parent,
        after_in_child=open_files.in_child,
    )


def refuse_other_library(path: str, module: ModuleType) -> None:
    """Raise InvalidValue if this process has the file open with another SQLite library.

    Call this before any connection opens the file.
    """
    for engine in open_files.engines.list():
        if engine.path == path and engine.module.connect is not module.connect:
            raise errors.InvalidValue(
                f"{path} is already open in this process with {engine.module.__name__}, another "
                "SQLite library, and two libraries on one file release each other's locks; use "
                "one sqlite_module for all handles"
            )


def refuse_other_path(path: str, file: object) -> None:
    """Raise DatabaseReadOnly if this process has the file open by a path with another log."""
    for engine in open_files.engines.list():
        if (
            engine.path != path
            and file is not None
            and engine.identity == file == identity(engine.path)
        ):
            folders = os.path.dirname(engine.path), os.path.dirname(path)
            names = os.path.basename(engine.path), os.path.basename(path)
            if not os.path.samefile(*folders) or names[0] != names[1]:
                raise errors.DatabaseReadOnly(
                    f"{path} is already open in this process as {engine.path}; open it by that "
                    "path, because each path has its own write-ahead log"
                )
