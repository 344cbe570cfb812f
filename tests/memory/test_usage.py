"""What a consumer remembers of handed-out steps depends on the number of steps that are held."""

import contextlib

import numpy as np
import pytest

import expdb
from expdb.memory import usage
from expdb.names import UNKNOWN


def store(buffer, count):
    with buffer.episode("short") as episode:
        episode.extend({"x": np.zeros((count, 4), np.float32)})


def test_items_that_a_small_group_lacks_are_no_steps():
    known = usage.Usage(most=1, began=0)
    known.block(np.array([UNKNOWN, 3]))
    assert known.left(np.arange(5)).tolist() == [1, 1, 1, 0, 1]


@pytest.fixture
def small_arrays(monkeypatch):
    monkeypatch.setattr(usage, "ROOM", 16)


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("is_front_open", [False, True])
def test_a_consumer_forgets_the_steps_that_are_evicted(db, small_arrays, most, is_front_open):
    buffer = db.buffer("train", capacity=200)
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    front = buffer.episode("open") if is_front_open else None
    if front is not None:
        front.extend({"x": np.zeros((5, 4), np.float32)})
        front.flush()
    consumer, sizes = buffer.consumer("learner", max_times_sampled=most), []
    for _ in range(60):
        store(buffer, 50)
        buffer.evict()
        consumer.lease(10).acknowledge()
        sizes.append(len(consumer._leasing._usage._times))
    assert max(sizes) < 1000  # of 3,000 positions
    if front is not None:
        front.end()


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(k, marks=pytest.mark.slow) for k in range(6, 60))]
)
@pytest.mark.filterwarnings("ignore::expdb.ExpDBWarning")
def test_what_may_be_handed_out_is_what_the_ledger_says(db, open_db, small_arrays, seed):
    rng = np.random.default_rng(seed)
    buffer = db.buffer("train", capacity=[None, 60][seed % 2])
    consumers = [
        buffer.consumer("learner", max_times_sampled=[None, 1, 3][seed % 3]),
        open_db().buffer("train").consumer("learner"),
    ]
    leases, compared = [], 0
    for _ in range(80):
        action = rng.integers(6)
        if action == 0:
            store(buffer, int(rng.integers(1, 20)))
        elif action == 1 and len(buffer):
            held = buffer.sample(30)["position"]
            buffer.delete(held[held < held.max() - rng.integers(0, 20)])
        elif action < 4:
            with contextlib.suppress(expdb.TooFewRows):
                leases.append(consumers[int(rng.integers(2))].lease(int(rng.integers(1, 9))))
        elif leases:
            lease = leases.pop(int(rng.integers(len(leases))))
            lease.acknowledge() if action == 4 else lease.give_back()
        with contextlib.suppress(expdb.TooFewRows):
            consumers[0].lease(1).give_back()  # learns what the other handle has leased
            leasing = consumers[0]._leasing
            positions = leasing._sampling.resident.all_positions()
            np.testing.assert_array_equal(leasing._usage.left(positions), leasing.left(positions))
            compared += 1
    assert compared > 20
    for lease in leases:
        lease.give_back()
