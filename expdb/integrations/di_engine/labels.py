"""The index and the meta dict of items, which are tags in the database, by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import expdb

INDEX = "_index"  # the tag with the index of an item; other tags are its meta dict
ORDER = "_order"  # the tag of an item whose data was updated: its original position

Label = tuple[Any, dict[str, Any]]  # the index of an item, and its meta dict


class Labels:
    """The labels of items that were read or written here, of as many as the buffer may hold.

    Tags are read from the database, fields from memory: without this, most of the time of a sample
    would go to tags. Whoever changes tags changes the revision of the buffer.
    """

    def __init__(self, buffer: expdb.ReplayBuffer, size: int):
        self._buffer, self._size = buffer, size
        self._known: dict[int, Label] = {}
        self._revision = buffer.revision  # at which they are right

    def at(self, positions: list[int]) -> list[Label]:
        """Return the labels of items, which are not to be changed; raise Evicted if one is gone."""
        revision = self._buffer.revision  # before tags are read: others may change them meanwhile
        if revision != self._revision:
            self._known, self._revision = {}, revision
        known = self._known
        missing = [one for one in positions if one not in known]
        if missing:
            tags = self._buffer.get(missing, fields=("tags",))["tags"].tolist()
            known |= zip(missing, map(label_of, tags), strict=True)
        found = [known[one] for one in positions]
        if missing:
            self._forget_oldest()
        return found

    def add(self, positions: list[int], labels: list[Label]) -> None:
        """Keep the labels of items that were just stored."""
        self._known |= zip(positions, labels, strict=True)
        for position in positions:  # of the item that this one displaces, as a rule
            self._known.pop(position - self._size, None)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._known) > self._size:
            del self._known[next(iter(self._known))]


def label_of(tags: Mapping[str, Any] | None) -> Label:
    """Return the label of an item with these tags."""
    meta = dict(tags or {})
    index = meta.pop(INDEX, None)
    meta.pop(ORDER, None)
    return index, meta
