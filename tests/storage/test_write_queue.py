"""Writes that threads and coroutines submit at the same time share transactions."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from behind import dialect_of, writing
from contents import steps_of
from processes import run_at_once

import expdb
from expdb import errors
from expdb.storage.writing import transaction, write_queue

pytestmark = pytest.mark.both_databases


@pytest.fixture
def steps_per_transaction(monkeypatch):
    """Record the number of steps of each transaction that stores steps."""
    sizes, write = [], transaction.write

    def counted(store, pending, *arguments):
        sizes.append(len(pending))
        return write(store, pending, *arguments)

    monkeypatch.setattr(transaction, "write", counted)
    return sizes


@pytest.fixture
def gate(monkeypatch):
    """Block every transaction until the test sets the event."""
    gate, write = threading.Event(), transaction.write
    gate.reached = threading.Event()

    def waiting(*arguments):
        gate.reached.set()
        assert gate.wait(60)
        return write(*arguments)

    monkeypatch.setattr(transaction, "write", waiting)
    yield gate
    gate.set()


async def wait_for_transaction(gate):
    while not gate.reached.is_set():
        await asyncio.sleep(0.001)


def numbers(buffer):
    return sorted(row["n"] for row in steps_of(buffer))


def test_coroutines_share_transactions(buffer, steps_per_transaction):
    async def run():
        return await asyncio.gather(
            *(buffer.store_async(episode_id=f"e{k % 8}", n=k) for k in range(200))
        )

    positions = asyncio.run(run())
    assert len(steps_per_transaction) < 20
    assert sorted(positions) == list(range(200))
    rows = steps_of(buffer)
    assert {row["n"]: row["position"] for row in rows} == dict(enumerate(positions))
    assert all(row["episode_id"] == f"e{row['n'] % 8}" for row in rows)


def test_threads_share_transactions(buffer, steps_per_transaction):
    def run(thread):
        for k in range(20):
            position = buffer.store(episode_id=f"e{thread}", n=20 * thread + k)
            assert buffer.get([position])["n"].tolist() == [20 * thread + k]

    run_at_once([threading.Thread(target=run, args=(k,)) for k in range(16)])
    assert sum(steps_per_transaction) == 320
    assert max(steps_per_transaction) > 1
    assert numbers(buffer) == list(range(320))
    for k in range(16):  # the steps of a thread keep their order
        rows = steps_of(buffer, {"episode_id": f"e{k}"})
        assert [row["n"] for row in rows] == list(range(20 * k, 20 * k + 20))


def store_at_once(buffer, gate, steps):
    """Store steps with coroutines that share a transaction; return results and errors."""

    async def run():
        first = asyncio.create_task(buffer.store_async(episode_id="first", n=-1))
        await wait_for_transaction(gate)
        tasks = [asyncio.create_task(buffer.store_async(**step)) for step in steps]
        await asyncio.sleep(0)
        gate.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"episode_id": "e", "n": 2**70}, expdb.ExpDBError),
        ({"episode_id": "e", "n": "text"}, errors.FieldMismatch),
        ({"episode_id": 3, "n": 1}, expdb.InvalidValue),
        ({"episode_id": "done", "n": 1}, errors.EpisodeEnded),
        ({"episode_id": "theirs", "n": 1}, errors.EpisodeEnded),
        ({"episode_id": "good", "task_id": "other", "n": 1}, errors.EpisodeMismatch),
        ({"episode_id": "e", "n": 1, "step": -(2**70)}, expdb.InvalidValue),
        ({"episode_id": "e", "n": 1, "next_x": 1}, errors.ReservedName),
    ],
)
def test_an_invalid_step_does_not_fail_other_steps_of_its_group(buffer, location, gate, bad, error):
    gate.set()
    buffer.store(episode_id="theirs", n=-3)
    with expdb.open(location) as other:
        other.buffer("train").end_episode("theirs")
    buffer.store(episode_id="done", n=-2, terminated=True)
    gate.clear()
    gate.reached.clear()
    good = [{"episode_id": "good", "n": k} for k in range(4)]
    results = store_at_once(buffer, gate, [*good[:2], bad, *good[2:]])
    assert isinstance(results[2], error)
    assert [buffer.get([results[k]])["n"].tolist() for k in (0, 1, 3, 4)] == [[0], [1], [2], [3]]
    assert numbers(buffer) == [-3, -2, -1, 0, 1, 2, 3]


def test_an_unknown_commit_fails_only_the_calls_of_its_transaction(buffer, gate, monkeypatch):
    write = transaction.write

    def lose(store, pending, *arguments):
        if len(pending) > 1:
            raise errors.CommitUnknown("the connection was lost during the commit")
        return write(store, pending, *arguments)

    monkeypatch.setattr(transaction, "write", lose)
    steps = [{"episode_id": "a", "n": k} for k in range(2)]
    results = store_at_once(buffer, gate, [*steps, {"episode_id": "b", "n": "text"}])
    assert [type(result) for result in results] == [
        errors.CommitUnknown, errors.CommitUnknown, errors.FieldMismatch
    ]  # fmt: skip


def test_the_rate_limiter_rejects_only_the_steps_above_its_limit(location):
    with expdb.open(location, timeout=0.2) as db:
        buffer = db.buffer("b")
        buffer.rate_limiter = expdb.Queue(5)

        async def run():
            calls = (buffer.store_async(episode_id=f"e{k}", n=k) for k in range(8))
            return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(run())
        assert sum(isinstance(result, int) for result in results) == 5
        assert sum(isinstance(result, errors.RateLimited) for result in results) == 3
        assert numbers(buffer) == [k for k in range(8) if isinstance(results[k], int)]


@pytest.mark.parametrize("cancelled", [1, 2])
def test_a_call_that_is_cancelled_before_its_write_stores_nothing(
    buffer, gate, monkeypatch, cancelled
):
    """Call 0 is written and call 1 is queued, which leaves no room in the queue for call 2."""
    monkeypatch.setattr(write_queue, "QUEUE_BYTES", 1_000)
    commit, tasks = buffer._write_queue, []

    async def run():
        for n in range(3):
            call = buffer.store_async(episode_id=f"e{n}", n=n, x=np.zeros(100))
            tasks.append(asyncio.create_task(call))
            await wait_for_transaction(gate)
            await asyncio.sleep(0.02)
        assert len(commit._waiting) == 1
        task = tasks.pop(cancelled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError, match="nothing was stored"):
            await task
        assert cancelled == 2 or not commit._waiting  # call 1 made room for call 2
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert numbers(buffer) == [0, 3 - cancelled]


@pytest.mark.one_database
def test_a_call_that_is_cancelled_during_its_write_names_the_position(buffer, gate):
    async def run():
        task = asyncio.create_task(buffer.store_async(n=0, episode_id="a"))
        await wait_for_transaction(gate)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # once more, while the call waits for the outcome
        threading.Timer(0.05, gate.set).start()
        with pytest.raises(asyncio.CancelledError, match="stored position 0"):
            await task
        bad = asyncio.create_task(buffer.store_async(n="text", episode_id="a"))
        await asyncio.sleep(0)
        bad.cancel()
        with pytest.raises(asyncio.CancelledError, match=r"has type int64|nothing was stored"):
            await bad

    asyncio.run(run())
    assert numbers(buffer) == [0]


def test_an_event_loop_can_close_while_a_step_is_written(buffer, gate):
    loop = asyncio.new_event_loop()
    coroutine = buffer.store_async(n=0, episode_id="a")
    task = loop.create_task(coroutine)
    loop.run_until_complete(wait_for_transaction(gate))
    loop.close()
    task._log_destroy_pending = False
    coroutine.close()
    gate.set()
    assert buffer.store(n=1, episode_id="b") == 1
    assert numbers(buffer) == [0, 1]


def test_coroutines_wait_while_the_queue_is_full(buffer, gate, monkeypatch):
    monkeypatch.setattr(write_queue, "QUEUE_BYTES", 10_000)
    value = np.zeros(500)
    commit = buffer._write_queue
    most = []

    async def run():
        calls = [buffer.store_async(episode_id=f"e{k}", n=k, x=value) for k in range(20)]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.1)
        most.append(commit._queued_bytes)
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert 0 < most[0] <= 10_000
    assert numbers(buffer) == list(range(20))
    assert commit._queued_bytes == 0


class Stop(BaseException):
    """An error that is not an Exception."""


@pytest.mark.parametrize("error", [Stop(), MemoryError(), UnicodeDecodeError("a", b"", 0, 1, "b")])
def test_any_error_of_a_transaction_reaches_every_caller(buffer, gate, monkeypatch, error):
    write = transaction.write

    def fail(store, pending, *arguments):
        if any(episode.episode_id == "b" for episode in pending.episodes()):
            raise error
        return write(store, pending, *arguments)

    monkeypatch.setattr(transaction, "write", fail)

    async def run():
        first = asyncio.create_task(buffer.store_async(episode_id="a", n=0))
        await wait_for_transaction(gate)
        tasks = [asyncio.create_task(buffer.store_async(episode_id="b", n=k)) for k in range(3)]
        await asyncio.sleep(0)
        gate.set()
        await first
        for task in tasks:
            with pytest.raises(type(error)):
                await asyncio.wait_for(asyncio.shield(task), 10)

    asyncio.run(run())
    assert numbers(buffer) == [0]


def test_small_steps_are_written_before_queued_large_steps(db, gate, monkeypatch):
    buffer = db.buffer("b", fields={"x": expdb.Field("float64", (None,))})
    write, transactions = transaction.write, []

    def recorded(store, pending, *arguments):
        transactions.append([episode.episode_id for episode in pending.episodes()])
        return write(store, pending, *arguments)

    monkeypatch.setattr(transaction, "write", recorded)

    async def run():
        names = ["first", *(f"large {k}" for k in range(9)), "small"]
        tasks = []
        for name in names:
            value = np.zeros(1 if name == "small" else 50_000)
            tasks.append(asyncio.create_task(buffer.store_async(episode_id=name, x=value)))
            await (wait_for_transaction(gate) if name == "first" else asyncio.sleep(0))
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert transactions[0] == ["first"]
    assert transactions[1] == ["small", "large 0"]
    assert len(transactions) == 10


def test_interrupting_a_waiting_thread_withdraws_its_step(buffer, gate):
    holder = threading.Thread(target=buffer.store, kwargs={"episode_id": "a", "n": 0})
    holder.start()
    assert gate.reached.wait(60)
    main = threading.main_thread().ident
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        buffer.store(episode_id="b", n=1)
    gate.set()
    holder.join()
    assert numbers(buffer) == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_process_can_store_after_a_fork(location):
    code = f"""
    import asyncio, os, sys, expdb
    db = expdb.open({location!r}); buffer = db.buffer("b")
    asyncio.run(buffer.store_async(episode_id="parent", n=0))
    pid = os.fork()
    if not pid:
        asyncio.run(buffer.store_async(episode_id="child", n=1))
        db.close(); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    asyncio.run(buffer.store_async(episode_id="parent", n=2))
    db.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
    with expdb.open(location) as db:
        assert numbers(db.buffer("b")) == [0, 1, 2]


def test_a_lost_response_fails_every_call_of_the_group(postgresql_url, proxy):
    with expdb.open(proxy.url(postgresql_url), timeout=0.5) as db:
        buffer = db.buffer("b")
        buffer.store(episode_id="a", n=-1)

        async def run():
            proxy.swallow = proxy.refuse = True
            calls = (buffer.store_async(episode_id="a", n=k) for k in range(5))
            return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(run())
        proxy.swallow = proxy.refuse = False
    assert all(
        isinstance(result, (errors.CommitUnknown, errors.ConnectionLost)) for result in results
    )
    assert any(isinstance(result, errors.CommitUnknown) for result in results)
    with expdb.open(postgresql_url) as db:
        stored = numbers(db.buffer("b"))
        assert len(stored) == len(set(stored))
        refused = [k for k in range(5) if not isinstance(results[k], errors.CommitUnknown)]
        assert not set(stored) & set(refused)


def test_random_calls_store_each_step_once(buffer):
    """Compare random calls of threads and coroutines with a plain set."""
    expected, lock = set(), threading.Lock()

    async def coroutine(number):
        rng = random.Random(number)
        for k in range(30):
            n = 1000 * number + k
            try:
                if rng.random() < 0.2:
                    rows = [
                        {"episode_id": f"c{number}", "n": n + 500 + i / 10} for i in range(1, 3)
                    ]
                    await buffer.store_batch_async(rows)
                elif rng.random() < 0.1:
                    task = asyncio.create_task(buffer.store_async(episode_id=f"c{number}", n=n))
                    await asyncio.sleep(0)
                    task.cancel()
                    await task
                else:
                    await buffer.store_async(episode_id=f"c{number}", n=n, m=rng.choice([1, 1, ""]))
                    expected.add(float(n))
            except errors.FieldMismatch:
                pass
            except asyncio.CancelledError as error:
                if "stored position" in str(error):
                    expected.add(float(n))

    def thread(number):
        for k in range(30):
            buffer.store(episode_id=f"t{number}", n=1000 * number + k + 0.5)
            with lock:
                expected.add(1000 * number + k + 0.5)

    async def main():
        await asyncio.gather(*(coroutine(k) for k in range(20)))

    buffer.store(episode_id="start", n=-1.0, m=1)
    threads = [threading.Thread(target=thread, args=(100 + k,)) for k in range(4)]
    for actor in threads:
        actor.start()
    asyncio.run(main())
    for actor in threads:
        actor.join()
    stored = [n for n in (row["n"] for row in steps_of(buffer)) if n % 1 in (0, 0.5)]
    assert sorted(stored) == sorted([*expected, -1.0])


def test_large_token_steps_of_a_group_are_merged_by_episode(db):
    buffer = db.buffer("train", fields=expdb.TOKEN_FIELDS)
    rng = np.random.default_rng(0)
    unique = 0

    async def rollout(number):
        nonlocal unique
        prompt = rng.integers(0, 150_000, 2000).astype(np.int32)
        unique += prompt.nbytes
        for turn in range(20):
            output = rng.integers(0, 150_000, 50).astype(np.int32)
            await buffer.store_async(
                episode_id=f"e{number}", prompt_ids=prompt, output_ids=output, truncated=turn == 19
            )
            unique += 2 * output.nbytes
            prompt = np.concatenate([prompt, output])

    async def main():
        await asyncio.gather(*(rollout(k) for k in range(8)))

    asyncio.run(main())
    assert buffer.stats()["bytes"] <= 1.1 * unique


@pytest.mark.parametrize("count", [1, 3])
def test_warnings_of_a_group_point_at_their_calls(buffer, gate, count):
    async def misspell(number):
        await buffer.store_async(episode_id=f"e{number}", n=1, n_step_retrun=1.0)  # the line

    async def run():
        first = asyncio.create_task(buffer.store_async(episode_id="b", n=2))
        await wait_for_transaction(gate)
        tasks = [asyncio.create_task(misspell(number)) for number in range(count)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *tasks)

    line = misspell.__code__.co_firstlineno + 1
    gate.set()
    buffer.store(episode_id="b", n=1, n_step_return=1.0)
    gate.clear()
    gate.reached.clear()
    with pytest.warns(errors.ExpDBWarning, match="did you mean") as caught:
        asyncio.run(run())
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, line)}


def test_a_call_in_a_signal_handler_is_refused_during_a_write(buffer, monkeypatch):
    write = transaction.write

    def interrupted(*arguments):
        for call in (partial(buffer.store, n=1), buffer.episode("t", episode_id="e").end):
            with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
                call()
        return write(*arguments)

    monkeypatch.setattr(transaction, "write", interrupted)
    buffer.store(n=2)
    monkeypatch.undo()
    buffer.store(n=3)
    assert numbers(buffer) == [2, 3]


class ModelError(Exception):
    """An error that cannot be copied."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")


class Model:
    """A pydantic model whose conversion fails."""

    def model_dump(self, **options):
        """Fail."""
        raise ModelError(7, "no")


def test_an_error_that_cannot_be_copied_fails_only_its_call(buffer, gate):
    steps = [{"episode_id": "e", "n": 0, "x": {}}, {"episode_id": "e", "n": 1, "x": Model()}]
    results = store_at_once(buffer, gate, [*steps, {"episode_id": "e", "n": 2, "x": {}}])
    assert isinstance(results[1], ModelError)
    assert numbers(buffer) == [-1, 0, 2]


def test_rate_limited_calls_all_fail_after_one_timeout(location):
    with expdb.open(location, timeout=0.5) as db:
        buffer = db.buffer("b")
        buffer.rate_limiter = expdb.Queue(1)
        buffer.store(episode_id="e", n=0)

        async def run():
            calls = [buffer.store_async(episode_id=f"e{k}", n=k) for k in range(20)]
            start = time.monotonic()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, errors.RateLimited) for result in results)
            assert time.monotonic() - start < 5.0  # ten times the timeout, on a busy machine
            tasks = [asyncio.create_task(buffer.store_async(n=k)) for k in range(5)]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with pytest.raises(asyncio.CancelledError, match=r"nothing was stored|failed"):
                    await task

        asyncio.run(run())
        assert numbers(buffer) == [0]


def test_steps_of_an_episode_keep_their_order_regardless_of_size(buffer, gate):
    large = np.zeros(60_000)
    steps = [{"episode_id": "e", "n": 0, "x": large}, {"episode_id": "e", "n": 1}]
    results = store_at_once(buffer, gate, [*steps, {"episode_id": "e", "n": 2, "truncated": True}])
    assert results == sorted(results)
    rows = steps_of(buffer, {"episode_id": "e"})
    assert [row["n"] for row in rows] == [0, 1, 2]


def test_rate_limited_steps_of_an_episode_keep_their_order(buffer):
    buffer.rate_limiter = expdb.Queue(6)
    learner = buffer.consumer("learner")
    calls = [(f"e{k}", n) for n in range(4) for k in range(5)]

    async def run():
        stored = asyncio.gather(*[buffer.store_async(episode_id=name, n=n) for name, n in calls])
        while not stored.done():
            with suppress(expdb.TooFewRows):
                once = expdb.Uniform(replace=False)
                (await learner.lease_async(6, at_least=1, sampler=once)).acknowledge()
            await asyncio.sleep(0.01)
        return dict(zip(calls, await stored, strict=True))

    positions = asyncio.run(run())
    for k in range(5):
        of_episode = [positions[f"e{k}", n] for n in range(4)]
        assert of_episode == sorted(of_episode)


@pytest.mark.parametrize("owned", ["locked", "_append", "notify"])
def test_an_interrupt_before_a_step_is_queued_is_raised(buffer, gate, monkeypatch, owned):
    holder = threading.Thread(target=buffer.store, kwargs={"episode_id": "a", "n": 0})
    holder.start()
    assert gate.reached.wait(60)
    commit = buffer._write_queue

    def interrupt(*arguments):
        monkeypatch.undo()
        raise KeyboardInterrupt

    if owned == "locked":
        monkeypatch.setattr(write_queue, "locked", interrupt)
    elif owned == "_append":
        monkeypatch.setattr(commit, "_append", interrupt)
    else:
        monkeypatch.setattr(commit._submitted, "notify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        buffer.store(episode_id="b", n=1)
    gate.set()
    holder.join(60)
    assert 0 in numbers(buffer)


def test_calls_of_one_task_do_not_warn_of_several_callers(buffer):
    async def run():
        async with buffer.writer() as writer:
            for k in range(4):
                await writer.append_async(task_id="t", n=k)
                await writer.flush_async()

    asyncio.run(run())
    assert numbers(buffer) == [0, 1, 2, 3]


def test_calls_that_wait_for_a_locked_database_wait_no_longer_than_their_timeout(open_db):
    """Without deadlines, each transaction of the queue would wait for the whole timeout."""
    other, buffer = open_db(), open_db(timeout=1.0).buffer("b")
    buffer.store(episode_id="first", n=0)
    seconds = []

    def store(k):
        time.sleep(0.15 * k)
        began = time.monotonic()
        with pytest.raises(errors.DatabaseBusy):
            buffer.store(episode_id=f"thread {k}", n=k)
        seconds.append(time.monotonic() - began)

    async def store_async(k):
        await asyncio.sleep(0.15 * k)
        began = time.monotonic()
        with pytest.raises(errors.DatabaseBusy):
            await buffer.store_async(episode_id=f"task {k}", n=k)
        seconds.append(time.monotonic() - began)

    async def store_all():
        await asyncio.gather(*map(store_async, range(5)))

    with writing(other) as session:
        session.query(dialect_of(other).LOCK, 1)
        session.query("UPDATE buffers SET name = name")
        with ThreadPoolExecutor(5) as pool:
            list(pool.map(store, range(5)))
        asyncio.run(store_all())
    assert len(seconds) == 10
    assert max(seconds) < 1.6
    buffer.store(episode_id="first", n=1)


def test_large_steps_of_an_episode_keep_their_order_when_they_are_written_again(db):
    buffer = db.buffer("b", fields={"x": expdb.Field("float64", (None,))})
    buffer.rate_limiter = expdb.Queue(1)
    buffer.store(episode_id="first", n=-1, x=np.zeros(3))

    async def store():
        sizes = [700_000, *[50_000] * 4]  # the first step fills a transaction by itself
        calls = []
        for n, size in enumerate(sizes):
            episode_id = "e" if n else "large"
            step = {"episode_id": episode_id, "n": n, "x": np.zeros(size)}
            calls.append(asyncio.create_task(buffer.store_async(**step)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.3)
        buffer.rate_limiter = None
        await asyncio.gather(*calls)

    asyncio.run(store())
    assert [row["n"] for row in steps_of(buffer, {"episode_id": "e"})] == [1, 2, 3, 4]
