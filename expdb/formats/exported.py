"""Import the Parquet files of `expdb export` and of archives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from expdb.archive.parquet import HISTORY_KEYS, METADATA, SCORE_HISTORY
from expdb.chunks.fields import Field
from expdb.errors import warn
from expdb.formats.records import Item, Unreadable, digest_of
from expdb.formats.storing import Rollout
from expdb.names import EPISODE_COLUMNS, STEP_COLUMNS
from expdb.storage.catalog import Fields

BATCH_ROWS = 4096
_SIGNATURE = {"position", "episode", "episode_id", "run", "task_id", "status", "started"}
_OWN = {*EPISODE_COLUMNS, *STEP_COLUMNS, "episode", SCORE_HISTORY}
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
    return set(names) >= _SIGNATURE


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
        text = (schema.metadata or {}).get(METADATA.encode())
        stored = Fields({}, set(), 0) if text is None else Fields.from_text(text.decode(), 0)
        self.has_json_text = text is None
        self.fields = stored.types or {
            column.name: field
            for column in schema
            if column.name not in _OWN and (field := _type_of(column.type)) is not None
        }
        self._annotations = stored.annotations
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
                own = {name: columns.pop(name) for name in list(columns) if name in _OWN}
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
        if name in _OWN or field is None or field.dtype in ("text", "bytes"):
            values: list[Any] = column.to_pylist()
            return values
        if field.dtype == "json":
            return [None if text is None else json.loads(text) for text in column.to_pylist()]
        return _arrays(column, field)


def _has_values(path: Path, name: str) -> bool:
    """Return whether any value of a float column is neither null nor NaN."""
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 16, columns=[name]):
            if compute.any(compute.is_finite(batch.column(0).fill_null(float("nan")))).as_py():
                return True
    return False


def _type_of(kind: pa.DataType) -> Field | None:
    """Return the type of a field from that of its column, None for text that may be JSON."""
    depth = 0
    if isinstance(kind, pa.FixedShapeTensorType):
        return Field(np.dtype(kind.value_type.to_pandas_dtype()).name, tuple(kind.shape))
    while pa.types.is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_binary(kind):
        return Field("bytes")
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    return Field(np.dtype(kind.to_pandas_dtype()).name, (None,) * depth)


def _arrays(column: pa.Array, field: Field) -> list[np.ndarray | None]:
    """Return the arrays or numbers of a column, bit for bit; null becomes None."""
    dtype = field.numpy
    valid = column.is_valid().to_pylist()
    if not field.shape:
        filled = (
            column.fill_null(False if dtype.kind == "b" else 0) if column.null_count else column
        )
        flat = filled.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        return [value if there else None for value, there in zip(flat, valid, strict=True)]
    if isinstance(column, pa.ExtensionArray):
        storage = column.storage
        size = storage.type.list_size
        values = storage.values.slice(storage.offset * size, len(storage) * size)
        array = _flat(values).astype(dtype, copy=False)
        rows = array.reshape(len(column), *field.shape)
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    return [
        _nested(cell.values, field, dtype) if there else None
        for cell, there in zip(column, valid, strict=True)
    ]


def _flat(values: pa.Array) -> np.ndarray:
    """Return numbers as an array, with 0 in place of null."""
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    flat: np.ndarray = values.to_numpy(zero_copy_only=False)
    return flat


def _nested(values: pa.Array, field: Field, dtype: np.dtype) -> np.ndarray:
    """Return the array in nested lists; the type gives the sizes of axes below an empty one."""
    shape = [len(values)]
    for size in field.shape[1:]:
        offsets = values.offsets.to_numpy()
        lengths = np.unique(np.diff(offsets))
        inner = int(lengths[0]) if len(lengths) else size or 0
        shape.append(inner)
        values = values.flatten()
    flat = _flat(values) if len(values) else np.empty(0, dtype)
    return flat.astype(dtype, copy=False).reshape(shape)


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
