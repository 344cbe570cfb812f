"""Learners and writers that wait: process, start and reason of each wait."""

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from expdb import checks, errors
from expdb.process.liveness import describe_process, has_ended, named
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.store import Store

W = tables.waiters.c

PATIENCE = 1.0  # seconds after which a wait is recorded


@dataclass
class Waiter:
    """Record in the database that this process waits.

    Use a `Waiter` as a context manager, and call `wait_for` in the block before each pause. It also
    adds the waiting time to the activity of `role`.
    """

    store: Store
    role: str

    def __post_init__(self) -> None:
        self._began = self._counted = time.monotonic()
        self._is_waiting = False
        self._id: int | None = None

    def __enter__(self) -> "Waiter":
        return self

    def wait_for(self, what: str) -> None:
        """Record the reason for waiting, once the wait has lasted `PATIENCE` seconds."""
        self._count()
        self._is_waiting = True
        if self._id is None and time.monotonic() - self._began >= PATIENCE:
            self._record(what)
        self.store.report_if_due()

    def _record(self, what: str) -> None:
        id = secrets.randbits(62)
        values = {"buffer_id": self.store.id, "id": id, "holder": named(0), "what": what}
        values["role"] = self.role
        self._id = id
        self._tell(sa.insert(tables.waiters).values(**values, since=time.time()))

    def _count(self) -> None:
        """Count the time since the last count; time before the first `wait_for` is not counted."""
        now = time.monotonic()
        if self._is_waiting:
            self.store.activity.add_wait(self.role, now - self._counted)
        self._counted = now

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._count()
        if self._id is None:
            return
        own_row = sa.and_(W.buffer_id == self.store.id, W.id == self._id)
        self._tell(sa.delete(tables.waiters).where(own_row))

    def _tell(self, statement: sa.Executable) -> None:
        """Execute a statement; wait at most one second for other writers.

        Errors are ignored: they must not end the wait or lose a lease that it has obtained. If a
        row remains, `waiting` ignores it once its process has ended.
        """
        with suppress(errors.ExpDBError), self.store.engine.writing(1.0) as session:
            session.execute(statement)


# Columns of the table of `ReplayBuffer.waiting`, with their kinds.
COLUMNS = {"role": "text", "process": "text", "seconds": "real", "waits_for": "text"}


def list_waiting(store: Store, session: Session, limit: int | None) -> list[tuple[Any, ...]]:
    """Return the `COLUMNS` of the waiting calls of processes that have not ended."""
    if limit is not None:
        limit = checks.whole(limit, "limit", 1)
    rows = session.query(
        sa.select(W.role, W.holder, W.since, W.what)
        .where(W.buffer_id == store.id)
        .order_by(W.since)
    )
    return [
        (row.role, describe_process(row.holder), max(0.0, time.time() - row.since), row.what)
        for row in rows
        if not has_ended(row.holder)
    ][:limit]
