"""Tests of `register`: sqlite3 connections of other programs read fields and priorities."""

import sqlite3

import numpy as np
import pandas
import pytest

import expdb
from expdb import errors

QUERY = (
    "SELECT position, field(payload, 'action') AS action, field(payload, 'obs') AS obs, "
    "priority(buffer, position) AS own, priority FROM experience ORDER BY position"
)


@pytest.fixture
def path(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("train")
        for k in range(5):
            buffer.store(task_id="t", obs=np.array([k, 0.5]), action=k)
        buffer.update_priorities([1, 3], [0.25, 7.0])
    return tmp_path / "runs.db"


def connect(path):
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    expdb.register(connection)
    return connection


def test_fields_and_priorities_are_read(path):
    connection = connect(path)
    rows = connection.execute(QUERY).fetchall()
    assert [row[1] for row in rows] == list(range(5))
    assert rows[2][2] == "[2.0, 0.5]"
    assert [row[3] for row in rows] == [row[4] for row in rows] == [None, 0.25, None, 7.0, None]
    frame = pandas.read_sql_query(QUERY, connection)
    assert frame["action"].tolist() == list(range(5))
    connection.close()


def test_a_registered_connection_reads_later_steps(path):
    connection = connect(path)
    connection.execute(QUERY).fetchall()
    with expdb.open(path) as db:
        db.buffer("train").store(task_id="t", obs=np.zeros(2), action=9, note="new")
        db.buffer("train").update_priorities([5], [2.0])
    rows = connection.execute(QUERY).fetchall()
    assert (rows[5][1], rows[5][3]) == (9, 2.0)
    notes = connection.execute("SELECT field(payload, 'note') FROM experience ORDER BY position")
    assert notes.fetchall()[4:] == [(None,), ("new",)]
    connection.close()
    with expdb.open(path) as db:
        assert db.check() == []


def test_other_connections_are_refused(path, tmp_path):
    connection = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(errors.NotAnExperienceDatabase, match=r"connect to a file that expdb\.open"):
        expdb.register(connection)
    connection.close()
    with pytest.raises(expdb.InvalidValue, match=r"expected a sqlite3.Connection, got str"):
        expdb.register("runs.db")
    connection = connect(path)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT field('nonsense', 'action')").fetchall()
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    connection.close()


def test_row_and_text_factories_do_not_affect_the_functions(path):
    connection = sqlite3.connect(path)
    connection.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    expdb.register(connection)
    connection.text_factory = bytes
    rows = connection.execute(QUERY).fetchall()
    assert [(row["action"], row["own"]) for row in rows[:2]] == [(0, None), (1, 0.25)]
    assert connection.text_factory is bytes
    connection.close()
