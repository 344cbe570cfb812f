"""The view `experience_episodes`: one row per episode, where `experience` has one per step."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# `steps_held` counts rows, not the span of segments: steps that were deleted by hand leave gaps in these.
VIEW = """
CREATE VIEW experience_episodes AS
SELECT b.name AS buffer, e.id AS episode, e.episode_id, e.run, e.task_id, e.task_name, e.agent_id, e.group_id, e.status, e.length,
       e.episode_return, e.policy_version, {episode_tags} AS episode_tags, e.started, e.ended,
       (SELECT count(*) FROM segments g JOIN steps s ON s.buffer_id = g.buffer_id AND s.position BETWEEN g.first AND g.last
         WHERE g.buffer_id = e.buffer_id AND g.episode = e.id) AS steps_held
FROM buffers b
JOIN episodes e ON e.buffer_id = b.id
"""


def upgrade() -> None:
    connection = op.get_bind()
    tags = "e.episode_tags" if connection.dialect.name == "sqlite" else "e.episode_tags::jsonb"
    connection.exec_driver_sql(VIEW.format(episode_tags=tags))


def downgrade() -> None:
    op.execute("DROP VIEW experience_episodes")
