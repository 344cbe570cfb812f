"""Loading new steps into the arrays."""

from typing import Any

import numpy as np

from expdb.chunks.column import Buffer
from expdb.chunks.fields import SYSTEM
from expdb.memory.journal import Change
from expdb.memory.links import (
    Details,
    breaks,
    link,
    load_tails,
    settle_loose_ends,
)
from expdb.memory.resident import LINKS, ORDINAL, PRESENT, START, UNSAVED, WHOLE, Resident
from expdb.names import UNKNOWN
from expdb.sql.session import Session
from expdb.storage.reading.fetch import read_chunks
from expdb.storage.reading.gather import blank, check_spans, gather
from expdb.storage.reading.segments import Segments, Spans, inconsistent
from expdb.storage.store import State, Store

SEGMENTS_AT_ONCE = 256


WIDE = 1024  # bytes of a value from which on it is copied into its place at once


def load_more(store: Store, session: Session, r: Resident, state: State) -> Change:
    """Load the next few thousand steps."""
    begin = r.high
    segments = Segments.read(session, store.id, "AND last >= ?", begin, limit=SEGMENTS_AT_ONCE)
    count = len(segments.last)
    if count and segments.last[-1] >= state.added:
        raise inconsistent("a segment covers what was never written")
    late = np.maximum(begin - segments.first, 0)  # a merged segment begins among what is loaded
    segments.first, segments.ordinal, segments.chunk_row = (
        segments.first + late,
        segments.ordinal + late,
        segments.chunk_row + late,
    )
    end = int(segments.last[-1]) + 1 if count == SEGMENTS_AT_ONCE else state.added
    positions, index = segments.positions(begin)
    if state.gaps and len(positions):
        held = is_held(store, session, begin, end)
        index = index[held[positions - begin]]
        positions = positions[held[positions - begin]]
    if len(positions) and (int(positions[-1]) >= end or (np.diff(positions) <= 0).any()):
        raise inconsistent("segments overlap")
    if len(positions) != end - begin:
        r.gaps = True
    ids = np.unique(segments.episode)
    details = Details.read(store, session, ids)
    r.reserve(end, int((details.tail_chunk >= 0).sum()), state.capacity)

    at = None if len(positions) == end - begin else r.rows(positions)

    def put(name: str, values: Any) -> None:
        if at is None:
            r.write(name, begin, end, values)
        else:
            r.columns[name][at] = values

    r.high = end  # from here on the rows of these positions are known
    if at is not None:
        r.write(PRESENT, begin, end, False)
        at = r.rows(positions)
    put(PRESENT, True)
    put("episode", segments.episode[index])
    r.write(ORDINAL, begin, end, 0)
    put(ORDINAL, segments.ordinal[index] + positions - segments.first[index])
    r.write(WHOLE, begin, end, 0)
    for name in LINKS:
        r.write(name, begin, end, UNKNOWN)
    if "priority" in r.columns:
        r.write("priority", begin, end, np.nan)
        r.write(START, begin, end, np.nan)
        r.write(UNSAVED, begin, end, False)
    if r.fields and len(positions):
        spans = _spans(segments, index, positions)
        if any(field.nbytes >= WIDE for field in r.fields.values()):
            _copy_each(store, session, r, spans, positions)
        else:
            used = segments.chunk if at is None else segments.chunk[np.unique(index)]
            chunks = read_chunks(store, session, np.unique(used))
            check_spans(chunks, spans)
            for name, field in {**SYSTEM, **r.fields}.items():
                values = gather(chunks, spans, name, field)
                if f"has_{name}" in r.columns:
                    there = np.frombuffer(
                        bytearray().join([chunks[c].present(name, a, b) for c, a, b in spans]),
                        np.bool_,
                    )
                    blank(values, ~there)
                    put(f"has_{name}", there)
                put(name, values)
    if not r.fields:  # no chunk is read for what the table says as well
        overwrite(r, *read_steps(store, session, "position BETWEEN ? AND ?", begin, end - 1))
    elif state.revised:
        overwrite(
            r,
            *read_steps(
                store, session, "position BETWEEN ? AND ? AND revision IS NOT NULL", begin, end - 1
            ),
        )
    relinked = link(r, segments, index, positions, details, begin)
    settle_loose_ends(r, r.rows(np.concatenate((positions, relinked))))
    load_tails(store, session, r, details)
    return Change(begin, end, relinked=relinked, advanced=ids)


def _copy_each(
    store: Store, session: Session, r: Resident, spans: Spans, positions: np.ndarray
) -> None:
    """Copy fields into their places chunk by chunk as they are read.

    The memory of one then serves the next.
    """
    places: dict[int, list[tuple[int, int, np.ndarray]]] = {}
    start = 0
    for c, a, b in spans:
        places.setdefault(c, []).append((a, b, r.rows(positions[start : start + b - a])))
        start += b - a
    listed = store.dialect.as_list(np.array(sorted(places), np.int64))
    fields = {**SYSTEM, **r.fields}
    wide = [
        (name, field, r.columns[name]) for name, field in fields.items() if field.nbytes >= WIDE
    ]
    narrow = {name: list[Buffer]() for name, field in fields.items() if field.nbytes < WIDE}
    there = {name: list[bytes]() for name in fields if f"has_{name}" in r.columns}
    order: list[np.ndarray] = []
    for id, count, signature, crc, data in session.each(
        store.dialect.READ_CHUNKS, listed, store.id
    ):
        chunk, mine = store.decoder(session, signature).chunk(id, count, crc, data), places.pop(id)
        check_spans({id: chunk}, [(id, a, b) for a, b, _ in mine])
        for a, b, rows in mine:
            order.append(rows)
            for name, parts in narrow.items():
                parts.append(
                    chunk.raw(name, a, b)
                    if name in chunk.signature.fields
                    else bytes(fields[name].nbytes * (b - a))
                )
            for name, held in there.items():
                held.append(chunk.present(name, a, b))
            at = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == b - a - 1 else rows
            for name, field, column in wide:
                known = name in chunk.signature.fields
                column[at] = (
                    np.frombuffer(chunk.raw(name, a, b), field.numpy).reshape(-1, *field.shape)
                    if known
                    else 0
                )
    if places:
        raise inconsistent(f"chunk {min(places)}, which steps lie in, is not there")
    rows = np.concatenate(order)
    for name, parts in narrow.items():
        r.columns[name][rows] = np.frombuffer(bytearray().join(parts), fields[name].numpy).reshape(
            -1, *fields[name].shape
        )
    for name, held in there.items():
        present = np.frombuffer(bytearray().join(held), np.bool_)
        r.columns[f"has_{name}"][rows] = present
        blank(r.columns[name], rows[~present])


def is_held(store: Store, session: Session, begin: int, end: int) -> np.ndarray:
    """Return which of the positions from `begin` up to `end` hold a step."""
    found = session.ask(
        "SELECT position FROM steps WHERE buffer_id = ? AND position BETWEEN ? AND ?",
        store.id,
        begin,
        end - 1,
    )
    held = np.zeros(end - begin, np.bool_)
    held[np.fromiter((row[0] for row in found), np.int64, len(found)) - begin] = True
    return held


def _spans(segments: Segments, index: np.ndarray, positions: np.ndarray) -> Spans:
    """Return the runs of neighbouring rows of one chunk."""
    # Within a segment rows are neighbours wherever positions are.
    ends = breaks(index, positions)
    chunk = segments.chunk[index[np.concatenate(([0], ends))]]
    if not len(ends):
        row = int(segments.chunk_row[index[0]] + positions[0] - segments.first[index[0]])
        return [(int(chunk[0]), row, row + len(positions))]
    starts, stops = np.concatenate(([0], ends)), np.concatenate((ends, [len(positions)]))
    row = segments.chunk_row[index] + positions - segments.first[index]
    joined = (np.diff(chunk) == 0) & (row[starts[1:]] == row[stops[:-1] - 1] + 1)
    starts, stops = (
        starts[np.concatenate(([True], ~joined))],
        stops[np.concatenate((~joined, [True]))],
    )
    chunk = segments.chunk[index[starts]]
    return list(
        zip(chunk.tolist(), row[starts].tolist(), (row[stops - 1] + 1).tolist(), strict=True)
    )


def read_steps(
    store: Store, session: Session, condition: str, *params: int
) -> tuple[np.ndarray, ...]:
    """Return positions, step numbers, rewards and flags of rows, as the table has them."""
    rows = session.ask(
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
    """Write the columns of steps that the table has otherwise than their chunks."""
    rows = r.rows(positions)
    for name, column in zip(SYSTEM, values, strict=True):
        r.columns[name][rows] = column
