"""Copy a file while other processes use it."""

import os
from contextlib import suppress
from types import ModuleType

from expdb import errors
from expdb.sql.dialects.sqlite.connection import complete_file, connect, name_file
from expdb.sql.dialects.sqlite.open_files import FileUse
from expdb.sql.dialects.sqlite.translate import translated
from expdb.sql.session import Session


def copy_into(target: str, session: Session, module: ModuleType) -> None:
    """Copy the snapshot of a session into a new file, with SQLite's backup function."""
    if os.path.exists(target):
        raise errors.TargetExists(f"{target} already exists; choose a new file for the backup")
    if not os.path.isdir(os.path.dirname(target)):
        raise errors.DatabaseMissing(
            f"the folder {os.path.dirname(target)} does not exist; create it first"
        )
    try:
        with FileUse(target):
            copy = connect(target, module, create=True, durability="full", busy_ms=0)
            try:
                session.driver.backup(copy)
                # Otherwise, the original and the copy would both continue the eviction into one
                # archive.
                copy.execute("DELETE FROM evictions WHERE NOT committed")
                name_file(copy)
                complete_file(copy, target)
            finally:
                copy.close()
    except BaseException as error:  # including interrupts
        for suffix in ("", "-wal", "-shm"):  # they would prevent the next backup
            with suppress(OSError):
                os.unlink(target + suffix)
        raise translated(error, target) from errors.log_cause(error)
