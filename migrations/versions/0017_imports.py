"""Add a table of the records that were imported."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    connection = op.get_bind()
    op.create_table(
        "imports",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("record", Text, primary_key=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("episode", Integer, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    if connection.dialect.name == "sqlite":  # the statistics that ANALYZE would write; see 0001
        connection.exec_driver_sql(
            "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES "
            "('imports', 'imports', '100000 100000 1')"
        )


def downgrade() -> None:
    op.drop_table("imports")
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl = 'imports'")
