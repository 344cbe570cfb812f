"""Rows of tokens: chain the turns of a rollout, pack rows, and spread values to their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb.errors import InvalidValue


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
    """One row of a rollout: the prompt and the output of its last turn, and the earlier outputs."""

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
    """Which output tokens of each step to train on; all of them if a step has no mask."""

    def __init__(self, outputs: np.ndarray, masks: np.ndarray | None):
        self._outputs, self._masks = outputs, masks

    def of(self, step: int) -> np.ndarray | None:
        """Return the mask of a step, or None if it has none."""
        return None if self._masks is None else self._masks[step]

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
    before, last_output = b"", np.empty(0, np.int32)

    def finish() -> None:
        chain = Chain(rollout, turns, turns[-1].start + turns[-1].kept, lost)
        if chain.loss_tokens:
            chains.append(chain)

    for step in steps:
        prompt, output = prompts[step], outputs[step]
        if prompt is None or output is None:
            continue
        text, start = prompt.tobytes(), len(prompt)
        if turns:
            matched = -1
            if text.startswith(before):
                begin = turns[-1].start
                matched = _common_prefix(last_output, prompt[begin:])
            drift = len(last_output) - matched
            if matched >= 0 and (not drift or drift < fork_threshold):
                if drift:
                    trained = masks.count(turns[-1].step, matched)
                    lost += turns[-1].loss_tokens - trained
                    turns[-1] = replace(turns[-1], kept=matched, loss_tokens=trained)
            else:
                finish()
                turns, lost = [], 0
        turns.append(Turn(step, start, len(output), len(output), masks.count(step, len(output))))
        before, last_output = text, output
    if turns:
        finish()
    return chains


def _common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Return how many elements at the start of two arrays are equal."""
    count = min(len(first), len(second))
    if first[:count].tobytes() == second[:count].tobytes():
        return count
    return int((first[:count] != second[:count]).argmax())


def pack_rows(chains: list[Chain], width: int) -> list[list[Chain]]:
    """Return bins of rows that have at most `width` tokens in total, by first-fit decreasing.

    Bins are in the order of their first rollout, as are the rows of a bin.
    """
    room: list[int] = []
    bins: list[list[int]] = []
    sizes = [chain.size for chain in chains]
    for index in sorted(range(len(chains)), key=lambda index: -sizes[index]):
        size = sizes[index]
        place = next((place for place, left in enumerate(room) if left >= size), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(width)
        bins[place].append(index)
        room[place] -= size
    return [[chains[index] for index in sorted(indices)] for indices in sorted(map(sorted, bins))]


class TokenRows:
    """Rows of a batch, each of one or several chains, and the places of their tokens.

    Values are written to all tokens of the batch at once: `_places` has, for each generated token,
    its index in the flat array of B rows of T tokens.
    """

    def __init__(self, bins: list[list[Chain]]):
        self._bins = bins
        self._chains = [chain for row in bins for chain in row]
        sizes = np.array([chain.size for chain in self._chains], np.int64)
        self._sizes = sizes
        width = max(sum(chain.size for chain in row) for row in bins)
        self.shape = len(bins), width
        begins = [
            number * width + offset for number, row in enumerate(bins) for offset in _offsets(row)
        ]
        self._begins = np.array(begins, np.int64)
        turns = [turn for chain in self._chains for turn in chain.turns]
        self._steps = np.array([turn.step for turn in turns], np.int64)
        self._kept = np.array([turn.kept for turn in turns], np.int64)
        self._turns = turns
        starts = np.array(
            [
                begin + turn.start
                for begin, chain in zip(begins, self._chains, strict=True)
                for turn in chain.turns
            ],
            np.int64,
        )
        self._token_index = _ranges(self._kept)
        self._places = np.repeat(starts, self._kept) + self._token_index
        self._token_places = np.repeat(self._begins, sizes) + _ranges(sizes)

    @property
    def drawn_rollouts(self) -> np.ndarray:
        """The index of the first rollout of each row, int64 [B]."""
        return np.array([row[0].rollout for row in self._bins], np.int64)

    def input_ids(self, prompts: np.ndarray, outputs: np.ndarray, pad_id: int) -> np.ndarray:
        """Return the tokens, [B, T]."""
        parts: list[np.ndarray] = []
        for chain in self._chains:
            last = chain.turns[-1]
            prompt = prompts[last.step][: chain.size]
            parts += (prompt, outputs[last.step][: chain.size - len(prompt)])
        tokens = np.concatenate(parts)
        ids = np.full(self.shape, pad_id, tokens.dtype)
        ids.reshape(-1)[self._token_places] = tokens
        return ids

    def attention_mask(self) -> np.ndarray:
        """Return True for the tokens of a row, bool [B, T]."""
        mask = np.zeros(self.shape, np.bool_)
        mask.reshape(-1)[self._token_places] = True
        return mask

    def loss_mask(self, masks: Masks) -> np.ndarray:
        """Return True for the tokens to train on, bool [B, T]."""
        out = np.zeros(self.shape, np.bool_)
        parts = []
        for turn in self._turns:
            mask = masks.of(turn.step) if turn.loss_tokens else np.zeros(turn.kept, np.bool_)
            parts.append(np.ones(turn.kept, np.bool_) if mask is None else mask[: turn.kept])
        out.reshape(-1)[self._places] = np.concatenate(parts)
        return out

    def position_ids(self) -> np.ndarray:
        """Return the index of each token in its rollout, int64 [B, T]; 0 for padding."""
        ids = np.zeros(self.shape, np.int64)
        ids.reshape(-1)[self._token_places] = _ranges(self._sizes)
        return ids

    def segment_ids(self) -> np.ndarray:
        """Return the number of each token's chain within its row, from 1, int32 [B, T]."""
        numbers = np.concatenate([np.arange(1, len(row) + 1) for row in self._bins])
        ids = np.zeros(self.shape, np.int32)
        ids.reshape(-1)[self._token_places] = np.repeat(numbers, self._sizes)
        return ids

    def token_index(self) -> np.ndarray:
        """Return the index of each generated token in its output, int32 [B, T]; -1 elsewhere."""
        out = np.full(self.shape, -1, np.int32)
        out.reshape(-1)[self._places] = self._token_index
        return out

    def of_turns(self, values: np.ndarray, elsewhere: Any) -> np.ndarray:
        """Return the value of the step of each generated token, [B, T]."""
        out = np.full((*self.shape, *values.shape[1:]), elsewhere, values.dtype)
        flat = out.reshape(-1, *values.shape[1:])
        flat[self._places] = np.repeat(values[self._steps], self._kept, 0)
        return out

    def of_chains(self, values: np.ndarray) -> np.ndarray:
        """Return the value of the rollout of each generated token, [B, T]; 0 elsewhere."""
        turns = [len(chain.turns) for chain in self._chains]
        rollouts = np.array([chain.rollout for chain in self._chains], np.int64)
        out = np.zeros(self.shape, values.dtype)
        of_turns = np.repeat(values[rollouts], turns)
        out.reshape(-1)[self._places] = np.repeat(of_turns, self._kept)
        return out

    def of_tokens(
        self, values: np.ndarray, name: str, missing: Any, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the value of each generated token, [B, T]; 0 elsewhere.

        `values` has an array for each step, or None. For a step without an array, the tokens have
        the value `missing`, or keep their value in `out`.
        """
        known = [value for value in values[self._steps] if value is not None]
        kind = known[0].dtype if known else np.dtype(np.float32)
        inner = known[0].shape[1:] if known else ()
        parts: list[np.ndarray] = []
        present: list[bool] = []
        for turn in self._turns:
            value = values[turn.step]
            present.append(value is not None)
            if value is None:
                parts.append(np.full((turn.kept, *inner), missing, kind))
            elif len(value) != turn.length:
                raise InvalidValue(
                    f"{name!r} has {len(value)} values for a turn with {turn.length} output "
                    "tokens; request fields with one value per generated token, or one per step"
                )
            else:
                parts.append(value[: turn.kept])
        joined = np.concatenate(parts)
        if out is None:
            out = np.zeros((*self.shape, *inner), kind)
            out.reshape(-1, *inner)[self._places] = joined
        else:
            there = np.repeat(np.array(present), self._kept)
            out.reshape(-1)[self._places[there]] = joined[there]
        return out

    def of_rollouts(self, values: np.ndarray, missing: Any) -> np.ndarray:
        """Return the value of the rollout of each chain, [B, S]; `missing` where there is none."""
        most = max(map(len, self._bins))
        out = np.full((len(self._bins), most), missing, values.dtype)
        for number, row in enumerate(self._bins):
            out[number, : len(row)] = values[[chain.rollout for chain in row]]
        return out

    def lost_tokens(self) -> np.ndarray:
        """Return the number of tokens that each chain has lost, int64 [B, S]."""
        out = np.zeros((len(self._bins), max(map(len, self._bins))), np.int64)
        for number, row in enumerate(self._bins):
            out[number, : len(row)] = [chain.lost_tokens for chain in row]
        return out


def _offsets(row: list[Chain]) -> list[int]:
    """Return the index of the first token of each chain in a row."""
    offsets, offset = [], 0
    for chain in row:
        offsets.append(offset)
        offset += chain.size
    return offsets


def _ranges(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... for each count, concatenated, int64."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: np.ndarray = np.arange(total) - np.repeat(ends - counts, counts)
    return ranges
