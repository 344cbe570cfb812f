"""Migrations that are killed before each statement, or run in eight processes at once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

import expdb
from expdb.sql import opening, schema
from expdb.sql.engine import Engine
from torture.kills import FORK
from torture.oracle import BUFFER, step, verify
from torture.table import Outcome, Place, fault


def engine_of(location: str) -> Engine:
    """Open a database without the check of its revision."""
    where = opening.location_of(location)
    assert where is not None
    if isinstance(where, str):
        return opening.SqliteEngine(where, read_only=False, durability="full", timeout=60.0)
    return opening._server_engine(where, read_only=False, durability="full", timeout=60.0)


def downgrade(location: str) -> None:
    """Downgrade a database to no schema."""
    engine = engine_of(location)
    try:
        with engine.writing() as session:
            schema.run_migrations(session, "base", down=True)
    finally:
        engine.close()


def upgrade_and_be_killed(location: str, after: int) -> None:
    """Migrate, and kill this process before statement number `after`."""
    left = itertools.count()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(left) == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    op.execute, op.create_table, op.create_index = map(
        counted, (op.execute, op.create_table, op.create_index)
    )
    setattr(sa.Connection, "exec_driver_sql", counted(sa.Connection.exec_driver_sql))  # noqa: B010
    expdb.upgrade(location)


def read_schema(location: str) -> tuple[str | None, list[str]]:
    """Return the revision of a database, and how its schema differs from the newest."""
    engine = engine_of(location)
    try:
        with engine.reading() as session:
            return schema.read_revision(session, engine.dialect), engine.dialect.schema_problems(
                session
            )
    finally:
        engine.close()


def verify_migrated(location: str, first: int) -> list[str]:
    """Write steps to a migrated database, verify it, and return the problems."""
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        return verify(db, {buffer.store(**step(first, k)): (first, k) for k in range(5)})


def kill_migrations(kind: str, place: Place, rounds: int) -> Outcome:
    """Kill a migration before every third statement; three rounds cover every statement.

    The database must have the old or the new schema, and the next attempt must succeed.
    """
    location, violations, kills, without = (
        place.location(kind, "migrations"),
        list[str](),
        0,
        list[str](),
    )
    head = schema.list_revisions()[-1]
    for number in range(rounds):
        expdb.open(location).close()
        for after in itertools.count((place.seed + number) % 3, 3):
            downgrade(location)
            without = without or read_schema(location)[1]
            process = FORK.Process(target=upgrade_and_be_killed, args=(location, after))
            process.start()
            process.join()
            revision, problems = read_schema(location)
            whole = revision == head and not problems
            if not (whole or (revision is None and problems == without)):
                violations.append(
                    f"killed before statement {after}: revision {revision}, {problems}"
                )
            if process.exitcode == 0:
                break
            kills += 1
            expdb.upgrade(location)
            violations += verify_migrated(location, kills)
    return Outcome(kills, violations)


def upgrade_at_once(location: str, barrier: Any) -> None:
    barrier.wait()
    expdb.upgrade(location)


def migrate_at_once(kind: str, place: Place, rounds: int) -> Outcome:
    """Let eight processes migrate one database at the same moment."""
    location, violations = place.location(kind, "at_once"), list[str]()
    for number in range(rounds):
        expdb.open(location).close()
        downgrade(location)
        barrier = multiprocessing.get_context("fork").Barrier(8)
        processes = [
            FORK.Process(target=upgrade_at_once, args=(location, barrier)) for _ in range(8)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        violations += [
            f"a process that migrated left with {process.exitcode}"
            for process in processes
            if process.exitcode
        ]
        violations += verify_migrated(location, number)
    return Outcome(rounds, violations)


for _kind in ("SQLite", "PostgreSQL"):
    for _function, _name in (
        (kill_migrations, "kill -9 before each statement of a migration"),
        (migrate_at_once, "8 processes migrating at once"),
    ):
        _strike: Any = partial(_function, _kind)
        _strike.__name__ = f"{_function.__name__}_{_kind.lower()}"
        fault(
            f"{_name}, {_kind}",
            "old or new schema, never between",
            1 if _function is kill_migrations else 3,
            20,
        )(_strike)
