"""Pins that keep steps from being evicted, policies of eviction, and what they archive."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    _drop_trigger()
    op.add_column("buffers", sa.Column("pinned", Integer))
    op.add_column("buffers", sa.Column("eviction", Text))
    always = sa.true() if op.get_bind().dialect.name == "postgresql" else sa.text("1")
    op.add_column(
        "buffers", sa.Column("trigger_evicts", Flag, nullable=False, server_default=always)
    )
    op.add_column("leases", sa.Column("pinned", Integer))
    op.create_table(
        "evictions",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("since", Real, nullable=False),
        sa.Column("file", Text, nullable=False),
        sa.Column("positions", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    _make_trigger(revision)


def downgrade() -> None:
    _drop_trigger()
    op.drop_table("evictions")
    op.drop_column("leases", "pinned")
    for column in ("trigger_evicts", "eviction", "pinned"):
        op.drop_column("buffers", column)
    _make_trigger("0001")


def _drop_trigger() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER buffers_capacity ON buffers")
        op.execute("DROP FUNCTION buffers_capacity")
    else:
        op.execute("DROP TRIGGER buffers_capacity")


def _make_trigger(made: str) -> None:
    connection = op.get_bind()
    sql = (SQL / connection.dialect.name / f"{made}_buffers_capacity.sql").read_text()
    for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
