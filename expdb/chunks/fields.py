"""Field types, field names, and the Arrow schema of the chunks that hold fields."""

import difflib
import functools
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.errors import ChunkDamaged, InvalidValue, ReservedName, warn
from expdb.names import (
    BATCH_KEYS,
    COLUMN_SYNONYMS,
    COLUMNS,
    GIVEN_SUCCESSORS,
    OBSERVATIONS,
    VIEW_COLUMNS,
)

NUMERIC = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
OTHER = ("text", "bytes", "json")
DETAILS = "aligned_with", "filler", "shared"  # arguments of a field that may be declared later
# For a smaller value, the reference and the row in the database take as much space as the value.
MIN_SHARED_BYTES = 1024


@dataclass(frozen=True)
class Field:
    """Declare the type and the shape of a field.

    Pass a `Field` to `ExperienceDB.buffer` for a type that the first value does not determine,
    such as token lists of varying length.

    Parameters
    ----------
    dtype : str
        ``"text"``, ``"bytes"``, ``"json"``, or the name of a NumPy dtype: ``bool``, ``int8`` to
        ``int64``, ``uint8`` to ``uint64``, ``float16``, ``float32`` or ``float64``. A NumPy dtype
        or type is converted to its name.
    shape : tuple of int or None, default ()
        Shape of the value of one step. ``()`` is a scalar, and ``None`` is a dimension that varies
        from step to step. Text, bytes and JSON have no shape.
    aligned_with : str, optional
        Name of the field that the value must match in length, such as ``"output_ids"`` for the
        log-probabilities of its tokens. Requires a shape such as ``(None,)``.
    ascending : bool, default False
        If True, the values of one step must not decrease. They are stored as runs of equal values.
        Only for arrays of integers of shape ``(None,)``.
    filler : bool, int or float, optional
        Value that `Tokens` gives the tokens without a value of the field, instead of 0. Requires
        `aligned_with`, and a number that the dtype can represent.

    shared : bool, optional
        Whether expdb stores large repeated values of the field once per buffer. If None (default),
        it shares repeated values of 1 KiB or more, or 64 KiB or more for arrays of a fixed shape.
        If True, it shares every value of 1 KiB or more. If False, it shares none. It never shares
        scalars and ascending arrays.

    Raises
    ------
    InvalidValue
        If the dtype cannot be stored, for example because it is big-endian, or if the shape or
        another argument is invalid.

    Examples
    --------
    >>> Field("int32", shape=(None,))
    Field(dtype='int32', shape=(None,))
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    aligned_with: str | None = dataclass_field(default=None, kw_only=True, compare=False)
    ascending: bool = dataclass_field(default=False, kw_only=True)
    filler: float | None = dataclass_field(default=None, kw_only=True, compare=False)
    shared: bool | None = dataclass_field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        name = (
            self.dtype
            if isinstance(self.dtype, str) and self.dtype in OTHER
            else _dtype_name(self.dtype)
        )
        object.__setattr__(self, "dtype", name)
        if not isinstance(self.shape, (tuple, list)):
            raise InvalidValue(
                "shape must be a tuple of integers, with None for a dimension that varies, got "
                f"{self.shape!r}"
            )
        shape = tuple(self.shape)
        for n in shape:
            if n is not None and (
                isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0
            ):
                raise InvalidValue(
                    f"shape {shape} has the dimension {n!r}; use integers, and None for a "
                    "dimension that varies"
                )
        shape = tuple(None if n is None else int(n) for n in shape)
        if self.dtype in OTHER and shape:
            raise InvalidValue(f"a {self.dtype} field cannot have a shape, got {shape}; omit shape")
        object.__setattr__(self, "shape", shape)
        if self.ascending and (shape != (None,) or self.numpy.kind not in "iu"):
            raise InvalidValue(
                f"a field of type {self.dtype} and shape {shape} cannot be ascending; use a type "
                "of integers and shape (None,)"
            )
        if self.aligned_with is not None and not (self.has_prefixes or self.ascending):
            raise InvalidValue(
                f"a field of type {self.dtype} and shape {shape} cannot be aligned with another; "
                "use a type of numbers and a shape such as (None,)"
            )
        if self.aligned_with is not None and not isinstance(self.aligned_with, str):
            raise InvalidValue(
                f"aligned_with must be the name of a field, got {self.aligned_with!r}"
            )
        if self.filler is not None:
            object.__setattr__(self, "filler", self._checked_filler())
        if isinstance(self.shared, np.bool_):
            object.__setattr__(self, "shared", bool(self.shared))
        if self.shared is not None and not isinstance(self.shared, bool):
            raise InvalidValue(f"shared must be True, False or None, got {self.shared!r}")
        if self.shared and (self.ascending or (not self.varies and self.nbytes < MIN_SHARED_BYTES)):
            raise InvalidValue(
                f"a field of type {self.dtype} and shape {shape} cannot be shared, because its "
                f"values are ascending or smaller than {MIN_SHARED_BYTES} bytes; omit shared"
            )

    def _checked_filler(self) -> float:
        """Return the filler as a Python number; raise InvalidValue if it is not valid."""
        if self.aligned_with is None:
            raise InvalidValue(
                f"filler is {self.filler!r}, but the field is not aligned with another field; also "
                "pass aligned_with"
            )
        if not isinstance(self.filler, (bool, int, float, np.number, np.bool_)):
            raise self._unsuitable_filler()
        with np.errstate(all="ignore"):
            try:
                stored = np.array(self.filler).astype(self.numpy)
            except (TypeError, ValueError, OverflowError):
                raise self._unsuitable_filler() from None
        if self.numpy.kind == "f":
            fits = np.isfinite(stored) or not np.isfinite(self.filler)  # may be rounded
        else:
            fits = stored == self.filler
        if not fits:
            raise self._unsuitable_filler()
        number: float = stored.item()
        return number

    def _unsuitable_filler(self) -> InvalidValue:
        return InvalidValue(
            f"filler must be a number that {self.dtype} can represent, got {self.filler!r}"
        )

    @functools.cached_property
    def varies(self) -> bool:
        """Whether the number of bytes of a value may differ from step to step."""
        return self.dtype in OTHER or None in self.shape

    @functools.cached_property
    def has_prefixes(self) -> bool:
        """Whether expdb stores the common prefix of consecutive values only once."""
        return (
            self.dtype not in OTHER
            and self.shape[:1] == (None,)
            and None not in self.shape[1:]
            and 0 not in self.shape[1:]
            and not self.ascending
        )

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether a value of this shape fits the shape of the field.

        Parameters
        ----------
        shape : tuple of int
            Shape of a value.

        Returns
        -------
        bool
            Whether the shapes are equal in each dimension that does not vary.
        """
        return len(shape) == len(self.shape) and all(
            n in (None, m) for n, m in zip(self.shape, shape, strict=True)
        )

    @functools.cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of a numeric field."""
        return np.dtype(self.dtype)

    @functools.cached_property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of one value as a tuple of int, with 0 for each dimension that varies."""
        return tuple(n or 0 for n in self.shape)

    @functools.cached_property
    def nbytes(self) -> int:
        """The size in bytes of one value of a numeric field of fixed shape."""
        return self.numpy.itemsize * int(np.prod(self.fixed_shape, dtype=np.int64))

    def complete(self, other: "Field") -> "Field":
        """Return the field with the arguments of another field that it lacks.

        Parameters
        ----------
        other : Field
            Field of the same type.

        Returns
        -------
        Field
            The field itself if it lacks no argument.
        """
        missing = {
            name: getattr(other, name)
            for name in DETAILS
            if getattr(self, name) is None and getattr(other, name) is not None
        }
        return replace(self, **missing) if missing else self

    def arrow(self) -> pa.DataType:
        """Return the Arrow type of the column that stores the field.

        Bool tensors are stored as uint8, so that slices start at byte boundaries.

        Returns
        -------
        pyarrow.DataType
            Type of the column in a chunk.
        """
        if self.dtype == "text":
            return pa.utf8()
        if self.dtype == "bytes":
            return pa.binary()
        if self.dtype == "json":
            return pa.struct(
                [
                    ("new", pa.list_(pa.utf8())),
                    ("refs", pa.list_(pa.int32())),
                    ("is_list", pa.bool_()),
                ]
            )
        if not self.shape:
            return pa.from_numpy_dtype(self.numpy)
        value = pa.uint8() if self.dtype == "bool" else pa.from_numpy_dtype(self.numpy)
        if None not in self.shape:
            return pa.fixed_shape_tensor(value, [n for n in self.shape if n is not None])
        if self.ascending:
            return pa.struct([("values", pa.list_(value)), ("lengths", pa.list_(pa.int32()))])
        if self.has_prefixes:
            return pa.struct([("prefix", pa.int32()), ("suffix", pa.list_(value))])
        return pa.struct(
            [("data", pa.list_(value)), ("shape", pa.list_(pa.int32(), len(self.shape)))]
        )

    def as_json(self) -> list[Any]:
        """Return the field as a list that can be encoded as JSON.

        Returns
        -------
        list
            The dtype as text, the shape as a list of int or None, and a dict of the other
            arguments, if any.
        """
        others: dict[str, Any] = {}
        if self.aligned_with is not None:
            others["aligned_with"] = self.aligned_with
        if self.ascending:
            others["ascending"] = True
        if self.filler is not None:  # JSON has neither NaN nor infinity
            others["filler"] = self.filler if np.isfinite(self.filler) else str(self.filler)
        if self.shared is not None:
            others["shared"] = self.shared
        return [self.dtype, list(self.shape), *([others] if others else [])]

    @classmethod
    def from_json(cls, value: list[Any]) -> "Field":
        """Create a field from the list that `as_json` returned.

        Parameters
        ----------
        value : list
            The list that `as_json` returned.

        Returns
        -------
        Field
            The field.

        Raises
        ------
        InvalidValue
            If the dtype or another argument is invalid.
        """
        others = dict(value[2]) if len(value) > 2 else {}
        if isinstance(others.get("filler"), str):
            others["filler"] = float(others["filler"])
        return cls(value[0], tuple(value[1]), **others)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.shape else self.dtype

    def __repr__(self) -> str:
        aligned = "" if self.aligned_with is None else f", aligned_with={self.aligned_with!r}"
        ascending = ", ascending=True" if self.ascending else ""
        filler = "" if self.filler is None else f", filler={self.filler!r}"
        shared = "" if self.shared is None else f", shared={self.shared!r}"
        return (
            f"Field(dtype={self.dtype!r}, shape={self.shape!r}{aligned}{ascending}{filler}{shared})"
        )


def _dtype_name(dtype: Any) -> str:
    try:
        if dtype is None:
            raise TypeError
        numpy_dtype = np.dtype(dtype)
    except TypeError:
        raise InvalidValue(
            f"unknown dtype {dtype!r}; use one of {', '.join((*NUMERIC, *OTHER))}"
        ) from None
    if numpy_dtype.byteorder == ">":
        raise InvalidValue(
            "big-endian arrays cannot be stored; convert with "
            f".astype('{numpy_dtype.newbyteorder('=').name}')"
        )
    if numpy_dtype.name not in NUMERIC:
        raise InvalidValue(
            f"dtype {numpy_dtype.name} cannot be stored; use one of {', '.join((*NUMERIC, *OTHER))}"
        )
    return str(numpy_dtype.name)


TOKEN_FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        "prompt_ids": Field("int32", (None,)),
        "output_ids": Field("int32", (None,)),
        "output_mask": Field("bool", (None,), aligned_with="output_ids"),
        "logprobs": Field("float32", (None,), aligned_with="output_ids"),
        "versions": Field("int32", (None,), aligned_with="output_ids", ascending=True),
    }
)
"""Fields for the turns of a language model; pass them as ``fields=`` to `ExperienceDB.buffer`.

``prompt_ids`` holds the whole prompt and ``output_ids`` the tokens after it. ``logprobs``,
``output_mask`` and ``versions`` must have the length of ``output_ids``. ``output_mask`` is False
for tokens that the model did not generate, such as the output of a tool. ``versions`` holds the
policy version of each token, if weights change during generation; it must not decrease.
"""

# Columns of every chunk, so that a batch can be read from chunks without a query for each row.
SYSTEM = {
    "step": Field("int64"),
    "reward": Field("float64"),
    "terminated": Field("bool"),
    "truncated": Field("bool"),
}


# Layouts of columns that a signature names. Before schema 0010, chunks stored whole values.
_PREFIX, _RUNS = "prefix", "runs"


class Signature:
    """The fields of a chunk, in the order of its columns.

    The database stores each signature once, in two forms. With the Arrow schema, any Arrow library
    can read the chunks. From the JSON, expdb creates the signature again. expdb does not read the
    Arrow schema, because pyarrow would run the code of registered extension types.
    """

    def __init__(self, fields: Mapping[str, Field], id: int = -1):
        self.fields = {**SYSTEM, **fields}
        self.id = id
        self.prefixed = frozenset(name for name, field in fields.items() if field.has_prefixes)
        self.schema = pa.schema(
            [
                pa.field(name, field.arrow(), metadata={"expdb.field": json.dumps(field.as_json())})
                for name, field in self.fields.items()
            ]
        )
        self.message = self.schema.serialize().to_pybytes()
        self.crc = zlib.crc32(self.message)
        self.row_bytes = sum(0 if field.varies else field.nbytes for field in self.fields.values())

    def stored(self) -> tuple[bytes, str, int]:
        """Return the columns `schema`, `fields` and `crc` of the table `signatures`."""
        fields = {}
        for name, field in self.fields.items():
            if name not in SYSTEM:
                layout = [_RUNS] if field.ascending else [_PREFIX] * (name in self.prefixed)
                fields[name] = [field.dtype, list(field.shape), *layout]
        text = json.dumps(fields)
        return self.message, text, zlib.crc32(text.encode(), self.crc)

    @classmethod
    def from_stored(cls, id: int, message: bytes, text: str, crc: int) -> "Signature":
        """Create a signature from the columns of `stored`; raise ChunkDamaged if they changed."""
        # Another version of pyarrow may serialize the schema to other bytes, so the checksums of
        # the chunks use the stored bytes.
        stored_crc = zlib.crc32(message)
        if zlib.crc32(text.encode(), stored_crc) != crc:
            raise ChunkDamaged(f"signature {id} does not match its checksum; restore a backup")
        fields = json.loads(text)
        signature = cls(
            {
                name: Field(value[0], tuple(value[1]), ascending=value[2:] == [_RUNS])
                for name, value in fields.items()
            },
            id,
        )
        signature.message, signature.crc = message, stored_crc
        signature.prefixed = frozenset(
            name for name, value in fields.items() if value[2:] == [_PREFIX]
        )
        return signature

    @property
    def is_current(self) -> bool:
        """Whether this version of expdb writes chunks with this signature."""
        return self.prefixed == {n for n, f in self.fields.items() if f.has_prefixes}


# -- names -----------------------------------------------------------------------------------------

_NAME = re.compile(r"\w+(\.\w+)*")
_RESERVED = frozenset((*VIEW_COLUMNS, *BATCH_KEYS, *SYSTEM))


@functools.cache
def check_name(name: str) -> None:
    """Raise ReservedName or InvalidValue if `name` is not a valid field name."""
    if not _NAME.fullmatch(name) or len(name.encode()) > 255:
        raise InvalidValue(
            f"field name {name!r} is not valid; use letters, digits and _, with single dots "
            "between parts, and at most 255 bytes in all"
        )
    head = name.split(".", 1)[0]
    if name in _RESERVED or head in _RESERVED:
        raise ReservedName(
            f"field name {name!r} is the name of a column or batch key; rename the field"
        )
    if head.startswith(("next_", "has_")) and head not in GIVEN_SUCCESSORS:
        raise ReservedName(
            f"field name {name!r} starts with the prefix of a derived key (next_, has_); rename "
            "the field"
        )


# Minimum similarity of a misspelt name. Swapping two of six letters gives 0.83. The different names
# `episodes` and `episode_tags` give 0.8.
LIKENESS = 0.82


def warn_of_likely_name(name: str, field: Field, absent: Sequence[str]) -> None:
    """Warn if the name of a new field is probably a misspelt column or field.

    Also warn if other libraries use the name for a column of expdb.
    """
    plain_name = name.lower()
    column = COLUMN_SYNONYMS.get(plain_name) or next(
        iter(difflib.get_close_matches(plain_name, COLUMNS, 1, LIKENESS)), None
    )
    meant = f"column {column!r}" if column else _likely_field(name, absent)
    if plain_name in ("flush_steps", "flush_bytes", "flush_seconds"):
        meant = f"argument {plain_name!r} of buffer.episode() and buffer.writer()"
    if meant is not None:
        shape = f", {field.shape}" if field.shape else ""
        declared = f"db.buffer(name, fields={{{name!r}: expdb.Field({field.dtype!r}{shape})}})"
        warn(
            f"{name!r} becomes a new field; did you mean the {meant}? If not, declare the field "
            f"with {declared}"
        )


def _likely_field(name: str, absent: Sequence[str]) -> str | None:
    candidates = [other for other in absent if {name, other} <= {*OBSERVATIONS}]
    if not any(letter.isdigit() for letter in name):  # numbered fields differ only in a digit
        candidates += difflib.get_close_matches(name, absent, 1, LIKENESS)
    return f"field {candidates[0]!r}, which this step lacks" if candidates else None
