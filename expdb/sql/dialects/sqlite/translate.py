"""What SQLite's errors mean to a user."""

import os
import sqlite3

from expdb import errors


def translated(error: BaseException, path: str) -> BaseException:
    """Return the expdb error for a driver's, or the error itself where there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    damaged = (
        f"{path} is damaged ({error}): restore a backup, or recover it with sqlite3's .recover"
    )
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error):
        return errors.DatabaseDamaged(damaged)
    if code is None:
        return error
    match code & 0xFF:
        case sqlite3.SQLITE_ERROR if any(
            text in str(error) for text in ("too large", "too many", "too complex")
        ):
            return errors.QueryError(
                f"the query is too large ({error}): use in_ for long lists, or pass positions"
            )
        case sqlite3.SQLITE_ERROR if str(error).startswith("no such"):
            return errors.DatabaseDamaged(damaged)
        case sqlite3.SQLITE_IOERR if code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return errors.StorageFull(
                f"no space left for the log's index of {path}: free some and go on, nothing "
                "acknowledged is lost"
            )
        case sqlite3.SQLITE_IOERR:
            return errors.DatabaseUnreadable(
                f"{path} cannot be read or written ({error}): check the disk and the file system, "
                "then open it again"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return errors.DatabaseBusy(
                f"{path} is held by another writer: try again, or open it with a longer timeout"
            )
        case sqlite3.SQLITE_NOTADB:
            return errors.NotAnExperienceDatabase(
                f"{path} is not an SQLite database: choose another path"
            )
        case sqlite3.SQLITE_CORRUPT:
            return errors.DatabaseDamaged(damaged)
        case sqlite3.SQLITE_FULL:
            return errors.StorageFull(
                f"no space left for {path}: free some and go on, nothing acknowledged is lost"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return errors.DatabaseReadOnly(
                f"{path} cannot be written ({error}): check its permissions and its folder's"
            )
        case sqlite3.SQLITE_CANTOPEN if os.path.exists(path) and not os.access(path, os.R_OK):
            return errors.AccessDenied(
                f"{path} may not be read by this user: check its permissions"
            )
        case sqlite3.SQLITE_CANTOPEN if os.path.exists(os.path.dirname(path)) and not os.access(
            os.path.dirname(path), os.W_OK
        ):
            return errors.DatabaseReadOnly(
                f"{path} lies where this user can write nothing: open it with read_only=True; to "
                "read it beside others SQLite must write "
                "its log's index, so give the folder's permission, or have somebody keep the file "
                "open"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return errors.DatabaseMissing(
                f"{path} cannot be opened: check that its folder exists and may be read"
            )
        case sqlite3.SQLITE_INTERRUPT:
            return error
    return error
