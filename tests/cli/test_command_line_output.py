"""Tests of formats, files, progress and the database location of the command line."""

import csv
import io
import json
import os
import subprocess
import sys

import pyarrow.parquet
import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        for k in range(4):
            with buffer.episode(f"t{k % 2}", episode_id=f"ep/{k}") as episode:
                for t in range(3):
                    episode.append(obs=[float(t), 2.0], note="a,\n b", reward=float(3 - k))
    return str(path)


def run(*arguments, status=0, **options):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], **options)
    assert done.exit_code == status, done.output
    return done.output


QUERY = "SELECT episode_id, reward FROM experience WHERE step = 0 ORDER BY position"
AS_JSON = '{"field": "task_id", "op": "eq", "value": "t0"}'
ROWS = [("ep/0", 3.0), ("ep/1", 2.0), ("ep/2", 1.0), ("ep/3", 0.0)]


def test_rows_are_printed_as_csv_tsv_and_json_lines(path):
    for option, delimiter in (("--csv", ","), ("--tsv", "\t")):
        head, *rows = csv.reader(io.StringIO(run("sql", path, QUERY, option)), delimiter=delimiter)
        assert head == ["episode_id", "reward"]
        assert [(row[0], float(row[1])) for row in rows] == ROWS
    lines = run("sql", path, QUERY, "--jsonl").splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == ROWS
    text = run("sql", path, "SELECT field(payload, 'note') AS note, NULL AS n FROM experience "
               "LIMIT 1", "--csv")  # fmt: skip
    assert list(csv.reader(io.StringIO(text)))[1] == ["a,\n b", ""]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet"])
def test_rows_are_written_to_new_files(path, tmp_path, name):
    target = tmp_path / name
    assert run("sql", path, QUERY, "--to", target) == f"{target}: 4 rows\n"
    if name == "rows.parquet":
        rows = pyarrow.parquet.read_table(target).to_pylist()
        assert [tuple(row.values()) for row in rows] == ROWS
    else:
        assert "ep/3" in target.read_text()
    assert "exists; name a new file" in run("sql", path, QUERY, "--to", target, status=1)
    assert os.listdir(tmp_path).count(name) == 1
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".expdb")]


def test_unwritable_targets_are_refused_with_a_remedy(path, tmp_path):
    for target, status, remedy in (
        (tmp_path / "rows.doc", 2, "must end in .csv, .tsv, .jsonl, .parquet"),
        (tmp_path / "none" / "rows.csv", 1, "does not exist; create it first"),
        ("/proc/rows.csv", 1, "cannot be written"),
    ):
        assert remedy in run("sql", path, QUERY, "--to", target, status=status)
    assert "cannot be combined" in run("sql", path, QUERY, "--json", "--csv", status=2)
    assert "cannot be combined" in run("sql", path, QUERY, "--csv", "--jsonl", status=2)
    written = run("sql", path, QUERY, "--csv", "--to", tmp_path / "rows.parquet", status=2)
    assert "cannot be written as csv; remove --csv" in written
    empty = run("export", path, "train", tmp_path / "none.parquet", "task_id = 'none'")
    assert "Warning: no step matches" in empty


def test_a_dash_stands_for_stdin_and_stdout(path):
    assert run("sql", path, "-", "--csv", input="SELECT 1 AS a\n") == "a\n1\n"
    assert run("sql", path, "SELECT 1 AS a", "--to", "-") == "a\n1\n"
    command = [sys.executable, "-m", "expdb", "export", path, "train", "-", "task_id = t0"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert pyarrow.parquet.read_table(io.BytesIO(done.stdout)).num_rows == 6
    assert done.stderr == b""


def test_the_location_may_come_from_the_environment(path, tmp_path, monkeypatch):
    assert "or set EXPDB_LOCATION" in run("info", status=2)
    monkeypatch.setenv("EXPDB_LOCATION", path)
    assert run("sql", QUERY, "--csv").startswith("episode_id")
    assert run("query", "train", "reward > 1", "--count") == "6\n"
    assert "ep/2: complete" in run("show", "ep/2")
    assert "is sound" in run("check")
    other = tmp_path / "other.db"
    expdb.open(other).close()
    assert run("sql", other, "SELECT count(*) AS n FROM experience", "--csv") == "n\n0\n"
    assert "does not exist" in run("info", tmp_path / "missing.db", status=1)
    copied = tmp_path / "copy.db"
    assert "train: 12 steps" in run("copy", path, copied)


def test_buffers_queries_and_targets_are_not_mistaken_for_a_location(path, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPDB_LOCATION", path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_text("a file with the name of a buffer")
    assert run("query", "train", "--count") == "12\n"
    query = "SELECT count(*) AS n FROM experience WHERE task_id = 's3://bucket'"
    assert run("sql", query, "--csv") == "n\n0\n"
    assert "bytes" in run("backup", tmp_path / "copy.db")


def test_an_unwritable_stdout_is_an_error_without_a_traceback(path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "expdb", "sql", path, "SELECT 1 AS a", "--jsonl"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_show_selects_an_episode_by_its_return_start_or_conditions(path):
    both = ("--where", "task_id = 't1'", "--where", "reward == 2")
    for options, number in (
        (("--last",), 3), (("--worst",), 3), (("--best",), 0),
        (("--best", "--where", "task_id = t1"), 1), (("--where", AS_JSON), 2), (both, 1),
    ):  # fmt: skip
        assert run("show", path, *options).startswith(f"episode ep/{number}:")
    both_kinds = ("--where", AS_JSON, *both)
    assert "must be the only --where" in run("query", path, "train", *both_kinds, status=2)
    assert "no episode of" in run("show", path, "--worst", "--where", "reward > 9", status=1)
    for wrong in (("--best", "--worst"), (), ("ep/1", "--last")):
        assert "expected EPISODE" in run("show", path, *wrong, status=2)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("sql", "--help"), ("sql",), ("query", "a.db"), ("nothing",), ("--version",)],
)
def test_help_and_usage_errors_do_not_import_large_packages(arguments):
    code = (
        "import sys\nsys.argv = ['expdb', *sys.argv[1:]]\nfrom expdb.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'pyarrow', 'sqlalchemy', 'expdb.api'} & set(sys.modules)))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "EXPDB_LOCATION"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("query", "PATH", "trian"), "no buffer 'trian'; did you mean 'train'?"),
     (("query", "PATH", "train", "rewar > 5"), "unknown name 'rewar' in a query; did you mean"),
     (("sql", "PATH", "SELECT rewrd FROM experience"), "rewrd; did you mean reward?"),
     (("sql", "PATH", "DELETE FROM steps"), "expdb sql only reads"),
     (("sql", "PATH", "SELECT :a"), "pass every :name of the query with --param"),
     (("show", "PATH", "nope"), "the newest episodes are ep/3"),
     (("tag", "PATH", "train", "episode_id = nope", "a=1", "--required"), "found no step"),
     (("export", "PATH", "train", "x.csv"), "must end in .parquet"),
     (("info", "nope.db"), "check the path"), (("upgrade", "nope.db"), "check the path"),
     (("sql", "PATH", "SELEC"), "syntax error"), (("metrics", "PATH", "trian"), "mean 'train'?"),
     (("tail", "PATH", "trian"), "did you mean 'train'?"),
     (("sample", "PATH", "train", "2", "reward > 99"), "0 of which match the query"),
     (("score", "PATH", "train", "--episode", "e9", "judge=1"), "`expdb query --episodes`")],
)  # fmt: skip
def test_errors_are_one_short_line_without_python_calls(path, arguments, message):
    output = run(*[path if argument == "PATH" else argument for argument in arguments], status=1)
    assert message in output
    (line,) = output.strip().splitlines()
    assert line.startswith("Error: ")
    assert len(line) < 330
    for call in ("db.", "buffer.", "expdb.open", "create=", "read_only", "wait=", "fields="):
        assert call not in line.replace(path, ""), call
