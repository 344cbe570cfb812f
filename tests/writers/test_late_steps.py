"""Steps that waited longer than `flush_seconds` are written by later calls of the same handle."""

import threading
import time

import numpy as np
import pytest

import expdb

CALLS = {
    "sample": lambda buffer: buffer.sample(1),
    "score": lambda buffer: buffer.score(episode_id="e", name="judge", value=1.0),
    "score_batch": lambda buffer: buffer.score_batch(
        [{"episode_id": "e", "name": "judge", "value": 1.0}]
    ),
    "lease": lambda buffer: buffer.consumer("trainer").lease(1).acknowledge(),
}


@pytest.fixture
def episode(scratch):
    """Return an open episode whose only step has waited longer than `flush_seconds`."""
    with scratch.episode("t", episode_id="e", flush_seconds=0.05) as episode:
        episode.append(x=1)
        assert len(scratch) == 0
        time.sleep(0.06)
        yield episode
        episode.append(x=2, terminated=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:episode 'e' is scored while it is open")
def test_late_steps_are_written_before_other_calls(scratch, episode, call):
    call(scratch)
    assert len(scratch) == 1
    assert episode.unwritten == 0


def test_steps_that_are_not_late_stay_in_memory(scratch):
    scratch.store(x=0)
    with scratch.episode("t", flush_seconds=3600) as episode:
        episode.append(x=1)
        scratch.sample(1)
        assert len(scratch) == 1


def test_every_writer_is_considered_whenever_its_steps_are_late(scratch):
    scratch.store(x=0)
    first = scratch.episode("t", flush_seconds=0.03)
    scratch.sample(1)  # no step waits
    second = scratch.episode("t", flush_seconds=3600)
    for _ in range(3):
        first.append(x=1)
        second.append(x=1)
        time.sleep(0.04)
        scratch.sample(1)
        assert first.unwritten == 0
    assert second.unwritten == 3
    for episode in (first, second):
        episode.end()


def test_late_steps_stay_in_memory_if_a_rate_limiter_may_delay_them(scratch, monkeypatch):
    scratch.rate_limiter = expdb.Queue(1)
    scratch.store(x=0)
    with scratch.episode("t", flush_seconds=0.01) as episode:
        episode.append(x=1)
        time.sleep(0.02)
        with monkeypatch.context() as patch:
            patch.setattr(episode._sink, "write", lambda steps: pytest.fail("wrote steps"))
            scratch.consumer("trainer").lease(1).acknowledge()
        assert episode.unwritten == 1


def test_a_sample_does_not_wait_for_a_flush_of_another_thread(scratch, monkeypatch):
    scratch.store(x=0)
    episode = scratch.episode("t", flush_seconds=0.01)
    episode.append(x=1)
    begun, go_on = threading.Event(), threading.Event()
    write = episode._sink.write

    def slow_write(steps):
        begun.set()
        go_on.wait(10)
        write(steps)

    monkeypatch.setattr(episode._sink, "write", slow_write)
    thread = threading.Thread(target=episode.flush)
    thread.start()
    begun.wait(10)
    time.sleep(0.02)
    try:
        assert scratch.sample(1)["x"].tolist() == [0]
        assert thread.is_alive()
    finally:
        go_on.set()
        thread.join()
    episode.end()
    assert len(scratch) == 2


def test_a_sample_in_a_signal_handler_does_not_interfere_with_an_append(scratch, episode):
    scratch.store(x=0)
    with episode._lock:  # held by the append that the handler interrupts
        scratch.sample(1)
        assert episode.unwritten == 1


def test_an_error_that_discards_a_late_step_is_raised(scratch):
    episode = scratch.episode("t", episode_id="e", flush_seconds=3600)
    episode.append(x=1, step=0)
    episode.flush()
    with expdb.open(scratch._database.location) as other:
        other.buffer(scratch.name).store(task_id="t", episode_id="e", step=1, x=np.int64(5))
    episode.append(x=6, step=1)
    episode._flushed_at -= 3600
    scratch._writers.next_flush = 0.0
    with pytest.raises(expdb.InvalidValue, match="step"):
        scratch.sample(1)
    assert episode.unwritten == 0
    episode.end()
