"""Fixtures for tests on SQLite and on PostgreSQL.

By default, a test runs on SQLite, and a test with the mark `both_databases` also on PostgreSQL. Set
`EXPDB_TEST_DATABASES` to `sqlite`, `postgresql` or `both` to run every test that uses `location` on
these databases. A database that a test opens with `open_db`, `db` or `buffer` is checked at the end
of the test. `scratch` is a buffer of a database that the tests of a module share.
"""

import contextlib
import gc
import itertools
import logging
import os
import random
import shutil
import signal
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from cases import examples
from postgres_server import Server
from proxy import Proxy

import expdb
from expdb import errors
from expdb.sql import schema
from expdb.sql.dialects.sqlite.engine import SqliteSession
from expdb.sql.session import Session

hypothesis.settings.register_profile(
    "expdb", deadline=None, max_examples=int(os.environ.get("EXPDB_EXAMPLES", examples(20)))
)
hypothesis.settings.load_profile("expdb")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Start the PostgreSQL server that the workers of a run share.

    Each makes databases of its own there.
    """
    is_controller = bool(config.getoption("numprocesses", None)) and not hasattr(
        config, "workerinput"
    )
    if (
        is_controller
        and not os.environ.get("EXPDB_TEST_POSTGRESQL")
        and not config.option.collectonly
    ):
        server = Server()
        config.add_cleanup(server.remove)
        os.environ["EXPDB_TEST_SERVER"] = str(server.folder)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed what a test draws without a seed by the test's name: no test fails by chance.

    Each generator draws something else, and those of forked processes differ in each run.
    """
    base, own = zlib.crc32(request.node.nodeid.encode()), os.getpid()
    random.seed(base)
    np.random.seed(base)
    original, numbers = np.random.default_rng, itertools.count()

    def default_rng(seed: Any = None) -> np.random.Generator:  # NumPy's name: callers pass seed=
        is_unseeded = seed is None and os.getpid() == own
        return original((base, next(numbers)) if is_unseeded else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    """Collect garbage before the test, not in it.

    A collection at the recursion limit calls finalizers, which raise RecursionError.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class _Records(logging.Handler):
    """Collects the messages of unexpected exceptions, which expdb logs instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def logged_errors() -> Iterator[list[logging.LogRecord]]:
    """Let a test fail if a report of activity raised an exception that the test did not clear."""
    handler, reports = _Records(), logging.getLogger("expdb.storage.upkeep.reporting")
    reports.addHandler(handler)
    yield handler.records
    reports.removeHandler(handler)
    assert [record.exc_info for record in handler.records] == []


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server; see postgres_server.py for its programs."""
    server = Server()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def unused_databases() -> list[str]:
    """Names of databases with an empty schema. Emptying one is faster than creating one."""
    return []


@pytest.fixture
def proxy(postgresql: Server) -> Iterator[Proxy]:
    """A proxy of the server that loses responses and cuts connections."""
    with Proxy(f"{postgresql.folder}/.s.PGSQL.5432") as running:
        yield running


@pytest.fixture
def postgresql_url(postgresql: Server, unused_databases: list[str]) -> Iterator[str]:
    """The URL of a PostgreSQL database with an empty schema."""
    if unused_databases:
        name = unused_databases.pop()
    else:
        name = postgresql.database()
        expdb.open(postgresql.url(name)).close()
    yield postgresql.url(name)
    postgresql.empty(name)
    unused_databases.append(name)


def databases_of(metafunc: pytest.Metafunc) -> list[str]:
    """Return the databases that a test runs on."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    is_both = "both_databases" in marks and "one_database" not in marks
    chosen = os.environ.get("EXPDB_TEST_DATABASES", "both" if is_both else "sqlite")
    return {"both": ["sqlite", "postgresql"]}.get(chosen, [chosen])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses `location` on the databases that are chosen for it."""
    if "location" in metafunc.fixturenames:
        metafunc.parametrize("location", databases_of(metafunc), indirect=True)


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Location of a database that is empty or does not exist yet."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgresql_url")
        return url
    assert request.param == "sqlite", f"EXPDB_TEST_DATABASES is {request.param!r}"
    return str(tmp_path / "we?ird%20 name.db")


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an empty schema. Copying it takes a tenth of the time of a migration."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    expdb.open(path).close()
    return path


@pytest.fixture(scope="session", autouse=True)
def fast_migrations(empty_file: Path) -> Iterator[None]:
    """Create the schema of new files from a dump of `empty_file` instead of migrations.

    The dump takes a tenth of the time. Subprocesses still run the migrations.
    """
    with contextlib.closing(sqlite3.connect(empty_file)) as connection:
        lines = list(connection.iterdump())
        script = [line for line in lines if not line.startswith(("BEGIN", "COMMIT"))]
    original = schema.run_migrations

    def run_migrations(session: Session, revision: str = "head", *, down: bool = False) -> None:
        is_new = (revision, down) == ("head", False) and isinstance(session, SqliteSession)
        if not is_new or session.query("SELECT 1 FROM sqlite_schema LIMIT 1"):
            return original(session, revision, down=down)
        for statement in script:
            session.driver.execute(statement)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "run_migrations", run_migrations)
        yield


@pytest.fixture
def open_db(location: str, empty_file: Path) -> Iterator[Callable[..., expdb.ExperienceDB]]:
    """Open the database of the test, any number of times, and check it after the test."""
    opened: list[expdb.ExperienceDB] = []

    def opener(**options: Any) -> expdb.ExperienceDB:
        if "://" not in location and not os.path.exists(location):
            shutil.copyfile(empty_file, location)
        opened.append(expdb.open(location, **options))
        return opened[-1]

    yield opener
    for handle in opened[:-1]:
        handle.close()
    try:
        problems = opened[-1].check()
    except (IndexError, errors.DatabaseClosed):
        problems = opener().check()
    for handle in opened:
        handle.close()
    assert problems == []


@pytest.fixture
def db(open_db: Callable[..., expdb.ExperienceDB]) -> expdb.ExperienceDB:
    return open_db()


@pytest.fixture
def buffer(db: expdb.ExperienceDB) -> expdb.ReplayBuffer:
    return db.buffer("train")


@pytest.fixture(scope="module")
def module_db(
    tmp_path_factory: pytest.TempPathFactory, empty_file: Path
) -> Iterator[expdb.ExperienceDB]:
    """An SQLite database that the tests of a module share."""
    path = tmp_path_factory.mktemp("module") / "runs.db"
    shutil.copyfile(empty_file, path)
    with expdb.open(path) as db:
        yield db
        assert db.check() == []


_numbers = itertools.count()


@pytest.fixture
def new_buffer(module_db: expdb.ExperienceDB) -> Callable[..., expdb.ReplayBuffer]:
    """Create an empty buffer of `module_db`."""
    return lambda **options: module_db.buffer(f"scratch {next(_numbers)}", **options)


@pytest.fixture
def scratch(new_buffer: Callable[..., expdb.ReplayBuffer]) -> expdb.ReplayBuffer:
    """An empty buffer of `module_db`, for tests whose subject is not the database."""
    return new_buffer()
