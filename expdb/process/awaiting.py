"""Run blocking work for coroutines; each call runs in its own thread.

The thread pool of the event loop has few threads, so calls that wait for a long time would block
all other calls.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

from expdb.errors import ExpDBError, WarningLocation
from expdb.process.locks import locked

Result = TypeVar("Result")
Entered = TypeVar("Entered")
Parameters = ParamSpec("Parameters")


_origin = threading.local()


def current_caller() -> tuple[object, object]:
    """Return the current thread and the current asyncio task.

    In a thread of `in_thread`, or in a block of `as_caller`, return the original caller. The
    result holds objects, because ids of ended threads and tasks are reused.
    """
    caller: tuple[object, object] | None = getattr(_origin, "caller", None)
    if caller is not None:
        return caller
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop is not None else None
    return threading.current_thread(), task


@contextmanager
def as_caller(caller: tuple[object, object]) -> Iterator[None]:
    """Make `current_caller` return `caller` in this thread until the block ends."""
    before = getattr(_origin, "caller", None)
    _origin.caller = caller
    try:
        yield
    finally:
        _origin.caller = before


def in_thread(work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
    """Start work in a thread, and return a future for the result.

    Warnings of the work point at the calling line.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    caller, line = current_caller(), WarningLocation()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if isinstance(error, StopIteration):  # a future cannot hold it
            error = RuntimeError(f"the call raised {error!r}")
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            with line, as_caller(caller):
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


def async_form(
    method: Callable[Parameters, Result], *, reads: bool = False
) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Return a coroutine function that calls a method in a thread.

    A cancelled call waits until the method has returned, so that the caller knows whether it has
    changed the database. With `reads`, a cancelled call returns at once.
    """

    @functools.wraps(method)
    async def form(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        task = in_thread(functools.partial(method, *arguments, **named))
        if not reads:
            return await complete(task, f"{form.__name__}()")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_ignore_error)
            raise

    form.__name__ = f"{method.__name__.lstrip('_')}_async"
    form.__qualname__ = f"{method.__qualname__}_async"
    form.__doc__ = _doc_of_form(method, reads)
    return form


async def complete(task: asyncio.Future[Result], name: str) -> Result:
    """Return the result of a call in a thread; after a cancellation, also wait for its outcome."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        error = task.exception()
        outcome = "completed" if error is None else f"failed: {error}"
        raise asyncio.CancelledError(
            f"the task was cancelled while it awaited {name}, which then {outcome}"
        ) from error


_END: Any = object()


def async_iteration(
    method: Callable[Parameters, Iterator[Result]],
) -> Callable[Parameters, AsyncIterator[Result]]:
    """Return an asynchronous generator function that calls a reading iterator in threads."""

    @functools.wraps(method)
    async def form(*arguments: Parameters.args, **named: Parameters.kwargs) -> Any:
        iterator = await in_thread(functools.partial(method, *arguments, **named))
        while (item := await in_thread(next, iterator, _END)) is not _END:
            yield item

    form.__name__ = f"{method.__name__}_async"
    form.__qualname__ = f"{method.__qualname__}_async"
    form.__doc__ = _doc_of_form(method, reads=True)
    return form


class AsyncIteration(Generic[Result]):
    """An iterator whose items may also be awaited with ``async for``."""

    def __next__(self) -> Result:
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        item = await complete(in_thread(next, self, _END), "the next item")
        if item is _END:
            raise StopAsyncIteration
        return cast("Result", item)


class AsyncExit(Generic[Entered]):
    """A context manager whose block may also begin with ``async with``.

    The end of such a block waits for the database in a thread.
    """

    def __enter__(self) -> Entered:
        raise NotImplementedError

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Entered:
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is GeneratorExit:  # the coroutine is closed and cannot wait
            self.__exit__(kind, error, traceback)
        else:
            task = in_thread(self.__exit__, kind, error, traceback)
            await complete(task, "the end of the block")


def _doc_of_form(method: Callable[..., Any], reads: bool) -> str:
    """Return the docstring of a method, without its examples, for its asynchronous form."""
    summary, _, rest = inspect.cleandoc(method.__doc__ or "").partition("\n")
    rest = re.sub(r"\n*Examples\n-{8}\n.*?(?=\n\n\w[^\n]*\n-{3,}\n|\Z)", "", rest, flags=re.DOTALL)
    cancelled = (
        "A cancelled call stops immediately."
        if reads
        else "A cancelled call finishes first; the message of the CancelledError gives the outcome."
    )
    name = method.__name__.lstrip("_")
    return (
        f"{summary}\n\nThis is the asynchronous form of `{name}`: it does not block the "
        f"event loop.\n{cancelled}\n{rest}"
    )


def _ignore_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
