"""Run blocking work for coroutines; each call runs in its own thread.

The thread pool of the event loop has few threads, so calls that wait for a long time would block
all other calls.
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
    """Start work in a thread, and return a future for the result."""
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
        with suppress(RuntimeError):  # if the loop is closed, no coroutine waits for the result
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True, name="expdb-await").start()
    return future


async def obtain(
    work: Callable[[threading.Event], Result], release: Callable[[Result], object]
) -> Result:
    """Run work in a thread and return its result, or release the result after a cancellation.

    `work` receives an event, which a cancellation sets. If a cancellation keeps the caller from
    receiving the result, a thread releases the result, because the event loop may have ended.
    """
    cancelled, lock = threading.Event(), threading.Lock()
    obtained: list[Result] = []

    def release_quietly(result: Result) -> None:
        with suppress(ExpDBError):  # the result ends when it expires or when the process ends
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
        )  # otherwise asyncio logs an exception that was never retrieved
        locked(lock, cancelled.set)
        for result in obtained:
            threading.Thread(target=release_quietly, args=(result,)).start()
        raise
