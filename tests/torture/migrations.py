"""Migrations that are killed before each statement, or run in eight processes at once."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any

import sqlalchemy as sa
from alembic import op

import expdb
from expdb.sql import opening, schema
from expdb.sql.engine import Engine
from torture.kills import FORK, Crew
from torture.oracle import BUFFER, step, verify
from torture.table import DATABASES, Outcome, Place, fault

OLD_OR_NEW = "old or new schema, never between"


def engine_of(location: str) -> Engine:
    """Open a database without the check of its revision."""
    where = opening.location_of(location)
    assert where is not None
    if isinstance(where, str):
        return opening.SqliteEngine(where, read_only=False, durability="full", timeout=60.0)
    return opening._server_engine(where, read_only=False, durability="full", timeout=60.0)


def downgrade(location: str) -> None:
    """Downgrade a database to no schema."""
    with closing(engine_of(location)) as engine, engine.writing() as session:
        schema.run_migrations(session, "base", down=True)


def upgrade_and_be_killed(
    location: str, after: int, act: Callable[[str], object] = expdb.upgrade
) -> None:
    """Migrate with `act`, and kill this process before statement number `after`."""
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
    act(location)


def read_schema(location: str) -> tuple[str | None, list[str]]:
    """Return the revision of a database, and how its schema differs from the newest."""
    with closing(engine_of(location)) as engine, engine.reading() as session:
        revision = schema.read_revision(session, engine.dialect)
        return revision, engine.dialect.schema_problems(session)


def verify_migrated(location: str, first: int) -> list[str]:
    """Write steps to a migrated database, verify it, and return the problems."""
    with expdb.open(location) as db:
        buffer = db.buffer(BUFFER)
        return verify(db, {buffer.store(**step(first, k)): (first, k) for k in range(5)})


@fault(
    "kill -9 before each statement of a migration, {database}", OLD_OR_NEW, 1, 20,
    database=DATABASES,
)  # fmt: skip
def kill_migrations(kind: str, place: Place, rounds: int) -> Outcome:
    """Kill a migration before every third statement; three rounds cover every statement.

    The database must have the old or the new schema, and the next attempt must succeed.
    """
    violations, without, kills = list[str](), list[str](), 0
    location, head = place.location(kind, "migrations"), schema.list_revisions()[-1]
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
                found = f"revision {revision}, {problems}"
                violations.append(f"killed before statement {after}: {found}")
            if process.exitcode == 0:
                break
            kills += 1
            expdb.upgrade(location)
            violations += verify_migrated(location, kills)
    return Outcome(kills, violations)


def upgrade_at_once(location: str, barrier: Any) -> None:
    barrier.wait()
    expdb.upgrade(location)


@fault("8 processes migrating at once, {database}", OLD_OR_NEW, 3, 20, database=DATABASES)
def migrate_at_once(kind: str, place: Place, rounds: int) -> Outcome:
    """Let eight processes migrate one database at the same moment."""
    location, barrier = place.location(kind, "at_once"), FORK.Barrier(8)
    violations: list[str] = []
    for number in range(rounds):
        expdb.open(location).close()
        downgrade(location)
        crew = Crew(8, lambda _: (upgrade_at_once, location, barrier))
        for process in crew.processes:
            process.join()
        codes = [process.exitcode for process in crew.processes]
        violations += [f"the processes that migrated left with {codes}"] * any(codes)
        violations += verify_migrated(location, number)
    return Outcome(rounds, violations)
