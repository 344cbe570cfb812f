"""Async methods behave like the sync methods, and a cancelled write reports its outcome."""

import asyncio
import functools
import inspect
import threading

import numpy as np
import pytest
from behind import store_of

import expdb
from expdb import Epochs, database, errors
from expdb.storage.writing import change

CLASSES = (
    expdb.ExperienceDB, expdb.ReplayBuffer, expdb.EpisodeWriter, expdb.StepWriter, expdb.Lease
)  # fmt: skip
FORMS = [  # without `admit_async`, whose result works with `await` and with `async with`
    (cls, name)
    for cls in CLASSES
    for name in dir(cls)
    if name.endswith("_async")
    and hasattr(getattr(cls, name), "__wrapped__")
    and name != "admit_async"
]


def test_async_methods_have_the_signature_and_summary_of_the_sync_methods():
    for cls, name in FORMS:
        method, form = getattr(cls, name.removesuffix("_async")), getattr(cls, name)
        assert inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form), name
        assert inspect.signature(form) == inspect.signature(method), name
        assert form.__doc__.splitlines()[0] == inspect.cleandoc(method.__doc__).splitlines()[0]
        assert f"asynchronous form of `{method.__name__}`" in form.__doc__, name
        assert "Examples" not in form.__doc__, name
    assert len(FORMS) > 50


def test_async_methods_return_and_raise_the_same_as_sync_methods(db):
    buffer = db.buffer("b")

    async def run():
        positions = await buffer.store_batch_async([{"task_id": "t", "n": k} for k in range(4)])
        assert await buffer.count_async({"task_id": "t"}) == 4
        assert await buffer.update_async([1], reward=2.0) == 1
        batch = await buffer.get_async(positions)
        assert batch["n"].tolist() == [0, 1, 2, 3]
        assert batch["reward"][1] == 2.0
        assert (await buffer.sample_async(2, seed=0)).size == 2
        assert await buffer.delete_async([0]) == 1
        assert await db.check_async() == []
        assert (await db.sql_async("SELECT count(*) AS n FROM experience"))["n"].to_pylist() == [3]
        with pytest.raises(expdb.InvalidValue, match="positions must be 1-D"):
            await buffer.get_async([[1]])
        with pytest.raises(expdb.TooFewRows):
            await buffer.sample_async(1, {"task_id": "none"})

    asyncio.run(run())


@pytest.mark.both_databases
@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_delete_waits_and_reports_its_outcome(buffer, monkeypatch, fails):
    gate, delete = threading.Event(), change.delete

    def held_back(*arguments, **named):
        assert gate.wait(60)
        if fails:
            raise errors.DatabaseBusy("the database is locked; try again")
        return delete(*arguments, **named)

    monkeypatch.setattr(change, "delete", held_back)
    buffer.store(task_id="t", n=1)

    async def run():
        task = asyncio.create_task(buffer.delete_async([0]))
        await asyncio.sleep(0.02)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        gate.set()
        outcome = "which then failed: the database is locked" if fails else "which then completed"
        with pytest.raises(asyncio.CancelledError, match=outcome):
            await task

    asyncio.run(run())
    assert len(buffer) == (1 if fails else 0)


def test_a_cancelled_read_returns_at_once(buffer, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(type(store_of(buffer)), "compiled", lambda *_: gate.wait(60) and 1 / 0)

    async def run():
        task = asyncio.create_task(buffer.count_async())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await asyncio.sleep(0.05)  # an error in the thread is not logged

    asyncio.run(run())


def episodes(buffer):
    table = buffer.episodes().select(["episode_id", "status", "length"])
    return {row["episode_id"]: (row["status"], row["length"]) for row in table.to_pylist()}


def test_async_with_completes_or_aborts_an_episode(buffer):
    async def run():
        async with buffer.episode("t", episode_id="complete") as episode:
            episode.append(n=0)
            await episode.append_async(n=1)
            await episode.flush_async()
            await episode.extend_async({"n": [2, 3]})
        with pytest.raises(ZeroDivisionError):
            await fail_in_block()
        task = asyncio.create_task(wait_in_block())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def fail_in_block():
        async with buffer.episode("t", episode_id="failed") as episode:
            episode.append(n=5)
            raise ZeroDivisionError

    async def wait_in_block():
        async with buffer.episode("t", episode_id="cancelled") as episode:
            episode.append(n=5)
            await asyncio.sleep(60)

    asyncio.run(run())
    assert episodes(buffer).items() >= {
        "complete": ("complete", 4), "failed": ("aborted", 1), "cancelled": ("aborted", 1)
    }.items()  # fmt: skip


def test_an_episode_left_open_by_a_closed_event_loop_causes_a_warning(buffer):
    async def wait_in_block():
        async with buffer.episode("t", episode_id="closed") as episode:
            episode.append(n=5)
            await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    coroutine = wait_in_block()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.02))
    loop.close()
    task._log_destroy_pending = False
    with pytest.warns(errors.ExpDBWarning, match="closed"):
        coroutine.close()
        del task, coroutine
        buffer._database.close()


def test_async_with_admit_begins_and_finishes_a_group(buffer):
    buffer.policy_version = 0
    buffer.pace = expdb.Pace(0, 1)

    async def run():
        with pytest.raises(ZeroDivisionError):
            async with buffer.admit_async():
                raise ZeroDivisionError
        async with buffer.admit_async() as group:
            assert group.policy_version == 0
        assert await buffer.admit_async(wait=0, required=False) is None
        with pytest.raises(errors.RateLimited, match="the block cannot begin"):
            async with buffer.admit_async(wait=0, required=False):
                raise AssertionError("the pace admits no group")

    asyncio.run(run())


def test_async_with_acknowledges_or_releases_a_lease(buffer):
    buffer.store_batch([{"task_id": "t", "n": k} for k in range(4)])
    consumer = buffer.consumer("c", max_times_sampled=1)

    async def run():
        async with await consumer.lease_async(2) as batch:
            assert batch.size == 2
        with pytest.raises(ZeroDivisionError):
            async with await consumer.lease_async(2):
                raise ZeroDivisionError
        lease = await consumer.lease_async(2)
        await lease.renew_async(60)
        await lease.acknowledge_async()
        with pytest.raises(expdb.LeaseLost):
            await lease.acknowledge_async()

    asyncio.run(run())
    assert consumer.stats()["acknowledged"] == 2


def test_async_iteration_over_epochs_does_not_block_the_event_loop(buffer, monkeypatch):
    threads, step = [], Epochs.__next__

    def recorded(epochs):
        threads.append(threading.current_thread())
        return step(epochs)

    monkeypatch.setattr(Epochs, "__next__", recorded)
    buffer.store_batch([{"n": k} for k in range(4)])

    async def run():
        return [batch.size async for batch in buffer.epochs(2, epochs=1)]

    assert asyncio.run(run()) == [2, 2]
    assert threading.main_thread() not in threads


def test_async_iterators_yield_the_same_batches_as_sync_iterators(open_db, location):
    buffer = open_db().buffer("b")
    buffer.store_batch([{"task_id": "t", "n": k, "reward": 1.0} for k in range(10)])

    async def run():
        async with await expdb.open_async(location) as db:
            same = await db.buffer_async("b")
            batches = [batch["n"].tolist() async for batch in same.scan_async(size=4)]
            assert batches == [batch["n"].tolist() for batch in buffer.scan(size=4)]
            trainer = same.consumer("trainer", max_times_sampled=1)
            leased = [batch["position"] async for batch in trainer.batches_async(2, at_least=1)]
            assert sorted(np.concatenate(leased).tolist()) == list(range(10))
            assert trainer.last_trainer_step == len(leased) - 1
            replayed = [batch["position"] async for batch in same.replay_async("trainer")]
            assert [each.tolist() for each in replayed] == [each.tolist() for each in leased]
            epochs = same.epochs(3, epochs=2, seed=1)
            seen = [batch["n"] async for batch in epochs]
            assert sorted(np.concatenate(seen).tolist()) == sorted([*range(10), *range(10)])
        with pytest.raises(errors.DatabaseClosed):
            same.count()

    asyncio.run(run())


@pytest.mark.parametrize("way", ["break", "error", "cancel"])
def test_batches_async_releases_the_current_batch_if_the_loop_ends_early(buffer, way):
    buffer.store_batch([{"n": k} for k in range(6)])
    trainer = buffer.consumer("trainer", max_times_sampled=1)

    async def train():
        batches = trainer.batches_async(2)
        try:
            async for batch in batches:
                if batch["step"].size and trainer.stats()["leased"] == 2:
                    if way == "error":
                        raise KeyError("loss")
                    if way == "cancel":
                        await asyncio.sleep(60)
                    break
        finally:
            await batches.aclose()

    async def run():
        task = asyncio.create_task(train())
        while trainer.stats()["leased"] < 2:
            await asyncio.sleep(0.01)
        if way == "cancel":
            await asyncio.sleep(0.1)
            task.cancel()
        await asyncio.wait([task])
        if way == "error":
            assert isinstance(task.exception(), KeyError)

    asyncio.run(run())
    assert trainer.stats()["acknowledged"] == 1
    assert trainer.last_trainer_step == 0
    with trainer.lease(4, sampler=expdb.Uniform(replace=False)) as batch:
        assert batch.size == 4


def test_a_cancelled_open_async_closes_the_database(location, monkeypatch):
    opened, gate = [], threading.Event()
    plain = database.open

    def slow(*arguments, **options):
        assert gate.wait(60)
        opened.append(plain(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(database, "open", functools.wraps(plain)(slow))

    async def run():
        task = asyncio.create_task(database.open_async(location, timeout=7.0))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        while not (opened and opened[0]._closed):
            await asyncio.sleep(0.01)
        with pytest.raises(expdb.InvalidValue, match=r"open_async\(\) has no argument"):
            await database.open_async(location, timout=1.0)

    asyncio.run(run())


def test_begun_at_is_the_line_of_the_episode_async_call(buffer):
    async def run():
        return await buffer.episode_async("t")  # begun_at is this line

    line = run.__code__.co_firstlineno + 1
    assert asyncio.run(run()).begun_at == f"{__file__}:{line}"
