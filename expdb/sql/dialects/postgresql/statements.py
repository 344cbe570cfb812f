"""Statements and expressions of PostgreSQL that differ from other databases.

The SQL works with PostgreSQL 15 or newer.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from expdb import errors
from expdb.sql import schema, tables
from expdb.sql.dialects.base import Grant, Tag
from expdb.sql.dialects.postgresql.adhoc import run_sql as run_sql
from expdb.sql.tables import active_lease_condition

# -- schema ----------------------------------------------------------------------------------------


HAS_ANY = "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') LIMIT 1"
HAS_TABLE = (
    "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'r' AND "
    "relname = ?"
)
# With the schema name, so that a role without privileges gets a suitable error.
VERSION = "SELECT version_num FROM expdb.expdb_version"


NAME = "postgresql"


def columns(session: Any) -> set[tuple[str, str]]:
    """Return the table and the name of every column."""
    return set(
        session.query(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
            "WHERE c.relnamespace = to_regnamespace('expdb') AND c.relkind = 'r' "
            "AND a.attnum > 0 AND NOT a.attisdropped"
        )
    )


def remake(session: Any, name: str, sql: str) -> None:
    """Recreate a view, a trigger or a function; its grants are kept."""
    for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
        whole = statement + "$$" * (statement.count("$$") % 2)
        for kind in ("VIEW", "FUNCTION", "TRIGGER"):
            whole = whole.replace(f"CREATE {kind}", f"CREATE OR REPLACE {kind}", 1)
        try:
            with session.connection.begin_nested():
                session.connection.exec_driver_sql(whole.replace("%", "%%"))
        except sa.exc.ProgrammingError:
            if "CREATE OR REPLACE VIEW" not in whole:
                raise
            session.query(f"DROP VIEW {name}")  # a view with other columns cannot be replaced
            session.query(sql)


GRANTS = """
SELECT c.relname, coalesce(r.rolname, 'PUBLIC'), a.privilege_type
FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE c.relnamespace = to_regnamespace('expdb') AND c.relkind IN ('r', 'v')
AND a.grantee <> c.relowner
"""
# Roles with a privilege on one of these get the same privilege on new tables and views.
LIKE_TABLE, LIKE_VIEW = "steps", "experience"


def grants(session: Any) -> list[Grant]:
    """Return the privileges of roles other than the owner."""
    return list(session.query(GRANTS))


def restore_grants(session: Any, grants: list[Grant]) -> None:
    """Restore the grants from before an upgrade; grant the same on new tables and views."""
    if not grants:
        return
    before = {name for name, _, _ in grants}
    wanted = list(grants)
    relations = session.query(
        "SELECT relname, relkind::text FROM pg_class "
        "WHERE relnamespace = to_regnamespace('expdb') AND relkind IN ('r', 'v')"
    )
    for name, kind in relations:
        if name not in before:
            model = LIKE_VIEW if kind == "v" else LIKE_TABLE
            wanted += [(name, role, what) for other, role, what in grants if other == model]
    there = {name for name, _ in relations}
    for name, role, what in sorted(set(wanted) - set(session.query(GRANTS))):
        if name in there:
            session.query(f"GRANT {what} ON {name} TO {quoted(role)}")


def quoted(role: str) -> str:
    """Return the name of a role, quoted for SQL."""
    return role if role == "PUBLIC" else '"' + role.replace('"', '""') + '"'


def grant(session: Any, actors: Sequence[str], readers: Sequence[str]) -> None:
    """Let actors write and readers read; upgrades grant the same on new tables and views."""
    ((owner, may),) = session.query(
        "SELECT pg_get_userbyid(nspowner), pg_has_role(current_user, nspowner, 'USAGE') "
        "FROM pg_namespace WHERE nspname = 'expdb'"
    )
    if not may:
        raise errors.AccessDenied(
            f"only the owner of the schema expdb, {owner!r}, can grant its privileges; connect as "
            "that user"
        )
    for roles, rights in ((actors, "SELECT, INSERT, UPDATE, DELETE"), (readers, "SELECT")):
        for role in map(quoted, roles):
            session.query(f"GRANT USAGE ON SCHEMA expdb TO {role}")
            session.query(f"GRANT {rights} ON ALL TABLES IN SCHEMA expdb TO {role}")
            session.query(f"REVOKE INSERT, UPDATE, DELETE ON expdb.expdb_version FROM {role}")


def schema_problems(session: Any) -> list[str]:
    """Return which functions, triggers and views are missing, altered or disabled.

    Views are only checked for existence, because the server stores them in rewritten form.
    """
    made = schema.read_migrated_schema("postgresql")
    bodies = {name: sql.split("$$")[1] for name, sql in made.items() if "CREATE FUNCTION" in sql}
    functions, triggers, views = session.query_all(
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
    stored = dict(functions)
    cure = "restore a backup, or copy the data into a new database"
    problems = [
        f"{name} of the schema is {'altered' if name in stored else 'missing'}; {cure}"
        for name, body in bodies.items()
        if stored.get(name) != body
    ]
    problems += [
        f"the trigger {name} is missing or disabled; {cure}"
        for name, sql in made.items()
        if "CREATE TRIGGER" in sql and (name,) not in triggers
    ]
    return problems + [
        f"{name} of the schema is missing; {cure}"
        for name, sql in made.items()
        if "CREATE VIEW" in sql and (name,) not in views
    ]


def lock_migrations(session: Any) -> None:
    """Lock the schema until the transaction ends, so that only one process migrates at a time.

    `migrations/env.py` takes the same lock.
    """
    session.query("SELECT pg_advisory_xact_lock(1702391908)")


def file_problems(session: Any) -> list[str]:
    """Return nothing: the server checks its own files."""
    return []


ACTIVITY = (
    "SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) FILTER "
    "(WHERE pid <> pg_backend_pid()), 0)::float8 FROM pg_stat_activity WHERE datname = "
    "current_database() AND backend_type = 'client backend'"
)
DEAD_ROWS = (
    "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = "
    "'expdb'"
)


def database_gauges(session: Any) -> dict[str, float]:
    """Return figures of the whole database for the history of metrics."""
    ((connections, longest),), ((dead,),) = session.query_all((ACTIVITY,), (DEAD_ROWS,))
    return {
        "connections": connections,
        "longest_transaction_seconds": longest,
        "dead_rows": dead,
    }


HAS_INDEX = (
    "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'i' "
    "AND relname = ?"
)

# An entry of an index has a maximum of about 2,700 bytes; the scores of a step can be longer.
INDEXES_ALL_SCORES = False


def estimate(session: Any, table: str, index: str) -> None:
    """Update the planner's statistics of the table."""
    session.query(f"ANALYZE {table}")


# -- statements ------------------------------------------------------------------------------------


@lru_cache(1024)
def translate_statement(statement: str) -> str:
    """Return a plain statement with the driver's placeholders.

    In expdb's statements, every `?` is a placeholder. Lists of bytes are sent in binary, because
    the driver prefers text, which is twice as long.
    """
    statement = statement.replace("%", "%%").replace("?::bytea[]", "%b::bytea[]")
    return statement.replace("?", "%s")


FOR_UPDATE = " FOR NO KEY UPDATE"
WRITES_ALONE = False
LOCK = "SELECT id FROM buffers WHERE id = ?" + FOR_UPDATE
LOCK_EXISTENCE = "SELECT id FROM buffers WHERE id = ? FOR KEY SHARE"
NOW = "extract(epoch FROM clock_timestamp())::float8"
# Parameters: step, buffer, consumer, lease, holder; step, buffer, consumer.
ACKNOWLEDGE: str | None = f"""
WITH done AS (
    UPDATE leases SET status = 'acknowledged', ended = {NOW}, trainer_step = ?::bigint,
           acknowledged = (SELECT c.acknowledged FROM consumers c
                            WHERE c.buffer_id = leases.buffer_id AND c.id = leases.consumer)
     WHERE buffer_id = ? AND consumer = ? AND id = ? AND holder = ? AND pinned IS NULL
       AND {active_lease_condition(NOW)} RETURNING id)
UPDATE consumers SET version = version + 1, acknowledged = acknowledged + 1,
       last_step = coalesce(?::bigint, last_step)
 WHERE buffer_id = ? AND id = ? AND EXISTS (SELECT 1 FROM done) RETURNING version
"""
# Locks the buffer's row only if a group may begin, so a refused call does not wait for a writer.
# Parameters: buffer, pace, oldest, number of groups that may have begun in total.
LOCK_TO_ADMIT = (
    "SELECT id FROM buffers WHERE id = ? AND pace = ? AND policy_version >= ? AND admitted < ?"
    + FOR_UPDATE
)
# Admits a group if the condition of LOCK_TO_ADMIT holds, no group under way began before `oldest`,
# and no admission has this id. Otherwise, the statement returns no row. Parameters: those of
# LOCK_TO_ADMIT, oldest, id, id again, holder, seconds.
ADMIT: str | None = f"""
WITH admitting_buffer AS (
    UPDATE buffers SET admitted = admitted + 1
     WHERE id = ? AND pace = ? AND policy_version >= ? AND admitted < ?
       AND NOT EXISTS (SELECT 1 FROM admissions a
                        WHERE a.buffer_id = buffers.id AND (a.policy_version < ? OR a.id = ?))
    RETURNING id, policy_version)
INSERT INTO admissions (buffer_id, id, holder, policy_version, since, expires)
SELECT id, ?, ?, policy_version, {NOW}, {NOW} + ? FROM admitting_buffer RETURNING policy_version
"""
# Ends an admission; returns the number of ended admissions, 0 or 1. Subtracts a group that did
# not take place from `admitted`, and adds one that took place after its admission expired.
# Parameters: buffer, id, took place (1 or 0), buffer, took place, whether an earlier call may
# have ended it.
FINISH: str | None = """
WITH ended AS (DELETE FROM admissions WHERE buffer_id = ? AND id = ? RETURNING id),
     counted AS (
    UPDATE buffers SET admitted = admitted + ?::bigint - (SELECT count(*) FROM ended)
     WHERE id = ? AND ?::bigint <> (SELECT count(*) FROM ended)
       AND (NOT ?::boolean OR EXISTS (SELECT 1 FROM ended)))
SELECT count(*) FROM ended
"""
SCHEMA = "expdb"
# run_sql creates the table with statistics, which a materialized view would hide.
DRAWS, MATERIALIZED = "pg_temp.expdb_draws", ""
AMONG = "= ANY(?::bigint[])"
LOCATE = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row
FROM (SELECT ?::bigint AS id) b CROSS JOIN unnest(?::bigint[]) AS j(value)
CROSS JOIN LATERAL (
    SELECT * FROM segments WHERE buffer_id = b.id AND last >= j.value ORDER BY last LIMIT 1) g
ORDER BY g.last
"""
WAIT_FOR_CHANGE: str | None = "SELECT expdb.wait_for_change(?, ?, ?::bigint[], ?)"
# READ_AT returns the segments of positions and their chunks in one statement. A row that describes
# a segment has NULL as data. The last two parameters are the ids and checksums of cached chunks. If
# both still match, data is empty, and the caller uses the cached chunk.
READ_AT: str | None = """
WITH g AS MATERIALIZED (
    SELECT DISTINCT s.last, s.first, s.episode, s.ordinal, s.chunk, s.chunk_row
    FROM unnest(?::bigint[]) AS j(value)
    CROSS JOIN LATERAL (
        SELECT * FROM segments WHERE buffer_id = ? AND last >= j.value ORDER BY last LIMIT 1) s
)
SELECT last, first, episode, ordinal, chunk, chunk_row, NULL::bytea FROM g
UNION ALL
SELECT c.id, c.rows, c.signature, c.crc, NULL, NULL,
    CASE WHEN k.id IS NULL THEN c.data ELSE ''::bytea END
FROM (SELECT DISTINCT chunk FROM g) w
CROSS JOIN LATERAL (SELECT * FROM chunks WHERE buffer_id = ? AND id = w.chunk LIMIT 1) c
LEFT JOIN unnest(?::bigint[], ?::bigint[]) AS k(id, crc) ON k.id = c.id AND k.crc = c.crc
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


def as_draws(rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return the rows of `experience_draws` as one parameter."""
    return rows


def as_block(priorities: np.ndarray) -> np.ndarray:
    """Return a block of priorities as the database stores it."""
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


def among_selected(
    column: sa.ColumnElement[Any], selected: sa.Select[Any]
) -> sa.ColumnElement[bool]:
    """Return a condition like `column IN (SELECT ...)` whose SELECT runs only once.

    For IN without statistics, the planner may run the SELECT for every row of the outer table.
    """
    return column == sa.any_(sa.func.array(selected.scalar_subquery()))


def like(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    r"""Return a case-sensitive LIKE with `%`, `_` and `\`, as PostgreSQL's own LIKE is."""
    return column.op("LIKE", is_comparison=True)(sa.literal(pattern, sa.Text()))


def _tag(column: sa.ColumnElement[Any], key: str, operator: str) -> sa.ColumnElement[Any]:
    # The key is [A-Za-z0-9_]+, so it can be a literal; an index on an expression is used only for
    # exactly the same expression.
    return sa.cast(column, JSONB).op(operator)(sa.literal_column(f"'{key}'"))


def tag_value(column: sa.ColumnElement[Any], key: str) -> sa.ColumnElement[Any]:
    """Return the value of a key of a JSON object as text, NULL if it is null or missing."""
    return sa.collate(sa.type_coerce(_tag(column, key, "->>"), sa.Text()), "C")


def tag_text(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with texts, and the condition that it is a text."""
    return tag_value(column, key), sa.func.jsonb_typeof(
        _tag(column, key, "->")
    ) == sa.literal_column("'string'")


def tag_number(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the exact value of a key to compare with numbers, and a condition.

    If the value of the key is not a number, the returned value is NULL. The condition is always
    true.
    """
    is_number = sa.func.jsonb_typeof(_tag(column, key, "->")) == sa.literal_column("'number'")
    # A CASE, because AND does not guarantee that the cast runs after the test.
    return sa.case((is_number, sa.cast(_tag(column, key, "->>"), sa.Numeric()))), sa.true()


def bound_number(value: int | float) -> sa.ColumnElement[Any]:
    """Return a parameter that compares exactly with a number in JSON."""
    return sa.literal(Decimal(repr(value)), sa.Numeric())


def tag_is_bool(column: sa.ColumnElement[Any], key: str, value: bool) -> sa.ColumnElement[bool]:
    """Return whether the value is JSON's true, or false."""
    wanted = sa.cast(sa.literal_column("'true'" if value else "'false'"), JSONB)
    is_equal: sa.ColumnElement[bool] = _tag(column, key, "->") == wanted
    return is_equal


TAG_KEYS: dict[str, str] = {
    column: f"SELECT DISTINCT jsonb_object_keys(t.{column}::jsonb) FROM {table} t WHERE "
    f"t.buffer_id = ? AND t.{column} IS NOT NULL"
    for column, table in (("tags", "steps"), ("episode_tags", "episodes"))
}

# -- append ----------------------------------------------------------------------------------------

ROUND_TRIP_STEPS: int | None = 4096  # larger writes use COPY

_ARRAYS = {int: "bigint[]", float: "float8[]", str: "text[]", bool: "boolean[]"}
# The types of the parameters of the function `append`, in its order.
_APPEND = (
    *("bigint",) * 3, "text", "boolean", "float8", "json",
    "bigint[]", "bigint[]",
    *[
        _ARRAYS[tables.steps.c[name].type.python_type]
        for name in tables.WRITTEN_STEP_COLUMNS[4:]
    ],
    "bigint[]", "bigint[]", "bytea[]", "bigint", "bigint", "text",
)  # fmt: skip
# The statement is planned once per connection. Otherwise, each write would plan the insertion of
# segments again.
APPEND = (
    f"SELECT expdb.append({', '.join(f'?::{kind}' for kind in _APPEND)}) "
    "FROM set_config('plan_cache_mode', 'force_generic_plan', true)"
)


def insert_steps(
    session: Any, buffer_id: int, columns: tuple[Sequence[Any], ...], count: int
) -> None:
    """Insert `count` steps from `columns`, which hold all written columns but `buffer_id`."""
    rows = ((buffer_id, *row) for row in zip(*columns, strict=True))
    _copy(session, tables.steps, tables.WRITTEN_STEP_COLUMNS, rows)


def insert_rows(
    session: Any,
    table: sa.Table,
    rows: Iterable[tuple[Any, ...]],
    names: Sequence[str] | None = None,
) -> None:
    """Insert rows of a table; by default, `names` are all columns of the table in their order."""
    _copy(session, table, names or [column.name for column in table.columns], rows)


def set_texts(
    session: Any,
    column: sa.Column[Any],
    key: sa.Column[Any],
    buffer_id: int,
    texts: Mapping[int, str | None],
) -> None:
    """Set a text column in rows of a buffer; `texts` maps the integer key of each row to its text.

    Use one statement, because triggers run once per statement.
    """
    session.execute(
        f"UPDATE {column.table.name} t SET {column.name} = g.text "
        "FROM unnest(?::bigint[], ?::text[]) AS g(key, text) "
        f"WHERE t.buffer_id = ? AND t.{key.name} = g.key",
        list(texts), list(texts.values()), buffer_id,
    )  # fmt: skip


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
    """Insert rows by COPY inside the transaction, for many rows or rare operations."""
    statement = f"COPY {table.name} ({', '.join(names)}) FROM STDIN (FORMAT BINARY)"
    with session.driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types([_COPY_TYPES[type(table.c[name].type)] for name in names])
        for row in rows:
            copy.write_row(row)


# -- ad-hoc SQL ------------------------------------------------------------------------------------
