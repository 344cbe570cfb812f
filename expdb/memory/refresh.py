"""Update the rows of a buffer in memory: evicted, deleted, changed and new steps."""

import time

import numpy as np

from expdb.memory.columns import AFTER, WHOLE
from expdb.memory.journal import MANY_OPEN, NONE, Change
from expdb.memory.links import (
    Details,
    Ends,
    link_unordered,
    load_finals,
    settle_ends,
    settle_loose_ends,
    terminate,
)
from expdb.memory.load import load_more, overwrite, read_steps
from expdb.memory.new_steps import add_new_steps, read_new_steps
from expdb.memory.priorities import load_priorities
from expdb.memory.resident import Resident
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.reading.fetch import find_missing
from expdb.storage.store import State, Store


def refresh(
    store: Store, session: Session, resident: Resident, state: State, seconds: float | None = None
) -> None:
    """Update the rows in memory to the state that the session sees.

    With `seconds`, stop loading after about this time. The loaded rows are always correct, and
    `resident.complete` is True if all rows are loaded.
    """
    r, deadline = resident, None if seconds is None else time.perf_counter() + seconds
    # A field that every row had is now optional. The rows in memory do not record which final
    # observations have it, so all rows are loaded again.
    lacking = any(
        name in r.fields and f"has_{name}" not in r.columns for name in store.fields.optional
    )
    if r.changing or lacking or state.oldest > r.high or r.high > state.added:
        r.forget()
    was_complete = r.complete
    # If an interrupt stops this update, these flags tell the next call that it is unfinished.
    r.changing, r.complete = True, False
    if state.has_agents:
        r.record_breaks(has_agents=True)
    if r.high == r.low == 0:
        r.begin_at(state.oldest)
        r.revision, r.deleted = state.revision, state.deleted
    if state.oldest > r.low:
        orphaned = r.evict(state.oldest)
        r.record(Change(r.high, r.high, orphaned=orphaned))
    if (
        r.known_fields is None
        or r.known_fields.version != store.fields.version
        or (state.size > r.size and r.over(state.size))
    ):
        r.settle_fields(store.fields, state.size)
    deleted = state.deleted != r.deleted and r.high > r.low
    if deleted:
        _unlink_deleted(store, session, r)
    revised, episodes, relinked = (
        _revise(store, session, r, state.revision)
        if state.revision != r.revision
        else (NONE, NONE, NONE)
    )
    if deleted or len(revised) or len(episodes) or len(relinked):
        r.record(Change(r.high, r.high, revised, relinked, episodes=episodes, deleted=deleted))
    if not r.slots:
        r.reserve(state.size, 0, state.capacity)
    new_steps = None
    if was_complete and r.high < state.added:
        new_steps = read_new_steps(store, session, r, state)
    if new_steps is not None:
        add_new_steps(r, new_steps, store, session, state.revised)
    while r.high < state.added and (deadline is None or time.perf_counter() < deadline):
        r.record(load_more(store, session, r, state))
    complete = r.high == state.added
    r.revision, r.deleted = state.revision, state.deleted
    if complete:
        r.size, r.gaps = state.size, state.size != r.high - r.low
        link_unordered(store, session, r)
        if r.priorities is not None and state.priorities != r.priorities:
            load_priorities(store, session, r, state)
    r.changing, r.complete = False, complete


# -- changes ---------------------------------------------------------------------------------------


def _unlink_deleted(store: Store, session: Session, r: Resident) -> None:
    """Remove deleted steps, and unlink their neighbours."""
    gone = find_missing(store, session, r.all_positions())
    rows = r.rows(gone)
    before = r.previous_steps(rows)
    parted = before[before >= 0]
    r.columns[AFTER][parted] = UNKNOWN
    r.columns[AFTER][rows] = UNKNOWN
    r.delete(gone)
    settle_loose_ends(r, parted)
    episodes = np.unique(r.columns["episode"][rows])
    _, window = r.positions_and_rows()
    starts = window[r.columns[WHOLE][window] > 0]
    r.columns[WHOLE][starts[np.isin(r.columns["episode"][starts], episodes)]] = 0
    for id in episodes.tolist():
        if id in r.open:
            r.open[id].first = -1
        if id in r.unordered or r.has_agents:  # the steps of the other agents remain neighbours
            r.unordered[id] = NONE
    if len(r.open) > MANY_OPEN:
        r.open = {id: episode for id, episode in r.open.items() if r.is_stored(episode.last)}


def _revise(
    store: Store, session: Session, r: Resident, revision: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Load changed columns of steps and episodes.

    Return the changed positions, the ids of the changed episodes, and the positions whose
    successor or episode status changed.
    """
    changed = read_steps(store, session, "revision > ?", r.revision)
    loaded = r.are_stored(changed[0])
    changed = tuple(values[loaded] for values in changed)
    positions, relinked = changed[0], NONE
    if len(positions):
        turned = positions[r.columns["terminated"][r.rows(positions)] != changed[3]]
        overwrite(r, *changed)
        terminate(store, session, r, turned)
        relinked = turned
    rows = session.query(
        "SELECT id FROM episodes WHERE buffer_id = ? AND revision > ?", store.id, r.revision
    )
    ids = np.array(sorted(row[0] for row in rows), np.int64)
    open_ids = [id for id in ids.tolist() if id in r.open]
    details = Details.read(store, session, ids) if len(ids) else None
    if details is not None and open_ids:
        r.reserve(0, int((details.tail_chunk >= 0).sum()), None)
        open_episodes = [r.open.pop(id) for id in open_ids]
        columns = [
            np.array([getattr(episode, name) for episode in open_episodes], np.int64)
            for name in ("first", "last", "ordinal", "count")
        ]
        is_stored = r.are_stored(columns[1])
        ends = Ends(*[column[is_stored] for column in (np.array(open_ids, np.int64), *columns)])
        relinked = np.concatenate((relinked, settle_ends(r, ends, details, r.high)))
        settle_loose_ends(r, r.rows(ends.last))
        load_finals(store, session, r, details)
    if details is not None:
        for id in details.id[~details.ordered].tolist():
            r.unordered[id] = NONE  # the episode may have ended; see link_unordered
            r.open.pop(id, None)
    if details is not None and not details.complete.all():
        _, window = r.positions_and_rows()
        starts = window[r.columns[WHOLE][window] > 0]
        broken = starts[np.isin(r.columns["episode"][starts], details.id[~details.complete])]
        r.columns[WHOLE][broken] = 0
        relinked = np.concatenate((relinked, r.positions(broken))) if len(broken) else relinked
    return positions, ids, relinked
