"""Buffers, episodes, steps, segments and chunks; the view `experience`.

The triggers that keep capacity and counters.

Rows say what happened, chunks hold what was seen. `expdb/sql/tables.py` says what every column
means.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# STRICT tables of SQLite know five type names only.
Integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real = sa.Double().with_variant(sa.REAL(), "sqlite")
Flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
Text = sa.Text().with_variant(
    sa.Text(collation="C"), "postgresql"
)  # text compares by code point, as on SQLite
Blob = sa.LargeBinary()
Priorities = sa.LargeBinary().with_variant(sa.ARRAY(sa.Double()), "postgresql")

CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}

# In this order, as PostgreSQL wants what a view reads to be there.
OBJECTS = {
    "sqlite": (
        "step_priorities",
        "experience",
        "buffers_capacity",
        "steps_deleted",
        "chunks_deleted",
        "steps_revised",
        "steps_rewarded",
        "episodes_revised",
    ),
    "postgresql": (
        "step_priorities",
        "experience",
        "buffers_capacity",
        "steps_deleted",
        "chunks_deleted",
        "steps_revised",
        "episodes_revised",
        "field",
        "append",
    ),
}
SQL = Path(__file__).parent.parent / "sql"

# What ANALYZE would find in a database of the size that matters: a million steps in ten thousand
# episodes. Without it SQLite joins the view from the wrong end (a thousand times slower), and a new
# database has nothing to analyze. (sqlite.org/fileformat2.html#the_sqlite_stat1_table: rows, then
# rows for each value of the first column, first two...)
SQLITE_STATISTICS = {
    "episodes": {
        "episodes": "10000 10000 1",
        "episodes_by_task_id": "10000 10000 4",
        "episodes_by_task_name": "10000 10000 200",
        "sqlite_autoindex_episodes_2": "10000 10000 1",
        "episodes_by_revision": "1000 1000 1",
    },
    "steps": {"steps": "1000000 1000000 1", "steps_by_revision": "1000 1000 1"},
    "segments": {"segments": "20000 20000 1", "segments_by_episode": "20000 20000 2"},
    "chunks": {"sqlite_autoindex_chunks_1": "20000 20000 1"},
    "priorities": {"sqlite_autoindex_priorities_1": "1000 1000 1"},
}


def upgrade() -> None:
    connection = op.get_bind()
    dialect = connection.dialect.name
    op.create_table(
        "buffers",
        sa.Column("id", Integer, sa.Identity(), primary_key=True),
        sa.Column("name", Text, nullable=False, unique=True),
        sa.Column(
            "capacity",
            Integer,
            sa.CheckConstraint("capacity > 0", name="buffers_capacity_positive"),
        ),
        sa.Column("added", Integer, nullable=False, server_default="0"),
        sa.Column("low", Integer, nullable=False, server_default="0"),
        sa.Column("size", Integer, nullable=False, server_default="0"),
        sa.Column("holes", Integer, nullable=False, server_default="0"),
        sa.Column("deleted", Integer, nullable=False, server_default="0"),
        sa.Column("bytes", Integer, nullable=False, server_default="0"),
        sa.Column("episodes_added", Integer, nullable=False, server_default="0"),
        sa.Column("revision", Integer, nullable=False, server_default="0"),
        sa.Column("priorities", Integer, nullable=False, server_default="0"),
        sa.Column("fields", Text, nullable=False, server_default="{}"),
        sa.Column("fields_version", Integer, nullable=False, server_default="0"),
        sqlite_strict=True,
        sqlite_autoincrement=True,  # a dropped buffer's id must not serve another under old handles
    )
    op.create_table(
        "signatures",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("schema", Blob, nullable=False),
        **CLUSTERED,
    )
    op.create_table(
        "episodes",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("episode_id", Text, nullable=False),
        sa.Column("run", Text, nullable=False),
        sa.Column("task_id", Text, nullable=False),
        sa.Column("task_name", Text),
        sa.Column("agent_id", Text, nullable=False),
        sa.Column("group_id", Text),
        sa.Column(
            "status",
            Text,
            sa.CheckConstraint(
                "status IN ('open', 'complete', 'aborted')", name="episodes_status_known"
            ),
            nullable=False,
        ),
        sa.Column("length", Integer, nullable=False, server_default="0"),
        sa.Column("episode_return", Real),
        sa.Column("policy_version", Integer),
        sa.Column("episode_tags", Text),
        sa.Column("started", Real, nullable=False),
        sa.Column("ended", Real),
        sa.Column("ordered", Flag, nullable=False, server_default=sa.true()),
        sa.Column("last_step", Integer),
        sa.Column("last_position", Integer, nullable=False, server_default="-1"),
        sa.Column("tail_chunk", Integer),
        sa.Column("tail_row", Integer),
        sa.Column("tail_fields", Text),
        sa.Column("revision", Integer),
        sa.UniqueConstraint("buffer_id", "episode_id", name="episodes_by_episode_id"),
        **CLUSTERED,
    )
    op.create_index("episodes_by_task_id", "episodes", ["buffer_id", "task_id"])
    op.create_index("episodes_by_task_name", "episodes", ["buffer_id", "task_name"])
    op.create_table(
        "steps",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("position", Integer, primary_key=True),
        sa.Column("episode", Integer, nullable=False),
        sa.Column("step", Integer, nullable=False),
        sa.Column("pre_agent", Text),
        sa.Column("execute_time", Real, nullable=False),
        sa.Column("reward", Real),
        sa.Column("terminated", Flag, nullable=False),
        sa.Column("truncated", Flag, nullable=False),
        sa.Column("tags", Text),
        sa.Column("revision", Integer),
        **CLUSTERED,
    )
    revised = sa.text("revision IS NOT NULL")
    for table in ("steps", "episodes"):
        op.create_index(
            f"{table}_by_revision",
            table,
            ["buffer_id", "revision"],
            sqlite_where=revised,
            postgresql_where=revised,
        )
    op.create_table(
        "segments",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("last", Integer, primary_key=True),
        sa.Column("first", Integer, nullable=False),
        sa.Column("episode", Integer, nullable=False),
        sa.Column("ordinal", Integer, nullable=False),
        sa.Column("chunk", Integer, nullable=False),
        sa.Column("chunk_row", Integer, nullable=False),
        **CLUSTERED,
    )
    op.create_index("segments_by_episode", "segments", ["buffer_id", "episode"])
    op.create_table(
        "chunks",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("first", Integer, nullable=False),
        sa.Column("episode", Integer),
        sa.Column("rows", Integer, nullable=False),
        sa.Column("signature", Integer, nullable=False),
        sa.Column("bytes", Integer, nullable=False),
        sa.Column("crc", Integer, nullable=False),
        sa.Column("write_id", Text),
        sa.Column("data", Blob, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "priorities",
        sa.Column("buffer_id", Integer, primary_key=True),
        sa.Column("block", Integer, primary_key=True),
        sa.Column("version", Integer, nullable=False),
        sa.Column("data", Priorities, nullable=False),
        sqlite_strict=True,
    )
    for name in OBJECTS[dialect]:
        sql = (SQL / dialect / f"{revision}_{name}.sql").read_text()
        for statement in sql.split("$$;\n"):  # a function, and the trigger that calls it
            connection.exec_driver_sql(statement + "$$" * (statement.count("$$") % 2))
    if dialect == "postgresql":
        # Chunks are compressed already: PostgreSQL would try again, and cut them up for it.
        connection.exec_driver_sql("ALTER TABLE chunks ALTER COLUMN data SET STORAGE EXTERNAL")
        connection.exec_driver_sql("ALTER TABLE priorities ALTER COLUMN data SET STORAGE EXTERNAL")
    else:
        connection.exec_driver_sql("ANALYZE sqlite_schema")
        for table, indexes in SQLITE_STATISTICS.items():
            for index, figures in indexes.items():
                connection.exec_driver_sql(
                    "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)",
                    (table, index, figures),
                )


def downgrade() -> None:
    op.execute("DROP VIEW experience")
    op.execute("DROP VIEW step_priorities")
    tables = "priorities", "chunks", "segments", "steps", "episodes", "signatures", "buffers"
    for table in tables:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        for name in OBJECTS["postgresql"][2:]:
            op.execute(f"DROP FUNCTION {name}")
