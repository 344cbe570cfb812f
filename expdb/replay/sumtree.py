"""A sum tree: draw from a million weights, or change some of them, in a few NumPy calls."""

import math

import numpy as np

WIDTH = 16
TOP = 8192  # maximum number of sums in the top level; up to this size, fewer levels are faster
# The product of a row and this matrix is the array of cumulative sums of the row. The product is
# five times as fast as cumsum and gives the same result, because products with 0 and 1 are exact.
_SO_FAR = np.triu(np.ones((WIDTH, WIDTH)))


class SumTree:
    """Hold non-negative float64 weights by row, and draw rows in proportion to them.

    Each level holds the sums of 16 entries of the level below it; the lowest level holds the
    weights. A draw descends from the top level to the weights. A changed sum is always computed
    from the entries below it and never adjusted, so the tree is a function of its weights and
    rounding errors do not accumulate.
    """

    def __init__(self, rows: int):
        blocks = [-(-max(rows, 1) // WIDTH)]  # number of blocks per level, the lowest level first
        while blocks[-1] > TOP:
            blocks.append(-(-blocks[-1] // WIDTH))
        self._levels = [np.zeros((count, WIDTH)) for count in blocks]
        self._top_rows = np.zeros((-(-blocks[-1] // WIDTH), WIDTH))
        self._top = self._top_rows.reshape(-1)[: blocks[-1]]
        # The sum of all weights before each entry of the top level, and the sum of all weights.
        self._before_blocks = np.zeros(self._top_rows.size + 1)
        self._above = [*[level.reshape(-1) for level in self._levels[1:]], self._top]
        self.weights = self._levels[0].reshape(-1)  # the same memory, by row
        # The least weight above 0 in each block of 16 rows, set when `minimum` is first called.
        # For a million weights, the minimum of this array takes 20 microseconds. The minimum of
        # all weights would take 1 ms.
        self._least: np.ndarray | None = None
        self._total: float | None = 0.0  # None until it is computed

    @property
    def nbytes(self) -> int:
        """Size of all levels in bytes."""
        least = 0 if self._least is None else self._least.nbytes
        return sum(level.nbytes for level in self._levels) + 2 * self._top.nbytes + least

    def set(self, rows: np.ndarray, weights: np.ndarray | float) -> None:
        """Set the weights of rows; if a row occurs more than once, the last weight wins."""
        self.weights[rows], self._total = weights, None
        if 4 * len(rows) > len(self.weights):
            self.sum_up()
            return
        for level, above in zip(self._levels, self._above, strict=True):
            rows = rows // WIDTH
            blocks = level.take(rows, 0)
            above[rows] = np.add.reduce(blocks, 1)
            if level is self._levels[0] and self._least is not None:
                self._least[rows] = _least_of(blocks)

    def sum_up(self) -> None:
        """Compute all sums again after `weights` was written to."""
        for level, above in zip(self._levels, self._above, strict=True):
            above[: len(level)] = level.sum(1)
        self._least = self._total = None

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self._total is None:
            sums = self._before_blocks[1:].reshape(-1, WIDTH)
            np.matmul(self._top_rows, _SO_FAR, sums)  # up to three times as fast as cumsum
            sums[1:] += sums[:-1, -1].cumsum()[:, None]
            self._total = float(self._before_blocks[-1])
        return self._total

    def minimum(self) -> float:
        """Return the least weight above 0."""
        if self._least is None:
            self._least = _least_of(self._levels[0])
        return float(self._least.min(initial=np.inf))

    def find(self, shares: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that shares of the total select, and their weights.

        Each share is from 0 to less than 1. Weights are summed from row `first` on, and after the
        last row from row 0 on. Rows of weight 0 are never returned.
        """
        total, before = self.total, self._before_blocks
        rest = shares * math.nextafter(total, 0.0)  # below the total in spite of rounding
        if first:
            rest = (rest + self._before(first)) % total
        at = before.searchsorted(rest, "right") - 1
        rest -= before.take(at)
        rows = self._descend(at, rest, exactly=False)
        # In one of 2**50 draws, rounding selects a row outside the block. This matters only if
        # the weight of the row is 0; then descend again with exact limits.
        weights = self.weights.take(rows)
        # With cold caches, `argmin` takes a third of the time of `min`.
        if len(rows) and not weights[weights.argmin()] > 0:
            rows = self._descend(at, rest, exactly=True)
            weights = self.weights.take(rows)
        return rows, weights

    def _descend(self, at: np.ndarray, rest: np.ndarray, exactly: bool) -> np.ndarray:
        """Return the rows that draws select below entries `at` of the top level.

        `rest` is the remaining sum of each draw, counted from the start of its entry. With
        `exactly`, keep the remaining sum below the sum of the block.
        """
        firsts = np.arange(0, len(at) * WIDTH, WIDTH)
        for level in reversed(self._levels):
            block = level.take(at, 0)
            sums = block @ _SO_FAR
            if exactly:
                rest = _below(np.maximum(rest, 0.0), sums[:, -1])
            child = (sums > rest[:, None]).argmax(1)
            at = at * WIDTH + child
            if level is not self._levels[0]:
                place = firsts + child
                rest = rest - (sums.take(place) - block.take(place))
        return at

    def _before(self, row: int) -> float:
        """Return the sum of the weights before a row."""
        total = 0.0
        for level in self._levels:
            row, place = divmod(row, WIDTH)
            if place:
                total += float(level[row, :place].sum())
        return total + float(self._top[:row].sum())


def _least_of(blocks: np.ndarray) -> np.ndarray:
    """Return the least weight above 0 of each block, infinity if there is none."""
    if len(blocks) and not blocks.reshape(-1)[blocks.argmin()] > 0:
        blocks = np.where(blocks > 0, blocks, np.inf)
    # Transpose the array, because NumPy is faster on contiguous rows.
    least: np.ndarray = np.minimum.reduce(np.ascontiguousarray(blocks.T))
    return least


def _below(values: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return the values, lowered to just below the limit where rounding put them at or above it."""
    below: np.ndarray = np.minimum(values, np.nextafter(limit, 0.0))
    return below
