"""Tests of the command line, and of its output."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main

ROOT = Path(__file__).parents[2]
GUIDES = "".join(page.read_text() for page in sorted(ROOT.glob("docs/how-to/*.md")))
SQL = (ROOT / "docs/how-to/inspect-with-sql.md").read_text()


@pytest.fixture
def path(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("train", capacity=50)
        for k in range(12):
            buffer.store(
                task_id=f"t{k // 4}",
                task_name="[bold]name",
                reward=k / 10,
                tags={"d": k % 2},
                obs=np.zeros(2),
                terminated=k % 4 == 3,
            )
    return str(tmp_path / "runs.db")


def run(*arguments, status=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_info_shows_buffers_and_fields(path):
    assert "train: 12 steps (50 capacity" in run("info", path)
    info = json.loads(run("info", path, "--json"))
    assert info["buffers"][0]["fields"] == {"obs": "float64[2]"}


def test_sql_prints_rows_and_takes_parameters(path):
    query = "SELECT task_name, count(*) AS n FROM experience WHERE task_id = :task GROUP BY 1"
    assert json.loads(run("sql", path, query, "--param", "task=t1", "--json")) == [
        {"task_name": "[bold]name", "n": 4}
    ]
    assert "[bold]name" in run("sql", path, query, "--param", "task=t1")
    assert "no rows" in run("sql", path, query, "--param", "task=none")
    assert "write --param name=value" in run("sql", path, query, "--param", "task", status=2)


def test_query_shows_steps_tasks_counts_and_episodes(path):
    assert run("query", path, "train", "reward >= 0.5", "tags.d = 1", "--count").strip() == "4"
    assert run("query", path, "train", "reward = null", "--count").strip() == "0"
    assert (
        run("query", path, "train", "terminated = True", "--count")
        == run("query", path, "train", "terminated = true", "--count")
        == "3\n"
    )
    assert run("query", path, "train", "task_name = None", "--count").strip() == "0"
    assert run("query", path, "train", "reward != null", "--count").strip() == "12"
    assert run("query", path, "train", "task_id ~ t%", "--tasks").split() == ["t0", "t1", "t2"]
    assert len(json.loads(run("query", path, "train", "reward<0.35", "--json"))) == 4
    where = '{"field": "step", "op": "eq", "value": 0}'
    tasks = run("query", path, "train", "--where", where, "--tasks", "--json")
    assert json.loads(tasks) == ["t0", "t1", "t2"]
    assert "status" in run("query", path, "train", "task_id = t1", "--episodes")
    episodes = json.loads(run("query", path, "train", "--episodes", "--json"))
    page = run("query", path, "train", "--episodes", "--page", "2", "--size", "1", "--json")
    assert json.loads(page) == episodes[1:2]
    assert "--size" in run("query", path, "train", "--episodes", "--size", "0", status=2)
    first = run("query", path, "train", "--page", "2", "--size", "5").splitlines()[1]
    assert first.startswith("5 ")
    for number in (4, 10**30):
        assert run("query", path, "train", "--page", number, "--size", "5") == "no rows\n"


def test_check_upgrade_and_backup(path, tmp_path):
    assert "is sound" in run("check", path)
    assert json.loads(run("check", path, "--json")) == []
    assert "already" in run("upgrade", path)
    copy = tmp_path / "copy.db"
    assert "bytes" in run("backup", path, copy)
    assert "choose a new file" in run("backup", path, copy, status=1)
    import sqlite3

    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE buffers SET size = 5")
    connection.close()
    assert "12 steps added, oldest position 0, 5 steps stored" in run("check", copy, status=1)


def test_errors_for_bad_conditions_show_the_syntax(path):
    assert "expected an operator" in run("query", path, "train", "reward", status=2)
    assert "cannot be combined" in run(
        "query", path, "train", "reward > 1", "--where", "{}", status=2
    )
    assert "is not valid JSON" in run("query", path, "train", "--where", "{", status=2)


def test_every_command_has_help_with_an_example_and_is_in_the_guides():
    for name in main.commands:
        text = run(name, "--help")
        assert f"Example: expdb {name}" in text
        assert "--json" in text
        assert f"expdb {name}" in GUIDES


def test_the_sql_guide_lists_every_column_of_the_view():
    from expdb.names import VIEW_COLUMNS

    table = SQL.split("| columns | content |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) - {"field"} == set(VIEW_COLUMNS)


def test_doctests_of_public_modules_pass():
    import doctest

    import expdb.chunks.fields
    import expdb.database
    import expdb.sql.query

    for module in (expdb, expdb.database, expdb.sql.query, expdb.chunks.fields):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert results.failed == 0


# -- episodes and files ----------------------------------------------------------------------------


@pytest.fixture
def traces(tmp_path):
    """Return a database with a conversation, a late reward and fields of every type."""
    messages = [{"role": "user", "content": "to Oslo,\nplease \x1b[31m"}]
    function = {"name": "search", "arguments": '{"to": "OSL"}'}
    call = {"id": "c", "type": "function", "function": function}
    answers = (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": "done " * 200},
    )
    with expdb.open(tmp_path / "traces.db", run="r") as db:
        buffer = db.buffer("traces")
        with buffer.episode(
            "flight", episode_id="attempt/1", policy_version=3, episode_tags={"level": "hard"}
        ) as episode:
            for n, answer in enumerate(answers):
                values = {"messages": list(messages), "action": answer, "obs": np.arange(100.0)}
                episode.append(**values, n=n, tags={"turn": n})
                messages += [answer, {"role": "tool", "tool_call_id": "c", "content": "SK123"}]
        buffer.update({"episode_id": "attempt/1"}, reward=0.5, which="last")
        buffer.store(
            task_id="other", text="t", raw=b"\x01", tokens=[1, 2], grid=np.zeros((2, 2)), flag=True
        )
    return str(tmp_path / "traces.db")


def test_show_prints_an_episode_as_a_conversation(traces):
    output = run("show", traces, "attempt/1")
    assert "episode attempt/1: complete, 2 steps, return 0.5" in output
    assert "policy_version 3" in output
    assert output.count("user: to Oslo,\n    please  [31m") == 1, (
        "each message once, without terminal codes"
    )
    assert output.count('assistant calls search({"to": "OSL"})') == 1
    assert "tool: SK123" in output
    assert 'step 1 reward 0.5 {"turn": 1}' in output
    assert "… (1,000 characters)" in output
    assert "1,000 characters" not in run("show", traces, "attempt/1", "--full")
    assert "99." in run("show", traces, "attempt/1", "--full")
    assert run("show", traces, "0", "--buffer", "traces") == output
    trace = json.loads(run("show", traces, "attempt/1", "--json"))
    assert (trace["buffer"], trace["episode_return"], len(trace["steps"])) == ("traces", 0.5, 2)
    assert "the newest episodes are" in run("show", traces, "attempt/2", status=1)
    assert "'flight' is a task, not an episode; pass one of its episodes: attempt/1" in run(
        "show", traces, "flight", status=1
    )
    assert "did you mean 'traces'" in run(
        "show", traces, "attempt/1", "--buffer", "trace", status=1
    )


def test_show_removes_terminal_codes_and_accepts_any_tool_call(tmp_path):
    about = {"agent_id": "a\nforged", "episode_tags": {"k": "\x07"}}
    with (
        expdb.open(tmp_path / "traces.db") as db,
        db.buffer("b").episode("t\x1b[2J", episode_id="e", **about) as episode,
    ):
        for calls in (
            5,
            "text",
            [{"function": "name"}],
            [{"function": ["n"]}],
            [{"tool": "search", "arguments": {"q": 1}}],
            None,
        ):
            episode.append(
                messages=[{"role": "assistant", "tool_calls": calls}], pre_agent="\x9b\u202e"
            )
    output = run("show", tmp_path / "traces.db", "e")
    assert not set(output) & set("\x1b\x07\x9b\u202e")
    assert "\nforged" not in output
    assert 'assistant calls search({"q": 1})' in output


def test_export_distinguishes_texts_and_numbers_in_json(tmp_path):
    import pyarrow.parquet

    with expdb.open(tmp_path / "runs.db") as db:
        db.buffer("b").store_batch([{"j": {"a": 1}}, {"j": "1"}, {"j": 1}, {"j": None}])
    run("export", tmp_path / "runs.db", "b", tmp_path / "b.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "b.parquet")["j"].to_pylist() == [
        '{"a":1}',
        '"1"',
        "1",
        None,
    ]


def test_export_writes_matching_steps_as_standard_parquet(traces, tmp_path):
    import pandas
    import pyarrow.parquet

    target = tmp_path / "out.parquet"
    assert (
        json.loads(
            run("export", traces, "traces", target, "task_id = flight", "--json").splitlines()[-1]
        )["steps"]
        == 2
    )
    table = pyarrow.parquet.read_table(target)
    assert table["reward"].to_pylist() == [None, 0.5]
    assert table["n"].to_pylist() == [0, 1]
    assert table["obs"].combine_chunks().to_numpy_ndarray().shape == (2, 100)
    assert json.loads(table["messages"][1].as_py())[0]["role"] == "user"
    assert json.loads(table["episode_tags"][0].as_py()) == {"level": "hard"}
    assert table["policy_version"].to_pylist() == [3, 3]
    assert [table[name].null_count for name in ("text", "raw", "tokens", "grid", "flag")] == [2] * 5
    assert "name a new file" in run("export", traces, "traces", target, status=1)
    run("export", traces, "traces", tmp_path / "all.parquet")
    frame = pandas.read_parquet(tmp_path / "all.parquet")
    assert len(frame) == 3
    assert frame["tokens"].iloc[2].tolist() == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "all.parquet",
        "out.parquet",
        "traces.db",
    ]
    assert "must end in .parquet" in run("export", traces, "traces", tmp_path / "all.csv", status=1)
    assert "does not exist" in run(
        "export", traces, "traces", tmp_path / "no" / "all.parquet", status=1
    )


def test_export_is_written_batch_by_batch_with_one_schema(tmp_path, monkeypatch):
    import pyarrow.parquet

    from expdb import export
    from expdb.archive import parquet

    monkeypatch.setattr(parquet, "BATCH_STEPS", 4)
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b")
        buffer.store_batch([{"n": n, "late": None} for n in range(5)])
        buffer.store_batch(
            [
                {"n": n, "late": {"a": [n]}, "text": "x", "flags": np.ones(2, bool)}
                for n in range(5, 9)
            ]
        )
        counts = []
        assert export.export(buffer, tmp_path / "b.parquet", progress=counts.append) == 9
    assert counts == [4, 4, 1]
    table = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    assert table["n"].to_pylist() == list(range(9))
    assert table["late"].to_pylist() == [None] * 5 + [f'{{"a":[{n}]}}' for n in range(5, 9)]


def test_commands_that_only_read_leave_no_wal_file(path, tmp_path):
    for arguments in (
        ("info", path),
        ("sql", path, "SELECT 1 AS one"),
        ("check", path),
        ("query", path, "train"),
        ("doctor", path),
        ("why", path, "0"),
    ):
        run(*arguments)
        assert [entry.name for entry in tmp_path.iterdir()] == ["runs.db"], arguments
    with expdb.open(path) as db:
        db.buffer("train").store(task_id="t", obs=np.zeros(2))
        run("info", path)
        assert os.path.exists(f"{path}-wal"), "somebody else's stays"
        db.buffer("train").store(task_id="t", obs=np.zeros(2))
        assert db.check() == []


def test_why_uses_the_only_buffer_or_the_named_buffer(path):
    assert "stored as step 0" in run("why", path, "0")
    assert json.loads(run("why", path, "0", "--json"))[0] in run("why", path, "0")
    with expdb.open(path) as db:
        db.buffer("other")
    assert "pass --buffer with one of" in run("why", path, "0", status=2)
    assert "stored as step 0" in run("why", path, "0", "--buffer", "train")


@pytest.mark.parametrize("option", [["--buffer", "train"], ["--buffer=train"]])
def test_the_option_buffer_replaces_the_argument(path, monkeypatch, option):
    expected = run("query", path, "train", "step = 1", "--count")
    assert run("query", path, *option, "step = 1", "--count") == expected
    assert run("query", *option, path, "step = 1", "--count") == expected
    assert run("tail", path, *option, "-n", "1") == run("tail", path, "train", "-n", "1")
    monkeypatch.setenv("EXPDB_LOCATION", str(path))
    assert run("query", *option, "step = 1", "--count") == expected


def test_the_text_of_the_option_buffer_may_be_a_value(path):
    run("score", path, "train", "step = 0", "judge=1", "--by", "--buffer")
    with expdb.open(path) as db:
        assert set(db.buffer("train").scores()["scored_by"].to_pylist()) == {"--buffer"}
    assert "expected a condition" in run("query", path, "train", "--where", "--buffer", status=2)
    assert "no buffer '--buffer'" in run("query", path, "--count", "--", "--buffer", status=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["query", "PATH", "train", "--buffer", "train"], "'train' is not a condition; pass the"),
     (["leases", "PATH", "train", "--buffer", "b"], "argument (train); pass the buffer once"),
     (["why", "PATH", "train", "0"], "not a valid integer; pass a buffer with --buffer NAME"),
     (["show", "PATH", "train", "e0"], "argument (e0); pass a buffer with --buffer NAME"),
     (["query", "PATH", "reward > 0"], "pass the buffer before the conditions"),
     (["info", "PATH", "train"], "Got unexpected extra argument (train)\n")],
)  # fmt: skip
def test_the_error_for_a_misplaced_buffer_says_where_it_belongs(path, arguments, message):
    given = [path if argument == "PATH" else argument for argument in arguments]
    assert message in run(*given, status=2)


def test_copying_an_unknown_buffer_creates_no_target(path, tmp_path):
    assert "did you mean 'train'" in run(
        "copy", path, tmp_path / "target.db", "--buffer", "trian", status=1
    )
    assert not (tmp_path / "target.db").exists()


def test_the_name_of_a_run_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPDB_RUN", "training-7")
    with expdb.open(tmp_path / "runs.db") as db:
        assert db.run == "training-7"
    with expdb.open(tmp_path / "runs.db", run="mine") as db:
        assert db.run == "mine"
    monkeypatch.setenv("EXPDB_RUN", os.fsdecode(b"\xff"))
    with pytest.raises(expdb.InvalidValue, match="run contains a lone surrogate"):
        expdb.open(tmp_path / "runs.db")
    monkeypatch.setenv("EXPDB_RUN", "")
    with expdb.open(tmp_path / "runs.db") as db:
        assert len(db.run) == 32


def test_vacuum_makes_a_file_smaller(path):
    with expdb.open(path) as db:
        buffer = db.buffer("large")
        buffer.store_batch([{"x": os.urandom(100_000)} for _ in range(20)])
        db.drop("large")
    before = os.path.getsize(path)
    figures = json.loads(run("vacuum", path, "--json"))
    assert figures == {"before": before, "after": os.path.getsize(path)}
    assert figures["after"] < before - 1_000_000
    assert "sound" in run("check", path)


@pytest.mark.parametrize(
    ("name", "meant"), [("list", "info"), ("compact", "vacuum"), ("quer", "query")]
)
def test_unknown_commands_suggest_a_similar_command(name, meant):
    assert f"No such command '{name}'; did you mean `expdb {meant}`?" in run(name, status=2)
    assert "run `expdb --help` to list all commands" in run("frobnicate", status=2)
