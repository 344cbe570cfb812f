"""Checksums of leased batches, which show whether a replayed batch is the same."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from expdb.batch import Batch
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.replay.layout import Layout
from expdb.storage.store import Store


def least_position(resident: Resident, layout: Layout) -> int:
    """Return the lowest position of the steps in a layout, or `high` if it has no steps."""
    parts = (layout.rows, *_other_rows(layout))
    rows = np.concatenate([part.reshape(-1) for part in parts if part is not None])
    steps = rows[(rows >= 0) & (rows < resident.zero)]
    return int(resident.positions(steps).min(initial=resident.high))


def rows_crc(resident: Resident, layout: Layout) -> int:
    """Return a checksum of the steps in a layout that does not depend on the rows of the steps."""
    parts = []
    # Without a mask, the rows of the layout are the drawn rows, which need no checksum.
    for rows in (None if layout.mask is None else layout.rows, *_other_rows(layout)):
        if rows is not None:
            # The zero row and final observations lie after the rows of steps. A final observation
            # always follows the same step, so one number for all final observations is sufficient.
            behind = resident.zero - rows
            numbers = np.where(behind > 0, resident.positions(rows), np.sign(behind) - 2)
            parts.append(np.where(rows < 0, UNKNOWN, numbers).tobytes())
    if layout.mask is not None:
        parts.append(layout.mask.tobytes())
    return zlib.crc32(b"|".join(parts))


def _other_rows(layout: Layout) -> tuple[np.ndarray | None, ...]:
    """Return all arrays of rows in a layout except `rows`."""
    stacks = layout.stacks, layout.next_stacks
    return layout.next_rows, layout.last_rows, *stacks, layout.firsts


# Marks a checksum that covers the values of text columns. Before schema 0008, the checksum of a
# two-dimensional text column covered memory addresses, so such checksums cannot be compared.
OF_VALUES = 1 << 32
# Marks a checksum without `has_<field>`, a column that appears when a later step lacks the field.
WITHOUT_MASKS = 1 << 33


def checksum(batch: Batch, store: Store, rows: int) -> int:
    """Return a checksum of the rows of a batch and of the columns that may change.

    The fields of a step never change, so the checksum does not cover them.
    """
    return _checksum(_changeable_arrays(batch, store, False), rows) | WITHOUT_MASKS


def _checksum(arrays: Iterable[np.ndarray], rows: int) -> int:
    crc, separator = rows, b""
    for array in arrays:
        parts: Iterable[Any] = (
            _bytes_of(array) if array.dtype == object else (np.ascontiguousarray(array),)
        )
        for part in parts:
            crc = zlib.crc32(part, zlib.crc32(separator, crc))
            separator = b"|"
    return crc | OF_VALUES


def matches(batch: Batch, store: Store, rows: int, stored: int) -> bool:
    """Return whether a rebuilt batch has the checksum that is stored in the ledger."""
    if stored & WITHOUT_MASKS:
        return checksum(batch, store, rows) == stored
    arrays = list(_changeable_arrays(batch, store, True))
    if stored & OF_VALUES:
        return _checksum(arrays, rows) == stored
    if any(array.dtype == object and array.ndim > 1 for array in arrays):
        return True
    return _checksum(arrays, rows) & 0xFFFFFFFF == stored


def _changeable_arrays(batch: Batch, store: Store, with_masks: bool) -> Iterator[np.ndarray]:
    """Yield the arrays of columns that may change after they are stored.

    With `with_masks`, also yield `has_<field>`, as the checksums of earlier versions do.
    """
    fields = store.fields.types
    # Tokens computes these keys from others; leases of earlier versions lack them.
    computed = ("rollouts", "rollout_weight") if "loss_tokens" in batch else ()
    for name, array in batch.items():
        value = name if with_masks else name.removeprefix("has_")
        is_unchanging = name in UNCHANGING or name in computed
        if not (value in fields or is_unchanging or value.removeprefix("next_") in fields):
            yield array


def _bytes_of(array: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of each value of an array of objects, whatever its shape."""
    for value in array.reshape(-1):
        if isinstance(value, np.ndarray) and value.dtype == object:
            yield from _bytes_of(value)
        else:
            yield value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


UNCHANGING = ("position", "episode", "step")
