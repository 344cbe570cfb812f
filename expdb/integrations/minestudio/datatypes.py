"""Fragments of rollouts, what identifies them, and what is told of them."""

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
    """What identifies a fragment: its worker, and its number among those of the worker."""

    worker_uuid: str
    fid_in_worker: int


@dataclass(frozen=True)
class FragmentMetadata:
    """What is known of a fragment: of its first step, the model's version and the session."""

    model_version: int
    session_id: str
    worker_uuid: str
    fid_in_worker: int


@dataclass
class SampleFragment:
    """Some steps of a worker, one after another, which may span the ends of episodes.

    `obs`, `action`, `next_done`, `reward`, `first` and `episode_uuids` are [T, ...]; `in_state` is
    the recurrent state before the first step, `next_obs` what was seen after the last.
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
        """What identifies the fragment."""
        return FragmentIndex(self.worker_uuid, self.fid_in_worker)

    def print(self) -> None:
        """Log what is in the fragment."""
        for field in fields(self):
            logger.info("%s, %s: %s", self.index, field.name, getattr(self, field.name))


class FragmentDataDict(dict[FragmentIndex, Any]):
    """What was computed for fragments, such as advantages, by their index."""

    def format_batch(self, fragments: Sequence[Any], device: Any = None) -> Any:
        """Return the data of some fragments as one batch, as tensors on a device."""
        return _stacked([self[_index(fragment)] for fragment in fragments], device)


def _index(fragment: Any) -> FragmentIndex:
    return FragmentIndex(fragment.worker_uuid, fragment.fid_in_worker)


def _stacked(values: list[Any], device: Any) -> Any:
    """Return values of one shape as one, their dicts and lists part by part."""
    import torch

    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([one[key] for one in values], device) for key in first}
    if isinstance(first, list):
        return [_stacked(list(part), device) for part in zip(*values, strict=True)]
    if torch.is_tensor(first):
        return torch.stack(values).to(device)
    if isinstance(first, (np.ndarray, np.generic, bool, int, float)):
        return torch.from_numpy(np.stack([np.asarray(one) for one in values])).to(device)
    return values


NAMES = tuple(field.name for field in fields(SampleFragment))


def kinds(fragment: Any = None) -> tuple[Kind, ...]:
    """Return how fragments are kept: those of this module, and of the class of `fragment`."""
    types = {SampleFragment} | ({type(fragment)} if fragment is not None else set())
    return tuple(Kind("SampleFragment", one, _apart, _together) for one in types)


def _apart(fragment: Any) -> dict[str, Any]:
    return {name: getattr(fragment, name) for name in NAMES}


def _together(plain: dict[str, Any]) -> SampleFragment:
    return SampleFragment(**plain)
