"""Steps as Parquet files, batch by batch: one row per step with its columns and every field."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from expdb.batch import Batch
from expdb.names import COLUMN_KINDS, EPISODE_COLUMNS, STEP_COLUMNS

BATCH_STEPS = 4096
_TYPES = {
    "integer": pa.int64(), "integer?": pa.int64(), "real": pa.float64(), "flag": pa.bool_(),
    "text": pa.utf8(), "json": pa.utf8(),
}  # fmt: skip


def schema_of(kinds: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a file: the columns, and the fields, given as `stats()` does."""
    names = dict.fromkeys(("position", "episode", *EPISODE_COLUMNS, *STEP_COLUMNS))
    columns = {name: _TYPES[COLUMN_KINDS[name]] for name in names}
    return pa.schema({**columns, **{name: _arrow_type(kind) for name, kind in kinds.items()}})


def write(
    path: str | os.PathLike[str],
    kinds: Mapping[str, str],
    scan: Callable[[Sequence[str]], Iterator[Batch]],
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the steps that `scan` yields, given the names it is to read; return how many.

    Arrays of one shape are Arrow's tensors, which other readers see as lists; arrays of varying
    shape are lists; tags and JSON are text; a missing value is null.
    """
    import pyarrow.parquet as parquet

    schema, count = schema_of(kinds), 0
    is_json = {"tags", "episode_tags", *[name for name, kind in kinds.items() if kind == "json"]}
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in scan(list(schema.names)):
            table = batch.to_arrow()
            arrays = [
                _as_type(table[name], batch[name], schema.field(name).type, name in is_json)
                for name in schema.names
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += batch.size
            if progress is not None:
                progress(batch.size)
    return count


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
    if None not in sizes and 0 not in sizes:  # nobody can read a file with lists of size 0
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
    if array.dtype != object and not pa.types.is_list(kind):
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
