"""Save the state of a buffer in a checkpoint of RLlib, and restore it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from expdb import errors
from expdb.integrations.locations import PRIVATE, check_contents, restore_buffer, serialize_buffer


def connectable(buffer: Any) -> str:
    """Return a location at which this process can open the database of a buffer again."""
    return str(buffer.database.location if buffer.is_private else buffer.location)


def state_of(buffer: Any, rng: np.random.Generator, sampled: int) -> dict[str, Any]:
    """Flush a buffer and return its location, its generator state and `sampled`.

    If the buffer is private or has `state_includes_data`, the state also contains its data.
    """
    buffer.flush()
    state = {
        "location": PRIVATE if buffer.is_private else str(buffer.location), "name": buffer.name,
        "generator": rng.bit_generator.state, "sampled_timesteps": sampled,
    }  # fmt: skip
    if not buffer.is_private and not buffer.state_includes_data:
        return state
    data = serialize_buffer(connectable(buffer), buffer.buffer)
    return state | {"data": data, "items_added": _added(buffer)}


def continue_from(buffer: Any, rng: np.random.Generator, state: dict[str, Any]) -> int:
    """Restore a state and return its number of sampled timesteps.

    The data of a state replaces the contents of a private buffer. Any other buffer stores the data
    only if nothing was ever added to the buffer. Otherwise, the buffer keeps its contents, and
    ValueError is raised if the state has another number of added items. Also raise ValueError if
    the state belongs to another buffer. Warn if a state without data has another location.
    """
    if state.get("name") != buffer.name:
        raise ValueError(
            f"the state belongs to buffer {state.get('name')!r} in {state.get('location')!r}, not "
            f"to {buffer.name!r}; open that buffer with location= and name="
        )
    if "data" in state:
        _restore_data(buffer, state)
    elif state.get("location") != str(buffer.location):
        warnings.warn(
            f"the state belongs to a buffer in {state.get('location')}, but this buffer is in "
            f"{buffer.location} ({len(buffer)} items or episodes); if the file was not moved, open "
            "the other buffer with location=, or save states with state_includes_data=True",
            errors.ExpDBWarning, stacklevel=3,
        )  # fmt: skip
    rng.bit_generator.state = state["generator"]
    return int(state["sampled_timesteps"])


def _restore_data(buffer: Any, state: dict[str, Any]) -> None:
    buffer.flush()
    if not buffer.is_private and (added := _added(buffer)):
        if added == state["items_added"]:  # the database still has the contents of the checkpoint
            return
        raise ValueError(
            f"buffer {buffer.name!r} in {buffer.location} contains other data ({added} added "
            f"items, but {state['items_added']} in the state); restore the state with another "
            "location="
        )
    check_contents(buffer.name, state["data"], buffer.buffer.capacity)
    buffer.load(state["data"])


def replace_contents(buffer: Any, data: bytes) -> None:
    """Replace the contents of a buffer that has no open writer."""
    restore_buffer(buffer.database, connectable(buffer), buffer.name, data)


def _added(buffer: Any) -> int:
    return int(buffer.buffer.stats()["added"])
