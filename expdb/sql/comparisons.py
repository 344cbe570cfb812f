"""Compare a column or a tag with a value, with the same result on every database."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb.errors import QueryError
from expdb.names import RELATIONS, kind_of, nearest
from expdb.sql.dialects.base import Dialect
from expdb.sql.query import MANY, MAX_VALUES
from expdb.sql.tables import bound

STATUSES = ("open", "complete", "aborted")
_NUMERIC = ("integer", "integer?", "real")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}  # fmt: skip


def _checked(name: str, value: Any) -> Any:
    """Return a value that can be bound as a parameter.

    NumPy scalars become Python scalars. NaN, None and integers beyond 64 bits raise QueryError.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise QueryError(f"cannot compare {name!r} with {value}; use is_null() or is_not_null()")
    if not isinstance(value, (str, int, float)):
        raise QueryError(
            f"cannot compare {name!r} with a value of type {type(value).__name__}; pass text, a "
            f"number or a bool; for several values, pass ('{name} in :x', {{'x': [...]}})"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise QueryError(
            f"cannot compare {name!r} with an integer that does not fit 64 bits; pass an integer "
            "between -2**63 and 2**63 - 1"
        )
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise QueryError(
                f"cannot compare {name!r} with text that has a lone surrogate; remove the "
                "surrogate, because stored text has none"
            ) from None
        if "\0" in value:
            raise QueryError(
                f"cannot compare {name!r} with text that has a NUL character; remove this "
                "character, because stored text has none"
            )
    return value


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise QueryError(
            f"in_() of {name!r} must get a list of values, got {type(values).__name__}"
        )
    if len(values) > MAX_VALUES:
        raise QueryError(
            f"in_() of {name!r} must get at most {MAX_VALUES} values, got {len(values)}; tag the "
            "steps and query the tag, or pass an array of positions"
        )
    return [_checked(name, value) for value in values]


def column_test(
    dialect: Dialect, name: str, column: sa.ColumnElement[Any], op: str, value: Any
) -> sa.ColumnElement[bool]:
    """Compare a column with a value of the same kind; raise QueryError for another kind."""
    kind = kind_of(name) or "text"
    numeric, is_flag = kind in _NUMERIC, kind == "flag"
    if op == "in":
        values = [_fitting(name, member) for member in _values(name, value)]
        if is_flag:
            return column.in_([sa.literal(bool(member), column.type) for member in values])
        if numeric:
            exact = [_exact(name, "eq", member) for member in values]
            values = [member for op, member in exact if op == "eq"]
        kinds = {type(member) for member in values}
        if len(values) > MANY and kinds == {int if numeric else str}:
            return dialect.among(column, values)
        return column.in_([bound(member) for member in values])
    checked = _checked(name, value)
    if op == "like":
        if numeric or is_flag:
            raise QueryError(
                f"cannot use like() with {name!r}, which is not text; use eq(), gte() or lte()"
            )
        return dialect.like(column, _pattern(name, checked))
    fitted = _fitting(name, checked)
    if is_flag:
        if op != "eq":
            raise QueryError(
                f"cannot compare {name!r}, which is True or False, with {op!r}; use eq() or ne()"
            )
        return _build_comparison(column, op, sa.literal(bool(fitted), column.type))
    if numeric:
        op, fitted = _exact(name, op, fitted)
        if op in ("all", "none"):
            return column.is_not(None) if op == "all" else sa.false()
    return _build_comparison(column, op, bound(fitted))


def _fitting(name: str, value: Any) -> Any:
    """Return a value that a column can be compared with; raise QueryError for another kind."""
    kind = kind_of(name) or "text"
    if kind == "flag":
        fits, what = isinstance(value, (bool, int)) and value in (0, 1), "True or False"
    elif kind in _NUMERIC:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        what = "numbers"
    else:
        fits, what = isinstance(value, str), "text"
    if not fits:
        raise QueryError(f"{name!r} must be compared with {what}, got {value!r}")
    if name == "relation" and isinstance(value, str) and value not in RELATIONS:
        raise QueryError(
            f"{value!r} is not a relation{nearest(value, RELATIONS) or ';'} the relations are "
            f"{', '.join(RELATIONS)}; use is_null('relation') for episodes without a parent"
        )
    if name == "status" and value not in STATUSES:
        raise QueryError(
            f"{value!r} is not an episode status{nearest(value, STATUSES) or ';'} the statuses are "
            f"{', '.join(STATUSES)}"
        )
    return value


# Operators for a bound just below the value.
_NEXT_UP = {
    "gt": "gt",
    "gte": "gt",
    "lt": "lte",
    "lte": "lte",
}


_NEXT_DOWN = {"gt": "gte", "gte": "gte", "lt": "lt", "lte": "lt"}  # just above the value


def _exact(head: str, op: str, value: int | float) -> tuple[str, int | float]:
    """Return an exactly equivalent comparison with a value of the column's own type.

    The operator is "all" or "none" if all or no values meet the comparison. Databases differ in how
    they compare integers with floats beyond 2**53.
    """
    if kind_of(head) == "real":
        try:
            near = float(value)
        except OverflowError:
            near = math.inf if value > 0 else -math.inf
        if near == value:  # Python compares exactly
            return op, near
        return "none" if op == "eq" else (_NEXT_DOWN if near > value else _NEXT_UP)[op], near
    if isinstance(value, int):
        return op, value
    if not -(2.0**63) <= value < 2.0**63:
        return ("all" if op in (("lt", "lte") if value > 0 else ("gt", "gte")) else "none"), value
    whole = math.floor(value)
    return (op if whole == value else "none" if op == "eq" else _NEXT_UP[op]), whole


def _build_comparison(left: sa.ColumnElement[Any], op: str, right: Any) -> sa.ColumnElement[bool]:
    comparison: sa.ColumnElement[bool] = _OPERATORS[op](left, right)
    return comparison


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise QueryError(
            f"like() of {name!r} must get a text pattern, got {value!r}; use eq() for other values"
        )
    if (len(value) - len(value.rstrip("\\"))) % 2:
        raise QueryError(
            f"the pattern {value!r} ends in a backslash that escapes nothing; double the backslash"
        )
    return value


def tag_test(
    dialect: Dialect, name: str, column: sa.ColumnElement[Any], key: str, op: str, value: Any
) -> sa.ColumnElement[bool]:
    """Compare a tag with values of its own JSON type only.

    A tag with a value of another type is not equal to the value.
    """
    text, is_text = dialect.tag_text(column, key)
    number, is_number = dialect.tag_number(column, key)
    if op == "in":
        values = _values(name, value)
        tests = [
            dialect.tag_is_bool(column, key, member)
            for member in values
            if isinstance(member, bool)
        ]
        texts = [bound(member) for member in values if isinstance(member, str)]
        numbers = [
            dialect.bound_number(member)
            for member in values
            if isinstance(member, (int, float)) and not isinstance(member, bool)
        ]
        tests += [sa.and_(text.in_(texts), is_text)] if texts else []
        tests += [sa.and_(number.in_(numbers), is_number)] if numbers else []
        return sa.or_(*tests) if tests else sa.false()
    checked = _checked(name, value)
    if isinstance(checked, bool):
        if op != "eq":
            raise QueryError(f"cannot compare {name!r} with a bool by {op!r}; use eq() or ne()")
        return dialect.tag_is_bool(column, key, checked)
    if op == "like":
        return sa.and_(dialect.like(text, _pattern(name, checked)), is_text)
    if isinstance(checked, str):
        return sa.and_(_build_comparison(text, op, bound(checked)), is_text)
    return sa.and_(_build_comparison(number, op, dialect.bound_number(checked)), is_number)
