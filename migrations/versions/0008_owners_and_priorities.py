"""Owners of evictions, faster priorities in SQL, storage parameters of PostgreSQL."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")

SQL = Path(__file__).parent.parent / "sql"

# Rows of these tables are updated or deleted all the time. Autovacuum starts after 2 % of dead rows
# instead of 20 %, and pages keep room for new versions of their rows.
STEADY = "fillfactor = 10, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0"
BUSY = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05"
STORAGE = {
    "buffers": STEADY,
    "steps": BUSY,
    "segments": BUSY,
    "chunks": BUSY,
    "episodes": BUSY,
    "priorities": BUSY,
    "leases": BUSY,
    "admissions": BUSY,
    "waiters": BUSY,
}
# Payload lies beside its table, in a table of its own with dead rows of its own.
TOASTED = ("chunks", "priorities")
TOAST = "toast.autovacuum_vacuum_scale_factor = 0.02"


def upgrade() -> None:
    # The new name of `since` keeps older programs with an open handle from archiving.
    _rename("since", "renewed")
    is_server = op.get_bind().dialect.name == "postgresql"
    never = sa.false() if is_server else sa.text("0")
    op.add_column("evictions", sa.Column("committed", Flag, nullable=False, server_default=never))
    if is_server:
        # The view `experience` depends on `step_priorities`. Both keep what is granted on them.
        _replace_view("experience", revision)
        _replace_view("step_priorities", revision)
        for table, parameters in STORAGE.items():
            op.execute(f"ALTER TABLE {table} SET ({parameters})")
        for table in TOASTED:
            op.execute(f"ALTER TABLE {table} SET ({TOAST})")
    else:
        _make_view("step_priorities", revision)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table, parameters in STORAGE.items():
            op.execute(f"ALTER TABLE {table} RESET ({_names(parameters)})")
        for table in TOASTED:
            op.execute(f"ALTER TABLE {table} RESET ({_names(TOAST)})")
        _replace_view("step_priorities", "0001")
        _replace_view("experience", "0005")
    else:
        _make_view("step_priorities", "0001")
    op.drop_column("evictions", "committed")
    _rename("renewed", "since")


def _rename(old: str, new: str) -> None:
    op.execute(f"ALTER TABLE evictions RENAME COLUMN {old} TO {new}")


def _names(parameters: str) -> str:
    return ", ".join(one.split(" = ")[0] for one in parameters.split(", "))


def _make_view(name: str, made: str) -> None:
    connection = op.get_bind()
    op.execute(f"DROP VIEW {name}")
    connection.exec_driver_sql((SQL / connection.dialect.name / f"{made}_{name}.sql").read_text())


def _replace_view(name: str, made: str) -> None:
    sql = (SQL / "postgresql" / f"{made}_{name}.sql").read_text()
    op.get_bind().exec_driver_sql(sql.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
