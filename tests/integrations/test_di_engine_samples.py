"""Samples of DI-engine's buffers: of items that are not written yet, and as others change them."""

import time

import numpy as np
import pytest

import expdb
from expdb.integrations.di_engine import DequeBuffer, NaiveReplayBuffer, items

torch = pytest.importorskip(
    "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
)


@pytest.fixture
def deque(location):
    made = []

    def deque(size=10):
        made.append(DequeBuffer(size, location=location, name="deque"))
        return made[-1]

    yield deque
    for one in made:
        one.close()


def item(k):
    return {"obs": torch.full((2,), float(k)), "array": np.full(3, k), "k": k, "words": ["a", "b"]}


def numbers(found):
    return sorted(one.data["k"] for one in found)


def sampled_until(buffer, is_seen, size=3):
    """Return the meta dicts of all items by number, once what another handle did is seen."""
    until = time.monotonic() + 10
    while True:
        found = buffer.sample(20, replace=True) + buffer.sample(size)
        metas = {one.data["k"]: one.meta for one in sorted(found, key=lambda one: one.data["k"])}
        if is_seen(metas) or time.monotonic() > until:
            return metas


def test_items_are_sampled_before_they_are_written(deque):
    buffer, other = deque(), deque()
    buffer.push(item(0))
    assert numbers(buffer.sample(1)) == [0]  # the first one is written: a sample needs a stored one
    for k in range(1, 5):
        pushed = buffer.push(item(k), meta={"group": k % 2})
        (found,) = [one for one in buffer.sample(k + 1) if one.index == pushed.index]
        assert found.meta == {"group": k % 2}
        assert found.data["obs"].tolist() == [k, k]
        assert found.data["array"].tolist() == [k, k, k]
        assert found.data["words"] == ["a", "b"]
    assert other.count() == 1
    assert buffer.count() == 5
    buffer.items.flush()
    assert numbers(other.sample(5)) == numbers(buffer.sample(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stored", [3, 10, 15])
@pytest.mark.parametrize("unwritten", [1, 7, 10, 23])
def test_unwritten_items_displace_the_oldest(deque, stored, unwritten):
    buffer = deque()
    for k in range(stored):
        buffer.push(item(k))
    buffer.items.flush()
    for k in range(stored, stored + unwritten):
        buffer.push(item(k))
    held = min(10, stored + unwritten)
    assert buffer.count() == held
    newest = list(range(stored + unwritten - held, stored + unwritten))
    assert numbers(buffer.sample(held)) == newest
    assert {one.data["k"] for one in buffer.sample(500, replace=True)} == set(newest)
    with pytest.raises(ValueError, match=f"less than {held + 1}"):
        buffer.sample(held + 1)
    buffer.items.flush()
    assert numbers(buffer.sample(held)) == newest


def test_unwritten_items_are_copies(deque):
    buffer = deque()
    given, meta = item(1), {"path": ["x"]}
    buffer.push(given, meta=meta)
    buffer.push(given, meta=meta)
    buffer.sample(1)
    buffer.push(given, meta=meta)
    given["obs"][:], given["array"][:], given["words"][0] = 7, 7, "changed"
    meta["path"].append("changed")
    for _ in range(2):  # not written yet, then written
        for _ in range(2):
            for one in buffer.sample(3):
                assert one.data["obs"].tolist() == [1, 1]
                assert one.data["array"].tolist() == [1, 1, 1]
                assert one.data["words"] == ["a", "b"]
                assert one.meta["path"] == ["x"]
                one.data["obs"][:], one.data["array"][:], one.data["words"][0] = 8, 8, "other"
                one.meta["path"].append("other")
        buffer.items.flush()


def test_unwritten_items_are_written_when_they_are_due(deque, monkeypatch):
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


def test_a_sample_has_what_others_have_changed(deque):
    buffer, other = deque(), deque()
    for k in range(3):
        buffer.push(item(k), meta={"group": 0})
    buffer.sample(3)
    index = buffer[1].index
    assert other.update(index, meta={"group": 1, "more": {"a": [1]}})
    metas = sampled_until(buffer, lambda metas: metas[1]["group"])
    assert [metas[k]["group"] for k in range(3)] == [0, 1, 0]
    assert metas[1]["more"] == {"a": [1]}
    other.items.buffer.update_priorities([2], [0.5])
    metas = sampled_until(buffer, lambda metas: "priority" in metas[2])
    assert {k: metas[k].get("priority") for k in range(3)} == {0: None, 1: None, 2: 0.5}
    other.delete(index)
    metas = sampled_until(buffer, lambda metas: len(metas) == 2, size=2)
    assert list(metas) == [0, 2]
    assert buffer.count() == 2


def test_a_sample_goes_on_where_an_error_left_unwritten_items(deque, monkeypatch):
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


def test_the_older_buffer_samples_unwritten_items_too(tmp_path):
    config = NaiveReplayBuffer.default_config()
    config.replay_buffer_size = 4
    buffer = NaiveReplayBuffer(config, None, str(tmp_path / "experiment"), "buffer")
    with expdb.open(tmp_path / "experiment" / "replay.db") as db:
        for k in range(6):
            buffer.push(item(k), 0)
            held = min(k + 1, 4)
            found = buffer.sample(held, 0)
            assert sorted(one["k"] for one in found) == list(range(k + 1 - held, k + 1))
            assert len(db.buffer("buffer")) == 1
            assert buffer.sample(held + 1, 0) is None
        assert [one["k"] for one in buffer.sample(1, 0, sample_range=slice(-1, None))] == [5]
    buffer.close()
