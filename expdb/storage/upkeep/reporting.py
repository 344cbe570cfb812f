"""Register this process with a buffer, and extend the history of the buffer's metrics.

A handle reports in the thread of its caller, after a write, a sample or a lease, at most every
`REPORT_SECONDS`. So an idle process reports nothing, and no thread has to be stopped before a fork.
The process whose report is the first after `REPORT_SECONDS` adds a row of metrics.
"""

from __future__ import annotations

import logging
import math
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from expdb import errors
from expdb.process.liveness import named
from expdb.process.locks import locked
from expdb.sql.session import Session
from expdb.storage.activity import LEARNER, Activity
from expdb.storage.store import Store
from expdb.storage.stored_json import compact_json
from expdb.storage.upkeep import metrics_history

FIRST_REPORT_SECONDS = 1.0  # time from the creation of a handle until its first report

log = logging.getLogger(__name__)


class _CountsBatches(Protocol):
    batches: int  # number of batches that were sampled


@dataclass
class _WorkerRow:
    """The row of this process in one role."""

    id: int = field(default_factory=lambda: secrets.randbits(62))
    is_stored: bool = False
    stored_counts: dict[str, float] = field(default_factory=dict)
    # Counts in earlier rows that another process has removed.
    removed_counts: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # per second, between two reports


class Reporter:
    """Report what one handle does with a buffer."""

    def __init__(self, store: Store, run: str, sampling: _CountsBatches):
        store.activity, store.report_if_due = Activity(), self.report_if_due
        self._store, self._run, self._sampling = store, run, sampling
        self._batches_before = sampling.batches  # of the parent, in a forked child
        self._holder = named(0)
        self._workers: dict[str, _WorkerRow] = {}
        self._lock = threading.Lock()
        self._reporting_thread: int | None = None
        self._reported = time.monotonic()
        starts_at = math.inf if store.engine.read_only else time.monotonic()
        self.next_report = starts_at + FIRST_REPORT_SECONDS

    def report_if_due(self) -> None:
        """Report if the last report is old enough; never raise an error of the database."""
        now = time.monotonic()
        if now >= self.next_report:
            self.next_report = now + metrics_history.REPORT_SECONDS  # other threads need not report
            self.report()

    def end(self) -> None:
        """Report for the last time, if this handle has ever reported."""
        if self._workers:
            self.next_report = math.inf
            self.report(is_last=True)

    def report(self, is_last: bool = False) -> None:
        """Store the counts of this process; add a row of metrics if the newest one is old."""
        if self._reporting_thread == threading.get_ident():
            return  # a signal handler that interrupts a report must not wait for it
        try:
            locked(self._lock, self._report_in_thread, is_last)
        except errors.ExpDBError as error:
            log.info("buffer %r: cannot store the activity report: %s", self._store.name, error)
        except Exception:  # the caller's write, sample or lease has succeeded
            log.exception("buffer %r: cannot store the activity report", self._store.name)

    def _report_in_thread(self, is_last: bool) -> None:
        self._reporting_thread = threading.get_ident()
        try:
            self._report(is_last)
        finally:
            self._reporting_thread = None

    def _report(self, is_last: bool) -> None:
        store, counts = self._store, self._store.activity.counts()
        if batches := self._sampling.batches - self._batches_before:
            counts.setdefault(LEARNER, {})["batches_sampled"] = batches
        if not counts:
            return
        if counts.keys() != self._workers.keys():
            roles = "+".join(sorted(counts))
            store.engine.set_application_name("expdb", roles, socket.gethostname(), self._run)
        now = time.monotonic()
        seconds = now - self._reported
        with metrics_history.writing_briefly(store) as session:
            if not session.query(store.dialect.LOCK_EXISTENCE, store.id):
                return  # the buffer was dropped
            for role, amounts in counts.items():
                self._put(session, role, amounts, seconds, is_last)
            is_due = metrics_history.is_due(store, session)
        self._reported = now
        for role, amounts in counts.items():
            worker = self._workers[role]
            worker.is_stored, worker.stored_counts = True, amounts
        if is_due:
            metrics_history.add(store)

    def _put(
        self,
        session: Session,
        role: str,
        amounts: dict[str, float],
        seconds: float,
        is_last: bool,
    ) -> None:
        """Insert or update the row of this process in a role."""
        store, now = self._store, self._store.dialect.NOW
        ended = now if is_last else "NULL"
        worker = self._workers.setdefault(role, _WorkerRow())
        if not is_last:  # the time since the previous report may be short
            worker.rates = {
                name: round(count / max(seconds, 0.001), 3)
                for name, count in _subtract(amounts, worker.stored_counts).items()
                if not name.endswith("_sum")
            }
        rates = compact_json(worker.rates)
        if worker.is_stored:
            updated = session.query(
                f"UPDATE workers SET active = {now}, ended = {ended}, counts = ?, rates = ? WHERE "
                "buffer_id = ? AND id = ? RETURNING id",
                compact_json(_subtract(amounts, worker.removed_counts)), rates, store.id, worker.id,
            )  # fmt: skip
            if updated:
                return
            # Another process has removed the row and kept its counts, because this process was
            # suspended for a long time.
            worker = self._workers[role] = _WorkerRow(removed_counts=worker.stored_counts)
        # The row exists if an interrupt came just after the commit of the first report.
        session.execute(
            "INSERT INTO workers (buffer_id, id, holder, run, role, since, active, ended, counts, "
            f"rates) VALUES (?, ?, ?, ?, ?, {now}, {now}, {ended}, ?, ?) ON CONFLICT (buffer_id, "
            "id) DO UPDATE SET active = excluded.active, ended = excluded.ended, "
            "counts = excluded.counts, rates = excluded.rates",
            store.id, worker.id, self._holder, self._run, role,
            compact_json(_subtract(amounts, worker.removed_counts)), rates,
        )  # fmt: skip


def _subtract(counts: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: count - before.get(name, 0) for name, count in counts.items()}
