"""Wait until a consumer has something to lease.

If several threads of a process wait for leases of one consumer, normally one of them watches the
database. The other threads wait for that thread, without a transaction or a connection.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from expdb.process.locks import locked
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.lease_rows import read_change_counters
from expdb.storage.store import Store

PAUSE = 0.035  # seconds between two polls of a file; waking up is most of the cost of a poll
# Maximum seconds of one watch, because an expired lease or an ended process changes no counter.
LONGEST = 1.0
CANCELLED_SECONDS = 0.25  # seconds between two checks of `cancelled` in a waiting thread
PATIENCE = 5.0  # seconds until another thread also watches, because the server may be stuck


@dataclass(frozen=True)
class CounterSnapshot:
    """The counters of a consumer, as read at one time."""

    commits: object  # token from `Engine.changed_since()` on SQLite; None on PostgreSQL
    counters: list[int]
    number: int = 0  # increases with each read of the counters in this process


class ConsumerWatch:
    """Let one thread watch the counters of a consumer while other threads wait for it."""

    def __init__(self, store: Store, consumer: ConsumerRecord):
        self._store, self._consumer = store, consumer
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset the state in a forked child, which has none of the parent's threads."""
        self._change = threading.Condition()
        self._watcher: int | None = None  # identifier of the watching thread
        self._since = 0.0  # time.monotonic() when that thread began to watch
        self._latest = CounterSnapshot(None, [])

    def wait(
        self, seen: CounterSnapshot | None, deadline: float, cancelled: threading.Event | None
    ) -> CounterSnapshot:
        """Wait until the counters of the consumer differ from `seen`, and return them.

        Return at once if `seen` is None. Also return at the deadline, when `cancelled` is set, and,
        in the watching thread, after `LONGEST` seconds.
        """
        thread, latest = threading.get_ident(), None
        try:
            if seen is not None:
                latest = locked(
                    self._change, self._wait_for_watcher, seen, deadline, cancelled, thread
                )
            if latest is None:
                latest = self._store.engine.retry(
                    _wait_for_counters, self._store, self._consumer, seen, deadline, cancelled
                )
                latest = locked(self._change, self._publish, latest)
            return latest
        finally:
            if self._watcher == thread:
                locked(self._change, self._stop_watching)

    def _wait_for_watcher(
        self, seen: CounterSnapshot, deadline: float, cancelled: threading.Event | None, thread: int
    ) -> CounterSnapshot | None:
        """Wait while another thread watches; return None if this thread must watch."""
        while self._watcher not in (None, thread):  # `thread`: in a signal handler of the watcher
            if self._latest.number > seen.number and self._latest.counters != seen.counters:
                return self._latest
            now = time.monotonic()
            if now >= deadline or (cancelled is not None and cancelled.is_set()):
                return seen
            if now >= self._since + PATIENCE:
                break
            until = min(deadline, self._since + PATIENCE)
            if cancelled is not None:
                until = min(until, now + CANCELLED_SECONDS)
            self._change.wait(until - now)
        self._watcher, self._since = thread, time.monotonic()
        return None

    def _publish(self, latest: CounterSnapshot) -> CounterSnapshot:
        """Store the latest counters; if they changed, wake all waiting threads."""
        if latest.counters != self._latest.counters:
            self._change.notify_all()
        self._latest = replace(latest, number=self._latest.number + 1)
        return self._latest

    def _stop_watching(self) -> None:
        self._watcher = None
        self._change.notify()  # wake one thread, which watches next


def _wait_for_counters(
    store: Store,
    consumer: ConsumerRecord,
    seen: CounterSnapshot | None,
    deadline: float,
    cancelled: threading.Event | None,
) -> CounterSnapshot:
    """Wait in the database until the counters differ from `seen`, at most `LONGEST` seconds.

    On SQLite, poll every `PAUSE` seconds. On PostgreSQL, wait within one statement. LISTEN is not
    used because a connection pooler may not forward notifications.
    """
    until = min(deadline, time.monotonic() + LONGEST)
    counters = None if seen is None else seen.counters
    if store.dialect.WAIT_FOR_CHANGE is not None:
        return CounterSnapshot(
            None, read_change_counters(store, consumer, counters, until - time.monotonic())
        )
    while True:
        commits = store.engine.changed_since(None if seen is None else seen.commits)
        if commits is not None:
            now = CounterSnapshot(commits, read_change_counters(store, consumer, None, 0.0))
            if seen is None or now.counters != seen.counters:
                return now
            seen = now
        assert seen is not None
        if time.monotonic() >= until or (cancelled is not None and cancelled.is_set()):
            return seen
        time.sleep(PAUSE)
