"""Files of every earlier schema upgrade with every value intact.

`kept_files.py` describes their contents.
"""

import contextlib
import json
import shutil
import sqlite3

import numpy as np
import psycopg
import pytest
from behind import dialect_of, reading, writing
from kept_files import DATA, read

import expdb
from expdb import errors
from expdb.chunks.fields import Signature
from expdb.sql import schema

REVISIONS = sorted(path.stem for path in DATA.glob("*.db"))
INDEXES = {
    "steps_by_agent_id",
    "steps_by_tags_judge",
    "episodes_by_agent_id",
    "episodes_by_episode_tags_open",
}


@pytest.fixture(
    params=[
        *(pytest.param(revision_id, marks=pytest.mark.slow) for revision_id in REVISIONS[1:-1]),
        REVISIONS[0],
        REVISIONS[-1],
    ]
)
def revision(request):
    return request.param


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request, revision, tmp_path):
    """Yield the location of a database of an earlier version, and its values."""
    values = json.loads((DATA / f"{revision}.json").read_text())[request.param]
    if request.param == "sqlite":
        shutil.copy(DATA / f"{revision}.db", tmp_path / "kept.db")
        yield str(tmp_path / "kept.db"), values
        return
    server = request.getfixturevalue("postgresql")
    name = server.database()
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute((DATA / f"{revision}.sql").read_text())
    yield server.url(name), values
    server.drop(name)


@pytest.fixture
def new_location(kept, request, tmp_path):
    """Yield the location of a new database, on SQLite or PostgreSQL like the stored one."""
    if not kept[0].startswith("postgresql:"):
        yield str(tmp_path / "new.db")
        return
    server = request.getfixturevalue("postgresql")
    name = server.database()
    yield server.url(name)
    server.drop(name)


def test_every_schema_revision_has_stored_files():
    assert list(schema.list_revisions()) == REVISIONS


def test_an_upgrade_preserves_every_value(kept, revision):
    location, values = kept
    assert expdb.upgrade(location) == (revision, schema.list_revisions()[-1])
    with expdb.open(location, create=False) as db:
        assert db.check() == []
        actual = read(db)
        assert list(actual) == list(values)
        for name, wanted in values.items():
            assert_contains(actual[name], wanted, name)


SCHEMA = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'",
    "postgresql": """
        SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc
         WHERE pronamespace = to_regnamespace('expdb')
        UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(t.oid) FROM pg_trigger t
          JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = to_regnamespace('expdb') AND NOT tgisinternal
        UNION ALL SELECT 'view', relname, pg_get_viewdef(oid) FROM pg_class
         WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'v'
        UNION ALL SELECT 'index', relname, pg_get_indexdef(oid) FROM pg_class
         WHERE relnamespace = to_regnamespace('expdb') AND relkind = 'i'""",
}


def schema_of(location, create):
    with expdb.open(location, create=create) as db, reading(db) as session:
        kind = "postgresql" if location.startswith("postgresql:") else "sqlite"
        statements = {(kind, name): sql for kind, name, sql in session.query(SCHEMA[kind])}
    return {key: sql for key, sql in statements.items() if key[1] not in INDEXES}


def test_upgraded_and_new_databases_have_identical_schemas(kept, new_location):
    """Other versions of expdb compare the schema, so migrations must not change its text."""
    location, _ = kept
    expdb.upgrade(location)
    assert schema_of(location, create=False) == schema_of(new_location, create=True)


def assert_contains(actual, wanted, where):
    """Assert that `actual` has the values of `wanted`; it may have more keys."""
    if isinstance(wanted, dict):
        assert isinstance(actual, dict), where
        for key, value in wanted.items():
            assert_contains(actual.get(key), value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(actual, list), where
        assert len(actual) == len(wanted), where
        for k, value in enumerate(wanted):
            assert_contains(actual[k], value, f"{where}[{k}]")
    elif wanted == "nan" and where.endswith(("priority", "episode_return")):
        assert actual is None, where  # to_list() of schema 0001 returned NaN for unknown values
    else:
        assert (actual, type(actual)) == (wanted, type(wanted)), where


def test_an_upgraded_database_accepts_writes_evicts_and_keeps_indexes(kept):
    location, values = kept
    expdb.upgrade(location)
    with expdb.open(location, create=False) as db:
        buffer = db.buffer("evicted")
        next_position = values["evicted"]["stats"]["added"]
        assert buffer.store(task_id="new", obs=np.zeros(4), action=1) == next_position
        assert len(buffer) == 56
        assert buffer.sample(64, sampler=expdb.Prioritized())["weight"].max() == 1
        agents = db.buffer("agents")
        assert agents.count({"tags.judge": "late"}) == 4
        agents.store(task_id="again", episode_id="never ended", late_field=3.5)
        assert agents.episodes({"episode_id": "never ended"})["length"].to_pylist() == [3]
        assert db.check() == []
        with reading(db) as session:
            find = dialect_of(db).HAS_INDEX
            indexes = {label for label in INDEXES if session.query(find, label)}
    assert indexes == INDEXES - {"steps_by_agent_id"}


def test_upgrading_a_corrupted_signature_raises_and_changes_nothing(tmp_path):
    path = tmp_path / "kept.db"
    shutil.copy(DATA / "0002.db", path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE signatures SET schema = substr(schema, 1, 99) WHERE id = 1")
    before = path.read_bytes()
    with pytest.raises(
        errors.DatabaseDamaged, match=r"signature 1 of buffer \d .* restore a backup"
    ):
        expdb.upgrade(path)
    assert path.read_bytes() == before


def test_an_older_expdb_cannot_store_signatures_after_an_upgrade(kept):
    """An older version does not set the new columns, so its rows would be unreadable."""
    location, _ = kept
    expdb.upgrade(location)
    with expdb.open(location, create=False) as db, writing(db) as session:
        with pytest.raises(Exception, match=r"(?i)not.null"):
            session.query("INSERT INTO signatures (buffer_id, id, schema) VALUES (1, 99, ?)", b"")
        session.driver.execute("ROLLBACK")


def test_signatures_of_earlier_versions_are_reused(kept):
    location, _ = kept
    expdb.upgrade(location)
    with expdb.open(location, create=False) as db, reading(db) as session:
        for id, *stored in session.query("SELECT id, schema, fields, crc FROM signatures"):
            assert Signature.from_stored(id, *stored).stored()[1] == stored[1]
