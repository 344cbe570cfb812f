"""What the server is, and who is at it."""

import time
from typing import Any


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
        ("a round trip", f"{trip * 1000:.2f} ms", ""),
    ]
