"""The pace of a buffer delays groups that would be stale by the time of training."""

import asyncio
import multiprocessing
import threading
import time
import warnings

import pytest
import sqlalchemy as sa
from behind import store_of, writing
from processes import FORKSERVER, run_at_once

import expdb
from expdb import errors
from expdb.consumers import admission
from expdb.process.liveness import ProcessLiveness
from expdb.storage.ledger import admissions

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def paced(db):
    buffer = db.buffer("train")
    buffer.policy_version = 5
    buffer.pace = expdb.Pace(max_staleness=1, groups_per_version=2)
    return buffer


def refused(buffer, match="does not admit a new group"):
    with pytest.raises(errors.RateLimited, match=match):
        buffer.admit(wait=0)
    return True


@pytest.mark.both_databases
def test_the_pace_admits_only_groups_that_can_be_trained_on_in_time(paced, open_db):
    assert open_db().buffer("train").pace == expdb.Pace(1, 2)
    for _ in range(4):
        with paced.admit(wait=0) as group:
            assert group.policy_version == 5
    assert refused(
        paced, r"4 groups have begun .*, which is the maximum until policy_version exceeds 5"
    )
    assert paced.admit(wait=0.01, required=False) is None
    paced.policy_version = 6
    with paced.admit(wait=0), paced.admit(wait=0) as group:
        assert group.policy_version == 6
        assert refused(
            paced, r"\(2 of them under way\), which is the maximum until policy_version exceeds 6"
        )


@pytest.mark.both_databases
def test_admissions_stop_before_the_oldest_active_group_becomes_stale(paced):
    slow = paced.admit(wait=0)
    for version in (6, 7, 8):
        paced.policy_version = version
        for _ in range(3 * (version == 6)):
            paced.admit(wait=0).finish()
        assert refused(
            paced, "before the oldest one under way ends, which began at policy_version 5"
        )
    slow.finish()
    paced.admit(wait=0).finish()


@pytest.mark.both_databases
def test_a_cancelled_group_is_not_counted(paced, open_db):
    for _ in range(3):
        paced.admit(wait=0).finish()
    with pytest.raises(errors.RateLimited), paced.admit(wait=0):
        open_db().buffer("train").admit(wait=0)
    group = paced.admit(wait=0)
    group.cancel()
    group.cancel()
    group = paced.admit(wait=0)
    group.finish()
    group.cancel()
    assert refused(paced)


def test_a_dropped_admission_causes_a_warning(paced):
    admission = paced.admit()
    with pytest.warns(errors.ExpDBWarning, match=r"test_pace\.py:\d+ was dropped without finish"):
        del admission
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        admission = paced.admit()
        admission.cancel()
        del admission


def test_an_admission_expires_after_its_seconds(paced):
    first = paced.admit(wait=0, expiry_seconds=10.0)
    first.renew(100)
    groups = [first, *(paced.admit(wait=0, expiry_seconds=0.2) for _ in range(3))]
    time.sleep(0.25)
    paced.admit(wait=0).finish()
    with pytest.warns(errors.ExpDBWarning, match=r"longer than the 0.2 seconds"):
        groups[1].finish()  # the group was generated, so it counts
    groups[0].finish()
    with pytest.raises(expdb.LeaseLost):
        groups[2].renew()
    paced.admit(wait=0).finish()
    assert refused(paced)


def hold(location, sender):
    with expdb.open(location) as db:
        db.buffer("train").admit(wait=0)
        sender.send(True)
        time.sleep(60)


@pytest.mark.both_databases
def test_an_admission_ends_when_its_process_dies(paced, location):
    for _ in range(3):
        paced.admit(wait=0).finish()
    ours, theirs = FORK.Pipe()
    actor = FORKSERVER.Process(target=hold, args=(location, theirs))
    actor.start()
    assert ours.recv()
    assert refused(paced, "1 of them under way")
    actor.kill()
    actor.join()
    paced.admit(wait=100).finish()


@pytest.mark.both_databases
def test_a_waiting_actor_is_admitted_at_the_next_policy_version(paced, open_db):
    for _ in range(4):
        paced.admit(wait=0).finish()
    versions = []
    actor = threading.Thread(
        target=lambda: versions.append(open_db().buffer("train").admit(wait=30).policy_version)
    )
    actor.start()
    deadline = time.monotonic() + 20
    while not paced.waiting().num_rows and time.monotonic() < deadline:
        time.sleep(0.05)
    (wait,) = paced.waiting(limit=1).to_pylist()
    assert "the pace, to begin a group: 4 groups have begun" in wait["waits_for"]
    paced.policy_version = 6
    actor.join(20)
    assert versions == [6]


def test_without_a_pace_every_group_is_admitted(buffer):
    with buffer.admit() as group:
        assert group.policy_version is None
    buffer.policy_version = 3
    assert buffer.admit(wait=0).policy_version == 3
    buffer.pace = expdb.Pace(0, 1)
    buffer.admit(wait=0)
    refused(buffer)
    buffer.pace = None
    assert buffer.pace is None
    assert buffer.admit(wait=0).policy_version == 3


def test_invalid_settings_and_arguments_are_rejected(scratch):
    for wrong in (
        lambda: setattr(scratch, "pace", 3),
        lambda: setattr(scratch, "pace", expdb.Pace(1, 2)),  # no policy_version yet
        lambda: expdb.Pace(-1, 2), lambda: expdb.Pace(1, 0),
        lambda: scratch.admit(expiry_seconds=0),
        lambda: scratch.admit(wait=-1), lambda: scratch.admit(required=3),
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue):
            wrong()


WORKERS, GROUPS, PER_VERSION, STALENESS = 12, 480, 4, 2


# -- ordinary mistakes -----------------------------------------------------------------------------


@pytest.mark.both_databases
def test_setting_the_pace_again_keeps_the_count_of_groups(paced):
    group = paced.admit(wait=0)
    for _ in range(3):
        paced.admit(wait=0).finish()
    paced.pace = expdb.Pace(1, 2)  # as a restarted program does
    assert refused(paced, "4 groups have begun .1 of them under way")
    paced.pace = expdb.Pace(2, 2)
    paced.admit(wait=0).finish()
    group.finish()
    paced.admit(wait=0).finish()
    assert refused(paced, "6 groups have begun")


def test_an_admission_can_be_used_for_one_group_only(paced):
    with paced.admit(wait=0) as group:
        pass
    with pytest.raises(expdb.LeaseLost, match=r"has ended; call .* for every group"), group:
        pass


@pytest.mark.both_databases
def test_a_long_wait_for_admission_warns_with_the_reason(paced, monkeypatch):
    monkeypatch.setattr("expdb.consumers.admission.PATIENCE", 0.05)
    for _ in range(4):
        paced.admit(wait=0).finish()

    def count_up():
        until = time.monotonic() + 60
        while not warnings_ and time.monotonic() < until:
            time.sleep(0.02)
        paced.policy_version = 6

    learner = threading.Thread(target=count_up)
    with pytest.warns(
        errors.ExpDBWarning,
        match="4 groups have begun.*; finish groups and increase buffer.policy_version",
    ) as warnings_:
        learner.start()
        paced.admit().finish()
    learner.join()


def test_assigning_a_misspelt_buffer_setting_raises(scratch):
    with pytest.raises(AttributeError, match="did you mean 'policy_version'"):
        scratch.policy_verison = 7
    with pytest.raises(AttributeError, match="settings are capacity, policy_version"):
        scratch.something = 7


@pytest.mark.both_databases
def test_waiting_coroutines_do_not_exhaust_the_thread_pool(paced):
    async def roll_out():
        with await paced.admit_async() as group:
            paced.store(task_id="t", truncated=True, policy_version=group.policy_version)

    async def train(consumer):
        for version in range(6, 16):
            lease = await consumer.lease_async(2, wait=30, sampler=expdb.Ordered("position"))
            await lease.acknowledge_async()
            paced.policy_version = version

    async def run():
        trainer = train(paced.consumer("trainer", max_times_sampled=1))
        await asyncio.wait_for(asyncio.gather(trainer, *[roll_out() for _ in range(20)]), 60)

    asyncio.run(run())
    assert len(paced) == 20


@pytest.mark.both_databases
def test_a_cancel_that_failed_can_be_repeated(paced, open_db, monkeypatch):
    group = paced.admit(wait=0)
    with monkeypatch.context() as patch:
        patch.setattr("expdb.consumers.admission.admissions.end", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            group.cancel()
    group.cancel()
    for _ in range(4):
        paced.admit(wait=0).finish()
    assert refused(paced)


def admit_with_limit_of(store, state, id=7):
    """Admit a group with the limit of an earlier `state`, as a handle with an old limit does."""
    store.admission_limit = state.limit
    return admissions.try_to_admit(store, 60.0, 0, ProcessLiveness(), id)


@pytest.mark.both_databases
def test_a_stale_pace_state_does_not_admit_a_group(paced):
    store, others = paced._store, ProcessLiveness()
    look = admissions.read_pace_state(store, others)
    for _ in range(4):
        paced.admit(wait=0).finish()
    assert refused(paced)
    assert look.refused is None
    assert admit_with_limit_of(store, look) == admissions.read_pace_state(store, others).refused
    paced.policy_version = 6
    assert admit_with_limit_of(store, look) == admissions.Admitted(7, 6)
    assert admissions.read_pace_state(store, others).versions == {7: 6}


@pytest.mark.both_databases
def test_a_stale_pace_state_does_not_admit_beside_an_older_group(paced, db):
    store, others = paced._store, ProcessLiveness()
    for _ in range(4):
        paced.admit(wait=0).finish()
    paced.policy_version = 6
    state = admissions.read_pace_state(store, others)
    assert state.refused is None
    with writing(db) as session:  # a group that began at version 5
        session.execute(
            "INSERT INTO admissions (buffer_id, id, holder, policy_version, since, expires) "
            "VALUES (?, 1, 'other', 5, ?, ?)",
            store.id, state.now, state.now + 600,
        )  # fmt: skip
    assert "which began at policy_version 5" in admit_with_limit_of(store, state)


@pytest.mark.both_databases
def test_admit_follows_a_pace_that_another_handle_changed(paced, open_db):
    other = open_db().buffer("train")
    other.admit(wait=0).finish()
    paced.pace = expdb.Pace(max_staleness=0, groups_per_version=1)
    assert refused(other, "1 groups have begun")
    paced.pace = expdb.Pace(max_staleness=0, groups_per_version=2)
    other.admit(wait=0).finish()
    assert refused(other, "2 groups have begun")
    paced.pace = None
    assert other.admit(wait=0).policy_version == 5


@pytest.mark.both_databases
def test_concurrent_handles_admit_exactly_the_groups_that_the_pace_allows(paced, open_db):
    paced.pace = expdb.Pace(max_staleness=1, groups_per_version=20)
    buffers, policy_versions = [open_db().buffer("train") for _ in range(4)], []

    def admit_all(buffer):
        while (group := buffer.admit(wait=0, required=False)) is not None:
            group.finish()
            policy_versions.append(group.policy_version)

    run_at_once([threading.Thread(target=admit_all, args=(buffer,)) for buffer in buffers])
    assert policy_versions == [5] * 40


@pytest.mark.both_databases
def test_a_group_is_counted_once_if_its_end_is_repeated(paced):
    store, others = paced._store, ProcessLiveness()
    look = admissions.read_pace_state(store, others)
    for took_place, after in ((True, 1), (False, 1)):
        assert admit_with_limit_of(store, look) == admissions.Admitted(7, 5)
        assert admissions.end(store, 7, took_place=took_place)
        assert admissions.end(store, 7, took_place=took_place, again=True)  # a repeated call
        look = admissions.read_pace_state(store, others)
        assert look.admitted == after
    assert not admissions.end(store, 7, took_place=False)
    assert admissions.read_pace_state(store, others).admitted == 1
    assert not admissions.end(store, 7, took_place=True)  # counted although it had expired
    assert admissions.read_pace_state(store, others).admitted == 2


@pytest.mark.both_databases
def test_a_group_is_admitted_once_if_its_commit_is_retried(paced):
    store, others = paced._store, ProcessLiveness()
    look = admissions.read_pace_state(store, others)
    assert [admit_with_limit_of(store, look) for _ in range(2)] == [admissions.Admitted(7, 5)] * 2
    paced.policy_version = 6
    assert admit_with_limit_of(store, look) == admissions.Admitted(7, 5)
    look = admissions.read_pace_state(store, others)
    assert admit_with_limit_of(store, look) == admissions.Admitted(7, 5)
    assert admissions.end(store, 7, took_place=True)
    for _ in range(5):
        paced.admit(wait=0).finish()
    assert refused(paced, "6 groups have begun")


@pytest.mark.both_databases
def test_waiting_for_the_pace_reads_its_state_at_most_once_per_pause(paced, open_db, monkeypatch):
    for _ in range(4):
        paced.admit(wait=0).finish()
    buffer, looks = open_db(max_lag_seconds=0.0).buffer("train"), []
    read = admissions.read_pace_state
    monkeypatch.setattr(admissions, "read_pace_state", lambda *a: looks.append(1) or read(*a))
    assert buffer.admit(wait=0.5, required=False) is None
    assert len(looks) <= 0.5 / admission.PAUSE + 2


@pytest.mark.both_databases
def test_a_refused_group_does_not_wait_for_other_writers(paced, open_db):
    for _ in range(4):
        paced.admit(wait=0).finish()
    other, began = open_db().buffer("train"), time.monotonic()
    with store_of(other).writing() as (session, _):
        session.query(sa.select(sa.literal(1)))  # sends the request for the lock
        assert paced.admit(wait=0, required=False) is None
    assert time.monotonic() - began < 20.0  # a wait for the lock would take 30 s
