"""Compare the settings of samplers and units, and describe them as plain values."""

import operator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit


def settings_of(instance: Sampler | Unit) -> dict[str, Any]:
    """Return the public name of the class and its settings, including those of nested units."""
    kind: Any = type(instance)
    settings: dict[str, Any] = {"name": public_name(kind)}
    for name in _names(kind):
        value = getattr(instance, name)
        settings[name] = settings_of(value) if isinstance(value, Unit) else value
    return settings


def public_name(kind: type) -> str:
    """Return the name of a class of expdb, or the module and name of any other class."""
    is_own = kind.__module__.startswith("expdb.replay.")
    return kind.__name__ if is_own else f"{kind.__module__}.{kind.__qualname__}"


def have_same_settings(instance: Sampler | Unit, other: Sampler | Unit) -> bool:
    """Return whether all settings are identical, or equal and of the same type."""
    if instance is other:
        return True
    kind: Any = type(instance)
    has_no_slots = _has_no_slots(kind)
    if kind is not type(other):
        return False
    if has_no_slots:
        values, others = vars(instance), vars(other)
        are_identical = all(map(operator.is_, values.values(), others.values()))
        if values and are_identical and list(values) == list(others):
            return True  # the usual case, compared without a loop in Python
    if not is_dataclass(kind):
        return False
    for name in _names(kind):
        value, other_value = getattr(instance, name), getattr(other, name)
        if value is not other_value and not _are_same(value, other_value):
            return False
    return True


@lru_cache
def _has_no_slots(kind: Any) -> bool:
    return not any(vars(base).get("__slots__") for base in kind.__mro__)


@lru_cache
def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _are_same(value: Any, other: Any) -> bool:
    """Return whether two settings are identical, or plain values of the same type and repr.

    0.0 and -0.0 are equal but have different reprs. Other objects may define `==` in any way.
    """
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(_are_same, value, other))
    if isinstance(value, (Sampler, Unit)):
        return have_same_settings(value, other)
    return isinstance(value, (bool, int, float, complex, str, bytes)) and repr(value) == repr(other)
