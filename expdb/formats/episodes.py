"""Read whole episodes for an export, in the order of their numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import expdb
from expdb import checks
from expdb.errors import InvalidValue

EPISODES_AT_ONCE = 64
_COLUMNS = (
    "episode", "position", "step", "agent_id", "pre_agent", "execute_time", "reward", "terminated",
    "truncated", "tags", "policy_version", "policy_version_end",
)  # fmt: skip


class StoredEpisode(NamedTuple):
    """An episode with its stored steps, and its latest scores by name."""

    columns: dict[str, Any]  # a row of `ReplayBuffer.episodes`, with tags as a dict
    steps: list[dict[str, Any]]  # ordered by step number
    scores: dict[str, float | None]


def check_buffer(buffer: Any) -> None:
    """Raise InvalidValue unless the first argument of an export is a buffer."""
    checks.instance(buffer, expdb.ReplayBuffer, "buffer", "db.buffer('train')")


def read_episodes(
    buffer: expdb.ReplayBuffer,
    where: Any,
    fields: list[str],
    part: Split | None = None,
) -> Iterator[StoredEpisode]:
    """Yield all steps of the episodes of a part, for episodes with at least one matching step."""
    rows = [row for row in buffer.episodes(where).to_pylist() if part is None or part.has(row)]
    final = [f"next_{name}" for name in fields if f"next_{name}" not in fields]
    for start in range(0, len(rows), EPISODES_AT_ONCE):
        chosen = rows[start : start + EPISODES_AT_ONCE]
        query = expdb.QueryBuilder().in_("episode", [row["episode"] for row in chosen])
        steps: dict[int, list[dict[str, Any]]] = {}
        for batch in buffer.scan(query, fields=[*_COLUMNS, *fields, *final]):
            for step in batch.to_list():
                steps.setdefault(step.pop("episode"), []).append(step)
        scores: dict[str, dict[str, float | None]] = {}
        for score in buffer.scores(query).to_pylist():
            if score["position"] is None:
                latest = scores.setdefault(score["episode_id"], {})
                if score["value"] is not None or score["name"] not in latest:
                    latest[score["name"]] = score["value"]
        for row in chosen:
            own = sorted(steps.get(row["episode"], ()), key=lambda step: step["step"])
            row["episode_tags"] = _tags(row["episode_tags"])
            yield StoredEpisode(row, own, scores.get(row["episode_id"], {}))


def _tags(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    tags: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
    return tags


class Split:
    """A share of the episodes, chosen by a hash of a column."""

    def __init__(self, split: Any, column: Any):
        name, colon, share = split.partition(":") if isinstance(split, str) else ("", "", "")
        try:
            self._share = float(share)
        except ValueError:
            self._share = 0.0
        if not colon or name not in ("train", "test") or not 0 < self._share < 1:
            raise InvalidValue(
                f"split must be 'train:SHARE' or 'test:SHARE' with a share between 0 and 1, such "
                f"as 'train:0.9' and 'test:0.1', got {split!r}"
            )
        self._is_train, self._column = name == "train", checks.text(column, "split_by")

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether an episode is in this part; more data never moves it."""
        if self._column not in row:
            raise InvalidValue(
                f"split_by must be a column of episodes, got {self._column!r}; pass one of "
                f"{', '.join(row)}"
            )
        digest = hashlib.blake2b(str(row[self._column]).encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        return place < self._share if self._is_train else place >= 1 - self._share


def split_of(split: str | None, column: str) -> Split | None:
    """Return the part that a text such as "train:0.9" describes, None for all episodes."""
    return None if split is None else Split(split, column)
