"""List and remove the processes that write to a buffer, learn from it or judge its episodes."""

import functools
import secrets
from typing import Any

from expdb import checks
from expdb.process.liveness import describe_process, has_ended
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import compact_json, parse_numbers
from expdb.storage.upkeep.measure import SILENT_AFTER_SECONDS, is_mostly_waiting

MAX_REMOVED = 100  # workers that one report removes while other writers wait
REMOVE_ENDED_AFTER_SECONDS = 3_600.0  # time after which a worker that has ended is removed
REMOVE_SILENT_AFTER_SECONDS = 86_400.0  # time without a report after which any worker is removed
REMOVED = ""  # `holder` of the row with the counts of removed workers

WHAT = "a row of the table workers"
WORKERS = (
    "SELECT holder, run, role, since, active, ended, counts, rates FROM workers "
    "WHERE buffer_id = ? AND holder <> ? ORDER BY active DESC, role, id LIMIT ?"
)
WAITERS = "SELECT holder, role, what FROM waiters WHERE buffer_id = ? ORDER BY since DESC"
# Columns of the table of `ReplayBuffer.workers`, with their kinds.
COLUMNS = {
    "role": "text", "process": "text", "run": "text", "state": "text", "waits_for": "text",
    "since": "real", "active": "real", "counts": "numbers", "rates": "numbers",
}  # fmt: skip
# Reasons for repeated short waits, which leave no row in `waiters`.
WAITS_FOR = {"actor": "the rate limiter or the pace", "learner": "enough steps to lease"}


def list_workers(store: Store, session: Session, limit: int | None) -> list[tuple[Any, ...]]:
    """Return the `COLUMNS` of the workers of a buffer, the most recently active worker first."""
    limit = 2**63 - 1 if limit is None else checks.whole(limit, "limit", 1)
    rows, waiters, ((now,),) = session.query_all(
        (WORKERS, store.id, REMOVED, limit), (WAITERS, store.id), (f"SELECT {store.dialect.NOW}",)
    )
    waits = {(holder, role): what for holder, role, what in waiters}
    is_ended = functools.cache(has_ended)
    workers = []
    for holder, run, role, since, active, ended, counts_text, rates_text in rows:
        counts, rates = (
            {name: float(number) for name, number in parse_numbers(text, WHAT).items()}
            for text in (counts_text, rates_text)
        )
        what = waits.get((holder, role))
        if what is None and is_mostly_waiting(role, rates):
            what = WAITS_FOR.get(role)
        if ended is not None:
            state = "ended"
        elif is_ended(holder):
            state = "died"
        elif now - active >= SILENT_AFTER_SECONDS:
            state = "silent"  # a process that waits also reports
        else:
            state = "active" if what is None else "waiting"
        reason = what if state == "waiting" else None
        process = describe_process(holder)
        workers.append((role, process, run, state, reason, since, active, counts, rates))
    return workers


def remove_workers(store: Store, session: Session, now: float) -> None:
    """Merge the rows of ended and long-silent workers into one row per role."""
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
            store.id, id, REMOVED, role, since, now, now, compact_json(counts),
        )  # fmt: skip


def _add_counts(sums: dict[str, float], stored: str) -> None:
    for name, count in parse_numbers(stored, "the counts of a worker").items():
        sums[name] = sums.get(name, 0) + count
