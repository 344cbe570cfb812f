"""Check the declarations and the results of samplers and units.

The declarations are checked once per plan, and the results of each call unless the class sets
`checks_results = False`.
"""

from __future__ import annotations  # so that annotations do not import numpy.random

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from expdb.chunks.fields import SYSTEM
from expdb.errors import InvalidValue, warn
from expdb.memory.resident import Resident
from expdb.names import EPISODE_COLUMNS, SCORE, nearest
from expdb.replay.layout import Layout
from expdb.replay.samplers import Draw, Sampler
from expdb.replay.units import Unit

FIXED = ("position", "episode")  # keys that no sampler or unit may replace


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of an array that later samples use too."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_declarations(sampler: Sampler, unit: Unit, fields: Mapping[str, Any]) -> None:
    """Raise InvalidValue if the declarations of a sampler or a unit are invalid.

    Warn if a key replaces a field or ``next_<field>``, unless the unit assembles its batches.
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
    _check_names(sampler, (*FIXED, *SYSTEM))
    _check_names(unit, FIXED)
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
            if (key in fields and key not in SYSTEM) or _is_derived(key, unit, fields):
                warn(
                    f"batches lack the field {key!r}, because {_name(extension)} has a key of "
                    "this name; rename the key, or store the field under another name"
                )


def _is_derived(key: str, unit: Unit, fields: Mapping[str, Any]) -> bool:
    """Return whether a key has the name of a ``next_<field>`` that the unit derives."""
    field = key.removeprefix("next_")
    return field != key and field in fields and field in unit.derived(list(fields), {field})


def _check_names(extension: Sampler | Unit, reserved: tuple[str, ...]) -> None:
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
        raise InvalidValue(f"{_name(extension)}.keys() must return a tuple of names, got {keys!r}")
    if taken := [key for key in reserved if key in keys]:
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
    sampler: Sampler, size: int, drawn: Draw, holds: Callable[[np.ndarray], np.ndarray]
) -> Draw:
    """Return a copy of the draw of a sampler; raise InvalidValue if the draw is invalid."""
    try:
        positions, columns = drawn
        positions = np.asarray(positions)
        sound = positions.shape == (size,) and positions.dtype.kind in "iu"
        sound = sound and columns.keys() == set(sampler.keys())
        sound = sound and all(np.shape(array)[:1] == (size,) for array in columns.values())
    except (TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        keys = ", ".join(sampler.keys())
        raise InvalidValue(
            f"{_name(sampler)}.draw must return positions as an integer array [{size}], and a "
            "dict "
            + (f"of arrays [{size}, ...] named {keys}" if keys else "that is empty, like keys()")
        )
    if not holds(positions).all():
        raise InvalidValue(
            f"{_name(sampler)}.draw must return positions of the population; take them from "
            "population.positions or population.at()"
        )
    # Copy the arrays, because a sampler may fill them again for the next sample.
    return positions.astype(np.int64), {name: np.array(columns[name]) for name in columns}


def incomplete_draw(sampler: Sampler, size: int, count: int) -> InvalidValue:
    """Return the error for a draw of another number of positions than requested."""
    return InvalidValue(
        f"{_name(sampler)}.draw must return {size} positions, got {count}; draw with replacement, "
        "or raise TooFewRows"
    )


def check_starts(unit: Unit, mask: Any, count: int) -> np.ndarray:
    """Check the result of `may_start` of a unit, and return it."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (count,):
        raise InvalidValue(
            f"{_name(unit)}.may_start must return an array of bool with one value per row"
        )
    return mask


def check_anchors(unit: Unit, anchors: Any, rows: np.ndarray) -> np.ndarray:
    """Check the result of `anchors` of a unit, and return it as int64."""
    if isinstance(anchors, np.ndarray) and not len(anchors.reshape(-1)):
        return rows[:0]
    sound = (
        isinstance(anchors, np.ndarray) and anchors.ndim in (1, 2) and anchors.dtype.kind in "iu"
    )
    if sound:
        anchors = anchors.astype(np.int64)
        first = anchors if anchors.ndim == 1 else anchors[:, 0]
        sound = bool((first >= 0).all()) and len(np.unique(first)) == len(first)
        sound = sound and bool(np.isin(anchors, (*rows, -1)).all())
    if not sound:
        raise InvalidValue(
            f"{_name(unit)}.anchors must return an integer array [A] or [A, n] of the passed "
            "rows, and the first row of each anchor must be unique"
        )
    return anchors  # type: ignore[no-any-return]


def check_layout(
    unit: Unit, layout: Any, rows: np.ndarray, r: Resident, window: np.ndarray | None
) -> Layout:
    """Check the result of `layout` of a unit, and return it with copied arrays.

    `window` has the rows around the drawn rows. expdb passed these rows to the unit, so they need
    no check.
    """
    what = f"{_name(unit)}.layout must return"
    if not isinstance(layout, Layout):
        raise InvalidValue(f"{what} an expdb.Layout, got {type(layout).__name__}")
    if layout.mask is None and (unit.has_budget or unit.reads_ragged):
        raise InvalidValue(f"{what} a mask, because the unit has a budget or reads ragged arrays")
    if layout.kept is not None:
        rows = rows[layout.kept]
    layout_rows, mask, count, keys = layout.rows, layout.mask, len(rows), tuple(unit.keys())
    if (
        not isinstance(layout_rows, np.ndarray)
        or layout_rows.dtype.kind not in "iu"
        or len(layout_rows) != count
    ):
        raise InvalidValue(f"{what} rows as an integer array of shape [{count}] or [{count}, ...]")
    if mask is None:
        first = rows if rows.ndim == 1 else rows[:, 0]
        if layout_rows.ndim != 1 or not np.array_equal(layout_rows, first):
            raise InvalidValue(
                f"{what} the drawn rows [{count}] in their order; to return other rows "
                f"[{count}, ..., T], also return a mask"
            )
    elif not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != layout_rows.shape:
        raise InvalidValue(f"{what} a bool mask with the shape of its rows, {layout_rows.shape}")
    elif not _are_steps(layout_rows, mask, r, window):
        raise InvalidValue(f"{what} rows of stored steps wherever its mask is True")
    elif "mask" not in tuple(unit.keys()) or not np.array_equal(
        layout.columns.get("mask", mask), mask
    ):
        raise InvalidValue(
            f"{_name(unit)}.layout returned a mask, which expdb adds to the batch as 'mask'; add "
            "'mask' to keys(), and omit 'mask' from the columns"
        )
    else:
        layout.columns.setdefault("mask", mask)
    for name in ("next_rows", "last_rows"):
        _check_rows(getattr(layout, name), f"{what} {name}", count, r)
    if layout.columns.keys() != set(keys) or not all(
        isinstance(array, np.ndarray) and array.shape[:1] == (count,)
        for array in layout.columns.values()
    ):
        names = ", ".join(keys) or "nothing"
        raise InvalidValue(
            f"{what} one array of shape [{count}, ...] for each name in keys(): {names}"
        )
    # Copy the arrays, because a unit may fill them again for the next sample.
    if layout_rows is not window:
        layout.rows = layout_rows.copy()
    layout.columns = {name: array.copy() for name, array in layout.columns.items()}
    return layout


def _are_steps(rows: np.ndarray, mask: np.ndarray, r: Resident, window: np.ndarray | None) -> bool:
    """Return whether every row with a True mask is the row of a stored step."""
    if rows is window:
        return not np.count_nonzero(mask & (rows < 0))
    chosen = rows[mask]
    return within(chosen, r.slots) and bool(r.are_stored(r.positions(chosen)).all())


def check_selection(unit: Unit, is_kept: Any, count: int) -> np.ndarray:
    """Return the result of `select_within_budget`; raise InvalidValue if it is invalid."""
    is_mask = isinstance(is_kept, np.ndarray) and is_kept.dtype == bool
    if not is_mask or is_kept.shape != (count,) or not is_kept.any():
        raise InvalidValue(
            f"{_name(unit)}.select_within_budget must return an array of bool with one value per "
            "item, and keep at least one item"
        )
    return is_kept  # type: ignore[no-any-return]


def check_assembly(unit: Unit, columns: Any, count: int) -> tuple[dict[str, np.ndarray], int]:
    """Check the result of `assemble` of a unit; return its arrays and their length.

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


def _check_rows(rows: Any, what: str, count: int, r: Resident) -> None:
    if rows is not None and (
        not isinstance(rows, np.ndarray)
        or rows.shape != (count,)
        or rows.dtype.kind not in "iu"
        or not within(rows, r.total - 1)
    ):
        raise InvalidValue(f"{what} as an integer array [{count}] of rows of known steps")


def _name(extension: Any) -> str:
    return type(extension).__name__
