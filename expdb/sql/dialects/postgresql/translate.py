"""Translate the server's errors to expdb's."""

import psycopg

from expdb import errors

_Meaning = tuple[type[errors.ExpDBError], str]

OUT_OF_DATE = errors.OutOfDate, "{said}"
BUSY = errors.DatabaseBusy, "{location}: {said}: try again"
DENIED = errors.AccessDenied, "{location}: {said}: check user and password"
MISSING = errors.DatabaseMissing, "{location}: {said}: make it with createdb"
NOT_WHOLE = (
    errors.DatabaseDamaged,
    "{location}: {said}: the schema expdb is not whole, restore a backup",
)
TOO_LARGE = (
    errors.QueryError,
    "the query is too large ({said}): use in_ for long lists, or pass positions",
)
# By SQLSTATE (postgresql.org/docs, appendix "PostgreSQL Error Codes"): the error class and its
# message.
MEANINGS: dict[str, _Meaning] = {
    "XD001": OUT_OF_DATE,  # raised by the function `append`
    "XD002": (errors.RateLimited, "{said}"),
    "23505": OUT_OF_DATE,  # another episode has taken the name
    "55P03": (
        errors.DatabaseBusy,
        "{location} is held by another writer: try again, or open it with a longer timeout",
    ),
    "40001": BUSY,
    "40P01": BUSY,
    "53100": (
        errors.StorageFull,
        "no space left for {location}: free some and go on, nothing acknowledged is lost",
    ),
    "53300": (
        errors.DatabaseBusy,
        "{location} has no connection left ({said}): raise max_connections, or use PgBouncer",
    ),
    "42501": (
        errors.AccessDenied,
        "{location}: {said}; run `expdb grant` as the owner of the schema, or connect as the owner "
        "for upgrades and index()",
    ),
    "42704": (errors.AccessDenied, "{location}: {said}; make the role with CREATE ROLE"),
    "25006": (
        errors.DatabaseReadOnly,
        "{location} cannot be written ({said}): connect to the primary server",
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
        "{said}: the rewards of an episode must have a sum that is finite",
    ),
    "54001": TOO_LARGE,
    "54011": TOO_LARGE,
    "54023": TOO_LARGE,
}


def translated(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a driver's error, or the error itself if there is none."""
    if not isinstance(error, psycopg.Error):
        return error
    state, said = error.sqlstate or "", first_line(error)
    kind: type[errors.ExpDBError]
    if state in MEANINGS:
        kind, text = MEANINGS[state]
    elif "number of parameters" in said:
        kind, text = TOO_LARGE
    elif (
        state[:2] in ("08", "57")
        or (isinstance(error, psycopg.OperationalError) and not state)
        or state == "25P03"
    ):
        kind, text = (
            errors.ConnectionLost,
            (
                "{location}: {said}: nothing of this call was stored, try again when the server is "
                "there"
            ),
        )
    elif state[:2] == "XX":
        kind, text = errors.DatabaseDamaged, "{location}: {said}: restore a backup"
    else:
        return error
    return kind(text.format(location=location, said=said))


def connect_error(error: BaseException, location: str) -> BaseException:
    """Return the expdb error for a connection that could not be opened.

    In this case the driver reports no code, only the server's message.
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
    """Return the first line of a server's or driver's message, without its prefix."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return said.split("FATAL:")[-1].strip() if "FATAL:" in said else said
