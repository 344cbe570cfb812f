"""A sum tree: draw from a million weights, or change some, in a few NumPy calls."""

import math

import numpy as np

WIDTH = 16
TOP = 8192  # sums that a draw may add up each time: fewer levels are faster, up to here
# A row times this is the row's sums so far. Five times as fast as cumsum, and the same: products
# with 0 and 1 are exact.
_SO_FAR = np.triu(np.ones((WIDTH, WIDTH)))


class SumTree:
    """Hold non-negative weights by row, and draw rows in proportion to them; float64.

    Each level holds the sums of 16 entries of the one below, the lowest the weights; a draw walks
    from the last to the first. Every sum is added up anew from what is under it, never adjusted, so
    the tree is a function of its weights and errors do not add up.
    """

    def __init__(self, rows: int):
        blocks = [-(-max(rows, 1) // WIDTH)]  # of each level, the lowest first
        while blocks[-1] > TOP:
            blocks.append(-(-blocks[-1] // WIDTH))
        self._levels = [np.zeros((count, WIDTH)) for count in blocks]
        self._top = np.zeros(blocks[-1])
        # The sum of what is before each block of the last level, and of all.
        self._before_blocks = np.zeros(blocks[-1] + 1)
        self._above = [*[level.reshape(-1) for level in self._levels[1:]], self._top]
        self.weights = self._levels[0].reshape(-1)  # the same memory, by row
        # The least weight above 0 of each 16 rows, once anybody has asked for it: a million weights
        # take a millisecond, and these 20 microseconds.
        self._least: np.ndarray | None = None
        self._total: float | None = 0.0  # None where it is not added up yet
        # How many there were: a signal's handler may change weights in the midst of a change.
        self._changes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        least = 0 if self._least is None else self._least.nbytes
        return sum(level.nbytes for level in self._levels) + 2 * self._top.nbytes + least

    def set(self, rows: np.ndarray, weights: np.ndarray | float) -> None:
        """Set the weights of rows; of a row given twice the last one counts."""
        self._changes = mine = self._changes + 1
        self.weights[rows], self._total = weights, None
        if 4 * len(rows) > len(self.weights):
            self.sum_up()
            return
        if self._least is not None:
            blocks = rows // WIDTH
            self._least[blocks] = _least_of(self._levels[0].take(blocks, 0))
        for level, above in zip(self._levels, self._above, strict=True):
            rows = rows // WIDTH
            above[rows] = level.take(rows, 0).sum(1)
        self._total = None
        if self._changes != mine:
            self.sum_up()

    def sum_up(self) -> None:
        """Add up all sums, after `weights` was written to."""
        mine = None
        while mine != self._changes:
            mine = self._changes
            for level, above in zip(self._levels, self._above, strict=True):
                above[: len(level)] = level.sum(1)
            self._least = self._total = None

    @property
    def total(self) -> float:
        """The sum of all weights."""
        if self._total is None:
            self._top.cumsum(out=self._before_blocks[1:])
            self._total = float(self._before_blocks[-1])
        return self._total

    def minimum(self) -> float:
        """Return the least weight above 0."""
        if self._least is None:
            self._least = _least_of(self._levels[0])
        return float(self._least.min(initial=np.inf))

    def find(self, shares: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the row at each share of the total, from 0 to less than 1, and their weights.

        Shares are counted from a first row on, and around.

        Never one of weight 0.
        """
        total, before = self.total, self._before_blocks
        rest = shares * math.nextafter(total, 0.0)  # below it, whatever is rounded
        if first:
            rest = (rest + self._before(first)) % total
        at = before.searchsorted(rest, "right") - 1
        rest -= before.take(at)
        rows = self._descend(at, rest, exactly=False)
        # What rounding has put before the first row of a block, or behind the last one, is a matter
        # of one draw in 2**50, and of none unless it leads to a row that may not be drawn.
        weights = self.weights.take(rows)
        # Where caches are cold `argmin` takes a third of the time of `min`.
        if len(rows) and not weights[weights.argmin()] > 0:
            rows = self._descend(at, rest, exactly=True)
            weights = self.weights.take(rows)
        return rows, weights

    def _descend(self, at: np.ndarray, rest: np.ndarray, exactly: bool) -> np.ndarray:
        """Return the rows below sums of the last level, at what is left of each sum."""
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
    """Return the least weight above 0 of each block, infinity where there is none."""
    least: np.ndarray = np.where(blocks > 0, blocks, np.inf).min(1)
    return least


def _below(values: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return the values, those that rounding has put at the limit or above just below it."""
    below: np.ndarray = np.minimum(values, np.nextafter(limit, 0.0))
    return below
