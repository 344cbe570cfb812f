"""Translate SQLite's errors to expdb's."""

import os
import sqlite3

from expdb import errors

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
        if os.path.exists(path) and not os.access(path, os.R_OK):
            return errors.AccessDenied(f"{path} cannot be read by this user; check its permissions")
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
