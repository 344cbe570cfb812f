"""Blocking work for coroutines, each piece in a thread of its own.

Not in the threads of the event loop, which are few: some who wait there for long would keep all
others from what they wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_thread(work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
    """Start work in a thread, and return what it comes to."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work(*arguments)
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True, name="expdb-await").start()
    return future
