"""Many writers on a PostgreSQL server: each runs in a process of its own, and all begin at once."""

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import sqlalchemy as sa

import expdb
from tests.postgres_server import Server
from tests.proxy import Proxy

SPAWN = multiprocessing.get_context("spawn")
OBS = np.zeros(4, np.float32)

COLUMNS = (
    "buffer_id", "position", "episode", "step", "pre_agent", "execute_time", "reward", "terminated",
    "truncated",
    "policy_version", "priority", "tags", "chunk", "chunk_row",
)  # fmt: skip


def sqlalchemy_inserts(url: str, rows: int, batch: int = 64) -> float:
    """Return the seconds per row of inserting the narrow rows alone, through SQLAlchemy Core.

    Each transaction inserts `batch` rows.
    """
    engine, metadata = (
        sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:")),
        sa.MetaData(),
    )
    kinds: dict[str, Any] = {
        **dict.fromkeys(("execute_time", "reward", "priority"), sa.Float),
        **dict.fromkeys(("pre_agent", "tags"), sa.Text),
    }
    table = sa.Table(
        "baseline", metadata,
        *[
            sa.Column(
                name,
                kinds.get(name, sa.BigInteger),
                primary_key=name in ("buffer_id", "position"),
            )
            for name in COLUMNS
        ],
    )  # fmt: skip
    metadata.drop_all(engine)
    metadata.create_all(engine)
    start = time.perf_counter()
    for first in range(0, rows, batch):
        with engine.begin() as connection:
            values = [
                (1, first + k, first, k, None, 0.0, 1.0, 0, 0, None, None, None, first, k)
                for k in range(batch)
            ]
            connection.execute(
                sa.insert(table), [dict(zip(COLUMNS, record, strict=True)) for record in values]
            )
    seconds = time.perf_counter() - start
    engine.dispose()
    return seconds / (rows // batch * batch)


def play(url: str, flush: int, calls: int, barrier: Any, results: Any) -> None:
    """Write `calls` flushes of an episode, or single steps where `flush` is 0, and tell when."""
    with expdb.open(url, timeout=60.0) as db:
        buffer, failed = db.buffer("b"), 0
        task = str(os.getpid())
        for _ in range(6):
            buffer.store(task_id=task, obs=OBS, action=1, reward=1.0)
        barrier.wait()
        start = time.time()
        if flush:
            with buffer.episode(task, flush_steps=flush) as episode:
                for _ in range(flush * calls):
                    episode.append(obs=OBS, action=1, reward=1.0)
        else:
            for _ in range(calls):
                try:
                    buffer.store(task_id=task, obs=OBS, action=1, reward=1.0)
                except expdb.ExpDBError:
                    failed += 1
        results.put((start, time.time(), failed))


def writers(
    server: Server, count: int, flush: int, calls: int, delay: float | None = None
) -> dict[str, float]:
    """Return what `count` processes did.

    Seconds from the first start to the last end, errors, deadlocks, problems.
    """
    name = server.database()
    url, capacity = server.url(name), 20_000
    with expdb.open(url) as db:
        buffer = db.buffer("b", capacity=capacity)
        buffer.store_batch(
            {
                "obs": np.zeros((capacity, 4), np.float32),
                "action": [1] * capacity,
                "reward": [1.0] * capacity,
            }
        )
    proxy = None if delay is None else Proxy(f"{server.folder}/.s.PGSQL.5432", delay)
    barrier, results = SPAWN.Barrier(count), SPAWN.Queue()
    target = url if proxy is None else proxy.url(url)
    processes = [
        SPAWN.Process(target=play, args=(target, flush, calls, barrier, results))
        for _ in range(count)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get() for _ in processes]
    for process in processes:
        process.join()
    with expdb.open(url) as db:
        problems = len(db.check()) + (len(db.buffer("b")) != capacity)
    ((deadlocks,),) = server.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", name
    )
    if proxy is not None:
        proxy.__exit__()
    server.drop(name)
    return {
        "seconds": max(end for _, end, _ in outcomes) - min(start for start, _, _ in outcomes),
        "errors": sum(failed for _, _, failed in outcomes), "deadlocks": int(str(deadlocks)),
        "problems": problems,
    }  # fmt: skip
