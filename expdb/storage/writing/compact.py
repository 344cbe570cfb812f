"""Rewrite chunks: merge small chunks when an episode ends, and drop deleted steps."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expdb.chunks.chunk import Chunk
from expdb.chunks.codec import FIXED_CHUNK_BYTES, Rows, chunk_bytes
from expdb.chunks.column import Buffer
from expdb.chunks.fields import SYSTEM, Field
from expdb.sql.dialects.base import Dialect
from expdb.sql.session import Session
from expdb.storage.outcome import WriteOutcome
from expdb.storage.reading.chunk_values import check_spans
from expdb.storage.reading.fetch import check_final_rows, final_rows, read_chunks
from expdb.storage.reading.segments import Segments
from expdb.storage.recent_values import MergeSelector
from expdb.storage.statements import (
    COUNT,
    DELETE_SEGMENT,
    INSERT_SEGMENT,
    KEEP_FINAL,
    STORED_BYTES,
)
from expdb.storage.store import Store
from expdb.storage.stored_json import parse_names

# A chunk smaller than 1/SMALL of the target size is merged: its metadata takes as much space as its
# data.
SMALL = 8
# Two arrays that have as many equal first elements probably are a prompt and its continuation.
REPEATED = 32

Final = dict[str, Any]


def compact_episode(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    episode: int,
    final: Final | None,
    final_types: dict[str, Field],
) -> None:
    """Merge the small chunks of an episode that has ended.

    If eviction has removed all steps of the episode, delete the episode instead.
    """
    removed = session.query(
        "DELETE FROM episodes WHERE buffer_id = ? AND id = ? AND last_position < "
        "(SELECT low FROM buffers WHERE id = ?) RETURNING 1",
        store.id, episode, store.id,
    )  # fmt: skip
    if removed:
        return
    own = session.query(
        f"SELECT id, signature, {STORED_BYTES} FROM chunks c WHERE buffer_id = ? AND episode = ? "
        "AND id IN (SELECT chunk FROM segments WHERE buffer_id = ? AND episode = ?) ORDER BY id",
        store.id, episode, store.id, episode,
    )  # fmt: skip
    ((last_chunk,),) = session.query(
        "SELECT g.chunk FROM episodes e JOIN segments g ON g.buffer_id = e.buffer_id AND g.last = "
        "(SELECT min(last) FROM "
        "segments WHERE buffer_id = e.buffer_id AND last >= e.last_position) WHERE e.buffer_id = ? "
        "AND e.id = ?",
        store.id, episode,
    ) or [(None,)]  # fmt: skip
    groups = _groups(store, session, outcome, own)
    if final and last_chunk is not None and not any(last_chunk in group for group in groups):
        groups.append([last_chunk])  # a chunk with steps of several episodes
    for group in groups:
        keeps = (episode, final) if final and last_chunk in group else None
        if len(group) > 1 or keeps:
            rewrite(store, session, outcome, group, keeps, final_types)


def _groups(
    store: Store, session: Session, outcome: WriteOutcome, own: list[tuple[int, int, int]]
) -> list[list[int]]:
    """Group the chunks of an episode, given as (id, signature, bytes), that should be merged."""
    merged: set[int] = set()
    with_tokens: list[int] = []
    for id, signature, size in own:
        fields = store.signatures.decoder(session, signature, outcome).signature.fields
        # JSON and repeated prompts are merged at any size: within a chunk, they are stored once.
        if size < chunk_bytes(fields) // SMALL or any(
            field.dtype == "json" for field in fields.values()
        ):
            merged.add(id)
        elif any(map(_has_tokens, fields.values())):
            with_tokens.append(id)
    if len(with_tokens) > 1 and _repeats(store, session, outcome, with_tokens[:2]):
        merged.update(with_tokens)
    groups: list[list[int]] = [[]]
    for id, _, _ in own:
        if id in merged:
            groups[-1].append(id)
        else:
            groups += [[id], []]
    return groups


def _has_tokens(field: Field) -> bool:
    return field.has_prefixes and field.numpy.kind in "iu"


def _repeats(store: Store, session: Session, outcome: WriteOutcome, pair: list[int]) -> bool:
    """Return whether an array of the second chunk begins like the last array of the first."""
    chunks = read_chunks(store, session, np.array(pair, np.int64), outcome)
    first, second = (chunks[id] for id in pair)
    for name, field in second.signature.fields.items():
        if not _has_tokens(field) or name not in first.signature.fields:
            continue
        row = first.present(name, 0, first.rows).rfind(1)
        next_row = second.present(name, 0, second.rows).find(1)
        if row < 0 or next_row < 0:
            continue
        (last,) = first.objects(name, row, row + 1)
        (following,) = second.objects(name, next_row, next_row + 1)
        begin = min(len(last), len(following), REPEATED)
        if begin == REPEATED and np.array_equal(last[:begin], following[:begin]):
            return True
    return False


def rewrite(
    store: Store,
    session: Session,
    outcome: WriteOutcome,
    chunk_ids: list[int],
    final: tuple[int, Final] | None = None,
    final_types: dict[str, Field] | None = None,
) -> None:
    """Write the remaining steps of some chunks into new chunks.

    Chunks are deleted and inserted, because an UPDATE that shrinks a blob never releases its pages.
    """
    among, listed = store.dialect.AMONG, store.dialect.as_list(np.array(chunk_ids, np.int64))
    ((low, high),) = session.query(
        f"SELECT min(first), max(id) FROM chunks WHERE buffer_id = ? AND id {among}",
        store.id,
        listed,
    )
    where = f"AND last BETWEEN ? AND ? AND chunk {among}"
    segments = Segments.read(session, store.id, where, low, high, listed)
    steps = _Steps.read(session, store.dialect, store.id, segments)
    finals = [row for row in final_rows(store, session, segments.episode) if row[1] in chunk_ids]
    ids = np.array(chunk_ids, np.int64)
    chunks = read_chunks(store, session, ids, outcome) if len(steps.position) else {}
    spans = steps.spans()
    check_spans(chunks, [steps.rows_of(start, stop) for start, stop in spans])
    if chunks:
        numbers = np.array([row[:3] for row in finals], np.int64).reshape(-1, 3)
        check_final_rows(store, session, chunks, *numbers.T)
    _remove(store, session, listed, segments, steps, [id for id, *_ in finals])
    if not len(steps.position):
        return
    types = {
        name: field for chunk in chunks.values() for name, field in chunk.signature.fields.items()
    }
    owners = {digest: chunk for chunk in chunks.values() for digest in chunk.shared_values}
    shared = (chunk.read_shared_value(digest) for digest, chunk in owners.items())
    out = _Chunks(store, session, outcome, {**types, **(final_types or {})}, shared)
    for start, stop in spans:
        out.add(chunks[int(steps.chunk[start])], steps, start, stop)
    for id, chunk, row, fields in finals:
        # change.py deletes the final observation with the last step.
        if (steps.episode == id).any():
            out.copy_final(id, chunks[chunk], row, parse_names(fields, "tail_fields"))
    if final:
        out.add_final(*final)
    out.write()


def _remove(
    store: Store,
    session: Session,
    chunks: Any,
    segments: Segments,
    steps: "_Steps",
    observed: list[int],
) -> None:
    """Delete chunks, their segments, and the ended episodes without remaining steps."""
    among, as_list = store.dialect.AMONG, store.dialect.as_list
    session.execute(f"DELETE FROM chunks WHERE buffer_id = ? AND id {among}", store.id, chunks)
    session.execute_many(DELETE_SEGMENT, [(store.id, last) for last in segments.last.tolist()])
    for id in observed:
        session.execute(KEEP_FINAL, None, None, None, store.id, id)
    # Steps at covered positions that hold no step were deleted, earlier or in this transaction. The
    # new segments do not cover these positions.
    ((low,),) = session.query("SELECT low FROM buffers WHERE id = ?", store.id)
    covered = int(np.maximum(segments.last - np.maximum(segments.first, low) + 1, 0).sum())
    gone = covered - len(steps.position)
    session.execute(
        "UPDATE buffers SET holes = CASE WHEN holes > ? THEN holes - ? ELSE 0 END WHERE id = ?",
        gone,
        gone,
        store.id,
    )
    session.execute(
        f"DELETE FROM episodes WHERE buffer_id = ? AND status <> 'open' AND id {among} "
        "AND NOT EXISTS (SELECT 1 FROM segments g "
        "WHERE g.buffer_id = episodes.buffer_id AND g.episode = episodes.id) "
        f"AND NOT id {among}",
        store.id,
        as_list(np.unique(segments.episode)),
        as_list(np.unique(steps.episode)),
    )


@dataclass
class _Steps:
    """Steps that are copied from old chunks into new ones, ordered by position.

    `system` holds the current values, including rewards that were set later.
    """

    position: np.ndarray
    episode: np.ndarray
    ordinal: np.ndarray
    chunk: np.ndarray
    chunk_row: np.ndarray
    system: list[tuple[int, float | None, bool, bool]]

    @classmethod
    def read(
        cls, session: Session, dialect: Dialect, buffer_id: int, segments: Segments
    ) -> "_Steps":
        # This is not a join with segments: until PostgreSQL has statistics of the buffer, a join
        # would scan all its steps.
        covered, _ = segments.positions(0)
        if len(covered) and int(covered[-1] - covered[0]) == len(covered) - 1:
            condition, params = "BETWEEN ? AND ?", [int(covered[0]), int(covered[-1])]
        else:
            condition, params = dialect.AMONG, [dialect.as_list(covered)]
        rows = session.query(
            "SELECT position, step, reward, terminated, truncated FROM steps "
            f"WHERE buffer_id = ? AND position {condition} ORDER BY position",
            buffer_id, *params,
        )  # fmt: skip
        position = np.array([row[0] for row in rows], np.int64)
        if not rows:
            return cls(position, position, position, position, position, [])
        index = np.searchsorted(segments.last, position)
        offset = position - segments.first[index]
        return cls(
            position,
            segments.episode[index],
            segments.ordinal[index] + offset,
            segments.chunk[index],
            segments.chunk_row[index] + offset,
            [
                (step, reward, bool(terminated), bool(truncated))
                for _, step, reward, terminated, truncated in rows
            ],
        )

    @property
    def is_of_one_episode(self) -> bool:
        """Whether all steps are of one episode."""
        return bool((self.episode == self.episode[0]).all())

    def spans(self) -> list[tuple[int, int]]:
        """Return the runs of steps that are adjacent in one old chunk."""
        if not len(self.position):
            return []
        return _runs(
            (np.diff(self.chunk) != 0) | (np.diff(self.chunk_row) != 1), len(self.position)
        )

    def rows_of(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return the old chunk of steps [start, stop) and their range of rows in it."""
        row = int(self.chunk_row[start])
        return int(self.chunk[start]), row, row + stop - start


def _runs(breaks: np.ndarray, count: int) -> list[tuple[int, int]]:
    at = (np.flatnonzero(breaks) + 1).tolist()
    return list(zip([0, *at], [*at, count], strict=True))


class _Chunks:
    """New chunks, filled with rows of old ones."""

    def __init__(
        self,
        store: Store,
        session: Session,
        outcome: WriteOutcome,
        types: dict[str, Field],
        shared: Iterable[Buffer],
    ):
        self._selector = MergeSelector(store.recent_values, shared)
        self._store, self._session, self._news = store, session, outcome
        # Signatures do not store `shared`; take it from the declared fields.
        declared = {name: field.shared for name, field in store.fields.types.items()}
        self._types = {
            name: replace(field, shared=declared.get(name))
            for name, field in types.items()
            if name not in SYSTEM
        }
        self._rows = Rows()
        self._begin = self._end = 0
        self._steps: _Steps | None = None
        self._finals: list[tuple[int, list[str]]] = []

    def add(self, chunk: Chunk, steps: _Steps, start: int, stop: int) -> None:
        """Copy steps [start, stop) from `chunk`; they are adjacent and follow the copied steps."""
        self._steps = steps
        at = int(steps.chunk_row[start]) - start
        # Copy about a quarter of a small chunk at a time, to bound how far new chunks exceed their
        # target size.
        stride = max(
            1,
            FIXED_CHUNK_BYTES
            * chunk.rows
            // (4 * max(chunk.stored_bytes, chunk.rows * chunk.signature.row_bytes)),
        )
        for begin in range(start, stop, stride):
            # Chunks that several episodes share are not split, because they hold the final
            # observations of all of them.
            if self._rows.full and self._rows.count and steps.is_of_one_episode:
                self.write()
            end = min(begin + stride, stop)
            self._rows.copy(chunk, at + begin, at + end, self._types)
            self._end = end

    def add_final(self, episode: int, final: Final) -> None:
        """Append the final observation of an episode after all steps."""
        self._rows.append_final(final, self._types)
        self._finals.append((episode, sorted(final)))

    def copy_final(self, episode: int, chunk: Chunk, row: int, fields: list[str]) -> None:
        """Keep the final observation that an old chunk held."""
        self._rows.copy(chunk, row, row + 1, self._types)
        self._finals.append((episode, fields))

    def write(self) -> None:
        """Insert a chunk with the rows copied so far."""
        steps, begin, end, store = self._steps, self._begin, self._end, self._store
        assert steps is not None
        position, episode = steps.position[begin:end], steps.episode[begin:end]
        ordinal = steps.ordinal[begin:end]
        chunk, first = int(position[-1]), int(position[0])
        single = int(episode[0]) if (episode == episode[0]).all() else None
        system = tuple(map(list, zip(*steps.system[begin:end], strict=True)))
        block = self._rows.block(self._selector)
        nbytes = store.insert_chunk(
            self._session,
            self._news,
            block,
            lambda templates: block.message(templates, *system),
            id=chunk,
            first=first,
            episode=single,
        )
        apart = (np.diff(position) != 1) | (np.diff(episode) != 0) | (np.diff(ordinal) != 1)
        segments = [
            (
                store.id,
                int(position[b - 1]),
                int(position[a]),
                int(episode[a]),
                int(ordinal[a]),
                chunk,
                a,
            )
            for a, b in _runs(apart, end - begin)
        ]
        self._session.execute_many(INSERT_SEGMENT, segments)
        self._session.execute(COUNT, 0, nbytes, store.id)
        for row, (owner, fields) in enumerate(self._finals, end - begin):
            self._session.execute(KEEP_FINAL, chunk, row, json.dumps(fields), store.id, owner)
        self._rows, self._begin = Rows(), end
