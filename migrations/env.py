"""Run the migrations on the connection that expdb passes.

If the `alembic` command runs this file, the script connects to the URL in `-x url=...` or
EXPDB_URL.

One transaction contains the whole upgrade, also on SQLite. By default, Alembic commits each
statement there, so a killed process would leave a half-changed schema. On SQLite, the transaction
must be immediate and begin before the version is read, so that concurrent migrations wait for each
other.
"""

import os

import sqlalchemy as sa
from alembic import context

VERSION_TABLE = "expdb_version"


def run(connection: sa.Connection) -> None:
    schema = None
    if connection.dialect.name == "postgresql":
        schema = "expdb"
        # Concurrent migrations wait for each other; the lock ends with the transaction.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(1702391908)")  # "expd"
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS expdb")
        connection.exec_driver_sql("SET LOCAL search_path = expdb, pg_temp")
    context.configure(
        connection=connection,
        transactional_ddl=True,
        version_table=VERSION_TABLE,
        version_table_schema=schema,
    )
    context.run_migrations()


connection = context.config.attributes.get("connection")
if connection is not None:
    run(connection)
else:
    url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("EXPDB_URL")
    if not url:
        raise SystemExit(
            "no database URL; run alembic -x url=sqlite:///runs.db upgrade head, or set EXPDB_URL"
        )
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.isolation_level = None
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        run(connection)
        connection.commit()
