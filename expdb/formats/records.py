"""Records of other formats: their identity, and the names that a user maps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple

import numpy as np

from expdb.chunks.infer import plain
from expdb.errors import InvalidValue
from expdb.formats.rollouts import RECORD_NAMES, Rollout, Unreadable
from expdb.names import nearest

# Columns that hold text; other formats often have numbers in their place.
_TEXT_COLUMNS = frozenset(
    ("episode_id", "task_id", "agent_id", "task_name", "group_id", "parent", "run", "pre_agent")
)
_TIME_COLUMNS = frozenset(("started", "ended", "execute_time"))
DIGEST_BYTES = 16


class Record(NamedTuple):
    """A record of a file, as plain data."""

    source: str
    values: dict[str, Any]


Item = Rollout | Unreadable
# Errors that values of unexpected types cause in a reader of untrusted files.
UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
Records = Iterator[Record | Unreadable]


def digest_of(*values: Any) -> bytes:
    """Return a hash of JSON values that does not depend on the order of keys."""
    text = json.dumps(
        values, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_as_json
    )
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _as_json(value: Any) -> Any:
    """Return a value of a table that JSON lacks as text or as a list."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes().hex()]
    try:
        return plain(value)
    except TypeError as error:
        raise InvalidValue(f"the record contains a value that cannot be stored: {error}") from None


def check_names(names: Any) -> dict[str, str]:
    """Return a mapping of columns to keys; raise InvalidValue if it is not one."""
    if names is None:
        return {}
    if not isinstance(names, Mapping) or not all(
        isinstance(name, str) for pair in names.items() for name in pair
    ):
        raise InvalidValue(
            "names must map columns of expdb to keys of the records, such as "
            f"{{'task_id': 'question_id'}}, got {names!r}"
        )
    return dict(names)


def text_keys(names: Mapping[str, str]) -> set[str]:
    """Return the keys of ids and of other text, which may consist of digits, such as "007"."""
    return {names.get(name, name) for name in ("id", *_TEXT_COLUMNS)}


def rename(
    values: Mapping[str, Any], names: Mapping[str, str], known: Collection[str]
) -> dict[str, Any]:
    """Return a record with the value of each mapped key under the name it is mapped to.

    A mapped key is removed unless it is in `known`, the names that have a meaning. Numbers in
    columns of ids become text. Raise InvalidValue if a mapped key is missing, or if a name is
    probably misspelt.
    """
    result = dict(values)
    for name, key in names.items():
        if key not in values:
            raise InvalidValue(
                f"the record has no key {key!r}, which is mapped to {name!r}; its keys are "
                f"{', '.join(values) or 'none'}"
            )
        if name not in known and (meant := nearest(name, known)):
            raise InvalidValue(f"the mapping has {name!r}{meant} Correct the name")
        if name in values and name != key and name not in names.values():
            raise InvalidValue(
                f"the record has a key {name!r}, and {key!r} is mapped to the same name; also map "
                f"{name!r} to another name"
            )
    for key in names.values():
        if key not in known and key not in names:
            result.pop(key, None)
    result |= {name: values[key] for name, key in names.items()}
    return {name: _convert_value(name, value) for name, value in result.items()}


def _convert_value(name: str, value: Any) -> Any:
    """Return a value as expdb stores it: ids as text, and times as Unix seconds or ISO text."""
    if name in _TEXT_COLUMNS and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if name in _TIME_COLUMNS and isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value  # refused later
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.timestamp() if name in _TIME_COLUMNS else value.isoformat()
    return value.isoformat() if isinstance(value, (date, time)) else value


def split_episode(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the columns of the episode from a renamed record, and return those with a value."""
    columns = {name: values.pop(name) for name in RECORD_NAMES if name in values}
    columns = {name: value for name, value in columns.items() if value is not None}
    if "episode_tags" in columns:
        columns["episode_tags"] = parse_json(columns["episode_tags"], "episode_tags")
    return columns


def parse_json(value: Any, name: str) -> Any:
    """Return a JSON value that may be given as text, as in many tables."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{name} is text that is not valid JSON ({error}); correct it") from None
