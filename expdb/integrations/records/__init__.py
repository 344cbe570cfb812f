"""Store Python values of other libraries as fields of steps, and restore them exactly.

A value is flattened into its leaves: tensors, arrays, numbers and text. Each leaf becomes a field
that is named by its path, such as `obs` or `obs.image`, so that SQL and samplers can use it. The
remaining part of the value is its structure: the dicts, lists, tuples and named tuples that contain
the leaves, and the type of each leaf. Usually, the values of a buffer have few different
structures. A second buffer, `<name>.structures`, stores each structure as a step. A step of the
first buffer stores the position of its structure. Stored data never makes Python import or call
anything.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

import expdb
from expdb import errors
from expdb.integrations.records.flatten import FLAT, Flattener, Kind, RecordPlan, called, is_json
from expdb.integrations.records.unflatten import Unflattener, names_of

__all__ = ["STRUCTURE", "Kind", "Records", "is_json"]

STRUCTURE = "structure"  # the field with the position of the structure
MANY = 4096
ORDERED = Kind("collections.OrderedDict", OrderedDict, dict, OrderedDict)
NUMBERS = ("array", "scalar", "bool", "int", "float")


class Records:
    """Store and restore the values of a buffer, one value per step; threads may share it.

    Parameters
    ----------
    database : ExperienceDB
        The database of the buffer.
    buffer : ReplayBuffer
        The buffer that stores the values.
    *kinds : Kind
        Conversions of additional classes.
    """

    def __init__(self, database: expdb.ExperienceDB, buffer: expdb.ReplayBuffer, *kinds: Kind):
        self._database, self._buffer = database, buffer
        self._structures = database.buffer(
            f"{buffer.name}.structures", fields={"text": expdb.Field("text")}
        )
        if STRUCTURE not in buffer.stats()["fields"]:
            database.buffer(buffer.name, fields={STRUCTURE: expdb.Field("int32")})
        kinds = (ORDERED, *kinds)
        self._taking, self._putting = Flattener(kinds), Unflattener(kinds)
        self._codes: dict[Any, tuple[int, list[str]]] = {}  # by structure of flattened values
        self._plans: dict[
            tuple[Any, ...], RecordPlan
        ] = {}  # by keys: the plan of the last such dict
        self._texts: dict[str, int] = {}
        self._nodes: dict[int, Any] = {}
        self._names: dict[int, frozenset[str]] = {}  # names of the fields of each structure
        # By structure: the keys and fields of a dict of arrays and numbers, None for others.
        self._flat: dict[int, list[tuple[Any, str]] | None] = {}
        self._fields: dict[str, None] = {STRUCTURE: None}
        self._read_structures()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of all known structures; a batch for `values` should have them."""
        return tuple(self._fields)

    def step(self, value: Any) -> dict[str, Any]:
        """Return the arguments of `store` that store a value.

        Parameters
        ----------
        value : object
            A value of numbers, text, arrays, tensors, dicts, lists, tuples and the classes of
            `kinds`.

        Returns
        -------
        dict
            The fields of a step.

        Raises
        ------
        InvalidValue
            If a part of the value cannot be restored exactly. The message names the part.
        """
        leaves: list[Any] = []
        if type(value) is dict and (plan := self._plans.get(tuple(value))) is not None:
            if plan.take(value, leaves):
                step = dict(zip(plan.names, leaves, strict=True))
                step[STRUCTURE] = plan.code
                return step
            leaves.clear()
        shape = self._taking.apart(value, "", leaves)
        cached = self._codes.get(shape)
        if cached is None:
            if len(self._codes) >= MANY:  # the structures differ from step to step
                self._codes.clear()
                self._plans.clear()
            cached = self._codes[shape] = self._settle(shape)
        code, names = cached
        if shape[0] == "dict" and all(leaf[0] in FLAT for _, leaf in shape[1]):
            self._plans[tuple(value)] = RecordPlan(shape, code, names, list(value.values()))
        step = dict(zip(names, leaves, strict=True))
        step[STRUCTURE] = code
        return step

    def values(self, batch: Mapping[str, Any]) -> list[Any]:
        """Return the values of the steps of a batch, in order; no two values share memory.

        Parameters
        ----------
        batch : mapping of str to ndarray
            A batch with the fields of `fields`.

        Returns
        -------
        list
            The values.
        """
        codes = batch[STRUCTURE]
        if not len(codes):
            return []
        first = int(codes[0])
        if (codes == first).all():
            return self._values(first, batch, np.arange(len(codes)))
        values: list[Any] = [None] * len(codes)
        for code in np.unique(codes).tolist():
            places = np.flatnonzero(codes == code)
            for place, value in zip(
                places.tolist(), self._values(code, batch, places), strict=True
            ):
                values[place] = value
        return values

    def value(self, step: Mapping[str, Any]) -> Any:
        """Return the value that `step` has converted; the value shares memory with the step.

        Parameters
        ----------
        step : mapping
            The result of `step`.

        Returns
        -------
        object
            The value.
        """
        code = step[STRUCTURE]
        if code not in self._nodes:
            self._read_structures()
        columns = {name: _column_of_one(step[name]) for name in self._names[code]}
        return self._putting.together(self._nodes[code], columns, 1)[0]

    def table(self, batch: expdb.Batch) -> dict[Any, np.ndarray] | None:
        """Return the values as one dict of arrays [B, ...] if all are dicts of arrays and numbers.

        The result equals the stacked values, but is much faster to build.

        Parameters
        ----------
        batch : Batch
            A batch with the fields of `fields`.

        Returns
        -------
        dict or None
            The arrays by key, or None if the values are other objects or differ in structure.
        """
        codes = batch[STRUCTURE]
        if not len(codes) or (codes != codes[0]).any():
            return None
        code = int(codes[0])
        if code not in self._nodes:
            self._read_structures()
        columns = self._flat[code]
        if columns is None:
            return None
        try:
            return {key: batch[name] for key, name in columns}
        except KeyError:  # another process has stored the first values of this structure
            return None

    def _values(self, code: int, batch: Mapping[str, Any], places: np.ndarray) -> list[Any]:
        if code not in self._nodes:
            self._read_structures()
        node = self._nodes[code]
        names = self._names[code]
        if not names <= batch.keys():  # first stored by another process
            positions = batch["position"][places]
            columns = dict(self._buffer.get(positions, fields=list(names)))
        elif len(places) == len(batch[STRUCTURE]):
            columns = dict(batch)
        else:
            columns = {name: batch[name][places] for name in names}
        return self._putting.together(node, columns, len(places))

    def _settle(self, shape: Any) -> tuple[int, list[str]]:
        """Return the position of a new structure, and the field of each of its leaves."""
        names: list[str] = []
        text = json.dumps(self._named(shape, names))
        code = self._texts.get(text)
        if code is None:
            self._read_structures()
            code = self._texts.get(text)
        if code is None:
            self._structures.store(text=text)
            self._read_structures()
            code = self._texts[text]
        return code, names

    def _named(self, shape: Any, names: list[str], outer: tuple[int, ...] = ()) -> Any:
        """Return the structure as JSON values, with names of fields instead of paths of leaves.

        `outer` has the lengths of the lists in which a leaf is stacked.
        """
        kind = shape[0]
        if kind == "none":
            return [kind]
        if kind == "dict":
            return [kind, [[key, self._named(part, names, outer)] for key, part in shape[1]]]
        if kind in ("list", "tuple"):
            return [kind, [self._named(part, names, outer) for part in shape[1]]]
        if kind == "stack":
            return [kind, shape[1], self._named(shape[2], names, (*outer, shape[3]))]
        if kind == "kind":
            return [kind, shape[1], self._named(shape[2], names, outer)]
        if kind == "namedtuple":
            parts = [self._named(part, names, outer) for part in shape[3]]
            return [kind, shape[1], list(shape[2]), parts]
        kind, path, dtype, dimensions = shape
        if dtype == "reward":
            names.append("reward")
        else:
            names.append(self._field(path, expdb.Field(dtype, (*outer, *dimensions)), names))
        # Omit the shape of other leaves: it is in the field, and structures would differ by shape.
        return [kind, names[-1], list(dimensions) if dtype == "reward" else bool(dimensions)]

    def _field(self, path: str, field: expdb.Field, taken: list[str]) -> str:
        """Return the name of a field for the leaf at a path; declare the field if it is new."""
        plain = "".join(
            character if character.isalnum() or character in "._" else "_"
            for character in path.strip(".")
        )
        plain = ".".join(part or "_" for part in plain.split("."))
        # A field for another dtype, or for shapes that differ from step to step.
        other = f"{plain}_{field.dtype}_{len(field.shape)}d"
        varying = expdb.Field(field.dtype, (None,) * len(field.shape))
        for prefix in ("", "item.", "item_2."):  # a column or leaf may have the name
            for name, candidate in ((prefix + plain, field), (prefix + other, varying)):
                if name in taken or name == STRUCTURE:
                    continue
                with suppress(errors.ReservedName, errors.FieldMismatch):
                    self._database.buffer(self._buffer.name, fields={name: candidate})
                    return name
        raise expdb.InvalidValue(
            f"no field name is available for {called(path)}, a {field}; rename the value"
        )

    def _read_structures(self) -> None:
        """Read the structures that any process has stored since the last call."""
        for batch in self._structures.scan(after=max(self._nodes, default=-1)):
            for code, text in zip(batch["position"].tolist(), batch["text"].tolist(), strict=True):
                self._texts.setdefault(text, code)
                node = json.loads(text)
                self._names[code] = frozenset(names_of(node))
                self._nodes[code] = node
                is_flat = node[0] == "dict" and all(leaf[0] in NUMBERS for _, leaf in node[1])
                self._flat[code] = [(key, leaf[1]) for key, leaf in node[1]] if is_flat else None
                self._fields |= {name: None for name in names_of(node) if name != "reward"}


def _column_of_one(leaf: Any) -> np.ndarray:
    """Return a column of shape [1, ...] with one value."""
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float)):
        return np.asarray(leaf)[None]
    column = np.empty(1, object)
    column[0] = leaf
    return column
