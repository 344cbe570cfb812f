"""The column class of each kind of field, and the layout of its column in a chunk."""

from expdb.chunks.column import Column
from expdb.chunks.columns import BytesColumn, ScalarColumn, TensorColumn, VaryingColumn
from expdb.chunks.fields import Field
from expdb.chunks.json_column import JsonColumn
from expdb.chunks.prefix_column import PrefixColumn
from expdb.chunks.run_column import RunColumn


def column_of(name: str, field: Field) -> Column:
    """Return an empty column for a field."""
    return _class_of(field)(name, field)


def _class_of(field: Field) -> type[Column]:
    if field.dtype == "json":
        return JsonColumn
    if field.dtype in ("text", "bytes"):
        return BytesColumn
    if field.ascending:
        return RunColumn
    if field.has_prefixes:
        return PrefixColumn
    if None in field.shape:
        return VaryingColumn
    return TensorColumn if field.shape else ScalarColumn


def layout_of(field: Field, prefixed: bool) -> tuple[int, int]:
    """Return the number of nodes and the number of buffers of the column of a field.

    `prefixed` is false for chunks from before schema 0010, which stored whole values.
    """
    if field.has_prefixes and not prefixed:
        return (2, 4) if len(field.shape) == 1 else (5, 8)
    kind = _class_of(field)
    return kind.nodes_per_column, kind.buffers_per_column
