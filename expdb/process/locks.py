"""Work under a lock."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

Result = TypeVar("Result")


def locked(
    lock: AbstractContextManager[Any], work: Callable[..., Result], *arguments: Any
) -> Result:
    """Do work while a lock is held.

    On one line: an interrupt may come at the line where a block of several is left, before the lock
    is given back, and then nobody ever gets it again (Python 3.11 to 3.13).
    """
    with lock: return work(*arguments)  # fmt: skip
