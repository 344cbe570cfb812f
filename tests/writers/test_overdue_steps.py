"""Calls of the same buffer write steps that have waited longer than `flush_seconds`."""

import threading
import time

import numpy as np
import pytest
from behind import writing

import expdb
from expdb import errors
from expdb.storage.writing import transaction
from expdb.storage.writing.pending_steps import create_steps
from expdb.writers import open_writers

CALLS = {
    "sample": lambda buffer: buffer.sample(1),
    "score": lambda buffer: buffer.score(episode_id="e", name="judge", value=1.0),
    "score_batch": lambda buffer: buffer.score_batch(
        [{"episode_id": "e", "name": "judge", "value": 1.0}]
    ),
    "epochs": lambda buffer: list(buffer.epochs(1)),
    "lease": lambda buffer: buffer.consumer("trainer").lease(1).acknowledge(),
}


@pytest.fixture
def episode(scratch, unlimited):
    """Return an open episode whose only step has waited longer than `flush_seconds`."""
    with scratch.episode("t", episode_id="e", flush_seconds=0.05) as episode:
        episode.append(x=1)
        assert len(scratch) == 0
        time.sleep(0.06)
        yield episode
        episode.append(x=2, terminated=True)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:episode 'e' is scored while it is open")
def test_overdue_steps_are_written_before_other_calls(scratch, episode, call):
    call(scratch)
    assert len(scratch) == 1
    assert episode.unwritten == 0


def test_sample_does_not_write_steps_before_flush_seconds_have_passed(scratch):
    scratch.store(x=0)
    with scratch.episode("t", flush_seconds=3600) as episode:
        episode.append(x=1)
        scratch.sample(1)
        assert len(scratch) == 1


def test_each_writer_is_flushed_at_its_own_flush_seconds(scratch):
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


def test_overdue_steps_of_a_buffer_with_a_rate_limiter_are_not_written(scratch, monkeypatch):
    scratch.rate_limiter = expdb.Queue(1)
    scratch.store(x=0)
    with scratch.episode("t", flush_seconds=0.01) as episode:
        episode.append(x=1)
        time.sleep(0.02)
        with monkeypatch.context() as patch:
            patch.setattr(episode, "_store_steps", lambda steps: pytest.fail("wrote steps"))
            scratch.consumer("trainer").lease(1).acknowledge()
        assert episode.unwritten == 1


def test_a_sample_does_not_wait_for_a_flush_of_another_thread(scratch, monkeypatch):
    scratch.store(x=0)
    episode = scratch.episode("t", flush_seconds=0.01)
    episode.append(x=1)
    has_begun, may_write = threading.Event(), threading.Event()
    write = episode._store_steps

    def slow_write(steps):
        has_begun.set()
        may_write.wait(10)
        write(steps)

    monkeypatch.setattr(episode, "_store_steps", slow_write)
    thread = threading.Thread(target=episode.flush)
    thread.start()
    has_begun.wait(10)
    time.sleep(0.02)
    try:
        assert scratch.sample(1)["x"].tolist() == [0]
        assert thread.is_alive()
    finally:
        may_write.set()
        thread.join()
    episode.end()
    assert len(scratch) == 2


def test_a_sample_in_a_signal_handler_does_not_interfere_with_an_append(scratch, episode):
    scratch.store(x=0)
    with episode._lock:  # held by the append that the handler interrupts
        scratch.sample(1)
        assert episode.unwritten == 1


@pytest.fixture
def unlimited(monkeypatch):
    """Let a call wait for any number of flushes, because the machine may be slow."""
    monkeypatch.setattr(open_writers, "FLUSH_SECONDS", 60.0)


def make_overdue(buffer, *writers):
    for writer in writers:
        writer._flushed_at -= 3600
    buffer._writers.next_flush = 0.0


def test_sample_warns_of_a_refused_overdue_step_and_returns_a_batch(scratch, unlimited):
    first = scratch.episode("t", episode_id="e", flush_seconds=3600)
    second = scratch.episode("t", flush_seconds=3600)
    first.append(x=1, step=0)
    first.flush()
    with expdb.open(scratch._database.location) as other:
        other.buffer(scratch.name).store(task_id="t", episode_id="e", step=1, x=np.int64(5))
    first.append(x=6, step=1)
    second.append(x=7)
    make_overdue(scratch, first, second)
    with pytest.warns(errors.ExpDBWarning, match="could not flush.*step"):
        assert set(scratch.sample(99)["x"].tolist()) == {1, 5, 7}
    assert first.unwritten == 0
    first.end()
    second.end()


def test_a_writer_whose_episode_another_process_resumed_is_reported(scratch):
    episode = scratch.episode("t", episode_id="e", flush_seconds=3600)
    episode.append(x=1)
    episode.flush()
    episode.append(x=2)
    with expdb.open(scratch._database.location) as other:
        other.buffer(scratch.name).episode("t", episode_id="e", resume=True).end()
    make_overdue(scratch, episode)
    with pytest.warns(errors.ExpDBWarning, match="could not flush.*'e'"):
        scratch.sample(1)


def test_sample_does_not_wait_for_the_timeout_while_another_process_writes(scratch):
    scratch.store(x=0)
    writers = [scratch.episode("t", flush_seconds=3600) for _ in range(5)]
    for writer in writers:
        writer.append(x=1)
    make_overdue(scratch, *writers)
    with expdb.open(scratch._database.location) as other, writing(other.buffer(scratch.name)):
        begun = time.monotonic()
        scratch.sample(1)
        assert time.monotonic() - begun < 1.0  # the timeout is 30 s for each writer
        assert sum(writer.unwritten for writer in writers) == 5
    for writer in writers:
        writer.end()


def test_a_sample_hardly_waits_for_another_thread_that_writes(scratch, monkeypatch):
    scratch.store(x=0)
    episode = scratch.episode("t", flush_seconds=3600)
    episode.append(x=1)
    has_begun, may_write, write = threading.Event(), threading.Event(), transaction.write

    def slow_write(*arguments):
        has_begun.set()
        may_write.wait(10)
        return write(*arguments)

    monkeypatch.setattr(transaction, "write", slow_write)
    thread = threading.Thread(target=scratch.store, kwargs={"x": 2, "episode_id": "other"})
    thread.start()
    has_begun.wait(10)
    make_overdue(scratch, episode)
    try:
        assert scratch.sample(1)["x"].tolist() == [0]
        assert thread.is_alive()
        assert episode.unwritten == 1
    finally:
        may_write.set()
        thread.join()
    episode.end()
    assert len(scratch) == 3


def test_a_call_of_the_writer_reports_a_commit_with_unknown_outcome(scratch):
    scratch.store(x=0)
    episode = scratch.episode("t", flush_seconds=3600)
    episode.append(x=1)
    episode._in_doubt, episode._steps = episode._steps, create_steps(scratch._store)
    episode.append(x=2)
    make_overdue(scratch, episode)
    scratch.sample(1)
    assert episode.unwritten == 2
    episode.end()
