"""Tests of the commands for monitoring, sampling and scoring."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from behind import report_now, store_of
from click.testing import CliRunner

import expdb
from expdb.cli import main
from expdb.storage.upkeep import metrics_history, reporting
from expdb.text.prometheus import RATES_AND_MEANS, prometheus_text

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Yield the path of an open database whose process has reported its metrics."""
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(metrics_history, "REPORT_SECONDS", 0.0)
    path = str(tmp_path / "runs.db")
    db = expdb.open(path, run="run 7")
    buffer = db.buffer("train")
    for k in range(30):
        buffer.store(
            task_id=f"t{k // 10}", episode_id=f"e{k // 10}", number=k, reward=k / 10,
            terminated=k % 10 == 9,
        )  # fmt: skip
    buffer.policy_version = 4
    consumer = buffer.consumer("learner", max_times_sampled=2)
    consumer.lease(3).acknowledge(trainer_step=11)
    consumer.lease(3)
    report_now(buffer)
    yield path
    db.close()


def run(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.stdout.strip()


def test_tail_prints_the_newest_steps(path):
    code, output = run("tail", path, "-n", "2")
    assert code == 0
    assert output.splitlines() == [
        "28  e2  step 8  agent  reward 2.8", "29  e2  step 9  agent  reward 2.9  terminated"
    ]  # fmt: skip
    assert len(run("tail", path, "train")[1].splitlines()) == 10
    assert run("tail", path, "train", "-n", "0") == (0, "")
    assert run("tail", path, "train", "reward < 1", "-n", "2")[1].splitlines()[-1].startswith("9 ")
    assert len(run("tail", path, "train", "-n", "99")[1].splitlines()) == 30


def test_tail_finds_old_steps_among_many(tmp_path):
    with expdb.open(tmp_path / "many.db") as db:
        buffer = db.buffer("train")
        buffer.store(task_id="rare", number=1)
        buffer.store_batch({"task_id": "usual", "number": list(range(20_000))})
    output = run("tail", str(tmp_path / "many.db"), "train", "task_id = rare")[1]
    assert [line.split()[0] for line in output.splitlines()] == ["0"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_it_is_stopped(path, stop):
    command = [sys.executable, "-u", "-m", "expdb", "tail", path, "train", "-n", "1", "-f"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("29 ")
    with expdb.open(path) as db:
        db.buffer("train").store(task_id="new", episode_id="later", number=1)
    assert process.stdout.readline().startswith("30  later  step 0")
    process.send_signal(stop)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "", "")


def test_tail_ends_quietly_when_its_pipe_closes(path):
    command = f"{sys.executable} -u -m expdb tail {path} train -n 20 -f | head -n 1"
    process = subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("10 ")
    time.sleep(0.5)
    with expdb.open(path) as db:
        for _ in range(3):
            db.buffer("train").store(task_id="new", number=1)
            time.sleep(0.3)
    output, errors = process.communicate(timeout=30)
    assert (output, errors) == ("", "")


def test_actors_hides_ended_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    path = str(tmp_path / "runs.db")
    with expdb.open(path) as db:
        db.buffer("train").store(task_id="t", number=1)
    assert run("actors", path)[1] == "no rows"
    assert "ended" in run("actors", path, "--all")[1]


def test_show_prints_scores(path):
    run("score", path, "train", "--episode", "e1", "judge=0.5")
    assert 'scores {"judge": 0.5}' in run("show", path, "e1")[1]


def test_conditions_without_a_buffer_are_refused_with_a_hint(path):
    done = CliRunner().invoke(main, ["tail", path, "reward > 1"])
    assert done.exit_code == 2
    assert "pass the buffer before the conditions" in done.stderr


def test_leases_shows_their_status(path):
    rows = json.loads(run("leases", path, "--json")[1])
    assert [(row["lease"], row["status"], row["trainer_step"]) for row in rows] == [
        (0, "acknowledged", 11), (1, "leased", None)
    ]  # fmt: skip
    output = run("leases", path, "train", "--status", "leased", "--consumer", "learner")[1]
    assert len(output.splitlines()) == 2
    assert run("leases", path, "--consumer", "nope")[0] == 1


def test_metrics_shows_a_history(path):
    lines = run("metrics", path, "train", "--last", "1h")[1].splitlines()
    assert lines[0].split()[:2] == ["time", "steps_per_second"]
    assert len(lines) > 5
    assert len(run("metrics", path, "--last", "2d", "--csv")[1].splitlines()) == len(lines)
    assert run("metrics", path, "--last", "soon")[0] == 2
    assert run("metrics", path, "--csv", "--json")[0] == 2


def test_metrics_warns_if_nothing_was_measured(tmp_path):
    path = str(tmp_path / "quiet.db")
    with expdb.open(path) as db:
        db.buffer("train").store(task_id="t", number=1)
    done = CliRunner().invoke(main, ["metrics", path])
    assert done.exit_code == 0
    assert "buffer 'train' has no measurements" in done.stderr


SAMPLE = re.compile(r'(expdb_\w+)(\{(\w+="(\\.|[^"\\])*",?)+\})? (-?[0-9.e+-]+)')


def test_prometheus_text_has_types_labels_and_numbers(path):
    code, output = run("metrics", path, "--prometheus")
    assert code == 0
    types = {}
    for line in output.splitlines():
        if line.startswith("# TYPE "):
            _, _, metric, kind = line.split()
            assert metric not in types
            types[metric] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert types[match[1]] == ("counter" if match[1].endswith("_total") else "gauge")
    assert 'expdb_steps_added_total{buffer="train"} 30' in output
    assert 'expdb_consumer_leased_total{buffer="train",consumer="learner"} 2' in output
    assert re.search(r"^expdb_file_bytes \d+$", output, re.MULTILINE)
    assert not [name for name in RATES_AND_MEANS if f"expdb_{name}" in output]
    assert run("metrics", path, "train", "--prometheus")[0] == 2


def test_prometheus_text_omits_rates_and_means():
    assert {*metrics_history.RATES_AND_MEANS, "tokens_per_second"} == set(RATES_AND_MEANS)


def test_names_are_escaped_in_prometheus_text(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    name = 'a"b\\c'
    with expdb.open(tmp_path / "names.db") as db:
        buffer = db.buffer(name)
        buffer.store(task_id="t", number=1)
        text = prometheus_text(db)
    assert r'expdb_steps{buffer="a\"b\\c"} 1' in text.splitlines()


def test_sample_draws_steps(path):
    rows = json.loads(run("sample", path, "train", "4", "reward > 1", "--seed", "3", "--json")[1])
    assert len(rows) == 4
    assert all(row["reward"] > 1 for row in rows)
    assert rows == json.loads(
        run("sample", path, "train", "4", "reward > 1", "--seed", "3", "--json")[1]
    )
    newest = run("sample", path, "train", "2", "--sampler", "newest", "--field", "number")[1]
    assert newest.splitlines()[0].split() == ["position", "number"]
    assert run("sample", path, "train", "2", "--over", "task")[0] == 0
    assert run("sample", path, "train", "2", "--over", "task", "--sampler", "newest")[0] == 2
    assert run("sample", path, "train", "2", "reward > 100")[0] == 1


def test_score_records_scores_of_steps_and_episodes(path):
    assert run("score", path, "train", "reward >= 2.8", "judge=0.5", "--by", "me") == (
        0, "2 scores recorded"
    )  # fmt: skip
    arguments = "score", path, "train", "--episode", "e0", "judge=1", "--detail", '{"why": "ok"}'
    assert run(*arguments, "--json") == (0, '{"scores": 1}')
    with expdb.open(path, read_only=True) as db:
        rows = db.buffer("train").scores().to_pylist()
    assert [(row["value"], row["scored_by"]) for row in rows] == [
        (0.5, "me"), (0.5, "me"), (1.0, None)
    ]  # fmt: skip
    assert json.loads(rows[-1]["detail"]) == {"why": "ok"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("judge=high", "--episode", "e0"), "expected NAME=VALUE with a number"),
     (("judge=true", "--episode", "e0"), "expected NAME=VALUE with a number"),
     (("judge", "--episode", "e0"), "expected NAME=VALUE with a number"),
     (("judge=1",), "expected either conditions or --episode"),
     (("reward = 1", "judge=1", "--episode", "e0"), "expected either conditions or --episode"),
     (("judge=1", "--episode", "e0", "--detail", "x"), "--detail is not valid JSON"),
     (("judge=1", "--episode", "e0", "--detail", "[1]"), "--detail must be a JSON object")],
)  # fmt: skip
def test_wrong_arguments_of_score_are_refused(path, arguments, message):
    done = CliRunner().invoke(main, ["score", path, "train", *arguments])
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_evict_plan_lists_due_steps_without_evicting_them(path):
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        buffer.eviction = expdb.Eviction(whole_episodes=True, by="archiver")
        buffer.capacity = 10
    rows = json.loads(run("evict", path, "--plan", "--json")[1])
    assert {row["buffer"] for row in rows} == {"train"}
    assert sum(row["last"] - row["first"] + 1 for row in rows) == 20
    assert "e0" in run("evict", path, "train", "--plan")[1]
    assert run("evict", path, "--plan", "--follow")[0] == 2
    with expdb.open(path, read_only=True) as db:
        assert len(db.buffer("train")) == 30


def test_the_dashboard_uses_only_metrics_that_exist(path, postgresql_url):
    def fill(location):
        with expdb.open(location) as db:
            buffer = db.buffer("all", capacity=100)
            buffer.policy_version = 1
            for k in range(4):
                buffer.store(
                    task_id="t", group_id="g", reward=float(k // 2), terminated=True,
                    policy_version=1,
                )  # fmt: skip
            buffer.sample(1)
            buffer.store(task_id="t", group_id="open")
            buffer.score(episode_id=buffer.episodes()["episode_id"][0].as_py(), name="j", value=1)
            consumer = buffer.consumer("learner", min_size=9)
            with pytest.raises(expdb.TooFewRows):
                consumer.lease(1, wait=0.2)
            buffer.consumer("other").lease(1).acknowledge()
            store_of(buffer).activity.add_wait("actor", 1.0)
            report_now(buffer)
            return prometheus_text(db)

    text = fill(path) + fill(postgresql_url)
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"expdb_\w+", target["expr"])
    }
    assert len(used) > 20
    missing = [name for name in used if not re.search(rf"^{name}[ {{]", text, re.MULTILINE)]
    assert missing == []


def test_json_has_null_for_nan_and_infinity(tmp_path):
    path = str(tmp_path / "nan.db")
    with expdb.open(path) as db:
        db.buffer("b").store(
            task_id="t", obs=float("nan"), vec=np.array([np.inf, 1.0]), note={"x": [1.5]}
        )
    row = json.loads(run("tail", path, "--field", "obs", "--field", "vec", "--json")[1])
    assert (row["obs"], row["vec"]) == (None, [None, 1.0])
    (row,) = json.loads(run("sample", path, "b", "1", "--json")[1])
    assert (row["obs"], row["vec"], row["note"]) == (None, [None, 1.0], {"x": [1.5]})


def test_error_messages_have_no_control_codes(tmp_path):
    path = str(tmp_path / "names.db")
    with expdb.open(path) as db:
        db.buffer("\x1b[31mEVIL\rX").store(task_id="t", obs=1)
        db.buffer("other")
    for command in (["tail", path, "no"], ["tail", path], ["actors", path, "no"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code in (1, 2)
        assert "EVIL" in done.stderr
        assert done.stderr.replace("\n", "").isprintable()
