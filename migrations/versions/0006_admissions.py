"""Groups of episodes that are under way, and the pace at which new ones may begin."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("buffers", sa.Column("pace", Text))
    op.add_column(
        "buffers", sa.Column("admitted", Integer, nullable=False, server_default=sa.text("0"))
    )
    op.create_table(
        "admissions",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("policy_version", Integer, nullable=False),
        sa.Column("since", Real, nullable=False),
        sa.Column("expires", Real, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("admissions")
    op.drop_column("buffers", "admitted")
    op.drop_column("buffers", "pace")
