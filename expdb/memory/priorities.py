"""The priorities of the steps in memory.

They are loaded at the first use, changed in memory, and saved later. columns.py describes their
columns: the priority or initial priority of each step, and whether the priority is not yet saved.
"""

import numpy as np

from expdb.memory.columns import PRIORITY, UNSAVED
from expdb.memory.journal import NONE, Change
from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage import priorities
from expdb.storage.store import State, Store


def load_priorities(store: Store, session: Session, r: Resident, state: State) -> None:
    """Load the priorities that any process has saved since the last load."""
    if r.priorities is None:
        _hold(r)
    changed = []
    for block, values in priorities.changed(store, session, r.priorities or 0).items():
        first = block << priorities.BLOCK_BITS
        positions = np.arange(first, first + priorities.BLOCK)
        wanted = r.are_stored(positions) & ~np.isnan(values)
        wanted[wanted] &= ~r.columns[UNSAVED][r.rows(positions[wanted])]
        r.columns[PRIORITY][r.rows(positions[wanted])] = values[wanted]
        changed.append(positions[wanted])
        r.greatest = max(r.greatest, float(values[wanted].max(initial=0.0)))
    if changed:
        r.record(Change(r.high, r.high, prioritised=np.concatenate(changed)))
    r.priorities = state.priorities
    r.kept = None  # assigned last, so that an earlier interrupt loses nothing


def _hold(r: Resident) -> None:
    """Add the columns for priorities, and restore the priorities that `Resident.forget` kept."""
    total = r.total
    r.columns[PRIORITY] = np.full(total, np.nan)
    r.columns[PRIORITY][r.slots :] = 0
    r.columns[UNSAVED] = np.zeros(total, np.bool_)
    r.started, r.version, kept = 0, r.version + 1, r.kept
    if kept is not None:
        is_stored = r.are_stored(kept.positions)
        if is_stored.any():
            rows, unsaved, priority = (
                r.rows(kept.positions[is_stored]),
                kept.unsaved[is_stored],
                kept.priority[is_stored],
            )
            r.columns[UNSAVED][rows] = unsaved
            # Saved priorities are read again. Initial priorities (below 0) are stored only here.
            r.columns[PRIORITY][rows] = np.where(unsaved | (priority < 0), priority, np.nan)
        r.started = min(kept.started, r.high)


def start_new_steps(r: Resident) -> None:
    """Set the initial priority of steps that no draw by priority has included yet.

    Samplers with `initial="max"` use this priority. Steps that have a priority keep it.
    """
    start_steps(r, max(r.started, r.low), r.high)
    r.started = r.high


def start_steps(r: Resident, first: int, stop: int) -> None:
    """Set the initial priority of steps without a priority, from `first` up to `stop`.

    The initial priority is the greatest priority that was set for any step, or 1.0 if no priority
    is above 0.
    """
    positions, column = r.positions_from(first), r.columns[PRIORITY]
    rows = r.rows(positions[: positions.searchsorted(stop)])
    column[rows[np.isnan(column[rows])]] = -(r.greatest or 1.0)


def of_rows(r: Resident, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the priorities and the initial priorities of rows.

    Each row has at most one of the two; the other is NaN.
    """
    stored = r.columns[PRIORITY].take(rows)
    return _explicit(stored), np.where(stored >= 0, np.nan, -stored)


def set_priorities(r: Resident, rows: np.ndarray, values: np.ndarray) -> None:
    """Set the priorities of rows, and mark them as not yet saved."""
    r.columns[PRIORITY][rows] = values
    r.columns[UNSAVED][rows] = True
    r.greatest = max(r.greatest, float(values[values.argmax()]))


def restore(
    r: Resident, positions: np.ndarray, values: np.ndarray, starts: np.ndarray, unsaved: bool
) -> bool:
    """Set the priority of the steps at `positions`; return True if any priority changed.

    With `unsaved`, mark the changed priorities as not yet saved.
    """
    is_stored = r.are_stored(positions)
    rows = r.rows(positions[is_stored]) if is_stored.any() else positions[:0]
    values, starts = values[is_stored], starts[is_stored]
    old, _ = of_rows(r, rows)
    differ = (old != values) & ~(np.isnan(old) & np.isnan(values))
    r.columns[PRIORITY][rows] = np.where(np.isnan(values), -starts, values)
    r.columns[UNSAVED][rows[differ]] |= unsaved
    return bool(differ.any())


def unsaved(r: Resident) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and the priorities of steps whose priority is not yet saved.

    NaN means that the step no longer has a priority.
    """
    if r.priorities is None:
        if r.kept is None:
            return NONE, np.empty(0)
        indices = np.flatnonzero(r.kept.unsaved)
        return r.kept.positions[indices], _explicit(r.kept.priority[indices])
    rows = np.flatnonzero(r.columns[UNSAVED][: r.slots])
    rows = rows[r.is_live(rows)]
    return r.positions(rows), _explicit(r.columns[PRIORITY][rows])


def _explicit(stored: np.ndarray) -> np.ndarray:
    """Return the priorities that were set, with NaN in place of initial priorities."""
    return np.where(stored >= 0, stored, np.nan)


def note_saved(r: Resident) -> None:
    """Mark all priorities as saved."""
    if r.priorities is not None:
        r.columns[UNSAVED][:] = False
    elif r.kept is not None:
        r.kept.unsaved[:] = False
