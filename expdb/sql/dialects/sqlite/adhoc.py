"""A user's own SQL, which only reads."""

import re
import sqlite3
from typing import Any, cast

from expdb import errors
from expdb.names import views_for_people
from expdb.sql.dialects.sqlite import arithmetic as sqlite_arithmetic

_QUOTED = re.compile(
    r"""'(?:[^']|'')*' | --[^\n]* | /\*.*?\*/ | \[[^\]]*\] | `[^`]*` | "(?P<name>[^"\]]*)\"""",
    re.DOTALL | re.VERBOSE,
)


def _with_names(query: str) -> str:
    """Return a query with names in brackets for those in double quotes.

    SQLite takes these for text where no such name is known.
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
