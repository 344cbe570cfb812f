"""Replace triggers on PostgreSQL, so that they plan statements for many rows at each call."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SQL = Path(__file__).parent.parent / "sql"
# The triggers to replace, each with its table and the migration that created the previous version.
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
