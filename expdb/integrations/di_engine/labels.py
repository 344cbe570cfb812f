"""Cache the index and meta dict of items, which the database stores as tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import expdb

INDEX = "_index"  # tag that holds the index of an item; the other tags are its meta dict
ORDER = "_order"  # tag that holds the original position of an updated item

Label = tuple[Any, dict[str, Any]]  # the index of an item, and its meta dict


class LabelCache:
    """Cache the labels of at most `size` items that this process read or wrote.

    Fields are sampled from memory, but tags are read from the database. Without the cache, reading
    tags would take most of the time of a sample. Every change to tags increases the revision of
    the buffer, which empties the cache.
    """

    def __init__(self, buffer: expdb.ReplayBuffer, size: int):
        self._buffer, self._size = buffer, size
        self._labels: dict[int, Label] = {}  # by position
        self._revision = buffer.revision  # revision of the cached labels

    def at(self, positions: list[int]) -> list[Label]:
        """Return the labels of items; raise Evicted if an item is no longer stored.

        The labels are shared with the cache: copy them before you modify them.
        """
        revision = self._buffer.revision  # read first: another process may change the tags
        if revision != self._revision:
            self._labels, self._revision = {}, revision
        labels = self._labels
        missing = [position for position in positions if position not in labels]
        if missing:
            tags = self._buffer.get(missing, fields=("tags",))["tags"].tolist()
            labels |= zip(missing, map(label_of, tags), strict=True)
        result = [labels[position] for position in positions]
        if missing:
            self._forget_oldest()
        return result

    def add(self, positions: list[int], labels: list[Label]) -> None:
        """Cache the labels of items that were just stored."""
        self._labels |= zip(positions, labels, strict=True)
        for position in positions:  # storing it usually evicts the item `size` positions earlier
            self._labels.pop(position - self._size, None)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._labels) > self._size:
            del self._labels[next(iter(self._labels))]


def label_of(tags: Mapping[str, Any] | None) -> Label:
    """Return the label of an item with these tags."""
    meta = dict(tags or {})
    index = meta.pop(INDEX, None)
    meta.pop(ORDER, None)
    return index, meta
