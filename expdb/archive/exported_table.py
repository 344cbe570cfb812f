"""Convert tables with the columns of an export back to steps."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.archive.parquet import METADATA, SCORE_HISTORY
from expdb.chunks.fields import Field, check_name
from expdb.errors import DatabaseDamaged, InvalidValue, ReservedName, warn
from expdb.names import COLUMNS, EPISODE_COLUMNS, STEP_COLUMNS
from expdb.storage.catalog import Fields
from expdb.storage.store import Store
from expdb.storage.writing.batches import table_of
from expdb.storage.writing.change import declare

# The columns that show that a table has been exported.
SIGNATURE = frozenset(("position", "episode", "episode_id", "task_id", "status", "started"))
OWN_COLUMNS = frozenset((*EPISODE_COLUMNS, *STEP_COLUMNS, "buffer", "episode", SCORE_HISTORY))
# Columns of an export that a step has no argument for, and that `import_rollouts` stores.
_LEFT_OUT = ("priority", "scores")


def as_batch(store: Store, batch: Any) -> tuple[Any, dict[str, str]]:
    """Return a batch for `store_batch`, and the statuses of the episodes of an exported table.

    The fields of an exported table are declared. Raise ReservedName if another table has columns
    with reserved names, and InvalidValue if it cannot be read.
    """
    if isinstance(batch, Mapping) or not hasattr(batch, "__arrow_c_stream__"):
        return batch, {}
    table = table_of(batch)
    if not set(table.column_names) >= SIGNATURE:
        _refuse_reserved(table.column_names)
        return table, {}
    written = types_in(table.schema) or Fields({}, set(), 0)
    known = store.fields.types
    columns = _columns_of(table, {**known, **written.types}, written.annotations)
    new = {name: type for name, type in written.types.items() if name in columns}
    if not new.keys() <= known.keys():
        declare(store, {name: type for name, type in new.items() if name not in known})
    return columns, dict(zip(columns["episode_id"], table["status"].to_pylist(), strict=True))


def _columns_of(
    table: pa.Table, types: Mapping[str, Field], annotations: Mapping[str, Field]
) -> dict[str, Sequence[Any]]:
    """Return the columns of an exported table by the arguments of `store`."""
    columns: dict[str, Sequence[Any]] = {}
    left_out = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in COLUMNS:
            columns[name] = parse_json_column(column) if "tags" in name else values_of(column, None)
        elif name in OWN_COLUMNS or name in annotations or name.startswith("next_"):
            is_lost = name in _LEFT_OUT or name not in OWN_COLUMNS
            if is_lost and column.null_count < len(column):
                left_out.append(name)
        else:
            columns[name] = values_of(column, types.get(name))
    if {"parent_episode", "parent_step", "relation"} <= set(table.column_names):
        numbers = dict(zip(table["episode"].to_pylist(), columns["episode_id"], strict=True))
        parents = [numbers.get(number) for number in table["parent_episode"].to_pylist()]
        columns["parent"] = parents
        for name in ("parent_step", "relation"):
            pairs = zip(parents, table[name].to_pylist(), strict=True)
            columns[name] = [None if parent is None else value for parent, value in pairs]
    if left_out:
        warn(
            f"store_batch() leaves out the columns {', '.join(left_out)}, because steps have no "
            "arguments for them; to keep all values, pass the table to expdb.formats.read() and "
            "expdb.formats.import_rollouts()"
        )
    return columns


def types_in(schema: pa.Schema) -> Fields | None:
    """Return the fields in the metadata of an export, None if it has no metadata."""
    text = (schema.metadata or {}).get(METADATA.encode())
    try:
        return None if text is None else Fields.from_text(text.decode(), 0)
    except (DatabaseDamaged, UnicodeDecodeError):
        raise InvalidValue(
            "the metadata of the table are corrupted; export the table again, or remove the key "
            f"{METADATA!r} from the metadata"
        ) from None


def values_of(column: pa.Array, field: Field | None) -> Any:
    """Return the values of a column with the type of its field, as a list or an array.

    Null becomes None.
    """
    if pa.types.is_timestamp(column.type):  # exported with timestamps=True
        from pyarrow import compute  # 20 ms, so `expdb.open` does not import it

        return compute.divide(column.cast(pa.timestamp("us")).cast(pa.int64()), 1e6).to_pylist()
    if field is None or field.dtype in ("text", "bytes"):
        return column.to_pylist()
    if field.dtype == "json":
        return parse_json_column(column)
    return _arrays(column, field)


def parse_json_column(column: pa.Array) -> list[Any]:
    """Return the values of a column of JSON text."""
    return [None if text is None else json.loads(text) for text in column.to_pylist()]


def _refuse_reserved(names: Sequence[str]) -> None:
    """Raise ReservedName if a table has columns that cannot be stored, with all their names."""
    refused = []
    for name in names:
        try:
            if name not in COLUMNS and not name.startswith("has_"):
                check_name(name)
        except ReservedName:
            refused.append(name)
    if refused:
        shown = ", ".join(refused)
        raise ReservedName(
            f"the columns {shown} cannot be stored, because they have the names of columns or "
            f"batch keys; drop them with table.drop_columns({refused}), or rename them"
        )


def _arrays(column: pa.Array, field: Field) -> Any:
    """Return the arrays or numbers of a column, bit for bit.

    The result is one array if the shape is fixed and no value is missing.
    """
    dtype = field.numpy
    valid = column.is_valid().to_pylist() if column.null_count else None
    if not field.shape or isinstance(column, pa.ExtensionArray):
        values = column
        if field.shape:
            storage = column.storage
            size = storage.type.list_size
            values = storage.values.slice(storage.offset * size, len(storage) * size)
        rows = _flat(values).astype(dtype, copy=False).reshape(len(column), *field.shape)
        if valid is None:
            return rows
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    there = [True] * len(column) if valid is None else valid
    return [
        _nested(cell.values, field, dtype) if is_there else None
        for cell, is_there in zip(column, there, strict=True)
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
