"""The history of a buffer's metrics: add, thin out, and read measurements with rates."""

from collections.abc import Iterator
from typing import Any

from expdb import checks, errors
from expdb.sql.session import Session, Transaction
from expdb.storage.store import Store
from expdb.storage.stored_json import compact_json, parse_numbers
from expdb.storage.upkeep.measure import measure
from expdb.storage.upkeep.workers import remove_workers

# Rates and means, each with the counter to divide and the counter to divide by; None is the time.
RATES_AND_MEANS = {
    "steps_per_second": ("steps_added", None),
    "episodes_per_second": ("episodes_ended", None),
    "batches_per_second": ("batches_sampled", None),
    "items_per_second": ("items_leased", None),
    "scores_per_second": ("scores", None),
    "mean_waiting_actors": ("actor_wait_seconds", None),
    "mean_waiting_learners": ("learner_wait_seconds", None),
    "mean_return": ("return_sum", "returns"),
    "mean_length": ("episode_length_sum", "episodes_ended"),
}

REPORT_SECONDS = 10.0  # time between two reports of a handle, and between two rows of metrics
LOCK_SECONDS = 0.1  # time that a report waits for other writers
# Pairs of an age in rows and a divisor. Of the rows beyond an age, only ids that the divisor
# divides are kept, or none if it is 0: one row per 10 s for an hour, per 1 min for a day, and per
# 10 min for 30 days.
STAGES = ((360, 6), (360 + 8_640, 60), (360 + 8_640 + 259_200, 0))


Measurement = dict[str, float]

FIRST_TIME = 1e8  # a smaller `since` is a duration that was passed by mistake


# The last row before the time, which rates need, and the rows after it.
FROM_TIME = (
    "SELECT time, measurement FROM metrics WHERE buffer_id = ? AND id >= coalesce((SELECT max(id) "
    "FROM metrics WHERE buffer_id = ? AND time < ?), 0) ORDER BY id DESC"
)


def read_metrics(
    store: Store, session: Session, since: float, limit: int | None
) -> dict[str, list[float | None]]:
    """Return the newest metrics from a time on, one list per name, oldest first.

    Raise InvalidValue if `since` or `limit` is invalid.
    """
    if not isinstance(since, (int, float)) or not (since == 0 or since > FIRST_TIME):
        raise errors.InvalidValue(
            f"since must be a time in Unix seconds, such as time.time() - 3600, got {since!r}"
        )
    question: tuple[Any, ...] = FROM_TIME, store.id, store.id, since
    if limit is not None:
        limit = checks.whole(limit, "limit", 1)
        question = f"{FROM_TIME} LIMIT ?", store.id, store.id, since, limit + 1
    measured: list[Measurement] = []
    for time, text in reversed(session.query(*question)):
        measurement = _as_floats(parse_numbers(text, "a row of the table metrics")) | {"time": time}
        measured.append({**measurement, **(_derive(measured[-1], measurement) if measured else {})})
    chosen = [row for row in measured if row["time"] >= since][-(limit or len(measured)) :]
    names = dict.fromkeys(["time", *RATES_AND_MEANS, *(name for row in chosen for name in row)])
    return {name: [row.get(name) for row in chosen] for name in names}


def _as_floats(numbers: dict[str, float]) -> Measurement:
    """Convert integers, because a column of floats rejects integers above 2**53."""
    return {name: float(number) for name, number in numbers.items()}


def _derive(before: Measurement, after: Measurement) -> Measurement:
    """Return the rates and means between two measurements.

    A rate is left out if a counter or the clock has decreased, for example because the buffer was
    copied.
    """
    derived = {}
    for name, (numerator, denominator) in RATES_AND_MEANS.items():
        increase, per = (
            _increase(before, after, numerator),
            _increase(before, after, denominator or "time"),
        )
        if increase is not None and per:
            derived[name] = increase / per
    steps, tokens = derived.get("steps_per_second"), after.get("tokens_per_step")
    if steps is not None and tokens is not None:
        derived["tokens_per_second"] = steps * tokens
    return derived


def _increase(before: Measurement, after: Measurement, name: str) -> float | None:
    if name not in after:
        return None
    increase = after[name] - before.get(name, 0)
    is_sum_of_signed = name == "return_sum"
    return increase if increase >= 0 or is_sum_of_signed else None


# -- add measurements ------------------------------------------------------------------------------

NEWEST = "SELECT id, time FROM metrics WHERE buffer_id = ? ORDER BY id DESC LIMIT 1"
CLOCK = "SELECT {}"  # the time of the database


def writing_briefly(store: Store) -> Transaction:
    """Return a transaction that waits at most `LOCK_SECONDS` for a lock.

    A power loss may undo the commit. This is acceptable, because it also ends the process.
    """
    return store.engine.writing(LOCK_SECONDS, outlives=False)


def is_due(store: Store, session: Session) -> bool:
    """Return whether another row of metrics is due."""
    newest, ((now,),) = session.query_all((NEWEST, store.id), (CLOCK.format(store.dialect.NOW),))
    return _is_old(newest, now)


def _is_old(newest: list[Any], now: float) -> bool:
    """Return whether the newest row of metrics is old or, after a clock change, in the future."""
    return not newest or not 0 <= now - newest[0][1] < REPORT_SECONDS


def add(store: Store) -> None:
    """Add a row of metrics, unless another process has just done so, and remove old rows."""
    # A read on SQLite waits for no lock. On a server, only `writing` limits the waits for locks.
    reads = store.engine.reading() if store.dialect.WRITES_ALONE else writing_briefly(store)
    with reads as session:
        newest, ((now,),) = session.query_all(
            (NEWEST, store.id), (CLOCK.format(store.dialect.NOW),)
        )
        if not _is_old(newest, now):  # another process has added a row since `is_due`
            return
        measurement = compact_json(measure(store, session, now))
    id = newest[0][0] + 1 if newest else 0
    with writing_briefly(store) as session:
        if not session.query(store.dialect.LOCK_EXISTENCE, store.id):
            return
        inserted = session.query(
            "INSERT INTO metrics (buffer_id, id, time, measurement) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (buffer_id, id) DO NOTHING RETURNING id",
            store.id, id, now, measurement,
        )  # fmt: skip
        if inserted:
            for old in ids_to_remove(id):
                session.execute("DELETE FROM metrics WHERE buffer_id = ? AND id = ?", store.id, old)
            remove_workers(store, session, now)


def ids_to_remove(newest: int) -> Iterator[int]:
    """Yield the ids of rows that leave a stage of `STAGES` when the row `newest` is added."""
    for age, divisor in STAGES:
        old = newest - age
        if old >= 0 and (divisor == 0 or old % divisor):
            yield old
