"""Tests of `expdb import`, and of the formats of `expdb export`."""

import json

import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main

MESSAGES = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]


def run(*arguments, status=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    records = [{"id": f"c{k}", "q": f"t{k}", "messages": MESSAGES, "reward": k} for k in range(3)]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_import_stores_records_once(chats, tmp_path):
    location = tmp_path / "runs.db"
    assert run("import", location, "train", chats, "--map", "task_id=q") == (
        "3 episodes with 3 steps stored, 0 imported before, 0 refused\n"
    )
    report = json.loads(run("import", location, "train", chats, "--map", "task_id=q", "--json"))
    assert report == {"episodes": 0, "steps": 0, "known": 3, "replaced": 0, "refused": []}
    with expdb.open(location) as db:
        assert db.buffer("train").tasks() == ["t0", "t1", "t2"]


def test_import_prints_refused_records_and_fails(chats, tmp_path):
    chats.write_text("{bad\n" * 25 + chats.read_text())
    output = run("import", tmp_path / "runs.db", "train", chats, status=1)
    assert output.count("Refused: ") == 21
    assert f"Refused: {chats}:1: the record is not valid JSON" in output
    assert "Refused: 5 more" in output
    assert "3 episodes with 3 steps stored, 0 imported before, 25 refused" in output


def test_import_replaces_changed_records_on_request(chats, tmp_path):
    location = tmp_path / "runs.db"
    run("import", location, "train", chats)
    chats.write_text(chats.read_text().replace('"reward": 2', '"reward": 5'))
    assert "--replace" in run("import", location, "train", chats, status=1)
    output = run("import", location, "train", chats, "--replace")
    assert output == ("1 episode with 1 step stored (1 replaced), 2 imported before, 0 refused\n")


def test_a_dry_run_shows_the_first_record_and_stores_nothing(chats, tmp_path):
    arguments = "import", tmp_path / "runs.db", "train", chats, "--dry-run"
    output = run(*arguments)
    assert "would become this episode" in output
    assert "reward: 0" in output
    plan = json.loads(run(*arguments, "--json"))
    assert (plan["record"], plan["steps"], plan["first_step"]["action"]) == ("c0", 1, MESSAGES[1])
    chats.write_text("{bad\n")
    assert f"Refused: {chats}:1: " in run(*arguments, status=1)
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["missing.jsonl"], "missing.jsonl does not exist"),
        (["CHATS", "--map", "task_id"], "expected --map NAME=KEY"),
        (["CHATS", "--format", "harbor"], "contains no trial of Harbor"),
        (["EMPTY"], "no record was found"),
    ],
)
def test_a_mistake_creates_no_database(chats, tmp_path, arguments, reason):
    (tmp_path / "empty.jsonl").write_text("")
    named = {"CHATS": chats, "EMPTY": tmp_path / "empty.jsonl"}
    arguments = [named.get(argument, argument) for argument in arguments]
    result = CliRunner().invoke(
        main, list(map(str, ["import", tmp_path / "runs.db", "train", *arguments]))
    )
    assert result.exit_code in (1, 2)
    assert reason in result.output
    assert not (tmp_path / "runs.db").exists()


def test_export_writes_each_format(chats, tmp_path):
    location = tmp_path / "runs.db"
    run("import", location, "train", chats)
    chat = tmp_path / "a.jsonl"
    assert run("export", location, "train", chat, "reward >= 1", "--format", "chat") == (
        f"{chat}: 2 conversations, {chat.stat().st_size} bytes\n"
    )
    pairs = tmp_path / "b.jsonl"
    written = json.loads(
        run("export", location, "train", pairs, "--format", "pairs", "--margin", 2, "--json")
    )
    assert written == {"target": str(pairs), "pairs": 1, "bytes": pairs.stat().st_size}
    train, test = (
        json.loads(
            run("export", location, "train", tmp_path / f"{name}.jsonl", "--format", "chat",
                "--split", f"{name}:0.5", "--json").splitlines()[-1]
        )["conversations"]
        for name in ("train", "test")
    )  # fmt: skip
    assert train + test == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x.jsonl"], "pass --format chat, --format pairs or --format atif"),
        (["x.parquet", "--split", "train:0.5"], "do not apply to Parquet files"),
        (["x.jsonl", "--format", "chat", "--lineage"], "apply to Parquet files"),
        (["x.jsonl", "--format", "chat", "--score", "a"], "apply to --format pairs"),
        (["x.jsonl", "--format", "atif", "--map", "a=b"], "--map does not apply"),
        (["-", "--format", "chat"], "only Parquet can be written to stdout"),
    ],
)
def test_export_refuses_options_of_other_formats(chats, tmp_path, arguments, reason):
    run("import", tmp_path / "runs.db", "train", chats)
    assert reason in run("export", tmp_path / "runs.db", "train", *arguments, status=2)


def test_copy_selects_and_merges(chats, tmp_path):
    run("import", tmp_path / "runs.db", "train", chats)
    target = tmp_path / "copy.db"
    assert run("copy", tmp_path / "runs.db", target, "--where", "reward >= 1") == "train: 2 steps\n"
    output = run("copy", tmp_path / "runs.db", target, status=1)
    assert "pass --on-conflict to add episodes" in output
    output = run("copy", tmp_path / "runs.db", target, "--on-conflict", "skip_equal")
    assert output == "train: 1 step\n"
    arguments = "--buffer", "train", "--name", "again"
    assert run("copy", tmp_path / "runs.db", target, *arguments) == "train: 3 steps\n"
