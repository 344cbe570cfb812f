"""Write the steps that match a query to a Parquet file, batch by batch."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from expdb import checks
from expdb.archive import parquet
from expdb.batch import Batch
from expdb.buffer import ReplayBuffer
from expdb.errors import (
    DatabaseMissing,
    DatabaseReadOnly,
    ExpDBError,
    InvalidValue,
    StorageFull,
    TargetExists,
    warn,
)
from expdb.storage.reading import trees


def export(
    buffer: ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    lineage: bool = False,
    timestamps: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the matching steps of a buffer into a new Parquet file.

    The file has one row per step with the columns of the step and of its episode, and every field.
    Arrays of a fixed shape are stored as Arrow tensors, which other readers see as lists. Arrays of
    varying shape are stored as lists. Tags and JSON values are stored as text, and missing values
    as null.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    target : path
        The file to create; its name ends in .parquet or .pq.
    where : query, optional
        Query that selects the steps to write. By default, all steps are written.
    lineage : bool, default False
        Whether to also write the steps that matching forks and retries share with their parents.
        The file has each step once, with the columns of the episode that stores it.
    timestamps : bool
        Write the columns `started`, `ended` and `execute_time` as timestamps in UTC instead of Unix
        seconds.
    progress : callable, optional
        Function that is called after each batch with the number of its steps.

    Returns
    -------
    int
        Number of steps in the file.

    Raises
    ------
    InvalidValue
        If `target` does not end in .parquet or .pq, if `lineage` or `timestamps` is not a bool,
        or, with `timestamps`, if a time is outside the years 1 to 9999.
    TargetExists
        If the file exists.
    DatabaseMissing
        If the folder of `target` does not exist.
    StorageFull
        If the disk is full.
    DatabaseReadOnly
        If the file cannot be written for another reason.

    Warns
    -----
    ExpDBWarning
        If `lineage` is True and a shared step was evicted or deleted.
    """
    path, lineage = Path(target), checks.flag(lineage, "lineage")
    timestamps = checks.flag(timestamps, "timestamps")
    if path.suffix.lower() not in (".parquet", ".pq"):
        raise InvalidValue(
            f"the file name must end in .parquet, got {path}; export() writes only Parquet files"
        )
    with new_file(path) as draft:
        return parquet.write(
            draft,
            parquet.types_of(buffer._store),
            lambda names: _scan(buffer, where, lineage, names),
            progress,
            store=buffer._store,
            times=timestamps,
        )


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which becomes the file or folder `path` when the block ends.

    After an exception, the draft is deleted. Raise TargetExists if the file exists, DatabaseMissing
    if its folder does not exist, and StorageFull or DatabaseReadOnly if it cannot be written.
    """
    if path.exists():
        raise TargetExists(f"{path} exists; name a new file")
    if not path.parent.is_dir():
        raise DatabaseMissing(f"the folder {path.parent} does not exist; create it first")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield draft
        _name(draft, path)
    except ExpDBError:  # some classes are also an OSError
        raise
    except OSError as error:
        reason = error.strerror or error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"{path} cannot be written ({reason}); free disk space") from error
        raise DatabaseReadOnly(
            f"{path} cannot be written ({reason}); name a file in a folder that this user may "
            "write to"
        ) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write an Arrow table, such as the result of `db.sql`, as a Parquet file."""
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path, compression="zstd")


def _scan(buffer: ReplayBuffer, where: Any, lineage: bool, names: Sequence[str]) -> Iterator[Batch]:
    """Yield the matching steps and, with `lineage`, the steps that matching forks share."""
    if not lineage:
        yield from buffer.scan(where, size=parquet.BATCH_STEPS, fields=names)
        return
    condition = buffer._compile(where)
    positions, incomplete = buffer._store.read(trees.find_with_shared_steps, condition)
    if incomplete:
        warn(
            f"the file lacks shared steps of {incomplete} exported fork(s), because these steps "
            "were evicted or deleted"
        )
    for first in range(0, len(positions), parquet.BATCH_STEPS):
        yield from buffer.scan(positions[first : first + parquet.BATCH_STEPS], fields=names)


def _name(draft: Path, path: Path) -> None:
    """Rename a finished file atomically, without overwriting an existing file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise TargetExists(f"{path} exists; name a new file") from None
    except OSError:  # a file system without hard links
        draft.rename(path)
