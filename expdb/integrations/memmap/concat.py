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
            raise ValueError("folders must not be empty; pass at least one folder")
        self.buffers = [ReplayBuffer.from_folder(folder, read_only=True) for folder in folders]
        self.fields = self.buffers[0].fields
        self.fieldnames, self.meta_fieldnames = (
            self.buffers[0].fieldnames,
            self.buffers[0].meta_fieldnames,
        )
        for buffer in self.buffers[1:]:
            for what in ("fieldnames", "meta_fieldnames"):
                if getattr(buffer, what) != getattr(self, what):
                    raise ValueError(
                        f"all buffers must have the same {what}, got {getattr(buffer, what)} and "
                        f"{getattr(self, what)}"
                    )
        self.read_only = True

    @property
    def num_episodes(self) -> int:
        """Number of stored episodes that have ended."""
        return sum(buffer.num_episodes for buffer in self.buffers)

    @property
    def max_episodes(self) -> int:
        """Maximum number of episodes of all buffers together."""
        return sum(buffer.max_episodes for buffer in self.buffers)

    @property
    def max_timesteps(self) -> int:
        """The greatest maximum length of an episode among the buffers."""
        return int(max(buffer.max_timesteps for buffer in self.buffers))

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.buffers)

    def dataset(self, **options: Any) -> Dataset[Any]:
        """Return a dataset of all buffers.

        Parameters
        ----------
        **options
            Arguments of `ReplayBuffer.dataset`.

        Returns
        -------
        Dataset
            A dataset for a PyTorch loader.

        Raises
        ------
        ValueError
            If all buffers are empty, or the options contradict each other.
        """
        if not len(self):
            raise ValueError("the buffer is empty; store an episode first")
        return ConcatDataset([buffer.dataset(**options) for buffer in self.buffers if len(buffer)])

    def dataloader(self, *args: Any, **options: Any) -> DataLoader[Any]:
        """Return a loader of all buffers.

        Parameters
        ----------
        *args, **options
            Arguments of `ReplayBuffer.dataloader`.

        Returns
        -------
        DataLoader
            A loader of dicts of tensors, or of named tuples.

        Raises
        ------
        ValueError
            If all buffers are empty, or the options contradict each other.
        """
        return Loading.dataloader(self, *args, **options)  # type: ignore[arg-type]

    def get_all_data(self, **options: Any) -> dict[str, torch.Tensor]:
        """Return all episodes as tensors, padded with zeros to the longest episode.

        Parameters
        ----------
        **options
            Arguments of `ReplayBuffer.get_all_data`.

        Returns
        -------
        dict of str to torch.Tensor
            The fields, [E, T, ...], and the meta fields, [E, ...].
        """
        parts = [part for buffer in self.buffers if (part := buffer.get_all_data(**options))]
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
        for buffer in self.buffers:
            buffer.close()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """Raise NotImplementedError, because the buffers are read-only.

        Parameters
        ----------
        *_, **__
            Ignored.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "a ConcatReplayBuffer is read-only; open one of the folders with "
            "ReplayBuffer.from_folder(folder), and write to that buffer"
        )

    clear = reset_ = advance_episode = store_batch = store_meta_batch = one_episode = _refuse
    batched_episode = store_datapoint = store_meta_datapoint = store = store_episode = _refuse
    update = _refuse
