"""The buffers of a database, and the fields of each buffer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import sqlalchemy as sa

from expdb import errors
from expdb.chunks.fields import Field, check_name
from expdb.names import nearest
from expdb.sql import tables
from expdb.sql.session import Session
from expdb.storage.stored_json import damaged

B = tables.buffers.c


@dataclass
class Fields:
    """The fields of a buffer as last read.

    `types` holds the type of each field, `optional` the fields that some steps lack, and
    `annotations` the type of each annotation. `version` is the number of changes to all of these.
    """

    types: dict[str, Field]
    optional: set[str]
    version: int
    annotations: dict[str, Field] = dataclass_field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nested = {
            ".".join(parts[:n])
            for parts in (name.split(".") for name in self.types)
            for n in range(1, len(parts))
        }

    @classmethod
    def from_text(cls, text: str, version: int) -> "Fields":
        """Parse the JSON in the column `buffers.fields`."""
        try:
            stored = json.loads(text)
            types, annotations = (
                {name: Field.from_json(value) for name, value in stored.get(key, {}).items()}
                for key in ("types", "annotations")
            )
            return cls(types, set(stored.get("optional", ())), version, annotations)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise damaged("the fields of a buffer", error) from error

    def is_final_observation(self, name: str) -> bool:
        """Return whether a key such as ``next_obs`` selects the final observation of a field."""
        base = name.removeprefix("next_")
        return base != name and base in self.types and name not in self.with_annotations()

    def with_annotations(self) -> dict[str, Field]:
        """Return the types of the fields and of the annotations."""
        return {**self.types, **self.annotations}

    def as_text(self) -> str:
        """Return the fields as JSON for the column `buffers.fields`."""
        types = {name: field.as_json() for name, field in self.types.items()}
        contents = {"types": types, "optional": sorted(self.optional)}
        if self.annotations:
            contents["annotations"] = {
                name: field.as_json() for name, field in self.annotations.items()
            }
        return json.dumps(contents)


def alignment_of(field: Field, types: Mapping[str, Field]) -> str | None:
    """Return the field whose length a field has, through fields that are themselves aligned."""
    target = field.aligned_with
    for _ in types:  # fields could be aligned with each other
        following = None if target is None or target not in types else types[target].aligned_with
        if following is None:
            return target
        target = following
    return target


def find_token_field(types: Mapping[str, Field]) -> str | None:
    """Return the name of the field that most other fields are aligned with, or None.

    Annotations have one value per element of this field.
    """
    targets = [field.aligned_with for field in types.values() if field.aligned_with is not None]
    return max(dict.fromkeys(targets), key=targets.count, default=None)


LEFT_BEHIND = (
    "if the file was copied while a program had it open, its write-ahead log is missing; make "
    "copies with `expdb backup`"
)


def unknown_buffer(session: Session, name: str) -> errors.UnknownBuffer:
    """Return the error for a name that no buffer has."""
    names = list_buffers(session)
    hint = f"; {LEFT_BEHIND}" if session.connection.dialect.name == "sqlite" else ""
    there = f"the buffers are {', '.join(names)}" if names else f"the database has no buffers{hint}"
    near = nearest(name, names).removeprefix(", ")
    return errors.UnknownBuffer(f"no buffer {name!r}; {near or there}")


def list_buffers(session: Session) -> list[str]:
    """Return the names of all buffers, oldest first."""
    return [name for (name,) in session.query(sa.select(B.name).order_by(B.id))]


def find_buffer(session: Session, name: str) -> tuple[int, int | None, Fields] | None:
    """Return the id, capacity and fields of a buffer, or None if no buffer has this name."""
    rows = session.query(
        sa.select(B.id, B.capacity, B.fields, B.fields_version).where(B.name == name)
    )
    if not rows:
        return None
    id, capacity, fields, version = rows[0]
    return id, capacity, Fields.from_text(fields, version)


def source_of_copy(name: str) -> str | None:
    """If `name` belongs to an unfinished copy, return the name of the source buffer, else None."""
    match = re.fullmatch(r"(.*) \(copying [0-9a-f]{16}\)", name, re.DOTALL)
    return match and match[1]


def check_buffer_name(name: Any) -> None:
    """Raise InvalidValue unless every database can store the name, of 1 to 255 bytes."""
    try:
        sound = isinstance(name, str) and 0 < len(name.encode()) <= 255 and "\0" not in name
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise errors.InvalidValue(f"buffer name must be text of 1 to 255 bytes, got {name!r}")


def check_new_buffer_name(name: str) -> None:
    """Raise InvalidValue if the name of a new buffer begins or ends with white space."""
    if name != name.strip():
        raise errors.InvalidValue(
            f"buffer name must not begin or end with white space, got {name!r}; pass name.strip()"
        )


def check_declared(fields: Mapping[str, Any]) -> dict[str, Field]:
    """Check the argument `fields` of `db.buffer`; the name of a dtype means a scalar field."""
    checked = {}
    if not isinstance(fields, Mapping):
        raise errors.InvalidValue(
            "fields must be a mapping such as {'tokens': expdb.Field('int32', (None,))}, got "
            f"{fields!r}"
        )
    for name, field in fields.items():
        if not isinstance(name, str):
            raise errors.InvalidValue(f"field name must be text, got {name!r}")
        check_name(name)
        checked[name] = field if isinstance(field, Field) else Field(field)
    return checked


def check_alignments(declared: Mapping[str, Field], stored: Mapping[str, Field]) -> None:
    """Raise InvalidValue if a field is aligned with itself or with an unknown field."""
    known_fields = {**stored, **declared}
    for name, field in declared.items():
        target = field.aligned_with
        if target is not None and (
            target == name or None not in known_fields.get(target, Field("text")).shape[:1]
        ):
            raise errors.InvalidValue(
                f"field {name!r} cannot be aligned with {target!r}; aligned_with must be another "
                "field whose first dimension varies, which is stored or declared in fields="
            )


def create_buffer(
    session: Session, name: str, capacity: int | None, fields: dict[str, Field]
) -> None:
    """Insert a buffer; do nothing if another process has just inserted the same name."""
    text = Fields(fields, set(), 0).as_text()
    session.query(
        "INSERT INTO buffers (name, capacity, fields) VALUES (?, ?, ?) ON CONFLICT (name) DO "
        "NOTHING",
        name,
        capacity,
        text,
    )


def drop_buffer(session: Session, name: str) -> None:
    """Delete a buffer and its contents; raise UnknownBuffer if no buffer has this name."""
    record = find_buffer(session, name)
    if record is None:
        raise unknown_buffer(session, name)
    # With `low` above every position, triggers do not update the counters for each deleted row.
    buffer = B.id == record[0]
    session.execute(sa.update(tables.buffers).values(low=B.added).where(buffer))
    for table in tables.OF_BUFFERS:
        session.execute(sa.delete(table).where(table.c.buffer_id == record[0]))
    session.execute(sa.delete(tables.buffers).where(buffer))
