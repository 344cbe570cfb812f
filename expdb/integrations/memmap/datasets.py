"""Datasets of whole trajectories, windows of trajectories, timesteps and n-step transitions.

PyTorch's loader calls `__getitems__`, which gathers a whole batch at once. If the steps fit into
memory, the datasets read them from memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from expdb.integrations.memmap.episodes import StoredEpisode
from expdb.integrations.memmap.specs import Spec
from expdb.integrations.memmap.state import BufferState


class Rows(Sequence[dict[str, torch.Tensor]]):
    """The items of a batch as a sequence of dicts; `tensors` has the whole batch.

    In an item, the tensors named in `padded` are cut to the length in `lengths`.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        padded: frozenset[str] = frozenset(),
        lengths: Any = None,
    ):
        self.tensors, self._padded, self._lengths = tensors, padded, lengths

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, k: Any) -> Any:
        return {
            name: tensor[k, : self._lengths[k]] if name in self._padded else tensor[k]
            for name, tensor in self.tensors.items()
        }


class ReplayDatasetBase(Dataset[dict[str, torch.Tensor]]):
    """Base class of datasets, which list the matching episodes when they are created."""

    def __init__(
        self,
        replay_buffer: Any,
        fields: tuple[str, ...] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        include_metadata: bool = True,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        return_indices: bool = False,
        *,
        min_episode_len: int = 1,
    ):
        if isinstance(replay_buffer, (str, os.PathLike)):
            replay_buffer = BufferState.from_folder(replay_buffer)
        self.replay_buffer, self.return_indices = replay_buffer, return_indices
        self.fields = tuple(replay_buffer.fields) if fields is None else tuple(fields)
        self.fieldname_map = dict(fieldname_map or {})
        self.include_metadata = include_metadata
        self._check(self.fields, replay_buffer.fields)
        self._check(filter_meta or (), replay_buffer.meta_fields)
        self.episodes: list[StoredEpisode] = [
            episode
            for episode in replay_buffer.held()
            if episode.length >= min_episode_len
            and all(
                _equal(episode.meta[name], value) for name, value in (filter_meta or {}).items()
            )
        ]
        self._slots = np.array(
            [replay_buffer.slot_of(episode) for episode in self.episodes], np.int64
        )
        self._steps, self._first, self._lengths = self._positions()
        self._meta = self._metadata() if include_metadata else {}
        self._filter = dict(filter_fields or {})

    def _check(self, names: Any, specs: Mapping[str, Spec]) -> None:
        if unknown := set(names) - set(specs):
            raise ValueError(f"unknown field names {unknown}; expected names from {set(specs)}")

    def _positions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of all steps, and the first index and length of each episode."""
        positions, owners = self.replay_buffer.rows.positions()
        order = np.argsort(owners, kind="stable")
        owners, positions = owners[order], positions[order]
        ids = np.array([episode.id for episode in self.episodes], np.int64)
        first, last = np.searchsorted(owners, ids), np.searchsorted(owners, ids, "right")
        return positions, first, last - first

    def _metadata(self) -> dict[str, np.ndarray]:
        return {
            self.out_name(name): np.array(
                [episode.meta[name] for episode in self.episodes], spec.dtype
            ).reshape(-1, *spec.shape)
            for name, spec in self.replay_buffer.meta_fields.items()
        }

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def out_name(self, name: str) -> str:
        """Return the name of a field in the batches.

        Parameters
        ----------
        name : str
            Name of a field.

        Returns
        -------
        str
            The name in the batches.
        """
        return self.fieldname_map.get(name, name)

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        if not -len(self) <= int(index) < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} items")
        item: dict[str, torch.Tensor] = self.__getitems__([int(index) % len(self)])[0]
        return item

    def __getitems__(self, indices: list[int]) -> Any:
        """Return several items in one batch."""
        raise NotImplementedError

    def _gather(self, rows: np.ndarray, names: Any) -> dict[str, np.ndarray]:
        """Return fields of steps in the shape of `rows`."""
        flat: dict[str, np.ndarray] = self.replay_buffer.rows.gather(
            self._steps[rows.reshape(-1)], names
        )
        arrays: dict[str, np.ndarray] = {
            name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in flat.items()
        }
        return arrays

    def _sequences(
        self, first: np.ndarray, lengths: np.ndarray, longest: int, names: Any
    ) -> dict[str, np.ndarray]:
        """Return sequences of steps from `first` on, [B, longest, ...], padded with zeros."""
        there = np.arange(longest) < lengths[:, None]
        if there.all():
            return self._gather(first[:, None] + np.arange(longest), names)
        steps = self._gather((first[:, None] + np.arange(longest))[there], names)
        out = {}
        for name, array in steps.items():
            out[name] = np.zeros((*there.shape, *array.shape[1:]), array.dtype)
            out[name][there] = array
        return out

    def _with_meta(self, arrays: dict[str, Any], episodes: np.ndarray) -> dict[str, torch.Tensor]:
        arrays |= {name: column[episodes] for name, column in self._meta.items()}
        return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}

    def _timepoints(self, horizon: int) -> np.ndarray:
        """Return (episode, timestep) of all steps with `horizon` - 1 steps after them, [N, 2]."""
        counts = np.maximum(self._lengths - horizon + 1, 0)
        episodes = np.repeat(np.arange(len(counts)), counts)
        begin = np.repeat(np.cumsum(counts) - counts, counts)
        points = np.column_stack((episodes, np.arange(len(episodes)) - begin))
        for name, value in self._filter.items():
            self._check((name,), self.replay_buffer.fields)
            if self.replay_buffer.fields[name].shape:
                raise ValueError(
                    f"filter_fields supports only scalar fields, got {name}; remove this field "
                    "from filter_fields"
                )
            rows = self._first[points[:, 0]] + points[:, 1]
            points = points[_equal(self._gather(rows, (name,))[name], value)]
        return points


class ReplayDatasetTrajectory(ReplayDatasetBase):
    """A dataset of whole episodes.

    An item has as many steps as its episode; a batch is padded with zeros.

    Parameters
    ----------
    *args : object
        Positional arguments of every dataset: the buffer or its folder, `fields`, `fieldname_map`,
        `include_metadata`, `filter_meta`, `filter_fields` and `return_indices`.
    slice_by_episode_len : bool
        Whether items have the length of their episode, instead of `max_timesteps`.
    return_episode_lens : bool
        Whether items have the length of their episode as `_lens`.
    **options
        Keyword arguments of every dataset.

    Raises
    ------
    ValueError
        If a field is unknown, `filter_fields` is given, or both flags are False.
    """

    def __init__(
        self,
        *args: Any,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
        **options: Any,
    ):
        super().__init__(*args, **options)
        if self._filter:
            raise ValueError(
                "this dataset does not support filter_fields; use a timestep or n-step dataset"
            )
        if not slice_by_episode_len and not return_episode_lens:
            raise ValueError(
                "return_episode_lens and slice_by_episode_len cannot both be False; set one of them"
            )
        self.slice_by_episode_len = slice_by_episode_len
        self.return_episode_lens = return_episode_lens

    def arrays(self, indices: list[int]) -> dict[str, np.ndarray]:
        """Return the fields of several episodes, [B, T, ...], padded with zeros.

        Parameters
        ----------
        indices : list of int
            Indices of the episodes in the dataset.

        Returns
        -------
        dict of str to ndarray
            The fields.
        """
        places = np.asarray(indices, np.int64)
        longest = int(self._lengths[places].max(initial=0))
        if not self.slice_by_episode_len:
            longest = self.replay_buffer.max_timesteps
        sequences = self._sequences(
            self._first[places], self._lengths[places], longest, self.fields
        )
        return {self.out_name(name): array for name, array in sequences.items()}

    def __getitems__(self, indices: list[int]) -> Rows:
        """Return several episodes at once."""
        places, arrays = np.asarray(indices, np.int64), self.arrays(indices)
        lengths = self._lengths[places]
        names = list(arrays)
        if self.return_episode_lens:
            arrays["_lens"] = lengths
        if self.return_indices:
            arrays["_index"] = self._slots[places]
        tensors = self._with_meta(arrays, places)
        return Rows(
            tensors, frozenset(names) if self.slice_by_episode_len else frozenset(), lengths
        )


ReplayDataset = ReplayDatasetTrajectory


class ReplayDatasetTimeWindow(ReplayDatasetBase):
    """A dataset with a random window of each episode, padded with zeros to `window_length`.

    Parameters
    ----------
    replay_buffer : ReplayBuffer, str or path
        The buffer, or its folder.
    window_length : int
        Number of steps of a window.
    *args, **options
        Further arguments of every dataset; see `ReplayDatasetTrajectory`.

    Raises
    ------
    ValueError
        If a field is unknown.
    """

    def __init__(self, replay_buffer: Any, window_length: int, *args: Any, **options: Any):
        super().__init__(replay_buffer, *args, **options)
        self.window_length = window_length

    def __getitems__(self, indices: list[int]) -> Rows:
        """Return windows of several episodes at once."""
        places = np.asarray(indices, np.int64)
        lengths = np.minimum(self._lengths[places], self.window_length)
        start = np.random.randint(0, self._lengths[places] - lengths + 1)
        windows = self._sequences(
            self._first[places] + start, lengths, self.window_length, self.fields
        )
        arrays: dict[str, Any] = {self.out_name(name): array for name, array in windows.items()}
        arrays["_lens"] = lengths
        arrays["_reaches_episode_end"] = start + lengths >= self._lengths[places]
        if self.return_indices:
            arrays |= {"_index": self._slots[places], "_start": start}
        return Rows(self._with_meta(arrays, places))


class ReplayDatasetTimestep(ReplayDatasetBase):
    """A dataset of single steps with the meta fields of their episodes.

    Parameters
    ----------
    *args, **options
        Arguments of every dataset; see `ReplayDatasetTrajectory`.

    Raises
    ------
    ValueError
        If a field is unknown, or a field of `filter_fields` is not scalar.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._points = self._timepoints(1)

    @property
    def timepoints(self) -> torch.Tensor:
        """The slot and the timestep of each item, [N, 2]."""
        return torch.from_numpy(self._named(np.arange(len(self._points))))

    def _named(self, places: np.ndarray) -> np.ndarray:
        points = self._points[places]
        return np.column_stack((self._slots[points[:, 0]], points[:, 1]))

    def __len__(self) -> int:
        return len(self._points)

    def __getitems__(self, indices: list[int]) -> Rows:
        """Return several steps at once."""
        places = np.asarray(indices, np.int64)
        episodes, steps = self._points[places].T
        columns = self._gather(self._first[episodes] + steps, self.fields)
        arrays: dict[str, Any] = {self.out_name(name): array for name, array in columns.items()}
        if self.return_indices:
            arrays["_indices"] = self._named(places)
        return Rows(self._with_meta(arrays, episodes))


class ReplayDatasetNStep(ReplayDatasetTimestep):
    """A dataset of n-step transitions.

    A transition has the `current_fields` of a step and the `next_fields` of the step `n_steps`
    later. If the episode ends earlier, its last step is the later step. The `sequence_fields` come
    from the first step and all following steps before the later step.

    Parameters
    ----------
    replay_buffer : ReplayBuffer, str or path
        The buffer, or its folder.
    n_steps : int
        Number of steps of a transition.
    current_fields : tuple of str, optional
        Fields of the first step; all by default.
    next_fields : tuple of str, optional
        Fields of the later step; all by default.
    sequence_fields : tuple of str, optional
        Fields of all steps before the later step; none by default.
    **options
        Further arguments of every dataset; see `ReplayDatasetTrajectory`.

    Raises
    ------
    ValueError
        If a field is unknown, or a field of `filter_fields` is not scalar.
    """

    def __init__(
        self,
        replay_buffer: Any,
        n_steps: int,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        **options: Any,
    ):
        ReplayDatasetBase.__init__(self, replay_buffer, min_episode_len=2, **options)
        all_fields = tuple(replay_buffer.fields)
        self.n_steps = n_steps
        self.current_fields = all_fields if current_fields is None else tuple(current_fields)
        self.next_fields = all_fields if next_fields is None else tuple(next_fields)
        self.sequence_fields = tuple(sequence_fields or ())
        for names in (self.current_fields, self.next_fields, self.sequence_fields):
            self._check(names, replay_buffer.fields)
        self._points = self._timepoints(2)

    def __getitems__(self, indices: list[int]) -> Rows:
        """Return several transitions at once."""
        places = np.asarray(indices, np.int64)
        episodes, steps = self._points[places].T
        rows = self._first[episodes] + steps
        taken = np.minimum(self.n_steps, self._lengths[episodes] - steps - 1)
        arrays: dict[str, Any] = {}
        for name, array in self._gather(rows, self.current_fields).items():
            arrays[self.out_name(name)] = array
        for name, array in self._gather(rows + taken, self.next_fields).items():
            arrays[self.out_name(f"next_{name}")] = array
        if self.sequence_fields:
            sequences = self._sequences(rows, taken, self.n_steps, self.sequence_fields)
            for name, array in sequences.items():
                arrays[self.out_name(f"seq_{name}")] = array
        arrays[self.out_name("n_step_lens")] = taken
        if self.return_indices:
            arrays["_indices"] = self._named(places)
        return Rows(self._with_meta(arrays, episodes))


def padded(array: np.ndarray, length: int, spec: Spec) -> np.ndarray:
    """Return steps, padded with the default of their field."""
    steps = spec.full(length)
    steps[: len(array)] = array
    return steps


def _equal(value: Any, wanted: Any) -> Any:
    """Return whether a value equals `wanted`; compare a bool with the truth of the value."""
    if isinstance(wanted, bool):
        return np.asarray(value, np.bool_) == wanted
    is_equal = np.asarray(value) == np.asarray(wanted)
    return is_equal if np.ndim(wanted) == 0 else is_equal.all()
