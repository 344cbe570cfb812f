"""Objects that are known for as long as somebody else holds them."""

import weakref
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class Living(Generic[Kind]):
    """A set that keeps nothing alive, and can be listed while other threads add to it.

    A `WeakSet` cannot.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Kind] = weakref.WeakValueDictionary()

    def add(self, one: Kind) -> None:
        """Know an object for as long as it lives."""
        self._known[id(one)] = one

    def discard(self, one: Kind) -> None:
        """Know an object no more."""
        self._known.pop(id(one), None)

    def list(self) -> "list[Kind]":
        """Return those that live at this moment."""
        return [one for reference in self._known.valuerefs() if (one := reference()) is not None]
