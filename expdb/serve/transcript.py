"""Prepare the steps of an episode for its page: messages, tool calls, pictures and other values."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

import expdb
from expdb import errors
from expdb.serve import render
from expdb.serve.source import FieldType, Source
from expdb.text.episode_text import EMPTY, final_names, new_messages

STEPS_PER_PAGE = 40
PAGE_CHARACTERS = 1_000_000  # a page ends after the step that exceeds this
COLLAPSED_CHARACTERS = 2_000  # a longer text is collapsed
COLUMNS = (
    "position", "step", "agent_id", "pre_agent", "execute_time", "reward", "terminated",
    "truncated", "policy_version", "tags", "scores",
)  # fmt: skip
FORKS = ("fork", "retry")  # relations of episodes that share steps with their parents
NEXT_STEP = (
    "SELECT min(step) AS next FROM experience WHERE buffer = :buffer AND episode_id = :episode "
    "AND step >= :first"
)
ERROR_STARTS = ("error", "traceback", "exception", "failed")


@dataclass
class Part:
    """A message, a text or a tool call of a step."""

    kind: str  # "reasoning", "call", "result", "text" or the role of a message
    title: str
    text: str
    is_markdown: bool = False
    is_error: bool = False
    cut_characters: int = 0  # characters that are not shown
    field: str = ""  # the field that contains the whole text

    @property
    def html(self) -> Markup | None:
        """The text as HTML if it is Markdown, else None."""
        return render.markdown(self.text) if self.is_markdown else None

    @property
    def is_long(self) -> bool:
        """Whether the page collapses the text at first."""
        return len(self.text) > COLLAPSED_CHARACTERS


@dataclass
class Step:
    """A step as its page shows it."""

    columns: dict[str, Any]
    parts: list[Part] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)  # names of fields
    values: list[tuple[str, str]] = field(default_factory=list)
    has_tokens: bool = False

    @property
    def number(self) -> int:
        """The number of the step in its episode."""
        return int(self.columns["step"])

    @property
    def characters(self) -> int:
        """The number of characters of the step."""
        return sum(len(part.text) for part in self.parts) + sum(
            len(text) for _, text in self.values
        )


def read_steps(
    source: Source,
    buffer: expdb.ReplayBuffer,
    episode: Mapping[str, Any],
    first: int,
    size: int = STEPS_PER_PAGE,
) -> tuple[list[Step], int | None]:
    """Return the steps of an episode with the numbers `first` to ``first + size - 1``.

    Also return the number of the first step of the next page, or None. `episode` is a row of
    `ReplayBuffer.episodes`. The steps that a fork shares with its parents come first, if all of
    them are stored. Step numbers may have gaps, and steps may be stored in any order. If a
    conversation begins with the conversation of the previous step, return only its new messages.
    """
    name, shared = episode["episode_id"], _find_lineage(buffer, episode)
    if shared is None:
        steps = read_many(source, buffer, [name], first - 1, first + size).get(name, [])
    else:
        positions, numbers = shared
        in_range = (numbers >= first - 1) & (numbers < first + size)
        steps = read_positions(source, buffer, positions[in_range].tolist(), name).get(name, [])
    characters, following = 0, first + size
    shown: list[Step] = []
    for step in steps:
        if step.number < first:
            continue
        if characters > PAGE_CHARACTERS and step.number > shown[-1].number:
            following = step.number
            break
        shown.append(step)
        characters += step.characters
    if shared is None:
        about = {"buffer": buffer.name, "episode": name, "first": following}
        return shown, source.db.sql(NEXT_STEP, about).column(0).to_pylist()[0]
    return shown, min(numbers[numbers >= following].tolist(), default=None)


def _find_lineage(
    buffer: expdb.ReplayBuffer, episode: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the positions and the numbers of the steps of a fork, from the root on.

    Return None for another episode, and if a shared step is not stored.
    """
    if episode["relation"] not in FORKS:
        return None
    try:
        positions = buffer.steps_of(episode["episode_id"], lineage=True)
        return positions, buffer.get(positions, fields=["step"])["step"]
    except (errors.Evicted, errors.UnknownEpisode):
        return None


def read_beginnings(
    source: Source, buffer: expdb.ReplayBuffer, episodes: list[dict[str, Any]], end: int
) -> dict[str, list[Step]]:
    """Return the steps of episodes with numbers below `end`, with the shared steps of forks."""
    steps = read_many(source, buffer, [episode["episode_id"] for episode in episodes], 0, end)
    for episode in episodes:
        if (shared := _find_lineage(buffer, episode)) is not None:
            first = shared[0][shared[1] < end].tolist()
            steps |= read_positions(source, buffer, first, episode["episode_id"])
    return steps


def read_many(
    source: Source,
    buffer: expdb.ReplayBuffer,
    episode_ids: list[str],
    first: int,
    end: int,
) -> dict[str, list[Step]]:
    """Return the steps of episodes with the numbers `first` to ``end - 1``."""
    in_range = "step >= :first AND step < :end"
    positions = source.positions(buffer.name, episode_ids, in_range, first=first, end=end)
    return read_positions(source, buffer, positions)


def read_positions(
    source: Source, buffer: expdb.ReplayBuffer, positions: list[int], fork: str | None = None
) -> dict[str, list[Step]]:
    """Return the steps at `positions` by episode id, ordered by step number.

    With `fork`, all steps belong to this episode.
    """
    if not positions:
        return {}
    fields = source.fields(buffer.name)
    # Browsers load pictures on demand. Optional picture fields are read here too: a step without a
    # value must not show a picture.
    pictures = [name for name, type in fields.items() if type.is_image and not type.is_optional]
    loaded = [
        name for name, type in fields.items() if name not in pictures and not type.is_per_token
    ]
    names = [*loaded, *(name for name in final_names(fields) if name[5:] in loaded)]
    rows = [
        row
        for batch in buffer.scan(positions, fields=["episode_id", *COLUMNS, *names], size=256)
        for row in batch.to_list()
    ]
    rows.sort(key=lambda row: (row["step"], row["position"]))
    steps: dict[str, list[Step]] = {}
    before: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        episode_id = row["episode_id"] if fork is None else fork
        step = _step(row, names, pictures, fields, before.setdefault(episode_id, {}))
        steps.setdefault(episode_id, []).append(step)
    return steps


def _step(
    row: dict[str, Any],
    names: list[str],
    pictures: list[str],
    fields: dict[str, FieldType],
    before: dict[str, list[Any]],
) -> Step:
    step = Step({name: row[name] for name in COLUMNS}, pictures=list(pictures))
    step.has_tokens = any(type.is_per_token for type in fields.values())
    for name in names:
        value = row[name]
        if value is None:
            continue
        messages = new_messages(name.removeprefix("next_"), value, before)
        if messages is not None:
            for message in messages:
                step.parts += _message(message, name)
        elif isinstance(value, str) and (len(value) > 80 or "\n" in value):
            step.parts.append(_part("text", name, value, name))
        elif render.is_image(value) or render.media_type(value):
            step.pictures.append(name)
        else:
            step.values.append((name, render.value_text(value)))
    return step


def _part(kind: str, title: str, text: str, name: str, *, markdown: bool = False) -> Part:
    shown = text[: render.LONG_TEXT]
    return Part(
        kind,
        render.readable(title[:200]),
        render.readable(shown),
        is_markdown=markdown,
        cut_characters=len(text) - len(shown),
        field=name,
    )


def _message(message: dict[str, Any], name: str) -> Iterator[Part]:
    """Yield the text and the tool calls of a message."""
    role = str(message.get("role"))
    title = f"{role} {message['name']}" if message.get("name") else role
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(key), str) and message[key]:
            yield _part("reasoning", f"{role}: {key}", message[key], name, markdown=True)
    calls = message.get("tool_calls")
    text = content_text(message.get("content"))
    if text or (message.get("content") is not None and not calls):
        is_result = role in ("tool", "function", "ipython")
        kind, shown = "result" if is_result else role, text or EMPTY
        part = _part(kind, title, shown, name, markdown=not is_result)
        part.is_error = is_result and is_error(message, text)
        yield part
    for call in calls if isinstance(calls, list) else ():
        yield _call(call, name)
    if isinstance(message.get("function_call"), dict):
        yield _call({"function": message["function_call"]}, name)


def _call(call: Any, name: str) -> Part:
    function = call.get("function", call) if isinstance(call, dict) else {}
    if not isinstance(function, dict):
        function = {"arguments": function}
    arguments = function.get("arguments", function.get("input", ""))
    title = f"tool call: {function.get('name')}"
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        return _part("call", title, json.dumps(value, ensure_ascii=False, indent=1), name)
    except (ValueError, RecursionError):
        return _part("call", title, str(arguments), name)


def content_text(content: Any) -> str:
    """Return the text of a message, with the type in brackets for parts that are not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n\n".join(
            item["text"]
            if isinstance(item, dict) and isinstance(item.get("text"), str)
            else item
            if isinstance(item, str)
            else f"[{item.get('type', 'part') if isinstance(item, dict) else 'part'}]"
            for item in content
        )
    return json.dumps(content, ensure_ascii=False, indent=1)


def is_error(message: dict[str, Any], text: str) -> bool:
    """Return whether a tool result reports an error by a key or by the start of its text."""
    if message.get("is_error") or message.get("status") == "error" or message.get("error"):
        return True
    return text.lstrip(" \n[{(\"'").lower().startswith(ERROR_STARTS)


def last_text(steps: list[Step]) -> Part | None:
    """Return the last message or text of an episode."""
    parts = [part for step in steps for part in step.parts]
    return parts[-1] if parts else None
