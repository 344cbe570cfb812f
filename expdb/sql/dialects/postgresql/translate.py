"""Translate the server's errors to expdb's."""

import psycopg

from expdb import errors

_Meaning = tuple[type[errors.ExpDBError], str]

OUT_OF_DATE = errors.OutOfDate, "{message}"
BUSY = errors.DatabaseBusy, "{location}: {message}; try again"
DENIED = errors.AccessDenied, "{location}: {message}; check user and password"
MISSING = errors.DatabaseMissing, "{location}: {message}; create it with createdb"
NOT_WHOLE = (
    errors.DatabaseDamaged,
    "{location}: the schema expdb is incomplete ({message}); restore a backup",
)
TOO_LARGE = (
    errors.QueryError,
    "the query is too large ({message}); use in_() for long lists, or pass positions",
)
# By SQLSTATE (postgresql.org/docs, appendix "PostgreSQL Error Codes"): the error class and its
# message.
MEANINGS: dict[str, _Meaning] = {
    "XD001": OUT_OF_DATE,  # raised by the function `append`
    "XD002": (errors.RateLimited, "{message}"),
    "23505": OUT_OF_DATE,  # another episode has this name
    "55P03": (
        errors.DatabaseBusy,
        "{location} is locked by another writer; try again, or open it with a longer timeout",
    ),
    "40001": BUSY,
    "40P01": BUSY,
    "53100": (
        errors.StorageFull,
        "no space is left for {location}; free disk space and try again; no acknowledged write is "
        "lost",
    ),
    "53300": (
        errors.DatabaseBusy,
        "{location} has no free connection ({message}); raise max_connections, or use PgBouncer",
    ),
    "42501": (
        errors.AccessDenied,
        "{location}: {message}; run `expdb grant` as the owner of the schema, or connect as the "
        "owner for upgrades and index()",
    ),
    "42704": (errors.AccessDenied, "{location}: {message}; create the role with CREATE ROLE"),
    "25006": (
        errors.DatabaseReadOnly,
        "{location} cannot be written ({message}); connect to the primary server",
    ),
    "28P01": DENIED,
    "28000": DENIED,
    "3D000": MISSING,
    "42P01": NOT_WHOLE,
    "42883": NOT_WHOLE,
    "42703": NOT_WHOLE,
    "3F000": NOT_WHOLE,
    "22003": (
        errors.InvalidValue,
        "{message}; the rewards of an episode must have a finite sum",
    ),
    "54000": (
        errors.InvalidValue,
        "{message}; shorten group_id, task_id, episode_id or task_name to 2,000 bytes, or store "
        "the text in a field",
    ),
    "54001": TOO_LARGE,
    "54011": TOO_LARGE,
    "54023": TOO_LARGE,
}


def translated(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a driver's error, or the error itself if there is none."""
    if not isinstance(error, psycopg.Error):
        return error
    state, message = error.sqlstate or "", first_line(error)
    kind: type[errors.ExpDBError]
    if state in MEANINGS:
        kind, text = MEANINGS[state]
    elif "number of parameters" in message:
        kind, text = TOO_LARGE
    elif (
        state[:2] in ("08", "57")
        or (isinstance(error, psycopg.OperationalError) and not state)
        or state == "25P03"
    ):
        kind, text = (
            errors.ConnectionLost,
            (
                "{location}: {message}; nothing of this call was stored, try again when the server "
                "is reachable"
            ),
        )
    elif state[:2] == "XX":
        kind, text = errors.DatabaseDamaged, "{location}: {message}; restore a backup"
    else:
        return error
    return kind(text.format(location=location, message=message))


def connect_error(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a connection that could not be opened.

    In this case, the driver reports no error code, only the server's message.
    """
    if not isinstance(error, psycopg.Error):
        return error
    message = first_line(error)
    if (
        "password" in message
        or "no pg_hba.conf entry" in message
        or "authentication" in message
        or ('role "' in message and "exist" in message)
    ):
        return errors.AccessDenied(
            f"{location}: {message}; check user and password in the URL, or PGPASSWORD"
        )
    if 'database "' in message and "does not exist" in message:
        return errors.DatabaseMissing(f"{location}: {message}; create it with createdb")
    if "too many" in message or "remaining connection slots" in message:
        return errors.DatabaseBusy(
            f"{location}: {message}; raise max_connections, or put PgBouncer in front of the server"
        )
    if "permission denied" in message:
        return errors.AccessDenied(
            f"{location}: {message}; run GRANT CONNECT on the database for this user"
        )
    return errors.ConnectionLost(
        f"{location} cannot be reached ({message}); check host and port, and that the server runs"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of a server's or driver's message, without its prefix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0] if lines else type(error).__name__
    return message.split("FATAL:")[-1].strip() if "FATAL:" in message else message
