"""Random generators that make the batches of a consumer reproducible."""

from __future__ import annotations  # so that annotations do not import numpy.random

from typing import Any

import numpy as np


class Philox:
    """The random generators of a consumer's batches, which are the same in every process.

    Philox is counter-based (Salmon et al. 2011, doi:10.1145/2063384.2063405), so one seed gives
    each batch a stream that does not overlap with the streams of other batches.
    """

    def __init__(self, seed: int, part: int):
        self._bits = np.random.Philox(key=np.array([seed, 0], np.uint64))
        self._generator = np.random.Generator(self._bits)
        self._state: Any = self._bits.state
        self._state["state"]["counter"][3] = part

    def of_batch(self, number: int, attempt: int = 0) -> np.random.Generator:
        """Return the generator of a batch, which is valid until the next call."""
        counter = self._state["state"]["counter"]
        counter[1], counter[2] = attempt, number
        self._bits.state = self._state
        return self._generator
