"""Convert values of varying length to arrays: lists of numbers without a loop in Python."""

from typing import Any

import numpy as np

from expdb.chunks.column import Column
from expdb.chunks.columns import ScalarColumn
from expdb.chunks.fields import Field
from expdb.chunks.infer import as_array, is_array
from expdb.errors import FieldMismatch


def array_of(column: Column, value: Any) -> np.ndarray:
    """Return a value as an array with the dtype of a column's field.

    Raise FieldMismatch for other dtypes, and for numbers that the dtype cannot store exactly.
    """
    field = column.field
    if is_array(value):
        array = as_array(value, column.name)
        if array.dtype != field.numpy:
            raise column.mismatch(array)
        return array
    if not isinstance(value, (list, tuple)) or len(field.shape) > 1:
        raise column.mismatch(value)
    exact = _exact_array(value, field.numpy)
    if exact is not None:
        return exact
    cells = ScalarColumn(column.name, Field(field.dtype))
    for index, element in enumerate(value):
        try:
            cells.append(element)
        except FieldMismatch:
            raise FieldMismatch(
                f"field {column.name!r} has type {field}, which cannot store {_shown(element)} at "
                f"index {index} of the list exactly; {column.cure(value)}"
            ) from None
    return np.array(cells.values, field.numpy)


def _shown(element: Any) -> str:
    """Return a number as text, and the type of another element."""
    return repr(element) if isinstance(element, (int, float)) else f"a {type(element).__name__}"


def _exact_array(value: Any, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Convert Python numbers of one type that the dtype stores exactly; None for other lists."""
    if not value:
        return np.zeros(0, dtype)
    if set(map(type, value)) != {{"b": bool, "f": float}.get(dtype.kind, int)}:
        return None
    if dtype.kind == "b":
        return np.array(value, np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = limits.min <= min(value) and max(value) <= limits.max
        return np.array(value, dtype) if fits else None
    with np.errstate(over="ignore"):
        array = np.array(value, np.float64)
        stored = array.astype(dtype)
    return stored if np.array_equal(stored, array, equal_nan=True) else None
