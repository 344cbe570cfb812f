"""The policy versions of each step; the first and the last of its episode follow."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

SQL = Path(__file__).parent.parent / "sql"
COLUMNS = (
    ("steps", "policy_version"),
    ("steps", "policy_version_end"),
    ("episodes", "first_policy_version"),
    ("episodes", "last_policy_version"),
)
VIEWS = {"experience": "0001", "experience_episodes": "0002"}  # the migration that made each before
TRIGGERS = {"steps_revised": "0001"}
NEW = {"episodes_versioned": "episodes"}
APPEND = (
    "append(bigint, bigint, bigint, text, boolean, float8, json, bigint[], bigint[], text[], "
    "float8[], float8[], boolean[], boolean[], text[], {}bigint[], bigint[], bytea[], bigint, "
    "bigint, text)"
)


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    _drop_replaced(dialect, "")
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, Integer))
    op.execute(
        "UPDATE episodes SET first_policy_version = policy_version, "
        "last_policy_version = policy_version WHERE policy_version IS NOT NULL"
    )
    _make(dialect, dict.fromkeys((*VIEWS, *TRIGGERS, *NEW), revision))
    if dialect == "postgresql":
        _make(dialect, {"append": revision})


def downgrade() -> None:
    dialect = op.get_bind().dialect.name
    for name, table in NEW.items():
        _drop_trigger(dialect, name, table)
    _drop_replaced(dialect, "bigint[], bigint[], ")
    for table, column in reversed(COLUMNS):
        op.drop_column(table, column)
    _make(dialect, VIEWS | TRIGGERS)
    if dialect == "postgresql":
        _make(dialect, {"append": "0001"})


def _drop_replaced(dialect: str, versions: str) -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    for name in TRIGGERS:
        _drop_trigger(dialect, name, "steps")
    if dialect == "postgresql":
        op.execute(f"DROP FUNCTION {APPEND.format(versions)}")


def _drop_trigger(dialect: str, name: str, table: str) -> None:
    if dialect == "postgresql":
        op.execute(f"DROP TRIGGER {name} ON {table}")
        op.execute(f"DROP FUNCTION {name}")
    else:
        op.execute(f"DROP TRIGGER {name}")


def _make(dialect: str, revisions: dict[str, str]) -> None:
    for name, made in revisions.items():
        sql = (SQL / dialect / f"{made}_{name}.sql").read_text()
        for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
            op.get_bind().exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
