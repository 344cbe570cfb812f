"""Statements and expressions of SQLite that differ from other databases, and SQL of users."""

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import DRAW_COLUMNS
from expdb.sql import schema, tables
from expdb.sql.dialects.base import Grant, QueryFailed, Tag, fetch_limited
from expdb.sql.dialects.sqlite.connection import wal_bytes

NAME = "sqlite"


def columns(session: Any) -> set[tuple[str, str]]:
    """Return the table and the name of every column."""
    return set(
        session.query(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c "
            "WHERE m.type = 'table'"
        )
    )


def remake(session: Any, name: str, sql: str) -> None:
    """Recreate a view or a trigger."""
    kind = "VIEW" if sql.startswith("CREATE VIEW") else "TRIGGER"
    session.query(f"DROP {kind} IF EXISTS {name}")
    session.query(sql)


def grants(session: Any) -> list[Grant]:
    """Return nothing: the operating system controls access to a file."""
    return []


def restore_grants(session: Any, grants: list[Grant]) -> None:
    """Do nothing: the operating system controls access to a file."""


def schema_problems(session: Any) -> list[str]:
    """Return missing or altered triggers and views, and objects of others that SQLite would use."""
    made = schema.read_migrated_schema("sqlite")
    rows = session.query(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view', 'table')"
    )
    stored = {name: sql for kind, name, sql in rows if name in made}
    cure = "restore a backup, or copy the data into a new database"
    problems = [
        f"{name} of the schema is {'altered' if name in stored else 'missing'}; {cure}"
        for name, sql in made.items()
        if stored.get(name) != sql
    ]
    for kind, name, sql in rows:
        if kind == "trigger" and name not in made:
            problems.append(
                f"the trigger {name} does not belong to expdb and would run with every write; "
                "drop it if it is yours, otherwise do not trust the file"
            )
        elif name.lower() in SHADOWED or (sql or "").upper().startswith("CREATE VIRTUAL"):
            problems.append(
                f"the {kind} {name} does not belong to expdb and replaces a built-in one of "
                "SQLite; drop it if it is yours"
            )
    return problems


# Table-valued functions of expdb's statements. SQLite would prefer a table of the same name.
SHADOWED = {"json_each", "json_tree"}


def lock_migrations(session: Any) -> None:
    """Do nothing: the transaction of a writer excludes all others."""


def file_problems(session: Any) -> list[str]:
    """Return the problems that SQLite itself finds in the file."""
    return [line for (line,) in session.query("PRAGMA quick_check") if line != "ok"]


# -- queries ---------------------------------------------------------------------------------------


def among(
    column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Return `column IN (values)` for any number of integers or texts, as one bound parameter."""
    listed = sa.func.json_each(json.dumps(values)).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def among_selected(
    column: sa.ColumnElement[Any], selected: sa.Select[Any]
) -> sa.ColumnElement[bool]:
    """Return `column IN (SELECT ...)`."""
    return column.in_(selected)


def like(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    r"""Return a case-sensitive LIKE with `%`, `_` and `\` as GLOB.

    SQLite's own LIKE ignores ASCII case.
    """
    glob, escaped = [], False
    for character in pattern:
        if not escaped and character == "\\":
            escaped = True
            continue
        if not escaped and character in "%_":
            glob.append("*" if character == "%" else "?")
        else:
            glob.append(f"[{character}]" if character in "*?[" else character)
        escaped = False
    return column.op("GLOB", is_comparison=True)(sa.literal("".join(glob), sa.Text()))


def tag_value(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    """Return the value of a key of a JSON object.

    The key is `[A-Za-z0-9_]+`, so it can be a literal. It must be a literal, because SQLite uses an
    index on an expression only for exactly the same expression.
    """
    return sa.func.json_extract(column, sa.literal_column(f"""'$."{key}"'"""))


def _tag_is(column: sa.ColumnElement[Any], key: str, *kinds: str) -> sa.ColumnElement[bool]:
    return sa.func.json_type(column, sa.literal_column(f"""'$."{key}"'""")).in_(
        [sa.literal_column(f"'{k}'") for k in kinds]
    )


def tag_text(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with texts, and the condition that it is a text."""
    return tag_value(column, key), _tag_is(column, key, "text")


def tag_number(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with numbers, and the condition that it is a number."""
    return tag_value(column, key), _tag_is(column, key, "integer", "real")


def bound_number(value: int | float) -> sa.ColumnElement[Any]:
    """Return a parameter that compares exactly with a number in JSON."""
    return tables.bound(value)


def tag_is_bool(column: sa.ColumnElement[Any], key: str, value: bool) -> sa.ColumnElement[bool]:
    """Return whether the value is JSON's true, or false."""
    json_type = sa.func.json_type(column, sa.literal_column(f"""'$."{key}"'"""))
    return json_type == sa.literal_column("'true'" if value else "'false'")


TAG_KEYS: dict[str, str] = {
    column: f"SELECT DISTINCT j.key FROM {table} t, json_each(t.{column}) j WHERE t.buffer_id = ? "
    f"AND t.{column} IS NOT NULL"
    for column, table in (("tags", "steps"), ("episode_tags", "episodes"))
}


def database_gauges(session: Any) -> dict[str, float]:
    """Return figures of the whole database for the history of metrics."""
    ((pages,),), ((unused,),), ((size,),) = (
        session.query(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
    )
    path = next(file for _, name, file in session.query("PRAGMA database_list") if name == "main")
    return {
        "file_bytes": pages * size,
        "free_bytes": unused * size,
        "wal_bytes": wal_bytes(path),
    }


# SQLAlchemy cannot reflect indexes of expressions.
HAS_INDEX = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?"

# Before SQLite 3.41, an index of an expression covers a query only if it also contains the columns
# that the expression reads. Otherwise, `count` reads the row of each step that matches.
INDEXES_ALL_SCORES = True


def estimate(session: Any, table: str, index: str) -> None:
    """Insert statistics for a new index, as the migration does for the others.

    The statistics make the planner use the index.
    """
    session.query("DELETE FROM sqlite_stat1 WHERE tbl = ? AND idx = ?", table, index)
    figures = "1000000 1000000 2000" if table == "steps" else "10000 10000 20"
    session.query(
        "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", table, index, figures
    )


HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

HAS_ANY = "SELECT 1 FROM sqlite_master LIMIT 1"
VERSION = "SELECT version_num FROM expdb_version"

# -- append ----------------------------------------------------------------------------------------

# On PostgreSQL, this statement takes the writers' lock. On SQLite, the transaction already holds
# it, and the statement only checks that the buffer exists.
LOCK = "SELECT id FROM buffers WHERE id = ?"
LOCK_EXISTENCE = LOCK
FOR_UPDATE = ""  # the transaction already holds the writers' lock
WRITES_ALONE = True
NOW = "((julianday('now') - 2440587.5) * 86400.0)"
# Round trips cost nothing here, so every write is done statement by statement.
ROUND_TRIP_STEPS: int | None = None
ACKNOWLEDGE: str | None = None
LOCK_TO_ADMIT = ""
ADMIT: str | None = None
FINISH: str | None = None
STEPS_AT_ONCE = 32  # multi-row VALUES cost two thirds of executemany; more than 32 gain nothing
INSERT_STEPS = "INSERT INTO steps ({}) VALUES "


def insert_steps(
    session: Any, buffer_id: int, columns: tuple[Sequence[Any], ...], count: int
) -> None:
    """Insert `count` steps from `columns`, which hold all written columns but `buffer_id`."""
    used_columns = list(columns)
    while used_columns[-1].count(None) == count:  # omit trailing columns without values
        used_columns.pop()
    insert, row = _insert_steps(buffer_id, len(used_columns))
    if count < STEPS_AT_ONCE:
        session.execute_many(insert + row, zip(*used_columns, strict=True))
        return

    def slice_rows(start: int, stop: int) -> Iterator[tuple[Any, ...]]:
        return zip(*[column[start:stop] for column in used_columns], strict=True)

    # In slices: one list of all rows triggers a full garbage collection every few writes.
    whole = count - count % STEPS_AT_ONCE
    if whole:
        statement = insert + ", ".join([row] * STEPS_AT_ONCE)
        for start in range(0, whole, STEPS_AT_ONCE):
            values = chain.from_iterable(slice_rows(start, start + STEPS_AT_ONCE))
            session.query(statement, *values)
    if count - whole:
        session.execute_many(insert + row, slice_rows(whole, count))


@lru_cache(64)
def _insert_steps(buffer_id: int, columns: int) -> tuple[str, str]:
    """Return the start of an INSERT of steps, and one row of VALUES with `columns` parameters."""
    insert = INSERT_STEPS.format(", ".join(tables.WRITTEN_STEP_COLUMNS[: columns + 1]))
    return insert, f"({int(buffer_id)}{', ?' * columns})"


def insert_rows(
    session: Any,
    table: sa.Table,
    rows: Sequence[tuple[Any, ...]],
    names: tuple[str, ...] | None = None,
) -> None:
    """Insert rows of a table; by default, `names` are all columns of the table in their order."""
    session.execute_many(_insert(table, names), rows)


@lru_cache(64)
def _insert(table: sa.Table, names: tuple[str, ...] | None) -> str:
    names = names or tuple(column.name for column in table.columns)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


def set_texts(
    session: Any,
    column: sa.Column[Any],
    key: sa.Column[Any],
    buffer_id: int,
    texts: Mapping[int, str | None],
) -> None:
    """Set a text column in rows of a buffer; `texts` maps the key of each row to its text."""
    revision = ""
    if column.table.name == "steps":  # faster than the trigger, which runs for each row
        ((number,),) = session.query(
            "UPDATE buffers SET revision = revision + 1 WHERE id = ? RETURNING revision", buffer_id
        )
        revision = f", revision = {int(number)}"
    rows_by_text: dict[str | None, list[int]] = {}
    for row, text in texts.items():
        rows_by_text.setdefault(text, []).append(row)
    session.execute_many(
        f"UPDATE {column.table.name} SET {column.name} = ?{revision} "
        f"WHERE buffer_id = {int(buffer_id)} AND {key.name} {AMONG}",
        ((text, as_list(np.array(rows, np.int64))) for text, rows in rows_by_text.items()),
    )


def as_block(priorities: np.ndarray) -> bytes:
    """Return a block of priorities as the database stores it.

    The bytes are big-endian, so that SQL can compute numbers from their hexadecimal digits.
    """
    return priorities.astype(">f8").tobytes()


def from_block(data: bytes) -> np.ndarray:
    """Return the priorities of a block, float64; NaN where a step has none."""
    return np.frombuffer(data, ">f8").astype(np.float64)


SCHEMA = "main"
MATERIALIZED = "MATERIALIZED"  # SQLite can then create an index for a query
_DRAWS = [
    f"CAST(json_extract(value, '$[{k}]') AS {kind}) AS {name}"
    for k, (name, kind) in enumerate({"buffer": "text", **DRAW_COLUMNS}.items())
]
DRAWS = f"(SELECT {', '.join(_DRAWS)} FROM json_each(:expdb_draws))"
# `WHERE id {AMONG}`: id is in a list of integers, passed as one parameter (see as_list).
AMONG = "IN (SELECT value FROM json_each(?))"

# -- reading ---------------------------------------------------------------------------------------

# The segment of a position is the first segment that ends at or after the position. CROSS JOIN
# makes SQLite read the list first: otherwise it assumes that the list is the larger table, and
# reads all segments. The buffer is a column of the list because Python 3.12.0 to 3.12.3 deprecate
# numbered parameters in a sequence.
LOCATE = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row
FROM (SELECT ? AS id, value FROM json_each(?)) j
CROSS JOIN segments g ON g.buffer_id = j.id AND g.last = (
    SELECT last FROM segments WHERE buffer_id = j.id AND last >= j.value ORDER BY last LIMIT 1)
"""
APPEND = ""  # see ROUND_TRIP_STEPS
WAIT_FOR_CHANGE: str | None = None  # see consumers/waiting.py
READ_AT: str | None = None  # one combined statement would save nothing on SQLite; see fetch.py
# Tasks of the episodes with these ids, for the first episode of each task only.
FIRST_OF_TASKS = """
SELECT e.id, e.task_id FROM (SELECT value FROM json_each(?)) j
CROSS JOIN episodes e ON e.buffer_id = ? AND e.id = j.value
WHERE e.id = (SELECT min(id) FROM episodes WHERE buffer_id = e.buffer_id AND task_id = e.task_id)
"""
READ_CHUNKS = """
SELECT c.id, c.rows, c.signature, c.crc, c.data FROM (SELECT value FROM json_each(?)) j
CROSS JOIN chunks c ON c.buffer_id = ? AND c.id = j.value
"""


def as_list(values: np.ndarray) -> str:
    """Return integers as one parameter, which the statement reads with `json_each`."""
    return json.dumps(values.tolist())


def as_draws(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return the rows of `experience_draws` as one parameter, a JSON array of arrays."""
    return json.dumps(rows)


_QUOTED = re.compile(
    r"""'(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ | \[[^\]]*\] | `[^`]*` | "(?P<name>[^"\]]*)\"""",
    re.DOTALL | re.VERBOSE,
)


def _with_names(query: str) -> str:
    """Return a query with double-quoted names replaced by names in brackets.

    If a double-quoted name is unknown, SQLite treats it as text.
    """
    return _QUOTED.sub(
        lambda match: match[0] if match["name"] is None else f"[{match['name']}]", query
    )


LIMIT_LENGTH = 0  # SQLITE_LIMIT_LENGTH: the maximum size of a value or row
CHECK_EVERY = 100_000  # instructions of SQLite's virtual machine between two checks of the clock


def run_sql(
    session: Any,
    query: str,
    params: dict[str, Any],
    field: Any,
    timeout: float,
    max_bytes: int | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one reading statement; return the names of its columns and its rows."""
    driver, deadline = session.driver, time.monotonic() + timeout
    driver.set_progress_handler(lambda: time.monotonic() >= deadline, CHECK_EVERY)
    limit = None
    if max_bytes is not None and max_bytes < 2**31 and hasattr(driver, "setlimit"):
        limit = driver.setlimit(LIMIT_LENGTH, max_bytes)
    try:
        return _run_sql(driver, query, params, field, max_bytes, limit)
    except driver.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_INTERRUPT:
            raise
        if time.monotonic() < deadline:  # the handler was interrupted, not the deadline reached
            raise KeyboardInterrupt from error
        raise errors.SqlError(
            f"the query took longer than {timeout:g} s; open the database with a longer timeout"
        ) from error
    finally:
        driver.set_progress_handler(None, 0)
        if limit is not None:
            driver.setlimit(LIMIT_LENGTH, limit)


def _run_sql(
    driver: Any,
    query: str,
    params: dict[str, Any],
    field: Any,
    max_bytes: int | None,
    limit: int | None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    failed = cast("BaseException | None", None)

    def value_or_error(payload: Any, name: Any) -> Any:
        nonlocal failed
        try:
            if limit is not None:  # chunks may be larger than the result
                driver.setlimit(LIMIT_LENGTH, limit)
            return field.value(payload, name)
        except BaseException as error:  # including interrupts
            failed = error  # kept, because the driver reports only that a function has failed
            raise
        finally:
            if limit is not None:
                driver.setlimit(LIMIT_LENGTH, max_bytes)

    driver.create_function("field", 2, value_or_error, deterministic=True)
    try:
        for text in (query, *params.values()):  # otherwise, the driver may report an older error
            if isinstance(text, str):
                text.encode()
        if "\0" in query:
            raise errors.SqlError("the query must not contain a NUL character; remove it")
        cursor = driver.execute(_with_names(query), params)
        if cursor.description is None:
            raise errors.SqlRefused(
                "db.sql runs only SELECT or WITH ... SELECT, got a statement that returns no "
                "rows; change data with the methods of the buffer"
            )
        names = [column[0] for column in cursor.description]
        return names, fetch_limited(cursor.fetchmany, max_bytes)
    except UnicodeEncodeError:
        raise errors.SqlError(
            "the query and params must not contain lone surrogates; remove the surrogates, "
            "because stored text has none"
        ) from None
    except (driver.Error, driver.Warning, OverflowError) as error:
        meant = _translate_error(driver, error)
        if max_bytes is not None and "too big" in str(error):
            meant = _translate_error(driver, driver.DataError(str(error)))
            assert meant is not None
            raise meant from errors.log_cause(error)
        if failed is None and "user-defined function raised exception" in str(error):
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt from error  # raised before the function could catch it
            raise errors.SqlError("an argument of field() must be valid UTF-8 text") from error
        if failed is not None and not isinstance(meant, errors.SqlRefused):
            raise failed from None
        if meant is None:
            raise
        raise meant from errors.log_cause(error)


def _translate_error(driver: Any, error: BaseException) -> errors.ExpDBError | None:
    """Return the expdb error for a driver's error about the query, or None for other errors."""
    message = _one_line(error)
    if isinstance(error, (driver.DataError, OverflowError)):
        return errors.SqlError(
            f"a value is too large for the database ({message}); select or pass a smaller value, "
            "or raise max_bytes"
        )
    if isinstance(error, (driver.ProgrammingError, driver.Warning)):
        if "one statement" in message:
            return errors.SqlRefused(
                "db.sql runs only one statement; remove the text after the first semicolon"
            )
        return errors.SqlError(f"{message}; pass every :name of the query in params")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    refused = any(text in message for text in ("prohibited", "not authorized"))
    if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or refused:
        return errors.SqlRefused(
            f"db.sql only reads ({message}); change data with the methods of the buffer"
        )
    if "Could not decode to UTF-8" in message:
        return errors.SqlError(f"{message}; select bytes with CAST(... AS BLOB)")
    if code == sqlite3.SQLITE_ERROR:
        return QueryFailed(message)
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
