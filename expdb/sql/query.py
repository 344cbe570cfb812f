"""Conditions on experience.

They are built by name and value; conditions.py checks and compiles them.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from expdb.errors import QueryError

Where = Union["QueryBuilder", Mapping[str, Any], np.ndarray, Sequence[int], None]

COMPARISONS = (
    "eq",
    "ne",
    "gt",
    "gte",
    "lt",
    "lte",
    "in",
    "not_in",
    "like",
    "not_like",
    "is_null",
    "is_not_null",
)
MAX_NESTING = 100
LONGEST_SHOWN = 200  # characters of a query in a message
MANY = 100  # values, from which on a list goes as one parameter
MAX_VALUES = 30_000  # SQLite binds 32,766 parameters a statement


def key_of(where: Where) -> str:
    """Return what tells a condition from others."""
    if isinstance(where, np.ndarray):
        return f"positions {where.dtype} {base64.b64encode(where.tobytes()).decode()}"
    built = where.build() if isinstance(where, QueryBuilder) else where
    return json.dumps(built, default=_told)


def _told(value: Any) -> Any:
    """Return what tells a value from all others; the `repr` of an array leaves some out."""
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return repr(value)
    array = np.asarray(value)
    values = array.tolist() if array.dtype.hasobject else base64.b64encode(array.tobytes()).decode()
    return {"array": [array.dtype.str, array.shape, values]}


def shown(where: Where) -> str:
    """Return a query as one line of a message."""
    plain = where.build() if isinstance(where, QueryBuilder) else plain_where(where)
    if isinstance(plain, np.ndarray):
        return f"positions {np.array2string(plain, threshold=6, separator=', ')}"
    text = json.dumps(plain, default=str, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


class QueryBuilder:
    """Build a condition, left to right.

    `and_()` and `or_()` join what stands before them with what follows.

    There is no precedence: `a or b and c` is `(a or b) and c`; use `nested` for anything else.
    Names are the columns of the view `experience`, `tags.<key>` and `episode_tags.<key>`. `ne`,
    `not_in` and `not_like` match rows where the column is NULL, the other comparisons do not.
    `like` is case-sensitive, with `%` for any text, `_` for one character and backslash to escape
    them.

    >>> QueryBuilder().eq("reward", 1).or_().gt("step", 9).build()["or_"]
    [{'field': 'reward', 'value': 1, 'op': 'eq'}, {'field': 'step', 'value': 9, 'op': 'gt'}]
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Any] | str] = []  # conditions and operators, as they came

    def _add(self, field: str, op: str, *value: Any) -> "QueryBuilder":
        self._parts.append(
            {"field": field, "value": _plain(value[0]), "op": op}
            if value
            else {"field": field, "op": op}
        )
        return self

    def eq(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column equals the value."""
        return self._add(field, "eq", value)

    def ne(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column differs from the value, or is NULL."""
        return self._add(field, "ne", value)

    def gt(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column is greater than the value."""
        return self._add(field, "gt", value)

    def gte(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column is at least the value."""
        return self._add(field, "gte", value)

    def lt(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column is less than the value."""
        return self._add(field, "lt", value)

    def lte(self, field: str, value: Any) -> "QueryBuilder":
        """Match where the column is at most the value."""
        return self._add(field, "lte", value)

    def in_(self, field: str, values: Any) -> "QueryBuilder":
        """Match where the column equals one of the values."""
        return self._add(field, "in", _listed(field, values))

    def not_in(self, field: str, values: Any) -> "QueryBuilder":
        """Match where the column equals none of the values, or is NULL."""
        return self._add(field, "not_in", _listed(field, values))

    def like(self, field: str, pattern: str) -> "QueryBuilder":
        """Match where the text fits the pattern."""
        return self._add(field, "like", pattern)

    def not_like(self, field: str, pattern: str) -> "QueryBuilder":
        """Match where the text does not fit the pattern, or is NULL."""
        return self._add(field, "not_like", pattern)

    def is_null(self, field: str) -> "QueryBuilder":
        """Match where the column is NULL."""
        return self._add(field, "is_null")

    def is_not_null(self, field: str) -> "QueryBuilder":
        """Match where the column is not NULL."""
        return self._add(field, "is_not_null")

    def and_(self) -> "QueryBuilder":
        """Require what stands before and the next condition."""
        self._parts.append("and_")
        return self

    def or_(self) -> "QueryBuilder":
        """Require what stands before or the next condition."""
        self._parts.append("or_")
        return self

    def nested(self, builder: "QueryBuilder") -> "QueryBuilder":
        """Add another builder's condition as one, in parentheses."""
        if not isinstance(builder, QueryBuilder):
            raise QueryError(f"nested takes a QueryBuilder, not a {type(builder).__name__}")
        self._parts.append(builder.build())
        return self

    def build(self) -> dict[str, Any]:
        """Return the condition as plain JSON.

        Raise QueryError for none, or for operators that join nothing.
        """
        if not self._parts:
            raise QueryError(
                "an empty query: add a condition such as .eq('task_id', 'task_1'), or pass None "
                "for all"
            )
        conditions, operators = self._parts[::2], self._parts[1::2]
        if (
            len(self._parts) % 2 == 0
            or any(isinstance(c, str) for c in conditions)
            or not all(isinstance(o, str) for o in operators)
        ):
            raise QueryError(
                "conditions and operators do not take turns: put one and_() or or_() between two "
                "conditions"
            )
        built: Any = conditions[0]
        for join, condition in zip(operators, conditions[1:], strict=True):
            built = {join: [built, condition]}
        return dict(built)

    def __repr__(self) -> str:
        return f"QueryBuilder({json.dumps(self._parts, default=str)[1:-1]})"


def _plain(value: Any) -> Any:
    """Return NumPy's scalars as Python's, so that what is built is JSON."""
    return value.item() if isinstance(value, np.generic) else value


def _listed(field: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise QueryError(f"in_ of {field!r} takes a list of values, not a {type(values).__name__}")
    return [_plain(value) for value in values]


def plain_where(where: Where) -> "QueryBuilder | Mapping[str, Any] | np.ndarray | None":
    """Return a list of positions as an array, and every other form as it is.

    Raise QueryError for a list of anything else.
    """
    if not isinstance(where, (list, tuple, range)):
        return where  # type: ignore[return-value]  # other sequences are refused below
    if not all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in where):
        raise QueryError(
            "a list as a query is one of positions: for a condition use QueryBuilder, or a mapping "
            "of equalities"
        )
    try:
        return np.array(where, np.int64)
    except OverflowError:
        raise QueryError("a position does not fit 64 bits: no step has such") from None
