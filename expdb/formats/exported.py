"""Import the Parquet files of `expdb export` and of archives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from expdb.archive.exported_table import (
    OWN_COLUMNS,
    SIGNATURE,
    numeric_types,
    types_in,
    values_of,
)
from expdb.archive.parquet import HISTORY_KEYS, SCORE_HISTORY
from expdb.errors import warn
from expdb.formats.records import Item, Unreadable, digest_of
from expdb.formats.storing import Rollout

BATCH_ROWS = 4096
_OF_EPISODE = (
    "episode_id", "run", "task_id", "task_name", "group_id", "status", "episode_tags", "started",
    "ended", "trainable", "relation", "parent_step", "episode_return", "length",
)  # fmt: skip
_OF_STEP = (
    "step", "pre_agent", "execute_time", "reward", "terminated", "truncated", "tags",
)  # fmt: skip


def is_exported(path: Path) -> bool:
    """Return whether a Parquet file has the columns of an export or an archive."""
    try:
        names = parquet.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False
    return set(names) >= SIGNATURE


class _Places(NamedTuple):
    """Where the rows of each episode are."""

    order: list[str]  # the episodes in the order of their first positions
    counts: dict[str, int]  # number of rows of each episode
    names: dict[int, str]  # `episode_id` of each number


def read_exported(paths: Sequence[Path]) -> Iterator[Item]:
    """Yield the episodes of files that were written together, in the order of their first steps."""
    readable: list[Path] = []
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                file.schema_arrow  # noqa: B018
            readable.append(path)
        except (OSError, pa.ArrowException) as error:
            yield Unreadable(str(path), f"the file is not a complete Parquet file ({error})")
    places = _locate(readable)
    waiting: dict[str, list[dict[str, Any]]] = {}
    finished: dict[str, Item] = {}
    order = iter(places.order)
    following = next(order, None)
    lacks_parent = 0
    for path in readable:
        reader = _Reader(path)
        for row in reader.rows():
            name = row["episode_id"]
            rows = waiting.setdefault(name, [])
            rows.append(row)
            if len(rows) == places.counts[name]:
                del waiting[name]
                rows.sort(key=lambda row: int(row["position"]))
                item = _rollout(reader, rows, places)
                lacks_parent += rows[0]["relation"] is not None and "parent" not in item.episode
                finished[name] = item
            while following in finished:
                yield finished.pop(following)
                following = next(order, None)
    if lacks_parent:
        warn(
            f"{lacks_parent} episodes are imported without their relation, because their parents "
            "are not in the files; export the parents too"
        )


def _locate(paths: Sequence[Path]) -> _Places:
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    names: dict[int, str] = {}
    for path in paths:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1 << 16, columns=["position", "episode", "episode_id"]):
                table = pa.table(batch).group_by(["episode_id", "episode"])
                for row in table.aggregate(
                    [("position", "min"), ("position", "count")]
                ).to_pylist():
                    name, position = row["episode_id"], row["position_min"]
                    first[name] = min(first.get(name, position), position)
                    counts[name] = counts.get(name, 0) + row["position_count"]
                    names[row["episode"]] = name
    return _Places(sorted(first, key=first.__getitem__), counts, names)


class _Reader:
    """Read the rows of a file as Python values and arrays with the types of the fields."""

    def __init__(self, path: Path):
        self.path = path
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
        stored = types_in(schema)
        self.has_json_text = stored is None
        self.fields = numeric_types(schema) if stored is None else stored.types
        self._annotations = {} if stored is None else stored.annotations
        self._names = [name for name in schema.names if name not in ("root_episode",)]
        if "priority" in self._names and not _has_values(path, "priority"):
            self._names.remove("priority")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, each with `fields`, `final` and `annotations` as dicts."""
        with parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=self._names):
                columns = {
                    name: self._values(name, batch.column(place))
                    for place, name in enumerate(batch.schema.names)
                }
                own = {name: columns.pop(name) for name in list(columns) if name in OWN_COLUMNS}
                groups = self._group(columns)
                keys = list(own)
                for index, values in enumerate(zip(*own.values(), strict=True)):
                    row = dict(zip(keys, values, strict=True))
                    for kind, part in groups.items():
                        row[kind] = {
                            name: value
                            for name, column in part.items()
                            if (value := column[index]) is not None
                        }
                    yield row

    def _group(self, columns: dict[str, Sequence[Any]]) -> dict[str, dict[str, Sequence[Any]]]:
        """Split the columns into fields, final observations and annotations."""
        groups: dict[str, dict[str, Sequence[Any]]] = {"fields": {}, "final": {}, "annotations": {}}
        for name, column in columns.items():
            base = name.removeprefix("next_")
            if name in self.fields:
                groups["fields"][name] = column
            elif name.partition("@")[0] in self._annotations:
                groups["annotations"][name] = column
            elif base != name and base in self.fields:
                groups["final"][base] = column
            else:
                groups["fields"][name] = column
        return groups

    def _values(self, name: str, column: pa.Array) -> Sequence[Any]:
        field = self.fields.get(name) or self.fields.get(name.removeprefix("next_"))
        field = field or self._annotations.get(name.partition("@")[0])
        return values_of(column, None if name in OWN_COLUMNS else field)


def _has_values(path: Path, name: str) -> bool:
    """Return whether any value of a float column is neither null nor NaN."""
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 16, columns=[name]):
            if compute.any(compute.is_finite(batch.column(0).fill_null(float("nan")))).as_py():
                return True
    return False


def _rollout(reader: _Reader, rows: list[dict[str, Any]], places: _Places) -> Rollout:
    first, last = rows[0], rows[-1]
    episode = {name: last[name] for name in _OF_EPISODE if last.get(name) is not None}
    if "episode_tags" in episode:
        episode["episode_tags"] = json.loads(episode["episode_tags"])
    episode["agent_id"] = first["agent_id"]
    # A step without a version would have that of its episode.
    is_versioned = all(row["policy_version"] is not None for row in rows)
    episode["policy_version"] = first["policy_version"] if is_versioned else None
    parent = places.names.get(first["parent_episode"]) if "parent_episode" in first else None
    if parent is None:
        for name in ("relation", "parent_step"):
            episode.pop(name, None)
    else:
        episode["parent"] = parent
    rollout = Rollout(
        record=str(first["episode_id"]),
        digest=digest_of([_plain(row) for row in rows]),
        episode=episode,
        steps=[_step(row, episode) for row in rows],
        final=last["final"] or None,
        types=reader.fields,
        has_json_text=reader.has_json_text,
        source=f"{reader.path}: episode {first['episode_id']}",
    )
    for index, row in enumerate(rows):
        rollout.scores += _scores(row, index)
        for name, array in row["annotations"].items():
            base, at, version = name.partition("@")
            rollout.annotations.append((base, int(version) if at else None, index, array))
    if "priority" in first:
        nan = float("nan")
        rollout.priorities = [nan if (x := row["priority"]) is None else x for row in rows]
    return rollout


def _step(row: dict[str, Any], episode: Mapping[str, Any]) -> dict[str, Any]:
    step = {name: row[name] for name in _OF_STEP if row.get(name) is not None}
    if "tags" in step:
        step["tags"] = json.loads(step["tags"])
    if row["agent_id"] != episode["agent_id"]:
        step["agent_id"] = row["agent_id"]
    if row["policy_version"] != episode["policy_version"]:
        step["policy_version"] = row["policy_version"]
    if row["policy_version_end"] != row["policy_version"]:
        step["policy_version_end"] = row["policy_version_end"]
    return {**row["fields"], **step}


def _scores(row: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yield the history of the scores of a step; without a history, the latest scores."""
    if row.get(SCORE_HISTORY):
        for entry in json.loads(row[SCORE_HISTORY]):
            of_step = {} if entry["of_episode"] else {"step": index}
            detail = entry["detail"] and json.loads(entry["detail"])
            yield {name: entry[name] for name in HISTORY_KEYS} | of_step | {"detail": detail}
    elif SCORE_HISTORY not in row and row.get("scores"):
        for name, value in json.loads(row["scores"]).items():
            yield {"name": name, "value": value, "step": index} | (
                {"status": "unknown"} if value is None else {}
            )


def _plain(row: Mapping[str, Any]) -> Any:
    """Return what identifies the content of a row, as JSON."""
    return {
        name: value
        if name not in ("fields", "final", "annotations")
        else {key: _hashable(inner) for key, inner in value.items()}
        for name, value in row.items()
        if name not in ("position", "episode", "parent_episode", "parent_position")
    }


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return [value.dtype.name, value.tobytes().hex()]
    return value.hex() if isinstance(value, bytes) else value
