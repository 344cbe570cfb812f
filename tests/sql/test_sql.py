"""Tests of `db.sql`: the views, field(), parameters, timeouts and refused writes."""

import _thread
import os
import threading
import time

import numpy as np
import pytest

import expdb
from expdb import errors
from expdb.names import EPISODE_VIEW_COLUMNS

pytestmark = pytest.mark.both_databases


@pytest.fixture
def filled(db):
    buffer = db.buffer("b")
    buffer.store(
        task_id="t", task_name="n", reward=0.5, tags={"d": "hard"}, action={"tool": "x"},
        obs=np.array([1.5, 2.5]), n=3, flag=True, text="hi", raw=b"\x01", late=None,
    )  # fmt: skip
    buffer.store(task_id="t", reward=1.5, action=None, n=4, flag=False, text="ho", raw=b"\x02")
    db.buffer("other").store(task_id="o")
    return buffer


def test_the_view_has_one_row_per_step_with_every_column(db, filled):
    table = db.sql("SELECT * FROM experience WHERE buffer = 'b' ORDER BY position")
    assert table.num_rows == 2
    assert table.column_names == [
        "buffer", "position", "episode", "episode_id", "run", "task_id", "task_name", "agent_id",
        "group_id", "status", "length",
        "episode_return", "episode_tags", "started", "ended", "first_policy_version",
        "last_policy_version", "parent_episode", "parent_step", "parent_position", "relation",
        "root_episode", "trainable", "step", "pre_agent", "execute_time", "reward", "terminated",
        "truncated", "policy_version", "policy_version_end", "priority", "tags", "scores",
        "payload",
    ]  # fmt: skip
    row = table.to_pylist()[0]
    names = ("task_name", "reward", "length", "episode_return", "tags")
    assert [row[name] for name in names] == ["n", 0.5, 2, 2.0, '{"d":"hard"}']


def test_experience_draws_has_one_row_per_leased_item_with_its_episode(db, filled):
    assert db.sql("SELECT * FROM experience_draws").num_rows == 0
    without_repeats = expdb.Uniform(replace=False)
    filled.consumer("trainer").lease(2, sampler=without_repeats, trainer_step=7).acknowledge()
    db.buffer("other").consumer("judge").lease(1)
    columns = "buffer, consumer, lease, status, trainer_step, position, probability, task_id, step"
    query = f"-- draws\nSELECT {columns} FROM experience_draws ORDER BY buffer, position"
    rows = [tuple(row.values()) for row in db.sql(query).to_pylist()]
    assert rows == [
        ("b", "trainer", 0, "acknowledged", 7, 0, None, "t", 0),
        ("b", "trainer", 0, "acknowledged", 7, 1, None, "t", 1),
        ("other", "judge", 0, "leased", None, 0, None, "o", 0),
    ]
    (draw,) = db.sql("SELECT * FROM experience_draws WHERE consumer = 'judge'").to_pylist()
    assert (draw["batch"], draw["leased_at"] > 1e9) == (0, True)
    query = """/* rewards */ WITH RECURSIVE used AS (
        SELECT * FROM experience_draws WHERE consumer = :consumer)
        SELECT u.episode_id, sum(e.reward) AS reward FROM used u JOIN experience_episodes x
        ON x.episode = u.episode AND x.buffer = u.buffer JOIN experience e
        ON e.position = u.position AND e.buffer = u.buffer GROUP BY u.episode_id"""
    assert db.sql(query, {"consumer": "trainer"})["reward"].to_pylist() == [2.0]
    filled.clear()
    rows_without_steps = db.sql(
        "SELECT position, step, episode_id FROM experience_draws ORDER BY buffer, position"
    )
    assert rows_without_steps.to_pylist()[:2] == [
        {"position": k, "step": None, "episode_id": None} for k in (0, 1)
    ]


@pytest.mark.parametrize(
    ("query", "count"),
    [("SELECT count(*) FROM experience_draws", 3), ("(SELECT count(*) FROM Experience_Draws)", 3),
     ('WITH/**/x AS (SELECT 1) SELECT count(*) FROM "experience_draws"', 3),
     ("WITH--c\n x AS (SELECT 1) SELECT count(*) FROM experience_draws", 3),
     ('WITH"x" AS (SELECT 1) SELECT count(*) FROM experience_draws', 3),
     ("WITH /**/ RECURSIVE/**/x AS (SELECT 1) SELECT count(*) FROM experience_draws", 3),
     ("WITH steps AS (SELECT 1 AS buffer_id, 0 AS position, 77 AS step, 0 AS episode) "
      "SELECT max(step) FROM experience_draws", 1),
     ("WITH episodes AS (SELECT DISTINCT episode_id FROM experience_draws) "
      "SELECT count(*) FROM episodes", 2),
     ("SELECT count(*) FROM experience x WHERE NOT EXISTS (SELECT 1 FROM experience_draws d "
      "WHERE d.buffer = x.buffer AND d.position = x.position)", 0),
     ("WITH experience_draws AS (SELECT 5 AS x) SELECT x FROM experience_draws", 5),
     ("SELECT count(*) FROM experience WHERE task_id <> 'experience_draws'", 3)],
)  # fmt: skip
def test_experience_draws_can_stand_anywhere_in_a_query(db, filled, query, count):
    filled.consumer("trainer").lease(2, sampler=expdb.Uniform(replace=False))
    db.buffer("other").consumer("judge").lease(1)
    if query.startswith("(") and db.location.endswith(".db"):
        query = query[1:-1]  # SQLite has no statement in parentheses
    assert list(db.sql(query).to_pylist()[0].values()) == [count]


def test_experience_draws_is_computed_only_for_queries_that_read_it(db, filled, monkeypatch):
    calls = []
    monkeypatch.setattr(type(filled), "draws", lambda buffer: calls.append(buffer))
    db.sql("SELECT 'experience_draws' AS text -- experience_draws\n/* experience_draws */")
    assert calls == []


def test_a_probability_that_is_not_finite_is_null_in_experience_draws(db, filled):
    class Doubtful(expdb.Sampler):
        def keys(self):
            return ("probability",)

        def draw(self, population, size, rng):
            probability = np.array([np.nan, np.inf, 0.25])
            return population.at(np.array([0, 1, 0])), {"probability": probability}

    filled.consumer("trainer").lease(3, sampler=Doubtful())
    values = db.sql("SELECT probability FROM experience_draws")["probability"].to_pylist()
    assert sorted(values, key=str) == [0.25, None, None]


def test_a_buffer_that_is_dropped_during_a_query_has_no_draws(db, filled, monkeypatch):
    filled.consumer("trainer").lease(1)
    monkeypatch.setattr(type(db), "buffers", lambda self: ["dropped", "b"])
    assert db.sql("SELECT count(*) AS n FROM experience_draws")["n"].to_pylist() == [1]


def test_the_parameter_of_experience_draws_is_reserved(db, filled):
    with pytest.raises(errors.SqlError, match="must not contain 'expdb_draws'; rename the parame"):
        db.sql("SELECT :expdb_draws FROM experience_draws", {"expdb_draws": 1})


def test_field_returns_numbers_text_and_json(db, filled):
    columns = ", ".join(
        f"field(payload, '{name}') AS {name}"
        for name in ("action", "obs", "n", "flag", "text", "raw")
    )
    rows = db.sql(
        f"SELECT {columns} FROM experience WHERE buffer = 'b' ORDER BY position"
    ).to_pylist()
    assert [list(row.values()) for row in rows] == [
        ['{"tool": "x"}', "[1.5, 2.5]", 3, 1, "hi", b"\x01"], [None, None, 4, 0, "ho", b"\x02"],
    ]  # fmt: skip
    assert db.sql(
        "SELECT avg(field(payload, 'n')) AS n FROM experience WHERE buffer = 'b'"
    ).to_pylist() == [{"n": 3.5}]
    tool = (
        "field(payload, 'action')"
        + ("::json" if db.location.startswith("postgresql:") else "")
        + " ->> 'tool'"
    )
    for _ in range(2):  # the second query uses the caches of the connection
        assert db.sql(
            f"SELECT {tool} AS tool FROM experience WHERE field(payload, 'n') = 3"
        ).to_pylist() == [{"tool": "x"}]


def test_wrong_calls_of_field_are_errors(db, filled):
    for call in (
        "field(task_id, 'n')",
        "field(payload, 5)",
        "field('1:2', 'n')",
        "field('1:0:-1', 'n')",
        "field(payload, 'reward')",
    ):
        with pytest.raises(errors.SqlError, match="field"):
            db.sql(f"SELECT {call} FROM experience")
    assert db.sql("SELECT field(NULL, 'n') AS x").to_pylist() == [{"x": None}]


@pytest.mark.one_database
@pytest.mark.parametrize("function", ["json_each", "json_tree"])
def test_rows_of_a_json_value_can_be_selected(db, filled, function):
    source = f"experience, {function}(tags)"
    statement = f"SELECT key, value FROM {source} WHERE position = 0 AND key = 'd' LIMIT 1"
    assert db.sql(statement).to_pylist() == [{"key": "d", "value": "hard"}]


def test_parameters_are_bound(db, filled):
    query = "SELECT count(*) AS n FROM experience WHERE task_id = :task AND reward > :reward"
    assert db.sql(query, {"task": "t", "reward": 1}).to_pylist() == [{"n": 1}]
    assert db.sql(query, {"task": "t' OR '1'='1", "reward": 0}).to_pylist() == [{"n": 0}]
    with pytest.raises(errors.SqlError, match="params"):
        db.sql(query, {"task": "t"})
    assert db.sql(query, {"task": "t", "reward": np.int64(1)}).to_pylist() == [{"n": 1}]
    for params in (
        {"task": "t", "reward": 2**70},
        {"task": "t", "reward": [1]},
        {"task": "\ud800", "reward": 1},
        [1],
        "x",
    ):
        with pytest.raises(errors.SqlError):
            db.sql(query, params)
    with pytest.raises(errors.SqlError):
        db.sql(None)


def test_column_types_follow_from_the_values(db):
    if db.location.startswith("postgresql:"):
        columns = (
            "1.5::numeric AS f, 'x' AS t, NULL AS n, '\\x00'::bytea AS b, now() AS i, true AS o, "
            "2::numeric AS w"
        )
    else:
        columns = "1.5 AS f, 'x' AS t, NULL AS n, x'00' AS b, 'mixed' AS i, 1 AS o, 2 AS w"
    table = db.sql(
        f"SELECT 1 AS i, {columns} UNION ALL SELECT 2, 2, 'y', NULL, "
        f"{columns.split(', ')[3][:-5]}, {columns.split(', ')[4][:-5]}, "
        f"{columns.split(', ')[5][:-5]}, 3"
    )
    flag = "bool" if db.location.startswith("postgresql:") else "int64"
    types = ["int64", "double", "string", "null", "binary", "string", flag, "int64"]
    assert [str(column.type) for column in table.columns] == types
    assert table.column_names == ["i", "f", "t", "n", "b", "i:2", "o", "w"]
    assert db.sql("SELECT 1 AS x WHERE 1 = 0").num_rows == 0


WRITES = [
    "DELETE FROM steps", "UPDATE steps SET reward = 0", "INSERT INTO buffers (name) VALUES ('x')",
    "DROP TABLE steps", "CREATE TABLE x (a)",
    "CREATE TEMP TABLE x (a)", "ATTACH 'other.db' AS o", "VACUUM", "VACUUM INTO 'copy.db'",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE", "BEGIN IMMEDIATE", "COMMIT", "REINDEX", "ANALYZE",
    "SELECT load_extension('x')", "SELECT 1; DELETE FROM steps",
    "WITH x AS (SELECT 1) DELETE FROM steps", "DELETE FROM steps RETURNING position",
    "PRAGMA writable_schema = ON", "DETACH main", "SAVEPOINT x",
    "CREATE TRIGGER t AFTER INSERT ON steps BEGIN "
    "DELETE FROM steps; END", "SELECT fts3_tokenizer('x')", "", "-- nothing",
]  # fmt: skip


ATTACKS_ON_A_SERVER = [
    "COMMIT; DELETE FROM steps", "SELECT 1; COMMIT; DELETE FROM steps",
    "SET TRANSACTION READ WRITE; DELETE FROM steps", "SET TRANSACTION READ WRITE",
    "ROLLBACK; DELETE FROM steps", "COPY steps TO PROGRAM 'touch /tmp/expdb-was-here'",
    "COPY (SELECT 1) TO '/tmp/expdb-was-here'",
    "WITH gone AS (DELETE FROM steps RETURNING *) SELECT * FROM gone",
    "WITH x AS (UPDATE steps SET reward = 0 RETURNING 1) SELECT 1",
    "SELECT * INTO stolen FROM steps", "CREATE TABLE x (a int)", "CREATE TEMP TABLE x (a int)",
    "DO $$ BEGIN DELETE FROM expdb.steps; END $$", "CALL x()", "TRUNCATE steps", "LOCK steps",
    "SELECT 1 FROM steps FOR UPDATE", "SELECT nextval('buffers_id_seq')",
    "EXPLAIN ANALYZE DELETE FROM steps", "/* */ DELETE FROM steps", "-- x\nDELETE FROM steps",
    "SELECT 1) ; DELETE FROM steps; --", "DECLARE c CURSOR FOR SELECT 1",
    "SELECT expdb.append(1, 1, 1, 'x', false, 0, '[]', ARRAY[1], NULL, NULL, NULL, NULL, NULL, "
    "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "SELECT set_config('transaction_read_only', 'off', false), (SELECT count(*) FROM steps)",
    "SELECT query_to_xml('DELETE FROM expdb.steps', true, true, '')",
]  # fmt: skip


def test_only_reading_statements_are_executed(db, filled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    attacks = ATTACKS_ON_A_SERVER if db.location.startswith("postgresql:") else []
    for statement in (*WRITES, *attacks):
        with pytest.raises((errors.SqlRefused, errors.SqlError)) as caught:
            db.sql(statement)
        assert "\n" not in str(caught.value), statement
        assert sorted(tmp_path.iterdir()) == before, statement
        assert not os.path.exists("/tmp/expdb-was-here"), statement
        assert filled.get([0, 1])["reward"].tolist() == [0.5, 1.5], statement
        rows = db.sql("SELECT count(*) AS n FROM experience").to_pylist()
        assert rows == [{"n": 3}], statement


# -- fields ----------------------------------------------------------------------------------------


@pytest.fixture
def typed_buffer(buffer):
    """Return a buffer with fields of several types."""
    with buffer.episode("t", task_name="name") as episode:
        for t in range(4):
            episode.append(
                action="left" if t % 2 else "right",
                n=t,
                x=t / 2,
                flag=t == 1,
                messages=[{"role": "user"}],
                obs=np.zeros(2),
                reward=1.0,
            )
    return buffer


@pytest.mark.one_database
def test_an_unknown_field_is_an_error_with_a_suggestion(typed_buffer, db):
    with pytest.raises(
        errors.SqlError, match="no field 'mesages' is stored, did you mean 'messages'"
    ):
        db.sql("SELECT field(payload, 'mesages') FROM experience")
    db.buffer("other").store(only_here=1)
    rows = db.sql(
        "SELECT buffer, field(payload, 'only_here') AS v FROM experience ORDER BY buffer, position"
    ).to_pylist()
    assert [row["v"] for row in rows] == [1, None, None, None, None], (
        "of another buffer it is one that the step lacks"
    )


def test_a_numeric_field_can_be_averaged_if_another_buffer_has_text_in_it(
    typed_buffer, db, request
):
    db.buffer("other").store(n="text")
    query = "SELECT avg(field(payload, 'n')) AS mean FROM experience WHERE buffer = 'train'"
    if "postgresql" in request.node.name:
        query = query.replace("field(payload, 'n')", "CAST(field(payload, 'n') AS numeric)")
    assert db.sql(query).to_pylist() == [{"mean": 1.5}]


def test_double_quotes_denote_names_and_single_quotes_denote_text(typed_buffer, db):
    query = """SELECT "reward" AS "a b", 'say "hi"' AS t,
               json_type('{"a": 1}', '$."a"') AS "kind" -- a "comment"
               FROM "experience" WHERE "step" = 0"""
    if db.location.startswith("postgresql"):
        query = query.replace("""json_type('{"a": 1}', '$."a"')""", "'integer'")
    assert db.sql(query).to_pylist() == [{"a b": 1.0, "t": 'say "hi"', "kind": "integer"}]


# -- episodes --------------------------------------------------------------------------------------


def test_the_episode_view_has_one_row_per_episode(db):
    long_, short = db.buffer("long", capacity=20), db.buffer("short")
    for buffer, lengths in ((long_, (3, 17, 5)), (short, (4,))):
        for k, length in enumerate(lengths):
            with buffer.episode(
                f"t{k}", episode_id=f"e{k}", episode_tags={"k": k}, policy_version=k
            ) as episode:
                for t in range(length):
                    episode.append(obs=float(t), reward=1.0, terminated=t == length - 1)
    long_.delete({"episode_id": "e2", "step": 1})
    rows = db.sql("SELECT * FROM experience_episodes ORDER BY buffer, episode").to_pylist()
    assert list(rows[0]) == list(EPISODE_VIEW_COLUMNS)
    keys = "buffer", "episode", "episode_id", "length", "steps_held"
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("long", 1, "e1", 17, 15), ("long", 2, "e2", 5, 4), ("short", 0, "e0", 4, 4),
    ]  # fmt: skip
    assert db.sql(
        "SELECT avg(episode_return) AS mean FROM experience_episodes WHERE buffer = 'long'"
    ).to_pylist() == [{"mean": 11.0}]
    assert db.sql(
        "SELECT avg(episode_return) AS mean FROM experience WHERE buffer = 'long'"
    ).to_pylist() != [{"mean": 11.0}]
    by_key = {row["episode_id"]: row for row in long_.episodes().to_pylist()}
    for row in rows[:2]:
        for name in by_key["e1"]:
            if name != "episode_tags":  # jsonb on a server
                assert row[name] == by_key[row["episode_id"]][name], name


def test_values_without_a_python_type_are_returned_as_text(postgresql_url):
    with expdb.open(postgresql_url) as db:
        for expression, expected in (
            ("1e999", "1" + "0" * 999), ("1e400::numeric + 0.5", "1" + "0" * 400 + ".5"),
            ("'NaN'::numeric", "nan"), ("'infinity'::timestamptz", "infinity"),
            ("'-infinity'::timestamp", "-infinity"), ("'infinity'::date", "infinity"),
            ("'0044-03-15 BC'::date", "0044-03-15 BC"), ("'24:00:00'::time", "24:00:00"),
            ("'294276-12-31'::timestamp", "294276-12-31 00:00:00"),
            ("'2026-11-23'::date", "2026-11-23"),
            ("'178000000 years'::interval", "178000000 years"),
        ):  # fmt: skip
            (value,) = db.sql(f"SELECT {expression} AS x")["x"].to_pylist()
            assert str(value) == expected


def test_a_query_is_interrupted_after_the_timeout(open_db):
    db = open_db(timeout=0.5)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    began = time.monotonic()
    with pytest.raises(errors.SqlError, match="open the database with a longer timeout"):
        db.sql(endless + "SELECT count(*) FROM n")
    assert time.monotonic() - began < 60
    assert db.sql("SELECT 1 AS x")["x"].to_pylist() == [1]
    db.buffer("b").store(x=1)  # no snapshot is held


def test_times_are_timestamps_in_utc_on_request(db, buffer):
    buffer.store(task_id="t", execute_time=1_700_000_000.25, episode_id="e")
    query = "SELECT started, ended, execute_time, execute_time AS raw, NULL AS n FROM experience"
    plain, stamped = db.sql(query), db.sql(query, timestamps=True)
    assert plain["execute_time"].to_pylist() == [1_700_000_000.25]
    kinds = [str(kind) for kind in stamped.schema.types[:4]]
    assert kinds == ["timestamp[us, tz=UTC]"] * 3 + ["double"]
    (row,) = stamped.to_pylist()
    assert row["execute_time"].isoformat() == "2023-11-14T22:13:20.250000+00:00"
    assert row["ended"] is None
    assert row["started"].timestamp() == pytest.approx(plain["started"][0].as_py(), abs=1e-6)
    buffer.store(task_id="t", execute_time=1e12)
    with pytest.raises(
        expdb.InvalidValue, match=r"execute_time must be a time in Unix.*without timestamps"
    ):
        db.sql(query, timestamps=True)


@pytest.mark.parametrize("where", ["", ", field(payload, 'x')"])
def test_an_interrupt_of_a_query_raises_keyboard_interrupt(tmp_path, where):
    """The interrupt arrives in SQLite's progress handler or in the function `field`."""
    with expdb.open(tmp_path / "runs.db") as db:
        db.buffer("b").store(x=1)
        timer = threading.Timer(0.5, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            db.sql(
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1e9) "
                f"SELECT count(*){where} FROM c, experience"
            )
        timer.join()
        assert db.sql("SELECT count(*) AS n FROM experience").to_pylist() == [{"n": 1}]


def test_max_bytes_limits_the_size_of_a_result(db):
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    query = numbers + "SELECT i, 'ten bytes.' AS t FROM n"
    assert db.sql(query, max_bytes=36_000).num_rows == 2000
    with pytest.raises(errors.SqlError, match=r"larger than 35,999 bytes; .* raise max_bytes"):
        db.sql(query, max_bytes=35_999)
    with pytest.raises(expdb.InvalidValue, match="max_bytes must be an integer of at least 1"):
        db.sql(query, max_bytes=0)


@pytest.mark.one_database
def test_max_bytes_limits_values_that_sqlite_computes(db):
    with pytest.raises(errors.SqlError, match="select or pass a smaller value, or raise max_bytes"):
        db.sql("SELECT zeroblob(500000000) AS b", max_bytes=1 << 20)
    assert db.sql("SELECT length(zeroblob(2000000)) AS n").to_pylist() == [{"n": 2_000_000}]


def test_max_bytes_limits_the_values_of_fields_but_not_their_chunks(db):
    noise = [np.random.default_rng(k).bytes(3000) for k in range(4)]
    db.buffer("b").store_batch({"task_id": "t", "text": ["ten bytes."] * 4, "noise": noise})
    query = "SELECT field(payload, '{}') AS value FROM experience"
    assert db.sql(query.format("text"), max_bytes=1000).num_rows == 4
    with pytest.raises(errors.SqlError, match="raise max_bytes"):
        db.sql(query.format("noise"), max_bytes=1000)
