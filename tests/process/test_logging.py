"""expdb logs nothing by default; programs that configure logging receive its messages."""

import logging
import subprocess
import sys
import time

import pytest
from behind import report_now, store_of

import expdb
from expdb import errors


def test_nothing_is_printed_by_default():
    code = (
        "import expdb, logging; db = expdb.open(':memory:'); "
        "logging.getLogger('expdb.sql.engine').warning('lost'); db.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_releasing_expired_leases_is_logged(buffer, caplog):
    buffer.store_batch({"task_id": "t", "obs": [1, 2, 3]})
    consumer = buffer.consumer("learner", max_times_sampled=1)
    consumer.lease(3, expiry_seconds=0.01)
    time.sleep(0.1)
    with caplog.at_level(logging.WARNING, "expdb"):
        consumer.lease(3)
    assert "consumer 'learner': releasing 1 leases" in caplog.text


def test_evictions_are_logged(db, caplog, tmp_path):
    buffer = db.buffer("train")
    buffer.eviction = expdb.Eviction(max_steps_per_task=2)
    buffer.store_batch({"task_id": "t", "obs": [1, 2, 3]})
    with caplog.at_level(logging.INFO, "expdb"):
        buffer.evict()
    assert "buffer 'train': evicting 1 steps" in caplog.text
    buffer.eviction = expdb.Eviction(max_steps_per_task=1, archive=tmp_path / "archive")
    with caplog.at_level(logging.INFO, "expdb"):
        buffer.evict()
    assert "buffer 'train': archiving 1 steps to" in caplog.text


def test_a_failed_activity_report_is_logged_and_does_not_raise(buffer, caplog, monkeypatch):
    def fail(*_):
        raise errors.DatabaseBusy("locked by another process")

    buffer.store(task_id="t", obs=1)
    monkeypatch.setattr(buffer._reporter, "_report", fail)
    with caplog.at_level(logging.INFO, "expdb"):
        report_now(buffer)
    assert "cannot store the activity report: locked by another process" in caplog.text


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_doctor_gives_advice_on_long_waits(db, seconds):
    buffer = db.buffer("train")
    buffer.store(task_id="t", obs=1)
    from expdb.process.liveness import named

    insert = "INSERT INTO waiters VALUES (?, 1, ?, ?, 'consumer x', 'learner') RETURNING id"
    with store_of(buffer).writing() as (session, _):
        session.query(insert, store_of(buffer).id, named(0), time.time() - seconds)
    (finding,) = [found for found in db.doctor() if found["what"] == "waiting at 'train'"]
    assert ("start actors" in finding["advice"]) == (seconds > 60)


def test_doctor_counts_workers_and_reports_silent_workers(db, monkeypatch):
    from expdb.storage.upkeep import reporting

    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    buffer = db.buffer("train")
    buffer.store(task_id="t", obs=1)
    (finding,) = [found for found in db.doctor() if found["what"] == "workers of 'train'"]
    assert (finding["found"], finding["advice"]) == ("1 active actor", "")
    monkeypatch.setattr("expdb.storage.upkeep.workers.SILENT_AFTER_SECONDS", -1.0)
    (finding,) = [found for found in db.doctor() if found["what"] == "workers of 'train'"]
    assert finding["found"] == "1 silent actor"
    assert "no report for over a minute from process" in finding["advice"]
