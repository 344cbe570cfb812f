"""Group commit: writes that are submitted at the same time share one transaction.

A commit costs much more than a step. While one transaction commits, the writes of other threads and
coroutines of the process wait in a queue, and the next transaction stores all of them. A thread of
the queue runs these transactions. A write that finds no other write under way runs its own.
"""

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from expdb.errors import Location
from expdb.process.locks import locked

Row = tuple[Mapping[str, Any], Mapping[str, Any]]  # columns and fields of a step

# Larger submissions wait in a queue of their own, so that they do not delay the others.
LARGE_BYTES = 256 << 10
# Limits of one transaction. It has one large submission, if one is waiting.
GROUP_BYTES = 4 << 20
GROUP_SIZE = 1024
# Coroutines wait before they submit while the queues hold more bytes than this.
QUEUE_BYTES = 48 << 20
# How long the thread waits for the next submission before it ends.
IDLE_SECONDS = 0.2


class Submission:
    """The steps of one call, and the positions or the error of its write."""

    def __init__(self, rows: Sequence[Row], caller: Any):
        self.rows, self.caller = rows, caller
        self.location = Location()
        self.nbytes = sum([_size_of(fields) for _, fields in rows])
        self.positions: np.ndarray | None = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of the coroutine
        self.done: Any = None  # the future of the coroutine, or the event of the thread

    def fail(self, error: BaseException) -> None:
        """Set the error of the call.

        Each call gets a copy, because raising an error adds a traceback to it.
        """
        self.error = error
        with suppress(Exception):  # an error whose class cannot be copied
            self.error = copy.copy(error)
            self.error.__cause__, self.error.__traceback__ = error.__cause__, error.__traceback__

    def result(self) -> np.ndarray:
        """Return the positions, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.positions is not None
        return self.positions


class GroupCommit:
    """The writes of one buffer by the threads and coroutines of this process.

    `write_alone` writes the steps of one call. `write_group` writes the steps of some submissions
    and sets their results. Both are called with `lock` held.
    """

    def __init__(
        self,
        write_alone: Callable[[Sequence[Row], Any], np.ndarray],
        write_group: Callable[[list[Submission]], None],
        lock: Any,
    ):
        self._write_alone, self._write_group, self._lock = write_alone, write_group, lock
        self._owner: int | None = None  # the thread that writes
        self._small: deque[Submission] = deque()
        self._large: deque[Submission] = deque()
        self._submitted = threading.Condition()
        self._thread: threading.Thread | None = None
        self._queued_bytes = 0
        self._waiting: deque[Submission] = deque()  # coroutines that wait for room in the queues

    def write(self, rows: Sequence[Row], caller: Callable[[], Any]) -> np.ndarray:
        """Store steps in one transaction and return their positions.

        `caller` returns the thread and the asyncio task that call.
        """
        me = threading.get_ident()
        if self._owner == me or (self._owner is None and not self._small and not self._large):
            return locked(self._lock, self._write_directly, rows, me)
        own = Submission(rows, caller())
        own.done = threading.Event()
        try:
            self._submit(own)
            own.done.wait()
            return own.result()
        except BaseException:
            if not own.done.is_set() and not self._withdraw(own):
                own.done.wait()  # another thread is writing the steps
            raise
        finally:
            del own  # the error refers to this frame, and the submission to the error

    def _write_directly(self, rows: Sequence[Row], me: int) -> np.ndarray:
        try:
            self._owner = me
            return self._write_alone(rows, None)
        finally:
            self._owner = None

    async def write_async(self, rows: Sequence[Row], caller: Callable[[], Any]) -> np.ndarray:
        """Store steps as `write` does, while other coroutines run.

        A cancelled call has stored all of its steps or none. The message of the CancelledError says
        which.
        """
        own, is_submitted = Submission(rows, caller()), False
        own.loop = asyncio.get_running_loop()
        try:
            while self._queued_bytes and self._queued_bytes + own.nbytes > QUEUE_BYTES:
                own.done = own.loop.create_future()
                self._waiting.append(own)
                if self._queued_bytes:
                    await own.done
            own.done = own.loop.create_future()
            self._submit(own)
            is_submitted = True
            await asyncio.shield(own.done)
        except asyncio.CancelledError:
            if not is_submitted or self._withdraw(own):
                raise asyncio.CancelledError(
                    "the call was cancelled before its write; nothing was stored"
                ) from None
            while not own.done.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([own.done])
            stored = own.positions is not None
            raise asyncio.CancelledError(
                f"the call was cancelled during its write, which stored position {own.result()[0]}"
                if stored
                else f"the call was cancelled during its write, which failed: {own.error}"
            ) from own.error
        try:
            return own.result()
        finally:
            del own

    def _submit(self, own: Submission) -> None:
        locked(self._submitted, self._append, own)

    def _append(self, own: Submission) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, daemon=True, name="expdb-write")
            thread.start()  # raises if there are too many threads; then nothing is queued
            self._thread = thread
        (self._large if own.nbytes > LARGE_BYTES else self._small).append(own)
        self._queued_bytes += own.nbytes
        self._submitted.notify()

    def _withdraw(self, own: Submission) -> bool:
        """Remove a submission from the queues; return False if its write has begun."""
        return locked(self._submitted, self._remove, own)

    def _remove(self, own: Submission) -> bool:
        for queue in (self._small, self._large):
            if own in queue:
                queue.remove(own)
                self._queued_bytes -= own.nbytes
                return True
        return False

    # -- the thread of the queue ------------------------------------------------------------------

    def _run(self) -> None:
        while locked(self._submitted, self._is_needed):
            _notify(locked(self._lock, self._write_queued))

    def _is_needed(self) -> bool:
        """Return whether there is a submission; wait for one for a while."""
        if not self._small and not self._large:
            self._submitted.wait(IDLE_SECONDS)
        if self._small or self._large:
            return True
        self._thread = None  # while `_submitted` is held, so that `_append` starts another one
        return False

    def _take_group(self) -> list[Submission]:
        group: list[Submission] = []
        size = 0
        while self._small and size < GROUP_BYTES and len(group) < GROUP_SIZE:
            group.append(self._small.popleft())
            size += group[-1].nbytes
        if self._large:
            group.append(self._large.popleft())
        self._queued_bytes -= sum([own.nbytes for own in group])
        return group

    def _write_queued(self) -> list[Submission]:
        group = locked(self._submitted, self._take_group)
        if self._waiting:  # the queues have room now
            _notify([self._waiting.popleft() for _ in range(len(self._waiting))])
        try:
            self._owner = threading.get_ident()
            self._write_group(group)
        except BaseException as error:  # otherwise the callers would wait forever
            for own in group:
                if own.positions is None and own.error is None:
                    own.fail(error)
        finally:
            self._owner = None
        return group


def _notify(group: list[Submission]) -> None:
    """Wake the threads and coroutines of submissions; call each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[Any]] = {}
    for own in group:
        if own.loop is None:
            own.done.set()
        else:
            loops.setdefault(own.loop, []).append(own.done)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # if the loop is closed, no coroutine waits
            loop.call_soon_threadsafe(_set_done, futures)


def _set_done(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _size_of(value: Any, depth: int = 0) -> int:
    """Return the approximate size of a value in bytes."""
    nbytes = getattr(value, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, Mapping):
        return sum([_size_of(inner, depth + 1) for inner in value.values()]) + 16 * len(value)
    if isinstance(value, (list, tuple)):
        if value and depth < 8 and not isinstance(value[0], (int, float)):
            return sum([_size_of(inner, depth + 1) for inner in value])
        return 8 * len(value)
    return 8
