"""The reading methods of a buffer: arrays of all episodes, datasets and loaders."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from expdb.integrations.memmap.collector import EpisodeCollector
from expdb.integrations.memmap.datasets import (
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTrajectory,
    Rows,
    padded,
)
from expdb.integrations.memmap.state import BufferState


class Loading(BufferState):
    """The reading methods of a buffer."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The fields as arrays [max_episodes, max_timesteps, ...], which are read when indexed."""
        return {name: _Track(self, name) for name in self.fields}

    def get_all_data(
        self,
        fields: tuple[str, ...] | None = None,
        meta_fields: tuple[str, ...] | None = None,
        device: torch.device | str | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return all ended episodes as tensors, padded with zeros.

        Parameters
        ----------
        fields, meta_fields : tuple of str, optional
            The fields and meta fields to return. If both are None, return all of them and
            `episode_lens`.
        device : torch.device or str, optional
            The device of the tensors.

        Returns
        -------
        dict of str to torch.Tensor
            Fields [E, T, ...] and meta fields [E, ...]; empty if no episode has ended.
        """
        ended = [episode for episode in self.held() if not episode.is_open]
        if not ended:
            return {}
        with_all = fields is None and meta_fields is None
        names = tuple(self.fields) if with_all else tuple(fields or ())
        metas = (*self.meta_fields, "episode_lens") if with_all else tuple(meta_fields or ())
        dataset = ReplayDatasetTrajectory(self, fields=names, include_metadata=False)
        places = [k for k, episode in enumerate(dataset.episodes) if not episode.is_open]
        data = {name: torch.from_numpy(array) for name, array in dataset.arrays(places).items()}
        for name in metas:
            if name == "episode_lens":
                values = np.array([episode.length for episode in ended], np.int32)
            else:
                values = np.array(
                    [episode.meta[name] for episode in ended], self.meta_fields[name].dtype
                )
            data[name] = torch.from_numpy(values)
        return {name: tensor.to(device) if device else tensor for name, tensor in data.items()}

    def dataset(
        self,
        n_steps: int | None = None,
        fields: tuple[str, ...] | None = None,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        timestep_level: bool = False,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
        **options: Any,
    ) -> Dataset[Any]:
        """Return a dataset of trajectories, of timesteps, or of n-step transitions.

        The dataset has the episodes that are stored now. Create another dataset to include episodes
        that are stored later.

        Parameters
        ----------
        n_steps : int, optional
            Return n-step transitions with this number of steps.
        fields : tuple of str, optional
            The fields of trajectories or timesteps; all by default.
        current_fields, next_fields, sequence_fields : tuple of str, optional
            The fields of transitions: of the first step, of the step `n_steps` later, and of all
            steps before the later step.
        timestep_level : bool
            Return single steps instead of trajectories.
        filter_meta, filter_fields : mapping, optional
            Values that the meta fields of episodes, or the fields of steps, must have.
        fieldname_map : mapping, optional
            Names of the fields in the batches.
        slice_by_episode_len : bool
            Whether items of trajectories have the length of their episode.
        return_episode_lens : bool
            Whether items of trajectories have the length of their episode as `_lens`.
        **options
            Other arguments of the dataset, such as `return_indices`.

        Returns
        -------
        Dataset
            A dataset for a PyTorch loader.

        Raises
        ------
        ValueError
            If the buffer is empty, or both `n_steps` and `timestep_level` are given.
        """
        if not len(self):
            raise ValueError("the buffer is empty; store an episode first")
        if n_steps is not None and timestep_level:
            raise ValueError(
                "n_steps cannot be combined with timestep_level; pass only one of them"
            )
        options |= {
            "filter_meta": filter_meta, "filter_fields": filter_fields,
            "fieldname_map": fieldname_map,
        }  # fmt: skip
        if n_steps is not None:
            return ReplayDatasetNStep(
                self, n_steps, current_fields, next_fields, sequence_fields, **options
            )
        if timestep_level:
            return ReplayDatasetTimestep(self, fields, **options)
        return ReplayDatasetTrajectory(
            self,
            fields,
            slice_by_episode_len=slice_by_episode_len,
            return_episode_lens=return_episode_lens,
            **options,
        )

    def dataloader(
        self,
        batch_size: int,
        n_steps: int | None = None,
        dataset: Dataset[Any] | None = None,
        fields: tuple[str, ...] | None = None,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        return_mask: bool = False,
        timestep_level: bool = False,
        to_named_tuple: tuple[str, ...] | None = None,
        shuffle: bool = False,
        device: torch.device | str | None = None,
        dataset_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a PyTorch loader of batches.

        Parameters
        ----------
        batch_size : int
            Items per batch.
        n_steps : int, optional
            Return n-step transitions with this number of steps.
        dataset : Dataset, optional
            The dataset to load; by default `self.dataset` with the arguments of this method.
        fields : tuple of str, optional
            The fields of trajectories or timesteps; all by default.
        current_fields, next_fields, sequence_fields : tuple of str, optional
            The fields of transitions, as for `ReplayBuffer.dataset`.
        filter_meta, filter_fields : mapping, optional
            Values that the meta fields of episodes, or the fields of steps, must have.
        fieldname_map : mapping, optional
            Names of the fields in the batches.
        return_indices : bool
            Whether batches have the indices of their items.
        return_mask : bool
            Whether batches of trajectories have `_mask`, which is True at steps of the episode.
        timestep_level : bool
            Return single steps instead of trajectories.
        to_named_tuple : tuple of str, optional
            Return named tuples of these fields instead of dicts.
        shuffle : bool
            Whether to shuffle the items.
        device : torch.device or str, optional
            The device of the tensors.
        dataset_kwargs : mapping, optional
            Further arguments for `dataset`.
        **options
            Further arguments for `torch.utils.data.DataLoader`.

        Returns
        -------
        DataLoader
            A loader of dicts of tensors, or of named tuples.

        Raises
        ------
        ValueError
            If the buffer is empty, or the arguments contradict each other.
        """
        if not len(self):
            raise ValueError("the buffer is empty; store an episode first")
        if to_named_tuple is not None and fields is not None:
            raise ValueError("fields cannot be combined with to_named_tuple; pass only one of them")
        if return_mask and (timestep_level or n_steps is not None):
            raise ValueError(
                "return_mask requires trajectories; leave out timestep_level and n_steps"
            )
        if dataset is None:
            dataset = self.dataset(
                n_steps=n_steps, fields=fields, current_fields=current_fields,
                next_fields=next_fields, sequence_fields=sequence_fields,
                timestep_level=timestep_level, filter_meta=filter_meta,
                filter_fields=filter_fields, fieldname_map=fieldname_map,
                return_indices=return_indices, **(dataset_kwargs or {}),
            )  # fmt: skip
        collate = Collate(
            {(fieldname_map or {}).get(name, name) for name in self.fields},
            return_mask, to_named_tuple, device,
        )  # fmt: skip
        return DataLoader(
            dataset, batch_size=batch_size, collate_fn=collate, shuffle=shuffle, **options
        )

    def create_collector(
        self,
        num_groups: int,
        fieldnames: tuple[str, ...] | None = None,
        meta_fieldnames: tuple[str, ...] | None = None,
        **options: Any,
    ) -> EpisodeCollector:
        """Return a collector of the episodes of parallel environments.

        Parameters
        ----------
        num_groups : int
            Number of environments.
        fieldnames : tuple of str, optional
            The fields to accept; all by default.
        meta_fieldnames : tuple of str, optional
            The meta fields to accept; all by default.
        **options
            Further arguments of `EpisodeCollector`.

        Returns
        -------
        EpisodeCollector
            The collector.
        """
        return EpisodeCollector(self, num_groups, fieldnames, meta_fieldnames, **options)

    create_rollout_collector = create_collector


class Collate:
    """Build batches from items: pad them, add a mask, and convert them to named tuples."""

    def __init__(
        self,
        padded_names: set[str],
        return_mask: bool,
        names: tuple[str, ...] | None,
        device: torch.device | str | None,
    ):
        self._padded, self._mask, self._names, self._device = (
            padded_names, return_mask, names, device,
        )  # fmt: skip

    def __call__(self, items: Any) -> Any:
        """Return the batch of items."""
        batch = dict(items.tensors) if isinstance(items, Rows) else self._joined(items)
        if self._mask:
            lengths = batch["_lens"]
            batch["_mask"] = torch.arange(int(lengths.max())) < lengths[:, None]
        if self._device is not None:
            batch = {name: tensor.to(self._device) for name, tensor in batch.items()}
        if self._names is None:
            return batch
        for name in self._names:
            if name not in batch:
                raise ValueError(f"the batch has no field {name}; expected one of {list(batch)}")
        kind = namedtuple("Batch", [name.lstrip("_") for name in self._names])  # type: ignore[misc]
        return kind(*[batch[name] for name in self._names])

    def _joined(self, items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Join the items of a dataset that returns them one by one, such as a `ConcatDataset`."""
        batch = {}
        for name in items[0]:
            tensors = [item[name] for item in items]
            if name in self._padded and len({tensor.shape for tensor in tensors}) > 1:
                batch[name] = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
            else:
                batch[name] = default_collate(tensors)
        return batch


class _Track:
    """A read-only view of a field of all slots, like the array of memmap-replay-buffer."""

    def __init__(self, buffer: Any, name: str):
        self._buffer, self._spec = buffer, buffer.fields[name]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (self._buffer.max_episodes, self._buffer.max_timesteps, *self._spec.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self._spec.dtype  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        slots, rest = (index[0], index[1:]) if isinstance(index, tuple) else (index, ())
        numbers = np.arange(self.shape[0])[slots]
        episodes = {self._buffer.slot_of(episode): episode for episode in self._buffer.held()}
        read = [self._slot(episodes.get(int(slot))) for slot in np.atleast_1d(numbers)]
        array = np.stack(read) if np.ndim(numbers) else read[0]
        return array[(slice(None), *rest)] if np.ndim(numbers) else array[rest]

    def _slot(self, episode: Any) -> np.ndarray:
        stored = np.empty((0, *self._spec.shape)) if episode is None else self._stored(episode)
        return padded(stored, self.shape[1], self._spec)

    def _stored(self, episode: Any) -> np.ndarray:
        array: np.ndarray = self._buffer.rows.read(episode)[self._spec.name]
        return array

    def __iter__(self) -> Iterator[Any]:
        return (self[slot] for slot in range(len(self)))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self[:], dtype)
