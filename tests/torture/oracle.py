"""Steps with known contents, a log of acknowledged steps, and the check `verify`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import expdb

BUFFER = "b"
KEYS = ["position", "writer", "number", "batch", "batch_size", "obs", "text", "call"]

Acknowledged = Mapping[int, tuple[int, int]]  # position: (writer, number)


def content(writer: int, number: int) -> dict[str, Any]:
    """Return the fields of a step, computed from its writer and its number."""
    return {
        "writer": writer,
        "number": number,
        "obs": np.array([writer, number, writer * number, -number], np.float32) / 3,
        # Several chunks share the values of 1 KiB or more.
        "text": f"tool {number % 12} " * 200 if number % 4 == 0 else f"{writer} wrote {number}",
        "call": {"tool": f"tool_{number % 5}", "arguments": [number, None, str(writer)]}
        if number % 5
        else {"result": [f"error {number % 10} " * 150]},
    }


def step(writer: int, number: int, batch: int = -1, batch_size: int = 1) -> dict[str, Any]:
    """Return a step to store, one of `batch_size` steps that one call writes."""
    batch = number if batch < 0 else batch
    return {**content(writer, number), "batch": batch, "batch_size": batch_size}


class Notes:
    """A file of JSON lines that many processes append to; the lines survive a kill."""

    def __init__(self, path: Path):
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def add(self, *lines: Any) -> None:
        """Append lines atomically."""
        os.write(self._file, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def read(self) -> list[Any]:
        """Return all lines."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        """Close the file in this process."""
        os.close(self._file)


class Log(Notes):
    """A file that many processes append acknowledged steps to."""

    def add(self, positions: Iterable[int], writer: int, first: int) -> None:
        """Record the positions of steps of a writer, numbered from `first`, atomically."""
        super().add(*([position, writer, first + k] for k, position in enumerate(positions)))

    def read(self) -> dict[int, tuple[int, int]]:
        """Return the recorded steps by position."""
        return {position: (writer, number) for position, writer, number in super().read()}


def verify(
    database: expdb.ExperienceDB, acknowledged: Acknowledged, *, tail_may_be_lost: bool = False
) -> list[str]:
    """Return the problems of a database that contains steps of `step()`.

    Every fault test uses this function. `check()` must find no problem. Every field must have its
    original value. No step may be stored twice, and no batch in part. The buffer must contain
    exactly the newest steps that the capacity allows. Every acknowledged step must be at its
    position unless newer steps have evicted it. With `tail_may_be_lost`, the newest acknowledged
    steps may be missing, but no step before a stored step.
    """
    problems = database.check()
    if BUFFER not in database.buffers():
        if acknowledged and not tail_may_be_lost:
            problems.append(f"{len(acknowledged)} acknowledged steps lost with the buffer")
        return problems
    buffer = database.buffer(BUFFER)
    stats = buffer.stats()
    added, capacity = stats["added"], stats["capacity"]
    stored: dict[int, tuple[int, int]] = {}
    batches: dict[tuple[int, int, int], list[int]] = {}
    for rows in buffer.scan(fields=KEYS) if stats["steps"] else []:
        for row in rows.to_list():
            position, writer = row["position"], row["writer"]
            problems += wrong_fields(row)
            stored[position] = (writer, row["number"])
            batches.setdefault((writer, row["batch"], row["batch_size"]), []).append(position)
    times = Counter(stored.values())
    problems += [f"step {pair} is stored {n} times" for pair, n in times.items() if n > 1]
    oldest = max(0, added - capacity) if capacity is not None else 0
    if sorted(stored) != list(range(oldest, added)):
        problems.append(
            f"{len(stored)} steps from {min(stored, default=0)}: of {added} added, {capacity} fit"
        )
    for (writer, batch, size), positions in batches.items():
        if len(positions) != size and min(positions) != oldest:
            problems.append(
                f"{len(positions)} of the {size} steps of batch {batch} of writer {writer}"
            )
    lost = {
        position
        for position, expected in acknowledged.items()
        if stored.get(position, expected) != expected
        or (position not in stored and position >= oldest)
    }
    if tail_may_be_lost:
        lost = {position for position in lost if position < added}
    problems += [
        f"the acknowledged step {acknowledged[position]} is not at {position}"
        for position in sorted(lost)[:5]
    ]
    if len(lost) > 5:
        problems.append(f"and {len(lost) - 5} more acknowledged steps are not there")
    return problems


def wrong_fields(row: Mapping[str, Any]) -> list[str]:
    """Return a problem for each field of a stored step that is not bit-identical."""
    wanted = content(row["writer"], row["number"])
    obs = wanted.pop("obs")
    wrong = [name for name, value in wanted.items() if row[name] != value]
    if np.asarray(row["obs"], np.float32).tobytes() != obs.tobytes():
        wrong.append("obs")
    return [f"{name} of the step at {row['position']} is wrong: {row[name]!r}" for name in wrong]
