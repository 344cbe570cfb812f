"""Columns of a chunk, one class per kind of field, that convert Python values to Arrow buffers.

The docstring of each class states its Arrow layout: the buffers of each node, depth first, as in
the IPC format. chunk.py and objects.py read exactly this layout and check every offset and length,
so that a corrupted message cannot cause reads outside the bytes of the message.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from expdb import checks
from expdb.chunks.column import EMPTY, Buffer, Column, Node, bits_of, offsets_of
from expdb.chunks.fields import Field
from expdb.chunks.infer import as_array, is_array
from expdb.chunks.values import check_size
from expdb.errors import FieldMismatch


@lru_cache(64)
def _limits_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest integer of a dtype; (1, 0) for other dtypes."""
    if dtype.kind not in "iu":
        return 1, 0
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _listed(values: np.ndarray) -> list[Any]:
    """Return the values as Python numbers, or as NumPy numbers if any is a float32 NaN.

    The conversion of a float32 NaN to a Python float would change its bits.
    """
    if values.dtype == np.float32 and np.isnan(values).any():
        return list(values)
    numbers: list[Any] = values.tolist()
    return numbers


class ScalarColumn(Column):
    """A column of numbers or booleans. Arrow layout: validity, data."""

    nodes_per_column, buffers_per_column = 1, 2

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self.values: list[Any] = []
        self._type = field.numpy.type
        self._python = {"b": bool, "i": int, "u": int, "f": float}[field.numpy.kind]
        self._itemsize = field.numpy.itemsize
        # Values of these types always fit the field. `_converted` checks all other values.
        self._as_is: tuple[type, ...] = (self._type,)
        if field.dtype in ("bool", "float64"):
            self._as_is = (self._type, self._python)
        self._low, self._high = _limits_of(field.numpy)

    def append(self, value: Any) -> None:
        if type(value) not in self._as_is and not (
            type(value) is int and self._low <= value <= self._high
        ):
            value = self._converted(value)
        self.values.append(value)
        self.rows += 1
        self.nbytes += self._itemsize

    def extend(self, values: np.ndarray) -> None:
        self.values.extend(_listed(values))
        self.rows += len(values)
        self.nbytes += values.nbytes

    def _converted(self, value: Any) -> Any:
        kind, dtype = self.field.numpy.kind, self.field.numpy
        if is_array(value) or isinstance(value, np.generic):
            array = as_array(value, self.name) if is_array(value) else np.asarray(value)
            if array.shape == () and array.dtype == dtype:
                return array[()]
            if array.shape or array.dtype.kind not in "iuf":
                raise self.mismatch(array)
            value = array.item()  # a number of another width is stored if it fits
        if kind == "b" or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.mismatch(value)
        if kind in "iu":
            if not isinstance(value, int):
                raise self.mismatch(value)
            if not self._low <= value <= self._high:
                raise FieldMismatch(
                    f"field {self.name!r} has type {self.field}, and {value} is out of range; "
                    f"{self._wider(value)}"
                )
            return value
        with np.errstate(over="ignore"):
            stored = (
                self._type(value)
                if isinstance(value, float)
                else self._type(float(value))
                if abs(value) < 2**1000
                else None
            )
        if stored is None or (stored.item() != value and value == value):
            raise FieldMismatch(
                f"field {self.name!r} has type {self.field}, which would round {value!r}; pass "
                f"np.{dtype.name}(value)"
            )
        return stored

    def _wider(self, value: int) -> str:
        fits = -(2**63) <= value < 2**63
        return (
            self._declared(Field("int64"))
            if fits
            else self._declared(Field("text")) + " and pass text"
        )

    def copy(self, stored: Any, present: bytes) -> None:
        self._mark(present)
        values = np.frombuffer(stored, self.field.numpy)
        self.values.extend(_listed(values))
        self.rows += len(values)
        self.nbytes += values.nbytes

    def _add_blank(self) -> None:
        self.values.append(self._type(0))

    def _truncate(self, rows: int) -> None:
        del self.values[rows:]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        if self.field.dtype == "bool":
            return [(self.rows, nulls)], [valid, bits_of([bool(value) for value in self.values])]
        return [(self.rows, nulls)], [valid, np.array(self.values, self.field.numpy).tobytes()]


class TensorColumn(Column):
    """A column of arrays of one shape. Arrow layout: validity; child validity, data."""

    nodes_per_column, buffers_per_column = 2, 3
    value_buffer = 2

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self.parts: list[bytes] = []
        self._dtype, self._shape, self._nbytes = field.numpy, tuple(field.shape), field.nbytes

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray:
            if not is_array(value):
                raise self.mismatch(value)
            value = as_array(value, self.name)
        if value.shape != self._shape or (
            value.dtype is not self._dtype and value.dtype != self._dtype
        ):
            raise self.mismatch(as_array(value, self.name))
        # A copy in C order, because environments may write the next observation into the array.
        self.parts.append(value.tobytes())
        self.rows += 1
        self.nbytes += self._nbytes

    def extend(self, values: np.ndarray) -> None:
        data, size = values.tobytes(), self._nbytes
        # One part per row, because `truncate` may remove some of the rows.
        self.parts.extend([data[k * size : (k + 1) * size] for k in range(len(values))])
        self.rows += len(values)
        self.nbytes += len(data)

    def copy(self, stored: Any, present: bytes) -> None:
        self._mark(present)
        self.parts.append(bytes(stored))
        self.rows += len(present)
        self.nbytes += len(stored)

    def _add_blank(self) -> None:
        self.parts.append(bytes(self._nbytes))

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:]

    def value_sizes(self) -> list[int]:
        return [self._nbytes] * self.rows

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        child = self.rows * (self._nbytes // self._dtype.itemsize)
        return [(self.rows, nulls), (child, 0)], [valid, EMPTY, b"".join(self.parts)]


class BytesColumn(Column):
    """A column of text or bytes. Arrow layout: validity, offsets, data."""

    nodes_per_column, buffers_per_column = 1, 3
    value_buffer = 2

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self.parts: list[bytes] = []

    def append(self, value: Any) -> None:
        if self.field.dtype == "text":
            if not isinstance(value, str):
                raise self.mismatch(value)
            part = checks.utf8(value, self.name)
        else:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise self.mismatch(value)
            part = bytes(value)
        check_size(len(part), self.name)
        self.parts.append(part)
        self.rows += 1
        self.nbytes += len(part) + 4

    def _add_blank(self) -> None:
        self.parts.append(EMPTY)

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:]

    def value_sizes(self) -> list[int]:
        return [len(part) for part in self.parts]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        return [(self.rows, nulls)], [
            valid,
            offsets_of([len(part) for part in self.parts]),
            b"".join(self.parts),
        ]


class VaryingColumn(Column):
    """A column of arrays of several dimensions, of which others than the first vary.

    Arrow layout: struct validity; list validity, offsets; child validity, data; list validity;
    child validity, shapes.
    """

    nodes_per_column, buffers_per_column = 5, 8
    value_buffer = 4

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self.parts: list[bytes] = []
        self.shapes: list[tuple[int, ...]] = []

    def append(self, value: Any) -> None:
        field = self.field
        if is_array(value):
            array = as_array(value, self.name)
            if array.dtype != field.numpy:
                raise self.mismatch(array)
        else:
            raise self.mismatch(value)
        if not field.has_shape(array.shape):
            raise self.mismatch(array)
        check_size(array.nbytes, self.name)
        self.parts.append(array.tobytes())
        self.shapes.append(array.shape)
        self.rows += 1
        self.nbytes += array.nbytes + 4 + 4 * array.ndim

    @property
    def last_length(self) -> int:
        return self.shapes[-1][0]

    def _add_blank(self) -> None:
        self.parts.append(EMPTY)
        self.shapes.append(tuple(n or 0 for n in self.field.shape))

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:], self.shapes[rows:]

    def value_sizes(self) -> list[int]:
        return [len(part) for part in self.parts]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        counts = [len(part) // self.field.numpy.itemsize for part in self.parts]
        shapes = np.array(self.shapes, np.int32).reshape(-1)
        nodes: list[Node] = [
            (self.rows, nulls), (self.rows, 0), (sum(counts), 0), (self.rows, 0), (len(shapes), 0)
        ]  # fmt: skip
        data = b"".join(self.parts)
        return nodes, [
            valid, EMPTY, offsets_of(counts), EMPTY, data, EMPTY, EMPTY, shapes.tobytes()
        ]  # fmt: skip
