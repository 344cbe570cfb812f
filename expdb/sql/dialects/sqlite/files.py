"""The files of an SQLite database: identity, disk, locks, uses, and findings for `expdb doctor`.

The functions that query the operating system never open the file: a process that opens and closes a
file of its own database drops the locks that SQLite holds on it.
"""

import os
import re
import shutil
import stat
import struct
import threading
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Protocol

from expdb import errors
from expdb.process.weak_registry import WeakRegistry
from expdb.sql.dialects.base import Finding, finding
from expdb.sql.session import Session

# Bytes of the -shm file that represent the locks of a write-ahead log (sqlite.org/walformat.html,
# section 2.3).
WRITER, READERS, CONNECTED = 120, range(123, 128), 128
REMOTE = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "fuse.sshfs",
    "afs",
    "fuse.glusterfs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
}
NETWORK = REMOTE | {"9p"}  # 9p may also be a disk of the host of a virtual machine


def identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it is missing or empty."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return (status.st_dev, status.st_ino) if status.st_size else None


DRAFT = ".expdb-{}.new"  # name of a new file, in its folder, until it is complete


def other_names(path: str) -> str | None:
    """Describe other names by which the file may be opened, or return None.

    SQLite names the log after the file, so a file with two names has two logs. Writes through one
    log overwrite pages from the other log.
    """
    try:
        status, folder = os.stat(path), os.path.dirname(path)
        links = status.st_nlink if stat.S_ISREG(status.st_mode) else 1
        if links > 1:  # a file that is being created also has the name of its draft
            drafts = [
                entry
                for entry in os.scandir(folder)
                if fnmatch(entry.name, DRAFT.format("*")) and entry.inode() == status.st_ino
            ]
            links -= len(drafts)
    except OSError:  # another process deleted the file, or the folder may not be listed
        return None
    if links > 1:
        return (
            f"{links} names (hard links; `find / -samefile {path}` lists them); remove the other "
            "names, or copy the file instead of linking it"
        )
    if path in _mount_points():
        return "another name, because only the file is mounted; mount its folder instead"
    return None


def _mount_points() -> set[str]:
    """Return the mount points; empty if the system does not report them."""
    try:
        return {
            _unescape(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()
        }
    except OSError:
        return set()


def user_version_in_log(path: str, wanted: int) -> int | None:
    """Return the `user_version` in a write-ahead log, or None if it holds none.

    Only a file with the application id `wanted` counts. The number is in page 1, which has a frame
    in the log whenever the file grew (sqlite.org/fileformat2.html, sections 1.3.17 and 4.1).
    Reading the log drops no lock: SQLite's locks are on the file and on the index of the log.
    """
    try:
        with open(path + "-wal", "rb") as log:
            magic, _, page_bytes, _, *salts = struct.unpack(">6I8x", log.read(32))
            if magic & ~1 != 0x377F0682 or not 512 <= page_bytes <= 65536:
                return None
            while len(head := log.read(24)) == 24:
                number, _, *frame_salts = struct.unpack(">4I8x", head)
                if frame_salts != salts:  # the frame is from before the last reset of the log
                    return None
                if number == 1:
                    page = log.read(72)
                    user_version, application_id = struct.unpack_from(">I4xI", page, 60)
                    # A power loss may have destroyed the page.
                    is_whole = page.startswith(b"SQLite format 3\0") and application_id == wanted
                    return int(user_version) if is_whole else None
                log.seek(page_bytes, os.SEEK_CUR)
    except (OSError, struct.error):  # the log was deleted, or is invalid, which SQLite reports
        return None
    return None


def may_write(path: str) -> bool:
    """Return whether this user may write the file and create files in its folder."""
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, if the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems do not support this
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system(path: str) -> str | None:
    """Return the kind of file system of a path; None if the system does not report it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    here = os.path.realpath(path)
    holding = [(_unescape(point), kind) for point, kind in mounts if _holds(_unescape(point), here)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else None


def _unescape(point: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), point)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def lock_holders(path: str) -> dict[int, set[int]]:
    """Return the processes that hold each byte of the WAL index locked.

    Return an empty dict if the system does not report locks.
    """
    wal_index = identity(path + "-shm")
    try:
        lines = Path("/proc/locks").read_text().splitlines() if wal_index else []
    except OSError:
        return {}
    holders: dict[int, set[int]] = {}
    for line in lines:
        parts = line.split()
        # The line of a waiting process has one more part.
        if len(parts) != 8 or parts[1] != "POSIX" or not parts[7].isdigit():
            continue
        major, minor, inode = parts[5].split(":")
        if (
            wal_index is None
            or (os.makedev(int(major, 16), int(minor, 16)), int(inode)) != wal_index
        ):
            continue
        for byte in range(max(int(parts[6]), WRITER), min(int(parts[7]), CONNECTED) + 1):
            holders.setdefault(byte, set()).add(int(parts[4]))
    return holders


def readers(path: str) -> list[str]:
    """Return the ids and commands of the processes that read a snapshot at this moment."""
    holders = lock_holders(path)
    return named({pid for byte in READERS for pid in holders.get(byte, set())})


def named(pids: set[int]) -> list[str]:
    """Return the id and command of each process, as text."""
    descriptions = []
    for pid in sorted(pids):
        command = ""
        with suppress(OSError):
            command = " ".join(
                Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").split()
            )[:60]
        descriptions.append(
            f"process {pid}"
            + (f" ({command})" if command else "")
            + (" (this one)" if pid == os.getpid() else "")
        )
    return descriptions


# -- the doctor ------------------------------------------------------------------------------------


def wal_reset_is_fixed(version: tuple[int, ...]) -> bool:
    """Return whether this SQLite version is free of the WAL-reset bug, which corrupts files.

    See sqlite.org/wal.html#walresetbug.
    """
    return (
        version >= (3, 51, 3)
        or (3, 50, 7) <= version < (3, 51, 0)
        or (3, 44, 6) <= version < (3, 45, 0)
    )


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


def examine_file(path: str, module: ModuleType, session: Session, durability: str) -> list[Finding]:
    """Return findings about a file, each with its value and the solution to a problem."""
    holders = lock_holders(path)  # before this session reads and would count as a reader
    writing, connected = named(holders.get(WRITER, set())), named(holders.get(CONNECTED, set()))
    reading = named({pid for byte in READERS for pid in holders.get(byte, set())})
    writable = may_write(path)
    return [
        _software(module),
        *_disk(path, session, writable),
        finding("durability", f"{durability}, of this handle"),
        finding("connected", ", ".join(connected) or "no process that can be seen"),
        finding("readers", ", ".join(reading) or "none"),
        finding("writer", ", ".join(writing) or "none"),
        finding(
            "permission",
            "read and write" if writable else "read only",
            not writable,
            "cannot be written by this user; check the permissions of the file and its folder",
        ),
    ]


def _software(module: ModuleType) -> Finding:
    software = f"{module.sqlite_version} ({module.__name__})"
    if not wal_reset_is_fixed(module.sqlite_version_info):
        software += (
            "; it has the WAL-reset bug, which expdb avoids, but other programs that write this "
            "file may not; for a newer SQLite run pip install pysqlite3 and pass open(..., "
            "sqlite_module=pysqlite3.dbapi2)"
        )
    return finding("SQLite", software)


def _disk(path: str, session: Session, writable: bool) -> list[Finding]:
    ((unused,),) = session.query("PRAGMA freelist_count")
    ((page,),) = session.query("PRAGMA page_size")
    ((journal,),) = session.query("PRAGMA journal_mode")
    kind, free = file_system(path), unused * page
    log, size = _bytes(path + "-wal"), os.stat(path).st_size
    room = shutil.disk_usage(os.path.dirname(path)).free
    return [
        finding(
            "file",
            f"{size:,} bytes, {free:,} of them free",
            free > size // 2 > 1 << 24,
            "run `expdb vacuum FILE` while no process uses it",
        ),
        finding(
            "file system",
            kind or "unknown",
            kind in NETWORK,
            "is a network file system, where locks and the log do not work across hosts; use a "
            "local disk, or PostgreSQL",
        ),
        finding(
            "free space",
            f"{room:,} bytes",
            room < size + log,
            "is less than the file and its log, and a full disk stops writers; free disk space",
        ),
        finding(
            "journal",
            journal,
            journal != "wal" and writable,
            "is not wal, because another program changed it; run PRAGMA journal_mode=WAL",
        ),
        finding(
            "log",
            f"{log:,} bytes",
            log > 256 << 20,
            "is larger than 256 MB, because a process keeps reading one snapshot; see readers",
        ),
    ]


def _bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
