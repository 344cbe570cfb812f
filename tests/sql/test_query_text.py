"""Queries as text: every mistake is an error with its position, and nothing is executed."""

import numpy as np
import pytest

import expdb
from expdb import QueryBuilder

EQUAL = [
    ("reward > 0.5", QueryBuilder().gt("reward", 0.5)),
    ("reward>=-1e3", QueryBuilder().gte("reward", -1e3)),
    ("step <> 3", QueryBuilder().ne("step", 3)),
    ("task_id = fix the parser", QueryBuilder().eq("task_id", "fix the parser")),
    ("task_id = don't AND step=1", QueryBuilder().eq("task_id", "don't").and_().eq("step", 1)),
    ("task_id = 'it''s (a) and b'", QueryBuilder().eq("task_id", "it's (a) and b")),
    ('task_id = "say \\"no\\""', QueryBuilder().eq("task_id", 'say "no"')),
    ("reward > .5", QueryBuilder().gt("reward", 0.5)),
    ("reward > +1.", QueryBuilder().gt("reward", 1.0)),
    ("task_id = '1'", QueryBuilder().eq("task_id", "1")),
    ("tags.ok = true", QueryBuilder().eq("tags.ok", True)),
    ("task_id ~ a_%", QueryBuilder().like("task_id", "a_%")),
    ("task_id not like 'a''%'", QueryBuilder().not_like("task_id", "a'%")),
    ("tags.n in (1, 2.5, x, 'y z')", QueryBuilder().in_("tags.n", [1, 2.5, "x", "y z"])),
    ("tags.n not in ()", QueryBuilder().not_in("tags.n", [])),
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


@pytest.mark.parametrize(("text", "builder"), EQUAL)
def test_text_is_equal_to_a_builder(text, builder):
    assert QueryBuilder.from_text(text).build() == builder.build()
    assert QueryBuilder.from_text(str(builder)).build() == builder.build()


def test_long_queries_are_written_and_parsed():
    builder = QueryBuilder().eq("step", 0)
    for step in range(5000):
        builder.or_().eq("step", step)
    assert str(QueryBuilder.from_text(str(builder))) == str(builder)


def test_parameters_are_values_and_never_text(scratch):
    name = "x' or 'a' = 'a"
    scratch.store_batch([{"task_id": "a", "x": 0}, {"task_id": name, "x": 1}, {"x": 2}])
    assert scratch.get([1])["x"] == scratch.sample(1, ("task_id = :task", {"task": name}))["x"]
    assert scratch.count(("task_id in :tasks", {"tasks": {"a", name}})) == 2
    assert scratch.count(("step >= :n and task_id != :task", {"n": np.int64(0), "task": "a"})) == 2
    assert scratch.count(("task_id in (:tasks, 'b')", {"tasks": ["a", name]})) == 2
    assert scratch.count(("reward = :reward", {"reward": None})) == 3
    with pytest.raises(expdb.QueryError, match="in the mapping, without the colon"):
        scratch.count(("task_id = :task", {":task": "a"}))
    with pytest.raises(expdb.QueryError, match=r"parameter :task has no value; .* character 11 "):
        scratch.count("task_id = :task")
    with pytest.raises(expdb.QueryError, match="does not use the parameter 'other'"):
        scratch.count(("task_id = :task", {"task": "a", "other": 1}))
    with pytest.raises(expdb.QueryError, match="must be a tuple of its text and a mapping"):
        scratch.count(("task_id = :task", "a"))


MISTAKES = [
    ("", "expected a condition", 1), ("   ", "expected a condition", 4),
    ("reward", "expected an operator", 7), ("reward >", "expected a value", 9),
    ("reward > 0.5 and", "expected a condition", 17), ("and reward > 1", "expected a condition", 1),
    ("reward > 1 or or step = 1", "expected a condition", 15),
    ("(reward > 1", "not closed; add )", 1), ("reward > 1)", "no parenthesis is open", 11),
    ("((reward > 1)", "not closed; add )", 1), ("reward > (1)", "expected a value", 10),
    ("step in (1, 2", "list is not closed", 9), ("step in 1", "expected a list", 9),
    ("step in (1 2)", "expected , or )", 12), ("step in (1,,2)", "expected a value", 12),
    ("task_id = 'a", "quotation mark is not closed", 11),
    ('task_id = "a', "quotation mark is not closed", 11),
    ("task_id = 'a' 'b'", "unexpected", 15), ("task_id = 'a'b", "unexpected", 14),
    ("rewrd > 1", "did you mean 'reward'", 1), ("step = 1 and rewrd > 1", "did you mean", 14),
    ("tag.split = 'x'", "unknown name 'tag.split'", 1), ("tags = 'x'", "write tags.<key>", 1),
    ("reward > 'high'", "compared with numbers", 1), ("reward > high", "expected a number", 9),
    ("task_id = 5", "compared with text", 1), ("terminated > true", "eq() or ne()", 1),
    ("step = 1 adn reward > 1", "special characters", 8),
    ("tags.x > .5.5", "expected a number", 9), ("tags.x > reward", "expected a number", 9),
    ("tags.x > 0,5", "special characters", 10), ("tags.x = 50%", "special characters", 10),
    ("tags.x = `hard`", "special characters", 10),
    ("tags.x = \u201chard\u201d", "special characters", 10),
    ("task_id = n -- comment", "special characters", 11),
    ("tags.a = 1 && tags.b = 2", "special characters", 10),
    ("score.judge > 1", "did you mean 'scores.judge'", 1),
    ("status = 'completed'", "did you mean 'complete'", 1),
    ("task_id = 'O'Brien'", "write '' for an apostrophe", 14),
    ("reward > : limit", "expected a name after :", 10),
    ("task_id = a adn step > 1", "special characters", 11),
    ("task_id = 'a' adn step > 1", "unexpected 'adn'", 15),
    ("not reward > 1", "not must stand before", 1), ("reward is 1", "expected null after is", 11),
    ("reward between 0 and 1", "expected an operator", 8), ("reward => 1", "expected a value", 9),
    ("reward > nan", "expected a number", 9), ("reward > NaN", "use is_null", 1),
    ("1 = 1", "expected a condition", 1), ("'a' = 'a'", "expected a condition", 1),
    ("task_id = a; DROP TABLE steps", "special characters", 11),
    ("task_id = 'a' OR 1=1 --", "expected a condition", 18),
    ("task_id = 'a' UNION SELECT 1", "unexpected 'UNION'", 15),
    ("task_id = (SELECT name FROM buffers)", "expected a value", 11),
    ("sqlite_version() = '3'", "expected an operator", 15),
    ("(" * 60 + "step = 1" + ")" * 60, "too many parentheses", 51),
]  # fmt: skip


@pytest.mark.both_databases
@pytest.mark.parametrize(("text", "problem", "position"), MISTAKES)
def test_a_mistake_is_one_line_with_position_and_remedy(scratch, text, problem, position):
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
