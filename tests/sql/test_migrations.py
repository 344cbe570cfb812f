"""Tests of migrations: the resulting schema, upgrades, kills and concurrent processes."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from contents import steps_of

import expdb
from expdb import errors
from expdb.sql import opening, schema, tables


@pytest.fixture(params=["sqlite", "postgresql"])
def path(request, tmp_path):
    """Yield the location of a database without a schema."""
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    server = request.getfixturevalue("postgresql")
    name = server.database()
    yield server.url(name)
    server.drop(name)


def is_server(path):
    return path.startswith("postgresql:")


def execute(path, statement):
    """Run a statement without expdb."""
    engine = sa.create_engine(
        opening.location_of(path) if is_server(path) else sa.URL.create("sqlite", database=path)
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def migrate(path, revision, down=False):
    location = opening.location_of(path)
    kind = opening._server_engine if is_server(path) else opening.SqliteEngine
    engine = kind(location, read_only=False, durability="normal", timeout=30.0)
    try:
        with engine.writing() as session:
            schema.run_migrations(session, revision, down=down)
    finally:
        engine.close()


def schema_names(path):
    if is_server(path):
        engine = sa.create_engine(opening.location_of(path))
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('expdb') AND "
                "relkind IN ('r', 'v', 'i') UNION ALL "
                "SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('expdb') UNION "
                "ALL "
                "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
            ).fetchall()
        engine.dispose()
        return {name for (name,) in rows} - {"expdb_version_pkc"}
    with sqlite3.connect(path) as connection:
        rows = {
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
            )
        }
    connection.close()
    return rows


def fill(path, steps=30, capacity=10):
    with expdb.open(path) as db:
        buffer = db.buffer("b", capacity=capacity)
        for k in range(steps):
            buffer.store(task_id=f"t{k}", value=k, reward=1.0)
        return db.check(), len(buffer), [row["value"] for row in steps_of(buffer)]


def test_the_tables_in_the_code_match_the_migrations(path):
    expdb.open(path).close()
    url = opening.location_of(path) if is_server(path) else sa.URL.create("sqlite", database=path)
    engine = sa.create_engine(
        url, connect_args={"options": "-c search_path=expdb"} if is_server(path) else {}
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": "expdb_version", "compare_type": True}
        )
        differences = [
            difference
            for difference in compare_metadata(context, tables.metadata)
            if "comment" not in str(difference[0])
        ]
        assert differences == []  # comments are for readers of the code and are not compared
    engine.dispose()


def test_triggers_still_evict_after_a_downgrade_and_an_upgrade(path):
    expdb.open(path).close()
    first = schema_names(path)
    assert fill(path) == ([], 10, list(range(20, 30)))
    migrate(path, "base", down=True)
    assert schema_names(path) <= {"expdb_version"}
    migrate(path, "head")
    assert schema_names(path) == first
    assert fill(path) == ([], 10, list(range(20, 30)))


def test_an_older_schema_is_refused_until_it_is_upgraded(path):
    expdb.open(path).close()
    migrate(path, "base", down=True)
    with pytest.raises(errors.SchemaOutdated, match="expdb upgrade"):
        expdb.open(path)
    assert expdb.upgrade(path) == (None, schema.list_revisions()[-1])
    assert fill(path)[1] == 10


def test_opening_detects_a_missing_trigger(path):
    fill(path)
    execute(path, f"DROP TRIGGER buffers_capacity{' ON expdb.buffers' * is_server(path)}")
    with pytest.raises(errors.DatabaseDamaged, match="buffers_capacity"):
        expdb.open(path)


def open_and_store(path, barrier, results):
    barrier.wait()
    with expdb.open(path) as db:
        results.put(db.buffer("b").store(value=os.getpid()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_many_processes_can_create_a_database_at_once(path, method):
    context = multiprocessing.get_context(method)
    barrier, results = context.Barrier(6), context.Queue()
    processes = [
        context.Process(target=open_and_store, args=(path, barrier, results)) for _ in range(6)
    ]
    for process in processes:
        process.start()
    numbers = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert numbers == [0, 1, 2, 3, 4, 5]
    if not is_server(path):
        assert [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".new")] == []
    with expdb.open(path) as db:
        assert db.check() == []


def upgrade(path, barrier, results):
    barrier.wait()
    results.put(expdb.upgrade(path))


def test_only_one_of_several_concurrent_upgrades_migrates(path):
    expdb.open(path).close()
    migrate(path, "base", down=True)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=upgrade, args=(path, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    revisions = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    head = schema.list_revisions()[-1]
    assert sorted(revisions, key=str) == [*[(head, head)] * 3, (None, head)]
    assert fill(path)[1] == 10


def test_the_alembic_command_works_in_the_checkout(path):
    root = str(schema.migrations_dir().parent)
    url = (
        opening.location_of(path).render_as_string(hide_password=False)
        if is_server(path)
        else f"sqlite:///{path}"
    )
    command = [sys.executable, "-m", "alembic", "-x", f"url={url}"]
    subprocess.run([*command, "upgrade", "head"], cwd=root, check=True, capture_output=True)
    assert {"steps", "experience", "buffers_capacity"} <= schema_names(path)
