"""Save items to a separate database file, and load them: `save_data` and `load_data`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import expdb
from expdb import errors
from expdb.integrations.di_engine.items import Items
from expdb.integrations.records import Kind, Records

NAME = "saved_items"
KEYS = ("tags", "priority")

Stored = tuple[Any, dict[str, Any]]  # a value, and the other arguments of its push


def save(items: Items, file_name: str | os.PathLike[str]) -> None:
    """Write all items to a database file, and replace an existing file of saved items.

    If saving is interrupted, an existing file is unchanged.

    Parameters
    ----------
    items : Items
        The items of a buffer.
    file_name : str or path-like
        Path of the file. Missing folders are created.

    Raises
    ------
    TargetExists
        If the file is an expdb database with another buffer. Nothing is written.
    NotAnExperienceDatabase
        If the file is not an expdb database.
    DatabaseBusy
        If another handle or process has the file open.
    InvalidValue
        If `file_name` is a URL or `":memory:"`.
    """
    target = _path(file_name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        _check_replaceable(target)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target.parent) as folder:
        draft = Path(folder) / "items.db"
        with items.lock:
            saved = Items(draft, NAME, max(1, len(items)), items.kinds)
            items.flush()
            for value, options in _stored(items.buffer, items.records):
                saved.push(value, **options)
            saved.close()
        os.replace(draft, target)


def load(file_name: str | os.PathLike[str], kinds: tuple[Kind, ...] = ()) -> Iterator[Stored]:
    """Yield the items of a file that `save` wrote, oldest first.

    Files that DI-engine saved with hickle are not supported, because reading them unpickles their
    contents, which can execute code.

    Parameters
    ----------
    file_name : str or path-like
        Path of the file.
    kinds : tuple of Kind
        Conversions of additional classes.

    Yields
    ------
    tuple
        The value of an item, and its `tags` and `priority` in a dict.

    Raises
    ------
    NotAnExperienceDatabase
        If the file is not an expdb database.
    UnknownBuffer
        If the database has no saved items.
    InvalidValue
        If `file_name` is a URL or `":memory:"`.
    """
    with expdb.open(_path(file_name), create=False) as database:
        if NAME not in database.buffers():
            raise errors.UnknownBuffer(
                f"{file_name} has no saved items; pass a file that save_data() wrote"
            )
        buffer = database.buffer(NAME)
        yield from _stored(buffer, Records(database, buffer, *kinds))


def _path(file_name: str | os.PathLike[str]) -> Path:
    """Return the path of a file; raise InvalidValue for any other location."""
    path = os.fspath(file_name)
    if "://" in path or path == ":memory:":
        raise expdb.InvalidValue(f"{path!r} is not a valid file name; expected the path of a file")
    return Path(path).expanduser().resolve()


def _check_replaceable(target: Path) -> None:
    # Closing a writable handle checkpoints a WAL that a killed process has left.
    with expdb.open(target, create=False) as database:
        names = set(database.buffers())
    if names - {NAME, f"{NAME}.structures"}:
        raise errors.TargetExists(
            f"{target} contains other buffers than saved items ({min(names)!r}); save the items "
            "to another file"
        )
    log = target.with_name(f"{target.name}-wal")
    if log.exists() and log.stat().st_size:
        raise errors.DatabaseBusy(
            f"{target} is open in another handle; close that handle, or save to another file"
        )


def _stored(buffer: expdb.ReplayBuffer, records: Records) -> Iterator[Stored]:
    for batch in buffer.scan(fields=("position", "reward", *records.fields, *KEYS)):
        columns = batch["tags"].tolist(), batch["priority"].tolist()
        for value, tags, priority in zip(records.values(batch), *columns, strict=True):
            unset = priority != priority
            yield value, {"tags": tags, "priority": None if unset else priority}
