"""The state of one buffer in this process: its fields, and the decoders of its chunks."""

import operator
import zlib
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.chunk import HAS_SHARED_VALUES, crc_of
from expdb.chunks.codec import Block
from expdb.chunks.fields import Field
from expdb.chunks.message import Templates
from expdb.sql import tables
from expdb.sql.conditions import Condition, compile_where
from expdb.sql.engine import Engine
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.activity import Activity
from expdb.storage.cached_records import AdmissionLimit
from expdb.storage.catalog import Fields, find_buffer
from expdb.storage.commits import CommitQueue
from expdb.storage.outcome import WriteOutcome
from expdb.storage.recent_values import RecentValues
from expdb.storage.replacements import Replacements
from expdb.storage.signatures import Signatures
from expdb.storage.statements import INSERT_CHUNK, INSERT_REFERENCE, PUT_SHARED_VALUE
from expdb.storage.tags import Tags

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class State:
    """The counters of a buffer at one instant."""

    added: int
    oldest: int  # every step before this position is evicted
    size: int
    gaps: int  # number of deleted steps whose positions a segment still covers
    revision: int
    revised: bool  # whether any stored step has changed since its chunk was written
    capacity: int | None
    nbytes: int
    deleted: int  # number of steps ever deleted by a user
    priorities: int  # number of writes of priorities
    pinned: int | None  # steps from this position on are not evicted
    trigger_evicts: bool  # whether the database evicts; if not, writers evict by the policy
    has_agents: bool  # whether any stored step has another agent than its episode
    has_shared_values: bool  # whether any chunk refers to shared values

    @property
    def is_contiguous(self) -> bool:
        """Whether every position from the oldest to the newest holds a step."""
        return self.size == self.added - self.oldest


class Writing(AbstractContextManager[tuple[Session, WriteOutcome]]):
    """A transaction that locks the buffer's row.

    After the commit, the process adopts the changes in the outcome. With `locked=False`, the
    caller's first statement must lock the row.
    """

    def __init__(
        self,
        store: "Store",
        outcome: WriteOutcome | None = None,
        locked: bool = True,
        timeout: float | None = None,
    ):
        self._store, self._news, self._locked = store, outcome or WriteOutcome(), locked
        self._transaction = store.engine.writing(timeout)

    def __enter__(self) -> tuple[Session, WriteOutcome]:
        store = self._store
        try:
            session = self._transaction.__enter__()
            if self._locked:
                session.require(store.dropped, store.dialect.LOCK, store.id)
            return session, self._news
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._transaction.__exit__(kind, error, traceback)
            if self._transaction.committed:
                self._store.learn(self._news)
        except BaseException as failure:
            # An interrupt may come just before the transaction ends, or just after its commit.
            self._transaction.__exit__(type(failure), failure, None)
            if self._transaction.committed:
                self._store.learn(self._news)
            raise

    @property
    def committed(self) -> bool:
        """Whether the database has confirmed the commit, even if an exception was raised later."""
        return self._transaction.committed

    @property
    def commit_versions(self) -> Any:
        """The versions before and after the commit; see `Transaction`."""
        return self._transaction.commit_versions


class Snapshot(NamedTuple):
    """A session that reads one snapshot, and the state of the buffer in it."""

    session: Session
    state: State


class Store:
    """The rows and chunks of one buffer."""

    def __init__(self, engine: Engine, id: int, name: str, fields: Fields):
        self.engine, self.id, self.name, self.fields = engine, id, name, fields
        self.dialect = engine.dialect
        self.signatures = Signatures(engine, id, name)
        self.warned_of_rewards = self.warned_of_open = self.warned_of_open_scores = False
        self.replacements = Replacements() if engine.replaces_text else None
        self.begun = 0  # episodes begun since the last sweep; see writing/abandoned_episodes.py
        self.swept = self.sweep_from = 0
        self.tags = Tags(engine, id, name)
        self.recent_values = RecentValues()
        self.commit_queue = CommitQueue()
        self.activity = Activity()
        self.report_if_due: Callable[[], None] = lambda: None  # see upkeep/reporting.py
        self.admission_limit: AdmissionLimit | None = None  # from the last read of the pace

    def read(
        self,
        function: "Callable[Concatenate[Store, Session, Arguments], Result]",
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Call `function(store, session, ...)` in a read transaction and return its result."""
        with self.engine.reading() as session:
            return function(self, session, *arguments, **options)

    def writing(self, timeout: float | None = None) -> "Writing":
        """Return a context manager for a transaction that locks the buffer's row.

        On every database, the lock on this row excludes other writers of the buffer. The
        transaction waits for other writers up to `timeout` seconds; None means the timeout of the
        handle.
        """
        return Writing(self, timeout=timeout)

    def learn(self, outcome: WriteOutcome) -> None:
        """Adopt the changes of a committed transaction."""
        if outcome.fields is not None:
            self._adopt(outcome.fields)
        self.signatures.learn(outcome)
        for before, after in outcome.episodes:
            before.become(after)

    def compiled(self, where: Where, new_tags: Set[str] = frozenset()) -> Condition | None:
        """Compile any accepted form of `where`; return None if it matches every step.

        Warn about unknown tags, except those in `new_tags`. Raise QueryError if `where` is not
        valid.
        """
        condition = compile_where(where, self.dialect)
        if condition is not None:
            self.tags.warn_of_unknown(set(condition.tags) - new_tags)
        return condition

    def dropped(self) -> errors.UnknownBuffer:
        """Return the error for a buffer that was dropped."""
        return errors.UnknownBuffer(
            f"buffer {self.name!r} was dropped; create it again with db.buffer()"
        )

    # -- counters ----------------------------------------------------------------------------------

    def state(self, session: Session) -> State:
        """Return the buffer's counters as the session sees them.

        If the buffer's fields have changed, read them again.
        """
        rows = session.query(
            "SELECT added, low, size, holes, revision, "
            "EXISTS (SELECT 1 FROM steps WHERE buffer_id = b.id AND revision IS NOT NULL), "
            "capacity, bytes, deleted, priorities, pinned, trigger_evicts, "
            "EXISTS (SELECT 1 FROM steps WHERE buffer_id = b.id AND agent_id IS NOT NULL), "
            "EXISTS (SELECT 1 FROM value_references WHERE buffer_id = b.id), "
            "fields_version FROM buffers b WHERE id = ?",
            self.id,
        )
        if not rows:
            raise self.dropped()
        *values, version = rows[0]
        self.fields_at(session, version)
        state = State(*values)
        added, low, size = state.added, state.oldest, state.size
        if not 0 <= low <= added or size < 0 or not added - low <= size + state.deleted:
            raise errors.DatabaseDamaged(
                f"buffer {self.name!r} has impossible counters ({added} steps added, oldest "
                f"position {low}, {size} steps stored); restore a backup"
            )
        return state

    def column(self, session: Session, name: str) -> Any:
        """Return a column of the buffer's row."""
        rows = session.query(f"SELECT {name} FROM buffers WHERE id = ?", self.id)
        if not rows:
            raise self.dropped()
        return rows[0][0]

    def fields_at(self, session: Session, version: int) -> Fields:
        """Return the fields of this version in the session's snapshot; read them if not cached."""
        fields = self.fields
        if fields.version == version:
            return fields
        buffer = find_buffer(session, self.name)
        if buffer is None or buffer[0] != self.id:
            raise self.dropped()
        self._adopt(buffer[2])
        return buffer[2]

    def _adopt(self, fields: Fields) -> None:
        """Replace the cached fields by newer ones.

        A thread that reads an older snapshot must not restore older fields.
        """
        if fields.version > self.fields.version:
            self.fields = fields

    def settle_fields(
        self,
        session: Session,
        stored: Fields,
        written: Mapping[str, Field],
        lacking: set[str],
        first: bool,
        outcome: WriteOutcome,
    ) -> None:
        """Store the types of new fields, and record which fields some steps lack.

        `stored` holds the fields that the transaction sees. `written` holds the types of declared
        or written fields, and `lacking` names the fields that some written steps lack. `first`
        means that the buffer has no earlier steps, so no step lacks a new field.

        Raise FieldMismatch if a type differs, or if a name is both a field and a mapping.
        """
        stored_types = map(stored.types.get, written)
        if all(map(operator.is_, stored_types, written.values())) and lacking <= stored.optional:
            return  # the usual case
        new = {name: field for name, field in written.items() if name not in stored.types}
        for name, field_ in written.items():
            stored_type = stored.types.get(name, field_)
            if stored_type != field_:
                types = str(stored_type), str(field_)
                if types[0] == types[1]:
                    types = repr(stored_type), repr(field_)
                raise errors.FieldMismatch(
                    f"field {name!r} is stored as {types[0]}, but fields= declares {types[1]}; "
                    "omit the declaration, or use another buffer or field name"
                )
        completed = {  # declared after their first values
            name: field
            for name, known in stored.types.items()
            if name in written and (field := known.complete(written[name])) is not known
        }
        for name in new:
            if name in stored.annotations:
                raise errors.FieldMismatch(
                    f"{name!r} is the name of an annotation of buffer {self.name!r}; rename the "
                    "field"
                )
            heads = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
            if name in stored.nested or heads & (stored.types.keys() | new.keys()):
                raise errors.FieldMismatch(
                    f"field {name!r} is both a value and a mapping with arrays; rename one of the "
                    "two"
                )
        optional = stored.optional | lacking | (set() if first else new.keys())
        if new or completed or optional != stored.optional:
            settled_types = {**stored.types, **new, **completed}
            settled = Fields(settled_types, optional, stored.version + 1, stored.annotations)
            b = tables.buffers
            values = {"fields": settled.as_text(), "fields_version": settled.version}
            session.execute(sa.update(b).where(b.c.id == self.id).values(values))
            outcome.fields = settled

    # -- chunks ------------------------------------------------------------------------------------

    def insert_chunk(
        self,
        session: Session,
        outcome: WriteOutcome,
        block: Block,
        message: Callable[[Templates], bytes],
        *,
        id: int,
        first: int,
        episode: int | None,
    ) -> int:
        """Insert the chunk that `message` encodes from a block; return its size in bytes."""
        decoder = self.signatures.settle(session, block.fields, outcome)
        data = message(decoder.templates)
        crc = crc_of(decoder.signature, id, block.rows, data, self.id)
        if block.shared_values:
            crc |= HAS_SHARED_VALUES
            values = [
                (self.id, digest, zlib.crc32(value, zlib.crc32(digest)), value)
                for digest, value in sorted(block.shared_values.items())
            ]
            session.execute_many(PUT_SHARED_VALUE, values)
            session.execute_many(
                INSERT_REFERENCE, [(self.id, id, digest) for _, digest, _, _ in values]
            )
        described = block.rows, decoder.signature.id, len(data), crc, outcome.write_id, data
        session.query(INSERT_CHUNK, self.id, id, first, episode, *described)
        return len(data)


def evicted(positions: np.ndarray) -> errors.Evicted:
    """Return the error for positions without a step."""
    shown = ", ".join(map(str, positions[:5].tolist())) + (", ..." if len(positions) > 5 else "")
    missing, reason = "positions have no step", "the steps were"
    if len(positions) == 1:
        missing, reason = "position has no step", "the step was"
    return errors.Evicted(
        f"{len(positions)} {missing} ({shown}), because {reason} evicted, deleted or not written "
        "yet; read newer positions, or raise the capacity"
    )
