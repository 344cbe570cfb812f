"""Group commit: writes that are submitted at the same time share one transaction.

A commit costs much more than a step. While one transaction commits, the writes of other threads and
coroutines of the process wait in a queue, and the next transaction stores all of them. A thread of
the queue runs these transactions. A write that finds no other write under way runs its own.
"""

import asyncio
import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from expdb import errors
from expdb.process.awaiting import current_caller, on_behalf_of
from expdb.process.locks import locked
from expdb.sql.engine import Engine
from expdb.storage.ledger.rates import wait_to_insert
from expdb.storage.store import Store
from expdb.storage.writing.encoded_steps import EncodedSteps
from expdb.storage.writing.pending_steps import PendingSteps

Result = TypeVar("Result")
Row = tuple[Mapping[str, Any], Mapping[str, Any]]  # columns and fields of a step
Columns = Mapping[str, Sequence[Any]]

# Larger submissions wait in a queue of their own, so that they do not delay the others.
LARGE_BYTES = 256 << 10
# Limits of one transaction. It has one large submission, if one is waiting.
GROUP_BYTES = 4 << 20
GROUP_SIZE = 1024
# Coroutines wait before they submit while the queues hold more bytes than this.
QUEUE_BYTES = 48 << 20
# How long the thread waits for the next submission before it ends.
IDLE_SECONDS = 0.2
# Pause between two attempts while the rate limiter refuses all submissions.
PAUSE_SECONDS = 0.02
# Pause of a cancelled call between two looks for its outcome.
POLL_SECONDS = 0.001
# Deeper values are not measured.
MAX_SIZE_DEPTH = 8


@dataclass(frozen=True, eq=False)
class EncodedWrite:
    """Encoded steps, and functions that write them and cache their episodes."""

    source: EncodedSteps | PendingSteps
    write: Callable[[], np.ndarray]  # writes the steps in a transaction of their own
    # Caches the episodes after a shared transaction has stored the steps.
    cache_episodes: Callable[[], None]

    @property
    def steps(self) -> EncodedSteps:
        """The steps, which `write` may have encoded again."""
        return self.source.pending if isinstance(self.source, PendingSteps) else self.source


# The steps of one call: rows, columns or encoded steps.
Payload: TypeAlias = Sequence[Row] | Columns | EncodedWrite


class Submission:
    """The steps of one call, and the positions or the error of its write."""

    def __init__(self, payload: Payload, deadline: float, engine: Engine):
        self.payload, self.deadline, self._engine = payload, deadline, engine
        self.caller, self.line = current_caller(), errors.WarningLocation()
        self.nbytes = _size_of_payload(payload)
        self.positions: np.ndarray | None = None
        self.error: BaseException | None = None
        self.is_taken = False  # by the thread of the queue
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of the coroutine
        self.done: Any = None  # the future of the coroutine, or a lock that the thread waits for

    @property
    def has_result(self) -> bool:
        """Whether the steps are stored or refused."""
        return self.positions is not None or self.error is not None

    @property
    def episodes(self) -> set[str]:
        """Keys of the episodes of this submission, whose later steps must be written after it."""
        if not isinstance(self.payload, Sequence):
            # Only threads submit these, and a thread waits before it submits more steps.
            return set()
        return {
            repr(row.get("episode_id") or (row.get("task_id"), row.get("agent_id")))
            for row, _ in self.payload
        }

    @contextmanager
    def as_caller(self) -> Iterator[None]:
        """Act as the caller inside the block.

        Warnings point at the caller's line, and `current_caller` returns its thread and task.
        Writes wait for the database no longer than the deadline of the call.
        """
        with self.line, on_behalf_of(self.caller), self._engine.until(self.deadline):
            yield

    def fail(self, error: BaseException) -> None:
        """Set the error of the call.

        Each call gets a copy, because raising an error adds a traceback to it.
        """
        own = error
        with suppress(Exception):  # an error whose class cannot be copied
            own = copy.copy(error)
            own.__cause__, own.__traceback__ = error.__cause__, error.__traceback__
        self.error = own

    def result(self) -> np.ndarray:
        """Return the positions, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.positions is not None
        return self.positions


class Writer(Protocol):
    """Write the steps of one call, or of a group of submissions."""

    def write_alone(self, payload: Payload) -> np.ndarray:
        """Write the steps of one call and return their positions."""

    def write_group(self, group: list[Submission]) -> None:
        """Write the steps of some submissions, and set their results."""


class GroupCommit:
    """The writes of one buffer by the threads and coroutines of this process.

    The `writer` writes the steps of one call, or of a group of submissions, whose results it sets.
    It is called with the lock held, and does not wait for the rate limiter. A submission without a
    result is passed to it again.
    """

    writer: Writer

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread that holds the lock
        self._small: deque[Submission] = deque()
        self._large: deque[Submission] = deque()
        # Acquire this lock, not the condition: an interrupt in `Condition.__enter__`, which is
        # Python code, could leave the condition locked.
        self._queue_lock = threading.RLock()
        self._submitted = threading.Condition(self._queue_lock)
        self._thread: threading.Thread | None = None
        self._queued_bytes = 0
        # Coroutines that wait for room in the queues.
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of `work(*arguments)`, called while no other thread writes."""
        result: Result = locked(self._lock, self._run_as_owner, work, *arguments)
        return result

    def _run_as_owner(self, work: Callable[..., Result], *arguments: Any) -> Result:
        before = self._owner  # a signal handler may write while the same thread writes
        try:
            self._owner = threading.get_ident()
            return work(*arguments)
        finally:
            self._owner = before

    def write(self, payload: Payload) -> np.ndarray:
        """Store steps in one transaction and return their positions.

        If the rate limiter refuses the steps, wait up to the timeout of the handle.
        """
        engine, limit = self._store.engine, cast("AbstractContextManager[None]", nullcontext())
        deadline = time.monotonic() + engine.timeout
        while True:
            try:
                with limit:
                    return self._write(payload, deadline)
            except errors.RateLimited as error:
                wait_to_insert(self._store, _count_steps(payload), deadline, error)
                limit = engine.until(deadline)  # the call has waited for a part of its timeout

    def _write(self, payload: Payload, deadline: float) -> np.ndarray:
        if self._owner == threading.get_ident() or (
            self._owner is None and not self._small and not self._large
        ):
            return self.run(self.writer.write_alone, payload)
        own = Submission(payload, deadline, self._store.engine)
        # Not an Event: a signal handler that raises in `Event.wait` may leave it unusable.
        own.done = threading.Lock()
        own.done.acquire()
        try:
            try:
                locked(self._queue_lock, self._append, own)
            except RuntimeError:  # the program ends, or has too many threads
                return self.run(self.writer.write_alone, payload)
            own.done.acquire()
            return own.result()
        except BaseException:
            self._withdraw(own)
            raise
        finally:
            del own  # the error refers to this frame, and the submission to the error

    def _withdraw(self, own: Submission) -> None:
        """Remove an interrupted submission from the queues, or wait until it has a result.

        A further interrupt does not end the wait for encoded steps: the writer would add steps to
        them, or write them again, while another thread writes them.
        """
        is_over = False
        while not is_over:
            try:
                is_over = locked(self._queue_lock, self._remove, own) or not own.is_taken
                while not (is_over or own.has_result):
                    own.done.acquire(timeout=1.0)  # another thread is writing the steps
                is_over = True
            except BaseException:
                if not isinstance(own.payload, EncodedWrite):
                    raise

    async def write_async(self, payload: Payload) -> np.ndarray:
        """Store steps as `write` does, while other coroutines run.

        A cancelled call has stored all of its steps or none. The message of the CancelledError says
        which.
        """
        deadline = time.monotonic() + self._store.engine.timeout
        own, is_submitted = Submission(payload, deadline, self._store.engine), False
        own.loop = asyncio.get_running_loop()
        try:
            while self._queued_bytes and self._queued_bytes + own.nbytes > QUEUE_BYTES:
                room = own.loop.create_future()
                self._waiting.append((own.loop, room))
                if self._queued_bytes:
                    await room
            own.done = own.loop.create_future()
            locked(self._queue_lock, self._append, own)
            is_submitted = True
            await own.done
        except asyncio.CancelledError:
            if not is_submitted or locked(self._queue_lock, self._remove, own):
                raise asyncio.CancelledError(
                    "the call was cancelled before its write; nothing was stored"
                ) from None
            while not own.has_result:  # another thread is writing the steps
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(POLL_SECONDS)
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

    def _append(self, own: Submission) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._write_queued, daemon=True, name="expdb-write")
            thread.start()  # raises if there are too many threads; then nothing is queued
            self._thread = thread
        # The steps of an episode keep their order.
        is_large = own.nbytes > LARGE_BYTES or any(
            not own.episodes.isdisjoint(other.episodes) for other in self._large
        )
        (self._large if is_large else self._small).append(own)
        self._queued_bytes += own.nbytes
        self._submitted.notify()

    def _remove(self, own: Submission) -> bool:
        """Remove a submission from the queues; return False if it is not in a queue."""
        for queue in (self._small, self._large):
            if own in queue:
                queue.remove(own)
                self._make_room()
                return True
        return False

    def _make_room(self) -> None:
        """Count the queued bytes, and wake the coroutines that wait for room."""
        self._queued_bytes = sum([own.nbytes for own in (*self._small, *self._large)])
        _set_done([self._waiting.popleft() for _ in range(len(self._waiting))])

    # -- the thread of the queue ------------------------------------------------------------------

    def _write_queued(self) -> None:
        while locked(self._queue_lock, self._is_needed):
            group = self.run(self._write_next)
            postponed = [own for own in group if not own.has_result]
            if postponed:  # `GroupWriter.write_group` could not write them yet
                locked(self._queue_lock, self._put_back, postponed)
                if len(postponed) == len(group):
                    time.sleep(PAUSE_SECONDS)
            _notify([own for own in group if own.has_result])

    def _is_needed(self) -> bool:
        """Return whether there is a submission; wait up to `IDLE_SECONDS` for one."""
        if not self._small and not self._large:
            self._submitted.wait(IDLE_SECONDS)
        if self._small or self._large:
            return True
        self._thread = None  # while the lock is held, so that `_append` starts another thread
        return False

    def _write_next(self) -> list[Submission]:
        group = locked(self._queue_lock, self._take_group)
        try:
            self.writer.write_group(group)
        except BaseException as error:  # otherwise the callers would wait forever
            for own in group:
                if not own.has_result:
                    own.fail(error)
        return group

    def _take_group(self) -> list[Submission]:
        group: list[Submission] = []
        size = 0
        while self._small and size < GROUP_BYTES and len(group) < GROUP_SIZE:
            group.append(self._small.popleft())
            size += group[-1].nbytes
        # A large submission that was put back is in `_small`, before later ones of its episodes.
        if self._large and all(
            own.episodes.isdisjoint(self._large[0].episodes) for own in self._small
        ):
            group.append(self._large.popleft())
        for own in group:
            own.is_taken = True
        self._make_room()
        return group

    def _put_back(self, group: list[Submission]) -> None:
        for own in reversed(group):
            own.is_taken = False
            # Also large submissions, so that they are written before later steps of their episodes.
            self._small.appendleft(own)
        self._queued_bytes += sum([own.nbytes for own in group])


def _notify(group: list[Submission]) -> None:
    """Wake the threads and coroutines of submissions."""
    for own in group:
        if own.loop is None:
            with suppress(RuntimeError):  # it was woken before
                own.done.release()
    _set_done([(own.loop, own.done) for own in group if own.loop is not None])


def _set_done(
    waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]],
) -> None:
    """Set the results of futures; call each event loop once."""
    futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiting:
        futures.setdefault(loop, []).append(future)
    for loop, of_loop in futures.items():
        with suppress(RuntimeError):  # if the loop is closed, no coroutine waits
            loop.call_soon_threadsafe(_set_results, of_loop)


def _set_results(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _count_steps(payload: Payload) -> int:
    """Return the number of steps."""
    if isinstance(payload, EncodedWrite):
        return len(payload.steps)
    return len(next(iter(payload.values()))) if isinstance(payload, Mapping) else len(payload)


def _size_of_payload(payload: Payload) -> int:
    """Return the approximate size of the steps in bytes."""
    if isinstance(payload, EncodedWrite):
        return payload.steps.nbytes + payload.steps.rows.nbytes
    if isinstance(payload, Mapping):
        return sum([_size_of(column) for column in payload.values()])
    return sum([_size_of(fields) for _, fields in payload])


def _size_of(value: Any, depth: int = 0) -> int:
    """Return the approximate size of a value in bytes."""
    if isinstance(value, (float, int)):
        return 8
    if depth < MAX_SIZE_DEPTH and isinstance(value, dict):
        return sum([_size_of(inner, depth + 1) for inner in value.values()]) + 16 * len(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)):
        if value and depth < MAX_SIZE_DEPTH and not isinstance(value[0], (int, float)):
            return sum([_size_of(inner, depth + 1) for inner in value])
        return 8 * len(value)
    return 64
