"""Run the migrations on the connection that expdb hands over.

On `-x url=...` / EXPDB_URL from the command line.

One transaction holds the whole upgrade, on SQLite too (Alembic's default there is to commit each
statement, which leaves a half-changed schema behind a kill). On SQLite it must be an immediate one,
begun before the version is read, so that processes that migrate at once take turns.
"""

import os

import sqlalchemy as sa
from alembic import context

VERSION_TABLE = "expdb_version"


def run(connection: sa.Connection) -> None:
    schema = None
    if connection.dialect.name == "postgresql":
        schema = "expdb"
        # Processes that migrate at once take turns; the lock goes with the transaction.
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
        raise SystemExit("name the database: alembic -x url=sqlite:///runs.db upgrade head")
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.isolation_level = None
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        run(connection)
        connection.commit()
