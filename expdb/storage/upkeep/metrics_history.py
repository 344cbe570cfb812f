"""Read the history of a buffer's metrics, with rates between successive measurements."""

from typing import Any

from expdb import checks, errors
from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_numbers

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

Measurement = dict[str, float]

FIRST_TIME = 1e8  # a smaller `since` is a duration that was passed by mistake


# The last row before the time, which rates need, and the rows after it.
FROM_TIME = (
    "SELECT time, measurement FROM metrics WHERE buffer_id = ? AND id >= coalesce((SELECT max(id) "
    "FROM metrics WHERE buffer_id = ? AND time < ?), 0) ORDER BY id DESC"
)


def read_metrics(
    store: Store, session: Session, since: float, newest: int | None
) -> dict[str, list[float | None]]:
    """Return the newest metrics from a time on, one list per name, oldest first.

    Raise InvalidValue if `since` or `newest` is invalid.
    """
    if not isinstance(since, (int, float)) or not (since == 0 or since > FIRST_TIME):
        raise errors.InvalidValue(
            f"since must be a time in Unix seconds, such as time.time() - 3600, got {since!r}"
        )
    question: tuple[Any, ...] = FROM_TIME, store.id, store.id, since
    if newest is not None:
        newest = checks.whole(newest, "newest", 1)
        question = f"{FROM_TIME} LIMIT ?", store.id, store.id, since, newest + 1
    measured: list[Measurement] = []
    for time, text in reversed(session.query(*question)):
        measurement = _as_floats(parse_numbers(text, "a row of the table metrics")) | {"time": time}
        measured.append({**measurement, **(_derive(measured[-1], measurement) if measured else {})})
    chosen = [row for row in measured if row["time"] >= since][-(newest or len(measured)) :]
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
