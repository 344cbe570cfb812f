"""`buffer.writer()` stores the steps of many episodes in few transactions, each step once."""

import multiprocessing
import threading
from contextlib import suppress

import numpy as np
import pytest
from contents import steps_of
from processes import run_at_once

import expdb
from expdb import errors


def episodes(buffer):
    table = buffer.episodes().select(["agent_id", "status", "length"])
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.both_databases
def test_a_writer_flushes_the_steps_of_several_agents_in_order(buffer):
    with buffer.writer(flush_steps=6) as writer:
        for step in range(4):
            for agent in ("a", "b"):
                writer.append(agent_id=agent, obs=np.full(2, step), reward=1.0)
        assert writer.unwritten == 2
        assert len(buffer) == 6
        assert writer.flush().tolist() == [6, 7]
    assert episodes(buffer) == [("a", "complete", 4), ("b", "complete", 4)]
    read = buffer.get(range(8), fields=["obs", "agent_id", "step"])
    assert read["obs"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert read["agent_id"].tolist() == ["a", "b"] * 4


def test_a_new_episode_begins_after_a_terminated_or_truncated_step(buffer):
    with buffer.writer() as writer:
        for k in range(6):
            writer.append(obs=k, terminated=k == 1, truncated=k == 3)
    assert [length for _, _, length in episodes(buffer)] == [2, 2, 2]


def test_a_rejected_step_does_not_change_the_writer(buffer):
    with buffer.writer() as writer:
        writer.append(obs=np.zeros(2), episode_id="e", policy_version=3)
        with pytest.raises(errors.FieldMismatch):
            writer.append(obs=np.zeros(3), episode_id="f", policy_version=4)
        with pytest.raises(expdb.InvalidValue):
            writer.append(obs=np.zeros(2), reward="much")
        writer.append(obs=np.ones(2), episode_id="e")
    assert episodes(buffer) == [("agent", "open", 2)]
    read = buffer.get([0, 1], fields=["policy_version"])
    assert read["policy_version"].tolist() == [3, 3]


def test_an_open_writer_accepts_newly_declared_fields(db, buffer):
    with buffer.writer() as writer:
        writer.append(obs=1)
        db.buffer("train", fields={"tokens": expdb.Field("int64", (None,))})
        for length in (2, 3):
            writer.append(obs=2, tokens=np.arange(length))
    read = buffer.get([1, 2], fields=["tokens"])["tokens"]
    assert [array.tolist() for array in read] == [[0, 1], [0, 1, 2]]


@pytest.mark.both_databases
def test_a_writer_begins_a_new_episode_after_end_episode_and_clear(buffer):
    with buffer.writer() as writer:
        writer.append(obs=0, tags={"k": 1}, episode_tags={"seed": 7})
        writer.flush()
        buffer.end_episode(buffer.episodes()["episode_id"][0].as_py())
        writer.append(obs=1, tags={"k": 2})
        writer.flush()
        buffer.clear()
        writer.append(obs=2, tags={"k": 3})
    read = steps_of(buffer)
    assert [(row["obs"], row["tags"]) for row in read] == [(2, {"k": 3})]


def test_flush_rejects_steps_of_a_named_episode_that_has_ended(buffer):
    with buffer.writer() as writer:
        writer.append(obs=0, episode_id="e")
        writer.flush()
        buffer.end_episode("e")
        writer.append(obs=1, episode_id="e")
        with pytest.raises(errors.EpisodeEnded):
            writer.flush()
        assert writer.unwritten == 1
        buffer.delete({"episode_id": "e"})
    assert len(buffer) == 1


@pytest.mark.both_databases
def test_threads_can_share_a_writer(buffer):
    with buffer.writer(flush_steps=7) as writer:

        def work(agent):
            for k in range(50):
                writer.append(agent_id=agent, obs=k)

        run_at_once([threading.Thread(target=work, args=(f"a{k}",)) for k in range(4)])
    assert sorted(episodes(buffer)) == [(f"a{k}", "complete", 50) for k in range(4)]


@pytest.mark.both_databases
def test_interrupted_episodes_of_a_writer_are_marked_aborted(location):
    with expdb.open(location) as db:
        buffer = db.buffer("train")
        with suppress(ZeroDivisionError), buffer.writer() as writer:
            writer.append(agent_id="whole", obs=1, terminated=True)
            writer.append(agent_id="cut off", obs=1)
            writer.append(agent_id="named", episode_id="mine", obs=1)
            1 / 0  # noqa: B018
        with buffer.writer() as writer:
            writer.append(agent_id="left in order", obs=1)
        left = buffer.writer()
        left.append(agent_id="left open", obs=1)
    assert not left.is_open
    with expdb.open(location) as db:
        assert sorted(episodes(db.buffer("train"))) == [
            ("cut off", "aborted", 1),
            ("left in order", "complete", 1),
            ("left open", "aborted", 1),
            ("named", "open", 1),
            ("whole", "complete", 1),
        ]


def test_garbage_collection_stores_the_unwritten_steps_of_a_writer(buffer):
    writer = buffer.writer()
    writer.append(obs=1)
    del writer
    assert len(buffer) == 1


def test_closing_the_database_warns_about_steps_it_cannot_write(tmp_path):
    db = expdb.open(tmp_path / "told.db")
    writer = db.buffer("train").writer()
    writer.append(obs=1)
    with expdb.open(tmp_path / "told.db") as other:
        other.drop("train")
    with pytest.warns(errors.ExpDBWarning, match="1 steps that were appended .* are lost"):
        db.close()


def test_a_closed_writer_rejects_steps(buffer):
    writer = buffer.writer()
    writer.close()
    writer.close()
    with pytest.raises(expdb.InvalidValue, match="closed"):
        writer.append(obs=1)
    with pytest.raises(expdb.InvalidValue, match="flush_steps"):
        buffer.writer(flush_steps=0)


def test_a_forked_child_gets_an_error_if_a_thread_holds_the_writer_lock(buffer):
    writer, is_locked, may_release = buffer.writer(), threading.Event(), threading.Event()

    def lock_writer():
        with writer._lock:
            is_locked.set()
            may_release.wait(60)

    def call_writer():
        for call in (
            lambda: writer.append(obs=1),
            lambda: writer.extend({"obs": [1]}),
            writer.flush,
        ):
            with pytest.raises(errors.ForkedWithOpenConnection):
                call()

    thread = threading.Thread(target=lock_writer)
    thread.start()
    is_locked.wait(60)
    child = multiprocessing.get_context("fork").Process(target=call_writer)
    child.start()
    child.join(20)
    child.kill()  # if it still waits for the lock
    may_release.set()
    thread.join()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("kind", ["episode", "writer"])
def test_a_writer_checks_values_against_fields_added_by_its_first_flush(db, kind):
    buffer = db.buffer("b")
    with getattr(buffer, kind)(*["task"] * (kind == "episode")) as writer:
        writer.append(obs=np.zeros(4))
        writer.flush()
        with pytest.raises(errors.FieldMismatch, match=r"has type float64\[4\], got float64\[5\]"):
            writer.append(obs=np.zeros(5))
        writer.append(obs=np.ones(4))
    assert buffer.sample(9)["obs"].shape == (9, 4)
    assert len(buffer) == 2
