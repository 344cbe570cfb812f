"""Show an episode as text: messages, tool calls, rewards and other fields of each step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

import expdb
from expdb import errors

SHORT = 400  # characters of a value that are shown without `full`
EMPTY = "(empty)"  # stands for the text of a message without text, such as a tool result
COLUMNS = ("step", "pre_agent", "reward", "terminated", "truncated", "tags", "scores")


def find(
    db: expdb.ExperienceDB, episode: str, buffer: str | None = None
) -> tuple[expdb.ReplayBuffer, dict[str, Any]]:
    """Return the buffer and the row of the episode that has an `episode_id`.

    If `buffer` is given, `episode` may also be a number from the column `episode`. Raises
    UnknownBuffer, or UnknownEpisode with the ids of the newest episodes.
    """
    names = db.buffers() if buffer is None else [buffer]
    for name in names:
        chosen = db.buffer(name, create=False)
        rows = chosen.episodes({"episode_id": episode}).to_pylist()
        if not rows and buffer is not None and episode.isdigit() and int(episode) < 2**63:
            rows = chosen.episodes({"episode": int(episode)}).to_pylist()
        if rows:
            return chosen, rows[0]
    select = "SELECT episode_id FROM experience_episodes"
    named = db.sql(f"{select} WHERE task_id = :task LIMIT 5", {"task": episode})
    if of_task := named.column(0).to_pylist():
        raise errors.UnknownEpisode(
            f"{episode!r} is a task, not an episode; pass one of its episodes: {', '.join(of_task)}"
        )
    stored = db.sql(f"{select} WHERE steps_held > 0 ORDER BY started DESC LIMIT 5")
    newest = stored.column(0).to_pylist()
    there = f"the newest episodes are {', '.join(newest)}" if newest else "no episode is stored"
    raise errors.UnknownEpisode(
        f"no episode {episode!r} in {', '.join(names) or 'the database'}: {there}; to show an "
        "episode by its number, pass --buffer NAME"
    )


def _rank(row: dict[str, Any], which: str) -> float:
    if which == "last":
        return float(row["started"])
    return float(row["episode_return"]) * (-1.0 if which == "worst" else 1.0)


def choose(
    db: expdb.ExperienceDB, which: str, where: Any = None, buffer: str | None = None
) -> tuple[expdb.ReplayBuffer, dict[str, Any]]:
    """Return the buffer and the row of the last, worst or best episode.

    Only episodes with a known return can be worst or best. Raises UnknownEpisode if no such episode
    matches `where`.
    """
    candidates = [
        (_rank(row, which), chosen, row)
        for chosen in (
            db.buffer(name, create=False) for name in (db.buffers() if buffer is None else [buffer])
        )
        for row in chosen.episodes(where).to_pylist()
        if row["length"] and (which == "last" or row["episode_return"] is not None)
    ]
    if not candidates:
        raise errors.UnknownEpisode(
            f"no episode of {db.location} matches; use a wider condition, or store rewards"
        )
    _, chosen, row = max(candidates, key=lambda candidate: candidate[0])
    return chosen, row


# Columns of episodes that the second line omits. The first line shows them, or readers do not need
# them.
ELSEWHERE = {
    "episode", "episode_id", "status", "length", "episode_return", "started", "ended",
}  # fmt: skip


def steps(buffer: expdb.ReplayBuffer, episode: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stored steps of an episode as dicts, in order.

    If all shared steps of a fork are stored, they come first.
    """
    stored = buffer.stats()["fields"]
    fields = [*COLUMNS, *stored, *final_names(stored), "position"]
    where: Any = {"episode": episode["episode"]}
    if episode["parent_position"] is not None:
        with suppress(errors.Evicted):
            where = buffer.steps_of(episode["episode_id"], lineage=True)
    rows = [row for batch in buffer.scan(where, fields=fields) for row in batch.to_list()]
    return sorted(rows, key=lambda row: (row["step"], row["position"]))


def final_names(fields: Iterable[str]) -> list[str]:
    """Return the keys of the final observations of fields, such as ``next_obs``."""
    return [name for name in map("next_{}".format, fields) if name not in fields]


def lines(episode: dict[str, Any], rows: list[dict[str, Any]], full: bool = False) -> Iterator[str]:
    """Yield the lines of an episode.

    If the conversation of a step begins with the conversation of the previous step, only the new
    messages are shown. Terminal control codes in the stored text are replaced with spaces.
    """
    for line in _lines(episode, rows, full):
        yield "".join(character if character.isprintable() else " " for character in line)


def _lines(episode: dict[str, Any], rows: list[dict[str, Any]], full: bool) -> Iterator[str]:
    about = {name: value for name, value in episode.items() if name not in ELSEWHERE}
    if about["relation"] is None:
        del about["root_episode"]  # the episode is its own root
    if about["trainable"]:
        del about["trainable"]
    gained = "unknown" if episode["episode_return"] is None else f"{episode['episode_return']:g}"
    yield (
        f"episode {episode['episode_id']}: {episode['status']}, {episode['length']} steps, return "
        f"{gained}"
    )
    yield "  " + ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
    if len(rows) < episode["length"]:
        yield f"  {episode['length'] - len(rows)} steps of this episode are no longer stored"
    shown: dict[str, list[Any]] = {}
    for row in rows:
        yield ""
        yield " ".join(_heading(row))
        yield from _fields(row, shown, full)


def _fields(row: dict[str, Any], shown: dict[str, list[Any]], full: bool) -> Iterator[str]:
    """Yield the lines of the fields of a step; skip messages that are in `shown`."""
    for name, value in row.items():
        if name in COLUMNS or name == "position" or value is None:
            continue
        messages = new_messages(name.removeprefix("next_"), value, shown)
        if messages is None:
            yield from _indent(f"{name}: ", _text(value, full))
        else:
            for message in messages:
                yield from _message(message, full)


def new_messages(name: str, value: Any, shown: dict[str, list[Any]]) -> list[dict[str, Any]] | None:
    """Return the messages of a field that are not in `shown`, and add them to `shown`.

    Return None if the value is neither a message nor a conversation.
    """
    if _is_conversation(value):
        before = shown.get(name, [])
        shown[name] = value
        return list(value[len(before) :] if value[: len(before)] == before else value)
    if isinstance(value, dict) and "role" in value:
        if "messages" in shown:  # the next conversation begins with the agent's answer
            shown["messages"] = [*shown["messages"], value]
        return [value]
    return None


def _heading(row: dict[str, Any]) -> Iterator[str]:
    yield f"step {row['step']}"
    if row["pre_agent"] is not None:
        yield f"after {row['pre_agent']}"
    if row["reward"] is not None:
        yield f"reward {row['reward']:g}"
    yield from (name for name in ("terminated", "truncated") if row[name])
    if row["tags"]:
        yield json.dumps(row["tags"], ensure_ascii=False)
    if row["scores"]:
        yield f"scores {json.dumps(row['scores'], ensure_ascii=False)}"


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message for message in value)
    )


def _message(message: dict[str, Any], full: bool) -> Iterator[str]:
    content, calls = message.get("content"), message.get("tool_calls") or []
    if content is not None and (content != "" or not calls):
        yield from _indent(f"{message['role']}: ", _text(content, full) or EMPTY)
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else call
        if isinstance(function, dict):
            yield from _indent(
                f"{message['role']} calls ",
                f"{function.get('name') or function.get('tool')}"
                f"({_text(function.get('arguments', ''), full)})",
            )
        else:
            yield from _indent(f"{message['role']} calls ", _text(call, full))
    rest = {
        name: value
        for name, value in message.items()
        if name not in ("role", "content", "tool_calls") and value is not None
    }
    if rest and (full or content is None):
        yield from _indent("  ", _text(rest, full))


def _text(value: Any, full: bool) -> str:
    if isinstance(value, np.ndarray):
        shape = f"{value.dtype}{list(value.shape)} "
        text = shape + (
            np.array2string(value, threshold=value.size + 1)
            if full
            else np.array2string(value, threshold=8, edgeitems=2).replace("\n", "")
        )
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes {value.hex()}"
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if full or len(text) <= SHORT else f"{text[:SHORT]}… ({len(text):,} characters)"


def _indent(head: str, text: str) -> Iterator[str]:
    first, *rest = text.split("\n")
    yield f"  {head}{first}"
    yield from (f"    {line}" for line in rest)
