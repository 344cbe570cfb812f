"""Steps that are gathered with the priorities they are to have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import expdb


class PrioritizedWriter:
    """Gather steps, and set their priorities when they are written.

    Only `flush` writes, as it tells the positions: call it after so many steps.
    """

    def __init__(self, buffer: expdb.ReplayBuffer):
        self._buffer = buffer
        self._writer = buffer.writer(flush_steps=2**40, flush_bytes=2**50, flush_seconds=1e9)
        # By the place of the step among the unwritten ones: an interrupt may come at any moment.
        self._priorities: dict[int, float] = {}

    @property
    def unwritten(self) -> int:
        """How many steps are gathered."""
        return self._writer.unwritten

    @property
    def is_open(self) -> bool:
        """Whether it takes steps."""
        return self._writer.is_open

    def append(self, priority: float | None, /, **step: Any) -> None:
        """Add a step; raise InvalidValue, and add nothing, for what cannot be a priority."""
        if priority is None:
            if self._priorities:
                self._priorities.pop(self._writer.unwritten, None)
        elif math.isfinite(priority) and priority >= 0:
            self._priorities[self._writer.unwritten] = float(priority)
        else:
            raise expdb.InvalidValue(
                f"a priority is {priority}: give finite numbers from 0, such as |TD error|"
            )
        self._writer.append(**step)

    def flush(self) -> np.ndarray:
        """Write the steps, set their priorities, and return their positions."""
        given, self._priorities = self._priorities, {}
        try:
            positions = self._writer.flush()
        except BaseException:
            if self._writer.unwritten:
                self._priorities = given
            raise
        known = [place for place in given if place < len(positions)]
        if known:
            self._buffer.update_priorities(positions[known], [given[place] for place in known])
        return positions

    def close(self) -> None:
        """Flush, and take no more steps."""
        if self._writer.is_open:
            self.flush()
            self._writer.close()
