"""Import the Parquet files of `expdb export` and of archives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet

from expdb.archive.exported_table import OWN_COLUMNS, SIGNATURE, types_in, values_of
from expdb.archive.parquet import HISTORY_KEYS, SCORE_HISTORY
from expdb.chunks.fields import Field
from expdb.errors import InvalidValue, warn
from expdb.formats.records import DIGEST_BYTES, Item
from expdb.formats.rollouts import Rollout, Unreadable

BATCH_ROWS = 4096
_OF_EPISODE = (
    "episode_id", "run", "task_id", "task_name", "group_id", "status", "episode_tags", "started",
    "ended", "trainable", "relation", "parent_step", "episode_return", "length",
    "first_policy_version", "last_policy_version",
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


Columns = dict[str, Any]  # lists and arrays, by the names of the columns
_BROKEN = (
    OSError, pa.ArrowException, ArithmeticError, AttributeError, InvalidValue, LookupError,
    RecursionError, TypeError, ValueError,
)  # fmt: skip


class _EpisodeIndex(NamedTuple):
    """Where the rows of each episode are."""

    order: list[str]  # parents before children, otherwise by the first positions
    counts: dict[str, int]  # number of rows of each episode
    names: dict[int, str]  # `episode_id` of each number, unless it has several


def read_exported(sources: Sequence[Path | pa.Table]) -> Iterator[Item]:
    """Yield the episodes of files or tables that were written together.

    Parents come before their children; otherwise, the order is that of the first steps.
    """
    readers: list[_Reader] = []
    for source in sources:
        try:
            readers.append(_Reader(source))
        except _BROKEN as error:
            yield Unreadable(str(source), f"the file is not valid Parquet ({error}); copy it again")
    places = yield from _locate(readers)
    kinds = _FieldTypes.of(readers)
    waiting: dict[str, list[Columns]] = {}
    missing = dict(places.counts)  # number of rows that are not read yet
    finished: dict[str, Item] = {}
    order = iter(places.order)
    following = next(order, None)
    lacks_parent = 0
    for reader in readers:
        try:
            for batch in reader.batches():
                for name, part in _by_episode(batch):
                    waiting.setdefault(name, []).append(part)
                    missing[name] -= len(part["position"])
                    if missing[name]:
                        continue
                    item, is_cut_off = _item(reader, waiting.pop(name), places, kinds)
                    lacks_parent += is_cut_off
                    finished[name] = item
                while following in finished:
                    yield finished.pop(following)
                    following = next(order, None)
        except _BROKEN as error:
            yield Unreadable(
                reader.name, f"the file cannot be read to its end ({error}); copy it again"
            )
    for name in places.order:
        if name in finished:
            yield finished.pop(name)
        elif missing[name]:
            yield Unreadable(
                f"episode {name}", "some of its rows cannot be read; correct or copy the file"
            )
    if lacks_parent:
        warn(
            f"{lacks_parent} episodes are imported without their relation, because their parents "
            "are not in the files; export the parents too"
        )


class _FieldTypes(NamedTuple):
    """The types of the fields and annotations of all files."""

    fields: dict[str, Field]
    annotations: dict[str, Field]

    @classmethod
    def of(cls, readers: Sequence[_Reader]) -> _FieldTypes:
        kinds = cls({}, {})
        for reader in readers:
            kinds.fields.update(reader.fields)
            kinds.annotations.update(reader.annotations)
        return kinds

    def of_column(self, name: str) -> str:
        """Return the kind of a column: "own", "field", "annotation" or "final"."""
        base = name.removeprefix("next_")
        if name in self.fields:
            return "field"
        if name in OWN_COLUMNS:
            return "own"
        if name.partition("@")[0] in self.annotations:
            return "annotation"
        return "final" if base != name and base in self.fields else "field"


def _item(
    reader: _Reader, parts: list[Columns], places: _EpisodeIndex, kinds: _FieldTypes
) -> tuple[Item, bool]:
    """Return the rollout of an episode, and whether its parent is not in the files."""
    name = parts[0]["episode_id"][0]
    try:
        columns = _join_parts(parts)
        rollout = _rollout(reader, columns, places, kinds)
    except _BROKEN as error:
        text = f"the episode cannot be read ({error}); correct the file"
        return Unreadable(f"{reader.name}: episode {name}", text), False
    is_child = columns.get("relation", [None])[0] is not None
    return rollout, is_child and "parent" not in rollout.episode


def _by_episode(batch: Columns) -> Iterator[tuple[str, Columns]]:
    """Yield the rows of each episode of a batch."""
    numbers = np.asarray(batch["episode"])
    _, starts, counts = np.unique(numbers, return_index=True, return_counts=True)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(counts)
    for place in np.argsort(starts).tolist():
        rows = order[ends[place] - counts[place] : ends[place]]
        part = {name: _take_rows(column, rows) for name, column in batch.items()}
        yield part["episode_id"][0], part


def _take_rows(column: Any, rows: np.ndarray) -> Any:
    """Return some rows of a column, ascending."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return column[first : last + 1]
    if isinstance(column, np.ndarray):
        return column[rows]
    return [column[row] for row in rows.tolist()]


def _join_parts(parts: list[Columns]) -> Columns:
    """Return the rows of one episode, ordered by position.

    If a row occurs in several files, the last one counts. Raise InvalidValue if the rows belong to
    different episodes of one name.
    """
    origins = {(part["run"][0], part["started"][0], part["task_id"][0]) for part in parts}
    if len(origins) > 1:
        raise InvalidValue(
            "the files contain different episodes of this name, from different runs; import the "
            "files into different buffers"
        )
    columns: Columns = {}
    names = dict.fromkeys(name for part in parts for name in part)
    for name in names:
        pieces = [part.get(name, [None] * len(part["position"])) for part in parts]
        is_array = all(isinstance(piece, np.ndarray) for piece in pieces)
        if len(pieces) == 1:
            columns[name] = pieces[0]
        elif is_array and len({piece.dtype for piece in pieces}) == 1:
            columns[name] = np.concatenate(pieces)
        else:
            columns[name] = [value for piece in pieces for value in piece]
    positions = np.asarray(columns["position"])
    if (np.diff(positions) > 0).all():
        return columns
    _, last = np.unique(positions[::-1], return_index=True)
    order = len(positions) - 1 - last
    return {
        name: column[order]
        if isinstance(column, np.ndarray)
        else [column[row] for row in order.tolist()]
        for name, column in columns.items()
    }


def _locate(readers: list[_Reader]) -> Generator[Item, None, _EpisodeIndex]:
    """Return where the episodes are; yield and remove files that cannot be read."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    numbers: dict[int, set[str]] = {}
    parents: dict[str, tuple[_Reader, int]] = {}
    for reader in list(readers):
        found: dict[str, tuple[int, int]] = {}
        try:
            for batch in reader.parts(reader.keys, 1 << 16):
                table = pa.table(batch)
                groups = table.group_by(reader.keys[1:])
                totals = groups.aggregate([("position", "min"), ("position", "count")])
                for row in totals.to_pylist():
                    name, position = row["episode_id"], int(row["position_min"])
                    least, count = found.get(name, (position, 0))
                    found[name] = min(least, position), count + row["position_count"]
                    reader.names[int(row["episode"])] = name
                    if row.get("parent_episode") is not None:
                        parents[name] = reader, row["parent_episode"]
            if None in found or "" in found:
                raise InvalidValue("a row has no episode_id")
        except _BROKEN as error:
            readers.remove(reader)
            yield Unreadable(reader.name, f"the file cannot be read ({error}); copy or correct it")
            continue
        for name, (position, count) in found.items():
            first[name] = min(first.get(name, position), position)
            counts[name] = counts.get(name, 0) + count
        for number, name in reader.names.items():
            numbers.setdefault(number, set()).add(name)
    names = {number: next(iter(ids)) for number, ids in numbers.items() if len(ids) == 1}
    order: dict[str, None] = {}
    for name in sorted(first, key=first.__getitem__):
        chain = [name]
        while chain[-1] in parents and len(chain) <= len(first):
            reader, number = parents[chain[-1]]
            parent = reader.names.get(number) or names.get(number)
            if parent is None or parent in order or parent in chain:
                break
            chain.append(parent)
        order |= dict.fromkeys(reversed(chain))
    return _EpisodeIndex(list(order), counts, names)


class _Reader:
    """Read the rows of a file or a table as values with the types of the fields."""

    def __init__(self, source: Path | pa.Table):
        self._source = source
        self.name = str(source) if isinstance(source, Path) else type(source).__name__
        if isinstance(source, Path):
            with parquet.ParquetFile(source) as file:
                schema = file.schema_arrow
        else:
            schema = source.schema
        stored = types_in(schema)
        self.has_json_text = stored is None
        self.fields = _numeric_types(schema) if stored is None else stored.types
        self.annotations = {} if stored is None else stored.annotations
        self.names: dict[int, str] = {}  # `episode_id` of each number
        self.keys = ["position", "episode", "episode_id"]
        self.keys += ["parent_episode"] if "parent_episode" in schema.names else []
        self._names = [name for name in schema.names if name not in ("root_episode", "buffer")]
        if "priority" in self._names and not self._has_priorities():
            self._names.remove("priority")

    def parts(self, names: list[str], size: int) -> Iterator[pa.RecordBatch]:
        """Yield some columns in batches of at most `size` rows."""
        if isinstance(self._source, Path):
            with parquet.ParquetFile(self._source) as file:
                yield from file.iter_batches(size, columns=names)
        else:
            yield from self._source.select(names).to_batches(size)

    def _has_priorities(self) -> bool:
        """Return whether any priority is neither null nor NaN."""
        return any(
            compute.any(compute.is_finite(part.column(0).fill_null(float("nan")))).as_py()
            for part in self.parts(["priority"], 1 << 16)
        )

    def batches(self) -> Iterator[Columns]:
        """Yield the columns of some rows; fields of a fixed shape are arrays."""
        for batch in self.parts(self._names, BATCH_ROWS):
            yield {
                name: self._values(name, batch.column(place))
                for place, name in enumerate(batch.schema.names)
            }

    def _values(self, name: str, column: pa.Array) -> Any:
        field = self.fields.get(name) or self.fields.get(name.removeprefix("next_"))
        field = field or self.annotations.get(name.partition("@")[0])
        is_own = name in OWN_COLUMNS and name not in self.fields
        return values_of(column, None if is_own else field)


def _rollout(
    reader: _Reader, columns: Columns, places: _EpisodeIndex, kinds: _FieldTypes
) -> Rollout:
    kind = {name: kinds.of_column(name) for name in columns}
    own = {name: column for name, column in columns.items() if kind[name] == "own"}
    for name in ("agent_id", "policy_version", "policy_version_end", "relation", "parent_step"):
        own.setdefault(name, [None] * len(columns["position"]))
    first = {name: _plain(column[0]) for name, column in own.items()}
    last = {name: _plain(column[-1]) for name, column in own.items()}
    count, name = len(columns["position"]), str(first["episode_id"])
    episode = {name: last[name] for name in _OF_EPISODE if last.get(name) is not None}
    if "episode_tags" in episode:
        episode["episode_tags"] = json.loads(episode["episode_tags"])
    episode["agent_id"] = first["agent_id"]
    # A step without a version would have that of its episode.
    is_versioned = None not in own["policy_version"]
    episode["policy_version"] = first["policy_version"] if is_versioned else None
    number = first.get("parent_episode")
    parent = None
    if number is not None:
        parent = reader.names.get(number) or places.names.get(number)
    if parent is None:
        for key in ("relation", "parent_step"):
            episode.pop(key, None)
    else:
        episode["parent"] = parent
    fields = {name: column for name, column in columns.items() if kind[name] == "field"}
    final = {
        name.removeprefix("next_"): column[-1]
        for name, column in columns.items()
        if kind[name] == "final" and column[-1] is not None
    }
    rollout = Rollout(
        record=name, digest=_digest(columns, kind), episode=episode, final=final or None,
        steps=_step_columns(own, episode) | fields, types=kinds.fields,
        has_json_text=reader.has_json_text, source=f"{reader.name}: episode {name}",
    )  # fmt: skip
    for key, column in columns.items():
        if kind[key] == "annotation":
            base, at, version = key.partition("@")
            number = int(version) if at else None
            for index, array in enumerate(column):
                if array is not None:
                    rollout.annotations.append((base, number, index, np.asarray(array)))
    histories, latest = own.get(SCORE_HISTORY), own.get("scores", [None] * count)
    for index in range(count):
        if histories is None:
            rollout.scores += _latest_scores(latest[index], index)
        elif histories[index]:
            rollout.scores += _score_history(histories[index], index)
    rollout.scores.sort(key=lambda score: score.pop("id", 0))
    if "priority" in own:
        nan = float("nan")
        rollout.priorities = [nan if p is None else float(p) for p in own["priority"]]
    return rollout


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _step_columns(columns: Columns, episode: Mapping[str, Any]) -> Columns:
    """Return the columns of the steps as arguments of `store`, without those of the episode."""
    steps = {name: columns[name] for name in _OF_STEP if name in columns}
    if "tags" in steps and any(text is not None for text in steps["tags"]):
        steps["tags"] = [text and json.loads(text) for text in steps["tags"]]
    else:
        steps.pop("tags", None)
    for name, usual in (
        ("agent_id", [episode["agent_id"]] * len(columns["position"])),
        ("policy_version", [episode["policy_version"]] * len(columns["position"])),
        ("policy_version_end", columns["policy_version"]),
    ):
        if list(columns[name]) != list(usual):
            steps[name] = [
                None if value == other else value
                for value, other in zip(columns[name], usual, strict=True)
            ]
    return {name: column for name, column in steps.items() if any(v is not None for v in column)}


def _score_history(text: str, index: int) -> Iterator[dict[str, Any]]:
    """Yield the scores in the history of the step `index`."""
    for entry in json.loads(text):
        of_step = {} if entry["of_episode"] else {"step": index}
        detail = entry["detail"] and json.loads(entry["detail"])
        yield {name: entry[name] for name in HISTORY_KEYS} | of_step | {"detail": detail}


def _latest_scores(text: str | None, index: int) -> Iterator[dict[str, Any]]:
    """Yield the latest scores of the step `index`, for a file without a history."""
    for name, value in json.loads(text or "{}").items():
        status = {"status": "unknown"} if value is None else {}
        yield {"name": name, "value": value, "step": index, **status}


_NUMBERS = frozenset(("position", "episode", "parent_episode", "parent_position"))


def _digest(columns: Columns, kind: Mapping[str, str]) -> bytes:
    """Return a hash of the contents of the rows, without numbers that a copy does not keep.

    It does not depend on other rows of the file: columns without a value do not count, and arrays
    count the same as lists of their rows.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(columns.keys() - _NUMBERS):
        column = columns[name]
        if not isinstance(column, np.ndarray):
            if all(value is None for value in column):
                continue
            if kind[name] != "own" and all(isinstance(v, np.ndarray | np.generic) for v in column):
                shapes = {(value.shape, value.dtype) for value in column}
                column = np.stack(column) if len(shapes) == 1 else column
        if isinstance(column, np.ndarray):
            about: list[Any] = [column.dtype.name, list(column.shape)]
            data = column.tobytes()
        else:
            about, values = [], list(map(plain_value, column))
            text = json.dumps(values, sort_keys=True, ensure_ascii=False)
            data = text.encode("utf-8", "surrogatepass")
        digest.update(json.dumps([name, about, len(data)]).encode())
        digest.update(data)
    return digest.digest()


def plain_value(value: Any) -> Any:
    """Return a value of a field as JSON, without loss of bits."""
    if isinstance(value, np.ndarray):
        return [value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return [value.dtype.name, value.tobytes().hex()]
    return value.hex() if isinstance(value, bytes) else value


def _numeric_types(schema: pa.Schema) -> dict[str, Field]:
    """Return the types of the fields of a table without metadata, except text and JSON."""
    return {
        column.name: field
        for column in schema
        if column.name not in OWN_COLUMNS and (field := _type_of(column.type)) is not None
    }


def _type_of(kind: pa.DataType) -> Field | None:
    """Return the type of a field from that of its column, None for text."""
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
