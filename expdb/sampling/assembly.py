"""Assemble batches from items, and select items of a batch."""

from __future__ import annotations  # so that annotations do not import numpy.random

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.errors import InvalidValue
from expdb.replay.ragged import RaggedArray
from expdb.sampling.extensions import check_assembly
from expdb.sampling.request import SampleRequest
from expdb.storage.annotate import annotate_tokens
from expdb.storage.store import Store


def assemble(
    store: Store,
    request: SampleRequest,
    batch: dict[str, np.ndarray],
    positions: np.ndarray,
    columns: dict[str, np.ndarray],
    rng: np.random.Generator,
) -> Batch:
    """Return the batch that a unit assembles from items, with the sampler's columns."""
    unit, count = request.unit, len(positions)
    if "drawn" in batch:
        raise InvalidValue(
            f"{type(unit).__name__}.assemble adds the key 'drawn', but this batch already "
            "has a key 'drawn'; rename the field or key 'drawn', or exclude the field with "
            "fields="
        )
    try:
        assembled = unit.assemble(Batch(batch, count), rng)
    except KeyError as error:
        if request.fields is None:
            raise
        raise InvalidValue(
            f"{type(unit).__name__}.assemble requires a key that is not in fields= "
            f"({error}); add the key to fields="
        ) from error
    arrays, size = check_assembly(unit, assembled, count)
    for name, array in columns.items():
        arrays.setdefault(name, array[arrays["drawn"]])
    arrays["position"] = positions[arrays["drawn"]]
    field = unit.annotated_field
    if field is None:
        return Batch(arrays, size)
    return Batch(arrays, size, partial(store.engine.retry, annotate_tokens, store, field))


def select_items(values: Any, is_selected: np.ndarray) -> Any:
    """Return the values of the selected items.

    A `RaggedArray` must have the same number of arrays for each item.
    """
    if not isinstance(values, RaggedArray):
        return values[is_selected]
    indices = np.arange(len(values)).reshape(len(is_selected), -1)[is_selected].reshape(-1)
    return replace(values, starts=values.starts[indices], lengths=values.lengths[indices])
