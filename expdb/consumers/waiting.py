"""Waiting for something to lease.

Of the threads of a process that wait for leases of one consumer, one watches the database and the
others wait for it. A thread that waits holds no transaction, and only the one that watches a server
holds a connection.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from expdb.process.locks import locked
from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.leases import glance
from expdb.storage.store import Store

PAUSE = 0.035  # seconds between two looks at a file: to wake up is most of what one costs
LONGEST = 1.0  # seconds of watching without a change: a lease may expire, or its process end
CANCELLED_SECONDS = 0.25  # between two looks at whether a thread that waits was cancelled
PATIENCE = 5.0  # seconds after which another thread watches too: the first may wait for a server


@dataclass(frozen=True)
class Glance:
    """What a consumer looked like."""

    commits: object  # of the file, as its engine tells them
    counters: list[int]
    number: int = 0  # a later look has a greater one


class Watch:
    """The threads of a process that wait for leases of one consumer."""

    def __init__(self, store: Store, consumer: ConsumerRecord):
        self._store, self._consumer = store, consumer
        self.forked()

    def forked(self) -> None:
        """Begin anew in a forked child, without the threads of the parent."""
        self._change = threading.Condition()
        self._watcher: int | None = None  # the thread that watches
        self._latest = Glance(None, [])

    def wait(
        self, seen: Glance | None, deadline: float, cancelled: threading.Event | None
    ) -> Glance:
        """Wait until the counters of the consumer differ from `seen`, and return them.

        Return at once if `seen` is None. Return also at the deadline, if `cancelled` is set, and,
        in the thread that watches, after `LONGEST` seconds.
        """
        me, found = threading.get_ident(), None
        try:
            if seen is not None:
                found = locked(self._change, self._await, seen, deadline, cancelled, me)
            if found is None:
                found = self._store.engine.retry(
                    _watch, self._store, self._consumer, seen, deadline, cancelled
                )
                found = locked(self._change, self._note, found)
            return found
        finally:
            if self._watcher == me:
                locked(self._change, self._stop)

    def _await(
        self, seen: Glance, deadline: float, cancelled: threading.Event | None, me: int
    ) -> Glance | None:
        """Wait while another thread watches; return None if this one is to watch."""
        patience = time.monotonic() + PATIENCE
        while self._watcher not in (None, me):  # `me`: this is a signal's handler
            if self._latest.number > seen.number and self._latest.counters != seen.counters:
                return self._latest
            now = time.monotonic()
            if now >= deadline or (cancelled is not None and cancelled.is_set()):
                return seen
            if now >= patience:
                break
            until = min(deadline, patience)
            if cancelled is not None:
                until = min(until, now + CANCELLED_SECONDS)
            self._change.wait(until - now)
        self._watcher = me
        return None

    def _note(self, found: Glance) -> Glance:
        """Note what was found; if it is new, wake all threads that wait."""
        if found.counters != self._latest.counters:
            self._change.notify_all()
        self._latest = replace(found, number=self._latest.number + 1)
        return self._latest

    def _stop(self) -> None:
        self._watcher = None
        self._change.notify()  # the next one watches


def _watch(
    store: Store,
    consumer: ConsumerRecord,
    seen: Glance | None,
    deadline: float,
    cancelled: threading.Event | None,
) -> Glance:
    """Watch a consumer until its counters differ from `seen`, for `LONGEST` seconds at most.

    A file is polled every `PAUSE` seconds; a server waits within one statement. LISTEN is not used
    because a connection pooler may not forward notifications.
    """
    until = min(deadline, time.monotonic() + LONGEST)
    counters = None if seen is None else seen.counters
    if store.dialect.WAIT_FOR_CHANGE is not None:
        return Glance(None, glance(store, consumer, counters, until - time.monotonic()))
    while True:
        commits = store.engine.changed_since(None if seen is None else seen.commits)
        if commits is not None:
            now = Glance(commits, glance(store, consumer, None, 0.0))
            if seen is None or now.counters != seen.counters:
                return now
            seen = now
        assert seen is not None
        if time.monotonic() >= until or (cancelled is not None and cancelled.is_set()):
            return seen
        time.sleep(PAUSE)
