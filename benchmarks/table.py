"""Measuring in turns, and the lines of the table."""

import statistics
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def alternate(rounds: int, **sides: Callable[[int], float]) -> dict[str, float]:
    """Return the median of each side, measured in turns.

    The first round warms up and does not count.
    """
    durations: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            seconds = side(number)
            if number:
                durations[name].append(seconds)
    return {name: statistics.median(values) for name, values in durations.items()}


def row(work: str, figure: float, mark: float, unit: str = "x", note: str = "") -> Row:
    """Return a line of the table; every mark is an upper bound."""
    return {
        "work": work,
        "figure": figure,
        "mark": mark,
        "unit": unit,
        "met": figure <= mark,
        "note": note,
    }
