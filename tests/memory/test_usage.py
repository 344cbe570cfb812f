"""The memory of `Usage` depends on the number of stored steps, not of evicted steps."""

import contextlib

import numpy as np
import pytest

import expdb
from expdb.memory import usage


def store_episode(buffer, count):
    with buffer.episode("short") as episode:
        episode.extend({"x": np.zeros((count, 4), np.float32)})


@pytest.fixture
def small_arrays(monkeypatch):
    monkeypatch.setattr(usage, "LEAST", 16)


@pytest.mark.parametrize(("most", "keeps_first_episode_open"), [(None, False), (2, True)])
def test_consumer_frees_the_memory_of_evicted_steps(
    db, small_arrays, most, keeps_first_episode_open
):
    buffer = db.buffer("train", capacity=200)
    buffer.eviction = expdb.Eviction(whole_episodes=True)
    open_episode = buffer.episode("open") if keeps_first_episode_open else None
    if open_episode is not None:
        open_episode.extend({"x": np.zeros((5, 4), np.float32)})
        open_episode.flush()
    consumer, sizes = buffer.consumer("learner", max_times_sampled=most), []
    for _ in range(60):
        store_episode(buffer, 50)
        buffer.evict()
        consumer.lease(10).acknowledge()
        sizes.append(len(consumer._ledger._usage._lease_counts))
    assert max(sizes) < 1000  # 3,000 steps were written
    if open_episode is not None:
        open_episode.end()


@pytest.mark.parametrize("method", ["_count", "_hold", "_note"])
@pytest.mark.parametrize("act", ["lease", "release", "acknowledge"])
def test_usage_matches_the_ledger_after_an_interrupt(db, monkeypatch, act, method):
    buffer = db.buffer("train")
    store_episode(buffer, 10)
    consumer = buffer.consumer("learner", max_times_sampled=2)
    lease, original = consumer.lease(5), getattr(usage.Usage, method)
    interrupts = iter([KeyboardInterrupt()])

    def interrupted_once(*arguments):
        for interrupt in interrupts:
            raise interrupt
        return original(*arguments)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(usage.Usage, method, interrupted_once)
        consumer.lease(4) if act == "lease" else getattr(lease, act)()
    consumer.lease(1).release()
    leasing, positions = consumer._ledger, np.arange(10)
    np.testing.assert_array_equal(leasing._usage.left(positions), leasing.left(positions))


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(k, marks=pytest.mark.slow) for k in range(3, 8))]
)
@pytest.mark.filterwarnings("ignore::expdb.errors.ExpDBWarning")
def test_usage_matches_the_ledger_after_random_operations(db, open_db, small_arrays, seed):
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
            store_episode(buffer, int(rng.integers(1, 20)))
        elif action == 1 and len(buffer):
            sampled = buffer.sample(30)["position"]
            buffer.delete(sampled[sampled < sampled.max() - rng.integers(0, 20)])
        elif action < 4:
            with contextlib.suppress(expdb.TooFewRows):
                leases.append(consumers[int(rng.integers(2))].lease(int(rng.integers(1, 9))))
        elif leases:
            lease = leases.pop(int(rng.integers(len(leases))))
            lease.acknowledge() if action == 4 else lease.release()
        with contextlib.suppress(expdb.TooFewRows):
            consumers[0].lease(1).release()  # reads the leases of the other handle
            leasing = consumers[0]._ledger
            positions = leasing._sampling.resident.all_positions()
            np.testing.assert_array_equal(leasing._usage.left(positions), leasing.left(positions))
            compared += 1
    assert compared > 20
    for lease in leases:
        lease.release()
