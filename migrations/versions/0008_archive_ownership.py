"""Evictions with an owner: a random id, the last renewal, and whether the steps are deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # The new name of `since` keeps older programs with an open handle from archiving.
    _rename("since", "renewed")
    never = sa.false() if op.get_bind().dialect.name == "postgresql" else sa.text("0")
    op.add_column("evictions", sa.Column("committed", Flag, nullable=False, server_default=never))


def downgrade() -> None:
    op.drop_column("evictions", "committed")
    _rename("renewed", "since")


def _rename(old: str, new: str) -> None:
    op.execute(f"ALTER TABLE evictions RENAME COLUMN {old} TO {new}")
