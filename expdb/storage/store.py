"""What a process knows of one buffer: its fields, and how to decode its chunks.

The other rooms write and read with it.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import sqlalchemy as sa

from expdb import errors
from expdb.chunks.chunk import Decoder, crc_of
from expdb.chunks.codec import Block
from expdb.chunks.fields import SYSTEM, Field, Signature
from expdb.sql import tables
from expdb.sql.conditions import Condition, compile_where
from expdb.sql.engine import Engine
from expdb.sql.query import Where
from expdb.sql.session import Session
from expdb.storage.catalog import Fields, find_buffer, nearest
from expdb.storage.records import EpisodeRecord
from expdb.storage.statements import INSERT_CHUNK, INSERT_SIGNATURE, SIGNATURES


@dataclass(frozen=True)
class State:
    """The counters of a buffer at one instant."""

    added: int
    oldest: int  # position: every step before it is evicted
    size: int
    gaps: int  # steps deleted by hand that a segment still covers
    revision: int
    revised: bool  # whether a step that is held differs from what its chunk says
    capacity: int | None
    nbytes: int
    deleted: int  # steps deleted on purpose, ever
    priorities: int  # counts writes of priorities


@dataclass
class WriteOutcome:
    """What a transaction has made; the process may know it only once it is committed."""

    write_id: str | None = None
    fields: Fields | None = None
    signatures: dict[tuple[tuple[str, Field], ...], int] = field(default_factory=dict)
    decoders: dict[int, Decoder] = field(default_factory=dict)
    episodes: list[tuple[EpisodeRecord, EpisodeRecord]] = field(
        default_factory=list
    )  # as it was, as it is now


class Writing(AbstractContextManager[tuple[Session, WriteOutcome]]):
    """A transaction that holds the buffer's row.

    What it has made is known to the process once it is committed.

    Not `locked` is for what takes the row with its first statement.
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
            if self._locked and not session.ask(store.dialect.LOCK, store.id):
                raise store.dropped()
            return session, self._news
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._transaction.__exit__(kind, error, traceback)
            self._learn()
        except (
            BaseException
        ) as found:  # an interrupt may come just before the end, or just after the commit
            self._transaction.__exit__(type(found), found, None)
            self._learn()
            raise

    @property
    def committed(self) -> bool:
        """Whether the database has said so, whatever was raised since."""
        return self._transaction.committed

    def _learn(self) -> None:
        if self.committed:
            self._store.learn(self._news)


class Store:
    """The rows and chunks of one buffer."""

    def __init__(self, engine: Engine, id: int, name: str, fields: Fields):
        self.engine, self.id, self.name, self.fields = engine, id, name, fields
        self.dialect = engine.dialect
        self._decoders: dict[int, Decoder] = {}
        self._signatures: dict[tuple[tuple[str, Field], ...], int] = {}
        self.warned_of_rewards = self.warned_of_open = False
        self.begun = 0  # episodes, since the last sweep: see write.py
        self.swept = self.sweep_from = 0
        self._looked_at: set[str] = set()  # tags that are there, or were warned of

    def writing(self, timeout: float | None = None) -> "Writing":
        """Return a context with a transaction that holds the buffer's row.

        That row is the writers' lock on every database.

        Other writers are waited for up to `timeout` seconds, None for the handle's own.
        """
        return Writing(self, timeout=timeout)

    def learn(self, outcome: WriteOutcome) -> None:
        """Take in what a committed transaction has made."""
        if outcome.fields is not None:
            self._adopt(outcome.fields)
        self._signatures.update(outcome.signatures)
        self._decoders.update(outcome.decoders)
        for before, after in outcome.episodes:
            before.become(after)

    def compiled(self, where: Where) -> Condition | None:
        """Return the condition of any form of `where`, None for all rows.

        Raise QueryError where it makes no sense.
        """
        condition = compile_where(where, self.dialect)
        if condition is not None:
            self.warn_of_unknown_tags(condition.tags)
        return condition

    def warn_of_unknown_tags(self, names: Iterable[str]) -> None:
        """Warn once of each tag, such as "tags.difficulty", that no step or episode has.

        The key may be misspelt.
        """
        fresh = [name for name in names if name not in self._looked_at]
        if not fresh:
            return
        with self.engine.reading() as session:
            if not session.ask("SELECT 1 FROM episodes WHERE buffer_id = ? LIMIT 1", self.id):
                return  # nothing was stored yet
            told = {name: self._unknown_tag(session, *name.split(".")) for name in fresh}
        self._looked_at.update(told)
        for message in filter(None, told.values()):
            errors.warn(message)

    def _unknown_tag(self, session: Session, column: str, key: str) -> str | None:
        table, other = (
            (tables.steps, "episode_tags") if column == "tags" else (tables.episodes, "tags")
        )
        held = self.dialect.tag_value(table.c[column], key).is_not(None)
        if session.rows(
            sa.select(sa.literal(1)).where(table.c.buffer_id == self.id, held).limit(1)
        ):
            return None
        keys = {
            name: {one for (one,) in session.ask(statement, self.id)}
            for name, statement in self.dialect.TAG_KEYS.items()
        }
        if key in keys[column]:  # null wherever it is
            return None
        if key in keys[other]:
            cure = (
                f"{other}.{key} is there: `{other}` are those of "
                f"{'an episode' if other == 'episode_tags' else 'a step'}"
            )
        else:
            cure = (
                f"there are {', '.join(sorted(keys[column])[:20])}"
                if keys[column]
                else "there are no such tags at all"
            )
        return (
            f"nothing in buffer {self.name!r} has the tag "
            f"{column}.{key}{nearest(key, keys[column]) or ':'} {cure}"
        )

    def dropped(self) -> errors.UnknownBuffer:
        """Return the error for a buffer that is no more."""
        return errors.UnknownBuffer(
            f"buffer {self.name!r} was dropped: make it again with db.buffer"
        )

    # -- counters ----------------------------------------------------------------------------------

    def state(self, session: Session) -> State:
        """Return the buffer's counters as the session sees them.

        Reads its fields again where they have changed.
        """
        found = session.ask(
            "SELECT added, low, size, holes, revision, capacity, bytes, deleted, priorities, "
            "fields_version, "
            "EXISTS (SELECT 1 FROM steps WHERE buffer_id = b.id AND revision IS NOT NULL) FROM "
            "buffers b WHERE id = ?",
            self.id,
        )
        if not found:
            raise self.dropped()
        (
            added,
            low,
            size,
            holes,
            revision,
            capacity,
            nbytes,
            deleted,
            priorities,
            version,
            revised,
        ) = found[0]
        self.fields_at(session, version)
        if not 0 <= low <= added or size < 0 or not added - low <= size + deleted:
            raise errors.DatabaseDamaged(
                f"buffer {self.name!r} counts {added} steps added, {low} the oldest, {size} held: "
                "that cannot be; restore a backup"
            )
        return State(
            added, low, size, holes, revision, bool(revised), capacity, nbytes, deleted, priorities
        )

    def fields_at(self, session: Session, version: int) -> Fields:
        """Return the fields that the session's snapshot has.

        They are read anew where they are not the ones known.
        """
        known = self.fields
        if known.version == version:
            return known
        found = find_buffer(session, self.name)
        if found is None or found[0] != self.id:
            raise self.dropped()
        self._adopt(found[2])
        return found[2]

    def _adopt(self, fields: Fields) -> None:
        """Know newer fields.

        Threads that look at older snapshots must not bring older ones back.
        """
        if fields.version > self.fields.version:
            self.fields = fields

    def settle_fields(
        self,
        session: Session,
        known: Fields,
        found: Mapping[str, Field],
        lacking: set[str],
        first: bool,
        outcome: WriteOutcome,
    ) -> None:
        """Add fields that are new, and note those that some row lacks.

        Raise FieldMismatch where a type differs.

        `known` are those of the transaction. `first` says that nothing was stored before, so that a
        new field is one that no row lacks yet.
        """
        new = {name: field for name, field in found.items() if name not in known.types}
        for name, field_ in found.items():
            if known.types.get(name, field_) != field_:
                raise errors.FieldMismatch(
                    f"field {name!r} holds {known.types[name]}, not {field_}: convert the value, "
                    "or use another field name"
                )
        for name in new:
            heads = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
            if name in known.nested or heads & (known.types.keys() | new.keys()):
                raise errors.FieldMismatch(
                    f"field {name!r} is both a value and a mapping with arrays: give one of the "
                    "two another name"
                )
        optional = known.optional | lacking | (set() if first else new.keys())
        if new or optional != known.optional:
            settled = Fields({**known.types, **new}, optional, known.version + 1)
            b = tables.buffers
            values = {"fields": settled.as_text(), "fields_version": settled.version}
            session.execute(sa.update(b).where(b.c.id == self.id).values(values))
            outcome.fields = settled

    # -- chunks ------------------------------------------------------------------------------------

    def decoder(self, session: Session, id: int, outcome: WriteOutcome | None = None) -> Decoder:
        """Return the decoder of a stored signature."""
        known = self._decoders.get(id) or (outcome.decoders.get(id) if outcome else None)
        if known is None:
            found = session.ask(f"{SIGNATURES} AND id = ?", self.id, id)
            if not found:
                raise errors.ChunkDamaged(
                    f"signature {id} of buffer {self.name!r} is gone: restore a backup"
                )
            known = self._decoder_from(*found[0])
            # What a writer reads may be its own, and be rolled back.
            (self._decoders if outcome is None else outcome.decoders)[id] = known
        return known

    def _decoder_from(self, id: int, *stored: Any) -> Decoder:
        try:
            return Decoder(Signature.from_stored(id, *stored))
        except Exception as error:
            raise errors.ChunkDamaged(
                f"signature {id} of buffer {self.name!r} cannot be read ({error}): restore a backup"
            ) from error

    def read_signatures(self) -> None:
        """Read the signatures that are not known yet.

        Chunks can then be written without a look at them.
        """
        with self.engine.reading() as session:
            self.learn_signatures(session.ask(SIGNATURES, self.id))

    def known_signatures(self) -> Any:
        """Return the ids of the signatures that need not be read again, as one parameter."""
        return self.dialect.as_list(np.array(list(self._decoders), np.int64))

    def learn_signatures(self, rows: list[Any]) -> None:
        """Take in stored signatures."""
        for id, *stored in rows:
            decoder = self._decoders[id] = self._decoder_from(id, *stored)
            fields = tuple(
                (name, field)
                for name, field in decoder.signature.fields.items()
                if name not in SYSTEM
            )
            self._signatures.setdefault(fields, id)

    def known_decoder(self, fields: Mapping[str, Field]) -> Decoder | None:
        """Return the decoder of the signature that these fields make.

        None where it has yet to be read or stored.
        """
        id = self._signatures.get(tuple(fields.items()))
        return None if id is None else self._decoders.get(id)

    def _decoder_of(
        self, session: Session, fields: Mapping[str, Field], outcome: WriteOutcome
    ) -> Decoder:
        """Return the decoder of the signature that these fields make.

        Stores the signature where it is new.
        """
        key = tuple(fields.items())
        id = self._signatures.get(key)
        id = outcome.signatures.get(key) if id is None else id
        if id is not None:
            return self.decoder(session, id, outcome)
        wanted = Signature(fields)
        columns = wanted.stored()
        known = session.ask(f"{SIGNATURES} ORDER BY id", self.id)
        id = next((id for id, _, text, _ in known if text == columns[1]), None)
        if id is None:
            id = wanted.id = len(known)
            session.ask(INSERT_SIGNATURE, self.id, id, *columns)
            outcome.decoders[id] = Decoder(wanted)
        outcome.signatures[key] = id
        return self.decoder(session, id, outcome)

    def insert_chunk(
        self,
        session: Session,
        outcome: WriteOutcome,
        block: Block,
        system: tuple[Any, ...],
        *,
        id: int,
        first: int,
        episode: int | None,
    ) -> int:
        """Insert a chunk of a block and its steps' system columns; return its bytes."""
        decoder = self._decoder_of(session, block.fields, outcome)
        data = block.message(decoder.templates, *system)
        crc = crc_of(decoder.signature, id, block.rows, data)
        values = (
            self.id,
            id,
            first,
            episode,
            block.rows,
            decoder.signature.id,
            len(data),
            crc,
            outcome.write_id,
            data,
        )
        session.ask(INSERT_CHUNK, *values)
        return len(data)


def evicted(positions: np.ndarray) -> errors.Evicted:
    """Return the error for positions that hold nothing."""
    shown = ", ".join(map(str, positions[:5].tolist())) + (", ..." if len(positions) > 5 else "")
    return errors.Evicted(
        f"{len(positions)} positions hold no step ({shown}): evicted, deleted or not written yet"
    )
