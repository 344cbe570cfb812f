"""What was worked out last, a few of each kind."""

from collections.abc import Callable
from typing import Any, TypeVar

REMEMBERED = 16  # queries and the like, each kept up to date when it is used

Value = TypeVar("Value")


def remember(known: dict[Any, Any], name: Any, value: Any) -> None:
    """Note a value under a name, and forget the one noted first where there are too many."""
    known.pop(name, None)
    known[name] = value
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


def remembered(known: dict[Any, Value], name: Any, make: Callable[[], Value]) -> Value:
    """Return the value noted under a name, made where there is none."""
    found = known.get(name)
    if found is None:
        remember(known, name, make())
        found = known[name]
    return found
