"""What is in a database: its schema's revision, its buffers, and the fields of each."""

import json
import os
import re
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from expdb import errors
from expdb.storage import tables
from expdb.storage.dialects import sqlite as dialect
from expdb.storage.engine import Engine, Session, connection_of
from expdb.storage.signature import Field, check_name

# -- schema -----------------------------------------------------------------------------------------------------------


def migrations_dir() -> Path:
    """Return where the migrations lie: in the package when installed, else beside it in the checkout."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


def known_revisions() -> list[str]:
    """Return the revisions this expdb knows, oldest first (by file name: importing Alembic takes longer than opening)."""
    names = [path.name for path in (migrations_dir() / "versions").glob("[0-9]*.py")]
    return sorted(match[0] for match in map(re.compile(r"\d+").match, names) if match)


def run_migrations(session: Session, revision: str = "head", *, down: bool = False) -> None:
    """Bring the schema to a revision, inside the session's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = session.sa
    # A connection that SQLAlchemy sees in a transaction is one that Alembic leaves to its owner.
    session.sa.exec_driver_sql("SELECT 1").close()
    (command.downgrade if down else command.upgrade)(config, revision)


def stored_revision(session: Session) -> str | None:
    """Return the revision of the schema, None for none at all."""
    if not session.ask("SELECT 1 FROM sqlite_master WHERE name = 'expdb_version'"):
        return None
    found = session.ask("SELECT version_num FROM expdb_version")
    return str(found[0][0]) if found else None


def check_revision(session: Session, path: str) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the schema is the one this expdb works with."""
    found, known = stored_revision(session), known_revisions()
    if found == known[-1]:
        problems = dialect.schema_problems(session.driver)
        if problems:
            raise errors.DatabaseDamaged(f"{path}: {problems[0]}")
        return
    if found is None or found in known:
        raise errors.SchemaOutdated(f"{path} has schema {found or 'none'}, this expdb works with {known[-1]}: run `expdb upgrade {path}`")
    raise errors.SchemaTooNew(f"{path} has schema {found}, newer than this expdb's {known[-1]}: pip install --upgrade expdb")


def create_file(path: str) -> None:
    """Make a new database file, complete or not at all.

    It is built under another name and linked into place, so that no other process ever meets it half made, whoever of
    many comes first wins, and a kill leaves nothing at `path`.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise errors.DatabaseMissing(f"the folder {folder} does not exist: create it first")
    draft = os.path.join(folder, f".{os.path.basename(path)}.{uuid.uuid4().hex}.new")
    try:
        try:
            with connection_of(draft):
                connection = dialect.connect(draft, create=True, durability="full", busy_ms=0)
                dialect.prepare_file(connection)
                connection.close()
            engine = Engine(draft, read_only=False, durability="full", timeout=30.0)
            with engine.writing() as session:
                run_migrations(session)
            engine.close()
        except sqlite3.Error as error:
            raise dialect.translated(error, path) from error
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was first: its file is as good
        except OSError:  # a file system without hard links
            if not os.path.exists(path):
                os.rename(draft, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(draft + suffix)


def open_file(path: str, *, create: bool, read_only: bool, durability: str, timeout: float) -> Engine:
    """Open a database file, creating it where it is missing and may be; raise if it is not one that can be used."""
    if not os.path.exists(path):
        if read_only or not create:
            cure = "check the path" if read_only else "check the path, or open it with create=True"
            raise errors.DatabaseMissing(f"{path} does not exist: {cure}")
        create_file(path)
    if os.path.isdir(path):
        raise errors.NotAnExperienceDatabase(f"{path} is a folder: name a file")
    with connection_of(path):
        dialect.identify(path)
    engine = Engine(path, read_only=read_only, durability=durability, timeout=timeout)
    try:
        with engine.reading() as session:
            check_revision(session, path)
    except BaseException:
        engine.close()
        raise
    return engine


def upgrade(path: str, timeout: float = 30.0) -> tuple[str | None, str]:
    """Bring an existing file to the newest schema; return the revisions before and after."""
    if not os.path.exists(path):
        raise errors.DatabaseMissing(f"{path} does not exist: check the path")
    with connection_of(path):
        dialect.identify(path)
    engine = Engine(path, read_only=False, durability="full", timeout=timeout)
    try:
        with engine.writing() as session:
            before, known = stored_revision(session), known_revisions()
            if before is not None and before not in known:
                check_revision(session, path)
            if before is None and session.ask("SELECT 1 FROM sqlite_master WHERE name = 'buffers'"):
                raise errors.DatabaseDamaged(f"{path} has tables and no schema version: restore a backup")
            if before != known[-1]:
                run_migrations(session)
            return before, known[-1]
    finally:
        engine.close()


# -- buffers ----------------------------------------------------------------------------------------------------------


@dataclass
class Fields:
    """The fields of a buffer as last read: the type of each, those that some rows lack, and the change count."""

    types: dict[str, Field]
    optional: set[str]
    version: int

    def __post_init__(self) -> None:
        self.nested = {".".join(parts[:n]) for parts in (name.split(".") for name in self.types) for n in range(1, len(parts))}

    @classmethod
    def from_text(cls, text: str, version: int) -> "Fields":
        """Read the JSON that `buffers.fields` holds."""
        try:
            stored = json.loads(text)
            types = {name: Field.from_json(value) for name, value in stored.get("types", {}).items()}
            return cls(types, set(stored.get("optional", ())), version)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise errors.DatabaseDamaged(f"the fields of a buffer cannot be read ({error}): restore a backup") from error

    def as_text(self) -> str:
        """Return the fields as `buffers.fields` holds them."""
        types = {name: field.as_json() for name, field in self.types.items()}
        return json.dumps({"types": types, "optional": sorted(self.optional)})


def list_buffers(session: Session) -> list[str]:
    """Return the names of all buffers, oldest first."""
    return [name for (name,) in session.rows(sa.select(tables.buffers.c.name).order_by(tables.buffers.c.id))]


def find_buffer(session: Session, name: str) -> tuple[int, int | None, Fields] | None:
    """Return id, capacity and fields of a buffer, None where there is none."""
    b = tables.buffers.c
    found = session.rows(sa.select(b.id, b.capacity, b.fields, b.fields_version).where(b.name == name))
    if not found:
        return None
    id, capacity, fields, version = found[0]
    return id, capacity, Fields.from_text(fields, version)


def check_buffer_name(name: Any) -> None:
    """Refuse a name that no database could keep."""
    try:
        sound = isinstance(name, str) and 0 < len(name.encode()) <= 255 and "\0" not in name
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise errors.InvalidValue(f"a buffer may not be called {name!r}: use text of 1 to 255 bytes")


def check_declared(fields: Mapping[str, Any]) -> dict[str, Field]:
    """Return declared fields, with names checked; a dtype's name stands for a scalar of it."""
    checked = {}
    if not isinstance(fields, Mapping):
        raise errors.InvalidValue(f"fields is {fields!r}: give a mapping such as {{'tokens': expdb.Field('int32', (None,))}}")
    for name, field in fields.items():
        if not isinstance(name, str):
            raise errors.InvalidValue(f"a field may not be called {name!r}: use text")
        check_name(name)
        checked[name] = field if isinstance(field, Field) else Field(field)
    return checked


def create_buffer(session: Session, name: str, capacity: int | None, fields: dict[str, Field]) -> None:
    """Insert a buffer."""
    text = Fields(fields, set(), 0).as_text()
    session.sa.execute(sa.insert(tables.buffers).values(name=name, capacity=capacity, fields=text))


def drop_buffer(session: Session, name: str) -> None:
    """Delete a buffer with all it holds; raise UnknownBuffer where there is none."""
    found = find_buffer(session, name)
    if found is None:
        raise errors.UnknownBuffer(f"no buffer {name!r}: there are {', '.join(list_buffers(session)) or 'none'}")
    # Nothing is held any more, so that the deleted rows are not taken from the count one by one.
    session.sa.execute(sa.update(tables.buffers).values(low=tables.buffers.c.added).where(tables.buffers.c.id == found[0]))
    for table in (tables.steps, tables.segments, tables.chunks, tables.episodes, tables.signatures):
        session.sa.execute(sa.delete(table).where(table.c.buffer_id == found[0]))
    session.sa.execute(sa.delete(tables.buffers).where(tables.buffers.c.id == found[0]))
