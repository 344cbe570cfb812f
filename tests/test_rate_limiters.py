"""Rate limiters: writers and learners wait for each other, over all processes."""

import multiprocessing
import sqlite3
import threading
import time

import numpy as np
import pytest
from behind import reading
from hypothesis import given
from hypothesis import strategies as st

import expdb

FORK = multiprocessing.get_context("fork")


def store(buffer, count):
    return buffer.store_batch([{"task_id": "t", "truncated": True, "n": n} for n in range(count)])


def counts(db, buffer):
    with reading(db) as session:
        ((added, sampled),) = session.ask(
            "SELECT added, sampled FROM buffers WHERE name = ?", buffer.name
        )
    return added, sampled


@pytest.fixture
def impatient(open_db):
    return open_db(timeout=0.2).buffer("train")


def test_learners_wait_for_the_minimum(buffer):
    buffer.rate_limiter = expdb.MinSize(10)
    consumer = buffer.consumer("trainer")
    store(buffer, 9)
    with pytest.raises(expdb.TooFewRows, match="rate limiter of buffer 'train' holds back 4 rows"):
        consumer.lease(4)
    store(buffer, 1)
    assert consumer.lease(4).batch.size == 4
    store(buffer, 100)


def test_a_queue_holds_writers_back_until_learners_have_leased(impatient, open_db, db):
    impatient.rate_limiter = expdb.Queue(5)
    assert open_db().buffer("train").rate_limiter == expdb.Queue(5)
    consumer = impatient.consumer("trainer", max_times_sampled=1)
    store(impatient, 5)
    with pytest.raises(expdb.RateLimited, match="takes no more steps before learners"):
        store(impatient, 1)
    with pytest.raises(expdb.InvalidValue, match="write up to 5 at a time"):
        store(impatient, 6)
    assert len(impatient) == 5
    lease = consumer.lease(2)
    store(impatient, 2)
    with pytest.raises(expdb.RateLimited):
        impatient.store(n=1)
    lease.give_back()
    with pytest.raises(expdb.RateLimited):
        impatient.store(n=1)
    consumer.lease(2)  # the same batch once more: it was counted
    assert counts(db, impatient) == (7, 2)
    consumer.lease(3)
    assert counts(db, impatient) == (7, 5)
    impatient.rate_limiter = None
    store(impatient, 100)


def test_a_writer_goes_on_as_soon_as_a_learner_has_leased(buffer):
    buffer.rate_limiter = expdb.Queue(3)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    seen = []

    def write():
        with buffer.episode("t", flush_steps=1) as episode:
            for n in range(20):
                episode.append(n=n, truncated=n == 19)

    writer = threading.Thread(target=write)
    writer.start()
    while len(seen) < 20:
        with consumer.lease(1, wait=30.0) as batch:
            seen += batch["n"].tolist()
    writer.join()
    assert sorted(seen) == list(range(20))


def test_who_waits_is_seen_and_named(db, buffer):
    buffer.rate_limiter = expdb.Queue(2)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    store(buffer, 2)
    writer = threading.Thread(target=store, args=(buffer, 1))
    learner = threading.Thread(target=consumer.lease, args=(3,), kwargs={"wait": 30.0})
    with consumer.lease(2), pytest.raises(expdb.TooFewRows):
        consumer.lease(1)
    store(buffer, 2)
    writer.start()
    learner.start()
    while len(found := buffer.waiting()) < 2:
        time.sleep(0.05)
    assert {one["for"].split(":")[0].split(",")[0] for one in found} == {
        "the rate limiter",
        "consumer 'trainer'",
    }
    assert all(one["seconds"] >= 0.0 for one in found)
    told = [one["found"] for one in db.doctor() if one["what"] == "waiting at 'train'"]
    assert any("to store 1 steps" in one for one in told)
    buffer.rate_limiter = None
    writer.join()
    learner.join()
    assert buffer.waiting() == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: expdb.SampleToInsertRatio(4.0, 10, 7.0), "give at least 8"),
        (lambda: expdb.SampleToInsertRatio(0.0, 10, 7.0), "above 0"),
        (lambda: expdb.SampleToInsertRatio(1.0, 0, 7.0), "min_size is 0"),
        (lambda: expdb.Queue(0), "size is 0"),
        (lambda: expdb.MinSize(True), "size is True"),
    ],
)
def test_a_limit_that_cannot_be_met_is_refused(wrong, said):
    with pytest.raises(expdb.InvalidValue, match=said):
        wrong()


def test_a_minimum_above_the_capacity_is_refused(db):
    buffer = db.buffer("small", capacity=10)
    with pytest.raises(expdb.InvalidValue, match="keeps 10 steps, and min_size is 11"):
        buffer.rate_limiter = expdb.MinSize(11)
    with pytest.raises(expdb.InvalidValue, match="keeps 10 steps, and min_size is 11"):
        buffer.consumer("trainer", min_size=11)
    assert buffer.consumers() == []
    buffer.rate_limiter = expdb.MinSize(10)
    buffer.consumer("trainer", min_size=10)


def test_a_lease_that_was_waited_for_is_handed_out_while_others_write(tmp_path):
    """That nobody can be told of the wait is no reason to lose what was leased."""
    with expdb.open(tmp_path / "runs.db", timeout=0.2) as db:
        buffer = db.buffer("train")
        consumer = buffer.consumer("trainer", max_times_sampled=1)
        waiter = consumer._leasing.waiter()
        waiter._began -= 10.0
        other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with waiter:
            waiter.wait_for("nothing")
        other.execute("ROLLBACK")
        other.close()
        assert buffer.waiting() == []


def test_only_rate_limiters_are_taken(buffer):
    with pytest.raises(expdb.InvalidValue, match=r"give one such as expdb.Queue\(1000\)"):
        buffer.rate_limiter = 5


@given(
    ratio=st.floats(0.1, 10),
    min_size=st.integers(1, 50),
    spare=st.floats(0, 20),
    data=st.data(),
)
def test_writers_and_learners_never_wait_for_each_other(ratio, min_size, spare, data):
    limiter = expdb.SampleToInsertRatio(ratio, min_size, 2 * max(1.0, ratio) + spare)
    inserts = samples = 0
    for _ in range(40):
        can_insert = inserts + 1 <= limiter.insert_limit(samples)
        can_sample = limiter.may_sample(inserts, samples, 1, inserts)
        assert can_insert or can_sample
        if can_insert and (not can_sample or data.draw(st.booleans())):
            inserts += 1
        else:
            samples += 1
        if inserts > min_size:
            offset = inserts * ratio - samples
            assert limiter.least - 1e-6 <= offset <= limiter.most + ratio + 1e-6


def act(location, count):
    buffer = expdb.open(location, timeout=60.0).buffer("train")
    for n in range(count):
        buffer.store(task_id="t", n=n, truncated=True)


def learn(location, seconds, leased):
    consumer = expdb.open(location).buffer("train").consumer("trainer")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with consumer.lease(3, wait=0.5) as batch:
                leased.put(batch.size)
        except expdb.TooFewRows:
            continue


@pytest.mark.slow
def test_the_ratio_holds_at_every_instant_over_many_processes(location, db, buffer):
    limiter = expdb.SampleToInsertRatio(2.0, 20, 30.0)
    buffer.rate_limiter = limiter
    buffer.consumer("trainer")
    leased = FORK.Queue()
    actors = [FORK.Process(target=act, args=(location, 1000)) for _ in range(3)]
    learners = [FORK.Process(target=learn, args=(location, 3.0, leased)) for _ in range(2)]
    for process in (*actors, *learners):
        process.start()
    seen = []
    while any(learner.is_alive() for learner in learners):
        seen.append(counts(db, buffer))
        time.sleep(0.005)
    for actor in actors:
        actor.kill()
        actor.join()
    offsets = np.array([added * 2.0 - sampled for added, sampled in seen if added >= 20])
    assert len(offsets) > 20
    assert offsets.min() >= limiter.least
    assert offsets.max() <= limiter.most
    assert seen[-1][1] > 100
