"""Rows of tokens: chain the turns of rollouts, pack rows, and spread values to their tokens."""

from __future__ import annotations  # annotations name classes that are defined later

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb.errors import InvalidValue, warn
from expdb.names import UNKNOWN
from expdb.replay.ragged import RaggedArray, alternate_gaps_and_slices, take_slices


@dataclass(frozen=True)
class Turns:
    """The outputs of turns within their rows; each array has one entry per turn."""

    step: np.ndarray  # index of the step among all steps of the batch
    chain: np.ndarray  # index of the row, ascending
    start: np.ndarray  # index of the first output token in the row
    length: np.ndarray  # number of output tokens
    kept: np.ndarray  # number of output tokens in the row
    loss_tokens: np.ndarray  # number of these to train on
    trained_before: np.ndarray  # number of leading output tokens that another row trains on


@dataclass(frozen=True)
class Chains:
    """Rows of tokens before packing; each array has one entry per row.

    The tokens of a row are the prompt and the output of its last turn.
    """

    turns: Turns
    rollout: np.ndarray  # index of the rollout in the batch, ascending
    last_step: np.ndarray  # index of the step of the last turn
    size: np.ndarray  # number of tokens
    lost_tokens: np.ndarray  # number of output tokens to train on that a later prompt replaced

    def __len__(self) -> int:
        return len(self.rollout)

    @property
    def loss_tokens(self) -> np.ndarray:
        """Number of tokens to train on in each row."""
        return _sum_by_chain(self.turns.loss_tokens, self.turns.chain, len(self))

    def select(self, is_selected: np.ndarray) -> Chains:
        """Return the selected rows.

        The first selected row of a rollout also gets the lost tokens of its omitted rows.
        """
        if is_selected.all():
            return self
        lost_tokens, rollouts = self.lost_tokens[is_selected], self.rollout[is_selected]
        for index in np.flatnonzero(~is_selected & (self.lost_tokens > 0)):
            first = rollouts.searchsorted(self.rollout[index])
            if self.rollout[index] in rollouts[first : first + 1]:
                lost_tokens[first] += self.lost_tokens[index]
        number = np.cumsum(is_selected) - 1
        of_turns = is_selected[self.turns.chain]
        columns = {name: array[of_turns] for name, array in vars(self.turns).items()}
        turns = replace(Turns(**columns), chain=number[columns["chain"]])
        last_step, size = self.last_step[is_selected], self.size[is_selected]
        return Chains(turns, rollouts, last_step, size, lost_tokens)

    def truncate(self, max_tokens: int, masked: bool, masks: Masks) -> Chains:
        """Return the rows, truncated to at most `max_tokens` tokens.

        With `masked`, truncated rows have no tokens to train on.
        """
        turns, is_cut = self.turns, self.size > max_tokens
        kept = np.clip(max_tokens - turns.start, 0, turns.kept)
        loss_tokens = 0 if masked else masks.count(turns.step, kept)
        loss_tokens = np.where(is_cut[turns.chain], loss_tokens, turns.loss_tokens)
        turns = replace(turns, kept=kept, loss_tokens=loss_tokens)
        return replace(self, turns=turns, size=np.minimum(self.size, max_tokens))

    def train_once(self, episodes: np.ndarray, positions: np.ndarray, masks: Masks) -> Chains:
        """Return the rows so that only one of them trains on each generated token.

        Forks of an episode share turns, so several rows contain them. Only the first row with a
        token trains on it. An episode that was drawn several times counts as several episodes.
        `episodes` has the episode of each rollout, and `positions` the position of each step. Rows
        that have no tokens left to train on are left out.
        """
        turns, copies = self.turns, _count_earlier_equal(episodes)[self.rollout]
        keys = np.stack((positions[turns.step], copies[turns.chain]))
        _, codes = np.unique(keys, axis=1, return_inverse=True)
        codes = codes.reshape(-1)
        is_trained = turns.loss_tokens > 0  # False in rows that are masked as a whole
        order = np.flatnonzero(is_trained)
        order = order[np.argsort(codes[order], kind="stable")]
        repeats = np.flatnonzero(codes[order][1:] == codes[order][:-1]) + 1
        if not len(repeats):
            return self
        before = np.zeros(len(codes), np.int64)
        for index in repeats.tolist():  # ascending, so `before[earlier]` is final
            earlier, own = order[index - 1], order[index]
            before[own] = max(before[earlier], turns.kept[earlier])
        before = np.minimum(before, turns.kept)
        loss_tokens = turns.loss_tokens - masks.count(turns.step, before) * is_trained
        turns = replace(turns, trained_before=before, loss_tokens=loss_tokens)
        rows = replace(self, turns=turns)
        was_masked = self.loss_tokens == 0
        return rows.select(was_masked | (rows.loss_tokens > 0))

    def compute_branch_means(self, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return, for each step, the mean value of the rollouts that train on its turn."""
        turns = self.turns
        is_trained = turns.loss_tokens > 0
        unique, codes = np.unique(positions, return_inverse=True)
        own = codes[turns.step[is_trained]]
        of_rollouts = values[self.rollout[turns.chain[is_trained]]]
        sums, counts = (
            np.bincount(own, of_rollouts, len(unique)),
            np.bincount(own, None, len(unique)),
        )
        means: np.ndarray = (sums / np.maximum(counts, 1))[codes]
        return means


class Masks:
    """The output masks of the steps. In a step without a mask, all output tokens are trained on."""

    def __init__(self, outputs: RaggedArray, masks: RaggedArray | None, name: str):
        self.of_steps = masks  # None if all output tokens are trained on
        if masks is None:
            return
        differs = (masks.lengths >= 0) & (outputs.lengths >= 0) & (masks.lengths != outputs.lengths)
        if differs.any():
            step = differs.argmax()
            raise InvalidValue(
                f"{name!r} has {masks.lengths[step]} values for a turn with "
                f"{outputs.lengths[step]} output tokens; store one value per output token"
            )
        if masks.values.all():
            self.of_steps = None
        else:
            self._cumulative_counts = np.append(0, np.cumsum(masks.values != 0))

    def count(self, steps: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """Return for each step how many of its first `stops` tokens are trained on."""
        if self.of_steps is None:
            return stops
        begins, has_mask = self.of_steps.starts[steps], self.of_steps.lengths[steps] >= 0
        ends = begins + np.where(has_mask, stops, 0)
        counts: np.ndarray = np.where(
            has_mask, self._cumulative_counts[ends] - self._cumulative_counts[begins], stops
        )
        return counts


_warned: set[str] = set()  # subjects of the warnings that this process has emitted


def warn_once(subject: str, message: str) -> None:
    """Emit a warning, unless this process has already emitted one on the subject."""
    if subject not in _warned:
        _warned.add(subject)
        warn(message)


def chain_turns(
    rollouts: np.ndarray,
    parts: np.ndarray,
    steps: np.ndarray,
    prompts: RaggedArray,
    outputs: RaggedArray,
    masks: Masks,
    drift_threshold: int,
) -> Chains:
    """Chain turns into rows, and return the rows that have tokens to train on.

    `steps` are the steps of the turns. `rollouts` and `parts` are the rollout of each turn and the
    part of the rollout between two gaps. All three arrays are sorted by rollout. A row contains
    turns of one part only. After a turn, the tokens of a row are the prompt and the output of that
    turn, so a new prompt is compared only with these two.

    Source of the rules: TRL 1.16, `_chain_to_sequences` in `experimental/async_grpo`.
    """
    is_complete = (prompts.lengths[steps] >= 0) & (outputs.lengths[steps] >= 0)
    rollouts, parts, steps = rollouts[is_complete], parts[is_complete], steps[is_complete]
    start, length = prompts.lengths[steps], outputs.lengths[steps]
    # Indices of the turns that are not the first of their part, and whose prompt begins with the
    # previous prompt.
    after = np.flatnonzero(parts[1:] == parts[:-1]) + 1
    count = len(after)
    after = after[_extends_previous_prompt(prompts, steps, after)]
    matched = _count_repeated_tokens(prompts, outputs, steps, after)
    continues = length[after - 1] - matched < drift_threshold
    after, matched = after[continues], matched[continues]
    if len(after) < count:
        warn_once(
            "drift",
            f"{count - len(after)} of {count} later prompts in this batch do not begin with the "
            "tokens of the previous turn, so each of them begins a new row; store the whole "
            "prompt of each turn, not only its new tokens, or pass agent= if several agents act",
        )
    begins_chain = np.ones(len(steps), np.bool_)
    begins_chain[after] = False
    chain = np.cumsum(begins_chain) - 1
    kept = length.copy()
    kept[after - 1] = matched
    trained_before = np.zeros(len(steps), np.int64)
    turns = Turns(steps, chain, start, length, kept, masks.count(steps, kept), trained_before)
    first = np.flatnonzero(begins_chain)
    last = np.append(first[1:], len(steps))[: len(first)] - 1
    lost_tokens = _sum_by_chain(masks.count(steps, length) - turns.loss_tokens, chain, len(first))
    if lost := int(lost_tokens.sum()):
        warn_once(
            "lost tokens",
            f"{lost} generated tokens of this batch are not trained on, because later prompts "
            "have other tokens in their place; see the key lost_tokens, and use a chat "
            "template that keeps the generated tokens",
        )
    size = start[last] + kept[last]
    chains = Chains(turns, rollouts[first], steps[last], size, lost_tokens)
    return chains.select(chains.loss_tokens > 0)


def _count_earlier_equal(values: np.ndarray) -> np.ndarray:
    """Return, for each element, the number of equal elements before it."""
    order = np.argsort(values, kind="stable")
    ranks = np.arange(len(values))
    begins = np.diff(values[order], prepend=values[order][:1] - 1) != 0
    counts = np.empty(len(values), np.int64)
    counts[order] = ranks - np.maximum.accumulate(np.where(begins, ranks, 0))
    return counts


def _sum_by_chain(values: np.ndarray, chain: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of the values of the turns of each row."""
    return np.bincount(chain, values, count).astype(np.int64)


def _extends_previous_prompt(
    prompts: RaggedArray, steps: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Return, for each turn in `after`, whether its prompt begins with the previous prompt."""
    starts, lengths = prompts.starts[steps], prompts.lengths[steps]
    previous_starts, own_starts = starts[after - 1], starts[after]
    counts = lengths[after - 1]
    # A prompt that was stored as an extension of the previous prompt has the same start.
    extends = previous_starts == own_starts
    is_long_enough = lengths[after] >= counts
    for index in np.flatnonzero(~extends & is_long_enough).tolist():
        first, second, count = previous_starts[index], own_starts[index], counts[index]
        values = prompts.values
        extends[index] = np.array_equal(
            values[first : first + count], values[second : second + count]
        )
    extends_prompt: np.ndarray = extends & is_long_enough
    return extends_prompt


def _count_repeated_tokens(
    prompts: RaggedArray, outputs: RaggedArray, steps: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Return, for each turn in `after`, how many tokens of the previous output its prompt repeats.

    Each of these prompts must begin with the prompt of the previous turn.
    """
    previous_steps, own_steps = steps[after - 1], steps[after]
    begins = prompts.lengths[previous_steps]
    counts: np.ndarray = np.minimum(
        outputs.lengths[previous_steps], prompts.lengths[own_steps] - begins
    )
    repeated = take_slices(prompts.values, prompts.starts[own_steps] + begins, counts)
    differs = np.flatnonzero(repeated != outputs.take_leading(previous_steps, counts))
    if len(differs):
        ends = np.cumsum(counts)
        turn, first = np.unique(ends.searchsorted(differs, "right"), return_index=True)
        counts[turn] = differs[first] - (ends - counts)[turn]
    return counts


def pack_rows(chains: Chains, width: int) -> list[list[int]]:
    """Return bins of chains that have at most `width` tokens in total, by first-fit decreasing.

    A bin is an ascending list of indices of chains. The chains of a rollout are in one bin if they
    fit into one. Bins are sorted by their first chain.
    """
    sizes = chains.size.tolist()
    by_rollout: dict[int, list[int]] = {}
    for index, rollout in enumerate(chains.rollout.tolist()):
        by_rollout.setdefault(rollout, []).append(index)
    items: list[tuple[int, list[int]]] = []
    for indices in by_rollout.values():
        size = sum(sizes[index] for index in indices)
        if size <= width:
            items.append((size, indices))
        else:
            items += [(sizes[index], [index]) for index in indices]
    free_tokens: list[int] = []
    bins: list[list[int]] = []
    for size, indices in sorted(items, key=lambda item: -item[0]):
        number = next((n for n, free in enumerate(free_tokens) if free >= size), len(bins))
        if number == len(bins):
            bins.append([])
            free_tokens.append(width)
        bins[number] += indices
        free_tokens[number] -= size
    return sorted(map(sorted, bins))


class TokenRows:
    """Build the arrays of a batch from rows that each consist of one or several chains."""

    def __init__(self, chains: Chains, bins: list[list[int]]):
        self._bins = bins
        sizes = chains.size.tolist()
        width = max(1, *[sum([sizes[index] for index in row]) for row in bins])
        self.shape = len(bins), width
        self._most_segments = max(1, *map(len, bins))
        self._chains = chains
        # For each chain: its index, its begin and its end in the flat array of B rows of T tokens,
        # and its number within its row.
        self._chain_spans: list[tuple[int, int, int, int]] = []
        for row, indices in enumerate(bins):
            begin = row * width
            for number, index in enumerate(indices, 1):
                self._chain_spans.append((index, begin, begin + sizes[index], number))
                begin += sizes[index]
        begins = np.full(len(chains), UNKNOWN)
        for index, begin, _, _ in self._chain_spans:
            begins[index] = begin
        turns = chains.turns
        used = np.flatnonzero((turns.kept > 0) & (begins[turns.chain] >= 0))
        starts = begins[turns.chain[used]] + turns.start[used]
        order = starts.argsort(kind="stable")
        # The turns with tokens in the batch, in the order of these tokens.
        self._turns = Turns(**{name: array[used][order] for name, array in vars(turns).items()})
        # Run lengths in the flat array, in turn: other tokens, generated tokens, ..., other tokens.
        self._run_lengths = alternate_gaps_and_slices(
            starts[order], self._turns.kept, len(bins) * width
        )
        self._is_generated = self._expand_turn_values(np.ones(len(order), np.bool_), False)

    @property
    def drawn_rollouts(self) -> np.ndarray:
        """The index of the first rollout of each row, int64 [B]."""
        rollouts = self._chains.rollout
        return np.array([rollouts[row[0]] if row else 0 for row in self._bins], np.int64)

    def _filled(self, value: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return an array [B, T] of one value, and a flat view of it."""
        out = np.full(self.shape, value, dtype) if value else np.zeros(self.shape, dtype)
        return out, out.reshape(-1)

    def _expand_turn_values(self, values: np.ndarray, elsewhere: Any) -> np.ndarray:
        """Return an array [B, T, ...] with the value of the turn of each generated token."""
        inner = values.shape[1:]
        alternating = np.full((len(self._run_lengths), *inner), elsewhere, values.dtype)
        alternating[1::2] = values
        return np.repeat(alternating, self._run_lengths, 0).reshape(*self.shape, *inner)

    def _scatter(self, values: np.ndarray, elsewhere: Any) -> np.ndarray:
        """Return an array [B, T, ...] with `values` at the generated tokens, in their order."""
        out = np.full((*self.shape, *values.shape[1:]), elsewhere, values.dtype)
        out[self._is_generated] = values
        return out

    def input_ids(self, prompts: RaggedArray, outputs: RaggedArray, pad_id: int) -> np.ndarray:
        """Return the tokens, [B, T]."""
        kind = np.result_type(prompts.values, outputs.values)
        if not self._chain_spans:
            kind = np.dtype(np.int32)
        if kind.kind not in "iu" or not np.iinfo(kind).min <= pad_id <= np.iinfo(kind).max:
            raise InvalidValue(
                f"pad_id {pad_id} does not fit tokens of type {kind}; store integers as tokens, or "
                "pass another pad_id"
            )
        out, flat = self._filled(pad_id, kind)
        for index, begin, end, _ in self._chain_spans:
            step = self._chains.last_step[index]
            prompt, output = prompts.starts[step], outputs.starts[step]
            count = min(int(prompts.lengths[step]), end - begin)
            flat[begin : begin + count] = prompts.values[prompt : prompt + count]
            rest = end - begin - count
            flat[begin + count : end] = outputs.values[output : output + rest]
        return out

    def attention_mask(self) -> np.ndarray:
        """Return True for the tokens of a row, bool [B, T]."""
        out, flat = self._filled(False, np.bool_)
        for _, begin, end, _ in self._chain_spans:
            flat[begin:end] = True
        return out

    def loss_mask(self, masks: Masks) -> np.ndarray:
        """Return True for the tokens to train on, bool [B, T]."""
        out = self._expand_turn_values(self._turns.loss_tokens > 0, False)
        if masks.of_steps is not None:
            out &= self._scatter(
                self._concatenate_values(masks.of_steps, "mask", True, np.bool_), False
            )
        if self._turns.trained_before.any():
            out &= self.token_index() >= 0
        return out

    def position_ids(self) -> np.ndarray:
        """Return the index of each token in its chain, int64 [B, T]; 0 for padding."""
        out, flat = self._filled(0, np.int64)
        numbers = np.arange(self.shape[1])
        for _, begin, end, _ in self._chain_spans:
            flat[begin:end] = numbers[: end - begin]
        return out

    def segment_ids(self) -> np.ndarray:
        """Return the number of each token's chain within its row, from 1, int32 [B, T]."""
        out, flat = self._filled(0, np.int32)
        for _, begin, end, number in self._chain_spans:
            flat[begin:end] = number
        return out

    def token_index(self) -> np.ndarray:
        """Return the index of each generated token in its output, int32 [B, T]; -1 elsewhere.

        The index is also -1 if another row trains on the token.
        """
        kept, before = self._turns.kept, self._turns.trained_before
        numbers = np.arange(int(kept.sum()), dtype=np.int32)
        numbers -= np.repeat((np.cumsum(kept) - kept).astype(np.int32), kept)
        if before.any():
            numbers[numbers < np.repeat(before, kept)] = UNKNOWN
        return self._scatter(numbers, UNKNOWN)

    def token_step(self, positions: np.ndarray, token_index: np.ndarray) -> np.ndarray:
        """Return the position of the step of each token with an index, [B, T]; -1 elsewhere."""
        steps = self.expand_step_values(positions, UNKNOWN)
        if self._turns.trained_before.any():
            steps[token_index < 0] = UNKNOWN
        return steps

    def expand_step_values(self, values: np.ndarray, elsewhere: Any) -> np.ndarray:
        """Return the value of the step of each generated token, [B, T, ...]."""
        return self._expand_turn_values(values[self._turns.step], elsewhere)

    def _find_turn_places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of each turn with tokens, and the index of the turn in its row."""
        ends = np.cumsum(self._run_lengths)
        rows = ends[:-1:2] // self.shape[1]
        first = rows.searchsorted(rows)
        return rows, np.arange(len(rows)) - first

    def turn_of_token(self) -> np.ndarray:
        """Return the index of the turn of each generated token, int32 [B, T]; -1 elsewhere."""
        return self._expand_turn_values(self._find_turn_places()[1].astype(np.int32), UNKNOWN)

    def build_turn_values(self, values: np.ndarray) -> np.ndarray:
        """Return the value of the step of each turn, [B, K, ...]; 0 or None for a missing turn."""
        rows, places = self._find_turn_places()
        shape = len(self._bins), int(places.max(initial=0)) + 1, *values.shape[1:]
        out = np.full(shape, None if values.dtype == object else 0, values.dtype)
        out[rows, places] = values[self._turns.step]
        return out

    def advantages(self, values: np.ndarray, loss_mask: np.ndarray) -> np.ndarray:
        """Return the value of the rollout of each token to train on, [B, T]; 0 elsewhere."""
        out = self._expand_turn_values(values[self._chains.rollout[self._turns.chain]], 0)
        out[~loss_mask] = 0
        return out

    def step_advantages(self, values: np.ndarray, loss_mask: np.ndarray) -> np.ndarray:
        """Return the value of the step of each token to train on, [B, T]; 0 elsewhere."""
        return np.where(loss_mask, self.expand_step_values(values, 0), np.float32(0))

    def build_token_values(
        self, values: RaggedArray, name: str, missing: Any, elsewhere: Any
    ) -> np.ndarray:
        """Return the value of each generated token, [B, T, ...], and `elsewhere` at other tokens.

        `values` has an array for each step. The tokens of a step without an array have the value
        `missing`.
        """
        of_tokens = self._concatenate_values(values, name, missing, values.values.dtype)
        return self._scatter(of_tokens, elsewhere)

    def build_prompt_values(
        self, values: RaggedArray, name: str, prompts: RaggedArray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each token of the last prompt of a row, [B, T, ...].

        All other tokens get the filler of `values`.

        `values` has an array for each step, with one value per token of its prompt. The second
        array is True for the tokens with a value, bool [B, T].
        """
        inner = values.values.shape[1:]
        out = np.full((*self.shape, *inner), values.filler, values.values.dtype)
        has_value = np.zeros(self.shape, np.bool_)
        flat_out, flat_has_value = out.reshape(-1, *out.shape[2:]), has_value.reshape(-1)
        for index, begin, end, _ in self._chain_spans:
            step = self._chains.last_step[index]
            start, length = values.starts[step], values.lengths[step]
            if length not in (UNKNOWN, prompts.lengths[step]):
                raise InvalidValue(
                    f"{name!r} has {length} values for a turn with {prompts.lengths[step]} prompt "
                    f"tokens; store one value per token of {values.aligned_with!r}"
                )
            count = min(int(length), end - begin)
            if length != UNKNOWN:
                flat_out[begin : begin + count] = values.values[start : start + count]
                flat_has_value[begin : begin + count] = True
        return out, has_value

    def versions(
        self, of_steps: np.ndarray, of_tokens: RaggedArray | None, name: str
    ) -> np.ndarray:
        """Return the policy version of each generated token, int64 [B, T]; -1 elsewhere.

        If a turn has an array in `of_tokens`, its tokens get these versions.
        """
        if of_tokens is None or (of_tokens.lengths < 0).all():
            return self.expand_step_values(of_steps, UNKNOWN)
        missing = np.repeat(of_steps[self._turns.step], self._turns.kept)
        return self._scatter(self._concatenate_values(of_tokens, name, missing, np.int64), UNKNOWN)

    def _concatenate_values(
        self, arrays: RaggedArray, name: str, missing: Any, dtype: Any
    ) -> np.ndarray:
        """Return the value of each generated token, in the order of the tokens.

        `missing` is the value of the tokens of a step without an array: a scalar, or one value per
        token.
        """
        steps, kept = self._turns.step, self._turns.kept
        lengths = arrays.lengths[steps]
        has_array = lengths >= 0
        differs = has_array & (lengths != self._turns.length)
        if differs.any():
            turn = differs.argmax()
            raise InvalidValue(
                f"{name!r} has {lengths[turn]} values for a turn with {self._turns.length[turn]} "
                "output tokens; request fields with one value per output token, or one per step"
            )
        if has_array.all():
            return arrays.take_leading(steps, kept).astype(dtype, copy=False)
        out = np.empty((int(kept.sum()), *arrays.values.shape[1:]), dtype)
        out[:] = missing
        has_value = np.repeat(has_array, kept)
        out[has_value] = arrays.take_leading(steps[has_array], kept[has_array])
        return out

    def of_rollouts(self, values: np.ndarray, missing: Any) -> np.ndarray:
        """Return the value of the rollout of each chain, [B, S]; `missing` where there is none."""
        return self._of_chains(values[self._chains.rollout], missing)

    def lost_tokens(self) -> np.ndarray:
        """Return the number of tokens that each chain has lost, int64 [B, S]."""
        return self._of_chains(self._chains.lost_tokens, 0)

    def rollout_weights(self, of_rollouts: np.ndarray) -> np.ndarray:
        """Return the share of each chain in the tokens to train on of its rollout, [B, S].

        `of_rollouts` has the number of these tokens of each rollout.
        """
        shares = self._chains.loss_tokens / np.maximum(of_rollouts[self._chains.rollout], 1)
        return self._of_chains(shares.astype(np.float32), 0)

    def _of_chains(self, values: np.ndarray, missing: Any) -> np.ndarray:
        out = np.full((len(self._bins), self._most_segments), missing, values.dtype)
        for number, row in enumerate(self._bins):
            out[number, : len(row)] = values[row]
        return out
