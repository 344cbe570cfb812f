"""Register this process with a buffer, and extend the history of the buffer's metrics.

A handle reports in the thread of its caller, after a write, a sample or a lease, at most every
`REPORT_SECONDS`. So an idle process reports nothing, and no thread has to be stopped before a fork.
The process whose report is the first after `REPORT_SECONDS` adds a row of metrics.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from expdb import errors
from expdb.process.liveness import has_ended, named
from expdb.process.locks import locked
from expdb.sql.session import Session, Transaction
from expdb.storage.activity import LEARNER, Activity
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_numbers
from expdb.storage.upkeep.measure import measure

FIRST_REPORT_SECONDS = 1.0  # time from the creation of a handle until its first report
REPORT_SECONDS = 10.0  # time between two reports of a handle, and between two rows of metrics
LOCK_SECONDS = 0.1  # time that a report waits for other writers
MAX_REMOVED = 100  # workers that one report removes while other writers wait
REMOVE_ENDED_AFTER_SECONDS = 3_600.0  # time after which a worker that has ended is removed
REMOVE_SILENT_AFTER_SECONDS = 86_400.0  # time without a report after which any worker is removed
# Rows of metrics that are kept, and how many rows become one row when they are older: one row for
# 10 s of the last hour, for 1 min of the last day, and for 10 min of the last 30 days.
STAGES = ((360, 6), (360 + 8_640, 60), (360 + 8_640 + 259_200, 0))

REMOVED = ""  # `holder` of the row with the counts of removed workers

log = logging.getLogger(__name__)

_dump = json.JSONEncoder(separators=(",", ":")).encode


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
            self.next_report = now + REPORT_SECONDS  # other threads need not report
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
        with _writing(store) as session:
            if not session.query(store.dialect.LOCK_EXISTENCE, store.id):
                return  # the buffer was dropped
            for role, amounts in counts.items():
                self._put(session, role, amounts, seconds, is_last)
            is_due = _are_metrics_due(store, session)
        self._reported = now
        for role, amounts in counts.items():
            worker = self._workers[role]
            worker.is_stored, worker.stored_counts = True, amounts
        if is_due:
            _add_metrics(store)

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
        rates = _dump(worker.rates)
        if worker.is_stored:
            updated = session.query(
                f"UPDATE workers SET active = {now}, ended = {ended}, counts = ?, rates = ? WHERE "
                "buffer_id = ? AND id = ? RETURNING id",
                _dump(_subtract(amounts, worker.removed_counts)), rates, store.id, worker.id,
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
            _dump(_subtract(amounts, worker.removed_counts)), rates,
        )  # fmt: skip


def _subtract(counts: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: count - before.get(name, 0) for name, count in counts.items()}


NEWEST = "SELECT id, time FROM metrics WHERE buffer_id = ? ORDER BY id DESC LIMIT 1"
CLOCK = "SELECT {}"  # the time of the database


def _writing(store: Store) -> Transaction:
    """Return a transaction that waits at most `LOCK_SECONDS` for a lock.

    A power loss may undo it, because that also ends the process.
    """
    return store.engine.writing(LOCK_SECONDS, outlives=False)


def _are_metrics_due(store: Store, session: Session) -> bool:
    newest, ((now,),) = session.query_all((NEWEST, store.id), (CLOCK.format(store.dialect.NOW),))
    return _is_old(newest, now)


def _is_old(newest: list[Any], now: float) -> bool:
    """Return whether the newest row of metrics is old; it also is if the clock was set back."""
    return not newest or not 0 <= now - newest[0][1] < REPORT_SECONDS


def _add_metrics(store: Store) -> None:
    """Add a row of metrics, unless another process has just done so, and remove old rows."""
    # A read on SQLite waits for no lock. On a server, only `writing` limits the waits for locks.
    reads = store.engine.reading() if store.dialect.WRITES_ALONE else _writing(store)
    with reads as session:
        newest, ((now,),) = session.query_all(
            (NEWEST, store.id), (CLOCK.format(store.dialect.NOW),)
        )
        if not _is_old(newest, now):  # another process has added a row since `is_due`
            return
        measurement = _dump(measure(store, session, now))
    id = newest[0][0] + 1 if newest else 0
    with _writing(store) as session:
        if not session.query(store.dialect.LOCK_EXISTENCE, store.id):
            return
        inserted = session.query(
            "INSERT INTO metrics (buffer_id, id, time, measurement) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (buffer_id, id) DO NOTHING RETURNING id",
            store.id, id, now, measurement,
        )  # fmt: skip
        if inserted:
            for old in _ids_to_remove(id):
                session.execute("DELETE FROM metrics WHERE buffer_id = ? AND id = ?", store.id, old)
            _remove_workers(store, session, now)


def _ids_to_remove(newest: int) -> Iterator[int]:
    """Return the rows of metrics that leave a stage of `STAGES` when the row `newest` is added."""
    for age, divisor in STAGES:
        old = newest - age
        if old >= 0 and (divisor == 0 or old % divisor):
            yield old


def _remove_workers(store: Store, session: Session, now: float) -> None:
    """Replace the rows of workers that have ended by one row per role with their counts."""
    counts_by_role: dict[str, dict[str, float]] = {}
    for id, holder, role, active, ended in session.query(
        "SELECT id, holder, role, active, ended FROM workers WHERE buffer_id = ? AND holder <> ? "
        "AND active < ? ORDER BY active LIMIT ?",
        store.id, REMOVED, now - REMOVE_ENDED_AFTER_SECONDS, MAX_REMOVED,
    ):  # fmt: skip
        if ended is not None or active < now - REMOVE_SILENT_AFTER_SECONDS or has_ended(holder):
            for (counts,) in session.query(
                "DELETE FROM workers WHERE buffer_id = ? AND id = ? RETURNING counts", store.id, id
            ):
                _add_counts(counts_by_role.setdefault(role, {}), counts)
    for role, counts in counts_by_role.items():
        rows = session.query(
            "DELETE FROM workers WHERE buffer_id = ? AND holder = ? AND role = ? "
            "RETURNING id, since, counts",
            store.id, REMOVED, role,
        )  # fmt: skip
        for _, _, stored in rows:
            _add_counts(counts, stored)
        id, since = (rows[0][0], rows[0][1]) if rows else (secrets.randbits(62), now)
        session.execute(
            "INSERT INTO workers (buffer_id, id, holder, run, role, since, active, ended, counts, "
            "rates) VALUES (?, ?, ?, '', ?, ?, ?, ?, ?, '{}')",
            store.id, id, REMOVED, role, since, now, now, _dump(counts),
        )  # fmt: skip


def _add_counts(sums: dict[str, float], stored: str) -> None:
    for name, count in parse_numbers(stored, "the counts of a worker").items():
        sums[name] = sums.get(name, 0) + count
