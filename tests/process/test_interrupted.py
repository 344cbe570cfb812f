"""Interrupts at any line: accepted steps are stored once and the handle stays usable."""

import asyncio
import gc
import itertools
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from behind import report_now
from contents import steps_of

import expdb
from expdb import errors
from expdb.storage.upkeep import metrics_history, reporting
from expdb.storage.writing.pending_steps import PendingSteps

INTERRUPTS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]


class Raising:
    """An array-like object that raises an interrupt when NumPy converts it."""

    dtype, shape = np.dtype("f8"), (2,)

    def __init__(self, kind):
        self.kind = kind

    def __array__(self, *_, **__):
        raise self.kind


@pytest.mark.parametrize("kind", INTERRUPTS)
@pytest.mark.parametrize("first", [True, False], ids=["in a new field", "in a known field"])
def test_an_interrupt_while_converting_a_value_stores_no_part_of_the_step(buffer, kind, first):
    def steps():
        for k in range(100):
            yield {
                "a": float(k),
                "text": f"step {k}",
                "messages": [{"role": "user", "content": str(k)}],
                "obs": np.full(2, float(k)),
                "z": k,
            }

    def play():
        with buffer.episode("t") as episode:
            for k, step in enumerate(steps()):
                if k == 50:
                    step |= (
                        {"new": 1, "newer": Raising(kind)}
                        if first
                        else {"messages": [{"new": "element"}], "obs": Raising(kind)}
                    )
                episode.append(reward=1.0, **step)

    with pytest.raises(kind):
        play()
    batch = buffer.get(range(50))
    assert (
        batch["z"].tolist() == batch["a"].tolist() == batch["obs"][:, 0].tolist() == list(range(50))
    )
    assert [conversation[0]["content"] for conversation in batch["messages"]] == [
        str(k) for k in range(50)
    ]
    assert buffer.episodes()["length"].to_pylist() == [50]
    assert "new" not in buffer.stats()["fields"]
    assert buffer.sample(20, seed=0).size == 20


def test_a_writer_can_be_used_after_an_interrupt_while_converting_a_value(buffer):
    with buffer.episode("t", flush_steps=4) as episode:
        for k in range(10):
            with pytest.raises(KeyboardInterrupt):
                episode.append(x=k, **{f"new{k}": 0}, obs=Raising(KeyboardInterrupt))
            episode.append(x=k, **{f"new{k}": "text, not a number"}, obs=np.full(2, float(k)))
    assert buffer.get(range(10))["x"].tolist() == list(range(10))


# -- interrupts at every line ----------------------------------------------------------------------

PACKAGE = str(Path(expdb.__file__).parent)


class Strike:
    """Context manager that raises an interrupt at the n-th executed line of the package.

    `line` is the interrupted line. Each line counts at most `repeats` times.
    """

    def __init__(self, kind, at, repeats=10**9):
        self.kind, self.at, self.repeats, self.line = kind, at, repeats, None
        self._runs = Counter()

    def __enter__(self):
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(None)
        return kind is self.kind

    def _enter_frame(self, frame, event, _):
        return self._run_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _run_line(self, frame, event, _):
        if event == "line" and self.line is None:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._runs[line] += 1
            self.at -= self._runs[line] <= self.repeats
            if not self.at:
                self.line = line
                raise self.kind
        return self._run_line


def everywhere(kind, stride, scenario, repeats=10**9):
    """Run a scenario repeatedly and interrupt it `stride` lines later each time.

    Stop when a run completes without an interrupt.
    """
    for at in itertools.count(1, stride):
        strike = Strike(kind, at, repeats)
        try:
            scenario(at, strike)
        except BaseException as error:
            raise AssertionError(f"after {kind.__name__} at {strike.line} (number {at})") from error
        if strike.line is None:
            return at


class StrikeInWriteQueue(Strike):
    """Count only lines of the functions that mark a thread as writing or encoding."""

    def _enter_frame(self, frame, event, _):
        is_marking = frame.f_code.co_name in ("encode", "_run_as_owner", "locked")
        return self._run_line if is_marking else None


def by_another_thread(work):
    """Run `work` in another thread to check that this thread holds no lock."""
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "a lock is held"
    assert not failed, failed


def held(buffer, task):
    return [row["n"] for row in steps_of(buffer, {"task_id": task})]


def check_taken(stored, taken, under_way):
    assert [n for n in stored if n not in under_way] == taken
    assert len(set(stored)) == len(stored)


@pytest.fixture(autouse=True)
def _collected_here():
    """Collect garbage, so that this test emits the warnings about its interrupted connections."""
    yield
    gc.collect()


every_line = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::expdb.errors.ExpDBWarning",
    "ignore::ResourceWarning",
)
# By default, the tests interrupt every 101st line. With --slow, they also use other strides.
# With EXPDB_EVERY_LINE=1, they interrupt every line, which takes about 15 minutes.
EACH = bool(os.environ.get("EXPDB_EVERY_LINE"))
kinds = pytest.mark.parametrize(("kind", "stride"), [
    pytest.param(KeyboardInterrupt, 101, marks=pytest.mark.skipif(EACH, reason="each line is run")),
    pytest.param(KeyboardInterrupt, 1 if EACH else 47, marks=pytest.mark.slow),
    pytest.param(asyncio.CancelledError, 1 if EACH else 97, marks=pytest.mark.slow),
])  # fmt: skip


@pytest.mark.both_databases
@every_line
@kinds
@pytest.mark.parametrize("how", ["append", "flush", "end", "block"])
def test_a_writer_interrupted_at_any_line_stores_each_step_once(open_db, kind, stride, how):
    db = open_db(timeout=5.0)
    buffer = db.buffer("b")

    def scenario(at, strike):
        writer, taken, under_way = buffer.episode(f"t{at}", flush_steps=3), [], set()
        numbers = itertools.count()

        def append():
            n = next(numbers)
            under_way.add(n)
            writer.append(n=n, text=f"{n}", **({"obs": np.full(2, n)} if n else {}))
            under_way.discard(n)
            taken.append(n)

        for _ in range(2):
            append()
        with strike:
            if how == "append":
                append()
                append()
            elif how == "flush":
                writer.flush()
            elif how == "end":
                writer.end(obs=np.zeros(2, int))
            else:
                with writer:
                    append()
        by_another_thread(lambda: buffer.store(task_id="others", n=-1, terminated=True))
        if (
            writer.is_open and writer._in_doubt is not None and writer._in_doubt.ended
        ):  # on a server: the outcome of the commit is unknown
            with pytest.raises(errors.EpisodeEnded):
                append()
            writer.end()
        if writer.is_open:
            for _ in range(3):
                append()
            writer.flush()
            append()
            writer.end(obs=np.ones(2, int))
        check_taken(held(buffer, f"t{at}"), taken, under_way)
        episodes = buffer.episodes({"task_id": f"t{at}"}).to_pylist()
        assert [(row["status"], row["length"]) for row in episodes] in (
            [("complete", len(held(buffer, f"t{at}")))], [("aborted", len(held(buffer, f"t{at}")))],
        )  # fmt: skip

    assert everywhere(kind, stride, scenario) > 10


@pytest.mark.both_databases
@every_line
@kinds
@pytest.mark.parametrize("how", ["store", "store_batch", "new field"])
def test_a_store_interrupted_at_any_line_stores_its_steps_at_most_once(open_db, kind, stride, how):
    buffer = open_db(timeout=5.0).buffer("b")

    def scenario(at, strike):
        task, taken, under_way = f"t{at}", [], set()

        def store(*numbers, **more):
            under_way.update(numbers)
            if how == "store_batch":
                buffer.store_batch([{"task_id": task, "n": n, **more} for n in numbers])
            else:
                for n in numbers:
                    buffer.store(task_id=task, n=n, **more)
            under_way.difference_update(numbers)
            taken.extend(numbers)

        store(0)
        with strike:
            store(
                *((1, 2, 3) if how == "store_batch" else (1,)),
                **({f"field{at}": "x"} if how == "new field" and at < 120 else {}),
            )
        by_another_thread(lambda: buffer.store(task_id="others", n=-1, terminated=True))
        store(4)
        store(5, terminated=True)
        stored = held(buffer, task)
        check_taken(stored, taken, under_way)
        assert buffer.episodes({"task_id": task})["length"].to_pylist() == [len(stored)]

    assert everywhere(kind, stride, scenario) > 10


@every_line
@kinds
@pytest.mark.parametrize("how", ["steps", "n-step", "sequences", "query", "episodes"])
def test_samples_are_correct_after_a_sample_is_interrupted_at_any_line(
    open_db, location, kind, stride, how
):
    db, other = (
        open_db(max_lag_seconds=0.0, timeout=5.0),
        open_db(timeout=5.0).buffer("b", capacity=40),
    )
    buffer, rng = db.buffer("b"), np.random.default_rng(0)
    by_priority = expdb.Prioritized(initial=1.0)
    options = {
        "steps": {}, "n-step": {"sampler": by_priority, "unit": expdb.NStep(2, gamma=0.9)},
        "sequences": {"unit": expdb.Sequence(3, stride=1)},
        "query": {"where": {"reward": 1.0}, "sampler": by_priority},
        "episodes": {
            "unit": expdb.Episode(max_length=4), "fields": ["n", "text"],
            "sampler": expdb.Uniform(replace=True),
        },
    }[how]  # fmt: skip

    def scenario(at, strike):
        with other.episode(f"t{at}") as episode:
            for n in rng.permutation(4).tolist():
                episode.append(n=at, text=str(at), reward=float(n % 2), step=n if at % 3 else None)
            episode.end(n=0)
        if at % 4 == 0:
            other.delete({"task_id": f"t{at - 2}", "step": 3})
        with strike:
            buffer.sample(8, seed=0, **options)
        by_another_thread(lambda: buffer.sample(8, seed=1, **options))
        ours = buffer.sample(16, seed=2, **options)
        with expdb.open(location) as fresh:
            theirs = fresh.buffer("b").sample(16, seed=2, **options)
        np.testing.assert_equal(dict(ours), dict(theirs))

    assert everywhere(kind, stride, scenario, repeats=2) > 10


@every_line
@kinds
def test_close_can_be_repeated_after_an_interrupt_at_any_line(open_db, location, kind, stride):
    open_db()

    def scenario(at, strike):
        db = expdb.open(location, timeout=5.0)
        buffer = db.buffer("b")
        writer = buffer.episode(f"left{at}")
        for n in range(3):
            writer.append(n=n)
        buffer.store(task_id=f"open{at}", n=0)
        buffer.sample(4, sampler=expdb.Prioritized(), seed=0)
        buffer.update_priorities([0], [float(at)])
        with strike:
            db.close()
        by_another_thread(db.close)
        db.close()
        with pytest.raises((errors.DatabaseClosed, errors.EpisodeEnded)):
            writer.append(n=3)
        again = expdb.open(location, timeout=5.0)
        buffer = again.buffer("b")
        assert held(buffer, f"left{at}") == [0, 1, 2]
        assert [
            buffer.episodes({"task_id": f"{prefix}{at}"})["status"].to_pylist()
            for prefix in ("left", "open")
        ] == [["aborted"], ["complete"]]
        assert buffer.get([0], fields=["priority"])["priority"].tolist() == [float(at)]
        again.close()

    assert everywhere(kind, stride, scenario, repeats=2) > 10


@pytest.mark.both_databases
@every_line
@kinds
def test_a_report_interrupted_at_any_line_releases_its_locks(open_db, kind, stride, monkeypatch):
    monkeypatch.setattr(reporting, "FIRST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(metrics_history, "REPORT_SECONDS", 0.0)
    db, other = open_db(max_lag_seconds=0.0, timeout=5.0), open_db(timeout=5.0).buffer("b")
    buffer = db.buffer("b")

    def scenario(at, strike):
        buffer.store(task_id="t", n=at)
        with strike:
            report_now(buffer)
        other.store(task_id="others", n=at)
        by_another_thread(buffer._reporter.report)
        actors = [row for row in buffer.workers().to_pylist() if row["role"] == "actor"]
        assert sum(row["counts"]["steps"] for row in actors) == len(buffer)

    assert everywhere(kind, stride, scenario) > 10


def test_an_interrupt_while_a_thread_is_marked_as_writing_does_not_block_its_next_call(scratch):
    for at in itertools.count(1):
        strike = StrikeInWriteQueue(KeyboardInterrupt, at)
        with scratch.writer() as writer, strike:
            writer.append(x=at)
            writer.flush()
        scratch.store(x=-at)
        if strike.line is None:
            break
    assert at > 5


@pytest.mark.parametrize("kind", ["writer", "episode"])
@pytest.mark.parametrize("call", ["flush", "close", "store"])
def test_a_signal_handler_cannot_write_while_a_writer_encodes_its_steps(
    scratch, kind, call, monkeypatch
):
    writer = scratch.writer() if kind == "writer" else scratch.episode("t")
    writer.append(x=1)
    calls = {
        "flush": writer.flush,
        "close": writer.close if kind == "writer" else writer.end,
        "store": lambda: scratch.store(x=2),
    }
    refused, encode = [], PendingSteps.close

    def interrupted(steps):
        monkeypatch.setattr(PendingSteps, "close", encode)
        with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
            calls[call]()
        refused.append(call)
        encode(steps)

    monkeypatch.setattr(PendingSteps, "close", interrupted)
    assert writer.flush().tolist() == [0]
    assert refused == [call]
    writer.append(x=3)
    calls["close"]()
    assert scratch.get([0, 1])["x"].tolist() == [1, 3]


@pytest.mark.parametrize("kind", ["writer", "episode"])
def test_a_signal_handler_cannot_use_a_writer_that_adds_a_step(scratch, kind, monkeypatch):
    writer = scratch.writer() if kind == "writer" else scratch.episode("t")
    end = writer.close if kind == "writer" else writer.end
    calls = (lambda: writer.append(x=7), lambda: writer.extend({"x": [7]}), writer.flush, end)
    add, refused = PendingSteps.add, []

    def interrupted(*arguments):
        monkeypatch.setattr(PendingSteps, "add", add)
        for call in calls:
            with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
                call()
            refused.append(call)
        return add(*arguments)

    for number in range(3):
        monkeypatch.setattr(PendingSteps, "add", interrupted)
        writer.append(x=number)
    end()
    assert len(refused) == 12
    assert next(scratch.scan())["x"].tolist() == [0, 1, 2]


@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["writer", "episode"])
def test_closing_the_database_while_a_writer_adds_a_step_loses_no_step(open_db, kind, monkeypatch):
    db = open_db()
    buffer = db.buffer("b")
    writer = buffer.writer() if kind == "writer" else buffer.episode("t", episode_id="e")
    writer.append(x=0)
    add = PendingSteps.add

    def interrupted(*arguments):
        monkeypatch.setattr(PendingSteps, "add", add)
        with pytest.raises(expdb.ExpDBError, match="during another call of the same thread"):
            db.close()
        return add(*arguments)

    monkeypatch.setattr(PendingSteps, "add", interrupted)
    writer.append(x=1)
    (writer.close if kind == "writer" else writer.end)()
    db.close()
    with open_db() as db:
        assert next(db.buffer("b").scan())["x"].tolist() == [0, 1]
