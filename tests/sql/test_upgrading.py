"""Tests of upgrades: verification before the commit, and views, triggers and grants."""

import shutil
import sqlite3
import uuid

import pytest
import sqlalchemy as sa
from kept_files import DATA
from test_migrations import execute, is_server, migrate, path  # noqa: F401  (a fixture)

import expdb
from expdb import errors
from expdb.sql import opening, schema

OLD, NEW = schema.list_revisions()[-2:]


@pytest.fixture
def old(path):  # noqa: F811
    """Return a database with one step and the schema before the newest schema."""
    with expdb.open(path) as db:
        db.buffer("b").store(x=1, reward=2.0)
    migrate(path, OLD, down=True)
    return path


def read_revision(location):
    named = opening.location_of(location)
    kind = opening._server_engine if is_server(location) else opening.SqliteEngine
    engine = kind(named, read_only=False, durability="normal", timeout=30.0)
    try:
        with engine.reading() as session:
            return schema.read_revision(session, engine.dialect)
    finally:
        engine.close()


def in_schema(location, statement):
    execute(location, statement.replace("@", "expdb." if is_server(location) else ""))


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE @leases RENAME COLUMN trainer_step TO other",
        "DROP TABLE @waiters",
        "ALTER TABLE @evictions DROP COLUMN file",
    ],
)
def test_an_upgrade_with_an_unexpected_result_is_rolled_back(old, damage):
    in_schema(old, damage)
    with pytest.raises(errors.DatabaseDamaged):
        expdb.upgrade(old)
    assert read_revision(old) == OLD


def test_an_upgrade_recreates_altered_views(old):
    in_schema(old, "DROP VIEW @experience_episodes")
    in_schema(old, "CREATE VIEW @experience_episodes AS SELECT 1 AS mine")
    assert expdb.upgrade(old) == (OLD, NEW)
    with expdb.open(old) as db:
        assert db.sql("SELECT length FROM experience_episodes")["length"].to_pylist() == [1]
        assert db.check() == []


def test_an_upgrade_recreates_altered_triggers(old):
    if is_server(old):
        in_schema(old, "ALTER TABLE @steps DISABLE TRIGGER steps_revised")
    else:
        in_schema(old, "DROP TRIGGER steps_revised")
    assert expdb.upgrade(old) == (OLD, NEW)
    with expdb.open(old) as db:
        assert db.check() == []


def test_an_upgrade_refuses_a_foreign_trigger(old):
    if is_server(old):
        pytest.skip("a server runs the triggers of its owner")
    in_schema(old, "CREATE TRIGGER mine AFTER INSERT ON steps BEGIN SELECT 1; END")
    with pytest.raises(errors.DatabaseDamaged, match="the trigger mine does not belong to expdb"):
        expdb.upgrade(old)
    assert read_revision(old) == OLD


def test_databases_of_the_first_builds_with_schema_0015_get_the_missing_column(tmp_path):
    shutil.copy(DATA / "0015.db", tmp_path / "runs.db")
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("ALTER TABLE buffers DROP COLUMN version_labels")
    connection.close()
    expdb.upgrade(tmp_path / "runs.db")
    with expdb.open(tmp_path / "runs.db") as db:
        db.buffer("related").policy_versions.add_label("step-7", 7)
        assert db.check() == []


def test_check_names_a_missing_column(path):  # noqa: F811
    with expdb.open(path) as db:
        in_schema(path, "ALTER TABLE @leases RENAME COLUMN trainer_step TO other")
        assert db.check()[0] == "table leases has no column trainer_step"


def test_an_open_handle_reports_a_newer_schema(path):  # noqa: F811
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store(x=1)
        in_schema(path, "UPDATE @expdb_version SET version_num = '9999'")
        in_schema(path, "ALTER TABLE @steps RENAME COLUMN reward TO payoff")
        for act in (lambda: buffer.count({"reward": 1.0}), lambda: buffer.store(x=2)):
            with pytest.raises(
                errors.SchemaTooNew, match="has schema 9999, but this expdb supports"
            ):
                act()
        for act in (expdb.open, expdb.upgrade):
            with pytest.raises(errors.SchemaTooNew, match="install a newer expdb"):
                act(path)
        in_schema(path, "ALTER TABLE @steps RENAME COLUMN payoff TO reward")
        in_schema(path, f"UPDATE @expdb_version SET version_num = '{NEW}'")


@pytest.fixture
def roles(postgresql):
    """Return a server, a new database and the names of two roles in it."""
    database = postgresql.database()
    names = f"an actor {uuid.uuid4().hex}", f"reader_{uuid.uuid4().hex}"
    for name in names:
        postgresql.execute(f'DROP ROLE IF EXISTS "{name}"')
        postgresql.execute(f'CREATE ROLE "{name}" LOGIN')
    yield postgresql, database, *names
    expdb_url = postgresql.url(database)
    for name in names:
        execute(expdb_url, f'DROP OWNED BY "{name}"')
    postgresql.drop(database)
    for name in names:
        postgresql.execute(f'DROP ROLE "{name}"')


def url_of(server, database, role):
    return str(sa.make_url(server.url(database, role)).render_as_string(hide_password=False))


def use(server, database, actor, reader):
    """Write as the actor and read as the reader."""
    with expdb.open(url_of(server, database, actor), create=False) as db:
        buffer = db.buffer("b", capacity=5)
        for k in range(7):
            buffer.store(x=k, reward=1.0)
        buffer.update_priorities(buffer.sample(1)["position"], [0.5])
        with buffer.consumer("c").lease(2):
            pass
        buffer.eviction = None
    with expdb.open(url_of(server, database, reader), create=False, read_only=True) as db:
        assert db.buffer("b").sample(3).size == 3
        assert db.sql("SELECT count(priority) AS n FROM experience")["n"].to_pylist() == [1]
        with pytest.raises(errors.DatabaseReadOnly):
            db.buffer("b").store(x=1)
    with (
        expdb.open(url_of(server, database, reader), create=False) as db,
        pytest.raises(errors.AccessDenied, match="expdb grant"),
    ):
        db.buffer("b").store(x=1)


def test_grant_lets_roles_write_and_read(roles):
    server, database, actor, reader = roles
    url = server.url(database)
    expdb.open(url).close()
    expdb.grant(url, actors=actor, readers=[reader])
    use(server, database, actor, reader)
    with pytest.raises(errors.AccessDenied, match="CREATE ROLE"):
        expdb.grant(url, readers=["unknown role"])


def test_only_the_owner_can_grant_rights_and_not_to_public(roles):
    server, database, actor, reader = roles
    url = server.url(database)
    expdb.open(url).close()
    expdb.grant(url, actors=actor)
    with pytest.raises(errors.AccessDenied, match="only the owner of the schema expdb"):
        expdb.grant(url_of(server, database, actor), readers=reader)
    for name in ("public", "PUBLIC"):
        with pytest.raises(expdb.InvalidValue, match="every role of the server"):
            expdb.grant(url, readers=name)
    with expdb.open(url) as db:  # default privileges would make a dump depend on roles
        assert db.sql("SELECT count(*) AS n FROM pg_default_acl")["n"].to_pylist() == [0]


def test_grants_survive_an_upgrade(roles):
    server, database, actor, reader = roles
    url = server.url(database)
    expdb.open(url).close()
    migrate(url, "0003", down=True)  # without tables of consumers, leases and evictions
    rights = "SELECT, INSERT, UPDATE, DELETE"
    for right, role in ((rights, actor), ("SELECT", reader)):
        execute(url, f'GRANT USAGE ON SCHEMA expdb TO "{role}"')
        execute(url, f'GRANT {right} ON ALL TABLES IN SCHEMA expdb TO "{role}"')
    expdb.upgrade(url)
    use(server, database, actor, reader)


def test_an_actor_that_creates_an_index_is_referred_to_the_owner(roles):
    server, database, actor, _ = roles
    expdb.open(server.url(database)).close()
    expdb.grant(server.url(database), actors=actor)
    with expdb.open(url_of(server, database, actor), create=False) as db:
        buffer = db.buffer("b")
        buffer.store(x=1, tags={"level": 3})
        with pytest.raises(errors.AccessDenied, match=r"connect as the owner for .* index\(\)"):
            buffer.index("tags.level")


def test_grant_refuses_a_file(tmp_path):
    with pytest.raises(expdb.InvalidValue, match="has no roles"):
        expdb.grant(tmp_path / "runs.db", actors="a")
