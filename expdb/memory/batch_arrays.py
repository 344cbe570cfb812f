"""Reuse the memory of batches that are no longer referenced.

Fresh memory is slow: the operating system maps it in pages of 4 KB and clears each page at the
first access. For stacks of frames this takes up to ten times as long as copying the frames.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

LEAST = 64 << 10  # minimum bytes to reuse; the allocator reuses the memory of smaller arrays
MOST_BYTES = 64 << 20  # total size of the arrays that are kept
MOST_ARRAYS = 32


class BatchArrays:
    """Allocate arrays, and reuse the memory of arrays that are no longer referenced.

    An array holds a reference to its memory, and so does every object that shares the memory with
    it: a view, a memoryview or a tensor. A batch therefore stays unchanged while it is in use. Use
    this class under a lock.
    """

    def __init__(self) -> None:
        self._kept: list[np.ndarray] = []  # least recently used first

    @property
    def nbytes(self) -> int:
        """Total size in bytes of the arrays that are kept."""
        return sum(array.nbytes for array in self._kept)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, like `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST or size > MOST_BYTES // 2 or dtype.hasobject or not _COUNTS:
            return np.empty(shape, dtype)
        # Arrays of similar size can reuse the same memory; up to an eighth of it is then unused.
        size += -size % (1 << size.bit_length() - 4)
        return np.ndarray(shape, dtype, self._memory(size))

    def taken(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the rows of an array at the indices `rows`, which must not be negative."""
        if rows.size * array.itemsize * math.prod(array.shape[1:]) < LEAST:
            return array.take(rows, 0)
        out = self.empty((*rows.shape, *array.shape[1:]), array.dtype)
        # The default mode would first write to a temporary copy of `out`.
        return array.take(rows, 0, out, "clip")

    def _memory(self, size: int) -> np.ndarray:
        kept = self._kept
        for k in range(len(kept)):
            if kept[k].nbytes == size and _references(kept, k) == _ALONE:
                memory = kept.pop(k)
                break
        else:
            memory = np.empty(size, np.uint8)
        kept.append(memory)
        while len(kept) > MOST_ARRAYS or sum(array.nbytes for array in kept) > MOST_BYTES:
            kept.pop(0)
        return memory


def _references(arrays: list[np.ndarray], k: int) -> int:
    return sys.getrefcount(arrays[k])


_ALONE = _references([np.empty(0)], 0)  # references to an array that only the list refers to
# Other Python implementations do not count references. Without the GIL, the count may be outdated.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
