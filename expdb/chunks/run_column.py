"""The column of ascending integers, such as the policy version of each token of a turn."""

from typing import Any

import numpy as np

from expdb.chunks.column import EMPTY, Buffer, Column, Node, offsets_of
from expdb.chunks.fields import Field
from expdb.chunks.number_arrays import array_of
from expdb.chunks.objects import read_ints, read_offsets
from expdb.chunks.values import MAX_VALUE_BYTES, check_size
from expdb.errors import ChunkDamaged, InvalidValue
from expdb.replay.ragged import RaggedArray


class RunColumn(Column):
    """A column of ascending integers, stored as runs of equal values.

    Arrow layout: struct validity; list validity, offsets; child validity, the value of each run;
    list validity, offsets; child validity, the length of each run.
    """

    nodes_per_column, buffers_per_column = 5, 9

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self._runs: list[tuple[bytes, bytes, int]] = []  # values, lengths (int32), elements

    @property
    def last_length(self) -> int:
        """The number of elements of the value of the last row."""
        return self._runs[-1][2]

    def append(self, value: Any) -> None:
        array = array_of(self, value)
        if array.ndim != 1:
            raise self.mismatch(array)
        check_size(array.nbytes, self.name)
        starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]])[: len(array)])
        values = array[starts]
        decrease = np.flatnonzero(values[1:] < values[:-1])
        if len(decrease):
            at = int(decrease[0])
            raise InvalidValue(
                f"{self.name} decreases from {values[at]} to {values[at + 1]} at index "
                f"{starts[at + 1]}; pass values in ascending order"
            )
        lengths = np.diff(starts, append=len(array)).astype(np.int32)
        self._runs.append((values.tobytes(), lengths.tobytes(), len(array)))
        self.rows += 1
        self.nbytes += values.nbytes + lengths.nbytes + 8

    def _add_blank(self) -> None:
        self._runs.append((EMPTY, EMPTY, 0))

    def _truncate(self, rows: int) -> None:
        del self._runs[rows:]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        counts = [len(lengths) // 4 for _, lengths, _ in self._runs]
        offsets, total = offsets_of(counts), sum(counts)
        nodes: list[Node] = [
            (self.rows, nulls), (self.rows, 0), (total, 0), (self.rows, 0), (total, 0)
        ]  # fmt: skip
        values = b"".join([values for values, _, _ in self._runs])
        lengths = b"".join([lengths for _, lengths, _ in self._runs])
        return nodes, [valid, EMPTY, offsets, EMPTY, values, EMPTY, offsets, EMPTY, lengths]


def read_runs(field: Field, rows: int, buffers: list[Buffer], start: int, stop: int) -> RaggedArray:
    """Decode rows [start, stop) of a `RunColumn`; check the lengths of all rows.

    A row without the field gives an empty array.
    """
    size = field.numpy.itemsize
    cuts = read_offsets(buffers[2], rows, len(buffers[4]) // size)
    if not np.array_equal(cuts, read_offsets(buffers[6], rows, len(buffers[8]) // 4)):
        raise ChunkDamaged("the runs and their lengths differ in number")
    values = np.frombuffer(buffers[4], field.numpy, int(cuts[-1]))
    lengths = read_ints(buffers[8], int(cuts[-1]), "lengths of runs")
    totals = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if len(lengths) and (
        lengths.min() < 1 or int(np.diff(totals[cuts]).max()) * size > MAX_VALUE_BYTES
    ):
        raise ChunkDamaged("the length of a run is not valid")
    first, end = cuts[start], cuts[stop]
    ends = totals[cuts[start : stop + 1]] - totals[first]
    return RaggedArray(np.repeat(values[first:end], lengths[first:end]), ends[:-1], np.diff(ends))
