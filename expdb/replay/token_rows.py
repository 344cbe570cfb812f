"""Rows of tokens: chain the turns of a rollout, pack rows, and spread values to their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb.errors import InvalidValue
from expdb.names import UNKNOWN


@dataclass(frozen=True)
class Turn:
    """The output of a turn within a row."""

    step: int  # index of the step among all steps of the batch
    start: int  # index of the first output token in the row
    length: int  # number of output tokens
    kept: int  # number of output tokens in the row
    loss_tokens: int  # number of these to train on


@dataclass(frozen=True)
class Chain:
    """One row of a rollout. Its tokens are the prompt and the output of its last turn."""

    rollout: int  # index of the rollout in the batch
    turns: list[Turn]
    size: int  # number of tokens
    lost_tokens: int  # number of output tokens to train on that a later prompt replaced

    @property
    def loss_tokens(self) -> int:
        """Number of tokens to train on."""
        return sum(turn.loss_tokens for turn in self.turns)

    def cut(self, most: int, masked: bool, masks: "Masks") -> "Chain":
        """Return the row with at most `most` tokens; with `masked`, without tokens to train on."""
        if self.size <= most:
            return self
        turns = []
        for turn in self.turns:
            kept = max(0, min(turn.kept, most - turn.start))
            loss_tokens = 0 if masked else masks.count(turn.step, kept)
            turns.append(replace(turn, kept=kept, loss_tokens=loss_tokens))
        return replace(self, turns=turns, size=most)


class Masks:
    """The output masks of the steps. In a step without a mask, all output tokens are trained on."""

    def __init__(self, outputs: np.ndarray, masks: np.ndarray | None, name: str):
        self._masks = masks
        for output, mask in zip(outputs, () if masks is None else masks, strict=False):
            if output is not None and mask is not None and len(mask) != len(output):
                raise InvalidValue(
                    f"{name!r} has {len(mask)} values for a turn with {len(output)} output tokens; "
                    "store one value per output token"
                )
        present = [] if masks is None else [mask for mask in masks if mask is not None]
        ends = np.cumsum([0, *map(len, present)])
        sums = np.concatenate([[0], np.cumsum(np.concatenate(present))]) if present else ends
        counts = iter(np.diff(sums[ends]).tolist())
        # The number of tokens to train on in the whole output of each step.
        self._counts = [
            (0 if output is None else len(output))
            if masks is None or masks[step] is None
            else next(counts)
            for step, output in enumerate(outputs)
        ]

    def of(self, step: int) -> np.ndarray | None:
        """Return the mask of a step, or None if it has none."""
        return None if self._masks is None else self._masks[step]

    def count_all(self, step: int) -> int:
        """Return the number of tokens to train on in the output of a step."""
        return self._counts[step]

    def count(self, step: int, stop: int) -> int:
        """Return the number of tokens to train on among the first `stop` output tokens."""
        mask = self.of(step)
        return stop if mask is None else int(np.count_nonzero(mask[:stop]))


def chain_turns(
    rollout: int,
    steps: Sequence[int],
    prompts: np.ndarray,
    outputs: np.ndarray,
    masks: Masks,
    fork_threshold: int,
) -> list[Chain]:
    """Return the rows of a rollout that have tokens to train on.

    The tokens of a row after a turn are always the prompt and the output of that turn, so a new
    prompt is compared with these two only.

    Source of the rules: TRL 1.16, `_chain_to_sequences` in `experimental/async_grpo`.
    """
    chains: list[Chain] = []
    turns: list[Turn] = []
    lost = 0
    before = last_output = np.empty(0, np.int32)
    address_before = -1

    def finish() -> None:
        chain = Chain(rollout, turns, turns[-1].start + turns[-1].kept, lost)
        if chain.loss_tokens:
            chains.append(chain)

    for step in steps:
        prompt, output = prompts[step], outputs[step]
        if prompt is None or output is None:
            continue
        start, address = len(prompt), prompt.__array_interface__["data"][0]
        if turns:
            matched = -1
            begin = turns[-1].start
            # A stored prompt that extends the previous one begins at the same address.
            if start >= begin and (
                address == address_before or prompt[:begin].tobytes() == before.tobytes()
            ):
                matched = _common_prefix(last_output, prompt[begin : begin + len(last_output)])
            drift = len(last_output) - matched
            if matched >= 0 and (not drift or drift < fork_threshold):
                if drift:
                    trained = masks.count(turns[-1].step, matched)
                    lost += turns[-1].loss_tokens - trained
                    turns[-1] = replace(turns[-1], kept=matched, loss_tokens=trained)
            else:
                finish()
                turns, lost = [], 0
        turns.append(Turn(step, start, len(output), len(output), masks.count_all(step)))
        before, last_output, address_before = prompt, output, address
    if turns:
        finish()
    return chains


def _common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Return the length of the common prefix; `second` must not be longer than `first`."""
    count = min(len(first), len(second))
    if count < len(first):
        first = first[:count]
    if first.dtype == second.dtype and first.tobytes() == second.tobytes():
        return count
    differs = first != second
    return int(differs.argmax()) if differs.any() else count


def pack_rows(chains: list[Chain], width: int) -> list[list[Chain]]:
    """Return bins of chains that have at most `width` tokens in total, by first-fit decreasing.

    The chains of a rollout are in one bin if they fit into one. Bins are in the order of their
    first rollout, as are the chains of a bin.
    """
    by_rollout: dict[int, list[int]] = {}
    for index, chain in enumerate(chains):
        by_rollout.setdefault(chain.rollout, []).append(index)
    items: list[tuple[int, list[int]]] = []
    for indices in by_rollout.values():
        size = sum(chains[index].size for index in indices)
        if size <= width:
            items.append((size, indices))
        else:
            items += [(chains[index].size, [index]) for index in indices]
    free_tokens: list[int] = []
    bins: list[list[int]] = []
    for size, indices in sorted(items, key=lambda item: -item[0]):
        number = next((n for n, free in enumerate(free_tokens) if free >= size), len(bins))
        if number == len(bins):
            bins.append([])
            free_tokens.append(width)
        bins[number] += indices
        free_tokens[number] -= size
    return [[chains[index] for index in sorted(indices)] for indices in sorted(map(sorted, bins))]


class TokenRows:
    """Build the arrays of a batch from rows that each consist of one or several chains.

    Arrays are filled slice by slice, which is faster than with an array of indices.
    """

    def __init__(self, bins: list[list[Chain]]):
        self._bins = bins
        width = max(1, *(sum(chain.size for chain in row) for row in bins))
        self.shape = len(bins), width
        self._most_segments = max(1, *map(len, bins))
        # Each chain with the index of its first token in the flat array of B rows of T tokens, and
        # its number within its row.
        self._chains: list[tuple[Chain, int, int]] = []
        # Each turn with the begin and the end of its generated tokens in the flat array.
        self._turns: list[tuple[Turn, int, int]] = []
        for row, chains in enumerate(bins):
            begin = row * width
            for number, chain in enumerate(chains, 1):
                self._chains.append((chain, begin, number))
                for turn in chain.turns:
                    if turn.kept:
                        start = begin + turn.start
                        self._turns.append((turn, start, start + turn.kept))
                begin += chain.size

    @property
    def drawn_rollouts(self) -> np.ndarray:
        """The index of the first rollout of each row, int64 [B]."""
        return np.array([row[0].rollout if row else 0 for row in self._bins], np.int64)

    def _filled(self, value: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return an array [B, T] of one value, and a flat view of it."""
        out = np.full(self.shape, value, dtype) if value else np.zeros(self.shape, dtype)
        return out, out.reshape(-1)

    def input_ids(self, prompts: np.ndarray, outputs: np.ndarray, pad_id: int) -> np.ndarray:
        """Return the tokens, [B, T]."""
        used = [chain.turns[-1].step for chain, _, _ in self._chains]
        kinds = {array[step].dtype for array in (prompts, outputs) for step in used}
        kind = np.result_type(*(kinds or {np.dtype(np.int32)}))
        if kind.kind not in "iu" or not np.iinfo(kind).min <= pad_id <= np.iinfo(kind).max:
            raise InvalidValue(
                f"pad_id {pad_id} does not fit tokens of type {kind}; store integers as tokens, or "
                "pass another pad_id"
            )
        out, flat = self._filled(pad_id, kind)
        for chain, begin, _ in self._chains:
            last = chain.turns[-1]
            prompt = prompts[last.step][: chain.size]
            start, end = begin + len(prompt), begin + chain.size
            flat[begin:start] = prompt
            flat[start:end] = outputs[last.step][: end - start]
        return out

    def attention_mask(self) -> np.ndarray:
        """Return True for the tokens of a row, bool [B, T]."""
        out, flat = self._filled(False, np.bool_)
        for chain, begin, _ in self._chains:
            flat[begin : begin + chain.size] = True
        return out

    def loss_mask(self, masks: Masks) -> np.ndarray:
        """Return True for the tokens to train on, bool [B, T]."""
        out, flat = self._filled(False, np.bool_)
        for turn, begin, end in self._turns:
            if turn.loss_tokens:
                mask = masks.of(turn.step)
                flat[begin:end] = True if mask is None else mask[: turn.kept]
        return out

    def position_ids(self) -> np.ndarray:
        """Return the index of each token in its chain, int64 [B, T]; 0 for padding."""
        out, flat = self._filled(0, np.int64)
        numbers = np.arange(self.shape[1])
        for chain, begin, _ in self._chains:
            flat[begin : begin + chain.size] = numbers[: chain.size]
        return out

    def segment_ids(self) -> np.ndarray:
        """Return the number of each token's chain within its row, from 1, int32 [B, T]."""
        out, flat = self._filled(0, np.int32)
        for chain, begin, number in self._chains:
            flat[begin : begin + chain.size] = number
        return out

    def token_index(self) -> np.ndarray:
        """Return the index of each generated token in its output, int32 [B, T]; -1 elsewhere."""
        out, flat = self._filled(UNKNOWN, np.int32)
        numbers = np.arange(max((turn.kept for turn, _, _ in self._turns), default=0))
        for turn, begin, end in self._turns:
            flat[begin:end] = numbers[: turn.kept]
        return out

    def of_turns(self, values: np.ndarray, elsewhere: Any) -> np.ndarray:
        """Return the value of the step of each generated token, [B, T, ...]."""
        inner = values.shape[1:]
        out = np.full((*self.shape, *inner), elsewhere, values.dtype)
        flat = out.reshape(-1, *inner)
        for turn, begin, end in self._turns:
            flat[begin:end] = values[turn.step]
        return out

    def advantages(self, values: np.ndarray, loss_mask: np.ndarray) -> np.ndarray:
        """Return the value of the rollout of each token to train on, [B, T]; 0 elsewhere."""
        out, flat = self._filled(0, values.dtype)
        for chain, begin, _ in self._chains:
            flat[begin : begin + chain.size] = values[chain.rollout]
        out[~loss_mask] = 0
        return out

    def of_tokens(
        self, values: np.ndarray, name: str, missing: Any, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the value of each generated token, [B, T, ...]; 0 elsewhere.

        `values` has an array for each step, or None. For a step without an array, the tokens have
        the value `missing`, or keep their value in `out`.
        """
        first = next((value for value in values if value is not None), np.empty(0, np.float32))
        inner = first.shape[1:]
        keeps = out is not None
        if out is None:
            out = np.zeros((*self.shape, *inner), first.dtype)
        flat = out.reshape(-1, *inner)
        for turn, begin, end in self._turns:
            value = values[turn.step]
            if value is None:
                if not keeps:
                    flat[begin:end] = missing
            elif len(value) != turn.length:
                raise InvalidValue(
                    f"{name!r} has {len(value)} values for a turn with {turn.length} output "
                    "tokens; request fields with one value per generated token, or one per step"
                )
            else:
                flat[begin:end] = value[: turn.kept]
        return out

    def of_rollouts(self, values: np.ndarray, missing: Any) -> np.ndarray:
        """Return the value of the rollout of each chain, [B, S]; `missing` where there is none."""
        out = np.full((len(self._bins), self._most_segments), missing, values.dtype)
        for number, row in enumerate(self._bins):
            out[number, : len(row)] = values[[chain.rollout for chain in row]]
        return out

    def lost_tokens(self) -> np.ndarray:
        """Return the number of tokens that each chain has lost, int64 [B, S]."""
        out = np.zeros((len(self._bins), self._most_segments), np.int64)
        for number, row in enumerate(self._bins):
            out[number, : len(row)] = [chain.lost_tokens for chain in row]
        return out
