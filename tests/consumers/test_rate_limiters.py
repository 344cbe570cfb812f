"""Rate limiters make the writers and learners of all processes wait for each other."""

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
from expdb import errors

FORK = multiprocessing.get_context("fork")


def store(buffer, count):
    return buffer.store_batch([{"task_id": "t", "truncated": True, "n": n} for n in range(count)])


def counts(db, buffer):
    with reading(db) as session:
        ((added, sampled),) = session.query(
            "SELECT added, sampled FROM buffers WHERE name = ?", buffer.name
        )
    return added, sampled


@pytest.fixture
def impatient(open_db):
    return open_db(timeout=0.2).buffer("train")


@pytest.mark.both_databases
def test_min_size_rejects_leases_until_enough_steps_are_stored(buffer):
    buffer.rate_limiter = expdb.MinSize(10)
    consumer = buffer.consumer("trainer")
    store(buffer, 9)
    with pytest.raises(
        expdb.TooFewRows, match="rate limiter of buffer 'train' does not allow a lease of 4 items"
    ):
        consumer.lease(4)
    store(buffer, 1)
    assert consumer.lease(4).batch.size == 4
    store(buffer, 100)


@pytest.mark.both_databases
def test_a_full_queue_blocks_writers_until_learners_lease(impatient, open_db, db):
    impatient.rate_limiter = expdb.Queue(5)
    assert open_db().buffer("train").rate_limiter == expdb.Queue(5)
    consumer = impatient.consumer("trainer", max_times_sampled=1)
    store(impatient, 5)
    with pytest.raises(errors.RateLimited, match="did not allow 1 more steps"):
        store(impatient, 1)
    with pytest.raises(expdb.InvalidValue, match="write at most 5 steps at once"):
        store(impatient, 6)
    assert len(impatient) == 5
    lease = consumer.lease(2)
    store(impatient, 2)
    with pytest.raises(errors.RateLimited):
        impatient.store(n=1)
    lease.release()
    with pytest.raises(errors.RateLimited):
        impatient.store(n=1)
    consumer.lease(2)  # the same batch again, which is already counted
    assert counts(db, impatient) == (7, 2)
    consumer.lease(3)
    assert counts(db, impatient) == (7, 5)
    impatient.rate_limiter = None
    store(impatient, 100)


@pytest.mark.both_databases
def test_a_blocked_writer_continues_when_a_learner_leases(buffer):
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


@pytest.mark.both_databases
def test_waiting_lists_blocked_writers_and_learners(db, buffer):
    buffer.rate_limiter = expdb.Queue(2)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    store(buffer, 2)
    writer = threading.Thread(target=store, args=(buffer, 1))
    where = {"task_id": "another"}
    learner = threading.Thread(target=consumer.lease, args=(1, where), kwargs={"wait": 30.0})
    with consumer.lease(2), pytest.raises(expdb.TooFewRows):
        consumer.lease(1)
    store(buffer, 2)
    writer.start()
    learner.start()
    while len(waits := buffer.waiting().to_pylist()) < 2:
        time.sleep(0.05)
    assert {wait["waits_for"].split(":")[0].split(",")[0] for wait in waits} == {
        "the rate limiter",
        "consumer 'trainer'",
    }
    assert all(wait["seconds"] >= 0.0 for wait in waits)
    findings = [
        finding["found"] for finding in db.doctor() if finding["what"] == "waiting at 'train'"
    ]
    assert any("to store 1 steps" in finding for finding in findings)
    buffer.rate_limiter = None
    writer.join()
    buffer.store(task_id="another", n=0, truncated=True)
    learner.join()
    assert buffer.waiting().num_rows == 0


def test_invalid_limiter_settings_are_rejected():
    for kind, arguments, message in (
        (expdb.SampleToInsertRatio, (4.0, 10, 7.0), "error_buffer must be at least 8"),
        (expdb.SampleToInsertRatio, (0.0, 10, 7.0), "ratio must be a number from 1e-6 to 1e6"),
        (expdb.SampleToInsertRatio, (1e300, 1, 1e301), "ratio must be a number from 1e-6"),
        (expdb.SampleToInsertRatio, (1.0, 2**62, 1e9), "min_size must be at most"),
        (expdb.SampleToInsertRatio, (1.0, 1, 1e300), "error_buffer must be at most"),
        (expdb.Queue, (2**63 - 1,), "size must be at most"),
        (expdb.MinSize, (True,), "size must be an integer of at least 1, got True"),
    ):
        with pytest.raises(expdb.InvalidValue, match=message):
            kind(*arguments)


def test_min_size_above_the_capacity_is_rejected(db):
    buffer = db.buffer("small", capacity=10)
    with pytest.raises(expdb.InvalidValue, match=r"min_size is 11, but .* capacity of 10"):
        buffer.rate_limiter = expdb.MinSize(11)
    with pytest.raises(expdb.InvalidValue, match=r"min_size is 11, but .* capacity of 10"):
        buffer.consumer("trainer", min_size=11)
    assert buffer.consumers() == []
    buffer.rate_limiter = expdb.MinSize(10)
    buffer.consumer("trainer", min_size=10)


def test_a_wait_succeeds_if_it_cannot_be_recorded(tmp_path):
    """A waiting thread cannot record its wait while another process holds the write lock."""
    with expdb.open(tmp_path / "runs.db", timeout=0.2) as db:
        buffer = db.buffer("train")
        consumer = buffer.consumer("trainer", max_times_sampled=1)
        waiter = consumer._ledger.waiter()
        waiter._began -= 10.0
        other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with waiter:
            waiter.wait_for("nothing")
        other.execute("ROLLBACK")
        other.close()
        assert buffer.waiting().num_rows == 0


@given(
    ratio=st.floats(0.1, 10),
    min_size=st.integers(1, 50),
    spare=st.floats(0, 20),
    data=st.data(),
)
def test_a_ratio_never_blocks_writers_and_learners_at_the_same_time(ratio, min_size, spare, data):
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
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end or (count < 60 and time.monotonic() < end + 60):
        try:
            with consumer.lease(3, wait=0.5) as batch:
                leased.put(batch.size)
                count += batch.size
        except expdb.TooFewRows:
            continue


@pytest.mark.both_databases
@pytest.mark.slow
def test_the_ratio_stays_within_its_bounds_across_processes(location, db, buffer):
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


def refill(buffer, count=10):
    """Store steps one by one; each write waits up to 5 s for the rate limiter."""
    for _ in range(count):
        store(buffer, 1)


LIMITERS = {
    "queue": expdb.Queue(10),
    "ratio": expdb.SampleToInsertRatio(1.0, 1, 9.0),
}


@pytest.fixture(params=LIMITERS)
def full(request, open_db):
    """Return a buffer whose rate limiter does not allow more steps."""
    buffer = open_db(timeout=5.0).buffer("train")
    buffer.rate_limiter = LIMITERS[request.param]
    buffer.policy_version = 0
    for n in range(10):
        buffer.store(task_id="t", n=n, truncated=True, policy_version=0)
    return buffer


@pytest.mark.both_databases
def test_deleted_steps_do_not_block_writers(full):
    full.consumer("trainer", max_times_sampled=1)
    full.delete({"step": 0})
    refill(full)
    full.clear()
    refill(full)
    assert full.consumer("trainer").lease(10).batch.size == 10


@pytest.mark.both_databases
def test_evicted_steps_do_not_block_writers(full):
    full.consumer("trainer", max_times_sampled=1)
    full.capacity = 4
    refill(full, 6)
    assert full.consumer("trainer").lease(4).batch.size == 4


@pytest.mark.both_databases
def test_stale_steps_do_not_block_writers(full):
    consumer = full.consumer("trainer", max_times_sampled=1, max_staleness=1)
    full.policy_version = 5
    with pytest.raises(expdb.TooFewRows):
        consumer.lease(1)
    for n in range(10):
        full.store(task_id="t", n=n, truncated=True, policy_version=5)
    assert consumer.lease(10).batch.size == 10


def test_steps_without_a_policy_version_do_not_block_writers(full):
    consumer = full.consumer("trainer", max_times_sampled=1, max_staleness=1)
    consumer.lease(10).acknowledge()
    refill(full, 20)
    with pytest.raises(expdb.TooFewRows):
        consumer.lease(1)


@pytest.mark.both_databases
def test_without_consumers_writers_are_blocked_until_steps_are_deleted(full, open_db):
    impatient = open_db(timeout=0.5).buffer("train")
    with pytest.raises(errors.RateLimited, match="10 items can be leased now"):
        store(impatient, 1)
    full.clear()
    store(impatient, 1)


def test_stale_steps_count_again_for_a_consumer_that_can_lease_them(full):
    full.consumer("strict", max_times_sampled=1, max_staleness=0)
    full.policy_version = 5
    full.store(task_id="t", n=10, truncated=True, policy_version=5)  # ten stale steps stop counting
    consumer = full.consumer("any", max_times_sampled=1)
    assert [consumer.lease(size).batch.size for size in (10, 1)] == [10, 1]


@pytest.mark.both_databases
def test_a_writer_and_a_waiting_learner_do_not_deadlock(full):
    consumer = full.consumer("trainer", max_times_sampled=1, max_staleness=0)
    full.policy_version = 3
    leased = []

    def learn():
        with consumer.lease(10, wait=30.0) as batch:
            leased.append(batch["n"].tolist())

    learner = threading.Thread(target=learn)
    learner.start()
    for n in range(100, 110):
        full.store(task_id="t", n=n, truncated=True, policy_version=3)
    learner.join(30)
    assert sorted(leased[0]) == list(range(100, 110))


def test_a_lease_larger_than_the_limiter_allows_fails_immediately(buffer):
    buffer.rate_limiter = expdb.Queue(10)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    began = time.monotonic()
    with pytest.raises(expdb.InvalidValue, match=r"64 items can never succeed, .* at most 10"):
        consumer.lease(64, wait=60.0)
    assert time.monotonic() - began < 30
    store(buffer, 5)
    assert consumer.lease(64, at_least=5).batch.size == 5


def test_a_capacity_below_min_size_is_rejected(db):
    buffer = db.buffer("small", capacity=100)
    buffer.consumer("trainer", min_size=50)
    with pytest.raises(expdb.InvalidValue, match="min_size of consumer 'trainer' is 50"):
        buffer.capacity = 49
    buffer.drop_consumer("trainer")
    buffer.rate_limiter = expdb.MinSize(60)
    with pytest.raises(expdb.InvalidValue, match=r"min_size is 60, but .* capacity of 59"):
        buffer.capacity = 59
    assert buffer.capacity == 100
    buffer.capacity = 60


def test_the_largest_valid_limits_can_be_used(buffer):
    for limiter in (
        expdb.Queue(10**15),
        expdb.SampleToInsertRatio(1e6, 10**15, 1e15),
        expdb.SampleToInsertRatio(1e-6, 10**15, 1e15),
    ):
        buffer.rate_limiter = limiter
        store(buffer, 3)


def test_a_lease_does_not_restore_a_limiter_replaced_during_the_draw(postgresql_url, monkeypatch):
    """On PostgreSQL, another handle may replace the limiter after the lease has read it."""
    with expdb.open(postgresql_url) as db, expdb.open(postgresql_url) as other:
        first, second = db.buffer("train"), other.buffer("train")
        first.rate_limiter = expdb.Queue(100)
        store(first, 10)
        consumer = first.consumer("trainer", max_times_sampled=1)
        draw = consumer._ledger._draw

        def replaced(*arguments):
            second.rate_limiter = None
            return draw(*arguments)

        monkeypatch.setattr(consumer._ledger, "_draw", replaced)
        assert consumer.lease(2).batch.size == 2
        assert second.rate_limiter is None
        store(second, 200)
        assert db.check() == []


@pytest.mark.both_databases
def test_writers_are_not_blocked_while_fewer_steps_than_min_size_are_stored(open_db):
    buffer = open_db(timeout=3.0).buffer("train")
    buffer.rate_limiter = expdb.SampleToInsertRatio(1.0, min_size=100, error_buffer=10)
    consumer = buffer.consumer("c")
    buffer.store_batch([{"x": k, "task_id": "ab"[k % 2]} for k in range(100)])
    buffer.delete({"task_id": "a"})
    for k in range(50):
        buffer.store(x=k)
    with consumer.lease(5) as batch:
        assert batch.size == 5


@pytest.mark.both_databases
@pytest.mark.parametrize("unit", [expdb.Episode(), expdb.Group(2), expdb.Pairs()])
def test_steps_of_leased_episodes_do_not_block_writers(open_db, unit):
    buffer = open_db(timeout=3.0).buffer("train")
    buffer.rate_limiter = expdb.Queue(50)
    consumer = buffer.consumer("c", max_times_sampled=1)
    for number in range(20):
        for step in range(5):
            buffer.store(
                x=step, episode_id=f"e{number}", group_id=f"g{number // 2}", reward=float(number),
                terminated=step == 4,
            )  # fmt: skip
        if number % 2:
            with consumer.lease(2 if unit == expdb.Episode() else 1, unit=unit):
                pass
    assert len(buffer) == 100


@pytest.mark.both_databases
def test_episodes_with_a_stale_first_step_do_not_block_writers(open_db):
    buffer = open_db(timeout=3.0).buffer("train")
    buffer.rate_limiter = expdb.Queue(10)
    buffer.policy_version = 0
    consumer = buffer.consumer("c", max_times_sampled=1, max_staleness=0)
    buffer.store(x=0, policy_version=0, terminated=True)
    with consumer.lease(1, unit=expdb.Episode()):
        pass
    buffer.store(x=0, episode_id="e", policy_version=0)  # makes the episode stale
    buffer.policy_version = 1
    for k in range(20):
        buffer.store(x=k, episode_id="e", policy_version=1)
    assert len(buffer) == 22
