"""Findings about a server for `expdb doctor`: settings, connections, tables."""

import time

from expdb.sql.dialects.base import Finding, finding
from expdb.sql.session import Session


def examined(session: Session) -> list[Finding]:
    """Return findings about a server, each with its value and the solution to a problem."""
    start = time.monotonic()
    session.query("SELECT 1")
    trip = time.monotonic() - start
    names = ("server_version", "fsync", "synchronous_commit", "max_connections", "server_encoding")
    settings = dict(
        session.query("SELECT name, setting FROM pg_settings WHERE name = ANY(?)", list(names))
    )
    return [
        *_server(session, settings),
        *_users(session, int(settings["max_connections"])),
        _tables(session),
        finding("encoding", settings["server_encoding"]),
        finding(
            "a round trip",
            f"{trip * 1000:.2f} ms",
            trip > 0.02,
            "takes more than 20 ms; write more steps per call with store_batch() or a writer",
        ),
    ]


def _server(session: Session, settings: dict[str, str]) -> list[Finding]:
    ((in_recovery,),) = session.query("SELECT pg_is_in_recovery()")
    return [
        finding("PostgreSQL", settings["server_version"]),
        finding(
            "role",
            "replica" if in_recovery else "primary",
            in_recovery,
            "is a replica, where commits appear late and in another order; open the primary",
        ),
        finding(
            "fsync",
            settings["fsync"],
            settings["fsync"] != "on",
            "is off, so a crash of the machine may lose the whole database; turn it on",
        ),
        finding(
            "synchronous_commit",
            settings["synchronous_commit"],
            settings["synchronous_commit"] == "off",
            "is off, so a crash of the server loses the last 0.6 s of acknowledged writes; turn "
            "it on",
        ),
    ]


def _users(session: Session, most: int) -> list[Finding]:
    ((used, waiting, oldest, who),) = session.query(
        "SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock'), "
        "coalesce(max(extract(epoch FROM now() - xact_start)) FILTER (WHERE pid <> "
        "pg_backend_pid()), 0)::float8, "
        "(array_agg(pid || ' (' || coalesce(application_name, '') || ', ' || coalesce(state, '') "
        "|| ')' ORDER BY xact_start) "
        "FILTER (WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()))[1] "
        "FROM pg_stat_activity WHERE datname = current_database()"
    )
    ((connections,),) = session.query(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    )
    return [
        finding(
            "connections",
            f"{connections} of {most}, {used} of them here",
            connections > 0.9 * most,
            "nearly all are in use; raise max_connections, or put PgBouncer in front of the server",
        ),
        finding(
            "waiting for locks",
            str(waiting),
            waiting > 10,
            "more than 10 transactions wait for locks; write more steps per transaction, or use "
            "several buffers",
        ),
        finding(
            "longest transaction",
            f"{oldest:.1f} s" + (f", process {who}" if who and oldest >= 1 else ""),
            oldest > 600,
            "prevents the removal of dead rows; end it, or set idle_in_transaction_session_timeout",
        ),
    ]


def _tables(session: Session) -> Finding:
    ((dead, live, size),) = session.query(
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint, "
        "coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_stat_user_tables WHERE "
        "schemaname = 'expdb'"
    )
    return finding(
        "tables",
        f"{size:,} bytes, {live:,} rows, {dead:,} dead",
        dead > 4 * live and dead > 1_000_000,
        "mostly dead rows; check that autovacuum is on and not blocked",
    )
