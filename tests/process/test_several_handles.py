"""Several handles change the same buffer, and no handle relies on outdated cached state."""

import json
import threading

import numpy as np
import pytest
from behind import dialect_of, store_of, writing
from contents import steps_of

import expdb
from expdb.storage.writing import abandoned_episodes, transaction
from expdb.storage.writing import open_episodes as intake

pytestmark = pytest.mark.both_databases


def statuses(buffer):
    return sorted(
        (row["task_id"], row["status"], row["length"]) for row in buffer.episodes().to_pylist()
    )


# -- episodes ended, cleared or deleted by another handle ------------------------------------------


@pytest.mark.parametrize("how", ["clear", "end_episode", "delete"])
@pytest.mark.parametrize("named", [False, True])
def test_store_begins_a_new_episode_if_another_handle_ended_or_cleared_it(open_db, how, named):
    first, other = open_db().buffer("b"), open_db().buffer("b")
    name = {"episode_id": "e"} if named else {}
    first.store(task_id="t", n=0, **name)
    if how == "clear":
        other.clear()
    elif how == "delete":
        other.end_episode(other.episodes()["episode_id"].to_pylist()[0])
        other.delete({"task_id": "t"})
    elif named:
        return  # store() raises EpisodeEnded for a named episode that has ended
    else:
        other.end_episode(other.episodes()["episode_id"].to_pylist()[0])
    position = first.store(task_id="t", n=1, terminated=True, **name)
    assert first.get([position])["step"].tolist() == [0]
    assert statuses(first)[-1] == ("t", "complete", 1)


def test_store_batch_continues_the_others_if_another_handle_ended_an_episode(open_db):
    first, other = open_db().buffer("b"), open_db().buffer("b")
    tasks = [f"t{k}" for k in range(5)]
    first.store_batch([{"task_id": task, "n": 0} for task in tasks])
    stale = other.episodes({"task_id": "t2"})["episode_id"].to_pylist()[0]
    other.end_episode(stale)
    first.store_batch([{"task_id": task, "n": 1, "terminated": task == "t4"} for task in tasks])
    assert statuses(first) == [
        ("t0", "open", 2), ("t1", "open", 2), ("t2", "complete", 1), ("t2", "open", 1),
        ("t3", "open", 2), ("t4", "complete", 2),
    ]  # fmt: skip
    steps = [(row["task_id"], row["step"]) for row in steps_of(first)[5:10]]
    assert steps == [("t0", 1), ("t1", 1), ("t2", 0), ("t3", 1), ("t4", 1)]


def test_an_episode_id_can_be_reused_after_its_episode_was_evicted(open_db):
    first, other = open_db().buffer("b", capacity=2), open_db().buffer("b")
    first.store(task_id="t", episode_id="e", n=0)
    other.end_episode("e")
    other.store_batch([{"task_id": "u", "n": k} for k in range(4)])
    first.store(task_id="another", episode_id="e", n=9)
    assert ("another", "open", 1) in statuses(first)


# -- episodes that are never ended -----------------------------------------------------------------


def test_the_number_of_cached_open_episodes_is_bounded(open_db, monkeypatch):
    monkeypatch.setattr(intake, "MANY_OPEN", 300)
    buffer = open_db().buffer("b", capacity=20)
    for start in range(0, 2000, 20):
        buffer.store_batch([{"task_id": f"t{start + k}", "n": k} for k in range(20)])
    assert len(buffer._write_queue.episodes._open) < 700


def test_open_episodes_are_deleted_after_their_steps_are_evicted(open_db):
    db = open_db()
    buffer = db.buffer("b", capacity=100)
    for start in range(0, 4000, 100):
        buffer.store_batch([{"task_id": f"t{start + k}", "n": k} for k in range(100)])
    assert db.sql("SELECT count(*) AS n FROM experience_episodes").to_pylist()[0]["n"] < 1000
    assert len(buffer) == 100


@pytest.mark.parametrize("how", ["writer", "store", "store by name"])
def test_a_writer_can_continue_an_open_episode_deleted_after_eviction(open_db, how, monkeypatch):
    monkeypatch.setattr(abandoned_episodes, "SWEEP_EVERY", 4)
    buffer, other = open_db().buffer("b", capacity=10), open_db().buffer("b")
    writer = buffer.episode("slow", episode_id="e") if how == "writer" else None

    def write(n, **more):
        if writer is not None:
            writer.append(n=n, reward=1.0, **more)
            writer.flush()
        else:
            name = {"episode_id": "e"} if how == "store by name" else {}
            buffer.store(task_id="slow", n=n, reward=1.0, **more, **name)

    for n in range(3):
        write(n)
    for n in range(50):
        other.store(task_id=f"fast {n}", n=n)
    assert other.episodes().num_rows < 40
    assert "slow" not in other.tasks()
    for n in range(3, 5):
        write(n, terminated=n == 4)
    if writer is not None:
        writer.end()
    rows = buffer.episodes({"task_id": "slow"}).to_pylist()
    assert [(row["status"], row["length"], row["episode_return"]) for row in rows] == [
        ("complete", 5, 5.0)
    ]
    assert [row["step"] for row in steps_of(buffer, {"task_id": "slow"})] == [3, 4]


def test_close_completes_the_episodes_of_thousands_of_tasks(open_db):
    db = open_db()
    db.buffer("b").store_batch([{"task_id": f"t{k}", "n": k} for k in range(1500)])
    db.close()
    assert set(open_db().buffer("b").episodes()["status"].to_pylist()) == {"complete"}


# -- rows in memory --------------------------------------------------------------------------------


def test_sampling_resumes_bit_for_bit_with_more_samplers_than_are_cached(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b", capacity=300)
    samplers = [expdb.Prioritized(0.3 + 0.01 * k, anneal_steps=20) for k in range(20)]

    def train(which, rounds, stores):
        out = []
        for number in range(rounds):
            if stores:
                which.store_batch(
                    [{"task_id": f"t{number}", "n": k, "reward": 0.1 * k} for k in range(7)]
                )
            batch = which.sample(16, sampler=samplers[number % 20])
            which.update_priorities(batch["position"], batch["reward"] + 0.3 * number)
            out.append({key: batch[key].tobytes() for key in batch})
        return out

    train(buffer, 90, stores=True)
    state = json.loads(json.dumps(buffer.sampling_state()))
    wanted = train(buffer, 45, stores=False)
    buffer.sampling_state()  # also saves the priorities, so that the other handle reads them
    again = open_db(max_lag_seconds=0.0).buffer("b")
    again.sample(8, unit=expdb.NStep(1, end="shorten"))
    again.restore_sampling(state)
    assert train(again, 45, stores=False) == wanted
    buffer.restore_sampling(state)
    assert train(buffer, 45, stores=False) == wanted


def test_reads_with_unsaved_priorities_do_not_wait_for_a_writer(open_db):
    db, other = open_db(timeout=30.0), open_db()
    buffer = db.buffer("b")
    buffer.store_batch({"n": np.arange(20), "reward": np.ones(20)})
    buffer.sample(4, sampler=expdb.Prioritized(), seed=0)
    buffer.update_priorities(np.arange(20), np.arange(20.0))
    done = threading.Event()

    def read():
        for use in (
            lambda: buffer.count({"reward": 1.0}),
            lambda: db.sql("SELECT count(*) FROM experience"), lambda: buffer.get([1]),
            lambda: steps_of(buffer), lambda: list(buffer.scan()), lambda: buffer.sample(4),
            lambda: buffer.sample(4, sampler=expdb.Prioritized()),
            lambda: buffer.sample(4, where={"reward": 1.0}),
            lambda: buffer.update_priorities([3], [5.0]), buffer.sampling_state, buffer.tasks,
            buffer.stats,
        ):  # fmt: skip
            use()
        done.set()

    with writing(other) as session:
        session.query(dialect_of(other).LOCK, 1)
        session.query("UPDATE buffers SET name = name")
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert done.wait(10), "a reader waits for the writer"
    thread.join()
    assert buffer.get([3, 19], fields=["priority"])["priority"].tolist() == [5.0, 19.0]


def test_unsaved_priorities_are_kept_if_a_new_step_lacks_a_field(open_db):
    buffer = open_db(max_lag_seconds=0.0).buffer("b")
    buffer.store_batch([{"n": k, "obs": np.zeros(2)} for k in range(4)])
    sampler = expdb.Prioritized(alpha=1.0, epsilon=0.0, initial=4.0)
    buffer.sample(4, sampler=sampler)
    buffer.update_priorities([0, 1, 2, 3], [1.0, 2.0, 5.0, 5.0])
    buffer.store(n=4)  # lacks obs, so that all rows are read again
    buffer.update_priorities([2, 3], [3.0, 10.0])
    batch = buffer.sample(64, sampler=sampler, seed=0)
    np.testing.assert_allclose(
        batch["probability"], np.array([1.0, 2.0, 3.0, 10.0, 4.0])[batch["position"]] / 20
    )
    assert buffer.get(range(4), fields=["priority"])["priority"].tolist() == [1.0, 2.0, 3.0, 10.0]


def test_ending_an_open_episode_deleted_after_eviction_raises_no_error(open_db):
    buffer = open_db().buffer("b", capacity=10)
    with buffer.episode("slow") as writer:
        for n in range(3):
            writer.append(n=n)
        writer.flush()
        for n in range(600):
            buffer.store(task_id=f"fast {n}", n=n)
    assert not writer.is_open
    assert "slow" not in buffer.tasks()


@pytest.mark.parametrize("how", ["rows", "writer"])
def test_steps_are_stored_if_another_handle_begins_their_episodes_meanwhile(
    location, monkeypatch, how
):
    names, write = ["a", "b", "c", "d"], transaction.write
    with expdb.open(location) as db, expdb.open(location) as another:
        buffer, theirs = db.buffer("b"), another.buffer("b")
        theirs.store(episode_id="first", n=-1)
        left = list(names)

        def write_after_another(store, *arguments):
            if store is store_of(buffer) and left:
                theirs.store(episode_id=left.pop(), n=-1)
            return write(store, *arguments)

        monkeypatch.setattr(transaction, "write", write_after_another)
        if how == "rows":
            buffer.store_batch([{"episode_id": name, "n": 0} for name in names])
        else:
            with buffer.writer() as writer:
                for name in names:
                    writer.append(episode_id=name, n=0)
        assert not left
        columns = buffer.episodes().select(["episode_id", "length"]).to_pydict()
        assert dict(zip(*columns.values(), strict=True)) == {"first": 1, **dict.fromkeys(names, 2)}
        assert db.check() == []


def test_a_tag_with_a_long_name_can_be_indexed(buffer):
    key = "k" * 100
    buffer.store(x=1, tags={key: 1})
    buffer.index(f"tags.{key}")
    buffer.index(f"tags.{key}")
    assert buffer.count({f"tags.{key}": 1}) == 1
