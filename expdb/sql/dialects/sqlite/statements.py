"""SQLite: how to connect, begin, check, query and append there, and nowhere else."""

import json
import os
import random
import re
import sqlite3
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.names import views_for_people
from expdb.sql import schema
from expdb.sql.dialects.sqlite import arithmetic as sqlite_arithmetic
from expdb.sql.dialects.sqlite import files as sqlite_files

APPLICATION_ID = 0x65787064  # "expd"

# 3.7.0-3.51.2 corrupt a WAL database when a PASSIVE checkpoint races with a writer that resets the
# log (sqlite.org/wal.html#walresetbug). Auto-checkpoints are PASSIVE, so none of our connections
# has any; see checkpoint().
MINIMUM_VERSION = (3, 37, 0)
CONNECT_MS = 30_000


def connect(
    path: str,
    module: ModuleType,
    *,
    create: bool = False,
    read_only: bool = False,
    durability: str,
    busy_ms: int,
) -> Any:
    """Open one connection to the file; never through a URL that eats `?` or `%` of the path."""
    if module.sqlite_version_info < MINIMUM_VERSION:
        raise errors.ExpDBError(
            f"SQLite {module.sqlite_version} is too old: use a Python that links 3.37 or newer, or "
            "sqlite_module=pysqlite3.dbapi2"
        )
    mode = "ro" if read_only else "rwc" if create else "rw"
    immutable = "&immutable=1" if read_only and on_read_only_medium(path) else ""
    connection = module.connect(
        f"file:{urllib.parse.quote(path)}?mode={mode}{immutable}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    # Not trusted_schema=OFF: before SQLite 3.41 it forbids json_extract in an index, which is what
    # indexes of tags are; instead our own triggers and view are compared with what the migrations
    # made (schema_problems). The mode of the journal is a property of the file: made WAL once, when
    # the file is made (prepare_file).
    try:
        for pragma in (
            # a file whose last user is just leaving, or whose log is being recovered, is locked for
            # a moment
            f"busy_timeout={CONNECT_MS}",
            f"synchronous={'FULL' if durability == 'full' else 'NORMAL'}",
            "wal_autocheckpoint=0",
            "mmap_size=0",
            "recursive_triggers=ON",
            "secure_delete=OFF",
            "journal_size_limit=67108864",
            "cell_size_check=ON",
            # more costs a reader of large files more in fresh pages than it saves: the system has a
            # cache too
            "cache_size=-16384",
            f"busy_timeout={busy_ms}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_file(connection: Any) -> None:
    """Make a new, still empty file an expdb one: write-ahead log, our mark."""
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}").fetchall()
    name_file(connection)


def name_file(connection: Any) -> None:
    """Give a file a number of its own.

    By which a log that belongs to another one can be told (see refuse_foreign_log).
    """
    connection.execute(f"PRAGMA user_version={random.getrandbits(31) | 1}").fetchall()


def refuse_foreign_log(path: str, module: ModuleType) -> None:
    """Raise where the log beside a file says that it belongs to another one.

    SQLite would write its pages into this file.
    """
    told = sqlite_files.user_version_in_log(path, APPLICATION_ID)
    if told is None:
        return
    connection = module.connect(
        f"file:{urllib.parse.quote(path)}?mode=ro&immutable=1", uri=True
    )  # the file without its log
    try:
        (own,) = connection.execute("PRAGMA user_version").fetchone()
    except (
        module.DatabaseError
    ):  # damaged, or a checkpoint that a power loss cut off and that the log will make good
        return
    finally:
        connection.close()
    if own != told:
        raise errors.DatabaseReplaced(
            f"{path}-wal is the log of another database than {path}: one of the two was moved or "
            "copied without the other; put them "
            "together again, or move the log away, and make copies with `expdb backup`"
        )


def on_read_only_medium(path: str) -> bool:
    """Return whether nobody can write where the file lies.

    Raise where then not all of it can be read.

    SQLite cannot make the log's index there, so it is told that the file does not change, which is
    so: a log that has something in it would be left out.
    """
    if not hasattr(os, "statvfs") or not os.statvfs(os.path.dirname(path)).f_flag & os.ST_RDONLY:
        return False  # whom only permissions keep from writing others may change the file for
    if wal_bytes(path):
        raise errors.DatabaseReadOnly(
            f"{path} has a write-ahead log and lies on a read-only medium: open it once where it "
            "can be written, which folds it in"
        )
    return True


def identify(path: str, module: ModuleType) -> None:
    """Raise if the existing file is not ours.

    Reads through SQLite only: opening the file beside it drops its locks.
    """
    if os.stat(path).st_size == 0:
        raise errors.NotAnExperienceDatabase(
            f"{path} is empty: delete it to let expdb create it anew"
        )
    connection = None
    try:
        immutable = "&immutable=1" if on_read_only_medium(path) else ""
        connection = module.connect(
            f"file:{urllib.parse.quote(path)}?mode=ro{immutable}",
            uri=True,
            isolation_level=None,
            timeout=30,
        )
        (found,) = connection.execute("PRAGMA application_id").fetchone()
    except module.DatabaseError as error:
        raise translated(error, path) from error
    finally:
        if connection is not None:
            connection.close()
    if found != APPLICATION_ID:
        raise errors.NotAnExperienceDatabase(
            f"{path} is a database of another application: choose another path"
        )


def schema_problems(session: Any) -> list[str]:
    """Return what is wrong with triggers and views.

    That is: which of ours are missing or altered, and which others would run, or be read, unasked.
    """
    made = schema.made_by_migrations("sqlite")
    found = session.ask(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view', 'table')"
    )
    stored = {name: schema.without_layout(sql or "") for kind, name, sql in found if name in made}
    cure = "restore a backup, or copy the data into a new database"
    problems = [
        f"{name} of the schema is {'altered' if name in stored else 'missing'}: {cure}"
        for name, sql in made.items()
        if stored.get(name) != schema.without_layout(sql)
    ]
    for kind, name, sql in found:
        if kind == "trigger" and name not in made:
            problems.append(
                f"the trigger {name} is not expdb's and would run with every write: "
                "drop it if it is yours, else trust nothing in the file"
            )
        elif name.lower() in SHADOWED or (sql or "").upper().startswith("CREATE VIRTUAL"):
            problems.append(
                f"the {kind} {name} is not expdb's and takes the place of SQLite's own: "
                "drop it if it is yours"
            )
    return problems


# Functions that our statements read as tables: a table of the same name would be read in their
# place.
SHADOWED = {"json_each", "json_tree"}


def lock_migrations(session: Any) -> None:
    """Do nothing: the transaction of a writer is the only one."""


def file_problems(session: Any) -> list[str]:
    """Return what SQLite itself finds wrong with the file."""
    return [line for (line,) in session.ask("PRAGMA quick_check") if line != "ok"]


LONGEST_PAUSE, SHORTEST_PAUSE = (
    0.01,
    0.0003,
)  # seconds between looks whether the writers' lock is free
PATIENCE = 0.03  # seconds of waiting from which on the pauses become shorter again


def begin(connection: Any, timeout: float) -> None:
    """Begin an immediate transaction, waiting for other writers up to `timeout` seconds.

    Not SQLite's own busy handler, which sleeps in fixed steps: jitter cut the longest wait of 32
    writers by four. Who has waited for long looks more often than who came just now, so that 32
    writers wait alike. Rejected: short pauses for all (a look costs as much as a small write), and
    a second lock to wait at without looking (no faster, a file more).
    """
    since, pause = None, 0.0002
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except connection.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            now = time.monotonic()
            since = now if since is None else since
            waited = now - since
            if waited >= timeout:
                raise
        time.sleep(pause * (0.5 + random.random()))
        pause = (
            min(pause * 1.5, LONGEST_PAUSE)
            if waited < PATIENCE
            else max(LONGEST_PAUSE * PATIENCE / waited, SHORTEST_PAUSE)
        )


def wal_bytes(path: str) -> int:
    """Return the size of the write-ahead log (by stat, which keeps SQLite's locks)."""
    try:
        return os.stat(path + "-wal").st_size
    except FileNotFoundError:
        return 0


def checkpoint(connection: Any, wait_ms: int) -> bool:
    """Copy the log into the file and truncate it; return whether that went all the way.

    TRUNCATE takes the writers' lock before it looks at the log, so it is safe on versions with the
    WAL-reset bug. It falls back to PASSIVE only when it cannot have that lock within its busy
    timeout, hence the wait.
    """
    connection.execute(f"PRAGMA busy_timeout={wait_ms}").fetchall()
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy
    finally:
        connection.execute("PRAGMA busy_timeout=0").fetchall()


def data_version(connection: Any) -> int:
    """Return a number that changes when another connection has committed.

    Sqlite.org/pragma.html#pragma_data_version.
    """
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return version  # type: ignore[no-any-return]


def translated(error: BaseException, path: str) -> BaseException:
    """Return the expdb error for a driver's, or the error itself where there is none."""
    code = getattr(error, "sqlite_errorcode", None)
    damaged = (
        f"{path} is damaged ({error}): restore a backup, or recover it with sqlite3's .recover"
    )
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error):
        return errors.DatabaseDamaged(damaged)
    if code is None:
        return error
    match code & 0xFF:
        case sqlite3.SQLITE_ERROR if any(
            text in str(error) for text in ("too large", "too many", "too complex")
        ):
            return errors.QueryError(
                f"the query is too large ({error}): use in_ for long lists, or pass positions"
            )
        case sqlite3.SQLITE_ERROR if str(error).startswith("no such"):
            return errors.DatabaseDamaged(damaged)
        case sqlite3.SQLITE_IOERR if code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return errors.StorageFull(
                f"no space left for the log's index of {path}: free some and go on, nothing "
                "acknowledged is lost"
            )
        case sqlite3.SQLITE_IOERR:
            return errors.DatabaseUnreadable(
                f"{path} cannot be read or written ({error}): check the disk and the file system, "
                "then open it again"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return errors.DatabaseBusy(
                f"{path} is held by another writer: try again, or open it with a longer timeout"
            )
        case sqlite3.SQLITE_NOTADB:
            return errors.NotAnExperienceDatabase(
                f"{path} is not an SQLite database: choose another path"
            )
        case sqlite3.SQLITE_CORRUPT:
            return errors.DatabaseDamaged(damaged)
        case sqlite3.SQLITE_FULL:
            return errors.StorageFull(
                f"no space left for {path}: free some and go on, nothing acknowledged is lost"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return errors.DatabaseReadOnly(
                f"{path} cannot be written ({error}): check its permissions and its folder's"
            )
        case sqlite3.SQLITE_CANTOPEN if os.path.exists(path) and not os.access(path, os.R_OK):
            return errors.AccessDenied(
                f"{path} may not be read by this user: check its permissions"
            )
        case sqlite3.SQLITE_CANTOPEN if os.path.exists(os.path.dirname(path)) and not os.access(
            os.path.dirname(path), os.W_OK
        ):
            return errors.DatabaseReadOnly(
                f"{path} lies where this user can write nothing: open it with read_only=True; to "
                "read it beside others SQLite must write "
                "its log's index, so give the folder's permission, or have somebody keep the file "
                "open"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return errors.DatabaseMissing(
                f"{path} cannot be opened: check that its folder exists and may be read"
            )
        case sqlite3.SQLITE_INTERRUPT:
            return error
    return error


# -- queries ---------------------------------------------------------------------------------------


def among(
    column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Return `column IN (values)` for any number of integers or texts, as one bound parameter."""
    listed = sa.func.json_each(json.dumps(values)).table_valued("value")
    return column.in_(sa.select(listed.c.value))


def like(column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
    r"""Return a case-sensitive LIKE with `%`, `_` and `\` as GLOB.

    SQLite's own LIKE folds ASCII case.
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

    The key is `[A-Za-z0-9_]+` and so can be a literal.

    A literal, not a parameter: an index on the expression serves only the very same expression.
    """
    return sa.func.json_extract(column, sa.literal_column(f"""'$."{key}"'"""))


Tag = tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]


def _tag_is(column: sa.ColumnElement[Any], key: str, *kinds: str) -> sa.ColumnElement[bool]:
    return sa.func.json_type(column, sa.literal_column(f"""'$."{key}"'""")).in_(
        [sa.literal_column(f"'{k}'") for k in kinds]
    )


def tag_text(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with texts, and what holds where it is one."""
    return tag_value(column, key), _tag_is(column, key, "text")


def tag_number(column: sa.ColumnElement[Any], key: str) -> Tag:
    """Return the value of a key to compare with numbers, and what holds where it is one."""
    return tag_value(column, key), _tag_is(column, key, "integer", "real")


def bound(value: Any) -> sa.ColumnElement[Any]:
    """Return a parameter of the value's own type.

    Bound as an integer column's, 0.5 would be cut to fit.
    """
    kind: Any = (
        sa.Text()
        if isinstance(value, str)
        else sa.Integer()
        if isinstance(value, int)
        else sa.REAL()
    )
    return sa.literal(value, kind)


def bound_number(value: int | float) -> sa.ColumnElement[Any]:
    """Return a parameter that compares exactly with a number in JSON."""
    return bound(value)


def tag_is_bool(column: sa.ColumnElement[Any], key: str, value: bool) -> sa.ColumnElement[bool]:
    """Return whether the value is JSON's true, or false."""
    found = sa.func.json_type(column, sa.literal_column(f"""'$."{key}"'"""))
    return found == sa.literal_column("'true'" if value else "'false'")


TAG_KEYS = {
    column: f"SELECT DISTINCT j.key FROM {table} t, json_each(t.{column}) j WHERE t.buffer_id = ? "
    f"AND t.{column} IS NOT NULL"
    for column, table in (("tags", "steps"), ("episode_tags", "episodes"))
}


def has_index(session: Any, label: str) -> bool:
    """Return whether there is an index of this name.

    SQLAlchemy cannot reflect those of expressions.
    """
    return bool(session.ask("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", label))


def estimate(session: Any, table: str, index: str) -> None:
    """Tell the planner of a new index what the migration told it of the others.

    That it is worth using.
    """
    session.ask("DELETE FROM sqlite_stat1 WHERE tbl = ? AND idx = ?", table, index)
    figures = "1000000 1000000 2000" if table == "steps" else "10000 10000 20"
    session.ask("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", table, index, figures)


HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

VERSION = "SELECT version_num FROM expdb_version"

# -- append ----------------------------------------------------------------------------------------

# The writers' lock on PostgreSQL; here the transaction is one already, and this tells whether the
# buffer is there.
LOCK = "SELECT id FROM buffers WHERE id = ?"
# There are no round trips to save: every write is done statement by statement.
ROUND_TRIP_STEPS: int | None = None
STEPS_AT_ONCE = 32  # multi-row VALUES cost two thirds of executemany; more than 32 gain nothing
INSERT_STEPS = (
    "INSERT INTO steps (buffer_id, position, episode, step, pre_agent, execute_time, reward, "
    "terminated, truncated, tags) "
    "VALUES "
)


def insert_steps(
    session: Any, buffer_id: int, columns: tuple[Iterable[Any], ...], count: int
) -> None:
    """Insert `count` steps given as the columns position, episode, step, pre_agent, execute_time.

    Reward, ..., tags.
    """
    row = f"({int(buffer_id)}, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    rows = list(zip(*columns, strict=True))
    whole = count - count % STEPS_AT_ONCE
    if whole:
        statement = INSERT_STEPS + ", ".join([row] * STEPS_AT_ONCE)
        for start in range(0, whole, STEPS_AT_ONCE):
            session.ask(
                statement,
                *[value for values in rows[start : start + STEPS_AT_ONCE] for value in values],
            )
    if count - whole:
        session.many(INSERT_STEPS + row, rows[whole:])


def insert_rows(session: Any, table: sa.Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert whole rows of a table, values in the order of its columns."""
    names = [column.name for column in table.columns]
    session.many(
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        rows,
    )


def as_block(priorities: np.ndarray) -> bytes:
    """Return a block of priorities as the database keeps it.

    Big-endian, so that its hexadecimal digits read as numbers.
    """
    return priorities.astype(">f8").tobytes()


def from_block(data: bytes) -> np.ndarray:
    """Return the priorities of a block, float64; NaN where a step has none."""
    return np.frombuffer(data, ">f8").astype(np.float64)


# One of the integers of a list, which is one parameter (see as_list): `WHERE id {AMONG}`.
AMONG = "IN (SELECT value FROM json_each(?))"

# -- reading ---------------------------------------------------------------------------------------

# The segment of a position is the first that ends at or after it. CROSS JOIN is SQLite's way to say
# which table comes first: it takes the list for the larger one, and would walk all segments. The
# buffer is a column of the list because numbered parameters in a sequence are deprecated by Python
# 3.12.0 to 3.12.3.
LOCATE = """
SELECT g.last, g.first, g.episode, g.ordinal, g.chunk, g.chunk_row
FROM (SELECT ? AS id, value FROM json_each(?)) j
CROSS JOIN segments g ON g.buffer_id = j.id AND g.last = (
    SELECT last FROM segments WHERE buffer_id = j.id AND last >= j.value ORDER BY last LIMIT 1)
"""
READ_AT: str | None = None  # in one statement, which saves nothing here: see read.locate_and_read
# Tasks of the episodes with these ids, each told by its first episode only.
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
    """Return integers as the one parameter that a statement reads with `json_each`."""
    return json.dumps(values.tolist())


# -- ad-hoc SQL ------------------------------------------------------------------------------------

_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def guard(connection: Any) -> None:
    """Make a connection unable to write, attach or create anything, whatever SQL it is given."""
    connection.execute("PRAGMA query_only=ON").fetchall()
    if hasattr(connection, "setlimit"):
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if (
            action == sqlite3.SQLITE_FUNCTION
            and second
            and second.lower() in ("load_extension", "fts3_tokenizer")
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)


_QUOTED = re.compile(
    r"""'(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ | \[[^\]]*\] | `[^`]*` | "(?P<name>[^"\]]*)\"""",
    re.DOTALL | re.VERBOSE,
)


def _with_names(query: str) -> str:
    """Return a query with names in brackets for those in double quotes.

    Which SQLite takes for text where none is known.
    """
    return _QUOTED.sub(
        lambda found: found[0] if found["name"] is None else f"[{found['name']}]", query
    )


def run_sql(
    session: Any, query: str, params: dict[str, Any], field: Any
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one reading statement; return the names of its columns and its rows."""
    driver, failed = session.driver, cast("BaseException | None", None)

    def value_or_error(payload: Any, name: Any) -> Any:
        nonlocal failed
        try:
            return field.value(payload, name)
        except BaseException as error:  # an interrupt too
            failed = error  # the driver tells only that a function has failed
            raise

    driver.create_function("field", 2, value_or_error, deterministic=True)
    try:
        query.encode()
        query = _with_names(query)
        if "field" in query.lower():
            sqlite_arithmetic.check(driver, query, params, field.not_numbers())
        cursor = driver.execute(query, params)
        if cursor.description is None:
            raise errors.SqlRefused(
                "db.sql runs one SELECT (or WITH ... SELECT): this statement returns no rows"
            )
        return [column[0] for column in cursor.description], cursor.fetchall()
    except UnicodeEncodeError:
        raise errors.SqlError(
            "a lone surrogate in the query or in params: no stored text has one"
        ) from None
    except (driver.DataError, OverflowError) as error:
        raise errors.SqlError(
            f"{_one_line(error)}: a value is too large for the database"
        ) from error
    except (driver.ProgrammingError, driver.Warning) as error:
        if "one statement" in str(error):
            raise errors.SqlRefused(
                "db.sql runs one statement: remove what follows the first semicolon"
            ) from error
        raise errors.SqlError(
            f"{_one_line(error)}: give every :name of the query in params"
        ) from error
    except driver.DatabaseError as error:
        code = cast(int, getattr(error, "sqlite_errorcode", 0)) & 0xFF
        refused = any(text in str(error) for text in ("prohibited", "not authorized"))
        if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or refused:
            raise errors.SqlRefused(
                f"db.sql only reads ({_one_line(error)}): change data with the methods of the "
                "buffer"
            ) from error
        if failed is not None:
            raise failed from None
        if code == sqlite3.SQLITE_ERROR:
            raise errors.SqlError(f"{_one_line(error)}: {views_for_people()}") from error
        raise


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
