"""Tests of queries, compared with a plain filter in Python."""

import json
import re
import sqlite3
from operator import eq, ge, gt, le, lt

import numpy as np
import pytest
from behind import reading, store_of, writing
from cases import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import expdb
from expdb import QueryBuilder, errors

pytestmark = pytest.mark.both_databases

TASKS = ["a", "b", "A", "a%c", "a_c", "é", "", "Z", "a\\c", "*[x]?"]
TAGS = [
    None,
    {},
    {"d": "hard"},
    {"d": "easy"},
    {"d": 5},
    {"d": 5.5},
    {"d": True},
    {"d": False},
    {"d": None},
    {"d": [1]},
    {"d": "5"},
    {"d": {"x": 1}},
]

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "task_id": st.sampled_from(TASKS),
            "task_name": st.none() | st.sampled_from(TASKS),
            "agent_id": st.sampled_from(["x", "y"]),
            "step": st.integers(-3, 5),
            "reward": st.none() | st.sampled_from([-1.5, 0.0, 0.5, 1.0, 3.0]),
            "terminated": st.booleans(),
            "pre_agent": st.none() | st.sampled_from(TASKS),
            "tags": st.sampled_from(TAGS),
            "episode_tags": st.none()
            | st.sampled_from([tags for tags in TAGS if tags is not None]),
            "policy_version": st.none() | st.integers(0, 3),
        }
    ),
    min_size=1,
    max_size=14,
)

TEXTS = st.sampled_from(
    [*TASKS, "a%", "%", "_", "a\\%c", "a\\_c", "%c", "[", "a*", "?", "\\\\", "é%", '"', "a\nb",
     "' OR '1'='1", "x'; DROP TABLE steps; --", "🙂" * 1000],
)  # fmt: skip
NUMBERS = st.sampled_from([-3, 0, 1, 2, 0.5, 1.0, 1.5, 5, 5.5, float("inf")])
ANY = TEXTS | NUMBERS | st.booleans()


def leaf(name, values, ops=("eq", "ne", "gt", "gte", "lt", "lte")):
    return st.one_of(
        st.tuples(st.just(name), st.sampled_from(ops), values),
        st.tuples(st.just(name), st.sampled_from(["in_", "not_in"]), st.lists(values, max_size=3)),
        st.tuples(st.just(name), st.sampled_from(["is_null", "is_not_null"]), st.just(None)),
    )


def text_leaf(name):
    return leaf(name, TEXTS) | st.tuples(
        st.just(name), st.sampled_from(["like", "not_like"]), TEXTS
    )


def tag_leaf(name):
    return st.one_of(
        leaf(name, ANY, ("eq", "ne")),
        st.tuples(st.just(name), st.sampled_from(["gt", "gte", "lt", "lte"]), TEXTS | NUMBERS),
        st.tuples(st.just(name), st.sampled_from(["like", "not_like"]), TEXTS),
    )


LEAVES = st.one_of(
    *(text_leaf(name) for name in ("task_id", "task_name", "pre_agent", "agent_id")),
    *(leaf(name, NUMBERS) for name in ("reward", "step", "policy_version", "position")),
    leaf("terminated", st.booleans(), ("eq", "ne")),
    tag_leaf("tags.d"),
    tag_leaf("episode_tags.d"),
)
QUERIES = st.recursive(
    st.lists(st.tuples(st.sampled_from(["and_", "or_"]), LEAVES), min_size=1, max_size=4),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["and_", "or_"]), LEAVES | inner), min_size=1, max_size=3
    ),
    max_leaves=8,
)


def build(query):
    builder = QueryBuilder()
    for number, (operator, part) in enumerate(query):
        if number:
            getattr(builder, operator)()
        if isinstance(part, list):
            builder.nested(build(part))
        else:
            name, op, value = part
            getattr(builder, op)(*([name] if op.startswith("is_") else [name, value]))
    return builder


def pattern(like):
    """Return a LIKE pattern with %, _ and backslash as a regular expression."""
    wild, parts = {"%": ".*", "_": "."}, re.findall(r"\\.|.", like, re.DOTALL)
    return re.compile("".join(wild.get(part, re.escape(part[-1])) for part in parts), re.DOTALL)


def alike(stored, value):
    """Return whether two values may be compared: both bools, both numbers or both text."""
    if isinstance(stored, bool) or isinstance(value, bool):
        return isinstance(stored, bool) and isinstance(value, bool)
    if isinstance(stored, (int, float)):
        return isinstance(value, (int, float))
    return isinstance(stored, str) and isinstance(value, str)


def holds(row, name, op, value):
    head, _, key = name.partition(".")
    stored = (row[head] or {}).get(key) if key else row[head]
    negated = {"ne": "eq", "not_in": "in_", "not_like": "like"}
    if op in negated:
        return not holds(row, name, negated[op], value)
    match op:
        case "is_null":
            return stored is None
        case "is_not_null":
            return stored is not None
        case "in_":
            return any(alike(stored, candidate) and stored == candidate for candidate in value)
        case "like":
            return isinstance(stored, str) and pattern(value).fullmatch(stored) is not None
    if stored is None or not alike(stored, value):
        return False
    return {
        "eq": stored == value,
        "gt": stored > value,
        "gte": stored >= value,
        "lt": stored < value,
        "lte": stored <= value,
    }[op]


def matches(row, query):
    """Return whether a row matches a query, evaluated strictly from left to right."""
    result = None
    for operator, part in query:
        this = matches(row, part) if isinstance(part, list) else holds(row, *part)
        result = (
            this
            if result is None
            else (result and this)
            if operator == "and_"
            else (result or this)
        )
    return result


@pytest.mark.filterwarnings(
    "ignore:no step or episode of buffer .* has the tag:expdb.errors.ExpDBWarning"
)
@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ROWS, st.lists(QUERIES, min_size=1, max_size=4))
def test_a_query_finds_the_same_steps_as_a_plain_filter(db, rows, queries):
    buffer = db.buffer("q")
    buffer.clear()
    episodes = [
        {**row, "episode_id": f"{k}-{buffer.stats()['added']}"} for k, row in enumerate(rows)
    ]
    positions = buffer.store_batch(episodes).tolist()
    rows = [{**row, "position": position} for row, position in zip(rows, positions, strict=True)]
    for query in queries:
        builder = build(query)
        wanted = [row["position"] for row in rows if matches(row, query)]
        text = str(builder)
        assert str(QueryBuilder.from_text(text)) == text
        for where in (builder, builder.build(), text):
            assert [
                p for batch in buffer.scan(where, size=5) for p in batch["position"].tolist()
            ] == wanted
        assert buffer.count(builder) == len(wanted)
        tasks = list(dict.fromkeys(row["task_id"] for row in rows if row["position"] in wanted))
        assert buffer.tasks(builder) == tasks
        if tasks:
            drawn = buffer.sample_tasks(len(tasks), builder, seed=0)
            assert set(drawn) == set(tasks)
            matching = buffer.sample_tasks(len(tasks), builder, rows="matching", seed=0)
            assert (
                sorted(p for batch in matching.values() for p in batch["position"].tolist())
                == wanted
            )
            assert set(buffer.sample(20, builder, seed=0)["position"].tolist()) <= set(wanted)


def test_builders_with_misplaced_operators_raise():
    for builder in (
        QueryBuilder().eq("task_id", "a").and_(), QueryBuilder().and_().eq("task_id", "a"),
        QueryBuilder().eq("task_id", "a").and_().or_().eq("task_id", "b"),
    ):  # fmt: skip
        with pytest.raises(expdb.QueryError, match="must be joined"):
            builder.build()


def test_an_unknown_name_is_an_error_with_a_suggestion(scratch):
    scratch.store(x=1)
    for name in (
        "task_id; DROP TABLE steps", 'task_id"', "tags.a'b", 'tags.a"."b', "tags.", "tags",
        "tags.a.b", "no_such", "", "__class__", "episodes.task_id", "buffer_id", "payload", None, 5,
    ):  # fmt: skip
        for op in ("eq", "is_null", "like"):
            with pytest.raises(
                expdb.QueryError, match=r"a query uses|did you|letters, digits|write tags"
            ) as caught:
                scratch.count({"field": name, "op": op, "value": "a"})
            assert "\n" not in str(caught.value)
        with pytest.raises(expdb.QueryError):
            scratch.index(name)
    assert scratch.count() == 1


@pytest.mark.parametrize(
    ("name", "op", "value", "message"),
    [
        ("reward", "eq", float("nan"), "is_null"), ("reward", "eq", None, "is_null"),
        ("tags.d", "eq", None, "is_null"),
        ("task_id", "eq", 5, "compared with text"), ("reward", "eq", "5", "compared with numbers"),
        ("reward", "like", "5%", "use eq"), ("reward", "eq", True, "numbers"),
        ("terminated", "gt", True, r"eq\(\) or ne"),
        ("terminated", "eq", 5, "True or False"), ("step", "eq", 2**63, "64 bits"),
        ("step", "eq", [1], "value of type list"),
        ("task_id", "in", "abc", "a list of values"), ("task_id", "in", [None], "is_null"),
        ("task_id", "nope", 1, "unknown comparison"),
        ("tags.d", "gt", True, r"eq\(\) or ne"), ("tags.d", "like", 5, "use eq"),
        ("task_id", "eq", "\ud800", "surrogate"),
        ("task_id", "in", ["a"] * 40_000, "at most"), ("task_id", "like", "a\\", "double the"),
    ],
)  # fmt: skip
def test_invalid_comparisons_are_errors(scratch, name, op, value, message):
    with pytest.raises(expdb.QueryError, match=message):
        scratch.count({"field": name, "op": op, "value": value})


def test_invalid_queries_are_errors(scratch):
    for where in (
        5, {}, {"and_": [1]}, {"and_": []}, {"field": "task_id", "op": "eq"},
        {"field": "a", "op": "eq", "value": 1, "x": 2}, np.zeros(3), np.zeros((2, 2), int),
        ["a"], [1.5], [True], [2**63],
    ):  # fmt: skip
        with pytest.raises(expdb.QueryError):
            scratch.count(where)


def test_long_chains_compile_and_deep_nesting_is_refused(scratch):
    scratch.store(task_id="t50")
    chain = QueryBuilder().eq("task_id", "t0")
    for k in range(1, 600):
        chain.or_().eq("task_id", f"t{k}")
    assert scratch.count(chain) == 1
    nested = QueryBuilder().eq("task_id", "t50")
    for _ in range(300):
        nested = QueryBuilder().eq("task_id", "t50").and_().nested(nested)
    with pytest.raises(expdb.QueryError, match="nested"):
        scratch.count(nested)
    wide = (
        QueryBuilder()
        .in_("step", range(29_000))
        .or_()
        .in_("task_id", [f"t{k}" for k in range(29_000)])
    )
    assert scratch.count(wide) == 1


@pytest.mark.parametrize("column", ["step", "policy_version", "reward", "position"])
def test_large_integers_and_floats_compare_exactly(buffer, column):
    buffer.store_batch(
        [
            {"episode_id": str(s), "step": s, "policy_version": s, "reward": r}
            for s, r in ((2**53, 2.0**53), (2**53 + 1, 0.5), (2**63 - 1, -3.0), (-(2**63), None))
        ]
    )
    stored = {
        "step": [2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
        "reward": [2.0**53, 0.5, -3.0, None],
        "position": [0, 1, 2, 3],
    }
    stored["policy_version"] = stored["step"]
    values = [0.5, 1.0, 2.5, -3, 2.0**53, 2**53 + 1, 2**63 - 1, 2.0**63, -(2.0**63)]
    values += [1e300, -1e300, float("inf"), -float("inf")]
    for op, holds in (("eq", eq), ("gt", gt), ("gte", ge), ("lt", lt), ("lte", le)):
        for value in values:
            expected = [
                number for number in stored[column] if number is not None and holds(number, value)
            ]
            assert buffer.count({"field": column, "op": op, "value": value}) == len(expected), (
                op,
                value,
            )
            if op == "eq":
                assert buffer.count({"field": column, "op": "ne", "value": value}) == 4 - len(
                    expected
                )
    assert buffer.count({"field": column, "op": "in", "value": values}) == sum(
        number in values for number in stored[column]
    )


def test_positions_beyond_64_bits_match_no_step_and_get_rejects_them(buffer):
    buffer.store(x=1)
    assert buffer.count(np.array([2**64 - 1, 0], np.uint64)) == 1
    with pytest.raises(expdb.InvalidValue, match="64 bits"):
        buffer.get(np.array([2**64 - 1], np.uint64))


@pytest.mark.slow
def test_a_query_with_too_many_values_is_refused(db, buffer):
    buffer.store(reward=0.5)
    with reading(db) as session:
        if hasattr(
            session.driver, "setlimit"
        ):  # Debian's SQLite allows 250,000 values, which takes long
            session.driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 50_000)
    wide = QueryBuilder().in_("reward", [k + 0.5 for k in range(29_000)])
    assert buffer.count(wide) == 1
    for _ in range(2):
        wide.or_().in_("reward", [k + 0.5 for k in range(29_000)])
    with pytest.raises(expdb.QueryError, match="too large"):
        buffer.count(wide)


def test_build_returns_plain_json():
    built = (
        QueryBuilder().eq("reward", np.float32(0.5)).and_().in_("step", np.array([1, 2])).build()
    )
    assert json.loads(json.dumps(built)) == built
    for values in ("abc", b"a", 5, None, {"a": 1}):
        with pytest.raises(expdb.QueryError, match="list of values"):
            QueryBuilder().in_("task_id", values)
    with pytest.raises(expdb.QueryError, match=r"nested\(\) must get"):
        QueryBuilder().nested(None)
    assert "and_" in repr(QueryBuilder().eq("a", 1).and_())


def test_the_buffer_name_is_a_column(db):
    db.buffer("one").store(x=1)
    assert db.buffer("one").count({"buffer": "one"}) == 1
    assert db.buffer("one").count({"buffer": "two"}) == 0
    assert db.buffer("one").get([0], fields=["buffer"])["buffer"].tolist() == ["one"]


def plan(db, buffer, where):
    """Return the query plan of the database for the positions of matching steps."""
    from expdb.storage.reading import select

    statement = select._steps(store_of(buffer), store_of(buffer).compiled(where), select.S.position)
    with reading(db) as session:
        compiled = statement.compile(
            dialect=session.connection.dialect, compile_kwargs={"render_postcompile": True}
        )
        if session.connection.dialect.name == "postgresql":
            return " / ".join(
                row[0]
                for row in session.driver.execute(f"EXPLAIN {compiled}", compiled.params).fetchall()
            )
        params = [compiled.params[name] for name in compiled.positiontup]
        return " / ".join(
            row[3]
            for row in session.driver.execute(f"EXPLAIN QUERY PLAN {compiled}", params).fetchall()
        )


def test_indexed_queries_do_not_scan_the_whole_table(open_db):
    db = open_db()
    buffer = db.buffer("b")
    if db.location.startswith("postgresql:"):
        rows = [
            {"task_id": f"t{k}", "tags": {"d": "hard" if k % 100 == 0 else k}} for k in range(5000)
        ]
        for start in range(0, 5000, 2500):  # a larger batch takes a statement for each episode
            buffer.store_batch(rows[start : start + 2500])
        for name in ("tags.d", "tags.d", "agent_id"):
            buffer.index(name)
        with writing(db) as session:  # the server also does this by itself from time to time
            for table in ("buffers", "episodes", "segments", "steps"):
                session.query(f"ANALYZE {table}")
        assert "steps_by_tags_d" in plan(db, buffer, {"tags.d": "hard"})
        assert "episodes_by_task_id" in plan(db, buffer, {"task_id": "t1"})
        assert buffer.count({"tags.d": "hard"}) == 50
        assert buffer.count({"tags.d": 5.0}) == 1
        return
    buffer.store_batch([{"task_id": f"t{k}", "tags": {"d": "hard"}} for k in range(10)])
    assert plan(db, buffer, {"tags.d": "hard"}).startswith(
        "SEARCH steps USING PRIMARY KEY (buffer_id=?)"
    )
    buffer.index("tags.d")
    buffer.index("tags.d")
    buffer.index("agent_id")
    buffer.score([1], name="judge", value=0.5)
    buffer.index("scores.judge")
    db = open_db()  # SQLite explains a prepared statement with its old plan
    buffer = db.buffer("b")
    assert "steps_by_tags_d (buffer_id=? AND <expr>=?)" in plan(db, buffer, {"tags.d": "hard"})
    score_plan = plan(db, buffer, {"scores.judge": 0.5})
    assert score_plan.startswith(
        "SEARCH steps USING COVERING INDEX steps_by_scores_judge (buffer_id=? AND <expr>=?)"
    )
    task_plan = plan(db, buffer, {"task_id": "t1"})
    assert task_plan.startswith(
        "SEARCH episodes USING COVERING INDEX episodes_by_task_id (buffer_id=? AND task_id=?)"
    )
    assert "SEARCH steps USING PRIMARY KEY (buffer_id=? AND position>? AND position<?)" in task_plan
    assert "episodes_by_task_name" in plan(
        db, buffer, QueryBuilder().eq("task_name", "n").and_().gt("reward", 0.5)
    )
    assert buffer.count({"tags.d": "hard"}) == 10


def test_a_list_of_positions_is_a_query(buffer):
    buffer.store_batch([{"n": n} for n in range(6)])
    for where in (
        [1, 3, 77], (1, 3), range(1, 4, 2), np.array([1, 3]), np.array([1, 3, 77], np.uint8),
        [np.int64(1), 3],
    ):  # fmt: skip
        assert buffer.count(where) == 2
        assert set(buffer.sample(32, where, seed=0)["n"].tolist()) == {1, 3}
        assert [n for batch in buffer.scan(where) for n in batch["n"].tolist()] == [1, 3]
    assert buffer.count([]) == buffer.count(np.arange(0)) == 0
    assert buffer.update([1, 3], tags={"a": 1}) == 2
    assert buffer.delete([1, 3]) == 2


@pytest.mark.parametrize(
    ("query", "hint"),
    [("SELECT action FROM experience", r"; action is a field, so write field\(payload, 'action'\)"),
     ("SELECT e.actin FROM experience e", r"; did you mean the field action\? Write field\("),
     ("SELECT nope FROM experience_episodes", r"; SELECT \* FROM experience_episodes LIMIT 1"),
     ("SELECT reward FROM experience_draws", r"; SELECT \* FROM experience_draws LIMIT 1"),
     ("SELECT d.trainerstep FROM experience_draws d", r"; did you mean trainer_step\?"),
     ("SELECT action FROM experience_episodes", r"and query the view experience$"),
     ("SELEC 1", r"; the views are experience, experience_episodes")],
)  # fmt: skip
def test_an_unknown_name_in_sql_is_explained_briefly(buffer, db, query, hint):
    buffer.store(action=1)
    with pytest.raises(errors.SqlError, match=hint) as raised:
        db.sql(query)
    assert len(str(raised.value)) < 200
    assert "\n" not in str(raised.value)
    assert db.sql("SELECT 1").num_rows == 1
