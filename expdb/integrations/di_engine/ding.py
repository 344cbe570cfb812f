"""What of DI-engine itself is there: its classes to derive from, and the types that items have."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from expdb.integrations.records import Kind

# Its pipelines ask isinstance of its own classes.
BufferBase: Any = object
BufferedDataBase: Any = object
PriorityBase: Any = object
with suppress(ImportError):
    from ding.data.buffer import Buffer, BufferedData
    from ding.data.buffer.middleware import PriorityExperienceReplay

    BufferBase, BufferedDataBase, PriorityBase = Buffer, BufferedData, PriorityExperienceReplay


def kinds() -> tuple[Kind, ...]:
    """Return how the dicts of tensors are kept that DI-engine's pipelines push."""
    found: list[Kind] = []
    with suppress(ImportError):
        from easydict import EasyDict

        found.append(Kind("EasyDict", EasyDict, dict, EasyDict))
    with suppress(ImportError):
        import treetensor.torch as ttorch
        import treevalue

        # Not by calling it, which makes text of every tensor.
        make = functools.partial(treevalue.unflatten, return_type=ttorch.Tensor)
        together = lambda tree: make(list(_leaves(tree)))  # noqa: E731
        found.append(Kind("treetensor", ttorch.Tensor, _plain, together))
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
