"""Findings about a file for `expdb doctor`: software, disk, processes, permissions."""

import os
import shutil
from types import ModuleType

from expdb.sql.dialects.base import Finding, finding
from expdb.sql.dialects.sqlite.files import (
    CONNECTED,
    NETWORK,
    READERS,
    WRITER,
    file_system,
    lock_holders,
    may_write,
    named,
    wal_reset_is_fixed,
)
from expdb.sql.session import Session


def examined(path: str, module: ModuleType, session: Session, durability: str) -> list[Finding]:
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
