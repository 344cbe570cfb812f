"""The SQL page: run one read-only statement, and show or export its result."""

import io
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from starlette.requests import Request
from starlette.responses import Response

import expdb
from expdb import errors
from expdb.serve import render
from expdb.serve.pages import in_few_threads, show, source_of, with_query
from expdb.serve.source import SQL_SECONDS

SHOWN_ROWS = 1_000
EXPORTED_ROWS = 100_000
MAX_BYTES, MAX_EXPORTED_BYTES = 32 << 20, 256 << 20
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
        "SELECT position, episode_id, step, reward FROM experience\n"
        "WHERE position >= (SELECT max(added) - 50 FROM buffers) ORDER BY position DESC"
    ),
}
# Other pages need threads too, and SQLite cannot interrupt a single function.
MAX_CONCURRENT_STATEMENTS = 4
VIEWS = ("experience", "experience_episodes", "experience_scores")


def limited(statement: str, rows: int) -> str:
    """Limit the rows of a statement; raise SqlRefused if it is not a SELECT."""
    text = statement.strip().rstrip(";").rstrip()
    word = _first_word(text)
    if word not in ("SELECT", "WITH", "VALUES") or text.count("/*") != text.count("*/"):
        raise errors.SqlRefused(
            "the statement must be one SELECT, WITH ... SELECT or VALUES statement"
        )
    return f"SELECT * FROM (\n{text}\n) AS result LIMIT {rows + 1}"


def _first_word(text: str) -> str:
    """Return the first word after comments, in capital letters."""
    while True:
        text = text.lstrip()
        if text.startswith("--"):
            text = text.partition("\n")[2]
        elif text.startswith("/*"):
            text = text.partition("*/")[2]
        else:
            match = re.match(r"\w+", text)
            return match[0].upper() if match else ""


def is_from_another_site(request: Request) -> bool:
    """Return whether another site opened the page; it must not choose the statement."""
    return request.headers.get("sec-fetch-site") in ("cross-site", "same-site")


async def sql(request: Request) -> Response:
    """Show the result of a statement."""
    return await _in_few_threads(_sql, request)


async def export_csv(request: Request) -> Response:
    """Return the result of a statement as CSV."""
    return await _in_few_threads(_export_csv, request)


async def export_parquet(request: Request) -> Response:
    """Return the result of a statement as Parquet."""
    return await _in_few_threads(_export_parquet, request)


async def _in_few_threads(view: Callable[[Request], Response], request: Request) -> Response:
    limit = "sql_limiter", MAX_CONCURRENT_STATEMENTS
    return await in_few_threads(request, *limit, view, request)


def _sql(request: Request) -> Response:
    source = source_of(request)
    statement = request.query_params.get("q", "")
    message, table, status = None, None, 200
    if statement.strip() and is_from_another_site(request):
        message = "another site has opened this page; check the statement, then run it"
    elif statement.strip():
        try:
            table = source.db.sql(limited(statement, SHOWN_ROWS), max_bytes=MAX_BYTES)
        except expdb.ExpDBError as error:
            message, status = _for_pages(error), 400
    schema = {view: source.db.sql(f"SELECT * FROM {view} LIMIT 0").column_names for view in VIEWS}
    names = source.db.buffers()
    fields = {name: source.fields(name) for name in names[:20]}
    rows = [] if table is None else table.slice(0, SHOWN_ROWS).to_pylist()
    return show(
        request, "sql.html", status, title="SQL", buffer=names[0] if len(names) == 1 else None,
        statement=statement,
        message=message, columns=[] if table is None else table.column_names, rows=rows,
        is_cut=table is not None and table.num_rows > SHOWN_ROWS, has_result=table is not None,
        limit=SHOWN_ROWS, exported=EXPORTED_ROWS, seconds=SQL_SECONDS, schema=schema,
        fields=fields, examples=EXAMPLES,
        plot=_plot(rows), csv=with_query("/sql.csv", q=statement),
        parquet=with_query("/sql.parquet", q=statement),
    )  # fmt: skip


def _for_pages(error: Exception) -> str:
    message = str(error).replace(", or raise max_bytes", ", or use `expdb sql`")
    return message.replace(
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


def _export_csv(request: Request) -> Response:
    target = io.BytesIO()
    try:
        pyarrow.csv.write_csv(_exported(request), target)
    except pa.ArrowInvalid as error:
        raise errors.SqlError(f"CSV cannot represent the result ({error}); use Parquet") from None
    return _file(target, "text/csv", "csv")


def _export_parquet(request: Request) -> Response:
    target = io.BytesIO()
    pyarrow.parquet.write_table(_exported(request), target)
    return _file(target, "application/vnd.apache.parquet", "parquet")


def _exported(request: Request) -> pa.Table:
    if is_from_another_site(request):
        raise errors.SqlRefused("another site has opened this URL; open it from the SQL page")
    statement = limited(request.query_params.get("q", ""), EXPORTED_ROWS)
    table = source_of(request).db.sql(statement, max_bytes=MAX_EXPORTED_BYTES)
    if table.num_rows > EXPORTED_ROWS:
        raise errors.SqlError(
            f"the result has more than {EXPORTED_ROWS} rows; add a LIMIT, or use `expdb sql`"
        )
    return table


def _file(target: io.BytesIO, media_type: str, ending: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="result.{ending}"'}
    return Response(target.getvalue(), headers=headers, media_type=media_type)
