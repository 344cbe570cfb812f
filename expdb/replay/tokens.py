"""Training rows for language models: `Tokens` chains the turns of rollouts into rows of tokens."""

from __future__ import annotations  # evaluating `np.random` would import that module

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from expdb import checks
from expdb.errors import InvalidValue, warn
from expdb.keywords import checked_keywords
from expdb.names import EPISODE_VERSION_COLUMNS, TOKEN_KEYS, UNKNOWN
from expdb.replay.advantages import ADVANTAGES, Advantage, compute_advantages
from expdb.replay.layout import Layout, Trajectories
from expdb.replay.pairs import Pairs
from expdb.replay.ragged import RaggedArray
from expdb.replay.sequences import Episode, Group, episode_reader
from expdb.replay.token_rows import Chains, TokenRows, chain_turns, pack_rows
from expdb.replay.turn_inputs import TurnInputs
from expdb.replay.units import Unit

OVERLONG = ("cut", "mask", "drop", "error")
# The keys of a batch under the names of other libraries.
NAMES: dict[str, dict[str, str]] = {
    "expdb": {},
    "trl": {
        "loss_mask": "completion_mask", "logprobs": "old_log_probs", "advantage": "advantages",
    },
    "verl": {
        "loss_mask": "response_mask", "logprobs": "rollout_log_probs", "advantage": "advantages",
    },
    "skyrl": {
        "input_ids": "sequences", "logprobs": "rollout_logprobs", "advantage": "advantages",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Tokens(Unit):
    """Return the turns of rollouts as rows of tokens, ready for the loss of a language model.

    A rollout is an episode that `of` draws. Each step of it is a turn: the whole prompt of the
    turn, and the tokens that the model generated; see `TOKEN_FIELDS`. The turns of a rollout become
    one row: if the prompt of a turn begins with all tokens so far, the rest of the prompt is
    appended as context, and then the output. If the first difference is among the last
    ``drift_threshold - 1`` tokens of the last output (for example because the chat template
    tokenized the text again), the prompt replaces the output from there on, as context. If the
    prompt differs in any other way, a new row begins. So each generated token is trained on in at
    most one row. Rows without a token to train on are left out, except with ``overlong="mask"``. If
    no row is left, the batch has one row without tokens, and a warning says so.

    A batch has B rows of T tokens, where T is the length of the longest row. The arrays [B, T] are

    - `input_ids`: the tokens, `pad_id` after the end of a row,
    - `attention_mask`: True for the tokens of a row, False for padding,
    - `loss_mask`: True for the tokens to train on: generated tokens whose `output_mask` is True,
    - `logprobs`: the stored log-probabilities of the generated tokens, 0.0 elsewhere, and NaN for
      a turn without them; the key is missing if the buffer has no such field,
    - `position_ids`: index of the token in its row, or with `pack` in its segment, from 0; 0 for
      padding,
    - `segment_ids`, with `pack`: number of the segment within the row, from 1; 0 for padding,
    - `advantage`, with `advantage`: the advantage of the rollout where `loss_mask` is True,
    - `policy_version`: version of the policy that generated the token, -1 elsewhere or if unknown,
    - `token_step` and `token_index`: position of the step that has the token in its output, and the
      index of the token in this output; -1 elsewhere, and if another row trains on the token,
    - each key in `fields` with one array, text or JSON value per turn, such as an image, an
      embedding or the result of a tool: [B, K, ...] for up to K turns with tokens in a row, 0 or
      None for a missing turn. `turn_of_token` [B, T] is the index of the turn of each generated
      token, -1 elsewhere,
    - each other key in `fields`, such as an annotation: one value per generated token. If the key
      has one number per step, each generated token of the step has this number. The value is 0
      elsewhere. If some turns lack the key, `has_<key>` is True for the tokens with a value. The
      `filler` of a field replaces 0. Columns of episodes are [B],
    - each field in `fields` that is declared with ``aligned_with`` and the name of `prompt`: one
      value per token of the last prompt of the row, 0 elsewhere, and `has_<key>`, which is True for
      the tokens with a value.

    The arrays [B] are

    - `rollout`: number of the rollout in the batch, from 0; with `Pairs`, 2 p is the chosen and
      2 p + 1 the rejected rollout of pair p,
    - `episode`: number of the episode,
    - `reward`: score of the rollout, or its return if `of` has no score,
    - `lost_tokens`: number of tokens to train on that a later prompt replaced; the first row of a
      rollout also counts the lost tokens of omitted rows of the same rollout,
    - `rollout_weight`: share of the row in the tokens to train on of its rollout, float32; the
      weights of the rows of a rollout add up to 1, or are 0 if it has no token to train on,
    - `rollouts`: number of rollouts with tokens to train on in the whole batch, at least 1,
    - `loss_tokens`: number of tokens to train on in the whole batch, at least 1; divide the sum of
      the loss by it,
    - `drawn` and `position`: index of the drawn item, and position of its first step.

    With `pack`, a row has up to S segments; each segment would be a row without `pack`. Then
    `rollout`, `episode`, `reward`, `lost_tokens`, `rollout_weight` and columns of episodes are
    [B, S], and `drawn` is the item of the first segment. A missing segment has -1, NaN or 0.

    Parameters
    ----------
    of : Unit, default Episode()
        What to draw: `Episode`, `Group` or `Pairs`.
    max_tokens : int, optional
        Maximum length of a row, at least 1. Required with `pack`.
    budget : int, optional
        Maximum number of tokens per batch, not counting padding, at least 1. Tokens are counted
        after `overlong` is applied. expdb adds the drawn items from the oldest to the newest, and
        stops before the first item that does not fit. The remaining items can be drawn again, and a
        consumer does not count them as leased. If the oldest item alone exceeds the budget, the
        batch contains only this item, and expdb warns. So a lease can have fewer items than its
        `at_least`. `ReplayBuffer.epochs` does not accept a budget.
    pack : bool, default False
        Whether several rollouts may share a row. Rows are filled by first-fit decreasing. The
        attention of the model must not cross segments.
    advantage : {"grpo", "dr_grpo", "rloo", "reinforce++"} or callable, optional
        How to compute the advantages; see Notes. They are computed from all rollouts of a group,
        before rows are cut or dropped. A function receives the scores
        float64 [G, n] (NaN for a missing rollout), the numbers of tokens to train on int64 [G, n]
        and a mask bool [G, n] of the rollouts, and returns float64 [G, n]. The database does not
        record a function, so also pass the unit to `Consumer.shared` and `ReplayBuffer.replay`.
    drift_threshold : int, default 1024
        A new row begins if a prompt differs from the last output at least this number of tokens
        before the end of the output. At least 1.
    shared : {"first", "mean"}, default "first"
        Advantage of a turn that several branches in a batch share. Only the first row with the turn
        trains on it. With ``"first"``, the turn has the advantage of the rollout of this row. With
        ``"mean"``, it has the mean advantage of all branches that could train on it.
    stale : {"drop_rollout", "mask_tokens", "keep"}, default "drop_rollout"
        Effect of the `max_staleness` of a consumer. ``"drop_rollout"`` does not draw rollouts whose
        oldest turn is too stale. ``"mask_tokens"`` draws rollouts whose newest turn is not too
        stale, and does not train on their stale tokens. ``"keep"`` ignores `max_staleness`.
    oldest_version : int, optional
        Do not train on tokens whose policy version is lower or unknown. With
        ``stale="mask_tokens"``, a lease sets it to the current version minus `max_staleness`.
    prompt, output, logprobs, output_mask, versions : str
        Names of the fields. Fields other than `prompt` and `output` may be missing.
    agent : str, optional
        Take only the turns of this agent, for self-play. By default, all turns. `reward` and
        `advantage` still include the rewards of all agents of the episode.
    pad_id : int, default 0
        Token that pads `input_ids`.
    overlong : {"cut", "mask", "drop", "error"}, default "cut"
        Effect on a row that is longer than `max_tokens`. ``"cut"`` cuts its end. ``"mask"`` cuts
        its end and sets its whole `loss_mask` to False. ``"drop"`` leaves out all rows of the
        rollout and, with `Pairs`, of the other rollout of the pair. ``"error"`` raises
        InvalidValue.
    names : {"expdb", "trl", "verl", "skyrl"}, default "expdb"
        Library whose names the keys get; shapes and values stay the same. The names are
        ``completion_mask``, ``old_log_probs`` and ``advantages`` for TRL, ``response_mask``,
        ``rollout_log_probs`` and ``advantages`` for verl, and ``sequences``, ``rollout_logprobs``
        and ``advantages`` for SkyRL.
    gaps : {"end", "join"}, default "end"
        Treatment of missing step numbers of a rollout. With ``"end"``, a new row begins after the
        gap, and expdb warns once per process. With ``"join"``, the turn after the gap continues the
        row if its prompt begins with the tokens before the gap.

    Raises
    ------
    InvalidValue
        If a parameter has the wrong type or is out of range.

    Notes
    -----
    With the score r of a rollout, and the mean and the sample standard deviation std of the scores
    of its group, the advantages are

    - ``"grpo"``: (r - mean) / (std + 1e-6), see [1]_,
    - ``"dr_grpo"``: r - mean, see [2]_,
    - ``"rloo"``: r minus the mean of the other rollouts of the group, see [3]_,
    - ``"reinforce++"``: (r - m) / (s + 1e-6), where m and s are the mean and the population
      standard deviation of r over all tokens to train on in the batch, see [4]_. The penalty for
      the divergence from a reference model belongs to the loss.

    A group of one rollout, or of equal scores, has the advantage 0 with the first three.

    References
    ----------
    .. [1] Shao et al. (2024), *DeepSeekMath*, arXiv:2402.03300.
    .. [2] Liu et al. (2025), *Understanding R1-Zero-Like Training*, arXiv:2503.20783.
    .. [3] Ahmadian et al. (2024), *Back to Basics*, arXiv:2402.14740.
    .. [4] Hu et al. (2025), *REINFORCE++*, arXiv:2501.03262.

    Examples
    --------
    >>> unit = expdb.Tokens(  # doctest: +SKIP
    ...     of=expdb.Group(8, score="judge"), max_tokens=8192, pack=True, advantage="grpo"
    ... )
    >>> with consumer.lease(16, unit=unit, trainer_step=7) as batch:  # doctest: +SKIP
    ...     train(batch["input_ids"], batch["loss_mask"], batch["advantage"])
    """

    of: Unit = field(default_factory=Episode)
    max_tokens: int | None = None
    budget: int | None = None
    pack: bool = False
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] | Advantage | None = None
    drift_threshold: int = 1024
    shared: Literal["first", "mean"] = "first"
    stale: Literal["drop_rollout", "mask_tokens", "keep"] = "drop_rollout"
    oldest_version: int | None = None
    prompt: str = "prompt_ids"
    output: str = "output_ids"
    logprobs: str = "logprobs"
    output_mask: str = "output_mask"
    versions: str = "versions"
    agent: str | None = None
    pad_id: int = 0
    overlong: Literal["cut", "mask", "drop", "error"] = "cut"
    names: Literal["expdb", "trl", "verl", "skyrl"] = "expdb"
    gaps: Literal["end", "join"] = "end"

    checks_results: ClassVar[bool] = False
    by_episode: ClassVar[bool] = True
    pads_rows: ClassVar[bool] = True
    reads_ragged: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.of) not in (Episode, Group, Pairs):
            raise InvalidValue(
                f"of must be an Episode, a Group or Pairs, got {self.of!r}; pass expdb.Group(8)"
            )
        if isinstance(self.of, Episode) and not self.of.pad:
            raise InvalidValue(
                f"of must be an Episode with pad=True, got {self.of!r}; omit pad, because Tokens "
                "pads the rows itself"
            )
        for name, least in (
            ("max_tokens", 1), ("budget", 1), ("drift_threshold", 1), ("pad_id", -(2**31))
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None or name not in ("max_tokens", "budget"):
                object.__setattr__(self, name, checks.whole(value, name, least))
        checks.flag(self.pack, "pack")
        if self.pack and self.max_tokens is None:
            raise InvalidValue("pack=True requires the length of a row; also pass max_tokens")
        checks.choice(self.overlong, "overlong", *OVERLONG)
        checks.choice(self.names, "names", *NAMES)
        checks.choice(self.shared, "shared", "first", "mean")
        checks.choice(self.stale, "stale", "drop_rollout", "mask_tokens", "keep")
        if self.oldest_version is not None:
            checks.whole(self.oldest_version, "oldest_version")
        checks.choice(self.gaps, "gaps", "end", "join")
        for name in ("prompt", "output", "logprobs", "output_mask", "versions"):
            checks.text(getattr(self, name), name)
        if self.agent is not None:
            checks.text(self.agent, "agent")
        if self.advantage is not None and not callable(self.advantage):
            checks.choice(self.advantage, "advantage", *ADVANTAGES)
        if self.advantage in ("grpo", "dr_grpo", "rloo") and isinstance(self.of, Episode):
            raise InvalidValue(
                f"advantage={self.advantage!r} compares the rollouts of a group; pass "
                "of=expdb.Group(size)"
            )

    # -- what is drawn ---------------------------------------------------------------------------

    @property
    def what(self) -> str:
        """The plural noun for the drawn items in error messages, a str."""
        return self.of.what

    @property
    def uses_time(self) -> bool:
        """Whether the items that may be drawn also depend on the time, a bool."""
        return self.of.uses_time

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of episodes that the unit reads, a tuple of str."""
        reads = with_lineage(self.of).reads
        others = "episode_return", "trainable", *EPISODE_VERSION_COLUMNS
        return tuple(dict.fromkeys((*reads, *others)))

    @property
    def anchor_key(self) -> tuple[Any, ...]:
        """The hashable key that identifies which items may be drawn, a tuple."""
        return with_lineage(self.of).anchor_key

    def anchors(self, trajectories: Trajectories, rows: np.ndarray) -> np.ndarray:
        """Return the anchors of `of`: the rollouts that may be drawn.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (N,)
            Rows of the first steps of complete episodes with a matching step, ascending by
            position.

        Returns
        -------
        ndarray of int64, shape (A,) or (A, n)
            Rows of the first steps of the rollouts; -1 for a missing rollout.
        """
        return with_lineage(self.of).anchors(trajectories, rows)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the columns that the layout of the unit has.

        Returns
        -------
        tuple of str
            The keys of `of`, `episode_return`, `trainable` and `turn_number`.
        """
        others = "episode_return", "trainable", "turn_number"
        return tuple(dict.fromkeys((*self.of.keys(), *others)))

    def layout(
        self, trajectories: Trajectories, rows: np.ndarray, rng: np.random.Generator
    ) -> Layout:
        """Return the layout of `of`, with the returns of the rollouts.

        Parameters
        ----------
        trajectories : Trajectories
            Rows of the buffer in memory.
        rows : ndarray of int64, shape (B,) or (B, n)
            Rows of the first steps of the rollouts.
        rng : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        Layout
            Layout of the turns.
        """
        layout = with_lineage(self.of).layout(trajectories, rows, rng)
        if "episode_return" not in layout.columns:
            layout.columns["episode_return"] = episode_reader(trajectories, rows, True)(
                "episode_return"
            )
        layout.columns["trainable"] = trajectories.of_episodes("trainable", rows) != 0
        assert layout.mask is not None
        numbers = np.where(layout.mask, trajectories.numbers(layout.rows), UNKNOWN)
        layout.columns["turn_number"] = numbers
        return layout

    # -- the rows --------------------------------------------------------------------------------

    def inputs(self, fields: Sequence[str] | None, stored: Sequence[str]) -> list[str]:
        """Return the keys of the batch that `assemble` receives.

        Parameters
        ----------
        fields : sequence of str, optional
            Keys that the caller requests besides the keys of the unit.
        stored : sequence of str
            Names of all stored fields.

        Returns
        -------
        list of str
            Names of fields and columns.

        Raises
        ------
        InvalidValue
            If a setting names an optional field that the buffer lacks, or if `fields` names a key
            that the unit computes or a field that it reads from the turns.
        """
        for setting in ("logprobs", "output_mask", "versions"):
            name = getattr(self, setting)
            if name not in stored and name != type(self).__dataclass_fields__[setting].default:
                raise InvalidValue(
                    f"{setting}={name!r} is not a field of the buffer; pass one of "
                    f"{', '.join(stored)}, or omit {setting}"
                )
        optional = [self.logprobs, self.output_mask, self.versions]
        agent = [] if self.agent is None else ["agent_id"]
        needed = [
            self.prompt, self.output, *[name for name in optional if name in stored],
            "position", "episode", "policy_version", *agent, *self.keys(),
        ]  # fmt: skip
        computed_keys = {*TOKEN_KEYS, *NAMES[self.names].values()}
        computed_keys -= {"advantage", "advantages"} if self.advantage is None else set()
        computed_keys -= set() if self.pack else {"segment_ids"}
        read = {self.prompt, self.output, self.output_mask, self.versions, *self.keys()}
        same = {
            self.logprobs,
            "episode",
            "policy_version",
        }  # also the names of keys of the unit
        for name in fields or ():
            if name in read or name in computed_keys - same:
                raise InvalidValue(
                    f"fields must not contain {name!r}, because Tokens computes this key or reads "
                    "it from the turns; omit it"
                )
        return list(dict.fromkeys((*needed, *(fields or ()))))

    @property
    def has_budget(self) -> bool:
        """Whether `budget` limits the tokens of a batch, a bool."""
        return self.budget is not None

    @property
    def annotated_field(self) -> str | None:
        """The field with the tokens that `Batch.annotate` aligns arrays with: `output`."""
        return self.output

    def select_within_budget(self, batch: Mapping[str, Any], positions: np.ndarray) -> np.ndarray:
        """Return which drawn items fit into the token budget.

        Parameters
        ----------
        batch : mapping of str to ndarray
            The turns of B items, with the keys that `inputs` returned, as in `assemble`.
        positions : ndarray of int64, shape (B,)
            Position of each item; the smallest is the oldest item.

        Returns
        -------
        ndarray of bool, shape (B,)
            True for the items to keep. At least one item is kept, unless there are no items.

        Raises
        ------
        InvalidValue
            If an output mask has another length than its output.

        Warns
        -----
        ExpDBWarning
            If the oldest item alone exceeds the budget, or, once per process, if later prompts have
            replaced tokens to train on.
        """
        count = len(positions)
        is_kept = np.ones(count, np.bool_)
        if self.budget is None or not count:
            return is_kept
        turns = TurnInputs(self, batch)
        chains = self._select_trainable(self._chains(turns), turns)
        if self.overlong != "error":  # `assemble` raises the error if the item is kept
            chains = self._apply_overlong(chains, turns)
        rollouts = batch["episode"].size // count
        tokens = np.bincount(chains.rollout // rollouts, chains.size, count)
        oldest_first = positions.argsort(kind="stable")
        is_kept[oldest_first] = tokens[oldest_first].cumsum() <= self.budget
        oldest = oldest_first[0]
        if not is_kept[oldest]:
            is_kept[oldest] = True
            warn(
                f"budget={self.budget} is smaller than the oldest item, which has "
                f"{int(tokens[oldest])} tokens, so the batch contains only this item; raise "
                "budget, or set a smaller max_tokens"
            )
        return is_kept

    def assemble(
        self, batch: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> Mapping[str, np.ndarray]:
        """Return the rows of tokens of the drawn rollouts.

        Parameters
        ----------
        batch : mapping of str to ndarray
            The turns of the rollouts, with the keys that `inputs` returned.
        rng : numpy.random.Generator
            Not used.

        Returns
        -------
        mapping of str to ndarray
            Arrays with one entry for each row of tokens.

        Raises
        ------
        InvalidValue
            If a row is too long and `overlong` is ``"error"``, if a score is unknown, or if a
            requested key does not have one value per token or turn.

        Warns
        -----
        ExpDBWarning
            If later prompts have replaced tokens to train on, once per process, if turns lack their
            prompt or its beginning, or if no row is left.
        """
        shape = batch["episode"].shape
        is_rollout = batch["episode"].reshape(-1) >= 0
        scores = batch["episode_score" if "episode_score" in batch else "episode_return"]
        scores = np.where(is_rollout, scores.reshape(-1), np.nan)
        members = batch["group_member"].reshape(-1) if "group_member" in batch else None
        if members is not None:  # the index of the rollout of each episode
            members = np.where(members < 0, 0, members)
            members += np.repeat(np.arange(shape[0]) * shape[1], shape[1])
            scores = np.where(np.isnan(scores) & is_rollout, scores[members], scores)
        turns = TurnInputs(self, batch)
        chains = self._select_trainable(self._chains(turns), turns)
        advantages = None
        if self.advantage is not None:
            lengths = np.zeros(len(is_rollout), np.int64)
            trained_once = self._train_once(chains, turns)
            rollouts = trained_once.rollout if members is None else members[trained_once.rollout]
            np.add.at(lengths, rollouts, trained_once.loss_tokens)
            groups = (-1, 1) if len(shape) == 1 else shape
            columns = [array.reshape(groups) for array in (scores, lengths, is_rollout)]
            if members is not None:  # only the rollouts, not their children
                columns = [array[:, : getattr(self.of, "size", 0)] for array in columns]
            advantages = compute_advantages(self.advantage, *columns)
            if members is not None:
                missing = np.zeros((shape[0], shape[1] - advantages.shape[1]))
                advantages = np.concatenate((advantages, missing), 1).reshape(-1)[members]
            advantages = advantages.reshape(-1)
        chains = self._select_trainable(self._apply_overlong(chains, turns), turns)
        branches = chains
        chains = self._train_once(chains, turns)
        if not len(chains):
            warn(
                f"no row is left for the {int(is_rollout.sum())} rollouts of a batch, so the batch "
                f"has one row without tokens, because {self._reason_for_no_row(turns)}"
            )
        most = self.max_tokens or 0
        bins = pack_rows(chains, most) if self.pack else [[index] for index in range(len(chains))]
        rows = TokenRows(chains, bins or [[]])
        out = self._arrays(rows, turns, advantages)
        if advantages is not None and self.shared == "mean" and chains is not branches:
            means = branches.compute_branch_means(turns.flat("position"), advantages)
            out["advantage"] = rows.step_advantages(means.astype(np.float32), out["loss_mask"])
        of_rollouts = {
            "rollout": rows.of_rollouts(np.arange(len(is_rollout)), UNKNOWN),
            "episode": rows.of_rollouts(batch["episode"].reshape(-1), UNKNOWN),
            "reward": rows.of_rollouts(scores, np.nan),
            "lost_tokens": rows.lost_tokens(),
        }
        trained = np.bincount(chains.rollout, chains.loss_tokens, len(is_rollout)).astype(np.int64)
        of_rollouts["rollout_weight"] = rows.rollout_weights(trained)
        for name, array in of_rollouts.items():
            out[name] = array if self.pack else array[:, 0]
        for name, count in (("loss_tokens", trained.sum()), ("rollouts", np.sum(trained > 0))):
            out[name] = np.full(len(out["rollout"]), max(1, int(count)), np.int64)
        out = {NAMES[self.names].get(key, key): array for key, array in out.items()}
        # The first rollout of a row stands for the row.
        out["drawn"] = rows.drawn_rollouts // (1 if len(shape) == 1 else shape[1])
        return out

    def shard(
        self, batch: Mapping[str, np.ndarray], rank: int, ranks: int, rows_multiple: int = 1
    ) -> dict[str, np.ndarray]:
        """Return the rows of a batch for one of several ranks.

        A part is a set of rows that share rollouts or, with `Pairs`, pairs. A part is never
        divided. expdb assigns the parts in descending order of their numbers of tokens, each to the
        rank with the fewest tokens. So the numbers of tokens of two ranks differ by at most that of
        the largest part. All ranks get the same number of rows: rows without tokens are added to
        the end, with -1 as their rollout and NaN as their reward.

        Parameters
        ----------
        batch : mapping of str to ndarray
            A whole batch of this unit.
        rank : int
            Number of the rank, from 0.
        ranks : int
            Number of ranks, at least 1.
        rows_multiple : int, default 1
            The number of rows is a multiple of this number, such as the size of a micro-batch.

        Returns
        -------
        dict of str to ndarray
            The keys of `batch`. `loss_tokens` is still that of the whole batch.

        Raises
        ------
        InvalidValue
            If `rank`, `ranks` or `rows_multiple` is out of range.
        """
        rank, ranks = checks.shard((rank, ranks))
        rows_multiple = checks.whole(rows_multiple, "rows_multiple", 1)
        names = NAMES[self.names]
        sizes = batch["attention_mask"].sum(1)
        rollouts = batch["rollout"].reshape(len(sizes), -1)
        parts = _group_connected_rows(rollouts // 2 if isinstance(self.of, Pairs) else rollouts)
        tokens = [0] * ranks
        rows: list[list[int]] = [[] for _ in range(ranks)]
        for part in sorted(parts, key=lambda part: -int(sizes[part].sum())):
            least = min(range(ranks), key=lambda number: (tokens[number], len(rows[number])))
            tokens[least] += int(sizes[part].sum())
            rows[least] += part
        most = max(map(len, rows))
        added = -most % rows_multiple + most - len(rows[rank])
        blanks = {
            names.get("input_ids", "input_ids"): self.pad_id, "reward": np.nan,
            **dict.fromkeys(_UNKNOWN, UNKNOWN),
        }  # fmt: skip
        chosen = np.array(sorted(rows[rank]), np.int64)
        out = {}
        for name, array in batch.items():
            blank = array[0] if name in _OF_BATCH else blanks.get(name, 0)
            if array.dtype == object:
                blank = None
            empty = np.full((added, *array.shape[1:]), blank, array.dtype)
            out[name] = np.concatenate([array[chosen], empty])
        return out

    def _chains(self, turns: TurnInputs) -> Chains:
        """Return the rows of all rollouts, before they are cut or packed."""
        chains = chain_turns(
            turns.rollouts, turns.parts, turns.steps, turns.prompts, turns.outputs, turns.masks,
            self.drift_threshold,
        )  # fmt: skip
        has_output = turns.outputs.lengths[turns.steps] > 0
        count = int((has_output & (turns.prompts.lengths[turns.steps] < 0)).sum())
        if count and len(chains):
            warn(
                f"{count} turns of this batch have {self.output!r} but no {self.prompt!r}, so "
                f"their tokens are not trained on; store the whole prompt of each turn as "
                f"{self.prompt!r}"
            )
        return chains

    def _select_trainable(self, chains: Chains, turns: TurnInputs) -> Chains:
        """Return the rows of trainable rollouts; with `Pairs`, only those of whole pairs."""
        chains = chains.select(turns.batch["trainable"].reshape(-1)[chains.rollout])
        if isinstance(self.of, Pairs):
            return chains.select(np.isin(chains.rollout ^ 1, chains.rollout))
        return chains

    def _train_once(self, chains: Chains, turns: TurnInputs) -> Chains:
        """Return the rows so that only the first row with a shared token trains on it.

        Both rollouts of a pair train on shared tokens, because the losses cancel out.
        """
        episodes = turns.batch["episode"].reshape(-1)
        firsts = turns.batch["position"].reshape(len(episodes), -1)[:, 0].tolist()
        if isinstance(self.of, Pairs) or len(set(firsts)) == len(set(episodes.tolist())):
            return chains
        return chains.train_once(episodes, turns.flat("position"), turns.masks)

    def _reason_for_no_row(self, turns: TurnInputs) -> str:
        """Return why a batch has no row of tokens, and the remedy."""
        for name, tokens in ((self.prompt, turns.prompts), (self.output, turns.outputs)):
            if len(turns.steps) and (tokens.lengths[turns.steps] < 0).all():
                return f"no turn has {name!r}; store this field with each turn"
        if not turns.batch["trainable"].any():
            return "all rollouts began with trainable=False; draw other rollouts"
        if self.agent is not None and not len(turns.steps):
            return f"no turn has the agent {self.agent!r}; pass another agent"
        return (
            "the rollouts have no token to train on, or are longer than max_tokens; check "
            f"{self.output!r} and {self.output_mask!r}, or raise max_tokens"
        )

    def _apply_overlong(self, chains: Chains, turns: TurnInputs) -> Chains:
        """Return the rows after `overlong` was applied to those longer than `max_tokens`."""
        most = self.max_tokens
        if most is None or not (is_overlong := chains.size > most).any():
            return chains
        if self.overlong == "error":
            chain = is_overlong.argmax()
            episode = turns.batch["episode"].reshape(-1)[chains.rollout[chain]]
            raise InvalidValue(
                f"episode {episode} has a row of {chains.size[chain]} tokens, but max_tokens is "
                f"{most}; raise max_tokens, or pass another overlong="
            )
        if self.overlong == "drop":
            return chains.select(~np.isin(chains.rollout, chains.rollout[is_overlong]))
        is_masked = self.overlong == "mask"
        cut = chains.truncate(most, is_masked, turns.masks)
        return cut if is_masked else cut.select(cut.loss_tokens > 0)

    def _arrays(
        self, rows: TokenRows, turns: TurnInputs, advantages: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays [B, T]."""
        batch, out = turns.batch, {}
        out["input_ids"] = rows.input_ids(turns.prompts, turns.outputs, self.pad_id)
        out["attention_mask"] = rows.attention_mask()
        out["loss_mask"] = rows.loss_mask(turns.masks)
        if self.logprobs in batch:
            out["logprobs"] = rows.build_token_values(
                turns.arrays_of_steps(self.logprobs), self.logprobs, np.nan, 0.0
            )
        out["position_ids"] = rows.position_ids()
        if self.pack:
            out["segment_ids"] = rows.segment_ids()
        if advantages is not None:
            out["advantage"] = rows.advantages(advantages.astype(np.float32), out["loss_mask"])
        out["policy_version"] = self._versions(rows, turns)
        out["token_index"] = rows.token_index()
        out["token_step"] = rows.token_step(turns.flat("position"), out["token_index"])
        for name in turns.others:
            if turns.target_of(name) == self.prompt:
                arrays = turns.arrays_of_steps(name)
                out[name], out[f"has_{name}"] = rows.build_prompt_values(
                    arrays, name, turns.prompts
                )
                continue
            if turns.has_one_value_per_turn(name):
                out["turn_of_token"] = rows.turn_of_token()
                out[name] = rows.build_turn_values(turns.values_of_steps(name))
                if f"has_{name}" in batch:
                    out[f"has_{name}"] = rows.build_turn_values(turns.flat(f"has_{name}"))
                continue
            out[name] = self._requested_key(rows, turns, name)
            if f"has_{name}" not in batch:
                continue
            if turns.has_one_value_per_episode(name):
                out[f"has_{name}"] = self._requested_key(rows, turns, f"has_{name}")
            else:
                out[f"has_{name}"] = rows.expand_step_values(turns.flat(f"has_{name}"), False)
        return out

    def _requested_key(self, rows: TokenRows, turns: TurnInputs, name: str) -> np.ndarray:
        """Return a requested key, one value per token, or per row if it describes an episode."""
        batch = turns.batch
        if turns.has_one_value_per_episode(name):
            values = batch[name].reshape(-1)
            missing = {"O": None, "f": np.nan}.get(values.dtype.kind, 0)
            of_rows = rows.of_rollouts(values, missing)
            return of_rows if self.pack else of_rows[:, 0]
        if not isinstance(batch[name], RaggedArray) and batch[name].dtype != object:
            return rows.expand_step_values(turns.flat(name), 0)
        target = turns.target_of(name)
        if target not in (None, self.output):
            raise InvalidValue(
                f"{name!r} is aligned with {target!r}, not with the tokens of a row; omit it from "
                f"fields, or declare aligned_with={self.output!r} or {self.prompt!r}"
            )
        arrays = turns.arrays_of_steps(name)
        return rows.build_token_values(arrays, name, arrays.filler, arrays.filler)

    def _versions(self, rows: TokenRows, turns: TurnInputs) -> np.ndarray:
        """Return the policy version of each generated token, -1 elsewhere or if unknown."""
        of_tokens = turns.per_token(self.versions) if self.versions in turns.batch else None
        return rows.versions(turns.versions(), of_tokens, self.versions)


Tokens.__init__ = checked_keywords(  # type: ignore[method-assign]
    fork_threshold="drift_threshold"
)(Tokens.__init__)


@lru_cache
def with_lineage(unit: Unit) -> Unit:
    """Return the unit with ``lineage=True``, so that it reads forks from the root."""
    return replace(unit, lineage=True)  # type: ignore[type-var]  # a dataclass


# Keys with one value for the whole batch.
_OF_BATCH = ("loss_tokens", "rollouts")
# Keys whose value is -1 in a row without tokens.
_UNKNOWN = (
    "policy_version", "token_step", "token_index", "turn_of_token", "rollout", "episode", "drawn",
    "position",
)  # fmt: skip


def _group_connected_rows(rollouts: np.ndarray) -> list[list[int]]:
    """Return the rows in parts that share no rollout; `rollouts` is [B, S], -1 for none."""
    linked = list(range(len(rollouts)))  # each row links to an earlier row of its part, or itself

    def first_of(row: int) -> int:
        while linked[row] != row:
            row = linked[row]
        return row

    row_of: dict[int, int] = {}
    for row, own in enumerate(rollouts.tolist()):
        for rollout in own:
            if rollout >= 0:
                ends = sorted((first_of(row), first_of(row_of.setdefault(rollout, row))))
                linked[ends[1]] = ends[0]
    parts: dict[int, list[int]] = {}
    for row in range(len(rollouts)):
        parts.setdefault(first_of(row), []).append(row)
    return list(parts.values())
