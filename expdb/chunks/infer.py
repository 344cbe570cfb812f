"""Infer the type of a field from its first value, and convert arrays and JSON objects."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from expdb.chunks.fields import NUMERIC, Field
from expdb.errors import InvalidValue


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy or of another library such as torch or JAX.

    Arrays of other libraries are recognized by the protocols `__array__` and DLPack. NumPy scalars
    and dataframes are not arrays.
    """
    return isinstance(value, np.ndarray) or (
        (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))
        and not isinstance(value, (np.generic, type))
        and not hasattr(value, "__dataframe__")
    )


def as_array(value: Any, name: str) -> np.ndarray:
    """Convert an array-like value to a NumPy array that can be stored.

    Raise InvalidValue, with advice, if it cannot be stored.
    """
    if isinstance(value, np.ndarray):
        array = value
    else:
        try:
            array = np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
        except Exception as error:
            if "bfloat16" in str(error).lower() or "bfloat16" in str(getattr(value, "dtype", "")):
                raise InvalidValue(
                    f"{name}: bfloat16 cannot be stored; convert with .float() or "
                    ".astype('float32')"
                ) from None
            raise InvalidValue(
                f"{name}: {type(value).__name__} cannot be converted to an array ({error}); pass "
                "value.detach().cpu()"
            ) from None
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidValue(
            f"{name}: masked arrays would lose their mask; pass .filled(value), and the mask as "
            "another field"
        )
    if array.dtype.kind not in "biuf" or array.dtype.byteorder == ">" or array.dtype.itemsize > 8:
        if "bfloat16" in array.dtype.name:
            raise InvalidValue(
                f"{name}: bfloat16 cannot be stored; convert with .astype('float32')"
            )
        if array.dtype.byteorder == ">":
            raise InvalidValue(
                f"{name}: big-endian arrays cannot be stored; convert with "
                ".astype(a.dtype.newbyteorder('='))"
            )
        if array.dtype.kind == "O":
            raise InvalidValue(
                f"{name}: object arrays cannot be stored; pass a list, or an array of numbers"
            )
        if array.dtype.kind in "SU":
            raise InvalidValue(f"{name}: arrays of text cannot be stored; pass .tolist()")
        raise InvalidValue(
            f"{name}: arrays of {array.dtype} cannot be stored; convert to one of "
            f"{', '.join(NUMERIC)}"
        )
    return array


def plain(value: Any) -> Any:
    """Convert a pydantic model, a dataclass or a NumPy scalar to a value for JSON.

    Raise TypeError for other objects.
    """
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return _model(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if is_array(value):
        raise TypeError(
            "the value contains an array, which JSON cannot represent; store the array as "
            "another field, or convert the array with .tolist()"
        )
    raise TypeError(
        f"{type(value).__name__} cannot be stored as JSON; convert the value, or pass a dict, a "
        "dataclass or a pydantic model"
    )


def _model(value: Any) -> Any:
    """Convert a pydantic model to a value for JSON.

    `model_dump` of pydantic would silently convert NaN to null and every key to text, so the values
    and the keys are checked first.
    """
    seen = [value.model_dump()]
    while seen:
        node = seen.pop()
        if isinstance(node, float) and not math.isfinite(node):
            raise TypeError(
                f"the model contains {node}, which JSON cannot represent; use None, or an array "
                "field"
            )
        if isinstance(node, dict):
            wrong = [key for key in node if not isinstance(key, str)]
            if wrong:
                raise TypeError(
                    f"the model has the key {wrong[0]!r}, but JSON keys must be text; convert "
                    "the key to text"
                )
            seen += node.values()
        elif isinstance(node, (list, tuple, set, frozenset)):
            seen += node
        elif is_array(node):
            raise TypeError(
                "the model contains an array, which JSON cannot represent; store the array as "
                "another field, or convert the array with .tolist()"
            )
    try:
        return value.model_dump(mode="json")
    except Exception as error:  # an exception class of pydantic, which expdb does not import
        raise TypeError(
            f"the model cannot be stored as JSON ({error}); convert its values"
        ) from None


# Maximum depth of nested values. A program must be able to decode JSON from deep in its own stack.
MAX_DEPTH = 200


def check_depth(name: str, depth: int) -> None:
    """Raise InvalidValue if a value is nested too deeply."""
    if depth > MAX_DEPTH:
        raise InvalidValue(
            f"{name} is nested more than {MAX_DEPTH} levels deep, or contains itself; flatten "
            "the value"
        )


def holds_array(value: Any, name: str, depth: int = 0) -> bool:
    """Return whether a mapping contains an array, at any depth of nested mappings.

    Raise InvalidValue if it is nested too deeply.
    """
    if not isinstance(value, Mapping):
        return False
    # Count instead of waiting for a RecursionError: the finalizers of other objects, which may run
    # at any time, fail near the limit of the stack.
    check_depth(name, depth)
    return any(is_array(v) or holds_array(v, name, depth + 1) for v in value.values())


def _list_field(value: Sequence[Any]) -> Field:
    kinds = {type(element) for element in value}
    if kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63:
        return Field("int64", (None,))
    if kinds and kinds <= {int, float} and float in kinds:
        return Field("float64", (None,))
    return Field("json")


def infer(value: Any, name: str) -> Field:
    """Return the field type for the first value of a field.

    The caller must flatten mappings that contain arrays.
    """
    if isinstance(value, (bool, np.bool_)):
        return Field("bool")
    if isinstance(value, np.generic):
        if isinstance(value, str):
            return Field("text")
        if isinstance(value, bytes):
            return Field("bytes")
        return Field(as_array(np.asarray(value), name).dtype.name)
    if isinstance(value, int):
        return Field("int64")
    if isinstance(value, float):
        return Field("float64")
    if isinstance(value, str):
        return Field("text")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Field("bytes")
    if is_array(value):
        array = as_array(value, name)
        return Field(array.dtype.name, array.shape)
    if isinstance(value, (list, tuple)):
        return _list_field(value)
    return Field("json")
