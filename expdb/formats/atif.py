"""Trajectories in the Agent Trajectory Interchange Format (ATIF), versions 1.0 to 1.8.

The package `atif` checks each document. A step of an agent becomes a step of an episode, with the
messages before it. Each step also stores a patch with the parts that expdb does not use, so the
export of an imported document equals the original.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

import expdb
from expdb.errors import DriverMissing, InvalidValue, TargetExists
from expdb.export import new_file
from expdb.formats.chat import check_turns, write_lines
from expdb.formats.episodes import StoredEpisode, check_buffer, read_episodes, split_of
from expdb.formats.patches import apply, diff
from expdb.formats.records import UNEXPECTED, Item, Records, digest_of
from expdb.formats.rollouts import Rollout, Unreadable

VERSION = "ATIF-v1.8"
TYPES: dict[str, Any] = {
    "messages": "json", "action": "json", "tools": "json", "metrics": "json", "atif": "json",
    "model": "text", **{name: expdb.TOKEN_FIELDS[name] for name in ("prompt_ids", "output_ids",
    "logprobs")},
}  # fmt: skip
_KNOWN_VERSION = re.compile(r"ATIF-v1\.[0-8](\.\d+)?")
_TOKEN_KEYS = {
    "prompt_token_ids": "prompt_ids", "completion_token_ids": "output_ids", "logprobs": "logprobs",
}  # fmt: skip


@functools.cache
def _model() -> Any:
    """Return the class that checks documents."""
    try:
        from atif import Trajectory
    except ImportError:
        raise DriverMissing(
            "ATIF requires the package atif; run `pip install 'expdb[atif]'`"
        ) from None
    return Trajectory


def is_atif(values: Mapping[str, Any]) -> bool:
    """Return whether a record names a version of ATIF."""
    return str(values.get("schema_version", "")).startswith("ATIF-")


def check_document(document: Mapping[str, Any]) -> None:
    """Raise InvalidValue unless a document is valid."""
    if not isinstance(document, Mapping):
        raise InvalidValue(f"a document must be a JSON object, got {type(document).__name__}")
    version = document.get("schema_version")
    if version is None:
        raise InvalidValue(
            "the record has no schema_version, so it is not an ATIF document; omit the format"
        )
    if not isinstance(version, str) or not _KNOWN_VERSION.fullmatch(version):
        raise InvalidValue(
            f"the schema_version {version!r} is not one of ATIF-v1.0 to {VERSION}; upgrade expdb, "
            "or convert the document"
        )
    try:
        _model().model_validate(document)
    except ValueError as error:
        first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, first["loc"]))
        raise InvalidValue(
            f"the document is not valid ATIF ({place}: {first['msg']}); correct it"
        ) from None


# -- import ----------------------------------------------------------------------------------------


def read_atif(records: Records, names: Mapping[str, str]) -> Iterator[Item]:
    """Convert ATIF documents to rollouts: one for each trajectory and embedded sub-agent."""
    if names:
        raise InvalidValue("names does not apply to ATIF documents; omit names (--map)")
    for record in records:
        if isinstance(record, Unreadable):
            yield record
            continue
        try:
            check_document(record.values)
            rollouts = rollouts_of(record.source, record.values)
        except (InvalidValue, *UNEXPECTED) as error:
            yield Unreadable(record.source, f"{error or type(error).__name__}")
            continue
        yield from rollouts


class _Parent(NamedTuple):
    episode_id: str
    steps: Sequence[Mapping[str, Any]]
    place: int  # index of the child in the list of sub-agents


def rollouts_of(source: str, document: dict[str, Any], name: str | None = None) -> list[Rollout]:
    """Return the rollouts of a checked document, that of the root first.

    `name` is the `episode_id` of the root, by default its own id.
    """
    return list(_rollouts(source, document, name, None))


def _rollouts(
    source: str, document: dict[str, Any], given_name: str | None, parent: _Parent | None
) -> Iterator[Rollout]:
    content = digest_of(document)
    name = given_name or document.get("trajectory_id") or document.get("session_id")
    name = str(name or content.hex())
    episode: dict[str, Any] = {"agent_id": document["agent"]["name"]}
    about: dict[str, Any] = {"document": _root_of(document)}
    if parent is not None:
        name = f"{parent.episode_id}/{name}"
        episode |= {"parent": parent.episode_id, "relation": "subagent"}
        episode["parent_step"] = _step_of_reference(parent.steps, document.get("trajectory_id"))
        about["place"] = parent.place
    if not any(step["source"] == "agent" for step in document["steps"]):
        raise InvalidValue(
            f"the trajectory {name!r} has no step of an agent, so nothing can be stored; remove it"
        )
    turns, final = _turns(document)
    times = [turn["execute_time"] for turn in turns if "execute_time" in turn]
    if times:
        episode |= {"started": times[0], "ended": times[-1]}
    scores = []
    own = (document.get("extra") or {}).get("expdb")
    if isinstance(own, dict):  # `write_atif` has written the document
        episode |= {key: own[key] for key in _OWN_COLUMNS if key in own}
        turns[-1]["reward"] = own.get("reward")
        own_scores = own.get("scores") or {}
        if not isinstance(own_scores, Mapping):
            raise InvalidValue("extra.expdb.scores must be an object of numbers; correct it")
        scores = [{"name": key, "value": value} for key, value in own_scores.items()]
    yield Rollout(
        record=name, digest=content, steps=turns, final=final, scores=scores, types=TYPES,
        episode={**episode, "episode_id": name, "episode_tags": {"atif": about}}, source=source,
    )  # fmt: skip
    for place, child in enumerate(document.get(_SUBAGENTS) or ()):
        yield from _rollouts(source, child, None, _Parent(name, document["steps"], place))


_SUBAGENTS = "subagent_trajectories"
_OWN_COLUMNS = ("task_id", "task_name", "group_id")


def _root_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without its steps, its sub-agents, and the tools, which steps have."""
    root = {key: value for key, value in document.items() if key not in ("steps", _SUBAGENTS)}
    agent = {key: value for key, value in root["agent"].items() if key != "tool_definitions"}
    return root if not root["agent"].get("tool_definitions") else {**root, "agent": agent}


def _step_of_reference(steps: Sequence[Mapping[str, Any]], trajectory_id: Any) -> int | None:
    """Return the number of the agent's step whose observation refers to a trajectory."""
    number = -1
    for step in steps:
        number += int(step["source"] == "agent")
        for result in (step.get("observation") or {}).get("results", ()):
            for reference in result.get("subagent_trajectory_ref") or ():
                if reference.get("trajectory_id") == trajectory_id and number >= 0:
                    return number
    return None


def _turns(document: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the arguments of `store` for each step of the agent, and the final observation."""
    turns: list[dict[str, Any]] = []
    messages: list[Any] = []
    turn_of: list[int] = []  # the index of the turn that each step of the document belongs to
    tools = document["agent"].get("tool_definitions")
    for step in document["steps"]:
        turn_of.append(len(turns))
        message, *results = _messages_of(step)
        if step["source"] == "agent":
            turn = {"messages": messages, "action": message, **_metrics_of(step)}
            if tools:
                turn["tools"] = tools
            if step.get("model_name") is not None:
                turn["model"] = step["model_name"]
            if (time := _seconds(step.get("timestamp"))) is not None:
                turn["execute_time"] = time
            turns.append(turn)
        messages = [*messages, message, *results]
    has_final = bool(turns) and messages[-1] is not turns[-1]["action"]
    final: dict[str, Any] | None = {"messages": messages} if has_final else None
    built = build_steps(turns, messages if has_final else None)
    for index, (step, wanted) in enumerate(zip(built, document["steps"], strict=True)):
        if (patch := diff(step, wanted)) is not None:
            place = turn_of[index]
            target = turns[place] if place < len(turns) else final
            assert target is not None
            target.setdefault("atif", {})[str(index)] = patch
    return turns, final


def _messages_of(step: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the message of a step, and one message for each of its results."""
    if step["source"] == "agent":
        message = {"role": "assistant", "content": step["message"]}
        if step.get("reasoning_content") is not None:
            message["reasoning_content"] = step["reasoning_content"]
        if step.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["tool_call_id"],
                    "type": "function",
                    "function": {
                        "name": call["function_name"],
                        "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                    },
                }
                for call in step["tool_calls"]
            ]
        yield message
    else:
        yield {"role": step["source"], "content": step["message"]}
    for result in (step.get("observation") or {}).get("results", ()):
        content = "" if result.get("content") is None else result["content"]
        call = result.get("source_call_id")
        yield {
            "role": "tool",
            **({} if call is None else {"tool_call_id": call}),
            "content": content,
        }


def _metrics_of(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the metrics of a step, and with its tokens if they are complete."""
    metrics = dict(step.get("metrics") or {})
    fields: dict[str, Any] = {}
    tokens = {key: metrics[key] for key in _TOKEN_KEYS if metrics.get(key) is not None}
    outputs, logprobs = tokens.get("completion_token_ids"), tokens.get("logprobs")
    ids = [*(outputs or ()), *tokens.get("prompt_token_ids", ())]
    if all(0 <= id < 2**31 for id in ids) and len(logprobs or outputs or ()) == len(outputs or ()):
        for key, values in tokens.items():
            is_number = key == "logprobs"
            fields[_TOKEN_KEYS[key]] = np.array(values, np.float32 if is_number else np.int32)
            del metrics[key]
    return fields | ({"metrics": metrics} if metrics else {})


def _seconds(timestamp: Any) -> float | None:
    if not isinstance(timestamp, str):
        return None
    moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# -- export ----------------------------------------------------------------------------------------


def build_steps(
    turns: Sequence[Mapping[str, Any]], final: Sequence[Any] | None
) -> list[dict[str, Any]]:
    """Return the steps of a document, from the turns and the messages after the last one.

    If a turn does not begin with the messages of the turn before it, its messages are marked as
    copied context.
    """
    steps: list[dict[str, Any]] = []
    shown: list[Any] = []
    for turn in turns:
        context = turn["messages"] or []
        is_continued = context[: len(shown)] == shown
        for message in context[len(shown) :] if is_continued else context:
            _add_message(steps, message, is_copied=not is_continued)
        steps.append(_agent_step(turn))
        shown = [*context, turn["action"]]
    if final and final[: len(shown)] == shown:
        for message in final[len(shown) :]:
            _add_message(steps, message, is_copied=False)
    return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]


def _add_message(steps: list[dict[str, Any]], message: Mapping[str, Any], is_copied: bool) -> None:
    """Add a message as a step, or as a result of the step before it."""
    role, content = message["role"], message.get("content")
    if role in ("tool", "function") and steps:
        result = {"source_call_id": message.get("tool_call_id"), "content": content}
        calls = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
        if result["source_call_id"] not in calls:
            del result["source_call_id"]
        steps[-1].setdefault("observation", {"results": []})["results"].append(result)
        return
    if role == "assistant":
        step = _agent_step({"action": message})
        is_copied = True  # no step of the episode has this answer
    else:
        source = "system" if role in ("system", "developer") else "user"
        step = {"source": source, "message": _content(content)}
    steps.append({**step, "is_copied_context": True} if is_copied else step)


def _agent_step(turn: Mapping[str, Any]) -> dict[str, Any]:
    action = turn["action"]
    step: dict[str, Any] = {"source": "agent", "message": _content(action.get("content"))}
    if action.get("reasoning_content") is not None:
        step["reasoning_content"] = action["reasoning_content"]
    if action.get("tool_calls"):
        step["tool_calls"] = list(map(_tool_call, action["tool_calls"], range(2**31)))
    if turn.get("model") is not None:
        step["model_name"] = turn["model"]
    if "messages" in turn:
        moment = datetime.fromtimestamp(turn.get("execute_time") or 0.0, UTC)
        step["timestamp"] = moment.isoformat().replace("+00:00", "Z")
    metrics = dict(turn.get("metrics") or {})
    for key, name in _TOKEN_KEYS.items():
        if turn.get(name) is not None:
            metrics[key] = turn[name].tolist()
    return {**step, "metrics": metrics} if metrics else step


def _content(content: Any) -> Any:
    """Return the content of a message as text or as parts that ATIF has."""
    if isinstance(content, list):
        known = all(isinstance(part, dict) and part.get("type") in _PART_TYPES for part in content)
        return content if known else json.dumps(content, ensure_ascii=False)
    return "" if content is None else content if isinstance(content, str) else json.dumps(content)


_PART_TYPES = ("text", "image", "audio")


def _tool_call(call: Any, place: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else {}
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"text": arguments}
    return {
        "tool_call_id": str(call.get("id") or place),
        "function_name": str(function.get("name")),
        "arguments": arguments if isinstance(arguments, dict) else {"value": arguments},
    }


def write_atif(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    split: str | None = None,
    split_by: str = "task_id",
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write episodes as ATIF documents: one per line of a JSONL file, or one per file of a folder.

    Episodes that were imported from ATIF become the same documents. Sub-agents are embedded in the
    documents of their parents. The root-level `extra` of other documents has the return, the
    scores, the task and the group under the key ``expdb``.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer to read. Its steps have the fields `messages` and `action`.
    target : path
        The file to create, if its name ends in .jsonl; otherwise the folder to create.
    where : query, optional
        Query that selects episodes: those with a matching step. By default, all episodes.
    split : str, optional
        Share of the episodes to write; see `write_chat`.
    split_by : str, default "task_id"
        Column of episodes for `split`.
    progress : callable, optional
        Function that is called with the number of documents since the last call.

    Returns
    -------
    int
        Number of documents.

    Raises
    ------
    InvalidValue
        If an argument is not valid, a step has no message, or a document would not be valid.
    DriverMissing
        If the package `atif` is not installed.
    TargetExists
        If the file or the folder exists.
    DatabaseMissing, StorageFull, DatabaseReadOnly
        If the target cannot be written.
    """
    documents = _documents(buffer, where, split, split_by, progress)
    path = Path(target)
    if path.suffix.lower() == ".jsonl":
        return write_lines(path, (document for _, document in documents))
    if path.exists():
        raise TargetExists(f"{path} exists; name a new folder")
    names: set[str] = set()
    with new_file(path) as draft:
        draft.mkdir()
        for name, document in documents:
            text = json.dumps(document, ensure_ascii=False, indent=1)
            file = _file_name(name, names)
            names.add(file)
            (draft / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    return len(names)


def _file_name(name: str, taken: Collection[str]) -> str:
    """Return an unused file name for a document; readers of folders skip names like ".a"."""
    quoted = quote(name, safe="")[:180] or "_"
    if quoted[0] in "._":
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    numbers = itertools.count(1)
    file = f"{quoted}.json"
    while file.lower() in taken or file in taken:
        file = f"{quoted}-{next(numbers)}.json"
    return file


def _documents(
    buffer: expdb.ReplayBuffer,
    where: Any,
    split: str | None,
    split_by: str,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the document of each episode that is not embedded in another one."""
    check_buffer(buffer)
    stored = buffer.stats()["fields"]
    fields = [name for name in TYPES if name in stored]
    if not {"messages", "action"} <= set(fields):
        raise InvalidValue(
            f"buffer {buffer.name!r} has no fields 'messages' and 'action', so its steps are no "
            f"turns of a conversation; its fields are {', '.join(stored) or 'none'}"
        )
    chosen = buffer.episodes(where)["episode"].to_pylist()
    rows = buffer.episodes().select(["episode", "parent_episode", "relation"]).to_pylist()
    children: dict[int, list[int]] = {}
    for row in rows:
        if row["relation"] == "subagent":
            children.setdefault(row["parent_episode"], []).append(row["episode"])
    embedded: set[int] = set()
    parents = list(chosen)
    while parents:
        below = [child for child in children.get(parents.pop(), ()) if child not in embedded]
        embedded.update(below)
        parents += below
    part = split_of(split, split_by)
    for episode in read_episodes(buffer, where, fields, part):
        if episode.columns["episode"] in embedded:
            continue
        document = _document(buffer, episode, fields, children)
        check_document(document)
        yield episode.columns["episode_id"], document
        if progress is not None:
            progress(1)


def _document(
    buffer: expdb.ReplayBuffer,
    episode: StoredEpisode,
    fields: list[str],
    children: Mapping[int, list[int]],
) -> dict[str, Any]:
    columns, turns = episode.columns, episode.steps
    check_turns(episode, {"messages": "messages", "action": "action"})
    final = turns[-1] if turns else {}
    try:
        steps = build_steps(turns, final.get("next_messages"))
    except UNEXPECTED as error:
        raise InvalidValue(
            f"the messages of episode {columns['episode_id']!r} cannot be ATIF steps ({error}); "
            "select other episodes with a query"
        ) from None
    for turn in turns:
        for index, patch in (turn.get("atif") or {}).items():
            steps[int(index)] = apply(steps[int(index)], patch)
    for index, patch in (final.get("next_atif") or {}).items():
        steps[int(index)] = apply(steps[int(index)], patch)
    about = columns["episode_tags"].get("atif")
    root = about.get("document") if isinstance(about, dict) else None
    root = root if isinstance(root, dict) and "agent" in root else _new_root(episode)
    if turns and (tools := turns[0].get("tools")):
        root = {**root, "agent": {**root["agent"], "tool_definitions": tools}}
    document = {**root, "steps": steps}
    own = expdb.QueryBuilder().in_("episode", children.get(columns["episode"], []))
    if columns["episode"] in children:
        found = list(read_episodes(buffer, own, fields))
        found.sort(key=_place_of)
        document[_SUBAGENTS] = [_document(buffer, child, fields, children) for child in found]
    return document


def _place_of(episode: StoredEpisode) -> tuple[int, int]:
    about = episode.columns["episode_tags"].get("atif")
    place = about.get("place", 0) if isinstance(about, dict) else 0
    return place, episode.columns["episode"]


def _new_root(episode: StoredEpisode) -> dict[str, Any]:
    """Return the root of the document of an episode that was not imported from ATIF."""
    columns, version = episode.columns, episode.columns["policy_version"]
    details = {
        **{name: columns[name] for name in _OWN_COLUMNS}, "reward": columns["episode_return"],
        "scores": episode.scores or None, "tags": columns["episode_tags"] or None,
    }  # fmt: skip
    return {
        "schema_version": VERSION,
        "trajectory_id": columns["episode_id"],
        "agent": {
            "name": columns["agent_id"],
            "version": "unknown" if version is None else str(version),
        },
        "extra": {"expdb": {name: value for name, value in details.items() if value is not None}},
    }
