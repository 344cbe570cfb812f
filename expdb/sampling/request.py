"""What a lease asks for, as its learner says it and as the ledger keeps it."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from expdb.errors import InvalidValue
from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sql.query import QueryBuilder, Where, plain_where


@dataclass(frozen=True)
class Request:
    """What a lease asks for."""

    size: int
    at_least: int
    where: Where
    sampler: Sampler
    unit: Unit
    fields: tuple[str, ...] | None
    empty: Callable[[tuple[int, ...], np.dtype[Any]], np.ndarray]
    pin: bool = False  # whether what is leased is kept, whatever the capacity

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other requests, in the ledger."""
        return repr(self.sampler), self.unit, self.fields, json.dumps(self._where, default=_plain)

    @property
    def _where(self) -> Any:
        """The query, as plain JSON values; of a list of positions only how many these are."""
        where = plain_where(self.where)
        if isinstance(where, np.ndarray):
            return f"{len(where)} positions"
        return where.build() if isinstance(where, QueryBuilder) else where

    def as_text(self, columns: Mapping[str, Any]) -> str:
        """Return what the ledger says of it; `columns` describes those of the sampler."""
        said = {
            "unit": _settings(self.unit),
            "sampler": _settings(self.sampler),
            "where": self._where,
            "fields": self.fields,
            "columns": columns,
        }
        return json.dumps(said, default=_plain)


def _settings(one: Sampler | Unit) -> dict[str, Any]:
    name = type(one).__name__ if one.is_trusted else f"{type(one).__module__}.{type(one).__name__}"
    return {"name": name, **(asdict(one) if is_dataclass(one) else {})}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)


def check_instances(sampler: Any, unit: Any) -> None:
    """Raise InvalidValue for what is no sampler, or no unit."""
    if not isinstance(unit, Unit):
        raise InvalidValue(f"unit is {unit!r}: give one such as expdb.Step() or expdb.NStep(1)")
    if not isinstance(sampler, Sampler):
        raise InvalidValue(f"sampler is {sampler!r}: give one such as expdb.Uniform()")


def check_empty(empty: Any) -> None:
    """Raise InvalidValue for what makes no arrays."""
    if not callable(empty):
        raise InvalidValue(
            f"empty is {empty!r}: give a function of a shape and a dtype, such as numpy.empty"
        )


def field_names(fields: Any) -> tuple[str, ...]:
    """Return the names of fields; one by itself is taken."""
    names = (fields,) if isinstance(fields, str) else fields
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in found):
        raise InvalidValue(f"fields is {fields!r}: give a list of names")
    return found
