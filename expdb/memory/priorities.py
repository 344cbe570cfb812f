"""The priorities of the rows in memory: held from the first use on, changed here, and saved later.

Columns of the resident: the priority of each step, NaN for none; the greatest one when a draw by
priority first saw the step, NaN before; and whether the priority is not written yet.
"""

import numpy as np

from expdb.memory.columns import START, UNSAVED
from expdb.memory.journal import NONE, Change
from expdb.memory.resident import Resident
from expdb.sql.session import Session
from expdb.storage import priorities
from expdb.storage.store import State, Store


def load_priorities(store: Store, session: Session, r: Resident, state: State) -> None:
    """Take in the priorities that were written since they were read last, by anybody."""
    if r.priorities is None:
        _hold(r)
    found = []
    for block, values in priorities.changed(store, session, r.priorities or 0).items():
        first = block << priorities.BLOCK_BITS
        positions = np.arange(first, first + priorities.BLOCK)
        wanted = (positions >= r.low) & (positions < r.high) & ~np.isnan(values)
        wanted[wanted] &= ~r.columns[UNSAVED][r.rows(positions[wanted])]
        r.columns["priority"][r.rows(positions[wanted])] = values[wanted]
        found.append(positions[wanted])
        r.greatest = max(r.greatest, float(values[wanted].max(initial=0.0)))
    if found:
        r.record(Change(r.high, r.high, prioritised=np.concatenate(found)))
    r.priorities = state.priorities


def _hold(r: Resident) -> None:
    """Have columns for priorities, and in them what was known before the rows were forgotten."""
    total = r.total
    for name in ("priority", START):
        r.columns[name] = np.full(total, np.nan)
        r.columns[name][r.slots :] = 0
    r.columns[UNSAVED] = np.zeros(total, np.bool_)
    r.started, r.version, kept = 0, r.version + 1, r.kept
    if kept is not None:
        low, high = max(r.low, kept.first), min(r.high, kept.first + len(kept.priority))
        if low < high:
            rows, known = r.rows(np.arange(low, high)), slice(low - kept.first, high - kept.first)
            unsaved = kept.unsaved[known]
            r.columns[START][rows], r.columns[UNSAVED][rows] = kept.start[known], unsaved
            r.columns["priority"][rows] = np.where(unsaved, kept.priority[known], np.nan)
        r.started, r.kept = min(kept.started, r.high), None


def start_new_steps(r: Resident) -> None:
    """Note the priority of steps that no draw has seen before and that were given none.

    That is for initial="max".
    """
    if r.started < r.high:
        r.write(START, max(r.started, r.low), r.high, r.greatest or 1.0)
        r.started = r.high


def of_rows(r: Resident, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the priorities of rows, NaN for none, and what they start with."""
    return r.columns["priority"].take(rows), r.columns[START].take(rows)


def set_priorities(r: Resident, rows: np.ndarray, values: np.ndarray) -> None:
    """Give rows a priority, which is not written yet."""
    r.columns["priority"][rows] = values
    r.columns[UNSAVED][rows] = True
    r.greatest = max(r.greatest, float(values.max()))


def restore(r: Resident, first: int, values: np.ndarray, starts: np.ndarray, unsaved: bool) -> bool:
    """Have the steps from a position on have these priorities; return whether any is another.

    `unsaved` says that these are to be written.
    """
    positions = np.arange(first, first + len(values))
    held = r.held(positions)
    rows, values = r.rows(positions[held]) if held.any() else positions[:0], values[held]
    old = r.columns["priority"][rows]
    differ = (old != values) & ~(np.isnan(old) & np.isnan(values))
    r.columns["priority"][rows[differ]] = values[differ]
    r.columns[START][rows] = starts[held]
    r.columns[UNSAVED][rows[differ]] |= unsaved
    return bool(differ.any())


def unsaved(r: Resident) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the steps whose priority is not written yet, and the priorities."""
    if r.priorities is None:
        if r.kept is None:
            return NONE, np.empty(0)
        found = np.flatnonzero(r.kept.unsaved)
        return found + r.kept.first, r.kept.priority[found]
    rows = np.flatnonzero(r.columns[UNSAVED][: r.slots])
    positions = r.positions(rows)
    held = positions < r.high
    return positions[held], r.columns["priority"][rows[held]]


def note_saved(r: Resident) -> None:
    """Take all priorities for written."""
    if r.priorities is not None:
        r.columns[UNSAVED][:] = False
    elif r.kept is not None:
        r.kept.unsaved[:] = False
