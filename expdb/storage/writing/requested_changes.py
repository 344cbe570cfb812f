"""Check the columns that `update` sets, before anything is stored."""

import json
from collections.abc import Mapping
from typing import Any

from expdb import checks, errors
from expdb.chunks.values import encode_tags
from expdb.sql.conditions import resolve
from expdb.sql.query import Where, shown

TAGS = frozenset(("tags", "episode_tags"))
UPDATABLE = ("reward", "terminated", "truncated", "tags", "policy_version", "episode_tags")


def check_changes(columns: Mapping[str, Any], replace_tags: bool) -> dict[str, Any]:
    """Return checked columns to update; tags that are merged become a mapping."""
    changes = dict(columns)
    for name in columns:
        column, dot, key = name.partition(".")
        if dot and column in TAGS and key:
            resolve(name)  # raises if a query could not name the tag
            tags = changes.setdefault(column, {})
            if not isinstance(tags, Mapping) or key in tags:
                raise errors.InvalidValue(
                    f"{name} conflicts with {column}=; set the tag in only one of them"
                )
            changes[column] = {**tags, key: changes.pop(name)}
    if not changes:
        raise errors.InvalidValue(
            f"update() got no column to set; pass one of {', '.join(UPDATABLE)}, tags.<key> or "
            "episode_tags.<key>"
        )
    if not changes.keys() <= set(UPDATABLE):
        wrong = ", ".join(sorted(changes.keys() - set(UPDATABLE)))
        raise errors.InvalidValue(
            f"update() cannot set {wrong}; pass {', '.join(UPDATABLE)}, tags.<key> or "
            "episode_tags.<key>, because stored fields cannot be changed"
        )
    for name in TAGS & changes.keys():
        if changes[name] is not None:
            encoded = encode_tags(changes[name], name)  # raises
            changes[name] = encoded if replace_tags else json.loads(encoded)
    return {
        name: value if name in TAGS else _check_column(name, value)
        for name, value in changes.items()
    }


def warn_of_no_match(
    buffer: str, where: Where, required: bool, unwritten: int, names_episode: bool
) -> None:
    """Warn that `update` changed nothing, if that is probably a mistake.

    With `required`, raise TooFewRows. `unwritten` is the number of steps that writers of this
    process have not written, and `names_episode` tells whether the query names an `episode_id`.
    """
    if required:
        raise errors.TooFewRows(
            f"update() found no step of buffer {buffer!r} that matches {shown(where)}; check the "
            "query, and that the writer of the steps has flushed them"
        )
    if unwritten:
        errors.warn(
            f"update() found no step of buffer {buffer!r}, but {unwritten} appended steps are not "
            "written yet; call flush() or end the episode before update()"
        )
    elif names_episode:
        errors.warn(
            f"update() changed nothing, because no stored step of buffer {buffer!r} matches "
            f"{shown(where)}; check the query, and that the steps are flushed and not evicted "
            "(required=True raises an error instead)"
        )


def tags_of(changes: Mapping[str, Any]) -> set[str]:
    """Return the tags that checked changes set, such as "tags.judge"."""
    tag_changes = {
        name: changes[name] for name in TAGS & changes.keys() if changes[name] is not None
    }
    return {
        f"{name}.{key}"
        for name, tags in tag_changes.items()
        for key in (json.loads(tags) if isinstance(tags, str) else tags)
    }


def _check_column(name: str, value: Any) -> Any:
    if value is None and name not in ("terminated", "truncated"):
        return None
    if name == "reward":
        return checks.reward(value)
    check: Any = {
        "terminated": checks.flag,
        "truncated": checks.flag,
        "policy_version": checks.whole,
    }
    return check[name](value, name)
