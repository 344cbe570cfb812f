"""The memory of a large batch is reused when no references to it remain."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import expdb
from expdb.memory import batch_arrays
from expdb.memory.batch_arrays import LEAST, MOST_ARRAYS, MOST_BYTES, BatchArrays

FRAME = (64, 64)
UNITS = [expdb.Step(), expdb.NStep(1), expdb.NStep(3, stack=4), expdb.Sequence(5), expdb.Stack(2)]


@pytest.fixture
def buffer(tmp_path):
    with expdb.open(tmp_path / "runs.db") as db:
        buffer = db.buffer("b")
        frames = np.repeat(np.arange(200, dtype=np.uint8), 64 * 64).reshape(200, *FRAME)
        for start in range(0, 200, 40):
            with buffer.episode("t") as episode:
                episode.extend(
                    {"obs": frames[start : start + 40], "n": np.arange(start, start + 40)}
                )
                episode.end(obs=frames[start])
        for _ in range(3):
            buffer.sample(2)
        yield buffer


def frames_of(batch, unit):
    """Return the value of each frame; all pixels of a frame have the same value."""
    obs = batch["obs"]
    assert (obs == obs[..., :1, :1]).all()
    newest = obs[:, -1] if isinstance(unit, expdb.Stack) or getattr(unit, "stack", 1) > 1 else obs
    np.testing.assert_array_equal(newest[..., 0, 0], batch["n"])
    return obs[..., 0, 0].copy()


@pytest.mark.parametrize("unit", UNITS)
def test_a_referenced_batch_is_not_overwritten(buffer, unit):
    rng, batches = np.random.default_rng(0), []
    for _ in range(150):
        batch = buffer.sample(int(rng.integers(20, 40)), unit=unit)
        if rng.random() < 0.3:
            batches.append((batch, frames_of(batch, unit)))
        if batches and rng.random() < 0.25:
            batches.pop(int(rng.integers(len(batches))))
        for earlier, frames in batches:
            np.testing.assert_array_equal(frames_of(earlier, unit), frames)


@pytest.mark.parametrize(
    "made",
    [lambda a: a[3:5], memoryview, iter, np.from_dlpack, lambda a: np.frombuffer(a, np.uint8)],
)
def test_objects_that_share_the_memory_of_an_array_prevent_its_reuse(buffer, made):
    batch = buffer.sample(32, fields=["obs"])
    at, derived = batch["obs"].ctypes.data, made(batch["obs"])
    del batch
    others = [buffer.sample(32, fields=["obs"]) for _ in range(9)]
    assert at not in {other["obs"].ctypes.data for other in others}
    del derived, others


def test_a_torch_tensor_prevents_reuse_of_its_memory(buffer):
    torch = pytest.importorskip("torch")
    batch = buffer.sample(32, fields=["obs", "n"]).to_torch()
    for _ in range(9):
        buffer.sample(32, fields=["obs", "n"])
        assert torch.equal(batch["obs"][:, 0, 0].long(), batch["n"])


@pytest.mark.skipif(not batch_arrays._COUNTS, reason="references are not counted here")
def test_the_memory_of_unreferenced_batches_is_reused(buffer):
    addresses = {
        buffer.sample(size, fields=["obs"])["obs"].ctypes.data
        for size in (40, 39, 38)
        for _ in range(9)
    }
    assert len(addresses) == 1


def test_retained_arrays_stay_within_the_count_and_size_limits():
    arrays, rng = BatchArrays(), np.random.default_rng(0)
    recent = []
    for _ in range(3000):
        size = int(rng.integers(1, 4)) * int(2 ** rng.uniform(10, 25))
        array = arrays.empty((size,), np.dtype(np.uint8))
        assert array.shape == (size,)
        recent = [*recent, array][-int(rng.integers(1, 40)) :]
        assert len(arrays._kept) <= MOST_ARRAYS
        assert arrays.nbytes == sum(kept.nbytes for kept in arrays._kept) <= MOST_BYTES
        assert all(kept.nbytes >= LEAST for kept in arrays._kept)
    array = None
    recent.clear()
    gone = [weakref.ref(kept) for kept in arrays._kept]
    del arrays
    gc.collect()
    assert not any(ref() is not None for ref in gone[:-1])


def test_empty_returns_writable_arrays_of_any_shape_and_dtype():
    arrays = BatchArrays()
    for dtype in ("f8", "f4", "i1", "bool", "c16", [("a", "f8"), ("b", "i1")], "V64", "O", "M8[s]"):
        for shape in ((300, 300), (90_000,), (1, 2, 90_000), (), (0, 9), (70_000, 0)):
            array = arrays.empty(shape, np.dtype(dtype))
            assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
            assert array.flags.c_contiguous
            assert array.flags.writeable
            array[...] = np.zeros((), dtype)


def test_stats_count_the_memory_retained_for_reuse(buffer):
    before = buffer.stats()["resident_bytes"]
    buffer.sample(100, fields=["obs"])
    assert buffer.stats()["resident_bytes"] - before >= 100 * 64 * 64 * batch_arrays._COUNTS


def test_concurrent_samples_do_not_overwrite_each_other(buffer):
    wrong, interval = [], sys.getswitchinterval()

    def draw(unit):
        last = None
        for _ in range(200):
            batch = buffer.sample(30, unit=unit)
            for drawn in (batch, last or batch):
                if not (drawn["obs"][..., :1, 5] == drawn["obs"][..., 0, :1]).all():
                    wrong.append(drawn)
            last = batch
            np.testing.assert_array_equal(batch["obs"][..., 0, 0], batch["n"])

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=draw, args=(expdb.Step(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
