"""Arrays of different lengths, such as the tokens of turns, stored in one array."""

from __future__ import annotations  # methods of RaggedArray return RaggedArray

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb.names import UNKNOWN


@dataclass(frozen=True)
class RaggedArray:
    """Arrays of different lengths, stored in one array.

    Array k is ``values[starts[k] : starts[k] + lengths[k]]``. Arrays may overlap.
    """

    values: np.ndarray  # [M, ...]
    starts: np.ndarray  # int64 [N]
    lengths: np.ndarray  # int64 [N]; -1 if the array is missing
    aligned_with: str | None = None  # the field with as many values, if one is declared
    filler: float = 0  # the value of tokens without a value

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[np.ndarray | None],
        dtype: Any = np.float32,
        inner: tuple[int, ...] = (),
    ) -> RaggedArray:
        """Join arrays that differ only in their length; None becomes a missing array.

        `dtype` and `inner`, the dimensions after the first, apply if all arrays are missing.
        """
        present = [array for array in arrays if array is not None]
        lengths = np.array([UNKNOWN if array is None else len(array) for array in arrays], np.int64)
        counts = np.maximum(lengths, 0)
        values = np.concatenate(present) if present else np.empty((0, *inner), dtype)
        return cls(values, np.cumsum(counts) - counts, lengths)

    @classmethod
    def missing(cls, count: int, dtype: np.dtype, inner: tuple[int, ...]) -> RaggedArray:
        """Return `count` missing arrays; `inner` are the dimensions after the first."""
        starts = np.zeros(count, np.int64)
        return cls(np.empty((0, *inner), dtype), starts, np.full(count, UNKNOWN))

    def __len__(self) -> int:
        return len(self.starts)

    def to_list(self) -> list[np.ndarray | None]:
        """Return the arrays as copies, and None for a missing array."""
        values = self.values
        return [
            values[start : start + length].copy() if length >= 0 else None
            for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        ]

    def place_at(self, indices: np.ndarray, count: int) -> RaggedArray:
        """Return `count` arrays: these arrays at `indices`, and missing arrays elsewhere."""
        starts, lengths = np.zeros(count, np.int64), np.full(count, UNKNOWN)
        starts[indices], lengths[indices] = self.starts, self.lengths
        return replace(self, starts=starts, lengths=lengths)

    def mask_missing(self, present: np.ndarray) -> RaggedArray:
        """Mark the arrays as missing where `present` is False, and return the result."""
        return replace(self, lengths=np.where(present, self.lengths, UNKNOWN))

    def take_leading(self, indices: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the first `counts` elements of the arrays at `indices`, concatenated."""
        return take_slices(self.values, self.starts[indices], counts)


def take_slices(values: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the slices of `values` with the given starts and lengths, concatenated.

    The result is a view if the slices are adjacent.
    """
    ends = starts + counts
    if len(starts) and (starts[1:] == ends[:-1]).all():  # adjacent slices need no copy
        return values[starts[0] : ends[-1]]
    if (starts[1:] >= ends[:-1]).all():  # a mask is faster than indices
        is_taken = np.arange(2 * len(starts) + 1) % 2 == 1
        mask = np.repeat(is_taken, alternate_gaps_and_slices(starts, counts, len(values)))
        return np.asarray(values[mask])
    skipped = starts - (np.cumsum(counts) - counts)
    return np.asarray(values[np.repeat(skipped, counts) + np.arange(int(counts.sum()))])


def alternate_gaps_and_slices(starts: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """Return the lengths of gaps and slices in turn: first gap, first slice, ..., last gap.

    The slices must be sorted by start and must not overlap.
    """
    edges = np.stack((starts, starts + counts), 1).reshape(-1)
    return np.diff(edges, prepend=0, append=size)
