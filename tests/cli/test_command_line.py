"""Tests of messages, refused arguments and exit statuses of the command line."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import expdb
from expdb.cli import main


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("b", capacity=10).store(n=1, reward=0.5)
        db.buffer("without_fields").store(reward=1.0)
    return str(path)


def run(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.output.strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("n = 1", "reward = 3"), "expected KEY=VALUE"),
     (("reward>0", "reward=1"), "is a column, not"),
     (("reward>0", "reward!=1"), "expected KEY=VALUE"), (("a == 1",), "expected KEY=VALUE")],
)  # fmt: skip
def test_tag_refuses_a_condition_in_place_of_a_tag(path, arguments, message):
    code, output = run("tag", path, "b", *arguments)
    assert (code, message in output) == (2, True), output
    assert run("query", path, "b", "tags.reward != null", "--count")[1].endswith("0")


def test_export_to_an_unwritable_path_names_the_file(path):
    code, output = run("export", path, "b", "/proc/b.parquet")
    assert code == 1
    assert "Error: /proc/b.parquet cannot be written" in output


def test_evict_warns_if_the_buffer_has_no_eviction_policy(path):
    assert run("evict", path, "b") == (
        0, "Warning: buffer 'b' has no eviction policy; set buffer.eviction\nnothing evicted",
    )  # fmt: skip


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_evict_follow_ends_without_an_error_on_a_signal(path, tmp_path, stop):
    with expdb.open(path) as db:
        buffer = db.buffer("b")
        buffer.eviction = expdb.Eviction(archive=tmp_path / "archive", by="archiver")
        buffer.store_batch({"n": np.arange(40)})
        command = [sys.executable, "-m", "expdb", "evict", path, "b", "--follow"]
        archiver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until = time.monotonic() + 60
        while len(buffer) > 10 and time.monotonic() < until:
            time.sleep(0.05)
        archiver.send_signal(stop)
        output, errors = archiver.communicate(timeout=60)
    assert archiver.returncode == 0
    assert output == "b: 31 steps evicted\n"
    assert errors == f"evicting from {path} until interrupted\n"
