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

from expdb.errors import ExpDBError
from expdb.process.locks import locked

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


async def obtain(
    work: Callable[[threading.Event], Result], release: Callable[[Result], object]
) -> Result:
    """Run work in a thread and return its result, or release the result after a cancellation.

    `work` is called with an event that is set by a cancellation. What it obtains later, or has
    obtained without the caller having received it, is released in a thread: the event loop may
    have ended by then.
    """
    cancelled, lock = threading.Event(), threading.Lock()
    obtained: list[Result] = []

    def release_quietly(result: Result) -> None:
        with suppress(ExpDBError):  # it is released when it expires, or when the process ends
            release(result)

    def keep(result: Result) -> None:
        if not cancelled.is_set():
            obtained.append(result)

    def run() -> Result:
        result = work(cancelled)
        locked(lock, keep, result)
        if not obtained:
            release_quietly(result)
        return result

    task = in_thread(run)
    try:
        return await asyncio.shield(task)
    except BaseException:  # a cancellation, or the end of the event loop
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # else it is logged
        locked(lock, cancelled.set)
        for result in obtained:
            threading.Thread(target=release_quietly, args=(result,)).start()
        raise
