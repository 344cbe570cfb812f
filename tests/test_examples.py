"""Tests that the demo and the examples run, and that they can run again with their database."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main

ROOT = Path(__file__).parents[1]


def run_demo(path, seconds):
    command = [sys.executable, "-m", "expdb", "demo", "--json"]
    command += ["--file", str(path), "--seconds", str(seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_learns_and_continues_from_its_stored_steps(tmp_path):
    status, first = run_demo(tmp_path / "demo.db", 20)
    again, second = run_demo(tmp_path / "demo.db", 12)
    assert (status, again) == (0, 0), (first, second)
    assert first["stored_at_start"] == 0
    assert second["stored_at_start"] == first["stored"] > 0
    assert second["first_ever"] == first["first_ever"]
    assert first["last"] >= 3 * first["first"]
    with expdb.open(tmp_path / "demo.db") as db:
        assert db.check() == []


def test_a_very_short_demo_continues_until_it_has_a_verdict(tmp_path):
    arguments = ["demo", "--file", str(tmp_path / "demo.db"), "--seconds", "0.05"]
    result = CliRunner().invoke(main, arguments)
    output = result.output
    assert result.exit_code == 0, output
    assert "The agent learned: the mean return was" in output
    assert "Run the demo again to continue" in output
    assert "SELECT run, count(*) AS episodes" in output
    with expdb.open(tmp_path / "demo.db") as db:
        assert db.buffer("cartpole").stats()["episodes"]["complete"] >= 20
        assert db.check() == []


LEARNERS = {
    "dqn_cartpole.py": 2,
    "recurrent_memory.py": 1,
    "group_policy.py": 1,
}  # number of runs of each example
# Maximum length of an example in characters. group_policy.py may be longer, because it has two
# ranks, an actor and a judge.
MAX_CHARACTERS = {**dict.fromkeys(LEARNERS, 6_400), "group_policy.py": 7_200}


def example_named(path):
    return pytest.param(
        path.name, marks=[pytest.mark.slow] if path.name in LEARNERS else [], id=path.name
    )


@pytest.mark.parametrize(
    "name", [example_named(path) for path in sorted((ROOT / "examples").glob("*.py"))]
)
def test_examples_are_short_and_can_run_repeatedly(name, tmp_path):
    example = ROOT / "examples" / name
    if name in LEARNERS:
        pytest.importorskip(
            "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
        )
    assert len(example.read_text()) <= MAX_CHARACTERS.get(name, 3_800)
    quick = ["--quick"] if name in LEARNERS else []
    for count in range(LEARNERS.get(name, 2)):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(example), "example.db", *quick],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.strip()
        assert name != "dqn_cartpole.py" or ("continuing after" in done.stdout) == bool(count)
    with expdb.open(tmp_path / "example.db") as db:
        assert db.check() == []
        assert db.buffers()
