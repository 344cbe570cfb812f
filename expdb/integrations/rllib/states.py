"""What a checkpoint of RLlib has of a buffer: where it is. The database has the rest."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import expdb


def state_of(buffer: Any, rng: np.random.Generator, sampled: int) -> dict[str, Any]:
    """Flush a buffer and return where it is, with the state of its generator."""
    buffer.flush()
    return {
        "location": str(buffer.location), "name": buffer.name,
        "generator": rng.bit_generator.state, "sampled_timesteps": sampled,
    }  # fmt: skip


def go_on(buffer: Any, rng: np.random.Generator, state: dict[str, Any]) -> int:
    """Set the generator and return how many timesteps were sampled.

    Raises ValueError for a state of another buffer.
    """
    if state.get("name") != buffer.name:
        raise ValueError(
            f"a state of the buffer {state.get('name')!r} in {state.get('location')!r}: open "
            "that with location= and name="
        )
    if state.get("location") != str(buffer.location):
        warnings.warn(
            f"this state is of a buffer in {state.get('location')}, and goes on with the one in "
            f"{buffer.location}, which holds {len(buffer)} items or episodes: if the file was not "
            "moved, open the other one with location=",
            expdb.ExpDBWarning, stacklevel=3,
        )  # fmt: skip
    rng.bit_generator.state = state["generator"]
    return int(state["sampled_timesteps"])
