"""Import rows of steps: one record per step, with the columns of the step and of its episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from expdb.errors import InvalidValue
from expdb.formats.records import (
    UNEXPECTED,
    Item,
    Record,
    Records,
    digest_of,
    parse_json,
    rename,
    split_episode,
)
from expdb.formats.rollouts import RECORD_NAMES, Rollout, Unreadable
from expdb.names import STEP_KEYS

_JSON_COLUMNS = ("tags", "episode_tags")
_NAMES = (*RECORD_NAMES, *STEP_KEYS)


_Rows = list[tuple[Record, dict[str, Any]]]


def read_steps(open_records: Callable[[], Records], names: Mapping[str, str]) -> Iterator[Item]:
    """Convert rows of steps to rollouts, one per `episode_id`, in the order of their last rows.

    The records are read twice: first, to count the rows of each episode. An episode with a row that
    cannot be read is refused. A row without a known episode may belong to the episodes before and
    after it, so these are refused too.
    """
    counts, broken = _count_rows(open_records(), names)
    waiting: dict[str, _Rows] = {}
    for record in open_records():
        if isinstance(record, Unreadable):
            yield record
            continue
        name = _episode_of(record, names)
        if name is None:
            key = names.get("episode_id", "episode_id")
            yield Unreadable(
                record.source,
                f"the row has no {key}, so its episode is unknown; map the key of the episode, "
                "such as --map episode_id=episode",
            )
            continue
        rows = waiting.setdefault(name, [])
        rows.append((record, {}))
        if len(rows) < counts[name]:
            continue
        del waiting[name]
        source = rows[0][0].source
        try:
            if name in broken:
                raise InvalidValue(
                    f"episode {name!r} is refused, because the row at {broken[name]} cannot be "
                    "read; correct the row"
                )
            named = [(row, _rename_row(row, names)) for row, _ in rows]
            yield _rollout(source, named, names)
        except (InvalidValue, *UNEXPECTED) as error:
            yield Unreadable(source, str(error) or type(error).__name__)


def _count_rows(
    records: Records, names: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of rows of each episode, and the unreadable rows next to its rows."""
    counts: dict[str, int] = {}
    broken: dict[str, str] = {}
    last: str | None = None
    unknown: str | None = None
    for record in records:
        name = None if isinstance(record, Unreadable) else _episode_of(record, names)
        if name is None:
            unknown = record.source
            if last is not None:
                broken.setdefault(last, unknown)
            continue
        counts[name] = counts.get(name, 0) + 1
        if unknown is not None:
            broken.setdefault(name, unknown)
        last, unknown = name, None
    return counts, broken


def _episode_of(record: Record, names: Mapping[str, str]) -> str | None:
    value = record.values.get(names.get("episode_id", "episode_id"))
    return None if value is None or value == "" else str(value)


def _rename_row(row: Record, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a row by their names; raise InvalidValue with its source."""
    try:
        return rename(row.values, names, _NAMES)
    except InvalidValue as error:
        raise InvalidValue(f"at {row.source}: {error}") from None


def _rollout(source: str, rows: _Rows, names: Mapping[str, str]) -> Rollout:
    episode: dict[str, Any] = {}
    steps = []
    digest = digest_of([record.values for record, _ in rows], dict(names))
    for record, values in rows:
        for name in _JSON_COLUMNS:
            if values.get(name) is not None:
                values[name] = parse_json(values[name], name)
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
