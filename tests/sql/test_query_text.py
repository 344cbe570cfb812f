"""Queries as text: every mistake is an error with its position, and nothing is executed."""

import time

import numpy as np
import pytest

import expdb
from expdb import QueryBuilder

EQUIVALENT_QUERIES = [
    ("reward > 0.5", QueryBuilder().gt("reward", 0.5)),
    ("reward > .5", QueryBuilder().gt("reward", 0.5)),
    ("reward > +1.", QueryBuilder().gt("reward", 1.0)),
    ("reward>=-1e3", QueryBuilder().gte("reward", -1e3)),
    ("reward < Infinity", QueryBuilder().lt("reward", float("inf"))),
    ("step <> 3", QueryBuilder().ne("step", 3)),
    ("task_id == fix-parser/7", QueryBuilder().eq("task_id", "fix-parser/7")),
    ("task_id = a AND step=1", QueryBuilder().eq("task_id", "a").and_().eq("step", 1)),
    ("task_id = 'it''s (a) and b'", QueryBuilder().eq("task_id", "it's (a) and b")),
    ('task_id = "say \\"no\\""', QueryBuilder().eq("task_id", 'say "no"')),
    ("task_id = '1'", QueryBuilder().eq("task_id", "1")),
    ("tags.ok = true", QueryBuilder().eq("tags.ok", True)),
    ("task_id ~ a_%", QueryBuilder().like("task_id", "a_%")),
    ("task_id not like 'a''%'", QueryBuilder().not_like("task_id", "a'%")),
    ("tags.n in (1, 2.5, x, 'y z')", QueryBuilder().in_("tags.n", [1, 2.5, "x", "y z"])),
    ("tags.n not in ()", QueryBuilder().not_in("tags.n", [])),
    ("step = 1\xa0and\xa0step = 1", QueryBuilder().eq("step", 1).and_().eq("step", 1)),
    ("reward = null", QueryBuilder().is_null("reward")),
    ("reward is null", QueryBuilder().is_null("reward")),
    ("reward != None", QueryBuilder().is_not_null("reward")),
    ("reward IS NOT NULL", QueryBuilder().is_not_null("reward")),
    (
        "step = 0 or step = 1 and task_id = a",
        QueryBuilder().eq("step", 0).or_().nested(
            QueryBuilder().eq("step", 1).and_().eq("task_id", "a")
        ),
    ),
    (
        "(step = 0 or step = 1)and task_id = a",
        QueryBuilder().nested(QueryBuilder().eq("step", 0).or_().eq("step", 1)).and_().eq(
            "task_id", "a"
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "builder"), EQUIVALENT_QUERIES)
def test_text_builds_the_same_query_as_a_builder(text, builder):
    assert QueryBuilder.from_text(text).build() == builder.build()
    assert QueryBuilder.from_text(str(builder)).build() == builder.build()


def test_long_and_deep_queries_are_written_and_parsed(scratch):
    scratch.store(x=0)
    long, deep = QueryBuilder().eq("step", 0), QueryBuilder().eq("step", 0)
    for step in range(5000):
        long.or_().eq("step", step)
    for step in range(90):
        deep = QueryBuilder().eq("step", step).and_().nested(deep)
    assert str(QueryBuilder.from_text(str(long))) == str(long)
    assert str(QueryBuilder.from_text(str(deep))) == str(deep)
    assert scratch.count(str(deep)) == scratch.count(deep)
    for _ in range(2000):
        deep = QueryBuilder().eq("step", 0).and_().nested(deep)
    with pytest.raises(expdb.QueryError, match="nested too deeply"):
        str(deep)
    with pytest.raises(expdb.QueryError, match="use is_null"):
        str(QueryBuilder().eq("reward", None))


def test_parameters_are_bound_as_values(scratch):
    name = "x' or 'a' = 'a"
    scratch.store_batch([{"task_id": "a", "x": 0}, {"task_id": name, "x": 1}, {"x": 2}])
    assert scratch.get([1])["x"] == scratch.sample(1, ("task_id = :task", {"task": name}))["x"]
    assert scratch.count(("task_id in (:tasks, 'b')", {"tasks": ["a", name]})) == 2
    assert scratch.count(("step >= :n and task_id != :task", {"n": np.int64(0), "task": "a"})) == 2
    assert scratch.count(("reward = :reward", {"reward": None})) == 3
    for values in ({"a", name}, np.array(["a", name]), {"a": 0}):
        count = 1 if isinstance(values, dict) else 2
        values = values.keys() if isinstance(values, dict) else values
        assert scratch.count(("task_id in :tasks", {"tasks": values})) == count
    for text, parameters, message in (
        ("task_id = :task", {}, r"parameter :task has no value; .* character 11 "),
        ("task_id = :task", {":task": "a"}, "in the mapping, without the colon"),
        ("task_id = :task", {"task": "a", "other": 1, 2: 3}, "does not use the parameter 'other'"),
        ("task_id in :task", {"task": iter("a")}, "is an iterator; pass a list"),
        ("step = :step", {"step": 10**5000}, "does not fit 64 bits"),
        ("task_id = :task", "a", "must be a tuple of its text and a mapping"),
    ):
        with pytest.raises(expdb.QueryError, match=message):
            scratch.count((text, parameters))
    with pytest.raises(expdb.QueryError, match="parameters must be a mapping"):
        QueryBuilder.from_text("task_id = :task", "a")


def test_the_text_of_a_builder_with_numpy_parameters_is_equivalent():
    for value in (np.int64(1), np.float32(0.5), np.bool_(True), "a"):
        query = QueryBuilder.from_text("tags.x = :value", {"value": value})
        assert QueryBuilder.from_text(str(query)).build() == query.build()
    values = ["a"]
    query = QueryBuilder.from_text("tags.x in :values", {"values": values})
    values.append("b")
    assert str(query) == "tags.x in ('a')"


QUOTE = "must be in quotation marks"
MISTAKES = [
    ("", "expected a condition", 1), ("   ", "expected a condition", 4),
    ("reward", "expected an operator", 7), ("reward >", "expected a value", 9),
    ("reward > 0.5 and", "expected a condition", 17), ("and reward > 1", "expected a condition", 1),
    ("reward > 1 or or step = 1", "expected a condition", 15),
    ("(reward > 1", "not closed; add ')'", 1), ("reward > 1)", "unmatched ')'", 11),
    ("((reward > 1)", "not closed; add ')'", 1), ("reward > (1)", QUOTE, 10),
    ("step in (1, 2", "list is not closed", 9), ("step in 1", "expected a list", 9),
    ("step in (1 2)", "expected ',' or ')'", 12), ("step in (1,,2)", "expected a value", 12),
    ("task_id = 'a", "quotation mark is not closed", 11),
    ('task_id = "a', "quotation mark is not closed", 11),
    ("task_id = 'a' 'b'", "unexpected", 15), ("task_id = 'a'b", "unexpected", 14),
    ("rewrd > 1", "did you mean 'reward'", 1), ("step = 1 and rewrd > 1", "did you mean", 14),
    ("tag.split = 'x'", "unknown name 'tag.split'", 1), ("tags = 'x'", "write tags.<key>", 1),
    ("exp_meta.task_id = a", "use 'task_id', or the adapter expdb.integrations.aworld", 1),
    ("score.judge > 1", "did you mean 'scores.judge'", 1),
    ("status = 'completed'", "did you mean 'complete'", 1),
    ("reward > 'high'", "compared with numbers", 1), ("reward > high", "expected a number", 10),
    ("task_id = 5", "compared with text", 1), ("terminated > true", "eq() or ne()", 1),
    ("step = 1 adn reward > 1", "unexpected 'adn'", 10),
    ("task_id = a adn step > 1", "unexpected 'adn'", 13),
    ("task_id = 'a' adn step > 1", "unexpected 'adn'", 15),
    ("task_id != a & reward is null", "unexpected '&'", 14),
    ("task_id != a, reward is null", "unexpected ','", 13),
    ("task_id not like a% adn step = 1", "unexpected 'adn'", 21),
    ("task_id !=  and reward is null", "expected a value", 13),
    ("task_id != a limit 1", "unexpected 'limit'", 14),
    ("task_id != Null", "neither a constant nor text", 12), ("tags.x = none", "write null", 10),
    ("task_id not like null", "neither a constant nor text", 18),
    ("task_id like\u00e9a", "expected an operator", 9),
    ("task_id != agent_id", "'agent_id' is a column", 12),
    ("task_id != tags.split", "'tags.split' is a column", 12),
    ("not reward > 1", "'not' is allowed only before", 1),
    ("reward is 1", "expected 'null' after 'is'", 11),
    ("task_id \u0131s null", "expected an operator", 9),
    ("reward between 0 and 1", "expected an operator", 8), ("reward => 1", QUOTE, 9),
    ("tags.x > .5.5", QUOTE, 10), ("tags.x > 0,5", "unexpected ',5'", 11),
    ("tags.x = 1_0", QUOTE, 10), ("tags.x = 1+1", QUOTE, 10), ("tags.x = 50%", QUOTE, 10),
    ("tags.x in (1;2)", QUOTE, 12), ("tags.x in (1..5)", QUOTE, 12),
    ("tags.x = 2024-01-05", QUOTE, 10),
    ("reward > nan", "use is_null", 1), ("reward > NaN", "use is_null", 1),
    ("tags.x = `hard`", QUOTE, 10), ("tags.x = \u201chard\u201d", QUOTE, 10),
    ("task_id = b'a'", QUOTE, 11), ("task_id = don't", QUOTE, 11), ("task_id = ?", QUOTE, 11),
    ("task_id = %s", QUOTE, 11), ("task_id != {name}", QUOTE, 12),
    ("task_id = n -- comment", "unexpected '--'", 13),
    ("tags.a = 1 && tags.b = 2", "unexpected '&&'", 12),
    ("task_id = 'O'Brien'", "write '' for an apostrophe", 14),
    ("reward > : limit", "expected a name after ':'", 10),
    ("1 = 1", "expected a condition", 1), ("'a' = 'a'", "expected a condition", 1),
    ("task_id = a; DROP TABLE steps", QUOTE, 11),
    ("task_id = 'a' OR 1=1 --", "expected a condition", 18),
    ("task_id = 'a' UNION SELECT 1", "unexpected 'UNION'", 15),
    ("task_id = (SELECT name FROM buffers)", QUOTE, 11),
    ("sqlite_version() = '3'", "expected an operator", 15),
    ("(" * 120 + "step = 1" + ")" * 120, "nested too deeply", 101),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem", "position"), MISTAKES)
def test_error_messages_are_one_line_with_the_position(scratch, text, problem, position):
    scratch.store(x=0)
    with pytest.raises(expdb.QueryError) as caught:
        scratch.count(text)
    message = str(caught.value)
    assert problem in message
    assert f"(at character {position} of " in message
    assert "\n" not in message
    assert scratch.count() == 1


def test_an_error_shows_only_the_part_of_a_long_text_with_the_mistake():
    text = " or ".join(f"step = {number}" for number in range(1000)) + " or rewrd > 1"
    with pytest.raises(expdb.QueryError) as caught, expdb.open(":memory:") as db:
        db.buffer("b").count(text)
    assert "rewrd > 1" in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.raises(expdb.QueryError, match="pass long lists as parameters"):
        QueryBuilder.from_text(" " * 1_000_001)


def test_parsing_a_long_text_takes_seconds_at_most():
    start = time.process_time()
    for part in (" ", "a", " a", "'", "''", "(", "and ", "not ", ":", ".", "1"):
        with pytest.raises(expdb.QueryError):
            QueryBuilder.from_text("task_id = a" + part * (300_000 // len(part)) + ";")
    assert time.process_time() - start < 10.0  # quadratic growth takes several minutes
