"""Consumers lease each item to one learner at a time, up to `max_times_sampled` times."""

import asyncio
import collections
import dataclasses
import multiprocessing
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from behind import reading, writing
from processes import FORKSERVER

import expdb
from expdb import errors
from expdb.consumers import consumer_ledger
from expdb.consumers import lease as lease_module
from expdb.consumers.consumer_ledger import ConsumerLedger
from expdb.storage.ledger import lease_rows

FORK = multiprocessing.get_context("fork")


def fill(buffer, episodes=20, length=10, groups=5):
    """Store complete episodes of three tasks and several groups."""
    for number in range(episodes):
        with buffer.episode(f"task {number % 3}", group_id=f"group {number % groups}") as episode:
            for step in range(length):
                episode.append(
                    obs=np.full(3, number * length + step, np.float32),
                    reward=float(number),
                    terminated=step == length - 1,
                )


def items(batch, unit=None):
    """Return the position of each leased item: of the step or of the item's first step."""
    positions = batch["position"]
    if positions.dtype == object:
        positions = np.array([window[0] for window in positions])
    if unit is not None and positions.ndim > 1 and isinstance(unit, (expdb.Episode, expdb.Group)):
        positions = positions[..., 0]
    elif positions.ndim > 1:
        positions = positions[:, unit.burn_in]
    return positions.reshape(-1).tolist()


def counted(batches, unit=None):
    """Return how often each item was leased, by position."""
    return collections.Counter(position for batch in batches for position in items(batch, unit))


def consume(consumer, size, unit=None, **arguments):
    """Lease and acknowledge batches until no items remain; return the batches."""
    batches = []
    unit = expdb.Step() if unit is None else unit
    while True:
        try:
            with consumer.lease(size, unit=unit, at_least=1, **arguments) as batch:
                batches.append(batch)
        except expdb.TooFewRows:
            return batches


def same(first, other):
    """Return True if two batches have the same keys, in the same order, and equal bits."""
    return list(first) == list(other) and all(
        first[name].dtype == other[name].dtype
        and (
            all(map(np.array_equal, first[name], other[name]))
            if first[name].dtype == object
            else first[name].tobytes() == other[name].tobytes()
        )
        for name in first
    )


@dataclass(frozen=True)
class Longest(expdb.Sampler):
    """A user-defined sampler that adds a column to the batch."""

    def keys(self):
        return ("score",)

    def draw(self, population, size, rng):
        positions = rng.choice(population.positions, size)
        return positions, {"score": positions * 0.5}


SAMPLERS = [
    expdb.Uniform(), expdb.Uniform(over="task"), expdb.Prioritized(alpha=3.0, epsilon=0.001),
    expdb.Newest(5), expdb.Ordered("reward", descending=True), Longest(),
]  # fmt: skip
UNITS = [
    expdb.Step(), expdb.NStep(1), expdb.NStep((1, 3)), expdb.Stack(2),
    expdb.Sequence(4, burn_in=2), expdb.Episode(), expdb.Episode(pad=False), expdb.Group(2),
]  # fmt: skip


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_each_step_is_leased_exactly_max_times_sampled_times(buffer, sampler):
    fill(buffer)
    buffer.update_priorities(np.arange(200), np.arange(200) % 7 * 3.0)
    batches = consume(buffer.consumer("trainer", max_times_sampled=2), 16, sampler=sampler)
    assert counted(batches) == dict.fromkeys(range(200), 2)
    again = list(buffer.replay("trainer"))
    assert len(again) == len(batches)
    assert all(map(same, again, batches))


@pytest.mark.both_databases
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_items_of_every_unit_are_leased_once_with_max_times_sampled_1(buffer, unit):
    fill(buffer)
    whole = isinstance(unit, (expdb.Episode, expdb.Group))
    consumer, size = buffer.consumer("trainer", max_times_sampled=1), 3 if whole else 16
    batches = consume(consumer, size, unit, sampler=expdb.Uniform(replace=True))
    times = counted(batches, unit)
    assert set(times.values()) == {1}
    if whole:
        assert sorted(times) == list(range(0, 200, 10))
    elif isinstance(unit, expdb.Sequence):
        assert len(times) > 100
    else:
        assert sorted(times) == list(range(200))
    assert all(map(same, buffer.replay("trainer"), batches))


@pytest.mark.both_databases
def test_leased_items_are_not_leased_to_another_learner(open_db):
    fill(open_db().buffer("train"))
    ours, theirs = (open_db().buffer("train").consumer("trainer") for _ in range(2))
    leases = [
        consumer.lease(50, sampler=expdb.Uniform(replace=False))
        for consumer in (ours, theirs, ours)
    ]
    drawn = [set(items(lease.batch)) for lease in leases]
    assert len(set.union(*drawn)) == 150
    with pytest.raises(expdb.TooFewRows, match="some items are in active leases 0, 1, 2"):
        theirs.lease(51, sampler=expdb.Uniform(replace=False))
    leases[0].acknowledge()
    lease = theirs.lease(100, sampler=expdb.Uniform(replace=False))
    assert drawn[0] < set(items(lease.batch))


def test_an_exception_releases_the_lease_and_the_same_batch_is_drawn_again(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    with pytest.raises(ZeroDivisionError), consumer.lease(20) as lost:
        raise ZeroDivisionError
    with consumer.lease(20, trainer_step=7) as batch:
        assert same(batch, lost)
    assert consumer.last_trainer_step == 7
    assert [same(replay, lost) for replay in buffer.replay("trainer", [7])] == [True]


def test_the_seed_determines_the_drawn_batches(db):
    drawn = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        buffer = db.buffer(name)
        fill(buffer)
        consumer = buffer.consumer("trainer", seed=seed)
        drawn.append([items(batch) for batch in (consumer.lease(9).batch, consumer.lease(9).batch)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def expiry(db):
    """Return when the newest lease expires, in Unix seconds."""
    with reading(db) as session:
        return session.query("SELECT expires FROM leases ORDER BY id DESC LIMIT 1")[0][0]


@pytest.mark.both_databases
def test_an_expired_lease_cannot_be_acknowledged_or_renewed(open_db):
    db = open_db()
    fill(db.buffer("train"))
    ours, theirs = (
        open_db().buffer("train").consumer("trainer", max_times_sampled=1) for _ in range(2)
    )
    late = ours.lease(200, sampler=expdb.Uniform(replace=False), expiry_seconds=600)
    with pytest.raises(expdb.TooFewRows):
        theirs.lease(1)
    before = expiry(db)
    late.renew(900)
    assert 200 < expiry(db) - before < 600
    with pytest.raises(expdb.TooFewRows):
        theirs.lease(1)
    with writing(db) as session:
        session.execute("UPDATE leases SET expires = expires - 1000")
        session.execute("UPDATE consumers SET version = version + 1")
    with pytest.raises(expdb.LeaseLost, match="expired"):
        late.acknowledge()
    with theirs.lease(200, sampler=expdb.Uniform(replace=False), trainer_step=1) as batch:
        assert same(batch, late.batch)
    with pytest.raises(expdb.LeaseLost, match="expired"):
        late.renew()


@pytest.mark.both_databases
def test_a_lease_with_renew_is_renewed_until_it_is_released_or_deleted(open_db, monkeypatch):
    db = open_db()
    fill(db.buffer("train"))
    ours, theirs = (
        open_db().buffer("train").consumer("trainer", max_times_sampled=1) for _ in range(2)
    )
    everything = {"size": 200, "sampler": expdb.Uniform(replace=False)}
    monkeypatch.setattr(lease_module, "RENEWALS", 6_000)  # every 0.1 seconds
    lease = ours.lease(**everything, expiry_seconds=600, renew=True)
    seen, until = {expiry(db)}, time.monotonic() + 100
    while len(seen) < 3 and time.monotonic() < until:
        time.sleep(0.02)
        seen.add(expiry(db))
    assert len(seen) == 3
    with pytest.raises(expdb.TooFewRows):
        theirs.lease(1)
    lease.release()
    monkeypatch.setattr(lease_module, "RENEWALS", 3)
    dropped = ours.lease(**everything, expiry_seconds=0.3, renew=True)
    del dropped
    assert theirs.lease(**everything, wait=100).batch.size == 200


def test_a_lease_can_be_acknowledged_only_once(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer")
    lease = consumer.lease(5)
    lease.acknowledge(3)
    with pytest.raises(expdb.LeaseLost, match="already acknowledged"):
        lease.acknowledge(4)
    with pytest.raises(expdb.LeaseLost, match="already acknowledged; lease another batch"):
        consumer.shared(lease.id)
    assert consumer.last_trainer_step == 3
    back = consumer.lease(5)
    back.release()
    back.release()
    with pytest.raises(expdb.LeaseLost, match="was released"):
        back.acknowledge()


def die_holding(location, asked, sender):
    consumer = expdb.open(location).buffer("train").consumer("trainer")
    with consumer.lease(20, trainer_step=0):
        pass
    sender.send(items(consumer.lease(20, trainer_step=1).batch))
    asked.recv()


@pytest.mark.both_databases
@pytest.mark.slow
def test_items_of_a_killed_learner_are_leased_again_immediately(location, open_db):
    buffer = open_db().buffer("train")
    fill(buffer)
    buffer.consumer("trainer", max_times_sampled=1)
    ours, theirs = FORK.Pipe()
    process = FORKSERVER.Process(target=die_holding, args=(location, theirs, theirs))
    process.start()
    positions = ours.recv()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    history = buffer.why(positions[0])
    assert "its process has ended, so the next lease releases it" in history[-1]
    consumer = open_db().buffer("train").consumer("trainer")
    assert consumer.last_trainer_step == 0
    lease = consumer.lease(20, trainer_step=1)
    assert "it is in lease 2" in buffer.why(positions[0])[-1]
    assert items(lease.batch) == positions
    assert lease.batch_number == 1
    assert lease.id == 2
    lease.acknowledge()
    assert consumer.last_trainer_step == 1


@pytest.mark.both_databases
def test_settings_of_an_existing_consumer_cannot_be_changed(buffer, open_db):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=3, min_size=10, seed=5)
    other = open_db().buffer("train")
    other.consumer("trainer", max_times_sampled=3)
    with pytest.raises(
        errors.ConsumerMismatch,
        match="has max_times_sampled=3, got max_times_sampled=None; omit",
    ):
        other.consumer("trainer", max_times_sampled=None)
    with pytest.raises(errors.ConsumerMismatch, match="has seed=5"):
        other.consumer("trainer", seed=6)
    for wrong in ({"max_times_sampled": 0}, {"min_size": 0}, {"new_only": 1}, {"seed": -1}):
        with pytest.raises(expdb.InvalidValue):
            buffer.consumer("other", **wrong)
    assert buffer.consumers() == ["trainer"]
    buffer.drop_consumer("trainer")
    with pytest.raises(errors.UnknownConsumer, match="was dropped"):
        consumer.lease(1)
    with pytest.raises(errors.UnknownConsumer, match="no consumer 'trainer'"):
        buffer.drop_consumer("trainer")


def test_lease_raises_until_min_size_steps_are_stored(buffer):
    consumer = buffer.consumer("trainer", min_size=15)
    fill(buffer, episodes=1)
    with pytest.raises(expdb.TooFewRows, match="10 steps are stored"):
        consumer.lease(5)
    fill(buffer, episodes=1)
    assert consumer.lease(5).batch.size == 5


def test_a_consumer_with_new_only_leases_only_steps_stored_later(buffer):
    fill(buffer, episodes=3)
    consumer = buffer.consumer("trainer", new_only=True, max_times_sampled=1)
    with pytest.raises(expdb.TooFewRows, match="new_only excludes"):
        consumer.lease(1)
    fill(buffer, episodes=2)
    assert sorted(counted(consume(consumer, 7))) == list(range(30, 50))


@pytest.mark.both_databases
def test_a_query_restricts_the_steps_of_a_lease(buffer):
    fill(buffer)
    where = {"task_id": "task 1"}
    batches = consume(buffer.consumer("trainer", max_times_sampled=1), 16, where=where)
    wanted = np.concatenate([batch["position"] for batch in buffer.scan(where)])
    assert sorted(counted(batches)) == wanted.tolist()
    others = consume(buffer.consumer("trainer"), 16)
    assert sum(counted(others).values()) == 200 - len(wanted)


@pytest.mark.parametrize(
    ("unit", "sampler"),
    [
        (expdb.Step(), expdb.Prioritized()),
        (expdb.NStep(1), expdb.Uniform()),
        (expdb.Episode(), expdb.Uniform(replace=True)),
        (expdb.Group(1), expdb.Prioritized()),
    ],
    ids=repr,
)
def test_items_above_max_staleness_are_not_leased(buffer, unit, sampler):
    for version in (None, 1, 2, 3, 3, 5):
        with buffer.episode(f"t{version}", policy_version=version) as episode:
            for step in range(10):
                episode.append(obs=0.0, reward=1.0, terminated=step == 9)
    consumer = buffer.consumer("trainer", max_staleness=2)
    names = ["policy_version"]

    def versions():
        batch = consumer.lease(60, unit=unit, sampler=sampler, fields=names)
        batch.release()
        return {int(number) for number in np.ravel(batch.batch["policy_version"])}

    with pytest.raises(expdb.InvalidValue, match="has no policy_version; set"):
        versions()
    for version, wanted in ((3, {1, 2, 3, 5}), (4, {2, 3, 5}), (5, {3, 5}), (7, {5})):
        buffer.policy_version = version
        assert buffer.policy_version == version
        assert versions() == wanted
    with pytest.raises(expdb.InvalidValue, match="must not decrease"):
        buffer.policy_version = 6
    buffer.policy_version = 8
    with pytest.raises(expdb.TooFewRows, match="policy_version must be 6 or newer"):
        versions()
    buffer.update({"policy_version": 5}, policy_version=6)
    assert versions() == {6}


def test_replay_of_evicted_steps_raises_an_error_that_names_the_batch(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer")
    for step in range(4):
        with consumer.lease(
            10, sampler=expdb.Ordered("position"), trainer_step=step, unit=expdb.NStep(1)
        ):
            pass
        buffer.delete(np.arange(step * 3 + 1).tolist() if step == 3 else [199 - step])
    with pytest.raises(errors.Evicted, match=r"batch 0 of consumer 'trainer': \d+ positions"):
        list(buffer.replay("trainer"))
    with pytest.raises(errors.UnknownConsumer, match="did you mean 'trainer'"):
        buffer.replay("trainr")
    with pytest.warns(errors.ExpDBWarning, match="a trainer step in trainer_steps=; .*available: "):
        assert list(buffer.replay("trainer", [99])) == []


def test_replay_raises_if_rewards_have_changed(buffer):
    fill(buffer)
    with buffer.consumer("trainer").lease(200, sampler=expdb.Uniform(replace=False)) as batch:
        pass
    assert same(next(buffer.replay("trainer", limit=1)), batch)
    buffer.update({"position": 17}, reward=100.0)
    with pytest.raises(errors.ReplayMismatch, match="annotations or other columns were changed"):
        next(buffer.replay("trainer", limit=1))


@pytest.mark.both_databases
def test_replay_returns_only_the_requested_trainer_steps(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer")
    batches = {}
    for step in (10, 20, 30, 40):
        with consumer.lease(10, trainer_step=step, fields=["obs", "task_id"]) as batch:
            batches[step] = batch
    with consumer.lease(10):
        pass
    replays = list(buffer.replay("trainer", range(15, 35)))
    assert [
        same(replay, batches[step]) for replay, step in zip(replays, (20, 30), strict=True)
    ] == [True] * 2
    assert len(list(buffer.replay("trainer"))) == 5
    assert same(next(buffer.replay("trainer", limit=2)), batches[40])


@pytest.mark.both_databases
def test_lease_waits_until_enough_steps_are_stored(buffer):
    consumer = buffer.consumer("trainer")
    began = time.monotonic()
    with pytest.raises(expdb.TooFewRows):
        consumer.lease(5, wait=0.2)
    assert time.monotonic() - began >= 0.2

    async def learn():
        task = asyncio.create_task(consumer.lease_async(5, wait=30.0, trainer_step=1))
        await asyncio.sleep(0.1)
        fill(buffer, episodes=1)
        await (await task).acknowledge_async()

    asyncio.run(learn())
    assert consumer.last_trainer_step == 1


def test_batches_acknowledges_each_batch_when_the_next_is_requested(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    seen = []
    for batch in consumer.batches(16, at_least=1, first_trainer_step=10):
        seen.append(batch)
        assert consumer.last_trainer_step == (None if len(seen) == 1 else 8 + len(seen))
    assert counted(seen) == dict.fromkeys(range(200), 1)
    assert consumer.last_trainer_step == 9 + len(seen)
    assert all(map(same, buffer.replay("trainer"), seen))


def test_leaving_a_batches_loop_releases_the_last_batch(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    for batch in consumer.batches(150):
        left = batch
        break
    assert consumer.last_trainer_step is None
    steps = iter(consumer.batches(150, at_least=1))
    assert same(next(steps), left)
    assert next(steps).size == 50
    assert consumer.last_trainer_step == 0
    steps.close()
    assert consumer.lease(50, sampler=expdb.Uniform(replace=False)).batch.size == 50


@pytest.mark.both_databases
@pytest.mark.parametrize("pin", [False, True])
def test_batches_continue_while_another_handle_leases(buffer, open_db, pin):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    other = open_db().buffer(buffer.name).consumer("trainer")
    seen, batches = [], consumer.batches(10, at_least=1, pin=pin)
    for k, batch in enumerate(batches):
        seen.append(batch)
        if k % 3 == 0:  # the next batch must skip these items
            lease = other.lease(10, at_least=1)
            seen.append(lease.batch)
            lease.acknowledge()
        if k == 4:
            other.lease(10, expiry_seconds=0.01)  # expires, so that the next batch releases it
            time.sleep(0.02)
    assert counted(seen) == dict.fromkeys(range(200), 1)
    assert consumer.stats()["acknowledged"] == len(seen)
    assert buffer.stats()["pinned"] is None


@pytest.mark.both_databases
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_batch_is_acknowledged_if_the_next_cannot_be_drawn(buffer, open_db, pin, is_overdue):
    fill(buffer)
    failing = [False]

    @dataclass(frozen=True)
    class Failing(expdb.Uniform):
        def draw(self, population, size, rng):
            if failing[0]:
                raise RuntimeError("cannot draw")
            return super().draw(population, size, rng)

    consumer = buffer.consumer("trainer", max_times_sampled=1)
    batches = consumer.batches(10, sampler=Failing(), pin=pin)
    next(batches)
    if is_overdue:
        open_db().buffer(buffer.name).consumer("trainer").lease(10, expiry_seconds=0.01)
        time.sleep(0.02)
    failing[0] = True
    with pytest.raises(RuntimeError, match="cannot draw"):
        next(batches)
    assert consumer.stats()["acknowledged"] == 1


@pytest.mark.both_databases
@pytest.mark.parametrize("method", ["_change", "_in_transaction"])
def test_an_acknowledgement_that_the_server_receives_late_counts(buffer, monkeypatch, method):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    ledger, attempt, calls = consumer._ledger, getattr(ConsumerLedger, method), []

    def late(self, *arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise errors.ConnectionLost("the connection was cut during the commit")
        if len(calls) == 2:  # after the client has asked whether the lease is acknowledged
            with writing(buffer._database) as session:
                lease_rows.acknowledge(
                    ledger.store, session, ledger._consumer, 0, ledger._holder, 0
                )
        return attempt(self, *arguments)

    if method == "_change":
        lease = consumer.lease(10)
        monkeypatch.setattr(ConsumerLedger, method, late)
        lease.acknowledge()
    else:
        batches = consumer.batches(10)
        next(batches)
        monkeypatch.setattr(ConsumerLedger, method, late)
        next(batches)
    assert len(calls) == (2 if method == "_change" else 3)
    assert consumer.stats()["acknowledged"] == 1


def test_a_pinned_batch_is_drawn_again_if_it_is_evicted_during_the_draw(buffer, monkeypatch):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    batches = consumer.batches(10, pin=True)
    next(batches)
    update_pins, calls = consumer_ledger.update_pins, []

    def update_past_all_steps(*arguments):
        calls.append(update_pins(*arguments))
        return calls[0] if len(calls) > 1 else 2**60

    monkeypatch.setattr(consumer_ledger, "update_pins", update_past_all_steps)
    next(batches)
    assert len(calls) == 2
    assert consumer.stats()["acknowledged"] == 1


def test_batches_raises_if_the_lease_of_the_last_batch_has_expired(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    batches = consumer.batches(20, expiry_seconds=0.1)
    next(batches)
    time.sleep(0.2)
    with pytest.raises(expdb.LeaseLost, match="expired"):
        next(batches)
    assert consumer.last_trainer_step is None
    assert counted(consume(consumer, 20)) == dict.fromkeys(range(200), 1)


@pytest.mark.both_databases
def test_a_forked_child_cannot_acknowledge_a_lease_of_its_parent(location, buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    lease = consumer.lease(150, sampler=expdb.Uniform(replace=False))
    report = FORK.Queue()

    def child():
        try:
            lease.acknowledge()
        except expdb.LeaseLost as error:
            report.put(str(error))
        report.put(items(consumer.lease(50, sampler=expdb.Uniform(replace=False)).batch))

    process = FORK.Process(target=child)
    process.start()
    assert "belongs to another process" in report.get(timeout=30)
    theirs = report.get(timeout=30)
    process.join()
    assert not set(theirs) & set(items(lease.batch))
    lease.acknowledge()
    assert sorted(counted(consume(consumer, 50))) == sorted(theirs)


# -- edge cases ------------------------------------------------------------------------------------


def changed_after(buffer, change, unit, where, fields=None):
    """Lease a batch, change the stored steps, and return the replayed batch."""
    with buffer.consumer("trainer").lease(
        len(where), where, unit=unit, fields=fields, sampler=expdb.Uniform(replace=False)
    ):
        pass
    change()
    return next(buffer.replay("trainer"))


def test_a_dropped_lease_causes_a_warning(scratch):
    scratch.store_batch({"task_id": ["a"] * 4, "x": [0, 1, 2, 3]})
    consumer = scratch.consumer("trainer")
    lease = consumer.lease(1)
    with pytest.warns(errors.ExpDBWarning, match=r"lease 0 .*test_consumers\.py:\d+, was dropped"):
        del lease
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lease = consumer.lease(1)
        lease.release()
        with consumer.lease(1):
            pass
        expired = consumer.lease(1, expiry_seconds=0.001)
        time.sleep(0.002)
        del lease, expired


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "unit",
    [expdb.NStep(1), expdb.Sequence(2), expdb.Stack(3)],
    ids=lambda unit: type(unit).__name__,
)
def test_replay_raises_if_a_step_was_inserted_into_the_episode(buffer, unit):
    for step in (0, 2, 3):
        buffer.store(task_id="t", episode_id="e", step=step, obs=np.float32(step), reward=0.0)
    unit = dataclasses.replace(unit, gaps="join")
    where = [2] if isinstance(unit, expdb.Stack) else [0]
    late = {"episode_id": "e", "step": 1, "obs": np.float32(1), "reward": 0.0}
    with pytest.raises(errors.ReplayMismatch):
        changed_after(buffer, lambda: buffer.store(task_id="t", **late), unit, where)


@pytest.mark.parametrize(
    ("unit", "where", "gone"),
    [
        (expdb.Stack(4), [8], 7),
        (expdb.NStep(2, stack=4), [8], 7),
        (expdb.Episode(), [0], 5),
        (expdb.NStep(3), [3], 5),
        (expdb.Sequence(2, burn_in=3), [5], 3),
    ],
    ids=repr,
)
def test_replay_raises_if_a_step_of_the_batch_was_deleted(buffer, unit, where, gone):
    fill(buffer, episodes=1, length=12)
    for fields in (None, ["obs"]):
        with pytest.raises(expdb.ExpDBError, match=r"batch 0|differs"):
            changed_after(buffer, partial(buffer.delete, [gone]), unit, where, fields)
        buffer.drop_consumer("trainer")
        buffer.clear()
        fill(buffer, episodes=1, length=12)
        where = [position + 12 for position in where]
        gone += 12


@pytest.mark.both_databases
def test_a_dropped_consumer_does_not_continue_as_its_replacement(open_db):
    ours, theirs = (open_db().buffer("train") for _ in range(2))
    fill(ours, episodes=2)
    old = ours.consumer("trainer", max_times_sampled=1, seed=1)
    lease = old.lease(5)
    theirs.drop_consumer("trainer")
    new = theirs.consumer("trainer", max_times_sampled=2, seed=2)
    new_lease = new.lease(20, sampler=expdb.Uniform(replace=False))
    for lost in (lease.acknowledge, lease.renew, lambda: old.lease(1)):
        with pytest.raises(errors.UnknownConsumer, match="was dropped"):
            lost()
    new_lease.acknowledge()
    assert ours.consumer("trainer").lease(20, sampler=expdb.Uniform(replace=False)).id == 1


@pytest.mark.both_databases
def test_clearing_a_buffer_keeps_its_consumers(buffer):
    fill(buffer, episodes=2)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    with consumer.lease(4, trainer_step=3):
        pass
    open_lease = consumer.lease(4)
    buffer.clear()
    fill(buffer, episodes=2)
    assert consumer.last_trainer_step == 3
    open_lease.acknowledge()
    assert counted(consume(consumer, 7)) == dict.fromkeys(range(20, 40), 1)
    with pytest.raises(errors.Evicted):
        next(buffer.replay("trainer"))


@pytest.mark.both_databases
def test_a_forked_child_does_not_release_leases_of_its_parent(buffer):
    fill(buffer, episodes=1)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    batches = consumer.batches(3)
    next(batches)
    with consumer.lease(5):
        child = os.fork()
        if not child:
            try:
                batches.close()
                raise SystemExit
            except SystemExit:
                consumer.lease(1).release()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(expdb.TooFewRows):
            consumer.lease(3)
    assert consumer.last_trainer_step is None
    assert consumer.lease(2).batch.size == 2


@pytest.mark.parametrize("most", [None, 1])
def test_a_consumer_succeeds_if_the_unit_drops_most_drawn_items(buffer, most):
    fill(buffer, episodes=10, length=2)
    consumer = buffer.consumer("trainer", seed=2, max_times_sampled=most)
    for _ in range(10):
        with consumer.lease(1, unit=expdb.NStep(2, end="drop")) as batch:
            assert (batch["n_steps"] == 2).all()
    assert len(list(buffer.replay("trainer"))) == 10
    if most:
        with pytest.raises(expdb.TooFewRows, match="excluded every drawn item in 100 attempts"):
            consumer.lease(1, unit=expdb.NStep(2, end="drop"))


@pytest.mark.both_databases
def test_replay_returns_batches_in_the_order_of_acknowledgement(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer")
    first, second = consumer.lease(2), consumer.lease(2)
    second.acknowledge()
    first.acknowledge()
    assert all(map(same, buffer.replay("trainer"), [second.batch, first.batch]))
    assert same(next(buffer.replay("trainer", limit=1)), first.batch)


@pytest.mark.both_databases
def test_beta_is_annealed_by_batch_number(buffer, open_db):
    fill(buffer)
    buffer.update_priorities(np.arange(200), np.arange(200.0))
    sampler = expdb.Prioritized(anneal_steps=3)
    lease = buffer.consumer("trainer").lease(5, sampler=sampler)
    lease.release()
    buffer.sampling_state()  # saves the priorities
    again = open_db().buffer("train").consumer("trainer").lease(5, sampler=sampler)
    assert same(lease.batch, again.batch)


@pytest.mark.parametrize("over", ["episode", "task"])
def test_at_least_returns_every_item_once_without_replacement(buffer, over):
    fill(buffer, episodes=5, length=6)
    lease = buffer.consumer("trainer").lease(
        80, sampler=expdb.Uniform(replace=False, over=over), at_least=1, fields=[f"{over}_id"]
    )
    drawn = lease.batch[f"{over}_id"].tolist()
    assert len(drawn) == len(set(drawn)) == (5 if over == "episode" else 3)


def test_a_huge_lease_size_does_not_allocate_memory_for_missing_items(buffer):
    fill(buffer, episodes=2)
    lease = buffer.consumer("trainer", max_times_sampled=1).lease(2**40, at_least=1)
    assert lease.batch.size == 20


@pytest.mark.both_databases
def test_invalid_arguments_raise_invalid_value(buffer, db):
    fill(buffer, episodes=2)
    consumer = buffer.consumer("trainer")
    for wrong in (
        lambda: consumer.lease(1, sampler=None), lambda: consumer.lease(1, sampler=expdb.Uniform),
        lambda: consumer.lease(1, unit=expdb.NStep), lambda: consumer.lease(1, empty=None),
        lambda: consumer.lease(1, fields=3), lambda: buffer.replay("trainer", 5),
        lambda: buffer.replay(None), lambda: buffer.replay(consumer),
        lambda: buffer.replay("trainer", unit=5), lambda: buffer.drop_consumer(None),
        lambda: asyncio.run(consumer.lease_async(1, nope=1)),
        lambda: pickle.dumps(consumer.lease(1)),
    ):  # fmt: skip
        with pytest.raises(expdb.InvalidValue):
            wrong()
    done = consumer.lease(1)
    done.acknowledge()
    with pytest.raises(expdb.LeaseLost, match="has ended"), done:
        pass
    again = pickle.loads(pickle.dumps(consumer))
    assert again.name == "trainer"
    assert again.last_trainer_step is None
    again._buffer._database.close()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM requests",
        "UPDATE leases SET request = 5",
        "UPDATE leases SET last = 0",
        "UPDATE leases SET rows = 7",
        """UPDATE consumers SET settings = '{"seed": 1, "max_times_sampled": "x"}'""",
        """UPDATE consumers SET settings = '{"seed": -1}'""",
        "UPDATE consumers SET handed_out = 7",
    ],
)
def test_check_finds_corruption_of_the_ledger(tmp_path, damage):
    with expdb.open(tmp_path / "runs.db") as db:
        fill(db.buffer("train"), episodes=2)
        with db.buffer("train").consumer("trainer").lease(4):
            pass
        assert db.check() == []
        with writing(db) as session:
            session.query(damage)
        (problem,) = db.check()
        assert "trainer" in problem


def test_why_returns_the_history_of_a_step(buffer):
    fill(buffer, episodes=4)
    buffer.update_priorities([3], [0.25])
    buffer.update({"position": 3}, reward=7.0)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    stale = buffer.consumer("stale", max_staleness=1)
    where = [3]
    lease = consumer.lease(1, where)
    history = buffer.why(3)
    assert "stored as step 3 of episode" in history[0]
    assert history[1].startswith("changed since it was stored")
    assert history[2:4] == ["reward 7", "priority 0.25"]
    assert "leased in batch 0 of consumer 'trainer', lease 0; leased until" in history[4]
    assert history[4].endswith(f"by process {os.getpid()} on {socket.gethostname()}")
    assert history[5] == "consumer 'trainer' cannot lease it now: it is in lease 0"
    assert len(history) == 6
    lease.acknowledge(12)
    history = buffer.why(3)
    assert "; acknowledged at step 12 at" in history[4]
    assert history[5].endswith("it was leased once, and max_times_sampled=1")
    buffer.policy_version = 2
    assert buffer.why(5)[-1].endswith("store steps with policy_version=")
    buffer.consumer("whole").lease(4, unit=expdb.Episode(), sampler=expdb.Uniform(replace=False))
    assert any("of consumer 'whole', lease 0" in line for line in buffer.why(5))
    assert stale.last_trainer_step is None
    buffer.delete([4])
    assert buffer.why(4)[0] == "deleted: the buffer holds 39 steps, from position 0 on"
    assert buffer.why(40) == ["not written yet: the next position is 40"]
    buffer.capacity = 10
    assert buffer.why(3)[0] == "evicted: the buffer holds 10 steps, from position 30 on"
    assert "acknowledged at step 12" in buffer.why(3)[1]
    with pytest.raises(expdb.InvalidValue):
        buffer.why(-1)


EXAMPLE = Path(__file__).parents[2] / "examples" / "resumable_training.py"


def train(path):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), path, "300"], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_killed_and_resumed_training_ends_with_the_same_parameters(tmp_path):
    rng = random.Random(3)
    ended, log = [], ""
    for name, kills in (("unbroken", 0), ("killed", 3)):
        for turn in range(kills):
            trainer = train(str(tmp_path / name))
            for line in trainer.stdout:
                log += line
                if line.startswith("saved") and int(line.split()[-1]) >= 70 * turn + 40:
                    break
            time.sleep(rng.random() * 0.03)
            trainer.kill()
            trainer.communicate()
        output, _ = train(str(tmp_path / name)).communicate()
        log += output
        ended.append(output[output.index("values") :])
    assert ended[0] == ended[1]
    assert "replayed" in log


def test_delete_with_keep_pinned_does_not_delete_pinned_episodes(buffer):
    for name in "abc":
        with buffer.episode("t", episode_id=name) as episode:
            for n in range(3):
                episode.append(n=n)
    consumer = buffer.consumer("trainer")
    everything = expdb.QueryBuilder().gte("position", 0)
    lease = consumer.lease(1, {"episode_id": "b"}, unit=expdb.Episode(), pin=True)
    assert buffer.delete(everything, keep_pinned=True) == 6
    assert buffer.episodes()["episode_id"].to_pylist() == ["b"]
    lease.acknowledge()
    consumer.lease(1, unit=expdb.Episode())  # pins nothing
    assert buffer.delete(everything, keep_pinned=True) == 3
    assert buffer.delete(everything, keep_pinned=True) == 0
    with pytest.raises(expdb.InvalidValue, match="keep_pinned"):
        buffer.delete(everything, keep_pinned=1)


@pytest.mark.both_databases
def test_a_read_only_handle_cannot_create_a_consumer(db, open_db):
    db.buffer("b").store(x=1)
    reader = open_db(read_only=True).buffer("b")
    with pytest.raises(errors.UnknownConsumer, match="read_only=True to create the consumer"):
        reader.consumer("c")


def test_the_error_for_a_consumer_of_a_dropped_buffer_names_the_buffer(db):
    buffer = db.buffer("train")
    buffer.store_batch({"x": np.zeros(10), "task_id": "t"})
    consumer = buffer.consumer("learner", max_times_sampled=1)
    lease = consumer.lease(2)
    db.drop("train")
    for act in (
        lambda: consumer.lease(2), lambda: consumer.lease(100, wait=5.0),
        lambda: next(consumer.batches(2)), lambda: consumer.shared(lease.id), consumer.stats,
        lambda: consumer.last_trainer_step, lease.acknowledge, lease.release,
    ):  # fmt: skip
        with pytest.raises(errors.UnknownBuffer, match="buffer 'train' was dropped"):
            act()


def test_a_consumer_that_leases_both_episodes_and_steps_warns_once(buffer):
    fill(buffer)
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    consumer.lease(2, unit=expdb.Episode()).acknowledge()
    with pytest.warns(errors.ExpDBWarning, match="both whole episodes and single steps"):
        consumer.lease(2).acknowledge()
    consumer.lease(1, unit=expdb.Episode()).acknowledge()
    unlimited = buffer.consumer("unlimited")
    unlimited.lease(2, unit=expdb.Episode()).acknowledge()
    unlimited.lease(2).acknowledge()
