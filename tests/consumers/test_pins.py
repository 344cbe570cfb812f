"""Pins keep the steps of a lease in the buffer, up to twice the capacity of the buffer."""

import time

import numpy as np
import pytest

import expdb
from expdb import errors

pytestmark = pytest.mark.both_databases


@pytest.fixture
def buffer(db):
    return db.buffer("train", capacity=100)


def store(buffer, count):
    for start in range(0, count, 10):
        n = np.arange(start, min(start + 10, count))
        buffer.store_batch({"n": n, "truncated": True, "task_id": [str(k) for k in n]})


def test_pinned_steps_are_kept_until_the_lease_is_acknowledged(buffer, db):
    store(buffer, 100)
    consumer = buffer.consumer("trainer")
    lease = consumer.lease(4, where=[20, 30, 40, 50], sampler=expdb.Ordered("position"), pin=True)
    store(buffer, 60)
    assert (len(buffer), buffer.stats()["oldest"], buffer.stats()["pinned"]) == (140, 20, 20)
    np.testing.assert_equal(dict(consumer.shared(lease.id)), dict(lease.batch))
    assert db.check() == []
    findings = [
        finding["found"] for finding in db.doctor() if finding["what"] == "pinned in 'train'"
    ]
    assert findings == ["140 steps; steps from position 20 on are kept for leases"]
    lease.acknowledge()
    assert (len(buffer), buffer.stats()["oldest"], buffer.stats()["pinned"]) == (100, 60, None)
    assert db.check() == []
    drawn = buffer.sample(400, seed=0)["position"]
    assert (drawn.min(), drawn.max()) == (60, 159)


def test_the_oldest_pin_determines_the_oldest_step_that_is_kept(buffer, db):
    store(buffer, 100)
    consumers = [buffer.consumer(name) for name in "ab"]
    leases = [
        consumer.lease(2, where=[at, 90], sampler=expdb.Ordered("position"), pin=True)
        for consumer, at in zip(consumers, (30, 10), strict=True)
    ]
    store(buffer, 50)
    assert buffer.stats()["oldest"] == 10
    leases[1].release()
    assert buffer.stats()["oldest"] == 30
    consumers[0].lease(1)  # pins nothing
    buffer.drop_consumer("a")
    assert (buffer.stats()["oldest"], len(buffer)) == (50, 100)
    assert db.check() == []


def test_a_pin_ends_when_its_lease_expires(buffer):
    store(buffer, 100)
    consumer = buffer.consumer("trainer")
    consumer.lease(1, where=[0], pin=True, expiry_seconds=1.0)
    store(buffer, 20)
    assert buffer.stats()["oldest"] == 0
    time.sleep(1.02)
    consumer.lease(1).release()  # also removes expired leases
    assert buffer.stats()["oldest"] == 20


def test_a_pin_covers_every_step_that_a_batch_contains(buffer):
    for number in range(10):
        with buffer.episode(f"t{number}") as episode:
            for step in range(10):
                episode.append(obs=np.float32(step), terminated=step == 9)
    consumer = buffer.consumer("trainer")
    units = expdb.Sequence(3, burn_in=2), expdb.Stack(4), expdb.Episode(), expdb.NStep(2)
    for unit, least in zip(units, (25, 24, 20, 27), strict=True):
        where = [20, 27] if isinstance(unit, expdb.Episode) else [27]
        lease = consumer.lease(1, where, unit=unit, pin=True)
        assert buffer.stats()["pinned"] == least
        lease.release()


def test_a_pin_is_dropped_when_the_buffer_exceeds_twice_its_capacity(buffer, db):
    store(buffer, 100)
    consumer = buffer.consumer("trainer")
    lease = consumer.lease(4, where=[0, 1, 2, 3], sampler=expdb.Ordered("position"), pin=True)
    store(buffer, 100)
    assert len(buffer) == 200
    assert consumer.shared(lease.id).size == 4
    store(buffer, 1)
    assert (len(buffer), buffer.stats()["pinned"]) == (100, None)
    with pytest.raises(errors.Evicted):
        consumer.shared(lease.id)
    store(buffer, 5)
    assert len(buffer) == 100
    assert db.check() == []
    lease.acknowledge()
    assert len(buffer) == 100


def test_a_pinned_buffer_with_deleted_steps_counts_its_steps_correctly(buffer, db):
    store(buffer, 100)
    buffer.delete(list(range(5, 25)))
    lease = buffer.consumer("trainer").lease(1, where=[30], pin=True)
    store(buffer, 90)
    assert (len(buffer), buffer.stats()["oldest"]) == (160, 30)
    assert db.check() == []
    lease.acknowledge()
    assert (len(buffer), buffer.stats()["oldest"]) == (100, 90)
    assert db.check() == []


@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_a_buffer_above_its_capacity_with_pins_can_be_cleared(db):
    buffer = db.buffer("pinned", capacity=20)
    buffer.store_batch({"x": np.zeros((10, 1)), "task_id": "t"})
    buffer.consumer("learner").lease(10, sampler=expdb.Uniform(replace=False), pin=True)
    buffer.store_batch({"x": np.zeros((15, 1)), "task_id": "t"})
    assert (len(buffer), buffer.clear(), len(buffer)) == (25, 25, 0)
    assert buffer.stats()["pinned"] is None
    assert db.check() == []
    buffer.store_batch({"x": np.zeros((30, 1)), "task_id": "t"})
    assert len(buffer) == 20
