"""AWorld's example of four writing processes, on expdb and on what AWorld does.

Pickles in shared memory, by its description.

A manager's dict tells the shared-memory segment of each task, which holds the pickled list of its
rows; every added row is read, unpickle, append, pickle, write back, under one lock of the
manager's.
"""

import multiprocessing
import pickle
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from expdb.integrations.aworld import (
    DataRow,
    Experience,
    ExpMeta,
    MultiProcMemoryStorage,
    ReplayBuffer,
)

FORK = multiprocessing.get_context("fork")


class PickledLists:
    """The baseline: adds rows as AWorld's MultiProcMemoryStorage does."""

    def __init__(self, segments: Any, lock: Any):
        self.segments, self.lock = segments, lock

    def store(self, row: DataRow) -> None:
        with self.lock:
            task, rows = row.exp_meta.task_id, []
            name = self.segments.get(task)
            if name is not None:
                old = SharedMemory(name)
                rows = pickle.loads(bytes(old.buf))
                old.close()
            data = pickle.dumps([*rows, row])
            if name is None or old.size < len(data):
                segment = SharedMemory(create=True, size=2 * len(data))
                if name is not None:
                    old.unlink()
                self.segments[task] = segment.name
            else:
                segment = SharedMemory(name)
            segment.buf[: len(data)] = data
            segment.close()


def write(buffer: Any, task: str, rows: int) -> None:
    for step in range(rows):
        meta = ExpMeta(task, "name", "agent", step, time.time())
        state = {"content": "what the agent saw" * 5}
        buffer.store(
            DataRow(meta, Experience(state=state, actions=[{"tool_name": "search"}], reward_t=1.0))
        )


def seconds_a_row(buffer: Any, rows: int) -> float:
    processes = [
        FORK.Process(target=write, args=(buffer, f"task_{k}", rows // 4)) for k in range(4)
    ]
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return (time.perf_counter() - start) / rows


def ours(rows: int) -> float:
    """Return the seconds per row on expdb."""
    with FORK.Manager() as manager:
        storage = MultiProcMemoryStorage(
            manager.dict(), manager.list(), manager.Lock(), max_capacity=10_000
        )
        seconds = seconds_a_row(ReplayBuffer(storage), rows)
        if storage.size() != rows:
            raise RuntimeError(f"{storage.size()} rows of {rows}")
        storage.close()
    return seconds


def theirs(rows: int) -> float:
    """Return the seconds per row on pickles in shared memory."""
    # one for all: a child's own would remove the segments when the child ends
    resource_tracker.ensure_running()
    with FORK.Manager() as manager:
        segments = manager.dict()
        seconds = seconds_a_row(PickledLists(segments, manager.Lock()), rows)
        for name in segments.values():
            segment = SharedMemory(name)
            segment.unlink()
            segment.close()
    return seconds
