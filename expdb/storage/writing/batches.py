"""Convert batches to rows: lists of mappings, mappings of columns and Arrow tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.chunks.infer import as_array, is_array
from expdb.errors import InvalidValue
from expdb.names import COLUMNS, EPISODE_KEYS, STEP_KEYS
from expdb.storage.writing.mappings import flatten_step

EPISODE_NAMES, STEP_NAMES = frozenset(EPISODE_KEYS), frozenset(STEP_KEYS)


def split_step(step: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a step into its columns and its fields."""
    columns: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, value in step.items():
        (columns if name in EPISODE_NAMES or name in STEP_NAMES else fields)[name] = value
    return columns, fields


def columns_of(batch: Any) -> dict[str, Sequence[Any]] | None:
    """Return a batch as columns of one length, with scalars broadcast.

    Return None if the batch is already a sequence of rows.
    """
    if isinstance(batch, Mapping):
        return _with_gaps(_broadcast(batch))
    if hasattr(batch, "__arrow_c_stream__"):
        table = table_of(batch)
        return _with_gaps({name: _from_arrow(table[name]) for name in table.column_names})
    if isinstance(batch, (list, tuple)):
        return None
    raise InvalidValue(
        "a batch must be a list of mappings, a mapping of columns or an Arrow table, got "
        f"{type(batch).__name__}"
    )


def table_of(batch: Any) -> pa.Table:
    """Return an object with `__arrow_c_stream__` as a table; raise InvalidValue if it is none."""
    try:
        table = pa.table(batch)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidValue(
            f"{type(batch).__name__} cannot be read as a table ({error}); give every column a name"
        ) from None
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidValue("the table has two columns of the same name; rename one of them")
    return table


def columns_of_table(batch: Any) -> dict[str, list[Any]]:
    """Return the columns of an Arrow table, or of a similar table, as lists of Python values."""
    columns: dict[str, list[Any]] = table_of(batch).to_pydict()
    return columns


def flatten_rollout(rollout: Any, agents: Any) -> dict[str, Any]:
    """Return columns [T, N, ...] of N agents as columns of T * N steps, agent by agent.

    Columns that describe episodes may have one value per agent.
    """
    names = _agent_names(agents)
    if not isinstance(rollout, Mapping):
        raise InvalidValue(
            "with agents, columns must be a mapping of columns [T, N, ...], got "
            f"{type(rollout).__name__}; pass a dict of arrays or omit agents"
        )
    if "agent_id" in rollout:
        raise InvalidValue("agent_id cannot be both a column and agents=; remove one of the two")
    columns: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    per_agent: dict[str, Sequence[Any]] = {}
    for name, value in _leaves(rollout):
        if is_array(value):
            array = as_array(value, name)
            _check_agents(name, array.shape, names)
            columns[name] = np.swapaxes(array, 0, 1).reshape(-1, *array.shape[2:])
        elif not isinstance(value, (list, tuple)):
            columns[name] = value
            continue
        elif name in EPISODE_KEYS and not any(isinstance(row, (list, tuple)) for row in value):
            _check_agents(name, (1, len(value)), names)
            per_agent[name] = value
            continue
        else:
            widths = {
                len(row) if isinstance(row, (list, tuple, np.ndarray)) else 0 for row in value
            }
            _check_agents(name, (len(value), *widths), names)
            columns[name] = [row[k] for k in range(len(names)) for row in value]
        lengths[name] = len(value)
    if len(set(lengths.values())) != 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InvalidValue(
            f"all columns must have the same number of steps T, got {shown or 'no columns'}; "
            "pass columns [T, N, ...] with the same T"
        )
    steps = next(iter(lengths.values()))
    for name, values in {**per_agent, "agent_id": names}.items():
        columns[name] = [value for value in values for _ in range(steps)]
    return columns


_SEQUENCES = (list, tuple, np.ndarray)


def _agent_names(agents: Any) -> list[str]:
    names = agents.tolist() if isinstance(agents, np.ndarray) else agents
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InvalidValue(f"agents must be a sequence of N different names, got {agents!r}")
    if len(set(names)) < len(names) or not names:
        raise InvalidValue(
            f"agents must contain at least one name, and no name twice, got {names!r}; give each "
            "environment its own name, because steps of one agent belong to one episode"
        )
    return list(names)


def _check_agents(name: str, shape: tuple[int, ...], names: list[str]) -> None:
    """Raise InvalidValue unless the second axis of a column has one entry per agent."""
    if len(shape) < 2 or shape[1] != len(names):
        raise InvalidValue(
            f"column {name!r} must be [T, {len(names)}, ...] with {len(names)} agents, got "
            f"{list(shape)}; swap the axes of [N, T, ...], or omit agents for [steps, ...]"
        )


def rows_of(batch: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a batch of columns, or of a list of mappings."""
    if isinstance(batch, Mapping):
        names = list(batch)
        yield from (dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True))
        return
    for row in batch:
        if not isinstance(row, Mapping):
            raise InvalidValue(
                "a step of a batch must be a mapping with the arguments of store(), got "
                f"{type(row).__name__}"
            )
        yield row


def _with_gaps(columns: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return columns with None where `has_<field>` is false, for steps without the field."""
    masks = {
        name: columns[name]
        for name in columns
        if name.startswith("has_") and name.removeprefix("has_") in columns
    }
    gaps = {
        name.removeprefix("has_"): [
            value if there else None
            for value, there in zip(columns[name.removeprefix("has_")], mask, strict=True)
        ]
        for name, mask in masks.items()
    }
    return {name: gaps.get(name, column) for name, column in columns.items() if name not in masks}


def _broadcast(batch: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    columns: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for name, value in _leaves(batch):
        if name in columns:
            raise InvalidValue(
                f"column {name!r} is passed twice, once nested and once by its dotted name; pass "
                "the column only once"
            )
        if is_array(value):
            value = (
                value
                if isinstance(value, np.ndarray) and value.dtype == object
                else as_array(value, name)
            )
            columns[name] = value
            if value.ndim:
                lengths[name] = len(value)
        else:
            columns[name] = value
            if isinstance(value, (list, tuple)):
                lengths[name] = len(value)
    if not lengths:
        raise InvalidValue(
            "no column of the batch is a list or an array; pass lists or arrays, or use store() "
            "for one step"
        )
    if len(set(lengths.values())) > 1:
        raise InvalidValue(
            "all columns must have the same length, got "
            f"{', '.join(f'{k} {n}' for k, n in lengths.items())}"
        )
    count = next(iter(lengths.values()))
    return {
        name: value if name in lengths else _Repeated(value, count)
        for name, value in columns.items()
    }


def _leaves(batch: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield columns by their names; {"obs": {"image": array}} has the column "obs.image".

    `flatten_step` also handles the rows of such batches, so both raise the same errors.
    """
    for name, value in batch.items():
        if not isinstance(name, str):
            raise InvalidValue(f"column name must be text, got {name!r}")
        if isinstance(value, Mapping) and name not in COLUMNS:
            yield from flatten_step({name: value}, {}, ()).items()
        else:
            yield name, value


class _Repeated(Sequence[Any]):
    """One value for every row."""

    def __init__(self, value: Any, count: int):
        self._value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._value

    def __iter__(self) -> Iterator[Any]:
        return iter([self._value] * self._count)


def _from_arrow(column: pa.ChunkedArray) -> Any:
    """Return an Arrow column as an array if possible, with the same dtype; nulls become None."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    kind, valid = array.type, array.is_valid().to_pylist()
    if isinstance(kind, pa.FixedShapeTensorType):
        flat = (
            array.storage.fill_null([0] * kind.storage_type.list_size).flatten()
            if array.null_count
            else array.storage.flatten()
        )
        values: Any = flat.to_numpy(zero_copy_only=False).reshape(len(array), *kind.shape)
    elif _is_number(kind):
        values = (
            array.fill_null(False if pa.types.is_boolean(kind) else 0)
            if array.null_count
            else array
        ).to_numpy(zero_copy_only=False)
    elif (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ) and _is_number(kind.value_type):
        # Return lists, because their length may differ between rows.
        if kind.value_type in (
            pa.int64(),
            pa.float64(),
        ):
            return array.to_pylist()
        return [
            cell.values.to_numpy(zero_copy_only=False) if there else None
            for cell, there in zip(array, valid, strict=True)
        ]
    else:
        return array.to_pylist()
    return (
        [value if there else None for value, there in zip(values, valid, strict=True)]
        if array.null_count
        else values
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )
