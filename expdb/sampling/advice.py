"""Warnings at the first batch of a buffer about data that learners probably cannot use."""

from __future__ import annotations  # so that annotations do not import numpy.random

from collections.abc import Mapping

import numpy as np

from expdb.batch import Batch
from expdb.chunks.fields import Field
from expdb.errors import warn
from expdb.sql.session import Session
from expdb.storage.reading.ends import count_ends
from expdb.storage.store import Store


def warn_of_ends(store: Store, session: Session) -> None:
    """Warn about ends of complete episodes that transitions cannot use.

    Warn if most of the newest episodes end without a flag and without a final observation, and if
    last steps lack a reward.
    """
    count, missing, unrewarded = count_ends(store, session)
    if unrewarded:
        warn(
            f"the last step of {unrewarded} of the newest {count} complete episodes of buffer "
            f"{store.name!r} lacks a reward, so the reward of its transition is NaN; if the step "
            "only holds the last observation, pass it to end(obs=...) instead"
        )
    if missing:
        warn(
            f"{missing} of the newest {count} complete episodes of buffer {store.name!r} end "
            "without terminated=True, truncated=True or a final observation, so units such as "
            "NStep never draw their last steps, and their discount is never 0; pass "
            "terminated=True with the last step, or call end(obs=...)"
        )


def warn_of_equal_lists(batch: Batch, types: Mapping[str, Field]) -> None:
    """Warn about fields of lists if all lists in a batch have the same length.

    A field of int64 or float64 lists usually results from storing a list of Python numbers. A
    nested list of numbers becomes JSON.
    """
    if "position" not in batch or len(np.unique(batch["position"])) < 2:
        return
    for name, array in batch.items():
        field = types.get(name)
        if field is not None and field.dtype == "json" and len(shape := _nested_shape(array)) > 1:
            warn(
                f"field {name!r} was stored as nested lists of shape {list(shape)}, so a batch "
                "contains JSON instead of an array; in a new buffer, store np.array(...)"
            )
        if field is None or field.shape != (None,) or field.aligned_with is not None:
            continue
        if field.dtype not in ("int64", "float64") or array.dtype != object or array.size < 2:
            continue
        lengths = {len(value) for value in array.flat if isinstance(value, np.ndarray)}
        if len(lengths) == 1 and max(lengths) > 0:
            (length,) = lengths
            warn(
                f"field {name!r} was stored as lists, so a batch contains one array of length "
                f"{length} for each step instead of one array of shape [batch, {length}]; in a "
                f"new buffer, store np.array(...), or declare Field({field.dtype!r}, "
                "shape=(None,)) if the lengths can differ"
            )


def _nested_shape(values: np.ndarray) -> tuple[int, ...]:
    """Return the shape that all values have as arrays of numbers; () if they differ."""
    try:
        arrays = [np.asarray(value) for value in values.flat if isinstance(value, list)]
    except ValueError:  # lists of different lengths
        return ()
    shapes = {array.shape for array in arrays if array.dtype.kind in "iuf" and array.size}
    return shapes.pop() if len(shapes) == 1 and len(arrays) == values.size else ()
