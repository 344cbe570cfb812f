"""Resumed episodes: steps, policy versions and previous writers."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from contents import steps_of
from hypothesis import given
from hypothesis import strategies as st

import expdb
from expdb import Episode, NStep, Uniform
from expdb.errors import EpisodeResumed

pytestmark = pytest.mark.both_databases


def begin(buffer, episode_id="e", **options):
    return buffer.episode("task", episode_id=episode_id, group_id="g", **options)


def columns_of(buffer, *names):
    batches = list(buffer.scan({"episode_id": "e"}, fields=names))
    return [np.concatenate([batch[name] for batch in batches]).tolist() for name in names]


def status_of(buffer, episode_id="e"):
    (row,) = buffer.episodes({"episode_id": episode_id}).to_pylist()
    return row["status"], row["length"]


@pytest.mark.parametrize("ending", ["open", "aborted"])
def test_a_resumed_episode_keeps_its_steps(buffer, ending):
    first = begin(buffer)
    for k in range(3):
        first.append(x=k, reward=1.0)
    first.flush() if ending == "open" else first.abort(x=-1)
    with begin(buffer, resume=True) as second:
        assert second.length == 3
        second.append(x=3, reward=2.0)
    assert status_of(buffer) == ("complete", 4)
    assert columns_of(buffer, "x", "step") == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert buffer.episodes()["episode_return"].to_pylist() == [5.0]
    batch = buffer.sample(1, unit=Episode())
    assert batch["x"].tolist() == [[0, 1, 2, 3]]
    if ending == "open":
        with pytest.raises(EpisodeResumed):
            first.end()


def test_rows_in_memory_are_updated_when_an_episode_is_resumed(buffer):
    for k in range(3):
        with begin(buffer, f"other {k}") as other:
            other.append(x=100 + k)
    first = begin(buffer)
    first.append(x=0)
    first.append(x=1)
    first.abort(x=50)

    def transitions():
        batch = buffer.sample(500, {"episode_id": "e"}, unit=NStep(1, next_fields=("x",)), seed=0)
        return set(zip(batch["x"].tolist(), batch["next_x"].tolist(), strict=True))

    assert transitions() == {(0, 1), (1, 50)}
    second = begin(buffer, resume=True)
    second.append(x=2)
    second.flush()
    assert transitions() == {(0, 1), (1, 2)}
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(1, {"episode_id": "e"}, unit=Episode())
    second.append(x=3)
    second.end(x=60)
    assert transitions() == {(0, 1), (1, 2), (2, 3), (3, 60)}
    assert buffer.sample(1, {"episode_id": "e"}, unit=Episode())["x"].tolist() == [[0, 1, 2, 3]]


def test_steps_after_a_resume_have_the_policy_version_of_the_new_writer(buffer):
    first = begin(buffer, policy_version=1)
    first.append(x=0)
    first.abort()
    with begin(buffer, policy_version=0, resume=True) as second:
        second.append(x=1)
        second.append(x=2, policy_version=4)
        second.extend({"x": [3, 4]})
        second.append(x=5, policy_version_end=6)
    assert columns_of(buffer, "policy_version", "policy_version_end") == [
        [1, 0, 4, 0, 0, 0],
        [1, 0, 4, 0, 0, 6],
    ]
    (row,) = buffer.episodes().to_pylist()
    assert (row["policy_version"], row["first_policy_version"], row["last_policy_version"]) == (
        1, 0, 6,
    )  # fmt: skip


@pytest.mark.parametrize("act", ["flush", "end", "abort"])
def test_the_previous_writer_cannot_change_a_resumed_episode(open_db, act):
    first = begin(open_db().buffer("train"))
    first.append(x=0)
    first.flush()
    if act == "flush":
        first.append(x=99)
    buffer = open_db().buffer("train")
    second = begin(buffer, resume=True)
    for _ in range(2):
        with pytest.raises(EpisodeResumed, match="another writer has resumed episode 'e'"):
            getattr(first, act)()
    assert status_of(buffer) == ("open", 1)
    second.append(x=1)
    second.end()
    assert columns_of(buffer, "x") == [[0, 1]]
    assert not first.is_open
    with pytest.raises(EpisodeResumed):
        first.append(x=2)


def test_a_replaced_writer_without_unwritten_steps_causes_no_warning(open_db):
    with open_db() as db:
        first = begin(db.buffer("train"))
        first.append(x=0)
        first.flush()
        other = open_db().buffer("train")
        second = begin(other, resume=True)
    assert not first.is_open
    second.append(x=1)
    second.end()
    assert columns_of(other, "x") == [[0, 1]]


def test_store_cannot_continue_an_episode_resumed_by_a_writer(open_db):
    actor = open_db().buffer("train")
    actor.store(episode_id="e", task_id="task", x=0)
    other = open_db().buffer("train")
    with other.episode("task", episode_id="e", resume=True) as episode:
        for _ in range(2):
            with pytest.raises(EpisodeResumed):
                actor.store(episode_id="e", task_id="task", x=99)
        episode.append(x=1)
    assert columns_of(other, "x") == [[0, 1]]


def test_close_does_not_end_an_episode_resumed_by_another_handle(open_db):
    with open_db() as db:
        db.buffer("train").store(task_id="task", x=0)
        (name,) = db.buffer("train").episodes()["episode_id"].to_pylist()
        other = open_db().buffer("train")
        episode = other.episode("task", episode_id=name, resume=True)
    writer = open_db().buffer("train").writer()
    assert status_of(other, name) == ("open", 1)
    writer.close()
    episode.append(x=1)
    episode.end()
    assert status_of(other, name) == ("complete", 2)


@pytest.mark.one_database
def test_resume_rejects_different_metadata_and_complete_episodes(buffer):
    first = begin(buffer, task_name="n", episode_tags={"k": 1})
    first.append(x=0)
    first.flush()
    for options, name in [
        ({"task_name": "m"}, "task_name"),
        ({"agent_id": "other"}, "agent_id"),
        ({"episode_tags": {"k": 2}}, "episode_tags"),
    ]:
        with pytest.raises(expdb.errors.EpisodeMismatch, match=f"has {name}=.* cannot be resumed"):
            begin(buffer, resume=True, **options)
    with pytest.raises(expdb.errors.EpisodeMismatch, match="has task_id='task', so it cannot"):
        buffer.episode("other", episode_id="e", resume=True)
    with pytest.raises(expdb.InvalidValue, match="requires the episode_id"):
        buffer.episode("task", resume=True)
    with pytest.raises(expdb.errors.EpisodeMismatch, match="or pass resume=True to continue"):
        begin(buffer)
    first.append(x=1)  # the rejected calls did not replace this writer
    first.end()
    with pytest.raises(
        expdb.errors.EpisodeEnded, match="episode 'e' is complete and cannot be resumed"
    ):
        begin(buffer, resume=True)


KILLED = """
import sys, expdb
episode = expdb.open(sys.argv[1]).buffer("train").episode("task", episode_id="e", group_id="g")
for k in range(5):
    episode.append(x=k)
episode.flush()
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_episode_of_a_killed_actor_is_listed_and_can_be_resumed(buffer, location):
    actor = subprocess.Popen(
        [sys.executable, "-c", KILLED, location], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert actor.stdout.readline() == b"ready\n"
    os.kill(actor.pid, signal.SIGKILL)
    actor.communicate()
    for k in range(2):
        with buffer.episode("task", episode_id=f"done {k}", group_id="g") as episode:
            episode.append(x=k)
    (group,) = buffer.unfinished(3).to_pylist()
    assert group == {"group_id": "g", "task_id": "task", "complete": 2, "open": 1, "aborted": 0,
                     "missing": 1, "episode_ids": ["e"]}  # fmt: skip
    with begin(buffer, group["episode_ids"][0], resume=True) as episode:
        episode.append(x=5)
    assert columns_of(buffer, "x") == [list(range(6))]
    assert buffer.unfinished(3).num_rows == 0


def test_a_resumed_episode_takes_no_step_after_a_terminated_step(buffer, open_db):
    actor = open_db().buffer("train")  # it dies before it ends the episode
    writer = begin(actor, flush_steps=1)
    writer.append(x=0, terminated=True)
    with (
        pytest.raises(expdb.errors.EpisodeEnded, match="episode 'e' has ended"),
        begin(buffer, resume=True) as episode,
    ):
        episode.append(x=1)
    assert status_of(buffer) == ("complete", 1)
    with pytest.raises(expdb.errors.EpisodeResumed):
        writer.end()


def test_unfinished_groups_are_listed_with_their_interrupted_rollouts(buffer):
    for task, group, status in [
        ("a", "g1", "complete"), ("a", "g1", "aborted"), ("a", "g2", "complete"),
        ("a", "g2", "complete"), ("b", None, "complete"), ("b", None, "open"),
        ("c", None, "complete"), ("c", None, "complete"), ("c", None, "aborted"),
    ]:  # fmt: skip
        name = f"{task}{group}{status}{len(buffer)}"
        buffer.store(task_id=task, group_id=group, episode_id=name, x=0)
        if status != "open":
            buffer.end_episode(name, status)
    table = buffer.unfinished(2).to_pylist()
    assert [(row["group_id"], row["task_id"], row["missing"]) for row in table] == [
        ("g1", "a", 1), (None, "b", 1),
    ]  # fmt: skip
    assert [row["episode_ids"] for row in table] == [["ag1aborted1"], ["bNoneopen5"]]
    assert buffer.unfinished(1).num_rows == 0
    assert buffer.unfinished(2**63 - 1).num_rows == 4
    with pytest.raises(expdb.InvalidValue, match="group_size must be an integer of at least 1"):
        buffer.unfinished(0)


def test_evicted_rollouts_of_a_group_count_as_complete_but_deleted_ones_are_missing(db):
    buffer = db.buffer("capacity", capacity=6)
    for k in range(8):
        buffer.store(task_id="t", group_id=f"g{k // 4}", episode_id=str(k), x=k, terminated=True)
    assert [row["group_id"] for row in buffer.episodes().to_pylist()] == ["g0"] * 2 + ["g1"] * 4
    assert buffer.unfinished(4).num_rows == 0
    assert buffer.unfinished(5)["complete"].to_pylist() == [4, 4]
    buffer.delete({"episode_id": "3"})
    assert buffer.unfinished(4).select(["group_id", "missing"]).to_pylist() == [
        {"group_id": "g0", "missing": 1}
    ]
    buffer.store(task_id="t", group_id="g2", episode_id="8", x=8, terminated=True)
    buffer.store(task_id="t", group_id="g2", episode_id="9", x=9, terminated=True)
    assert buffer.unfinished(4)["group_id"].to_pylist() == ["g2"]  # g0 was evicted completely


def test_a_policy_that_evicts_from_the_middle_keeps_the_count_of_a_group(buffer):
    buffer.eviction = expdb.Eviction(max_steps_per_task=2, by="archiver")
    buffer.store(task_id="other", episode_id="other", x=0, terminated=True)
    for k in range(4):
        buffer.store(task_id="t", group_id="g", episode_id=str(k), x=k, terminated=True)
    assert buffer.evict() == 2
    assert buffer.unfinished(4)["task_id"].to_pylist() == ["other"]


MOVES = st.lists(
    st.tuples(st.sampled_from(["append", "flush", "abort", "end", "resume", "sample"]),
              st.integers(0, 2)),
    max_size=30,
)  # fmt: skip


@given(MOVES)
def test_a_handle_with_rows_in_memory_samples_the_same_as_a_new_handle(tmp_path_factory, moves):
    path = tmp_path_factory.mktemp("resumed") / "runs.db"
    steps = {}
    writers = {}
    with expdb.open(path) as db:
        buffer = db.buffer("train")
        for count, (move, number) in enumerate(moves):
            name, writer = f"e{number}", writers.get(number)
            if move == "sample" and len(buffer):
                _drawn(buffer, 8, NStep(1, next_fields=("x",)))
            elif move == "resume" and (writer is None or steps.get(name)):
                if writer is not None and writer.is_open:
                    writer.flush()
                try:
                    writers[number] = buffer.episode("t", episode_id=name, resume=True)
                except expdb.errors.EpisodeEnded:
                    continue
                if writer is not None and writer.is_open:
                    with pytest.raises(EpisodeResumed):
                        writer.end()
            elif writer is not None and writer.is_open:
                if move == "append":
                    writer.append(x=count)
                    steps.setdefault(name, []).append(count)
                elif move in ("flush", "abort", "end"):
                    getattr(writer, move)(**({"x": -count} if move != "flush" and steps.get(name)
                                             else {}))  # fmt: skip
        for writer in writers.values():
            if writer.is_open:
                writer.end()
        assert db.check() == []
        with expdb.open(path) as fresh:
            other = fresh.buffer("train")
            assert len(buffer) == len(other) == sum(map(len, steps.values()))
            if len(buffer):
                for unit in (NStep(1, next_fields=("x",)), Episode(), expdb.Sequence(4)):
                    size = 64 if unit != Episode() else 1
                    assert _drawn(buffer, size, unit) == _drawn(other, size, unit)
        stored = {row["episode_id"]: row["length"] for row in buffer.episodes().to_pylist()}
        assert stored == {name: len(own) for name, own in steps.items()}


def _drawn(buffer, size, unit):
    sampler = Uniform() if size > 1 else Uniform(over="episode")
    try:
        batch = buffer.sample(size, unit=unit, sampler=sampler, seed=3)
    except expdb.TooFewRows as error:
        return str(error)
    return {name: array.tolist() for name, array in batch.items() if name != "reward"}


def test_the_second_of_two_writers_that_begin_an_episode_gets_an_error(buffer):
    first, second = (buffer.episode("t", episode_id="race", resume=True) for _ in range(2))
    first.append(n=1)
    first.flush()
    second.append(n=2)
    with pytest.raises(expdb.errors.EpisodeResumed, match="resume the episode again"):
        second.flush()
    assert not second.is_open
    first.end()
    assert [row["n"] for row in steps_of(buffer)] == [1]
