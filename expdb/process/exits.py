"""The exit of a process.

What is done then, also in processes that multiprocessing forked, which never call `atexit`.
"""

import atexit
import os
import sys
from collections.abc import Callable

_functions: list[Callable[[], None]] = []
_watched: int | None = None  # the worker process whose exit calls the functions


def at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when the process exits, or a worker that calls `watch_worker`."""
    _functions.append(function)
    return atexit.register(function)


def watch_worker() -> None:
    """In a process that multiprocessing made, have the functions called at its exit.

    Cheap to call again.
    """
    global _watched
    if _watched == os.getpid() or "multiprocessing.process" not in sys.modules:
        return
    from multiprocessing import parent_process, util

    if parent_process() is not None:
        for function in _functions:
            util.Finalize(None, function, exitpriority=1)
    _watched = os.getpid()
