"""Batch: named arrays of as many rows, the shape in which experience leaves the database."""

from __future__ import annotations  # the tables that it becomes are not imported with it

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from expdb.errors import DriverMissing, InvalidValue
from expdb.names import build_attribute_error

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa


# What other libraries call the columns of a batch.
ALIASES = {
    "observation": "obs", "observations": "obs", "next_observations": "next_obs", "new_obs":
    "next_obs", "actions": "action", "dones": "terminated", "done": "terminated",
}  # fmt: skip


class Batch(Mapping[str, np.ndarray]):
    """Hold named arrays, one row per step.

    `batch["obs"]` is an array [size, *shape]; fields of varying width and text are object arrays.
    No memory is shared with another batch or with the buffer, so it may be written to. `size` is
    the number of rows; `len` counts the names, as for every mapping.
    """

    __slots__ = ("_columns", "size")

    def __init__(self, columns: Mapping[str, np.ndarray], size: int | None = None):
        self._columns = dict(columns)
        self.size = (
            next((len(array) for array in self._columns.values()), 0) if size is None else size
        )

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"{name!r}: the batch has {', '.join(self._columns)}") from None

    def __getattr__(self, name: str) -> NoReturn:
        columns = () if name.startswith("_") else self._columns
        instead = {column: f"batch[{column!r}]" for column in columns}
        meant = ALIASES.get(name)
        if meant in columns:
            instead.setdefault(name, f"batch[{meant!r}]")
        elif not name.startswith("_") and (near := get_close_matches(name, columns, 1, 0.6)):
            instead.setdefault(name, f"batch[{near[0]!r}]")
        raise build_attribute_error("a Batch", name, dir(type(self)), instead)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._columns.items()
        )
        return f"Batch(size={self.size}, {columns})"

    def _known(self) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
        """Yield each column with a mask of the rows that have a value, None where all have.

        It comes from `has_<field>`, or from numbers that are not known.
        """
        for name, array in self._columns.items():
            field = name.removeprefix("has_")
            if (
                field != name
                and field in self._columns
                and array.ndim == 1
                and array.dtype == np.bool_
            ):
                continue  # it is the mask of another
            there = self._columns.get(f"has_{name}")
            if there is not None and there.ndim == 1 and there.dtype == np.bool_:
                yield name, array, there
            elif name in UNKNOWN_AS_NAN and array.ndim == 1 and array.dtype == np.float64:
                yield name, array, ~np.isnan(array)
            else:
                yield name, array, None

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict per row.

        Python numbers for scalars, arrays for tensors, None for unknown rewards and fields.

        A row of sequences, stacks, episodes or groups holds arrays of steps: there an unknown
        reward stays NaN, and `has_<field>` and `mask` say what is there.
        """
        columns = {}
        for name, array, there in self._known():
            cells = _cells(array)
            columns[name] = (
                cells
                if there is None
                else [
                    cell if one else None for cell, one in zip(cells, there.tolist(), strict=True)
                ]
            )
        if not columns:
            return [{} for _ in range(self.size)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_arrow(self) -> pa.Table:
        """Return the batch as an Arrow table, one row per row; a missing value is null.

        Tensors are columns of Arrow's fixed-shape tensors, JSON is text. In sequences an unknown
        reward stays NaN.
        """
        import pyarrow as pa

        return pa.table({name: _arrow(array, there) for name, array, there in self._known()})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the batch as a pandas DataFrame, one row per row.

        A missing value is NaN, NA or None.

        Whole numbers and flags of which some are missing become `Int64` and `boolean`, which know
        NA; a cell of a tensor column holds an array. Needs pandas.
        """
        try:
            import pandas
        except ImportError:
            raise DriverMissing("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(
            {name: _series(pandas, array, there) for name, array, there in self._known()},
            index=range(self.size),
        )

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Refuse to be one array: `pandas.DataFrame(batch)` would be a column of names."""
        raise InvalidValue(
            "a batch is many arrays by name: use batch.to_pandas(), batch.to_arrow() or "
            "batch['obs']"
        )

    def to_torch(self, device: Any = None, *, non_blocking: bool = False) -> dict[str, Any]:
        """Return the arrays as torch tensors, on a device if one is named.

        Object arrays become lists.

        float64 becomes torch's default dtype, as losses are computed in it; unsigned integers of 16
        bits and more become int64, as torch computes with none of them (InvalidValue beyond 2**63 -
        1); every other dtype stays. On the CPU a tensor shares the memory of its array unless its
        dtype changes. With `non_blocking` arrays in pinned memory are on their way to the device
        when this returns: see `expdb.integrations.torch.pinned`.
        """
        import torch

        out: dict[str, Any] = {}
        for name, array in self._columns.items():
            if array.dtype == object:
                out[name] = array.tolist()
                continue
            if array.dtype in (np.uint16, np.uint32, np.uint64):
                if array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise InvalidValue(
                        f"{name} holds {array.max()}, which torch has no integers for: leave it "
                        "out with fields="
                    )
                array = array.astype(np.int64)
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            dtype = torch.get_default_dtype() if array.dtype == np.float64 else tensor.dtype
            out[name] = tensor.to(device=device, dtype=dtype, non_blocking=non_blocking)
        return out

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Hand the batch, as `to_arrow` has it, to anything that reads Arrow.

        Polars, duckdb, `pyarrow.table(batch)`.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)


# Columns whose NaN stands for a value that is not known.
UNKNOWN_AS_NAN = (
    "reward",
    "priority",
    "episode_return",
    "ended",
)


def _cells(array: np.ndarray) -> list[Any]:
    return array.tolist() if array.ndim == 1 else [row.copy() for row in array]


def _series(pandas: Any, array: np.ndarray, there: np.ndarray | None) -> Any:
    if array.ndim > 1 or array.dtype == object:
        cells = _cells(array)
        values = (
            cells
            if there is None
            else [cell if one else None for cell, one in zip(cells, there.tolist(), strict=True)]
        )
        return pandas.Series(values, dtype=object)
    if there is None or there.all():
        return pandas.Series(array.copy())
    if array.dtype.kind == "f":
        return pandas.Series(np.where(there, array, array.dtype.type(np.nan)))
    kind = (
        "boolean"
        if array.dtype == np.bool_
        else array.dtype.name.replace("int", "Int").replace("uInt", "UInt")
    )
    return pandas.Series(array, dtype=kind).where(there)


def _plain(value: Any) -> Any:
    """Return what JSON makes of arrays and bytes."""
    return value.hex() if isinstance(value, bytes) else value.tolist()


def _arrow(array: np.ndarray, there: np.ndarray | None) -> Any:
    import json

    import pyarrow as pa

    if array.dtype == object:
        values = [
            cell if there is None or there[k] else None for k, cell in enumerate(array.tolist())
        ]
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {str} or kinds <= {bytes}:
            return pa.array(values, pa.binary() if kinds == {bytes} else pa.utf8())
        if kinds == {np.ndarray} and all(
            value is None or (value.ndim == 1 and value.dtype != object) for value in values
        ):
            return pa.array(values)
        as_json = [None if value is None else json.dumps(value, default=_plain) for value in values]
        return pa.array(as_json, pa.utf8())
    missing = None if there is None or there.all() else ~there
    if array.ndim == 1:
        return pa.array(array, mask=missing)
    kind = pa.fixed_shape_tensor(
        pa.from_numpy_dtype(np.uint8 if array.dtype == np.bool_ else array.dtype), array.shape[1:]
    )
    if not array.size:
        cells: list[Any] = [
            None if missing is not None and missing[k] else [] for k in range(len(array))
        ]
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    data = array.view(np.uint8) if array.dtype == np.bool_ else array
    if missing is None:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(data))
    values = pa.array(np.ascontiguousarray(data).reshape(-1))
    storage = pa.FixedSizeListArray.from_arrays(
        values, kind.storage_type.list_size, mask=pa.array(missing)
    )
    return pa.ExtensionArray.from_storage(kind, storage)
