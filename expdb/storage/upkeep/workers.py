"""List the processes that write to a buffer, learn from it or judge its episodes."""

import functools
from typing import Any

from expdb.process.liveness import describe_process, has_ended
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_numbers
from expdb.storage.upkeep.measure import SILENT_AFTER_SECONDS, is_mostly_waiting
from expdb.storage.upkeep.reporting import REMOVED

WHAT = "a row of the table workers"
WORKERS = (
    "SELECT holder, run, role, since, active, ended, counts, rates FROM workers "
    "WHERE buffer_id = ? AND holder <> ? ORDER BY active DESC, role, id"
)
WAITERS = "SELECT holder, role, what FROM waiters WHERE buffer_id = ? ORDER BY since DESC"
# Reasons for repeated short waits, which leave no row in `waiters`.
WAITS_FOR = {"actor": "the rate limiter or the pace", "learner": "enough steps to lease"}


def list_workers(store: Store, session: Session) -> list[dict[str, Any]]:
    """Return the workers of a buffer, the most recently active one first."""
    rows, waiters, ((now,),) = session.query_all(
        (WORKERS, store.id, REMOVED), (WAITERS, store.id), (f"SELECT {store.dialect.NOW}",)
    )
    waits = {(holder, role): what for holder, role, what in waiters}
    is_ended = functools.cache(has_ended)
    workers = []
    for holder, run, role, since, active, ended, counts_text, rates_text in rows:
        rates = parse_numbers(rates_text, WHAT)
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
        workers.append(
            {
                "role": role,
                "process": describe_process(holder),
                "run": run,
                "state": state,
                "waits_for": what if state == "waiting" else None,
                "since": since,
                "active": active,
                "counts": parse_numbers(counts_text, WHAT),
                "rates": rates,
            }
        )
    return workers
