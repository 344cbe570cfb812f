"""If several threads wait for leases of a consumer, only one watches the database."""

import threading
import time

import numpy as np
import pytest

from expdb.consumers import waiting

pytestmark = pytest.mark.both_databases


class Learners:
    """Threads that each lease one step."""

    def __init__(self, consumer, count):
        self._consumer, self.found, self.refused = consumer, [], []
        self._threads = [threading.Thread(target=self._learn) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _learn(self):
        try:
            with self._consumer.lease(1, wait=30.0) as batch:
                self.found.append(int(batch["x"][0]))
        except BaseException as error:
            self.refused.append(error)

    def join(self):
        for thread in self._threads:
            thread.join(40.0)


@pytest.fixture
def consumer(db):
    return db.buffer("b").consumer("c", max_times_sampled=1)


def await_true(condition):
    until = time.monotonic() + 100.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_waiting_threads_watch_the_database_in_turn_and_one_at_a_time(db, consumer, monkeypatch):
    watch, inside, most, watchers = waiting._wait_for_counters, [0], [0], set()

    def counted(*arguments):
        if arguments[2] is None:
            return watch(*arguments)
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        watchers.add(threading.get_ident())
        result = watch(*arguments)
        inside[0] -= 1
        return result

    monkeypatch.setattr(waiting, "_wait_for_counters", counted)
    monkeypatch.setattr(waiting, "LONGEST", 0.1)
    monkeypatch.setattr(waiting, "PATIENCE", 100.0)
    learners = Learners(consumer, 6)
    await_true(lambda: len(watchers) > 1)
    db.buffer("b").store_batch({"x": np.arange(6)})
    learners.join()
    assert sorted(learners.found) == list(range(6))
    assert most == [1]


def test_another_thread_watches_if_the_first_is_interrupted(db, consumer, monkeypatch):
    watch, interrupted = waiting._wait_for_counters, threading.Event()

    def interrupt_once(*arguments):
        if arguments[2] is not None and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return watch(*arguments)

    monkeypatch.setattr(waiting, "_wait_for_counters", interrupt_once)
    learners = Learners(consumer, 4)
    await_true(lambda: learners.refused)
    db.buffer("b").store_batch({"x": np.arange(3)})
    learners.join()
    assert sorted(learners.found) == [0, 1, 2]
    assert [type(error) for error in learners.refused] == [KeyboardInterrupt]


def test_another_thread_watches_if_the_first_does_not_return(db, consumer, monkeypatch):
    watch, stopped, go_on = waiting._wait_for_counters, threading.Event(), threading.Event()

    def stop_once(*arguments):
        if arguments[2] is not None and not stopped.is_set():
            stopped.set()
            assert go_on.wait(30.0)
        return watch(*arguments)

    monkeypatch.setattr(waiting, "_wait_for_counters", stop_once)
    monkeypatch.setattr(waiting, "PATIENCE", 0.1)
    learners = Learners(consumer, 3)
    assert stopped.wait(100.0)
    db.buffer("b").store_batch({"x": np.arange(3)})
    await_true(lambda: len(learners.found) == 2)
    go_on.set()
    learners.join()
    assert sorted(learners.found) == [0, 1, 2]
