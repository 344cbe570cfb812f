"""Resolve the location of a database and open it.

A location is the path of a database file, or the URL of a database on a server. In a database on a
server, expdb uses the schema `expdb`.
"""

import os
import re
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from types import ModuleType
from urllib.parse import unquote

import sqlalchemy as sa

from expdb import errors
from expdb.sql import schema
from expdb.sql.dialects.sqlite import connection as connection_to
from expdb.sql.dialects.sqlite import files as sqlite_files
from expdb.sql.dialects.sqlite.connection import translated
from expdb.sql.dialects.sqlite.engine import SqliteEngine
from expdb.sql.dialects.sqlite.files import FileUse, refuse_other_library
from expdb.sql.engine import Engine

Location = str | sa.URL  # the path of a file, or the URL of a database on a server

# Default of max_lag in seconds; a query to a server takes a round trip.
FILE_LAG, SERVER_LAG = 0.005, 0.1


def location_of(location: str | os.PathLike[str]) -> Location | None:
    """Return the path or URL of a location, or None for a private temporary file.

    Symbolic links are resolved, so that each file has one name.
    """
    text = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text or not _is_unicode(text):
        raise errors.InvalidValue(
            f"{location!r} is not a valid location; expected a path, sqlite:///path, "
            "postgresql://... or ':memory:'"
        )
    if text == ":memory:":
        return None
    if text.startswith("sqlite:///"):
        text = unquote(text.removeprefix("sqlite:///"))
        if text in ("", ":memory:"):
            return None
    elif re.match(r"(host|hostaddr|port|dbname|user)\s*=\s*\S+(\s|$)", text):
        raise errors.InvalidValue(
            f"{text!r} is a libpq connection string; expected a URL such as "
            "postgresql://user@host:5432/database"
        )
    elif text.startswith(("postgresql:", "postgresql+", "postgres:")):
        return _url_of(text)
    elif "://" in text:
        raise errors.InvalidValue(
            f"{text.split('://')[0]}:// is not supported; expected a path, sqlite:///path, "
            "postgresql://... or ':memory:'"
        )
    return real_path(os.path.expanduser(text))


def real_path(path: str) -> str:
    """Return the path of a file with all symbolic links resolved."""
    try:
        return os.path.realpath(path)
    except FileNotFoundError:
        raise errors.DatabaseMissing(
            f"{path} cannot be resolved, because the current folder was deleted; use an absolute "
            "path"
        ) from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        # The file name is not valid UTF-8, so SQLite cannot open the file by a URI.
        return False
    return True


def _url_of(text: str) -> sa.URL:
    """Return a PostgreSQL URL for psycopg 3.

    The default driver of `postgresql://` depends on SQLAlchemy's version.
    """
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise errors.InvalidValue(
            "the URL cannot be read; expected postgresql://user:password@host:5432/database"
        ) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise errors.InvalidValue(
            f"{url.drivername}:// is not supported; write postgresql://, which uses psycopg 3"
        )
    return url.set(drivername="postgresql+psycopg")


def open_engine(
    location: Location,
    *,
    create: bool,
    read_only: bool,
    durability: str,
    timeout: float,
    max_lag: float | None = None,
    module: ModuleType | None = None,
) -> Engine:
    """Open a database; with `create`, create the database if it is missing.

    Raise an error if the database cannot be used.
    """
    engine: Engine
    if max_lag is None:
        max_lag = FILE_LAG if isinstance(location, str) else SERVER_LAG
    if isinstance(location, str):
        library = sqlite3 if module is None else module
        refuse_other_library(location, library)
        _refuse_other_names(location, read_only)  # before the file is opened, which creates a log
        _provide_file(location, library, create=create and not read_only, cure=not read_only)
        # Otherwise, SQLite would open the file for reading only.
        if not read_only and not connection_to.is_writable(location):
            raise errors.DatabaseReadOnly(
                f"{location} cannot be written by this user; check the permissions of the file "
                "and its folder, or open it in Python with read_only=True"
            )
        engine = SqliteEngine(
            location, read_only=read_only, durability=durability, timeout=timeout, max_lag=max_lag,
            module=library,
        )  # fmt: skip
    else:
        engine = _server_engine(
            location, read_only=read_only, durability=durability, timeout=timeout, max_lag=max_lag
        )
    try:
        if not isinstance(location, str):
            engine.retry(_provide_schema, engine, create and not read_only)
        engine.retry(_check_schema, engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _check_schema(engine: Engine) -> None:
    with engine.reading() as session:
        schema.check_revision(session, engine)


def upgrade(location: Location, timeout: float = 30.0) -> tuple[str | None, str]:
    """Upgrade an existing database to the newest schema; return the revisions before and after."""
    engine: Engine
    if isinstance(location, str):
        refuse_other_library(location, sqlite3)
        _refuse_other_names(location, read_only=False)
        _provide_file(location, sqlite3, create=False, cure=False)
        engine = SqliteEngine(location, read_only=False, durability="full", timeout=timeout)
    else:
        engine = _server_engine(location, read_only=False, durability="full", timeout=timeout)
    with closing(engine):
        return schema.upgrade(engine)


def grant(url: sa.URL, actors: Sequence[str], readers: Sequence[str]) -> None:
    """Grant privileges on a database of a server to roles."""
    engine = _server_engine(url, read_only=False, durability="full", timeout=30.0)
    from expdb.sql.dialects.postgresql import statements as postgresql

    with closing(engine):
        _check_schema(engine)
        with engine.writing() as session:
            postgresql.grant(session, actors, readers)


# -- files -----------------------------------------------------------------------------------------


def _provide_file(path: str, module: ModuleType, *, create: bool, cure: bool) -> None:
    if not os.path.exists(path):
        if not create:
            hint = ", or create it with expdb.open(path)" if cure else ""
            raise errors.DatabaseMissing(f"{path} does not exist; check the path{hint}")
        create_file(path, module)
    if os.path.isdir(path):
        raise errors.NotAnExperienceDatabase(f"{path} is a folder; pass the path of a file")
    if (kind := sqlite_files.file_system(path)) in sqlite_files.REMOTE:
        errors.warn(
            f"{path} is on {kind}, but SQLite's log works on one host only, and writers on two "
            "hosts lose data; use a local disk, or PostgreSQL"
        )
    with FileUse(path):
        if os.path.getsize(path):
            connection_to.refuse_foreign_log(path, module)
        connection_to.identify(path, module)


def _refuse_other_names(path: str, read_only: bool) -> None:
    others = sqlite_files.other_names(path)
    if others is not None and not read_only:
        raise errors.DatabaseReadOnly(
            f"{path} cannot be written, because each name of a file has its own write-ahead log, "
            f"and the file has {others}"
        )
    if others is not None:
        errors.warn(
            f"{path} has {others}; writes in the write-ahead log of another name are not visible "
            "here"
        )


def create_file(path: str, module: ModuleType = sqlite3) -> None:
    """Create a complete database file, or no file.

    expdb builds the file under another name and links it to `path` when it is complete. So no other
    process sees an incomplete file, one of several concurrent creators succeeds, and a killed
    process leaves nothing at `path`.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise errors.DatabaseMissing(f"the folder {folder} does not exist; create it first")
    draft = os.path.join(folder, sqlite_files.DRAFT.format(uuid.uuid4().hex))
    try:
        try:
            connect = partial(connection_to.connect, draft, module, durability="full", busy_ms=0)
            with FileUse(draft), closing(connect(create=True)) as connection:
                connection_to.prepare_file(connection)
            engine = SqliteEngine(
                draft, read_only=False, durability="full", timeout=30.0, module=module
            )
            with closing(engine), engine.writing() as session:
                schema.run_migrations(session)
            with FileUse(draft), closing(connect()) as connection:
                connection_to.complete_file(connection, draft)
        except module.Error as error:
            raise translated(error, path) from errors.log_cause(error)
        except errors.StorageFull as error:
            raise errors.StorageFull(
                f"no space is left to create {path}, and no file was created; free disk space and "
                "try again"
            ) from errors.log_cause(error)
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process has created the file, which is equivalent
        except OSError:  # the file system has no hard links
            if not os.path.exists(path):
                os.rename(draft, path)
        sqlite_files.sync_folder(folder)  # otherwise, a power loss may remove the name of the file
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):  # the file does not exist, or the medium is not writable
                os.unlink(draft + suffix)


# -- servers ---------------------------------------------------------------------------------------


def _server_engine(
    url: sa.URL, *, read_only: bool, durability: str, timeout: float, max_lag: float = SERVER_LAG
) -> Engine:
    # Imported here, because importing the driver takes as long as the rest of expdb, and not every
    # user has a server.
    try:
        from expdb.sql.dialects.postgresql.engine import PostgresqlEngine
    except ImportError as error:
        raise errors.DriverMissing(
            f"PostgreSQL requires psycopg 3 ({error}); run pip install 'expdb[postgres]'"
        ) from errors.log_cause(error)
    return PostgresqlEngine(
        url, read_only=read_only, durability=durability, timeout=timeout, max_lag=max_lag
    )


def _provide_schema(engine: Engine, create: bool) -> None:
    """Create the schema `expdb` if it is missing and `create` is true.

    Raise NotAnExperienceDatabase if another application has a schema of that name.
    """
    with engine.reading() as session:
        ours = bool(session.query(engine.dialect.HAS_TABLE, "expdb_version"))
        foreign = not ours and bool(session.query(engine.dialect.HAS_ANY))
    if foreign:
        raise errors.NotAnExperienceDatabase(
            f"{engine.location} has a schema named expdb that belongs to another application; "
            "choose another database"
        )
    if not ours:
        if not create:
            raise errors.DatabaseMissing(
                f"{engine.location} has no schema expdb; check the URL, or create it with "
                "expdb.open(url)"
            )
        schema.upgrade(engine)
