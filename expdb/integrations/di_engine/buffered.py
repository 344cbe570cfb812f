"""Items with an index and a meta dict, and groups of such items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import expdb
from expdb.integrations.di_engine.ding import BufferedDataBase
from expdb.integrations.di_engine.items import LABEL, Items, deep_copy, push_order_keys
from expdb.integrations.di_engine.labels import INDEX, ORDER, label_of
from expdb.integrations.records import is_json


@dataclass
class BufferedData(BufferedDataBase):
    """An item of a buffer.

    Parameters
    ----------
    data : object
        The data that was pushed.
    index : str
        Unique index of the item.
    meta : dict
        Meta dict of the item.
    """

    data: Any
    index: Any
    meta: Any


class Groups:
    """Group the positions of items by the value of a key in their meta dicts."""

    def __init__(self, items: Items, key: str):
        self._items, self._key = items, key
        self._positions = np.empty(0, np.int64)
        self._names: list[Any] = []
        self._order = np.empty(0, np.int64)
        self._revision = -1

    def current(self, sample_range: slice | None) -> dict[Any, np.ndarray]:
        """Return the positions of the stored items of each group, in push order."""
        revision = self._items.buffer.revision
        if revision != self._revision:  # tags may have changed, also by other processes
            self._positions, self._names = np.empty(0, np.int64), []
            self._order, self._revision = np.empty(0, np.int64), revision
        after = int(self._positions[-1]) if len(self._positions) else -1
        for batch in self._items.buffer.scan(after=after, fields=["position", "tags"]):
            self._positions = np.concatenate((self._positions, batch["position"]))
            self._order = np.concatenate((self._order, push_order_keys(batch)))
            self._names += [(tags or {}).get(self._key) for tags in batch["tags"].tolist()]
        stored = [
            batch["position"] for batch in self._items.buffer.scan(fields=["position"], size=65536)
        ]
        alive = np.isin(self._positions, np.concatenate(stored) if stored else [])
        self._names = [name for name, is_alive in zip(self._names, alive, strict=True) if is_alive]
        self._positions, self._order = self._positions[alive], self._order[alive]
        groups: dict[Any, list[int]] = {}
        places = np.argsort(self._order, kind="stable")
        for place in (places if sample_range is None else places[sample_range]).tolist():
            groups.setdefault(self._names[place], []).append(int(self._positions[place]))
        return {name: np.array(positions) for name, positions in groups.items()}


def plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a meta dict without its priority; raise InvalidValue if JSON would change a value."""
    for key, value in meta.items():
        if key not in _PRIORITY and (
            type(key) is not str or key in (INDEX, ORDER) or not is_json(value)
        ):
            raise expdb.InvalidValue(
                f"meta entry {key!r}: {value!r} cannot be stored exactly; use text keys and plain "
                "JSON values"
            )
    return {key: value for key, value in meta.items() if key not in _PRIORITY}


_PRIORITY = ("priority", "priority_idx", "priority_IS")


def buffered(values: list[Any], columns: Mapping[str, Any]) -> list[BufferedData]:
    """Build `BufferedData` from values and the columns of a batch or of `Items.draw`."""
    labels = columns.get(LABEL)
    if labels is None:
        labels = [label_of(tags) for tags in columns["tags"].tolist()]
    items = []
    rows = columns["position"].tolist(), columns["priority"].tolist()
    for value, (index, meta), position, priority in zip(values, labels, *rows, strict=True):
        meta = deep_copy(meta) if meta else {}
        if position >= 0:  # -1 marks an unwritten item
            meta["priority_idx"] = position
        if priority == priority:  # NaN means that no priority was set
            meta["priority"] = priority
        items.append(BufferedData(value, index, meta))
    if "weight" in columns:
        for item, weight in zip(items, columns["weight"].tolist(), strict=True):
            item.meta["priority_IS"] = weight
    return items
