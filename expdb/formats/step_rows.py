"""Import rows of steps: one record per step, with the columns of the step and of its episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from expdb.errors import InvalidValue
from expdb.formats.chat import parsed
from expdb.formats.records import (
    Item,
    Record,
    Records,
    Unreadable,
    digest_of,
    rename,
    split_episode,
)
from expdb.formats.storing import Rollout

_JSON_COLUMNS = ("tags", "episode_tags")


def read_steps(records: Records, names: Mapping[str, str]) -> Iterator[Item]:
    """Convert rows of steps to rollouts, one per `episode_id`.

    The rows of an episode must follow each other.
    """
    rows: list[tuple[Record, dict[str, Any]]] = []
    ended: set[str] = set()
    current = None
    for record in records:
        if isinstance(record, Unreadable):
            yield record
            continue
        try:
            values = rename(record.values, names)
            name = values.get("episode_id")
            if not isinstance(name, str) or not name:
                raise InvalidValue(
                    "the row has no episode_id, so its episode is unknown; map the key of the "
                    "episode, such as --map episode_id=episode"
                )
            if name in ended:
                raise InvalidValue(
                    f"the row belongs to episode {name!r}, whose other rows come earlier and "
                    "apart; sort the rows by episode"
                )
        except InvalidValue as error:
            yield Unreadable(record.source, str(error))
            continue
        if name != current and current is not None:
            yield from _finished(rows, names)
            ended.add(current)
            rows = []
        current = name
        rows.append((record, values))
    if rows:
        yield from _finished(rows, names)


def _finished(
    rows: list[tuple[Record, dict[str, Any]]], names: Mapping[str, str]
) -> Iterator[Item]:
    source = rows[0][0].source
    try:
        yield _rollout(source, rows, names)
    except InvalidValue as error:
        yield Unreadable(source, str(error))


def _rollout(
    source: str, rows: list[tuple[Record, dict[str, Any]]], names: Mapping[str, str]
) -> Rollout:
    episode: dict[str, Any] = {}
    steps = []
    digest = digest_of([record.values for record, _ in rows], dict(names))
    for record, values in rows:
        for name in _JSON_COLUMNS:
            if values.get(name) is not None:
                values[name] = parsed(values[name], name)
        own_agent, own_version = values.get("agent_id"), values.get("policy_version")
        for name, value in split_episode(values).items():
            if name in ("agent_id", "policy_version"):
                episode.setdefault(name, value)
            elif episode.setdefault(name, value) != value:
                raise InvalidValue(
                    f"{name} is {value!r} at {record.source}, but {episode[name]!r} in an earlier "
                    f"row of episode {episode['episode_id']!r}; correct the rows"
                )
        if own_agent is not None and own_agent != episode["agent_id"]:
            values["agent_id"] = own_agent
        if own_version is not None and own_version != episode["policy_version"]:
            values["policy_version"] = own_version
        for name in ("terminated", "truncated"):
            if values.get(name) is None:
                values.pop(name, None)
        steps.append(values)
    return Rollout(
        record=episode["episode_id"], digest=digest, episode=episode, steps=steps, source=source
    )
