"""Collect rollouts of parallel environments in memory until they are stored."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


class EpisodeCollector:
    """Collect the steps of several environments, and store one episode for each environment.

    `append` adds one step, and `extend` adds whole trajectories. `env_major` and `time_major`
    return the collected arrays.

    Parameters
    ----------
    replay_buffer : ReplayBuffer
        The buffer that stores the episodes.
    num_groups : int
        Number of environments.
    fieldnames, meta_fieldnames : tuple of str, optional
        The fields to accept; by default all fields of the buffer.
    strict : bool
        Whether an unknown name raises KeyError; otherwise it is ignored.
    """

    def __init__(
        self,
        replay_buffer: Any,
        num_groups: int,
        fieldnames: tuple[str, ...] | None = None,
        meta_fieldnames: tuple[str, ...] | None = None,
        strict: bool = True,
    ):
        self.replay_buffer, self.num_groups, self.strict = replay_buffer, num_groups, strict
        self.fieldnames = set(fieldnames or replay_buffer.fieldnames)
        self.meta_fieldnames = set(meta_fieldnames or replay_buffer.meta_fieldnames)
        self.clear()

    def __len__(self) -> int:
        return self.step_count

    def clear(self) -> None:
        """Discard the collected steps."""
        self.episode_data: dict[str, list[list[Any]]] = {}
        self.meta: dict[str, Any] = {}
        self.step_count = 0

    reset = clear

    def _knows(self, name: str) -> bool:
        if name in self.fieldnames or name in self.meta_fieldnames:
            return True
        if self.strict:
            raise KeyError(
                f"unknown field {name}; expected one of "
                f"{sorted(self.fieldnames | self.meta_fieldnames)}"
            )
        return False

    def append(self, **data: Any) -> None:
        """Add one step of every environment.

        Parameters
        ----------
        **data
            Fields as arrays [groups, ...] or [groups, 1, ...]. The value of a meta field applies to
            all environments.

        Raises
        ------
        KeyError
            If a name is unknown and `strict` is True.
        AssertionError
            If a value has the wrong shape.
        """
        for name, value in data.items():
            if not self._knows(name):
                continue
            if name in self.meta_fieldnames:
                self.meta[name] = [value] * self.num_groups
                continue
            shape = self.replay_buffer.fields[name].shape
            values = value if hasattr(value, "shape") else np.asarray(value)
            assert values.shape[:1] == (self.num_groups,), (
                f"append() expects values of field {name} for one step, of shape "
                f"({self.num_groups}, *{shape}); for whole trajectories of shape "
                f"(time, {self.num_groups}, *{shape}), use extend()"
            )
            rest = tuple(values.shape[1:])
            assert rest in (shape, (1, *shape)), (
                f"values of field {name} must have the shape {shape} or (1, *shape) per group, got "
                f"{rest}"
            )
            values = values if rest == shape else values[:, 0]
            for group, step in zip(self._groups(name), values, strict=True):
                group.append(step.clone() if torch.is_tensor(step) else np.array(step))
        self.step_count += 1

    def extend(self, **trajectories: Any) -> None:
        """Add whole trajectories, time-major.

        Parameters
        ----------
        **trajectories
            Fields as arrays [time, groups, ...].

        Raises
        ------
        KeyError
            If a name is unknown and `strict` is True.
        AssertionError
            If a value has the wrong shape.
        """
        for name, value in trajectories.items():
            if not self._knows(name):
                continue
            shape = self.replay_buffer.fields[name].shape
            assert tuple(value.shape[1:2]) == (self.num_groups,), (
                f"extend() expects values of field {name} of shape (time, {self.num_groups}, "
                f"*shape), got {tuple(value.shape)}"
            )
            assert tuple(value.shape[2:]) == shape, (
                f"values of field {name} must have the shape {shape}, got {tuple(value.shape[2:])}"
            )
            self.step_count = self.step_count or len(value)
            assert len(value) == self.step_count, (
                f"field {name} has {len(value)} steps, but {self.step_count} steps are "
                f"collected; pass {self.step_count} steps of each field"
            )
            for k, group in enumerate(self._groups(name)):
                group.extend(value[:, k])

    def _groups(self, name: str) -> list[list[Any]]:
        return self.episode_data.setdefault(name, [[] for _ in range(self.num_groups)])

    def groups(self, name: str) -> list[Any]:
        """Return a field as a list of tensors or arrays, one for each environment.

        Parameters
        ----------
        name : str
            Name of a field or meta field.

        Returns
        -------
        list
            A tensor or array for each environment.

        Raises
        ------
        KeyError
            If no value of the field was collected.
        """
        if name in self.meta_fieldnames:
            return list(self.meta[name])
        return [_stack(group) for group in self.episode_data[name]]

    def env_major(self, name: str) -> Any:
        """Return a field as [groups, time, ...].

        Parameters
        ----------
        name : str
            Name of a field or meta field.

        Returns
        -------
        tensor or ndarray
            The collected values.

        Raises
        ------
        KeyError
            If no value of the field was collected.
        """
        return _stack(self.groups(name))

    def time_major(self, name: str) -> Any:
        """Return a field as [time, groups, ...].

        Parameters
        ----------
        name : str
            Name of a field or meta field.

        Returns
        -------
        tensor or ndarray
            The collected values.

        Raises
        ------
        KeyError
            If no value of the field was collected.
        """
        values = self.env_major(name)
        return values if name in self.meta_fieldnames else values.swapaxes(0, 1)

    def all_data(self, fields: Any = None, device: Any = None) -> dict[str, Any]:
        """Return the collected fields as tensors or arrays [groups, time, ...].

        Parameters
        ----------
        fields : sequence of str, optional
            The fields to return; all by default.
        device : torch.device or str, optional
            Device of the tensors. By default, the values are tensors or arrays as collected.

        Returns
        -------
        dict of str to tensor or ndarray
            The fields.

        Raises
        ------
        ValueError
            If no step was collected.
        """
        if not len(self):
            raise ValueError("the collector is empty; append or extend it first")
        data = {name: self.env_major(name) for name in fields or self.episode_data}
        if device is None:
            return data
        return {name: torch.as_tensor(values).to(device) for name, values in data.items()}

    def dataloader(
        self,
        batch_size: int,
        fields: Any = None,
        filter_fields: Any = None,
        to_named_tuple: Any = None,
        shuffle: bool = False,
        device: Any = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a loader of the collected steps, which need not be stored.

        Parameters
        ----------
        batch_size : int
            Steps per batch.
        fields : sequence of str, optional
            The fields of a batch; all by default.
        filter_fields : mapping, optional
            Values that the fields of a step must have.
        to_named_tuple : sequence of str, optional
            Return named tuples of these fields instead of dicts.
        shuffle : bool
            Whether to shuffle the steps.
        device : torch.device or str, optional
            The device of the tensors.
        **options
            Further arguments for `torch.utils.data.DataLoader`.

        Returns
        -------
        DataLoader
            A loader of dicts of tensors, or of named tuples.

        Raises
        ------
        ValueError
            If no step was collected, or a field is unknown.
        """
        data = {
            name: torch.as_tensor(values).reshape(-1, *values.shape[2:])
            for name, values in self.all_data().items()
        }
        for name, value in (filter_fields or {}).items():
            kept = data[name] == value
            data = {key: values[kept] for key, values in data.items()}
        names = tuple(fields or to_named_tuple or data)
        if unknown := set(names) - data.keys():
            raise ValueError(f"unknown fields {unknown}; expected names from {list(data)}")
        kind: Any = namedtuple("Batch", names) if to_named_tuple else None

        def collate(items: Any) -> Any:
            tensors = [torch.stack(column).to(device) for column in zip(*items, strict=True)]
            return kind(*tensors) if kind else dict(zip(names, tensors, strict=True))

        return DataLoader(
            TensorDataset(*(data[name] for name in names)),
            batch_size=batch_size, shuffle=shuffle, collate_fn=collate, **options,
        )  # fmt: skip

    def store(self, **meta: Any) -> None:
        """Store one episode for each environment, and discard the collected steps.

        Parameters
        ----------
        **meta
            Meta fields: a sequence with one value for each environment, or one value for all.
        """
        for name, value in meta.items():
            if self._knows(name):
                many = hasattr(value, "__len__") and len(value) == self.num_groups
                self.meta[name] = list(value) if many else [value] * self.num_groups
        for k in range(self.num_groups):
            episode = {name: _stack(groups[k]) for name, groups in self.episode_data.items()}
            self.replay_buffer.store_episode(
                **episode, **{name: values[k] for name, values in self.meta.items()}
            )
        self.clear()


def _stack(values: list[Any]) -> Any:
    if torch.is_tensor(values[0]):
        return torch.stack(values)
    return np.stack(values)
