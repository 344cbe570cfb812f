"""Call a function while a lock is held."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from expdb import errors

Result = TypeVar("Result")


def locked(
    lock: AbstractContextManager[Any], work: Callable[..., Result], *arguments: Any
) -> Result:
    """Return the result of `work(*arguments)`, called while `lock` is held.

    The `with` statement is on one line. In Python 3.11 to 3.13, an interrupt at the end of a longer
    block may occur before the lock is released, and the lock would then stay locked forever.
    """
    with lock: return work(*arguments)  # fmt: skip


class NestedCall(errors.ExpDBError):
    """A call interrupted another call of the same thread, and may have left it unfinished.

    A signal handler, or a function of the user such as a sampler, made the call while the
    interrupted call was changing the data that the lock of the buffer protects.
    """

    def __init__(self, buffer: str):
        super().__init__(
            f"buffer {buffer!r} is in the middle of another call of this thread; in a signal "
            "handler, set a flag, and call the buffer after that call has returned"
        )
