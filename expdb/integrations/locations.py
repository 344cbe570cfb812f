"""Where a buffer is, said so that another folder, or another process, finds it."""

from __future__ import annotations

import os

import expdb


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that means the same in another folder, as where it is unpickled."""
    given = os.fspath(location)
    return given if "://" in given or given == ":memory:" else os.path.abspath(given)


def refuse_private(location: str) -> None:
    """Raise ValueError for a private temporary database, which no other process can have."""
    if location == ":memory:":
        raise ValueError("a private temporary database cannot be handed over: give a location")


def check_there(location: str) -> None:
    """Raise DatabaseMissing where a buffer is to be unpickled whose file is not there any more.

    A new file would be an empty buffer, and nobody would know.
    """
    if "://" not in location and not os.path.exists(location):
        raise expdb.DatabaseMissing(
            f"the experience of this buffer is not at {location} any more: move the file back, or "
            "make a buffer with the location where it is now, in place of this one"
        )
