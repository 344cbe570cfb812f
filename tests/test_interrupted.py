"""Interrupts: whatever is raised, wherever it comes, what was taken is stored once and the handle goes on."""

import asyncio
import subprocess
import sys
import threading

import numpy as np
import pytest

import expdb

INTERRUPTS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]


class Raising:
    """An array whose conversion is interrupted."""

    dtype, shape = np.dtype("f8"), (2,)

    def __init__(self, kind):
        self.kind = kind

    def __array__(self, *_, **__):
        raise self.kind


@pytest.mark.parametrize("kind", INTERRUPTS)
@pytest.mark.parametrize("first", [True, False], ids=["in a new field", "in a known field"])
def test_an_interrupt_while_a_value_is_taken_leaves_no_part_of_its_step(buffer, kind, first):
    def steps():
        for k in range(100):
            yield {"a": float(k), "text": f"step {k}", "messages": [{"role": "user", "content": str(k)}], "obs": np.full(2, float(k)), "z": k}

    with pytest.raises(kind), buffer.episode("t") as episode:
        for k, step in enumerate(steps()):
            if k == 50:
                step |= {"new": 1, "newer": Raising(kind)} if first else {"messages": [{"new": "element"}], "obs": Raising(kind)}
            episode.append(reward=1.0, **step)
    batch = buffer.get(range(50))
    assert batch["z"].tolist() == batch["a"].tolist() == batch["obs"][:, 0].tolist() == list(range(50))
    assert [one[0]["content"] for one in batch["messages"]] == [str(k) for k in range(50)]
    assert buffer.episodes()["length"].to_pylist() == [50]
    assert "new" not in buffer.stats()["fields"]
    assert buffer.sample(20, rng=0).size == 20


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_a_writer_goes_on_after_an_interrupt_while_a_value_was_taken(buffer, kind):
    with buffer.episode("t", flush_steps=4) as episode:
        for k in range(10):
            with pytest.raises(kind):
                episode.append(x=k, new=0, obs=Raising(kind))
            episode.append(x=k, new="text, not a number", obs=np.full(2, float(k)))
    assert buffer.get(range(10))["x"].tolist() == list(range(10))


def test_a_process_that_is_told_to_stop_leaves_only_whole_steps(tmp_path):
    """SIGTERM with `sys.exit(0)`, while values take their time to become arrays."""
    code = """if True:
        import signal, sys, time, numpy as np, expdb
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        class Slow:
            dtype, shape = np.dtype("f8"), (2,)
            def __init__(self, k): self.k = k
            def __array__(self, *_, **__):
                time.sleep(0.001)
                return np.full(2, float(self.k))
        with expdb.open(sys.argv[1]) as db, db.buffer("b").episode("t") as episode:
            print("started", flush=True)
            for k in range(100_000):
                episode.append(n=k, obs=Slow(k), after=k)
    """
    for number in range(4):
        path = str(tmp_path / f"{number}.db")
        process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
        process.stdout.readline()
        threading.Event().wait(0.05 + 0.01 * number)
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 0
        with expdb.open(path) as db:
            assert db.check() == []
            buffer = db.buffer("b")
            batch = buffer.get(range(len(buffer)))
            assert batch["n"].tolist() == batch["after"].tolist() == batch["obs"][:, 1].tolist() == list(range(len(buffer)))
