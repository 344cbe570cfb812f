"""Files of every earlier schema upgrade with every value intact.

`kept_files.py` says what is in them.
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
        *(pytest.param(revision_id, marks=pytest.mark.slow) for revision_id in REVISIONS[1:-2]),
        REVISIONS[0],
        *REVISIONS[-2:],
    ]
)
def revision(request):
    return request.param


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request, revision, tmp_path):
    """A database of an earlier version, and its values."""
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
def open_location(kept, request, tmp_path):
    """Where there is nothing yet, of the kind of the kept database."""
    if not kept[0].startswith("postgresql:"):
        yield str(tmp_path / "new.db")
        return
    server = request.getfixturevalue("postgresql")
    name = server.database()
    yield server.url(name)
    server.drop(name)


def test_every_revision_has_files_of_its_own():
    assert list(schema.list_revisions()) == REVISIONS


def test_every_value_is_there_after_the_upgrade(kept, revision):
    location, values = kept
    assert expdb.upgrade(location) == (revision, schema.list_revisions()[-1])
    with expdb.open(location, create=False) as db:
        assert db.check() == []
        actual = read(db)
        assert list(actual) == list(values)
        for name, wanted in values.items():
            assert_holds(actual[name], wanted, name)


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
        statements = {(kind, name): sql for kind, name, sql in session.ask(SCHEMA[kind])}
    return {key: sql for key, sql in statements.items() if key[1] not in INDEXES}


def test_the_schema_of_an_upgraded_database_is_that_of_a_new_one_to_the_byte(kept, open_location):
    """What a migration made must not change: other versions of expdb compare it."""
    location, _ = kept
    expdb.upgrade(location)
    assert schema_of(location, create=False) == schema_of(open_location, create=True)


def assert_holds(actual, wanted, where):
    """Compare what was there; what later versions have learned to tell may be there as well."""
    if isinstance(wanted, dict):
        assert isinstance(actual, dict), where
        for key, value in wanted.items():
            assert_holds(actual.get(key), value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(actual, list), where
        assert len(actual) == len(wanted), where
        for k, value in enumerate(wanted):
            assert_holds(actual[k], value, f"{where}[{k}]")
    elif wanted == "nan" and where.endswith(("priority", "episode_return")):
        assert actual is None, where  # what is not known was NaN in schema 0001's to_list
    else:
        assert (actual, type(actual)) == (wanted, type(wanted)), where


def test_an_upgraded_database_is_written_to_evicts_and_keeps_its_indexes(kept):
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
            indexes = {label for label in INDEXES if dialect_of(db).has_index(session, label)}
    assert indexes == INDEXES - {"steps_by_agent_id"}


def test_an_upgrade_of_a_damaged_signature_changes_nothing(tmp_path):
    path = tmp_path / "kept.db"
    shutil.copy(DATA / "0002.db", path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE signatures SET schema = substr(schema, 1, 99) WHERE id = 1")
    before = path.read_bytes()
    with pytest.raises(
        expdb.DatabaseDamaged, match=r"signature 1 of buffer \d .* restore a backup"
    ):
        expdb.upgrade(path)
    assert path.read_bytes() == before


def test_an_older_expdb_that_has_the_database_open_stores_no_signature(kept):
    """It does not know the columns; one without them could not be read."""
    location, _ = kept
    expdb.upgrade(location)
    with expdb.open(location, create=False) as db, writing(db) as session:
        with pytest.raises(Exception, match=r"(?i)not.null"):
            session.ask("INSERT INTO signatures (buffer_id, id, schema) VALUES (1, 99, ?)", b"")
        session.driver.execute("ROLLBACK")


def test_signatures_of_earlier_versions_are_used_again(kept):
    location, _ = kept
    expdb.upgrade(location)
    with expdb.open(location, create=False) as db, reading(db) as session:
        for id, *stored in session.ask("SELECT id, schema, fields, crc FROM signatures"):
            assert Signature.from_stored(id, *stored).stored()[1] == stored[1]
