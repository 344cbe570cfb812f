"""Consumers of a buffer, the ledger of what was handed out to them, and the policy's version."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
Blob = sa.LargeBinary()

SQL = Path(__file__).parent.parent / "sql"
CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}
OBJECTS = {
    "sqlite": ("buffers_limited",),
    "postgresql": ("buffers_limited", "wait_for_change"),
}
STATUSES = "status IN ('leased', 'acknowledged', 'returned', 'repeated')"

# As in 0001: what ANALYZE would find where it matters. Few leases are open at any time.
SQLITE_STATISTICS = {
    "consumers": {"consumers": "8 8 1", "consumers_by_name": "8 8 1"},
    "requests": {"requests": "8 8 1"},
    "leases": {"leases": "100000 100000 20000 1", "leases_open": "16 16 4"},
}


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("buffers", sa.Column("policy_version", Integer))
    op.add_column("buffers", sa.Column("rate_limiter", Text))
    op.add_column(
        "buffers", sa.Column("sampled", Integer, nullable=False, server_default=sa.text("0"))
    )
    op.add_column("buffers", sa.Column("insert_limit", Integer))
    op.add_column(
        "buffers",
        sa.Column("consumers_added", Integer, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "consumers",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("name", Text, nullable=False),
        sa.Column("settings", Text, nullable=False),
        sa.Column("began", Integer, nullable=False),
        sa.Column("version", Integer, nullable=False),
        sa.Column("handed_out", Integer, nullable=False),
        sa.Column("begun", Integer, nullable=False),
        sa.Column("acknowledged", Integer, nullable=False),
        sa.Column("last_step", Integer),
        **CLUSTERED,
    )
    op.create_index("consumers_by_name", "consumers", ["buffer_id", "name"], unique=True)
    op.create_table(
        "requests",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("request", Text, nullable=False),
        **CLUSTERED,
    )
    op.create_table(
        "leases",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("consumer", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("number", Integer, nullable=False),
        sa.Column(
            "status", Text, sa.CheckConstraint(STATUSES, name="leases_status_known"), nullable=False
        ),
        sa.Column("request", Integer, nullable=False),
        sa.Column("holder", Text, nullable=False),
        sa.Column("leased", Real, nullable=False),
        sa.Column("expires", Real, nullable=False),
        sa.Column("ended", Real),
        sa.Column("acknowledged", Integer),
        sa.Column("trainer_step", Integer),
        sa.Column("policy_version", Integer),
        sa.Column("rows", Integer, nullable=False),
        sa.Column("first", Integer, nullable=False),
        sa.Column("last", Integer, nullable=False),
        sa.Column("positions", Blob, nullable=False),
        sa.Column("columns", Blob, nullable=False),
        sa.Column("checksum", Integer, nullable=False),
        sa.Column("crc", Integer, nullable=False),
        **CLUSTERED,
    )
    op.create_table(
        "waiters",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("holder", Text, nullable=False),
        sa.Column("since", Real, nullable=False),
        sa.Column("what", Text, nullable=False),
        **CLUSTERED,
    )
    is_open = sa.text("status IN ('leased', 'returned')")
    op.create_index(
        "leases_open",
        "leases",
        ["buffer_id", "consumer", "id"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    for name in OBJECTS[connection.dialect.name]:
        sql = (SQL / connection.dialect.name / f"0004_{name}.sql").read_text()
        for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
            connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
    if connection.dialect.name == "sqlite":
        for table, indexes in SQLITE_STATISTICS.items():
            for index, figures in indexes.items():
                connection.exec_driver_sql(
                    "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)",
                    (table, index, figures),
                )


def downgrade() -> None:
    op.execute(
        "DROP TRIGGER buffers_limited"
        + (" ON buffers" if op.get_bind().dialect.name == "postgresql" else "")
    )
    if op.get_bind().dialect.name == "postgresql":
        for name in OBJECTS["postgresql"]:
            op.execute(f"DROP FUNCTION {name}")
    for table in ("waiters", "leases", "requests", "consumers"):
        op.drop_table(table)
    for column in ("consumers_added", "insert_limit", "sampled", "rate_limiter", "policy_version"):
        op.drop_column("buffers", column)
