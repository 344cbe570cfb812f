"""The base class of the columns of a chunk that is being filled."""

import itertools
from abc import ABC, abstractmethod
from array import array as numbers
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from expdb.chunks.fields import TOKEN_FIELDS, Field
from expdb.errors import FieldMismatch

Buffer = bytes | bytearray | memoryview


Node = tuple[int, int]  # length, nulls


EMPTY = b""


def offsets_of(lengths: Iterable[int]) -> bytes:
    """Return the int32 offsets of Arrow: the cumulative sums of the lengths, starting with 0.

    For one row, NumPy would take ten times as long.
    """
    return numbers("i", itertools.accumulate(lengths, initial=0)).tobytes()


def bits_of(flags: list[bool]) -> bytes:
    """Return booleans as an Arrow bitmap."""
    if True not in flags:
        return bytes((len(flags) + 7) // 8)
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()


class Column(ABC):
    """Values of one field that will form a column of a chunk."""

    nodes_per_column: ClassVar[int]
    buffers_per_column: ClassVar[int]
    value_buffer: ClassVar[int | None] = None  # index of the buffer with the sharable values

    def __init__(self, name: str, field: Field):
        self.name, self.field = name, field
        self.rows = 0
        self.nulls: list[int] = []
        self.nbytes = 0  # approximate size in the chunk, before compression

    @property
    def last_length(self) -> int:
        """The length of the first dimension of the value of the last row; 0 if it has none."""
        return (self.field.shape or (0,))[0] or 0

    @abstractmethod
    def append(self, value: Any) -> None:
        """Add one value.

        If the field cannot store the value, raise FieldMismatch or InvalidValue and change
        nothing.
        """

    def extend(self, values: np.ndarray) -> None:
        """Add the rows of an array that has the exact type of the field."""
        for value in values:
            self.append(value)

    def copy(self, stored: Any, present: bytes) -> None:
        """Add rows of a column of another chunk.

        `stored` is bytes for a fixed-width field, otherwise a list. `present` has one byte per row.
        """
        for value, there in zip(stored, present, strict=True):
            if there:
                self.append(value)
            else:
                self.append_null()

    def append_null(self) -> None:
        """Add a row that lacks the field."""
        self.nulls.append(self.rows)
        self._add_blank()
        self.rows += 1

    def _mark(self, present: bytes) -> None:
        if 0 in present:
            self.nulls += [self.rows + k for k, there in enumerate(present) if not there]

    @abstractmethod
    def _add_blank(self) -> None:
        """Add the placeholder of a missing value."""

    def truncate(self, rows: int) -> None:
        """Keep only the first `rows` rows.

        `Rows` removes a new row in this way if one of its values is invalid or an interrupt
        occurs.
        """
        self.rows = rows
        while self.nulls and self.nulls[-1] >= rows:
            self.nulls.pop()
        self._truncate(rows)

    @abstractmethod
    def _truncate(self, rows: int) -> None:
        """Keep only the first `rows` values."""

    def validity(self) -> tuple[int, bytes]:
        """Return the number of nulls and the validity bitmap, which is empty without nulls."""
        if not self.nulls:
            return 0, EMPTY
        missing = set(self.nulls)
        return len(missing), bits_of([row not in missing for row in range(self.rows)])

    def value_sizes(self) -> list[int]:
        """Return the size in bytes of each value in the buffer `value_buffer`."""
        return []

    def value_counts(self) -> list[int]:
        """Return how many of these values each row adds."""
        return [1] * self.rows

    @abstractmethod
    def encode(self) -> tuple[list[Node], list[Buffer]]:
        """Return the nodes and buffers of the column."""

    def mismatch(self, value: Any) -> FieldMismatch:
        """Return the error for a value whose type is not the type of the field."""
        actual = (
            f"{value.dtype}{list(value.shape)}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        return FieldMismatch(
            f"field {self.name!r} has type {self.field}, got {actual}; {self.cure(value)}"
        )

    def cure(self, value: Any) -> str:
        """Return the advice for a value of another type."""
        field = self.field
        if (
            isinstance(value, np.ndarray)
            and field.shape
            and value.dtype.name == field.dtype
            and value.ndim == len(field.shape)
        ):
            shape = tuple(
                n if n == m else None for n, m in zip(field.shape, value.shape, strict=True)
            )
            others = "other shapes"
            if len(shape) == 1 and (self.name in TOKEN_FIELDS or value.dtype.kind in "iu"):
                others = "other lengths (for tokens, use fields=expdb.TOKEN_FIELDS)"
            return (
                f"{self._declared(Field(field.dtype, shape))} to store {others}, or pad the array"
            )
        if field.shape and field.dtype == "int64" and _is_floating(value):  # a type by inference
            return self._declared(Field("float64", field.shape))
        if isinstance(value, np.ndarray) and field.shape and field.has_shape(value.shape):
            tensor = f"convert a tensor with .to(torch.{field.dtype})"
            return f"convert it with .astype({field.dtype!r}), or {tensor}"
        if isinstance(value, (list, tuple)) and field.shape:
            return f"pass np.array(value, {field.dtype!r}), or np.stack(...) of a list of arrays"
        if isinstance(value, float) and not field.varies and field.numpy.kind in "iu":
            return f"{self._declared(Field('float64'))}, or pass floats from the first value on"
        return "convert the value, or use another field name"

    def _declared(self, field: Field) -> str:
        shape = f", shape={field.shape}" if field.shape else ""
        return (
            f"declare it before its first value with db.buffer(name, fields={{{self.name!r}: "
            f"expdb.Field({field.dtype!r}{shape})}})"
        )


def _is_floating(value: Any) -> bool:
    """Return whether a value is an array of floats, or a list with a float."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "f")
    return isinstance(value, (list, tuple)) and any(type(number) is float for number in value)
