"""Save and restore a drop-in buffer: its location, and the contents of a private database."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import expdb
from expdb import errors

PRIVATE = ":memory:"  # a private temporary database, deleted when it is closed
PARTS = "structures", "reservoir"  # the additional buffers `<name>.<part>` of a drop-in buffer


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that stays valid if unpickled in another working directory."""
    path = os.fspath(location)
    return path if "://" in path or path == PRIVATE else os.path.abspath(path)


def serialize_buffer(location: str, buffer: expdb.ReplayBuffer) -> bytes:
    """Return a buffer and its additional buffers `PARTS` as the bytes of a database file."""
    buffer.count({"priority": 0.0})  # writes priorities that are not written yet
    name = buffer.name
    with tempfile.TemporaryDirectory(prefix="expdb-contents-") as folder:
        path = os.path.join(folder, "contents.db")
        with expdb.open(location, create=False, read_only=True) as database:
            names = database.buffers()
        for part in (name, *(f"{name}.{part}" for part in PARTS)):
            if part in names:
                expdb.copy(location, path, buffer=part)
        with open(path, "rb") as file:
            return file.read()


def check_contents(name: str, data: Any, capacity: int | None) -> None:
    """Raise ValueError unless `data` contains the buffer `name` with at most this capacity."""
    with tempfile.TemporaryDirectory(prefix="expdb-contents-") as folder:
        path = os.path.join(folder, "contents.db")
        try:
            with open(path, "wb") as file:
                file.write(data)
            with expdb.open(path, create=False, read_only=True) as saved:
                problems = [] if name in saved.buffers() else [f"no buffer {name!r}"]
                problems += saved.check()
                saved_capacity = None if problems else saved.buffer(name, create=False).capacity
        except (expdb.ExpDBError, TypeError) as error:
            problems = [str(error)]
    if problems:
        raise ValueError(f"the data of the state cannot be read ({problems[0]}); use another state")
    if capacity is not None and (saved_capacity is None or saved_capacity > capacity):
        raise ValueError(
            f"the state was saved from a buffer with capacity {saved_capacity}, but this buffer "
            f"has capacity {capacity}; create the buffer with capacity {saved_capacity}"
        )


def restore_buffer(database: expdb.ExperienceDB, location: str, name: str, data: bytes) -> None:
    """Replace a buffer by the result of `serialize_buffer`; the steps keep their positions."""
    for part in (name, *(f"{name}.{part}" for part in PARTS)):
        if part in database.buffers():
            database.drop(part)
    with tempfile.TemporaryDirectory(prefix="expdb-contents-") as folder:
        path = os.path.join(folder, "contents.db")
        with open(path, "wb") as file:
            file.write(data)
        expdb.copy(path, location)


def reopened(kind: type[Any], options: dict[str, Any]) -> Any:
    """Return an unpickled buffer; a private buffer is empty until `__setstate__` fills it."""
    if options["location"] != PRIVATE:
        check_there(options["location"])
    return kind(**options)


def check_there(location: str) -> None:
    """Raise DatabaseMissing if the file of an unpickled buffer no longer exists.

    Otherwise, a new file with an empty buffer would be created silently.
    """
    if "://" not in location and not os.path.exists(location):
        raise errors.DatabaseMissing(
            f"{location}, the database of this buffer, does not exist; move the file back, or "
            "create a buffer with the new location of the file"
        )
