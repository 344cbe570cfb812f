"""A signal handler that interrupts a call corrupts neither that call nor later calls."""

import sys
from contextlib import suppress

import numpy as np
import pytest

import expdb
from expdb.memory import batch_arrays, priorities
from expdb.memory.batch_arrays import MOST_ARRAYS, BatchArrays
from expdb.replay import sumtree
from expdb.replay.sumtree import SumTree
from expdb.sampling import by_priority
from expdb.storage.writing import transaction

pytestmark = pytest.mark.slow


def run_at_every_line(module, call, handler, check):
    """Run `call` once per line of a module, with `handler` at that line, and run `check`."""
    count, at = 0, 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                handler()
        return trace

    while True:
        at, count, before = at + 1, 0, sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(before)
        check()
        if count < at:
            return at


def test_interrupted_allocations_do_not_share_memory():
    arrays, dtype = BatchArrays(), np.dtype(np.uint8)
    taken = []

    def take():
        array = arrays.empty((100_000,), dtype)
        array[:] = len(taken) % 251
        taken.append((array, len(taken) % 251))

    for _ in range(20):
        take()

    def check():
        for array, value in taken:
            assert (array == value).all()
        del taken[:-6:2]  # the memory of these arrays can be reused
        assert len(arrays._kept) <= MOST_ARRAYS

    for _ in range(10):
        assert run_at_every_line(batch_arrays, take, lambda: [take() for _ in range(9)], check) > 10


@pytest.mark.parametrize("meanwhile", ["total", "set"])
def test_the_sum_tree_stays_consistent_if_updates_are_interrupted(meanwhile):
    rng, tree = np.random.default_rng(0), SumTree(200_000)
    tree.set(np.arange(200_000), rng.random(200_000))

    def change():
        tree.set(rng.integers(0, 300, 64), rng.random(64))

    def handler():
        if meanwhile == "set":
            change()
        tree.find(np.array([tree.total and 0.5]))

    def check():
        for level, above in zip(tree._levels, tree._above, strict=True):
            np.testing.assert_array_equal(above[: len(level)], level.sum(1))
        assert tree.total == pytest.approx(tree.weights.sum(), rel=1e-9)

    assert run_at_every_line(sumtree, change, handler, check) > 10


def test_priorities_updated_by_a_signal_handler_affect_sampling(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer, sampler = db.buffer("b"), expdb.Prioritized(alpha=1.0, epsilon=0.0)
        positions = buffer.store_batch({"n": np.arange(40)})
        for _ in range(3):
            buffer.sample(4, sampler=sampler)
        rng = np.random.default_rng(0)

        def update():
            buffer.update_priorities(positions[:20], rng.random(20) + 0.1)

        def check():
            batch = buffer.sample(400, sampler=sampler, fields=["priority", "probability"])
            stored = buffer.sample(9000, sampler=sampler, fields=["position", "priority"])
            by_position = dict(
                zip(stored["position"].tolist(), stored["priority"].tolist(), strict=True)
            )
            total = sum(
                1.0 if np.isnan(priority) else priority for priority in by_position.values()
            )
            weight = np.where(np.isnan(batch["priority"]), 1.0, batch["priority"])
            assert len(by_position) == 40
            np.testing.assert_allclose(batch["probability"], weight / total)

        for module in (priorities, by_priority):
            assert run_at_every_line(module, update, update, check) > 3


def test_steps_stored_by_a_signal_handler_are_numbered_consecutively(tmp_path):
    with expdb.open(tmp_path / "runs.db", timeout=0.01) as db:
        buffer, stored = db.buffer("b"), []

        def store():
            stored.append(buffer.store(task_id="t", n=len(stored)))

        def handler():
            with suppress(expdb.DatabaseBusy):  # the outer call is writing
                store()

        store()
        assert run_at_every_line(transaction, store, handler, lambda: None) > 40
        batch = buffer.get(np.arange(len(stored)))
        np.testing.assert_array_equal(np.sort(stored), batch["position"])
        np.testing.assert_array_equal(batch["step"], np.arange(len(stored)))
        assert db.check() == []
