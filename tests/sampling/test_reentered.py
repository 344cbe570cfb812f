"""What a signal's handler does in the midst of a call does not spoil that call, nor later ones."""

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


def at_every_line(module, call, handler, check):
    """Call again and again, with the handler at another line of a module each time, and check."""
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


def test_memory_that_is_handed_out_meanwhile_is_not_handed_out_again():
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
        del taken[:-6:2]  # their memory may be used again
        assert len(arrays._kept) <= MOST_ARRAYS

    for _ in range(10):
        assert at_every_line(batch_arrays, take, lambda: [take() for _ in range(9)], check) > 10


@pytest.mark.parametrize("meanwhile", ["total", "set"])
def test_sums_are_those_of_the_weights_whatever_is_set_meanwhile(meanwhile):
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

    assert at_every_line(sumtree, change, handler, check) > 10


def test_priorities_that_are_updated_meanwhile_are_drawn_by(tmp_path):
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
            assert at_every_line(module, update, update, check) > 3


def test_steps_that_are_stored_meanwhile_are_numbered_with_the_others(tmp_path):
    with expdb.open(tmp_path / "runs.db", timeout=0.01) as db:
        buffer, stored = db.buffer("b"), []

        def store():
            stored.append(buffer.store(task_id="t", n=len(stored)))

        def handler():
            with suppress(expdb.DatabaseBusy):  # it comes while the outer call writes
                store()

        store()
        assert at_every_line(transaction, store, handler, lambda: None) > 40
        batch = buffer.get(np.arange(len(stored)))
        np.testing.assert_array_equal(np.sort(stored), batch["position"])
        np.testing.assert_array_equal(batch["step"], np.arange(len(stored)))
        assert db.check() == []
