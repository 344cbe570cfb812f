"""Bringing a buffer's rows in memory up to date: what was evicted, deleted, changed, and what is new."""

import json
import time
from typing import Any

import numpy as np

from expdb.storage import priorities
from expdb.storage.columns import Buffer
from expdb.storage.engine import Session
from expdb.storage.read import Segments, Spans, blank, gather, read_chunks
from expdb.storage.resident import LINKS, NONE, UNKNOWN, Change, OpenEpisode, Resident
from expdb.storage.signature import SYSTEM
from expdb.storage.store import State, Store

SEGMENTS_AT_ONCE = 256
WIDE = 1024  # bytes of a value from which on it is copied into its place at once


def refresh(store: Store, session: Session, resident: Resident, state: State, seconds: float | None = None) -> None:
    """Have the resident hold what the session sees; with `seconds`, as much of it as can be loaded in about that time.

    What is loaded is right at any time, `complete` says whether it is all.
    """
    r, deadline = resident, None if seconds is None else time.perf_counter() + seconds
    if state.low > r.high or r.high > state.added:
        r.forget()
    if r.high == r.low == 0:
        r.low = r.high = state.low
        r.revision, r.deleted = state.revision, state.deleted
    if any(name in r.fields and f"has_{name}" not in r.columns for name in store.fields.optional):
        r.forget()  # which last observations have the field is not known
        r.low = r.high = state.low
        r.revision, r.deleted = state.revision, state.deleted
    if state.low > r.low:
        r.evict(state.low)
        r.record(Change(r.high, r.high))
    if r.known is None or r.known.version != store.fields.version or (state.size > r.size and r.over(state.size)):
        r.settle_fields(store.fields, state.size)
    deleted = state.deleted != r.deleted and r.high > r.low
    if deleted:
        _unlink_deleted(store, session, r)
    revised, episodes, relinked = _revise(store, session, r, state.revision) if state.revision != r.revision else (NONE, NONE, NONE)
    if deleted or len(revised) or len(episodes) or len(relinked):
        r.record(Change(r.high, r.high, revised, relinked, episodes=episodes, deleted=deleted))
    if not r.slots:
        r.reserve(state.added, 0, state.capacity)
    while r.high < state.added and (deadline is None or time.perf_counter() < deadline):
        r.record(_load(store, session, r, state))
    r.complete = r.high == state.added
    r.revision, r.deleted = state.revision, state.deleted
    if r.complete:
        r.size, r.gaps = state.size, state.size != r.high - r.low
        _order(store, session, r)
        if r.priorities is not None and state.priorities != r.priorities:
            load_priorities(store, session, r, state)


# -- new steps --------------------------------------------------------------------------------------------------------


def _load(store: Store, session: Session, r: Resident, state: State) -> Change:
    """Load the next few thousand steps."""
    begin = r.high
    rows = session.ask(
        "SELECT last, first, episode, ordinal, chunk, chunk_row FROM segments WHERE buffer_id = ? AND last >= ? ORDER BY last LIMIT ?",
        store.id, begin, SEGMENTS_AT_ONCE,
    )  # fmt: skip
    segments = Segments.of(rows)
    late = np.maximum(begin - segments.first, 0)  # a merged segment begins among what is loaded
    segments.first, segments.ordinal, segments.chunk_row = segments.first + late, segments.ordinal + late, segments.chunk_row + late
    end = int(segments.last[-1]) + 1 if len(rows) == SEGMENTS_AT_ONCE else state.added
    positions, index = segments.positions(begin)
    if state.holes and len(positions):
        held = _alive(store, session, begin, end)
        index = index[held[positions - begin]]
        positions = positions[held[positions - begin]]
    if len(positions) != end - begin:
        r.gaps = True
    ids = np.unique(segments.episode)
    details = _Details.read(store, session, ids)
    r.reserve(end, int((details.tail_chunk >= 0).sum()), state.capacity)

    at = None if len(positions) == end - begin else r.rows(positions)

    def put(name: str, values: Any) -> None:
        if at is None:
            r.write(name, begin, end, values)
        else:
            r.columns[name][at] = values

    r.high = end  # from here on the rows of these positions are known
    if at is not None:
        r.write(":present", begin, end, False)
        at = r.rows(positions)
    put(":present", True)
    put("episode", segments.episode[index])
    r.write(":ordinal", begin, end, 0)
    put(":ordinal", segments.ordinal[index] + positions - segments.first[index])
    r.write(":whole", begin, end, 0)
    for name in LINKS:
        r.write(name, begin, end, UNKNOWN)
    if "priority" in r.columns:
        r.write("priority", begin, end, np.nan)
        r.write(":unsaved", begin, end, False)
    if r.fields and len(positions):
        spans = _spans(segments, index, positions)
        if any(field.nbytes >= WIDE for field in r.fields.values()):
            _copy_each(store, session, r, spans, positions)
        else:
            used = segments.chunk if at is None else segments.chunk[np.unique(index)]
            chunks = read_chunks(store, session, np.unique(used))
            for name, field in {**SYSTEM, **r.fields}.items():
                values = gather(chunks, spans, name, field)
                if f"has_{name}" in r.columns:
                    there = np.frombuffer(bytearray().join([chunks[c].present(name, a, b) for c, a, b in spans]), np.bool_)
                    blank(values, ~there)
                    put(f"has_{name}", there)
                put(name, values)
    if not r.fields:  # no chunk is read for what the table says as well
        _overwrite(r, *_steps(store, session, "position BETWEEN ? AND ?", begin, end - 1))
    elif state.revised:
        _overwrite(r, *_steps(store, session, "position BETWEEN ? AND ? AND revision IS NOT NULL", begin, end - 1))
    relinked = _link(r, segments, index, positions, details, begin)
    _load_tails(store, session, r, details)
    return Change(begin, end, relinked=relinked, advanced=ids)


def _copy_each(store: Store, session: Session, r: Resident, spans: Spans, positions: np.ndarray) -> None:
    """Copy fields into their places chunk by chunk as they are read, so that the memory of one serves the next."""
    places: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    start = 0
    for c, a, b in spans:
        places.setdefault(c, []).append((a, b, r.rows(positions[start : start + b - a])))
        start += b - a
    listed = store.dialect.as_list(np.array(sorted(places), np.int64))
    fields = {**SYSTEM, **r.fields}
    wide = [(name, field, r.columns[name]) for name, field in fields.items() if field.nbytes >= WIDE]
    narrow = {name: list[Buffer]() for name, field in fields.items() if field.nbytes < WIDE}
    there = {name: list[bytes]() for name in fields if f"has_{name}" in r.columns}
    order: list[np.ndarray] = []
    for id, count, signature, crc, data in session.each(store.dialect.READ_CHUNKS, listed, store.id):
        chunk = store.decoder(session, signature).chunk(id, count, crc, data)
        for a, b, rows in places[id]:
            order.append(rows)
            for name, parts in narrow.items():
                parts.append(chunk.raw(name, a, b) if name in chunk.signature.fields else bytes(fields[name].nbytes * (b - a)))
            for name, held in there.items():
                held.append(chunk.present(name, a, b))
            at = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == b - a - 1 else rows
            for name, field, column in wide:
                known = name in chunk.signature.fields
                column[at] = np.frombuffer(chunk.raw(name, a, b), field.numpy).reshape(-1, *field.shape) if known else 0
    rows = np.concatenate(order)
    for name, parts in narrow.items():
        r.columns[name][rows] = np.frombuffer(bytearray().join(parts), fields[name].numpy).reshape(-1, *fields[name].shape)
    for name, held in there.items():
        present = np.frombuffer(bytearray().join(held), np.bool_)
        r.columns[f"has_{name}"][rows] = present
        blank(r.columns[name], rows[~present])


def _alive(store: Store, session: Session, begin: int, end: int) -> np.ndarray:
    """Return which of the positions from `begin` up to `end` hold a step."""
    found = session.ask("SELECT position FROM steps WHERE buffer_id = ? AND position BETWEEN ? AND ?", store.id, begin, end - 1)
    held = np.zeros(end - begin, np.bool_)
    held[np.fromiter((row[0] for row in found), np.int64, len(found)) - begin] = True
    return held


def _spans(segments: Segments, index: np.ndarray, positions: np.ndarray) -> Spans:
    """Return the runs of neighbouring rows of one chunk."""
    # Within a segment rows are neighbours wherever positions are.
    ends = _breaks(index, positions)
    chunk = segments.chunk[index[np.concatenate(([0], ends))]]
    if not len(ends):
        row = int(segments.chunk_row[index[0]] + positions[0] - segments.first[index[0]])
        return [(int(chunk[0]), row, row + len(positions))]
    starts, stops = np.concatenate(([0], ends)), np.concatenate((ends, [len(positions)]))
    row = segments.chunk_row[index] + positions - segments.first[index]
    joined = (np.diff(chunk) == 0) & (row[starts[1:]] == row[stops[:-1] - 1] + 1)
    starts, stops = starts[np.concatenate(([True], ~joined))], stops[np.concatenate((~joined, [True]))]
    chunk = segments.chunk[index[starts]]
    return list(zip(chunk.tolist(), row[starts].tolist(), (row[stops - 1] + 1).tolist(), strict=True))


def _breaks(index: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return where, among steps of segments, another segment begins, or positions are missing."""
    if index[-1] == index[0] and positions[-1] - positions[0] == len(positions) - 1:
        return NONE  # most often, and most often there is one step
    return np.flatnonzero((index[1:] != index[:-1]) | (positions[1:] != positions[:-1] + 1)) + 1


def _steps(store: Store, session: Session, condition: str, *params: int) -> tuple[np.ndarray, ...]:
    """Return positions, step numbers, rewards and flags of rows, as the table has them."""
    rows = session.ask(
        f"SELECT position, step, reward, terminated, truncated FROM steps WHERE buffer_id = ? AND {condition}", store.id, *params
    )
    columns = zip(*rows, strict=True) if rows else [()] * 5
    return tuple(np.array(values, dtype) for values, dtype in zip(columns, ("i8", "i8", "f8", "?", "?"), strict=True))


def _overwrite(r: Resident, positions: np.ndarray, *values: np.ndarray) -> None:
    rows = r.rows(positions)
    for name, column in zip(SYSTEM, values, strict=True):
        r.columns[name][rows] = column


# -- links ------------------------------------------------------------------------------------------------------------


class _Details:
    """What the table of episodes says of some of them, ascending by id."""

    def __init__(self, rows: list[tuple[int, str, int, bool, int | None, int | None, str | None]]):
        rows = sorted(rows)
        self.id = np.array([row[0] for row in rows], np.int64)
        self.open = np.array([row[1] == "open" for row in rows], np.bool_)
        self.complete = np.array([row[1] == "complete" for row in rows], np.bool_)
        self.length = np.array([row[2] for row in rows], np.int64)
        self.ordered = np.array([row[3] for row in rows], np.bool_)
        self.tail_chunk = np.array([-1 if row[4] is None else row[4] for row in rows], np.int64)
        self.tail_row = np.array([-1 if row[5] is None else row[5] for row in rows], np.int64)
        self.tail_fields = [row[6] or "[]" for row in rows]
        self.place = np.full(len(rows), UNKNOWN)  # of the tail among our rows, once it has one

    @classmethod
    def read(cls, store: Store, session: Session, ids: np.ndarray) -> "_Details":
        return cls(
            session.ask(
                "SELECT id, status, length, ordered, tail_chunk, tail_row, tail_fields FROM episodes "
                f"WHERE buffer_id = ? AND id {store.dialect.AMONG}", store.id, store.dialect.as_list(ids),
            )
        )  # fmt: skip


def _link(r: Resident, segments: Segments, index: np.ndarray, positions: np.ndarray, details: _Details, begin: int) -> np.ndarray:
    """Link new steps with each other and with what is loaded; return the older positions that this changed."""
    if not len(positions):
        return NONE
    after, before, rows = r.columns[":after"], r.columns[":before"], r.rows(positions)
    ordered = details.ordered[np.searchsorted(details.id, segments.episode)]
    for id in details.id[~details.ordered].tolist():
        r.unordered[id] = NONE  # see _order
        r.open.pop(id, None)
    # Runs of neighbouring steps, by episode and ordinal. Where hands have deleted, a segment has several.
    breaks = _breaks(index, positions)
    start, stop = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(positions)])) - 1
    inside = np.ones(len(positions), np.bool_)
    inside[stop] = False
    inside &= ordered[index]
    steps = np.flatnonzero(inside)
    after[rows[steps]] = rows[steps + 1]
    before[rows[steps + 1]] = rows[steps]
    keep = ordered[index[start]]
    start, stop = start[keep], stop[keep]
    if not len(start):
        return NONE
    episode, ordinal = segments.episode[index[start]], segments.ordinal[index[start]] + positions[start] - segments.first[index[start]]
    order = np.lexsort((ordinal, episode))
    start, stop, episode, ordinal = start[order], stop[order], episode[order], ordinal[order]
    length = stop - start + 1
    joined = np.flatnonzero((episode[1:] == episode[:-1]) & (ordinal[1:] == ordinal[:-1] + length[:-1]))
    after[rows[stop[joined]]] = rows[start[joined + 1]]
    before[rows[start[joined + 1]]] = rows[stop[joined]]
    # One entry an episode from here on.
    heads = np.concatenate(([0], np.flatnonzero(np.diff(episode)) + 1))
    lasts = np.concatenate((heads[1:], [len(episode)])) - 1
    found = _Ends(
        episode[heads],
        np.where(ordinal[heads] == 0, positions[start[heads]], -1),
        positions[stop[lasts]],
        ordinal[lasts] + length[lasts],
        np.add.reduceat(length, heads),
    )
    relinked = []
    for k in np.flatnonzero(ordinal[heads] > 0).tolist():
        known = r.open.pop(int(found.episode[k]), None)
        if known is None:
            continue
        found.count[k] += known.count
        found.first[k] = known.first if known.first >= r.low else -1
        if known.ordinal == ordinal[heads[k]] and r.held(np.array([known.last]))[0]:
            mine, theirs = known.last % r.slots, rows[start[heads[k]]]
            after[mine], before[theirs] = theirs, mine
            relinked.append(known.last)
    return np.concatenate((np.array(relinked, np.int64), _end(r, found, details, begin)))


class _Ends:
    """Where episodes stand: id, position of the first step (or -1), of the last, ordinal of the next one, steps held."""

    def __init__(self, episode: np.ndarray, first: np.ndarray, last: np.ndarray, ordinal: np.ndarray, count: np.ndarray):
        self.episode, self.first, self.last, self.ordinal, self.count = episode, first, last, ordinal, count


def _end(r: Resident, found: _Ends, details: _Details, begin: int) -> np.ndarray:
    """Say what follows the last steps of episodes; return the positions before `begin` that this changed."""
    at = np.searchsorted(details.id, found.episode)
    ended = ~details.open[at] & (found.ordinal == details.length[at])
    rows = found.last % r.slots
    tailed = np.flatnonzero(ended & (details.tail_chunk[at] >= 0))
    places = [r.tails.free.pop() for _ in tailed]
    r.tails.taken.extend(zip(found.last[tailed].tolist(), places, strict=True))
    details.place[at[tailed]] = places
    follows = np.where(r.columns["terminated"][rows], r.zero, UNKNOWN)
    follows[tailed] = places
    r.columns[":after"][rows] = follows
    whole = ended & details.complete[at] & (found.count == details.length[at]) & (found.first >= r.low)
    r.columns[":whole"][found.first[whole] % r.slots] = details.length[at[whole]]
    for k in np.flatnonzero(~ended).tolist():
        r.open[int(found.episode[k])] = OpenEpisode(*[int(array[k]) for array in (found.last, found.ordinal, found.first, found.count)])
    older = np.concatenate((found.last, found.first[whole]))
    return older[(older >= r.low) & (older < begin)]


def _load_tails(store: Store, session: Session, r: Resident, details: _Details) -> None:
    """Load the observations after last steps into the rows that were given to them."""
    placed = np.flatnonzero(details.place >= 0)
    if not len(placed):
        return
    given = {text: frozenset(json.loads(text)) for text in {details.tail_fields[k] for k in placed.tolist()}}
    names = r.tail_fields.union(*given.values())
    if names != r.tail_fields:
        r.tail_fields, r.version = names, r.version + 1
    wanted = [name for name in r.fields if name in r.tail_fields]
    if not wanted:
        return
    chunks = read_chunks(store, session, np.unique(details.tail_chunk[placed]))
    for name in wanted:
        mine = np.array([k for k in placed.tolist() if name in given[details.tail_fields[k]]], np.int64)
        if len(mine):
            spans: Spans = [(c, a, a + 1) for c, a in zip(details.tail_chunk[mine].tolist(), details.tail_row[mine].tolist(), strict=True)]
            r.columns[name][details.place[mine]] = gather(chunks, spans, name, r.fields[name])
        others = np.setdiff1d(placed, mine)
        r.columns[name][details.place[others]] = 0
        if f"has_{name}" in r.columns:
            r.columns[f"has_{name}"][details.place[mine]] = True
            r.columns[f"has_{name}"][details.place[others]] = False


def _order(store: Store, session: Session, r: Resident) -> None:
    """Link the steps of episodes that were written out of order, by (step, position), once all of them are known.

    Where one of them is gone, nobody can say what it stood between, and all of the links are unknown.
    """
    for id, known in list(r.unordered.items()):
        if len(known) and known.min() >= r.low:
            continue
        details = _Details.read(store, session, np.array([id]))
        rows = session.ask(
            "SELECT s.position FROM segments g JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN "
            "g.first AND g.last WHERE g.buffer_id = ? AND g.episode = ? ORDER BY s.step, s.position", store.id, id,
        )  # fmt: skip
        positions = np.array([row[0] for row in rows], np.int64)
        mine = r.rows(positions)
        for name in (":after", ":before"):
            r.columns[name][mine] = UNKNOWN
        r.columns[":whole"][mine] = 0
        relinked = positions
        if len(positions) and len(positions) == details.length[0]:
            r.unordered[id] = positions
            r.columns[":after"][mine[:-1]] = mine[1:]
            r.columns[":before"][mine[1:]] = mine[:-1]
            r.columns[":ordinal"][mine] = np.arange(len(mine))
            r.reserve(r.high, 1, None)
            _end(r, _Ends(np.array([id]), positions[:1], positions[-1:], details.length[:1], details.length[:1]), details, r.high)
            r.open.pop(id, None)
            _load_tails(store, session, r, details)
        else:
            del r.unordered[id]
            written = session.ask("SELECT first, last, ordinal FROM segments WHERE buffer_id = ? AND episode = ?", store.id, id)
            for first, last, ordinal in written:
                held = positions[(positions >= first) & (positions <= last)]
                r.columns[":ordinal"][r.rows(held)] = ordinal + held - first
        if len(relinked):
            r.record(Change(r.high, r.high, relinked=relinked))


# -- changes ----------------------------------------------------------------------------------------------------------


def _unlink_deleted(store: Store, session: Session, r: Resident) -> None:
    """Take out the steps that were deleted, and part what they stood between."""
    window = np.arange(r.low, r.high)
    gone = window[r.columns[":present"][r.rows(window)] & ~_alive(store, session, r.low, r.high)]
    rows = r.rows(gone)
    before = r.preceding(rows)
    r.columns[":after"][before[before >= 0]] = UNKNOWN
    r.columns[":after"][rows] = UNKNOWN
    r.columns[":present"][rows] = False
    r.gaps = r.gaps or len(gone) > 0
    episodes = np.unique(r.columns["episode"][rows])
    starts = r.rows(window)[r.columns[":whole"][r.rows(window)] > 0]
    r.columns[":whole"][starts[np.isin(r.columns["episode"][starts], episodes)]] = 0
    for id in episodes.tolist():
        if id in r.open:
            r.open[id].first = -1
        if id in r.unordered:
            r.unordered[id] = NONE


def _revise(store: Store, session: Session, r: Resident, revision: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take in changed columns; return the positions and the episodes that have changed, and the positions linked anew."""
    changed = _steps(store, session, "revision > ?", r.revision)
    loaded = (changed[0] >= r.low) & (changed[0] < r.high)
    changed = tuple(values[loaded] for values in changed)
    positions, relinked = changed[0], NONE
    if len(positions):
        turned = positions[r.columns["terminated"][r.rows(positions)] != changed[3]]
        _overwrite(r, *changed)
        relinked = _terminate(store, session, r, turned)
    found = session.ask("SELECT id FROM episodes WHERE buffer_id = ? AND revision > ?", store.id, r.revision)
    ids = np.array(sorted(row[0] for row in found), np.int64)
    mine = [id for id in ids.tolist() if id in r.open]
    details = _Details.read(store, session, ids) if len(ids) else None
    if details is not None and mine:
        r.reserve(r.high, int((details.tail_chunk >= 0).sum()), None)
        known = [r.open.pop(id) for id in mine]
        columns = [np.array([getattr(one, name) for one in known], np.int64) for name in ("first", "last", "ordinal", "count")]
        held = r.held(columns[1])
        ends = _Ends(*[column[held] for column in (np.array(mine, np.int64), *columns)])
        relinked = np.concatenate((relinked, _end(r, ends, details, r.high)))
        _load_tails(store, session, r, details)
    if details is not None:
        for id in ids.tolist():
            if id in r.unordered:
                r.unordered[id] = NONE  # it may have ended
        window = r.rows(np.arange(r.low, r.high)) if r.high > r.low else NONE
        starts = window[r.columns[":whole"][window] > 0]
        broken = starts[np.isin(r.columns["episode"][starts], details.id[~details.complete])]
        r.columns[":whole"][broken] = 0
        relinked = np.concatenate((relinked, r.positions(broken))) if len(broken) else relinked
    return positions, ids, relinked


def _terminate(store: Store, session: Session, r: Resident, turned: np.ndarray) -> np.ndarray:
    """Say what follows steps that terminate now, or do not any more: of the last ones of their episodes; return them all."""
    if not len(turned):
        return turned
    rows = r.rows(turned)
    details = _Details.read(store, session, np.unique(r.columns["episode"][rows]))
    at = np.searchsorted(details.id, r.columns["episode"][rows])
    for id in details.id[~details.ordered].tolist():
        r.unordered[id] = NONE  # see _order
    after = r.columns[":after"]
    free = (after[rows] == UNKNOWN) | (after[rows] == r.zero)
    last = free & details.ordered[at] & (r.columns[":ordinal"][rows] == details.length[at] - 1)
    after[rows[last]] = np.where(r.columns["terminated"][rows[last]], r.zero, UNKNOWN)
    return turned


# -- priorities -------------------------------------------------------------------------------------------------------


def load_priorities(store: Store, session: Session, r: Resident, state: State) -> None:
    """Take in the priorities that were written since they were read last, by anybody."""
    if r.priorities is None:
        r.version += 1
        r.columns["priority"] = np.full(r.slots + 1 + r.tail_rows, np.nan)
        r.columns["priority"][r.slots :] = 0
        r.columns[":unsaved"] = np.zeros(r.slots + 1 + r.tail_rows, np.bool_)
    found = []
    for block, values in priorities.changed(store, session, r.priorities or 0).items():
        positions = np.arange(block << priorities.BLOCK_BITS, (block + 1) << priorities.BLOCK_BITS)
        wanted = (positions >= r.low) & (positions < r.high) & ~np.isnan(values)
        rows = r.rows(positions[wanted])
        wanted[wanted] &= ~r.columns[":unsaved"][rows]
        r.columns["priority"][r.rows(positions[wanted])] = values[wanted]
        found.append(positions[wanted])
        r.greatest = max(r.greatest, float(values[wanted].max(initial=0.0)))
    if found:
        r.record(Change(r.high, r.high, prioritised=np.concatenate(found)))
    r.priorities = state.priorities
