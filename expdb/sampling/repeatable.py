"""What makes a batch the same when it is drawn or made again."""

from __future__ import annotations  # NumPy imports its random module when it is first named

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.layout import Layout
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

    def of_batch(self, number: int, attempt: int = 0) -> np.random.Generator:
        """Return the generator of a batch, until that of the next one is asked for."""
        counter = self._state["state"]["counter"]
        counter[1], counter[2] = attempt, number
        self._bits.state = self._state
        return self._generator


def least_position(resident: Resident, layout: Layout) -> int:
    """Return the least position of the rows that a layout puts together, `high` of none."""
    parts = (
        layout.rows, layout.next_rows, layout.last_rows, layout.stacks, layout.next_stacks,
        layout.firsts,
    )  # fmt: skip
    rows = np.concatenate([part.reshape(-1) for part in parts if part is not None])
    held = rows[(rows >= 0) & (rows < resident.zero)]
    return int(resident.positions(held).min(initial=resident.high))


def rows_crc(resident: Resident, layout: Layout) -> int:
    """Return a checksum of which steps a layout puts together, wherever in memory they are."""
    parts = []
    for rows in (
        None if layout.mask is None else layout.rows,  # else those that were drawn
        layout.next_rows,
        layout.last_rows,
        layout.stacks,
        layout.next_stacks,
        layout.firsts,
    ):
        if rows is not None:
            # The zero row and final observations lie behind the ring, and follow a step for ever.
            behind = resident.zero - rows
            known = np.where(behind > 0, resident.positions(rows), np.sign(behind) - 2)
            parts.append(np.where(rows < 0, UNKNOWN, known).tobytes())
    if layout.mask is not None:
        parts.append(layout.mask.tobytes())
    return zlib.crc32(b"|".join(parts))


# Marks a checksum of the values of text columns. Those of expdb before schema 0008 covered the
# addresses of two-dimensional text columns in memory, so they cannot be compared.
OF_VALUES = 1 << 32


def checksum(batch: Batch, store: Store, rows: int) -> int:
    """Return a checksum of a batch: of which rows it is made, and of what may change in them.

    The fields of a row never do.
    """
    parts: list[bytes] = []
    for array in _changing(batch, store):
        if array.dtype != object:
            parts.append(array.tobytes())
        else:
            parts += _bytes_of(array)
    return zlib.crc32(b"|".join(parts), rows) | OF_VALUES


def matches(batch: Batch, store: Store, rows: int, stored: int) -> bool:
    """Return whether a batch that was made again has the checksum of the ledger."""
    if stored & OF_VALUES:
        return checksum(batch, store, rows) == stored
    if any(array.dtype == object and array.ndim > 1 for array in _changing(batch, store)):
        return True
    return checksum(batch, store, rows) & 0xFFFFFFFF == stored


def _changing(batch: Batch, store: Store) -> Iterator[np.ndarray]:
    """Yield the arrays of columns that may change after they are stored."""
    fields = store.fields.types
    for name, array in batch.items():
        if not (name in fields or name in FIXED or name.removeprefix("next_") in fields):
            yield array


def _bytes_of(array: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of each value of an array of objects, whatever its shape."""
    for value in array.reshape(-1):
        if isinstance(value, np.ndarray) and value.dtype == object:
            yield from _bytes_of(value)
        else:
            yield value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


FIXED = ("position", "episode", "step")
