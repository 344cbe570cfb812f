"""Trials of Harbor are imported with their rewards and timing."""

import json

import pytest

import expdb
from expdb import formats

pytest.importorskip("atif")


def document(text, **keys):
    return {
        "schema_version": "ATIF-v1.6", "session_id": "the same everywhere",
        "agent": {"name": "terminus", "version": "2"},
        "steps": [
            {"step_id": 1, "source": "user", "message": text},
            {"step_id": 2, "source": "agent", "message": "done",
             "timestamp": "2026-01-02T03:04:05+00:00"},
        ],
        **keys,
    }  # fmt: skip


def write_trial(folder, number, *, documents=None, **result):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "trial.log").write_text("log")
    (folder / "verifier").mkdir()
    contents = {
        "id": f"0000-{number}", "task_name": f"task-{number % 2}", "trial_name": folder.name,
        "agent_info": {"name": "terminus-2", "version": "2"},
        "verifier_result": {"rewards": {"reward": number / 4, "tests": 1}},
        "exception_info": None, "started_at": "2026-01-02T03:00:00Z",
        "finished_at": "2026-01-02T03:10:00Z", **result,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(contents))
    (folder / "agent").mkdir()
    for name, content in (documents or {"trajectory.json": document(folder.name)}).items():
        (folder / "agent" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "agent" / name).write_text(json.dumps(content))


def load(buffer, source):
    return formats.import_rollouts(buffer, formats.read(source))


def test_the_trials_of_a_job_become_episodes(scratch, tmp_path):
    job = tmp_path / "jobs" / "2026-01-02"
    for number in range(4):
        write_trial(job / f"trial-{number}", number)
    (job / "config.json").write_text("{}")
    (job / "result.json").write_text("{}")
    report = load(scratch, tmp_path / "jobs")
    assert (report.episodes, report.refused) == (4, [])
    rows = scratch.episodes().to_pylist()
    names = "episode_id", "task_id", "agent_id", "status", "episode_return", "started", "ended"
    assert [rows[1][name] for name in names] == [
        "0000-1", "task-1", "terminus-2", "complete", 0.25, 1767322800.0, 1767323400.0,
    ]  # fmt: skip
    scores = scratch.scores({"episode_id": "0000-1"}).to_pylist()
    assert {row["name"]: row["value"] for row in scores} == {"reward": 0.25, "tests": 1.0}
    assert load(scratch, job / "trial-1").known == 1


def test_a_changed_result_is_a_changed_record(scratch, tmp_path):
    write_trial(tmp_path / "a", 1)
    load(scratch, tmp_path / "a")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    (tmp_path / "a" / "result.json").write_text(
        json.dumps({**result, "verifier_result": {"rewards": {"reward": 1}}})
    )
    (reason,) = load(scratch, tmp_path / "a").refused
    assert "was imported before with other content" in reason


def test_a_failed_trial_is_aborted(scratch, tmp_path):
    write_trial(
        tmp_path / "a", 1, exception_info={"exception_type": "AgentTimeoutError"},
        verifier_result=None,
    )  # fmt: skip
    load(scratch, tmp_path)
    (row,) = scratch.episodes().to_pylist()
    assert (row["status"], row["episode_return"]) == ("aborted", None)
    assert json.loads(row["episode_tags"])["harbor"]["exception"] == "AgentTimeoutError"


def test_continuations_and_steps_are_related_episodes(scratch, tmp_path):
    documents = {
        "trajectory.json": document("1", continued_trajectory_ref="trajectory.cont-1.json"),
        "trajectory.cont-1.json": document("2"),
    }
    write_trial(tmp_path / "a", 1, documents=documents)
    write_trial(tmp_path / "b", 2, documents={"notes.json": {}})
    for name in ("one", "two"):
        folder = tmp_path / "b" / "steps" / name / "agent"
        folder.mkdir(parents=True)
        (folder / "trajectory.json").write_text(json.dumps(document(name)))
    assert load(scratch, tmp_path).refused == []
    rows = scratch.episodes().to_pylist()
    assert [(row["episode_id"], row["relation"]) for row in rows] == [
        ("0000-1", None), ("0000-1#1", "continuation"),
        ("0000-2", None), ("0000-2#1", "continuation"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("documents", "result", "reason"),
    [
        ({"log.txt": {}}, {}, "it has no agent/trajectory.json"),
        ({"trajectory.json": {"schema_version": "ATIF-v1.6"}}, {}, "is not valid ATIF"),
        ({"trajectory.json": []}, {}, "must be a JSON object, got list"),
        (None, {"started_at": "yesterday"}, "Invalid isoformat"),
        (None, {"verifier_result": {"rewards": {"a b": 1}}}, "'a b'"),
    ],
)
def test_a_broken_trial_is_refused_and_the_others_are_imported(
    scratch, tmp_path, documents, result, reason
):
    write_trial(tmp_path / "a", 1, documents=documents, **result)
    write_trial(tmp_path / "b", 2)
    report = load(scratch, tmp_path)
    assert report.episodes == 1
    (found,) = report.refused
    assert found.startswith(str(tmp_path / "a"))
    assert reason in found


def test_a_folder_without_trials_is_refused(tmp_path):
    with pytest.raises(expdb.InvalidValue, match="contains no trial of Harbor"):
        list(formats.read(tmp_path, format="harbor"))
