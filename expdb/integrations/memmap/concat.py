"""Read several buffers as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from expdb.integrations.memmap.buffer import ReplayBuffer
from expdb.integrations.memmap.loading import Collate, Loading


class ConcatReplayBuffer:
    """Read the episodes of several folders, which must have the same fields.

    Parameters
    ----------
    folders : sequence of str or path
        The folders; they are opened read-only.

    Raises
    ------
    ValueError
        If there are no folders, or their fields differ.
    """

    def __init__(self, folders: Sequence[str | os.PathLike[str]]):
        if not folders:
            raise ValueError("ConcatReplayBuffer requires at least one folder")
        self.buffers = [ReplayBuffer.from_folder(folder, read_only=True) for folder in folders]
        self.fields = self.buffers[0].fields
        self.fieldnames, self.meta_fieldnames = (
            self.buffers[0].fieldnames,
            self.buffers[0].meta_fieldnames,
        )
        for one in self.buffers[1:]:
            for what in ("fieldnames", "meta_fieldnames"):
                if getattr(one, what) != getattr(self, what):
                    raise ValueError(
                        f"All buffers must have the same {what} - got {getattr(one, what)} and "
                        f"{getattr(self, what)}"
                    )
        self.read_only = True

    @property
    def num_episodes(self) -> int:
        """Number of stored episodes that have ended."""
        return sum(one.num_episodes for one in self.buffers)

    @property
    def max_episodes(self) -> int:
        """Maximum number of episodes of all buffers together."""
        return sum(one.max_episodes for one in self.buffers)

    @property
    def max_timesteps(self) -> int:
        """The greatest maximum length of an episode among the buffers."""
        return int(max(one.max_timesteps for one in self.buffers))

    def __len__(self) -> int:
        return sum(len(one) for one in self.buffers)

    def dataset(self, **options: Any) -> Dataset[Any]:
        """Return a dataset of all buffers; the options are those of `ReplayBuffer.dataset`."""
        if not len(self):
            raise ValueError("replay buffer is empty")
        return ConcatDataset([one.dataset(**options) for one in self.buffers if len(one)])

    def dataloader(self, *args: Any, **options: Any) -> DataLoader[Any]:
        """Return a loader of all buffers; the options are those of `ReplayBuffer.dataloader`."""
        return Loading.dataloader(self, *args, **options)  # type: ignore[arg-type]

    def get_all_data(self, **options: Any) -> dict[str, torch.Tensor]:
        """Return all episodes as tensors, padded with zeros to the longest."""
        parts = [part for one in self.buffers if (part := one.get_all_data(**options))]
        if not parts:
            return {}
        items = [
            {name: part[name][k] for name in part}
            for part in parts
            for k in range(len(next(iter(part.values()))))
        ]
        joined: dict[str, torch.Tensor] = Collate(set(self.fields), False, None, None)(items)
        return joined

    def flush(self) -> None:
        """Do nothing, because the buffers are read-only."""

    def close(self) -> None:
        """Close the databases."""
        for one in self.buffers:
            one.close()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("ConcatReplayBuffer is read-only")

    clear = reset_ = advance_episode = store_batch = store_meta_batch = one_episode = _refuse
    batched_episode = store_datapoint = store_meta_datapoint = store = store_episode = _refuse
    update = _refuse
