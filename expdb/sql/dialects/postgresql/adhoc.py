"""Run SQL of users, read-only."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
from psycopg.types import datetime as times

from expdb import errors
from expdb.names import DRAW_COLUMNS
from expdb.sql import schema
from expdb.sql.dialects.base import QueryFailed, fetch_limited
from expdb.sql.dialects.postgresql.connection import first_line

# Parts of a query in which `:name` is not a parameter: text, quoted names, comments, dollar-quoted
# text, casts.
_TOKENS = re.compile(
    r"""(?P<skip>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | ::) | :(?P<name>[A-Za-z_]\w*) | (?P<percent>%)""",
    re.DOTALL | re.VERBOSE,
)


def _placeholders(query: str) -> tuple[str, set[str]]:
    """Return a query with `:name` replaced by the driver's placeholders, and the names."""
    names = set()

    def replaced(match: re.Match[str]) -> str:
        if match["name"]:
            names.add(match["name"])
            return f"%({match['name']})s"
        return match[0].replace("%", "%%")

    return _TOKENS.sub(replaced, query), names


_WRITING = re.compile(
    r"\W*(insert|update|delete|merge|truncate|create|drop|alter|grant|revoke|copy|call|do|set|reset"
    r"|begin|start|commit|end|rollback|savepoint|lock|vacuum|analyze|reindex|cluster|refresh|listen"
    r"|notify|prepare|execute|discard|explain|show)\b",
    re.IGNORECASE,
)


_FIELD = re.compile(
    r"""\bfield\s*\(\s*(?P<payload>[\w."]+)\s*,\s*'(?P<name>(?:[^']|'')*)'\s*\)""", re.IGNORECASE
)


FIELD_TYPES = {
    "i": "CAST({} AS bigint)",
    "f": "CAST({} AS double precision)",
    "b": "decode({}, 'hex')",
}


def run_sql(
    session: Any,
    query: str,
    params: dict[str, Any],
    field: Any,
    timeout: float,
    max_bytes: int | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one reading statement; return the names of its columns and its rows.

    The statement is the query of a cursor, which must be a single SELECT without side effects. The
    transaction is read-only and already has its snapshot, so the statement cannot change this mode.

    The server cannot compute `field(payload, name)`. Its function `field` records the arguments in
    a temporary table. expdb then inserts the values into that table and runs the query again in the
    same snapshot, until no argument is new.

    The transaction has `timeout` as its statement_timeout.
    """
    uses_field = re.search(r"\bfield\s*\(", query, re.IGNORECASE) is not None
    text, names = _placeholders(query)
    _refuse(query, params, names)
    bound = {name: params[name] for name in names}
    try:
        if "expdb_draws" in params:
            _load_draws(session, params["expdb_draws"])
        if "priority" in query.lower():
            _decode_priorities(session)
        if uses_field:
            text = _prepare_fields(session, text, field.kinds())
        session.query("SET TRANSACTION READ ONLY")
        while True:
            session.driver.execute(f"DECLARE expdb_sql NO SCROLL CURSOR FOR {text}", bound)
            cursor = _cursor(session)
            rows = fetch_limited(partial(_fetch, cursor), max_bytes)
            if not uses_field or not _answer(session, field):
                return [column.name for column in cursor.description], rows
            session.query("CLOSE expdb_sql")
    except UnicodeEncodeError:
        raise errors.SqlError(
            "the query and params must not contain lone surrogates; remove the surrogates, "
            "because stored text has none"
        ) from None
    except psycopg.Error as error:
        meant = _translate_error(error)
        if meant is None:
            raise
        raise meant from errors.log_cause(error)


def _fetch(cursor: Any, count: int) -> list[tuple[Any, ...]]:
    """Return at most `count` of the remaining rows of the query."""
    rows = cursor.execute(f"FETCH {count} FROM expdb_sql", binary=False).fetchall()
    return [tuple(map(_plain, row)) for row in rows]


def _refuse(query: str, params: dict[str, Any], names: set[str]) -> None:
    """Raise SqlError for problems that can be found before the query is sent."""
    if missing := sorted(names - params.keys()):
        raise errors.SqlError(
            f"no value for :{missing[0]}; pass every :name of the query in params"
        )
    if "\0" in query or any(isinstance(value, str) and "\0" in value for value in params.values()):
        raise errors.SqlError(
            "the query and params must not contain a NUL character; remove this character, "
            "because stored text has none"
        )
    if _WRITING.match(re.sub(r"--[^\n]*|/\*.*?\*/", " ", query, flags=re.DOTALL)):
        raise errors.SqlRefused(
            "db.sql runs only one SELECT or WITH ... SELECT statement; change data with the "
            "methods of the buffer"
        )


_PRIORITY = (
    "(SELECT nullif(p.data[(s.position & 1023) + 1], 'NaN') FROM priorities p "
    "WHERE p.buffer_id = s.buffer_id AND p.block = s.position >> 10)"
)
# OFFSET 0 keeps the planner from decoding a block for each step, as it would without statistics.
_JOIN = (
    " LEFT JOIN (SELECT * FROM step_priorities OFFSET 0) p ON p.buffer_id = s.buffer_id "
    "AND p.position = s.position"
)


def _decode_priorities(session: Any) -> None:
    """Make `experience` decode each block of priorities once, in this transaction.

    The view of the schema reads the block again for each step, which is faster only for a few
    steps. Roles without the privilege to create temporary tables use the view of the schema.
    """
    ((may,),) = session.query("SELECT has_database_privilege(current_database(), 'TEMP')")
    if may:
        view = schema.read_migrated_schema("postgresql")["experience"]
        joined = view.replace(_PRIORITY, "p.priority") + _JOIN
        session.query(joined.replace("CREATE VIEW", "CREATE TEMPORARY VIEW", 1))
        session.query("SELECT set_config('search_path', 'pg_temp, expdb, public', true)")


def _load_draws(session: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    """Load the rows of `experience_draws` into a table with statistics, so that joins are fast."""
    types = {"text": "text", "integer": "bigint", "real": "double precision"}
    columns = ", ".join(f"{name} {types[kind]}" for name, kind in DRAW_COLUMNS.items())
    session.query(f"CREATE TEMPORARY TABLE expdb_draws (buffer text, {columns}) ON COMMIT DROP")
    with session.driver.cursor() as cursor, cursor.copy("COPY expdb_draws FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    session.query("ANALYZE expdb_draws")


def _prepare_fields(session: Any, text: str, kinds: dict[str, str]) -> str:
    """Create the table for the arguments of `field`; return the query with its values cast."""
    session.query(
        "CREATE TEMPORARY TABLE expdb_fields (payload text NOT NULL, name text NOT NULL, "
        "value text, known boolean NOT NULL, PRIMARY KEY (payload, name)) ON COMMIT DROP"
    )
    return _FIELD.sub(
        lambda match: FIELD_TYPES.get(kinds.get(match["name"], ""), "{}").format(match[0]), text
    )


def _translate_error(error: psycopg.Error) -> errors.ExpDBError | None:
    """Return the expdb error for a server's error about the query, or None for other errors."""
    state, message = error.sqlstate or "", first_line(error)
    if state in ("25006", "0A000", "25001", "42501") or "multiple commands" in message:
        return errors.SqlRefused(
            f"db.sql runs only one statement that reads data ({message}); change data with the "
            "methods of the buffer"
        )
    if state == "57014":
        return errors.SqlError(
            f"the query took too long ({message}); open the database with a longer timeout"
        )
    if state and state[:2] not in ("08", "53", "57", "58", "XX"):
        return QueryFailed(message)
    return None


def _answer(session: Any, field: Any) -> bool:
    """Insert the values of the recorded arguments of `field`; return whether there were any."""
    wanted = session.query("SELECT payload, name FROM expdb_fields WHERE NOT known")
    if not wanted:
        return False
    session.query("DELETE FROM expdb_fields WHERE NOT known")
    # Order the arguments by chunk, because only a few chunks are kept decoded.
    wanted.sort(key=lambda pair: [part.zfill(20) for part in pair[0].split(":")])
    values = [field.value(payload, name) for payload, name in wanted]
    with (
        session.driver.cursor() as cursor,
        cursor.copy("COPY expdb_fields FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(("text", "text", "text", "bool"))
        for (payload, name), value in zip(wanted, values, strict=True):
            text = (
                value.hex() if isinstance(value, bytes) else None if value is None else str(value)
            )
            copy.write_row((payload, name, text, True))
    return True


class _Loader(psycopg.adapt.Loader):
    """Load times as Python values, or as text if Python has no such value."""

    loader: type[psycopg.adapt.Loader]

    def __init__(self, oid: int, context: Any = None):
        super().__init__(oid, context)
        self._load = self.loader(oid, context).load

    def load(self, data: Any) -> Any:
        try:
            return self._load(data)
        except psycopg.DataError:  # infinity, years before 1 or after 9999, 24:00:00
            return bytes(data).decode()


_LOADERS = {
    name: type(f"_{name.title()}", (_Loader,), {"loader": loader})
    for name, loader in (
        ("date", times.DateLoader),
        ("time", times.TimeLoader),
        ("timetz", times.TimetzLoader),
        ("timestamp", times.TimestampLoader),
        ("timestamptz", times.TimestamptzLoader),
        ("interval", times.IntervalLoader),
    )
}


def _cursor(session: Any) -> Any:
    """Return a cursor that can read every time value of the server."""
    cursor = session.driver.cursor()
    for name, loader in _LOADERS.items():
        cursor.adapters.register_loader(name, loader)
    return cursor


def _plain(value: Any) -> Any:
    """Return a value as SQLite would return it: JSON as text, exact numbers as int or float.

    Numbers that are too large become text.
    """
    if isinstance(value, Decimal):
        if value.is_finite() and not -1e308 <= value <= 1e308:
            return str(value)
        if value == value.to_integral_value() and value.as_tuple().exponent == 0:
            return int(value) if -(2**63) <= value < 2**63 else str(value)
        return float(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (
        value if value is None or isinstance(value, (bool, int, float, str, bytes)) else str(value)
    )
