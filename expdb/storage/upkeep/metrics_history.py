"""Read the history of a buffer's metrics, with rates between successive measurements."""

from collections.abc import Mapping
from typing import Any

from expdb.sql.session import Session
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_object

# Rates and means, each with the counter to divide and the counter to divide by; None is the time.
DERIVED = {
    "steps_per_second": ("added", None),
    "episodes_per_second": ("episodes", None),
    "batches_per_second": ("batches", None),
    "items_per_second": ("items", None),
    "scores_per_second": ("scores", None),
    "actors_held": ("held_seconds", None),
    "learners_waiting": ("waited_seconds", None),
    "return_mean": ("return_sum", "returns"),
    "length_mean": ("length_sum", "episodes"),
}

Figures = dict[str, float]


def read_metrics(store: Store, session: Session, since: float) -> dict[str, list[float | None]]:
    """Return the metrics from a time on, one list per name, oldest first."""
    rows = session.ask(
        "SELECT time, figures FROM metrics WHERE buffer_id = ? AND time >= ? ORDER BY id",
        store.id, since,
    )  # fmt: skip
    measured: list[Figures] = []
    for time, text in rows:
        figures = {"time": time, **_numbers(parse_object(text, "a row of the table metrics"))}
        measured.append({**figures, **(_derive(measured[-1], figures) if measured else {})})
    names = dict.fromkeys(["time", *DERIVED, *(name for row in measured for name in row)])
    return {name: [row.get(name) for row in measured] for name in names}


def _numbers(figures: Mapping[str, Any]) -> Figures:
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, (int, float)) and name != "time"
    }


def _derive(before: Figures, after: Figures) -> Figures:
    """Return the rates and means between two measurements.

    A rate is left out if a counter or the clock has decreased, for example because the buffer was
    copied.
    """
    derived = {}
    for name, (part, whole) in DERIVED.items():
        increase, per = (
            _increase(before, after, part),
            _increase(before, after, whole or "time"),
        )
        if increase is not None and per:
            derived[name] = increase / per
    steps, tokens = derived.get("steps_per_second"), after.get("tokens_per_step")
    if steps is not None and tokens is not None:
        derived["tokens_per_second"] = steps * tokens
    return derived


def _increase(before: Figures, after: Figures, name: str) -> float | None:
    if name not in after:
        return None
    increase = after[name] - before.get(name, 0)
    is_sum_of_signed = name == "return_sum"
    return increase if increase >= 0 or is_sum_of_signed else None
