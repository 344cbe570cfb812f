"""Convert RLlib's sample batches to values that `Records` stores, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from expdb.integrations.records import Kind


def kinds() -> tuple[Kind, ...]:
    """Return the conversions of RLlib's batch classes."""
    return (
        Kind("SampleBatch", SampleBatch, _apart, _together),
        Kind(
            "MultiAgentBatch", MultiAgentBatch,
            lambda batch: {"policies": dict(batch.policy_batches), "count": batch.count},
            lambda plain: MultiAgentBatch(plain["policies"], plain["count"]),
        ),
    )  # fmt: skip


def _apart(batch: SampleBatch) -> dict[str, Any]:
    return {
        "columns": dict(batch), "max_seq_len": batch.max_seq_len,
        "zero_padded": bool(batch.zero_padded),
    }  # fmt: skip


def _together(plain: dict[str, Any]) -> SampleBatch:
    return SampleBatch(
        plain["columns"], _max_seq_len=plain["max_seq_len"], _zero_padded=plain["zero_padded"]
    )


def sum_of_rewards(item: Any) -> float | None:
    """Return the sum of the rewards of an item, or None if it has no float rewards."""
    rewards = item.get("rewards") if hasattr(item, "get") else None
    if isinstance(rewards, (np.ndarray, np.floating)) and rewards.dtype.kind == "f":
        return float(rewards.sum())
    return None


def rows_of(batch: Any) -> Iterator[dict[str, Any]] | None:
    """Return an iterator over the steps of a batch, each in the format of `one_step`.

    Return None if the batch has `seq_lens`, columns that are not arrays, or unequal lengths.
    """
    if type(batch) is not SampleBatch or "seq_lens" in batch:
        return None
    columns = list(batch.values())
    if any(type(column) is not np.ndarray for column in columns) or len({*map(len, columns)}) != 1:
        return None
    names = list(batch.keys())
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def one_step(batch: Any) -> Any:
    """Return the columns of a batch of one step without their first axis.

    A column that is not an array becomes a list of one element. Return a batch of sequences, or an
    item that is not a `SampleBatch`, unchanged.
    """
    if not isinstance(batch, SampleBatch) or "seq_lens" in batch:
        return batch
    return {
        key: column[0] if isinstance(column, np.ndarray) else [column]
        for key, column in batch.items()
    }


def step_of(value: Any) -> Any:
    """Return the batch of one step that `one_step` converted."""
    if not isinstance(value, dict) or isinstance(value, SampleBatch):
        return value
    return SampleBatch(
        {key: column[0] if isinstance(column, list) else np.asarray(column)[None] for key, column in
         value.items()}
    )  # fmt: skip
