"""Queue the writes of a buffer, so that concurrent writes share one transaction.

A commit costs much more than a step. While one transaction commits, the writes of other threads and
coroutines of the process wait in a queue, and the next transaction stores all of them. A thread of
the queue runs these transactions. A write that finds no other write under way runs its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from expdb import errors
from expdb.process.locks import NestedCall, locked
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.ledger.rates import wait_to_insert
from expdb.storage.store import Store
from expdb.storage.writing import transaction
from expdb.storage.writing.batches import rows_of, split_step
from expdb.storage.writing.in_doubt import commit_unknown
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.pending_steps import PendingSteps, create_steps
from expdb.storage.writing.submissions import EncodedWrite, Payload, Submission, count_steps

# If fields vary in size, a chunk larger than this gets no steps of later submissions. When its
# episode ends, it is merged with the other chunks of the episode.
OWN_CHUNK_BYTES = 4 << 10
# Errors of a shared transaction that a single write of the group can cause.
_ERRORS_OF_ONE_WRITE = (
    errors.EpisodeEnded,
    errors.EpisodeMismatch,
    errors.Evicted,
    errors.FieldMismatch,
    errors.InvalidValue,
    errors.OutOfDate,
    errors.RateLimited,
)
# After these errors, each further write of the group would probably wait for the whole timeout and
# fail too.
_DATABASE_ERRORS = (errors.ConnectionLost, errors.DatabaseBusy)

# A submission, and the begin and end of its steps in the positions of the write.
Member = tuple[Submission, int, int | None]


def write_alone(store: Store, episodes: OpenEpisodes, payload: Payload) -> np.ndarray:
    """Write the steps of one call in one transaction; return their positions, in order."""
    if isinstance(payload, EncodedWrite):
        if payload.episodes is None:
            return transaction.write(store, payload.steps)
        return payload.episodes.write_gathered(payload.steps)
    pending = create_steps(store)
    if not isinstance(payload, dict):
        return episodes.write_gathered(pending, payload)
    are_gathered = False
    # After these errors, add the steps row by row. This looks up the episodes again, and an
    # error then names its row.
    with suppress(errors.EpisodeEnded, errors.EpisodeMismatch, errors.InvalidValue):
        are_gathered = episodes.gather_columns(payload, pending)
    if are_gathered:
        return episodes.write_gathered(pending)
    return episodes.write_gathered(pending, [split_step(row) for row in rows_of(payload)])


def write_group(store: Store, episodes: OpenEpisodes, group: list[Submission]) -> None:
    """Write a group of submissions, in one transaction if possible, and set their results.

    If a submission is refused, only its call fails. The others are written without it. Until
    its deadline, a submission gets no result and is written again later in two cases: the
    database is locked or unreachable, or the rate limiter refuses the steps of a coroutine.
    Later submissions of the same episodes are then also written later.
    """
    database_error: errors.ExpDBError | None = None
    if len(group) > 1:
        with store.engine.until(min(submission.deadline for submission in group)):
            database_error = _write_shared(store, episodes, group)
    postponed: set[str] = set()  # episodes with steps that are written later
    for submission in group:
        if not submission.has_result and postponed.isdisjoint(submission.episodes):
            if database_error is None:
                database_error = _write_submission(store, episodes, submission)
            elif submission.deadline <= time.monotonic():
                submission.fail(_error_after_deadline(submission, database_error))
        if not submission.has_result:
            postponed |= submission.episodes


def _write_submission(
    store: Store, episodes: OpenEpisodes, submission: Submission
) -> errors.ExpDBError | None:
    """Write one submission; return the error if the database was unreachable or locked."""
    try:
        with submission.as_caller():
            submission.positions = write_alone(store, episodes, submission.payload)
    except errors.RateLimited as error:
        # A thread waits in `WriteQueue.write`; the steps of a coroutine are written later.
        if submission.loop is None or time.monotonic() >= submission.deadline:
            submission.fail(error)
    except BaseException as error:
        submission.fail(error)
        return error if isinstance(error, _DATABASE_ERRORS) else None
    return None


def _write_shared(
    store: Store, episodes: OpenEpisodes, group: list[Submission]
) -> errors.ExpDBError | None:
    """Write the submissions that can share a transaction, and set their results.

    After a refusal, the caller must write the submissions without a result one by one. Return
    the error if the database was unreachable or locked.
    """
    pending = create_steps(store)
    members: dict[EncodedWrite, list[Member]] = {
        submission.payload: [(submission, 0, None)]
        for submission in group
        if isinstance(submission.payload, EncodedWrite)
    }
    if gathered := _gather(episodes, group, pending):
        members[EncodedWrite(pending, episodes)] = gathered
    can_share = transaction.can_share_transaction
    shared = [write for write in members if can_share(store, write.steps)]
    try:
        if len(shared) > 1:
            # After any of these errors, the remaining submissions are written one by one.
            with suppress(*_ERRORS_OF_ONE_WRITE, errors.ConnectionLost):
                transaction.write_together(store, [write.steps for write in shared])
    except errors.DatabaseBusy as error:
        return error
    finally:  # an error may also come after the commit
        for write in members:
            is_written = write.steps.is_stored or write.steps.is_in_doubt
            if is_written and write.episodes is not None:
                write.episodes.cache_episodes(write.steps)
            if write.steps.is_stored:
                _set_positions(members[write], write.steps.positions)
    if gathered and not pending.is_stored:
        try:
            _set_positions(gathered, episodes.commit(pending))
        except _ERRORS_OF_ONE_WRITE:
            return None
        except BaseException as error:
            database_error = error if isinstance(error, _DATABASE_ERRORS) else None
            for submission, _, _ in gathered:
                if database_error is None or isinstance(error, errors.CommitUnknown):
                    submission.fail(error)
            return database_error
    return None


def _gather(episodes: OpenEpisodes, group: list[Submission], pending: PendingSteps) -> list[Member]:
    """Gather all rows and columns of the group; return the submissions that were added."""
    payloads = [submission.payload for submission in group]
    rows_by_call = [rows for rows in payloads if not isinstance(rows, (EncodedWrite, dict))]
    rows = [row for rows in rows_by_call for row in rows]
    stored = episodes.find_stored(rows, strict=False)
    members: list[Member] = []
    waiting: set[str] = set()  # episodes with steps that a later, separate write stores
    for submission in group:
        begin = len(pending)
        if isinstance(submission.payload, EncodedWrite):
            continue
        is_next = waiting.isdisjoint(submission.episodes)
        if is_next and _add(episodes, submission, pending, stored):
            members.append((submission, begin, len(pending)))
        elif not submission.has_result:
            waiting |= submission.episodes
    return members


def _add(
    episodes: OpenEpisodes,
    submission: Submission,
    pending: PendingSteps,
    stored: dict[str, tuple[EpisodeRecord, str]],
) -> bool:
    """Add the steps of a submission, all or none; return whether they were added."""
    payload, rows = submission.payload, pending.rows
    if not rows.takes_arrays and rows.nbytes > OWN_CHUNK_BYTES:
        pending.cut()
    assert not isinstance(payload, EncodedWrite)
    try:
        with submission.as_caller():
            if isinstance(payload, dict):
                return episodes.gather_columns(payload, pending)
            episodes.gather_rows(payload, pending, stored)
            return True
    except (errors.InvalidValue, errors.ReservedName) as error:
        if not isinstance(payload, dict):  # columns are written alone later, row by row
            submission.fail(error)
    except Exception:
        return False  # another submission may be the cause, so this one is written alone later
    return False


def _set_positions(members: list[Member], positions: np.ndarray) -> None:
    for submission, begin, end in members:
        submission.positions = positions[begin:end]


def _error_after_deadline(submission: Submission, error: errors.ExpDBError) -> errors.ExpDBError:
    """Return the error of a submission whose deadline passed after another write raised `error`."""
    payload, cause = submission.payload, error.__cause__
    if isinstance(payload, EncodedWrite) and payload.steps.is_in_doubt:
        lost = cause if isinstance(cause, errors.ConnectionLost) else error
        return commit_unknown(lost, payload.steps)
    if isinstance(error, errors.CommitUnknown):
        return errors.ConnectionLost(
            "the connection was lost during another call, so the steps of this call were not "
            "stored; repeat the call"
        )
    return error


Result = TypeVar("Result")

# Larger submissions wait in a queue of their own, so that they do not delay the others.
LARGE_BYTES = 256 << 10
# Limits of one transaction. It has one large submission, if one is waiting.
GROUP_BYTES = 4 << 20
GROUP_SIZE = 1024
# Coroutines wait before they submit while the queues hold more bytes than this.
QUEUE_BYTES = 48 << 20
# How long the thread waits for the next submission before it ends.
IDLE_SECONDS = 0.2
# Pause between two attempts while no submission can be written.
PAUSE_SECONDS = 0.02
# Pause between two checks for the result of a cancelled call.
POLL_SECONDS = 0.001


class _Encoding(threading.local):
    """The lock that a thread holds while it encodes the steps of a writer, one per thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class WriteQueue:
    """The writes of one buffer by the threads and coroutines of this process.

    Rows and columns continue the open `episodes` of this process.
    """

    def __init__(self, store: Store, run: str):
        self._store, self.episodes = store, OpenEpisodes(store, run)
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread that holds the lock
        self._encoding = _Encoding()
        self._small: deque[Submission] = deque()
        self._large: deque[Submission] = deque()
        # Acquire this lock, not the condition: an interrupt in `Condition.__enter__`, which is
        # Python code, could leave the condition locked.
        self._queue_lock = threading.RLock()
        self._submitted = threading.Condition(self._queue_lock)
        self._thread: threading.Thread | None = None
        self._queued_bytes = 0
        # Coroutines that wait for space in the queues.
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of `work(*arguments)`, called while no other thread writes."""
        self.refuse_nested_call()
        result: Result = locked(self._lock, self._run_as_owner, work, *arguments)
        return result

    def _run_as_owner(self, work: Callable[..., Result], *arguments: Any) -> Result:
        try:
            self._owner = threading.get_ident()
            return work(*arguments)
        finally:
            self._owner = None

    def refuse_nested_call(self) -> None:
        """Raise NestedCall if a signal handler interrupted a write of this thread."""
        # After an interrupt, `_owner` may still name a thread that no longer holds the lock.
        is_writing = self._owner == threading.get_ident() and self._lock._is_owned()  # type: ignore
        if is_writing or self._encoding.lock.locked():
            raise NestedCall(self._store.name)

    def encode(self, steps: PendingSteps) -> None:
        """Encode steps before the write has the lock, so that several threads can encode."""
        self.refuse_nested_call()
        locked(self._encoding.lock, steps.close)

    def write(self, payload: Payload) -> np.ndarray:
        """Store steps in one transaction and return their positions.

        If the rate limiter refuses the steps, wait up to the timeout of the handle.
        """
        if not payload:
            return np.empty(0, np.int64)
        engine = self._store.engine
        deadline = time.monotonic() + engine.timeout
        try:
            return self._write(payload, deadline)
        except errors.RateLimited as error:
            refusal = error
        while True:
            wait_to_insert(self._store, count_steps(payload), deadline, refusal)
            try:
                with engine.until(deadline):  # the call has waited for a part of its timeout
                    return self._write(payload, deadline)
            except errors.RateLimited as error:
                refusal = error

    def _write(self, payload: Payload, deadline: float) -> np.ndarray:
        if self._owner == threading.get_ident() or self._encoding.lock.locked():
            self.refuse_nested_call()
        if self._owner is None and not self._small and not self._large:
            # The same as `run`, with one function call less.
            arguments = write_alone, self._store, self.episodes, payload
            return locked(self._lock, self._run_as_owner, *arguments)
        engine = self._store.engine
        seconds = engine.remaining()  # less than the timeout if another call has set a deadline
        own = Submission(payload, min(deadline, time.monotonic() + seconds), engine)
        # Not an Event: a signal handler that raises in `Event.wait` may leave it unusable.
        own.done = threading.Lock()
        own.done.acquire()
        try:
            try:
                locked(self._queue_lock, self._append, own)
            except RuntimeError:  # the program ends, or has too many threads
                return self.run(write_alone, self._store, self.episodes, payload)
            if not own.done.acquire(timeout=seconds if seconds < engine.timeout else -1):
                self._withdraw(own)
                if not own.has_result:
                    raise errors.DatabaseBusy(
                        f"another thread writes to buffer {self._store.name!r}; try again"
                    )
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
        if not payload:
            return np.empty(0, np.int64)
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
                self._update_queued_bytes()
                return True
        return False

    def _update_queued_bytes(self) -> None:
        """Count the queued bytes, and wake the coroutines that wait for space."""
        self._queued_bytes = sum([own.nbytes for own in (*self._small, *self._large)])
        _set_done([self._waiting.popleft() for _ in range(len(self._waiting))])

    # -- the thread of the queue ------------------------------------------------------------------

    def _write_queued(self) -> None:
        while locked(self._queue_lock, self._is_needed):
            group = self.run(self._write_next)
            postponed = [own for own in group if not own.has_result]
            if postponed:  # `write_group` could not write them yet
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
            write_group(self._store, self.episodes, group)
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
        self._update_queued_bytes()
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
