"""PostgreSQL: how to ask, compare, append and explain errors there, and nowhere else.

SQL of PostgreSQL 15.
"""

import json
import re
import struct
import time
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import psycopg
import sqlalchemy as sa
from psycopg.adapt import Dumper
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from expdb import errors
from expdb.names import views_for_people
from expdb.sql import schema, tables

MINIMUM_VERSION = 150_000

# -- schema ----------------------------------------------------------------------------------------

Tag = tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]

HAS_TABLE = (
    "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'r' AND "
    "relname = ?"
)
VERSION = (
    "SELECT version_num FROM expdb.expdb_version"  # qualified: a role without rights is told so
)


def has_tables(session: Any) -> bool:
    """Return whether there is anything in a schema called expdb."""
    found = session.ask(
        "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') LIMIT 1"
    )
    return bool(found)


def schema_problems(session: Any) -> list[str]:
    """Return which of our functions, triggers and views are missing, altered or switched off.

    The server rewrites views, so that nobody can tell whether they are as they were made.
    """
    made = schema.made_by_migrations("postgresql")
    bodies = {name: sql.split("$$")[1] for name, sql in made.items() if "CREATE FUNCTION" in sql}
    functions, triggers, views = session.ask_all(
        ("SELECT proname, prosrc FROM pg_proc WHERE pronamespace = to_regnamespace('expdb')",),
        (
            "SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            "WHERE c.relnamespace = to_regnamespace('expdb') AND NOT t.tgisinternal "
            "AND t.tgenabled IN ('O', 'A')",
        ),
        (
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('expdb') "
            "AND relkind = 'v'",
        ),
    )
    stored = {name: schema.without_layout(body) for name, body in functions}
    cure = "restore a backup, or copy the data into a new database"
    problems = [
        f"{name} of the schema is {'altered' if name in stored else 'missing'}: {cure}"
        for name, body in bodies.items()
        if stored.get(name) != schema.without_layout(body)
    ]
    problems += [
        f"the trigger {name} is missing or disabled: {cure}"
        for name, sql in made.items()
        if "CREATE TRIGGER" in sql and (name,) not in triggers
    ]
    return problems + [
        f"{name} of the schema is missing: {cure}"
        for name, sql in made.items()
        if "CREATE VIEW" in sql and (name,) not in views
    ]


def lock_migrations(session: Any) -> None:
    """Have processes that migrate at once take turns, until the transaction ends.

    Env.py takes the same lock.
    """
    session.ask("SELECT pg_advisory_xact_lock(1702391908)")


def file_problems(session: Any) -> list[str]:
    """Return nothing: the server watches over its files itself."""
    return []


def has_index(session: Any, label: str) -> bool:
    """Return whether there is an index of this name."""
    found = session.ask(
        "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'i' "
        "AND relname = ?",
        label,
    )
    return bool(found)


def estimate(session: Any, table: str, index: str) -> None:
    """Have the planner look at what a new index holds."""
    session.ask(f"ANALYZE {table}")


# -- statements ------------------------------------------------------------------------------------


@lru_cache(1024)
def translated_statement(statement: str) -> str:
    """Return a plain statement with the driver's placeholders.

    None of ours has a `?` in it otherwise.
    """
    return statement.replace("%", "%%").replace("?", "%s")


LOCK = "SELECT id FROM buffers WHERE id = ? FOR NO KEY UPDATE"
AMONG = "= ANY(?::bigint[])"
LOCATE = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row
FROM (SELECT ?::bigint AS id) b CROSS JOIN unnest(?::bigint[]) AS j(value)
CROSS JOIN LATERAL (
    SELECT * FROM segments WHERE buffer_id = b.id AND last >= j.value ORDER BY last LIMIT 1) g
ORDER BY g.last
"""
# The segments of positions and the chunks that they lie in, in one statement. The chunks are told
# by having data.
READ_AT: str | None = """
WITH g AS MATERIALIZED (
    SELECT DISTINCT s.last, s.first, s.episode, s.ordinal, s.chunk, s.chunk_row
    FROM unnest(?::bigint[]) AS j(value)
    CROSS JOIN LATERAL (
        SELECT * FROM segments WHERE buffer_id = ? AND last >= j.value ORDER BY last LIMIT 1) s
)
SELECT last, first, episode, ordinal, chunk, chunk_row, NULL::bytea FROM g
UNION ALL
SELECT c.id, c.rows, c.signature, c.crc, NULL, NULL, c.data FROM (SELECT DISTINCT chunk FROM g) w
CROSS JOIN LATERAL (SELECT * FROM chunks WHERE buffer_id = ? AND id = w.chunk LIMIT 1) c
"""
FIRST_OF_TASKS = """
SELECT e.id, e.task_id FROM unnest(?::bigint[]) AS j(value)
JOIN episodes e ON e.buffer_id = ? AND e.id = j.value
WHERE e.id = (SELECT min(id) FROM episodes WHERE buffer_id = e.buffer_id AND task_id = e.task_id)
"""
READ_CHUNKS = """
SELECT c.id, c.rows, c.signature, c.crc, c.data FROM unnest(?::bigint[]) AS j(value)
JOIN chunks c ON c.buffer_id = ? AND c.id = j.value
"""


def as_list(values: np.ndarray) -> np.ndarray:
    """Return integers as one parameter."""
    return values.astype(np.int64, copy=False)


def as_block(priorities: np.ndarray) -> np.ndarray:
    """Return a block of priorities as the database keeps it."""
    return priorities


def from_block(data: list[float]) -> np.ndarray:
    """Return the priorities of a block, float64; NaN where a step has none."""
    return np.array(data, np.float64)


def among(
    column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Return `column IN (values)` for any number of integers or texts, as one bound parameter."""
    kind: Any = sa.Text() if isinstance(column.type, sa.Text) else sa.BigInteger()
    return column == sa.any_(sa.literal(list(values), ARRAY(kind)))


def bound(value: Any) -> sa.ColumnElement[Any]:
    """Return a parameter of the value's own type."""
    kind: Any = (
        sa.Text()
        if isinstance(value, str)
        else sa.BigInteger()
        if isinstance(value, int)
        else sa.Double()
    )
    return sa.literal(value, kind)


def like(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    r"""Return a case-sensitive LIKE with `%`, `_` and `\`, which is what PostgreSQL's own is."""
    return column.op("LIKE", is_comparison=True)(sa.literal(pattern, sa.Text()))


def _tag(column: sa.ColumnElement[Any], key: str, operator: str) -> sa.ColumnElement[Any]:
    # The key is [A-Za-z0-9_]+ and so can be a literal; an index on the expression serves only the
    # very same one.
    return sa.cast(column, JSONB).op(operator)(sa.literal_column(f"'{key}'"))


def tag_value(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    """Return the value of a key of a JSON object as text, NULL where it is null or not there."""
    return sa.collate(sa.type_coerce(_tag(column, key, "->>"), sa.Text()), "C")


def tag_text(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with texts, and what holds where it is one."""
    return tag_value(column, key), sa.func.jsonb_typeof(
        _tag(column, key, "->")
    ) == sa.literal_column("'string'")


def tag_number(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with numbers, exact as JSON has it.

    What holds where it is one.
    """
    is_number = sa.func.jsonb_typeof(_tag(column, key, "->")) == sa.literal_column("'number'")
    # A CASE, as AND does not promise that the cast waits for the test.
    return sa.case((is_number, sa.cast(_tag(column, key, "->>"), sa.Numeric()))), sa.true()


def bound_number(value: int | float) -> sa.ColumnElement[Any]:
    """Return a parameter that compares exactly with a number in JSON."""
    return sa.literal(Decimal(repr(value)), sa.Numeric())


def tag_is_bool(column: sa.ColumnElement[Any], key: str, value: bool) -> sa.ColumnElement[bool]:
    """Return whether the value is JSON's true, or false."""
    wanted = sa.cast(sa.literal_column("'true'" if value else "'false'"), JSONB)
    found: sa.ColumnElement[bool] = _tag(column, key, "->") == wanted
    return found


TAG_KEYS = {
    column: f"SELECT DISTINCT jsonb_object_keys(t.{column}::jsonb) FROM {table} t WHERE "
    f"t.buffer_id = ? AND t.{column} IS NOT NULL"
    for column, table in (("tags", "steps"), ("episode_tags", "episodes"))
}

# -- append ----------------------------------------------------------------------------------------

ROUND_TRIP_STEPS: int | None = 4096  # a write of more goes by COPY

# The types of the parameters of the function `append`, in its order.
_APPEND = (
    *("bigint",) * 3, "text", "boolean", "float8", "json",
    "bigint[]", "bigint[]", "text[]", "float8[]", "float8[]", "boolean[]", "boolean[]", "text[]",
    "bigint[]", "bigint[]", "bytea[]", "bigint", "bigint", "text",
)  # fmt: skip
APPEND = f"SELECT expdb.append({', '.join(f'?::{kind}' for kind in _APPEND)})"


class ArrayDumper(Dumper):
    """Sends a 1-D NumPy array of int64 or float64 as PostgreSQL's own.

    64 numbers in 4 us, where a list takes 40.
    """

    format = psycopg.pq.Format.BINARY
    element = 0
    pairs: Any = None

    def get_key(self, obj: np.ndarray, format: Any) -> Any:
        """Return what tells dumpers apart."""
        return self.cls, obj.dtype.kind

    def upgrade(self, obj: np.ndarray, format: Any) -> Dumper:
        """Return the dumper of an array's dtype."""
        return (FloatsDumper if obj.dtype.kind == "f" else IntegersDumper)(self.cls)

    def dump(self, obj: np.ndarray) -> bytes:
        """Return the array in PostgreSQL's binary format.

        Header, then size and value of each element.
        """
        pairs = np.empty(len(obj), self.pairs)
        pairs["size"], pairs["value"] = 8, obj
        return struct.pack(">5i", 1, 0, self.element, len(obj), 1) + pairs.tobytes()


class IntegersDumper(ArrayDumper):
    """Sends int64."""

    oid, element, pairs = 1016, 20, np.dtype([("size", ">i4"), ("value", ">i8")])


class FloatsDumper(ArrayDumper):
    """Sends float64."""

    oid, element, pairs = 1022, 701, np.dtype([("size", ">i4"), ("value", ">f8")])


def insert_steps(
    session: Any, buffer_id: int, columns: tuple[Iterable[Any], ...], count: int
) -> None:
    """Insert `count` steps given as the columns position, episode, step, pre_agent, execute_time.

    Reward, ..., tags.
    """
    names = (
        "position",
        "episode",
        "step",
        "pre_agent",
        "execute_time",
        "reward",
        "terminated",
        "truncated",
        "tags",
    )
    rows = ((buffer_id, *row) for row in zip(*columns, strict=True))
    _copy(session, tables.steps, ("buffer_id", *names), rows)


def insert_rows(session: Any, table: sa.Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert whole rows of a table, values in the order of its columns."""
    _copy(session, table, [column.name for column in table.columns], rows)


_COPY_TYPES = {
    sa.BigInteger: "int8",
    sa.Double: "float8",
    sa.Boolean: "bool",
    sa.LargeBinary: "bytea",
    sa.Text: "text",
}


def _copy(
    session: Any, table: sa.Table, names: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert rows by COPY, inside the transaction: what comes this way is large, or rare."""
    statement = f"COPY {table.name} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"
    with session.driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types([_COPY_TYPES[type(table.c[name].type)] for name in names])
        for row in rows:
            copy.write_row(row)


# -- errors ----------------------------------------------------------------------------------------


def translated(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a driver's, or the error itself where there is none."""
    if not isinstance(error, psycopg.Error):
        return error
    state, said = error.sqlstate or "", first_line(error)
    match state:
        case (
            "XD001" | "23505"
        ):  # what `append` raises itself, and a name that another episode has taken meanwhile
            return errors.OutOfDate(said)
        case "55P03":
            return errors.DatabaseBusy(
                f"{location} is held by another writer: try again, or open it with a longer timeout"
            )
        case "40001" | "40P01":
            return errors.DatabaseBusy(f"{location}: {said}: try again")
        case "53100":
            return errors.StorageFull(
                f"no space left for {location}: free some and go on, nothing acknowledged is lost"
            )
        case "53300":
            return errors.DatabaseBusy(
                f"{location} has no connection left ({said}): raise max_connections, or use "
                "PgBouncer"
            )
        case "42501":
            return errors.AccessDenied(
                f"{location}: {said}: have its owner GRANT this user what it needs "
                "(docs/many_machines.md)"
            )
        case "25006":
            return errors.DatabaseReadOnly(
                f"{location} cannot be written ({said}): connect to the primary server"
            )
        case "28P01" | "28000":
            return errors.AccessDenied(f"{location}: {said}: check user and password")
        case "3D000":
            return errors.DatabaseMissing(f"{location}: {said}: make it with createdb")
        case "42P01" | "42883" | "42703" | "3F000":
            return errors.DatabaseDamaged(
                f"{location}: {said}: the schema expdb is not whole, restore a backup"
            )
        case "22003":
            return errors.InvalidValue(
                f"{said}: the rewards of an episode must have a sum that is finite"
            )
        case "54001" | "54011" | "54023":
            return errors.QueryError(
                f"the query is too large ({said}): use in_ for long lists, or pass positions"
            )
    if "number of parameters" in said:
        return errors.QueryError(
            f"the query is too large ({said}): use in_ for long lists, or pass positions"
        )
    if (
        state[:2] in ("08", "57")
        or (isinstance(error, psycopg.OperationalError) and not state)
        or state == "25P03"
    ):
        return errors.ConnectionLost(
            f"{location}: {said}: nothing of this call was stored, try again when the server is "
            "there"
        )
    if state[:2] == "XX":
        return errors.DatabaseDamaged(f"{location}: {said}: restore a backup")
    return error


def connect_error(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a connection that was not made.

    The driver tells no codes then, only the server's words.
    """
    if not isinstance(error, psycopg.Error):
        return error
    said = first_line(error)
    if (
        "password" in said
        or "no pg_hba.conf entry" in said
        or "authentication" in said
        or ('role "' in said and "exist" in said)
    ):
        return errors.AccessDenied(
            f"{location}: {said}: check user and password in the URL, or PGPASSWORD"
        )
    if 'database "' in said and "does not exist" in said:
        return errors.DatabaseMissing(f"{location}: {said}: make it with createdb")
    if "too many" in said or "remaining connection slots" in said:
        return errors.DatabaseBusy(
            f"{location}: {said}: raise max_connections, or put PgBouncer before the server"
        )
    if "permission denied" in said:
        return errors.AccessDenied(
            f"{location}: {said}: GRANT CONNECT on the database to this user"
        )
    return errors.ConnectionLost(
        f"{location} cannot be reached ({said}): check host and port, and that the server runs"
    )


def first_line(error: BaseException) -> str:
    """Return what a server or the driver said, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return said.split("FATAL:")[-1].strip() if "FATAL:" in said else said


# -- ad-hoc SQL ------------------------------------------------------------------------------------

# What a `:name` is not found in: text, quoted names, comments, dollar-quoted text, casts.
_TOKENS = re.compile(
    r"""(?P<skip>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | ::) | :(?P<name>[A-Za-z_]\w*) | (?P<percent>%)""",
    re.DOTALL | re.VERBOSE,
)


def _placeholders(query: str) -> tuple[str, set[str]]:
    """Return a query with the driver's placeholders for `:name`, and the names."""
    names = set()

    def replaced(match: re.Match[str]) -> str:
        if match["name"]:
            names.add(match["name"])
            return f"%({match['name']})s"
        return match[0].replace("%", "%%")

    return _TOKENS.sub(replaced, query), names


_WRITING = re.compile(
    r"\W*(insert|update|delete|merge|truncate|create|drop|alter|grant|revoke|copy|call|do|set|reset|begin|start|commit|end|"
    r"rollback|savepoint|lock|vacuum|analyze|reindex|cluster|refresh|listen|notify|prepare|execute|discard|explain|show)\b",
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
    session: Any, query: str, params: dict[str, Any], field: Any
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one reading statement; return the names of its columns and its rows.

    As the query of a cursor, which can be nothing but one SELECT without effects, in a transaction
    that is read-only and has its snapshot already, so that nothing in the statement can make it
    another one.

    `field(payload, name)` cannot be answered by the server. It notes there what it was asked for;
    the values are then given to it, and the query is run again in the same snapshot, until it asks
    for nothing more.
    """
    uses_field = re.search(r"\bfield\s*\(", query, re.IGNORECASE) is not None
    text, names = _placeholders(query)
    missing = sorted(names - params.keys())
    if missing:
        raise errors.SqlError(
            f"no value for :{missing[0]}: give every :name of the query in params"
        )
    if "\0" in query or any(isinstance(value, str) and "\0" in value for value in params.values()):
        raise errors.SqlError("NUL in the query or in params: no stored text has one")
    if _WRITING.match(re.sub(r"--[^\n]*|/\*.*?\*/", " ", query, flags=re.DOTALL)):
        raise errors.SqlRefused(
            "db.sql runs one SELECT (or WITH ... SELECT): change data with the methods of the "
            "buffer"
        )
    given = {name: params[name] for name in names}
    try:
        if uses_field:
            session.ask(
                "CREATE TEMPORARY TABLE expdb_fields (payload text NOT NULL, name text NOT NULL, "
                "value text, "
                "known boolean NOT NULL, PRIMARY KEY (payload, name)) ON COMMIT DROP"
            )
            kinds = field.kinds()
            text = _FIELD.sub(
                lambda match: FIELD_TYPES.get(kinds.get(match["name"], ""), "{}").format(match[0]),
                text,
            )
        session.ask("SET TRANSACTION READ ONLY")
        while True:
            session.driver.execute(f"DECLARE expdb_sql NO SCROLL CURSOR FOR {text}", given)
            cursor = session.driver.execute("FETCH ALL FROM expdb_sql")
            if not uses_field or not _answer(session, field):
                return [column.name for column in cursor.description], [
                    tuple(map(_plain, row)) for row in cursor.fetchall()
                ]
            session.ask("CLOSE expdb_sql")
    except UnicodeEncodeError:
        raise errors.SqlError(
            "a lone surrogate in the query or in params: no stored text has one"
        ) from None
    except psycopg.Error as error:
        state, said = error.sqlstate or "", first_line(error)
        if state in ("25006", "0A000", "25001", "42501") or "multiple commands" in said:
            raise errors.SqlRefused(
                f"db.sql only reads, one statement ({said}): change data with the methods of the "
                "buffer"
            ) from error
        if state == "57014":
            raise errors.SqlError(
                f"the query took too long ({said}): open the database with a longer timeout"
            ) from error
        if state and state[:2] not in ("08", "53", "57", "58", "XX"):
            raise errors.SqlError(f"{said}: {views_for_people()}") from error
        raise


def _answer(session: Any, field: Any) -> bool:
    """Give `field` the values it has asked for since; return whether there were any."""
    wanted = session.ask("SELECT payload, name FROM expdb_fields WHERE NOT known")
    if not wanted:
        return False
    session.ask("DELETE FROM expdb_fields WHERE NOT known")
    # Neighbours of one chunk together: only a few chunks are kept decoded.
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


def _plain(value: Any) -> Any:
    """Return a value as SQLite would have given it: JSON as text, exact numbers as int or float."""
    if isinstance(value, Decimal):
        return (
            int(value)
            if value == value.to_integral_value() and value.as_tuple().exponent == 0
            else float(value)
        )
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (
        value if value is None or isinstance(value, (bool, int, float, str, bytes)) else str(value)
    )


# -- the doctor ------------------------------------------------------------------------------------


def examined(session: Any) -> list[tuple[str, str, str]]:
    """Return what the server is, and who is at it: what, what was found, what to do about it."""
    start = time.monotonic()
    session.ask("SELECT 1")
    trip = time.monotonic() - start
    names = ("server_version", "fsync", "synchronous_commit", "max_connections", "server_encoding")
    settings = dict(
        session.ask("SELECT name, setting FROM pg_settings WHERE name = ANY(?)", list(names))
    )
    ((used, waiting, oldest, who),) = session.ask(
        "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock'), "
        "coalesce(max(extract(epoch FROM now() - xact_start)) FILTER (WHERE pid <> "
        "pg_backend_pid()), 0)::float8, "
        "(array_agg(pid || ' (' || coalesce(application_name, '') || ', ' || coalesce(state, '') "
        "|| ')' ORDER BY xact_start) "
        "FILTER (WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()))[1] "
        "FROM pg_stat_activity WHERE datname = current_database()"
    )
    ((connections,),) = session.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    ((dead, live, size),) = session.ask(
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint, "
        "coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables WHERE "
        "schemaname = 'expdb'"
    )
    ((in_recovery,),) = session.ask("SELECT pg_is_in_recovery()")
    most = int(settings["max_connections"])
    return [
        ("PostgreSQL", settings["server_version"], ""),
        (
            "role",
            "replica" if in_recovery else "primary",
            "is a replica: what is committed shows late and in another order; open the primary"
            if in_recovery
            else "",
        ),
        (
            "fsync",
            settings["fsync"],
            ""
            if settings["fsync"] == "on"
            else "is off: a crash of the machine may lose the whole database",
        ),
        (
            "synchronous_commit",
            settings["synchronous_commit"],
            ""
            if settings["synchronous_commit"] != "off"
            else "is off: a crash of the server loses the last 0.6 s that it acknowledged",
        ),
        (
            "connections",
            f"{connections} of {most}, {used} of them here",
            "nearly all are taken: raise max_connections, or put pgbouncer in between"
            if connections > 0.9 * most
            else "",
        ),
        ("waiting for locks", str(waiting), ""),
        (
            "longest transaction",
            f"{oldest:.1f} s" + (f", process {who}" if who and oldest >= 1 else ""),
            "keeps dead rows from being removed: end it, or set idle_in_transaction_session_timeout"
            if oldest > 600
            else "",
        ),
        (
            "tables",
            f"{size:,} bytes, {live:,} rows, {dead:,} dead",
            "mostly dead rows: see that autovacuum is on and not held back"
            if dead > 4 * live and dead > 1_000_000
            else "",
        ),
        ("encoding", settings["server_encoding"], ""),
        ("a trip to it", f"{trip * 1000:.2f} ms", ""),
    ]
