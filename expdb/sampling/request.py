"""What a lease asks for, as its learner says it and as the ledger keeps it."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from expdb.replay.samplers import Sampler
from expdb.replay.units import Unit
from expdb.sampling.candidates import key_of_any
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

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other requests, in the ledger."""
        where = None if self.where is None else key_of_any(plain_where(self.where))
        return self.sampler, self.unit, self.fields, where

    def as_text(self, columns: Mapping[str, Any]) -> str:
        """Return what the ledger says of it; `columns` describes those of the sampler."""
        where = self.where.build() if isinstance(self.where, QueryBuilder) else self.where
        said = {
            "unit": _settings(self.unit),
            "sampler": _settings(self.sampler),
            "where": where,
            "fields": self.fields,
            "columns": columns,
        }
        return json.dumps(said, default=_plain)


def _settings(one: Sampler | Unit) -> dict[str, Any]:
    name = type(one).__name__ if one.is_trusted else f"{type(one).__module__}.{type(one).__name__}"
    return {"name": name, **(asdict(one) if is_dataclass(one) else {})}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else repr(value)
