"""The memory of batches that nobody has any more, used again for later ones.

Fresh memory is slow: the system hands it out in pages of 4 KB, and clears each one when it is first
touched. For stacks of frames that takes up to ten times as long as copying them.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

LEAST = 64 << 10  # bytes of an array: smaller ones the allocator uses again by itself
MOST_BYTES = 64 << 20  # of all that is kept
MOST_ARRAYS = 32


class BatchArrays:
    """Arrays that were handed out, each handed out again once there is no reference to it.

    An array refers to the memory that it is a view of, and so does whatever was made of it without
    a copy: another view, a memoryview, a tensor. So a batch stays what it is for as long as
    anybody can reach it. Use it under a lock.
    """

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []  # the one unused for longest first

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(one.nbytes for one in self._kept)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array like `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST or size > MOST_BYTES // 2 or dtype.hasobject or not _COUNTS:
            return np.empty(shape, dtype)
        # Sizes that differ a little share their memory: an eighth of it may be unused.
        size += -size % (1 << size.bit_length() - 4)
        return np.ndarray(shape, dtype, self._memory(size))

    def taken(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return rows of an array; none of them is negative."""
        if rows.size * array.itemsize * math.prod(array.shape[1:]) < LEAST:
            return array.take(rows, 0)
        out = self.empty((*rows.shape, *array.shape[1:]), array.dtype)
        # The default mode would take them into a copy of `out` first.
        return array.take(rows, 0, out, "clip")

    def _memory(self, size: int) -> np.ndarray:
        # Nobody else has the list meanwhile, as a signal's handler may sample in between.
        kept, self._kept = self._kept, []
        for k in range(len(kept)):
            if kept[k].nbytes == size and _references(kept, k) == _ALONE:
                found = kept.pop(k)
                break
        else:
            found = np.empty(size, np.uint8)
        kept.append(found)
        while len(kept) > MOST_ARRAYS or sum(one.nbytes for one in kept) > MOST_BYTES:
            kept.pop(0)
        self._kept = kept
        return found


def _references(arrays: list[np.ndarray], k: int) -> int:
    return sys.getrefcount(arrays[k])


_ALONE = _references([np.empty(0)], 0)  # that of the list
# Elsewhere objects are not counted, or the count may be behind.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
