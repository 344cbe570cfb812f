"""Datasette reads fields and priorities of expdb files."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

import expdb

WHY = "Datasette is not installed: run `python3 dev.py test --ecosystems`"
datasette = pytest.importorskip("datasette.app", reason=WHY)


def test_datasette_reads_fields_and_priorities_of_expdb_files(tmp_path):
    path, other = tmp_path / "runs.db", tmp_path / "other.db"
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        buffer.store(task_id="t", action=3)
        buffer.update_priorities([0], [0.5])
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (a)")

    async def ask(database, sql):
        app = datasette.Datasette([str(path), str(other)])
        await app.invoke_startup()
        answer = await app.client.get(f"/{database}.json", params={"sql": sql, "_shape": "array"})
        return answer.json()

    sql = "SELECT field(payload, 'action') AS a, priority(buffer, position) AS p FROM experience"
    assert asyncio.run(ask("runs", sql)) == [{"a": 3, "p": 0.5}]
    assert asyncio.run(ask("other", "SELECT count(*) AS n FROM t")) == [{"n": 0}]
