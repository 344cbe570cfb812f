"""Run one read-only SQL statement and return its rows as an Arrow table.

This module also implements the SQL function `field(payload, name)`.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from expdb.chunks.chunk import Chunk, Decoder
from expdb.chunks.fields import SYSTEM, Field, Signature
from expdb.errors import ChunkDamaged, SqlError
from expdb.names import nearest, suggest_for_sql_error
from expdb.sql.dialects.base import QueryFailed
from expdb.sql.engine import Engine
from expdb.storage.catalog import Fields
from expdb.storage.reading.draws_view import PARAMETER, reads_draws, with_draws
from expdb.storage.reading.timestamps import COLUMNS as TIME_COLUMNS
from expdb.storage.reading.timestamps import to_timestamps
from expdb.storage.reading.value_references import read_shared_values
from expdb.storage.stored_json import json_text, parse_names

_CHUNKS_KEPT = 16
# The final observation after the step in a row of a chunk, if it is the last step of its episode.
# Parameters: row, buffer, chunk, row, row.
_FINAL_AFTER = """
SELECT e.tail_chunk, e.tail_row, e.tail_fields FROM segments g
JOIN steps s ON s.buffer_id = g.buffer_id AND s.position = g.first + ? - g.chunk_row
JOIN episodes e ON e.buffer_id = g.buffer_id AND e.id = g.episode
WHERE g.buffer_id = ? AND g.chunk = ? AND g.chunk_row <= ? AND ? <= g.chunk_row + g.last - g.first
  AND e.tail_chunk IS NOT NULL
  AND CASE WHEN e.ordered THEN s.position = e.last_position ELSE s.step = e.last_step END
"""


class FieldFunction:
    """The SQL function `field(payload, name)`.

    The function returns a field of a step as a number, text, bytes or JSON text. `query` returns
    the rows of a statement with `?` for each parameter.
    """

    def __init__(self, query: Callable[..., Sequence[Any]]):
        self._query = query
        self._kinds: dict[str, set[str]] | None = None
        self._decoders: dict[tuple[int, int], Decoder] = {}
        self._chunks: OrderedDict[tuple[int, int], Chunk] = OrderedDict()

    def _stored(self) -> dict[str, set[str]]:
        """Return the kinds of each field, one for each type that the buffers store it with.

        The kinds are those of `kinds`, and "" for all other types.
        """
        if self._kinds is None:
            self._kinds = {}
            for (stored,) in self._query("SELECT fields FROM buffers"):
                for name, field in Fields.from_text(stored, 0).types.items():
                    scalar = not field.varies and not field.shape
                    kind = (
                        "b"
                        if field.dtype == "bytes"
                        else np.dtype(field.dtype).kind
                        if scalar
                        else ""
                    )
                    self._kinds.setdefault(name, set()).add(
                        {"u": "i", "b": "i" if scalar else "b"}.get(kind, kind)
                    )
        return self._kinds

    def kinds(self) -> dict[str, str]:
        """Return the kind of each field: integer or bool ("i"), float ("f") or bytes ("b").

        A field is included only if it has the same kind in every buffer that stores it.
        """
        return {
            name: next(iter(kinds)) for name, kinds in self._stored().items() if len(kinds) == 1
        }

    def names(self) -> list[str]:
        """Return the names of the fields of all buffers."""
        return list(self._stored())

    def value(self, payload: Any, name: Any) -> Any:
        """Return a field's value, or None if the step lacks the field."""
        if payload is None:
            return None
        chunk, row = self._row(payload)
        if not isinstance(name, str):
            raise SqlError(
                f"field(payload, {name!r}) must name the field as text; put the name in single "
                "quotes"
            )
        if name in SYSTEM:
            raise SqlError(
                f"field(payload, {name!r}) names a column of experience, not a field; use {name} "
                "as it is"
            )
        base = name.removeprefix("next_")
        if base != name and name not in self._stored() and base in self._stored():
            final = self._final_after(payload, base)
            if final is None:
                return None
            (chunk, row), name = final, base
        field = chunk.signature.fields.get(name)
        if field is None and name not in self._stored():
            names = self._stored()
            raise SqlError(
                f"no field {name!r} is stored{nearest(name, names) or ';'} stored fields: "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        if field is None or not chunk.present(name, row, row + 1)[0]:
            return None
        return _as_sql(chunk, name, field, row)

    def _final_after(self, payload: str, name: str) -> tuple[Chunk, int] | None:
        """Return the chunk and row of the final observation after a step, if it has the field."""
        buffer_id, chunk, row = map(int, payload.split(":"))
        rows = self._query(_FINAL_AFTER, row, buffer_id, chunk, row, row)
        for final_chunk, final_row, fields in rows:
            if name in parse_names(fields, "tail_fields"):
                return self._row(f"{buffer_id}:{final_chunk}:{final_row}")
        return None

    def _row(self, payload: Any) -> tuple[Chunk, int]:
        """Return the chunk and row that a payload names."""
        try:
            buffer_id, chunk_id, row = map(int, payload.split(":"))
        except (AttributeError, ValueError):
            raise _not_a_payload(payload) from None
        chunk = self._chunk(buffer_id, chunk_id)
        if not 0 <= row < chunk.rows:
            raise _not_a_payload(payload)
        return chunk, row

    def _chunk(self, buffer_id: int, chunk_id: int) -> Chunk:
        key = buffer_id, chunk_id
        if key in self._chunks:
            self._chunks.move_to_end(key)
            return self._chunks[key]
        records = self._query(
            "SELECT c.rows, c.signature, c.crc, c.data, g.schema, g.fields, g.crc FROM chunks c "
            "JOIN signatures g ON g.buffer_id = c.buffer_id AND g.id = c.signature "
            "WHERE c.buffer_id = ? AND c.id = ?", buffer_id, chunk_id,
        )  # fmt: skip
        if not records:
            raise ChunkDamaged(
                f"chunk {chunk_id} of buffer {buffer_id} is missing; restore a backup"
            )
        rows, signature, crc, data, *stored = records[0]
        decoder = self._decoders.get((buffer_id, signature))
        if decoder is None:
            try:
                decoder = self._decoders[buffer_id, signature] = Decoder(
                    Signature.from_stored(signature, *stored), buffer_id
                )
            except Exception as error:
                raise ChunkDamaged(
                    f"signature {signature} cannot be read ({error}); restore a backup"
                ) from error
        chunk = decoder.chunk(chunk_id, rows, crc, data)
        read_shared_values(self._query, buffer_id, [chunk])
        self._chunks[key] = chunk
        if len(self._chunks) > _CHUNKS_KEPT:
            self._chunks.popitem(last=False)
        return chunk


def _not_a_payload(argument: Any) -> SqlError:
    return SqlError(
        f"field({argument!r}, ...) must get the column payload of experience as its first argument"
    )


def _as_sql(chunk: Chunk, name: str, field: Field, row: int) -> Any:
    """Return a value of a chunk for SQL: arrays and JSON become text."""
    if field.varies:
        (value,) = chunk.objects(name, row, row + 1)
        if field.dtype == "bytes":
            return value
        if field.dtype == "text":
            return value.replace("\0", "\ufffd")  # text of PostgreSQL cannot contain NUL
        if isinstance(value, np.ndarray):
            return _json(value)
        return json_text(value)
    array = np.frombuffer(chunk.raw(name, row, row + 1), field.numpy).reshape(field.fixed_shape)
    if field.shape:
        return _json(array)
    value = array.item()
    if isinstance(value, int) and value >= 2**63:
        return str(value)  # SQL's integers have 64 bits
    return int(value) if isinstance(value, bool) else value


def _json(array: np.ndarray) -> str:
    """Return an array as JSON, with null for NaN and infinity, which JSON lacks."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        finite = array.astype(object)
        finite[~np.isfinite(array)] = None
        return json.dumps(finite.tolist())
    return json.dumps(array.tolist())


def _bindable(params: Any) -> dict[str, Any]:
    """Return parameters for the driver.

    NumPy scalars become Python scalars. Values of other types raise SqlError, because the driver
    would send them as bytes.
    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise SqlError(
            "params must be a mapping of the names in the query, such as {'task': 't'}, got "
            f"{params!r}"
        )
    bindable = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in params.items()
    }
    for name, value in bindable.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float, bytes, type(None))):
            raise SqlError(
                f"params[{name!r}] must be text, a number, bytes or None, got "
                f"{type(value).__name__}"
            )
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise SqlError(
                f"params[{name!r}] is {value}, which does not fit 64 bits; pass it as text"
            )
    return bindable


def run_sql(
    db: Any, engine: Engine, query: str, params: Any, timestamps: bool, max_bytes: int | None
) -> pa.Table:
    """Run a statement on an ExperienceDB and return its rows as a table.

    Column names that occur more than once get numbers.
    """
    if not isinstance(query, str):
        raise SqlError(f"query must be SQL text, got {query!r}")
    bound = _bindable(params)
    if reads_draws(query):
        if PARAMETER in bound:
            raise SqlError(f"params must not contain {PARAMETER!r}; rename the parameter")
        query, bound[PARAMETER] = with_draws(query, db, engine.dialect)
    try:
        with engine.sql() as session:
            field = FieldFunction(session.query)
            names, rows = engine.dialect.run_sql(
                session, query, bound, field, engine.timeout, max_bytes
            )
    except QueryFailed as error:
        with engine.reading() as session:  # a failed transaction of PostgreSQL cannot read
            hint = suggest_for_sql_error(str(error), query, FieldFunction(session.query).names())
        raise SqlError(f"{error}; {hint}") from error.__cause__
    unique: list[str] = []
    for name in names:
        again = sum(name == other or other.startswith(f"{name}:") for other in unique)
        unique.append(f"{name}:{again + 1}" if again else name)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [_column(values) for values in columns]
    if timestamps:
        arrays = [_time(name, array) for name, array in zip(unique, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, unique)


def _time(name: str, array: pa.Array) -> pa.Array:
    is_number = pa.types.is_floating(array.type) or pa.types.is_integer(array.type)
    is_time = name in TIME_COLUMNS and (is_number or pa.types.is_null(array.type))
    return to_timestamps(name, array.cast(pa.float64(), safe=False)) if is_time else array


def _column(values: tuple[Any, ...]) -> pa.Array:
    """Return values as one Arrow array.

    In SQLite, one column can hold values of several types. A column of integers and floats becomes
    float64, and any other mixed column becomes text.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.utf8())
    kind = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        str: pa.utf8(),
        bytes: pa.binary(),
    }
    return pa.array(values, kind[kinds.pop()] if kinds else pa.null())
