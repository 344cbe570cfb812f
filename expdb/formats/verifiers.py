"""Import rollouts of the library verifiers: records of traces, and of episodes with their traces.

A record is what ``trace.to_record(float_decimals=None)`` or ``episode.to_record(...)`` of verifiers
0.4 returns. Each response of the model becomes a step. Traces need no package to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import expdb
from expdb.errors import InvalidValue
from expdb.formats.records import UNEXPECTED, Item, Records, digest_of
from expdb.formats.rollouts import Rollout, Unreadable

NOT_SCORED = {"status": "not_scored"}
TYPES: dict[str, Any] = {"messages": "json", "action": "json", **expdb.TOKEN_FIELDS}


def is_trace(values: Mapping[str, Any]) -> bool:
    """Return whether a record is a trace or an episode of verifiers."""
    traces = values.get("traces")
    if isinstance(traces, list) and traces:
        return isinstance(traces[0], dict) and is_trace(traces[0])
    nodes = values.get("nodes")
    return isinstance(nodes, list) and {"task", "agent", "rewards"} <= values.keys()


def read_traces(records: Records, names: Mapping[str, str]) -> Iterator[Item]:
    """Convert records of traces and episodes to rollouts, one per trace."""
    if names:
        raise InvalidValue("names does not apply to records of verifiers; omit names (--map)")
    for record in records:
        if isinstance(record, Unreadable):
            yield record
            continue
        try:
            rollouts = list(_rollouts(record.source, record.values))
        except UNEXPECTED as error:
            text = f"the record is not a trace of verifiers 0.4 ({error!r}); export it again"
            yield Unreadable(record.source, text)
            continue
        yield from rollouts


def _rollouts(source: str, values: Mapping[str, Any]) -> Iterator[Rollout]:
    """Yield the rollouts of a trace or an episode."""
    if "traces" not in values:
        yield _rollout(source, values, {})
        return
    group = values.get("group")
    policy = ((values.get("run") or {}).get("work") or {}).get("policy")
    for trace in values["traces"]:
        episode: dict[str, Any] = {}
        if group:
            episode["group_id"] = f"{group['id']}/{trace['agent']['name']}"
        if policy:
            episode["policy_version"] = policy["start"]
        yield _rollout(source, trace, episode)


def _rollout(source: str, trace: Mapping[str, Any], about: Mapping[str, Any]) -> Rollout:
    nodes, task, agent = trace["nodes"], trace["task"], trace["agent"]
    sampled = [index for index, node in enumerate(nodes) if node["sampled"]]
    if not sampled:
        raise InvalidValue(f"the trace {trace['id']!r} has no response of a model; remove it")
    tags = {key: trace[key] for key in ("ok", "stop_condition") if trace.get(key) is not None}
    steps = [_turn(nodes, index) for index in sampled]
    return Rollout(
        record=str(trace["id"]),
        digest=digest_of(trace, about),
        episode={
            "episode_id": str(trace["id"]),
            "task_id": str(task.get("key") or task["type"]),
            "agent_id": agent["name"],
            "trainable": agent.get("trainable"),
            "episode_tags": tags or None,
            **about,
        },
        steps=steps,
        final=_final(nodes, sampled[-1]),
        scores=list(_scores(trace)),
        types=TYPES,
        source=f"{source}: trace {trace['id']}",
    )


def _path(nodes: Sequence[Mapping[str, Any]], index: int | None) -> list[Mapping[str, Any]]:
    """Return the nodes from the root to a node; raise InvalidValue if they form a circle."""
    path: list[Mapping[str, Any]] = []
    while index is not None:
        if len(path) > len(nodes):
            raise InvalidValue("the nodes form a circle")
        path.append(nodes[index])
        index = nodes[index].get("parent")
    return path[::-1]


def _message(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node["message"].items() if value is not None}


def _turn(nodes: Sequence[Mapping[str, Any]], index: int) -> dict[str, Any]:
    """Return the arguments of `store` for a response of the model."""
    *history, node = _path(nodes, index)
    turn: dict[str, Any] = {"messages": list(map(_message, history)), "action": _message(node)}
    mask = np.array(node.get("mask") or [], bool)
    if not mask.any():
        return turn
    logprobs = node.get("logprobs")
    if len(mask) != len(node["token_ids"]) or (logprobs and len(logprobs) != mask.sum()):
        raise InvalidValue("token_ids, mask and logprobs of a node do not fit together")
    start = int(mask.argmax())  # the tokens before are those of the chat template
    if logprobs:
        of_tokens = np.zeros(len(mask), np.float32)
        of_tokens[mask] = logprobs
        turn["logprobs"] = of_tokens[start:]
    before = [token for other in history for token in other["token_ids"]]
    turn["prompt_ids"] = np.array([*before, *node["token_ids"][:start]], np.int32)
    turn["output_ids"] = np.array(node["token_ids"][start:], np.int32)
    turn["output_mask"] = mask[start:]
    return turn


def _final(nodes: Sequence[Mapping[str, Any]], last: int) -> dict[str, Any] | None:
    """Return the messages after the last response, None if there are none."""
    index = last
    for number in range(last + 1, len(nodes)):
        if nodes[number].get("parent") == index:
            index = number
    return None if index == last else {"messages": list(map(_message, _path(nodes, index)))}


def _scores(trace: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the weighted sum of the rewards, each reward and each metric as scores."""
    rewards = trace.get("rewards") or {}
    values = {f"reward_{name}": reward and reward["score"] for name, reward in rewards.items()}
    values |= {f"metric_{name}": value for name, value in (trace.get("metrics") or {}).items()}
    given = [reward for reward in rewards.values() if reward is not None]
    if given:
        values["reward"] = sum(reward["score"] * reward["weight"] for reward in given)
    stored: set[str] = set()
    for name, value in values.items():
        score = re.sub(r"[^A-Za-z0-9_]", "_", name)[:64]
        if score in stored:
            raise InvalidValue(f"two rewards or metrics become the score {score!r}; rename one")
        stored.add(score)
        yield {"name": score, "value": value, **({} if value is not None else NOT_SCORED)}
