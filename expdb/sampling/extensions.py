"""Check the declarations and the results of samplers and units.

The declarations are checked once per plan. Each draw checks shapes, types of indices, and that
positions belong to the population. `expdb.testing` also checks the rows of layouts and anchors.
"""

from __future__ import annotations  # NumPy imports its random module when it is first named

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from expdb.chunks.fields import SYSTEM
from expdb.errors import InvalidValue, warn
from expdb.names import EPISODE_COLUMNS, SCORE, nearest
from expdb.replay.layout import Layout
from expdb.replay.samplers import Drawn, Sampler
from expdb.replay.units import Unit

FIXED = ("position", "episode")  # keys that no sampler or unit may replace


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of an array that later samples use too."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_declarations(sampler: Sampler, unit: Unit, fields: Mapping[str, Any]) -> None:
    """Raise InvalidValue if the declarations of a sampler or a unit are invalid.

    Warn if a key replaces a field, unless the unit assembles its batches.
    """
    if not dataclasses.is_dataclass(unit) or not unit.__dataclass_params__.frozen:
        raise InvalidValue(
            f"{_name(unit)} must be frozen, because expdb uses units as cache keys; decorate "
            "the class with @dataclass(frozen=True)"
        )
    try:
        hash(unit)
    except TypeError as error:
        raise InvalidValue(
            f"{_name(unit)} must be hashable ({error}); use a tuple instead of a list"
        ) from None
    for extension in (sampler, unit):
        _check_names(extension)
    window: Any = unit.window
    if window is not None and not (isinstance(window, range) and window.step == 1):
        raise InvalidValue(
            f"{_name(unit)}.window must be None or a range with step 1, such as range(-3, 1), "
            f"got {window!r}"
        )
    if both := set(unit.keys()) & set(sampler.keys()):
        raise InvalidValue(
            f"{_name(unit)} and {_name(sampler)} both have the key {min(both)!r}; rename one of "
            "them"
        )
    for extension in (sampler, unit):
        for key in extension.keys() if not unit.assembles else ():
            if key in fields and key not in SYSTEM:
                warn(
                    f"batches lack the field {key!r}, because {_name(extension)} has a key of "
                    "this name; store the field under another name"
                )


def _check_names(extension: Sampler | Unit) -> None:
    reads: Any = extension.reads
    if callable(reads) or isinstance(reads, str) or not _are_names(reads):
        raise InvalidValue(
            f"{_name(extension)}.reads must be a tuple of names of columns of episodes, such as "
            "('task_id',), or a property that returns such a tuple"
        )
    for name in reads:
        if name not in EPISODE_COLUMNS and not SCORE.fullmatch(name):
            raise unknown_column(name)
    if not callable(extension.keys):
        raise InvalidValue(
            f"{_name(extension)}.keys must be a method; write def keys(self): return (...)"
        )
    keys: Any = extension.keys()
    if not isinstance(keys, tuple) or not _are_names(keys):
        raise InvalidValue(f"{_name(extension)}.keys() must return a tuple of names")
    if taken := [key for key in FIXED if key in keys]:
        raise InvalidValue(
            f"{_name(extension)} has the key {taken[0]!r}, which is reserved; rename the key"
        )


def _are_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


def unknown_column(name: str) -> InvalidValue:
    """Return the error for a name in `reads` that is not a column of episodes."""
    if name in SYSTEM:
        cure = "remove this column of steps from `reads`"
    else:
        hint = nearest(name, EPISODE_COLUMNS) or ";"
        cure = f"the columns are {', '.join(EPISODE_COLUMNS)}"
        return InvalidValue(f"{name!r} is not a column of episodes{hint} {cure}")
    return InvalidValue(f"{name!r} is not a column of episodes; {cure}")


def check_draw(
    sampler: Sampler, size: int, drawn: Drawn, holds: Callable[[np.ndarray], np.ndarray]
) -> Drawn:
    """Return the result of `draw`; raise InvalidValue if it is invalid."""
    keys = sampler.keys()
    try:
        positions, columns = drawn
        is_valid = positions.shape == (size,) and positions.dtype.kind == "i"
        is_valid = is_valid and len(columns) == len(keys)
        for name in keys:
            is_valid = is_valid and name in columns and len(columns[name]) == size
    except (AttributeError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InvalidValue(
            f"{_name(sampler)}.draw must return positions as an int64 array [{size}], and "
            + (
                f"a dict of arrays [{size}, ...] named {', '.join(keys)}"
                if keys
                else "an empty dict, because keys() is empty"
            )
        )
    if not holds(positions).all():
        raise InvalidValue(
            f"{_name(sampler)}.draw must return positions of the population; take them from "
            "population.positions or population.at()"
        )
    return drawn


def invalid_starts(unit: Unit) -> InvalidValue:
    """Return the error for an invalid result of `may_start`."""
    return InvalidValue(
        f"{_name(unit)}.may_start must return an array of bool with one value per row"
    )


def check_anchors(unit: Unit, anchors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the result of `anchors`; raise InvalidValue if its shape or type is wrong."""
    if getattr(anchors, "ndim", 0) not in (1, 2) or (len(anchors) and anchors.dtype.kind != "i"):
        raise InvalidValue(
            f"{_name(unit)}.anchors must return an int64 array [A] or [A, n] of the passed rows"
        )
    return anchors if anchors.size else rows[:0]


def check_layout(unit: Unit, layout: Layout, count: int, keys: Set[str]) -> None:
    """Raise InvalidValue if a layout of `count` items has a wrong shape or lacks a key.

    Also add the mask to the columns, unless the layout is ragged.
    """
    try:
        count = count if layout.kept is None else int(np.count_nonzero(layout.kept))
        is_valid = _match_shapes(layout, count, keys)
        for array in layout.columns.values():
            is_valid = is_valid and len(array) == count
        is_valid = is_valid and layout.columns.keys() >= keys
    except (AttributeError, TypeError) as error:
        raise _invalid_layout(unit, layout, count) from error
    if not is_valid:
        raise _invalid_layout(unit, layout, count)


def _match_shapes(layout: Layout, count: int, keys: Set[str]) -> bool:
    """Add the mask to the columns; return whether rows, mask and keys are consistent."""
    mask = layout.mask
    if mask is None:
        return layout.rows.shape == (count,)
    if not layout.ragged:
        layout.columns.setdefault("mask", mask)
        if "mask" not in keys:
            return False
    return len(layout.rows) == count and layout.rows.shape == mask.shape


def _invalid_layout(unit: Unit, layout: Layout, count: int) -> InvalidValue:
    what = f"{_name(unit)}.layout must return"
    if not isinstance(layout, Layout):
        return InvalidValue(f"{what} an expdb.Layout, got {type(layout).__name__}")
    return InvalidValue(
        f"{what} rows of shape [{count}], or rows and a mask of one shape [{count}, ..., T]; "
        f"columns must have an array [{count}, ...] for each of the keys "
        f"({', '.join(unit.keys()) or 'none'}), and keys() must contain 'mask' if there is a mask"
    )


def check_assembly(unit: Unit, columns: Any, count: int) -> tuple[dict[str, np.ndarray], int]:
    """Check the result of `assemble` of a user's unit; return its arrays and their length.

    The returned arrays always include `drawn`. Raise InvalidValue if the lengths differ, if `drawn`
    is out of range, or if `drawn` is missing although the number of rows changes.
    """
    what = f"{_name(unit)}.assemble must return"
    if not isinstance(columns, Mapping):
        raise InvalidValue(f"{what} a mapping of names to arrays, got {type(columns).__name__}")
    for name, array in columns.items():
        if not isinstance(name, str):
            raise InvalidValue(f"{what} text names, got {name!r}")
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise InvalidValue(
                f"{what} NumPy arrays of at least one dimension, got {type(array).__name__} for "
                f"{name!r}"
            )
    if not columns.keys() - {"drawn"}:
        raise InvalidValue(f"{what} at least one array besides 'drawn', got none")
    lengths = {name: len(array) for name, array in columns.items()}
    rows = next(iter(lengths.values()))
    if not rows:
        raise InvalidValue(f"{what} at least one row, got none for {count} items")
    for name, length in lengths.items():
        if length != rows:
            first = next(iter(lengths))
            raise InvalidValue(
                f"{what} arrays of one length, but {first!r} has {rows} rows and {name!r} has "
                f"{length}"
            )
    arrays = dict(columns)
    drawn = arrays.get("drawn")
    if drawn is None and rows != count:
        raise InvalidValue(
            f"{what} 'drawn' if the number of rows differs from the number of items, got {rows} "
            f"rows for {count} items; set drawn[k] to the index of the item of row k, 0 to "
            f"{count - 1}"
        )
    if drawn is None:
        drawn = np.arange(count)
    elif drawn.dtype.kind not in "iu" or drawn.ndim != 1 or not within(drawn, count):
        raise InvalidValue(
            f"{what} 'drawn' as an integer array [{rows}] of indices of items, 0 to {count - 1}"
        )
    arrays["drawn"] = drawn.astype(np.int64)
    return arrays, rows


def within(rows: np.ndarray, stop: int) -> bool:
    """Return whether all rows are at least 0 and less than `stop`."""
    return bool(((rows >= 0) & (rows < stop)).all())


def _name(extension: Any) -> str:
    return type(extension).__name__
