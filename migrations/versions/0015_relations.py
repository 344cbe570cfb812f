"""Add relations between episodes, the flag `trainable`, and labels of policy versions."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

SQL = Path(__file__).parent.parent / "sql"
COLUMNS = {
    "parent_episode": Integer,
    "parent_step": Integer,
    "parent_position": Integer,
    "relation": Text,
    "root_episode": Integer,
    "shared_steps": Integer,
    "trainable": Flag,
}
# The views that change, each with the migration that created its previous version.
VIEWS = {"experience": "0011", "experience_episodes": "0005"}
TRIGGERS = "episodes_grouped", "episodes_completed", "episodes_regrouped", "episodes_ungrouped"


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("episodes", sa.Column(name, kind))
    op.add_column("buffers", sa.Column("version_labels", Text))
    has_root = sa.text("root_episode IS NOT NULL")
    op.create_index(
        "episodes_by_root",
        "episodes",
        ["buffer_id", "root_episode"],
        sqlite_where=has_root,
        postgresql_where=has_root,
    )
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":  # the statistics that ANALYZE would write; see 0001
        connection.exec_driver_sql(
            "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES "
            "('episodes', 'episodes_by_root', '1000 1000 50')"
        )
    _recreate(dict.fromkeys(VIEWS, revision), revision)


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW IF EXISTS {name}")
    for name in TRIGGERS:
        _drop_trigger(name)
    op.drop_index("episodes_by_root")
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DELETE FROM sqlite_stat1 WHERE idx = 'episodes_by_root'")
    for name in COLUMNS:
        op.drop_column("episodes", name)
    op.drop_column("buffers", "version_labels")
    _recreate(VIEWS, "0014")


def _recreate(views: dict[str, str], triggers: str) -> None:
    """Drop the views and triggers, and create them from the files of a migration."""
    for name, version in views.items():
        op.execute(f"DROP VIEW IF EXISTS {name}")
        _create(name, version)
    for name in TRIGGERS:
        _drop_trigger(name)
        _create(name, triggers)


def _drop_trigger(name: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER IF EXISTS {name} ON episodes")
        op.execute(f"DROP FUNCTION IF EXISTS {name}")
    else:
        op.execute(f"DROP TRIGGER IF EXISTS {name}")


def _create(name: str, version: str) -> None:
    connection = op.get_bind()
    sql = (SQL / connection.dialect.name / f"{version}_{name}.sql").read_text()
    for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
