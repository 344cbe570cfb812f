"""The schema of a database: its revision, checks and upgrades."""

import functools
import logging
import re
import threading
from pathlib import Path

from expdb import errors
from expdb.process.locks import locked
from expdb.sql import tables
from expdb.sql.dialects.base import Dialect
from expdb.sql.engine import Engine
from expdb.sql.session import Session

log = logging.getLogger(__name__)


def migrations_dir() -> Path:
    """Return the folder of the migrations.

    An installed package contains the folder; in a checkout, the folder is beside the package.
    """
    package = Path(__file__).resolve().parent.parent
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


@functools.cache
def list_revisions() -> tuple[str, ...]:
    """Return the revisions that this expdb knows, oldest first.

    The revisions come from file names, because importing Alembic is slower than opening a database.
    """
    names = [path.name for path in (migrations_dir() / "versions").glob("[0-9]*.py")]
    return tuple(sorted(match[0] for match in map(re.compile(r"\d+").match, names) if match))


@functools.cache
def read_migrated_schema(dialect: str) -> dict[str, str]:
    """Return the SQL of every view, trigger and function, as the newest migration creates it.

    The text is that of the migration files without the comment at the head of each file, because
    databases store the text in this form.
    """
    files = sorted((migrations_dir() / "sql" / dialect).glob("*.sql"))
    made = {path.stem.split("_", 1)[1]: path.read_text() for path in files}
    return {name: re.sub(r"\A(--.*\n)*", "", sql).strip() for name, sql in made.items()}


# Alembic keeps its current migration in a global variable, so a process can run only one.
_migrating = threading.Lock()


def run_migrations(session: Session, revision: str = "head", *, down: bool = False) -> None:
    """Migrate the schema to a revision, inside the session's transaction."""
    locked(_migrating, _run_migrations, session, revision, down)


def _run_migrations(session: Session, revision: str, down: bool) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = session.connection
    # This statement begins a transaction of SQLAlchemy, so that Alembic does not commit.
    session.connection.exec_driver_sql("SELECT 1").close()
    (command.downgrade if down else command.upgrade)(config, revision)


def read_revision(session: Session, dialect: Dialect) -> str | None:
    """Return the revision of the schema, or None if there is no schema."""
    if not session.query(dialect.HAS_TABLE, "expdb_version"):
        return None
    rows = session.query(dialect.VERSION)
    return str(rows[0][0]) if rows else None


def check_revision(session: Session, engine: Engine) -> None:
    """Raise SchemaOutdated or SchemaTooNew unless the schema has the revision of this expdb."""
    path, stored, revisions = (
        engine.location,
        read_revision(session, engine.dialect),
        list_revisions(),
    )
    if stored == revisions[-1]:
        problems = engine.dialect.schema_problems(session)
        if problems:
            raise errors.DatabaseDamaged(f"{path}: {problems[0]}")
        return
    if stored is None or stored in revisions:
        raise errors.SchemaOutdated(
            f"{path} has schema {stored or 'none'}, but this expdb requires {revisions[-1]}; run "
            f"`expdb upgrade {path}`"
        )
    raise _too_new(engine, stored)


def column_problems(session: Session, engine: Engine) -> list[str]:
    """Return which tables and columns of the newest schema are missing."""
    stored = engine.dialect.columns(session)
    problems = []
    for table in (tables.buffers, *tables.OF_BUFFERS):
        missing = [
            column.name for column in table.columns if (table.name, column.name) not in stored
        ]
        if missing:
            problems.append(f"table {table.name} has no column {', '.join(missing)}")
    return problems


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Upgrade a database to the newest schema; return the revisions before and after.

    The result is verified before the transaction commits. Views, triggers and functions are
    recreated from the text of the migrations.
    """
    dialect = engine.dialect
    with engine.writing() as session:
        dialect.lock_migrations(session)
        before, revisions = read_revision(session, dialect), list_revisions()
        if before is not None and before not in revisions:
            check_revision(session, engine)
        if before is None and session.query(dialect.HAS_TABLE, "buffers"):
            raise errors.DatabaseDamaged(
                f"{engine.location} has tables but no schema version; restore a backup"
            )
        grants = dialect.grants(session)
        if before != revisions[-1]:
            try:
                run_migrations(session)
            except ValueError as error:  # migrations must not import expdb, including its errors
                raise errors.DatabaseDamaged(f"{engine.location}: {error}") from error
        if before is not None and (before != revisions[-1] or dialect.schema_problems(session)):
            for name, sql in read_migrated_schema(dialect.NAME).items():
                dialect.remake(session, name, sql)
        problems = [*dialect.schema_problems(session), *column_problems(session, engine)]
        if problems:
            raise errors.DatabaseDamaged(
                f"{engine.location} cannot be upgraded: {problems[0]}; nothing was changed; run "
                "`expdb check`, or restore a backup"
            )
        dialect.restore_grants(session, grants)
    if before != revisions[-1]:
        log.info("%s: schema %s, was %s", engine.location, revisions[-1], before or "none")
    return before, revisions[-1]


def newer_schema(engine: Engine) -> errors.SchemaTooNew | None:
    """Return the error for a schema that a newer expdb has upgraded, or None."""
    try:
        with engine.reading() as session:
            revision = read_revision(session, engine.dialect)
    except errors.ExpDBError:  # a corrupted or unreachable database has another error
        return None
    if revision is None or revision in list_revisions():
        return None
    return _too_new(engine, revision)


def _too_new(engine: Engine, revision: str) -> errors.SchemaTooNew:
    return errors.SchemaTooNew(
        f"{engine.location} has schema {revision}, but this expdb supports schemas up to "
        f"{list_revisions()[-1]}; install a newer expdb and restart this process"
    )
