"""What a query matches, as a Parquet file: written batch by batch, whatever its size."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from expdb import parquet
from expdb.buffer import ReplayBuffer
from expdb.errors import (
    DatabaseMissing,
    DatabaseReadOnly,
    ExpDBError,
    InvalidValue,
    StorageFull,
    TargetExists,
)


def export(
    buffer: ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the matching steps of a buffer into a new Parquet file, and return how many there are.

    One row per step with its columns, those of its episode, and every field: arrays of one shape as
    Arrow's tensors, which other readers see as lists; arrays of varying shape as lists; tags and
    JSON as text; a missing value is null. `progress` is called with the number of steps of each
    batch. Raises TargetExists where the file exists, DatabaseReadOnly or StorageFull where it
    cannot be written, and InvalidValue for another ending than .parquet or .pq.
    """
    path = Path(target)
    if path.suffix.lower() not in (".parquet", ".pq"):
        raise InvalidValue(
            f"{path} does not end in .parquet: export writes Parquet files, so name one"
        )
    if path.exists():
        raise TargetExists(f"{path} exists: name a new file")
    if not path.parent.is_dir():
        raise DatabaseMissing(f"the folder {path.parent} does not exist: create it first")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        count = parquet.write(
            draft,
            buffer.stats()["fields"],
            lambda names: buffer.scan(where, size=parquet.BATCH_STEPS, fields=names),
            progress,
        )
        _name(draft, path)
    except ExpDBError:  # some are an OSError too
        raise
    except OSError as error:
        reason = error.strerror or error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{path} cannot be written ({reason}): free disk space") from error
        raise DatabaseReadOnly(
            f"{path} cannot be written ({reason}): name a file in a folder that this user may "
            "write to"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()
    return count


def _name(draft: Path, path: Path) -> None:
    """Give a finished file its name, in one step and never over another file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise TargetExists(f"{path} exists: name a new file") from None
    except OSError:  # a file system without hard links
        draft.rename(path)
