"""Rows of tokens beside plain NumPy, and leases of them beside leases of positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import expdb
from benchmarks.table import Row, alternate, row

Turn = tuple[np.ndarray, np.ndarray, np.ndarray]  # prompt, output, log-probabilities
ALL = expdb.Uniform(replace=False)


def _rollouts(count: int, turns: int, seed: int) -> list[list[Turn]]:
    """Return rollouts with outputs of 100 tokens, between which a tool writes 20 tokens."""
    rng = np.random.default_rng(seed)

    def tokens(length: int) -> np.ndarray:
        return rng.integers(0, 150_000, length).astype(np.int32)

    rollouts = []
    for _ in range(count):
        prompt, rollout = tokens(200), list[Turn]()
        for _ in range(turns):
            output, logprobs = tokens(100), -rng.random(100, np.float32)
            rollout.append((prompt, output, logprobs))
            prompt = np.concatenate([prompt, output, tokens(20)])
        rollouts.append(rollout)
    return rollouts


def _stored(path: Path, rollouts: list[list[Turn]]) -> expdb.ReplayBuffer:
    buffer = expdb.open(path).buffer("train", fields=expdb.TOKEN_FIELDS)
    for number, rollout in enumerate(rollouts):
        with buffer.episode("t", group_id=f"g{number // 8}", policy_version=1) as episode:
            for turn, (prompt, output, logprobs) in enumerate(rollout, 1):
                reward = float(number % 8) if turn == len(rollout) else None
                episode.append(
                    prompt_ids=prompt, output_ids=output, logprobs=logprobs, reward=reward
                )
    return buffer


def _joined(rollouts: list[list[Turn]]) -> list[np.ndarray]:
    """Return padded tokens, masks and log-probabilities, as a user would write it by hand."""
    rows: list[list[np.ndarray]] = []
    for rollout in rollouts:
        parts: list[list[np.ndarray]] = [[], [], []]
        length = 0
        for prompt, output, logprobs in rollout:
            context = prompt[length:]
            parts[0] += [context, output]
            parts[1] += [np.zeros(len(context), np.bool_), np.ones(len(output), np.bool_)]
            parts[2] += [np.zeros(len(context), np.float32), logprobs]
            length = len(prompt) + len(output)
        rows.append([np.concatenate(part) for part in parts])
    width = max(len(ids) for ids, _, _ in rows)
    arrays = []
    for k in range(3):
        array = np.zeros((len(rows), width), rows[0][k].dtype)
        for number, columns in enumerate(rows):
            array[number, : len(columns[k])] = columns[k]
        arrays.append(array)
    return arrays


def _timed(work: Callable[[], object]) -> Callable[[int], float]:
    def run(_: int) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def tokens(folder: Path, quick: bool) -> Iterator[Row]:
    """Sample and lease rows of tokens."""
    rounds = 5 if quick else 21
    rollouts, path = _rollouts(64, 50, 0), folder / "rollouts.db"
    buffer, unit = _stored(path, rollouts), expdb.Tokens()

    def from_new_handle() -> None:
        with expdb.open(path) as db:
            db.buffer("train").sample(64, sampler=ALL, unit=unit)

    medians = alternate(
        rounds,
        hand=_timed(lambda: _joined(rollouts)),
        warm=_timed(lambda: buffer.sample(64, sampler=ALL, unit=unit)),
        cold=_timed(from_new_handle),
    )
    what = "of 64 rollouts of 50 turns / NumPy arrays by hand"
    yield row(f"rows of tokens {what}", medians["warm"] / medians["hand"], 1.5)
    yield row(f"rows of tokens, from a new handle, {what}", medians["cold"] / medians["hand"], 1.5)
    buffer._database.close()
    buffer = _stored(folder / "groups.db", _rollouts(320, 5, 1))
    consumer, group = buffer.consumer("trainer"), expdb.Group(8)
    packed = expdb.Tokens(of=group, max_tokens=8192, pack=True, advantage="grpo")

    def lease(**options: object) -> Callable[[int], float]:
        def run(_: int) -> float:
            start = time.perf_counter()
            leased = consumer.lease(4, **options)  # type: ignore[arg-type]
            seconds = time.perf_counter() - start
            leased.acknowledge()
            return seconds

        return run

    for _ in range(40):  # until all chunks are in the cache
        lease(unit=packed)(0)
    medians = alternate(
        rounds, tokens=lease(unit=packed), positions=lease(unit=group, fields=["position"])
    )
    what = "of 4 groups of 8, rows of tokens / positions"
    yield row(f"`lease` {what}", medians["tokens"] / medians["positions"], 2.0)
    buffer._database.close()
