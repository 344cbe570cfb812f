"""What of DI-engine itself is there: its classes to derive from, and the types that items have."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from expdb.integrations.records import Kind


def _class(module: str, name: str) -> Any:
    """Return a class of DI-engine's, or `object` where that cannot be imported."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return object


# Its pipelines ask isinstance of its own classes.
BufferBase: Any = _class("ding.data.buffer", "Buffer")
BufferedDataBase: Any = _class("ding.data.buffer", "BufferedData")
PriorityBase: Any = _class("ding.data.buffer.middleware", "PriorityExperienceReplay")


def kinds() -> tuple[Kind, ...]:
    """Return how the dicts of tensors are kept that DI-engine's pipelines push."""
    found: list[Kind] = []
    try:
        from easydict import EasyDict

        found.append(Kind("EasyDict", EasyDict, dict, EasyDict))
    except ImportError:
        pass
    try:
        import treetensor.torch as ttorch
        import treevalue

        # Not by calling it, which makes text of every tensor.
        make = functools.partial(treevalue.unflatten, return_type=ttorch.Tensor)
        together = lambda tree: make(list(_leaves(tree)))  # noqa: E731
        found.append(Kind("treetensor", ttorch.Tensor, _plain, together))
    except ImportError:
        pass
    return tuple(found)


def _plain(tree: Any) -> Any:
    return tree.json()


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield the leaves of a tree, and the way to each."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
