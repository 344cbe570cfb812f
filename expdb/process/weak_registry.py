"""A registry of objects that does not keep them alive."""

import weakref
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class WeakRegistry(Generic[Kind]):
    """A set of weak references that can be listed while other threads add objects.

    A `WeakSet` cannot be listed while another thread adds to it.
    """

    def __init__(self) -> None:
        self._references: weakref.WeakValueDictionary[int, Kind] = weakref.WeakValueDictionary()

    def add(self, member: Kind) -> None:
        """Add an object. It is removed when it is garbage-collected."""
        self._references[id(member)] = member

    def discard(self, member: Kind) -> None:
        """Remove an object if it is in the set."""
        self._references.pop(id(member), None)

    def list(self) -> "list[Kind]":
        """Return the objects that are alive at this moment."""
        return [
            member
            for reference in self._references.valuerefs()
            if (member := reference()) is not None
        ]
