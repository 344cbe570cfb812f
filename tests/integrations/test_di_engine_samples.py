"""Test that DI-engine's buffers sample unwritten items and see changes by other handles."""

import time

import numpy as np
import pytest

from expdb.integrations.di_engine import (
    DequeBuffer,
    PriorityExperienceReplay,
    items,
)

torch = pytest.importorskip(
    "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
)


@pytest.fixture
def deque(location, monkeypatch, close):
    monkeypatch.setattr(items, "FLUSH_SECONDS", 1e6)
    return lambda: close(DequeBuffer(10, location=location, name="deque"))


def item(k):
    return {"obs": torch.full((2,), float(k)), "array": np.full(3, k), "k": k, "words": ["a", "b"]}


def numbers(entries):
    return sorted(entry.data["k"] for entry in entries)


def sample_until(buffer, is_seen, size=3, key="k"):
    """Sample for up to 10 s until `is_seen(metas)`; return the meta dicts by item number."""
    until = time.monotonic() + 10
    while True:
        entries = buffer.sample(20, replace=True) + buffer.sample(size)
        entries.sort(key=lambda entry: entry.data[key])
        metas = {entry.data[key]: entry.meta for entry in entries}
        if is_seen(metas) or time.monotonic() > until:
            return metas


def test_items_are_sampled_before_they_are_written(deque):
    buffer, other = deque(), deque()
    buffer.push(item(0))
    assert numbers(buffer.sample(1)) == [0]  # writes the item, because a sample needs a stored item
    for k in range(1, 5):
        pushed = buffer.push(item(k), meta={"group": k % 2})
        (entry,) = [drawn for drawn in buffer.sample(k + 1) if drawn.index == pushed.index]
        assert entry.meta == {"group": k % 2}
        assert entry.data["obs"].tolist() == [k, k]
        assert entry.data["array"].tolist() == [k, k, k]
        assert entry.data["words"] == ["a", "b"]
    assert other.count() == 1
    assert buffer.count() == 5
    buffer.items.flush()
    assert numbers(other.sample(5)) == numbers(buffer.sample(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("stored", "unwritten"), [(3, 1), (3, 10), (10, 7), (15, 23)])
def test_unwritten_items_displace_the_oldest(deque, stored, unwritten):
    buffer = deque()
    for k in range(stored):
        buffer.push(item(k))
    buffer.items.flush()
    for k in range(stored, stored + unwritten):
        buffer.push(item(k))
    size = min(10, stored + unwritten)
    assert buffer.count() == size
    newest = list(range(stored + unwritten - size, stored + unwritten))
    assert numbers(buffer.sample(size)) == newest
    assert {entry.data["k"] for entry in buffer.sample(500, replace=True)} == set(newest)
    with pytest.raises(ValueError, match=f"less than {size + 1}"):
        buffer.sample(size + 1)
    buffer.items.flush()
    assert numbers(buffer.sample(size)) == newest


def test_unwritten_items_are_copies(deque):
    buffer = deque()
    transition, meta = item(1), {"path": ["x"]}
    buffer.push(transition, meta=meta)
    buffer.push(transition, meta=meta)
    buffer.sample(1)
    buffer.push(transition, meta=meta)
    transition["obs"][:], transition["array"][:], transition["words"][0] = 7, 7, "changed"
    meta["path"].append("changed")
    for _ in range(2):  # not written yet, then written
        for _ in range(2):
            for entry in buffer.sample(3):
                assert entry.data["obs"].tolist() == [1, 1]
                assert entry.data["array"].tolist() == [1, 1, 1]
                assert entry.data["words"] == ["a", "b"]
                assert entry.meta["path"] == ["x"]
                entry.data["obs"][:], entry.data["array"][:], entry.data["words"][0] = 8, 8, "other"
                entry.meta["path"].append("other")
        buffer.items.flush()


def test_a_sample_writes_items_after_flush_seconds(deque, monkeypatch):
    buffer, other = deque(), deque()
    buffer.push(item(0))
    buffer.push(item(1))
    buffer.sample(1)
    buffer.push(item(2))
    buffer.sample(3)
    assert other.count() == 2
    monkeypatch.setattr(items, "FLUSH_SECONDS", 0.0)
    buffer.sample(3)
    assert other.count() == 3


def test_a_sample_sees_changes_by_another_handle(deque):
    buffer, other = deque(), deque()
    for k in range(3):
        buffer.push(item(k), meta={"group": 0})
    buffer.sample(3)
    index = buffer[1].index
    assert other.update(index, meta={"group": 1, "more": {"a": [1]}})
    metas = sample_until(buffer, lambda metas: metas[1]["group"])
    assert [metas[k]["group"] for k in range(3)] == [0, 1, 0]
    assert metas[1]["more"] == {"a": [1]}
    other.items.buffer.update_priorities([2], [0.5])
    metas = sample_until(buffer, lambda metas: "priority" in metas[2])
    assert {k: metas[k].get("priority") for k in range(3)} == {0: None, 1: None, 2: 0.5}
    other.delete(index)
    metas = sample_until(buffer, lambda metas: len(metas) == 2, size=2)
    assert list(metas) == [0, 2]
    assert buffer.count() == 2


def test_sampling_works_after_an_interrupted_push(deque, monkeypatch):
    buffer = deque()
    for k in range(3):
        buffer.push(item(k))
    buffer.sample(3)
    buffer.push(item(3))
    append = buffer.items._writer.append

    def fail_after(*args, **step):
        append(*args, **step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(buffer.items._writer, "append", fail_after)
        with pytest.raises(KeyboardInterrupt):
            buffer.push(item(4))
    assert numbers(buffer.sample(5)) == [0, 1, 2, 3, 4]
    buffer.push(item(5))
    assert numbers(buffer.sample(6)) == [0, 1, 2, 3, 4, 5]


def test_data_may_have_any_key(deque):
    buffer, keys = deque(), ("label", "unwritten", "tags", "index", "meta")
    for k in range(4):
        buffer.push({**{key: np.array([k, k]) for key in keys}, "k": k}, meta={"m": k})
    for _ in range(2):  # not written yet, then written
        for entry in (*buffer.sample(4), *buffer, buffer[2]):
            k = entry.data["k"]
            assert [entry.data[key].tolist() for key in keys] == [[k, k]] * len(keys)
            assert entry.meta["m"] == k


def test_an_interrupt_after_a_write_does_not_duplicate_items(deque, monkeypatch):
    buffer = deque()
    buffer.push(item(0))
    buffer.items.flush()
    for k in range(1, 4):
        buffer.push(item(k))
    flush = buffer.items._writer.flush

    def interrupted():
        flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(buffer.items._writer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.items.flush()
    assert numbers(buffer.sample(4)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="less than 5"):
        buffer.sample(5)
    buffer.push(item(4))
    assert numbers(buffer.sample(5)) == [0, 1, 2, 3, 4]


def test_priorities_of_unwritten_samples_can_be_updated(deque):
    buffer = deque()
    view = buffer.view()
    buffer.use(PriorityExperienceReplay(buffer))
    for k in range(5):
        buffer.push(item(k), meta={"priority": 1.0})
        if not k:
            buffer.items.flush()
    for entry in view.sample(5):
        assert buffer.update(entry.index, meta={**entry.meta, "priority": 2.0})
    buffer.sample(1)
    assert {entry.meta["priority"] for entry in view.sample(5)} == {2.0}
    (gone,) = view.sample(1)
    buffer.push(item(5))
    (gone,) = [entry for entry in view.sample(6) if "priority_idx" not in entry.meta]
    buffer.delete(gone.index)
    assert not buffer.update(gone.index, meta={**gone.meta, "priority": 2.0})


def test_flush_stores_the_priorities_of_pushed_items(deque):
    buffer, other = deque(), deque()
    for _ in range(2):
        for k in range(3):
            buffer.push(item(k), priority=k + 0.5)
        buffer.items.flush()
        buffer.sample(2)
    assert [entry.meta["priority"] for entry in other] == [0.5, 1.5, 2.5] * 2
