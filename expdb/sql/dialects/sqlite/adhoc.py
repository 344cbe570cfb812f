"""Run SQL of users, read-only."""

import re
import sqlite3
import threading
import time
from typing import Any, cast

from expdb import errors
from expdb.sql.dialects.base import QueryFailed, fetch_limited

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
