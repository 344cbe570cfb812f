"""Warnings at the first batch of a buffer about data that a learner probably cannot use."""

from __future__ import annotations  # NumPy imports its random module when it is first named

from collections.abc import Mapping

import numpy as np

from expdb.batch import Batch
from expdb.chunks.fields import Field
from expdb.errors import warn
from expdb.sql.session import Session
from expdb.storage.store import Store

EXAMINED = 64  # newest episodes
ENOUGH = 8  # complete episodes without an end that cause a warning
# Whether the last step of each of the newest complete episodes ends it. The last step of an episode
# that was stored out of order may have another position, so it is not counted.
ENDS = f"""
SELECT s.terminated OR s.truncated OR e.tail_chunk IS NOT NULL
FROM (SELECT * FROM episodes WHERE buffer_id = ? ORDER BY id DESC LIMIT {EXAMINED}) e
JOIN steps s ON s.buffer_id = e.buffer_id AND s.position = e.last_position
WHERE e.status = 'complete' AND e.ordered
"""


def warn_of_missing_ends(store: Store, session: Session) -> None:
    """Warn if most complete episodes have no terminated, truncated or final observation."""
    ends = [bool(has_end) for (has_end,) in session.ask(ENDS, store.id)]
    missing = ends.count(False)
    if missing >= ENOUGH and missing > len(ends) // 2:
        warn(
            f"{missing} of the newest {len(ends)} complete episodes of buffer {store.name!r} end "
            "without terminated, truncated or a final observation, so NStep never draws their last "
            "steps and the discount is never 0; pass terminated=True with the last step, or call "
            "end(obs=...)"
        )


def warn_of_equal_lists(batch: Batch, types: Mapping[str, Field]) -> None:
    """Warn of fields of lists whose arrays have one length in the whole batch.

    A field gets these types if its first value is a list of Python numbers.
    """
    for name, array in batch.items():
        field = types.get(name)
        if field is None or field.shape != (None,) or field.aligned_with is not None:
            continue
        if field.dtype not in ("int64", "float64") or array.dtype != object or array.size < 2:
            continue
        lengths = {len(value) for value in array.flat if isinstance(value, np.ndarray)}
        if len(lengths) == 1 and max(lengths) > 0:
            (length,) = lengths
            warn(
                f"field {name!r} was stored as lists, so this batch holds one array for each step, "
                f"although all have the length {length}; in a new buffer, pass np.array(...) for "
                f"arrays of shape [batch, {length}], or declare Field({field.dtype!r}, "
                "shape=(None,)) if lengths differ"
            )
