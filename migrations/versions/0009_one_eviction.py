"""Evict by one trigger, and return the buffer's counters from `append`.

The trigger deletes all rows before `low` whenever `low` rises.
"""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    _drop_trigger("buffers_capacity")
    _create_trigger("buffers_evicted", revision)
    _create_trigger("buffers_capacity", revision)
    _replace_append(revision)


def downgrade() -> None:
    _drop_trigger("buffers_capacity")
    _drop_trigger("buffers_evicted")
    _create_trigger("buffers_capacity", "0007")
    _replace_append("0005")


def _drop_trigger(name: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER {name} ON buffers")
        op.execute(f"DROP FUNCTION {name}")
    else:
        op.execute(f"DROP TRIGGER {name}")


def _replace_append(version: str) -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        sql = (SQL / "postgresql" / f"{version}_append.sql").read_text()
        connection.exec_driver_sql(sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))


def _create_trigger(name: str, version: str) -> None:
    connection = op.get_bind()
    sql = (SQL / connection.dialect.name / f"{version}_{name}.sql").read_text()
    for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
