"""Scores, annotations, agents of steps, episodes that are resumed, and rewound consumers."""

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
SQLITE_STATISTICS = {
    "scores": "1000000 1000000 1",
    "scores_by_episode": "1000000 1000000 100",
    "annotations": "1000000 1000000 4 1 1",
    "steps_with_agent": "1000 1000 100",
}
# Triggers that change, with their table and the migrations that made them before.
TRIGGERS = {
    "steps_revised": ("steps", "0005"),
    "steps_deleted": ("steps", "0001"),
    "buffers_evicted": ("buffers", "0009"),
}
APPEND = (
    "append(bigint, bigint, bigint, text, boolean, float8, json, bigint[], bigint[], text[], "
    "float8[], float8[], boolean[], boolean[], text[], bigint[], bigint[], {}bigint[], bigint[], "
    "bytea[], bigint, bigint, text)"
)
TEXTS = (("steps", "scores"), ("steps", "agent_id"), ("buffers", "policy_versions"))
COUNTERS = (("episodes", "generation"), ("consumers", "rewinds"))


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    for table, column in TEXTS:
        op.add_column(table, sa.Column(column, Text))
    own_agent = sa.text("agent_id IS NOT NULL")
    op.create_index(
        "steps_with_agent",
        "steps",
        ["buffer_id", "agent_id"],
        sqlite_where=own_agent,
        postgresql_where=own_agent,
    )
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
    op.create_table(
        "annotations",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("position", Integer, primary_key=True),
        sa.Column("name", Text, primary_key=True),
        sa.Column("version", Integer, primary_key=True),
        sa.Column("shape", Text, nullable=False),
        sa.Column("crc", Integer, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    if dialect == "postgresql":
        for table in ("scores", "annotations"):
            op.execute(f"ALTER TABLE {table} SET ({BUSY})")
    else:
        for index, figures in SQLITE_STATISTICS.items():
            op.get_bind().exec_driver_sql(
                "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)",
                (index.split("_")[0], index, figures),
            )
    _drop("VIEW", "experience")
    _make("experience", revision)
    _make("experience_scores", revision)
    for name, (table, _) in TRIGGERS.items():
        _drop("TRIGGER", name, table)
        _make(name, revision)
    _make("episodes_deleted", revision)
    if dialect == "postgresql":
        op.execute(f"DROP FUNCTION {APPEND.format('')}")
        _make("append", revision)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION {APPEND.format('text[], ')}")
        _make("append", "0009")
    _drop("TRIGGER", "episodes_deleted", "episodes")
    for name, (table, _) in TRIGGERS.items():
        _drop("TRIGGER", name, table)
    _drop("VIEW", "experience_scores")
    _drop("VIEW", "experience")
    op.drop_table("annotations")
    op.drop_table("scores")
    for table, column in reversed(COUNTERS):
        op.drop_column(table, column)
    op.drop_index("steps_with_agent")
    for table, column in reversed(TEXTS):
        op.drop_column(table, column)
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "DELETE FROM sqlite_stat1 WHERE tbl IN ('scores', 'annotations') "
            "OR idx = 'steps_with_agent'"
        )
        _make("experience", "0005")
    else:
        _make("experience", "0008")
    for name, (_, before) in TRIGGERS.items():
        _make(name, before)


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
