"""Export preference pairs in the conversational form of TRL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import expdb
from expdb.errors import TooFewRows
from expdb.formats.chat import chains_of, field_names, write_lines
from expdb.formats.episodes import Split, check_buffer, read_episodes, split_of

PAIRS_AT_ONCE = 32


def write_pairs(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    score: str | Mapping[str, float] | None = None,
    margin: float = 0.0,
    per: Literal["group", "task"] = "group",
    names: Mapping[str, str] | None = None,
    split: str | None = None,
    split_by: str = "task_id",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write preference pairs of complete rollouts to a new JSONL file, for DPO.

    Each line is an object with `prompt` (the messages that both rollouts begin with), `chosen` and
    `rejected` (the messages that follow), `margin`, and the ids of the episodes,
    `chosen_id` and `rejected_id`. TRL reads `prompt`, `chosen` and `rejected`. The pairs are those
    of the unit `expdb.Pairs`. Rollouts that are not one conversation, such as those with a
    compaction, are left out.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read.
    target : path
        The file to create; its name ends in .jsonl.
    where : query, optional
        Query that selects rollouts: those with a matching step.
    score : str or mapping of str to float, optional
        Name of a score, or the weights of several; see `Pairs`. By default, the returns.
    margin : float, default 0.0
        Smallest difference of the values of a pair.
    per : {"group", "task"}, default "group"
        Whether the rollouts of a pair have the same `group_id` or the same `task_id`.
    names : mapping of str to str, optional
        Names of the fields that hold `messages` and `action`, if they have others.
    split : str, optional
        Share of the rollouts; see `write_chat`. Use a `split_by` that the rollouts of a pair share.
    split_by : str, default "task_id"
        Column of episodes for `split`.
    progress : callable, optional
        Function that is called with the number of pairs since the last call.

    Returns
    -------
    int
        Number of pairs in the file.

    Raises
    ------
    InvalidValue
        If an argument is not valid, or a step has no message of an assistant.
    QueryError
        If the query or a name of a field is not valid.
    TargetExists
        If the file exists.
    DatabaseMissing, StorageFull, DatabaseReadOnly
        If the file cannot be written.
    """
    check_buffer(buffer)
    unit = expdb.Pairs(score=score, margin=margin, per=per)
    part = split_of(split, split_by)
    pairs: list[tuple[int, str, str, float]] = []
    keys = ["episode", "episode_id", "margin"]
    with suppress(TooFewRows):  # no pair
        for batch in buffer.epochs(PAIRS_AT_ONCE, 1, where, unit=unit, fields=keys):
            pairs += [
                (numbers[0], *ids, difference)
                for numbers, ids, difference in zip(
                    batch["episode"].tolist(), batch["episode_id"].tolist(),
                    batch["margin"].tolist(), strict=True,
                )
            ]  # fmt: skip
    pairs.sort()
    return write_lines(target, _records(buffer, pairs, field_names(buffer, names), part, progress))


def _records(
    buffer: expdb.ReplayBuffer,
    pairs: list[tuple[int, str, str, float]],
    field_of: Mapping[str, str],
    part: Split | None,
    progress: Callable[[int], None] | None,
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        chosen = pairs[start : start + PAIRS_AT_ONCE]
        named = expdb.QueryBuilder().in_(
            "episode_id", [name for pair in chosen for name in pair[1:3]]
        )
        conversations: dict[str, list[Any]] = {}
        for episode in read_episodes(buffer, named, list(field_of.values()), part):
            name = episode.columns["episode_id"]
            chains = [messages for messages, _ in chains_of(episode, field_of)]
            if len(chains) == 1:
                conversations[name] = chains[0]
        for _, better, worse, margin in chosen:
            if better not in conversations or worse not in conversations:
                continue
            better_one, worse_one = conversations[better], conversations[worse]
            shared = _shared_messages(better_one, worse_one)
            yield {
                "prompt": better_one[:shared],
                "chosen": better_one[shared:],
                "rejected": worse_one[shared:],
                "margin": margin,
                "chosen_id": better,
                "rejected_id": worse,
            }
        if progress is not None:
            progress(len(chosen))


def _shared_messages(first: list[Any], second: list[Any]) -> int:
    """Return how many messages both conversations begin with, up to the first answer."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other or one.get("role") == "assistant":
            break
        count += 1
    return count
