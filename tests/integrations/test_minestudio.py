"""Tests of MineStudio's replay buffer: chunks, staleness, reuse, sessions and ranks."""

import collections
import gc
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import expdb
from expdb.integrations.minestudio import (
    FragmentDataDict,
    FragmentIndex,
    FragmentMetadata,
    ReplayBufferInterface,
    SampleFragment,
)


def config(path, **options):
    return {
        "max_chunks": 100, "max_staleness": 2, "max_reuse": 2, "fragments_per_chunk": 1,
        "database_config": {"path": str(path), "num_shards": 8}, **options,
    }  # fmt: skip


@pytest.fixture
def make(tmp_path, monkeypatch, close):
    monkeypatch.setenv("EXPDB_REPLAY_BUFFER", "")
    monkeypatch.delenv("EXPDB_REPLAY_BUFFER")

    def make(folder="buffer", **options):
        buffer = close(ReplayBufferInterface(config(tmp_path / folder, **options)))
        buffer.update_model_version("s", 0)
        return buffer

    return make


@pytest.fixture
def other(tmp_path, close):
    """Return a function that opens the buffer as another process does."""
    return lambda: close(ReplayBufferInterface(location=tmp_path / "buffer"))


def fragment(number, worker="w", length=4):
    return SampleFragment(
        obs={"image": np.full((length, 2, 2), number, np.uint8)},
        action={"camera": np.full((length, 2), number, np.float32)},
        next_done=np.arange(length) == 1, reward=np.full(length, number, np.float32),
        first=np.arange(length) == 2, in_state=[np.full(3, number), np.zeros((1, 2))],
        worker_uuid=worker, fid_in_worker=number, next_obs={"image": np.ones((2, 2), np.uint8)},
        episode_uuids=[f"{worker}-{t // 2}" for t in range(length)],
    )  # fmt: skip


def add(buffer, numbers, worker="w", version=0, session="s"):
    for number in numbers:
        metadata = FragmentMetadata(version, session, worker, number)
        buffer.add_fragment(fragment(number, worker), metadata)


def fetch_indices(buffer, count):
    return [(index.worker_uuid, index.fid_in_worker) for index, _ in buffer.fetch_fragments(count)]


def test_a_fragment_round_trips_unchanged(make):
    buffer = make()
    add(buffer, [3])
    ((index, id),) = buffer.fetch_fragments(1)
    loaded, expected = buffer.load_fragment(id), fragment(3)
    assert index == loaded.index == FragmentIndex("w", 3)
    for name in SampleFragment.__dataclass_fields__:
        value, other = getattr(loaded, name), getattr(expected, name)
        if isinstance(other, dict):
            (value,), (other,) = value.values(), other.values()
        if name == "in_state":
            assert [part.tolist() for part in value] == [part.tolist() for part in other]
        elif isinstance(other, np.ndarray):
            assert (value.dtype, value.tolist()) == (other.dtype, other.tolist())
        else:
            assert value == other


def test_a_chunk_contains_consecutive_fragments_of_one_worker(make):
    buffer = make(fragments_per_chunk=3)
    for number in range(6):
        add(buffer, [number], "a")
        add(buffer, [number + 10], "b")
    for _ in range(3):
        fragments = fetch_indices(buffer, 6)
        for chunk in (fragments[:3], fragments[3:]):
            worker, first = chunk[0]
            assert chunk == [(worker, first + k) for k in range(3)]
            assert first in (0, 3, 10, 13)
    with pytest.raises(AssertionError, match="multiple"):
        buffer.fetch_fragments(4)
    with pytest.raises(AssertionError, match="at most"):
        buffer.fetch_fragments(303)


def test_a_missing_fragment_starts_a_new_chunk(make, caplog):
    buffer = make(fragments_per_chunk=2)
    add(buffer, [0, 2, 3])
    assert "new chunk begins" in caplog.text
    assert fetch_indices(buffer, 2) == [("w", 2), ("w", 3)]
    assert len(buffer.buffer) == 2


def test_no_chunk_is_used_more_often_than_max_reuse(make):
    buffer = make(max_reuse=3)
    add(buffer, range(5))
    used = collections.Counter()
    for _ in range(3):
        used.update(fetch_indices(buffer, 5))
    assert set(used.values()) == {3}
    with pytest.raises(expdb.TooFewRows):
        buffer.fetch_fragments(1, timeout=0.2)
    assert len(buffer.buffer) == 0  # used up, and deleted


def test_stale_fragments_are_never_fetched_in_any_order(make):
    buffer = make(max_staleness=1)
    buffer.update_model_version("s", 1)
    add(buffer, [0], "fast", 1)
    add(buffer, [0], "slow", 0)
    buffer.update_model_version("s", 2)
    assert fetch_indices(buffer, 1) == [("fast", 0)]
    add(buffer, [1], "slow", 0)  # already too stale, so it is not stored
    assert len(buffer.buffer) == 1
    with pytest.raises(ValueError, match="must not decrease"):
        buffer.update_model_version("s", 1)


def test_fragments_of_another_session_are_ignored_and_deleted(make):
    buffer = make()
    add(buffer, [0, 1])
    add(buffer, [2], session="other")
    assert len(buffer.buffer) == 2
    ((_, id),) = buffer.fetch_fragments(1)
    buffer.update_model_version("other", 0)
    with pytest.raises(KeyError, match="another session"):
        buffer.load_fragment(id)
    add(buffer, [5], session="other")
    assert fetch_indices(buffer, 1) == [("w", 5)]


def test_the_oldest_chunks_are_evicted(make):
    buffer = make(max_chunks=3)
    add(buffer, range(7))
    assert sorted(fetch_indices(buffer, 3)) == [("w", 4), ("w", 5), ("w", 6)]


def test_fetching_waits_for_enough_fragments(make, other):
    buffer = make()
    add(buffer, [0])
    timer = threading.Timer(0.3, add, (other(), [1, 2]))
    timer.start()
    assert len(buffer.fetch_fragments(3, timeout=20)) == 3
    timer.join()


def test_fragments_of_a_fetch_can_be_loaded_until_the_next_fetch(make, other):
    buffer = make(max_chunks=2, max_staleness=0)
    add(buffer, range(3))
    plan = buffer.fetch_fragments(2)
    worker = other()
    add(worker, range(10, 16))
    buffer.update_model_version("s", 1)
    add(worker, range(20, 23), version=1)
    assert [buffer.load_fragment(id).index for _, id in plan] == [index for index, _ in plan]
    buffer.fetch_fragments(1)
    with pytest.raises(KeyError):
        buffer.load_fragment(plan[0][1])
    assert len(buffer.buffer) == 2


def test_a_partly_stale_chunk_is_started_again(make):
    buffer = make(fragments_per_chunk=2, max_staleness=0)
    for worker in "ABC":
        add(buffer, [0], worker)
    buffer.update_model_version("s", 1)
    for number in (1, 2):
        for worker in "ABC":
            add(buffer, [number], worker, version=1)
    assert buffer.buffer.stats()["episodes"]["complete"] == 3
    fragments = fetch_indices(buffer, 6)
    assert sorted(fragments) == [(worker, number) for worker in "ABC" for number in (1, 2)]


def test_one_process_creates_the_buffer_and_others_attach(make, tmp_path):
    with pytest.raises(ValueError, match="not initialized"):
        ReplayBufferInterface()
    with pytest.raises(ValueError, match="not initialized"):
        ReplayBufferInterface(location=tmp_path / "nowhere")
    buffer = make()
    with pytest.raises(ValueError, match="already initialized"):
        make()
    attached = ReplayBufferInterface()
    assert attached.get_database_config() == buffer.get_database_config()
    assert attached.update_training_session() is None
    attached.close()
    for wrong in ({"max_chunk": 3}, {"max_reuse": 0}):
        with pytest.raises(ValueError, match="max_"):
            make("other", **wrong)


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_minestudio import ReplayBufferInterface, add, config
buffer = ReplayBufferInterface(config(sys.argv[1], fragments_per_chunk=2))
buffer.update_model_version("s", 4)
add(buffer, range(7), version=4)
buffer.fetch_fragments(6)
os.kill(os.getpid(), 9)
"""


def test_fragments_survive_a_kill_of_the_trainer(make, close, tmp_path):
    path = tmp_path / "killed"
    subprocess.run([sys.executable, "-c", KILLED, path, Path(__file__).parent])
    buffer = close(ReplayBufferInterface(config(path, fragments_per_chunk=2)))
    assert buffer._current() == ("s", 4)
    assert len(buffer.buffer) == 7
    assert len(buffer.prepared_fragments()) == 6
    add(buffer, [10, 11], "w2", version=4)
    assert fetch_indices(buffer, 2) is not None


def test_derived_data_is_joined_by_the_index():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 dev.py test --torch`"
    )
    fragments = [fragment(k) for k in range(3)]
    data = FragmentDataDict(
        {part.index: {"adv": np.full(4, k), "name": f"n{k}", "list": [torch.tensor(k), 0.5]}
         for k, part in enumerate(fragments)}
    )  # fmt: skip
    batch = data.format_batch(fragments[::-1], "cpu")
    assert batch["adv"][:, 0].tolist() == [2, 1, 0]
    assert batch["name"] == ["n2", "n1", "n0"]
    assert [tensor.tolist() for tensor in batch["list"]] == [[2, 1, 0], [0.5, 0.5, 0.5]]


# -- errors and races ------------------------------------------------------------------------------


def test_a_refused_fragment_does_not_change_the_buffer(make):
    buffer = make(fragments_per_chunk=2)
    add(buffer, [0])
    odd = fragment(1)
    odd.obs = {"image": object()}
    with pytest.raises(expdb.InvalidValue, match="image"):
        buffer.add_fragment(odd, FragmentMetadata(0, "s", "w", 1))
    with pytest.raises(ValueError, match="metadata"):
        buffer.add_fragment(fragment(1), FragmentMetadata(0, "s", "other", 1))
    add(buffer, [1])
    assert fetch_indices(buffer, 2) == [("w", 0), ("w", 1)]


@pytest.mark.parametrize("moment", ["before the plan is kept", "after the worker has looked"])
def test_workers_do_not_delete_fragments_during_a_fetch(make, other, monkeypatch, moment):
    buffer = make(max_chunks=2, max_reuse=9)
    add(buffer, range(2))
    worker, plans = other(), []
    if moment == "before the plan is kept":
        keep = buffer._plan.keep

        def keep_late(*arguments):
            add(worker, range(2, 6))
            keep(*arguments)

        monkeypatch.setattr(buffer._plan, "keep", keep_late)
        plans += buffer.fetch_fragments(2)
    else:
        delete = worker.buffer.delete

        def delete_late(*arguments, **options):
            if not plans:
                plans.extend(buffer.fetch_fragments(2))
            return delete(*arguments, **options)

        monkeypatch.setattr(worker.buffer, "delete", delete_late)
        add(worker, range(2, 6))
    assert len(plans) == 2
    assert [buffer.load_fragment(id).index for _, id in plans] == [index for index, _ in plans]
    monkeypatch.undo()


def test_fragments_in_the_plan_can_always_be_loaded(make, other, monkeypatch):
    buffer = make(max_reuse=1)
    add(buffer, range(4))
    buffer.fetch_fragments(2)
    rank, seen = other(), []

    def load_all(then, *arguments, **options):
        seen.extend(rank.load_fragment(id).index for _, id in rank.prepared_fragments())
        return then(*arguments, **options)

    for owner, name in ((buffer._plan, "keep"), (buffer.buffer, "delete")):
        monkeypatch.setattr(owner, name, partial(load_all, getattr(owner, name)))
    buffer.fetch_fragments(2)
    assert len(seen) == 2
    monkeypatch.undo()


def test_a_dropped_or_failed_handle_does_not_block_a_new_handle(make, tmp_path):
    (tmp_path / "buffer").mkdir()
    (tmp_path / "buffer" / "fragments.db").write_bytes(b"not a database, but a kilobyte" * 40)
    with pytest.raises(expdb.ExpDBError):
        make()
    (tmp_path / "buffer" / "fragments.db").unlink()
    for _ in range(2):
        handle = ReplayBufferInterface(config(tmp_path / "buffer"))
        with pytest.raises(ValueError, match="already"):
            ReplayBufferInterface(config(tmp_path / "buffer"))
        del handle
        gc.collect()


def test_a_handle_follows_a_session_started_by_another_handle(make, other):
    buffer = make()
    add(buffer, range(3))
    buffer.fetch_fragments(2)
    second = other()
    second.update_model_version("t", 0)
    add(second, [7], session="t")
    assert fetch_indices(buffer, 1) == [("w", 7)]
    second.update_model_version("u", 0)
    buffer.update_model_version("u", 1)
    add(buffer, [8], version=1, session="u")
    assert fetch_indices(buffer, 1) == [("w", 8)]
    second.update_model_version("v", 0)
    buffer.close()
    second.close()
    assert make("buffer", max_reuse=2).prepared_fragments() == []


def test_used_up_chunks_are_deleted_after_a_restart(make):
    buffer = make(max_chunks=4)
    add(buffer, range(4))
    for _ in range(2):
        buffer.fetch_fragments(4)
        buffer.close()
        buffer = make(max_chunks=4)
    assert len(buffer.buffer) == 0


def test_chunks_of_another_size_are_refused(make):
    make(fragments_per_chunk=2).close()
    with pytest.raises(ValueError, match=r"fragments_per_chunk is 3, but the chunks .* have 2"):
        make(fragments_per_chunk=3)
