"""Fragments of rollouts, their indices and their metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from expdb.integrations.records import Kind

logger = logging.getLogger("expdb.minestudio")


@dataclass(frozen=True)
class FragmentIndex:
    """Identify a fragment by its worker and its number.

    Parameters
    ----------
    worker_uuid : str
        Id of the worker.
    fid_in_worker : int
        Number of the fragment among the worker's fragments.
    """

    worker_uuid: str
    fid_in_worker: int


@dataclass(frozen=True)
class FragmentMetadata:
    """Describe the origin of a fragment.

    Parameters
    ----------
    model_version : int
        Version of the model at the first step.
    session_id : str
        Session at the first step.
    worker_uuid : str
        Id of the worker.
    fid_in_worker : int
        Number of the fragment among the worker's fragments.
    """

    model_version: int
    session_id: str
    worker_uuid: str
    fid_in_worker: int


@dataclass
class SampleFragment:
    """Consecutive steps of a worker, which may include the ends of episodes.

    Parameters
    ----------
    obs : dict or ndarray, shape (T, ...)
        Observations.
    action : dict or ndarray, shape (T, ...)
        Actions.
    next_done : ndarray, shape (T,)
        Whether an episode ends with each step.
    reward : ndarray, shape (T,)
        Rewards.
    first : ndarray, shape (T,)
        Whether an episode begins with each step.
    in_state : list
        Recurrent state before the first step.
    worker_uuid : str
        Id of the worker.
    fid_in_worker : int
        Number of the fragment among the worker's fragments.
    next_obs : dict or ndarray
        Observation after the last step.
    episode_uuids : list of str
        Id of the episode of each step.
    """

    obs: Any
    action: Any
    next_done: np.ndarray
    reward: np.ndarray
    first: np.ndarray
    in_state: list[Any]
    worker_uuid: str
    fid_in_worker: int
    next_obs: Any
    episode_uuids: list[str]

    @property
    def index(self) -> FragmentIndex:
        """The index of the fragment."""
        return FragmentIndex(self.worker_uuid, self.fid_in_worker)

    def print(self) -> None:
        """Log the contents of the fragment."""
        for field in fields(self):
            logger.info("%s, %s: %s", self.index, field.name, getattr(self, field.name))


class FragmentDataDict(dict[FragmentIndex, Any]):
    """Data computed for fragments, such as advantages, by the index of the fragment."""

    def format_batch(self, fragments: Sequence[Any], device: Any = None) -> Any:
        """Return the data of fragments as one batch of tensors on a device.

        Parameters
        ----------
        fragments : sequence of SampleFragment or FragmentIndex
            The fragments, in the order of the batch.
        device : torch.device or str, optional
            The device of the tensors.

        Returns
        -------
        object
            The stacked data, with the structure of the data of one fragment.
        """
        return _stacked([self[_index(fragment)] for fragment in fragments], device)


def _index(fragment: Any) -> FragmentIndex:
    return FragmentIndex(fragment.worker_uuid, fragment.fid_in_worker)


def _stacked(values: list[Any], device: Any) -> Any:
    """Stack values of the same structure; dicts and lists are stacked part by part."""
    import torch

    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values], device) for key in first}
    if isinstance(first, list):
        return [_stacked(list(part), device) for part in zip(*values, strict=True)]
    if torch.is_tensor(first):
        return torch.stack(values).to(device)
    if isinstance(first, (np.ndarray, np.generic, bool, int, float)):
        return torch.from_numpy(np.stack([np.asarray(value) for value in values])).to(device)
    return values


NAMES = tuple(field.name for field in fields(SampleFragment))


def kinds(fragment: Any = None) -> tuple[Kind, ...]:
    """Return the conversions of `SampleFragment` and of the class of `fragment`."""
    types = {SampleFragment} | ({type(fragment)} if fragment is not None else set())
    return tuple(Kind("SampleFragment", cls, _apart, _together) for cls in types)


def _apart(fragment: Any) -> dict[str, Any]:
    return {name: getattr(fragment, name) for name in NAMES}


def _together(plain: dict[str, Any]) -> SampleFragment:
    return SampleFragment(**plain)
