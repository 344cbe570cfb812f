"""Connections to a file, and its write-ahead log.

Open, identify and copy the file, begin transactions, and checkpoint the log. Errors of SQLite
become errors of expdb.
"""

import os
import random
import sqlite3
import struct
import time
import urllib.parse
from collections.abc import Callable
from contextlib import closing, suppress
from types import ModuleType
from typing import Any

from expdb import errors
from expdb.sql import schema
from expdb.sql.dialects.sqlite import files as sqlite_files
from expdb.sql.dialects.sqlite.files import FileUse, may_write, readers
from expdb.sql.session import Session

# By primary code (sqlite.org/rescode.html): the error class and its message.
MEANINGS: dict[int, tuple[type[errors.ExpDBError], str]] = {
    sqlite3.SQLITE_IOERR: (
        errors.DatabaseUnreadable,
        "{path} cannot be read or written ({message}); check the disk and the file system, then "
        "open it again",
    ),
    sqlite3.SQLITE_BUSY: (
        errors.DatabaseBusy,
        "{path} is locked by another writer; try again, or open it with a longer timeout",
    ),
    sqlite3.SQLITE_NOTADB: (
        errors.NotAnExperienceDatabase,
        "{path} is not an SQLite database; choose another path",
    ),
    sqlite3.SQLITE_CORRUPT: (
        errors.DatabaseDamaged,
        "{path} is corrupted ({message}); restore a backup, or recover it with sqlite3's .recover",
    ),
    sqlite3.SQLITE_TOOBIG: (
        errors.DatabaseDamaged,
        "a value is too large for SQLite ({message}); store smaller steps, or, if nothing was "
        "stored, {path} is corrupted: restore a backup",
    ),
    sqlite3.SQLITE_FULL: (
        errors.StorageFull,
        "no space is left for {path}; free disk space and try again; no acknowledged write is lost",
    ),
    sqlite3.SQLITE_READONLY: (
        errors.DatabaseReadOnly,
        "{path} cannot be written ({message}); check the permissions of the file and its folder",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        errors.DatabaseMissing,
        "{path} cannot be opened; check that its folder exists and can be read",
    ),
}
# Messages of SQLite about values that expdb never writes.
DAMAGE = ("integer overflow", "malformed JSON", "user-defined function raised exception")
ALIKE = {
    sqlite3.SQLITE_LOCKED: sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM: sqlite3.SQLITE_READONLY,
}


def translated(error: BaseException, path: str) -> BaseException:
    """Return the expdb error for a driver's error, or the error itself if there is none."""
    message = str(error)
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, OverflowError) and "SQLite INTEGER" in message:
        return _contradicts(path, message)
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in message:
        code = sqlite3.SQLITE_CORRUPT
    if code is None:
        return error
    if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER and message.startswith("expdb: the rate limiter"):
        return errors.RateLimited(message)
    primary = ALIKE.get(code & 0xFF, code & 0xFF)
    if primary == sqlite3.SQLITE_CONSTRAINT or message in DAMAGE:
        return _contradicts(path, message)
    if primary == sqlite3.SQLITE_ERROR:
        if any(text in message for text in ("too large", "too many", "too complex")):
            return errors.QueryError(
                f"the query is too large ({message}); use in_() for long lists, or pass positions"
            )
        if message.startswith("no such") or "has no column named" in message:
            primary = sqlite3.SQLITE_CORRUPT
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return errors.StorageFull(
            f"no space is left for the log index of {path}; free disk space and try again; no "
            "acknowledged write is lost"
        )
    if primary == sqlite3.SQLITE_CANTOPEN:
        folder = os.path.dirname(path)
        for file in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.exists(file) and not os.access(file, os.R_OK):
                return errors.AccessDenied(
                    f"{file} cannot be read by this user; check its permissions"
                )
        if os.path.exists(folder) and not os.access(folder, os.W_OK):
            return errors.DatabaseReadOnly(
                f"{path} is in a folder that this user cannot write to; open it with "
                "read_only=True once no other process has it open, or get write permission for the "
                "folder"
            )
    if primary not in MEANINGS:
        return error
    kind, text = MEANINGS[primary]
    return kind(text.format(path=path, message=message))


def _contradicts(path: str, message: str) -> errors.DatabaseDamaged:
    """Return the error for values that expdb never writes."""
    return errors.DatabaseDamaged(
        f"{path} is corrupted ({message}); run `expdb check`, then restore a backup"
    )


APPLICATION_ID = 0x65787064  # "expd"


# SQLite 3.7.0 to 3.51.2 corrupt a WAL database when a PASSIVE checkpoint races with a writer that
# resets the log (sqlite.org/wal.html#walresetbug). Auto-checkpoints are PASSIVE, so expdb disables
# them; see checkpoint().
MINIMUM_VERSION = (3, 37, 0)


CONNECT_MS = 30_000


# Not trusted_schema=OFF: before SQLite 3.41 it forbids json_extract in an index, which indexes of
# tags use. Instead, `schema_problems` compares triggers and views with those of the migrations. The
# journal mode is a property of the file; prepare_file sets it once.
PRAGMAS = (
    # Applies while the connection is prepared: a file is briefly locked while its last user closes
    # it, or while its log is recovered.
    f"busy_timeout={CONNECT_MS}",
    "wal_autocheckpoint=0",
    "mmap_size=0",
    "recursive_triggers=ON",
    "secure_delete=OFF",
    "journal_size_limit=67108864",
    "cell_size_check=ON",
    # For readers of large files, a larger cache costs more than it saves, because the operating
    # system caches the file.
    "cache_size=-4096",
)


def connect(
    path: str,
    module: ModuleType,
    *,
    create: bool = False,
    read_only: bool = False,
    durability: str,
    busy_ms: int,
) -> Any:
    """Open one connection to the file; `?` and `%` in the path are quoted for the URL."""
    if module.sqlite_version_info < MINIMUM_VERSION:
        raise errors.ExpDBError(
            f"SQLite {module.sqlite_version} is too old; use a Python that links SQLite 3.37 or "
            "newer, or sqlite_module=pysqlite3.dbapi2"
        )
    mode = "ro" if read_only else "rwc" if create else "rw"
    immutable = "&immutable=1" if read_only and is_immutable(path) else ""
    connection = module.connect(
        f"file:{urllib.parse.quote(path)}?mode={mode}{immutable}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    synchronous = "FULL" if durability == "full" else "NORMAL"
    try:
        for pragma in (*PRAGMAS, f"synchronous={synchronous}", f"busy_timeout={busy_ms}"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.create_function("expdb_priority", 1, _priority, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _priority(data: bytes) -> float | None:
    """Return a stored priority, or None, as the SQL function `expdb_priority`."""
    (value,) = _FLOAT.unpack(data)
    return None if value != value else value


_FLOAT = struct.Struct(">d")


def is_experience_database(connection: Any) -> bool:
    """Return whether a connection of another program leads to an expdb database."""
    return bool(plain_rows(connection, "PRAGMA application_id")[0][0] == APPLICATION_ID)


def plain_rows(connection: Any, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
    """Return rows as tuples with text, whatever row and text factories the connection has."""
    cursor, text_factory = connection.cursor(), connection.text_factory
    cursor.row_factory, connection.text_factory = None, str
    try:
        return list(cursor.execute(sql, params).fetchall())
    finally:
        connection.text_factory = text_factory


PRIORITY = (
    "SELECT substr(p.data, 1 + 8 * (? & 1023), 8) FROM priorities p JOIN buffers b "
    "ON b.id = p.buffer_id WHERE b.name = ? AND p.block = ? >> 10"
)


def prepare_for_reading(connection: Any) -> None:
    """Disable checkpoints and mmap on another program's connection; add the function `priority`."""

    def priority(buffer: Any, position: Any) -> float | None:
        if not isinstance(buffer, str) or not isinstance(position, int):
            raise ValueError("the arguments of priority() are buffer and position, in this order")
        rows = plain_rows(connection, PRIORITY, (position, buffer, position))
        return _priority(rows[0][0]) if rows else None

    for pragma in ("wal_autocheckpoint=0", "mmap_size=0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.create_function("priority", 2, priority)


def decode_priorities(connection: Any) -> None:
    """Make `experience` decode priorities with a Python function, on this connection only.

    The view in the file computes priorities in plain SQL, which is slower but works everywhere.
    """
    view = schema.read_migrated_schema("sqlite")["experience"]
    decoded = view.replace(
        "(SELECT p.priority FROM step_priorities p "
        "WHERE p.buffer_id = s.buffer_id AND p.position = s.position)",
        "(SELECT expdb_priority(substr(p.data, 1 + 8 * (s.position & 1023), 8)) FROM priorities p "
        "WHERE p.buffer_id = s.buffer_id AND p.block = s.position >> 10)",
    )
    connection.execute(decoded.replace("CREATE VIEW", "CREATE TEMPORARY VIEW", 1)).fetchall()


def prepare_file(connection: Any) -> None:
    """Mark an empty file as an expdb database, and switch it to a write-ahead log."""
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
    name_file(connection)


def name_file(connection: Any) -> None:
    """Give a file a random number that identifies its log (see refuse_foreign_log)."""
    connection.execute(f"PRAGMA user_version={random.getrandbits(31) | 1}").fetchall()


def refuse_foreign_log(path: str, module: ModuleType) -> None:
    """Raise DatabaseReplaced if the log beside a file belongs to another file.

    SQLite would write the pages of that log into this file.
    """
    version_in_log = sqlite_files.user_version_in_log(path, APPLICATION_ID)
    if version_in_log is None:
        return
    # This connection reads the file without its log.
    connection = module.connect(f"file:{urllib.parse.quote(path)}?mode=ro&immutable=1", uri=True)
    try:
        (own,) = connection.execute("PRAGMA user_version").fetchone()
    except module.DatabaseError:
        # The file is corrupted, or a power loss interrupted a checkpoint, which the log can repeat.
        return
    finally:
        connection.close()
    if own != version_in_log:
        raise errors.DatabaseReplaced(
            f"{path}-wal is the write-ahead log of another database than {path}, because one of "
            "the two files was moved or copied without the other; put the two matching files "
            f"together again, or move {path}-wal away, and make copies with `expdb backup`"
        )


def is_immutable(path: str) -> bool:
    """Return whether to read a file as an unchanging file, without its log.

    In a folder that is not writable, SQLite cannot create the index of the log. If the file has no
    log, no process has the file open, so it can be read as an unchanging file. `check_file` of the
    engine detects a log that appears later.
    """
    if not hasattr(os, "statvfs"):
        return False
    folder = os.path.dirname(path)
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        if wal_bytes(path):
            raise errors.DatabaseReadOnly(
                f"{path} has a write-ahead log and is on a read-only file system; open it once on "
                "a writable file system, which removes the log"
            )
        return True
    return not os.access(folder, os.W_OK) and not has_log(path)


def is_writable(path: str) -> bool:
    """Return whether this user may write to a file, and create its log."""
    folder = os.path.dirname(path)
    return os.access(path, os.W_OK) and (os.access(folder, os.W_OK) or has_log(path))


def has_log(path: str) -> bool:
    """Return whether a file has a log or an index of the log, as every open file has."""
    return any(os.path.exists(path + suffix) for suffix in ("-wal", "-shm"))


def identify(path: str, module: ModuleType) -> None:
    """Raise NotAnExperienceDatabase if an existing file is not an expdb database.

    The function reads the file through SQLite, because opening it separately would drop locks.
    """
    if os.stat(path).st_size == 0:
        raise errors.NotAnExperienceDatabase(
            f"{path} is empty; delete it so that expdb can create it"
        )
    connection = None
    try:
        immutable = "&immutable=1" if is_immutable(path) else ""
        connection = module.connect(
            f"file:{urllib.parse.quote(path)}?mode=ro{immutable}",
            uri=True,
            isolation_level=None,
            timeout=30,
        )
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    except module.DatabaseError as error:
        raise translated(error, path) from errors.log_cause(error)
    finally:
        if connection is not None:
            connection.close()
    if application_id != APPLICATION_ID:
        raise errors.NotAnExperienceDatabase(
            f"{path} is a database of another application; choose another path"
        )


# Seconds between two attempts to take the writers' lock.
LONGEST_PAUSE, SHORTEST_PAUSE = 0.01, 0.0003
PATIENCE = 0.03  # seconds of waiting after which the pauses become shorter again


def begin(connection: Any, timeout: float) -> None:
    """Begin an immediate transaction, waiting for other writers up to `timeout` seconds.

    SQLite's busy handler is not used, because it sleeps in fixed steps: random pauses reduced the
    longest wait of 32 writers to a quarter. A writer that has waited for long retries more often
    than a new writer, so that 32 writers wait for similar times. Rejected alternatives: short
    pauses for all (an attempt costs as much as a small write), and waiting for a second lock (not
    faster, and one more file).
    """
    since, pause = None, 0.0002
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except connection.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            now = time.monotonic()
            since = now if since is None else since
            waited = now - since
            if waited >= timeout:
                raise
        time.sleep(pause * (0.5 + random.random()))
        pause = (
            min(pause * 1.5, LONGEST_PAUSE)
            if waited < PATIENCE
            else max(LONGEST_PAUSE * PATIENCE / waited, SHORTEST_PAUSE)
        )


def wal_bytes(path: str) -> int:
    """Return the size of the write-ahead log; `stat` does not drop SQLite's locks."""
    try:
        return os.stat(path + "-wal").st_size
    except FileNotFoundError:
        return 0


def checkpoint(connection: Any, wait_ms: int) -> bool:
    """Copy the log into the file and truncate the log; return whether the checkpoint is complete.

    TRUNCATE takes the writers' lock before it reads the log, so it is safe on versions with the
    WAL-reset bug. TRUNCATE falls back to PASSIVE only if it cannot get this lock within the busy
    timeout, which is `wait_ms`.
    """
    connection.execute(f"PRAGMA busy_timeout={wait_ms}").fetchall()
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy
    finally:
        connection.execute("PRAGMA busy_timeout=0").fetchall()


def complete_file(connection: Any, path: str) -> None:
    """Checkpoint a file that no other connection uses.

    Raise StorageFull if the checkpoint is incomplete. (When SQLite closes the last connection to a
    file, it ignores errors of its checkpoint.)
    """
    if not checkpoint(connection, 0) or wal_bytes(path):
        raise errors.StorageFull(
            f"{path} is incomplete, because the checkpoint of its write-ahead log failed; free "
            "disk space and try again"
        )


def data_version(connection: Any) -> int:
    """Return a number that changes when another connection has committed.

    See sqlite.org/pragma.html#pragma_data_version.
    """
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return version  # type: ignore[no-any-return]


_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def guard(connection: Any) -> None:
    """Prevent a connection from writing, attaching or creating anything by any SQL."""
    connection.execute("PRAGMA query_only=ON").fetchall()
    # SQLite creates a table-valued function at its first use, which the authorizer would deny.
    connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchall()
    if hasattr(connection, "setlimit"):
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if (
            action == sqlite3.SQLITE_FUNCTION
            and second
            and second.lower() in ("load_extension", "fts3_tokenizer")
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


def copy_into(target: str, session: Session, module: ModuleType) -> None:
    """Copy the snapshot of a session into a new file, with SQLite's backup function."""
    if os.path.exists(target):
        raise errors.TargetExists(f"{target} already exists; choose a new file for the backup")
    if not os.path.isdir(os.path.dirname(target)):
        raise errors.DatabaseMissing(
            f"the folder {os.path.dirname(target)} does not exist; create it first"
        )
    try:
        options: dict[str, Any] = {"create": True, "durability": "full", "busy_ms": 0}
        with FileUse(target), closing(connect(target, module, **options)) as copy:
            session.driver.backup(copy)
            # Otherwise, the original and the copy would both continue the eviction into one
            # archive.
            copy.execute("DELETE FROM evictions WHERE NOT committed")
            name_file(copy)
            complete_file(copy, target)
    except BaseException as error:  # including interrupts
        for suffix in ("", "-wal", "-shm"):  # they would prevent the next backup
            with suppress(OSError):
                os.unlink(target + suffix)
        raise translated(error, target) from errors.log_cause(error)


# Log size from which a checkpoint is due. At 16 MiB, syncs would slow down writes of single steps.
CHECKPOINT_BYTES = 64 << 20
# Longest time between checkpoints; limits the loss in a power failure at durability="normal".
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_WAIT_MS = 2_000
# Log size above which a warning names the processes that prevent checkpoints.
PINNED_BYTES = 256 << 20


class WriteAheadLog:
    """The write-ahead log of one file, with the checkpoints of one handle."""

    def __init__(self, path: str):
        self._path = path
        self._due_at, self._pinned_at = CHECKPOINT_BYTES, PINNED_BYTES
        self._checkpointed = time.monotonic()
        self._warning: str | None = None

    def is_due(self) -> bool:
        """Return whether a checkpoint is due."""
        size, now = wal_bytes(self._path), time.monotonic()
        return size >= self._due_at or (size > 0 and now - self._checkpointed >= CHECKPOINT_SECONDS)

    def checkpoint(
        self, connection: Any, translated: Callable[[BaseException], BaseException]
    ) -> None:
        """Checkpoint the log, as far as readers allow it."""
        size = wal_bytes(self._path)
        try:
            complete = checkpoint(connection, CHECKPOINT_WAIT_MS)
        except Exception as error:
            # The write itself is committed; the next write reports a full disk.
            complete = False
            if not isinstance(translated(error), errors.ExpDBError):
                raise
        # If a reader blocks the checkpoint, try again after another 64 MiB or 5 s, so that not
        # every write waits for the checkpoint.
        self._due_at = CHECKPOINT_BYTES if complete else size + CHECKPOINT_BYTES
        self._checkpointed = time.monotonic()
        if complete:
            self._pinned_at = PINNED_BYTES
        elif size >= self._pinned_at:
            self._pinned_at = 2 * size
            who = " and ".join(readers(self._path)) or "an unknown reader"
            self._warning = (
                f"the write-ahead log of {self._path} has {size >> 20:,} MB and cannot be "
                f"checkpointed, because {who} keeps reading one snapshot; end that reader, or the "
                "log keeps growing"
            )

    def warn(self) -> None:
        """Emit the warning of the last checkpoint, once."""
        if self._warning is not None:
            warning, self._warning = self._warning, None
            errors.warn(warning)


def remove_empty_log(path: str, module: ModuleType) -> None:
    """Remove the empty log that a reading connection creates.

    SQLite removes the log only if the last connection that closes may write.
    """
    if not os.path.exists(path + "-wal") or wal_bytes(path) or not may_write(path):
        return
    # Best effort: other processes may use the file.
    with (
        suppress(module.Error, OSError),
        FileUse(path),
        closing(connect(path, module, durability="normal", busy_ms=0)) as connection,
    ):
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
