"""Altered files raise one-line errors of expdb and never raw errors."""

import contextlib
import shutil
import sqlite3

import numpy as np
import psycopg
import pytest
from contents import steps_of

import expdb
from expdb import errors
from expdb.storage.upkeep import reporting

DEEP = '{"a":' * 20_000 + "1" + "}" * 20_000


def fill(db):
    for name, obs in (("train", 1.0), ("other", 9.0)):
        buffer = db.buffer(name)
        for k in range(3):
            with buffer.episode(f"t{k}", episode_id=f"{name}/{k}") as episode:
                for _ in range(3):
                    episode.append(obs=np.full(2, obs), text="x" * k, tags={"k": k})
                episode.end(obs=np.full(2, 10.0 + k))
        for _ in range(2):
            buffer.store(episode_id=f"{name}/open", obs=np.full(2, obs), text="", tags={"k": 3})
        buffer.update_priorities([0], [0.5])
        buffer.rate_limiter = expdb.MinSize(1)
        buffer.policy_version = 1
        buffer.pace = expdb.Pace(1, 1)
        consumer = buffer.consumer("c")
        consumer.lease(1).acknowledge()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("altered") / "original.db"
    with expdb.open(path) as db:
        fill(db)
    return path


@pytest.fixture
def altered(original, tmp_path):
    """Return a function that runs SQL on a copy without expdb and returns its path."""
    path = tmp_path / "altered.db"
    shutil.copyfile(original, path)

    def alter(statement, *params):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA ignore_check_constraints=1")
        connection.execute(statement, params)
        connection.close()
        return path

    return alter


def use(db):
    """Call every kind of method of a buffer; some must raise errors of expdb, of one line."""
    buffer = db.buffer("train", create=False)
    fields = ["obs", "tags", "priority", "position"]
    acts = (
        db.check, db.doctor, buffer.check, buffer.stats, lambda: list(buffer.scan()),
        lambda: list(buffer.scan(fields=fields)), lambda: buffer.sample(8),
        lambda: buffer.sample(8, unit=expdb.NStep(1)),
        lambda: buffer.sample(8, sampler=expdb.Prioritized()),
        lambda: buffer.consumer("c").lease(1), lambda: list(buffer.replay("c")),
        lambda: buffer.rate_limiter, lambda: buffer.pace,
        lambda: buffer.eviction, buffer.evict,
        lambda: buffer.admit(wait=0, required=False), lambda: buffer.why(1),
        lambda: buffer.count({"tags.k": 1}), lambda: buffer.update([1], tags={"new": 1}),
        lambda: buffer.store(obs=np.zeros(2), task_id="new", more=1), lambda: buffer.delete([2]),
        lambda: buffer.get([0, 10]), lambda: steps_of(buffer),
        lambda: buffer.end_episode("train/open"), buffer.clear,
    )  # fmt: skip
    problems = []
    for act in acts:
        try:
            act()
        except expdb.ExpDBError as error:
            problems.append(str(error))
    assert problems
    assert not any("\n" in problem for problem in problems)


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("steps.tags", DEEP), ("steps.tags", "x"), ("steps.tags", "[1]"),
        ("episodes.tail_fields", "[[5]]"), ("episodes.tail_fields", "x"),
        ("segments.chunk_row", 2), ("segments.chunk_row", 7),
        ("episodes.tail_row", 2), ("episodes.tail_row", 2**40),
        ("buffers.added", 3), ("buffers.episodes_added", 0), ("buffers.deleted", 2**63 - 1),
        ("buffers.fields_version", 2**63 - 1),
        ("buffers.pace", '{"max_staleness":1,"groups_per_version":1,"since":1e999}'),
        ("buffers.rate_limiter", '{"ratio":"a","min_size":[],"least":{},"most":1,"since":0}'),
        ("buffers.rate_limiter", '{"ratio":1e999,"min_size":1,"least":0,"most":1,"since":0}'),
        ("buffers.rate_limiter", DEEP), ("buffers.eviction", DEEP),
        ("chunks.crc", 2**63 - 1), ("chunks.bytes", 2**63 - 1),
        ("priorities.data", b""), ("priorities.block", 2**62),
        ("consumers.begun", -1), ("leases.id", -1),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("without_garbage_collection")
def test_an_altered_column_raises_an_expdb_error(altered, column, value):
    table, name = column.split(".")
    where = "" if table == "buffers" else " AND buffer_id = 1"
    path = altered(f"UPDATE {table} SET {name} = ? WHERE 1 = 1{where}", value)
    with expdb.open(path) as db:
        use(db)


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("segments.chunk", 2**40), ("segments.chunk_row", 2), ("segments.episode", 1),
        ("episodes.tail_row", 2), ("consumers.begun", 2**63 - 1), ("chunks.crc", 1),
        ("buffers.pace", "{"),
    ],
)  # fmt: skip
def test_an_altered_column_on_postgresql_raises_an_expdb_error(postgresql_url, column, value):
    with expdb.open(postgresql_url) as db:
        fill(db)
    table, name = column.split(".")
    where = "" if table == "buffers" else " WHERE buffer_id = 1"
    with psycopg.connect(postgresql_url, options="-c search_path=expdb,public") as connection:
        connection.execute(f"UPDATE {table} SET {name} = %s{where}", (value,))
    connection.close()
    with expdb.open(postgresql_url) as db:
        use(db)


def test_reading_a_chunk_of_another_buffer_raises_chunk_damaged(altered):
    for column in ("data", "crc", "signature"):
        path = altered(
            f"UPDATE chunks SET {column} = (SELECT o.{column} FROM chunks o WHERE o.buffer_id = 2 "
            "AND o.id = chunks.id) WHERE buffer_id = 1"
        )
    with expdb.open(path) as db:
        assert any("belongs to another buffer" in problem for problem in db.check())
        with pytest.raises(errors.ChunkDamaged, match="belongs to another buffer"):
            db.buffer("train").sample(4)


def test_a_final_observation_of_another_episode_raises_database_damaged(altered):
    path = altered(
        "UPDATE episodes SET tail_chunk = (SELECT max(tail_chunk) FROM episodes e "
        "WHERE e.buffer_id = 1) WHERE buffer_id = 1 AND id = 0"
    )
    with expdb.open(path) as db:
        assert any("missing or wrong" in problem for problem in db.check())
        with pytest.raises(errors.DatabaseDamaged, match="not the final observation of episode 0"):
            db.buffer("train").sample(16, unit=expdb.NStep(1))
        for read in ("get", "scan"):
            with pytest.raises(errors.DatabaseDamaged, match="not the final observation"):
                list(getattr(db.buffer("train"), read)(*([[2]] if read == "get" else [])))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('UPDATE steps SET scores = \'{"judge":"x"}\' WHERE position = 0', "has 'x' as 'judge'"),
        ("UPDATE steps SET scores = '[1]' WHERE position = 0", "column scores of position 0"),
        ("UPDATE steps SET scores = '{\"judge\":2}' WHERE position = 0", "has 2 as 'judge'"),
        ("UPDATE steps SET scores = NULL WHERE position = 0", "position 0 lacks its score 'judge'"),
        ("UPDATE scores SET value = 2 WHERE id = 0", "has 0.5 as 'judge', unlike its history"),
        ("UPDATE scores SET value = 1e999 WHERE id = 0", "score 0 is wrong: its value is inf"),
        ("UPDATE scores SET scored = 1e999 WHERE id = 0", "score 0 is wrong: its time is inf"),
        ("UPDATE scores SET detail = '[' WHERE id = 0", "score 0 is wrong: its detail"),
        ("UPDATE scores SET episode = 1 WHERE id = 0", "is a step of another episode"),
        ("DELETE FROM scores WHERE id = 0", "has 0.5 as 'judge', unlike its history"),
        ("DELETE FROM scores WHERE id = 1", "has 1.0 as 'whole', unlike its history"),
        ("UPDATE workers SET counts = '[1]'", "a row of the table workers cannot be read"),
        ("UPDATE metrics SET measurement = 'x'", "a row of the table metrics cannot be read"),
    ],
)
def test_check_finds_altered_scores_workers_and_metrics(tmp_path, monkeypatch, change, problem):
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    path = tmp_path / "scored.db"
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        for k in range(2):
            buffer.store(episode_id=f"e{k}", x=k, terminated=True)
        buffer.score([0], name="judge", value=0.5)
        buffer.score(episode_id="e0", name="whole", value=1.0)
        buffer.score([0], name="judge", value=None, status="timeout")
        assert db.check() == []
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(change).rowcount >= 1
    with expdb.open(path) as db:
        assert problem in "; ".join(db.check())


def test_check_finds_annotations_that_were_exchanged(tmp_path):
    path = tmp_path / "annotated.db"
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.store_batch({"x": [0, 1], "task_id": ["t", "t"]})
        buffer.annotate([0, 1], values=[[0.5], [0.25]])
        assert db.check() == []
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for before, after in ((0, 7), (1, 0), (7, 1)):
            connection.execute(
                "UPDATE annotations SET position = ? WHERE position = ?", (after, before)
            )
    with expdb.open(path) as db:
        assert "annotation 'values' of position 0" in "; ".join(db.check())
        with pytest.raises(errors.DatabaseDamaged, match="its checksum does not match"):
            db.buffer("b").get([0], fields=["values"])


def test_a_score_that_is_text_raises_database_damaged(tmp_path):
    path = tmp_path / "scored.db"
    with expdb.open(path) as db:
        db.buffer("b").store(x=1)
        db.buffer("b").score([0], name="judge", value=0.5)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('UPDATE steps SET scores = \'{"judge":"x"}\'')
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        for read in (buffer.get, buffer.consumer("c").lease):
            with pytest.raises(errors.DatabaseDamaged, match=r"'scores\.judge' cannot be read"):
                read(*([[0]] if read == buffer.get else [1]), fields=["scores.judge"])
