"""The registry of processes and the history of metrics."""

import json
import multiprocessing
import os
import re
import time
import warnings
from contextlib import suppress

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from behind import report_now, store_of
from contents import workers_of
from processes import FORKSERVER

import expdb
from expdb import errors
from expdb.process import liveness
from expdb.sql.dialects.postgresql.engine import PostgresqlSession
from expdb.storage.upkeep import measure, metrics_history, reporting, workers

pytestmark = pytest.mark.both_databases


@pytest.fixture
def report_on_every_call(monkeypatch):
    """Report with every call, and add a row of metrics with every report."""
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(metrics_history, "REPORT_SECONDS", 0.0)


def newest_metrics(buffer):
    rows = buffer.metrics().to_pylist()
    return {name: value for name, value in rows[-1].items() if value is not None}


def by_role(buffer):
    return {worker["role"]: worker for worker in workers_of(buffer)}


def store_episode(buffer, length=2, reward=1.0, **details):
    with buffer.episode(**details) as episode:
        for k in range(length):
            episode.append(obs=k, reward=reward, terminated=k == length - 1)


def test_short_programs_register_nothing(buffer):
    buffer.store(obs=1, task_id="t")
    buffer.sample(1)
    assert buffer.workers().num_rows == 0
    assert buffer.metrics().num_rows == 0


def test_actors_learners_and_judges_register_with_their_counts(report_on_every_call, open_db):
    db = open_db(run="run 7")
    buffer = db.buffer("train")
    for k in range(3):
        store_episode(buffer, 4, float(k), task_id=f"t{k}", episode_id=f"e{k}")
    buffer.store(task_id="u", obs=1)
    lease = buffer.consumer("learner").lease(5)
    lease.acknowledge()
    buffer.sample(2)
    buffer.sample(2)
    buffer.score(episode_id="e1", name="judge", value=0.5)
    workers = by_role(buffer)
    assert {worker["run"] for worker in workers.values()} == {"run 7"}
    assert {worker["state"] for worker in workers.values()} == {"active"}
    assert all(f"process {multiprocessing.current_process().pid}" in worker["process"]
               for worker in workers.values())  # fmt: skip
    assert workers["actor"]["counts"] == {
        "steps": 13, "episodes_ended": 3, "episode_length_sum": 12, "returns": 3,
        "return_sum": 12.0,
    }  # fmt: skip
    assert workers["learner"]["counts"] == {
        "batches_sampled": 2, "leases": 1, "items_leased": 5, "leases_acknowledged": 1,
    }  # fmt: skip
    assert workers["judge"]["counts"] == {"scores": 1}


@pytest.mark.parametrize("way", ["batch", "columns", "extend", "writer", "end_episode", "threads"])
def test_every_way_to_write_is_counted(report_on_every_call, buffer, way):
    steps = [{"obs": k, "reward": 1.0, "terminated": k == 2} for k in range(3)]
    if way == "batch":
        buffer.store_batch([{**step, "task_id": "t"} for step in steps])
    elif way == "columns":
        columns = {name: [step[name] for step in steps] for name in steps[0]}
        buffer.store_batch({**columns, "task_id": "t"})
    elif way == "extend":
        with buffer.episode(task_id="t") as episode:
            episode.extend(steps)
    elif way == "writer":
        with buffer.writer() as writer:
            for step in steps:
                writer.append(task_id="t", **step)
    elif way == "end_episode":
        for step in steps:
            buffer.store(task_id="t", episode_id="e", obs=step["obs"], reward=1.0)
        buffer.end_episode("e")
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda k: store_episode(buffer, 1, task_id=f"t{k}"), range(3)))
    report_now(buffer)
    counts = by_role(buffer)["actor"]["counts"]
    episodes = 3 if way == "threads" else 1
    names = "steps", "episodes_ended", "episode_length_sum", "returns", "return_sum"
    assert [counts[name] for name in names] == [3, episodes, 3, episodes, 3.0]


@pytest.mark.one_database
def test_a_refused_write_is_not_counted(report_on_every_call, buffer):
    buffer.store(obs=1, task_id="t")
    with pytest.raises(errors.FieldMismatch):
        buffer.store(obs="text", task_id="t")
    with pytest.raises(expdb.TooFewRows):
        buffer.sample(2, {"task_id": "none"})
    report_now(buffer)
    workers = by_role(buffer)
    assert workers["actor"]["counts"] == {"steps": 1}
    assert "learner" not in workers


@pytest.mark.one_database
def test_metrics_have_counters_gauges_and_rates(report_on_every_call, buffer):
    store_episode(buffer, 2, 1.0, task_id="t")
    store_episode(buffer, 4, 2.0, task_id="t")
    buffer.policy_version = 3
    store_episode(buffer, 6, 3.0, task_id="t")
    metrics = newest_metrics(buffer)
    assert (metrics["steps_added"], metrics["steps"], metrics["episodes_begun"]) == (12, 12, 3)
    assert metrics["policy_version"] == 3
    assert metrics["actors"] == 1
    assert metrics["learners"] == metrics["waiting_actors"] == 0
    assert 0 <= metrics["newest_step_seconds"] <= metrics["oldest_step_seconds"] < 60
    rows = buffer.metrics().to_pylist()
    assert [row["mean_length"] for row in rows[-2:]] == [4.0, 6.0]
    assert [row["mean_return"] for row in rows[-2:]] == [8.0, 18.0]
    seconds = rows[-1]["time"] - rows[-2]["time"]
    assert rows[-1]["steps_per_second"] == pytest.approx(6 / seconds)
    assert rows[0]["steps_per_second"] is None
    assert buffer.metrics(since=rows[-1]["time"]).to_pylist() == rows[-1:]
    assert buffer.metrics(since=rows[-1]["time"] + 1000).num_rows == 0
    assert buffer.metrics(limit=1).to_pylist() == rows[-1:]
    assert buffer.metrics(limit=2).to_pylist() == rows[-2:]
    assert buffer.metrics(limit=1000).to_pylist() == rows


def test_capacity_bytes_and_metrics_of_the_database_are_measured(report_on_every_call, db):
    buffer = db.buffer("small", capacity=4)
    store_episode(buffer, 8, task_id="t")
    metrics = newest_metrics(buffer)
    assert (metrics["capacity"], metrics["fill"], metrics["steps"]) == (4, 1.0, 4)
    assert metrics["bytes"] == buffer.stats()["bytes"]
    if "://" in db.location:
        assert metrics["connections"] >= 1
        assert {"dead_rows", "longest_transaction_seconds"} <= metrics.keys()
    else:
        assert metrics["file_bytes"] > 100_000
        assert {"free_bytes", "wal_bytes"} <= metrics.keys()


@pytest.mark.one_database
def test_groups_are_counted_by_stage(report_on_every_call, buffer):
    for group, returns in {"a": (1.0, 1.0), "b": (0.0, 1.0), "c": (1.0, None)}.items():
        for reward in returns:
            store_episode(buffer, 1, reward, task_id=group, group_id=group)
    buffer.store(task_id="d", group_id="d", episode_id="open", obs=1)
    metrics = newest_metrics(buffer)
    stages = [metrics[f"groups_{stage}"] for stage in ("open", "without_return", "with_returns")]
    assert stages == [1, 1, 2]
    assert metrics["no_spread_fraction"] == 0.5
    assert metrics["oldest_open_group_seconds"] >= 0
    assert metrics["oldest_group_without_return_seconds"] >= 0


@pytest.mark.one_database
def test_leased_and_discarded_groups_are_counted(report_on_every_call, buffer):
    for group, returns in {"a": (1.0, 1.0), "b": (0.0, 1.0), "c": (2.0, 1.0)}.items():
        for reward in returns:
            store_episode(buffer, 2, reward, task_id=group, group_id=group)

    def stages():
        report_now(buffer)
        metrics = newest_metrics(buffer)
        counts = [metrics[f"groups_{stage}"] for stage in ("with_returns", "leased", "discarded")]
        return counts, "oldest_unleased_group_seconds" in metrics

    consumer, unit = buffer.consumer("learner", max_times_sampled=1), expdb.Group(2, min_spread=0.5)
    how = {"unit": unit, "sampler": expdb.Uniform(replace=False)}
    assert stages() == ([3, 0, 0], True)
    buffer.consumer("of_steps").lease(2).acknowledge()
    assert stages() == ([3, 0, 0], True)
    with suppress(KeyError), consumer.lease(1, {"group_id": "b"}, **how):
        assert stages() == ([3, 1, 0], True)
        raise KeyError  # releases the lease
    assert stages() == ([3, 0, 0], True)
    consumer.lease(1, {"group_id": "b"}, **how).acknowledge()
    assert stages() == ([3, 1, 0], True)
    assert consumer.discard(unit) == 1
    assert stages() == ([3, 1, 1], True)
    other = buffer.consumer("other")
    other.lease(1, {"group_id": "c"}, unit=expdb.Episode())
    assert stages() == ([3, 2, 1], False)
    other.lease(1, {"group_id": "a"}, unit=expdb.Episode())
    assert stages() == ([3, 3, 0], False)


@pytest.mark.one_database
@pytest.mark.parametrize(
    "unit", [expdb.Group(2), expdb.Episode(), expdb.Pairs(), expdb.Tokens(of=expdb.Group(2))]
)
def test_leases_of_whole_episodes_show_their_groups(report_on_every_call, db, unit):
    buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
    ids = np.arange(3, dtype=np.int32)
    for reward in (0.0, 1.0):
        for is_last in (False, True):
            buffer.store(
                task_id="t", group_id="g", episode_id=str(reward), prompt_ids=ids, output_ids=ids,
                output_mask=np.ones(3, bool), reward=reward * is_last, terminated=is_last,
            )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.ExpDBWarning)  # of untrained tokens
        buffer.consumer("learner").lease(1, unit=unit).acknowledge()
    report_now(buffer)
    assert newest_metrics(buffer)["groups_leased"] == 1
    assert sum("acknowledged" in line for line in buffer.why(1)) >= (unit != expdb.Episode())


def test_partly_evicted_groups_are_not_waiting_for_a_lease(report_on_every_call, db):
    buffer = db.buffer("small", capacity=5)
    for group in "ab":
        for _ in range(2):
            store_episode(buffer, 2, 1.0, task_id=group, group_id=group)
    metrics = newest_metrics(buffer)
    assert metrics["groups_with_returns"] == 2
    assert metrics["oldest_unleased_group_seconds"] < 60
    buffer.consumer("learner").lease(1, {"group_id": "b"}, unit=expdb.Group(2))
    report_now(buffer)
    assert "oldest_unleased_group_seconds" not in newest_metrics(buffer)


@pytest.mark.one_database
def test_a_score_replaces_a_missing_return(report_on_every_call, buffer):
    for name in ("first", "second"):
        buffer.store(task_id="t", group_id="g", episode_id=name, obs=1, terminated=True)
    assert newest_metrics(buffer)["groups_without_return"] == 1
    buffer.score(episode_id="first", name="quality", value=0.5, by="judge")
    assert newest_metrics(buffer)["groups_without_return"] == 1
    buffer.score(episode_id="second", name="quality", value=None, status="failed", by="judge")
    assert newest_metrics(buffer)["groups_without_return"] == 1
    buffer.score(episode_id="second", name="quality", value=0.5, by="judge")
    metrics = newest_metrics(buffer)
    assert (metrics["groups_without_return"], metrics["groups_with_returns"]) == (0, 1)


@pytest.mark.one_database
def test_metrics_contain_the_lag_and_staleness_of_consumers(report_on_every_call, buffer):
    buffer.policy_version = 5
    for version in (3, 4, 5, 5):
        buffer.store(task_id="t", obs=1, policy_version=version, terminated=True)
    consumer = buffer.consumer("learner")
    lease = consumer.lease(2, sampler=expdb.Ordered("position"))
    report_now(buffer)
    metrics = newest_metrics(buffer)
    assert metrics["consumers.learner.leased"] == 1
    assert metrics["consumers.learner.acknowledged"] == 0
    assert metrics["consumers.learner.steps_behind"] == 2
    assert metrics["consumers.learner.staleness"] == 1.5
    assert metrics["open_leases"] == 1
    lease.acknowledge()
    metrics = newest_metrics(buffer)
    assert (metrics["open_leases"], metrics["consumers.learner.acknowledged"]) == (0, 1)


def test_the_tokens_of_steps_are_counted(report_on_every_call, db):
    buffer = db.buffer("tokens", fields=expdb.TOKEN_FIELDS)
    for length in (2, 4, 6):
        ids = np.arange(length, dtype=np.int32)
        buffer.store(task_id="t", prompt_ids=ids, output_ids=ids, terminated=True)
    metrics = newest_metrics(buffer)
    assert metrics["tokens_per_step"] == 4
    assert metrics["tokens_per_second"] == pytest.approx(4 * metrics["steps_per_second"])
    buffer.store(task_id="t", note="a step without tokens", terminated=True)
    assert newest_metrics(buffer)["tokens_per_step"] == 3


def test_a_waiting_learner_is_shown_and_its_time_counted(report_on_every_call, open_db):
    db, other = open_db(), open_db()
    buffer = db.buffer("train")
    buffer.store(task_id="t", obs=1)
    with pytest.raises(expdb.TooFewRows):
        buffer.consumer("learner", min_size=5).lease(5, wait=2.5)
    report_now(buffer)
    counts = by_role(buffer)["learner"]["counts"]
    assert 2.2 < counts["learner_wait_seconds"] < 8
    waiting = [row for row in buffer.metrics().to_pylist() if row["waiting_learners"] == 1]
    assert max(row["longest_learner_wait_seconds"] for row in waiting) > 0
    assert waiting[-1]["mean_waiting_learners"] > 0.3
    assert other.buffer("train").workers().to_pylist()[0]["state"] in ("active", "waiting")


@pytest.mark.one_database
def test_a_blocked_actor_is_shown_and_its_time_counted(report_on_every_call, buffer):
    buffer.policy_version = 0
    buffer.pace = expdb.Pace(max_staleness=0, groups_per_version=1)
    buffer.admit().finish()
    with pytest.raises(errors.RateLimited):
        buffer.admit(wait=1.5, required=True)
    report_now(buffer)
    counts = by_role(buffer)["actor"]["counts"]
    assert 1.2 < counts["actor_wait_seconds"] < 6
    assert [row for row in buffer.metrics().to_pylist() if row["waiting_actors"] == 1]


@pytest.mark.one_database
def test_an_actor_that_retries_admit_is_shown_as_waiting(report_on_every_call, buffer):
    buffer.policy_version = 0
    buffer.pace = expdb.Pace(max_staleness=0, groups_per_version=1)
    buffer.admit().finish()
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        assert buffer.admit(wait=0.2, required=False) is None
    report_now(buffer)
    worker = by_role(buffer)["actor"]
    assert (worker["state"], worker["waits_for"]) == ("waiting", "the rate limiter or the pace")
    report_now(buffer)
    assert [row for row in buffer.metrics().to_pylist() if row["waiting_actors"] == 1]


def test_a_suspended_process_is_silent_and_not_waiting(report_on_every_call, db, monkeypatch):
    buffer = db.buffer("train")
    buffer.store(task_id="t", obs=1)
    with store_of(buffer).writing() as (session, _):
        insert = "INSERT INTO waiters VALUES (?, 1, ?, ?, 'the pace', 'actor') RETURNING id"
        session.query(insert, store_of(buffer).id, liveness.named(0), time.time() - 90)
    assert by_role(buffer)["actor"]["state"] == "waiting"
    monkeypatch.setattr("expdb.storage.upkeep.workers.SILENT_AFTER_SECONDS", -1.0)
    worker = by_role(buffer)["actor"]
    assert (worker["state"], worker["waits_for"]) == ("silent", None)
    (finding,) = [found for found in db.doctor() if found["what"] == "waiting at 'train'"]
    assert "is suspended" in finding["advice"]


@pytest.mark.one_database
def test_acknowledging_with_scores_registers_a_judge(report_on_every_call, buffer):
    buffer.store(task_id="t", episode_id="e", obs=1, terminated=True)
    consumer = buffer.consumer("judge", max_times_sampled=1)
    lease = consumer.lease(1)
    lease.acknowledge(scores={"episode_id": ["e"], "name": "quality", "value": 0.5})
    report_now(buffer)
    assert by_role(buffer)["judge"]["counts"] == {"scores": 1}
    assert newest_metrics(buffer)["scores"] == 1


def test_a_learner_does_not_become_an_actor_when_it_closes(report_on_every_call, open_db):
    first, second = open_db(), open_db()
    first.buffer("train").store(task_id="t", obs=1)
    second.buffer("train").sample(1)
    second.close()
    assert sorted(worker["role"] for worker in first.buffer("train").workers().to_pylist()) == [
        "actor", "learner"
    ]  # fmt: skip


def test_closing_a_handle_marks_its_worker_as_ended(report_on_every_call, open_db):
    first, second = open_db(), open_db()
    first.buffer("train").store(task_id="t", obs=1)
    assert by_role(second.buffer("train"))["actor"]["state"] == "active"
    first.close()
    assert by_role(second.buffer("train"))["actor"]["state"] == "ended"


def _store_and_die(location):
    import os

    reporting.FIRST_REPORT_SECONDS = 0.0
    expdb.open(location).buffer("train").store(task_id="t", obs=1)
    os._exit(1)


def test_a_killed_process_is_shown_as_died(db, location):
    context = FORKSERVER
    process = context.Process(target=_store_and_die, args=(location,))
    process.start()
    process.join()
    buffer = db.buffer("train")
    assert by_role(buffer)["actor"]["state"] == "died"
    report_now(buffer)
    with store_of(buffer).engine.reading() as session:
        assert measure.measure(store_of(buffer), session, time.time())["actors"] == 0


def test_older_metrics_are_kept_at_longer_intervals():
    kept = set()
    for id in range(20_000):
        kept.add(id)
        kept -= set(metrics_history.ids_to_remove(id))
    newest = 19_999
    assert kept >= set(range(newest - 359, newest + 1))
    assert all(newest - id < 360 or id % 6 == 0 for id in kept)
    assert all(newest - id < 9_000 or id % 60 == 0 for id in kept)
    assert {id for id in range(newest - 8_999, newest - 359) if id % 6 == 0} <= kept
    assert {id for id in range(newest - 8_999) if id % 60 == 0} <= kept


def test_old_metrics_are_removed(report_on_every_call, db, buffer, monkeypatch):
    monkeypatch.setattr(metrics_history, "STAGES", ((3, 2), (7, 0)))
    for k in range(12):
        buffer.store(task_id="t", obs=k)
    rows = db.sql("SELECT id FROM metrics ORDER BY id").column(0).to_pylist()
    newest = rows[-1]
    assert newest >= 11
    assert all(newest - id < 3 or id % 2 == 0 for id in rows)
    assert newest - rows[0] < 7


def test_counts_of_removed_workers_stay_in_the_metrics(report_on_every_call, open_db, monkeypatch):
    first, second = open_db(), open_db()
    store_episode(first.buffer("train"), 3, task_id="t")
    first.buffer("train").sample(1)
    first.close()
    monkeypatch.setattr(workers, "REMOVE_ENDED_AFTER_SECONDS", -1.0)
    buffer = second.buffer("train")
    for k in range(3):
        store_episode(buffer, 2, task_id=f"u{k}")
    assert buffer.workers().num_rows == 1
    report_now(buffer)
    metrics = newest_metrics(buffer)
    names = "episodes_ended", "episode_length_sum", "batches_sampled"
    assert [metrics[name] for name in names] == [4, 9, 1]


def test_a_removed_worker_that_resumes_is_not_counted_twice(
    report_on_every_call, open_db, monkeypatch
):
    first, second = open_db(), open_db()
    buffer, other = first.buffer("train"), second.buffer("train")
    store_episode(buffer, 3, task_id="t")  # then the process is suspended for more than a day
    with monkeypatch.context() as patch:
        patch.setattr(workers, "REMOVE_ENDED_AFTER_SECONDS", -1.0)
        patch.setattr(workers, "REMOVE_SILENT_AFTER_SECONDS", -1.0)
        other.store(task_id="u", obs=1)
        other.store(task_id="u", obs=1)
    store_episode(buffer, 2, task_id="v")
    store_episode(buffer, 2, task_id="v")
    report_now(buffer)
    assert newest_metrics(buffer)["episodes_ended"] == 3
    assert newest_metrics(buffer)["episode_length_sum"] == 7


def test_only_one_of_several_handles_adds_a_row_of_metrics(open_db, monkeypatch):
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    handles = [open_db() for _ in range(3)]
    for k, handle in enumerate(handles):
        handle.buffer("train").store(task_id=f"t{k}", obs=1)
    assert handles[0].buffer("train").metrics().num_rows == 1
    assert len(handles[0].buffer("train").workers().to_pylist()) == 3


def test_setting_the_clock_back_does_not_stop_metrics(report_on_every_call, buffer, monkeypatch):
    buffer.store(task_id="t", obs=1)
    with store_of(buffer).writing() as (session, _):
        session.query("UPDATE metrics SET time = time + 1000000 RETURNING id")
    monkeypatch.setattr(metrics_history, "REPORT_SECONDS", 10.0)
    report_now(buffer)
    rows = buffer.metrics().to_pylist()
    assert len(rows) == 2
    assert rows[1]["time"] < rows[0]["time"]
    assert rows[1]["steps_per_second"] is None


@pytest.mark.one_database
def test_reports_do_not_block_on_a_busy_database(report_on_every_call, open_db, monkeypatch):
    """SQLite only, because an open write transaction of PostgreSQL does not block reports."""
    monkeypatch.setattr(metrics_history, "LOCK_SECONDS", 0.01)
    buffer, other = open_db().buffer("train"), open_db().buffer("train")
    buffer.store(task_id="t", obs=1)
    before = len(buffer.metrics())
    with store_of(other).writing():
        began = time.monotonic()
        buffer.sample(1)
        assert time.monotonic() - began < 1
    assert len(buffer.metrics()) == before
    buffer.sample(1)
    assert by_role(buffer)["learner"]["counts"]["batches_sampled"] == 2


def test_read_only_handles_report_nothing(report_on_every_call, open_db):
    open_db().buffer("train").store(task_id="t", obs=1)
    reader = open_db(read_only=True).buffer("train")
    reader.sample(1)
    reader.sample(1)
    assert list(by_role(reader)) == ["actor"]


def test_dropping_a_buffer_deletes_its_workers_and_metrics(report_on_every_call, open_db):
    first, second = open_db(), open_db()
    buffer = first.buffer("train")
    buffer.store(task_id="t", obs=1)
    second.drop("train")
    report_now(buffer)
    for table in ("workers", "metrics"):
        assert second.sql(f"SELECT count(*) FROM {table}").column(0).to_pylist() == [0]


def test_metrics_are_copied_and_workers_are_not(report_on_every_call, buffer, location, tmp_path):
    buffer.store(task_id="t", obs=1)
    buffer.store(task_id="t", obs=1)
    expdb.copy(location, tmp_path / "copy.db")
    with expdb.open(tmp_path / "copy.db") as copy:
        there = copy.buffer("train")
        assert there.workers().num_rows == 0
        assert there.metrics().equals(buffer.metrics())


def test_a_forked_child_registers_as_a_separate_worker(report_on_every_call, db, buffer):
    buffer.store(task_id="t", obs=1)
    buffer.sample(1)

    def write():
        buffer.store(task_id="u", obs=1)
        buffer.store(task_id="u", obs=1)
        db.close()

    child = multiprocessing.get_context("fork").Process(target=write)
    child.start()
    child.join()
    assert child.exitcode == 0
    rows = db.sql("SELECT role, counts FROM workers ORDER BY since, role").to_pylist()
    counts = [(row["role"], json.loads(row["counts"])) for row in rows]
    assert counts == [
        ("actor", {"steps": 1}), ("learner", {"batches_sampled": 1}),
        ("actor", {"steps": 2, "episodes_ended": 1, "episode_length_sum": 2}),
    ]  # fmt: skip


def test_counts_are_float64_whatever_numbers_are_stored(report_on_every_call, open_db):
    first, second = open_db(), open_db()
    assert first.buffer("train").workers().schema.field("counts").type == pa.struct([])
    for handle, counts in ((first, "{}"), (second, '{"steps": 9007199254740993, "other": 1e300}')):
        buffer = handle.buffer("train")
        buffer.store(task_id="t", obs=1)
        with store_of(buffer).writing() as (session, _):
            session.query(
                f"UPDATE workers SET counts = '{counts}' WHERE counts <> '{{}}' RETURNING id"
            )
    counts = buffer.workers()["counts"]
    assert counts.type == pa.struct([("other", pa.float64()), ("steps", pa.float64())])
    assert {"other": 1e300, "steps": 2.0**53} in counts.to_pylist()
    assert {"other": None, "steps": None} in counts.to_pylist()


def test_corrupted_workers_and_metrics_raise_database_damaged(report_on_every_call, buffer):
    buffer.store(task_id="t", obs=1)
    with store_of(buffer).writing() as (session, _):
        session.query("UPDATE workers SET counts = 'x' RETURNING id")
        session.query("UPDATE metrics SET measurement = '[]' RETURNING id")
    with pytest.raises(errors.DatabaseDamaged, match="workers"):
        buffer.workers().to_pylist()
    with pytest.raises(errors.DatabaseDamaged, match="metrics"):
        buffer.metrics()
    buffer.store(task_id="t", obs=2)  # writes still succeed
    with store_of(buffer).writing() as (session, _):
        session.query("DELETE FROM metrics RETURNING id")
        session.query("DELETE FROM workers RETURNING id")


@pytest.mark.one_database
@pytest.mark.parametrize("since", ["1h", 3600, -3600, float("nan"), None])
def test_since_must_be_a_time(buffer, since):
    with pytest.raises(expdb.InvalidValue, match=r"since must be a time in Unix seconds, such as"):
        buffer.metrics(since)


def test_postgresql_connections_have_an_application_name(report_on_every_call, postgresql_url):
    with expdb.open(postgresql_url, run="it's {run} 7") as db:
        db.buffer("train").store(task_id="t", obs=1)
        db.buffer("train").sample(1)
        names = db.sql("SELECT application_name FROM pg_stat_activity").column(0).to_pylist()
    pattern = r"expdb actor\+learner \S+ it_s _run_ 7"
    assert [name for name in names if re.fullmatch(pattern, name)]


def test_leases_are_listed_with_their_status(buffer):
    assert buffer.leases().num_rows == 0
    for k in range(8):
        buffer.store(task_id="t", obs=k, terminated=True)
    buffer.policy_version = 2
    first, second = buffer.consumer("a"), buffer.consumer("b")
    first.lease(2).acknowledge(trainer_step=7)
    lease = second.lease(3)
    time.sleep(0.002)  # leases are sorted by time, which has a resolution of 1 ms
    first.lease(2).release()
    first.lease(2)
    rows = buffer.leases().to_pylist()
    assert [(row["consumer"], row["lease"], row["batch"], row["status"]) for row in rows] == [
        ("a", 0, 0, "acknowledged"), ("b", 0, 0, "leased"), ("a", 1, 1, "released"),
        ("a", 2, 1, "leased"),
    ]  # fmt: skip
    assert (rows[0]["trainer_step"], rows[0]["policy_version"], rows[0]["items"]) == (7, 2, 2)
    assert rows[0]["ended_at"] >= rows[0]["leased_at"]
    assert rows[1]["ended_at"] is None
    assert rows[1]["first_position"] == lease.batch["position"].min()
    assert rows[1]["last_position"] == lease.batch["position"].max()
    assert f"process {os.getpid()} on" in rows[1]["process"]
    assert buffer.leases(limit=1).to_pylist() == rows[-1:]
    assert buffer.leases("b").to_pylist() == rows[1:2]
    assert buffer.leases("a", limit=2).to_pylist() == rows[2:]
    with pytest.raises(errors.UnknownConsumer, match="'c'"):
        buffer.leases("c")
    with pytest.raises(expdb.InvalidValue, match="limit"):
        buffer.leases(limit=0)
    assert buffer.leases(status="released").to_pylist() == rows[2:3]
    assert buffer.leases("a", status="leased", limit=1).to_pylist() == rows[3:]
    with store_of(buffer).writing() as (session, _):
        session.query("UPDATE leases SET expires = leased - 1 WHERE status = 'leased' RETURNING id")
    assert buffer.leases(status="leased").num_rows == 0
    assert buffer.leases(status="expired")["lease"].to_pylist() == [0, 2]
    statuses = buffer.leases()["status"].to_pylist()
    assert statuses == ["acknowledged", "expired", "released", "expired"]
    assert set(buffer.draws(consumer="b")["status"].to_pylist()) == {"expired"}
    with pytest.raises(expdb.InvalidValue, match="status"):
        buffer.leases(status="returned")


def test_corrupted_counts_do_not_stop_writers(report_on_every_call, buffer, monkeypatch):
    buffer.store(task_id="t", obs=1)
    with store_of(buffer).writing() as (session, _):
        session.query("UPDATE workers SET counts = ? RETURNING id", '{"scores": [1]}')
    buffer._reporter._workers.clear()  # the report inserts another row
    buffer.store(task_id="t", obs=2)
    monkeypatch.setattr(workers, "REMOVE_ENDED_AFTER_SECONDS", -1.0)
    monkeypatch.setattr(workers, "REMOVE_SILENT_AFTER_SECONDS", -1.0)
    buffer.store(task_id="t", obs=3)
    assert len(buffer) == 3
    with store_of(buffer).writing() as (session, _):
        session.query("DELETE FROM workers RETURNING id")


def test_an_error_in_a_measurement_does_not_fail_writes(
    report_on_every_call, buffer, monkeypatch, caplog, logged_errors
):
    def fail(*_):
        raise FileNotFoundError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(metrics_history, "measure", fail)
        buffer.store(task_id="t", obs=1)
    assert len(buffer) == 1
    assert "cannot store the activity report" in caplog.text
    logged_errors.clear()


def test_a_locked_table_does_not_delay_writes(report_on_every_call, postgresql_url):
    with expdb.open(postgresql_url) as db, psycopg.connect(postgresql_url) as connection:
        db.buffer("train").store(task_id="t", obs=1)
        connection.execute("LOCK TABLE expdb.waiters IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        db.buffer("train").store(task_id="t", obs=2)
        assert time.monotonic() - began < 1.0
        connection.rollback()


def test_added_includes_evicted_steps(db):
    buffer = db.buffer("train", capacity=2)
    assert buffer.added == 0
    buffer.store_batch({"task_id": "t", "obs": [1, 2, 3]})
    assert (buffer.added, len(buffer)) == (3, 2)


def test_a_report_takes_few_round_trips(report_on_every_call, postgresql_url, monkeypatch):
    with expdb.open(postgresql_url) as db:
        buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
        ids = np.arange(5, dtype=np.int32)
        for _ in range(10):
            buffer.store(task_id="t", prompt_ids=ids, output_ids=ids, policy_version=1)
        for k in range(10):
            buffer.consumer(f"c{k}").lease(2).acknowledge()
        trips, trip = [], PostgresqlSession._trip
        monkeypatch.setattr(
            PostgresqlSession, "_trip", lambda session, sent: trips.append(1) or trip(session, sent)
        )
        report_now(buffer)
        assert len(trips) <= 18


def busy():
    raise errors.DatabaseBusy("busy")
