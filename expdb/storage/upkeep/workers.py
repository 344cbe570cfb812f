"""List the processes that write to a buffer, learn from it or judge its episodes."""

from typing import Any

from expdb.process.liveness import describe_process, has_ended
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_numbers
from expdb.storage.upkeep.measure import SILENT_AFTER_SECONDS
from expdb.storage.upkeep.reporting import REMOVED

WHAT = "a row of the table workers"


def list_workers(store: Store, session: Session) -> list[dict[str, Any]]:
    """Return the workers of a buffer, the most recently active one first."""
    ((now,),) = session.ask(f"SELECT {store.dialect.NOW}")
    waits: dict[tuple[str, str], str] = {
        (holder, role): what
        for holder, role, what in session.ask(
            "SELECT holder, role, what FROM waiters WHERE buffer_id = ? ORDER BY since DESC",
            store.id,
        )
    }
    rows = session.ask(
        "SELECT holder, run, role, since, active, ended, counts, rates FROM workers "
        "WHERE buffer_id = ? AND holder <> ? ORDER BY active DESC, role, id",
        store.id, REMOVED,
    )  # fmt: skip
    return [
        {
            "role": role,
            "process": describe_process(holder),
            "run": run,
            "state": _state(holder, ended, now - active, (holder, role) in waits),
            "waits_for": waits.get((holder, role)),
            "since": since,
            "active": active,
            "counts": parse_numbers(counts, WHAT),
            "rates": parse_numbers(rates, WHAT),
        }
        for holder, run, role, since, active, ended, counts, rates in rows
    ]


def _state(holder: str, ended: float | None, silent_seconds: float, is_waiting: bool) -> str:
    if ended is not None or has_ended(holder):
        return "ended"
    if is_waiting:
        return "waiting"
    return "active" if silent_seconds < SILENT_AFTER_SECONDS else "silent"
