"""The view `experience_episodes`: one row per episode, where `experience` has one per step."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    connection = op.get_bind()
    path = SQL / connection.dialect.name / "0002_experience_episodes.sql"
    connection.exec_driver_sql(path.read_text())


def downgrade() -> None:
    op.execute("DROP VIEW experience_episodes")
