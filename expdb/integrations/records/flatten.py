"""Flatten values into leaves, which become fields, and a structure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import expdb

LARGEST_REWARD = 1e300  # greater rewards, infinity and NaN are stored as a field

_NUMBERS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}
_TEXTS: dict[type, str] = {str: "text", bytes: "bytes"}


@dataclass(frozen=True)
class Kind:
    """Convert values of a class: `apart` returns a plain value, and `together` restores it.

    Parameters
    ----------
    name : str
        Name of the kind in the database.
    of : type
        The class.
    apart : callable
        Returns a plain value for a value of the class.
    together : callable
        Returns the value of the class for a plain value.
    """

    name: str
    of: type
    apart: Callable[[Any], Any]
    together: Callable[[Any], Any]


# Kinds of leaves that a `Plan` supports.
FLAT = frozenset(
    (
        "array",
        "tensor",
        "bool",
        "int",
        "float",
        "none",
        "scalar",
        "tensor:float32",
        "tensor:float64",
    )
)


class RecordPlan:
    """The form of the last dict with certain keys: a fast path for dicts of the same form."""

    def __init__(self, shape: Any, code: int, names: list[str], values: list[Any]):
        self.code, self.names = code, names
        self._keys = [type(key) for key, _ in shape[1]]  # True and 1 are equal keys
        self._leaves = []
        for value, (_, leaf) in zip(values, shape[1], strict=True):
            dtype, dimensions, is_reward = None, (), leaf[2:3] == ("reward",)
            if leaf[0] not in ("none", "bool", "int", "float", "scalar"):
                dtype = np.dtype(leaf[0].partition(":")[2] or leaf[2])
                dimensions = leaf[3]
            self._leaves.append((type(value), dtype, dimensions, is_reward))

    def take(self, value: dict[Any, Any], leaves: list[Any]) -> bool:
        """Add the leaves of a value; return whether it has the same form as the last dict."""
        if [*map(type, value)] != self._keys:
            return False
        for leaf, (kind, dtype, shape, is_reward) in zip(value.values(), self._leaves, strict=True):
            if type(leaf) is not kind:
                return False
            if leaf is None:
                continue
            if dtype is not None:
                try:
                    leaf = leaf if kind is np.ndarray else leaf.numpy()
                except (RuntimeError, TypeError):
                    return False
                if leaf.dtype != dtype or leaf.shape != shape:
                    return False
            if is_reward:
                leaf = leaf if dtype is None else leaf.item()
                if not abs(leaf) < LARGEST_REWARD:
                    return False
            leaves.append(leaf)
        return True


class Flattener:
    """Flatten values; a `Kind` converts values of other classes."""

    def __init__(self, kinds: tuple[Kind, ...]):
        self._by_type = {kind.of: kind for kind in kinds}

    def apart(self, value: Any, path: str, leaves: list[Any]) -> Any:
        """Add the leaves of a value, and return its structure as a hashable object."""
        kind = type(value)
        if kind is dict:
            return "dict", tuple(
                [
                    (_checked_key(key, path), self.apart(element, f"{path}.{key}", leaves))
                    for key, element in value.items()
                ]
            )
        if kind is np.ndarray:
            leaves.append(value)
            return "array", path, _dtype_name(value, path), value.shape
        if kind in _NUMBERS:
            return self._number(value, path, leaves)
        if value is None:
            return ("none",)
        if kind is list or kind is tuple:
            return self._sequence(value, path, leaves)
        if kind in _TEXTS:
            leaves.append(value)
            return _TEXTS[kind], path, _TEXTS[kind], ()
        return self._rare(value, path, leaves)

    def _sequence(self, value: Any, path: str, leaves: list[Any]) -> Any:
        """Add the leaves of a list or tuple; leaves of items with the same structure are stacked.

        A list of the steps of an episode thus becomes a few arrays, not several fields per step.
        """
        if set(map(type, value)) == {str} and type(value) is list:  # text is never stacked
            leaves.append(value)
            return "json", path, "json", ()
        # Flatten each item only once: otherwise, each level of nested lists would double the time.
        items: list[list[Any]] = [[] for _ in value]
        shapes = [
            self.apart(element, f"{path}.each", parts_of)
            for element, parts_of in zip(value, items, strict=True)
        ]
        if len(value) > 1 and len(set(shapes)) == 1 and items[0] and _can_be_stacked(items[0]):
            leaves += [np.stack(column) for column in zip(*items, strict=True)]
            return "stack", type(value).__name__, shapes[0], len(value)
        if value and type(value) is list and is_json(value):
            leaves.append(value)
            return "json", path, "json", ()
        parts = []
        for k, (shape, element_leaves) in enumerate(zip(shapes, items, strict=True)):
            leaves += element_leaves
            parts.append(_moved(shape, len(path) + 1, str(k)))
        return type(value).__name__, tuple(parts)

    def _number(self, value: Any, path: str, leaves: list[Any]) -> Any:
        kind = type(value)
        if kind is int and not -(2**63) <= value < 2**63:
            raise expdb.InvalidValue(
                f"{called(path)} is {value}, which does not fit 64 bits; store the number as text"
            )
        if path == ".reward" and kind is float and abs(value) < LARGEST_REWARD:
            leaves.append(value)
            return "float", "", "reward", ()
        leaves.append(value)
        return kind.__name__, path, _NUMBERS[kind], ()

    def _rare(self, value: Any, path: str, leaves: list[Any]) -> Any:
        kind = type(value)
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor:
            return self._tensor(torch, value, path, leaves)
        if isinstance(value, np.generic):
            leaves.append(value)
            return "scalar", path, _dtype_name(value, path), ()
        if kind in self._by_type:
            conversion = self._by_type[kind]
            return "kind", conversion.name, self.apart(conversion.apart(value), path, leaves)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = [
                self.apart(element, f"{path}.{name}", leaves)
                for name, element in zip(kind._fields, value, strict=True)
            ]
            return (
                "namedtuple",
                f"{kind.__module__}:{kind.__qualname__}",
                kind._fields,
                tuple(parts),
            )
        raise expdb.InvalidValue(
            f"{called(path)} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored "
            "exactly; use tensors, arrays, numbers, text, dicts, lists and tuples"
        )

    def _tensor(self, torch: Any, value: Any, path: str, leaves: list[Any]) -> Any:
        try:
            array = value.numpy()
        except (RuntimeError, TypeError):  # on a device, with a gradient, or bfloat16
            value = value.detach().cpu()
            if value.is_sparse or value.is_quantized or value.is_complex():
                raise expdb.InvalidValue(
                    f"{called(path)} is a tensor of {value.dtype}, {value.layout}; use a dense "
                    "tensor of real numbers"
                ) from None
            if value.dtype == torch.bfloat16:
                leaves.append(value.contiguous().view(torch.uint16).numpy())
                return "bfloat16", path, "uint16", tuple(value.shape)
            array = value.resolve_conj().resolve_neg().numpy()
        if array.dtype.kind == "c":
            raise expdb.InvalidValue(
                f"{called(path)} is a tensor of {value.dtype}; use real numbers"
            )
        if path == ".reward" and array.size == 1 and array.dtype.kind == "f":
            number = array.item()
            if abs(number) < LARGEST_REWARD:
                leaves.append(number)
                return f"tensor:{_dtype_name(array, path)}", "", "reward", array.shape
        leaves.append(array)
        return "tensor", path, _dtype_name(array, path), array.shape


def _checked_key(key: Any, path: str) -> Any:
    if type(key) in (str, int) and not (type(key) is int and not -(2**53) < key < 2**53):
        return key
    raise expdb.InvalidValue(
        f"{called(path)} has the key {key!r}; use text, or integers between -2**53 and 2**53"
    )


def called(path: str) -> str:
    """Return the name of a path for error messages."""
    return repr(path.strip(".")) if path else "the value"


def _can_be_stacked(leaves: list[Any]) -> bool:
    return not any(isinstance(leaf, (str, bytes, list)) for leaf in leaves)


def _moved(shape: Any, at: int, name: str) -> Any:
    """Return a structure whose paths have `name` instead of "each" at index `at`."""
    kind = shape[0]
    if kind == "none":
        return shape
    if kind == "dict":
        return kind, tuple([(key, _moved(part, at, name)) for key, part in shape[1]])
    if kind in ("list", "tuple"):
        return kind, tuple([_moved(part, at, name) for part in shape[1]])
    if kind in ("stack", "kind"):
        return (*shape[:2], _moved(shape[2], at, name), *shape[3:])
    if kind == "namedtuple":
        return (*shape[:3], tuple([_moved(part, at, name) for part in shape[3]]))
    if shape[2] == "reward":
        return shape
    path = shape[1]
    return (kind, path[:at] + name + path[at + len("each") :], *shape[2:])


def is_json(value: Any) -> bool:
    """Return whether JSON can represent a value exactly.

    Parameters
    ----------
    value : object
        The value.

    Returns
    -------
    bool
        Whether the value is text, a finite number, a bool, None, or a list or dict of such values.
    """
    kind = type(value)
    if kind is list:
        return all(map(is_json, value))
    if kind is dict:
        return all(type(key) is str and is_json(element) for key, element in value.items())
    return kind in (str, int, bool) or value is None or (kind is float and math.isfinite(value))


_names: dict[np.dtype[Any], str] = {}


def _dtype_name(array: np.ndarray | np.generic, path: str) -> str:
    """Return the name of an array's dtype; raise InvalidValue if it cannot be stored."""
    dtype = array.dtype
    name = _names.get(dtype)
    if name is None:
        try:
            expdb.Field(dtype.name if dtype.isnative else dtype.str)
        except expdb.InvalidValue as error:
            raise expdb.InvalidValue(f"{called(path)}: {error}") from None
        name = _names[dtype] = dtype.name
    return name
