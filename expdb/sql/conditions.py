"""Queries compiled to conditions of SQL."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb.errors import QueryError
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS
from expdb.sql.dialects.base import Dialect
from expdb.sql.query import (
    COMPARISONS,
    MANY,
    MAX_NESTING,
    MAX_VALUES,
    QueryBuilder,
    Where,
    plain_where,
)
from expdb.sql.tables import buffers, episodes, steps, view_column


@dataclass(frozen=True)
class Condition:
    """A compiled condition, and the tables and columns it looks at.

    `of_episode` is what it requires of episodes alone, None for nothing.
    """

    sql: sa.ColumnElement[bool]
    of_steps: bool
    of_episodes: bool
    of_episode: sa.ColumnElement[bool] | None = None
    names: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  # of `names` those that are tags, with their keys


def compile_where(where: Where, dialect: Dialect) -> Condition | None:
    """Return the condition of any form of `where`, None for all rows.

    Raise QueryError where it makes no sense.
    """
    if where is None:
        return None
    if isinstance(where, QueryBuilder):
        return _compile(where.build(), 0, dialect)
    where = plain_where(where)
    if isinstance(where, np.ndarray):
        if where.ndim != 1 or where.dtype.kind not in "iu":
            raise QueryError(
                f"positions are a 1-D integer array, not {where.dtype}{list(where.shape)}"
            )
        held = where[where < 2**63] if where.dtype == np.uint64 else where
        return Condition(dialect.among(steps.c.position, held.tolist()), True, False)
    if isinstance(where, Mapping):
        if {"and_", "or_"} & where.keys() or {"field", "op"} <= where.keys():
            return _compile(where, 0, dialect)
        if not where:
            raise QueryError("an empty mapping: pass None for all rows")
        equal = [{"field": name, "op": "eq", "value": value} for name, value in where.items()]
        return _join("and_", [_compile(node, 0, dialect) for node in equal])
    raise QueryError(
        "a query is a QueryBuilder, what its build() returned, a mapping, or a list or array of "
        f"positions, not {type(where).__name__}"
    )


def _join(join: str, conditions: list[Condition]) -> Condition:
    joined = sa.and_ if join == "and_" else sa.or_
    required = [
        condition.of_episode for condition in conditions if condition.of_episode is not None
    ]
    if join == "or_" and len(required) < len(conditions):
        required = []
    return Condition(
        joined(*[condition.sql for condition in conditions]),
        any(condition.of_steps for condition in conditions),
        any(condition.of_episodes for condition in conditions),
        joined(*required) if required else None,
        frozenset().union(*[condition.names for condition in conditions]),
        frozenset().union(*[condition.tags for condition in conditions]),
    )


def _compile(node: Any, depth: int, dialect: Dialect) -> Condition:
    """Compile a built condition.

    The left spine, which a long chain grows, is a loop and joins like with like.
    """
    spine: list[tuple[str, Any]] = []
    while isinstance(node, Mapping) and ("and_" in node or "or_" in node):
        join = "and_" if "and_" in node else "or_"
        parts = node[join]
        if len(node) != 1 or not isinstance(parts, (list, tuple)) or len(parts) != 2:
            raise QueryError(
                f"{join!r} joins exactly two conditions: build queries with QueryBuilder"
            )
        spine.append((join, parts[1]))
        node = parts[0]
    if depth > MAX_NESTING:
        raise QueryError(f"nested more than {MAX_NESTING} deep: use in_ for long lists")
    found = _comparison(node, dialect)
    changes, current = 0, ""
    pending = [found]
    for join, part in reversed(spine):
        if join != current and len(pending) > 1:
            pending = [_join(current, pending)]
            changes += 1
        current = join
        pending.append(_compile(part, depth + 1, dialect))
    if changes > MAX_NESTING:
        raise QueryError(
            f"and_() and or_() take turns more than {MAX_NESTING} times: use in_ for long lists"
        )
    return _join(current, pending) if len(pending) > 1 else pending[0]


_KEY = re.compile(r"[A-Za-z0-9_]+")


_NUMBERS = {"position", "episode", "step", "length", "policy_version"}


_REALS = {"execute_time", "reward", "priority", "episode_return", "started", "ended"}


_FLAGS = {"terminated", "truncated"}


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}  # fmt: skip


def known_names() -> str:
    """Return the names a query can use, for people."""
    names = ("buffer", *EPISODE_COLUMNS, *STEP_COLUMNS)
    columns = [name for name in names if not name.endswith("tags")]
    return f"known are {', '.join([*columns, 'tags.<key>', 'episode_tags.<key>'])}"


def resolve(name: Any) -> tuple[sa.Table, sa.ColumnElement[Any], str | None]:
    """Return the table, the column and the tag's key that a name stands for.

    Raise QueryError for an unknown one.
    """
    plain = name.removeprefix("exp_meta.") if isinstance(name, str) else ""
    head, dot, key = plain.partition(".")
    if plain == "buffer":
        name_of = (
            sa.select(buffers.c.name)
            .where(buffers.c.id == steps.c.buffer_id)
            .correlate(steps)
            .scalar_subquery()
        )
        return steps, name_of, None
    found = view_column(head)
    is_tags = head in ("tags", "episode_tags")
    if found is None or bool(dot) != is_tags:
        raise QueryError(
            f"unknown name {name!r} in a query: {known_names()}; a field, such as action, is no "
            "column: tag steps by it, or ask db.sql with field(payload, 'action')"
        )
    if is_tags and not _KEY.fullmatch(key):
        raise QueryError(
            f"the key of {name!r} has other characters than letters, digits and _: rename the tag"
        )
    return *found, key if is_tags else None


def _comparison(node: Any, dialect: Dialect) -> Condition:
    if not isinstance(node, Mapping) or not {"field", "op"} <= node.keys() <= {
        "field",
        "op",
        "value",
    }:
        raise QueryError(f"no condition: {node!r}; build queries with QueryBuilder")
    name, op = node["field"], node["op"]
    if op not in COMPARISONS:
        raise QueryError(f"unknown comparison {op!r}: known are {', '.join(COMPARISONS)}")
    table, column, key = resolve(name)
    sql: sa.ColumnElement[bool]
    if op in ("is_null", "is_not_null"):
        found = column if key is None else dialect.tag_value(column, key)
        sql = found.is_(None) if op == "is_null" else found.is_not(None)
    else:
        if "value" not in node:
            raise QueryError(f"{op} of {name!r} lacks its value")
        base = str({"ne": "eq", "not_in": "in", "not_like": "like"}.get(op, op))
        value = node["value"]
        if key is None:
            sql = _column_test(dialect, name, column, base, value)
        else:
            sql = _tag_test(dialect, name, column, key, base, value)
        if base != op:
            sql = sql.is_not(sa.true())
    plain = name.removeprefix("exp_meta.")
    named, tags = frozenset((plain.split(".")[0],)), frozenset(() if key is None else (plain,))
    return Condition(
        sql, table is steps, table is episodes, sql if table is episodes else None, named, tags
    )


def _checked(name: str, value: Any) -> Any:
    """Return a value as it can be bound.

    NumPy scalars become Python's; NaN, None and integers beyond 64 bits are refused.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise QueryError(
            f"{name!r} compared with {value}, which nothing equals: use is_null or is_not_null"
        )
    if not isinstance(value, (str, int, float)):
        raise QueryError(
            f"{name!r} compared with a {type(value).__name__}: compare with text, a number or a "
            "bool"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise QueryError(
            f"{name!r} compared with {value}, which does not fit 64 bits: nothing stored is that "
            "large"
        )
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise QueryError(
                f"{name!r} compared with a lone surrogate: no stored text has one"
            ) from None
        if "\0" in value:
            raise QueryError(
                f"{name!r} compared with a text that has a NUL: no stored text has one"
            )
    return value


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise QueryError(f"in_ of {name!r} takes a list of values, not a {type(values).__name__}")
    if len(values) > MAX_VALUES:
        raise QueryError(
            f"in_ of {name!r} with {len(values)} values, at most {MAX_VALUES}: tag the rows, or "
            "pass positions"
        )
    return [_checked(name, value) for value in values]


def _column_test(
    dialect: Dialect, name: str, column: sa.ColumnElement[Any], op: str, value: Any
) -> sa.ColumnElement[bool]:
    head = name.removeprefix("exp_meta.")
    numeric, is_flag = head in _NUMBERS or head in _REALS, head in _FLAGS
    if op == "in":
        values = [_fitting(name, head, one) for one in _values(name, value)]
        if is_flag:
            return column.in_([sa.literal(bool(one), column.type) for one in values])
        if numeric:
            exact = [_exact(head, "eq", one) for one in values]
            values = [one for op, one in exact if op == "eq"]
        kinds = {type(one) for one in values}
        if len(values) > MANY and kinds == {int if numeric else str}:
            return dialect.among(column, values)
        return column.in_([dialect.bound(one) for one in values])
    checked = _checked(name, value)
    if op == "like":
        return dialect.like(column, _pattern(name, None if numeric or is_flag else checked))
    fitted = _fitting(name, head, checked)
    if is_flag:
        if op != "eq":
            raise QueryError(f"{name!r} is True or False: use eq or ne")
        return _compared(column, op, sa.literal(bool(fitted), column.type))
    if numeric:
        op, fitted = _exact(head, op, fitted)
        if op in ("all", "none"):
            return column.is_not(None) if op == "all" else sa.false()
    return _compared(column, op, dialect.bound(fitted))


def _fitting(name: str, head: str, value: Any) -> Any:
    """Return a value that a column can be compared with; raise QueryError for another kind."""
    if head in _FLAGS:
        fits, what = isinstance(value, (bool, int)) and value in (0, 1), "True and False"
    elif head in _NUMBERS or head in _REALS:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        what = "numbers"
    else:
        fits, what = isinstance(value, str), "text"
    if not fits:
        raise QueryError(f"{name!r} compares with {what}, not with {value!r}")
    return value


_NEXT_UP = {
    "gt": "gt",
    "gte": "gt",
    "lt": "lte",
    "lte": "lte",
}  # for a bound that lies just below the value


_NEXT_DOWN = {"gt": "gte", "gte": "gte", "lt": "lt", "lte": "lt"}  # just above


def _exact(head: str, op: str, value: int | float) -> tuple[str, int | float]:
    """Return a comparison with a value of the column's own type that means exactly the same.

    It is "all" or "none" where all values compare so, or no value does.

    Databases differ in how they compare integers with floats beyond 2**53.
    """
    if head in _REALS:
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


def _compared(left: sa.ColumnElement[Any], op: str, right: Any) -> sa.ColumnElement[bool]:
    found: sa.ColumnElement[bool] = _OPERATORS[op](left, right)
    return found


def _pattern(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise QueryError(f"like compares text with a pattern, not {name!r} with {value!r}: use eq")
    if (len(value) - len(value.rstrip("\\"))) % 2:
        raise QueryError(
            f"the pattern {value!r} ends in a backslash that escapes nothing: double it"
        )
    return value


def _tag_test(
    dialect: Dialect, name: str, column: sa.ColumnElement[Any], key: str, op: str, value: Any
) -> sa.ColumnElement[bool]:
    """Compare a tag with values of its own JSON type only.

    A value of another type is simply not equal.
    """
    text, is_text = dialect.tag_text(column, key)
    number, is_number = dialect.tag_number(column, key)
    if op == "in":
        values = _values(name, value)
        tests = [dialect.tag_is_bool(column, key, one) for one in values if isinstance(one, bool)]
        texts = [dialect.bound(one) for one in values if isinstance(one, str)]
        numbers = [
            dialect.bound_number(one)
            for one in values
            if isinstance(one, (int, float)) and not isinstance(one, bool)
        ]
        tests += [sa.and_(text.in_(texts), is_text)] if texts else []
        tests += [sa.and_(number.in_(numbers), is_number)] if numbers else []
        return sa.or_(*tests) if tests else sa.false()
    checked = _checked(name, value)
    if isinstance(checked, bool):
        if op != "eq":
            raise QueryError(f"{name!r} compared with a bool: use eq or ne")
        return dialect.tag_is_bool(column, key, checked)
    if op == "like":
        return sa.and_(dialect.like(text, _pattern(name, checked)), is_text)
    if isinstance(checked, str):
        return sa.and_(_compared(text, op, dialect.bound(checked)), is_text)
    return sa.and_(_compared(number, op, dialect.bound_number(checked)), is_number)
