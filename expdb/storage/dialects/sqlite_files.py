"""What the system knows of an SQLite file: which file it is, on what it lies, and who holds which of its locks.

Never by opening it: a process that opens and closes a file of its own database drops the locks that SQLite holds on it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

# Bytes of the -shm file that stand for the locks of a write-ahead log (sqlite.org/walformat.html, section 2.3).
WRITER, READERS, CONNECTED = 120, range(123, 128), 128
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs", "ncpfs", "fuse.glusterfs", "ceph", "lustre", "gpfs", "beegfs"}


def identity(path: str) -> tuple[int, int] | None:
    """Return what tells the file from every other one on this machine; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def sync_folder(folder: str) -> None:
    """Make the names in a folder outlast a power loss, where the system knows how."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system(path: str) -> str | None:
    """Return the kind of file system that a path lies on; None where the system does not tell."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    here = os.path.realpath(path)
    holding = [(_unescaped(point), kind) for point, kind in mounts if _holds(_unescaped(point), here)]
    return max(holding, key=lambda one: len(one[0]))[1] if holding else None


def _unescaped(point: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def lock_holders(path: str) -> dict[int, set[int]]:
    """Return which processes hold which bytes of the log's index, by byte; empty where the system does not tell."""
    found = identity(path + "-shm")
    try:
        lines = Path("/proc/locks").read_text().splitlines() if found else []
    except OSError:
        return {}
    holders: dict[int, set[int]] = {}
    for line in lines:
        parts = line.split()
        if len(parts) != 8 or parts[1] != "POSIX" or not parts[7].isdigit():  # a waiter has one part more
            continue
        major, minor, inode = parts[5].split(":")
        if found is None or (os.makedev(int(major, 16), int(minor, 16)), int(inode)) != found:
            continue
        for byte in range(max(int(parts[6]), WRITER), min(int(parts[7]), CONNECTED) + 1):
            holders.setdefault(byte, set()).add(int(parts[4]))
    return holders


def readers(path: str) -> list[str]:
    """Return the processes that read a snapshot at this moment, with their names."""
    holders = lock_holders(path)
    return named({pid for byte in READERS for pid in holders.get(byte, set())})


def named(pids: set[int]) -> list[str]:
    """Return processes for people: number and command."""
    said = []
    for pid in sorted(pids):
        command = ""
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()[:60]
        said.append(f"process {pid}" + (f" ({command})" if command else "") + (" (this one)" if pid == os.getpid() else ""))
    return said
