"""Add tables for large values that chunks share."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Blob = sa.LargeBinary()

SQL = Path(__file__).parent.parent / "sql"
TRIGGERS = "shared_values_inserted", "shared_values_deleted", "chunks_released"


def upgrade() -> None:
    connection = op.get_bind()
    # Databases that were created by the first builds with schema 0015 lack the column
    # `version_labels`. SQLAlchemy cannot inspect the table here, because expdb's engine is not
    # initialized.
    if connection.dialect.name == "postgresql":
        op.execute('ALTER TABLE buffers ADD COLUMN IF NOT EXISTS version_labels TEXT COLLATE "C"')
    elif "version_labels" not in list(
        connection.exec_driver_sql("SELECT name FROM pragma_table_info('buffers')").scalars()
    ):
        op.add_column("buffers", sa.Column("version_labels", sa.Text()))
    op.create_table(
        "shared_values",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("digest", Blob, primary_key=True),
        sa.Column("crc", Integer, nullable=False),
        sa.Column("data", Blob, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "value_references",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("chunk", Integer, primary_key=True),
        sa.Column("digest", Blob, primary_key=True),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "value_references_by_digest", "value_references", ["buffer_id", "digest", "chunk"]
    )
    if connection.dialect.name == "postgresql":  # the values are compressed already
        op.execute("ALTER TABLE shared_values ALTER COLUMN data SET STORAGE EXTERNAL")
    else:  # the statistics that ANALYZE would write; see 0001
        connection.exec_driver_sql(
            "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES "
            "('shared_values', 'sqlite_autoindex_shared_values_1', '20000 20000 1'), "
            "('value_references', 'value_references', '20000 20000 4 1'), "
            "('value_references', 'value_references_by_digest', '20000 20000 8 1')"
        )
    for name in TRIGGERS:
        sql = (SQL / connection.dialect.name / f"{revision}_{name}.sql").read_text()
        for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
            connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))


def downgrade() -> None:
    connection = op.get_bind()
    if connection.exec_driver_sql("SELECT count(*) FROM shared_values").scalar():
        raise ValueError(
            "cannot downgrade a database with shared values; delete the buffers that contain them, "
            "or keep the newer version of expdb"
        )
    is_postgresql = connection.dialect.name == "postgresql"
    op.execute("DROP TRIGGER chunks_released" + (" ON chunks" if is_postgresql else ""))
    op.drop_table("value_references")
    op.drop_table("shared_values")
    if is_postgresql:
        for name in TRIGGERS:
            op.execute(f"DROP FUNCTION {name}")
    else:
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl IN ('shared_values', 'value_references')")
