"""Let chunks store arrays of varying length as prefix lengths and suffixes.

No table changes. The new version makes older versions of expdb refuse the database, because they
cannot read such chunks. Chunks that exist keep their layout.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    rows = op.get_bind().execute(sa.text("SELECT buffer_id, fields FROM signatures"))
    for buffer_id, fields in rows:
        for name, value in json.loads(fields).items():
            if len(value) > 2:
                raise ValueError(
                    f"field {name!r} of buffer {buffer_id} has chunks that older versions cannot "
                    "read; delete the buffer before the downgrade"
                )
