"""Add arrays to stored steps, such as advantages that a trainer computes later."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import checks, errors
from expdb.chunks.fields import NUMERIC, Field, check_name
from expdb.chunks.infer import as_array, is_array
from expdb.names import TOKEN_KEYS
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.catalog import Fields
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading import fetch
from expdb.storage.reading.annotations import NO_VERSION, crc_of_annotation
from expdb.storage.store import Store, evicted

B = tables.buffers.c

_PUT = (
    "INSERT INTO annotations (buffer_id, position, name, version, shape, crc, data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, position, name, version) "
    "DO UPDATE SET shape = excluded.shape, crc = excluded.crc, data = excluded.data"
)


def checked(arrays: Mapping[str, Any], count: int, stored: Fields) -> dict[str, list[np.ndarray]]:
    """Return, by name, the array of each of `count` steps; raise InvalidValue if one is invalid."""
    if not arrays:
        raise errors.InvalidValue(
            "annotate() got no array; pass one as a keyword, such as ref_logprobs=arrays"
        )
    return {name: _arrays_of_steps(name, values, count, stored) for name, values in arrays.items()}


def _arrays_of_steps(name: str, values: Any, count: int, stored: Fields) -> list[np.ndarray]:
    check_name(name)
    if name == "drawn" or (name in TOKEN_KEYS and name not in ("advantage", "logprobs")):
        raise errors.ReservedName(
            f"{name!r} is the name of a key that Tokens computes, so Tokens could not return this "
            "annotation; choose another name"
        )
    if name in stored.types:
        raise errors.FieldMismatch(
            f"{name!r} is a field of the buffer, and stored fields cannot be changed; choose "
            "another name for the annotation"
        )
    holds_objects = isinstance(values, np.ndarray) and values.dtype.hasobject
    rows = as_array(values, name) if is_array(values) and not holds_objects else values
    if not isinstance(rows, (list, tuple, np.ndarray)) or getattr(rows, "ndim", 1) == 0:
        raise errors.InvalidValue(
            f"annotation {name!r} must be a list or an array with one entry for each position, "
            f"got {type(values).__name__}"
        )
    if len(rows) != count:
        raise errors.InvalidValue(
            f"annotation {name!r} has {len(rows)} entries for {count} positions; pass one for "
            "each position"
        )
    field = stored.annotations.get(name)
    if field is None and isinstance(rows, (list, tuple)) and set(map(type, rows)) == {int, float}:
        field = Field("float64")
    arrays: list[np.ndarray] = []
    for index, row in enumerate(rows):
        try:
            array = _array_of(name, row, field)
            field = _type_of(array) if field is None else field
            if array.dtype != field.numpy or not field.has_shape(array.shape):
                raise errors.FieldMismatch(
                    f"annotation {name!r} has the type {field}, but this array is "
                    f"{_type_of(array)}; convert the array, or choose another name"
                )
        except (errors.InvalidValue, errors.FieldMismatch) as error:
            errors.name_row(error, index)
            raise
        arrays.append(array)
    return arrays


def _array_of(name: str, row: Any, field: Field | None) -> np.ndarray:
    if is_array(row):
        return as_array(row, name)
    if row is None:
        raise errors.InvalidValue(
            f"annotation {name!r} is None for a step; pass only the positions that have a value"
        )
    try:
        if isinstance(row, np.generic):
            return as_array(np.asarray(row), name)
        array = np.asarray(row)
        if field is not None:
            array = _converted(array, field.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidValue(
            f"annotation {name!r} must contain numbers ({error}); pass an array of one of "
            f"{', '.join(NUMERIC)}"
        ) from None
    if not array.size and field is None:
        array = array.astype(np.float32)
    return as_array(array, name)


def _converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers as `dtype`, or unchanged if the conversion lost more than digits of floats."""
    kinds = array.dtype.kind + dtype.kind
    if array.size and kinds != "iu" and not np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "iu":
        kept = converted == array
    else:
        kept = np.isfinite(converted) == np.isfinite(array)
    return converted if kept.all() else array


def _type_of(array: np.ndarray) -> Field:
    shape = (None, *array.shape[1:]) if array.ndim else ()
    return Field(array.dtype.name, shape)


def checked_positions(positions: Any) -> np.ndarray:
    """Return positions as an int64 array with one dimension; raise InvalidValue for padding."""
    if np.ndim(positions) > 1:
        raise errors.InvalidValue(
            f"positions must have one dimension, got shape {list(np.shape(positions))}; select the "
            'steps of a batch with batch["position"][batch["mask"]], and pass one array for each'
        )
    wanted = checks.positions(positions)
    if len(wanted) and wanted.min() < 0:
        raise errors.InvalidValue(
            f"positions must be at least 0, got {wanted.min()}, which is padding in a batch; "
            'select the steps with batch["position"][batch["mask"]]'
        )
    return wanted


def annotate(
    store: Store,
    positions: np.ndarray,
    version: int | None,
    arrays: Mapping[str, Any],
    tokens: str | None = None,
) -> int:
    """Store arrays for steps, and replace those with the same name and version.

    The arrays must be as long as the field `tokens`; see `_check_lengths` if it is None.
    Return the number of stored arrays. Raise Evicted if a position has no step.
    """
    number = NO_VERSION if version is None else version
    by_name = checked(arrays, len(positions), store.fields)
    if not len(positions):
        return 0
    with store.writing() as (session, outcome):
        ((fields_version,),) = session.query(sa.select(B.fields_version).where(B.id == store.id))
        stored = store.fields_at(session, fields_version)
        is_stored = fetch.alive(store, session, positions)
        if not is_stored.all():
            raise evicted(np.unique(positions[~is_stored]))
        _check_lengths(store, session, positions, by_name, tokens)
        _settle(store, session, stored, by_name, outcome)
        return sum(
            _put(store, session, positions, number, name, own) for name, own in by_name.items()
        )


def write(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    positions: np.ndarray,
    version: int | None,
    name: str,
    arrays: Sequence[np.ndarray],
) -> None:
    """Store arrays under one name and version, in a transaction that has the lock."""
    stored = store.fields if outcome.fields is None else outcome.fields
    by_name = checked({name: arrays}, len(positions), stored)
    _settle(store, session, stored, by_name, outcome)
    _put(store, session, positions, NO_VERSION if version is None else version, name, arrays)


def _put(
    store: Store,
    session: Session,
    positions: np.ndarray,
    number: int,
    name: str,
    arrays: Sequence[np.ndarray],
) -> int:
    rows = [
        (
            store.id, position, name, number, json.dumps(array.shape),
            crc_of_annotation(data := np.ascontiguousarray(array).tobytes(), position, name), data,
        )
        for position, array in zip(positions.tolist(), arrays, strict=True)
    ]  # fmt: skip
    session.execute_many(_PUT, rows)
    return len(rows)


def annotate_tokens(
    store: Store,
    output: str,
    steps: np.ndarray,
    indices: np.ndarray,
    version: int | None,
    arrays: Mapping[str, Any],
) -> int:
    """Store values for tokens as one array for each step that generated any of the tokens.

    `steps` int64 and `indices` int32 have the shape [B, T]: the position of the step that generated
    the token, and the index of the token in the field `output`; -1 for other tokens. Each array has
    the shape [B, T, ...]. Tokens of these steps that are not in the batch get NaN.

    Return the number of stored arrays. Raise InvalidValue if an array has another shape, or is not
    of floats although tokens are missing.
    """
    is_generated = steps >= 0
    if not is_generated.any():  # the rows of a rank that has no rollout
        return 0
    positions, step_numbers = np.unique(steps[is_generated], return_inverse=True)
    index = indices[is_generated]
    with store.engine.reading() as session:
        state = store.state(session)
        columns = fetch.steps(store, session, state, positions, [output], as_ragged=True)
    lengths = columns[output].lengths
    starts = np.cumsum(lengths) - lengths
    filled = starts[step_numbers] + index
    missing = np.ones(int(lengths.sum()), np.bool_)  # generated tokens that are not in the batch
    missing[filled] = False
    by_name = {}
    for name, values in arrays.items():
        array = as_array(values, name)
        if array.shape[:2] != steps.shape:
            raise errors.InvalidValue(
                f"{name!r} has shape {list(array.shape)}, but the tokens of the batch have shape "
                f"{list(steps.shape)}; pass one value for each token"
            )
        flat = np.zeros((int(lengths.sum()), *array.shape[2:]), array.dtype)
        if missing.any():
            if array.dtype.kind != "f":
                raise errors.InvalidValue(
                    f"{name!r} has no value for {int(missing.sum())} generated tokens that are not "
                    f"in the batch, and {array.dtype} cannot be NaN; pass an array of floats"
                )
            flat[missing] = np.nan
        flat[filled] = array[is_generated]
        by_name[name] = np.split(flat, starts[1:])
    return annotate(store, positions, version, by_name, output)


def _check_lengths(
    store: Store,
    session: Session,
    positions: np.ndarray,
    by_name: Mapping[str, list[np.ndarray]],
    tokens_field: str | None,
) -> None:
    """Raise InvalidValue unless each array is as long as the tokens of its step.

    By default, the tokens are the field that other fields are aligned with, if there is exactly
    one.
    """
    targets: set[str | None] = {tokens_field}
    if tokens_field is None:
        targets = {field.aligned_with for field in store.fields.types.values()} - {None}
    aligned = {name: arrays for name, arrays in by_name.items() if arrays[0].ndim}
    if len(targets) != 1 or not aligned:
        return
    (target,) = targets
    assert target is not None
    tokens = fetch.steps(store, session, store.state(session), positions, [target])[target]
    for index, (position, own) in enumerate(zip(positions.tolist(), tokens, strict=True)):
        length = 0 if own is None else len(own)
        for name, arrays in aligned.items():
            if len(arrays[index]) != length:
                raise errors.InvalidValue(
                    f"rows[{index}]: annotation {name!r} of position {position} has "
                    f"{len(arrays[index])} values, but {target!r} has {length}; pass one value "
                    "for each token, without padding"
                )


def _settle(
    store: Store,
    session: Session,
    stored: Fields,
    by_name: Mapping[str, Sequence[np.ndarray]],
    outcome: WriteOutcome,
) -> None:
    """Store the types of new annotations; raise FieldMismatch if another process has others."""
    new = {}
    for name, arrays in by_name.items():
        field = _type_of(arrays[0])
        stored_type = stored.types.get(name, stored.annotations.get(name, field))
        if name in stored.types or stored_type != field:
            raise errors.FieldMismatch(
                f"{name!r} is stored as {stored_type}, but the annotation is "
                f"{field}; choose another name"
            )
        if name not in stored.annotations:
            new[name] = field
    if new:
        annotations = {**stored.annotations, **new}
        settled = Fields(stored.types, stored.optional, stored.version + 1, annotations)
        values = {"fields": settled.as_text(), "fields_version": settled.version}
        session.execute(sa.update(tables.buffers).where(B.id == store.id).values(values))
        outcome.fields = settled
