"""Tags are merged, concurrent annotators lose no tags, and updates without a match warn."""

import threading
import time

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st
from processes import FORKSERVER, run_at_once

import expdb
from expdb import errors
from expdb.cli import main

pytestmark = pytest.mark.both_databases


def tags_of(buffer, name="tags"):
    """Return the tags of each step, by position."""
    return [row[name] for batch in buffer.scan(fields=[name]) for row in batch.to_list()]


@pytest.fixture
def buffer(db):
    buffer = db.buffer("train")
    for k in range(4):
        tags = {"split": "train", "k": k} if k % 2 else None
        buffer.store(task_id=f"t{k}", episode_id=f"e{k}", x=k, tags=tags, truncated=True)
    return buffer


@pytest.mark.parametrize("loads_rows", [False, True])
def test_revision_counts_changes_to_stored_steps(open_db, loads_rows):
    with open_db() as db, open_db() as other_db:
        buffer, other = db.buffer("train"), other_db.buffer("train")
        buffer.store_batch([{"x": k, "tags": {"k": k}} for k in range(4)])
        if loads_rows:
            buffer.sample(4, unit=expdb.NStep(1))
        revision = buffer.revision
        assert revision == buffer.stats()["revision"]
        buffer.store(x=9)
        buffer.update_priorities([0], [1.0])
        other.store(x=9)
        assert buffer.revision == revision
        for change in (
            lambda: buffer.update([0], tags={"k": 5}),
            lambda: other.update([1], tags={"k": 6}),
            lambda: other.delete([2]),
        ):
            change()
            until = time.monotonic() + 10
            while buffer.revision == revision and time.monotonic() < until:
                time.sleep(0.01)
            assert buffer.revision == revision + 1
            revision = buffer.revision
        for change in (
            lambda: buffer.update([0], reward=2.0),
            lambda: buffer.update([0], policy_version=2),
            buffer.clear,
        ):
            change()
            assert buffer.stats()["revision"] > revision
            revision = buffer.stats()["revision"]


def test_update_merges_tags_and_none_removes_a_tag(buffer):
    assert buffer.update({"task_id": "t1"}, tags={"judge": 0.5}) == 1
    assert buffer.update([0, 1], **{"tags.second": "ok"}) == 2
    assert buffer.update([1, 3], tags={"k": None, "split": "test"}) == 2
    assert tags_of(buffer) == [
        {"second": "ok"},
        {"split": "test", "judge": 0.5, "second": "ok"},
        None,
        {"split": "test"},
    ]
    assert buffer.count({"tags.judge": 0.5}) == 1
    buffer.update([0], tags={"second": None})
    assert tags_of(buffer)[0] is None


def test_querying_for_the_tag_that_an_update_sets_does_not_warn(buffer):
    unjudged = expdb.QueryBuilder().is_null("tags.judge")
    assert buffer.update(unjudged, **{"tags.judge": 1.0}) == 4  # no warning
    assert buffer.update(expdb.QueryBuilder().is_null("tags.new"), tags={"new": 1}) == 4
    with pytest.warns(errors.ExpDBWarning, match=r"has the tag tags\.jugde, did you mean"):
        buffer.update(expdb.QueryBuilder().eq("tags.jugde", 1), **{"tags.judge": 0.0})


@pytest.mark.one_database
def test_tag_keys_that_queries_cannot_address_are_rejected(buffer):
    with pytest.raises(expdb.QueryError, match="letters, digits and _"):
        buffer.update([0], **{"tags.a.b": 1})


def test_replace_tags_replaces_all_tags_of_a_step(buffer):
    buffer.update([1], tags={"only": 1}, replace_tags=True)
    buffer.update([3], tags=None)
    assert tags_of(buffer) == [None, {"only": 1}, None, None]


def test_update_merges_episode_tags(buffer):
    buffer.update({"task_id": "t0"}, episode_tags={"a": 1})
    buffer.update({"task_id": "t0"}, reward=1.0, **{"episode_tags.b": [1, {"c": None}]})
    assert tags_of(buffer, "episode_tags")[0] == {"a": 1, "b": [1, {"c": None}]}
    buffer.update({"task_id": "t0"}, episode_tags={"z": 0}, replace_tags=True)
    assert tags_of(buffer, "episode_tags")[0] == {"z": 0}


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"tags.a": 1, "tags": {"a": 2}}, "conflicts with tags="),
        ({"tags.a": 1, "tags": None}, "conflicts with tags="),
        ({"tags.": 1}, "cannot set tags"),
        ({"task_id.a": 1}, "cannot set task_id"),
        ({"tags": [1]}, "tags must be a mapping"),
        ({"tags.a": float("nan")}, "a"),
        ({"tags": {}, "replace_tags": 3}, "replace_tags"),
        ({"reward": 1.0, "required": "yes"}, "required"),
    ],
)
def test_invalid_tag_updates_are_rejected(buffer, columns, match):
    before = tags_of(buffer)
    with pytest.raises(expdb.InvalidValue, match=match):
        buffer.update([0], **columns)
    assert tags_of(buffer) == before


def test_updating_an_unknown_episode_warns_or_raises_if_required(buffer):
    with pytest.warns(errors.ExpDBWarning, match="the steps are flushed and not evicted"):
        assert buffer.update({"episode_id": "unknown"}, reward=1.0, which="last") == 0
    with pytest.raises(expdb.TooFewRows, match="found no step of buffer 'train' that matches"):
        buffer.update({"episode_id": "unknown"}, reward=1.0, required=True)
    assert buffer.update({"task_id": "unknown"}, reward=1.0) == 0  # a query may match nothing
    with pytest.raises(expdb.TooFewRows):
        buffer.update({"task_id": "unknown"}, reward=1.0, required=True)
    assert buffer.update({"episode_id": "e0"}, reward=1.0, required=True) == 1


values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"],
    exclude_characters="\0"), max_size=3) | st.booleans()  # fmt: skip
keys = st.sampled_from(["a", "b", 'c"d', "e.f", "\N{SNOWMAN}"])


def annotate(location, judge, count):
    with expdb.open(location, timeout=60.0) as db:
        buffer = db.buffer("train")
        for k in range(count):
            buffer.update({"step": 0}, tags={f"{judge}.{k}": k})


def test_concurrent_annotators_lose_no_tags(location, buffer):
    processes = [FORKSERVER.Process(target=annotate, args=(location, j, 20)) for j in ("p", "q")]
    threads = [threading.Thread(target=annotate, args=(location, j, 20)) for j in ("r", "s")]
    run_at_once([*processes, *threads])
    expected = {f"{judge}.{k}": k for judge in "pqrs" for k in range(20)}
    for tags in tags_of(buffer):
        assert {name: tags[name] for name in expected} == expected
    assert tags_of(buffer)[1]["split"] == "train"


def run(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.output.strip()


def test_tag_command_tags_steps_and_episodes(tmp_path):
    path = str(tmp_path / "runs.db")
    with expdb.open(path) as db:
        for k in range(3):
            db.buffer("train").store(episode_id=f"e{k}", x=k, tags={"split": "train"})
    assert run("tag", path, "train", "episode_id = e1", "judge=0.7") == (0, "1 step tagged")
    assert run("tag", path, "train", "position >= 0", "note=a = b", "--json") == (
        0, '{"steps": 3}',
    )  # fmt: skip
    assert run("tag", path, "train", "episode_id = e2", "label=hard", "--episode")[0] == 0
    assert run("tag", path, "train", "episode_id = e0", "split=null")[0] == 0
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        assert tags_of(buffer) == [
            {"note": "a = b"},
            {"split": "train", "judge": 0.7, "note": "a = b"},
            {"split": "train", "note": "a = b"},
        ]
        assert tags_of(buffer, "episode_tags")[2] == {"label": "hard"}
    every = "tag", path, "train", "position >= 0"
    assert run(*every, "tags.judge=1") == (0, "3 steps tagged")
    assert run(*every, "episode_tags.level=1", "--episode") == (
        0, "the episodes of 3 steps tagged",
    )  # fmt: skip
    with expdb.open(path) as db:
        assert db.buffer("train").count({"tags.judge": 1, "episode_tags.level": 1}) == 3
    missing = "tag", path, "train", "episode_id = e9", "judge=1"
    code, output = run(*missing)
    assert code == 0
    assert output.startswith("Warning: update() changed nothing, because ")
    assert '"value": "e9"' in output.splitlines()[0]
    code, output = run(*missing, "--required")
    assert code == 1
    assert "Error: update() found no step" in output
    assert "expected a condition, got none" in run("tag", path, "train", "judge=1")[1]
    assert "remove --episode" in run(*every, "tags.a=1", "--episode")[1]
    assert "has no value" in run(*every, "judge=")[1]
    assert "is not valid JSON" in run(*every, "judge={bad")[1]
    assert "letters, digits and _" in run(*every, "a.b=1")[1]
    assert "expected KEY=VALUE" in run("tag", path, "train", "step = 0", "judge")[1]


CHANGES = {
    "reward": lambda buffer, where, value: buffer.update(where, reward=value),
    "tags": lambda buffer, where, value: buffer.update(where, tags={"k": value}),
    "score": lambda buffer, where, value: buffer.score(where, name="judge", value=value),
}


@pytest.mark.one_database
@pytest.mark.filterwarnings("ignore:update.. sets the reward")
@pytest.mark.parametrize("name", CHANGES)
def test_a_server_changes_many_steps_as_fast_after_a_change_of_one_step(postgresql_url, name):
    """If PL/pgSQL reuses the plan for one step, changing 4,000 steps takes ten times as long."""
    with expdb.open(postgresql_url) as db:
        rows = {"episode_id": [f"e{k // 500}" for k in range(4000)], "x": [0] * 4000}
        db.buffer("many").store_batch({**rows, "reward": [0.0] * 4000})
    seconds = {}
    for value, after_one in ((1.0, False), (2.0, True), (3.0, False), (4.0, True)):
        with expdb.open(postgresql_url) as db:
            buffer = db.buffer("many")
            if after_one:
                CHANGES[name](buffer, [0], value - 0.5)
            start = time.perf_counter()
            CHANGES[name](buffer, range(4000), value)
            seconds.setdefault(after_one, []).append(time.perf_counter() - start)
    assert min(seconds[True]) < 4 * min(seconds[False])


def test_the_last_step_is_that_of_each_agent_with_a_matching_step(db):
    buffer = db.buffer("agents")
    for agent, steps in (("a", 3), ("b", 2)):
        for step in range(steps):
            buffer.store(episode_id="e", agent_id=agent, step=step, reward=0.0)
    buffer.end_episode("e")
    assert buffer.update({"agent_id": "b"}, reward=1.0, which="last") == 1
    assert buffer.get(range(5))["reward"].tolist() == [0, 0, 0, 0, 1]
    assert buffer.update({"episode_id": "e"}, terminated=True, which="last") == 2
    assert buffer.get(range(5))["terminated"].tolist() == [False, False, True, False, True]
