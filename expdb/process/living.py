"""A registry of objects that does not keep them alive."""

import weakref
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class Living(Generic[Kind]):
    """A set of weak references that can be listed while other threads add objects.

    A `WeakSet` cannot be listed while another thread adds to it.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Kind] = weakref.WeakValueDictionary()

    def add(self, one: Kind) -> None:
        """Add an object. It is removed when it is garbage-collected."""
        self._known[id(one)] = one

    def discard(self, one: Kind) -> None:
        """Remove an object if it is in the set."""
        self._known.pop(id(one), None)

    def list(self) -> "list[Kind]":
        """Return the objects that are alive at this moment."""
        return [one for reference in self._known.valuerefs() if (one := reference()) is not None]
