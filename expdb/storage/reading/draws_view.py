"""The view `experience_draws` of `db.sql`: the items of leases, with their steps and episodes.

The ledger stores positions as bytes, which SQL cannot read. `db.sql` therefore passes the rows of
the view to the query as one JSON parameter.
"""

import json
import re
from typing import Any

from expdb.names import DRAW_COLUMNS
from expdb.sql.dialects.base import Dialect

NAME = "experience_draws"
PARAMETER = "expdb_draws"
COLUMNS = {"buffer": "text", **DRAW_COLUMNS}
VIEW = """experience_draws AS (
SELECT d.*, s.step, e.id AS episode, e.episode_id, e.task_id
  FROM (SELECT {columns} FROM {rows}) AS d JOIN buffers b ON b.name = d.buffer
  LEFT JOIN steps s ON s.buffer_id = b.id AND s.position = d.position
  LEFT JOIN episodes e ON e.buffer_id = b.id AND e.id = s.episode)"""
_WITH = re.compile(r"((?:\s|--[^\n]*\n|/\*.*?\*/)*)(with(?:\s+recursive)?\s)?", re.DOTALL | re.I)


def reads_draws(query: str) -> bool:
    """Return whether a query contains the name of the view."""
    return NAME in query.lower()


def with_draws(query: str, db: Any, dialect: Dialect) -> tuple[str, str]:
    """Return the query with the view in its WITH clause, and the value of `PARAMETER`."""
    rows = []
    for name in db.buffers():
        columns_of_draws = [c.to_pylist() for c in db.buffer(name, create=False).draws().columns]
        rows += [(name, *row) for row in zip(*columns_of_draws, strict=True)]
    columns = ", ".join(
        f"CAST({dialect.JSON_ITEM.format(k)} AS {kind}) AS {name}"
        for k, (name, kind) in enumerate(COLUMNS.items())
    )
    view = VIEW.format(columns=columns, rows=dialect.JSON_ROWS.format(f":{PARAMETER}"))
    start = _WITH.match(query)
    assert start is not None  # the pattern matches any text, because its parts are optional
    rest = query[start.end() :]
    query = f"{start[1]}{start[2]}{view}, {rest}" if start[2] else f"WITH {view} {query}"
    return query, json.dumps(rows)
