"""Flushes of writers and batches of columns share transactions with other writes."""

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from behind import store_of
from contents import steps_of

import expdb
from expdb import errors
from expdb.storage.writing import transaction

pytestmark = pytest.mark.both_databases


@pytest.fixture
def group_sizes(monkeypatch):
    """Record the sizes of groups; calls of store() and store_batch() together count as one."""
    sizes, write = [], transaction.write_together

    def record_size(store, group):
        sizes.append(len(group))
        return write(store, group)

    monkeypatch.setattr(transaction, "write_together", record_size)
    return sizes


def run_as_group(buffer, monkeypatch, calls):
    """Run calls in threads while another write is blocked; return their results or errors."""
    commit, results = buffer._write_queue, [None] * len(calls)
    is_locked, may_write = threading.Event(), threading.Event()
    write = transaction.write

    def hold(*arguments):
        monkeypatch.setattr(transaction, "write", write)
        is_locked.set()
        assert may_write.wait(60)
        return write(*arguments)

    def run(index):
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    monkeypatch.setattr(transaction, "write", hold)
    threads = [threading.Thread(target=buffer.store, kwargs={"episode_id": "held", "n": -1})]
    threads[0].start()
    assert is_locked.wait(60)
    for index in range(len(calls)):
        threads.append(threading.Thread(target=run, args=(index,)))
        threads[-1].start()
        while len(commit._small) + len(commit._large) <= index:
            time.sleep(0.001)
    may_write.set()
    for thread in threads:
        thread.join(60)
    return results


def numbers(buffer):
    return sorted(row["n"] for row in steps_of(buffer))


def numbers_of_episode(buffer, name):
    return [row["n"] for row in steps_of(buffer, {"episode_id": name})]


def start_episode(buffer, name, count=3, **details):
    """Return a writer with `count` appended steps; only the first step is flushed."""
    writer = buffer.episode("t", episode_id=name, **details)
    for n in range(count):
        writer.append(n=n)
        if not n:
            writer.flush()
    return writer


def test_writers_and_batches_share_a_transaction(buffer, monkeypatch, group_sizes):
    buffer.store(episode_id="first", n=-2)
    writers = [start_episode(buffer, f"e{k}") for k in range(8)]
    flushed = [start_episode(buffer, f"f{k}", count=1) for k in range(2)]
    step_writer = buffer.writer()
    step_writer.append(agent_id="a", n=50)
    columns = {"episode_id": ["c0", "c1", "c0"], "n": np.arange(60, 63)}
    calls = [
        *(writer.end for writer in (*writers, *flushed)),
        step_writer.flush,
        lambda: buffer.store_batch(columns),
        lambda: buffer.store(episode_id="s", n=70),
    ]
    results = run_as_group(buffer, monkeypatch, calls)
    assert group_sizes == [12]  # store_batch and store are gathered into one write
    assert results[:10] == [None] * 10
    stored = buffer.get([*results[10], *results[11], results[12]])["n"]
    assert stored.tolist() == [50, 60, 61, 62, 70]
    for k in range(8):
        assert numbers_of_episode(buffer, f"e{k}") == [0, 1, 2]
    assert numbers_of_episode(buffer, "c0") == [60, 62]
    with store_of(buffer).engine.reading() as session:
        statuses = dict(session.query("SELECT episode_id, status FROM episodes"))
    assert {statuses[f"e{k}"] for k in range(8)} == {"complete"}
    assert {statuses["f0"], statuses["f1"]} == {"complete"}
    assert buffer.check() == []
    step_writer.close()


def test_sample_includes_the_steps_of_a_shared_transaction(buffer, monkeypatch, group_sizes):
    buffer.store(episode_id="first", n=-2)
    buffer.sample(4)
    writers = [start_episode(buffer, f"e{k}") for k in range(4)]
    assert buffer.sample(64)["n"].min() >= -2
    run_as_group(buffer, monkeypatch, [writer.flush for writer in writers])
    assert group_sizes == [4]
    drawn = buffer.sample(4000)["position"]
    assert set(drawn.tolist()) == set(range(len(buffer)))
    for writer in writers:
        writer.end()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("ended", errors.EpisodeEnded),
        ("resumed", errors.EpisodeResumed),
        ("type", errors.FieldMismatch),
    ],
)
def test_a_refused_flush_does_not_fail_other_calls(
    buffer, location, monkeypatch, group_sizes, bad, error
):
    buffer.store(episode_id="first", n=-2)
    writers = [start_episode(buffer, f"e{k}") for k in range(4)]
    if bad == "ended":
        buffer.end_episode("e1")
    elif bad == "resumed":
        buffer.episode("t", episode_id="e1", resume=True).end()
    else:
        writers[1].append(n=3, m=1.5)
        with expdb.open(location) as other:
            other.buffer(buffer.name).store(episode_id="other", n=-3, m="text")
    results = run_as_group(buffer, monkeypatch, [writer.flush for writer in writers])
    assert group_sizes[0] >= 3
    assert isinstance(results.pop(1), error)
    assert writers[1]._in_doubt is None
    assert all(isinstance(result, np.ndarray) for result in results)
    for name in ("e0", "e2", "e3"):
        assert numbers_of_episode(buffer, name) == [0, 1, 2]
    assert buffer.check() == []
    messages = []
    buffer._end_writers(messages)
    lost = [message for message in messages if "lost" in message]
    assert len(lost) == (bad != "resumed")


def test_waiting_for_the_rate_limiter_does_not_delay_other_writes(location, monkeypatch):
    with expdb.open(location, timeout=30) as db:
        buffer = db.buffer("b")
        buffer.rate_limiter = expdb.Queue(2)
        writer = buffer.episode("t", episode_id="e")
        writer.append(n=0)
        writer.flush()
        buffer.store(episode_id="first", n=1)
        waiting = threading.Thread(target=buffer.store, kwargs={"episode_id": "w", "n": 2})
        waiting.start()
        while not buffer.waiting().num_rows:
            time.sleep(0.01)
        begin = time.monotonic()
        writer.end()  # stores no step, so the limiter does not delay it
        assert time.monotonic() - begin < 10
        assert waiting.is_alive()
        buffer.rate_limiter = None
        waiting.join(60)
        assert numbers(buffer) == [0, 1, 2]


@pytest.mark.parametrize("is_stored", [True, False])
def test_steps_are_stored_once_if_a_shared_transaction_loses_its_connection(
    postgresql_url, proxy, monkeypatch, is_stored
):
    with expdb.open(proxy.url(postgresql_url), timeout=1.0) as db:
        buffer = db.buffer("b")
        buffer.store(episode_id="first", n=-2)
        writers = [start_episode(buffer, f"e{k}") for k in range(4)]
        step_writer = buffer.writer()
        step_writer.append(agent_id="a", n=50)
        write = transaction.write_together

        def lose(store, group):
            if is_stored:
                proxy.swallow = True
            else:
                proxy.cut()
            proxy.refuse = True
            return write(store, group)

        calls = [*(writer.flush for writer in writers[:3]), writers[3].end, step_writer.flush]
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "write_together", lose)
            results = run_as_group(buffer, monkeypatch, calls)
        assert all(isinstance(result, errors.ConnectionLost) for result in results)
        assert len({str(result) for result in results}) == 5  # each names its own write
        proxy.swallow = proxy.refuse = False
        for writer in writers[:3]:
            assert len(writer.flush()) == 2
            writer.end()
        if writers[3].is_open:
            writers[3].end()
        step_writer.append(agent_id="a", n=51)  # continues the episode
        step_writer.close()
        assert numbers(buffer) == sorted([-2, -1, *(4 * [0, 1, 2]), 50, 51])
        assert len({row["episode_id"] for row in steps_of(buffer, {"agent_id": "a"})}) == 1
        assert buffer.check() == []


def test_calls_succeed_if_the_response_to_their_transaction_is_lost(
    postgresql_url, proxy, monkeypatch
):
    with expdb.open(proxy.url(postgresql_url), timeout=30.0) as db:
        buffer = db.buffer("b")
        buffer.store(episode_id="first", n=-2)
        writers = [start_episode(buffer, f"e{k}") for k in range(4)]
        write = transaction.write_together

        def lose(store, group):
            proxy.swallow = True
            return write(store, group)

        monkeypatch.setattr(transaction, "write_together", lose)
        results = run_as_group(buffer, monkeypatch, [writer.end for writer in writers])
        assert results == [None] * 4
        assert numbers(buffer) == sorted([-2, -1, *(4 * [0, 1, 2])])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_acknowledged_step_is_lost_if_the_process_is_killed(location, seed):
    code = f"""
    import asyncio, sys, threading, numpy as np, expdb
    db = expdb.open({location!r}); buffer = db.buffer("b", fields={{"n": expdb.Field("int64", ())}})
    def acknowledge(*numbers):
        sys.stdout.write("".join(f"{{n}}\\n" for n in numbers)); sys.stdout.flush()
    async def actor(number):
        for n in range(number * 10**6, number * 10**6 + 10**6, 4):
            async with buffer.episode("t", flush_steps=2) as episode:
                for k in range(3):
                    await episode.append_async(n=n + k)
            acknowledge(n, n + 1, n + 2)
    def thread(number):
        for n in range(number * 10**6, number * 10**6 + 10**6, 4):
            with buffer.episode("t") as episode:
                for k in range(3):
                    episode.append(n=n + k)
            acknowledge(n, n + 1, n + 2)
    def batches(number):
        for n in range(number * 10**6, number * 10**6 + 10**6, 4):
            buffer.store_batch({{"n": np.arange(n, n + 3), "agent_id": f"{{number}}"}})
            acknowledge(n, n + 1, n + 2)
    def steps(number):
        for n in range(number * 10**6, number * 10**6 + 10**6):
            buffer.store(episode_id=f"t{{number}}", n=n)
            acknowledge(n)
    async def coroutine(number):
        for n in range(number * 10**6, number * 10**6 + 10**6):
            await buffer.store_async(episode_id=f"e{{number}}", n=n)
            acknowledge(n)
    for number in range(4):
        for k, work in enumerate([thread, batches, steps], 1):
            threading.Thread(target=work, args=(100 * k + number,), daemon=True).start()
    async def main():
        await asyncio.gather(*map(actor, range(16)), *map(coroutine, range(500, 532)))
    asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        lines = [child.stdout.readline()]
        time.sleep(random.Random(seed).uniform(0.5, 1.2))
        child.kill()
        lines += child.stdout.readlines()
    acknowledged = {int(line) for line in lines if line.endswith("\n")}
    assert acknowledged
    with expdb.open(location) as db:
        buffer = db.buffer("b")
        stored = [n for batch in buffer.scan(fields=["n"]) for n in batch["n"].tolist()]
        assert acknowledged <= set(stored)
        assert len(stored) == len(set(stored))
        assert len(stored) <= len(acknowledged) + 3 * 25 + 36
        assert db.check() == []


def test_append_async_waits_while_another_thread_holds_the_writer(buffer):
    is_locked, may_release = threading.Event(), threading.Event()

    def hold(episode):
        with episode._lock:
            is_locked.set()
            may_release.wait(60)

    async def run():
        async with buffer.episode("t") as episode:
            threading.Thread(target=hold, args=(episode,)).start()
            is_locked.wait(60)
            waiting = asyncio.create_task(episode.append_async(n=1))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            may_release.set()
            await waiting

    asyncio.run(run())
    assert numbers(buffer) == [1]


def test_final_observations_adding_fields_are_written_separately(buffer, monkeypatch, group_sizes):
    buffer.store(episode_id="first", n=-2)
    writers = [start_episode(buffer, f"e{k}", count=1) for k in range(3)]
    ends = [lambda k=k: writers[k].end(n=9, **{f"new{k}": float(k)}) for k in range(3)]
    assert run_as_group(buffer, monkeypatch, ends) == [None] * 3
    assert group_sizes == []
    assert {"new0", "new1", "new2"} <= set(store_of(buffer).fields.types)


def test_fields_of_a_rolled_back_shared_transaction_are_discarded(buffer, location, monkeypatch):
    buffer.store(episode_id="first", n=-2)
    writers = [start_episode(buffer, f"e{k}", count=1) for k in range(3)]
    with expdb.open(location) as other:
        other.buffer(buffer.name).end_episode("e2")
    monkeypatch.setattr(transaction, "can_share_transaction", lambda *_: True)
    together = transaction.write_together

    def race(*arguments):
        try:
            together(*arguments)
        finally:  # the other process commits directly after the rollback
            with expdb.open(location) as other:
                other.buffer(buffer.name).store(episode_id="theirs", n=-3, y="text")

    monkeypatch.setattr(transaction, "write_together", race)
    ends = [lambda w=w: w.end(n=9, x=1.0) for w in writers]
    results = run_as_group(buffer, monkeypatch, ends)
    assert results[:2] == [None] * 2
    assert isinstance(results[2], errors.EpisodeEnded)
    with pytest.raises(errors.FieldMismatch):
        buffer.store(episode_id="mine", n=0, y=1.5)
    assert buffer.check() == []
    buffer._end_writers([])


def test_a_second_interrupt_does_not_store_steps_twice(buffer, monkeypatch):
    buffer.store(episode_id="first", n=-2)
    writers = [start_episode(buffer, f"e{k}") for k in range(2)]
    together = transaction.write_together

    def interrupted(*arguments):
        main = threading.main_thread().ident
        for _ in range(3):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.1)
        return together(*arguments)

    monkeypatch.setattr(transaction, "write_together", interrupted)
    commit = buffer._write_queue
    is_held = threading.Event()

    def hold():
        is_held.set()
        while len(commit._small) < 2:
            time.sleep(0.001)

    threads = [threading.Thread(target=commit.run, args=(hold,))]
    threads.append(threading.Thread(target=writers[0].flush))
    for thread in threads:
        thread.start()
        assert is_held.wait(60)
    with pytest.raises(KeyboardInterrupt):
        writers[1].flush()
    for thread in threads:
        thread.join(60)
    writers[1].append(n=3)
    writers[1].flush()
    assert numbers_of_episode(buffer, "e1") == [0, 1, 2, 3]
    for writer in writers:
        writer.end()


def test_a_flush_needs_no_new_thread_at_interpreter_shutdown(buffer, monkeypatch):
    buffer.store(episode_id="first", n=-2)
    writer = start_episode(buffer, "e")
    commit, start = buffer._write_queue, threading.Thread.start

    def refuse(thread):
        if thread.name == "expdb-write":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(commit, "_thread", None)
    monkeypatch.setattr(commit, "_owner", -1)  # as if another thread wrote
    writer.flush()
    assert numbers_of_episode(buffer, "e") == [0, 1, 2]
    monkeypatch.setattr(commit, "_owner", None)
    writer.end()
