"""Conditions on rows, which are built with expdb's QueryBuilder.

If the field of a condition is not a column in SQL, Python checks the condition.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from expdb import QueryBuilder

__all__ = ["QueryBuilder", "QueryFilter"]

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


class QueryFilter:
    """Check rows in Python against a condition.

    Fields are dotted paths such as "exp_meta.task_id". A field that a row lacks is None. `ne`,
    `not_in` and `not_like` match None; `gt`, `gte`, `lt`, `lte` and `like` do not. `like` tests
    whether a string contains the value, without wildcards.

    Parameters
    ----------
    query_condition : dict or None
        The result of `QueryBuilder.build()`; None matches every row.
    """

    def __init__(self, query_condition: Mapping[str, Any] | None):
        self.query_condition = query_condition

    def check_condition(self, row: Any) -> bool:
        """Return whether a row meets the condition.

        Parameters
        ----------
        row : DataRow
            The row to check.

        Returns
        -------
        bool
            Whether the row matches.

        Raises
        ------
        ValueError
            If the condition has an unknown comparison.
        """
        return not self.query_condition or _holds(row, self.query_condition)

    def filter(
        self, rows: Iterable[Any], query_condition: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the rows that meet the condition.

        Parameters
        ----------
        rows : iterable of DataRow
            The rows to check.
        query_condition : dict, optional
            A condition to use instead of the condition of the filter.

        Returns
        -------
        list of DataRow
            The matching rows, in their order.

        Raises
        ------
        ValueError
            If the condition has an unknown comparison.
        """
        condition = self.query_condition if query_condition is None else query_condition
        return [row for row in rows if not condition or _holds(row, condition)]


def _holds(row: Any, condition: Mapping[str, Any]) -> bool:
    if "and_" in condition:
        return all(_holds(row, part) for part in condition["and_"])
    if "or_" in condition:
        return any(_holds(row, part) for part in condition["or_"])
    actual, op = _value(row, condition["field"]), condition["op"]
    value: Any = condition.get("value")
    match op:
        case "eq":
            return bool(actual == value)
        case "ne":
            return bool(actual != value)
        case "in":
            return actual in value
        case "not_in":
            return actual not in value
        case "like":
            return isinstance(actual, str) and value in actual
        case "not_like":
            return not isinstance(actual, str) or value not in actual
        case "is_null":
            return actual is None
        case "is_not_null":
            return actual is not None
    if op not in _ORDER:
        raise ValueError(f"unknown comparison {op!r}; build conditions with QueryBuilder")
    return actual is not None and value is not None and bool(_ORDER[op](actual, value))


def _value(row: Any, path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value
