"""Convert steps to Arrow batch by batch, for Parquet files and streams: one row per step."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from expdb import errors
from expdb.batch import Batch
from expdb.names import COLUMN_KINDS, EPISODE_COLUMNS, STEP_COLUMNS, kind_of
from expdb.sql.session import Session
from expdb.storage.reading import timestamps
from expdb.storage.reading.annotations import find_annotation
from expdb.storage.reading.columns import table_column
from expdb.storage.reading.fetch import final_types
from expdb.storage.store import Store
from expdb.storage.stored_json import json_text

BATCH_STEPS = 4096
METADATA = "expdb"  # the key in the metadata of a file; the value has the fields as in `buffers`
SCORE_HISTORY = "score_history"
HISTORY_KEYS = "name", "value", "by", "status", "detail", "scored", "id"
_TYPES = {
    "integer": pa.int64(), "integer?": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
    "text": pa.utf8(), "json": pa.utf8(),
}  # fmt: skip


def preload() -> None:
    """Import the Parquet writer in advance, because the import would delay a write by 0.2 s."""
    import pyarrow.parquet as parquet

    column = _of_arrays([np.zeros(1, np.int64)], pa.list_(pa.int64()))
    parquet.write_table(pa.table({"c": column}), pa.BufferOutputStream(), compression="zstd")


def schema_of(
    kinds: Mapping[str, str], times: bool = False, names: Sequence[str] | None = None
) -> pa.Schema:
    """Return the schema of a table of steps; `kinds` has the types of the fields as in `stats()`.

    By default, the table has the columns of steps and episodes, and all fields.
    """
    if names is None:
        names = [*dict.fromkeys(("position", "episode", *EPISODE_COLUMNS, *STEP_COLUMNS)), *kinds]
    types = {}
    for name in names:
        types[name] = _arrow_type(kinds[name]) if name in kinds else _TYPES[kind_of(name) or "text"]
        if times and name in timestamps.COLUMNS:
            types[name] = timestamps.KIND
    return pa.schema(types)


def types_of(store: Store) -> dict[str, str]:
    """Return the types of all fields, annotations and final observations of a buffer."""
    with store.engine.reading() as session:
        store.state(session)  # updates the fields
        types_of_finals = final_types(store, session)
    fields = store.fields.with_annotations()
    return {name: str(field) for name, field in fields.items()} | types_of_finals


def stream(
    store: Store,
    names: Sequence[str] | None,
    times: bool,
    scan: Callable[[Sequence[str]], Iterator[Batch]],
) -> pa.RecordBatchReader:
    """Return a stream of the steps that `scan` yields for a list of names, with JSON as text.

    Raise QueryError if a name is unknown, and InvalidValue if there is no name.
    """
    if names is not None and not names:
        raise errors.InvalidValue("fields must have at least one name; omit it for all fields")
    kinds = types_of(store)
    for name in names or ():
        annotation = find_annotation(store, name)
        if annotation is not None:
            kinds[name] = str(annotation[2])
        elif name not in (*kinds, "buffer"):
            table_column(store, name)
    schema = schema_of(kinds, times, names).with_metadata({METADATA: store.fields.as_text()})
    batches = scan(schema.names)
    parts = (part for batch in batches for part in _table(batch, schema, set()).to_batches())
    return pa.RecordBatchReader.from_batches(schema, parts)


def write(
    path: str | os.PathLike[str],
    kinds: Mapping[str, str],
    scan: Callable[[Sequence[str]], Iterator[Batch]],
    progress: Callable[[int], None] | None = None,
    *,
    store: Store,
    json_text: bool = False,
    times: bool = False,
) -> int:
    """Write the steps that `scan` yields for a list of names, and return their number.

    The metadata of the file contain the types of the fields. If the buffer has scores, the column
    `score_history` contains all scores of each step as JSON. The row of the last step of an episode
    also contains the scores of the episode.

    Arrays of a fixed shape become Arrow tensors, which other readers see as lists. Arrays of
    varying shape become lists, tags and JSON become text, and missing values become null. With
    `json_text`, `scan` yields JSON as text. With `times`, Unix seconds are written as timestamps
    in UTC.
    """
    import pyarrow.parquet as parquet

    schema, count = schema_of(kinds, times), 0
    names = schema.names
    has_history = SCORE_HISTORY not in names and store.read(_has_scores)
    if has_history:
        schema = schema.append(pa.field(SCORE_HISTORY, pa.utf8()))
    schema = schema.with_metadata({METADATA: store.fields.as_text()})
    as_json: set[str] = set()
    if not json_text:
        as_json = {"tags", "scores", "episode_tags"}
        as_json |= {name for name, kind in kinds.items() if kind == "json"}
    # Statistics and dictionaries of fields take time and save no space.
    columns = [name for name in names if name not in kinds]
    repeated = [name for name in columns if COLUMN_KINDS.get(name) == "text"]
    options = {"use_dictionary": repeated, "write_statistics": columns}
    with parquet.ParquetWriter(path, schema, compression="zstd", **options) as writer:
        for batch in scan(names):
            if has_history:
                history = store.read(_score_history, batch["position"], batch["episode"])
                batch = Batch({**batch, SCORE_HISTORY: history}, batch.size)
            writer.write_table(_table(batch, schema, as_json))
            count += batch.size
            if progress is not None:
                progress(batch.size)
    return count


def _has_scores(store: Store, session: Session) -> bool:
    """Return whether the buffer has a score."""
    return bool(session.query("SELECT 1 FROM scores WHERE buffer_id = ? LIMIT 1", store.id))


def _score_history(
    store: Store, session: Session, positions: np.ndarray, episodes: np.ndarray
) -> np.ndarray:
    """Return the history of the scores of each step as JSON, None for a step without scores."""
    ids = store.dialect.as_list(np.unique(episodes))
    rows = session.query(
        "SELECT coalesce(r.position, e.last_position), r.position IS NULL, r.name, r.value, "
        "r.scored_by, r.status, r.detail, r.scored, r.id FROM scores r JOIN episodes e "
        "ON e.buffer_id = r.buffer_id AND e.id = r.episode "
        f"WHERE r.buffer_id = ? AND r.episode {store.dialect.AMONG} ORDER BY r.id",
        store.id, ids,
    )  # fmt: skip
    history: dict[int, list[dict[str, Any]]] = {}
    for position, is_of_episode, *values in rows:
        entry = dict(zip(HISTORY_KEYS, values, strict=True))
        entry["of_episode"] = bool(is_of_episode)
        history.setdefault(position, []).append(entry)
    texts = [
        None if (entries := history.get(position)) is None else json.dumps(entries)
        for position in positions.tolist()
    ]
    return np.array([*texts, ""], object)[:-1]


def positions_of(path: Path) -> np.ndarray:
    """Return the positions of the steps in an archive file."""
    import pyarrow.parquet as parquet

    positions: np.ndarray = parquet.ParquetFile(path).read(["position"])["position"].to_numpy()
    return positions


def _table(batch: Batch, schema: pa.Schema, as_json: set[str]) -> pa.Table:
    """Return a batch as a table with the types of the file.

    The schema is necessary because the values of one batch may not determine the types. The columns
    in `as_json` hold Python values, which are written as JSON.
    """
    numbers = {name: array for name, array in batch.items() if array.dtype != object}
    table = Batch(numbers, batch.size).to_arrow()
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        array = batch[name]
        if array.dtype == object:
            arrays.append(_of_objects(array, kind, name in as_json))
        elif pa.types.is_list(kind):  # tensors with a 0 in their shape
            missing = table[name].is_null().to_pylist()
            cells = [None if no else cell for cell, no in zip(array, missing, strict=True)]
            arrays.append(_of_arrays(cells, kind))
        else:
            column = table[name]
            if kind == timestamps.KIND:
                column = timestamps.to_timestamps(name, column)
            arrays.append(column if column.type == kind else column.cast(kind))
    return pa.Table.from_arrays(arrays, schema=schema)


def _of_objects(array: np.ndarray, kind: pa.DataType, as_json: bool) -> pa.Array:
    values = array.tolist()
    if pa.types.is_list(kind):
        return _of_arrays(values, kind)
    if as_json:
        values = [None if value is None else json_text(value, (",", ":")) for value in values]
    return pa.array(values, kind)


def _of_arrays(values: Sequence[np.ndarray | None], kind: pa.DataType) -> pa.Array:
    """Return arrays of varying shape as nested lists, bit for bit; None becomes null."""
    inner, depth = kind, 0
    while pa.types.is_list(inner):
        inner, depth = inner.value_type, depth + 1
    dtype = np.dtype(inner.to_pandas_dtype())
    shapes = [(0,) * depth if value is None else value.shape for value in values]
    flat = [value.reshape(-1).view(dtype) for value in values if value is not None and value.size]
    column = pa.array(np.concatenate([np.empty(0, dtype), *flat]), inner)
    for axis in reversed(range(depth)):
        sizes = np.array([shape[axis] for shape in shapes], np.int64)
        counts = np.repeat(sizes, [math.prod(shape[:axis]) for shape in shapes])
        ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        missing = pa.array([value is None for value in values]) if axis == 0 else None
        column = pa.ListArray.from_arrays(pa.array(ends), column, mask=missing)
    return column


def _arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a field from its type in `stats()`, such as "float32[None, 3]"."""
    if kind in ("text", "json"):
        return pa.utf8()
    if kind == "bytes":
        return pa.binary()
    dtype, shape = re.fullmatch(r"(\w+)(?:\[(.*)\])?", kind).groups()  # type: ignore[union-attr]
    if shape is None:
        return pa.from_numpy_dtype(np.dtype(dtype))
    sizes = [None if n == "None" else int(n) for n in shape.split(", ")]
    value = pa.from_numpy_dtype(
        np.dtype(np.uint8 if dtype == "bool" and None not in sizes else dtype)
    )
    if None not in sizes and 0 not in sizes:  # readers fail on lists of size 0
        return pa.fixed_shape_tensor(value, sizes)
    for _ in sizes:
        value = pa.list_(value)
    return value
