"""Records of other formats: their identity, and the names that a user maps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from expdb.errors import InvalidValue
from expdb.formats.storing import EPISODE_NAMES, Rollout

# Columns that hold text; other formats often have numbers in their place.
_TEXT_COLUMNS = frozenset(
    ("episode_id", "task_id", "agent_id", "task_name", "group_id", "parent", "run", "pre_agent")
)
DIGEST_BYTES = 16


class Unreadable(NamedTuple):
    """A record that cannot be read.

    Attributes
    ----------
    source : str
        Where the record is, such as ``chats.jsonl:17``.
    reason : str
        The problem and the remedy.
    """

    source: str
    reason: str


class Record(NamedTuple):
    """A record of a file, as plain data."""

    source: str
    values: dict[str, Any]


Item = Rollout | Unreadable
Records = Iterator[Record | Unreadable]


def digest_of(*values: Any) -> bytes:
    """Return a hash of JSON values that does not depend on the order of keys."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


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
    keys = list(names.values())
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidValue(f"names maps two columns to {twice!r}; map each key once")
    return dict(names)


def rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with its keys renamed to columns, with text in place of numbers in ids.

    Raise InvalidValue if a mapped key is missing, or if two keys get the same name.
    """
    renamed = {key: column for column, key in names.items()}
    result: dict[str, Any] = {}
    for key in names.values():
        if key not in values:
            raise InvalidValue(
                f"the record has no key {key!r}, which is mapped to {renamed[key]!r}; its keys are "
                f"{', '.join(values) or 'none'}"
            )
    for key, value in values.items():
        name = renamed.get(key, key)
        if name in result:
            raise InvalidValue(
                f"the record has a key {name!r}, and {names[name]!r} is mapped to the same name; "
                f"also map {name!r} to another name"
            )
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        result[name] = str(value) if name in _TEXT_COLUMNS and is_number else value
    return result


def split_episode(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the columns of the episode from a renamed record, and return those with a value."""
    columns = {name: values.pop(name) for name in EPISODE_NAMES if name in values}
    return {name: value for name, value in columns.items() if value is not None}
