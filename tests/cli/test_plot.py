"""Tests of learning curves in the terminal and in PNG, SVG and PDF files."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import expdb
from expdb import plot
from expdb.cli import main


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "runs.db"
    for run in ("one", "two"):
        with expdb.open(file, run=run) as db:
            buffer = db.buffer("train")
            for k in range(6):
                with buffer.episode(
                    f"t{k % 3}",
                    task_name="$x_{<b>&\x1b[31m" if k % 3 == 0 else None,
                    agent_id=f"a{k}",
                ) as episode:
                    for t in range(k + 1):
                        episode.append(obs=0.0, reward=None if k == 5 else 2.0, terminated=t == k)
            buffer.store(task_id="open", reward=100.0, episode_id=f"open {run}")
    return file


def call(*arguments):
    done = CliRunner().invoke(main, ["plot", *map(str, arguments)])
    return done.exit_code, done.output


def test_curves_contain_complete_episodes_in_the_order_of_their_ends(path):
    with expdb.open(path) as db:
        by_task, count = plot.curves(db.buffer("train"), "task", smooth=1)
        by_run, _ = plot.curves(db.buffer("train"), "run", smooth=2)
        few, _ = plot.curves(db.buffer("train"), "agent", where={"task_id": "t1"}, smooth=1)
    assert (count, [curve.name for curve in by_task]) == (3, ["$x_{<b>& [31m", "t1", "t2"])
    assert by_task[1].steps.tolist() == [2, 7, 9, 14]
    assert by_task[1].values["return"].tolist() == [4, 10, 4, 10]
    assert by_task[1].values["length"].tolist() == [2, 5, 2, 5]
    assert by_task[1].values["reward"].tolist() == [2, 2, 2, 2]
    assert np.isnan(by_task[2].values["return"]).tolist() == [False, True, False, True], (
        "no reward is known"
    )
    assert [curve.name for curve in by_run] == ["one", "two"]
    assert by_run[0].values["length"].tolist() == [1, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert by_run[0].values["return"].tolist() == [2, 3, 5, 7, 9, 10], (
        "the mean of those that are known"
    )
    assert [curve.name for curve in few] == ["a1", "a4"]


def test_the_file_name_determines_the_picture_format(path, tmp_path):
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        code, output = call(path, "--to", tmp_path / name)
        assert (code, output) == (0, f"{tmp_path / name}: 3 curves\n")
        assert (tmp_path / name).read_bytes().startswith(magic)
    first = (tmp_path / "a.svg").read_bytes()
    call(path, "--to", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes() == first, "the same curves make the same file"
    assert b"<b>" not in first
    assert b"\x1b" not in first
    code, output = call(path, "--to", tmp_path / "a.gif")
    assert code == 1
    assert output == "Error: the name of a picture must end in .png, .svg, .pdf, got 'a.gif'\n"


def test_the_terminal_shows_every_panel(path):
    code, output = call(path, "train", "agent_id != a5", "--by", "run")
    assert code == 0
    for title in plot.PANELS.values():
        assert title in output
    assert "one" in output
    assert "\x1b[31m" not in call(path)[1]


def test_plot_prints_curves_as_json_and_explains_errors(path, tmp_path):
    code, output = call(path, "--json", "--smooth", 1)
    assert code == 0
    assert [(curve["name"], curve["return"]) for curve in json.loads(output)][1:] == [
        ("t1", [4, 10, 4, 10]),
        ("t2", [6, None, 6, None]),
    ]
    with expdb.open(path) as db:
        db.buffer("other").store(obs=1.0, episode_id="open")
    assert call(path)[0] == 2
    assert "has several buffers; pass --buffer with one of train, other" in call(path)[1]
    assert call(path, "other") == (0, "no complete episode to draw\n")
    code, output = call(path, "nowhere")
    assert code == 1
    assert "nowhere" in output
    with expdb.open(tmp_path / "many.db") as db:
        for k in range(30):
            db.buffer("b").store(task_id=f"t{k % 10}", reward=1.0, terminated=True)
    assert call(tmp_path / "many.db", "--to", tmp_path / "a.png")[1].endswith(
        "showing the 8 of 10 curves with the most episodes\n"
    )


@pytest.mark.parametrize(
    ("package", "arguments"), [("matplotlib", ["--to", "a.png"]), ("plotext", [])]
)
def test_a_missing_package_is_named(path, monkeypatch, package, arguments):
    monkeypatch.setitem(sys.modules, package, None)
    code, output = call(path, *arguments)
    assert code == 1
    assert "pip install 'expdb[plot]'" in output


def test_curves_by_policy_version_are_sorted_by_version(tmp_path):
    with expdb.open(tmp_path / "versions.db") as db:
        buffer = db.buffer("train")
        for version in (10, 9, None, 100):
            with buffer.episode("t", policy_version=version) as episode:
                episode.append(obs=0.0, reward=1.0)
        curves, count = plot.curves(buffer, "policy_version")
    assert ([curve.name for curve in curves], count) == (["9", "10", "100", "no version"], 4)
