"""The signatures of a buffer, which describe the fields of its chunks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from expdb import errors
from expdb.chunks.chunk import Decoder
from expdb.chunks.fields import SYSTEM, Field, Signature
from expdb.sql.engine import Engine
from expdb.sql.session import Session
from expdb.storage.outcome import WriteOutcome
from expdb.storage.statements import INSERT_SIGNATURE, SIGNATURES


class Signatures:
    """The stored signatures of one buffer that this process knows, with their decoders."""

    def __init__(self, engine: Engine, buffer_id: int, buffer: str):
        self._engine, self._buffer_id, self._buffer = engine, buffer_id, buffer
        self._decoders: dict[int, Decoder] = {}
        self._last: tuple[Any, Decoder | None] = (None, None)  # the last result of `of_fields`
        self._ids: dict[tuple[tuple[str, Field], ...], int] = {}

    def learn(self, outcome: WriteOutcome) -> None:
        """Add the signatures and decoders of a committed transaction."""
        self._ids.update(outcome.signatures)
        self._decoders.update(outcome.decoders)

    def decoder(self, session: Session, id: int, outcome: WriteOutcome | None = None) -> Decoder:
        """Return the decoder of a stored signature."""
        decoder = self._decoders.get(id) or (outcome.decoders.get(id) if outcome else None)
        if decoder is None:
            rows = session.query(f"{SIGNATURES} AND id = ?", self._buffer_id, id)
            if not rows:
                raise errors.ChunkDamaged(
                    f"signature {id} of buffer {self._buffer!r} is missing; restore a backup"
                )
            decoder = self._decoder_from(*rows[0])
            # A writer may read a signature that it has inserted and that a rollback would remove.
            (self._decoders if outcome is None else outcome.decoders)[id] = decoder
        return decoder

    def _decoder_from(self, id: int, *stored: Any) -> Decoder:
        try:
            return Decoder(Signature.from_stored(id, *stored), self._buffer_id)
        except Exception as error:
            raise errors.ChunkDamaged(
                f"signature {id} of buffer {self._buffer!r} cannot be read ({error}); restore a "
                "backup"
            ) from error

    def read(self) -> None:
        """Read all signatures of the buffer, so that writes need not look them up."""
        with self._engine.reading() as session:
            self.take(session.query(SIGNATURES, self._buffer_id))

    def list_known_ids(self) -> Any:
        """Return the ids of the known signatures as one parameter."""
        return self._engine.dialect.as_list(np.array(list(self._decoders), np.int64))

    def take(self, rows: list[Any]) -> None:
        """Add signatures, given as rows of their table."""
        for id, *stored in rows:
            decoder = self._decoders[id] = self._decoder_from(id, *stored)
            if not decoder.signature.is_current:
                continue
            fields = tuple(
                (name, field)
                for name, field in decoder.signature.fields.items()
                if name not in SYSTEM
            )
            self._ids.setdefault(fields, id)

    def of_fields(self, fields: Mapping[str, Field]) -> Decoder | None:
        """Return the decoder of the signature for these fields, or None if it is not known yet."""
        key, last = tuple(fields.items()), self._last  # read once: other threads may change it
        if key == last[0]:  # the usual case; a comparison is faster than a hash
            return last[1]
        id = self._ids.get(key)
        decoder = None if id is None else self._decoders.get(id)
        if decoder is not None:
            self._last = key, decoder
        return decoder

    def settle(
        self, session: Session, fields: Mapping[str, Field], outcome: WriteOutcome
    ) -> Decoder:
        """Return the decoder of the signature for these fields; store a signature if it is new."""
        if (decoder := self.of_fields(fields)) is not None:
            return decoder
        key = tuple(fields.items())
        id = self._ids.get(key, outcome.signatures.get(key))
        if id is not None:
            return self.decoder(session, id, outcome)
        wanted = Signature(fields)
        columns = wanted.stored()
        stored_rows = session.query(f"{SIGNATURES} ORDER BY id", self._buffer_id)
        id = next((id for id, _, text, _ in stored_rows if text == columns[1]), None)
        if id is None:
            id = wanted.id = len(stored_rows)
            session.query(INSERT_SIGNATURE, self._buffer_id, id, *columns)
            outcome.decoders[id] = Decoder(wanted, self._buffer_id)
        outcome.signatures[key] = id
        return self.decoder(session, id, outcome)
