"""The narrow columns of every row, side by side.

A row that is drawn is at a random place in memory. Were each of its columns in an array of its own,
each would be a cache miss; packed into one record of 64 bytes, which is a cache line, they are one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from expdb.memory.batch_arrays import BatchArrays

LINE = 64  # bytes of a cache line, on all usual machines
MOST = 4 * LINE  # bytes of a record; what is left out has an array of its own
# By their size: copied faster than other bytes.
_NUMBERS: Mapping[int, Any] = {8: np.int64, 16: np.complex128}
_NONE: Mapping[str, np.dtype[Any]] = {}


class Packed:
    """Records of `count` rows, each with the columns that fit, in the order that is given.

    `columns` are dtype and shape of each; `fillers` are numbers that are added where there is room
    left. `[name]` is a view of a column, to be read and written by index, never by `take`: that
    would copy all of it first.
    """

    def __init__(
        self,
        count: int,
        columns: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        fillers: Mapping[str, np.dtype[Any]] = _NONE,
    ):
        chosen: list[tuple[str, np.dtype[Any], tuple[int, ...], int]] = []
        size = 0
        for name, (dtype, shape) in columns.items():
            nbytes = dtype.itemsize * int(np.prod(shape, dtype=int))
            if 0 < nbytes <= LINE and size + nbytes <= MOST:
                chosen.append((name, dtype, shape, nbytes))
                size += nbytes
        for name, dtype in fillers.items():
            if size and _record_size(size + dtype.itemsize) == _record_size(size):
                chosen.append((name, dtype, (), dtype.itemsize))
                size += dtype.itemsize
        # Each at a multiple of its own alignment: the widest numbers first.
        chosen.sort(key=lambda one: -one[1].alignment)
        formats, offsets, at = [], [], 0
        for _, dtype, shape, nbytes in chosen:
            at += -at % dtype.alignment
            formats.append((dtype, shape))
            offsets.append(at)
            at += nbytes
        self.dtype = np.dtype(
            {
                "names": [one[0] for one in chosen], "formats": formats, "offsets": offsets,
                "itemsize": _record_size(max(at, 1)),
            }
        )  # fmt: skip
        # The same, with one item for all numbers of a row: copied number by number, four of 4 bytes
        # take four times as long.
        items = {
            "formats": [_item(dtype, shape, nbytes) for _, dtype, shape, nbytes in chosen],
            "names": self.dtype.names, "offsets": offsets, "itemsize": self.dtype.itemsize,
        }  # fmt: skip
        self.items = np.dtype(items)  # type: ignore[call-overload]
        # The type of each column's row, None where its item is that.
        self.types = {
            name: np.dtype((dtype, shape)) if shape else None for name, dtype, shape, _ in chosen
        }
        self.names = frozenset(self.types)  # of the columns that are here
        self.records = _aligned(count, self.dtype.itemsize)
        self._fields = self.records.view(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.records.nbytes

    def __getitem__(self, name: str) -> np.ndarray:
        column: np.ndarray = self._fields[name]
        return column

    def take(self, rows: np.ndarray, arrays: BatchArrays) -> Records:
        """Return copies of the records of rows, of any shape."""
        records = Records(self, rows.shape, arrays)
        records.take(rows)
        return records


class Records:
    """Copies of packed records, in room that can be used again, with views of the columns."""

    def __init__(self, packed: Packed, shape: tuple[int, ...], arrays: BatchArrays):
        self.packed = packed
        self.raw = arrays.empty(shape, packed.records.dtype)
        self.flat = self.raw.reshape(-1)

    def take(self, rows: np.ndarray) -> None:
        """Copy the records of as many rows as there is room for; none of them is negative."""
        self.packed.records.take(rows.reshape(-1), out=self.flat, mode="clip")

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns, read-only."""
        fields = self.raw.view(self.packed.dtype)
        fields.flags.writeable = False
        return {name: fields[name] for name in self.packed.types}

    @cached_property
    def items(self) -> dict[str, np.ndarray]:
        """The columns with one item for all numbers of a row.

        A copy of one, viewed as the type in `Packed.types` if there is one, is the column.
        """
        fields = self.raw.view(self.packed.items)
        return {name: fields[name] for name in self.packed.types}


def _item(dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int) -> np.dtype[Any]:
    """Return the type of one item that has all numbers of a column's row."""
    return np.dtype(_NUMBERS.get(nbytes, (np.void, nbytes))) if shape else dtype


def _record_size(used: int) -> int:
    """Return the size of a record: whole cache lines where that adds little."""
    lines = used + -used % LINE
    return lines if lines == LINE or lines - used <= lines // 8 else used + -used % 8


def _aligned(count: int, size: int) -> np.ndarray:
    """Return records that begin where a cache line does, not written to."""
    room = np.empty(count * size + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + count * size].view(np.dtype((np.void, size)))
