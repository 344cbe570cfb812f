"""Conversations: import chat records, and export episodes as chat records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import expdb
from expdb.errors import InvalidValue, warn
from expdb.export import new_file
from expdb.formats.episodes import StoredEpisode, check_buffer, read_episodes, split_of
from expdb.formats.records import (
    UNEXPECTED,
    Item,
    Records,
    check_names,
    digest_of,
    parse_json,
    rename,
    split_episode,
)
from expdb.formats.rollouts import RECORD_NAMES, Rollout, Unreadable

_NAMES = (
    "id", "messages", "tools", "reward", "scores", "metadata", *RECORD_NAMES,
)  # fmt: skip
TYPES = {"messages": "json", "action": "json", "tools": "json"}


def steps_of(messages: list[Any], every_step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one step per message of the assistant, with the messages before it."""
    return [
        {"messages": messages[:index], "action": message, **every_step}
        for index, message in enumerate(messages)
        if message.get("role") == "assistant"
    ]


def read_chats(records: Records, names: Mapping[str, str]) -> Iterator[Item]:
    """Convert chat records to rollouts, one per conversation."""
    warned: set[str] = set()
    for record in records:
        if isinstance(record, Unreadable):
            yield record
            continue
        try:
            yield _rollout(record.source, record.values, names, warned)
        except (InvalidValue, *UNEXPECTED) as error:
            yield Unreadable(record.source, str(error) or type(error).__name__)


def _rollout(
    source: str, values: dict[str, Any], names: Mapping[str, str], warned: set[str]
) -> Rollout:
    renamed = rename(values, names, _NAMES)
    content = digest_of(values)
    id = renamed.pop("id", None)
    if id == "":
        raise InvalidValue("the id of the record is empty; give it an id, or remove the key")
    episode = split_episode(renamed)
    record = str(id) if id is not None else episode.get("episode_id") or content.hex()
    episode = {"episode_id": record, **episode}
    messages = parse_json(renamed.pop("messages", None), "messages")
    check_messages(messages)
    tools = renamed.pop("tools", None)
    steps = steps_of(messages, {} if tools is None else {"tools": parse_json(tools, "tools")})
    if not steps:
        raise InvalidValue(
            "the conversation has no message with the role assistant, so it has no step; remove "
            "it, or map the roles of your format to system, user, assistant and tool"
        )
    reward = renamed.pop("reward", None)
    if reward is not None:
        steps[-1]["reward"] = reward
    scores = renamed.pop("scores", None) or {}
    if not isinstance(scores, Mapping):
        raise InvalidValue(f"scores must be an object of numbers by name, got {scores!r}")
    metadata = renamed.pop("metadata", None) or {}
    if not isinstance(metadata, Mapping):
        metadata = {"metadata": metadata}
    _warn_about_misspelt_keys(renamed, warned)
    own_tags = episode.pop("episode_tags", {})
    if not isinstance(own_tags, Mapping):
        raise InvalidValue(f"episode_tags must be an object, got {own_tags!r}; correct it")
    tags = {**own_tags, **metadata, **renamed}
    if tags := {name: value for name, value in tags.items() if value is not None}:
        episode["episode_tags"] = tags
    return Rollout(
        record=record,
        digest=digest_of(values, dict(names)),
        episode=episode,
        steps=steps,
        final={"messages": messages} if messages[-1] is not steps[-1]["action"] else None,
        scores=[
            {"name": name, "value": value, **({"status": "unknown"} if value is None else {})}
            for name, value in scores.items()
        ],
        types=TYPES,
        source=source,
    )


_SYNONYMS = {"score": "scores", "task": "task_id", "group": "group_id", "conversation": "messages"}


def _warn_about_misspelt_keys(tags: Mapping[str, Any], warned: set[str]) -> None:
    """Warn once of each key that becomes a tag and is probably misspelt."""
    for key in tags.keys() - warned:
        warned.add(key)
        meant = _SYNONYMS.get(key.lower(), key.lower())
        if meant in _NAMES:
            warn(
                f"the key {key!r} becomes a tag of the episode; if it means {meant}, map it with "
                f"names={{{meant!r}: {key!r}}} (--map {meant}={key})"
            )


def check_messages(messages: Any) -> None:
    """Raise InvalidValue unless the value is a list of messages with roles."""
    if messages is None:
        raise InvalidValue(
            "the record has no messages; map the key of the conversation, such as "
            "--map messages=conversation"
        )
    if not isinstance(messages, list) or not messages:
        raise InvalidValue(
            f"messages must be a list with at least one message, got {type(messages).__name__}"
            f"{' without elements' if messages == [] else ''}; correct or remove the record"
        )
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            shown = ", ".join(message) if isinstance(message, dict) else type(message).__name__
            raise InvalidValue(
                f"messages[{index}] must be an object with a role, got {shown or 'no keys'}; "
                "convert it to the format of the OpenAI API"
            )


def write_chat(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    names: Mapping[str, str] | None = None,
    split: str | None = None,
    split_by: str = "task_id",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the conversations of episodes to a new JSONL file, for supervised fine-tuning.

    Each line is an object with `id`, `messages`, and if they are known `tools`, `reward` (the
    return), `scores`, `metadata` (the tags of the episode), `task_id`, `task_name`, `group_id`,
    `agent_id`, `policy_version` and `status`. `read` with the format ``"chat"`` reads the file
    again.

    An episode becomes one conversation if each turn begins with the messages of the turn before
    it. Otherwise, such as after a compaction or with several agents, it becomes several, and
    ``#0``, ``#1`` and so on follow the `id`.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read. Its steps have the messages before each turn and the message of the
        assistant.
    target : path
        The file to create; its name ends in .jsonl.
    where : query, optional
        Query for steps. Each episode with a matching step is written. By default, all episodes.
    names : mapping of str to str, optional
        Names of the fields that hold `messages`, `action` and `tools`, if they have others.
    split : str, optional
        ``"train:0.9"`` writes the episodes of about 90 % of the tasks, and ``"test:0.1"`` writes
        the others. The part of an episode depends only on a hash of its column `split_by`.
    split_by : str, default "task_id"
        Column of episodes for `split`, such as ``"group_id"``.
    progress : callable, optional
        Function that is called with the number of episodes since the last call.

    Returns
    -------
    int
        Number of conversations in the file.

    Raises
    ------
    InvalidValue
        If `target`, `names` or `split` is not valid, or a step has no message of an assistant.
    QueryError
        If the query or a name of a field is not valid.
    TargetExists
        If the file exists.
    DatabaseMissing, StorageFull, DatabaseReadOnly
        If the file cannot be written.
    """
    return write_lines(target, conversations_of(buffer, where, names, split, split_by, progress))


def write_lines(target: str | os.PathLike[str], records: Iterator[dict[str, Any]]) -> int:
    """Write records to a new JSONL file, and return their number."""
    path, count = Path(target), 0
    if path.suffix.lower() != ".jsonl":
        raise InvalidValue(f"the file name must end in .jsonl, got {path}; rename it")
    with new_file(path) as draft, draft.open("wb") as file:
        for record in records:
            line = json.dumps(record, ensure_ascii=False)
            try:
                data = line.encode()
            except UnicodeEncodeError:  # a lone surrogate; JSON can escape it
                data = json.dumps(record).encode()
            file.write(data + b"\n")
            count += 1
    return count


def conversations_of(
    buffer: expdb.ReplayBuffer,
    where: Any,
    names: Mapping[str, str] | None,
    split: str | None,
    split_by: str,
    progress: Callable[[int], None] | None,
) -> Iterator[dict[str, Any]]:
    """Yield the conversations of episodes as records."""
    field_of, part = field_names(buffer, names), split_of(split, split_by)
    used: set[str] = set()
    for episode in read_episodes(buffer, where, list(field_of.values()), part):
        chains = list(chains_of(episode, field_of))
        for number, (messages, step) in enumerate(chains):
            name = str(episode.columns["episode_id"]) + (f"#{number}" if len(chains) > 1 else "")
            while name in used:  # another episode has this id
                name += "'"
            used.add(name)
            record = {"id": name, "messages": messages} | _details(episode, step, field_of)
            if number < len(chains) - 1:
                record.pop("reward", None)  # the last conversation has the return of the episode
            yield record
        if progress is not None:
            progress(1)


def field_names(buffer: expdb.ReplayBuffer, names: Mapping[str, str] | None) -> dict[str, str]:
    """Return the fields that hold the messages, the answer and, if there are any, the tools."""
    check_buffer(buffer)
    names, stored = check_names(names), buffer.stats()["fields"]
    if unknown := names.keys() - set(TYPES):
        raise InvalidValue(
            f"names has {min(unknown)!r}, which is not a part of a conversation; use "
            f"{', '.join(TYPES)}"
        )
    field_of = {part: names.get(part, part) for part in TYPES}
    for part in ("messages", "action"):
        if stored.get(field_of[part]) != "json":
            raise InvalidValue(
                f"buffer {buffer.name!r} has no JSON field {field_of[part]!r}, so its steps are "
                f"not turns of a conversation; map the field, such as names={{{part!r}: 'prompt'}} "
                f"(--map {part}=prompt); the fields are {', '.join(stored) or 'none'}"
            )
    if field_of["tools"] not in stored:
        del field_of["tools"]
    return field_of


def check_turns(episode: StoredEpisode, field_of: Mapping[str, str]) -> None:
    """Raise InvalidValue unless the steps of an episode are turns of conversations."""
    for step in episode.steps:
        for part in ("messages", "action"):
            value = step[field_of[part]]
            messages = [value] if part == "action" else [] if value is None else value
            if not isinstance(messages, list) or not all(
                isinstance(message, dict) and isinstance(message.get("role"), str)
                for message in messages
            ):
                raise InvalidValue(
                    f"step {step['step']} of episode {episode.columns['episode_id']!r} has no "
                    f"{'message' if part == 'action' else 'messages'} with a role in "
                    f"{field_of[part]!r}; select the steps of conversations with a query"
                )


def chains_of(
    episode: StoredEpisode, field_of: Mapping[str, str]
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the conversations of an episode, each with its last step."""
    check_turns(episode, field_of)
    chain: list[Any] = []
    last: dict[str, Any] | None = None
    for step in episode.steps:
        before = step[field_of["messages"]] or []
        if last is not None and before[: len(chain)] != chain:
            yield chain, last
        chain, last = [*before, step[field_of["action"]]], step
    if last is None:
        return
    final = last.get(f"next_{field_of['messages']}") or []
    yield (final if final[: len(chain)] == chain else chain), last


def _details(
    episode: StoredEpisode, step: Mapping[str, Any], field_of: Mapping[str, str]
) -> dict[str, Any]:
    """Return the other keys of the record of a conversation, without unknown values."""
    columns = episode.columns
    details = {
        "tools": step.get(field_of.get("tools", ""), None),
        "reward": columns["episode_return"],
        "scores": episode.scores or None,
        "metadata": columns["episode_tags"] or None,
        **{name: columns[name] for name in ("task_id", "task_name", "group_id", "agent_id")},
        "policy_version": columns["policy_version"],
        "status": None if columns["status"] == "complete" else columns["status"],
    }
    return {name: value for name, value in details.items() if value is not None}
