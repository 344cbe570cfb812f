"""What makes a batch the same when it is drawn or made again."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import zlib
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.storage.store import Store


class Philox:
    """The random generator of each batch of a consumer: the same whoever draws it, and whenever.

    Counter-based (Salmon et al. 2011, doi:10.1145/2063384.2063405), so that one seed gives as many
    that do not meet as there are batches.
    """

    def __init__(self, seed: int, part: int):
        self._bits = np.random.Philox(key=np.array([seed, 0], np.uint64))
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._state["state"]["counter"][3] = part

    def of_batch(self, number: int) -> np.random.Generator:
        """Return the generator of a batch, until that of the next one is asked for."""
        self._state["state"]["counter"][2] = number
        self._bits.state = self._state
        return self._generator


def checksum(batch: Batch, store: Store) -> int:
    """Return a checksum of what may change in a batch: its fields never do, nor do positions."""
    fields, parts = store.fields.types, []
    for name, array in batch.items():
        if name in fields or name in FIXED or name.removeprefix("next_") in fields:
            continue
        if array.dtype != object:
            parts.append(array.tobytes())
        else:
            parts += [part.tobytes() for part in array if isinstance(part, np.ndarray)]
    return zlib.crc32(b"".join(parts))


FIXED = ("position", "episode", "step")
