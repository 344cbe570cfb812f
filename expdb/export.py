"""What a query matches, as a Parquet file: written batch by batch, whatever its size."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import expdb

BATCH_STEPS = 4096
STEP_COLUMNS = {
    "step": pa.int64(), "pre_agent": pa.utf8(), "execute_time": pa.float64(),
    "reward": pa.float64(), "terminated": pa.bool_(), "truncated": pa.bool_(),
    "priority": pa.float64(), "tags": pa.utf8(), "policy_version": pa.int64(),
    "policy_version_end": pa.int64(),
}  # fmt: skip


def export(
    buffer: expdb.ReplayBuffer,
    target: str | os.PathLike[str],
    where: Any = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the matching steps of a buffer into a new Parquet file, and return how many there are.

    One row per step with its columns, those of its episode, and every field: arrays of one shape as
    Arrow's tensors, which other readers see as lists; arrays of varying shape as lists; tags and
    JSON as text; a missing value is null. `progress` is called with the number of steps of each
    batch. Raises TargetExists where the file exists, and InvalidValue for another ending than
    .parquet or .pq.
    """
    import pyarrow.parquet as parquet

    path = Path(target)
    if path.suffix.lower() not in (".parquet", ".pq"):
        raise expdb.InvalidValue(
            f"{path} does not end in .parquet: export writes Parquet files, so name one"
        )
    if path.exists():
        raise expdb.TargetExists(f"{path} exists: name a new file")
    if not path.parent.is_dir():
        raise expdb.DatabaseMissing(f"the folder {path.parent} does not exist: create it first")
    kinds = buffer.stats()["fields"]
    columns = {"position": pa.int64(), **_episode_columns(buffer), **STEP_COLUMNS}
    schema = pa.schema({**columns, **{name: _arrow_type(kind) for name, kind in kinds.items()}})
    is_json = {"tags", "episode_tags", *[name for name, kind in kinds.items() if kind == "json"]}
    draft, count = path.with_name(f".{path.name}.{uuid.uuid4().hex}"), 0
    try:
        with parquet.ParquetWriter(draft, schema, compression="zstd") as writer:
            for batch in buffer.scan(where, size=BATCH_STEPS, fields=list(schema.names)):
                table = batch.to_arrow()
                arrays = [
                    _as_type(table[name], batch[name], schema.field(name).type, name in is_json)
                    for name in schema.names
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                count += batch.size
                if progress is not None:
                    progress(batch.size)
        _name(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()
    return count


def _episode_columns(buffer: expdb.ReplayBuffer) -> dict[str, pa.DataType]:
    schema = buffer.episodes([]).schema
    return {one.name: one.type for one in schema if one.name not in ("started", "ended")}


def _name(draft: Path, path: Path) -> None:
    """Give a finished file its name, in one step and never over another file."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise expdb.TargetExists(f"{path} exists: name a new file") from None
    except OSError:  # a file system without hard links
        draft.rename(path)


def _arrow_type(kind: str) -> pa.DataType:
    """Return the type of a field, given as `stats()` does: "text", "int64", "float32[None, 3]"."""
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
    if None not in sizes:
        return pa.fixed_shape_tensor(value, sizes)
    for _ in sizes:
        value = pa.list_(value)
    return value


def _as_type(
    column: pa.ChunkedArray, array: np.ndarray, kind: pa.DataType, is_json: bool
) -> pa.Array | pa.ChunkedArray:
    """Return a column in the file's type: what one batch holds need not tell it."""
    if column.type == kind and array.dtype != object:
        return column
    if array.dtype != object:
        return column.cast(kind)
    if pa.types.is_list(kind):
        return pa.array([None if value is None else value.tolist() for value in array], kind)
    return pa.array(
        [
            json.dumps(value, ensure_ascii=False) if is_json and value is not None else value
            for value in array
        ],
        kind,
    )
