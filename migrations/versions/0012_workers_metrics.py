"""Workers, a history of metrics, and the roles of waiting processes."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("waiters", sa.Column("role", Text))
    op.create_table(
        "workers",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("run", Text, nullable=False),
        sa.Column("role", Text, nullable=False),
        sa.Column("since", Real, nullable=False),
        sa.Column("active", Real, nullable=False),
        sa.Column("ended", Real),
        sa.Column("counts", Text, nullable=False),
        sa.Column("rates", Text, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metrics",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("time", Real, nullable=False),
        sa.Column("measurement", Text, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("metrics")
    op.drop_table("workers")
    op.drop_column("waiters", "role")
