"""Buffers, episodes, steps, segments and chunks; the view `experience`; the triggers that keep capacity and books.

Rows say what happened, chunks hold what was seen. `expdb/storage/tables.py` says what every column means.
"""

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
Text = sa.Text()
Blob = sa.LargeBinary()

CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}

VIEW = """
CREATE VIEW {schema}experience AS
SELECT b.name AS buffer, s.position, s.episode, e.episode_id, e.run, e.task_id, e.task_name, e.agent_id, e.group_id,
       e.status, e.length, e.episode_return, e.policy_version, e.episode_tags, e.started, e.ended,
       s.step, s.pre_agent, s.execute_time, s.reward, s.terminated, s.truncated, s.priority, s.tags,
       g.buffer_id || ':' || g.chunk || ':' || (g.chunk_row + s.position - g.first) AS payload
FROM {schema}buffers b
JOIN {schema}episodes e ON e.buffer_id = b.id
JOIN {schema}segments g ON g.buffer_id = e.buffer_id AND g.episode = e.id
JOIN {schema}steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last AND s.episode = e.id
"""

SQLITE_TRIGGERS = {
    # Capacity. Evicts the oldest steps, exactly as many as are over, whatever gaps `delete` left; then what only they
    # needed. `low` moves first, so that `steps_deleted` does not count the evicted rows once more. The OFFSET walks
    # over no more rows than are evicted.
    "buffers_capacity": """
        CREATE TRIGGER buffers_capacity AFTER UPDATE OF size, capacity ON buffers
        WHEN NEW.size > NEW.capacity
        BEGIN
            UPDATE buffers SET low = (SELECT position FROM steps WHERE buffer_id = NEW.id
                                      ORDER BY position LIMIT 1 OFFSET NEW.size - NEW.capacity)
             WHERE id = NEW.id;
            DELETE FROM steps
             WHERE buffer_id = NEW.id AND position < (SELECT low FROM buffers WHERE id = NEW.id);
            DELETE FROM episodes
             WHERE buffer_id = NEW.id AND status <> 'open'
               AND last_position < (SELECT low FROM buffers WHERE id = NEW.id)
               AND id IN (SELECT episode FROM segments WHERE buffer_id = NEW.id
                          AND last < (SELECT low FROM buffers WHERE id = NEW.id));
            DELETE FROM segments
             WHERE buffer_id = NEW.id AND last < (SELECT low FROM buffers WHERE id = NEW.id);
            DELETE FROM chunks
             WHERE buffer_id = NEW.id AND id < (SELECT low FROM buffers WHERE id = NEW.id);
            UPDATE buffers SET size = NEW.capacity, holes = CASE WHEN added - low = NEW.capacity THEN 0 ELSE holes END
             WHERE id = NEW.id;
        END
    """,
    # Steps deleted on purpose, by expdb or by hand, leave the count.
    "steps_deleted": """
        CREATE TRIGGER steps_deleted AFTER DELETE ON steps
        WHEN OLD.position >= (SELECT low FROM buffers WHERE id = OLD.buffer_id)
        BEGIN
            UPDATE buffers SET size = size - 1, holes = holes + 1, revision = revision + 1
             WHERE id = OLD.buffer_id;
        END
    """,
    "chunks_deleted": """
        CREATE TRIGGER chunks_deleted AFTER DELETE ON chunks
        BEGIN
            UPDATE buffers SET bytes = bytes - OLD.bytes WHERE id = OLD.buffer_id;
        END
    """,
    # What a query can filter by has changed; `revision` of the row says which rows to read again.
    "steps_revised": """
        CREATE TRIGGER steps_revised
        AFTER UPDATE OF step, pre_agent, execute_time, reward, terminated, truncated, tags ON steps
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE steps SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND position = NEW.position;
        END
    """,
    "steps_rewarded": """
        CREATE TRIGGER steps_rewarded AFTER UPDATE OF reward ON steps
        WHEN NEW.reward IS NOT OLD.reward
        BEGIN
            UPDATE episodes
               SET episode_return = coalesce(episode_return, 0) + coalesce(NEW.reward, 0) - coalesce(OLD.reward, 0)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.episode;
        END
    """,
    "episodes_revised": """
        CREATE TRIGGER episodes_revised
        AFTER UPDATE OF episode_id, run, task_id, task_name, agent_id, group_id, policy_version, episode_tags ON episodes
        BEGIN
            UPDATE buffers SET revision = revision + 1 WHERE id = NEW.buffer_id;
            UPDATE episodes SET revision = (SELECT revision FROM buffers WHERE id = NEW.buffer_id)
             WHERE buffer_id = NEW.buffer_id AND id = NEW.id;
        END
    """,
}

TRIGGERS = {"sqlite": SQLITE_TRIGGERS}

# What ANALYZE would find in a database of the size that matters: a million steps in ten thousand episodes. Without it
# SQLite joins the view from the wrong end (a thousand times slower), and a new database has nothing to analyze.
# (sqlite.org/fileformat2.html#the_sqlite_stat1_table: rows, then rows for each value of the first column, first two...)
SQLITE_STATISTICS = {
    "episodes": {
        "episodes": "10000 10000 1",
        "episodes_by_task_id": "10000 10000 4",
        "episodes_by_task_name": "10000 10000 200",
        "sqlite_autoindex_episodes_2": "10000 10000 1",
    },
    "steps": {"steps": "1000000 1000000 1", "steps_by_revision": "1000 1000 1"},
    "segments": {"segments": "20000 20000 1", "segments_by_episode": "20000 20000 2"},
    "chunks": {"sqlite_autoindex_chunks_1": "20000 20000 1"},
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    if dialect not in TRIGGERS:
        raise NotImplementedError(f"expdb has no triggers for {dialect} yet; use SQLite")
    op.create_table(
        "buffers",
        sa.Column("id", Integer, primary_key=True),
        sa.Column("name", Text, nullable=False, unique=True),
        sa.Column("capacity", Integer, sa.CheckConstraint("capacity > 0", name="buffers_capacity_positive")),
        sa.Column("added", Integer, nullable=False, server_default="0"),
        sa.Column("low", Integer, nullable=False, server_default="0"),
        sa.Column("size", Integer, nullable=False, server_default="0"),
        sa.Column("holes", Integer, nullable=False, server_default="0"),
        sa.Column("bytes", Integer, nullable=False, server_default="0"),
        sa.Column("episodes_added", Integer, nullable=False, server_default="0"),
        sa.Column("revision", Integer, nullable=False, server_default="0"),
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
            sa.CheckConstraint("status IN ('open', 'complete', 'aborted')", name="episodes_status_known"),
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
        sa.Column(
            "priority",
            Real,
            # A CHECK that evaluates to NULL passes, so this refuses negative and infinite priorities only; NaN becomes
            # NULL on SQLite and is refused by expdb before it gets here.
            sa.CheckConstraint("priority >= 0 AND priority <= 1.7976931348623157e308", name="steps_priority_finite"),
        ),
        sa.Column("tags", Text),
        sa.Column("revision", Integer),
        **CLUSTERED,
    )
    revised = sa.text("revision IS NOT NULL")
    op.create_index(
        "steps_by_revision", "steps", ["buffer_id", "revision"], sqlite_where=revised, postgresql_where=revised
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
        sa.Column("data", Blob, nullable=False),
        sqlite_strict=True,
    )
    op.execute(VIEW.format(schema="expdb." if dialect == "postgresql" else ""))
    for statement in TRIGGERS[dialect].values():
        op.execute(statement)
    if dialect == "sqlite":
        op.execute("ANALYZE sqlite_schema")
        for table, indexes in SQLITE_STATISTICS.items():
            for index, figures in indexes.items():
                op.execute(f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES ('{table}', '{index}', '{figures}')")


def downgrade() -> None:
    op.execute("DROP VIEW experience")
    for table in ("chunks", "segments", "steps", "episodes", "signatures", "buffers"):
        op.drop_table(table)
