"""Flat arrays of the turns of the rollouts in a batch; rows of tokens are built from them."""

from __future__ import annotations  # annotations must not import modules

from collections.abc import Mapping
from typing import Any

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue, warn
from expdb.names import UNKNOWN
from expdb.replay.ragged import RaggedArray
from expdb.replay.token_rows import Masks, warn_once


class TurnInputs:
    """The turns of the drawn rollouts, as flat arrays over all rollouts and steps."""

    def __init__(self, unit: Any, batch: Mapping[str, np.ndarray]):
        self.batch, self._shape = batch, batch["mask"].shape
        self.prompts, self.outputs = self.per_token(unit.prompt), self.per_token(unit.output)
        masks = self.per_token(unit.output_mask) if unit.output_mask in batch else None
        if unit.logprobs in batch:
            masks = self._mask_invalid_logprobs(masks, unit.logprobs)
        if unit.oldest_version is not None:
            masks = self._mask_stale_tokens(masks, unit)
        self.masks = Masks(self.outputs, masks, unit.output_mask)
        needed = unit.inputs((), list(batch))
        self.others = [name for name in batch if name not in needed and not name.startswith("has_")]
        is_taken = batch["mask"]
        if unit.agent is not None:
            is_taken = is_taken & (batch["agent_id"] == unit.agent)
        self.steps = np.flatnonzero(is_taken)
        self.rollouts = self.steps // self._shape[-1]
        self.parts = self.rollouts if unit.joins_gaps else self._parts(is_taken)[self.steps]

    def _parts(self, is_taken: np.ndarray) -> np.ndarray:
        """Return, for each step, the number of the part of a rollout between two gaps."""
        is_taken = is_taken.reshape(-1, self._shape[-1])
        numbers = self.batch["turn_number"].reshape(is_taken.shape)
        numbers = np.where(is_taken, numbers, UNKNOWN)
        greatest = np.maximum.accumulate(numbers, 1)[:, :-1]
        begins_part = np.ones(is_taken.shape, np.bool_)
        begins_part[:, 1:] = (numbers[:, 1:] > greatest + 1) & (greatest != UNKNOWN)
        if np.count_nonzero(begins_part[:, 1:]):
            warn_once(
                "gaps",
                "a rollout in this batch lacks step numbers, so a new row begins after the gap; "
                "number the steps of an episode 0, 1, 2 and so on, or pass gaps='join' if numbers "
                "are skipped on purpose",
            )
        return np.cumsum(begins_part)

    def _mask_invalid_logprobs(self, masks: RaggedArray | None, name: str) -> RaggedArray | None:
        """Return the output masks; exclude tokens with invalid log-probabilities.

        Writes reject invalid log-probabilities, but earlier versions of expdb stored them.
        """
        logprobs = self.arrays_of_steps(name)
        if logprobs.values.dtype.kind != "f" or checks.are_logprobs(logprobs.values).all():
            return masks
        lengths = self.outputs.lengths
        steps = np.flatnonzero((logprobs.lengths == lengths) & (lengths > 0))
        valid = checks.are_logprobs(logprobs.take_leading(steps, lengths[steps]))
        if masks is not None and (masks.lengths[steps] == lengths[steps]).all():
            is_trained = masks.take_leading(steps, lengths[steps]) != 0
            if (valid | ~is_trained).all():  # the usual case: all invalid values are masked
                return masks
        arrays: list[np.ndarray | None] = [None] * len(logprobs)
        if masks is not None:
            arrays = masks.to_list()
        for step, is_valid in zip(
            steps.tolist(), np.split(valid, np.cumsum(lengths[steps])[:-1]), strict=True
        ):
            mask = arrays[step]
            arrays[step] = is_valid if mask is None else is_valid & mask.astype(np.bool_)
        warn(
            f"{name!r} are NaN, infinite or positive for some tokens, so loss_mask is False for "
            "these tokens; store finite log-probabilities of at most 0"
        )
        return RaggedArray.from_arrays(arrays, np.bool_)

    def versions(self) -> np.ndarray:
        """Return the policy version of each step, or UNKNOWN."""
        versions = self.flat("policy_version").astype(np.int64)
        if "has_policy_version" in self.batch:
            versions = np.where(self.flat("has_policy_version"), versions, UNKNOWN)
        return versions

    def _mask_stale_tokens(self, masks: RaggedArray | None, unit: Any) -> RaggedArray | None:
        """Return the output masks; exclude tokens with a policy version that is too old."""
        lengths = self.outputs.lengths
        own = self.arrays_of_steps(unit.versions).to_list() if unit.versions in self.batch else None
        before = [None] * len(lengths) if masks is None else masks.to_list()
        arrays: list[np.ndarray | None] = list(before)
        for step, version in enumerate(self.versions().tolist()):
            tokens = None if own is None else own[step]
            if tokens is None:
                tokens = np.full(max(int(lengths[step]), 0), version)
            is_new = (tokens >= unit.oldest_version) & (tokens != UNKNOWN)
            mask = before[step]
            if lengths[step] >= 0 and not is_new.all():
                arrays[step] = is_new if mask is None else is_new & mask.astype(np.bool_)
        return RaggedArray.from_arrays(arrays, np.bool_)

    def per_token(self, name: str) -> RaggedArray:
        """Return the arrays of all steps; raise InvalidValue unless they have one dimension."""
        values: Any = self.batch[name]
        is_one_dimensional = isinstance(values, RaggedArray) or all(
            tokens is None or (isinstance(tokens, np.ndarray) and tokens.ndim == 1)
            for tokens in self.flat(name)
        )
        ragged = self.arrays_of_steps(name) if is_one_dimensional else None
        if ragged is None or ragged.values.ndim != 1:
            raise InvalidValue(
                f"{name!r} must contain one-dimensional arrays with one value per token; declare "
                "it like the fields of expdb.TOKEN_FIELDS"
            )
        return ragged

    def target_of(self, name: str) -> str | None:
        """Return the field that a key is declared to be aligned with, or None."""
        values: Any = self.batch[name]
        return values.aligned_with if isinstance(values, RaggedArray) else None

    def arrays_of_steps(self, name: str) -> RaggedArray:
        """Return the arrays of all steps; the array of a step without the field is missing."""
        values: Any = self.batch[name]
        ragged = (
            values
            if isinstance(values, RaggedArray)
            else RaggedArray.from_arrays(list(self.flat(name)))
        )
        presence_key = f"has_{name}"
        return (
            ragged.mask_missing(self.flat(presence_key)) if presence_key in self.batch else ragged
        )

    def flat(self, name: str) -> np.ndarray:
        """Return an array [B, T, ...] or [B, n, T, ...] of the batch as [steps, ...]."""
        array = self.batch[name]
        return array.reshape(-1, *array.shape[len(self._shape) :])

    def has_one_value_per_turn(self, name: str) -> bool:
        """Return whether a key has one value per turn: an array, a text or a JSON value.

        Numbers, annotations and one-dimensional arrays of varying length have one value per token.
        """
        if self.has_one_value_per_episode(name):
            return False
        values: Any = self.batch[name]
        if isinstance(values, RaggedArray):
            return values.aligned_with is None and values.values.ndim > 1
        flat = self.flat(name)
        return flat.dtype == object or flat.ndim > 1

    def values_of_steps(self, name: str) -> np.ndarray:
        """Return the value of each step; arrays of varying length are objects."""
        values: Any = self.batch[name]
        if not isinstance(values, RaggedArray):
            return self.flat(name)
        # Not `np.array(values.to_list())`, which would stack arrays of equal shape.
        return np.fromiter(values.to_list(), object, len(values))

    def has_one_value_per_episode(self, name: str) -> bool:
        """Return whether a key has one value per episode instead of one per step."""
        values: Any = self.batch[name]
        return not isinstance(values, RaggedArray) and values.ndim < len(self._shape)
