"""Imports store each record exactly once, and refuse what they cannot store."""

import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import expdb
from expdb import errors, formats

QUESTION = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}


def chat(id=None, **keys):
    record = {"messages": [QUESTION, ANSWER], **keys}
    return record if id is None else {"id": id, **record}


def load(buffer, records, **options):
    return formats.import_rollouts(buffer, formats.read(records), **options)


def names_of(buffer):
    return sorted(buffer.episodes()["episode_id"].to_pylist())


@pytest.mark.both_databases
def test_a_record_is_imported_once(open_db):
    db = open_db()
    buffer = db.buffer("train")
    assert load(buffer, [chat("a"), chat("b")]).episodes == 2
    with open_db() as other:
        report = load(other.buffer("train"), [chat("b"), chat("c")])
    assert (report.episodes, report.steps, report.known, report.refused) == (1, 1, 1, [])
    assert names_of(buffer) == ["a", "b", "c"]


@pytest.mark.both_databases
def test_all_values_of_a_rollout_are_stored(db):
    buffer = db.buffer("train")
    rollout = formats.Rollout(
        record="r",
        digest=b"1",
        episode={
            "episode_id": "e", "task_id": "t", "task_name": "n", "agent_id": "white",
            "group_id": "g", "policy_version": 3, "episode_tags": {"k": [1]}, "trainable": False,
            "run": "another run", "started": 10.5, "ended": 20.25, "status": "aborted",
            "episode_return": 0.75,
        },
        steps=[
            {"x": 1, "reward": 0.25, "execute_time": 11.0, "tags": {"a": 1}},
            {"x": 2, "reward": 0.5, "agent_id": "black", "policy_version": 4, "truncated": True},
        ],
        final={"x": 3},
        scores=[
            {"name": "judge", "value": 0.5, "by": "v1", "detail": {"why": "so"}, "scored": 30.0},
            {"name": "format", "value": 1.0, "step": 1, "scored": 31.0},
        ],
        annotations=[("advantage", None, 1, np.array([1.5, 2.5], np.float32))],
        priorities=[float("nan"), 7.0],
    )  # fmt: skip
    assert formats.import_rollouts(buffer, [rollout]).refused == []
    (row,) = buffer.episodes().to_pylist()
    expected = {**rollout.episode, "episode_tags": '{"k":[1]}', "length": 2}
    assert {name: row[name] for name in expected} == expected
    fields = ["x", "next_x", "reward", "execute_time", "agent_id", "policy_version", "tags",
              "scores", "advantage", "priority"]  # fmt: skip
    first, last = buffer.get([0, 1], fields=fields).to_list()
    assert (first["x"], first["reward"], first["execute_time"], first["tags"]) == (
        1, 0.25, 11.0, {"a": 1},
    )  # fmt: skip
    assert (last["x"], last["next_x"], last["agent_id"], last["policy_version"]) == (
        2, 3, "black", 4,
    )  # fmt: skip
    assert first["scores"] == {"judge": 0.5}
    assert last["scores"] == {"judge": 0.5, "format": 1.0}
    assert (last["advantage"].tolist(), last["priority"]) == ([1.5, 2.5], 7.0)
    scores = buffer.scores().to_pylist()
    assert [(row["name"], row["position"], row["scored"]) for row in scores] == [
        ("judge", None, 30.0), ("format", 1, 31.0),
    ]  # fmt: skip
    assert json.loads(scores[0]["detail"]) == {"why": "so"}


def test_a_record_stays_known_after_its_episode_is_evicted_or_deleted(new_buffer):
    buffer = new_buffer(capacity=2)
    load(buffer, [chat(str(k)) for k in range(5)])
    assert names_of(buffer) == ["3", "4"]
    buffer.delete({"episode_id": "3"})
    assert load(buffer, [chat(str(k)) for k in range(5)]).known == 5
    assert names_of(buffer) == ["4"]


def test_steps_that_the_capacity_evicts_at_once_leave_no_details(new_buffer):
    buffer = new_buffer(capacity=3)
    rollouts = [
        formats.Rollout(
            str(k), b"", {"episode_id": str(k)}, [{"x": 1}, {"x": 2}],
            scores=[{"name": "a", "value": 1.0}, {"name": "b", "value": 2.0, "step": 0}],
            annotations=[("w", 1, step, np.ones(1)) for step in (0, 1)], priorities=[1.0, 2.0],
        )
        for k in range(3)
    ]  # fmt: skip
    formats.import_rollouts(buffer, rollouts)
    assert names_of(buffer) == ["1", "2"]
    rows = buffer.get([3, 4, 5], fields=["scores", "w@1", "priority"]).to_list()
    assert [(row["scores"], row["priority"]) for row in rows] == [
        ({"a": 1.0}, 2.0), ({"a": 1.0, "b": 2.0}, 1.0), ({"a": 1.0}, 2.0),
    ]  # fmt: skip


def test_clear_forgets_the_imported_records(scratch):
    load(scratch, [chat("a")])
    scratch.clear()
    assert load(scratch, [chat("a")]).episodes == 1


def test_a_record_without_an_id_is_known_by_its_content(scratch):
    record = chat(task_id="t")
    assert load(scratch, [record, dict(reversed(record.items()))]).known == 1
    assert load(scratch, [{**record, "task_id": "other"}]).episodes == 1


@pytest.mark.both_databases
def test_a_changed_record_is_refused_or_replaces_its_episode(db):
    buffer = db.buffer("train")
    load(buffer, [chat("a"), chat("b")])
    changed = [chat("a", reward=1.0), chat("b")]
    report = load(buffer, changed)
    assert report.refused == [
        "list[0]: record 'a' was imported before with other content, or in another format or "
        "mapping; pass replace=True (--replace) to replace its episode, or give it another id"
    ]
    report = load(buffer, changed, replace=True)
    assert (report.episodes, report.replaced, report.known) == (1, 1, 1)
    returns = dict(zip(*buffer.episodes().select(["episode_id", "episode_return"]), strict=True))
    assert {str(name): value.as_py() for name, value in returns.items()} == {"a": 1.0, "b": None}
    assert load(buffer, changed).known == 2


def test_a_record_that_replaces_an_evicted_episode_is_stored_again(new_buffer):
    buffer = new_buffer(capacity=1)
    load(buffer, [chat("a"), chat("b")])
    assert load(buffer, [chat("a", reward=1.0)], replace=True).replaced == 1
    assert names_of(buffer) == ["a"]


def test_two_records_with_one_id_are_refused_unless_they_are_equal(scratch):
    report = load(scratch, [chat("a"), chat("a"), chat("a", reward=2.0)])
    assert (report.episodes, report.known) == (1, 1)
    assert report.refused == [
        "list[2]: record 'a' occurs twice with different content; give each record its own id"
    ]


def test_an_episode_of_another_origin_is_not_overwritten(scratch):
    scratch.store(episode_id="a", messages=[QUESTION], action=ANSWER)
    report = load(scratch, [chat("a")], replace=True)
    assert report.refused == [
        "list[0]: episode 'a' already exists and was not imported from this record; give the "
        "record another id, or import it into another buffer"
    ]


def test_an_invalid_rollout_stores_nothing_and_the_others_are_stored(scratch):
    rollouts = [
        formats.Rollout(name, name.encode(), {"episode_id": name, **episode}, steps)
        for name, episode, steps in (
            ("good", {}, [{"x": 1}, {"x": 2}]),
            ("bad step", {}, [{"x": 1}, {"x": "text"}]),
            ("bad column", {"task": "t"}, [{"x": 1}]),
            ("bad status", {"status": "done"}, [{"x": 1}]),
            ("no step", {}, []),
            ("no parent", {"parent": "gone", "relation": "subagent"}, [{"x": 1}]),
            ("bad name", {"episode_id": 7}, [{"x": 1}]),
            ("equal numbers", {}, [{"x": 1, "step": 1}, {"x": 1, "step": 0}, {"x": 1, "step": 1}]),
            ("also good", {}, [{"x": 3}]),
        )
    ]
    report = formats.import_rollouts(scratch, rollouts)
    assert names_of(scratch) == ["also good", "good"]
    assert len(report.refused) == 7
    assert report.refused[0].startswith(": rows[1]: field 'x'")
    assert "an episode has no column 'task', did you mean 'task_id'?" in report.refused[1]
    assert scratch.stats()["fields"] == {"x": "int64"}


def test_a_parent_may_be_imported_before_or_together_with_its_children(scratch):
    def rollout(name, **episode):
        return formats.Rollout(name, b"", {"episode_id": name, **episode}, [{"x": 1}])

    child = {"parent": "root", "relation": "subagent", "parent_step": 0}
    formats.import_rollouts(scratch, [rollout("root"), rollout("one", **child)])
    formats.import_rollouts(scratch, [rollout("two", **child)])
    assert scratch.lineage("root")["episode_id"].to_pylist() == ["root", "one", "two"]


def test_rollouts_with_and_without_final_observations_keep_their_order(scratch):
    rollouts = [
        formats.Rollout(
            str(k), b"", {"episode_id": str(k)}, [{"x": k}], {"x": -k} if k % 3 else None
        )
        for k in range(1, 8)
    ]
    formats.import_rollouts(scratch, rollouts)
    rows = next(scratch.scan(fields=["x", "next_x"])).to_list()
    assert [row["x"] for row in rows] == list(range(1, 8))
    assert [row["next_x"] for row in rows] == [-1, -2, None, -4, -5, None, -7]


def test_fields_that_appear_later_are_optional(scratch):
    load(scratch, [chat("a"), chat("b", tools=[{"name": "search"}])])
    assert scratch.stats()["optional_fields"] == ["tools"]
    assert next(scratch.scan(fields=["tools"]))["tools"].tolist() == [None, [{"name": "search"}]]


@pytest.mark.both_databases
def test_importers_in_several_threads_store_each_record_once(open_db):
    records, reports = [chat(str(k), x=k) for k in range(120)], []

    def work(start):
        with open_db() as handle:
            rollouts = formats.read(records[start:] + records[:start])
            for batch in _parts(rollouts, 7):
                reports.append(formats.import_rollouts(handle.buffer("train"), batch))

    open_db().buffer("train")
    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 40, 80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.episodes for report in reports) == 120
    assert sum(report.known for report in reports) == 240
    assert names_of(open_db().buffer("train")) == sorted(map(str, range(120)))


def _parts(items, size):
    items = list(items)
    return [items[start : start + size] for start in range(0, len(items), size)]


def test_a_killed_import_continues_where_it_stopped(tmp_path):
    source, location = tmp_path / "chats.jsonl", tmp_path / "runs.db"
    records = [chat(f"r{k}", tag=k) for k in range(4000)]
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    expdb.open(location).close()
    command = [sys.executable, "-m", "expdb", "import", location, "train", source]
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = _count(location)
        while process.poll() is None and _count(location) == before:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        assert _count(location) % 256 == 0 or _count(location) == 4000
    assert kills > 0
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["episodes"] + report["known"] == 4000
    with expdb.open(location) as db:
        assert names_of(db.buffer("train")) == sorted(record["id"] for record in records)
        assert db.check() == []


def _count(location):
    with expdb.open(location, read_only=True) as db:
        return 0 if not db.buffers() else db.buffer("train").stats()["episodes"]["complete"]


@pytest.mark.both_databases
def test_copies_keep_the_imported_records(db, location, tmp_path):
    load(db.buffer("train"), [chat("a")])
    expdb.copy(location, tmp_path / "copy.db")
    with expdb.open(tmp_path / "copy.db") as copy:
        assert load(copy.buffer("train"), [chat("a")]).known == 1


def test_a_full_rate_limiter_stops_the_import_with_an_error(open_db):
    db = open_db(timeout=0.2)
    buffer = db.buffer("train")
    buffer.rate_limiter = expdb.Queue(2)
    with pytest.raises(errors.RateLimited):
        load(buffer, [chat(str(k)) for k in range(3)])
    assert len(buffer) == 0
