"""Compile queries to SQL conditions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb.errors import QueryError
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS, nearest
from expdb.sql import query_text
from expdb.sql.comparisons import column_test, tag_test
from expdb.sql.dialects.base import Dialect
from expdb.sql.query import (
    COMPARISONS,
    MAX_NESTING,
    QueryBuilder,
    Where,
    plain_where,
)
from expdb.sql.tables import VIEW, ViewColumn, buffers, episodes, steps, view_column


@dataclass(frozen=True)
class Condition:
    """A compiled condition, and the tables and columns that it uses.

    `of_episode` is the part of the condition that uses only columns of episodes, or None. `whole`
    is an equivalent condition that uses only columns of episodes, or None; with `asks_agents`, it
    is equivalent only if no step has an agent of its own.
    """

    sql: sa.ColumnElement[bool]
    of_steps: bool
    of_episodes: bool
    of_episode: sa.ColumnElement[bool] | None = None
    whole: sa.ColumnElement[bool] | None = None
    asks_agents: bool = False
    names: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  # names of the tags, such as "tags.judge"


def compile_where(where: Where, dialect: Dialect) -> Condition | None:
    """Compile any accepted form of `where`; return None if it matches all rows.

    Raise QueryError if `where` is not valid.
    """
    if where is None:
        return None
    where = plain_where(where)
    if isinstance(where, QueryBuilder):
        try:
            return _compile(where.build(), 0, dialect)
        except QueryError as error:
            _raise_located(where, error, dialect)
            raise
    if isinstance(where, np.ndarray):
        if where.ndim != 1 or where.dtype.kind not in "iu":
            raise QueryError(
                f"positions must be a 1-D integer array, got {where.dtype}{list(where.shape)}"
            )
        positions = where[where < 2**63] if where.dtype == np.uint64 else where
        return Condition(dialect.among(steps.c.position, positions.tolist()), True, False)
    if isinstance(where, Mapping):
        if {"and_", "or_"} & where.keys() or {"field", "op"} <= where.keys():
            return _compile(where, 0, dialect)
        if not where:
            raise QueryError(
                "a query must not be an empty mapping; add a condition, or pass None for all rows"
            )
        equal = [{"field": name, "op": "eq", "value": value} for name, value in where.items()]
        return _join("and_", [_compile(node, 0, dialect) for node in equal])
    raise QueryError(
        "a query must be text, a QueryBuilder, the result of its build(), a mapping, or a list or "
        f"array of positions, got {type(where).__name__}; pass text such as 'reward > 0.5', and "
        "pass units as unit= and samplers as sampler="
    )


def _raise_located(where: QueryBuilder, error: QueryError, dialect: Dialect) -> None:
    """If the query was written as text, raise the error with the position of the mistake."""
    if (query := where._query) is None:
        return
    for position, node in query.comparisons:
        try:
            _comparison(node, dialect)
        except QueryError as mistake:
            raise query_text.located(mistake, query.text, position) from None


def _join(join: str, conditions: list[Condition]) -> Condition:
    joined = sa.and_ if join == "and_" else sa.or_
    required = [
        condition.of_episode for condition in conditions if condition.of_episode is not None
    ]
    if join == "or_" and len(required) < len(conditions):
        required = []
    wholes = [condition.whole for condition in conditions if condition.whole is not None]
    return Condition(
        joined(*[condition.sql for condition in conditions]),
        any(condition.of_steps for condition in conditions),
        any(condition.of_episodes for condition in conditions),
        joined(*required) if required else None,
        joined(*wholes) if len(wholes) == len(conditions) else None,
        any(condition.asks_agents for condition in conditions),
        frozenset().union(*[condition.names for condition in conditions]),
        frozenset().union(*[condition.tags for condition in conditions]),
    )


def _compile(node: Any, depth: int, dialect: Dialect) -> Condition:
    """Compile a built condition.

    Long chains nest to the left, so a loop handles the left side instead of recursion. The loop
    joins consecutive conditions with the same operator at once.
    """
    spine: list[tuple[str, Any]] = []
    while isinstance(node, Mapping) and ("and_" in node or "or_" in node):
        join = "and_" if "and_" in node else "or_"
        parts = node[join]
        if len(node) != 1 or not isinstance(parts, (list, tuple)) or len(parts) != 2:
            raise QueryError(
                f"{join!r} must join exactly two conditions; build queries with QueryBuilder"
            )
        spine.append((join, parts[1]))
        node = parts[0]
    if depth > MAX_NESTING:
        raise QueryError(
            f"conditions must not be nested more than {MAX_NESTING} deep; use in_() for long lists"
        )
    first = _comparison(node, dialect)
    changes, current = 0, ""
    pending = [first]
    for join, part in reversed(spine):
        if join != current and len(pending) > 1:
            pending = [_join(current, pending)]
            changes += 1
        current = join
        pending.append(_compile(part, depth + 1, dialect))
    if changes > MAX_NESTING:
        raise QueryError(
            f"and_() and or_() must not alternate more than {MAX_NESTING} times; use in_() for "
            "long lists"
        )
    return _join(current, pending) if len(pending) > 1 else pending[0]


_KEY = re.compile(r"[A-Za-z0-9_]+")


def resolve(name: Any) -> tuple[ViewColumn, str | None]:
    """Return the column and the tag key for a name; raise QueryError if it is unknown."""
    plain = name if isinstance(name, str) else ""
    head, dot, key = plain.partition(".")
    if plain == "buffer":
        name_of = (
            sa.select(buffers.c.name)
            .where(buffers.c.id == steps.c.buffer_id)
            .correlate(steps)
            .scalar_subquery()
        )
        return ViewColumn(name_of, True, False), None
    if head == "scores" and (score := view_column(plain)) is not None and dot:
        return score, None
    column = VIEW.get(head)
    is_tags = head in ("tags", "episode_tags")
    if column is None or bool(dot) != is_tags or head == "scores":
        hint = _meant(head, key) or (
            "a query uses columns of the view experience, tags.<key>, episode_tags.<key> and "
            f"scores.<name>; store a field as a tag to query it, or select field(payload, {name!r})"
            " with db.sql"
        )
        if is_tags:
            hint = f"write {head}.<key>"
        elif head == "scores":
            hint = "write scores.<name>; a name has 1 to 64 letters, digits and _"
        elif head == "exp_meta":  # AWorld's prefix of columns
            column_name = f"{key!r}, or " if key in VIEW else ""
            hint = f"use {column_name}the adapter expdb.integrations.aworld"
        raise QueryError(f"unknown name {name!r} in a query; {hint}")
    if is_tags and not _KEY.fullmatch(key):
        raise QueryError(
            f"the key of {name!r} must consist of letters, digits and _; rename the tag"
        )
    return column, key if is_tags else None


def _meant(head: str, key: str) -> str:
    """Return "did you mean ...?" with the most similar column, and its key if it has one."""
    near = nearest(head, (*EPISODE_COLUMNS, *STEP_COLUMNS)).removeprefix(", ")
    has_keys = any(f"{name!r}" in near for name in ("tags", "episode_tags", "scores"))
    return near.replace("'?", f".{key}'?") if key and has_keys else near


def _comparison(node: Any, dialect: Dialect) -> Condition:
    if not isinstance(node, Mapping) or not {"field", "op"} <= node.keys() <= {
        "field",
        "op",
        "value",
    }:
        raise QueryError(f"{node!r} is not a condition; build queries with QueryBuilder")
    name, op = node["field"], node["op"]
    if op not in COMPARISONS:
        raise QueryError(f"unknown comparison {op!r}; use one of {', '.join(COMPARISONS)}")
    resolved, key = resolve(name)
    sql = _test(node, name, op, resolved.sql, key, dialect)
    is_agent = name == "agent_id"
    whole = _test(node, name, op, episodes.c.agent_id, None, dialect) if is_agent else sql
    named, tags = frozenset((name.split(".")[0],)), frozenset((name,) if "." in name else ())
    of_steps, of_episodes = resolved.of_steps, resolved.of_episodes
    is_whole = is_agent or not of_steps
    return Condition(
        sql, of_steps, of_episodes, None if of_steps else sql, whole if is_whole else None,
        is_agent, named, tags,
    )  # fmt: skip


def _test(
    node: Mapping[str, Any],
    name: str,
    op: str,
    column: sa.ColumnElement[Any],
    key: str | None,
    dialect: Dialect,
) -> sa.ColumnElement[bool]:
    """Return the comparison of a node with a column, or with a tag in the column."""
    sql: sa.ColumnElement[bool]
    if op in ("is_null", "is_not_null"):
        operand = column if key is None else dialect.tag_value(column, key)
        sql = operand.is_(None) if op == "is_null" else operand.is_not(None)
    else:
        if "value" not in node:
            raise QueryError(f"{op} of {name!r} has no value; add the value to compare with")
        base = str({"ne": "eq", "not_in": "in", "not_like": "like"}.get(op, op))
        value = node["value"]
        if key is None:
            sql = column_test(dialect, name, column, base, value)
        else:
            sql = tag_test(dialect, name, column, key, base, value)
        if base != op:
            sql = sql.is_not(sa.true())
    return sql
