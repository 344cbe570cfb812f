"""Differences of JSON values, so that a rebuilt document equals the imported one."""

from __future__ import annotations

from typing import Any


def diff(built: Any, wanted: Any) -> Any:
    """Return a patch that turns one JSON value into another, None if they are equal.

    A patch is ``{"set": value}``, or ``{"keys": {key: patch}, "remove": [key]}`` for an object, or
    ``{"items": {index: patch}}`` for a list of the same length.
    """
    if _equal(built, wanted):
        return None
    if isinstance(built, dict) and isinstance(wanted, dict):
        keys = {
            key: patch
            for key, value in wanted.items()
            if (patch := diff(built[key], value) if key in built else {"set": value}) is not None
        }
        return {"keys": keys, "remove": [key for key in built if key not in wanted]}
    if isinstance(built, list) and isinstance(wanted, list) and len(built) == len(wanted):
        pairs = zip(built, wanted, strict=True)
        patches = {str(index): diff(*pair) for index, pair in enumerate(pairs)}
        return {"items": {index: patch for index, patch in patches.items() if patch is not None}}
    return {"set": wanted}


def apply(value: Any, patch: Any) -> Any:
    """Return a value with a patch applied."""
    if patch is None:
        return value
    if "set" in patch:
        return patch["set"]
    if "items" in patch:
        items = list(value)
        for index, inner in patch["items"].items():
            items[int(index)] = apply(items[int(index)], inner)
        return items
    result = {key: inner for key, inner in value.items() if key not in patch["remove"]}
    for key, inner in patch["keys"].items():
        result[key] = apply(result.get(key), inner)
    return result


def _equal(first: Any, second: Any) -> bool:
    """Return whether two JSON values are written the same: 1, 1.0 and true differ."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool(first == second)
