"""Collect steps with their priorities, and write both together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import expdb


class PrioritizedWriter:
    """Collect steps in memory, and set their priorities when they are written.

    Only `flush` writes steps and returns their positions. Call `flush` regularly.
    """

    def __init__(self, buffer: expdb.ReplayBuffer):
        self._buffer = buffer
        self._writer = buffer.writer(flush_steps=2**40, flush_bytes=2**50, flush_seconds=1e9)
        # Keys are indices of steps since the last flush, so that an interrupt at any time is safe.
        self._priorities: dict[int, float] = {}
        self._unset: list[tuple[np.ndarray, list[float]]] = []  # positions and priorities to set

    @property
    def unwritten(self) -> int:
        """Number of collected steps that are not written yet."""
        return self._writer.unwritten

    @property
    def is_flushed(self) -> bool:
        """Whether all steps are written and have their priorities."""
        return not self._writer.unreturned and not self._unset

    @property
    def is_open(self) -> bool:
        """Whether the writer accepts steps."""
        return self._writer.is_open

    def append(self, priority: float | None, /, **step: Any) -> None:
        """Add a step; if the priority is invalid, raise InvalidValue and add nothing."""
        if priority is None:
            if self._priorities:
                self._priorities.pop(self._writer.unreturned, None)
        elif math.isfinite(priority) and priority >= 0:
            self._priorities[self._writer.unreturned] = float(priority)
        else:
            raise expdb.InvalidValue(
                f"a priority must be finite and at least 0, such as |TD error|, got {priority}"
            )
        self._writer.append(**{"task_id": "default", **step})

    def flush(self) -> np.ndarray:
        """Write the steps, set their priorities, and return their positions.

        If an error interrupts a call, the next call completes the work.
        """
        positions = self._writer.flush()
        priorities, self._priorities = self._priorities, {}
        places = [place for place in priorities if place < len(positions)]
        if places:
            self._unset.append((positions[places], [priorities[place] for place in places]))
        while self._unset:
            self._buffer.update_priorities(*self._unset[0])
            del self._unset[0]
        return positions

    def close(self) -> None:
        """Flush, and accept no more steps."""
        if self._writer.is_open:
            self.flush()
            self._writer.close()
