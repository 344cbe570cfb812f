"""`max_lag_seconds` limits the delay until samples include the commits of other processes."""

import time

import pytest
from processes import FORKSERVER

import expdb

pytestmark = pytest.mark.both_databases


def store(path, number):
    with expdb.open(path) as db:
        db.buffer("b").store(n=number)


def store_in_another_process(path, number):
    process = FORKSERVER.Process(target=store, args=(path, number))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def drawn(buffer):
    return set(buffer.sample(200, fields=["n"], seed=0)["n"].tolist())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with expdb.open(path) as db:
        db.buffer("b").store(n=0)
    return path


def learner(path, **options):
    buffer = expdb.open(path, **options).buffer("b")
    for _ in range(3):  # from the second sample on, rows come from memory
        assert drawn(buffer) == {0}
    return buffer


def test_samples_include_commits_of_other_processes_after_max_lag(path):
    buffer = learner(path)
    store_in_another_process(path, 1)
    time.sleep(0.006)  # the default is 0.005
    assert drawn(buffer) == {0, 1}


def test_samples_include_every_commit_with_max_lag_0(path):
    buffer = learner(path, max_lag_seconds=0)
    for number in (1, 2):
        store_in_another_process(path, number)
        assert number in drawn(buffer)


def test_samples_within_max_lag_do_not_check_for_new_commits(path):
    buffer = learner(path, max_lag_seconds=1000)
    store_in_another_process(path, 1)
    assert drawn(buffer) == {0}


@pytest.mark.parametrize("handle", ["the same", "another"])
def test_samples_immediately_include_commits_of_the_same_process(path, handle):
    buffer = learner(path, max_lag_seconds=1000)
    writer = buffer if handle == "the same" else expdb.open(path).buffer("b")
    for number in range(1, 20):
        writer.store(n=number)
        assert number in drawn(buffer)
    store_in_another_process(path, 20)
    writer.store(n=21)
    assert {20, 21} <= drawn(buffer)
    writer.delete([20])  # the position of n=20
    assert 20 not in drawn(buffer)


def test_a_lease_includes_every_commit(path):
    buffer = learner(path, max_lag_seconds=1000)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    store_in_another_process(path, 1)
    with consumer.lease(2, fields=["n"]) as batch:
        assert set(batch["n"].tolist()) == {0, 1}


@pytest.mark.parametrize("lag", [-1, "soon", float("nan")])
def test_open_rejects_invalid_max_lag(path, lag):
    with pytest.raises(expdb.InvalidValue, match="max_lag_seconds"):
        expdb.open(path, max_lag_seconds=lag)
