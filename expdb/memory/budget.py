"""A limit in bytes on the memory that several buffers use together."""

import functools
import os
from collections.abc import Container
from typing import Protocol

from expdb.chunks.fields import Field
from expdb.process.weak_registry import WeakRegistry
from expdb.storage.catalog import Fields


class Holder(Protocol):
    """An object whose fields count towards a budget."""

    field_bytes: int


class Budget:
    """A limit in bytes on the memory that several buffers use together for their fields."""

    def __init__(self, limit: int):
        self.limit = limit
        self._holders: WeakRegistry[Holder] = WeakRegistry()

    def bytes_left_for(self, holder: Holder) -> int:
        """Return the number of bytes that the other holders leave to `holder`."""
        return max(
            0,
            self.limit
            - sum(other.field_bytes for other in self._holders.list() if other is not holder),
        )

    def take(self, holder: Holder, nbytes: int) -> None:
        """Record that `holder` uses `nbytes` bytes."""
        holder.field_bytes = nbytes
        self._holders.add(holder)


def fitting(fields: Fields, row_bytes: float, left_out: Container[str]) -> dict[str, Field]:
    """Return the fixed-width fields that fit into `row_bytes` per row, narrowest first.

    Fields in `left_out` are never chosen.
    """
    fixed = {
        name: field
        for name, field in fields.types.items()
        if not field.varies and name not in left_out
    }
    chosen, width = {}, 0
    for name, field in sorted(fixed.items(), key=lambda item: item[1].nbytes):
        extra = field.nbytes + (name in fields.optional)
        if width + extra <= row_bytes:
            chosen[name], width = field, width + extra
    return chosen


@functools.cache
def process_budget() -> Budget:
    """Return the budget shared by all handles that have no budget of their own.

    It is a quarter of the memory of the machine, at most 4 GiB.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on every system
        memory = 8 << 30
    return Budget(min(memory // 4, 4 << 30))
