"""The state of a buffer in a checkpoint of RLlib: its location, or all that it holds."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import expdb
from expdb.integrations.locations import PRIVATE, contents, load_contents


def connectable(buffer: Any) -> str:
    """Return a location by which this process can open the database of a buffer again."""
    return str(buffer.database.location if buffer.is_private else buffer.location)


def data_of(buffer: Any, wanted: bool = False) -> bytes | None:
    """Return all that a buffer holds if that is wanted or if its database is private."""
    buffer.flush()
    if not wanted and not buffer.is_private:
        return None
    return contents(connectable(buffer), buffer.buffer)


def state_of(buffer: Any, rng: np.random.Generator, sampled: int) -> dict[str, Any]:
    """Flush a buffer and return its location, the state of its generator, and maybe its data."""
    state = {
        "location": PRIVATE if buffer.is_private else str(buffer.location), "name": buffer.name,
        "generator": rng.bit_generator.state, "sampled_timesteps": sampled,
    }  # fmt: skip
    data = data_of(buffer, buffer.state_includes_data)
    return state if data is None else state | {"data": data, "items_added": _added(buffer)}


def continue_from(buffer: Any, rng: np.random.Generator, state: dict[str, Any]) -> int:
    """Restore a state and return how many timesteps were sampled.

    Data of the state replaces that of a private database, and is stored in an empty one.

    Raises ValueError for a state of another buffer, and for data if the buffer holds other data.
    """
    if state.get("name") != buffer.name:
        raise ValueError(
            f"the state is of the buffer {state.get('name')!r} in {state.get('location')!r}, not "
            f"of {buffer.name!r}; open that buffer with location= and name="
        )
    if "data" in state:
        _load(buffer, state)
    elif state.get("location") != str(buffer.location):
        warnings.warn(
            f"the state is of a buffer in {state.get('location')}, but this buffer is in "
            f"{buffer.location} and holds {len(buffer)} items or episodes; unless the file was "
            "moved, open the other one with location=, or save states with "
            "state_includes_data=True",
            expdb.ExpDBWarning, stacklevel=3,
        )  # fmt: skip
    rng.bit_generator.state = state["generator"]
    return int(state["sampled_timesteps"])


def _load(buffer: Any, state: dict[str, Any]) -> None:
    buffer.flush()
    if not buffer.is_private and (added := _added(buffer)):
        if added == state["items_added"]:  # the checkpoint is restored where it was made
            return
        raise ValueError(
            f"buffer {buffer.name!r} in {buffer.location} has stored {added} items, and the state "
            f"contains {state['items_added']}; restore it with another location= or name="
        )
    buffer.load(state["data"])


def load(buffer: Any, data: bytes) -> None:
    """Replace what the database of a buffer holds."""
    load_contents(buffer.database, connectable(buffer), buffer.name, data)


def _added(buffer: Any) -> int:
    return int(buffer.buffer.stats()["added"])
