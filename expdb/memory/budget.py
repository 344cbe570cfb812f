"""Bytes of memory that several buffers share."""

import functools
import os
from collections.abc import Container
from typing import Protocol

from expdb.chunks.fields import Field
from expdb.process.living import Living
from expdb.storage.catalog import Fields


class Holder(Protocol):
    """One who holds a part of the bytes."""

    field_bytes: int


class Budget:
    """Bytes of memory that several buffers share for their fields."""

    def __init__(self, limit: int):
        self.limit = limit
        self._holders: Living[Holder] = Living()

    def left_for(self, holder: Holder) -> int:
        """Return what the others leave to one of them."""
        return max(
            0,
            self.limit - sum(one.field_bytes for one in self._holders.list() if one is not holder),
        )

    def take(self, holder: Holder, nbytes: int) -> None:
        """Note what one of them holds."""
        holder.field_bytes = nbytes
        self._holders.add(holder)


def fitting(fields: Fields, row_bytes: float, left_out: Container[str]) -> dict[str, Field]:
    """Return the fields of fixed width that fit so many bytes per row, the narrowest first."""
    fixed = {
        name: one for name, one in fields.types.items() if not one.varies and name not in left_out
    }
    chosen, width = {}, 0
    for name, one in sorted(fixed.items(), key=lambda item: item[1].nbytes):
        extra = one.nbytes + (name in fields.optional)
        if width + extra <= row_bytes:
            chosen[name], width = one, width + extra
    return chosen


@functools.cache
def process_budget() -> Budget:
    """Return the budget that all handles share which have none of their own.

    A quarter of the memory, at most 4 GiB.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere
        memory = 8 << 30
    return Budget(min(memory // 4, 4 << 30))
