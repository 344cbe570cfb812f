"""Priorities in SQL: decoded once per block, exact, and readable by other programs."""

import sqlite3

import numpy as np
import pytest
import sqlalchemy as sa
from behind import writing

import expdb

pytestmark = pytest.mark.both_databases

LEAST, MOST = 2.2250738585072014e-308, 1.7976931348623157e308  # of the normal numbers
EDGES = [0.0, 5e-324, LEAST, 1e-300, 0.1, 1.0, 3.5, 2.0**52 + 0.5, 1e300, MOST]


@pytest.fixture
def filled(db):
    """Return a buffer of 2,060 steps in three blocks; every second step has a priority."""
    buffer = db.buffer("train")
    buffer.store_batch({"x": np.arange(2060.0), "reward": np.arange(2060.0)})
    bits = np.random.default_rng(3).integers(0, 0x7FEFFFFFFFFFFFFF, 1030)
    values = bits.view(np.float64)  # of every magnitude
    values[: len(EDGES)] = EDGES
    buffer.update_priorities(np.arange(0, 2060, 2), values)
    return buffer, {2 * k: value for k, value in enumerate(values.tolist())}


def test_sql_returns_every_priority_exactly(db, filled):
    _, expected = filled
    table = db.sql("SELECT position, priority FROM experience ORDER BY position")
    priorities = dict(zip(*table.to_pydict().values(), strict=True))
    assert priorities == {k: expected.get(k) for k in range(2060)}
    top = db.sql("SELECT position FROM experience e WHERE e.priority > 1e299 ORDER BY 1")
    assert top["position"].to_pylist() == [k for k, v in expected.items() if v > 1e299]
    (row,) = db.sql("SELECT * FROM experience WHERE position = 4").to_pylist()
    assert row["priority"] == expected[4]
    names = db.sql("SELECT * FROM experience LIMIT 1").column_names
    assert names == db.sql("SELECT *, 'priority' AS p FROM experience LIMIT 1").column_names[:-1]
    count = db.sql("SELECT count(*) AS n FROM step_priorities WHERE priority IS NOT NULL")
    assert count["n"].to_pylist() == [len(expected)]


def test_queries_and_columns_return_every_priority_exactly(filled):
    buffer, expected = filled
    query = expdb.QueryBuilder().gte("priority", 0.25)
    assert buffer.count(query) == sum(value >= 0.25 for value in expected.values())
    assert buffer.count(expdb.QueryBuilder().is_null("priority")) == 1030
    batch = buffer.get([2058, 3, 0, 4, 4], fields=["priority", "reward"])
    np.testing.assert_array_equal(
        batch["priority"], [expected[2058], np.nan, expected[0], expected[4], expected[4]]
    )


def test_plain_sqlite3_reads_priorities_without_expdb(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        buffer.store_batch({"x": np.arange(20.0)})
        buffer.update_priorities(np.arange(10), EDGES)
    with sqlite3.connect(path) as plain:
        rows = plain.execute("SELECT priority FROM experience ORDER BY position").fetchall()
    plain.close()
    assert [value for (value,) in rows] == EDGES + [None] * 10


def test_a_role_without_the_temp_privilege_reads_priorities(postgresql, postgresql_url):
    name = sa.make_url(postgresql_url).database
    with expdb.open(postgresql_url) as db:
        buffer = db.buffer("train")
        buffer.store_batch({"x": np.arange(20.0)})
        buffer.update_priorities(np.arange(10), EDGES)
        with writing(db) as session:
            session.query(f'REVOKE TEMP ON DATABASE "{name}" FROM PUBLIC')
            session.query("DROP ROLE IF EXISTS without_temp")
            session.query("CREATE ROLE without_temp LOGIN")
            session.query("GRANT USAGE ON SCHEMA expdb TO without_temp")
            session.query("GRANT SELECT ON ALL TABLES IN SCHEMA expdb TO without_temp")
    with expdb.open(postgresql.url(name, "without_temp"), create=False, read_only=True) as db:
        table = db.sql("SELECT priority FROM experience ORDER BY position")
        assert table["priority"].to_pylist() == EDGES + [None] * 10
    with expdb.open(postgresql_url) as db, writing(db) as session:
        session.query(f'GRANT TEMP ON DATABASE "{name}" TO PUBLIC')
        session.query("DROP OWNED BY without_temp")
        session.query("DROP ROLE without_temp")
