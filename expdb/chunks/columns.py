"""A column of a chunk, one class a kind of field: Python values in, Arrow buffers out, and back.

Each class states the Arrow layout it writes (nodes and buffers, depth first, as in the IPC format)
and reads exactly that, with every offset and length checked, so that no damaged message can reach
outside its own bytes.
"""

import itertools
import json
from array import array as numbers
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from expdb import checks
from expdb.chunks.fields import Field, as_array, is_array
from expdb.chunks.values import check_size, encode_json, is_object
from expdb.errors import ChunkDamaged, FieldMismatch

Buffer = bytes | bytearray | memoryview
Node = tuple[int, int]  # length, nulls

_EMPTY = b""


def offsets_of(lengths: Iterable[int]) -> bytes:
    """Return Arrow's int32 offsets, one more than there are lengths.

    For one row NumPy would cost ten times as much.
    """
    return numbers("i", itertools.accumulate(lengths, initial=0)).tobytes()


def bits_of(flags: list[bool]) -> bytes:
    """Return booleans as Arrow's bitmap."""
    if True not in flags:
        return bytes((len(flags) + 7) // 8)
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()


class Column:
    """Values of one field on their way into a chunk."""

    nodes_per_column: ClassVar[int]
    buffers_per_column: ClassVar[int]

    def __init__(self, name: str, field: Field):
        self.name, self.field = name, field
        self.rows = 0
        self.nulls: list[int] = []
        self.nbytes = 0  # about what is stored, before compression

    def append(self, value: Any) -> None:
        """Add one value; raise FieldMismatch or InvalidValue, and change nothing.

        If the field cannot hold it.
        """
        raise NotImplementedError

    def copy(self, stored: Any, present: bytes) -> None:
        """Add rows of another chunk's column: bytes for fixed width, a list otherwise.

        `present` has a byte a row.
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

    def _add_blank(self) -> None:
        raise NotImplementedError

    def truncate(self, rows: int) -> None:
        """Keep the first rows: of a later one some field was refused.

        The adding was interrupted midway.
        """
        self.rows = rows
        while self.nulls and self.nulls[-1] >= rows:
            self.nulls.pop()
        self._truncate(rows)

    def _truncate(self, rows: int) -> None:
        raise NotImplementedError

    def validity(self) -> tuple[int, bytes]:
        """Return the number of nulls and the validity bitmap, empty where there are none."""
        if not self.nulls:
            return 0, _EMPTY
        missing = set(self.nulls)
        return len(missing), bits_of([row not in missing for row in range(self.rows)])

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        """Return the nodes and buffers of the column."""
        raise NotImplementedError

    def mismatch(self, value: Any) -> FieldMismatch:
        """Return the error for a value of another type than the field's."""
        found = (
            f"{value.dtype}{list(value.shape)}"
            if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        return FieldMismatch(
            f"field {self.name!r} holds {self.field}, not {found}: {self._cure(value)}"
        )

    def _cure(self, value: Any) -> str:
        """Return what to do about a value of another type."""
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
            return f"{self._declared(Field(field.dtype, shape))} for shapes that differ, or pad it"
        if isinstance(value, np.ndarray) and field.shape and value.shape == field.shape:
            return f"convert it with .astype({field.dtype!r})"
        if isinstance(value, (list, tuple)) and field.shape:
            return "pass np.array(...) of it, or np.stack(...) of a list of arrays"
        if isinstance(value, float) and not field.varies and field.numpy.kind in "iu":
            return f"{self._declared(Field('float64'))}, or give floats from the first one on"
        return "convert the value, or use another field name"

    def _declared(self, field: Field) -> str:
        shape = f", shape={field.shape}" if field.shape else ""
        return (
            f"declare it before its first value, db.buffer(name, fields={{{self.name!r}: "
            f"expdb.Field({field.dtype!r}{shape})}})"
        )


class ScalarColumn(Column):
    """Numbers and booleans: validity, data."""

    nodes_per_column, buffers_per_column = 1, 2

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self.values: list[Any] = []
        self._type = field.numpy.type
        self._python = {"b": bool, "i": int, "u": int, "f": float}[field.numpy.kind]
        self._itemsize = field.numpy.itemsize
        # A Python number goes as it is where it fits by definition; anything else is looked at in
        # _converted.
        self._as_is: tuple[type, ...] = (self._type,)
        if field.dtype in ("bool", "float64"):
            self._as_is = (self._type, self._python)
        limits = np.iinfo(field.numpy) if field.numpy.kind in "iu" else None
        self._low, self._high = (int(limits.min), int(limits.max)) if limits else (1, 0)

    def append(self, value: Any) -> None:
        if type(value) not in self._as_is and not (
            type(value) is int and self._low <= value <= self._high
        ):
            value = self._converted(value)
        self.values.append(value)
        self.rows += 1
        self.nbytes += self._itemsize

    def _converted(self, value: Any) -> Any:
        kind, dtype = self.field.numpy.kind, self.field.numpy
        if is_array(value) or isinstance(value, np.generic):
            array = as_array(value, self.name) if is_array(value) else np.asarray(value)
            if array.shape == () and array.dtype == dtype:
                return array[()]
            if array.shape or array.dtype.kind not in "iuf":
                raise self.mismatch(array)
            value = array.item()  # a number of another width goes where it fits, as Python's do
        if kind == "b" or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.mismatch(value)
        if kind in "iu":
            if not isinstance(value, int):
                raise self.mismatch(value)
            if not self._low <= value <= self._high:
                raise FieldMismatch(
                    f"field {self.name!r} holds {self.field}, and {value} is out of its range: "
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
                f"field {self.name!r} holds {self.field}, and {value!r} would be rounded: pass "
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
        self.values.extend(values.tolist())
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
    """Arrays of one shape: validity; child validity, data."""

    nodes_per_column, buffers_per_column = 2, 3

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
        # tobytes copies, in C order: environments write the next observation into the same array.
        self.parts.append(value.tobytes())
        self.rows += 1
        self.nbytes += self._nbytes

    def copy(self, stored: Any, present: bytes) -> None:
        self._mark(present)
        self.parts.append(bytes(stored))
        self.rows += len(present)
        self.nbytes += len(stored)

    def _add_blank(self) -> None:
        self.parts.append(bytes(self._nbytes))

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        child = self.rows * (self._nbytes // self._dtype.itemsize)
        return [(self.rows, nulls), (child, 0)], [valid, _EMPTY, b"".join(self.parts)]


class BytesColumn(Column):
    """Text and bytes: validity, offsets, data."""

    nodes_per_column, buffers_per_column = 1, 3

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
        self.parts.append(_EMPTY)

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        return [(self.rows, nulls)], [
            valid,
            offsets_of([len(part) for part in self.parts]),
            b"".join(self.parts),
        ]


class VaryingColumn(Column):
    """Arrays whose shape varies. One dimension: validity, offsets; child validity, data.

    More: struct validity; the same four; list validity; child validity, shapes.
    """

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
        elif isinstance(value, (list, tuple)) and len(field.shape) == 1:
            cell = ScalarColumn(self.name, Field(field.dtype))
            for element in value:
                cell.append(element)
            array = np.array(cell.values, field.numpy)
        else:
            raise self.mismatch(value)
        if array.ndim != len(field.shape) or any(
            n not in (None, m) for n, m in zip(field.shape, array.shape, strict=True)
        ):
            raise self.mismatch(array)
        check_size(array.nbytes, self.name)
        self.parts.append(array.tobytes())
        self.shapes.append(array.shape)
        self.rows += 1
        self.nbytes += array.nbytes + 4 + 4 * (array.ndim if array.ndim > 1 else 0)

    def _add_blank(self) -> None:
        self.parts.append(_EMPTY)
        self.shapes.append(tuple(n or 0 for n in self.field.shape))

    def _truncate(self, rows: int) -> None:
        del self.parts[rows:], self.shapes[rows:]

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        counts = [len(part) // self.field.numpy.itemsize for part in self.parts]
        nodes: list[Node] = [(self.rows, nulls), (sum(counts), 0)]
        buffers: list[Buffer] = [valid, offsets_of(counts), _EMPTY, b"".join(self.parts)]
        if len(self.field.shape) > 1:
            shapes = np.array(self.shapes, np.int32).reshape(-1)
            nodes = [(self.rows, nulls), (self.rows, 0), nodes[1], (self.rows, 0), (len(shapes), 0)]
            buffers = [valid, _EMPTY, *buffers[1:], _EMPTY, _EMPTY, shapes.tobytes()]
        return nodes, buffers


class JsonColumn(Column):
    """JSON, each distinct element once a chunk.

    A list of mappings (messages, tools) is its elements, anything else is one element. Per row: the
    JSON of the elements that the chunk had not seen, and references to all of its elements by their
    place among those. So the fifty turns of an episode that each hold all messages so far store
    every message once. Layout: struct validity; new: list validity, offsets, text validity,
    offsets, data; refs: list validity, offsets, child validity, data; is_list: validity, data.
    """

    nodes_per_column, buffers_per_column = 6, 12

    def __init__(self, name: str, field: Field):
        super().__init__(name, field)
        self._places: dict[bytes, int] = {}
        self._elements: list[bytes] = []
        self._new: list[int] = []
        self._refs: list[list[int]] = []
        self._is_list: list[bool] = []

    def append(self, value: Any) -> None:
        if is_array(value):
            raise self.mismatch(as_array(value, self.name))
        is_list = (
            isinstance(value, (list, tuple))
            and bool(value)
            and all(is_object(element) for element in value)
        )
        self._append(
            [encode_json(element, self.name) for element in (value if is_list else [value])],
            is_list,
        )

    def copy(self, stored: Any, present: bytes) -> None:
        for (texts, is_list), there in zip(stored, present, strict=True):
            if there:
                self._append(texts, is_list)
            else:
                self.append_null()

    def _append(self, texts: list[bytes], is_list: bool) -> None:
        places, elements = self._places, self._elements
        before, refs = len(elements), []
        for text in texts:
            place = places.get(text)
            if place is None:
                place = places[text] = len(elements)
                elements.append(text)
                self.nbytes += len(text) + 4
            refs.append(place)
        self._add(len(elements) - before, refs, is_list)
        self.rows += 1
        self.nbytes += len(refs) + 8

    def _add(self, new: int, refs: list[int], is_list: bool) -> None:
        self._new.append(new)
        self._refs.append(refs)
        self._is_list.append(is_list)

    def _add_blank(self) -> None:
        self._add(0, [], False)

    def _truncate(self, rows: int) -> None:
        del self._new[rows:], self._refs[rows:], self._is_list[rows:]
        if len(self._places) != (kept := sum(self._new)) or len(self._elements) != kept:
            del self._elements[kept:]
            self._places = {text: place for place, text in enumerate(self._elements)}

    def encode(self) -> tuple[list[Node], list[Buffer]]:
        nulls, valid = self.validity()
        refs = numbers("i", itertools.chain.from_iterable(self._refs))
        nodes = [
            (self.rows, nulls),
            (self.rows, 0),
            (len(self._elements), 0),
            (self.rows, 0),
            (len(refs), 0),
            (self.rows, 0),
        ]
        buffers: list[Buffer] = [
            valid,
            *(_EMPTY, offsets_of(self._new)),
            *(_EMPTY, offsets_of([len(text) for text in self._elements]), b"".join(self._elements)),
            *(_EMPTY, offsets_of([len(row) for row in self._refs])),
            *(_EMPTY, refs.tobytes()),
            *(_EMPTY, bits_of(self._is_list)),
        ]
        return nodes, buffers


def column_of(name: str, field: Field) -> Column:
    """Return an empty column for a field."""
    return _class_of(field)(name, field)


def _class_of(field: Field) -> type[Column]:
    if field.dtype == "json":
        return JsonColumn
    if field.dtype in ("text", "bytes"):
        return BytesColumn
    if None in field.shape:
        return VaryingColumn
    return TensorColumn if field.shape else ScalarColumn


def layout_of(field: Field) -> tuple[int, int]:
    """Return how many nodes and buffers the column of a field has."""
    kind = _class_of(field)
    if kind is VaryingColumn:
        return (2, 4) if len(field.shape) == 1 else (5, 8)
    return kind.nodes_per_column, kind.buffers_per_column


# -- back ------------------------------------------------------------------------------------------


def _ints(buffer: Buffer, count: int, what: str) -> np.ndarray:
    if len(buffer) < 4 * count:
        raise ChunkDamaged(f"{what} end early")
    return np.frombuffer(buffer, np.int32, count)


def _offsets(buffer: Buffer, rows: int, limit: int) -> np.ndarray:
    """Return checked offsets: they start at 0 or later, never fall, and end within `limit`."""
    offsets = _ints(buffer, rows + 1, "offsets")
    if offsets[0] < 0 or offsets[-1] > limit or (rows and int(np.diff(offsets).min()) < 0):
        raise ChunkDamaged("offsets point outside of their data")
    return offsets


def read_objects(
    field: Field, rows: int, buffers: list[Buffer], start: int, stop: int
) -> list[Any]:
    """Decode rows [start, stop) of a column of varying width; nulls come back as blanks."""
    if field.dtype in ("text", "bytes"):
        data = bytes(buffers[2])
        cuts = _offsets(buffers[1], rows, len(data))[start : stop + 1].tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(cuts)]
        return [part.decode() for part in parts] if field.dtype == "text" else parts
    if field.dtype == "json":
        return _read_json(rows, buffers, start, stop)
    size = field.numpy.itemsize
    several = len(field.shape) > 1
    offsets, values = (buffers[2], buffers[4]) if several else (buffers[1], buffers[3])
    cuts = _offsets(offsets, rows, len(values) // size)[start : stop + 1].tolist()
    arrays = [
        np.frombuffer(values, field.numpy, b - a, a * size).copy()
        for a, b in itertools.pairwise(cuts)
    ]
    if not several:
        return arrays
    dimensions = len(field.shape)
    shapes = (
        _ints(buffers[7], rows * dimensions, "shapes")
        .reshape(rows, dimensions)[start:stop]
        .tolist()
    )
    for array, shape in zip(arrays, shapes, strict=True):
        if min(shape) < 0 or int(np.prod(shape, dtype=object)) != array.size:
            raise ChunkDamaged("a shape does not fit its values")
    return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]


def _read_json(rows: int, buffers: list[Buffer], start: int, stop: int) -> list[Any]:
    found: list[Any] = []
    for texts, is_list in read_elements(rows, buffers, start, stop):
        if is_list:
            found.append(json.loads(b"[%b]" % b",".join(texts)))
        else:
            found.append(json.loads(texts[0]) if texts else None)
    return found


def read_elements(
    rows: int, buffers: list[Buffer], start: int, stop: int
) -> list[tuple[list[bytes], bool]]:
    """Return the JSON of the elements of rows [start, stop).

    Whether each row is a list of them.
    """
    text = bytes(buffers[5])
    count = len(buffers[4]) // 4 - 1
    elements = _offsets(buffers[4], max(count, 0), len(text)).tolist()
    places = np.frombuffer(buffers[9], np.int32, len(buffers[9]) // 4)
    cuts = _offsets(buffers[7], rows, len(places)).tolist()
    flags = buffers[11]
    if len(flags) * 8 < rows:
        raise ChunkDamaged("flags end early")
    used = places[cuts[start] : cuts[stop]]
    if len(used) and (int(used.min()) < 0 or int(used.max()) >= count):
        raise ChunkDamaged("a reference points to no element")
    return [
        (
            [
                text[elements[k] : elements[k + 1]]
                for k in places[cuts[row] : cuts[row + 1]].tolist()
            ],
            bool(flags[row >> 3] >> (row & 7) & 1),
        )
        for row in range(start, stop)
    ]


def read_bits(buffer: Buffer, start: int, stop: int) -> bytes:
    """Return bits [start, stop) as a byte each."""
    if len(buffer) * 8 < stop:
        raise ChunkDamaged("a bitmap ends early")
    if stop - start == 1:
        return _BITS[buffer[start >> 3] >> (start & 7) & 1]
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=stop, bitorder="little")[
        start:
    ].tobytes()


_BITS = (b"\0", b"\1")
