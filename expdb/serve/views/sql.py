"""An editor for SQL statements that only read."""

import io
import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from starlette.requests import Request
from starlette.responses import Response

import expdb
from expdb.serve import render
from expdb.serve.pages import show, source_of, with_query
from expdb.serve.source import SQL_SECONDS

SHOWN_ROWS = 1_000
EXPORTED_ROWS = 100_000
EXAMPLES = {
    "Worst tasks": (
        "SELECT task_id, count(*) AS episodes, avg(episode_return) AS mean_return\n"
        "FROM experience_episodes GROUP BY task_id ORDER BY mean_return LIMIT 20"
    ),
    "Returns over time": (
        "SELECT started, episode_return FROM experience_episodes\n"
        "WHERE episode_return IS NOT NULL ORDER BY started DESC LIMIT 1000"
    ),
    "Newest steps": (
        "SELECT position, episode_id, step, reward FROM experience\nORDER BY position DESC LIMIT 50"
    ),
}
_SELECTS = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*(SELECT|WITH|VALUES)\b", re.I | re.S)
VIEWS = ("experience", "experience_episodes", "experience_scores")


def limited(statement: str, rows: int) -> str:
    """Return a statement with a limit on its rows.

    A statement that does not select is returned as it is, and refused by the database.
    """
    text = statement.strip().rstrip(";").rstrip()
    if _SELECTS.match(text) is None:
        return text
    return f"SELECT * FROM (\n{text}\n) AS result LIMIT {rows + 1}"


def sql(request: Request) -> Response:
    """Show the result of a statement."""
    source = source_of(request)
    statement = request.query_params.get("q", "")
    message, table, status = None, None, 200
    if statement.strip():
        try:
            table = source.db.sql(limited(statement, SHOWN_ROWS))
        except expdb.ExpDBError as error:
            message, status = _for_pages(error), 400
    schema = {view: source.db.sql(f"SELECT * FROM {view} LIMIT 0").column_names for view in VIEWS}
    fields = {name: source.fields(name) for name in source.db.buffers()[:20]}
    rows = [] if table is None else table.slice(0, SHOWN_ROWS).to_pylist()
    return show(
        request, "sql.html", status, title="SQL", buffer=None, statement=statement,
        message=message, columns=[] if table is None else table.column_names, rows=rows,
        is_cut=table is not None and table.num_rows > SHOWN_ROWS, has_result=table is not None,
        limit=SHOWN_ROWS, exported=EXPORTED_ROWS, seconds=SQL_SECONDS, schema=schema,
        fields=fields, examples=EXAMPLES,
        plot=_plot(rows), csv=with_query("/sql.csv", q=statement),
        parquet=with_query("/sql.parquet", q=statement),
    )  # fmt: skip


def _for_pages(error: Exception) -> str:
    return str(error).replace(
        "open the database with a longer timeout", "add conditions, or use `expdb sql`"
    )


def _plot(rows: list[dict[str, object]]) -> dict[str, object] | None:
    """Return the data of a plot, if the first column and another one have numbers."""
    if len(rows) < 2:
        return None
    first, *others = rows[0]
    if not all(render.is_number(row[first]) for row in rows):
        return None
    ordered = sorted(rows, key=lambda row: float(row[first]))  # type: ignore[arg-type]
    numbers = [
        name
        for name in others
        if all(row[name] is None or render.is_number(row[name]) for row in rows)
    ]
    if not numbers:
        return None
    plots = [
        {
            "title": f"{name} by {first}",
            "series": [{"name": name, "values": render.plain([row[name] for row in ordered])}],
        }
        for name in numbers
    ]
    return {"x": render.plain([row[first] for row in ordered]), "plots": plots}


def export_csv(request: Request) -> Response:
    """Return the result of a statement as CSV."""
    target = io.BytesIO()
    pyarrow.csv.write_csv(_exported(request), target)
    return _file(target, "text/csv", "csv")


def export_parquet(request: Request) -> Response:
    """Return the result of a statement as Parquet."""
    target = io.BytesIO()
    pyarrow.parquet.write_table(_exported(request), target)
    return _file(target, "application/vnd.apache.parquet", "parquet")


def _exported(request: Request) -> pa.Table:
    statement = limited(request.query_params.get("q", ""), EXPORTED_ROWS)
    table = source_of(request).db.sql(statement)
    if table.num_rows > EXPORTED_ROWS:
        raise expdb.SqlError(
            f"the result has more than {EXPORTED_ROWS} rows; add a LIMIT, or use `expdb sql`"
        )
    return table


def _file(target: io.BytesIO, media_type: str, ending: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="result.{ending}"'}
    return Response(target.getvalue(), headers=headers, media_type=media_type)
