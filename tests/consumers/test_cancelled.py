"""Cancelled coroutines: leases and admissions that their threads obtain are released."""

import asyncio
import threading
import time

import pytest

import expdb
from expdb.storage.ledger import admissions

pytestmark = pytest.mark.both_databases


@pytest.fixture(autouse=True)
def threads_end(buffer):
    """Wait for the threads of a test before its database is closed."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def cancel_while(gate, coroutine):
    """Cancel a coroutine whose thread waits at the gate, end its event loop, open the gate."""

    async def run():
        task = asyncio.create_task(coroutine)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    gate.set()


def wait_until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended_task(coroutine):
    """Run a coroutine and close its event loop while the coroutine waits."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    task._log_destroy_pending = False
    coroutine.close()


ENDINGS = {
    "cancelled": cancel_while,
    "loop closed": lambda gate, coroutine: (ended_task(coroutine), gate.set()),
}


@pytest.fixture(params=[False, True], ids=["before the work", "after the work"])
def held_back(request, monkeypatch):
    """Return a function that makes a method wait at a gate before or after it runs."""

    def hold(owner, name):
        gate, work = threading.Event(), getattr(owner, name)

        def waiting(*arguments, **named):
            if request.param:
                result = work(*arguments, **named)
                assert gate.wait(100)
                return result
            assert gate.wait(100)
            return work(*arguments, **named)

        monkeypatch.setattr(owner, name, waiting)
        return gate

    return hold


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lease_obtained_after_a_cancellation_is_released(buffer, held_back, ending):
    buffer.store_batch([{"task_id": "t", "n": k, "truncated": True} for k in range(4)])
    consumer = buffer.consumer("trainer", max_times_sampled=1)
    leasing = consumer._ledger
    gate = held_back(leasing, "lease")
    ENDINGS[ending](gate, consumer.lease_async(4))
    wait_until(lambda: not leasing._usage.held and leasing._usage.released)
    assert buffer.consumer("trainer").lease(4).batch.size == 4


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_admission_obtained_after_a_cancellation_is_cancelled(buffer, held_back, ending):
    buffer.policy_version = 0
    buffer.pace = expdb.Pace(0, 1)
    gate = held_back(admissions, "try_to_admit")
    ENDINGS[ending](gate, buffer.admit_async())

    def may_begin():
        admission = buffer.admit(wait=0, required=False)
        if admission is not None:
            admission.cancel()
        return admission is not None

    wait_until(may_begin)


def test_a_lease_is_released_if_its_coroutine_is_cancelled_before_delivery(buffer):
    """The thread has finished, but the coroutine is cancelled before it gets the result."""
    buffer.store_batch([{"task_id": "t", "n": k, "truncated": True} for k in range(4)])
    consumer = buffer.consumer("trainer", max_times_sampled=1)

    async def run():
        task = asyncio.create_task(consumer.lease_async(4))
        await asyncio.sleep(0)
        deadline = time.monotonic() + 100
        while not consumer._ledger._delivered_lease_ids and time.monotonic() < deadline:
            time.sleep(0.01)  # blocks the loop, which cannot deliver the result
        time.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    wait_until(lambda: not consumer._ledger._usage.held)
    assert consumer.lease(4).batch.size == 4
