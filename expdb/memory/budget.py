"""Bytes of memory that several buffers share."""

from typing import Protocol

from expdb.living import Living


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
