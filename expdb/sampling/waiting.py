"""Waiting for what others commit, at next to no cost."""

import threading
import time
from dataclasses import dataclass

from expdb.storage.ledger.consumers import ConsumerRecord
from expdb.storage.ledger.leases import glance
from expdb.storage.store import Store

PAUSE = 0.035  # seconds between two looks at a file: to wake up is most of what one costs
LONGEST = 1.0  # without a change: a lease may expire, or its process end


@dataclass(frozen=True)
class Glance:
    """What a consumer looked like."""

    commits: object  # of the file, as its engine tells them
    counters: list[int]


def wait_for_change(
    store: Store,
    consumer: ConsumerRecord,
    seen: Glance | None,
    deadline: float,
    cancelled: threading.Event | None,
) -> Glance:
    """Wait until a consumer looks otherwise than it did, and return how.

    At once where nothing was seen yet, and after a second in any case. A look asks a file for a
    number that it has in memory; a server waits itself, in one question. Not by LISTEN: a pooler in
    between knows no listeners.
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
