"""The view `experience_draws` of `db.sql`: the items of leases, with their steps and episodes.

The ledger stores positions as bytes, which SQL cannot read. A query on the view therefore gets the
rows as one parameter.
"""

import json
import re
from typing import Any

from expdb.sql.dialects.base import Dialect

NAME = "experience_draws"
PARAMETER = "expdb_draws"
# The columns of the rows, with types of both databases. `draws` returns all but the first.
COLUMNS = {
    "buffer": "text", "consumer": "text", "lease": "bigint", "batch": "bigint", "status": "text",
    "leased_at": "double precision", "trainer_step": "bigint", "position": "bigint",
    "probability": "double precision",
}  # fmt: skip
VIEW = """experience_draws AS (
SELECT d.*, s.step, e.id AS episode, e.episode_id, e.task_id
  FROM (SELECT {columns} FROM {rows}) AS d JOIN buffers b ON b.name = d.buffer
  LEFT JOIN steps s ON s.buffer_id = b.id AND s.position = d.position
  LEFT JOIN episodes e ON e.buffer_id = b.id AND e.id = s.episode)"""
_WITH = re.compile(r"((?:\s|--[^\n]*\n|/\*.*?\*/)*)(with(?:\s+recursive)?\s)?", re.DOTALL | re.I)


def reads_draws(query: str) -> bool:
    """Return whether a query may read the view."""
    return NAME in query.lower()


def with_draws(query: str, db: Any, dialect: Dialect) -> tuple[str, str]:
    """Return a query that begins with the view, and the value of the parameter `PARAMETER`."""
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
    assert start is not None  # every part is optional
    rest = query[start.end() :]
    query = f"{start[1]}{start[2]}{view}, {rest}" if start[2] else f"WITH {view} {query}"
    return query, json.dumps(rows)
