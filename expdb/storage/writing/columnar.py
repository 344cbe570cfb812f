"""Steps that are given as columns of arrays and can be added all at once.

An array is checked and encoded as a whole, which costs a fraction of adding its rows one by one.
Columns that do not fit exactly are added row by row: that path converts values, declares fields,
and raises errors.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from expdb.checks import LARGEST_REWARD
from expdb.chunks.fields import Field
from expdb.names import EPISODE_KEYS, STEP_KEYS

_NAMES = {"task_id": "default", "agent_id": "agent", "episode_id": None}
_TAKEN_AT_ONCE = {*_NAMES, "step", "reward", "terminated", "truncated"}
_COLUMNS = {*EPISODE_KEYS, *STEP_KEYS}


class Columnar(NamedTuple):
    """Steps column by column, all of one length."""

    size: int
    task_ids: list[Any]
    agent_ids: list[Any]
    episode_ids: list[Any]  # None for each step without an episode_id
    steps: list[int | None]  # their numbers
    taken: tuple[Iterable[Any], ...]  # the columns of `StepColumns` after the first
    ends: list[bool]  # which steps complete their episodes
    fields: dict[str, np.ndarray]

    def episode_keys(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the `task_id`, `agent_id` and `episode_id` of each step."""
        return zip(self.task_ids, self.agent_ids, self.episode_ids, strict=True)


def columnar(columns: Mapping[str, Sequence[Any]], types: Mapping[str, Field]) -> Columnar | None:
    """Return the columns if they can be added at once, or None if they must be added row by row."""
    if not (_COLUMNS - _TAKEN_AT_ONCE).isdisjoint(columns):
        return None
    fields: dict[str, Any] = {
        name: column for name, column in columns.items() if name not in _COLUMNS
    }
    if not fields or not all(_fits(column, types.get(name)) for name, column in fields.items()):
        return None
    size = len(next(iter(columns.values())))
    key_columns = [_column(columns, name, usual, size) for name, usual in _NAMES.items()]
    task_ids, agent_ids, episode_ids = key_columns
    steps, rewards = _column(columns, "step", None, size), _rewards(columns, size)
    flags = [_column(columns, name, False, size) for name in ("terminated", "truncated")]
    if (
        not size
        or rewards is None
        or not all(set(map(type, column)) <= {str} for column in (task_ids, agent_ids))
        or not set(map(type, episode_ids)) <= {str, type(None)}
        or not _are_step_numbers(steps)
        or not all(set(map(type, column)) <= {bool} for column in flags)
    ):
        return None
    taken = dict.fromkeys(STEP_KEYS, repeat(None)) | {
        "step": steps,
        "execute_time": repeat(time.time()),
        "reward": rewards,
        "terminated": flags[0],
        "truncated": flags[1],
    }
    return Columnar(
        size,
        task_ids,
        agent_ids,
        episode_ids,
        steps,
        tuple(taken.values()),
        [terminated or truncated for terminated, truncated in zip(*flags, strict=True)],
        fields,
    )


def _fits(column: Any, field: Field | None) -> bool:
    return (
        field is not None
        and not field.varies
        and isinstance(column, np.ndarray)
        and column.dtype == field.numpy
        and column.shape[1:] == tuple(field.shape)
    )


def _are_step_numbers(steps: list[Any]) -> bool:
    numbers = [step for step in steps if step is not None]
    if not set(map(type, numbers)) <= {int}:
        return False
    return not numbers or (min(numbers) >= -(2**63) and max(numbers) < 2**63)


def _column(columns: Mapping[str, Any], name: str, usual: Any, count: int) -> list[Any]:
    column = columns.get(name)
    if column is None:
        return [usual] * count
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _rewards(columns: Mapping[str, Any], count: int) -> list[float | None] | None:
    column = columns.get("reward")
    if not isinstance(column, np.ndarray):
        values = _column(columns, "reward", None, count)
        return values if set(map(type, values)) <= {type(None)} else None
    if column.dtype.kind != "f" or column.dtype.itemsize > 8 or column.ndim != 1:
        return None
    exact = column.astype(np.float64)
    if not (np.abs(exact) <= LARGEST_REWARD).all():
        return None
    rewards: list[float | None] = (exact + 0.0).tolist()  # SQL has no negative zero
    return rewards
