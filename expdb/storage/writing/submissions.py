"""Submissions: the steps of one call to the write queue, and the result of their write."""

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from expdb import errors
from expdb.process.awaiting import as_caller, current_caller
from expdb.sql.engine import Engine
from expdb.storage.writing.open_episodes import OpenEpisodes
from expdb.storage.writing.pending_steps import PendingSteps, Row

Columns = dict[str, Sequence[Any]]

# Deeper values are not measured.
MAX_SIZE_DEPTH = 8


@dataclass(frozen=True, eq=False)
class EncodedWrite:
    """Encoded steps, and the open episodes that they continue.

    For an `EpisodeWriter`, `episodes` is None, because its steps continue only its own episode.
    """

    steps: PendingSteps
    episodes: OpenEpisodes | None


# The steps of one call: rows, columns or encoded steps.
Payload: TypeAlias = Sequence[Row] | Columns | EncodedWrite


class Submission:
    """The steps of one call, and the positions or the error of its write."""

    def __init__(self, payload: Payload, deadline: float, engine: Engine):
        self.payload, self.deadline, self._engine = payload, deadline, engine
        self.caller, self.line = current_caller(), errors.WarningLocation()
        self.nbytes = _size_of_payload(payload)
        self.positions: np.ndarray | None = None
        self.error: BaseException | None = None
        self.is_taken = False  # by the thread of the queue
        self.loop: asyncio.AbstractEventLoop | None = None  # the loop of the coroutine
        self.done: Any = None  # the future of the coroutine, or a lock that the thread waits for

    @property
    def has_result(self) -> bool:
        """Whether the steps are stored or refused."""
        return self.positions is not None or self.error is not None

    @property
    def episodes(self) -> set[str]:
        """Keys of the episodes whose later steps must be written after this submission."""
        if not isinstance(self.payload, Sequence):
            # Only threads submit these, and a thread waits before it submits more steps.
            return set()
        return {
            repr(row.get("episode_id") or (row.get("task_id"), row.get("agent_id")))
            for row, _ in self.payload
        }

    @contextmanager
    def as_caller(self) -> Iterator[None]:
        """Act as the caller inside the block.

        Warnings point at the caller's line, and `current_caller` returns its thread and task.
        Writes wait for the database no longer than the deadline of the call.
        """
        with self.line, as_caller(self.caller), self._engine.until(self.deadline):
            yield

    def fail(self, error: BaseException) -> None:
        """Set the error of the call.

        Each call gets a copy, because raising an error adds a traceback to it.
        """
        own = error
        with suppress(Exception):  # an error whose class cannot be copied
            own = copy.copy(error)
            own.__cause__, own.__traceback__ = error.__cause__, error.__traceback__
        self.error = own

    def result(self) -> np.ndarray:
        """Return the positions, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.positions is not None
        return self.positions


def count_steps(payload: Payload) -> int:
    """Return the number of steps."""
    if isinstance(payload, EncodedWrite):
        return len(payload.steps)
    return len(next(iter(payload.values()))) if isinstance(payload, dict) else len(payload)


def _size_of_payload(payload: Payload) -> int:
    """Return the approximate size of the steps in bytes."""
    if isinstance(payload, EncodedWrite):
        return payload.steps.nbytes + payload.steps.rows.nbytes
    if isinstance(payload, dict):
        return sum([_size_of(column) for column in payload.values()])
    return sum([_size_of(fields) for _, fields in payload])


def _size_of(value: Any, depth: int = 0) -> int:
    """Return the approximate size of a value in bytes."""
    if isinstance(value, (float, int)):
        return 8
    if depth < MAX_SIZE_DEPTH and isinstance(value, dict):
        return sum([_size_of(inner, depth + 1) for inner in value.values()]) + 16 * len(value)
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)):
        if value and depth < MAX_SIZE_DEPTH and not isinstance(value[0], (int, float)):
            return sum([_size_of(inner, depth + 1) for inner in value])
        return 8 * len(value)
    return 64
