"""The view `experience_draws` of `db.sql`: the items of leases, with their steps and episodes.

The ledger stores positions as bytes, which SQL cannot read. `db.sql` therefore passes the rows of
the view to the query as one parameter.
"""

import math
import re
from contextlib import suppress
from typing import Any

from expdb.errors import UnknownBuffer
from expdb.sql.dialects.base import Dialect

NAME = "experience_draws"
PARAMETER = "expdb_draws"
VIEW = """experience_draws AS {materialized} (
SELECT d.*, s.step, e.id AS episode, e.episode_id, e.task_id
  FROM {rows} AS d JOIN {schema}.buffers b ON b.name = d.buffer
  LEFT JOIN {schema}.steps s ON s.buffer_id = b.id AND s.position = d.position
  LEFT JOIN {schema}.episodes e ON e.buffer_id = b.id AND e.id = s.episode)"""
_COMMENT = r"--[^\n]*|/\*.*?\*/"
_START = re.compile(
    rf"((?:\s|{_COMMENT})*)(?:(with\b(?:\s|{_COMMENT})*(?:recursive\b)?)|select\b|values\b|\()",
    re.DOTALL | re.IGNORECASE,
)
_SKIPPED = re.compile(rf"'(?:[^']|'')*'|{_COMMENT}", re.DOTALL)
_OWN = re.compile(rf"\b{NAME}\s*(?:\([^)]*\)\s*)?as\b[\s\w]*\(", re.IGNORECASE)


def reads_draws(query: str) -> bool:
    """Return whether a query reads the view, and does not define a table of the same name."""
    text = _SKIPPED.sub(" ", query)
    is_named = re.search(rf"\b{NAME}\b", text, re.IGNORECASE) is not None
    return is_named and _START.match(query) is not None and _OWN.search(text) is None


def with_draws(query: str, db: Any, dialect: Dialect) -> tuple[str, Any]:
    """Return a query that begins with the view, and the value of the parameter `PARAMETER`."""
    rows: list[tuple[Any, ...]] = []
    for name in db.buffers():
        with suppress(UnknownBuffer):  # another process has just dropped it
            draws = db.buffer(name, create=False).draws()
            *columns, probabilities = [column.to_pylist() for column in draws.columns]
            # JSON has neither NaN nor infinity.
            finite = [p if p is not None and math.isfinite(p) else None for p in probabilities]
            rows += zip([name] * len(draws), *columns, finite, strict=True)
    view = VIEW.format(rows=dialect.DRAWS, schema=dialect.SCHEMA, materialized=dialect.MATERIALIZED)
    start = _START.match(query)
    assert start is not None  # see reads_draws
    if start[2]:
        query = f"{start[1]}{start[2]} {view}, {query[start.end() :]}"
    else:
        query = f"WITH {view} {query}"
    return query, dialect.as_draws(rows)
