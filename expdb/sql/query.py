"""Build conditions on experience from names and values; conditions.py compiles them."""

import base64
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from expdb.errors import QueryError
from expdb.sql import query_text

# `QueryBuilder.from_text` describes text, and tuples of text and parameters.
Where = Union[
    "QueryBuilder", Mapping[str, Any], np.ndarray, Sequence[int],
    str, tuple[str, Mapping[str, Any]], None,
]  # fmt: skip

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
LONGEST_SHOWN = 200  # characters of a query in an error message
LONGEST_CACHED = 1_000  # characters of a text whose parsed query is kept
MANY = 100  # if a list has more values, it is bound as one parameter
MAX_VALUES = 30_000  # SQLite binds up to 32,766 parameters per statement


def key_of(where: Where) -> str:
    """Return a cache key: equal conditions have equal keys."""
    if isinstance(where, np.ndarray):
        return f"positions {where.dtype} {base64.b64encode(where.tobytes()).decode()}"
    built = where.build() if isinstance(where, QueryBuilder) else where
    return json.dumps(built, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return a JSON value that identifies `value`; the `repr` of a long array is abbreviated."""
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return repr(value)
    array = np.asarray(value)
    values = array.tolist() if array.dtype.hasobject else base64.b64encode(array.tobytes()).decode()
    return {"array": [array.dtype.str, array.shape, values]}


def shown(where: Where) -> str:
    """Return a query as one line of text for a message."""
    plain = where.build() if isinstance(where, QueryBuilder) else plain_where(where)
    if isinstance(plain, np.ndarray):
        return f"positions {np.array2string(plain, threshold=6, separator=', ')}"
    text = json.dumps(plain, default=str, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


class QueryBuilder:
    """Build a condition on steps from comparisons, strictly from left to right.

    Every method except `build` adds to the condition and returns the builder, so that calls can be
    chained. `and_` and `or_` join the condition so far with the next comparison. They have no
    precedence: ``a or b and c`` means ``(a or b) and c``. Use `nested` for parentheses.

    Names are the columns of the view ``experience``, ``tags.<key>`` and ``episode_tags.<key>``. A
    comparison is checked when the query is used, not when it is added. The method that receives the
    query, such as `ReplayBuffer.sample`, then raises `QueryError` if a name does not exist or a
    value does not fit its column.

    The same query matches the same steps on SQLite and PostgreSQL. `ne`, `not_in` and `not_like`
    match rows where the column is NULL; the other comparisons do not. Text is compared by code
    point. A tag equals only values of its own JSON type.

    Examples
    --------
    >>> QueryBuilder().eq("reward", 1).or_().gt("step", 9).build()["or_"]
    [{'field': 'reward', 'value': 1, 'op': 'eq'}, {'field': 'step', 'value': 9, 'op': 'gt'}]

    Use `nested` for parentheses:

    >>> rewarded = QueryBuilder().gt("reward", 0).or_().is_null("reward")
    >>> query = QueryBuilder().eq("task_id", "task_1").and_().nested(rewarded)
    >>> list(query.build())
    ['and_']
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, Any] | str] = []  # conditions and operators in call order
        self._query: query_text.Query | None = None  # the text that the builder was made from

    @classmethod
    def from_text(cls, text: str, parameters: Mapping[str, Any] | None = None) -> "QueryBuilder":
        """Parse a query that is written as text.

        Every method with an argument `where` also accepts the text, or a tuple of the text and its
        parameters. Conditions are ``NAME OPERATOR VALUE``, with the operators ``=``, ``!=``, ``>``,
        ``>=``, ``<``, ``<=``, ``like`` (or ``~``), ``not like``, ``in``, ``not in``, ``is null``
        and ``is not null``. ``and`` is evaluated before ``or``, as in SQL; parentheses change the
        order. Values are numbers, ``'text'``, ``true``, ``false``, ``null``, or parameters such as
        ``:task``. ``str(builder)`` returns the text of a builder.

        Parameters
        ----------
        text : str
            The query.
        parameters : mapping of str to object, optional
            Values of the parameters.

        Returns
        -------
        QueryBuilder
            The builder.

        Raises
        ------
        QueryError
            If the text is invalid, or a parameter is missing or unused. The message names the
            position of the mistake.

        Examples
        --------
        >>> str(QueryBuilder.from_text("reward > 0.5 and (step = 0 or tags.split = train)"))
        "reward > 0.5 and (step = 0 or tags.split = 'train')"
        >>> str(QueryBuilder.from_text("task_id in :tasks", {"tasks": ["a", "b"]}))
        "task_id in ('a', 'b')"
        """
        if not isinstance(text, str):
            raise QueryError(
                f"text must be a str, got {type(text).__name__}; pass the query as a str"
            )
        builder = cls()
        builder._query = query_text.parse(text, parameters or {})
        builder._parts = [builder._query.built]
        return builder

    def _add(self, field: str, op: str, *value: Any) -> "QueryBuilder":
        self._parts.append(
            {"field": field, "value": query_text.plain_value(value[0]), "op": op}
            if value
            else {"field": field, "op": op}
        )
        return self

    def eq(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column equals the value.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : str, int, float or bool
            Value to compare with. A NumPy scalar is converted. Use `is_null` for NULL.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "eq", value)

    def ne(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column differs from the value or is NULL.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : str, int, float or bool
            Value to compare with. A NumPy scalar is converted. Use `is_not_null` for NULL.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "ne", value)

    def gt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column is greater than the value.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : int, float or str
            Value to compare with: a number for a numeric column, text for a text column.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "gt", value)

    def gte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column is at least the value.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : int, float or str
            Value to compare with: a number for a numeric column, text for a text column.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "gte", value)

    def lt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column is less than the value.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : int, float or str
            Value to compare with: a number for a numeric column, text for a text column.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "lt", value)

    def lte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows where the column is at most the value.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        value : int, float or str
            Value to compare with: a number for a numeric column, text for a text column.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "lte", value)

    def in_(self, field: str, values: Any) -> "QueryBuilder":
        """Match rows where the column equals one of the values.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        values : iterable of str, int, float or bool
            Values to compare with. A query accepts at most 30,000 of them.

        Returns
        -------
        QueryBuilder
            This builder.

        Raises
        ------
        QueryError
            If `values` is a single text, bytes, a mapping, or not iterable.
        """
        return self._add(field, "in", _listed(field, values))

    def not_in(self, field: str, values: Any) -> "QueryBuilder":
        """Match rows where the column equals none of the values or is NULL.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        values : iterable of str, int, float or bool
            Values to compare with. A query accepts at most 30,000 of them.

        Returns
        -------
        QueryBuilder
            This builder.

        Raises
        ------
        QueryError
            If `values` is a single text, bytes, a mapping, or not iterable.
        """
        return self._add(field, "not_in", _listed(field, values))

    def like(self, field: str, pattern: str) -> "QueryBuilder":
        """Match rows where the text matches the pattern.

        The comparison is case-sensitive.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        pattern : str
            Text with the wildcards ``%`` for any text and ``_`` for one character. A backslash
            escapes a wildcard or a backslash.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "like", pattern)

    def not_like(self, field: str, pattern: str) -> "QueryBuilder":
        """Match rows where the text does not match the pattern or is NULL.

        The comparison is case-sensitive.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.
        pattern : str
            Text with the wildcards ``%`` for any text and ``_`` for one character. A backslash
            escapes a wildcard or a backslash.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "not_like", pattern)

    def is_null(self, field: str) -> "QueryBuilder":
        """Match rows where the column is NULL.

        A tag that a step or episode does not have is NULL.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "is_null")

    def is_not_null(self, field: str) -> "QueryBuilder":
        """Match rows where the column is not NULL.

        Parameters
        ----------
        field : str
            Column of the view ``experience``, ``tags.<key>`` or ``episode_tags.<key>``.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        return self._add(field, "is_not_null")

    def and_(self) -> "QueryBuilder":
        """Require both the condition so far and the next condition to match.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        self._parts.append("and_")
        return self

    def or_(self) -> "QueryBuilder":
        """Require the condition so far or the next condition to match.

        Returns
        -------
        QueryBuilder
            This builder.
        """
        self._parts.append("or_")
        return self

    def nested(self, builder: "QueryBuilder") -> "QueryBuilder":
        """Add the condition of another builder in parentheses.

        Later changes of `builder` do not affect this condition.

        Parameters
        ----------
        builder : QueryBuilder
            Builder of the condition to add.

        Returns
        -------
        QueryBuilder
            This builder.

        Raises
        ------
        QueryError
            If `builder` is not a QueryBuilder, or if the condition of `builder` is empty or
            incomplete.
        """
        if not isinstance(builder, QueryBuilder):
            raise QueryError(f"nested() must get a QueryBuilder, got {type(builder).__name__}")
        self._parts.append(builder.build())
        return self

    def build(self) -> dict[str, Any]:
        """Return the condition as a mapping of plain JSON values.

        Every method that accepts a query also accepts this mapping.

        Returns
        -------
        dict of str to object
            A comparison is a mapping with the keys ``field``, ``op`` and ``value``; ``is_null`` and
            ``is_not_null`` have no ``value``. Joined conditions are a mapping from ``and_`` or
            ``or_`` to a list of two conditions.

        Raises
        ------
        QueryError
            If the condition is empty, or two conditions are not joined by exactly one `and_` or
            `or_`.
        """
        if not self._parts:
            raise QueryError(
                "the query is empty; add a condition such as .eq('task_id', 'task_1'), or pass "
                "None for all rows"
            )
        conditions, operators = self._parts[::2], self._parts[1::2]
        if (
            len(self._parts) % 2 == 0
            or any(isinstance(c, str) for c in conditions)
            or not all(isinstance(o, str) for o in operators)
        ):
            raise QueryError(
                "conditions must be joined with and_() or or_(); call one of these methods "
                "between two conditions"
            )
        built: Any = conditions[0]
        for join, condition in zip(operators, conditions[1:], strict=True):
            built = {join: [built, condition]}
        return dict(built)

    def __str__(self) -> str:
        try:
            return query_text.write(self.build())
        except RecursionError:
            raise QueryError(
                "the query is nested too deeply to be written as text; use in_() for long lists"
            ) from None

    def __repr__(self) -> str:
        return f"QueryBuilder({json.dumps(self._parts, default=str)[1:-1]})"


def _listed(field: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise QueryError(
            f"in_() of {field!r} must get a list of values, got {type(values).__name__}"
        )
    return [query_text.plain_value(value) for value in values]


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> QueryBuilder:
    return QueryBuilder.from_text(text)


def plain_where(where: Where) -> "QueryBuilder | Mapping[str, Any] | np.ndarray | None":
    """Convert text to a builder, and a list of positions to an array.

    Raise QueryError if the text is invalid, or if the list contains values that are not integers.
    """  # noqa: DOC501
    if isinstance(where, str):
        return _parsed(where) if len(where) <= LONGEST_CACHED else QueryBuilder.from_text(where)
    if isinstance(where, tuple) and where and isinstance(where[0], str):
        if len(where) != 2 or not isinstance(where[1], Mapping):
            raise QueryError(
                "a query with parameters must be a tuple of its text and a mapping, such as "
                "('task_id = :task', {'task': name})"
            )
        return QueryBuilder.from_text(*where)
    if not isinstance(where, (list, tuple, range)):
        return where  # type: ignore[return-value]  # other sequences are refused below
    if not all(
        isinstance(position, (int, np.integer)) and not isinstance(position, bool)
        for position in where
    ):
        raise QueryError(
            "a list as a query must contain only integer positions; for a condition, use "
            "QueryBuilder, or a mapping of equalities"
        )
    try:
        return np.array(where, np.int64)
    except OverflowError:
        raise QueryError("positions must fit 64 bits; pass positions of stored steps") from None
