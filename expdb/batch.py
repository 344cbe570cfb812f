"""Batch: named arrays of as many rows, the shape in which experience leaves the database."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from expdb.errors import InvalidValue


class Batch(Mapping[str, np.ndarray]):
    """Hold named arrays, one row a step.

    `batch["obs"]` is an array [size, *shape]; fields of varying width and text are object arrays. No memory is shared
    with another batch or with the buffer, so it may be written to. `size` is the number of rows; `len` counts the names,
    as for every mapping.
    """

    __slots__ = ("_columns", "size")

    def __init__(self, columns: Mapping[str, np.ndarray], size: int | None = None):
        self._columns = dict(columns)
        self.size = next((len(array) for array in self._columns.values()), 0) if size is None else size

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"{name!r}: the batch has {', '.join(self._columns)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._columns.items())
        return f"Batch(size={self.size}, {columns})"

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict a row: Python numbers for scalars, arrays for tensors, None for unknown rewards and fields.

        A row of sequences, stacks, episodes or groups holds arrays of steps: there an unknown reward stays NaN, and
        `has_<field>` and `mask` say what is there.
        """
        columns = {name: _cells(array) for name, array in self._columns.items()}
        if "reward" in columns and self._columns["reward"].dtype == np.float64 and self._columns["reward"].ndim == 1:
            columns["reward"] = [None if reward != reward else reward for reward in columns["reward"]]
        for name in list(columns):
            field, there = name.removeprefix("has_"), self._columns[name]
            if field == name or field not in columns or there.ndim != 1 or there.dtype != np.bool_:
                continue
            columns[field] = [
                value if is_there else None for value, is_there in zip(columns[field], there.tolist(), strict=True)
            ]
            del columns[name]
        if not columns:
            return [{} for _ in range(self.size)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_torch(self, device: Any = None, *, non_blocking: bool = False) -> dict[str, Any]:
        """Return the arrays as torch tensors, on a device if one is named; object arrays become lists.

        float64 becomes torch's default dtype, as losses are computed in it; unsigned integers of 16 bits and more become
        int64, as torch computes with none of them (InvalidValue beyond 2**63 - 1); every other dtype stays. On the CPU a tensor
        shares the memory of its array unless its dtype changes. With `non_blocking` arrays in pinned memory are on their
        way to the device when this returns: see `expdb.integrations.torch.pinned`.
        """
        import torch

        out: dict[str, Any] = {}
        for name, array in self._columns.items():
            if array.dtype == object:
                out[name] = array.tolist()
                continue
            if array.dtype in (np.uint16, np.uint32, np.uint64):
                if array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise InvalidValue(f"{name} holds {array.max()}, which torch has no integers for: leave it out with fields=")
                array = array.astype(np.int64)
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            dtype = torch.get_default_dtype() if array.dtype == np.float64 else tensor.dtype
            out[name] = tensor.to(device=device, dtype=dtype, non_blocking=non_blocking)
        return out

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Hand the batch to anything that reads Arrow: `pyarrow.table(batch)`, polars, pandas 3, duckdb."""
        import pyarrow as pa

        arrays = {name: _arrow(array) for name, array in self._columns.items()}
        return pa.table(arrays).__arrow_c_stream__(requested_schema)


def _cells(array: np.ndarray) -> list[Any]:
    return array.tolist() if array.ndim == 1 else [row.copy() for row in array]


def _arrow(array: np.ndarray) -> Any:
    import json

    import pyarrow as pa

    if array.dtype == object:
        values = array.tolist()
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {str} or kinds <= {bytes}:
            return pa.array(values, pa.binary() if kinds == {bytes} else pa.utf8())
        if kinds == {np.ndarray} and all(value is None or value.ndim == 1 for value in values):
            return pa.array(values)
        as_json = [None if value is None else json.dumps(value, default=lambda one: one.tolist()) for value in values]
        return pa.array(as_json, pa.utf8())
    if array.ndim == 1:
        return pa.array(array)
    if not array.size:
        kind = pa.fixed_shape_tensor(pa.from_numpy_dtype(array.dtype), array.shape[1:])
        return pa.ExtensionArray.from_storage(kind, pa.nulls(len(array), kind.storage_type))
    data = array.view(np.uint8) if array.dtype == np.bool_ else array
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(data))
