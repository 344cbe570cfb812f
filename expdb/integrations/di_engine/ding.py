"""Base classes and item types of DI-engine and its dependencies, if they are installed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from expdb.integrations.records import Kind

# DI-engine's pipelines check `isinstance` against its own classes.
BufferBase: Any = object
BufferedDataBase: Any = object
PriorityBase: Any = object
with suppress(ImportError):
    from ding.data.buffer import Buffer, BufferedData
    from ding.data.buffer.middleware import PriorityExperienceReplay

    BufferBase, BufferedDataBase, PriorityBase = Buffer, BufferedData, PriorityExperienceReplay


def kinds() -> tuple[Kind, ...]:
    """Return the conversions of the dict classes that DI-engine's pipelines push."""
    conversions: list[Kind] = []
    with suppress(ImportError):
        from easydict import EasyDict

        conversions.append(Kind("EasyDict", EasyDict, dict, EasyDict))
    with suppress(ImportError):
        import treetensor.torch as ttorch
        import treevalue

        # Calling `ttorch.Tensor` would convert every tensor to text.
        make = functools.partial(treevalue.unflatten, return_type=ttorch.Tensor)
        together = lambda tree: make(list(_leaves(tree)))  # noqa: E731
        conversions.append(Kind("treetensor", ttorch.Tensor, _plain, together))
    return tuple(conversions)


def _plain(tree: Any) -> Any:
    return tree.json()


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield the path and the value of each leaf of a tree."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
