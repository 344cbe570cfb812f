"""Import folders that memmap-replay-buffer has written, without unpickling anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from expdb.integrations.memmap.buffer import ReplayBuffer
from expdb.integrations.memmap.specs import DTYPES

_KINDS = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
_INTERNAL = ("episode_lens", "_initted")


def import_folder(
    folder: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    circular: bool = False,
    defaults: Mapping[str, Any] | None = None,
    **options: Any,
) -> ReplayBuffer:
    """Copy the episodes of a folder of memmap-replay-buffer into a new buffer, in their order.

    Names, types and shapes of the fields come from the arrays in the folder. The pickled
    `metadata.pkl` is not read, so you must pass the settings that only this file contains:
    `circular` and `defaults`.

    Parameters
    ----------
    folder : str or path
        The folder to import.
    into : str or path
        The folder, or the PostgreSQL URL, of the new buffer.
    circular : bool
        Whether the buffer is circular.
    defaults : mapping, optional
        The defaults of fields and meta fields by name.
    **options
        Other arguments of `ReplayBuffer`.

    Returns
    -------
    ReplayBuffer
        The new buffer.

    Raises
    ------
    ValueError
        If the folder was not written by memmap-replay-buffer, or `into` already has episodes.
    """
    source = Path(folder)
    fields = _arrays(source, ".data.npy")
    metas = _arrays(source, ".data.meta.npy")
    if not fields or "episode_lens" not in metas:
        raise ValueError(
            f"{source} is not a folder of memmap-replay-buffer; expected the files *.data.npy "
            "and episode_lens.data.meta.npy"
        )
    lengths = np.asarray(metas["episode_lens"])
    metas = {name: array for name, array in metas.items() if name not in _INTERNAL}
    default_of = dict(defaults or {})
    max_episodes, max_timesteps = next(iter(fields.values())).shape[:2]
    buffer = ReplayBuffer(
        into, max_episodes, max_timesteps,
        fields={name: _spec(array, 2, default_of.get(name)) for name, array in fields.items()},
        meta_fields={name: _spec(array, 1, default_of.get(name)) for name, array in metas.items()},
        circular=circular, **options,
    )  # fmt: skip
    if len(buffer):
        buffer.close()
        raise ValueError(f"{into} already contains a buffer; import into an empty folder")
    for slot in _by_age(source, lengths, circular):
        buffer.store_episode(
            **{name: array[slot, : lengths[slot]] for name, array in fields.items()},
            **{name: array[slot] for name, array in metas.items()},
        )
    return buffer


def _arrays(folder: Path, ending: str) -> dict[str, np.ndarray]:
    return {
        path.name.removesuffix(ending): np.load(path, mmap_mode="r", allow_pickle=False)
        for path in sorted(folder.glob(f"*{ending}"))
    }


def _spec(array: np.ndarray, leading: int, default: Any) -> tuple[Any, ...]:
    if array.dtype not in _KINDS:
        raise ValueError(
            f"cannot import an array of dtype {array.dtype}; expected one of {set(DTYPES)}"
        )
    return _KINDS[array.dtype], array.shape[leading:], default


def _by_age(folder: Path, lengths: np.ndarray, circular: bool) -> list[int]:
    """Return the slots that hold an episode, the oldest first."""
    path = folder / "episode_index.state.npy"
    start = int(np.load(path, allow_pickle=False)) if circular and path.exists() else 0
    slots = (start + np.arange(len(lengths))) % len(lengths)
    return [int(slot) for slot in slots if lengths[slot] > 0]
