"""How far a sample may lag behind what others have written to a file."""

import subprocess
import sys
import time

import pytest

import expdb

pytestmark = pytest.mark.both_databases

STORE = "import expdb, sys; expdb.open(sys.argv[1]).buffer('b').store(n=int(sys.argv[2]))"


def store_in_another_process(path, number):
    subprocess.run([sys.executable, "-c", STORE, path, str(number)], check=True, timeout=60)


def drawn(buffer):
    return set(buffer.sample(200, fields=["n"], rng=0)["n"].tolist())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("b").store(n=0)
    return path


def learner(path, **options):
    buffer = expdb.open(path, **options).buffer("b")
    for _ in range(3):  # from the second one on they come from memory
        assert drawn(buffer) == {0}
    return buffer


def test_what_other_processes_write_is_seen_after_max_lag(path):
    buffer = learner(path)
    store_in_another_process(path, 1)
    time.sleep(0.006)  # the default is 0.005
    assert drawn(buffer) == {0, 1}


def test_with_0_every_commit_is_seen(path):
    buffer = learner(path, max_lag=0)
    for number in (1, 2):
        store_in_another_process(path, number)
        assert number in drawn(buffer)


def test_the_file_is_not_asked_within_max_lag(path):
    buffer = learner(path, max_lag=1000)
    store_in_another_process(path, 1)
    assert drawn(buffer) == {0}


@pytest.mark.parametrize("handle", ["the same", "another"])
def test_what_this_process_writes_is_seen_at_once(path, handle):
    buffer = learner(path, max_lag=1000)
    writer = buffer if handle == "the same" else expdb.open(path).buffer("b")
    for number in range(1, 20):
        writer.store(n=number)
        assert number in drawn(buffer)
    store_in_another_process(path, 20)
    writer.store(n=21)
    assert {20, 21} <= drawn(buffer)
    writer.delete([20])  # its position
    assert 20 not in drawn(buffer)


def test_a_lease_sees_every_commit(path):
    buffer = learner(path, max_lag=1000)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    store_in_another_process(path, 1)
    with consumer.lease(2, fields=["n"]) as batch:
        assert set(batch["n"].tolist()) == {0, 1}


@pytest.mark.parametrize("lag", [-1, "soon", float("nan")])
def test_what_is_no_lag_is_refused(path, lag):
    with pytest.raises(expdb.InvalidValue, match="max_lag"):
        expdb.open(path, max_lag=lag)
