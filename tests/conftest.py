"""One contract suite for every database.

Tests take `open_db`, `db` or `buffer`, and end in a proof that all is sound.
"""

import itertools
import logging
import os
import random
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from postgres_server import Server

import expdb

hypothesis.settings.register_profile(
    "expdb", deadline=None, max_examples=int(os.environ.get("EXPDB_EXAMPLES", "40"))
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
    """A PostgreSQL server; see postgres_server.py for where it comes from."""
    server = Server()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def prepared(postgresql: Server) -> dict[str, str]:
    """Hold the name of a database with an empty schema, if there is one.

    To empty it is faster than to make another.
    """
    return {}


@pytest.fixture
def postgresql_url(postgresql: Server, prepared: dict[str, str]) -> Iterator[str]:
    """The URL of a database with an empty schema."""
    name = prepared.pop("name", None)
    if name is None:
        name = postgresql.database()
        expdb.open(postgresql.url(name)).close()
    yield postgresql.url(name)
    postgresql.empty(name)
    prepared["name"] = name


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a fresh database is or may be made; one parameter a database."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgresql_url")
        return url
    return str(tmp_path / "we?ird%20 name.db")


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an empty schema: to copy it is ten times as fast as to migrate another."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    expdb.open(path).close()
    return path


@pytest.fixture
def open_db(location: str, empty_file: Path) -> Iterator[Callable[..., expdb.ExperienceDB]]:
    """Open the test's database, any number of times; whatever was written is checked at the end."""
    opened: list[expdb.ExperienceDB] = []

    def opener(**options: Any) -> expdb.ExperienceDB:
        if "://" not in location and not os.path.exists(location):
            shutil.copyfile(empty_file, location)
        opened.append(expdb.open(location, **options))
        return opened[-1]

    yield opener
    for handle in opened:
        handle.close()
    with expdb.open(location) as db:
        assert db.check() == []


@pytest.fixture
def db(open_db: Callable[..., expdb.ExperienceDB]) -> expdb.ExperienceDB:
    return open_db()


@pytest.fixture
def buffer(db: expdb.ExperienceDB) -> expdb.ReplayBuffer:
    return db.buffer("train")
