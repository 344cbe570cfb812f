"""Scores of steps and episodes, episodes that another writer resumes, rewound consumers."""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

SQL = Path(__file__).parent.parent / "sql"
BUSY = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05"
# What ANALYZE would find for a million scores of ten thousand episodes; see 0001.
SQLITE_STATISTICS = {"scores": "1000000 1000000 1", "scores_by_episode": "1000000 1000000 100"}
COUNTERS = (("episodes", "generation"), ("consumers", "rewinds"))


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    op.add_column("steps", sa.Column("scores", Text))
    for table, column in COUNTERS:
        op.add_column(table, sa.Column(column, Integer, nullable=False, server_default="0"))
    op.create_table(
        "scores",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("episode", Integer, nullable=False),
        sa.Column("position", Integer),
        sa.Column("name", Text, nullable=False),
        sa.Column("value", Real),
        sa.Column("scored_by", Text),
        sa.Column("status", Text),
        sa.Column("detail", Text),
        sa.Column("scored", Real, nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("scores_by_episode", "scores", ["buffer_id", "episode"])
    if dialect == "postgresql":
        op.execute(f"ALTER TABLE scores SET ({BUSY})")
    else:
        for index, figures in SQLITE_STATISTICS.items():
            op.get_bind().exec_driver_sql(
                "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('scores', ?, ?)",
                (index, figures),
            )
    _drop("VIEW", "experience")
    _make("experience", revision)
    _make("experience_scores", revision)
    _drop("TRIGGER", "steps_revised", "steps")
    _make("steps_revised", revision)
    _make("episodes_deleted", revision)
    if dialect == "postgresql":
        _replace_append(revision)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        _replace_append("0009")
    _drop("TRIGGER", "episodes_deleted", "episodes")
    _drop("TRIGGER", "steps_revised", "steps")
    _drop("VIEW", "experience_scores")
    _drop("VIEW", "experience")
    op.drop_table("scores")
    for table, column in reversed(COUNTERS):
        op.drop_column(table, column)
    op.drop_column("steps", "scores")
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DELETE FROM sqlite_stat1 WHERE tbl = 'scores'")
        _make("experience", "0005")
    else:
        _make("experience", "0008")
    _make("steps_revised", "0005")


def _replace_append(version: str) -> None:
    sql = (SQL / "postgresql" / f"{version}_append.sql").read_text()
    op.get_bind().exec_driver_sql(sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1))


def _drop(kind: str, name: str, table: str = "") -> None:
    if kind == "TRIGGER" and op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
        op.execute(f"DROP FUNCTION IF EXISTS {name}")
    else:
        op.execute(f"DROP {kind} IF EXISTS {name}")


def _make(name: str, version: str) -> None:
    connection = op.get_bind()
    sql = (SQL / connection.dialect.name / f"{version}_{name}.sql").read_text()
    for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
        connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
