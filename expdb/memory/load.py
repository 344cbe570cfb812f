"""Load many new steps into the arrays in memory."""

from typing import Any

import numpy as np

from expdb.chunks.column import Buffer
from expdb.chunks.fields import SYSTEM
from expdb.memory.columns import LINKS, ORDINAL, PRESENT, PRIORITY, UNSAVED, WHOLE
from expdb.memory.journal import Change
from expdb.memory.links import (
    Details,
    Incoming,
    link,
    load_finals,
    record_gap,
    settle_loose_ends,
)
from expdb.memory.resident import Resident, sparse_slots
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.reading.chunk_values import (
    WIDE,
    Bulk,
    blank,
    check_spans,
    joined,
    raw_or_zeros,
)
from expdb.storage.reading.fetch import read_chunks
from expdb.storage.reading.segments import Spans, inconsistent
from expdb.storage.reading.value_references import read_shared_values
from expdb.storage.store import State, Store


def load_more(store: Store, session: Session, r: Resident, state: State) -> Change:
    """Load the steps of the next segments, up to `links.SEGMENTS_AT_ONCE` segments."""
    new = Incoming.read(store, session, r.high, state)
    ids = np.unique(new.segments.episode)
    details = Details.read(store, session, ids)
    finals = int((details.tail_chunk >= 0).sum())
    if is_sparse := new.end - new.begin > sparse_slots(len(new.positions)):
        r.reserve(len(new.positions), finals, state.capacity)
        r.extend_sparse(new.positions, new.end)
    else:
        r.reserve(new.end - new.begin, finals, state.capacity)
    _clear_rows(r, new, is_sparse)
    _load_fields(store, session, r, new)
    if not r.fields:  # the table `steps` has all values that are needed, so no chunk is read
        condition = "position BETWEEN ? AND ?"
        overwrite(r, *read_steps(store, session, condition, new.begin, new.end - 1))
    elif state.revised:
        condition = "position BETWEEN ? AND ? AND revision IS NOT NULL"
        overwrite(r, *read_steps(store, session, condition, new.begin, new.end - 1))
    relinked = link(r, new, details)
    rows = r.rows(np.concatenate((new.positions, relinked)))
    settle_loose_ends(r, rows)
    record_gap(r, rows)
    load_finals(store, session, r, details)
    return Change(new.begin, new.end, relinked=relinked, advanced=ids)


def _clear_rows(r: Resident, new: Incoming, is_sparse: bool) -> None:
    """Initialize the rows of new steps, before their fields and links are set."""
    blanks: dict[str, Any] = {WHOLE: 0}
    if not new.is_whole:
        blanks |= {ORDINAL: 0, PRESENT: False, **dict.fromkeys(LINKS, UNKNOWN)}
    if PRIORITY in r.columns:
        blanks |= {PRIORITY: np.nan, UNSAVED: False}
    for name, value in blanks.items():
        if is_sparse:
            r.columns[name][r.rows(new.positions)] = value
        else:
            r.write(name, new.begin, new.end, value)
    r.extend(new.end, new.is_whole)  # `new.put` below needs rows for these positions
    new.put(r, PRESENT, True)
    new.put(r, "episode", new.of_segments(new.segments.episode))
    new.put(r, ORDINAL, new.ordinals())


def _load_fields(store: Store, session: Session, r: Resident, new: Incoming) -> None:
    if not r.fields or not len(new.positions):
        return
    spans = new.spans()
    if any(field.nbytes >= WIDE for field in r.fields.values()):
        _copy_each(store, session, r, spans, new.positions)
        return
    chunks = read_chunks(store, session, new.chunks())
    check_spans(chunks, spans)
    bulk, rows = Bulk(chunks, spans), r.rows(new.positions)
    places: list[slice | np.ndarray] = [rows[place] for place in bulk.places]
    if len(places) == 1 and new.is_whole and rows[-1] - rows[0] == len(rows) - 1:
        places = [slice(rows[0], rows[-1] + 1)]  # faster than an index array
    for name, field in {**SYSTEM, **r.fields}.items():
        pieces = bulk.values(name, field)
        if f"has_{name}" in r.columns:
            for at, values, there in zip(places, pieces, bulk.present(name), strict=True):
                blank(values, ~there)
                r.columns[f"has_{name}"][at] = there
        for at, values in zip(places, pieces, strict=True):
            r.columns[name][at] = values


def _copy_each(
    store: Store, session: Session, r: Resident, spans: Spans, positions: np.ndarray
) -> None:
    """Copy the fields chunk by chunk while reading.

    The memory of one chunk can then be reused for the next chunk.
    """
    fields, places = {**SYSTEM, **r.fields}, _places(r, spans, positions)
    listed = store.dialect.as_list(np.array(sorted(places), np.int64))
    wide = {name: field for name, field in fields.items() if field.nbytes >= WIDE}
    narrow = {name: list[Buffer]() for name in fields if name not in wide}
    there = {name: list[bytes]() for name in fields if f"has_{name}" in r.columns}
    order: list[np.ndarray] = []
    for id, count, signature, crc, data in session.iterate(
        store.dialect.READ_CHUNKS, listed, store.id
    ):
        chunk, chunk_spans = (
            store.signatures.decoder(session, signature).chunk(id, count, crc, data),
            places.pop(id),
        )
        read_shared_values(session.query, store.id, [chunk], store.dialect)
        check_spans({id: chunk}, [(id, a, b) for a, b, _ in chunk_spans])
        for a, b, rows in chunk_spans:
            order.append(rows)
            for name, parts in narrow.items():
                parts.append(raw_or_zeros(chunk, name, fields[name], a, b))
            for name, masks in there.items():
                masks.append(chunk.present(name, a, b))
            at = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == b - a - 1 else rows
            for name, field in wide.items():
                values = np.frombuffer(raw_or_zeros(chunk, name, field, a, b), field.numpy)
                r.columns[name][at] = values.reshape(-1, *field.fixed_shape)
    if places:
        raise inconsistent(f"chunk {min(places)}, which contains steps, is missing")
    rows = np.concatenate(order)
    for name, parts in narrow.items():
        r.columns[name][rows] = joined(parts, fields[name], len(rows))
    for name, masks in there.items():
        present = np.frombuffer(bytearray().join(masks), np.bool_)
        r.columns[f"has_{name}"][rows] = present
        blank(r.columns[name], rows[~present])


def _places(
    r: Resident, spans: Spans, positions: np.ndarray
) -> dict[int, list[tuple[int, int, np.ndarray]]]:
    """Return a dict from chunk id to the spans of the chunk and the target rows of each span."""
    places: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    start = 0
    for c, a, b in spans:
        places.setdefault(c, []).append((a, b, r.rows(positions[start : start + b - a])))
        start += b - a
    return places


def read_steps(
    store: Store, session: Session, condition: str, *params: int
) -> tuple[np.ndarray, ...]:
    """Return positions, step numbers, rewards and flags from the table `steps`."""
    rows = session.query(
        "SELECT position, step, reward, terminated, truncated FROM steps WHERE buffer_id = ? AND "
        f"{condition}",
        store.id,
        *params,
    )
    columns = zip(*rows, strict=True) if rows else [()] * 5
    return tuple(
        np.array(values, dtype)
        for values, dtype in zip(columns, ("i8", "i8", "f8", "?", "?"), strict=True)
    )


def overwrite(r: Resident, positions: np.ndarray, *values: np.ndarray) -> None:
    """Overwrite the columns from chunks with the current values from the table `steps`."""
    rows = r.rows(positions)
    for name, column in zip(SYSTEM, values, strict=True):
        r.columns[name][rows] = column
