"""${message}.

On SQLite use native ALTER TABLE (op.add_column, op.drop_column): op.batch_alter_table rebuilds the table and silently
drops its triggers. tests/test_migrations.py checks that every trigger still stands after this revision.
"""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
