"""Batch: named arrays of equal length, returned by every method that reads or samples steps."""

from __future__ import annotations  # pandas and pyarrow are imported only for type checkers

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from expdb import checks
from expdb.displays import batch_html
from expdb.errors import DriverMissing, InvalidValue
from expdb.names import SCORE, build_attribute_error

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa


# Names in other libraries for the columns of a batch.
ALIASES = {
    "observation": "obs", "observations": "obs", "next_observations": "next_obs", "new_obs":
    "next_obs", "actions": "action", "dones": "terminated", "done": "terminated",
}  # fmt: skip


class Batch(Mapping[str, np.ndarray]):
    """Map names to NumPy arrays that have one row per sampled item.

    ``batch["obs"]`` is an array of shape ``[size, *shape]``, where ``shape`` is that of one
    observation. Text, bytes, JSON and fields of varying shape are object arrays. `len` counts the
    names, as for every mapping. An unknown name raises a KeyError that lists the known names.

    A batch that expdb returns shares no memory with the buffer or with another batch, so you may
    write to its arrays.

    Parameters
    ----------
    columns : mapping of str to ndarray
        Arrays by name, all of the same length.
    size : int, optional
        Number of rows. By default the length of the first array, or 0 if there is none.
    annotate : callable, optional
        Function that the method `annotate` calls. expdb sets it for batches of `Tokens`.

    Attributes
    ----------
    size : int
        Number of rows.

    Examples
    --------
    >>> batch = Batch({"reward": np.array([0.5, np.nan]), "step": np.array([0, 1])})
    >>> batch.size, len(batch)
    (2, 2)
    >>> batch.to_list()
    [{'reward': 0.5, 'step': 0}, {'reward': None, 'step': 1}]
    """

    __slots__ = ("_annotate", "_columns", "size")

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        size: int | None = None,
        annotate: Callable[..., int] | None = None,
    ):
        self._columns, self._annotate = dict(columns), annotate
        self.size = (
            next((len(array) for array in self._columns.values()), 0) if size is None else size
        )

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(
                f"the batch has no key {name!r}; the keys are {', '.join(self._columns)}; pass "
                "fields= to select others"
            ) from None

    def __contains__(self, name: object) -> bool:  # faster than the method of Mapping
        return name in self._columns

    def items(self) -> ItemsView[str, np.ndarray]:
        """Return the names and the arrays of the columns.

        Returns
        -------
        ItemsView
            Pairs of a name and an array.
        """
        return self._columns.items()

    def __getattr__(self, name: str) -> NoReturn:
        columns = () if name.startswith("_") else self._columns
        instead = {column: f"batch[{column!r}]" for column in columns}
        meant = ALIASES.get(name)
        if meant in columns:
            instead.setdefault(name, f"batch[{meant!r}]")
        elif not name.startswith("_") and (near := get_close_matches(name, columns, 1, 0.6)):
            instead.setdefault(name, f"batch[{near[0]!r}]")
        raise build_attribute_error("a Batch", name, dir(type(self)), instead)

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._columns, self.size)  # another process cannot annotate the buffer

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._columns.items()
        )
        return f"Batch(size={self.size}, {columns})"

    _repr_html_ = batch_html

    def _columns_and_masks(self) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
        """Yield the name, the array and the mask of each column.

        The mask marks the rows with a value: it is the column `has_<field>`, or False where a
        number is NaN. A mask of None means that every row has a value.
        """
        for name, array in self._columns.items():
            field = name.removeprefix("has_")
            if (
                field != name
                and field in self._columns
                and array.ndim == 1
                and array.dtype == np.bool_
            ):
                continue  # the mask of another column
            there = self._columns.get(f"has_{name}")
            if there is not None and there.ndim == 1 and there.dtype == np.bool_:
                yield name, array, there
            elif (
                (name in UNKNOWN_AS_NAN or SCORE.fullmatch(name))
                and array.ndim == 1
                and array.dtype == np.float64
            ):
                yield name, array, ~np.isnan(array)
            else:
                yield name, array, None

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> Batch:
        """Return a batch with other columns and the same annotate function; for internal use.

        Parameters
        ----------
        columns : mapping of str to ndarray
            Arrays by name, all of the same length.

        Returns
        -------
        Batch
            A batch whose `annotate` stores arrays in the same buffer.
        """
        return Batch(columns, None, self._annotate)

    def annotate(self, /, version: int | None = None, **arrays: Any) -> int:
        """Store arrays for the generated tokens of a batch of `Tokens`, turn by turn.

        Read them like fields of the turns; see `ReplayBuffer.annotate`. If only some generated
        tokens of a turn are in the batch, because a row was cut or a later prompt replaced tokens,
        the other tokens get NaN. A turn without tokens in the batch gets no array.

        Parameters
        ----------
        version : int, optional
            Version of the arrays, at least 0.
        **arrays
            By name, an array or a tensor of shape (B, T, ...), with one value for each token of the
            batch. Only the values of generated tokens are stored.

        Returns
        -------
        int
            Number of stored arrays: one for each name and turn.

        Raises
        ------
        InvalidValue
            If the unit of the batch is not `Tokens`, an array has the wrong shape, or an array of
            another type than float has no value for a generated token that is not in the batch.
        FieldMismatch
            If an array does not fit the type of its annotation, or the name is that of a field.
        Evicted
            If a turn is no longer stored.

        Examples
        --------
        >>> with consumer.lease(16, unit=unit) as batch:  # doctest: +SKIP
        ...     batch.annotate(trainer_logprobs=logprobs)
        """
        if self._annotate is None:
            raise InvalidValue(
                "annotate() requires a batch that a buffer of this process returned for the unit "
                "Tokens; for other batches, use buffer.annotate(positions, name=arrays)"
            )
        number = None if version is None else checks.whole(version, "version", 0)
        return self._annotate(self["token_step"], self["token_index"], number, arrays)

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as a list of dicts.

        A scalar becomes a Python number. A tensor becomes an array that shares no memory with the
        batch. An unknown reward or a missing field becomes None, and its key ``has_<field>`` is
        omitted.

        A row of `Sequence`, `Stack`, `Episode` or `Group` holds arrays of steps. In these arrays
        an unknown reward stays NaN, and ``has_<field>`` and ``mask`` mark the values that exist.

        Returns
        -------
        list of dict
            One dict per row, from name to value.
        """
        columns = {}
        for name, array, there in self._columns_and_masks():
            columns[name] = _cells(array, there)
        if not columns:
            return [{} for _ in range(self.size)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_arrow(self) -> pa.Table:
        """Convert the batch to an Arrow table.

        A missing value becomes null. Tensors become columns of Arrow's type fixed_shape_tensor, in
        which bool is uint8. JSON becomes text. In sequences an unknown reward stays NaN.

        Returns
        -------
        pyarrow.Table
            Table with one row per row of the batch.
        """
        import pyarrow as pa

        return pa.table(
            {name: _arrow(array, there) for name, array, there in self._columns_and_masks()}
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Convert the batch to a pandas DataFrame.

        A missing value becomes NaN, NA or None. Integer and bool columns with missing values get
        the nullable pandas type of the same width, such as ``Int64``, ``UInt8`` or ``boolean``. A
        cell of a tensor column holds an array.

        Returns
        -------
        pandas.DataFrame
            Frame with one row per row of the batch.

        Raises
        ------
        DriverMissing
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise DriverMissing("to_pandas() requires pandas; run `pip install pandas`") from None
        return pandas.DataFrame(
            {
                name: _series(pandas, array, there)
                for name, array, there in self._columns_and_masks()
            },
            index=range(self.size),
        )

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Raise InvalidValue, because `pandas.DataFrame(batch)` would be a column of names."""
        raise InvalidValue(
            "a batch cannot be converted to one array; use batch.to_pandas(), batch.to_arrow() "
            "or batch['obs']"
        )

    def to_torch(self, device: Any = None, *, non_blocking: bool = False) -> dict[str, Any]:
        """Convert the arrays to PyTorch tensors.

        float64 becomes PyTorch's default dtype, in which losses are computed. uint16, uint32 and
        uint64 become int64, because PyTorch does not compute with these types. Every other dtype
        is kept. Object arrays become lists, and numeric arrays in these lists become tensors. On
        the CPU a tensor shares the memory of its array unless the dtype changes or the array is
        not contiguous.

        Parameters
        ----------
        device : torch.device or str, optional
            Device of the tensors, by default the CPU.
        non_blocking : bool, default False
            Whether to return before arrays in pinned memory are copied to the device. See
            `expdb.integrations.torch.pinned`.

        Returns
        -------
        dict of str to torch.Tensor
            Tensors by name; a list for each object array.

        Raises
        ------
        InvalidValue
            If an unsigned value exceeds 2**63 - 1.
        """
        import torch

        def convert(name: str, array: Any) -> Any:
            if not isinstance(array, np.ndarray):
                return array
            if array.dtype == object:
                return [convert(name, value) for value in array]
            if array.dtype in (np.uint16, np.uint32, np.uint64):
                if array.size and int(array.max()) > np.iinfo(np.int64).max:
                    raise InvalidValue(
                        f"{name} contains {array.max()}, which does not fit torch.int64; exclude "
                        "the field with fields="
                    )
                array = array.astype(np.int64)
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            dtype = torch.get_default_dtype() if array.dtype == np.float64 else tensor.dtype
            return tensor.to(device=device, dtype=dtype, non_blocking=non_blocking)

        return {name: convert(name, array) for name, array in self._columns.items()}

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table of `to_arrow` to Polars, DuckDB and other readers of Arrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


# In these columns NaN stands for an unknown value.
UNKNOWN_AS_NAN = ("reward", "priority", "episode_return", "ended")


def _cells(array: np.ndarray, is_present: np.ndarray | None) -> list[Any]:
    """Return the value of each row, None if it is missing."""
    cells = array.tolist() if array.ndim == 1 else [row.copy() for row in array]
    if is_present is None:
        return cells
    return [cell if there else None for cell, there in zip(cells, is_present.tolist(), strict=True)]


def _series(pandas: Any, array: np.ndarray, there: np.ndarray | None) -> Any:
    if array.ndim > 1 or array.dtype == object:
        return pandas.Series(_cells(array, there), dtype=object)
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
    """Convert bytes to hexadecimal text and arrays to lists, for JSON."""
    return value.hex() if isinstance(value, bytes) else value.tolist()


def _arrow(array: np.ndarray, there: np.ndarray | None) -> Any:
    import json

    import pyarrow as pa

    if array.dtype == object:
        values = _cells(array, there)
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


def table_of_rows(rows: Sequence[Sequence[Any]], kinds: Mapping[str, str]) -> pa.Table:
    """Return rows of a query as an Arrow table, given the kind of each column.

    The kind "numbers" is for dicts of floats. They become structs, and a missing key becomes null.
    """
    import pyarrow as pa

    integer = pa.int64()
    types = {
        "integer": integer, "integer?": integer, "real": pa.float64(), "flag": pa.bool_(),
        "texts": pa.list_(pa.utf8()),
    }  # fmt: skip
    of_columns = [types.get(kind, pa.utf8()) for kind in kinds.values()]
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    for index, kind in enumerate(kinds.values()):
        if kind == "flag":  # SQLite returns 0 and 1
            columns[index] = tuple(map(bool, columns[index]))
        elif kind == "numbers":
            names = sorted({name for numbers in columns[index] for name in numbers})
            of_columns[index] = pa.struct([(name, pa.float64()) for name in names])
    return pa.Table.from_arrays(list(map(pa.array, columns, of_columns)), list(kinds))
