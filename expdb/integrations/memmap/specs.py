"""Declarations of fields: `'float'`, `('int', 2)` or `('float', (3, 16, 16), 0.)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = {"int": np.int32, "float": np.float32, "bool": np.bool_, "uint8": np.uint8}


@dataclass(frozen=True)
class Spec:
    """The type, the shape and the default of a field or a meta field."""

    name: str
    kind: str
    shape: tuple[int, ...]
    default: Any = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays of the field."""
        return np.dtype(DTYPES[self.kind])

    def full(self, *leading: int) -> np.ndarray:
        """Return an array filled with the default; the default is 0 unless one is declared."""
        return np.full((*leading, *self.shape), self.default or 0, self.dtype)

    def checked(self, value: Any, leading: int = 0) -> np.ndarray:
        """Return a value as an array of the field; raise ValueError if it does not fit."""
        array = as_array(value)
        if self.shape == () and array.shape[leading:] == (1,):
            array = array[..., 0]
        elif self.shape == (1,) and array.shape[leading:] == ():
            array = array[..., None]
        if array.shape[leading:] != self.shape:
            raise ValueError(
                f"field {self.name} got an invalid shape {array.shape[leading:]}; expected "
                f"{self.shape}"
            )
        if array.dtype == self.dtype:
            return array
        converted = array.astype(self.dtype)
        if self.kind != "float" and not (converted == array).all():
            raise ValueError(f"field {self.name} must be {self.kind}, got {value!r}")
        return converted


def as_array(value: Any) -> np.ndarray:
    """Return a tensor, a list or a number as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def parsed(declared: Mapping[str, Any]) -> dict[str, Spec]:
    """Return the specs of declared fields; raise ValueError for an unknown type."""
    specs = {}
    for name, spec in declared.items():
        parts: tuple[Any, ...] = (spec,) if isinstance(spec, str) else tuple(spec)
        kind = parts[0]
        shape = parts[1] if len(parts) > 1 else ()
        default = parts[2] if len(parts) > 2 else None
        if kind not in DTYPES:
            raise ValueError(f"invalid dtype `{kind}`; expected one of {tuple(DTYPES)}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        specs[name] = Spec(name, kind, shape, default)
    return specs


def as_json(specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Return specs as JSON values."""
    return {name: [spec.kind, list(spec.shape), spec.default] for name, spec in specs.items()}
