"""Draw for a consumer within its limits; a batch may be smaller than requested."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from expdb.errors import TooFewRows
from expdb.memory.resident import Resident
from expdb.memory.usage import Usage
from expdb.names import UNKNOWN
from expdb.replay.samplers import Draw, Sampler
from expdb.sampling.request import Limits, SampleRequest

Columns = dict[str, np.ndarray]
DrawFunction = Callable[[int], Draw]  # takes the number of items to draw


@dataclass(frozen=True)
class Given(Sampler):
    """A placeholder for the sampler that drew a recorded batch, used when the batch is rebuilt."""

    named: tuple[str, ...] = ()

    checks_results: ClassVar[bool] = False

    def keys(self) -> tuple[str, ...]:
        """Return the names of the sampler's columns in the batch."""
        return self.named


def draw_within(
    resident: Resident,
    request: SampleRequest,
    draw: DrawFunction,
    rows_of: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, Columns]:
    """Draw items that a consumer may lease; return positions, rows, and the sampler's columns.

    If there are too few items, draw as many as possible. Raise TooFewRows if these are fewer than
    `at_least`.

    No step is drawn more often than the limit allows. If a draw exceeds the limit of a step, the
    surplus is drawn again while the exhausted steps are blocked. The result is distributed as if
    items were drawn one after another.
    """
    limits = request.limits
    assert limits is not None
    if resident.size < limits.min_size:
        raise TooFewRows(
            f"consumer {limits.consumer!r} has min_size={limits.min_size}, but only "
            f"{resident.size} steps are stored; store more steps, or wait with wait=seconds"
        )
    usage, size = limits.usage, request.size
    if usage.most is not None:  # a batch cannot have more items
        size = min(size, max(resident.size * usage.most, limits.at_least))
    if usage.most is None and limits.at_least == size:
        positions, columns = draw(size)
        return positions, rows_of(positions), columns
    parts = _Parts(usage, resident)
    try:
        while parts.count < size:
            if not parts.count:
                positions, columns = draw_at_least(draw, limits.at_least, size)
                size = len(positions)
            else:
                try:
                    positions, columns = draw(size - parts.count)
                except TooFewRows:
                    if parts.count < limits.at_least:
                        raise _too_few(limits, parts.count, request.unit.what) from None
                    break
            # Look the rows up now: once steps are blocked, an anchor may consist of other rows.
            rows = rows_of(positions)
            full = parts.add(positions, rows, columns)
            if parts.count < size:
                parts.block(full)
    finally:
        parts.unblock()
    return parts.joined()


def _too_few(limits: Limits, there: int, what: str) -> TooFewRows:
    return TooFewRows(
        f"at least {limits.at_least} {what} were requested, but only {there} can be leased; "
        "request fewer, pass at_least=1, or wait with wait=seconds"
    )


def draw_at_least(draw: DrawFunction, at_least: int, wanted: int) -> Draw:
    """Draw up to `wanted` items; raise TooFewRows if fewer than `at_least` can be drawn.

    Find the greatest possible number by trial draws, because only the sampler knows whether there
    are enough steps, episodes or tasks.
    """
    try:
        return draw(wanted)
    except TooFewRows:
        drawn, low, high = draw(at_least), at_least, wanted
    while high - low > 1:
        middle = (low + high) // 2
        try:
            drawn, low = draw(middle), middle
        except TooFewRows:
            high = middle
    return drawn


def positions_of(resident: Resident, rows: np.ndarray) -> np.ndarray:
    """Return the positions of rows, and UNKNOWN for negative rows."""
    return np.where(rows >= 0, resident.positions(rows), UNKNOWN)


class _Parts:
    """The parts of a batch that were drawn one after another."""

    def __init__(self, usage: Usage, resident: Resident):
        self._usage, self._resident = usage, resident
        self._parts: list[tuple[np.ndarray, np.ndarray, Columns]] = []
        self._items: list[np.ndarray] = []  # positions that were added
        self._blocked: list[np.ndarray] = []
        self.count = 0

    def add(self, positions: np.ndarray, rows: np.ndarray, columns: Columns) -> np.ndarray:
        """Add the draws within the limits; return the positions that have reached their limit."""
        items = positions_of(self._resident, rows)
        items = items if items.ndim == 2 else items[:, None]
        fits, full = _within(self._usage, self._items, items)
        taken = {name: column[fits] for name, column in columns.items()}
        self._parts.append((positions[fits], rows[fits], taken))
        self._items.append(items[fits].reshape(-1))
        self.count += int(fits.sum())
        return full

    def block(self, positions: np.ndarray) -> None:
        """Exclude positions from further draws."""
        self._blocked.append(positions.reshape(-1))
        self._usage.block(self._blocked[-1])

    def unblock(self) -> None:
        """Undo all calls of `block`."""
        for positions in self._blocked:
            self._usage.unblock(positions)

    def joined(self) -> tuple[np.ndarray, np.ndarray, Columns]:
        """Return the positions, rows and columns of all parts."""
        positions, rows, columns = zip(*self._parts, strict=True)
        if len(positions) == 1:
            return positions[0], rows[0], columns[0]
        joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        return np.concatenate(positions), _stacked(rows), joined


def _stacked(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the rows of all parts, padded with UNKNOWN to the same number of members."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=UNKNOWN)
            for part in parts
        ]
    )


def surplus(usage: Usage, positions: np.ndarray) -> np.ndarray:
    """Return a mask of the draws that exceed the limit of their position."""
    fits, _ = _within(usage, [], positions[:, None])
    return ~fits


def _within(
    usage: Usage, before: list[np.ndarray], drawn: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of the draws within the limits, and the positions at their limit.

    The draws in `before` are counted before the draws in `drawn`.
    """
    items = np.concatenate([*before, drawn.reshape(-1)])
    order = np.argsort(items, kind="stable")
    ordered = items[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    counts = np.diff(starts, append=len(ordered))
    rank = np.empty(len(items), np.int64)  # number of earlier draws of the same position
    rank[order] = np.arange(len(items)) - np.repeat(starts, counts)
    left = np.full(len(items), len(items))
    there = items != UNKNOWN
    left[there] = usage.left(items[there])
    begin = len(items) - drawn.size
    fits = np.asarray((rank < left)[begin:].reshape(drawn.shape).all(1))
    full = items[(rank + 1 >= left) & there]
    return fits, np.unique(full)
