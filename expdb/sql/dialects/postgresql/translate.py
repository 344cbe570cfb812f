"""What the server's errors mean to a user."""

import psycopg

from expdb import errors


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
