"""Call a function while a lock is held."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

Result = TypeVar("Result")


def locked(
    lock: AbstractContextManager[Any], work: Callable[..., Result], *arguments: Any
) -> Result:
    """Return the result of `work(*arguments)`, called while `lock` is held.

    The `with` statement is on one line. In Python 3.11 to 3.13, an interrupt at the end of a longer
    block may occur before the lock is released, and the lock would then stay locked forever.
    """
    with lock: return work(*arguments)  # fmt: skip
