"""A struct array that stores the narrow columns of a row side by side.

Sampled rows are at random places in memory. With one array per column, every column of a row would
cause a cache miss. In a record of 64 bytes, the size of a cache line, a row causes one cache miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from expdb.memory.batch_arrays import BatchArrays

LINE = 64  # bytes of a cache line, on all usual machines
MOST = 4 * LINE  # maximum bytes of a record; a column that does not fit has an array of its own
# Number types by size in bytes. NumPy copies them faster than void types of the same size.
_NUMBERS: Mapping[int, Any] = {8: np.int64, 16: np.complex128}
_NONE: Mapping[str, np.dtype[Any]] = {}


class RecordArray:
    """A struct array of `count` rows with as many columns as fit, chosen in the given order.

    `columns` maps names to dtype and shape. `fillers` are scalar columns that are added if they do
    not make the record larger. `packed[name]` is a view of a column. Read and write it by index,
    not with `take`, which would first copy the whole column.
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
        # Each column starts at a multiple of its alignment, so the widest numbers come first.
        chosen.sort(key=lambda column: -column[1].alignment)
        formats, offsets, at = [], [], 0
        for _, dtype, shape, nbytes in chosen:
            at += -at % dtype.alignment
            formats.append((dtype, shape))
            offsets.append(at)
            at += nbytes
        self.dtype = np.dtype(
            {
                "names": [column[0] for column in chosen], "formats": formats, "offsets": offsets,
                "itemsize": _record_size(max(at, 1)),
            }
        )  # fmt: skip
        # The same layout with one item per column and row. Copying four numbers of 4 bytes one by
        # one takes four times as long as copying them as one item.
        items = {
            "formats": [_item(dtype, shape, nbytes) for _, dtype, shape, nbytes in chosen],
            "names": self.dtype.names, "offsets": offsets, "itemsize": self.dtype.itemsize,
        }  # fmt: skip
        self.items = np.dtype(items)  # type: ignore[call-overload]
        # The type of one row of each column; None if it is the same as the type of the item.
        self.types = {
            name: np.dtype((dtype, shape)) if shape else None for name, dtype, shape, _ in chosen
        }
        self.names = frozenset(self.types)  # names of the columns in the records
        self.records = _allocate_records(count, self.dtype.itemsize)
        self._fields = self.records.view(self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of all records in bytes."""
        return self.records.nbytes

    def __getitem__(self, name: str) -> np.ndarray:
        column: np.ndarray = self._fields[name]
        return column

    def take(self, rows: np.ndarray, arrays: BatchArrays) -> RecordCopies:
        """Return copies of the records at `rows`, an index array of any shape."""
        records = RecordCopies(self, rows.shape, arrays)
        records.take(rows)
        return records


class RecordCopies:
    """Copies of packed records in reusable memory, with views of the columns."""

    def __init__(self, packed: RecordArray, shape: tuple[int, ...], arrays: BatchArrays):
        self.packed = packed
        self.raw = arrays.empty(shape, packed.records.dtype)
        self.flat = self.raw.reshape(-1)

    def take(self, rows: np.ndarray) -> None:
        """Copy the records at `rows`, which must fill the array and must not be negative."""
        self.packed.records.take(rows.reshape(-1), out=self.flat, mode="clip")

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Read-only views of the columns."""
        fields = self.raw.view(self.packed.dtype)
        fields.flags.writeable = False
        return {name: fields[name] for name in self.packed.types}

    @cached_property
    def items(self) -> dict[str, np.ndarray]:
        """Views of the columns with one item per row.

        To get a column, copy its view. If `RecordArray.types` has a type for it, view the copy as
        this type.
        """
        fields = self.raw.view(self.packed.items)
        return {name: fields[name] for name in self.packed.types}


def _item(dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int) -> np.dtype[Any]:
    """Return the type of one item that contains all numbers of one row of a column."""
    return np.dtype(_NUMBERS.get(nbytes, (np.void, nbytes))) if shape else dtype


def _record_size(used: int) -> int:
    """Return the size of a record, rounded up to whole cache lines if that adds little."""
    lines = used + -used % LINE
    return lines if lines == LINE or lines - used <= lines // 8 else used + -used % 8


def _allocate_records(count: int, size: int) -> np.ndarray:
    """Return uninitialized records that start at the beginning of a cache line."""
    room = np.empty(count * size + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + count * size].view(np.dtype((np.void, size)))
