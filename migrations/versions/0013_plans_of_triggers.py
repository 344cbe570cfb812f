"""Triggers on PostgreSQL that plan statements for many rows at each call; SQLite is unchanged."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SQL = Path(__file__).parent.parent / "sql"
# Triggers that change, with their table and the migration that made them before.
TRIGGERS = {
    "steps_revised": ("steps", "0011"),
    "episodes_revised": ("episodes", "0001"),
    "steps_deleted": ("steps", "0011"),
}


def upgrade() -> None:
    for name, (table, _) in TRIGGERS.items():
        _replace(name, table, revision)


def downgrade() -> None:
    for name, (table, before) in TRIGGERS.items():
        _replace(name, table, before)


def _replace(name: str, table: str, version: str) -> None:
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    op.execute(f"DROP TRIGGER {name} ON {table}")
    op.execute(f"DROP FUNCTION {name}")
    sql = (SQL / "postgresql" / f"{version}_{name}.sql").read_text()
    for statement in sql.split("$$;\n"):  # the function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
