"""Where a buffer is, said so that another folder, or another process, finds it."""

from __future__ import annotations

import os


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that means the same in another folder, as where it is unpickled."""
    given = os.fspath(location)
    return given if "://" in given or given == ":memory:" else os.path.abspath(given)


def refuse_private(location: str) -> None:
    """Raise ValueError for a private temporary database, which no other process can have."""
    if location == ":memory:":
        raise ValueError("a private temporary database cannot be handed over: give a location")
