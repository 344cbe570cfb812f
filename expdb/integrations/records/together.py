"""Rebuild values from leaves and structures."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from expdb.integrations.records.apart import Kind

Batch = Mapping[str, np.ndarray]


def names_of(node: Any) -> Iterator[str]:
    """Yield the names of the fields of a structure."""
    kind = node[0]
    if kind == "dict":
        for _, one in node[1]:
            yield from names_of(one)
    elif kind in ("list", "tuple", "namedtuple"):
        for one in node[-1]:
            yield from names_of(one)
    elif kind in ("kind", "stack"):
        yield from names_of(node[2])
    elif kind != "none":
        yield node[1]


class Putting:
    """Rebuild values; a `Kind` restores values of other classes."""

    def __init__(self, kinds: tuple[Kind, ...]):
        self._by_name = {kind.name: kind for kind in kinds}

    def together(self, node: Any, batch: Batch, count: int) -> list[Any]:
        """Return the value of a node of a structure in each of `count` steps."""
        kind = node[0]
        if kind == "none":
            return [None] * count
        if kind == "dict":
            keys = [key for key, _ in node[1]]
            if not keys:
                return [{} for _ in range(count)]
            columns = [self.together(one, batch, count) for _, one in node[1]]
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        if kind in ("list", "tuple", "namedtuple"):
            make = _maker(node)
            columns = [self.together(one, batch, count) for one in node[-1]]
            if not columns:
                return [make(()) for _ in range(count)]
            return [make(row) for row in zip(*columns, strict=True)]
        if kind == "stack":
            return self._unstacked(node, batch)
        if kind == "kind":
            known = self._by_name.get(node[1])
            plain = self.together(node[2], batch, count)
            return plain if known is None else [known.together(one) for one in plain]
        return _leaves(node, batch[node[1]])

    def _unstacked(self, node: Any, batch: Batch) -> list[Any]:
        """Return lists or tuples of items whose leaves are stacked."""
        names = dict.fromkeys(names_of(node))
        lengths = [len(one) for one in batch[next(iter(names))]]
        flat = {name: _flat(batch[name]) for name in names}
        items = iter(self.together(node[2], flat, sum(lengths)))
        make = list if node[1] == "list" else tuple
        return [make(islice(items, length)) for length in lengths]


def _flat(stacks: np.ndarray) -> np.ndarray:
    """Return the items of all stacks; if their shapes differ, return an array of objects."""
    if stacks.dtype != object or len({one.shape[1:] for one in stacks}) == 1:
        return np.concatenate(list(stacks))
    items = [one for stack in stacks for one in stack]
    flat = np.empty(len(items), object)
    flat[:] = items
    return flat


def _maker(node: Any) -> Callable[[Any], Any]:
    if node[0] == "list":
        return list
    if node[0] == "tuple":
        return tuple
    module, _, name = node[1].partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    fields = tuple(node[2])
    known = isinstance(found, type) and issubclass(found, tuple)
    known = known and getattr(found, "_fields", None) == fields
    kind: Any = found if known else namedtuple(name.rpartition(".")[2], fields)
    return lambda row: tuple.__new__(kind, row)


def _leaves(node: Any, array: np.ndarray) -> list[Any]:
    """Return a leaf of each step in its original type."""
    kind, _, shape = node
    if kind in ("text", "bytes", "bool", "int", "float", "json"):
        values: list[Any] = array.tolist()
        return values
    if kind == "scalar":
        return list(array)
    if kind == "array":
        return list(array) if shape else [np.asarray(one) for one in array]
    import torch

    if kind.startswith("tensor:"):  # stored in the column `reward`
        array = array.astype(kind.partition(":")[2]).reshape(len(array), *shape)
    if array.dtype == object:
        tensors = [torch.from_numpy(np.array(one)) for one in array]
    else:
        tensors = list(torch.from_numpy(np.ascontiguousarray(array)).unbind(0))
    return [one.view(torch.bfloat16) for one in tensors] if kind == "bfloat16" else tensors
