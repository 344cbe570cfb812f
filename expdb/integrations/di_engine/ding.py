"""What of DI-engine itself is there: its classes to derive from, and the types that items have."""

from __future__ import annotations

import importlib
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

        found.append(Kind("treetensor", ttorch.Tensor, _plain, ttorch.tensor))
    except ImportError:
        pass
    return tuple(found)


def _plain(tree: Any) -> Any:
    return tree.json()
