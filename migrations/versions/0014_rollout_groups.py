"""Count the rollouts of each group, also if they were evicted; find active leases faster."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

SQL = Path(__file__).parent.parent / "sql"
TRIGGERS = "episodes_grouped", "episodes_completed", "episodes_regrouped", "episodes_ungrouped"


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    op.create_table(
        "rollout_groups",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("name", Text, primary_key=True),
        sa.Column("is_task", Flag, primary_key=True),
        sa.Column("task_id", Text, nullable=False),
        sa.Column("first_episode", Integer, nullable=False),
        sa.Column("episodes", Integer, nullable=False),
        sa.Column("complete", Integer, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO rollout_groups "
        "SELECT buffer_id, coalesce(group_id, task_id), group_id IS NULL, min(task_id), min(id), "
        "count(*), sum(CASE status WHEN 'complete' THEN 1 ELSE 0 END) "
        "FROM episodes GROUP BY 1, 2, 3"
    )
    is_incomplete = sa.text("status <> 'complete'")
    op.create_index(
        "episodes_incomplete",
        "episodes",
        ["buffer_id", "id"],
        sqlite_where=is_incomplete,
        postgresql_where=is_incomplete,
    )
    is_leased = sa.text("status = 'leased'")
    op.create_index(
        "leases_active",
        "leases",
        ["buffer_id", "expires"],
        sqlite_where=is_leased,
        postgresql_where=is_leased,
    )
    if dialect == "postgresql":
        op.execute(
            "ALTER TABLE rollout_groups SET (autovacuum_vacuum_scale_factor = 0.02, "
            "autovacuum_vacuum_insert_scale_factor = 0.05)"
        )
    else:  # what ANALYZE would find for many groups; see 0001
        connection.exec_driver_sql(
            "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES "
            "('rollout_groups', 'rollout_groups', '100000 100000 1 1'), "
            "('episodes', 'episodes_incomplete', '100 100 1'), "
            "('leases', 'leases_active', '16 16 1')"
        )
    for name in TRIGGERS:
        _create(name, revision)
    if dialect == "sqlite":
        op.execute("DROP TRIGGER IF EXISTS steps_revised")
        _create("steps_revised", revision)


def downgrade() -> None:
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for name in TRIGGERS:
        op.execute(f"DROP TRIGGER IF EXISTS {name}" + (" ON episodes" if is_postgresql else ""))
        if is_postgresql:
            op.execute(f"DROP FUNCTION IF EXISTS {name}")
    op.drop_index("leases_active")
    op.drop_index("episodes_incomplete")
    op.drop_table("rollout_groups")
    if not is_postgresql:
        op.execute(
            "DELETE FROM sqlite_stat1 WHERE tbl = 'rollout_groups' "
            "OR idx IN ('episodes_incomplete', 'leases_active')"
        )
        op.execute("DROP TRIGGER IF EXISTS steps_revised")
        _create("steps_revised", "0011")


def _create(name: str, version: str) -> None:
    connection = op.get_bind()
    sql = (SQL / connection.dialect.name / f"{version}_{name}.sql").read_text()
    for statement in sql.split("$$;\n"):  # the function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
