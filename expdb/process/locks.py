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
    """A call interrupts another call of the same thread.

    A signal handler or user code, such as a sampler, called the buffer while the interrupted call
    held the buffer's lock. If the error ends the interrupted call, the call is unfinished.
    """

    def __init__(self, buffer: str):
        super().__init__(
            f"cannot call buffer {buffer!r} during another call of the same thread; in a signal "
            "handler, set a flag and call the buffer later; in a sampler or unit, use only the "
            "arguments"
        )
