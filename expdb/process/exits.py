"""Functions that are called when a process exits.

Processes that multiprocessing forked never call `atexit` functions. In these processes,
`watch_worker` registers the functions with multiprocessing.
"""

import atexit
import os
import sys
from collections.abc import Callable

_functions: list[Callable[[], None]] = []
_watched: int | None = None  # the worker process whose exit calls the functions


def at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function when this process, or a worker that called `watch_worker`, exits."""
    _functions.append(function)
    return atexit.register(function)


def watch_worker() -> None:
    """In a worker process of multiprocessing, register the functions to be called at its exit.

    Later calls in the same process have no effect and are cheap.
    """
    global _watched
    if _watched == os.getpid() or "multiprocessing.process" not in sys.modules:
        return
    from multiprocessing import parent_process, util

    if parent_process() is not None:
        for function in _functions:
            util.Finalize(None, function, exitpriority=1)
    _watched = os.getpid()
