"""Rebuild values from leaves and structures."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from expdb.integrations.records.flatten import Kind

Batch = Mapping[str, np.ndarray]


def names_of(node: Any) -> Iterator[str]:
    """Yield the names of the fields of a structure."""
    kind = node[0]
    if kind == "dict":
        for _, part in node[1]:
            yield from names_of(part)
    elif kind in ("list", "tuple", "namedtuple"):
        for part in node[-1]:
            yield from names_of(part)
    elif kind in ("kind", "stack"):
        yield from names_of(node[2])
    elif kind != "none":
        yield node[1]


class Unflattener:
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
            columns = [self.together(part, batch, count) for _, part in node[1]]
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
        if kind in ("list", "tuple", "namedtuple"):
            make = _maker(node)
            columns = [self.together(part, batch, count) for part in node[-1]]
            if not columns:
                return [make(()) for _ in range(count)]
            return [make(row) for row in zip(*columns, strict=True)]
        if kind == "stack":
            return self._unstacked(node, batch)
        if kind == "kind":
            conversion = self._by_name.get(node[1])
            plain = self.together(node[2], batch, count)
            return plain if conversion is None else [conversion.together(value) for value in plain]
        return _leaves(node, batch[node[1]])

    def _unstacked(self, node: Any, batch: Batch) -> list[Any]:
        """Return lists or tuples of items whose leaves are stacked."""
        names = dict.fromkeys(names_of(node))
        lengths = [len(stack) for stack in batch[next(iter(names))]]
        flat = {name: _flat(batch[name]) for name in names}
        items = iter(self.together(node[2], flat, sum(lengths)))
        make = list if node[1] == "list" else tuple
        return [make(islice(items, length)) for length in lengths]


def _flat(stacks: np.ndarray) -> np.ndarray:
    """Return the items of all stacks; if their shapes differ, return an array of objects."""
    if stacks.dtype != object or len({stack.shape[1:] for stack in stacks}) == 1:
        return np.concatenate(list(stacks))
    items = [item for stack in stacks for item in stack]
    flat = np.empty(len(items), object)
    flat[:] = items
    return flat


def _maker(node: Any) -> Callable[[Any], Any]:
    if node[0] == "list":
        return list
    if node[0] == "tuple":
        return tuple
    module, _, name = node[1].partition(":")
    original: Any = sys.modules.get(module)
    for part in name.split("."):
        original = getattr(original, part, None)
    fields = tuple(node[2])
    is_same = isinstance(original, type) and issubclass(original, tuple)
    is_same = is_same and getattr(original, "_fields", None) == fields
    kind: Any = original if is_same else namedtuple(name.rpartition(".")[2], fields)
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
        return list(array) if shape else [np.asarray(leaf) for leaf in array]
    import torch

    if kind.startswith("tensor:"):  # stored in the column `reward`
        array = array.astype(kind.partition(":")[2]).reshape(len(array), *shape)
    if array.dtype == object:
        tensors = [torch.from_numpy(np.array(leaf)) for leaf in array]
    else:
        tensors = list(torch.from_numpy(np.ascontiguousarray(array)).unbind(0))
    return [tensor.view(torch.bfloat16) for tensor in tensors] if kind == "bfloat16" else tensors
